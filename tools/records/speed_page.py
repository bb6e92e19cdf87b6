"""Write docs/attention-speed.md and its plots from H200 records.

``make regen`` writes the page. ``python -m tools.records.speed_page`` draws the plots with matplotlib.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.model.run import draw_model_throughput
from cudnn_backend_py.cli.compare.comparison import draw_comparison, format_markdown

ROOT = Path(__file__).parents[2]
PAGE_PATH = ROOT / "docs" / "attention-speed.md"
RECORD_SUFFIX = "h200-cudnn-9.19.0"
RecordData = Mapping[str, Any]


def read_h200_record(name: str) -> Any:
    """Return the H200 record with this name prefix."""
    return json.loads((ROOT / "logs" / f"{name}-{RECORD_SUFFIX}.json").read_text(encoding="utf-8"))


def get_measured_number(record: RecordData, *path: str) -> Any:
    """Return a figure of a record, None if it was not measured."""
    found: Any = record
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def describe_rows_of_earlier_runs(record: RecordData) -> str:
    """Return a sentence that says how many of a record's rows an earlier, interrupted run measured."""
    counts = [part["rows"] for part in record.get("resumed", ())]
    return f" {counts[-1]} of {len(record['rows'])} rows are from earlier runs." if counts else ""


def remove_plan_column(table: str) -> str:
    """Return a Markdown table without its last column, which has engine configs."""
    lines = table.splitlines()
    cut = [line.rpartition("|")[0].rpartition("|")[0] + "|" if line.startswith("|") else line for line in lines]
    return "\n".join(cut if any(line.endswith("| plans |") for line in lines) else lines)


def format_shape_class_rows(record: RecordData) -> Iterator[str]:
    """Yield a table row by direction: GPU time of plans for a class of shapes, relative to plans for one shape."""
    accepted = {item["name"]: item["value"] for item in record["accepted"]}
    for direction in ("forward", "backward"):
        median, p90 = (accepted[f"GPU, {direction}: class / exact, {words}"] for words in ("median", "p90"))
        adaptive = accepted[f"GPU, {direction}: adaptive from the tenth call / exact, median"]
        yield f"| {direction} | {median:.2f} | {p90:.2f} | {adaptive:.3f} |"


def format_model_rows(record: RecordData) -> Iterator[str]:
    """Yield table rows of the model's training and serving speed, with a column per provider."""
    epochs = ("first epoch", "new lengths", "known lengths")
    rows: list[tuple[str, tuple[str, ...]]] = []
    for way in ("packed", "padded"):
        rows.append((f"{way}: first step, ms", (way, epochs[0], "first_step_ms")))
        rows += [(f"{way}, {epoch}", (way, epoch, "tokens_per_second")) for epoch in epochs]
    rows += [(way, (way, "tokens_per_second")) for way in ("serving", "serving, captured")]
    for title, path in rows:
        figures = [get_measured_number(makers, *path) for makers in record["makers"].values()]
        cells = ["-" if value is None else f"{value:,.0f}" for value in figures]
        yield f"| {title} | {' | '.join(cells)} |"


def list_missing_measurements(record: RecordData) -> Iterator[str]:
    """Yield a list item for each missing measurement, with the reason."""
    for maker, ways in record["makers"].items():
        for way, found in ways.items():
            if isinstance(found, Mapping) and "not measured" in found:
                yield f"* {maker}, {way}: {' '.join(found['not measured'].split())[:200]}"
    for maker, why in record.get("left_out", {}).items():
        yield f"* {maker}, left out: {why}"


def make_speed_page() -> str:
    compared, classes, model = (read_h200_record(name) for name in ("compare", "shape-classes", "model"))
    shapes = len({row["shape"] for row in classes["rows"]})
    makers = list(model["makers"])
    return f"""# Speed of attention

Times of attention on an H200, by implementation. To measure your own GPU, run the command of each section.

## Which one is the fastest

```console
$ {compared["command"]}
```

"cuDNN" is the plan alone. "Ours" is this package's torch operator: "exact" with the plan of these dims, "any" with a
[class plan](execution.md#any-shape). The others are torch's backends. Method: [Compare](compare.md);
[record](../logs/compare-{RECORD_SUFFIX}.json).{describe_rows_of_earlier_runs(compared)}

![TFLOP/s by shape](compare.svg)

{remove_plan_column(format_markdown(compared).rstrip())}

## One plan for many shapes

```console
$ python -m benchmarks shape-classes --output logs/shape-classes.json
```

GPU time of a class plan divided by that of the exact plan, for {shapes} random problems: lengths of 64 to 8,192,
batches of 1 to 64, causal, 16 heads of 64, or 16 over 4 of 128 ([record](../logs/shape-classes-{RECORD_SUFFIX}.json)).

| | class plan / exact, median | 90th percentile | adaptive from the tenth call / exact |
|---|---:|---:|---:|
{chr(10).join(format_shape_class_rows(classes))}

cuDNN's ragged kernels take the extra time. Forward: a kernel of 2.5 to 4 microseconds that writes descriptors of each
sequence, and an attention kernel that takes 1.05 to 1.4 times as long with the same tiles. Backward: also kernels
around it that take up to 2.5 times as long for short sequences. Tighter bounds do not help: 63 of these problems,
forward, take 1.23 times as long with our bounds, 1.22 with finer ones, and 1.26 with the exact ones. For small
problems, the forward pass uses an engine config without descriptors.

## A model

```console
$ python -m benchmarks model --output logs/model.json --plot model.svg
```

A GPT of {model["parameters"] // 10**6} million parameters is trained on sequences of random lengths, packed or padded,
and serves 64 requests from pages, a token at a time ([record](../logs/model-{RECORD_SUFFIX}.json)). Each
implementation has its own process for packed and padded training and for serving. "New lengths" are steps after the
first epoch with lengths not seen before, "known lengths" with those of the first epoch. All train on the same text, and
the record compares their losses.

![Tokens per second of training and serving](model.svg)

Tokens per second:

| | {" | ".join(makers)} |
|---|{"---:|" * len(makers)}
{chr(10).join(format_model_rows(model))}

Not measured:

{chr(10).join(list_missing_measurements(model)) or "* none"}
"""


if __name__ == "__main__":
    draw_model_throughput(read_h200_record("model"), PAGE_PATH.with_name("model.svg"))
    draw_comparison(read_h200_record("compare"), PAGE_PATH.with_name("compare.svg"))
