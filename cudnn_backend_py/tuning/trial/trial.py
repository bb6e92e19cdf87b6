"""``run_graph``: run engine configs of a graph on random data, compare with the interpreter, and time them."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import CudnnBackendError, CudnnStatusError, GraphError, NotSupported, UsageError
from ...generated.enums import HeurMode
from ...graph import Graph
from ...interpreter.data import (
    DATA_KINDS,
    check_given_inputs,
    check_npz_arrays_fit_graph,
    list_input_tensors,
    load_npz_arrays,
    make_inputs,
    make_memory_images,
    read_numbers_from_memory_image,
)
from ...native.environment_problems import find_problem_explaining_refusal
from ...plans.build import shared_target
from ...plans.choice import EngineChoice
from ...plans.engine import EngineConfig, OperationGraph
from ...plans.plan import Plan, build_plan
from ...plans.refusals import find_deepest_reason_among_configs
from ...plans.select import Candidates, Selection, candidates
from ...printable import format_in_angle_brackets
from ...system.typed_data import convert_to_type
from ...target import Target
from ..statistics import Timing
from ..timing_buffers import TimingBuffers
from .bound import Arithmetic, Comparison, ExpectedOutput, compute_expected_outputs
from .reproduce import make_command_line

__all__ = ["STATES", "ConfigTrial", "OutputFacts", "State", "Trial", "run_graph"]

State = Literal["right", "wrong", "refused", "failed", "not compared", "not run"]
STATES: tuple[State, ...] = ("wrong", "failed", "not compared", "right", "refused", "not run")  # the worst first

SAMPLE_COUNT, WARM_UP_RUNS = 12, 2
_FILL_BYTE = 0xFF  # a NaN in every float: what is not written shows
_HEURISTICS_MODES = (HeurMode.A, HeurMode.B, HeurMode.FALLBACK)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConfigTrial:
    """The result of running one engine config.

    Attributes
    ----------
    tag, mode
        The config, and the heuristics mode it came from.
    state
        ``right``, ``wrong``; ``refused`` by cuDNN as not supported; ``failed`` in any other way; ``not compared``: it
        ran, and the interpreter cannot say what is right; ``not run``: without a GPU, or after a fault of the GPU.
    words
        Why, in cuDNN's message where they are cuDNN's.
    comparisons
        Each output next to what was expected.
    reproduce
        The command line that runs this config again on the same data.
    """

    tag: str
    mode: str
    state: State
    words: str = ""
    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    build_s: float | None = None
    workspace_bytes: int | None = None
    cold: Timing | None = None
    warm: Timing | None = None
    reproduce: str = ""

    def __repr__(self) -> str:
        return format_in_angle_brackets(
            f"ConfigTrial {self.tag} {self.state}" + (f": {self.words}" if self.words else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON."""
        plain: dict[str, Any] = _to_json_value(asdict(self))
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConfigTrial:
        """Read a result from the data of :meth:`to_dict`.

        Raises
        ------
        UsageError
            ``trial-record`` if it is damaged.
        """
        return convert_to_type(cls, data, "the trial of a config", code="trial-record")


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """Facts about an output known before the run: numbers of elements and compared elements, error bounds.

    The last three are None on a described GPU: nothing is compared there, and to work them out takes seconds.
    """

    name: str
    type: str
    elements: int
    compared: int | None = None
    median_bound: float | None = None
    largest_bound: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Trial:
    """The results of running a graph.

    Attributes
    ----------
    graph, target, sm, cudnn
        What was run, and where.
    data, seed
        What it ran on.
    state
        The worst of the configs': ``wrong``, then ``failed``, ``not compared``, ``right``; ``refused`` where there is
        no config, ``not run`` without a GPU.
    words
        Why nothing was run, or nothing compared.
    configs
        What each engine config did, in the order they were run.
    outputs
        What may be expected, computed before anything ran.
    inputs
        The tensors that were filled: name and type.
    reproduce
        The command line that does all of it again.
    described
        Whether it was requested a GPU that is not here.
    lost
        What the GPU failed with: this process can use it no more.
    """

    graph: str
    target: str
    sm: int
    cudnn: str
    data: str
    seed: int
    state: State
    words: str = ""
    configs: tuple[ConfigTrial, ...] = ()
    outputs: tuple[OutputFacts, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    reproduce: str = ""
    seconds: float = 0.0
    described: bool = False
    lost: str = ""

    def __repr__(self) -> str:
        why = f": {self.words}" if self.words else ""
        return format_in_angle_brackets(
            f"Trial {self.state} of {self.graph!r} on {self.target}, {len(self.configs)} configs{why}"
        )

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if all obtained results are right, 1 if wrong or not supported, 2 if undecided."""
        return {"right": 0, "wrong": 1, "refused": 1}.get(self.state, 2)

    @property
    def failures(self) -> tuple[ConfigTrial, ...]:
        """The configs with wrong results or failures."""
        return tuple(item for item in self.configs if item.state in ("wrong", "failed"))

    def to_dict(self) -> dict[str, Any]:
        """Return the results as plain data for JSON; non-finite numbers are texts such as ``nan``."""
        plain: dict[str, Any] = _to_json_value(asdict(self))
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trial:
        """Read the results from the data of :meth:`to_dict`.

        Raises
        ------
        UsageError
            ``trial-record`` if it is damaged.
        """
        return convert_to_type(cls, data, "the trial", code="trial-record")


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json_value(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def run_graph(
    graph: Graph,
    *,
    data: str = "uniform",
    seed: int = 0,
    target: Target | str | None = None,
    configs: int | str = "first",
    time: bool = True,
    given: Mapping[str, ArrayLike] | None = None,
    source: str | None = None,
    skip: Mapping[str, str] | None = None,
    step: Callable[[str], object] = str,
    done: Callable[[ConfigTrial], object] | None = None,
) -> Trial:
    """Run a graph on random data, and compare the results of its engine configs with the interpreter.

    In this process: a kernel that fails takes the CUDA context with it, and cuDNN's crash the process.
    :class:`~cudnn_backend_py.tuning.trial.runner.Runner` asks child processes.

    Parameters
    ----------
    data
        ``uniform``, ``integers``, ``hostile`` (:mod:`~cudnn_backend_py.interpreter.data`), or the path of an
        ``.npz`` file with arrays by the names of tensors; what it lacks is ``uniform``.
    seed
        Whatever is drawn is drawn from it.
    target
        The GPU of this process if not given. For a described one nothing runs: the trial says what would.
    configs
        ``first`` that can be built, ``all`` that heuristics propose in modes A, B and FALLBACK, so many of these, or
        the tag of one, such as ``eng11_k2=4``.
    time
        Also time each right config, with a cold and a warm L2 cache.
    given
        NumberArray by the names of tensors, which are taken instead of made-up ones.
    source
        How a command line names the graph: a file, and options. The graph itself, in one word, if not given.
    skip
        Configs that are not run again, by tag, and why: they count as failed.
    step, done
        Called with what is done next, and with each config's result.

    Raises
    ------
    UsageError
        ``trial-data``, ``trial-memory``, ``trial-configs``, ``unknown-target``, ``tuning-input``.
    EnvironmentNotReady
        ``no-gpu``; the environment problem, such as ``nvrtc-missing``, that keeps cuDNN from supporting any graph.
    """
    began = clock.monotonic()
    _check_configs(configs)
    check_given_inputs(graph, {name: np.shape(numbers) for name, numbers in (given or {}).items()})
    if data not in DATA_KINDS:
        check_npz_arrays_fit_graph(data, graph)
    live = shared_target(target)
    named = target if isinstance(target, str) else live.name  # which may be a file
    run = _GraphRun(graph, live, named, data, seed, time, source, dict(skip or {}), step, done)
    base = Trial(
        graph=graph.name,
        target=live.profile.title,
        sm=live.sm,
        cudnn=live.library.build_text,
        data=data,
        seed=seed,
        state="not run",
        described=not live.is_live,
        inputs=tuple((tensor.name, tensor.type_text) for tensor in list_input_tensors(graph)),
        reproduce=run.make_reproducing_command(str(configs)),
    )
    if live.is_live:
        step("making data")
        run.set_inputs(data, given or {})
    try:
        proposed, refused = run.select_configs(configs)
    except NotSupported as error:
        return replace(base, state="refused", words=_get_cudnn_message(error), seconds=clock.monotonic() - began)
    except CudnnStatusError as error:
        failed: State = "refused" if error.refuses else "failed"
        return replace(base, state=failed, words=_get_cudnn_message(error), seconds=clock.monotonic() - began)
    base = replace(base, outputs=run.describe_outputs())
    found = run.run(proposed, configs) if live.is_live else run.describe_configs(proposed)
    ran = [item.state for item in found]
    state: State = next((state for state in STATES if state in ran), "refused")
    if (
        state == "refused"
        and (problem := find_problem_explaining_refusal(live.library, live, built=bool(proposed))) is not None
    ):
        raise problem.to_exception()
    words = refused if not proposed else run.why_not_compared
    if not live.is_live and proposed:
        words = f"{live.name} is a described GPU: nothing was run"
    seconds = round(clock.monotonic() - began, 3)
    return replace(base, state=state, words=words, configs=found, seconds=seconds, lost=run.lost)


def _check_configs(configs: int | str) -> None:
    if isinstance(configs, bool) or not (isinstance(configs, str) or (isinstance(configs, int) and configs > 0)):
        raise UsageError(
            f"configs must be 'first', 'all', a number above 0 or a tag, got {configs!r}", code="trial-configs"
        )
    if isinstance(configs, str) and configs not in ("first", "all"):
        EngineChoice.parse(configs)


def _get_cudnn_message(error: CudnnBackendError) -> str:
    """Return the headline of an error, followed by cuDNN's own message if there is one."""
    said = str(getattr(error, "last_error", "")).strip()
    return f"{error.headline}: {said}" if said else error.headline


class _GraphRun:
    """One graph and its inputs while its configs are run."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        named: str,
        data: str,
        seed: int,
        time: bool,
        source: str | None,
        skip: dict[str, str],
        step: Callable[[str], object],
        done: Callable[[ConfigTrial], object] | None,
    ) -> None:
        self.graph, self.target, self.named, self.data, self.seed, self.time = graph, target, named, data, seed, time
        self.source, self.skip, self.step, self.done = source, skip, step, done
        self.inputs: dict[str | int, NDArray[Any]] = {}
        self.why_not_compared = self.lost = ""
        self._expected: dict[Arithmetic, dict[str, ExpectedOutput]] = {}

    def make_reproducing_command(self, configs: str) -> str:
        """Return the command line that runs some of the configs again."""
        options = [f"--data={self.data}", f"--seed={self.seed}", f"--configs={configs}"]
        if not self.target.is_live:
            options.append(f"--target={self.named}")
        return make_command_line(self.source, self.graph, *options)

    def set_inputs(self, data: str, given: Mapping[str, ArrayLike]) -> None:
        """Make the inputs: those `given`, then from a data file if `data` names one, the rest at random."""
        if data in DATA_KINDS:
            self.inputs = make_inputs(self.graph, data, self.seed, given)
        else:
            self.inputs = make_inputs(self.graph, "uniform", self.seed, {**load_npz_arrays(data, self.graph), **given})

    def compute_expected_outputs_for_engine(self, arithmetic: Arithmetic | None) -> dict[str, ExpectedOutput] | None:
        """Return the expected outputs for an engine's arithmetic; None where the interpreter cannot compute them."""
        key = arithmetic or Arithmetic()
        if self.why_not_compared:
            return None
        if key not in self._expected:
            self.step("interpreting")
            try:
                self._expected[key] = compute_expected_outputs(self.graph, self.inputs, arithmetic=key, seed=self.seed)
            except GraphError as error:
                self.why_not_compared = error.headline
                return None
            if not self._expected[key]:
                self.why_not_compared = "its results depend on random numbers that are known only in distribution"
        return self._expected[key]

    def describe_outputs(self) -> tuple[OutputFacts, ...]:
        """Return type, element counts and error bounds of each output, which are the same for every engine."""
        if not self.target.is_live:
            return tuple(OutputFacts(one.name, one.type_text, math.prod(one.dims)) for one in self.graph.outputs)
        found = self.compute_expected_outputs_for_engine(None) or {}
        facts = []
        for name, item in found.items():
            bound = item.bounds()
            kept = bound[item.defined & np.isfinite(bound)]
            numbers = (float(np.median(kept)), float(kept.max())) if kept.size else (0.0, 0.0)
            facts.append(OutputFacts(name, item.tensor.type_text, item.defined.size, int(item.defined.sum()), *numbers))
        return tuple(facts)

    def select_configs(self, configs: int | str) -> tuple[list[EngineConfig], str]:
        """Return the configs to run, best first, and cuDNN's message about those it refused."""
        self.step("asking cuDNN")
        question = OperationGraph(self.graph, self.target)
        if isinstance(configs, str) and configs not in ("first", "all"):
            choice = EngineChoice.parse(configs)
            return [question.config(choice.engine, choice.knobs)], ""
        found: Candidates = candidates(question, Selection(modes=_HEURISTICS_MODES))
        many = configs if isinstance(configs, int) else None
        if found.configs:
            return found.configs[:many], ""
        reason = find_deepest_reason_among_configs(found.refused)
        return [], found.error_text.partition("\n")[0] if reason is None else str(reason)

    def describe_configs(self, configs: list[EngineConfig]) -> tuple[ConfigTrial, ...]:
        return tuple(map(self._make_config_trial, configs))

    def _make_config_trial(self, config: EngineConfig) -> ConfigTrial:
        """Return the :class:`ConfigTrial` of a config that has not run yet."""
        return ConfigTrial(
            tag=config.tag,
            mode=config.origin,
            state="not run",
            notes=_list_numerical_notes(config),
            reproduce=self.make_reproducing_command(config.tag),
        )

    def run(self, configs: list[EngineConfig], wanted: int | str) -> tuple[ConfigTrial, ...]:
        """Run the configs in order; with ``first`` stop at the first one that can be built."""
        found: list[ConfigTrial] = []
        stage = TimingBuffers(self.graph, self.target, inputs=make_memory_images(self.graph, self.inputs))
        try:
            for config in configs:
                blank = self._make_config_trial(config)
                if blank.tag in self.skip:
                    trial = replace(blank, state="failed", words=self.skip[blank.tag])
                elif self.lost:
                    trial = replace(blank, words=f"the GPU failed before: {self.lost}")
                else:
                    self.step(f"running {config.tag}")
                    trial = self._run_config(stage, config, blank)
                found.append(trial)
                if self.done is not None:
                    self.done(trial)
                if wanted == "first" and trial.state != "refused":
                    break
        finally:
            try:
                stage.close()
            except CudnnBackendError:
                if not self.lost:
                    raise
        return tuple(found)

    def _run_config(self, stage: TimingBuffers, config: EngineConfig, blank: ConfigTrial) -> ConfigTrial:
        """Run a config and return its trial; GPU failures are recorded."""
        began = clock.perf_counter()
        try:
            plan = build_plan(config)
        except NotSupported as error:
            return replace(blank, state="refused", words=_get_cudnn_message(error))
        except CudnnStatusError as error:
            return replace(blank, state="failed", words=_get_cudnn_message(error))
        blank = replace(blank, build_s=round(clock.perf_counter() - began, 4), workspace_bytes=plan.workspace_bytes)
        try:
            return self._run_and_compare(stage, plan, blank)
        except CudnnStatusError as error:
            state: State = "refused" if isinstance(error, NotSupported) else "failed"
            return replace(blank, state=state, words=_get_cudnn_message(error))
        except CudnnBackendError as error:
            if error.code != "cuda-driver":
                raise
            self.lost = error.headline
            return replace(blank, state="failed", words=error.headline)
        finally:
            plan.close()

    def _run_and_compare(self, stage: TimingBuffers, plan: Plan, blank: ConfigTrial) -> ConfigTrial:
        pack = stage.pack(plan)
        stage.run_and_read(plan, pack, before=_FILL_BYTE)
        outputs = {tensor.name: tensor for tensor in self.graph.outputs}
        written = {name: read_numbers_from_memory_image(tensor, stage.read(tensor)) for name, tensor in outputs.items()}
        expected = self.compute_expected_outputs_for_engine(Arithmetic.from_notes(blank.notes))
        state: State = "not compared"
        comparisons: tuple[Comparison, ...] = ()
        words = self.why_not_compared
        if expected is not None:
            comparisons = tuple(item.compare(written[name]) for name, item in expected.items())
            wrong = [str(item) for item in comparisons if not item.is_right]
            state, words = ("wrong", "; ".join(wrong)) if wrong else ("right", "")
        times: dict[str, Any] = {}
        if self.time and state != "wrong":
            for _ in range(WARM_UP_RUNS):
                stage.time_runs(plan, pack)
            cold, warm = zip(*(stage.time_runs(plan, pack) for _ in range(SAMPLE_COUNT)), strict=True)
            times = {"cold": Timing.from_times(list(cold)), "warm": Timing.from_times(list(warm))}
        return replace(blank, state=state, words=words, comparisons=comparisons, **times)


def _list_numerical_notes(config: EngineConfig) -> tuple[str, ...]:
    return tuple(getattr(note, "name", str(note)) for note in config.numerical_notes)
