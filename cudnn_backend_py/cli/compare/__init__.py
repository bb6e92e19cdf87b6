"""Which attention is the fastest: ``cudnn-backend compare``. Imports nothing."""
