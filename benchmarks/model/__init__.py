"""Benchmark: train and serve a small GPT on random lengths with attention of several providers.

Run it with ``python -m benchmarks model``. This file imports nothing.
"""
