"""Measurements of the package's costs: ``python -m benchmarks NAME``.

Imports nothing, because ``fresh_process`` measures the time of imports.
"""
