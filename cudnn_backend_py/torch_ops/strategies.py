"""Strategies to run a pass: by a plan for its exact shape, or by a plan for a class of shapes.

The policy (``exact``, ``any``, ``adaptive``) decides which; packed tokens and pages always run by a class plan. Only
with ``adaptive`` may earlier calls change the plan of a call, and so the bits of its results. The strategies of the
last thousand different calls are kept; plans are in the pool of the process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

from ..errors import CudnnBackendError, UsageError
from ..execution.any_shape import ShapeClassPlanFinder, is_permanent_refusal
from ..execution.executable import Executable
from ..execution.plan_pool import PlanPoolEntry, get_shared_pool
from ..execution.recurring_shapes import RecurringShapes
from ..execution.shape_class_plan import Sequences, ShapeClassPlan
from ..graph.attention.problem import TensorLayout
from ..graph.attention.selections import find_engine_selection
from ..graph.ir import Graph, packed_strides
from ..plans.build import build, shared_target
from ..plans.plan import Plan
from ..target import Target
from .arguments import (
    ALIGNMENT,
    TENSORS,
    OperatorOptions,
    check_call,
    check_kv_pages_need_no_copy,
    check_output_tensor,
    get_data_type,
    has_supported_strides,
)
from .compiled import (
    DENSE,
    STEP,
    NamedTensors,
    Recipe,
    get_operator_number,
    make_recipe_for_exact_shape,
    make_shape_class_recipe,
)
from .graphs import make_attention_graph
from .sequence_view import (
    TOKEN_TENSORS,
    SequenceView,
    make_attention_problem_of_call,
    make_sequence_view_of_call,
    must_avoid_decoding_kernels,
)

__all__ = ["forget_plans", "run_attention_pass"]

_MAX_CACHED_SHAPES = 1024  # shapes
_MAX_CACHED_RELATED_CALLS = 512  # kinds of calls
_CALLS_BETWEEN_BUILD_REQUESTS = (
    1000  # calls after which an exact plan is requested again, if it had to go or found no room
)
_MAX_UNREPORTED_CALLS = (
    2  # calls of a shape in a row that are not told, at most; what comes between may be another recipe's
)
_NEVER_REPORT_AGAIN = 1 << 40  # calls
_SMALL_WORKSPACE = 1 << 20  # bytes a plan may keep; more is queried of torch's allocator at each call
_OUTPUTS = {False: ("o", "stats", "amax_s", "amax_o"), True: ("dq", "dk", "dv", "dbias", "dsink")}
_VALUES_OF_UNWRITTEN_ROWS = {"stats": float("-inf")}  # what rows hold that no one writes; 0 if not named
_LENGTH_TENSORS = ("seq_len_q", "seq_len_kv", "cu_seqlens_q", "cu_seqlens_k")  # read by a kernel of ours

TensorsByName = dict[str, Any]


class AttentionCallStrategy(Protocol):
    """A way to run attention calls of certain shapes, such as by a plan for exactly one shape."""

    def run(self, named: TensorsByName) -> None:
        """Launch the pass on torch's current stream."""

    @property
    def offer_counts(self) -> dict[Any, int] | None:
        """How many calls offered their recipe to C++ code, by thread, stream and pass; None if there is no recipe."""

    @property
    def is_shared(self) -> bool:
        """Whether C++ code can run calls of other shapes by the recipe of these calls, too."""

    @property
    def best_shape_class_key(self) -> Any:
        """The key of the class of shapes with the best plan for these calls; larger classes can run them too."""

    def make_recipe(self, inputs: NamedTensors, outputs: NamedTensors, options: OperatorOptions) -> Recipe | None:
        """Return the recipe with which the compiled step launches such calls; None if the plan is no longer cached."""


class _CallsDifferingInLengths:
    """Calls that differ only in batch and lengths: their shape-class plans, and the exact plans of recurring shapes."""

    def __init__(self, related_plans: ShapeClassPlanFinder) -> None:
        self.related_plans, self.recurring_shapes = related_plans, RecurringShapes()
        self.exact: OrderedDict[tuple[int, int, int], _ExactShapeStrategy] = OrderedDict()  # of shapes that do

    def add(self, shape: tuple[int, int, int], exact: _ExactShapeStrategy) -> None:
        """Store the strategy with the exact plan of a shape, to be used when C++ code reports calls of this shape."""
        with _cache_lock:
            self.exact[shape] = exact
            if len(self.exact) > _MAX_CACHED_SHAPES:
                self.exact.popitem(last=False)


_strategies: OrderedDict[tuple[Any, ...], AttentionCallStrategy] = OrderedDict()
_related_calls: dict[tuple[Any, ...], _CallsDifferingInLengths] = {}
_cache_lock = threading.Lock()


def run_attention_pass(
    backward: bool,
    inputs: TensorsByName,
    outputs: TensorsByName,
    options: tuple[Any, ...],
    *,
    is_given: bool = False,
) -> None:
    """Run a forward or backward pass on the current device's current stream; optional tensors may be None.

    How outputs are in memory follows from the inputs, unless ``o`` `is_given` by the caller.

    Raises
    ------
    UsageError
        ``torch-tensor``, ``torch-option``, ``plan-in-capture``.
    GraphError, NotSupported
        What the plan of the pass is refused for.
    """
    tensors = [(name, inputs[name]) for name in (("do", "o", "stats", *TENSORS) if backward else TENSORS)]
    rng = inputs.pop("rng")
    if rng is not None:
        inputs |= {"dropout_seed": rng, "dropout_offset": rng[2:]}
    try:
        key = (
            backward,
            options,
            *[x is None for x in outputs.values()],
            *[None if x is None else _make_tensor_key(x) for x in inputs.values()],
            _make_tensor_key(outputs["o"]) if is_given else None,
        )
        strategy = _strategies.get(key)
    except (AttributeError, TypeError, RuntimeError):  # no tensors, or options that nothing can be looked up by
        key, strategy = (None,), None
    named = inputs | outputs
    if strategy is None:
        strategy = _check_call_and_make_strategy(backward, named, OperatorOptions(*options), key)
    strategy.run(named)
    if STEP.call is not None and not is_given and "amax_o" not in outputs:
        wanted = sum(1 << TENSORS.index(name[1:]) for name in ("dbias", "dsink") if outputs.get(name) is not None)
        STEP.add_recipe_if_recurring(strategy, backward, tensors, list(outputs.items()), options, wanted)


def forget_plans() -> None:
    """Discard the cached strategies and plans of all shapes, including those used by CUDA graphs."""
    with _cache_lock:
        _strategies.clear()
        _related_calls.clear()
    get_shared_pool().clear()


def _make_tensor_key(x: Any) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.dtype, x.get_device(), x.data_ptr() % ALIGNMENT


def _check_call_and_make_strategy(
    backward: bool, named: TensorsByName, options: OperatorOptions, key: tuple[Any, ...]
) -> AttentionCallStrategy:
    """Check a call, then make and cache the strategy that runs it."""
    is_out_given = key[-1] is not None
    checked = {name: x for name, x in named.items() if name != "o"} if is_out_given else named
    check_call(checked, options, backward=backward)
    check_kv_pages_need_no_copy(named)
    if is_out_given:
        check_output_tensor(named["o"], named["q"], named["v"])
        if not has_supported_strides(named["o"]):
            raise UsageError(
                f"out has strides {list(named['o'].stride())}: the last must be 1, the others multiples of 16 bytes",
                code="torch-tensor",
            )
    strategy = _choose_strategy(backward, named, options, key)
    with _cache_lock:
        found = _strategies.setdefault(key, strategy)
        if len(_strategies) > _MAX_CACHED_SHAPES:
            _strategies.popitem(last=False)
    return found


def _choose_strategy(
    backward: bool, named: TensorsByName, options: OperatorOptions, key: tuple[Any, ...]
) -> AttentionCallStrategy:
    if named["o"].numel() == 0 or named["k"].numel() == 0:
        return _EmptyInputStrategy(backward)
    is_dense = named["cu_seqlens_q"] is None and named["block_table"] is None
    if not is_dense:
        return _ShapeClassStrategy(backward, named, options)
    if options.shapes == "exact" and not must_avoid_decoding_kernels(backward, options, named["q"].shape[2]):
        return _ExactShapeStrategy(backward, named, options, key)
    try:
        by_class = _ShapeClassStrategy(backward, named, options)
    except CudnnBackendError as error:
        if not is_permanent_refusal(error):
            raise
        return _ExactShapeStrategy(backward, named, options, key)
    return _AdaptiveStrategy(by_class, backward, named, options, key) if _may_switch_plans(options) else by_class


def _may_switch_plans(options: OperatorOptions) -> bool:
    """Return whether calls may switch between plans for many shapes and plans for one shape.

    Not with dropout: the forward and the backward pass would draw different masks."""
    return options.shapes == "adaptive" and not (options.deterministic or options.dropout)


class _EmptyInputStrategy:
    """The strategy for calls without queries or keys, which need no plan."""

    offer_counts, is_shared, best_shape_class_key = None, False, None

    def __init__(self, backward: bool) -> None:
        self._outputs = _OUTPUTS[backward]

    def run(self, named: TensorsByName) -> None:
        """Fill the outputs with zeros, and the statistics with the value for rows without keys."""
        for name in self._outputs:
            if named.get(name) is not None:
                named[name].fill_(_VALUES_OF_UNWRITTEN_ROWS.get(name, 0.0))

    def make_recipe(self, inputs: NamedTensors, outputs: NamedTensors, options: OperatorOptions) -> Recipe | None:
        """Return None: there is no plan."""


def _get_current_stream() -> int:
    import torch

    stream: int = torch.cuda.current_stream().cuda_stream
    return stream


# exact plans


class _ExactShapeStrategy:
    """Runs calls by a plan for their exact shape, after copying some tensors where required. Threads may share one."""

    is_shared, best_shape_class_key = False, None

    def __init__(
        self, backward: bool, named: Mapping[str, Any], options: OperatorOptions, key: tuple[Any, ...]
    ) -> None:
        present = {name: x for name, x in named.items() if x is not None}
        self._copied_inputs = [
            name for name, x in present.items() if name not in _OUTPUTS[backward] and not _is_usable_in_place(name, x)
        ]
        self._make_tensor_layout = {
            name: _make_tensor_layout(x, name in self._copied_inputs) for name, x in present.items()
        }
        self._backward, self._options = backward, options
        has_lengths = named["seq_len_q"] is not None  # rows of sequences without keys are not written
        self._tensors_to_clear = [
            name for name in (*TOKEN_TENSORS[backward], "stats") if name in _OUTPUTS[backward] and has_lengths
        ]
        self._key = ("exact", key)
        self._slot: PlanPoolEntry | None = None
        self._offer_counts: dict[Any, int] = {}
        self._calls_until_build_request = 0

    def is_built(self, *, only_if_ran: bool = False) -> bool:
        """Return whether the plan is built and, with `only_if_ran`, has run."""
        held = self._slot
        if held is None or held.plan is None:
            held = self._slot = get_shared_pool().find(self._key)
        plan = None if held is None else held.plan
        return plan is not None and not (only_if_ran and not plan.streams)

    def is_unsupported(self) -> bool:
        """Return whether the plan cannot be built."""
        return get_shared_pool().has_failed(self._key)

    def request_build(self, calls: int = 1) -> None:
        """Build the plan in the background at the first call that needs it, and again after many calls."""
        import torch

        self._calls_until_build_request -= calls
        if self._calls_until_build_request < 0:
            self._calls_until_build_request = _CALLS_BETWEEN_BUILD_REQUESTS
            get_shared_pool().build_in_background(self._key, self._build_plan, torch.cuda.current_device())

    def run(self, named: TensorsByName) -> None:
        """Launch the exact plan on torch's current stream."""
        import torch

        pool, held = get_shared_pool(), self._slot
        plan = None if held is None else held.plan
        while held is None or plan is None:
            held = self._slot = pool.get_or_build(self._key, self._build_plan, _get_current_stream())
            plan = held.plan
        held.used = pool.now
        if torch.cuda.is_current_stream_capturing():
            plan.captured = True
        for name in self._copied_inputs:
            named[name] = named[name].clone(memory_format=torch.contiguous_format)
        for name in self._tensors_to_clear:
            if named[name] is not None:
                named[name].fill_(_VALUES_OF_UNWRITTEN_ROWS.get(name, 0.0))
        plan(*[named[name] for name in plan.names])

    @property
    def offer_counts(self) -> dict[Any, int] | None:
        """How often each caller gave its launch to the C++ code; None until the plan is built."""
        return None if self._slot is None or self._slot.plan is None else self._offer_counts

    def make_recipe(self, inputs: NamedTensors, outputs: NamedTensors, options: OperatorOptions) -> Recipe | None:
        """Return the recipe with which the compiled step launches calls of this shape; None until the plan is built."""
        plan = None if self._slot is None else self._slot.plan
        return (
            None
            if plan is None
            else make_recipe_for_exact_shape(
                *(
                    plan,
                    inputs,
                    outputs,
                    self._copied_inputs,
                    {name: _VALUES_OF_UNWRITTEN_ROWS.get(name, 0.0) for name in self._tensors_to_clear},
                )
            )
        )

    def _build_plan(self) -> Executable:
        options, backward, target = self._options, self._backward, shared_target()
        graph = make_attention_graph(
            self._make_tensor_layout, options, backward=backward, version=target.library.version, sm=target.sm
        )
        plan = _build_plan(graph, target, options.deterministic and backward)
        # The key of this strategy holds whatever a check would look at.
        executable = Executable(plan, workspace="torch", check=False)
        if executable.workspace_bytes <= _SMALL_WORKSPACE:
            executable = Executable(plan, check=False)
        return executable


def _build_plan(graph: Graph, target: Target, deterministic: bool) -> Plan:
    chosen = find_engine_selection(graph, target.library.version, target.sm) if deterministic else None
    if chosen is None:
        return build(graph, target)
    return build(graph, target, engine=chosen.engine, knobs=dict(chosen.knobs))


def _is_usable_in_place(name: str, x: Any) -> bool:
    """Return whether a tensor can be used without a copy: aligned, and dense unless it holds tokens, as Q, K, V do."""
    if x.data_ptr() % ALIGNMENT:
        return False
    if name == "stats":
        return True
    plain: bool = has_supported_strides(x) if name in TOKEN_TENSORS[True] else x.is_contiguous()
    return plain


def _make_tensor_layout(x: Any, copied: bool) -> TensorLayout:
    dims = tuple(x.shape)
    return TensorLayout(dims, packed_strides(dims) if copied else tuple(x.stride()), get_data_type(x))


# class plans


class _ShapeClassStrategy:
    """Runs calls by the plan of a shape class, viewing tensors as sequences of tokens. Threads may share one."""

    def __init__(self, backward: bool, named: TensorsByName, options: OperatorOptions) -> None:
        self._view = r = make_sequence_view_of_call(backward, named, options)
        self.related_calls = _related_calls.get(r.related_plans) or _get_calls_differing_in_lengths(backward, named, r)
        self._is_exact = options.shapes == "exact"
        self._allow_larger = _may_switch_plans(options)
        self._is_adaptive = self._allow_larger and get_operator_number(named) == DENSE
        written = _OUTPUTS[backward]
        self._copied_inputs = [name for name in r.copied if name not in written]
        self._copied_without_layout = [
            name
            for name, x in named.items()
            if x is not None
            and name not in (*r.multipliers, *written, "k", "v")
            and not _is_small_tensor_usable_in_place(name, x)
        ]
        self._copied_outputs = [name for name in r.copied if name in written]
        self._slot, self.best_shape_class_key = self._find_plan()
        has_lengths = any(named[name] is not None for name in ("seq_len_q", "seq_len_kv"))
        self._is_direct = not (
            self._copied_without_layout or self._copied_outputs or "stats" in self._copied_inputs
        ) and (all(named.get(name) is None for name in ("bias", "dsink")) and (r.heads_folded == 1 or not has_lengths))
        self._is_direct = self._is_direct and (
            get_operator_number(named) == DENSE or _has_strides_fitting_other_lengths(named, r)
        )
        self.is_shared = self._is_direct

    def _find_plan(self) -> tuple[PlanPoolEntry, Any]:
        """Return the cache entry of a plan that can run the calls now, and the key of the best plan to build."""
        if self._is_exact:
            return self.related_calls.related_plans.find_or_build_exact_plan(
                self._view.needed_bounds, _get_current_stream()
            )
        return self.related_calls.related_plans.find(
            self._view.needed_bounds, _get_current_stream(), allow_larger=self._allow_larger
        )

    def _current_plan(self) -> ShapeClassPlan:
        """Return the plan to use now: the best one if it is built, else a larger one, or build one."""
        pool, held = get_shared_pool(), self._slot
        plan: ShapeClassPlan | None = held.plan
        while plan is None or (
            held.key != self.best_shape_class_key and pool.find(self.best_shape_class_key) is not None
        ):
            held, self.best_shape_class_key = self._find_plan()
            self._slot = held
            plan = held.plan
        held.used = pool.now
        return plan

    def run(self, named: TensorsByName) -> None:
        """Launch the shape-class plan on torch's current stream."""
        import torch

        plan = self._current_plan()
        buffers, bias, dbias = dict(named), named["bias"], named.get("dbias")
        for name in self._copied_inputs:
            buffers[name] = self._allocate_tensor_for_shape_class(named[name]).copy_(named[name])
        for name in self._copied_without_layout:
            buffers[name] = named[name].contiguous() if not named[name].is_contiguous() else named[name].clone()
        for name in self._copied_outputs:
            buffers[name] = self._allocate_tensor_for_shape_class(named[name])
        if bias is not None:
            # Kernels load whole tiles: what they mask must not depend on who had the memory before.
            buffers["bias"] = whole = bias.new_zeros(plan.problem.bias)
            whole[tuple(map(slice, bias.shape))] = bias
        if dbias is not None:
            buffers["dbias"] = dbias.new_empty(plan.problem.bias)
        plan(buffers, self._make_token_sequences_of_call(buffers), self._view.multipliers)
        for name in self._copied_outputs:
            named[name].copy_(buffers[name])
        if dbias is not None:
            dbias.copy_(buffers["dbias"][tuple(map(slice, dbias.shape))])
        if named.get("dsink") is not None:
            named["dsink"].copy_(_compute_sink_gradient(torch, named))

    @property
    def offer_counts(self) -> dict[Any, int] | None:
        """How often each caller gave its launch to the C++ code; None if that cannot run the calls."""
        plan = self._slot.plan
        found: dict[Any, int] | None = plan.offer_counts if self._is_direct and plan is not None else None
        return found

    def make_recipe(self, inputs: NamedTensors, outputs: NamedTensors, options: OperatorOptions) -> Recipe | None:
        """Return the recipe with which the compiled step launches calls of this shape class; None without a plan."""
        held = self._slot
        plan = held.plan
        if plan is None:
            return None
        awaited = self.best_shape_class_key if held.key != self.best_shape_class_key else None
        is_reported = awaited is not None or self._is_adaptive
        return make_shape_class_recipe(
            plan,
            self._make_token_sequences_of_call(dict(inputs)),
            self._view.multipliers,
            inputs,
            outputs,
            options=options,
            bounds=self.best_shape_class_key[1],
            is_exact=self._is_exact,
            heads_folded=self._view.heads_folded,
            copied=self._copied_inputs,
            notice=_CompiledCallReportHandler(awaited, self.related_calls if self._is_adaptive else None)
            if is_reported
            else None,
        )

    def _allocate_tensor_for_shape_class(self, x: Any) -> Any:
        """Allocate a tensor like x in the shape class's layout: tokens before heads, or as x if heads are folded."""
        if self._view.heads_folded > 1:
            return x.new_empty(x.shape)
        if x.dim() == 4:
            b, h, s, d = x.shape
            return x.new_empty((b, s, h, d)).transpose(1, 2)
        return x.new_empty(x.shape) if x.dim() == 3 else x.new_empty((x.shape[1], x.shape[0])).t()

    def _make_token_sequences_of_call(self, named: TensorsByName) -> Sequences:
        folded = self._view.heads_folded
        len_q, len_kv = named["seq_len_q"], named["seq_len_kv"]
        if folded > 1 and len_q is not None:
            len_q, len_kv = (x.repeat_interleave(folded) for x in (len_q, len_kv))
        r = self._view
        return Sequences(
            *(r.batch, r.max_q, r.max_kv, named["cu_seqlens_q"], named["cu_seqlens_k"], len_q, len_kv),
            *(named["block_table"], r.total_q, r.total_kv),
        )


def _has_strides_fitting_other_lengths(named: TensorsByName, r: SequenceView) -> bool:
    """Return whether a call's strides would also fit calls with more tokens or sequences."""
    packed = named["q"].dim() == 3
    return all(
        x.shape[0] > 1 or x.stride(0) == r.multipliers[name]
        for name, x in named.items()
        if x is not None and name in r.multipliers and name not in r.copied and not (packed and name == "stats")
    )


def _get_calls_differing_in_lengths(backward: bool, named: TensorsByName, r: SequenceView) -> _CallsDifferingInLengths:
    """Return the cached record of calls that differ only in batch and lengths; create it if it is missing."""
    kind = _CallsDifferingInLengths(
        ShapeClassPlanFinder(make_attention_problem_of_call(backward, named, r), shared_target(), backward=backward)
    )
    with _cache_lock:
        if len(_related_calls) >= _MAX_CACHED_RELATED_CALLS:
            _related_calls.clear()
        return _related_calls.setdefault(r.related_plans, kind)


def _compute_sink_gradient(torch: Any, named: TensorsByName) -> Any:
    """Return the gradient of the attention sinks, which cuDNN computes wrong for ragged sequences.

    A sink takes the probability exp(sink - stats) of each row, and the row's share of the gradient is what dO and O
    have in common.
    """
    d_o, o, stats, sink, cu = (named[name] for name in ("do", "o", "stats", "sink", "cu_seqlens_q"))
    shares = (d_o.float() * o.float()).sum(-1)
    if cu is None:
        shares, stats = shares.transpose(1, 2).flatten(0, 1), stats.squeeze(-1).transpose(1, 2).flatten(0, 1)
    else:
        stats = stats.t()
        beyond = torch.arange(len(shares), device=cu.device) >= cu[-1]
        shares = shares.masked_fill(beyond.unsqueeze(1), 0)
    # Rows beyond the lengths have no statistics, and nothing in common.
    return -torch.where(shares == 0, 0, (sink - stats).exp() * shares).sum(0)


def _is_small_tensor_usable_in_place(name: str, x: Any) -> bool:
    """Return whether a small tensor (lengths, block table, per-head numbers) can be used without a copy."""
    if name == "bias":
        return True  # copied anyway
    if name == "block_table":
        return bool(x.stride(1) == 1 or x.shape[1] == 1)
    return bool(x.is_contiguous()) and (name in _LENGTH_TENSORS or not x.data_ptr() % ALIGNMENT)


class _AdaptiveStrategy:
    """Runs calls by the plan of a shape class, and by an exact plan once it was built for a recurring shape."""

    def __init__(
        self,
        by_class: _ShapeClassStrategy,
        backward: bool,
        named: TensorsByName,
        options: OperatorOptions,
        key: tuple[Any, ...],
    ) -> None:
        self._by_class, self._exact_arguments = by_class, (backward, options, key)
        (batch, _, rows, _), keys = named["q"].shape, named["k"].shape[2]
        self._shape = batch, rows, keys
        self._exact: _ExactShapeStrategy | None = None

    @property
    def _current_strategy(self) -> _ExactShapeStrategy | _ShapeClassStrategy:
        """The strategy that calls use now."""
        return self._by_class if self._exact is None or not self._exact.is_built() else self._exact

    @property
    def offer_counts(self) -> dict[Any, int] | None:
        """How many calls offered the recipe of the strategy in use to C++ code, by thread, stream and pass."""
        return self._current_strategy.offer_counts

    @property
    def is_shared(self) -> bool:
        """Whether C++ code can run calls of other shapes by the recipe of these calls, too."""
        return self._current_strategy.is_shared

    @property
    def best_shape_class_key(self) -> Any:
        """The key of the class of shapes with the best plan for these calls; larger classes can run them too."""
        return self._current_strategy.best_shape_class_key

    def make_recipe(self, inputs: NamedTensors, outputs: NamedTensors, options: OperatorOptions) -> Recipe | None:
        """Return the recipe of the strategy that calls use now."""
        return self._current_strategy.make_recipe(inputs, outputs, options)

    def run(self, named: TensorsByName) -> None:
        """Launch the pass on torch's current stream, by the exact plan if it is built."""
        import torch

        kind, exact = self._by_class.related_calls, self._exact
        if exact is None:
            kind.recurring_shapes.count_call(self._shape)
            if not kind.recurring_shapes.count_calls_until_recurring(self._shape):
                backward, options, key = self._exact_arguments
                self._exact = exact = _ExactShapeStrategy(backward, named, options, key)
                kind.add(self._shape, exact)
        if exact is not None:
            # A plan that never ran is not taken first within a capture: its kernels may not be loaded.
            if exact.is_built(only_if_ran=torch.cuda.is_current_stream_capturing()):
                exact.run(named)
                return
            exact.request_build()
        self._by_class.run(named)


class _CompiledCallReportHandler:
    """Counts the calls that the compiled step reports, and decides when Python must run a call.

    Parameters
    ----------
    awaited
        The key of the best class, for which a larger one is in.
    kind
        Where the exact plans of shapes that come back are wanted.
    """

    def __init__(self, awaited: Any, kind: _CallsDifferingInLengths | None) -> None:
        self._awaited, self._calls = awaited, kind
        self._last = (0, 0, 0)

    def __call__(self, unreported: int, shape: tuple[int, int, int]) -> int:
        """Count the reported calls; return how many calls of this shape may follow before the next report.

        Negative where Python is to do this call, and to note it.
        """
        if self._awaited is not None and get_shared_pool().find(self._awaited) is not None:
            return -1
        if self._calls is None:
            return _MAX_UNREPORTED_CALLS
        last, self._last = self._last, shape
        exact = self._calls.exact.get(shape)
        if exact is not None:
            if exact.is_unsupported():
                return _NEVER_REPORT_AGAIN if self._awaited is None else _MAX_UNREPORTED_CALLS
            exact.request_build(unreported + 1)
            return -1 if exact.is_built() else 0
        recurring_shapes = self._calls.recurring_shapes
        recurring_shapes.add_calls_of_last_shape(last, unreported)
        left = recurring_shapes.count_calls_until_recurring(shape)
        if left <= 1:
            return -1
        recurring_shapes.count_call(shape)
        return min(left - 2, _MAX_UNREPORTED_CALLS)
