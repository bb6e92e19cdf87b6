"""``find_faults``: the one lookup in the table, used by explain, the attention builder, the frontend and plans."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator

from ...errors import GraphError
from ...system.version import VersionTuple
from ..guard import run_guarded
from ..ir import Graph
from .fault import Fault, Sharing, Use
from .table import FAULTS

__all__ = ["HAZARDS", "FaultWarning", "check_hazards", "find_faults", "find_hazards", "warn_of"]

HAZARDS = tuple(fault for fault in FAULTS if fault.refused)


class FaultWarning(UserWarning):
    """A graph is built that this cuDNN is known to get wrong on this architecture."""


_warned: set[tuple[type[FaultWarning], str]] = set()  # with codes of faults


def find_faults(
    use: Use | None,
    graph: Graph | None = None,
    *,
    version: VersionTuple | None = None,
    sm: int | None = None,
    sharing: Sharing | None = None,
) -> Iterator[Fault]:
    """Yield the faults that a use of attention, or a graph, may meet in a version on an architecture.

    What is not known, a version or an architecture of None, may be the worst. With `sharing` those of one plan for
    many shapes, without it the others. A condition that fails costs its own row and a line of the verdict.
    """
    for fault in FAULTS:
        name = f"the condition {fault.code}"
        if (
            fault.sharing == sharing
            and fault.holds_in(version, sm)
            and run_guarded(name, False, fault.concerns, use, graph)
        ):
            yield fault


def find_hazards(use: Use) -> Iterator[Fault]:
    """Yield the faults a use of attention runs into for which a builder refuses it."""
    return (fault for fault in find_faults(use, version=use.version, sm=use.sm) if fault.refused)


def warn_of(faults: Iterable[Fault], category: type[FaultWarning] = FaultWarning) -> None:
    """Warn of faults, of each once in a process."""
    for fault in faults:
        if (category, fault.code) not in _warned:
            _warned.add((category, fault.code))
            said = fault.evidence or fault.source
            warnings.warn(
                f"cuDNN gets this wrong ({fault.code}): {fault.what}. {fault.effect}; {said}. What helps: {fault.fix}",
                category,
                stacklevel=3,
            )


def check_hazards(use: Use) -> None:
    """Refuse a use of attention that cuDNN was measured to get wrong, and warn of what others reported.

    The warning, :class:`FaultWarning`, needs the version and, where the fault is bound to some, the architecture.

    Raises
    ------
    GraphError
        ``attention-hazard``.
    """
    found = list(find_faults(use, version=use.version, sm=use.sm))
    for fault in found:
        if not fault.refused:
            continue
        what = "backward" if use.backward else "forward"
        raise GraphError(
            f"cuDNN gets this wrong: {fault.what}",
            code="attention-hazard",
            where=f"attention {what} pass, {use.form} form ({fault.code})",
            cause=f"{fault.effect}; {fault.evidence}",
            fix=f"{fault.fix}; allow_hazards=True builds the graph nevertheless",
        )
    if use.version is not None:
        warn_of(fault for fault in found if use.sm is not None or not fault.sm)
