"""A small GPT, trained on sequences of random lengths and served from pages, with attention of several makers.

``python -m benchmarks model``. Imports nothing.
"""
