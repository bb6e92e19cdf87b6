"""One-step changes that a graph's author could make; each gives a new graph. Pure functions.

Each kind has its function, found in :data:`CHANGES` under the kind's name, in the file of its family. A function yields
only what applies: of an aligned graph no alignment is changed.
"""

from __future__ import annotations

# isort: off
from . import layout, sizes, types, storage, options, forms, usual  # which is the order of their kinds

# isort: on
from .change import CHANGES, Change, Effect, iterate_changes, join_names
from .sizes import AttentionDims, compute_convolution_output_dims, find_attention_dims

__all__ = [
    "CHANGES",
    "KINDS",
    "AttentionDims",
    "Change",
    "Effect",
    "compute_convolution_output_dims",
    "find_attention_dims",
    "forms",
    "iterate_changes",
    "join_names",
    "layout",
    "options",
    "sizes",
    "storage",
    "types",
    "usual",
]

KINDS: tuple[str, ...] = (*CHANGES, "target", "version")
