"""A small GPT trained on random lengths and served from pages, with several attention implementations.

``python -m benchmarks model``. Imports nothing.
"""
