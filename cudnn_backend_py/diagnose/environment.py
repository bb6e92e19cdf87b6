"""The faults of :mod:`cudnn_backend_py.environment`, under the name verdicts ask them by."""

from __future__ import annotations

from ..environment import (
    NVRTC_ARCHITECTURES,
    Fault,
    check_environment,
    environment_fault_after_crash,
    nvrtc_needed,
)

__all__ = ["NVRTC_ARCHITECTURES", "Fault", "check_environment", "environment_fault_after_crash", "nvrtc_needed"]
