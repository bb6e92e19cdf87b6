"""One-step changes that a graph's author could make; each gives a new graph. Pure functions.

Each kind has its function, found in :data:`CHANGES` under the kind's name, in the file of its family. A function yields
only what applies: of an aligned graph no alignment is changed.
"""

from __future__ import annotations

# isort: off
from . import layout, sizes, types, storage, options, forms, usual  # which is the order of their kinds

# isort: on
from .change import CHANGES, Change, Effect, changes, join_names
from .sizes import HeadDims, head_dims, response_dims

__all__ = [
    "CHANGES",
    "KINDS",
    "Change",
    "Effect",
    "HeadDims",
    "changes",
    "forms",
    "head_dims",
    "join_names",
    "layout",
    "options",
    "response_dims",
    "sizes",
    "storage",
    "types",
    "usual",
]

KINDS: tuple[str, ...] = (*CHANGES, "target", "version")
