"""Compare runs of the same tests with cudnn-frontend and with our module, and list results that are worse with ours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from .scope import INTENDED_DIFFERENCES

__all__ = ["RunResults", "compare_runs", "find_differences", "print_comparison", "read_run"]

TestRow = Mapping[str, Any]
RunResults = tuple[dict[str, Any], dict[str, TestRow]]
OUTCOMES = ("passed", "skipped", "failed", "crashed", "not run")
MAX_LISTED_IDS = 50
REACHED_EXECUTE = "reached execute"
_FACTS_IN_COMMON = ("cudnn", "device")  # facts that comparable runs have in common


def read_run(path: Path) -> RunResults:
    """Return the facts of a run, and its rows by test id; the later of two rows with one id is used.

    The file may be several output files joined. Then ``sampled`` lists the sampled test files, ``fast`` those that were
    run with ``--fast`` if not all were, and ``our commit`` has all commits.

    Raises
    ------
    click.UsageError
        If the runs are of several modules, cuDNN versions or GPUs.
    """
    about: dict[str, Any] = {}
    rows: dict[str, TestRow] = {}
    run: dict[str, Any] = {}
    parts: dict[str, dict[int, set[int]]] = {}
    fast: dict[str, bool] = {}
    commits: dict[str, None] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if "run" in line:
            run = line["run"]
            _check_equal_run_facts(about, run, ("module", "module version", *_FACTS_IN_COMMON), str(path))
            commits.setdefault(run.get("our commit", "unknown"))
            about = about or {name: value for name, value in run.items() if name not in ("sample", "part")}
        else:
            rows[line["id"]] = line
            fast[line["file"]] = run.get("fast", False)
            if run.get("sample", 1) > 1:
                parts.setdefault(line["file"], {}).setdefault(run["sample"], set()).add(run.get("part", 0))
    if len(commits) > 1:
        about["our commit"] = ", ".join(commits)
    if parts:
        about["sampled"] = {
            name: "; ".join(_format_sampling_fraction(*one) for one in of.items()) for name, of in parts.items()
        }
    if len({*fast.values()}) > 1:
        about["fast"] = [name for name, was in fast.items() if was]
    return about, rows


def _check_equal_run_facts(one: Mapping[str, Any], other: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    for name in names:
        if name in one and name in other and one[name] != other[name]:
            raise click.UsageError(f"{where}: {name} is {one[name]} and {other[name]}, give runs of one and the same")


def _format_sampling_fraction(sample: int, parts: set[int]) -> str:
    if parts == {0}:
        return f"1 in {sample}"
    if len(parts) == 1:
        return f"1 in {sample}, part {min(parts)}"
    return f"{len(parts)} in {sample}, parts {', '.join(map(str, sorted(parts)))}"


def _list_error_kinds(row: TestRow) -> list[str]:
    return [error["kind"] for error in row["errors"]]


def find_differences(theirs: TestRow, ours: TestRow | None, exceptions: bool = True) -> list[str]:
    """Return descriptions of how one test's result is worse with our module; empty if it is not worse."""
    if ours is None:
        return ["not in our run"]
    found = []
    was, now = theirs["outcome"], ours["outcome"]
    if was in ("passed", "skipped") and now in ("failed", "crashed", "not run"):
        found.append(f"{was} with theirs, {now} with ours")
    elif (
        was != "skipped"
        and now == "skipped"
        and not (was in ("failed", "crashed") and ours["reason"] == REACHED_EXECUTE)
    ):
        found.append(f"{was} with theirs, skipped with ours")
    elif was == "failed" and now in ("crashed", "not run"):
        found.append(f"failed with theirs, {now} with ours")
    if (
        ours["executes"] < theirs["executes"] and not was == now == "passed"
    ):  # some tests retry if memory is insufficient
        found.append(f"{theirs['executes']} executes with theirs, {ours['executes']} with ours")
    if theirs["executes"] == ours["executes"] and find_first_difference(theirs.get("graphs"), ours.get("graphs")):
        found.append("graphs differ")
    if (
        exceptions
        and not _is_our_result_better(theirs, ours)
        and (_list_error_kinds(theirs), theirs["errors_in_all"]) != (_list_error_kinds(ours), ours["errors_in_all"])
    ):
        found.append("exceptions differ")
    return found


def find_first_difference(theirs: Any, ours: Any, place: str = "") -> str:
    """Describe the first difference between two JSON values; empty if they are equal or one is missing."""
    if theirs is None or ours is None or theirs == ours:
        return ""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping) and theirs.keys() == ours.keys():
        pairs = [(str(key), theirs[key], ours[key]) for key in theirs]
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = [(str(n), *pair) for n, pair in enumerate(zip(theirs, ours, strict=True))]
    else:
        return f"{place}: {json.dumps(theirs)[:300]} with theirs, {json.dumps(ours)[:300]} with ours"
    return next(filter(None, (find_first_difference(one, other, f"{place}/{key}") for key, one, other in pairs)), "")


def _count_outcomes(rows: Iterable[TestRow]) -> dict[str, int]:
    rows = list(rows)
    outcomes = Counter(row["outcome"] for row in rows)
    counts = {"ids": len(rows), **{name: outcomes.get(name, 0) for name in OUTCOMES}}
    counts["reach execute"] = sum(row["executes"] > 0 for row in rows)
    counts["executes"] = sum(row["executes"] for row in rows)
    return counts


def _is_our_result_better(theirs: TestRow, ours: TestRow | None) -> bool:
    if ours is None:
        return False
    passes = ours["outcome"] == "passed" and theirs["outcome"] != "passed"
    return bool(passes or ours["executes"] > theirs["executes"])


def _has_recorded_graphs(row: TestRow | None) -> bool:
    return bool(row and row.get("graphs"))


def _find_reason_of_intended_difference(test: str) -> str | None:
    """Return the reason of an intended difference in a test, None if there is none."""
    file, _, name = test.partition("::")
    return next((why for (of, part), why in INTENDED_DIFFERENCES.items() if of == file and part in name), None)


def _summarize_test_row(row: TestRow | None) -> dict[str, Any] | None:
    if row is None:
        return None
    brief = {name: row[name] for name in ("outcome", "reason", "stage", "executes")}
    return {**brief, "errors": [f"{error['call']}: {error['kind']}: {error['text']}" for error in row["errors"][:3]]}


def compare_runs(theirs: RunResults, ours: RunResults, exceptions: bool = True) -> dict[str, Any]:
    """Return the comparison as plain data: for each file the counts of both runs and the ids of worse results.

    Parameters
    ----------
    theirs, ours
        Results of :func:`read_run`.
    exceptions
        Whether the kinds of the exceptions raised by ``cudnn`` calls have to be the same, in order.

    Raises
    ------
    click.UsageError
        If cuDNN, GPU, torch, marker or seed of the two differ.
    """
    _check_equal_run_facts(theirs[0], ours[0], (*_FACTS_IN_COMMON, "torch", "mark", "seed"), "theirs and ours")
    files: dict[str, Any] = {}
    for name in dict.fromkeys(row["file"] for row in (*theirs[1].values(), *ours[1].values())):
        left = {key: row for key, row in theirs[1].items() if row["file"] == name}
        right = {key: row for key, row in ours[1].items() if row["file"] == name}
        found = {key: find_differences(row, right.get(key), exceptions) for key, row in left.items()}
        worse = {key: ways for key, ways in found.items() if ways and not _find_reason_of_intended_difference(key)}
        files[name] = {
            "theirs": _count_outcomes(left.values()),
            "ours": _count_outcomes(right.values()),
            "worse": len(worse),
            "better": sum(_is_our_result_better(row, right.get(key)) for key, row in left.items()),
            "graphs compared": sum(
                _has_recorded_graphs(row) and _has_recorded_graphs(right.get(key)) for key, row in left.items()
            ),
            "only in ours": len(right.keys() - left.keys()),
            "on purpose": {
                key: why for key, ways in found.items() if ways and (why := _find_reason_of_intended_difference(key))
            },
            "ways": dict(Counter(way for found in worse.values() for way in found).most_common()),
            "worse ids": [
                {
                    "id": key,
                    "ways": worse[key],
                    "theirs": _summarize_test_row(left[key]),
                    "ours": _summarize_test_row(right.get(key)),
                    "graphs": find_first_difference(left[key].get("graphs"), right.get(key, {}).get("graphs")),
                }
                for key in list(worse)[:MAX_LISTED_IDS]
            ],
        }
    total = {
        "theirs": _count_outcomes(theirs[1].values()),
        "ours": _count_outcomes(ours[1].values()),
        "worse": sum(file["worse"] for file in files.values()),
        "better": sum(file["better"] for file in files.values()),
        "graphs compared": sum(file["graphs compared"] for file in files.values()),
        "on purpose": sum(len(file["on purpose"]) for file in files.values()),
    }
    return {"theirs": theirs[0], "ours": ours[0], "exceptions compared": exceptions, "total": total, "files": files}


def print_comparison(data: Mapping[str, Any], console: Console) -> None:
    """Print one line per test file, and then the worse results of our module."""
    table = Table(title=f"{_format_run_name(data['theirs'])} and {_format_run_name(data['ours'])}")
    table.add_column("file")
    heads = ("ids", "passed", "skipped", "failed", "reach execute", "executes")
    for head in (*heads, "worse", "better"):
        table.add_column(head, justify="right")
    for name, file in (*data["files"].items(), ("all", data["total"])):
        cells = [_format_result_counts(file["theirs"], file["ours"], head) for head in heads]
        table.add_row(name, *cells, str(file["worse"]), str(file["better"]))
    console.print(table)
    for name, file in data["files"].items():
        for way, count in file["ways"].items():
            console.print(f"{name}: {count} x {way}", highlight=False, markup=False)
        for test, why in file["on purpose"].items():
            console.print(f"on purpose: {test}: {why}", highlight=False, markup=False)


def _format_result_counts(theirs: Mapping[str, int], ours: Mapping[str, int], head: str) -> str:
    def count_results(counts: Mapping[str, int]) -> int:
        return counts[head] + (counts["crashed"] + counts["not run"] if head == "failed" else 0)

    return (
        str(count_results(theirs))
        if count_results(theirs) == count_results(ours)
        else f"{count_results(theirs)} / {count_results(ours)}"
    )


def _format_run_name(about: Mapping[str, Any]) -> str:
    return f"{about.get('module')} {about.get('module version')} (cuDNN {about.get('cudnn')}, {about.get('device')})"
