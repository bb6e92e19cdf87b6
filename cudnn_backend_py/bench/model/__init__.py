"""A small GPT, trained on sequences of random lengths and served from pages, with attention of several makers.

``python -m cudnn_backend_py.bench model``. Imports nothing.
"""
