"""Disassemble the machine code of the judged plans' kernels, for ``explain --code``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..system.atomic_file import write_atomically
from .output import print_warning

if TYPE_CHECKING:
    from ..diagnose import Verdict

__all__ = ["disassemble_kernels"]


def disassemble_kernels(verdicts: Iterable[Verdict], folder: str) -> None:
    """Write the SASS of each kernel next to its file of machine code in `folder`; print the names to standard error.

    Kernels of cuDNN's libraries have no file; they are named in a line, as is a missing or failing ``nvdisasm``.
    """
    import shutil

    from ..native.find import find_wheel_program

    program = shutil.which("nvdisasm") or find_wheel_program("nvdisasm")
    files: dict[Path, None] = {}
    for verdict in verdicts:
        none = f"no code of {verdict.graph}"
        plans = [one for one in verdict.candidates if one.workspace_bytes is not None]
        for plan in plans:
            files |= dict.fromkeys(Path(folder, f"{kernel.file_name}.cubin") for kernel in plan.kernels or ())
            if plan.kernels is None:
                print_warning(f"{none} on {verdict.target}: that of {plan.tag} is in cuDNN's libraries")
        if not plans:
            print_warning(f"{none} on {verdict.target}: no plan was built")
    for cubin in files:
        sass = None if program is None else _disassemble_cubin(program, cubin)
        print_warning(f"code: {cubin}" + (f", {sass}" if sass else ""))
    if files and program is None:
        print_warning(
            "no SASS: nvdisasm is not on PATH and in no wheel; it comes with the CUDA toolkit, and is installed by "
            "pip install nvidia-cuda-nvdisasm"
        )


def _disassemble_cubin(program: str, cubin: Path) -> Path | None:
    """Disassemble a file of machine code to SASS; return the path, or None after printing why it failed."""
    from ..system.child import run_command

    done = run_command([program, "-c", str(cubin)], os.environ, captured=True)
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        print_warning(f"no SASS of {cubin.name}: {program} ended with {done.returncode}: {last}")
        return None
    sass = cubin.with_suffix(".sass")
    write_atomically(sass, done.stdout)
    return sass
