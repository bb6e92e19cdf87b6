"""``python -m cudnn_backend_py`` is the command ``cudnn-backend``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command; Ctrl-C is exit code 130 from here on."""
    try:
        try:
            from .cli.commands import main as command
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(__package__ or "cudnn_backend_py"):
                raise
            _run_without(error.name or str(error))
        else:
            command(prog_name="cudnn-backend")
    except KeyboardInterrupt:
        sys.exit(130)


def _run_without(missing: str) -> None:
    """Run ``info``, which takes the standard library alone; of any other command say what it lacks, with code 2."""
    import argparse
    import json

    parser = argparse.ArgumentParser("cudnn-backend", add_help=False)
    parser.add_argument("command", nargs="?")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    asked, rest = parser.parse_known_args()
    if asked.command != "info" or rest:
        told = f"the command line needs {missing}, which is not installed: pip install {missing}\n"
        sys.stderr.write(told + "cudnn-backend info [--format json] runs without it\n")
        sys.exit(2)
    from .info import collect_info, render_info
    from .printable import printable_lines

    facts = collect_info()
    sys.stderr.write(f"note: {missing} is not installed, which every other command needs\n")
    sys.stdout.write(
        json.dumps(facts, indent=1) + "\n" if asked.format == "json" else printable_lines(render_info(facts))
    )


if __name__ == "__main__":
    main()
