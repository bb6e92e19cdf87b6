"""Compare attention implementations: ``cudnn-backend compare``. Imports nothing."""
