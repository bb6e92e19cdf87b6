"""Requirements of tests on the GPUs of this machine, and the machines on which expectations were measured."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cudnn_backend_py.native import load_driver

if TYPE_CHECKING:
    from cudnn_backend_py import Graph
    from cudnn_backend_py.plans.engine import EngineConfig
    from cudnn_backend_py.target import Target
    from tests.support.child import FinishedChild

__all__ = [
    "MEASURED",
    "check_program",
    "first_config",
    "least",
    "measured_here",
    "measured_names",
    "need_fused_attention",
    "needs_two_gpus",
    "skip_refused",
    "sm_here",
]

needs_two_gpus = pytest.mark.skipif(load_driver().devices < 2, reason="did not run: there are no two GPUs")
# Expectations of tests/gpu that depend on architecture and cuDNN version: supported graphs, their number, and visible
# known issues. Elsewhere results still have to be right; a refusal by cuDNN is no failure there.
EXPECTED: Mapping[str, Mapping[str, int]] = tomllib.loads(
    (Path(__file__).parents[1] / "gpu" / "expected.toml").read_text(encoding="utf-8")
)
ELSEWHERE = "elsewhere"


def _read_name(name: str) -> tuple[int, str]:
    found = re.fullmatch(r"sm_(\d+), cuDNN (\d+(?:\.\d+){2})", name)
    assert found is not None, name
    return int(found[1]), found[2]


MEASURED = frozenset(_read_name(name) for name in EXPECTED if name != ELSEWHERE)


def sm_here() -> int:
    """Return the compute capability of the GPU of this process, as 90 for 9.0."""
    from cudnn_backend_py.plans.build import shared_target

    return shared_target().sm


def measured_here() -> bool:
    """Return whether the expectations of tests/gpu were measured on this architecture with this cuDNN."""
    from cudnn_backend_py import library

    return (sm_here(), library().version_text) in MEASURED


def least(what: str) -> int:
    """Return how many of a row of ``expected.toml`` there are at least on this architecture with this cuDNN."""
    from cudnn_backend_py import library

    here = f"sm_{sm_here()}, cuDNN {library().version_text}"
    return EXPECTED.get(here, EXPECTED[ELSEWHERE])[what]


def measured_names() -> str:
    """Return the architectures and versions of :data:`MEASURED` as text."""
    return ", ".join(f"sm_{sm} with cuDNN {version}" for sm, version in sorted(MEASURED))


def skip_refused(why: object) -> None:
    """Skip the test if cuDNN refuses, unless support was measured on this GPU."""
    if not measured_here():
        pytest.skip(f"did not run: cuDNN refuses it here (measured on {measured_names()}): {str(why)[:300]}")


def need_fused_attention() -> None:
    """Skip the test on a GPU without fused 16-bit attention in cuDNN and torch."""
    if sm_here() < 80:
        pytest.skip(f"did not run: fused attention needs sm_80, this GPU is sm_{sm_here()}")


def check_program(done: FinishedChild) -> None:
    """Assert that a program exited with 0; skip the test if cuDNN refused and may refuse."""
    if done.code and ("NOT_SUPPORTED" in done.stderr or "NotSupported" in done.stderr):
        skip_refused(done.stderr.strip().splitlines()[-1])
    assert done.code == 0, done.stdout + done.stderr


def first_config(graph: Graph, target: Target, mode: Any = "A") -> EngineConfig:
    """Return the heuristics' first config; refuse a graph without one as :func:`build` does."""
    from cudnn_backend_py import NotSupported, OperationGraph

    answer = OperationGraph(graph, target).heuristics(mode, reasons=True)
    if not answer.configs:
        raise NotSupported(f"no engine config in mode {mode}: {answer.answer.text[:300]}", code="no-engine")
    return answer.configs[0]
