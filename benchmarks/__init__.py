"""What this package costs: ``python -m benchmarks NAME``.

Imports nothing: ``fresh_process`` measures what importing costs.
"""
