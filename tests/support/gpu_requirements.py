"""Requirements of GPU tests, and the GPUs and cuDNN versions on which their expectations were measured."""

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
    "MEASURED_GPUS",
    "are_expectations_measured_on_this_gpu",
    "assert_program_succeeded",
    "find_first_engine_config",
    "get_current_sm",
    "get_minimum_expected_count_on_this_gpu",
    "list_measured_gpus",
    "needs_two_gpus",
    "require_fused_attention",
    "skip_if_support_not_measured_on_this_gpu",
]

needs_two_gpus = pytest.mark.skipif(load_driver().devices < 2, reason="did not run: there are no two GPUs")
# Expectations of tests/gpu that depend on architecture and cuDNN version: numbers of supported graphs and of visible
# known issues. On other GPUs and versions, results must be right, but a refusal by cuDNN is not a failure.
EXPECTED_COUNTS: Mapping[str, Mapping[str, int]] = tomllib.loads(
    (Path(__file__).parents[1] / "gpu" / "expected.toml").read_text(encoding="utf-8")
)
OTHER_GPUS_KEY = "elsewhere"


def _parse_measured_gpu_and_version(name: str) -> tuple[int, str]:
    found = re.fullmatch(r"sm_(\d+), cuDNN (\d+(?:\.\d+){2})", name)
    assert found is not None, name
    return int(found[1]), found[2]


MEASURED_GPUS = frozenset(_parse_measured_gpu_and_version(name) for name in EXPECTED_COUNTS if name != OTHER_GPUS_KEY)


def get_current_sm() -> int:
    """Return the compute capability of this process's GPU, such as 90 for 9.0."""
    from cudnn_backend_py.plans.build import shared_target

    return shared_target().sm


def are_expectations_measured_on_this_gpu() -> bool:
    """Return whether the expectations of tests/gpu were measured on this architecture with this cuDNN."""
    from cudnn_backend_py import library

    return (get_current_sm(), library().version_text) in MEASURED_GPUS


def get_minimum_expected_count_on_this_gpu(what: str) -> int:
    """Return the smallest accepted count of a row of ``expected.toml`` for this architecture and cuDNN version."""
    from cudnn_backend_py import library

    here = f"sm_{get_current_sm()}, cuDNN {library().version_text}"
    return EXPECTED_COUNTS.get(here, EXPECTED_COUNTS[OTHER_GPUS_KEY])[what]


def list_measured_gpus() -> str:
    """Return the architectures and cuDNN versions of :data:`MEASURED_GPUS` as text."""
    return ", ".join(f"sm_{sm} with cuDNN {version}" for sm, version in sorted(MEASURED_GPUS))


def skip_if_support_not_measured_on_this_gpu(why: object) -> None:
    """Skip the test after a refusal by cuDNN, unless support was measured on this GPU."""
    if not are_expectations_measured_on_this_gpu():
        pytest.skip(f"did not run: cuDNN refuses it here (measured on {list_measured_gpus()}): {str(why)[:300]}")


def require_fused_attention() -> None:
    """Skip the test on a GPU older than sm_80, without fused 16-bit attention in cuDNN and torch."""
    if get_current_sm() < 80:
        pytest.skip(f"did not run: fused attention needs sm_80, this GPU is sm_{get_current_sm()}")


def assert_program_succeeded(done: FinishedChild) -> None:
    """Assert that a program exited with 0; after a refusal by cuDNN, skip the test where support was not measured."""
    if done.code and ("NOT_SUPPORTED" in done.stderr or "NotSupported" in done.stderr):
        skip_if_support_not_measured_on_this_gpu(done.stderr.strip().splitlines()[-1])
    assert done.code == 0, done.stdout + done.stderr


def find_first_engine_config(graph: Graph, target: Target, mode: Any = "A") -> EngineConfig:
    """Return the heuristics' first engine config; raise the error of :func:`build` if there is none."""
    from cudnn_backend_py import NotSupported, OperationGraph

    answer = OperationGraph(graph, target).heuristics(mode, reasons=True)
    if not answer.configs:
        raise NotSupported(f"no engine config in mode {mode}: {answer.answer.text[:300]}", code="no-engine")
    return answer.configs[0]
