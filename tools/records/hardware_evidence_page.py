"""The page docs/hardware-evidence.md: number of GPU results by architecture, cuDNN version and graph family."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from cudnn_backend_py.diagnose.evidence import PUBLISHED_RESULTS
from cudnn_backend_py.system.version import format_version_numbers, parse_version_numbers
from cudnn_backend_py.target import list_profiles
from cudnn_backend_py.verification.graphs import FAMILIES
from tools.hardware_evidence import KIND_COMPARED, KIND_KNOWN_ISSUES, KIND_RUN, HardwareEvidenceRow, read_table
from tools.records.published_rows import TARGET_BY_GPU_NAME
from tools.repository import ROOT

__all__ = ["make_hardware_evidence_page"]

_BENCHMARK_RECORDS = "published-rows-cudnn-*.json"
_DIRECTIONS = {False: "attention forward", True: "attention backward"}

_PAGE_HEAD = """\
# Evidence from GPUs

The results of real GPUs so far, by architecture, cuDNN version and family of graphs. An empty cell has no result yet.
To add your GPU, run `cudnn-backend target verify --contribute`, which takes at most five minutes, and paste its last
line into the form "Evidence from a GPU".

A cell has these numbers, and the date of the latest result:

* *same*: graphs with the same outcome on the GPU and on its description, of all that were judged.
* *right*: graphs that ran and agree with NumPy, of all that ran.
* *tried*: known issues that were tried.
* *published*: graphs of results that others published, in threads, rules and benchmark tables. The tests judge them
  again; a row without a CUDA version has only these.

{published}

"""
_KIND_PUBLISHED = "published"
_RESULT_TEXTS = {KIND_COMPARED: "same", KIND_RUN: "right", KIND_KNOWN_ISSUES: "tried", _KIND_PUBLISHED: "published"}
_TABLE_COLUMNS = (*FAMILIES, "known issues")


def make_hardware_evidence_page(rows: Iterable[HardwareEvidenceRow] | None = None) -> str:
    """Return the page for the given rows, by default for the stored table."""
    found = [*read_table(), *_list_published_rows()] if rows is None else list(rows)
    known = {profile.sm for profile in list_profiles()} | {row.sm for row in found}
    lines = [f"| architecture | cuDNN | {' | '.join(_TABLE_COLUMNS)} |", f"|---|---|{'---|' * len(_TABLE_COLUMNS)}"]
    for sm in sorted(known):
        versions = {(row.cudnn, row.cuda) for row in found if row.sm == sm}
        for cudnn, cuda in sorted(versions, key=lambda pair: (parse_version_numbers(pair[0]), pair[1])) or [("", 0)]:
            here = [row for row in found if (row.sm, row.cudnn, row.cuda) == (sm, cudnn, cuda)]
            cells = (_format_cell([row for row in here if row.family == family]) for family in _TABLE_COLUMNS)
            lines.append(_format_line(f"sm_{sm}", f"{cudnn}, CUDA {cuda}" if cuda else cudnn, *cells))
    return _PAGE_HEAD.format(published=_format_published_results()) + "\n".join(lines) + "\n"


def _format_published_results() -> str:
    """Return how many published results agree, with those that differ or cannot be judged."""
    disagrees = {row.result: row.disagrees for row in PUBLISHED_RESULTS if row.disagrees}
    unjudgeable = {row.result: row.unjudgeable for row in PUBLISHED_RESULTS if row.unjudgeable}
    total = len({row.result for row in PUBLISHED_RESULTS})
    agree = total - len(disagrees) - len(unjudgeable)
    lines = [
        f"Of {total} published results, described GPUs give {agree} as published, {len(disagrees)} otherwise, and "
        f"{len(unjudgeable)} cannot be judged:",
        "",
        *(f"* {name}: {reason}." for name, reason in {**disagrees, **unjudgeable}.items()),
    ]
    return "\n".join(lines)


def _list_published_rows() -> list[HardwareEvidenceRow]:
    """Return the number of published results by architecture, version and direction of attention."""
    counts: Counter[tuple[int, str, str]] = Counter()
    for path in (ROOT / "logs").glob(_BENCHMARK_RECORDS):
        version = path.stem.removeprefix(_BENCHMARK_RECORDS.partition("*")[0])
        for outcome, count in json.loads(path.read_text(encoding="utf-8"))["outcomes"].items():
            gpu, _, direction = outcome.partition(":")[0].rpartition(" ")
            counts[TARGET_BY_GPU_NAME[gpu][1], version, _DIRECTIONS[direction == "bwd"]] += count
    benchmarks = {(sm, version) for sm, version, _ in counts}
    for result in PUBLISHED_RESULTS:
        version = format_version_numbers(result.version)
        if not (result.unjudgeable or result.disagrees or (result.sm, version) in benchmarks):
            family = _DIRECTIONS[result.backward] if result.is_attention else "convolution"
            counts[result.sm, version, family] += 1
    return [
        HardwareEvidenceRow(sm, version, 0, family, _KIND_PUBLISHED, "", "", count, count, "")
        for (sm, version, family), count in counts.items()
    ]


def _format_line(*cells: str) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _format_cell(rows: list[HardwareEvidenceRow]) -> str:
    parts = []
    for kind, word in _RESULT_TEXTS.items():
        of_kind = [row for row in rows if row.kind == kind]
        if of_kind:
            agree, results = sum(row.agree for row in of_kind), sum(row.results for row in of_kind)
            counted = kind in (KIND_KNOWN_ISSUES, _KIND_PUBLISHED)
            parts.append(f"{results} {word}" if counted else f"{agree} of {results} {word}")
    return "; ".join(filter(None, (", ".join(parts), max((row.date for row in rows), default=""))))
