"""``explain``: judge a graph on a target, after a control graph."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, cast

from ..errors import CudnnBackendError, CudnnStatusError, EnvironmentNotReady, GraphError, NotSupported, UsageError
from ..generated.enums import CudnnEnum, DataType, DescriptorType, HeurMode, Status
from ..graph import Graph, Operation
from ..graph.attention.recognize import read_attention
from ..graph.attention.shape_class import make_shape_class_graph_or_reason
from ..graph.booleans import describe_boolean_memory_format
from ..graph.build.products import MatmulAndPointwise
from ..graph.guard import MISTAKES, call_and_report_errors, collect_error_reports, describe_internal_error
from ..graph.ir import check_graph
from ..known_issues import find_issues_failing_before_execution, find_known_issues, silence_issue_warnings
from ..native import loaded_library
from ..native.environment_problems import EnvironmentProblem, check_environment
from ..plans.build import make_selection
from ..plans.candidate import CANNOT_LOAD, Candidate, parse_refused_candidates
from ..plans.choice import EngineChoice
from ..plans.engine import EngineConfig, Heuristics, OperationGraph, heur_mode
from ..plans.lower import find_newer_features
from ..plans.plan import Plan, build_plan
from ..plans.refusals import Reason, read_error_reasons, read_refusals
from ..plans.select import Selection, select
from ..plans.select import candidates as list_configs
from ..system.interruption import reraise_interruption
from ..system.version import format_version_numbers
from ..target import Profile, Target, use_target
from .architectures import (
    choose_target_for_control_graph,
    describe_version_architecture_mismatch,
    replace_cause_if_cudnn_is_older_than_gpu,
)
from .engines import (
    CUDA_13_ENGINE_REMARK,
    describe_missing_engines,
    explain_missing_engines,
    find_missing_engine_libraries,
    format_full_wheel_remedy,
    has_extra_engine_in_cuda_13,
)
from .verdict import (
    CRASH_CODE,
    DEFAULT_MODES,
    NEWER_THAN_LIBRARY_SUFFIX,
    NO_GPU_ENGINE_REMARKS,
    NO_GPU_REMARK,
    STAGE_NAMES,
    Basis,
    Cause,
    Control,
    EngineCheck,
    Outcome,
    Stage,
    Verdict,
)

__all__ = ["control_graph", "convert_environment_problem_to_cause", "explain"]

LOAD_FAILURE_CODE = "code-cannot-load"

_ENGINE_STAGES = (
    "heuristics",
    "plan",
)  # stages at which engines refuse; the graph library, which all wheels have, before
_REFUSED_BY_PACKAGE = "refused by this package; cuDNN was not called"
_control_cache: dict[tuple[int, bool, str], Control] = {}


@lru_cache(maxsize=1)
def control_graph() -> Graph:
    """Return the control graph: a small float16 matmul, supported wherever cuDNN works."""
    g = MatmulAndPointwise("control", io_type=DataType.HALF)
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), name="c", virtual=False)
    return g.graph()


def explain(
    graph: Graph,
    target: str | Profile | Target | None = None,
    *,
    mode: HeurMode | str | Sequence[HeurMode | str] = DEFAULT_MODES,
    build: bool | None = None,
    execute: bool = False,
    plans: list[Plan] | None = None,
    step: Callable[[str], object] = str,
    skip: Collection[str] = (),
    causes: bool = True,
    shapes: bool = False,
    every_engine: bool = False,
    code: str | None = None,
    engine: int | str | None = None,
) -> Verdict:
    """Return cuDNN's verdict on `graph` with the reasons of every candidate.

    Parameters
    ----------
    target
        The name of a described GPU (``l40s``, ``sm89``), a profile, an open target, or None for the GPU of this
        process.
    mode
        Heuristics modes to ask, in order; A and FALLBACK if not given.
    build
        Finalize the plans of the surviving configs until one builds: compilation can still fail then. If not given,
        only where that is known or likely to fail; if False, never.
    execute
        Also build, and run the plan once on zeroed memory: a kernel can fail where everything before passed. Only the
        GPU of this process can be queried; for a described one the verdict is that this could not be judged.
    plans
        Receives the plan that was built, so that it need not be built again.
    step
        Called with what cuDNN is queried next, before it is: what a crash was in.
    skip
        Tags of engine configs (``eng2_k24=7``) whose plans are not to be built: those that crashed before.
    causes
        Whether cuDNN may be queried about the control graph's plan, and about variations of a refused graph, to find
        the cause. With `build` the variations are built, which takes some two seconds: what is named as a remedy was.
    shapes
        Whether cuDNN is queried about one question more where it supports a graph of attention: whether one plan can
        serve every batch and length (``Verdict.shapes``). It costs half of a supported verdict again.
    every_engine
        Also check every engine with all of its knob values, which takes seconds to minutes: the heuristics list what
        they think best, and a graph is supported if any config supports it. An engine with more than 2,000
        combinations of knob values is checked with each value of one knob at a time.
    code
        Folder to write the machine code of built plans to, as :meth:`Plan.save_code` does; builds like `build`.
    engine
        The index of an engine, or the tag of an engine config such as ``eng2_k24=7``: it alone is judged.

    Raises
    ------
    UsageError
        ``unknown-target``, ``unknown-enumerator``, ``engine-tag``. Anything else is a verdict, not an exception:
        what the environment lacks, what this package refuses about the graph, and also what fails in this package
        (``judging-failed``).
    """
    check_graph(graph)
    build = True if execute or code is not None else build
    asked = [mode] if isinstance(mode, (HeurMode, str)) else list(mode)
    modes = tuple(heur_mode(item) for item in asked)
    chosen_engine = None if engine is None else replace(make_selection("A", engine, None, None), modes=modes)
    name = target if isinstance(target, str) else "gpu" if target is None else target.name
    lib = loaded_library()
    if lib is None:
        problems = check_environment(build=bool(build))  # loads the library, if that does not end the process
        lib = loaded_library()
        if lib is None:
            return _make_verdict_without_target(
                graph, name, modes, problems[0], cudnn="none", path="", driver="not asked"
            )
    found: dict[str, Any] = {"cudnn": lib.build_text, "path": lib.path, "driver": lib.driver.kind}
    with collect_error_reports() as lines, silence_issue_warnings():
        try:
            with use_target(target, on=lib) as chosen:
                verdict = _Judgement(
                    graph,
                    chosen,
                    modes,
                    build,
                    execute,
                    plans,
                    step,
                    skip,
                    causes,
                    shapes,
                    every_engine,
                    code,
                    chosen_engine,
                ).verdict()
        except CudnnBackendError as error:
            if error.code == "unknown-target":
                raise
            blocking = (fault for fault in check_environment(lib, build=bool(build)) if fault.blocks)
            fault = next(blocking, _convert_error_to_environment_problem(error))
            reasons = read_error_reasons(error) if isinstance(error, CudnnStatusError) else ()
            verdict = _make_verdict_without_target(graph, name, modes, fault, **found, reasons=reasons)
        except MISTAKES as error:
            reraise_interruption(error)
            headline = describe_internal_error("the judging", error)
            fault = EnvironmentProblem("judging-failed", headline, "this says nothing about the graph", "", True)
            verdict = _make_verdict_without_target(graph, name, modes, fault, **found)
    return replace(verdict, limits=(*verdict.limits, *lines)) if lines else verdict


class _Judgement:
    """The judgement of one graph on one open target."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        modes: tuple[HeurMode, ...],
        build: bool | None,
        execute: bool,
        plans: list[Plan] | None,
        step: Callable[[str], object],
        skip: Collection[str],
        causes: bool,
        shapes: bool,
        every_engine: bool,
        code: str | None,
        engine: Selection | None = None,
    ) -> None:
        self.causes = causes
        self.engine = engine
        self.checks_every_engine = every_engine
        self.every_engine = ""
        self.engines: tuple[EngineCheck, ...] = ()
        self.shapes = shapes
        self.graph = graph
        self.target = target
        self.modes = modes
        self.execute = execute
        self.build = bool(build)
        self.tries_build = build is None  # if a plan may fail to build
        self.code = code
        self.plans = plans
        self.step = step
        self.skip = skip
        self.faults = check_environment(target.library, target, self.build)
        self.environment = tuple(fault.headline for fault in self.faults)
        self.knows_architecture = True  # until the control graph says otherwise

    def verdict(self) -> Verdict:
        if self.faults and self.faults[0].blocks:
            return self._make_verdict(
                Outcome.NOT_JUDGED, "environment", None, (), (), convert_environment_problem_to_cause(self.faults[0])
            )
        if self.execute and not self.target.is_live:
            cause = Cause(
                "execute-without-device",
                f"{self.target.name} is a described GPU, a plan runs only on the GPU of this process",
                Basis.RULE,
                "",
                "leave the target out, or use build without execute",
            )
            return self._make_verdict(Outcome.NOT_JUDGED, "environment", None, (), (), cause)
        self.step("the control graph")
        control = self._judge_control_graph_cached(self.target)
        self.knows_architecture = control.supported
        if not control.supported:
            with use_target(choose_target_for_control_graph(self.target.sm), on=self.target.library) as other:
                known = self._judge_control_graph_cached(other)
            if not known.supported:
                return self._make_verdict(
                    Outcome.NOT_JUDGED, "environment", control, (), (), self._explain_refused_control_graph()
                )
            control = replace(known, graph=f"{known.graph} for sm_{other.sm}")
        if note := describe_version_architecture_mismatch(self.target, control_supported=self.knows_architecture):
            self.environment = (note, *self.environment)
        self.step("operation graph")
        try:
            operation_graph = OperationGraph(self.graph, self.target)
        except (UsageError, GraphError) as error:
            cause = self._explain_invalid_graph(error)
            return self._make_verdict(Outcome.NOT_SUPPORTED, "graph", control, (), (), cause)
        except CudnnStatusError as error:
            if error.refuses and (newer := find_newer_features(self.graph, self.target.library.version)):
                cause = self._explain_newer_features(newer)  # with what cuDNN refuses changed, it would still lack them
                return self._make_verdict(Outcome.NOT_SUPPORTED, "graph", control, (), read_error_reasons(error), cause)
            return self._judge_refused_graph(control, error)
        return self._judge_operation_graph(control, operation_graph)

    def _explain_invalid_graph(self, error: CudnnBackendError) -> Cause:
        """Return why the package refuses to lower the graph; for an old library, every feature that it lacks."""
        if error.code.endswith(NEWER_THAN_LIBRARY_SUFFIX):
            newer = find_newer_features(self.graph, self.target.library.version)
            return replace(self._explain_newer_features(newer), code=error.code)
        return Cause(
            error.code, error.headline, Basis.RULE, _REFUSED_BY_PACKAGE, error.sections.get("fix", ""), "not asked"
        )

    def _explain_newer_features(self, newer: Sequence[CudnnEnum]) -> Cause:
        """Return as the cause that the library is older than features of the graph, newest first."""
        error = self.target.library.make_too_new_error(newer[0])
        headline, detail = error.headline, _REFUSED_BY_PACKAGE
        if others := [format_version_numbers(one.since) for one in newer[1:]]:
            newest, oldest = others[0], others[-1]
            features = "1 other feature needs" if len(others) == 1 else f"{len(others)} other features need"
            versions = newest if newest == oldest else f"{oldest} to {newest}"
            headline = headline.replace(",", f", {features} {versions};", 1)
            detail += "".join(f"; {one.c_name} needs {format_version_numbers(one.since)}" for one in newer)
        return Cause(error.code, headline, Basis.RULE, detail, error.sections.get("fix", ""), "not asked")

    @cached_property
    def missing_engine_libraries(self) -> tuple[str, ...]:
        """Missing sub-libraries with engines that might support the graph."""
        return find_missing_engine_libraries(self.graph, self.target)

    def _explain_refused_control_graph(self) -> Cause:
        """Return the environment problem that explains why the control graph is refused."""
        fault = next((fault for fault in self.faults if not fault.code.startswith(("driver-", "tf32-"))), None)
        headline = "this environment refuses a graph that is known to be supported"
        if fault is not None:
            return Cause(fault.code, fault.headline, Basis.RULE, f"{headline}; {fault.detail}", fault.repair)
        return Cause(
            "control-graph-refused",
            headline,
            Basis.MEASURED,
            "so its answers about the graph are not reliable",
            "see the control graph's reasons and 'cudnn-backend doctor'",
        )

    def _make_cause_search_options(self) -> dict[str, Any]:
        """Return the options of the search for a cause: measure, build and step."""
        return {"measure": self.causes, "build": self.build, "step": self.step}

    def _explain_refusal(self, candidates: Sequence[Candidate], modes: Sequence[str]) -> Cause | None:
        """Return why these heuristics modes refuse the graph; None if cuDNN gave no reason."""
        from .causes.find import find_cause  # here and below: a supported graph needs no causes

        refused = [item for item in candidates if item.state == "refused"]
        return find_cause(refused, self.graph, self.target, modes, **self._make_cause_search_options())

    def _blame_heuristics_modes(self, question: OperationGraph) -> Cause | None:
        """Return as the cause that only other heuristics modes than the chosen ones support the graph."""
        for mode in DEFAULT_MODES if self.causes else ():
            if mode in self.modes:
                continue
            with suppress(CudnnStatusError):
                if question.heuristics(mode, judging=True).configs:
                    chosen = " and ".join(one.name for one in self.modes)
                    headline = f"mode {chosen} lists no engine config that supports the graph, mode {mode.name} does"
                    return Cause("heuristics-mode", headline, Basis.MEASURED, "", f"mode {mode.name}", "support check")
        return None

    def _explain_support_by_fallback_only(self, candidates: Sequence[Candidate]) -> Cause | None:
        """Return why the other modes refuse a graph that only FALLBACK supports; None for any other graph."""
        fallback = HeurMode.FALLBACK.name
        others = [mode.name for mode in self.modes if mode.name != fallback]
        taken = {item.mode for item in candidates if item.state in ("supported", "built")}
        if not others or taken != {fallback}:
            return None
        refused = [item for item in candidates if item.mode != fallback and item.state in ("refused", "build failed")]
        silent = Cause("refused", "cuDNN gave no reason", Basis.GUESS)
        if any(item.state == "build failed" for item in refused):
            reason = next(item.reason for item in refused if item.state == "build failed")
            return Cause("no-plan-builds", f"none of its plans can be built: {reason}", Basis.RULE)
        from .causes.find import find_cause

        found = find_cause(refused, self.graph, self.target, others, **self._make_cause_search_options()) or silent
        if absent := self.missing_engine_libraries:
            cause = explain_missing_engines(replace(found, remedy=""), absent, self.target.library)
            return replace(cause, remedy=f"the full wheel, which has more engines for the other modes: {cause.remedy}")
        return found

    @staticmethod
    def _judge_control_graph_cached(target: Target) -> Control:
        """Return whether cuDNN supports the control graph, judged once per process, library and target."""
        key = (id(target.library), target.is_live, target.profile.json())
        if key not in _control_cache:
            _control_cache[key] = _Judgement._judge_control_graph(target)
        return _control_cache[key]

    @staticmethod
    def _judge_control_graph(target: Target) -> Control:
        graph = control_graph()
        try:
            question = OperationGraph(graph, target)
            answers = [question.heuristics(mode, judging=True) for mode in (HeurMode.A,)]
            if not answers[0].configs:
                answers.append(question.heuristics(HeurMode.FALLBACK, judging=True))
        except CudnnStatusError as error:
            return Control(graph.name, False, read_error_reasons(error))
        reasons = tuple(
            reason for answer in answers for refusal in read_refusals(answer.answer.text) for reason in refusal.reasons
        )
        supported = any(answer.configs for answer in answers)
        return Control(graph.name, supported, () if supported else tuple(dict.fromkeys(reasons)))

    def _judge_refused_graph(self, control: Control, error: CudnnStatusError) -> Verdict:
        from .causes.find import find_graph_refusal_cause, name_refused_operations

        reasons = read_error_reasons(error)
        judged = error.refuses
        names = [mode.name for mode in self.modes]
        # Every wheel has the whole graph library; what else it lacks makes no variation supported.
        how: dict[str, Any] = {"measure": self.causes, "build": self.build, "step": self.step}
        found = find_graph_refusal_cause(reasons, self.graph, self.target, names, **how) if judged else None
        which = call_and_report_errors(
            "the search for the refused operation",
            "",
            name_refused_operations,
            self.graph,
            self.target,
            error.headline,
        )
        message = next(iter(error.last_error.strip().splitlines()), "")
        if re.fullmatch(r"(?:[\w.]+\(\))?", message):  # the name of a function of cuDNN, such as finalize_internal()
            message = "it gives no reason"
        cause = found or Cause(
            "operation-graph-refused",
            f"cuDNN refuses {which}: {message}" if which else f"{error.headline}: {message}",
            Basis.RULE,
            f"{error.headline}, before any engine was queried",
        )
        outcome = Outcome.NOT_SUPPORTED if judged else Outcome.NOT_JUDGED
        return self._make_verdict(outcome, "operation graph", control, (), reasons, cause)

    def _judge_operation_graph(self, control: Control, operation_graph: OperationGraph) -> Verdict:
        candidates: list[Candidate] = []
        survivors: list[tuple[int, EngineConfig]] = []
        loose: list[Reason] = []
        if self.engine is not None:
            return self._judge_one_engine(control, operation_graph, self.engine)
        for mode in self.modes:
            self.step(f"heuristics mode {mode.name}")
            try:
                answer = operation_graph.heuristics(mode, reasons=True, judging=True)
            except CudnnStatusError as error:
                loose += read_error_reasons(error)
                if not error.refuses:
                    failed = Cause("heuristics-failed", error.headline, Basis.RULE)
                    return self._make_verdict(
                        Outcome.NOT_JUDGED, "heuristics", control, candidates, tuple(loose), failed
                    )
                continue
            for config in answer.configs:
                survivors.append((len(candidates), config))
                candidates.append(Candidate.from_config(config))
            refused, unnamed = _read_refused_candidates_and_reasons(answer, mode)
            candidates += refused
            loose += unnamed
        self._add_config_selected_by_frontend(operation_graph, candidates, survivors)
        if self.checks_every_engine:
            from .every_engine import check_every_engine

            found, self.engines, self.every_engine = check_every_engine(operation_graph, self.step)
            _add_new_configs(found, candidates, survivors)
        if not survivors:
            from .causes.find import DEVICE_NEEDED_CODE, UNJUDGED_CAUSE_CODES

            cause = self._explain_refusal(candidates, [mode.name for mode in self.modes])
            if cause is None or cause.basis is not Basis.MEASURED:
                cause = self._blame_heuristics_modes(operation_graph) or cause
            unjudged = (
                UNJUDGED_CAUSE_CODES - {DEVICE_NEEDED_CODE} if self.missing_engine_libraries else UNJUDGED_CAUSE_CODES
            )  # other engines may do without one
            if cause is not None and cause.code in unjudged:
                return self._make_verdict(Outcome.NOT_JUDGED, "environment", control, candidates, tuple(loose), cause)
            cause = replace_cause_if_cudnn_is_older_than_gpu(
                cause, self.target, control_supported=self.knows_architecture
            )
            return self._make_verdict(Outcome.NOT_SUPPORTED, "heuristics", control, candidates, tuple(loose), cause)
        return self._judge_survivors(control, candidates, survivors, tuple(loose))

    def _judge_one_engine(self, control: Control, operation_graph: OperationGraph, wanted: Selection) -> Verdict:
        """Judge the configs of one engine alone; cuDNN's reason for a refusal is the cause, without a remedy."""
        engine = cast(int, wanted.engine)
        tag = EngineChoice(engine, wanted.knob_values).tag
        self.step(f"engine config {tag}")
        absent, self.missing_engine_libraries = self.missing_engine_libraries, ()  # which cannot change one engine
        found = list_configs(operation_graph, wanted)
        refused = [one for one in found.refused if one.engine == engine and one.refused_by_cudnn]
        candidates = [*map(Candidate.from_config, found.configs), *refused]
        if found.configs:
            return self._judge_survivors(control, candidates, list(enumerate(found.configs)), ())
        fix = "leave --engine out: -v lists the engine configs that are supported"
        if engine >= (count := operation_graph.engine_count):
            headline = f"cuDNN has no engine {engine} for this graph, only 0 to {count - 1}"
            outcome = Outcome.NOT_SUPPORTED
            if absent:
                outcome, headline = Outcome.NOT_JUDGED, f"the JIT wheel of this {headline}"
                fix = format_full_wheel_remedy(self.target.library.build_text)
            cause = Cause("engine-unknown", headline, Basis.MEASURED, "", fix)
            return self._make_verdict(outcome, "heuristics", control, (), (), cause)
        said = refused[-1].reason if refused else "it lists no config of it"
        cause = Cause("engine-config-refused", f"cuDNN refuses {tag}: {said}", Basis.RULE, "", fix)
        return self._make_verdict(Outcome.NOT_SUPPORTED, "heuristics", control, candidates, (), cause)

    def _judge_survivors(
        self,
        control: Control,
        candidates: list[Candidate],
        survivors: list[tuple[int, EngineConfig]],
        loose: tuple[Reason, ...],
    ) -> Verdict:
        """Judge a graph of which some engine configs pass their support check."""
        if self.build:
            return self._judge_by_building(control, candidates, survivors, loose)
        if self.causes and self.tries_build and self._may_plan_build_fail():
            return self._try_build_in_fork(control, candidates, survivors, loose)
        return self._make_verdict(Outcome.SUPPORTED, "heuristics", control, candidates, loose, None)

    def _may_plan_build_fail(self) -> bool:
        """Return whether plans of this graph are known to fail, so that a verdict requires building one."""
        problems = find_issues_failing_before_execution(self.graph, self.target.sm, self.target.library.version)
        known = any(issue.is_measured and issue.step == "build" for issue in problems)
        return known or any(one.code.startswith("nvrtc-") for one in self.faults)

    def _try_build_in_fork(
        self,
        control: Control,
        candidates: list[Candidate],
        survivors: list[tuple[int, EngineConfig]],
        loose: tuple[Reason, ...],
    ) -> Verdict:
        """Build a plan, which may crash, in a forked process; build none for a real GPU, which a fork cannot use."""
        if self.target.is_live:
            return self._make_verdict(Outcome.SUPPORTED, "heuristics", control, candidates, loose, None)
        from .fork import run_in_fork

        self.step("plan of an engine config that may fail to build")

        def build() -> Verdict:
            self.step = str
            return self._judge_by_building(control, candidates, survivors, loose)

        def make_crash_verdict() -> Verdict:
            headline = f"cuDNN ends the process while it builds plans of the {len(survivors)} engine configs"
            crashed = Cause(CRASH_CODE, headline, Basis.MEASURED)
            return self._make_verdict(Outcome.NOT_JUDGED, "plan", control, candidates, loose, crashed)

        return run_in_fork(build, make_crash_verdict, what="building the plans")

    @staticmethod
    def _add_config_selected_by_frontend(
        question: OperationGraph, candidates: list[Candidate], survivors: list[tuple[int, EngineConfig]]
    ) -> None:
        """Add the engine config that cudnn-frontend selects for the graph without the heuristics, if it selects one."""
        try:
            config = question.selected()
        except CudnnStatusError:
            return  # cuDNN's reasons are those of the heuristics
        _add_new_configs([] if config is None else [config], candidates, survivors)

    def _judge_by_building(
        self,
        control: Control,
        candidates: list[Candidate],
        survivors: list[tuple[int, EngineConfig]],
        loose: tuple[Reason, ...],
    ) -> Verdict:
        statuses: list[int] = []
        fails: dict[str, tuple[Reason, ...]] = {}
        for index, config in survivors:
            if config.tag in self.skip:
                candidates[index] = replace(candidates[index], state="crashed")
                continue
            if config.tag in fails:  # another mode proposed it before
                candidates[index] = replace(candidates[index], state="build failed", reasons=fails[config.tag])
                continue
            self.step(f"plan of {config.tag}")
            begun = time.perf_counter()
            try:
                plan = build_plan(config)
            except CudnnStatusError as error:
                statuses.append(int(error.status))
                fails[config.tag] = read_error_reasons(error)
                candidates[index] = replace(candidates[index], state="build failed", reasons=fails[config.tag])
                continue
            taken = time.perf_counter() - begun
            kernels = plan.kernels()
            if self.code is not None:
                plan.save_code(self.code)
            candidates[index] = replace(
                candidates[index],
                state="built",
                workspace_bytes=plan.workspace_bytes,
                shared_memory_bytes=_read_shared_memory_bytes(config),
                kernels=kernels,
                build_s=taken,
            )
            if foreign := [one for one in kernels or () if not one.loads_on(self.target.sm)]:
                why = Reason("", f"its code is for {foreign[0].architecture}, which sm_{self.target.sm} does not load")
                candidates[index] = replace(candidates[index], state=CANNOT_LOAD, reasons=(why,))
                continue
            if self.plans is not None:
                self.plans.append(plan)
            if self.execute:
                return self._judge_by_executing(plan, control, candidates, loose)
            return self._make_verdict(Outcome.SUPPORTED, "plan", control, candidates, loose, None)
        if not statuses and (unloadable := [one for one in candidates if one.state == CANNOT_LOAD]):
            of = ", ".join(dict.fromkeys(kernel.architecture for one in unloadable for kernel in one.kernels or ()))
            headline = f"cuDNN {self.target.library.build_text} compiles code for {of}, sm_{self.target.sm} loads none"
            cause = Cause(
                LOAD_FAILURE_CODE, headline, Basis.MEASURED, "read from the code of the plans", "a newer cuDNN"
            )
            return self._make_verdict(Outcome.NOT_SUPPORTED, "plan", control, candidates, loose, cause)
        if not statuses:
            headline = f"cuDNN crashes while it builds a plan of any of the {len(survivors)} engine configs"
            crashed = Cause(CRASH_CODE, headline, Basis.MEASURED)
            return self._make_verdict(Outcome.NOT_JUDGED, "plan", control, candidates, loose, crashed)
        failed = [candidate for candidate in candidates if candidate.state == "build failed"]
        cause, about_graph = self._explain_missing_plan(statuses, failed)
        outcome = Outcome.NOT_SUPPORTED if about_graph else Outcome.NOT_JUDGED
        return self._make_verdict(outcome, "plan" if about_graph else "environment", control, candidates, loose, cause)

    def _judge_by_executing(
        self, plan: Plan, control: Control, candidates: list[Candidate], loose: tuple[Reason, ...]
    ) -> Verdict:
        from ..execution.run import run_on_zeros  # with NumPy, which no other question needs

        self.step(f"execute of {plan.tag}")
        try:
            run_on_zeros(plan)
        except EnvironmentNotReady as error:
            cause = Cause(error.code, error.headline, Basis.MEASURED, "", error.sections.get("fix", ""))
            return self._make_verdict(Outcome.NOT_JUDGED, "environment", control, candidates, loose, cause)
        except CudnnBackendError as error:
            headline = f"the plan of {plan.tag} was built but does not execute: {error.headline}"
            cause = Cause("execution-fails", headline, Basis.MEASURED, "run once on zeroed memory")
            return self._make_verdict(Outcome.NOT_SUPPORTED, "execute", control, candidates, loose, cause)
        return self._make_verdict(Outcome.SUPPORTED, "execute", control, candidates, loose, None)

    def _explain_missing_plan(self, statuses: list[int], failed: Sequence[Candidate]) -> tuple[Cause, bool]:
        """Return why no plan could be built, and whether the graph is the reason."""
        if Status.EXECUTION_FAILED_CUDA_DRIVER in statuses and not self.target.is_live:
            headline = f"the CUDA driver of this machine does not load kernels compiled for sm_{self.target.sm}"
            cause = Cause(
                "driver-refuses-architecture",
                headline,
                Basis.RULE,
                "the kernels were compiled; a driver with a GPU loads only code for that GPU",
                "hide the GPU (CUDA_VISIBLE_DEVICES=), leave --build out, or build on a machine without a GPU",
            )
            return cause, False
        if self.causes and not self._can_build_control_graph_plan():
            if (fault := next((fault for fault in self.faults if fault.code.startswith("nvrtc-")), None)) is not None:
                return convert_environment_problem_to_cause(fault), False
            headline = "no plan can be built in this environment, not even the control graph's"
            return Cause("control-plan-fails", headline, Basis.MEASURED, "; ".join(self.environment)), False
        from .causes.find import find_build_failure_cause

        names = [mode.name for mode in self.modes]
        measure = self.causes and not self.missing_engine_libraries
        cause = find_build_failure_cause(failed, self.graph, self.target, names, measure=measure, step=self.step)
        return cause, True

    def _can_build_control_graph_plan(self) -> bool:
        """Return whether a plan of the control graph can be built; called only if none of the graph could be."""
        question = OperationGraph(control_graph(), self.target)
        for mode in DEFAULT_MODES:
            for config in question.heuristics(mode, judging=True).configs:
                try:
                    build_plan(config).close()
                except CudnnStatusError:
                    continue
                return True
        return False

    def _make_verdict(
        self,
        outcome: Outcome,
        stage: str,
        control: Control | None,
        candidates: Sequence[Candidate],
        reasons: tuple[Reason, ...],
        cause: Cause | None,
    ) -> Verdict:
        target = self.target
        lib = target.library
        limits = [] if target.is_live else _list_limits_of_described_gpu_verdict(self.graph)
        if outcome is Outcome.NOT_SUPPORTED and stage in _ENGINE_STAGES and self.missing_engine_libraries:
            is_refused = all(one.state == "refused" for one in candidates)
            absent = self.missing_engine_libraries
            outcome, cause = Outcome.NOT_JUDGED, explain_missing_engines(cause, absent, lib, is_refused=is_refused)
        elif self.missing_engine_libraries:
            limits.append(describe_missing_engines(self.missing_engine_libraries))
        if cause is not None:
            from .suggestions import drop_remedy_if_refused

            measure = self.causes and not self.missing_engine_libraries
            cause = drop_remedy_if_refused(cause, self.graph, target, self.modes, build=self.build, measure=measure)
        if (
            outcome is Outcome.NOT_SUPPORTED
            and stage in _ENGINE_STAGES
            and has_extra_engine_in_cuda_13(self.graph, target)
        ):
            limits.append(CUDA_13_ENGINE_REMARK)
        taken = [one for one in candidates if one.state in ("supported", "built")]
        first_built = next((one for one in taken if one.state == "built"), None)
        first = first_built or (taken[0] if taken else None)
        issues = find_known_issues(self.graph, target.sm, lib.version)
        tried = {one.tag for one in candidates if one.state in ("build failed", CANNOT_LOAD, "crashed")}
        if self.every_engine and tried and first is None:
            self.every_engine += f"; {f'none of {len(tried)} plans' if len(tried) > 1 else 'no plan'} builds"
        if outcome is Outcome.SUPPORTED and (booleans := describe_boolean_memory_format(self.graph)):
            limits.append(booleans)
        return Verdict(
            outcome=outcome,
            stage=stage,
            graph=self.graph.name,
            graph_text=str(self.graph),
            target=target.name,
            target_title=target.profile.title,
            sm=target.sm,
            live=target.is_live,
            cudnn=lib.build_text,
            library=lib.path,
            driver=lib.driver.kind,
            modes=tuple(mode.name for mode in self.modes),
            control=control,
            candidates=tuple(candidates),
            reasons=reasons,
            cause=cause,
            environment=self.environment,
            limits=tuple(limits),
            stages=_make_judging_stages(outcome, stage, candidates),
            hazards=tuple(str(issue) for issue in issues if first_built is None or not issue.excludes_plans),
            only_fallback=self._explain_support_by_fallback_only(candidates) if outcome is Outcome.SUPPORTED else None,
            shapes=_describe_shape_class_plan_support(self.graph, target)
            if outcome is Outcome.SUPPORTED and self.shapes
            else "",
            every_engine=self.every_engine,
            seen=_describe_nearest_published_result(self.graph, target, first) if self.shapes else "",
            lint=_list_dangerous_lint_findings(self.graph) if outcome is Outcome.SUPPORTED else (),
            engines=self.engines,
        )


def _describe_nearest_published_result(graph: Graph, target: Target, first: Candidate | None) -> str:
    """Return a sentence on a real GPU's result for such a graph, of the nearest cuDNN version; or empty text."""
    from .evidence import describe_nearest_published_result

    return describe_nearest_published_result(graph, target.sm, target.library.version, first)


def _read_shared_memory_bytes(config: EngineConfig) -> int | None:
    """Return the shared memory per block of an engine config; None for engines that do not state it."""
    try:
        return config.shared_memory_bytes
    except CudnnBackendError:
        return None


def _list_dangerous_lint_findings(graph: Graph) -> tuple[str, ...]:
    """Return the findings of :func:`lint` with severity "dangerous", one line each."""
    from .linting import lint  # which a refused graph needs not

    return tuple(str(finding) for finding in lint(graph) if finding.severity == "dangerous")


def _list_limits_of_described_gpu_verdict(graph: Graph) -> list[str]:
    """Return remarks on the limits of a verdict for a described GPU."""
    kinds = {op.kind.name for op in graph.ops}
    attention = read_attention(graph) is not None  # its products are no matmuls for cuDNN's engines
    found = (
        limit
        for names, limit in NO_GPU_ENGINE_REMARKS.items()
        if not attention and any(kind.startswith(names) for kind in kinds)
    )
    return [NO_GPU_REMARK, *found]


def _add_new_configs(
    found: Iterable[EngineConfig], candidates: list[Candidate], survivors: list[tuple[int, EngineConfig]]
) -> None:
    """Add engine configs that support the graph to the candidates, unless they are already there."""
    for config in found:
        if all(config.choice != other.choice for _, other in survivors):
            survivors.append((len(candidates), config))
            candidates.append(Candidate.from_config(config))


def _describe_shape_class_plan_support(graph: Graph, target: Target) -> str:
    """Return text on whether one plan can serve every batch size and length of attention; empty for other graphs.

    cuDNN is queried about the plan of the class as it was about the graph, without building.
    """
    rope = {DescriptorType.OPERATION_ROPE_FWD, DescriptorType.OPERATION_ROPE_BWD}  # which no class has
    use = read_attention(graph)
    if use is None or any(isinstance(op, Operation) and op.kind in rope for op in graph.ops):
        return ""
    if use.problem.ragged:
        return "this plan serves every batch and length up to its own"
    found = make_shape_class_graph_or_reason(
        use.problem, backward=use.backward, version=target.library.version, sm=target.sm
    )
    why = found if isinstance(found, str) else ""
    if isinstance(found, Graph):
        try:
            select(found, target, Selection())
        except (CudnnStatusError, NotSupported) as error:
            why = f"cuDNN refuses a class plan: {error.headline}"
    if why:
        return f"each plan serves only its own dims ({why})"
    return (
        "this plan serves only its own dims; a class plan (cudnn_backend_py.plan of the problem) every batch and length"
    )


def _make_judging_stages(outcome: Outcome, reached: str, candidates: Sequence[Candidate]) -> tuple[Stage, ...]:
    """Return the states of all stages for a verdict that ended at the stage `reached`."""
    left = sum(item.state != "refused" for item in candidates)
    built = [item for item in candidates if item.state == "built"]
    last = STAGE_NAMES.index("engine config" if reached == "heuristics" and candidates else reached)
    details = {
        "heuristics": f"{len(candidates)} candidates",
        "engine config": f"{left} of {len(candidates)} left",
        "plan": f"built of {built[0].tag}" if built else f"none of {left} could be built",
    }
    stages = []
    for index, name in enumerate(STAGE_NAMES):
        state = "passed" if index < last or (index == last and outcome is Outcome.SUPPORTED) else "refused"
        if index > last:
            state = "not reached" if outcome is not Outcome.SUPPORTED else "not asked"
        stages.append(Stage(name, state, details.get(name, "") if index <= last else ""))
    return tuple(stages)


def _read_refused_candidates_and_reasons(answer: Heuristics, mode: HeurMode) -> tuple[list[Candidate], list[Reason]]:
    """Split a heuristics answer into refused candidates, and reasons without a candidate."""
    found = parse_refused_candidates(mode.name, answer.answer.text)
    refused = [item for item in found if item.engine is not None]
    unnamed = [reason for item in found if item.engine is None for reason in item.reasons]
    missing = answer.candidates - len(answer.configs) - len(refused)
    if answer.answer.truncated:
        unnamed.append(Reason("", "cuDNN's explanation exceeds 64 KiB and is truncated here"))
    if missing > 0:
        counted = f"cuDNN counted {answer.candidates} candidates of mode {mode.name}"
        text = f"{counted}, and neither returned {missing} of them nor said why"
        unnamed.append(Reason("", text))
    return refused, unnamed


def _convert_error_to_environment_problem(error: CudnnBackendError) -> EnvironmentProblem:
    """Return a failure to open the target as an environment problem."""
    return EnvironmentProblem(
        error.code, error.headline, error.sections.get("where", ""), error.sections.get("fix", ""), True
    )


def convert_environment_problem_to_cause(fault: EnvironmentProblem) -> Cause:
    """Return an environment problem as the cause of a verdict."""
    return Cause(fault.code, fault.headline, Basis.MEASURED, fault.detail, fault.repair)


def _make_verdict_without_target(
    graph: Graph,
    target: str,
    modes: tuple[HeurMode, ...],
    fault: EnvironmentProblem,
    *,
    cudnn: str,
    path: str,
    driver: str,
    reasons: tuple[Reason, ...] = (),
) -> Verdict:
    """Return the verdict where no target could be opened."""
    return Verdict(
        outcome=Outcome.NOT_JUDGED,
        stage="environment",
        graph=graph.name,
        graph_text=str(graph),
        target=target,
        target_title=target,
        sm=0,
        live=False,
        cudnn=cudnn,
        library=path,
        driver=driver,
        modes=tuple(mode.name for mode in modes),
        reasons=reasons,
        cause=convert_environment_problem_to_cause(fault),
        stages=_make_judging_stages(Outcome.NOT_JUDGED, "environment", ()),
    )
