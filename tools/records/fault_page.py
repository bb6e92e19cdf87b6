"""The page of known faults, by operation, from the table of faults."""

from __future__ import annotations

from collections import Counter

from cudnn_backend_py.faults import FAULTS, Fault
from cudnn_backend_py.generated.enums import DescriptorType
from cudnn_backend_py.graph import Graph

__all__ = ["render_fault_page"]

_HEAD = """\
# What cuDNN accepts and then gets wrong

{total} faults of cuDNN, with graphs, versions, architectures and cures; {measured} were measured for this package, the
others are what their source reports. Where nothing is
said of versions or architectures, none is known to be right. `explain` names the faults of a graph; the attention
builder and the PyTorch operators refuse those marked with `!`, and warn of the others; the frontend warns of all.

By source: {sources}.
Written by `make regen` from `cudnn_backend_py/faults/`; do not edit.
"""
_COLUMNS = "| fault | graphs | effect | where | what helps | who says so |\n|---|---|---|---|---|---|\n"

_D = DescriptorType
_HEADINGS = {  # by the operation that comes first here of those in a graph
    _D.OPERATION_CONVOLUTION_FORWARD: "Convolution",
    _D.OPERATION_CONVOLUTION_BACKWARD_DATA: "Convolution",
    _D.OPERATION_CONVOLUTION_BACKWARD_FILTER: "Convolution",
    _D.OPERATION_MOE_GROUPED_MATMUL: "Matmul of experts",
    _D.OPERATION_NORM_FORWARD: "Norms",
    _D.OPERATION_RESAMPLE_FWD: "Resampling",
    _D.OPERATION_RESAMPLE_BWD: "Resampling",
    _D.OPERATION_SIGNAL: "Signals",
    _D.OPERATION_MATMUL: "Matmul",
    _D.OPERATION_POINTWISE: "Pointwise operations",
    _D.OPERATION_REDUCTION: "Reductions",
}


def render_fault_page() -> str:
    """Return the table of faults as Markdown."""
    sources = Counter(row.reporter for row in FAULTS)
    by_source = ", ".join(
        f"{name} {count}" for name, count in sorted(sources.items(), key=lambda item: (-item[1], item))
    )
    parts = [_HEAD.format(total=len(FAULTS), measured=sum(row.measured for row in FAULTS), sources=by_source)]
    groups: dict[str, list[Fault]] = {}
    for row in FAULTS:
        groups.setdefault(_heading(row), []).append(row)
    for heading, rows in groups.items():
        parts.append(f"\n## {heading}\n\n{_COLUMNS}")
        parts += map(_line, rows)
    return "".join(parts)


def _heading(row: Fault) -> str:
    makes = [made for made in row.reproductions.values() if callable(made)]
    if row.attention is not None or not makes:
        return "Attention"
    graph: Graph = makes[0]()
    kinds = [op.kind for op in graph.ops]
    if kinds.count(_D.OPERATION_MATMUL) > 1:
        return "Attention"
    return next(heading for kind, heading in _HEADINGS.items() if kind in kinds)


def _line(row: Fault) -> str:
    where = [row.window.removeprefix("cuDNN ")] if row.until or row.since > (9, 0, 0) else []
    where += [f"sm_{sm}" for sm in row.sm]
    source = f"[{row.reporter}]({row.source})" if row.source.startswith("https://") else f"`{row.source}`"
    said = f"{row.evidence}; {source}" if row.evidence else source
    cells = (f"`{row.code}`{' `!`' * row.refused}", row.what, row.effect, ", ".join(where), row.fix, said)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
