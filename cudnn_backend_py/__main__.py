"""``python -m cudnn_backend_py`` is the command ``cudnn-backend``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command; Ctrl-C is exit code 130 from here on."""
    try:
        from .cli.commands import main as command

        command(prog_name="cudnn-backend")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
