"""``find_faults``: the one lookup in the table, used by explain, the attention builder and the frontend."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import GraphError
from ...system.version import VersionTuple
from ..guard import run_guarded
from ..ir import Graph
from .fault import Fault, Use
from .table import FAULTS

__all__ = ["HAZARDS", "check_hazards", "find_faults", "find_hazards"]

HAZARDS = tuple(fault for fault in FAULTS if fault.refused)


def find_faults(
    use: Use | None, graph: Graph | None = None, *, version: VersionTuple | None = None, sm: int | None = None
) -> Iterator[Fault]:
    """Yield the faults that a use of attention, or a graph, may meet in a version on an architecture.

    What is not known, a version or an architecture of None, may be the worst. A condition that fails costs its own
    row and a line of the verdict.
    """
    for fault in FAULTS:
        name = f"the condition {fault.code}"
        if fault.holds_in(version, sm) and run_guarded(name, False, fault.concerns, use, graph):
            yield fault


def find_hazards(use: Use) -> Iterator[Fault]:
    """Yield the faults a use of attention runs into for which a builder refuses it."""
    return (fault for fault in find_faults(use, version=use.version, sm=use.sm) if fault.refused)


def check_hazards(use: Use) -> None:
    """Refuse a use of attention that cuDNN is known to get wrong.

    Raises
    ------
    GraphError
        ``attention-hazard``.
    """
    for fault in find_hazards(use):
        what = "backward" if use.backward else "forward"
        raise GraphError(
            f"cuDNN gets this wrong: {fault.what}",
            code="attention-hazard",
            where=f"attention {what} pass, {use.form} form ({fault.code})",
            cause=f"{fault.effect}; {fault.evidence}",
            fix=f"{fault.fix}; allow_hazards=True builds the graph nevertheless",
        )
