"""Facts of this machine and this process, which ``cudnn-backend info`` shows and a record keeps."""

from __future__ import annotations

import sys
from typing import Any

from .errors import EnvironmentNotReady
from .native import library, load_driver
from .native.fast_call import compiled_library
from .system.version import __version__
from .target import list_profiles, read_device
from .versions import store as versions

__all__ = ["collect_info"]


def collect_info() -> dict[str, Any]:
    """Return what ``cudnn-backend info`` shows; what cannot be had is said in its place."""
    driver = load_driver()
    facts: dict[str, Any] = {"cudnn_backend_py": __version__, "python": sys.version.split()[0]}
    try:
        lib = library()
    except EnvironmentNotReady as error:
        facts["cudnn"] = f"not found; {error.sections.get('where', '')}".replace("\n", "; ")
    else:
        facts |= {
            "cudnn": lib.version_text,
            "path": lib.path,
            "found by": lib.place.how,
            "built for CUDA": f"{lib.cuda_version // 1000}.{lib.cuda_version // 10 % 100}",
            "nvrtc": lib.nvrtc.path or f"not found; {lib.nvrtc.found}".replace("\n", "; "),
        }
    facts["driver"] = f"{driver.kind}, {driver.path or 'no file'}" + (f" ({driver.note})" if driver.note else "")
    facts["driver version"] = driver.version or "none"
    facts["compiled call"] = "not built: calls take the longer way" if compiled_library() is None else "built"
    facts["gpus"] = [read_device(index)["deviceName"] for index in range(driver.devices)] or "none in this process"
    try:
        facts["cudnn versions installed"] = [item.version for item in versions.list_installed()] or "none"
    except ImportError as error:
        facts["cudnn versions installed"] = f"not known: {error}"
    facts["known targets"] = [f"{profile.name} (sm_{profile.sm})" for profile in list_profiles()]
    return facts
