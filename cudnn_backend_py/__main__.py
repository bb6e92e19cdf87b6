"""``python -m cudnn_backend_py`` is the command ``cudnn-backend``."""

from __future__ import annotations

import atexit
import gc
import sys

from .system.gc_pause import collect_garbage_rarely

__all__ = ["main"]


def main() -> None:
    """Run the command; Ctrl-C gives exit code 130."""
    collect_garbage_rarely()
    atexit.register(gc.freeze)  # or the interpreter looks for garbage three times while it ends
    try:
        try:
            from .cli.commands import main as command
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(__package__ or "cudnn_backend_py"):
                raise
            _run_doctor_or_report_missing_package(error.name or str(error))
        else:
            command(prog_name="cudnn-backend")
    except KeyboardInterrupt:
        sys.exit(130)


def _run_doctor_or_report_missing_package(missing: str) -> None:
    """Run the command ``doctor``; for another command, report the missing package and exit with 2."""
    import json

    given = " ".join(sys.argv[1:]).replace("--format=", "--format ")
    if given not in ("doctor", "doctor --format text", "doctor --format json"):
        told = f"the command line needs {missing}, which is not installed: pip install {missing}\n"
        sys.stderr.write(told + "cudnn-backend doctor [--format json] runs without it\n")
        sys.exit(2)
    from .info import collect_info, render_info
    from .printable import make_lines_printable

    facts = collect_info()
    sys.stderr.write(f"note: {missing} is not installed, which every other command needs\n")
    text = json.dumps(facts, indent=1) + "\n" if given.endswith("json") else make_lines_printable(render_info(facts))
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
