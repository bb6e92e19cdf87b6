"""Strategies to run a pass: by the exact plan of its shape, or by the plan of a class of shapes.

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
from ..execution.any_shape import RelatedPlans, is_lasting_refusal
from ..execution.class_plan import ClassPlan, Sequences
from ..execution.executable import Executable
from ..execution.plan_pool import Slot, shared_pool
from ..execution.returning import Returning
from ..graph.attention.problem import TensorLayout
from ..graph.attention.selections import find_selection
from ..graph.ir import Graph, packed_strides
from ..plans.build import build, shared_target
from ..plans.plan import Plan
from ..target import Target
from .arguments import (
    ALIGNMENT,
    TENSORS,
    OperatorOptions,
    check_call,
    check_out,
    check_pages,
    data_type_of,
    fits,
)
from .compiled import DENSE, STEP, Pairs, Recipe, class_recipe, exact_recipe, operator_of
from .graphs import attention_graph
from .reading import MOVED, SequenceView, avoids_decoding, describe, read

__all__ = ["forget", "run"]

_KEPT = 1024  # shapes
_KIN_KEPT = 512  # kinds of calls
_PATIENCE = 1000  # calls after which an exact plan is requested again, if it had to go or found no room
_UNTOLD = 2  # calls of a shape in a row that are not told, at most; what comes between may be another recipe's
_HOPELESS = 1 << 40  # calls
_SMALL_WORKSPACE = 1 << 20  # bytes a plan may keep; more is queried of torch's allocator at each call
_WRITTEN = {False: ("o", "stats", "amax_s", "amax_o"), True: ("dq", "dk", "dv", "dbias", "dsink")}
_CLEARED = {"stats": float("-inf")}  # what rows hold that no one writes; 0 if not named
_LENGTHS = ("seq_len_q", "seq_len_kv", "cu_seqlens_q", "cu_seqlens_k")  # read by a kernel of ours

Named = dict[str, Any]


class Way(Protocol):
    """How calls with tensors of some shapes are run."""

    def run(self, named: Named) -> None:
        """Launch on torch's current stream."""

    @property
    def learned_limits(self) -> dict[Any, int] | None:
        """How often the compiled step was offered it, by thread, stream and pass; None where it cannot run it yet."""

    @property
    def is_shared(self) -> bool:
        """Whether the compiled step runs calls of other shapes too by its recipe."""

    @property
    def best(self) -> Any:
        """What reports its recipes from those of another class that the same plan serves meanwhile."""

    def recipe(self, inputs: Pairs, outputs: Pairs, options: OperatorOptions) -> Recipe | None:
        """Return how the compiled step runs such calls; None if the plan had to go meanwhile."""


class _Kind:
    """What calls have in common that differ in batch and lengths: their classes, and which shapes come back."""

    def __init__(self, related_plans: RelatedPlans) -> None:
        self.related_plans, self.returning = related_plans, Returning()
        self.exact: OrderedDict[tuple[int, int, int], _Exact] = OrderedDict()  # of shapes that do

    def add(self, shape: tuple[int, int, int], exact: _Exact) -> None:
        """Keep the exact way of a shape, where the compiled step's calls can find it."""
        with _making:
            self.exact[shape] = exact
            if len(self.exact) > _KEPT:
                self.exact.popitem(last=False)


_ways: OrderedDict[tuple[Any, ...], Way] = OrderedDict()
_kinds: dict[tuple[Any, ...], _Kind] = {}
_making = threading.Lock()


def run(
    backward: bool,
    inputs: Named,
    outputs: Named,
    options: tuple[Any, ...],
    *,
    is_given: bool = False,
) -> None:
    """Run the pass on the current stream of the current device; None means what is not.

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
            *[None if x is None else _kind(x) for x in inputs.values()],
            _kind(outputs["o"]) if is_given else None,
        )
        way = _ways.get(key)
    except (AttributeError, TypeError, RuntimeError):  # no tensors, or options that nothing can be looked up by
        key, way = (None,), None
    named = inputs | outputs
    if way is None:
        way = _make(backward, named, OperatorOptions(*options), key)
    way.run(named)
    if STEP.call is not None and not is_given and "amax_o" not in outputs:
        wanted = sum(1 << TENSORS.index(name[1:]) for name in ("dbias", "dsink") if outputs.get(name) is not None)
        STEP.offer(way, backward, tensors, list(outputs.items()), options, wanted)


def forget() -> None:
    """Forget what is known of all shapes, and their plans; those of CUDA graphs too."""
    with _making:
        _ways.clear()
        _kinds.clear()
    shared_pool().clear()


def _kind(x: Any) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.dtype, x.get_device(), x.data_ptr() % ALIGNMENT


def _make(backward: bool, named: Named, options: OperatorOptions, key: tuple[Any, ...]) -> Way:
    """Return the way of such a call, checked and kept."""
    is_out_given = key[-1] is not None
    checked = {name: x for name, x in named.items() if name != "o"} if is_out_given else named
    check_call(checked, options, backward=backward)
    check_pages(named)
    if is_out_given:
        check_out(named["o"], named["q"], named["v"])
    if is_out_given and not fits(named["o"]):
        raise UsageError(
            f"out has strides {list(named['o'].stride())}: d dense, others of multiples of 16 bytes are needed",
            code="torch-tensor",
        )
    way = _choose(backward, named, options, key)
    with _making:
        found = _ways.setdefault(key, way)
        if len(_ways) > _KEPT:
            _ways.popitem(last=False)
    return found


def _choose(backward: bool, named: Named, options: OperatorOptions, key: tuple[Any, ...]) -> Way:
    if named["o"].numel() == 0 or named["k"].numel() == 0:
        return _Empty(backward)
    is_dense = named["cu_seqlens_q"] is None and named["block_table"] is None
    if not is_dense:
        return _ByClass(backward, named, options)
    if options.shapes == "exact" and not avoids_decoding(backward, options, named["q"].shape[2]):
        return _Exact(backward, named, options, key)
    try:
        by_class = _ByClass(backward, named, options)
    except CudnnBackendError as error:
        if not is_lasting_refusal(error):
            raise
        return _Exact(backward, named, options, key)
    return _Adaptive(by_class, backward, named, options, key) if _may_change(options) else by_class


def _may_change(options: OperatorOptions) -> bool:
    """Return whether calls may change to another plan: with dropout the two passes would draw different masks."""
    return options.shapes == "adaptive" and not (options.deterministic or options.dropout)


class _Empty:
    """Nothing to attend to: no plan is needed."""

    learned_limits, is_shared, best = None, False, None

    def __init__(self, backward: bool) -> None:
        self._written = _WRITTEN[backward]

    def run(self, named: Named) -> None:
        """Write zeros, and statistics of nothing."""
        for name in self._written:
            if named.get(name) is not None:
                named[name].fill_(_CLEARED.get(name, 0.0))

    def recipe(self, inputs: Pairs, outputs: Pairs, options: OperatorOptions) -> Recipe | None:
        """Return None: there is no plan."""


def _current_stream() -> int:
    import torch

    stream: int = torch.cuda.current_stream().cuda_stream
    return stream


# the exact way


class _Exact:
    """The plan of one problem, with the tensors that have to be copied for it. Threads may share one."""

    is_shared, best = False, None

    def __init__(
        self, backward: bool, named: Mapping[str, Any], options: OperatorOptions, key: tuple[Any, ...]
    ) -> None:
        present = {name: x for name, x in named.items() if x is not None}
        self._read = [name for name, x in present.items() if name not in _WRITTEN[backward] and not _is_plain(name, x)]
        self._facts = {name: _facts(x, name in self._read) for name, x in present.items()}
        self._backward, self._options = backward, options
        has_lengths = named["seq_len_q"] is not None  # rows of sequences without keys are not written
        self._cleared = [name for name in (*MOVED[backward], "stats") if name in _WRITTEN[backward] and has_lengths]
        self._key = ("exact", key)
        self._held: Slot | None = None
        self._learned_limits: dict[Any, int] = {}
        self._patience = 0

    def is_built(self, *, only_if_ran: bool = False) -> bool:
        """Return whether the plan is there."""
        held = self._held
        if held is None or held.plan is None:
            held = self._held = shared_pool().find(self._key)
        plan = None if held is None else held.plan
        return plan is not None and not (only_if_ran and not plan.streams)

    def is_unsupported(self) -> bool:
        """Return whether the plan cannot be built."""
        return shared_pool().has_failed(self._key)

    def want(self, calls: int = 1) -> None:
        """Have the plan built in the background, at the first call that would take it, and again after many of them."""
        import torch

        self._patience -= calls
        if self._patience < 0:
            self._patience = _PATIENCE
            shared_pool().build_soon(self._key, self._build, torch.cuda.current_device())

    def run(self, named: Named) -> None:
        """Launch on torch's current stream."""
        import torch

        pool, held = shared_pool(), self._held
        plan = None if held is None else held.plan
        while held is None or plan is None:
            held = self._held = pool.get_or_build(self._key, self._build, _current_stream())
            plan = held.plan
        held.used = pool.now
        if torch.cuda.is_current_stream_capturing():
            plan.captured = True
        for name in self._read:
            named[name] = named[name].clone(memory_format=torch.contiguous_format)
        for name in self._cleared:
            if named[name] is not None:
                named[name].fill_(_CLEARED.get(name, 0.0))
        plan(*[named[name] for name in plan.names])

    @property
    def learned_limits(self) -> dict[Any, int] | None:
        """None until the plan is there."""
        return None if self._held is None or self._held.plan is None else self._learned_limits

    def recipe(self, inputs: Pairs, outputs: Pairs, options: OperatorOptions) -> Recipe | None:
        """Return how the compiled step runs such calls."""
        plan = None if self._held is None else self._held.plan
        return (
            None
            if plan is None
            else exact_recipe(
                *(plan, inputs, outputs, self._read, {name: _CLEARED.get(name, 0.0) for name in self._cleared})
            )
        )

    def _build(self) -> Executable:
        options, backward, target = self._options, self._backward, shared_target()
        graph = attention_graph(self._facts, options, backward=backward, version=target.library.version, sm=target.sm)
        plan = _build(graph, target, options.deterministic and backward)
        # The key of this way holds whatever a check would look at.
        executable = Executable(plan, workspace="torch", check=False)
        if executable.workspace_bytes <= _SMALL_WORKSPACE:
            executable = Executable(plan, check=False)
        return executable


def _build(graph: Graph, target: Target, deterministic: bool) -> Plan:
    chosen = find_selection(graph, target.library.version, target.sm) if deterministic else None
    if chosen is None:
        return build(graph, target)
    return build(graph, target, engine=chosen.engine, knobs=dict(chosen.knobs))


def _is_plain(name: str, x: Any) -> bool:
    """Return whether a tensor can be taken where it is; all but Q, K, V and the like are dense in our graphs."""
    if x.data_ptr() % ALIGNMENT:
        return False
    if name == "stats":
        return True
    plain: bool = fits(x) if name in MOVED[True] else x.is_contiguous()
    return plain


def _facts(x: Any, copied: bool) -> TensorLayout:
    dims = tuple(x.shape)
    return TensorLayout(dims, packed_strides(dims) if copied else tuple(x.stride()), data_type_of(x))


# the way by a class


class _ByClass:
    """The plan of a class of shapes, and how these tensors are read as its sequences. Threads may share one."""

    def __init__(self, backward: bool, named: Named, options: OperatorOptions) -> None:
        self._reading = r = read(backward, named, options)
        self.kind = _kinds.get(r.related_plans) or _add_kind(backward, named, r)
        self._is_exact = options.shapes == "exact"
        self._allow_larger = _may_change(options)
        self._is_adaptive = self._allow_larger and operator_of(named) == DENSE
        written = _WRITTEN[backward]
        self._read = [name for name in r.copied if name not in written]
        self._read_plainly = [
            name
            for name, x in named.items()
            if x is not None and name not in (*r.multipliers, *written, "k", "v") and not _is_small_plain(name, x)
        ]
        self._written_back = [name for name in r.copied if name in written]
        self._held, self.best = self._find()
        has_lengths = any(named[name] is not None for name in ("seq_len_q", "seq_len_kv"))
        self._is_direct = not (self._read_plainly or self._written_back or "stats" in self._read) and (
            all(named.get(name) is None for name in ("bias", "dsink")) and (r.heads_folded == 1 or not has_lengths)
        )
        self._is_direct = self._is_direct and (operator_of(named) == DENSE or _has_usual_strides(named, r))
        self.is_shared = self._is_direct

    def _find(self) -> tuple[Slot, Any]:
        """Return the place of a plan, and the key of the best one."""
        if self._is_exact:
            return self.kind.related_plans.find_exact(self._reading.needed, _current_stream())
        return self.kind.related_plans.find(self._reading.needed, _current_stream(), allow_larger=self._allow_larger)

    def _take(self) -> ClassPlan:
        """Return the plan: the best one that is there, one that is built if none is."""
        pool, held = shared_pool(), self._held
        plan: ClassPlan | None = held.plan
        while plan is None or (held.key != self.best and pool.find(self.best) is not None):
            held, self.best = self._find()
            self._held = held
            plan = held.plan
        held.used = pool.now
        return plan

    def run(self, named: Named) -> None:
        """Launch on torch's current stream."""
        import torch

        plan = self._take()
        buffers, bias, dbias = dict(named), named["bias"], named.get("dbias")
        for name in self._read:
            buffers[name] = self._laid_out(named[name]).copy_(named[name])
        for name in self._read_plainly:
            buffers[name] = named[name].contiguous() if not named[name].is_contiguous() else named[name].clone()
        for name in self._written_back:
            buffers[name] = self._laid_out(named[name])
        if bias is not None:
            # Kernels load whole tiles: what they mask must not depend on who had the memory before.
            buffers["bias"] = whole = bias.new_zeros(plan.problem.bias)
            whole[tuple(map(slice, bias.shape))] = bias
        if dbias is not None:
            buffers["dbias"] = dbias.new_empty(plan.problem.bias)
        plan(buffers, self._sequences_of(buffers), self._reading.multipliers)
        for name in self._written_back:
            named[name].copy_(buffers[name])
        if dbias is not None:
            dbias.copy_(buffers["dbias"][tuple(map(slice, dbias.shape))])
        if named.get("dsink") is not None:
            named["dsink"].copy_(_sink_gradient(torch, named))

    @property
    def learned_limits(self) -> dict[Any, int] | None:
        """None where the compiled step cannot run them."""
        plan = self._held.plan
        found: dict[Any, int] | None = plan.learned_limits if self._is_direct and plan is not None else None
        return found

    def recipe(self, inputs: Pairs, outputs: Pairs, options: OperatorOptions) -> Recipe | None:
        """Return how the compiled step runs such calls."""
        held = self._held
        plan = held.plan
        if plan is None:
            return None
        awaited = self.best if held.key != self.best else None
        is_reported = awaited is not None or self._is_adaptive
        return class_recipe(
            plan,
            self._sequences_of(dict(inputs)),
            self._reading.multipliers,
            inputs,
            outputs,
            options=options,
            bounds=self.best[1],
            is_exact=self._is_exact,
            heads_folded=self._reading.heads_folded,
            copied=self._read,
            notice=_Notice(awaited, self.kind if self._is_adaptive else None) if is_reported else None,
        )

    def _laid_out(self, x: Any) -> Any:
        """Return memory for a tensor like x, as its class reads it: tokens first, or with heads folded as it is."""
        if self._reading.heads_folded > 1:
            return x.new_empty(x.shape)
        if x.dim() == 4:
            b, h, s, d = x.shape
            return x.new_empty((b, s, h, d)).transpose(1, 2)
        return x.new_empty(x.shape) if x.dim() == 3 else x.new_empty((x.shape[1], x.shape[0])).t()

    def _sequences_of(self, named: Named) -> Sequences:
        folded = self._reading.heads_folded
        len_q, len_kv = named["seq_len_q"], named["seq_len_kv"]
        if folded > 1 and len_q is not None:
            len_q, len_kv = (x.repeat_interleave(folded) for x in (len_q, len_kv))
        r = self._reading
        return Sequences(
            *(r.batch, r.max_q, r.max_kv, named["cu_seqlens_q"], named["cu_seqlens_k"], len_q, len_kv),
            *(named["block_table"], r.total_q, r.total_kv),
        )


def _has_usual_strides(named: Named, r: SequenceView) -> bool:
    """Return whether the strides of tensors would be read the same if there were more tokens or sequences."""
    packed = named["q"].dim() == 3
    return all(
        x.shape[0] > 1 or x.stride(0) == r.multipliers[name]
        for name, x in named.items()
        if x is not None and name in r.multipliers and name not in r.copied and not (packed and name == "stats")
    )


def _add_kind(backward: bool, named: Named, r: SequenceView) -> _Kind:
    """Return the cached finder of class plans for calls with the same properties."""
    kind = _Kind(RelatedPlans(describe(backward, named, r), shared_target(), backward=backward))
    with _making:
        if len(_kinds) >= _KIN_KEPT:
            _kinds.clear()
        return _kinds.setdefault(r.related_plans, kind)


def _sink_gradient(torch: Any, named: Named) -> Any:
    """Return the gradient of the sinks, which cuDNN gets wrong where sequences are ragged.

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


def _is_small_plain(name: str, x: Any) -> bool:
    """Return whether lengths, pages and what heads have can be taken where they are."""
    if name == "bias":
        return True  # copied anyway
    if name == "block_table":
        return bool(x.stride(1) == 1 or x.shape[1] == 1)
    return bool(x.is_contiguous()) and (name in _LENGTHS or not x.data_ptr() % ALIGNMENT)


class _Adaptive:
    """A class at first; the exact plan of a shape that comes back, once it is built in the background."""

    def __init__(
        self, by_class: _ByClass, backward: bool, named: Named, options: OperatorOptions, key: tuple[Any, ...]
    ) -> None:
        self._by_class, self._of_exact = by_class, (backward, options, key)
        (batch, _, rows, _), keys = named["q"].shape, named["k"].shape[2]
        self._shape = batch, rows, keys
        self._exact: _Exact | None = None

    @property
    def _settled(self) -> _Exact | _ByClass:
        """The way of calls now."""
        return self._by_class if self._exact is None or not self._exact.is_built() else self._exact

    @property
    def learned_limits(self) -> dict[Any, int] | None:
        """Those of the way that calls take now."""
        return self._settled.learned_limits

    @property
    def is_shared(self) -> bool:
        """Whether the compiled step runs calls of other shapes too by its recipe."""
        return self._settled.is_shared

    @property
    def best(self) -> Any:
        """What reports its recipes from others of the same plan."""
        return self._settled.best

    def recipe(self, inputs: Pairs, outputs: Pairs, options: OperatorOptions) -> Recipe | None:
        """Return how the compiled step runs such calls."""
        return self._settled.recipe(inputs, outputs, options)

    def run(self, named: Named) -> None:
        """Launch on torch's current stream."""
        import torch

        kind, exact = self._by_class.kind, self._exact
        if exact is None:
            kind.returning.note(self._shape)
            if not kind.returning.calls_left(self._shape):
                backward, options, key = self._of_exact
                self._exact = exact = _Exact(backward, named, options, key)
                kind.add(self._shape, exact)
        if exact is not None:
            # A plan that never ran is not taken first within a capture: its kernels may not be loaded.
            if exact.is_built(only_if_ran=torch.cuda.is_current_stream_capturing()):
                exact.run(named)
                return
            exact.want()
        self._by_class.run(named)


class _Notice:
    """Receives reports of calls that the compiled step runs by a class, and returns those for Python.

    Parameters
    ----------
    awaited
        The key of the best class, for which a larger one is in.
    kind
        Where the exact plans of shapes that come back are wanted.
    """

    def __init__(self, awaited: Any, kind: _Kind | None) -> None:
        self._awaited, self._kind = awaited, kind
        self._last = (0, 0, 0)

    def __call__(self, unreported: int, shape: tuple[int, int, int]) -> int:
        """Note `unreported` more calls of the last shape, and one of this; return how many more need no report.

        Negative where Python is to do this call, and to note it.
        """
        if self._awaited is not None and shared_pool().find(self._awaited) is not None:
            return -1
        if self._kind is None:
            return _UNTOLD
        last, self._last = self._last, shape
        exact = self._kind.exact.get(shape)
        if exact is not None:
            if exact.is_unsupported():
                return _HOPELESS if self._awaited is None else _UNTOLD
            exact.want(unreported + 1)
            return -1 if exact.is_built() else 0
        returning = self._kind.returning
        returning.note_more(last, unreported)
        left = returning.calls_left(shape)
        if left <= 1:
            return -1
        returning.note(shape)
        return min(left - 2, _UNTOLD)
