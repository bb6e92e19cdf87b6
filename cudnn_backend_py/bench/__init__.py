"""What this package costs: ``cudnn-backend bench`` (``run``) and ``python -m cudnn_backend_py.bench NAME``.

Imports nothing: ``fresh_process`` measures what importing costs.
"""
