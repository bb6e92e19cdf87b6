"""``python -m cudnn_backend_py`` is the command ``cudnn-backend``."""

from .cli import main

main(prog_name="cudnn-backend")
