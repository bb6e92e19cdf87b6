"""``cudnn.experimental``: the operators of cudnn-frontend for torch that are graphs of cuDNN's backend."""

from __future__ import annotations

from . import ops

__all__ = ["ops"]
