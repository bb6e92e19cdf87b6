"""Child process of a campaign: runs one random graph per request, and reduces graphs with wrong results."""

from __future__ import annotations

import random
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cudnn_backend_py.errors import CudnnBackendError, CudnnStatusError
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.graph.replace import iterate_all_ops
from cudnn_backend_py.graph.serial import graph_to_json
from cudnn_backend_py.known_issues import (
    KnownIssueWarning,
    find_issues_explaining_failure,
    find_issues_failing_before_execution,
)
from cudnn_backend_py.rewrite.reduce import ReducedFailingGraph, reduce_failing_graph
from cudnn_backend_py.system.serving import AnswerWriter, serve
from cudnn_backend_py.target import Target, open_target

from .coverage import list_graph_features
from .graphs import ATTENTION_FAMILIES, make_random_graph
from .plan_check import (
    OutputDifferences,
    PlanOrRefusal,
    build_plan_or_get_refusal,
    compare_exact_and_perturbed_runs,
    is_context_lost,
    run_and_compare,
)

__all__ = ["main"]

_CONTEXT_LOST_CODE = "cuda-driver"  # error code after which the CUDA context of a process is unusable
_MAX_MESSAGE_LENGTH = 400
_MAX_REDUCTIONS_PER_ENGINE = 3  # reductions per family and engine in one process


class _ContextLostError(Exception):
    """Raised if a kernel fails while a graph is made smaller, as this process has then lost its CUDA context."""


class _Worker:
    """State of the child process: the open target, and counts of graphs made smaller."""

    def __init__(self) -> None:
        self.target: Target | None = None
        self.reduced: Counter[str] = Counter()

    def open(self, name: str | None) -> Target:
        if self.target is None:
            self.target = open_target(name)
        return self.target

    def judge_requested_graph(self, request: dict[str, Any], say: AnswerWriter) -> None:
        """Judge a graph and report the result; if outputs are wrong, also report each smaller failing graph."""
        target = self.open(request["target"])
        if self._is_context_lost(target):
            say(spoiled=True)
            return
        began = time.perf_counter()
        graph = _make_requested_graph(request, target)
        if "cover" in request:
            say(cover=dict(list_graph_features(graph)))
            return
        seconds = {"graph": time.perf_counter() - began}
        choice = random.Random(f"choice {request['seed']}")
        kinds = [request["data"]] if request.get("data") else _choose_data_kinds(request["family"], choice)
        ends = ", ".join(
            issue.code for issue in find_issues_failing_before_execution(graph, target.sm, target.library.version)
        )
        say(about=_list_operation_names(graph), data=kinds, faults=ends)  # before a crash can prevent further output
        began = time.perf_counter()
        got = build_plan_or_get_refusal(graph, target, choice=choice, build=request["build"] or target.is_live)
        seconds["plan"] = time.perf_counter() - began
        line: dict[str, Any] = {"engine": got.engine, "cover": dict(list_graph_features(graph)), "seconds": seconds}
        if got.config is None:
            say(outcome="refused", words=got.words[-_MAX_MESSAGE_LENGTH:], **line)
            if not target.is_live:
                self._compare_interpreters_without_gpu(graph, kinds, request, say)
            return
        if got.plan is None or not target.is_live:
            if got.plan is not None:
                got.plan.close()
            say(outcome="accepted", **line)
            self._compare_interpreters_without_gpu(graph, kinds, request, say)
            return
        say(outcome="accepted", faults=_find_known_issue_codes(graph, got, ()), **line)
        try:
            self._run_and_compare_on_gpu(graph, got, kinds, request, say)
        finally:
            got.plan.close()

    @staticmethod
    def _is_context_lost(target: Target) -> bool:
        return target.handle is not None and is_context_lost(target.handle.device or 0)

    def _compare_interpreters_without_gpu(
        self, graph: Graph, kinds: list[str], request: dict[str, Any], say: AnswerWriter
    ) -> None:
        """Report whether the exact and the rounding interpreter agree."""
        for kind in kinds if request["interpret"] else ():
            began = time.perf_counter()
            try:
                found = compare_exact_and_perturbed_runs(graph, kind, request["seed"])
            except CudnnBackendError as error:
                say(outcome="not interpreted", data=kind, words=str(error)[:_MAX_MESSAGE_LENGTH])
                return
            say(seconds={"interpret": time.perf_counter() - began})
            if found.descriptions_of_wrong_outputs:
                say(
                    outcome="differs",
                    data=kind,
                    words=found.descriptions_of_wrong_outputs[:3],
                    largest=_find_largest_error(found),
                )

    def _run_and_compare_on_gpu(
        self, graph: Graph, got: PlanOrRefusal, kinds: list[str], request: dict[str, Any], say: AnswerWriter
    ) -> None:
        assert got.plan is not None
        target = got.plan.target
        arithmetic = got.get_arithmetic()
        for kind in kinds:
            try:
                found, seconds = run_and_compare(got.plan, graph, kind, request["seed"], arithmetic)
            except CudnnBackendError as error:
                failed = "not run" if isinstance(error, CudnnStatusError) else "not compared"
                outcome = "lost" if error.code == _CONTEXT_LOST_CODE or self._is_context_lost(target) else failed
                words = f"{error} {getattr(error, 'last_error', '')}"
                say(
                    outcome=outcome,
                    data=kind,
                    words=words[:_MAX_MESSAGE_LENGTH],
                    faults=_find_known_issue_codes(graph, got, ()),
                )
                return
            compared = sum(one.compared for one in found.comparisons)
            say(outcome="compared", data=kind, seconds=seconds, elements=compared, largest=_find_largest_error(found))
            if not found.descriptions_of_wrong_outputs:
                continue
            faults = _find_known_issue_codes(graph, got, found.names_of_wrong_outputs)
            say(
                outcome="differs",
                data=kind,
                words=found.descriptions_of_wrong_outputs[:3],
                largest=_find_largest_error(found),
                faults=faults,
            )
            if faults:  # the table of known issues already has their smallest graphs
                return
            name = f"{request['family']} {got.engine.partition('_')[0]}"
            self.reduced[name] += 1
            if request["reduce_s"] and self.reduced[name] <= _MAX_REDUCTIONS_PER_ENGINE:
                self._reduce(graph, kind, (got, found), request, say)
            return

    def _reduce(
        self,
        graph: Graph,
        kind: str,
        failure: tuple[PlanOrRefusal, OutputDifferences],
        request: dict[str, Any],
        say: AnswerWriter,
    ) -> None:
        """Make a failing graph smaller; report each one that fails alike at once, as a crash ends this process.

        It fails in the same way if the same engine gives the same kind of wrong result without a known issue.
        """
        target = self.target
        assert target is not None
        assert failure[0].config is not None
        engine, last = failure[0].config.engine, dict[str, Any]()

        def has_same_failure(smaller: Graph, data: str) -> bool:
            nonlocal last
            if find_issues_failing_before_execution(smaller, target.sm, target.library.version):
                return False
            say(trying=graph_to_json(smaller))
            got = build_plan_or_get_refusal(
                smaller, target, choice=random.Random(f"choice {request['seed']}"), engine=engine
            )
            if got.plan is None:
                return False
            try:
                found, _ = run_and_compare(got.plan, smaller, data, request["seed"], got.get_arithmetic())
            except CudnnBackendError as error:
                if error.code == _CONTEXT_LOST_CODE or self._is_context_lost(target):
                    raise _ContextLostError from error
                return False
            finally:
                got.plan.close()
            if not found.difference_kinds & failure[1].difference_kinds or _find_known_issue_codes(
                smaller, got, found.names_of_wrong_outputs
            ):
                return False
            last = {"words": found.descriptions_of_wrong_outputs[:2], "engine": got.engine, "data": data}
            say(smaller=graph_to_json(smaller), text=str(smaller), **last)
            return True

        try:
            made: ReducedFailingGraph = reduce_failing_graph(
                graph, kind, has_same_failure, budget_s=request["reduce_s"], most=80
            )
        except _ContextLostError as error:
            say(reduced={"ended": "a smaller form lost the context"}, lost=str(error.__cause__))
            return
        say(reduced={"tried": made.tried, "complete": made.complete, "steps": len(made.steps)})


def _make_requested_graph(request: dict[str, Any], target: Target) -> Graph:
    return make_random_graph(request["seed"], request["family"], version=target.library.version)


def _choose_data_kinds(family: str, choice: random.Random) -> list[str]:
    """Return one or two kinds of input data for a graph.

    Hostile data is only used for scores of attention and for elementwise operations: whether sums of huge numbers
    overflow depends on the order of additions in a kernel, and a convolution may multiply padding by infinities.
    """
    weights = {"uniform": 5.0, "integers": 2.5}
    if family in ATTENTION_FAMILIES:
        weights["hostile"] = 4.0
    elif family in ("pointwise", "mode", "reduction"):
        weights["hostile"] = 1.5
    elif family == "batch norm":
        del weights["integers"]  # integers give a ReLU inputs of exactly 0, which another order of additions does not
    drawn = choice.choices(list(weights), list(weights.values()), k=2)
    return list(dict.fromkeys(drawn[: 1 if choice.random() < 0.5 else 2]))


def _list_operation_names(graph: Graph) -> str:
    return " ".join(op.display_name() for op in iterate_all_ops(graph))


def _find_largest_error(found: OutputDifferences) -> float | None:
    finite = [one.largest for one in found.comparisons if one.largest < float("inf")]
    return max(finite, default=None)


def _find_known_issue_codes(graph: Graph, got: PlanOrRefusal, wrong: Sequence[str]) -> str:
    """Return the codes of known issues that explain the wrong outputs, or an empty text."""
    assert got.config is not None
    assert got.plan is not None
    target = got.plan.target
    met = find_issues_explaining_failure(
        graph, wrong, engine=got.config.engine, version=target.library.version, sm=target.sm
    )
    return ", ".join(issue.code for issue in met)


def main() -> None:
    """Judge the graphs that the parent process requests, until it closes the pipe."""
    warnings.simplefilter("ignore", KnownIssueWarning)
    serve(_Worker().judge_requested_graph)
