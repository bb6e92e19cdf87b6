"""``cudnn.engines.engine_ids``: the numbers that tell cuDNN's engines from those of cudnn-frontend's own kernels."""

from __future__ import annotations

__all__ = ["PYTHON_ENGINE_ID_BASE", "is_backend_engine", "is_python_engine"]

PYTHON_ENGINE_ID_BASE = 20_000
_OTHER_ENGINES = 10_000


def is_backend_engine(engine_id: int) -> bool:
    """Return whether an engine is cuDNN's; all that a graph here proposes are."""
    return 0 <= engine_id < _OTHER_ENGINES


def is_python_engine(engine_id: int) -> bool:
    """Return whether an engine is one of cudnn-frontend's Python kernels."""
    return engine_id >= PYTHON_ENGINE_ID_BASE
