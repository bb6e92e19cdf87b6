"""The table of faults: what cuDNN accepts and then gets wrong, or dies of, in one row each.

A new fault is a row in one of the files of rows; the tests take its graphs from ``reproductions``, ``unlike`` and
``cure``.
"""

from __future__ import annotations

from ..graph.attention.fault import Fault
from ..graph.attention.measured import MEASURED, MEASURED_ATTENTION
from .operations import OTHER_OPERATIONS
from .random_attention import RANDOM_ATTENTION
from .random_convolutions import RANDOM_CONVOLUTIONS
from .random_crashes import RANDOM_CRASHES
from .random_graphs import RANDOM_GRAPHS
from .reported_backward import REPORTED_BACKWARD
from .reported_eight_bit import REPORTED_EIGHT_BIT
from .reported_forward import REPORTED_FORWARD

__all__ = ["FAULTS", "MEASURED"]

FAULTS: tuple[Fault, ...] = (
    *MEASURED_ATTENTION,
    *REPORTED_BACKWARD,
    *REPORTED_FORWARD,
    *REPORTED_EIGHT_BIT,
    *RANDOM_ATTENTION,
    *OTHER_OPERATIONS,
    *RANDOM_GRAPHS,
    *RANDOM_CONVOLUTIONS,
    *RANDOM_CRASHES,
)
