"""The command ``cudnn-backend``."""
