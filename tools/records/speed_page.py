"""docs/attention-speed.md and its pictures, from the records of an H200.

``make regen`` writes the page. ``python -m tools.records.speed_page`` draws the pictures with matplotlib.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.model.run import draw_model
from cudnn_backend_py.cli.compare.comparison import as_markdown, draw

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "attention-speed.md"
ON = "h200-cudnn-9.19.0"
Record = Mapping[str, Any]


def read(name: str) -> Any:
    """Return a record of the H200."""
    return json.loads((ROOT / "logs" / f"{name}-{ON}.json").read_text(encoding="utf-8"))


def figure_of(record: Record, *path: str) -> Any:
    """Return a figure of a record, None where it was not measured."""
    found: Any = record
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def kept_rows(record: Record) -> str:
    """Return which rows are of earlier runs."""
    counts = [part["rows"] for part in record.get("resumed", ())]
    return f" Of {len(record['rows'])} rows {counts[-1]} are of earlier runs, kept by `--resume`." if counts else ""


def class_rows(record: Record) -> Iterator[str]:
    """Yield the row of each direction."""
    accepted = {item["name"]: item["value"] for item in record["accepted"]}
    for direction in ("forward", "backward"):
        median, p90 = (accepted[f"GPU, {direction}: class / exact, {words}"] for words in ("median", "p90"))
        adaptive = accepted[f"GPU, {direction}: adaptive from the tenth call / exact, median"]
        yield f"| {direction} | {median:.2f} | {p90:.2f} | {adaptive:.3f} |"


def model_rows(record: Record) -> Iterator[str]:
    """Yield the rows of what each maker of attention costs."""
    epochs = ("first epoch", "new lengths", "known lengths")
    rows: list[tuple[str, tuple[str, ...]]] = []
    for way in ("packed", "padded"):
        rows.append((f"{way}: first step, ms", (way, epochs[0], "first_step_ms")))
        rows += [(f"{way}, {epoch}", (way, epoch, "tokens_per_second")) for epoch in epochs]
    rows += [(way, (way, "tokens_per_second")) for way in ("serving", "serving, captured")]
    for title, path in rows:
        figures = [figure_of(makers, *path) for makers in record["makers"].values()]
        cells = ["-" if value is None else f"{value:,.0f}" for value in figures]
        yield f"| {title} | {' | '.join(cells)} |"


def gaps(record: Record) -> Iterator[str]:
    """Yield what was not measured, and why."""
    for maker, ways in record["makers"].items():
        for way, found in ways.items():
            if isinstance(found, Mapping) and "not measured" in found:
                yield f"* {maker}, {way}: {' '.join(found['not measured'].split())[:200]}"
    for maker, why in record.get("left_out", {}).items():
        yield f"* {maker}, left out: {why}"


def make_page() -> str:
    """Return the text of the page."""
    compared, classes, model = (read(name) for name in ("compare", "shape-classes", "model"))
    shapes = len({row["shape"] for row in classes["rows"]})
    makers = list(model["makers"])
    return f"""# How fast attention is

Each table comes from a record under [logs](../logs), and one command makes it again on the GPU that is there.
Dates and commits of the records: [What was measured](measurements.md#records).

## Which one is the fastest

```console
$ {compared["command"]}
```

"ours, exact" is the plan of the shape, "ours, any" that of its [class](execution.md#any-shape), by the operators of
this package for torch; "cuDNN" is the plan alone; the others are torch's backends. [compare.md](compare.md) has the
rest ([record](../logs/compare-{ON}.json)).{kept_rows(compared)}

![TFLOP/s by shape](compare.svg)

{as_markdown(compared).rstrip()}

## One plan for many shapes

```console
$ python -m benchmarks shape-classes --output logs/shape-classes.json
```

GPU time of the plan of a class by that of the exact plan, over {shapes} random shapes: lengths of 64 to 8,192, batches
of 1 to 64, causal, 16 heads of 64, or 16 over 4 of 128 ([record](../logs/shape-classes-{ON}.json)).

| | class / exact, median | p90 | adaptive from the tenth call / exact |
|---|---:|---:|---:|
{chr(10).join(class_rows(classes))}

What the class takes longer is in cuDNN's ragged kernels: forward a kernel of 2.5 to 4 microseconds that makes
descriptors of each sequence, then the attention kernel, of the same tiles as the exact plan's, 1.05 to 1.4 times as
long; backward the same before it, and kernels around it that take up to 2.5 times as long where sequences are short.
A class with finer bounds, or with just those of the call, takes as long (63 of these shapes, forward, by the one
engine config: 1.23 as classes are, 1.22 with steps of a quarter in batches and of a half in lengths, 1.26 with the
call's own). Where there is little to do, the forward pass of a class takes an engine config without descriptors.

## A model

```console
$ python -m benchmarks model --output logs/model.json --plot model.svg
```

A GPT of {model["parameters"] // 10**6} million parameters is trained on sequences of random lengths, packed or padded,
and serves 64 requests from pages, a token at a time ([record](../logs/model-{ON}.json)). Each maker of attention has a
process of its own for each way, from the first use of its library on. "new lengths" are steps after the first epoch on
lengths not seen before, "known lengths" on those of the first epoch. All train the same numbers on the same text, and
the record compares their losses.

![Tokens per second of training and serving](model.svg)

Tokens per second:

| | {" | ".join(makers)} |
|---|{"---:|" * len(makers)}
{chr(10).join(model_rows(model))}

Not measured:

{chr(10).join(gaps(model)) or "* nothing"}
"""


if __name__ == "__main__":
    draw_model(read("model"), PAGE.with_name("model.svg"))
    draw(read("compare"), PAGE.with_name("compare.svg"))
