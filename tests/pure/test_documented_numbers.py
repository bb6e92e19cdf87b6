"""Numbers on the documentation pages equal those in the JSON records that the pages cite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.records import read_record

ROOT = Path(__file__).resolve().parents[2]
EXECUTION, FRONTEND, MEASUREMENTS = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("execution", "frontend", "measurements")
)
HOST = {
    "C loop around `cudnnBackendExecute`: the floor": "C loop",
    "`step()`, bound to its buffers": "same pointers",
    "`run(...)`, the same buffers, by position": "same buffers, by position",
    "`run(...)`, other buffers at each call": "fresh pointers",
    "a CUDA graph of cuDNN's own, replayed": "CUDA graph",
    "`cudnn_backend_py.frontend`, the same buffers": "our frontend, same",
    "`cudnn_backend_py.frontend`, other buffers at each call": "our frontend, fresh",
    "cudnn-frontend, the same buffers": "cudnn-frontend, same",
    "cudnn-frontend, other buffers at each call": "cudnn-frontend, fresh",
    "cudnn-frontend, a tuple of the same buffers": "cudnn-frontend, ordered, same",
    "cudnn-frontend, a tuple of other buffers at each call": "cudnn-frontend, ordered, fresh",
}
DENSE, PACKED, PAGED = (
    "dense, b1 h2 s128 d64 causal f16",
    "packed, b4 h8/2 s128 d64 causal f16",
    "paged, b4 h8/2 1 of 512 d64 f16",
)
OPERATORS = (
    (DENSE, "ours"),
    (DENSE, "torch cudnn"),
    (DENSE, "torch flash"),
    (PACKED, "ours"),
    (PACKED, "torch varlen"),
    (PAGED, "ours"),
)


def make_table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


@pytest.mark.parametrize("words", HOST)
def test_host_times_of_plans_equal_the_record(words: str) -> None:
    host = read_record("bench-h200-cudnn-9.19.0.json")["host"]
    assert (
        make_table_row(words, *(f"{host[way][HOST[words]]['median_us']:.1f}" for way in ("forward", "backward")))
        in EXECUTION
    )


def test_times_to_first_result_equal_the_record() -> None:
    fresh = read_record("bench-h200-cudnn-9.19.0.json")["fresh"]
    names = ("ahead of time", "disk cache", "cold", "our frontend", "cudnn-frontend")
    said = re.search(
        r"comes after (\d+) ms with a plan built ahead of time, (\d+) with one on disk, (\d+) with neither, (\d+)\s"
        r"with `cudnn_backend_py.frontend`, and (\d+) with cudnn-frontend",
        EXECUTION,
    )
    assert said is not None
    assert [*map(int, said.groups())] == [round(fresh[name]["total"]) for name in names]


def test_gpu_times_equal_the_record() -> None:
    rows = read_record("bench-h200-cudnn-9.19.0.json")["gpu"]
    text = "in {} cases: {:.0f} to {:.0f} TFLOP/s forward and {:.0f} to {:.0f} backward. Torch's flash kernels reach "
    rates = {
        (who, way): sorted(row["tflops"][who] for row in rows if row["direction"] == way)
        for who in ("ours", "torch flash")
        for way in ("forward", "backward")
    }
    ends = [rate for found in rates.values() for rate in (found[0], found[-1])]
    text = (text + "{:.0f} to {:.0f} and {:.0f} to {:.0f}.").format(len(rows), *ends)
    assert text in " ".join(EXECUTION.split())
    differences = []
    for row in rows:
        same = next(name for name, tag in row["plans"].items() if tag == row["frontend_plan"])
        differences.append(abs(row["us"][same]["median_us"] / row["us"]["cudnn-frontend"]["median_us"] - 1))
    assert f"differ by at most {max(differences):.1%}".replace("%", " %") in EXECUTION


@pytest.mark.parametrize("way", ["no gradients", "with gradients", "backward"])
def test_host_times_of_torch_operators_equal_the_record(way: str) -> None:
    us = read_record("torch-calls-h200-cudnn-9.19.0.json")["us"]
    found = [us.get(f"{case}: {way}", {}).get(who) for case, who in OPERATORS]
    assert make_table_row(way, *("-" if one is None else f"{one['median_us']:.1f}" for one in found)) in EXECUTION


def test_host_times_quoted_in_page_text_equal_the_record() -> None:
    us = read_record("torch-calls-h200-cudnn-9.19.0.json")["us"]
    loop = us[f"{PACKED}: no gradients"]["C loop"]["median_us"]
    assert f"A C loop over the plan of the packed call takes {loop:.1f}." in EXECUTION
    each = [
        us[f"{DENSE}: {way}"]["ours, in Python"]["median_us"] for way in ("no gradients", "with gradients", "backward")
    ]
    assert "takes {:.1f}, {:.1f} and {:.1f}.".format(*each) in " ".join(EXECUTION.split())


def test_documented_frontend_host_time_ratios_equal_the_record() -> None:
    ratios = read_record("frontend-costs-h200-cudnn-9.19.0.json")["ratios"]
    names = ("forward, same", "backward, same", "forward, fresh", "backward, fresh", "first result")
    assert (
        "takes {:.2f} of its host time forward and {:.2f} backward on the same buffers, {:.2f} and {:.2f} on other "
        "buffers, the first result of a fresh process {:.2f}"
    ).format(*(ratios[name] for name in names)) in " ".join(MEASUREMENTS.split())


COMPARED = [line for line in FRONTEND.splitlines() if line.startswith("|") and "logs/frontend-tests-" in line]


@pytest.mark.parametrize("line", COMPARED, ids=[re.sub(r"[^\w ]", "", line)[:30] for line in COMPARED])
def test_counts_of_compared_frontend_tests_equal_the_records(line: str) -> None:
    """Check a table row's number of tests, and of compared graphs or, for several records, of intended differences."""
    totals = [read_record(name)["total"] for name in re.findall(r"logs/(frontend-tests-[\w.-]+\.json)", line)]
    tests, other = [int(cell.replace(",", "")) for cell in line.split("|") if re.fullmatch(r" [\d,]+ ", cell)]
    assert tests == sum(total["ours"]["ids"] for total in totals)
    assert other == sum(total["on purpose" if len(totals) > 1 else "graphs compared"] for total in totals)
    assert all(total["worse"] == 0 for total in totals)


def test_counts_of_frontend_tests_on_the_gpu_equal_the_record() -> None:
    data, page = read_record("frontend-tests-1.32-h200-cudnn-9.19.0.json"), " ".join(FRONTEND.split())
    total, left = data["total"], data["left out, of both, for want of time or memory"]
    assert (total["worse"], total["better"]) == (0, 0)
    assert (
        f"{total['ours']['ids']:,} tests, worse in none, better in none, {total['on purpose']} differ on purpose, the "
        f"graphs of {total['graphs compared']:,} compared"
    ) in page
    assert f"{left:,} more are left out of both" in page


def test_counts_of_cudnn_frontend_1_24_tests_equal_the_records() -> None:
    page = " ".join(FRONTEND.split())
    totals = [read_record(name)["total"] for name in re.findall(r"frontend-tests-1\.24-[\w.-]+\.json", page)]
    assert len(totals) == 7
    assert all(total["worse"] == 0 and f"{total['ours']['ids']:,}" in page for total in totals)
