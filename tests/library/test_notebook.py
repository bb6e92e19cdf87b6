"""The notebook of the docs shows the output of its cells."""

from __future__ import annotations

import json
import re

import pytest

from cudnn_backend_py import library
from tools.records.notebook import NOTEBOOK_PATH, read_outputs, run_cells


def test_the_notebook_shows_the_output_of_its_cells() -> None:
    written = json.loads(NOTEBOOK_PATH.read_text(encoding="utf-8"))["metadata"]["cudnn"]
    if library().version_text != written:
        pytest.skip(f"did not run: the notebook was written with cuDNN {written}")
    assert run_cells() == read_outputs(), "run `make regen` and read the difference"


def test_the_notebook_contains_no_path_of_a_machine() -> None:
    text = NOTEBOOK_PATH.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.<])/(?:home|root|work|tmp|opt|usr|var|mnt|Users)/", text) == []
    kinds = {kind for outputs in read_outputs() for shown in outputs for kind in shown.get("data", ())}
    assert kinds == {"text/plain", "text/html", "image/svg+xml"}
