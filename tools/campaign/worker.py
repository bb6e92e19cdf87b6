"""The child process of a campaign: runs one random graph per query, and reduces failures."""

from __future__ import annotations

import random
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cudnn_backend_py.errors import CudnnBackendError, CudnnStatusError
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.graph.replace import all_ops
from cudnn_backend_py.graph.serial import graph_to_json
from cudnn_backend_py.known_issues import KnownIssueWarning, find_ending_problems, name_failure
from cudnn_backend_py.rewrite.reduce import Reduced, reduce_failure
from cudnn_backend_py.system.child import Say, serve
from cudnn_backend_py.target import Target, open_target

from .coverage import covers
from .graphs import ATTENTION, random_graph
from .one import Found, PlanAnswer, is_context_lost, judge_deviceless, on_device, run_query

__all__ = ["main"]

_LOST = "cuda-driver"  # the code of what leaves the CUDA context of a process useless
_WORDS = 400
_ALIKE = 3  # failures of one family and engine that one process makes small


class _LostError(Exception):
    """A kernel failed during a reduction, so the context of this process is lost."""


class _Worker:
    """The state of a child between queries."""

    def __init__(self) -> None:
        self.target: Target | None = None
        self.made_small: Counter[str] = Counter()

    def open(self, name: str | None) -> Target:
        if self.target is None:
            self.target = open_target(name)
        return self.target

    def answer(self, asked: dict[str, Any], say: Say) -> None:
        """Report cuDNN's results for a graph, and for failures each smaller failing form."""
        target = self.open(asked["target"])
        if self._is_lost(target):
            say(spoiled=True)
            return
        began = time.perf_counter()
        graph = _graph(asked, target)
        if "cover" in asked:
            say(cover=dict(covers(graph)))
            return
        seconds = {"graph": time.perf_counter() - began}
        choice = random.Random(f"choice {asked['seed']}")
        kinds = [asked["data"]] if asked.get("data") else _kinds(asked["family"], choice)
        ends = ", ".join(fault.code for fault in find_ending_problems(graph, target.sm, target.library.version))
        say(about=_describe(graph), data=kinds, faults=ends)  # of this process, before it can say more
        began = time.perf_counter()
        got = run_query(graph, target, choice=choice, build=asked["build"] or target.is_live)
        seconds["plan"] = time.perf_counter() - began
        line: dict[str, Any] = {"engine": got.engine, "cover": dict(covers(graph)), "seconds": seconds}
        if got.config is None:
            say(outcome="refused", words=got.words[-_WORDS:], **line)
            if not target.is_live:
                self._deviceless(graph, kinds, asked, say)
            return
        if got.plan is None or not target.is_live:
            if got.plan is not None:
                got.plan.close()
            say(outcome="accepted", **line)
            self._deviceless(graph, kinds, asked, say)
            return
        say(outcome="accepted", faults=_faults(graph, got, ()), **line)
        try:
            self._on_device(graph, got, kinds, asked, say)
        finally:
            got.plan.close()

    @staticmethod
    def _is_lost(target: Target) -> bool:
        return target.handle is not None and is_context_lost(target.handle.device or 0)

    def _deviceless(self, graph: Graph, kinds: list[str], asked: dict[str, Any], say: Say) -> None:
        """Report whether both modes of the interpreter agree."""
        for kind in kinds if asked["interpret"] else ():
            began = time.perf_counter()
            try:
                found = judge_deviceless(graph, kind, asked["seed"])
            except CudnnBackendError as error:
                say(outcome="not interpreted", data=kind, words=str(error)[:_WORDS])
                return
            say(seconds={"interpret": time.perf_counter() - began})
            if found.wrong:
                say(outcome="differs", data=kind, words=found.wrong[:3], largest=_largest(found))

    def _on_device(self, graph: Graph, got: PlanAnswer, kinds: list[str], asked: dict[str, Any], say: Say) -> None:
        assert got.plan is not None
        target = got.plan.target
        arithmetic = got.arithmetic()
        for kind in kinds:
            try:
                found, seconds = on_device(got.plan, graph, kind, asked["seed"], arithmetic)
            except CudnnBackendError as error:
                failed = "not run" if isinstance(error, CudnnStatusError) else "not compared"
                outcome = "lost" if error.code == _LOST or self._is_lost(target) else failed
                words = f"{error} {getattr(error, 'last_error', '')}"
                say(outcome=outcome, data=kind, words=words[:_WORDS], faults=_faults(graph, got, ()))
                return
            compared = sum(one.compared for one in found.comparisons)
            say(outcome="compared", data=kind, seconds=seconds, elements=compared, largest=_largest(found))
            if not found.wrong:
                continue
            faults = _faults(graph, got, found.tensors)
            say(outcome="differs", data=kind, words=found.wrong[:3], largest=_largest(found), faults=faults)
            if faults:  # whose smallest forms stand in the table
                return
            name = f"{asked['family']} {got.engine.partition('_')[0]}"
            self.made_small[name] += 1
            if asked["reduce_s"] and self.made_small[name] <= _ALIKE:
                self._reduce(graph, kind, (got, found), asked, say)
            return

    def _reduce(
        self, graph: Graph, kind: str, failure: tuple[PlanAnswer, Found], asked: dict[str, Any], say: Say
    ) -> None:
        """Report each smaller failing form, the smallest last; the parent notices crashes.

        Wrong in the same way: by the same engine, by no fault that is known, numbers where there were numbers.
        """
        target = self.target
        assert target is not None
        assert failure[0].config is not None
        engine, last = failure[0].config.engine, dict[str, Any]()

        def fails(smaller: Graph, data: str) -> bool:
            nonlocal last
            if find_ending_problems(smaller, target.sm, target.library.version):
                return False
            say(trying=graph_to_json(smaller))
            got = run_query(smaller, target, choice=random.Random(f"choice {asked['seed']}"), engine=engine)
            if got.plan is None:
                return False
            try:
                found, _ = on_device(got.plan, smaller, data, asked["seed"], got.arithmetic())
            except CudnnBackendError as error:
                if error.code == _LOST or self._is_lost(target):
                    raise _LostError from error
                return False
            finally:
                got.plan.close()
            if not found.ways & failure[1].ways or _faults(smaller, got, found.tensors):
                return False
            last = {"words": found.wrong[:2], "engine": got.engine, "data": data}
            say(smaller=graph_to_json(smaller), text=str(smaller), **last)
            return True

        try:
            made: Reduced = reduce_failure(graph, kind, fails, budget_s=asked["reduce_s"], most=80)
        except _LostError as error:
            say(reduced={"ended": "a smaller form lost the context"}, lost=str(error.__cause__))
            return
        say(reduced={"tried": made.tried, "complete": made.complete, "steps": len(made.steps)})


def _graph(asked: dict[str, Any], target: Target) -> Graph:
    return random_graph(asked["seed"], asked["family"], version=target.library.version)


def _kinds(family: str, choice: random.Random) -> list[str]:
    """Return the kinds of data for a graph: one for most, two for every third.

    Hostile are the scores of attention, and what elementwise operations read: sums of huge numbers overflow in the
    order of each kernel, and a convolution may multiply padding with infinities.
    """
    weights = {"uniform": 5.0, "integers": 2.5}
    if family in ATTENTION:
        weights["hostile"] = 4.0
    elif family in ("pointwise", "mode", "reduction"):
        weights["hostile"] = 1.5
    elif family == "batch norm":
        del weights["integers"]  # a ReLU of exactly 0, which another order of operations makes not exactly 0
    drawn = choice.choices(list(weights), list(weights.values()), k=2)
    return list(dict.fromkeys(drawn[: 1 if choice.random() < 0.5 else 2]))


def _describe(graph: Graph) -> str:
    return " ".join(op.verb() for op in all_ops(graph))


def _largest(found: Found) -> float | None:
    finite = [one.largest for one in found.comparisons if one.largest < float("inf")]
    return max(finite, default=None)


def _faults(graph: Graph, got: PlanAnswer, wrong: Sequence[str]) -> str:
    """Return the known issues that explain these wrong outputs; empty without any."""
    assert got.config is not None
    assert got.plan is not None
    target = got.plan.target
    met = name_failure(graph, wrong, engine=got.config.engine, version=target.library.version, sm=target.sm)
    return ", ".join(fault.code for fault in met)


def main() -> None:
    """Answer the parent's queries."""
    warnings.simplefilter("ignore", KnownIssueWarning)
    serve(_Worker().answer)
