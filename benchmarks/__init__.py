"""Benchmarks of this package: ``python -m benchmarks NAME``.

Imports nothing: ``fresh_process`` measures what importing costs.
"""
