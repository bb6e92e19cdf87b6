"""What is wrong with the files of an installed cuDNN whose process died."""

from __future__ import annotations

from ..target.environment import Fault, fault_after_crash
from .store import find_installed

__all__ = ["environment_fault_after_crash"]


def environment_fault_after_crash(version: str | None, *, in_start: bool = False) -> Fault | None:
    """Return what :func:`~cudnn_backend_py.target.environment.fault_after_crash` finds for a version.

    Parameters
    ----------
    version
        An installed one, or None for the library this process would load; None is returned if it is not installed.
    """
    if version is None:
        return fault_after_crash(in_start=in_start)
    installed = find_installed(version)
    if installed is None:
        return None
    nvrtc = None if installed.nvrtc is None else str(installed.nvrtc)
    return fault_after_crash(str(installed.library), nvrtc, in_start=in_start)
