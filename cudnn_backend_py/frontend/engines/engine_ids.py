"""``cudnn.engines.engine_ids``: numbers that distinguish cuDNN's engines from cudnn-frontend's own kernels."""

from __future__ import annotations

__all__ = [
    "BACKEND_ENGINE_ID_BASE",
    "BACKEND_HEURISTIC_ENGINE_ID",
    "CPP_OSS_ENGINE_ID_BASE",
    "PYTHON_ENGINE_ID_BASE",
    "is_backend_engine",
    "is_python_engine",
]

BACKEND_ENGINE_ID_BASE = 0
CPP_OSS_ENGINE_ID_BASE = 10_000
PYTHON_ENGINE_ID_BASE = 20_000
#: A plan that leaves the engine to cudnn-frontend's compiled part; no graph here has one.
BACKEND_HEURISTIC_ENGINE_ID = -1


def is_backend_engine(engine_id: int) -> bool:
    """Return whether an engine is cuDNN's, which is true for all engines of this package."""
    return BACKEND_ENGINE_ID_BASE <= engine_id < CPP_OSS_ENGINE_ID_BASE


def is_python_engine(engine_id: int) -> bool:
    """Return whether an engine is one of cudnn-frontend's Python kernels."""
    return engine_id >= PYTHON_ENGINE_ID_BASE
