"""Training and serving of a small GPT with random lengths, with attention of several providers.

``python -m benchmarks model``. Imports nothing.
"""
