"""``cudnn.engines``: cuDNN's engines; names of cudnn-frontend's own kernels raise an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..as_cudnn import make_not_offered_error
from ..enums import knob_type
from ..plan_list import PlanConfig
from . import manifest
from .engine_ids import (
    BACKEND_ENGINE_ID_BASE,
    BACKEND_HEURISTIC_ENGINE_ID,
    CPP_OSS_ENGINE_ID_BASE,
    PYTHON_ENGINE_ID_BASE,
    is_backend_engine,
    is_python_engine,
)

__all__ = [
    "BACKEND_ENGINE_ID_BASE",
    "BACKEND_HEURISTIC_ENGINE_ID",
    "CPP_OSS_ENGINE_ID_BASE",
    "PYTHON_ENGINE_ID_BASE",
    "PlanConfig",
    "is_backend_engine",
    "is_python_engine",
    "manifest",
    "public_knobs_repr",
]


def public_knobs_repr(public: Mapping[knob_type | int, int]) -> str:
    """Return the knobs of a plan as text, sorted by name: ``TILE_M=64, TILE_N=128``."""
    named = ((item.name if isinstance(item, knob_type) else str(item), value) for item, value in public.items())
    return ", ".join(f"{name}={value}" for name, value in sorted(named))


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise make_not_offered_error(f"cudnn.engines.{name}")
