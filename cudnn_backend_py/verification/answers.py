"""cuDNN's verdicts on graphs from a child process, for the GPU of this machine or for a described one.

For a described GPU the child loads the driver stub, also where a driver is, so that it answers as a machine without a
GPU does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

from ..diagnose.explanation import control_graph, explain
from ..diagnose.judges import START_FAILURE_CODE
from ..diagnose.query import describe_device, read_device
from ..diagnose.verdict import Outcome
from ..errors import CudnnBackendError, CudnnStatusError, EnvironmentNotReady, UsageError
from ..graph import Graph, graph_from_json, graph_to_json
from ..native.driver import load_driver_stub
from ..native.environment import find_absent_engine_libraries
from ..plans.choice import EngineChoice
from ..plans.engine import EngineConfig, OperationGraph
from ..plans.plan import build_plan
from ..system.child import RestartingChildProcess
from ..system.serving import AnswerWriter, serve
from ..target import Profile, Target, open_target
from ..versions.judging_environment import make_version_environment

__all__ = [
    "MODES",
    "BuiltPlan",
    "LibraryAndGpuProperties",
    "VerdictAndConfigs",
    "VerificationChild",
    "serve_verification_queries",
]

MODES = ("A", "FALLBACK")
_OF_THE_MACHINE = ("pciDeviceId", "cudaDeviceId")  # properties that say where a GPU is, not what it is
_FIRST_S, _LIMIT_S = 180.0, 60.0  # for the first question of a process, which loads cuDNN; and for any other


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictAndConfigs:
    """cuDNN's verdict on a graph, with its engine configs and their workspaces.

    Attributes
    ----------
    outcome
        That of a verdict; ``could not be judged`` where the library is older than the graph, or the process ended.
    why
        The status of a refusal by the graph or the heuristics, the code of an error of this package, or how the process
        ended.
    configs
        The engine configs of each mode, as tags, in cuDNN's order.
    workspace
        The bytes that each of these needs.
    """

    outcome: str
    why: str = ""
    configs: Mapping[str, list[str]] = field(default_factory=dict)
    workspace: Mapping[str, list[int]] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """The tag of the first engine config, empty if there is none."""
        return next((tags[0] for tags in self.configs.values() if tags), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPlan:
    """The result of building the plan of one engine config.

    Attributes
    ----------
    why
        The same where it was not built, else empty.
    kernels
        The SHA-256 of each kernel that was compiled; None where the code is in cuDNN's libraries.
    """

    tag: str
    why: str = ""
    workspace: int | None = None
    kernels: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryAndGpuProperties:
    """The cuDNN library and the GPU that a child process of a verification uses.

    Attributes
    ----------
    cuda
        The CUDA version that cuDNN was built for, as 13000 for 13.0; ``driver`` is the one that the driver supports.
    absent
        Parts of the library with engines that are not there: jit wheels lack some.
    device
        The properties of the GPU, but for what says where it is in the machine.
    """

    cudnn: str
    cuda: int
    driver: int | None
    absent: list[str]
    device: Mapping[str, Any]

    @property
    def sm(self) -> int:
        """The architecture of the GPU, 90 for sm_90."""
        return int(self.device["deviceVer"]) // 10


class VerificationChild:
    """A child process that queries cuDNN about graphs, for the real or a described GPU; restarted if it ended.

    Parameters
    ----------
    profile
        The described GPU; None for the GPU of this machine.
    version
        An installed cuDNN; None for the one that this process would load.
    """

    def __init__(self, profile: Profile | None, version: str | None = None) -> None:
        self._device = describe_device(profile)
        self._child = RestartingChildProcess(
            f"{__name__}:{serve_verification_queries.__name__}", lambda: make_version_environment(version)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._child.end()

    def read_properties(self) -> LibraryAndGpuProperties:
        """Return the properties of the cuDNN library and the GPU that the child process uses.

        Raises
        ------
        EnvironmentNotReady
            What :func:`~cudnn_backend_py.target.open_target` raises; ``control-graph-refused``; ``judge-did-not-start``
            if the process ended.
        """
        said = self._query_child({})
        if "facts" in said:
            return LibraryAndGpuProperties(**said["facts"])
        if "refused" in said:
            headline, code, sections = said["refused"]
            raise EnvironmentNotReady(headline, code=code, **sections)
        raise EnvironmentNotReady(
            f"the process that queries cuDNN ended with {self._child.ending}",
            code=START_FAILURE_CODE,
            fix="cudnn-backend doctor names what is in the way",
        )

    def query(self, graph: Graph) -> VerdictAndConfigs:
        """Return the verdict and the engine configs that cuDNN gives for a graph in the child process."""
        said = self._query_child({"graph": graph_to_json(graph)})
        return (
            VerdictAndConfigs(**said["answer"])
            if "answer" in said
            else VerdictAndConfigs(outcome=Outcome.NOT_JUDGED, why=self._child.ending)
        )

    def build(self, graph: Graph, tag: str) -> BuiltPlan:
        """Build the plan of an engine config and return the result."""
        said = self._query_child({"graph": graph_to_json(graph), "tag": tag})
        return BuiltPlan(**said["built"]) if "built" in said else BuiltPlan(tag=tag, why=self._child.ending)

    def _query_child(self, query: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        limit_s = _LIMIT_S if self._child.is_usable else _FIRST_S
        for said in self._child.run_query({"device": self._device, **query}, limit_s):
            found |= said
        return found


# in the child process


def serve_verification_queries() -> None:
    """In a child process: query cuDNN about the graphs that the parent sends, and build their plans."""
    serve(_answer_query)


def _answer_query(query: Mapping[str, Any], say: AnswerWriter) -> None:
    if "graph" not in query:
        try:
            say(facts=_collect_library_and_gpu_facts(_open_target_with_working_cudnn(query["device"])))
        except EnvironmentNotReady as error:
            say(refused=(error.headline, error.code, error.sections))
        return
    graph, target = graph_from_json(query["graph"]), _open_target_with_working_cudnn(query["device"])
    if "tag" in query:
        say(built=_build_plan_by_tag(graph, target, query["tag"]))
    else:
        say(answer=_judge_graph(graph, target))


@cache
def _open_target_with_working_cudnn(device: str) -> Target:
    profile = read_device(device)
    if profile is not None:
        load_driver_stub()
    target = open_target(profile)
    verdict = explain(control_graph(), target, causes=False)
    if verdict.outcome is Outcome.NOT_JUDGED:
        raise EnvironmentNotReady(
            "cuDNN refuses the control graph, a small float16 matmul that it supports wherever it works",
            code="control-graph-refused",
            cause=str(verdict.cause),
            fix="cudnn-backend doctor names what is in the way",
        )
    return target


def _collect_library_and_gpu_facts(target: Target) -> dict[str, Any]:
    lib = target.library
    device = {key: value for key, value in target.profile.properties.items() if key not in _OF_THE_MACHINE}
    return {
        "cudnn": lib.version_text,
        "cuda": lib.cuda_version,
        "driver": lib.driver.version if target.is_live else None,
        "absent": list(find_absent_engine_libraries(lib.path, lib.version, lib.cuda_version // 1000)),
        "device": device,
    }


def _judge_graph(graph: Graph, target: Target) -> dict[str, Any]:
    configs: dict[str, list[EngineConfig]] = {}
    why = ""
    try:
        question = OperationGraph(graph, target)
        for mode in MODES:
            with contextlib.suppress(*() if mode == MODES[-1] else (CudnnStatusError,)):
                configs[mode] = question.heuristics(mode, judging=True).configs
    except CudnnStatusError as error:
        why = _get_error_name(error)
    except UsageError as error:
        return {"outcome": Outcome.NOT_JUDGED, "why": error.code}
    return {
        "outcome": Outcome.SUPPORTED if any(configs.values()) else Outcome.NOT_SUPPORTED,
        "why": why,
        "configs": {mode: [config.tag for config in found] for mode, found in configs.items()},
        "workspace": {mode: [config.workspace_bytes for config in found] for mode, found in configs.items()},
    }


def _build_plan_by_tag(graph: Graph, target: Target, tag: str) -> dict[str, Any]:
    choice = EngineChoice.parse(tag)
    try:
        plan = build_plan(OperationGraph(graph, target).config(choice.engine, choice.knobs))
    except CudnnBackendError as error:
        return {"tag": tag, "why": _get_error_name(error)}
    with contextlib.closing(plan):
        kernels = plan.kernels()
        found = None if kernels is None else [kernel.sha256 for kernel in kernels]
        return {"tag": tag, "workspace": plan.workspace_bytes, "kernels": found}


def _get_error_name(error: CudnnBackendError) -> str:
    """Return the cuDNN status or the code of an error, not its text, which may contain paths of the machine."""
    status = getattr(error, "status", None)
    return error.code if status is None else getattr(status, "name", str(status))
