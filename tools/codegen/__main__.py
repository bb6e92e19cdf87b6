"""Write ``cudnn_backend_py/generated/``, or check that it is up to date."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from pathlib import Path

from cudnn_backend_py.system.version import parse_version_numbers

from . import header, model, writer

_CODEGEN_FOLDER = Path(__file__).parent
_REPOSITORY_FOLDER = _CODEGEN_FOLDER.parents[1]
GENERATED_FOLDER = _REPOSITORY_FOLDER / "cudnn_backend_py" / "generated"


def read_pinned_cudnn_version() -> tuple[int, ...]:
    """Return the version of the header to read: NEWEST in the Makefile, which is also the installed cuDNN."""
    found = re.search(r"^NEWEST := (.+)$", (_REPOSITORY_FOLDER / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "the Makefile has no line NEWEST := VERSION"
    return parse_version_numbers(found[1])


PINNED_VERSION = read_pinned_cudnn_version()
_WHEEL_FOLDERS = ("nvidia/cudnn", "nvidia/cudnn_jit")


def find_cudnn_header() -> Path:
    """Return the path of cudnn_graph.h in a wheel of this Python; if there are several, that of the pinned version."""
    folders = [
        Path(entry) / folder / "include" for entry in sys.path if os.path.isabs(entry) for folder in _WHEEL_FOLDERS
    ]
    found = [path for folder in folders if (path := folder / "cudnn_graph.h").is_file()]
    if not found:
        raise SystemExit("no cudnn_graph.h in the installed wheels; install nvidia-cudnn-cu12 or give --header")
    return next((path for path in found if header.read_header_version(path.read_text()) == PINNED_VERSION), found[0])


def generate_files(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the text of every generated file, and the problems found."""
    parsed = header.parse_header(path.read_text())
    if parsed.version != PINNED_VERSION:
        raise SystemExit(f"{path} is version {parsed.version}, the generator is pinned to {PINNED_VERSION}")
    built = model.build_model(parsed, model.FactsFile(_CODEGEN_FOLDER / "facts.toml"))
    return writer.generate_all_files(built), built.problems


def diff_generated_files(wanted: dict[str, str], folder: Path) -> str:
    """Return a unified diff from the files in the folder to the generated ones; empty if equal."""
    present = {path.name for path in folder.glob("*") if path.is_file()}
    diff: list[str] = []
    for name in sorted(present | set(wanted)):
        path = folder / name
        old = path.read_text().splitlines(True) if path.is_file() else []
        new = wanted.get(name, "").splitlines(True)
        diff += difflib.unified_diff(old, new, f"{folder.name}/{name}", f"{folder.name}/{name} (regenerated)")
    return "".join(diff)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0 on success, 1 if files are stale or facts are missing."""
    parser = argparse.ArgumentParser(prog=writer.CODEGEN_COMMAND, description=__doc__)
    parser.add_argument("--check", action="store_true", help="write no files; print the differences")
    parser.add_argument("--header", type=Path, help="path of the cudnn_graph.h to read")
    parser.add_argument("--output", type=Path, default=GENERATED_FOLDER, help="folder to write or check")
    options = parser.parse_args(arguments)
    wanted, problems = generate_files(options.header or find_cudnn_header())
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    if options.check:
        diff = diff_generated_files(wanted, options.output)
        if diff:
            sys.stdout.write(diff)
            print(f"generated files are stale; to fix them run: {writer.CODEGEN_COMMAND}", file=sys.stderr)
        return int(bool(diff or problems))
    options.output.mkdir(exist_ok=True)
    for name, text in wanted.items():
        (options.output / name).write_text(text)
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
