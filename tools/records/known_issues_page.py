"""The page of known issues, by operation, from the table of faults."""

from __future__ import annotations

from collections import Counter

from cudnn_backend_py.known_issues import FAULTS, FAULTS_BY_OPERATION, KnownIssue

__all__ = ["render_known_issues_page"]

_HEAD = """\
# What cuDNN accepts and then gets wrong

{total} known issues of cuDNN, with graphs, versions, architectures and remedies; {measured} were measured for this
package, the others are what their source reports. Where nothing is said of versions or architectures, none is known to
be right. `explain` names the faults of a graph; the attention builder and the PyTorch operators refuse those marked
with `!`, and warn of the others; the frontend warns of all.

By source: {sources}.
Written by `make regen` from `cudnn_backend_py/known_issues/`; do not edit.
"""
_COLUMNS = "| fault | graphs | effect | where | what helps | who says so |\n|---|---|---|---|---|---|\n"


def render_known_issues_page() -> str:
    """Return the table of faults as Markdown."""
    sources = Counter(row.reporter for row in FAULTS)
    by_source = ", ".join(
        f"{name} {count}" for name, count in sorted(sources.items(), key=lambda item: (-item[1], item))
    )
    parts = [_HEAD.format(total=len(FAULTS), measured=sum(row.measured for row in FAULTS), sources=by_source)]
    for heading, rows in FAULTS_BY_OPERATION.items():
        parts.append(f"\n## {heading}\n\n{_COLUMNS}")
        parts += map(_line, rows)
    return "".join(parts)


def _line(row: KnownIssue) -> str:
    where = [row.window.removeprefix("cuDNN ")] if row.until or row.since > (9, 0, 0) else []
    where += [f"sm_{sm}" for sm in row.sm]
    source = f"[{row.reporter}]({row.source})" if row.source.startswith("https://") else f"`{row.source}`"
    said = f"{row.evidence}; {source}" if row.evidence else source
    cells = (f"`{row.code}`{' `!`' * row.refused}", row.what, row.effect, ", ".join(where), row.fix, said)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
