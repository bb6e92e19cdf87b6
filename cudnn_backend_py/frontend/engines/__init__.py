"""``cudnn.engines``: which engines are cuDNN's; those of cudnn-frontend's own kernels are refused by name."""

from __future__ import annotations

from typing import Any

from ..as_cudnn import not_offered
from .engine_ids import is_backend_engine, is_python_engine

__all__ = ["is_backend_engine", "is_python_engine"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise not_offered(f"cudnn.engines.{name}")
