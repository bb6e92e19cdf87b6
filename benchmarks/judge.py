"""Compare the figures of a benchmark record with their acceptance limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cudnn_backend_py.cli.compare.problems import DIRECTIONS
from cudnn_backend_py.plans.choice import EngineChoice
from cudnn_backend_py.tuning.statistics import Timing

__all__ = ["ACCEPTANCE_LIMITS", "MeasuredValueLimit", "compare_record_with_limits", "format_limit_lines"]


@dataclass(frozen=True)
class MeasuredValueLimit:
    """A figure of a record with its upper limit; the figure is None if it was not measured."""

    name: str
    limit: float
    figure: Callable[[Mapping[str, Any]], float | None]


def _compute_host_time_ratio(record: Mapping[str, Any], direction: str, name: str, other: str) -> float | None:
    found = record["host"].get(direction, {})
    if name not in found or other not in found:
        return None
    return float(found[name]["median_us"] / found[other]["median_us"])


def _compute_ragged_time_ratio(record: Mapping[str, Any], name: str, other: str) -> float | None:
    found = record.get("ragged", {})
    if name not in found or other not in found:
        return None
    return float(found[name]["median_us"] / found[other]["median_us"])


def _count_slower_shapes(record: Mapping[str, Any], name: str, other: str) -> float | None:
    """Return the number of shapes where ``name`` is slower than ``other`` beyond noise."""
    rows = [row["us"] for row in record["gpu"] if name in row["us"] and other in row["us"]]
    return float(sum(Timing(**row[other]).beats(Timing(**row[name])) for row in rows)) if rows else None


def _count_shapes_where_same_plan_differs_in_time(record: Mapping[str, Any]) -> float | None:
    """Count the shapes where cudnn-frontend runs the same plan in a different time, beyond noise."""
    rows = []
    for row in record["gpu"]:
        us, tags = row["us"], row["plans"]
        if "cudnn-frontend" not in us:
            continue
        theirs = EngineChoice.parse(row["frontend_plan"])
        same_plan = [name for name in tags if name in us and EngineChoice.parse(tags[name]) == theirs]
        if same_plan:
            rows.append((Timing(**us[same_plan[0]]), Timing(**us["cudnn-frontend"])))
    return float(sum(mine.beats(other) or other.beats(mine) for mine, other in rows)) if rows else None


def _compute_fresh_process_time_ratio(
    record: Mapping[str, Any], name: str, other: str, steps: Sequence[str] = ("total",)
) -> float | None:
    found = record["fresh"]
    if not {name, other} <= found.keys():
        return None
    mine, others = (sum(found[way][step] for step in steps) for way in (name, other))
    return float(mine / others)


def _make_limits() -> Iterator[MeasuredValueLimit]:
    ratios = (
        ("same pointers", "C loop", 1.15),
        ("same pointers", "cudnn-frontend, same", 0.55),
        ("same pointers", "cudnn-frontend, ordered, same", 0.65),
        ("fresh pointers", "cudnn-frontend, fresh", 0.75),
        ("fresh pointers", "cudnn-frontend, ordered, fresh", 0.85),
        ("CUDA graph", "same pointers", 0.7),
        ("CUDA graph", "cudnn-frontend, same", 0.55),
    )
    for direction in DIRECTIONS:
        for name, other, limit in ratios:
            figure = partial(_compute_host_time_ratio, direction=direction, name=name, other=other)
            yield MeasuredValueLimit(f"host, {direction}: {name} / {other}", limit, figure)
    ragged = (
        ("same pointers", "C loop", 1.05),
        ("fresh pointers", "C loop", 1.2),
        ("same pointers", "cudnn-frontend, same", 0.61),
        ("fresh pointers", "cudnn-frontend, fresh", 0.7),
    )
    for name, other, limit in ragged:
        yield MeasuredValueLimit(
            f"host, ragged: {name} / {other}", limit, partial(_compute_ragged_time_ratio, name=name, other=other)
        )
    yield MeasuredValueLimit(
        "GPU: shapes that differ from cudnn-frontend, same plan", 0, _count_shapes_where_same_plan_differs_in_time
    )
    yield MeasuredValueLimit(
        "GPU: shapes where autotuned is slower than the first choice",
        0,
        partial(_count_slower_shapes, name="ours, autotuned", other="ours"),
    )
    yield MeasuredValueLimit(
        "fresh process: ahead of time / cudnn-frontend",
        0.5,
        partial(_compute_fresh_process_time_ratio, name="ahead of time", other="cudnn-frontend"),
    )
    for name in ("cold", "our frontend"):
        figure = partial(_compute_fresh_process_time_ratio, name=name, other="cudnn-frontend", steps=("import",))
        yield MeasuredValueLimit(f"fresh process: import, {name} / cudnn-frontend", 1.0, figure)
    figure = partial(
        _compute_fresh_process_time_ratio, name="cold", other="C program", steps=("open", "plan", "first run")
    )
    yield MeasuredValueLimit("fresh process: after the import, cold / C program", 1.2, figure)


ACCEPTANCE_LIMITS: tuple[MeasuredValueLimit, ...] = tuple(_make_limits())


def compare_record_with_limits(
    record: Mapping[str, Any], accepted: Iterable[MeasuredValueLimit] = ACCEPTANCE_LIMITS
) -> list[dict[str, Any]]:
    """Return each figure's value, its limit, and whether it passed (None if not measured)."""
    found = []
    for item in accepted:
        value = item.figure(record)
        passed = None if value is None else value <= item.limit
        found.append({"name": item.name, "value": value and round(value, 3), "limit": item.limit, "passed": passed})
    return found


def format_limit_lines(record: Mapping[str, Any]) -> list[str]:
    """Return one line per figure: pass, fail, or not measured."""
    words = {True: "pass", False: "FAIL", None: "not measured"}
    lines = []
    for item in record["accepted"]:
        value = "" if item["value"] is None else f"{item['value']:g}, "
        lines.append(f"{words[item['passed']]}: {item['name']}: {value}at most {item['limit']:g}")
    return lines
