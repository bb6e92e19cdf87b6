"""The engine selections of this package equal those in the sources of an installed nvidia-cudnn-frontend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from cudnn_backend_py.graph.attention.selections import SELECTIONS
from tests.pure.why.test_frameworks import FRONTEND, explain_framework_choices_for_attention

PACKAGE = "nvidia-cudnn-frontend"
Choice = tuple[int, frozenset[tuple[str, int]]]

# Selected only by users who set a variable of the environment for sm_90.
KNOBS_ON_REQUEST = {"TILE_M": 2, "TILE_N": 1, "KERNEL_CFG": 2, "STREAM_K": 0, "TILE_CGA_M": 0, "STAGES": 4}
# Three stages are for head dims of 256, which need cuDNN 9.23, and KERNEL_CFG=31 is for versions before it.
KNOBS_OF_NO_VERSION = {"KERNEL_CFG": 31, "STAGES": 3}
OTHER_CHOICES: set[Choice] = {
    (6, frozenset(KNOBS_ON_REQUEST.items())),
    *((engine, frozenset(KNOBS_OF_NO_VERSION.items())) for engine in (5, 17)),
}
SELECTED_BY_THIS_PACKAGE: set[Choice] = {
    (row.engine, frozenset((knob.name, value) for knob, value in row.knobs)) for row in SELECTIONS
}


def list_engines_and_knobs_selected_in_source(source: str) -> Iterator[Choice]:
    """Yield each engine and its knobs that a node's override of the heuristics returns, for each of its conditions."""
    for body in re.findall(r"override_heuristics_query\(\) const \{(.*?)\n    \}", source, re.DOTALL):
        for engine, knobs in re.findall(r"return \{(\d+),\s*\{(.*?)\}\};", body, re.DOTALL):
            pairs = re.findall(r"KnobType_t::(\w+), (?:\w+ \? (\d+) : )?(\d+)", knobs)
            yield int(engine), frozenset((name, int(value)) for name, _, value in pairs)
            if any(first for _, first, _ in pairs):
                yield int(engine), frozenset((name, int(first or value)) for name, first, value in pairs)


def read_installed_frontend_node_headers() -> list[str]:
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed")
    paths = [Path(str(file.locate())) for file in files if file.match("cudnn_frontend/node/*.h")]
    return [path.read_text(encoding="utf-8") for path in paths]


def test_knob_values_are_read_from_both_branches_of_a_condition() -> None:
    source = """
    override_heuristics_query() const {
        if (wide) {
            return {5, {{KnobType_t::KERNEL_CFG, 31}, {KnobType_t::STAGES, wide ? 3 : 2}}};
        }
        return {-1, {}};
    }
"""
    assert set(list_engines_and_knobs_selected_in_source(source)) == {
        (5, frozenset({("KERNEL_CFG", 31), ("STAGES", 3)})),
        (5, frozenset({("KERNEL_CFG", 31), ("STAGES", 2)})),
    }


def test_engine_selections_equal_those_of_installed_cudnn_frontend() -> None:
    found = {
        choice
        for source in read_installed_frontend_node_headers()
        for choice in list_engines_and_knobs_selected_in_source(source)
    }
    assert found - OTHER_CHOICES == SELECTED_BY_THIS_PACKAGE


def test_explained_frontend_release_is_the_installed_release() -> None:
    read_installed_frontend_node_headers()
    [release] = [name for name in explain_framework_choices_for_attention(90) if name.startswith("cudnn-frontend ")]
    assert release == FRONTEND
    assert f"{distribution(PACKAGE).version}.".startswith(f"{release.partition(' ')[2]}.")
