"""``cudnn.experimental``: torch operators of cudnn-frontend that are graphs of cuDNN's backend."""

from __future__ import annotations

from . import ops

__all__ = ["ops"]
