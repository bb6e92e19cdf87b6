"""A small GPT, trained on sequences of random lengths and served from pages, with attention of several providers.

``python -m benchmarks model``. Imports nothing.
"""
