"""What some tests need of the GPUs here, and which expectations were measured where."""

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
    from tests.support.child import Finished

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
# What tests/gpu expects of cuDNN depends on architecture and version: what it supports, how much of it, which known
# issues show. It is in this file. Elsewhere numbers still have to be right; a refusal by cuDNN is no failure there.
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
    """Skip a test that cuDNN's refusal ends, unless this was measured to be supported here."""
    if not measured_here():
        pytest.skip(f"did not run: cuDNN refuses it here (measured on {measured_names()}): {str(why)[:300]}")


def need_fused_attention() -> None:
    """Skip the test on a GPU for which neither cuDNN nor torch has fused attention in 16 bits."""
    if sm_here() < 80:
        pytest.skip(f"did not run: fused attention needs sm_80, this GPU is sm_{sm_here()}")


def check_program(done: Finished) -> None:
    """Assert that a program ended well; one that cuDNN refuses skips the test where that may be."""
    if done.code and ("NOT_SUPPORTED" in done.stderr or "NotSupported" in done.stderr):
        skip_refused(done.stderr.strip().splitlines()[-1])
    assert done.code == 0, done.stdout + done.stderr


def first_config(graph: Graph, target: Target, mode: Any = "A") -> EngineConfig:
    """Return the heuristics' first choice; a graph without one is refused as :func:`build` refuses it."""
    from cudnn_backend_py import NotSupported, OperationGraph

    answer = OperationGraph(graph, target).heuristics(mode, reasons=True)
    if not answer.configs:
        raise NotSupported(f"no engine config in mode {mode}: {answer.answer.text[:300]}", code="no-engine")
    return answer.configs[0]
