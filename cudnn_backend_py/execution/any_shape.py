"""``AnyShapeAttention``: attention with fixed heads and options, for every batch size and length.

The policy decides which plan runs a call: "exact", a plan of each shape, built when it is first met; "any", the plan of
a class of shapes; "adaptive", the class plan at first, and the exact plan of a shape that comes back, built in the
background. With "exact" and "any" the plan depends on the call alone, so equal calls have equal results.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal, Protocol, get_args

from ..errors import (
    CudnnBackendError,
    CudnnStatusError,
    EnvironmentNotReady,
    GraphError,
    NotSupported,
    UsageError,
)
from ..generated.enums import Status
from ..graph.attention import Attention, sdpa_backward, sdpa_forward
from ..graph.attention.selections import find_engine_selection
from ..graph.attention.shape_class import (
    ShapeClassBounds,
    explain_missing_shape_class,
    find_best_shape_class_bounds,
    make_shape_class_problem,
    read_token_strides,
    round_up_paged_kv_bound_to_tiles,
)
from ..graph.ir import Graph
from ..native.cuda import is_capturing
from ..plans.build import build
from ..printable import format_in_angle_brackets
from ..target import Target
from .arguments import Arguments
from .buffers import read_dims_and_strides
from .executable import Executable, find_stream_getter
from .plan_pool import PlanPool, PlanPoolEntry, get_shared_pool
from .recurring_shapes import CALLS_IN_A_ROW, RecurringShapes
from .shape_class_plan import Sequences, ShapeClassPlan

__all__ = [
    "CALLS_IN_A_ROW",
    "POLICIES",
    "AnyShapeAttention",
    "ShapeClassPlanFinder",
    "Shapes",
    "explain_need_for_one_plan_per_shape",
    "find_shape_class_plan",
    "is_permanent_refusal",
]

Shapes = Literal["exact", "any", "adaptive"]
POLICIES: tuple[str, ...] = get_args(Shapes)

_MAX_CACHED_SHAPES = 4096
_OUT_OF_MEMORY_STATUSES = (Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED, Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
_Q_TENSORS = ("q", "o", "do", "dq")
_TOKEN_TENSORS = (*_Q_TENSORS, "k", "v", "dk", "dv")
_DimsAndStrides = tuple[tuple[int, ...], tuple[int, ...]]  # dims and strides


class ShapeClassPlanFinder:
    """Finds or builds the shape-class plans of calls that differ only in batch size and sequence lengths.

    Parameters
    ----------
    problem
        That of one of the calls: how far tokens and heads are apart, and everything else.
    workspace
        As for :class:`~cudnn_backend_py.execution.shape_class_plan.ShapeClassPlan`.
    """

    def __init__(
        self,
        problem: Attention,
        target: Target,
        *,
        backward: bool,
        workspace: Any = "torch",
        pool: PlanPool | None = None,
    ) -> None:
        self.problem, self.target, self.backward, self.workspace = problem, target, backward, workspace
        self._pool = pool
        self._family_keys: dict[bool, str] = {}

    def find(self, needed: ShapeClassBounds, stream: int, *, allow_larger: bool = False) -> tuple[PlanPoolEntry, Any]:
        """Return a shape-class plan that can run a call, and the pool key of the plan that fits the call best.

        Parameters
        ----------
        needed
            The call's batch and longest lengths.
        stream
            Address of the stream that the plan is to run on.
        allow_larger
            Return the plan of a larger class while the best one is built in the background. The results of a call then
            depend on earlier calls, and with dropout a forward and a backward pass may draw different masks.

        Raises
        ------
        UsageError
            ``plan-in-capture``.
        CudnnBackendError
            Why there is no class.
        """
        pool = get_shared_pool() if self._pool is None else self._pool
        bounds = find_best_shape_class_bounds(self.problem, needed)
        family = self._make_pool_key_without_sizes(decoding=bounds.q == 1)
        key = (family, bounds)
        held = pool.find(key)
        if held is not None:
            return held, key
        make = partial(self.build, bounds)
        others = [other for other in pool.list_keys() if other[0] == family] if allow_larger else []
        for other in sorted(others, key=lambda other: other[1]):
            held = pool.find(other) if other[1].contains_shape(*needed) else None
            if held is not None:
                pool.build_in_background(key, make, _get_device_ordinal(self.target))
                return held, key
        return pool.get_or_build(key, make, stream), key

    def find_or_build_exact_plan(self, needed: ShapeClassBounds, stream: int) -> tuple[PlanPoolEntry, Any]:
        """Return the plan for the call's own sizes, rounded up to tiles, and its pool key."""
        pool = get_shared_pool() if self._pool is None else self._pool
        needed = round_up_paged_kv_bound_to_tiles(self.problem, needed)
        key = (f"exact {self._make_pool_key_without_sizes(decoding=needed.q == 1)}", needed)
        return pool.get_or_build(key, partial(self.build, needed), stream), key

    def build(self, bounds: ShapeClassBounds) -> ShapeClassPlan:
        """Build the shape-class plan for these bounds on batch and lengths."""
        whole = make_shape_class_problem(self.problem, bounds, backward=self.backward)
        return ShapeClassPlan(whole, self.target, backward=self.backward, workspace=self.workspace)

    def _make_pool_key_without_sizes(self, *, decoding: bool) -> str:
        found = self._family_keys.get(decoding)
        if found is None:
            smallest = make_shape_class_problem(
                self.problem, ShapeClassBounds(2, 1 if decoding else 2, 2), backward=self.backward
            )
            found = f"class {self.backward} {id(self.target)} {self.workspace!r} {smallest!r}"
            self._family_keys[decoding] = found
        return found


def find_shape_class_plan(
    problem: Attention,
    target: Target,
    *,
    backward: bool,
    stream: int,
    workspace: Any = "torch",
    allow_larger: bool = False,
    pool: PlanPool | None = None,
) -> tuple[PlanPoolEntry, Any]:
    """Return a shape-class plan that can run a problem, and the best such plan's pool key."""
    related_plans = ShapeClassPlanFinder(problem, target, backward=backward, workspace=workspace, pool=pool)
    return related_plans.find(
        ShapeClassBounds(problem.batch, problem.seq_q, problem.seq_kv), stream, allow_larger=allow_larger
    )


def is_permanent_refusal(error: CudnnBackendError) -> bool:
    """Return whether an error shows that a problem can never have a shape-class plan, unlike a lack of memory.

    Only then may an exact plan serve its calls: the plan of a call must not depend on when it was first made.
    """
    if isinstance(error, CudnnStatusError):
        return error.status not in _OUT_OF_MEMORY_STATUSES
    return isinstance(error, (NotSupported, GraphError))


def _get_device_ordinal(target: Target) -> int:
    assert target.handle is not None  # plans of described targets do not run
    return target.handle.device or 0


class AnyShapeAttention:
    """Attention with fixed heads and options, called with tensors of any batch and length.

    Q, K, V, O and the gradients are given as tensors b, h, s, d in the framework's view, with any strides; statistics
    as b, h, s, 1, for a class with b, s, h in memory. Heads, head dims, types and options are those of the problem.
    Threads may share it.

    Raises
    ------
    UsageError
        ``wrong-argument`` for a policy that is none.
    EnvironmentNotReady
        ``plan-without-device`` for a described target.
    """

    def __init__(
        self,
        problem: Attention,
        target: Target,
        *,
        backward: bool = False,
        shapes: Shapes = "any",
        workspace: Any = None,
        pool: PlanPool | None = None,
    ) -> None:
        if shapes not in POLICIES:
            raise UsageError(f"shapes must be one of {', '.join(POLICIES)}, got {shapes!r}", code="wrong-argument")
        self.problem, self.shapes = problem, shapes
        self.target, self.backward, self.workspace = target, backward, workspace
        self.pool = get_shared_pool() if pool is None else pool
        if not target.is_live:
            raise EnvironmentNotReady(
                f"{target.name} is a described target, on which plans cannot run",
                code="plan-without-device",
                fix="call this function with target=None on a machine that has the GPU",
            )
        self.recurring_shapes = RecurringShapes()
        self._strategies: OrderedDict[Any, _PlanStrategy] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors in the order in which buffers are given by position."""
        return self._arguments.names

    @cached_property
    def why_exact(self) -> str:
        """Why each shape needs its own plan under every policy; empty if one plan can serve many shapes."""
        return explain_need_for_one_plan_per_shape(self.problem, self.target, backward=self.backward)

    @cached_property
    def _arguments(self) -> Arguments:
        return Arguments(_make_exact_graph(self.problem, self.target, self.backward))

    @cached_property
    def _shape_tensor_names(self) -> list[str]:
        return [name for name in (*_TOKEN_TENSORS, "stats") if name in self.names]

    def __repr__(self) -> str:
        return format_in_angle_brackets(f"AnyShapeAttention {self.shapes}: {', '.join(self.names)}")

    def __call__(self, *buffers: Any, **named: Any) -> None:
        """Run with buffers by position or by name; returns before the device has finished.

        Raises
        ------
        UsageError
            As an :class:`~cudnn_backend_py.execution.executable.Executable`; ``buffer-dims`` for dims that are not
            those of the problem, ``plan-in-capture``.
        CudnnBackendError
            Why there is no plan for such a shape.
        """
        by_name = self._arguments.resolve(self._arguments.merge(buffers, named))
        key = tuple(read_dims_and_strides(by_name[name]) for name in self._shape_tensor_names)
        getter = find_stream_getter(by_name["q"])
        stream = 0 if getter is None else getter()
        strategy = self._strategies.get(key)
        if strategy is None:
            strategy = self._add_strategy(
                key, self._choose_strategy(dict(zip(self._shape_tensor_names, key, strict=True)), stream)
            )
        strategy.run(by_name, stream)

    def _add_strategy(self, key: Any, strategy: _PlanStrategy) -> _PlanStrategy:
        with self._lock:
            self._strategies[key] = strategy
            if len(self._strategies) > _MAX_CACHED_SHAPES:
                self._strategies.popitem(last=False)
            return strategy

    def _choose_strategy(self, facts: Mapping[str, _DimsAndStrides], stream: int) -> _PlanStrategy:
        problem = _make_problem_from_tensors(self.problem, facts)
        if self.shapes != "exact" and not self.why_exact and _is_token_major(facts):
            try:
                return _ShapeClassStrategy(self, problem, facts, stream)
            except CudnnBackendError as error:
                if not is_permanent_refusal(error):
                    raise
        return _ExactShapeStrategy(self, problem, stream)


class _PlanStrategy(Protocol):
    """Runs calls of certain shapes: by a plan for one shape, or by a plan for many."""

    def run(self, by_name: Mapping[str, Any], stream: int) -> None: ...


class _ExactShapeStrategy:
    """Runs calls of one shape by a plan built for exactly this shape."""

    def __init__(self, owner: AnyShapeAttention, problem: Attention, stream: int | None) -> None:
        self._pool = owner.pool
        self.key = "exact", f"{owner.backward} {id(owner.target)} {owner.workspace!r} {problem!r}"
        self.make = partial(_build_exact_plan, owner, problem)
        self._slot: PlanPoolEntry | None = None
        if stream is not None:
            self._slot = self._pool.get_or_build(self.key, self.make, stream)

    def is_built(self) -> bool:
        """Return whether the plan is built."""
        return self._pool.find(self.key) is not None

    def run(self, by_name: Mapping[str, Any], stream: int) -> None:
        held = self._slot
        plan = None if held is None else held.plan
        if held is None or plan is None:
            held = self._slot = self._pool.get_or_build(self.key, self.make, stream)
            plan = held.plan
        held.used = self._pool.now
        if not plan.captured and is_capturing(stream):
            plan.captured = True
        plan(**by_name)


class _ShapeClassStrategy:
    """Runs calls by a plan for many shapes; if adaptive, recurring shapes get a plan of their own."""

    def __init__(
        self, owner: AnyShapeAttention, problem: Attention, facts: Mapping[str, _DimsAndStrides], stream: int
    ) -> None:
        self._owner, self._problem = owner, problem
        self._needed = ShapeClassBounds(problem.batch, problem.seq_q, problem.seq_kv)
        self._multipliers = {name: _compute_sequence_stride(name, *fact) for name, fact in facts.items()}
        self._is_adaptive = owner.shapes == "adaptive" and _may_switch_to_exact_shape_plan(problem)
        self._slot, self._best = self._find_plan(stream)
        self._exact = _ExactShapeStrategy(owner, problem, None) if self._is_adaptive else None
        self._is_requested = False
        self._uses_exact = False

    def _find_plan(self, stream: int) -> tuple[PlanPoolEntry, Any]:
        owner = self._owner
        return find_shape_class_plan(
            self._problem,
            owner.target,
            backward=owner.backward,
            stream=stream,
            workspace=owner.workspace,
            allow_larger=self._is_adaptive,
            pool=owner.pool,
        )

    def run(self, by_name: Mapping[str, Any], stream: int) -> None:
        if self._uses_exact and self._exact is not None:
            self._exact.run(by_name, stream)
            return
        pool, held = self._owner.pool, self._slot
        if held.plan is None or (held.key != self._best and pool.find(self._best) is not None):
            held, self._best = self._find_plan(stream)
            self._slot = held
        plan = held.plan
        if plan is None:  # it had to go this very moment
            self.run(by_name, stream)
            return
        held.used = pool.now
        needed = self._needed
        plan(
            {name: by_name[name] for name in plan.names},
            Sequences(*needed, len_q=by_name.get("seq_len_q"), len_kv=by_name.get("seq_len_kv")),
            self._multipliers,
        )
        if self._exact is not None:
            self._request_exact_plan(self._exact, stream)

    def _request_exact_plan(self, exact: _ExactShapeStrategy, stream: int) -> None:
        """Request a plan for exactly this shape if it recurs; use it once built, except in a stream capture."""
        if self._is_requested:
            self._uses_exact = exact.is_built() and not is_capturing(stream)
            return
        recurring_shapes = self._owner.recurring_shapes
        recurring_shapes.count_call(self._needed)
        if not recurring_shapes.count_calls_until_recurring(self._needed):
            self._owner.pool.build_in_background(exact.key, exact.make, _get_device_ordinal(self._owner.target))
            self._is_requested = True


def explain_need_for_one_plan_per_shape(problem: Attention, target: Target, *, backward: bool) -> str:
    """Return why :class:`AnyShapeAttention` needs one plan per shape; empty if one plan serves many shapes."""
    if problem.page_size is not None:
        return "its page table has dims that follow from the lengths"
    if problem.bias is not None:
        return "its bias has dims that follow from the lengths"
    return explain_missing_shape_class(problem, backward=backward, version=target.library.version, sm=target.sm)


def _may_switch_to_exact_shape_plan(problem: Attention) -> bool:
    """Return whether calls may switch from a plan for many shapes to one for their exact shape.

    Not with dropout, for which the other plan would draw another mask, nor if results must be deterministic."""
    return not (problem.dropout or problem.deterministic)


def _make_exact_graph(problem: Attention, target: Target, backward: bool) -> Graph:
    make = sdpa_backward if backward else sdpa_forward
    return make(problem, version=target.library.version, sm=target.sm)


def _build_exact_plan(owner: AnyShapeAttention, problem: Attention) -> Executable:
    target = owner.target
    graph = _make_exact_graph(problem, target, owner.backward)
    chosen = find_engine_selection(graph, target.library.version, target.sm) if problem.deterministic else None
    engine, knobs = (None, None) if chosen is None else (chosen.engine, dict(chosen.knobs))
    plan = build(graph, target, engine=engine, knobs=knobs)
    return Executable(plan, workspace=owner.workspace, check=False)


# tensors of a call


def _make_problem_from_tensors(problem: Attention, facts: Mapping[str, _DimsAndStrides]) -> Attention:
    """Return the attention problem with the batch, lengths and strides of a call's tensors.

    Raises
    ------
    UsageError
        ``buffer-dims``.
    """
    (batch, _, seq_q, _), (_, _, seq_kv, _) = (_check_rank_4(name, facts[name][0]) for name in ("q", "k"))
    layout = {name: _check_rank_4(name, strides) for name, (_, strides) in facts.items()}
    found = replace(problem, batch=batch, seq_q=seq_q, seq_kv=seq_kv, layout=layout)
    for name, (dims, _) in facts.items():
        if dims != found.dims(name):
            raise UsageError(
                f"buffer {name!r} must have dims {found.dims(name)} to match q and k, got {dims}",
                code="buffer-dims",
            )
    return found


def _check_rank_4(name: str, numbers: tuple[int, ...]) -> tuple[int, int, int, int]:
    if len(numbers) != 4:
        raise UsageError(f"buffer {name!r} must have 4 dims (b, h, s, d), got {len(numbers)}", code="buffer-dims")
    b, h, s, d = numbers
    return b, h, s, d


def _is_token_major(facts: Mapping[str, _DimsAndStrides]) -> bool:
    """Return whether all tensors are stored with tokens before heads, so that ragged tensors can describe them."""
    for name, (dims, strides) in facts.items():
        found = read_token_strides(dims, strides)
        if found is None or (name == "stats" and (found.token, found.head) != (dims[1], 1)):
            return False
        if name in ("q", "dq") and "dq" in facts and found.batch != dims[2] * found.token:
            return False  # scratch memory is like Q, without gaps
    return True


def _compute_sequence_stride(name: str, dims: tuple[int, ...], strides: tuple[int, ...]) -> int:
    found = read_token_strides(dims, strides)
    assert found is not None, name  # looked at before
    return found.batch
