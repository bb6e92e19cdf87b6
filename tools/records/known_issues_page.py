"""The page docs/known-issues.md: known issues of cuDNN, by operation."""

from __future__ import annotations

import re

from cudnn_backend_py.known_issues import FAULTS, FAULTS_BY_OPERATION, KnownIssue

__all__ = ["render_known_issues_page"]

_PAGE_HEAD = """\
# Known issues of cuDNN

Graphs that cuDNN accepts, and then computes wrong or crashes on. `cudnn-backend explain GRAPH` lists those of your
graph, with the evidence.

{measured} of {total} issues were measured; the others are described as their source reports them. An issue without
versions or architectures may affect all. The attention builders and PyTorch operators refuse graphs marked "refused"
and warn of the others; `cudnn_backend_py.frontend` only warns.
"""
_TABLE_HEAD = "| issue | graphs | effect | versions, GPUs | fix | source |\n|---|---|---|---|---|---|\n"


def render_known_issues_page() -> str:
    """Return the page as Markdown."""
    parts = [_PAGE_HEAD.format(total=len(FAULTS), measured=sum(row.is_measured for row in FAULTS))]
    for heading, rows in FAULTS_BY_OPERATION.items():
        parts.append(f"\n## {heading}\n\n{_TABLE_HEAD}")
        parts += map(_format_issue_row, rows)
    return "".join(parts)


def _format_issue_row(row: KnownIssue) -> str:
    where = [row.version_range_text.removeprefix("cuDNN ")] if row.until or row.since > (9, 0, 0) else []
    where += [f"sm_{sm}" for sm in row.sm]
    summary = re.split("[;:] ", row.evidence)[0]  # `explain` prints the whole text
    link = f"[{row.source_project}]({row.source})" if row.source.startswith("https://") else ""
    source = "; ".join(filter(None, (summary, link)))
    cells = (f"`{row.code}`{' (refused)' * row.refused}", row.what, row.effect, ", ".join(where), row.fix, source)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
