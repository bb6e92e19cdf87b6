"""The table of faults: what cuDNN accepts and then gets wrong, or dies of, in one row each.

A new fault is a row in one of the three files; the tests take its graphs from ``reproductions``, ``unlike`` and
``cure``.
"""

from __future__ import annotations

from .fault import Fault
from .measured import MEASURED, MEASURED_ATTENTION
from .operations import OTHER_OPERATIONS
from .reported import REPORTED_ATTENTION

__all__ = ["FAULTS", "MEASURED"]

FAULTS: tuple[Fault, ...] = (*MEASURED_ATTENTION, *REPORTED_ATTENTION, *OTHER_OPERATIONS)
