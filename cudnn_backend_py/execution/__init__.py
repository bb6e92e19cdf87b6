"""From a plan to a running kernel: buffers, variant packs, streams, CUDA graphs."""

from .run import execute

__all__ = ["execute"]
