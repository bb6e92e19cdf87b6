"""Compare attention implementations: ``cudnn-backend plan compare``. Imports nothing."""
