"""The graphs of docs/operations.md run on the GPU at hand as their record says, and agree with the interpreter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cudnn_backend_py import open_target
from tests.support.built import AGREES, BUILT, REFUSED, read_records
from tests.support.built_runs import WORKERS, run_in_child
from tests.support.figures import add_figure


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    """What becomes of every graph here."""
    with ThreadPoolExecutor(WORKERS) as pool:
        found = dict(zip(BUILT, pool.map(run_in_child, BUILT), strict=True))
    add_figure("graphs of operations", seen={name: item["said"] for name, item in found.items()})
    return found


def test_what_cudnn_takes_agrees_with_the_interpreter(seen: dict[str, dict[str, Any]]) -> None:
    others = {name: item for name, item in seen.items() if item["said"] not in (AGREES, REFUSED)}
    assert others == {}
    assert sum(item["said"] == AGREES for item in seen.values()) > 30


def test_the_record_of_this_version_says_the_same(seen: dict[str, dict[str, Any]]) -> None:
    target = open_target()
    version, sm = target.library.version_text, target.sm
    target.close()
    records = {where: graphs for where, graphs in read_records().items() if where.endswith(f", {version}")}
    if not records or sm != 90:
        pytest.skip(f"no record of cuDNN {version} on sm_{sm}")
    for graphs in records.values():
        assert {name: item["said"] for name, item in seen.items()} == {n: item["said"] for n, item in graphs.items()}
