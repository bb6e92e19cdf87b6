"""Unchanged notebook cells build their graphs for described GPUs, and stop at the execution."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cudnn_backend_py import find_profile
from cudnn_backend_py.frontend.notebooks import split_exported_cells
from tests.support.child import run_python
from tests.support.notebook_cells import NOTEBOOK_FOLDERS, find_notebook

WRAPPER_GRAPH, FORWARD_GRAPH, BACKWARD_GRAPH = range(3)
# Cells that execute: in both notebooks the half of the wrapper first, then that of the binding API.
EXECUTING_CELLS = {
    0: {6: WRAPPER_GRAPH, 12: FORWARD_GRAPH, 13: BACKWARD_GRAPH},
    1: {4: WRAPPER_GRAPH, 8: FORWARD_GRAPH},
}


@pytest.mark.parametrize("target", ["h100", "a100"])
@pytest.mark.parametrize("seed", EXECUTING_CELLS)
def test_notebooks_build_their_graphs_without_a_gpu(seed: int, target: str) -> None:
    path = find_notebook(seed)
    if path is None:
        pytest.skip(f"did not run: notebook {seed:03} is not available (looked in {NOTEBOOK_FOLDERS})")
    done = run_python(["-m", "tests.support.notebook_cells", str(path), target], check=True)
    stops: list[dict[str, Any]] = json.loads(done.stdout)
    assert [stop["cell"] for stop in stops] == list(EXECUTING_CELLS[seed])
    for stop in stops:
        assert stop["type"] == "FrontendRuntimeError"
        assert f"built for the described target {find_profile(target).name}, on which plans cannot run" in stop["text"]


@pytest.mark.parametrize(("seed", "cells"), [(0, 15), (1, 10)])
def test_all_cells_of_an_exported_notebook_are_found_unchanged(seed: int, cells: int) -> None:
    path = find_notebook(seed)
    if path is None:
        pytest.skip(f"did not run: notebook {seed:03} is not available (looked in {NOTEBOOK_FOLDERS})")
    text = path.read_text(encoding="utf-8")
    found = split_exported_cells(text)
    assert len(found) == cells == text.count("In [None]:")
    assert all(f"In [None]:\n{cell}" in text for cell in found)
    assert found[-1].endswith("cudnn.destroy_handle(handle)")


def test_a_cell_ends_at_the_next_paragraph_of_text() -> None:
    text = "Words.\n\nIn [None]:\nx = [\n\n    1,\n]\n\ny = 2\n\nNow we run it\n\n## Title\n\nIn [None]:\nz = x\n"
    assert split_exported_cells(text) == ["x = [\n\n    1,\n]\n\ny = 2", "z = x"]
