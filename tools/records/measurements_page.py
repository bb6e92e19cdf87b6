"""The table of records in docs/measurements.md, with the date and the commit of each record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.repository import ROOT

__all__ = ["make_measurements_page"]

_START, _END = "<!-- records -->\n", "<!-- end of records -->"


def _find_texts_under_keys(record: Any, *keys: str) -> Iterator[str]:
    """Yield the texts stored under the given keys at any depth, and each item of a comma-separated text by itself."""
    if isinstance(record, dict):
        for key, value in record.items():
            if key in keys and isinstance(value, str):
                yield from value.split(", ")
            else:
                yield from _find_texts_under_keys(value, *keys)
    elif isinstance(record, list):
        for value in record:
            yield from _find_texts_under_keys(value, *keys)


def _format_record_row(path: Path) -> str:
    record = json.loads(path.read_text(encoding="utf-8"))
    dates = sorted({date[:10] for date in _find_texts_under_keys(record, "date")})
    commits = dict.fromkeys(
        f"`{text[:7]}`" for text in _find_texts_under_keys(record, "commit", "our commit") if text != "unknown"
    )
    days = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "-"
    return f"| [{path.stem}](../logs/{path.name}) | {days} | {', '.join(commits) or '-'} |\n"


def make_measurements_page() -> str:
    """Return docs/measurements.md with its table of records."""
    page = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    before, _, rest = page.partition(_START)
    rows = "".join(map(_format_record_row, sorted(ROOT.glob("logs/*.json"))))
    return f"{before}{_START}\n| record | date | commit |\n|---|---|---|\n{rows}\n{_END}{rest.partition(_END)[2]}"
