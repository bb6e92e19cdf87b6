"""The ways a pass can take: the exact plan of its shape, or the plan of a class of shapes.

Which one is the policy's choice (``exact``, ``any``, ``adaptive``); packed tokens and pages always go by a class. What
is known of a call is kept by the shapes of its tensors, for the last few thousand shapes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..errors import CudnnBackendError, UsageError
from ..execution.class_plan import ClassPlan, Sequences
from ..execution.executable import Executable
from ..graph.attention import deterministic_config
from ..graph.attention.shape_class import Bounds, class_problem, grow
from ..graph.ir import Graph, packed_strides
from ..plans.build import build, shared_target
from ..plans.plan import Plan
from ..target import Target
from .arguments import (
    ALIGNMENT,
    TENSORS,
    Layout,
    Options,
    check_options,
    check_out,
    check_tensors,
    data_type_of,
    fits,
)
from .compiled import DENSE, STEP, Recipe, class_recipe, exact_recipe, operator_of
from .graphs import attention_graph
from .reading import MOVED, Reading, read

__all__ = ["forget", "run"]

_KEPT = 4096  # shapes
_LENGTHS = ("seq_len_q", "seq_len_kv", "cu_seqlens_q", "cu_seqlens_k")  # read by a kernel of ours
_SMALL_WORKSPACE = 1 << 20  # bytes a plan may keep; more is asked of torch's allocator at each call
_WRITTEN = {False: ("o", "stats", "amax_s", "amax_o"), True: ("dq", "dk", "dv", "dbias", "dsink")}

Named = dict[str, Any]
Pairs = Sequence[tuple[str, Any]]


class Way(Protocol):
    """How calls with tensors of some shapes are run."""

    lessons: dict[tuple[int, ...], int]  # what the compiled step was taught of it
    is_shared: bool  # whether that is for other shapes too

    def run(self, named: Named) -> None:
        """Launch on torch's current stream."""

    def recipe(self, inputs: Pairs, outputs: Pairs, options: Options) -> Recipe | None:
        """Return how the compiled step runs such calls; None if it cannot, or not yet."""


_ways: OrderedDict[tuple[Any, ...], Way] = OrderedDict()
_making = threading.Lock()


def run(
    backward: bool,
    inputs: Named,
    outputs: Named,
    options: tuple[Any, ...],
    *,
    is_given: bool = False,
) -> None:
    """Run the pass on the current stream of the current device; None stands for what is not.

    How outputs lie in memory follows from the inputs, unless ``o`` `is_given` by the caller.

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
        way = _make(backward, named, Options(*options), key)
    way.run(named)
    if STEP.call is not None and not is_given and "amax_o" not in outputs:
        wanted = sum(1 << TENSORS.index(name[1:]) for name in ("dbias", "dsink") if outputs.get(name) is not None)
        STEP.offer(way, backward, tensors, list(outputs.items()), options, wanted)


def forget() -> None:
    """Forget what is known of all shapes."""
    STEP.forget_all()
    _ways.clear()
    _classes.clear()


def _kind(x: Any) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.dtype, x.get_device(), x.data_ptr() % ALIGNMENT


def _make(backward: bool, named: Named, options: Options, key: tuple[Any, ...]) -> Way:
    """Return the way of such a call, checked and kept."""
    check_options(options)
    if key[-1] is not None:
        check_out(named["o"], named["q"], named["v"])
    check_tensors(named)
    if key[-1] is not None and not fits(named["o"]):
        raise UsageError(
            f"out has strides {list(named['o'].stride())}: d dense, others of multiples of 16 bytes are needed",
            code="torch-tensor",
        )
    with _making:
        found = _ways.get(key)
        if found is None:
            found = _choose(backward, named, options)
            _ways[key] = found
            if len(_ways) > _KEPT:
                _ways.popitem(last=False)
    return found


def _choose(backward: bool, named: Named, options: Options) -> Way:
    if named["o"].numel() == 0 or named["k"].numel() == 0:
        return _Empty(backward)
    is_dense = named["cu_seqlens_q"] is None and named["block_table"] is None
    if not is_dense:
        return _ByClass(backward, named, options)
    if options.shapes == "exact":
        return _Exact(backward, named, options)
    try:
        by_class = _ByClass(backward, named, options)
    except UsageError:
        raise
    except CudnnBackendError:  # what no class can be, or cuDNN does not take as one
        return _Exact(backward, named, options)
    # With dropout the passes must draw one mask, and where results must repeat plans must not change meanwhile.
    if options.shapes == "any" or options.deterministic or options.dropout:
        return by_class
    return _Adaptive(backward, by_class, options)


class _Empty:
    """Nothing to attend to: no plan is needed."""

    is_shared = False

    def __init__(self, backward: bool) -> None:
        self.lessons: dict[tuple[int, ...], int] = {}
        self._written = _WRITTEN[backward]

    def run(self, named: Named) -> None:
        for name in self._written:
            if named.get(name) is not None:
                named[name].fill_(float("-inf") if name == "stats" else 0)

    def recipe(self, inputs: Pairs, outputs: Pairs, options: Options) -> Recipe | None:
        return None


# the exact way


class _Exact:
    """The plan of one problem, with the tensors that have to be copied for it. Threads may share one."""

    is_shared = False

    def __init__(self, backward: bool, named: Mapping[str, Any], options: Options) -> None:
        self.lessons: dict[tuple[int, ...], int] = {}
        _refuse_capture()
        present = {name: x for name, x in named.items() if x is not None}
        self._read = [name for name, x in present.items() if name not in _WRITTEN[backward] and not _is_plain(name, x)]
        facts = {name: _facts(x, name in self._read) for name, x in present.items()}
        target = shared_target()
        graph = attention_graph(facts, options, backward=backward, version=target.library.version, sm=target.sm)
        plan = _build(graph, target, options.deterministic and backward)
        # The key of this way holds whatever a check would look at.
        self._executable = Executable(plan, workspace="torch", check=False)
        if self._executable.workspace_bytes <= _SMALL_WORKSPACE:
            self._executable = Executable(plan, check=False)

    def run(self, named: Named) -> None:
        """Launch on torch's current stream."""
        import torch

        for name in self._read:
            named[name] = named[name].clone(memory_format=torch.contiguous_format)
        self._executable(*[named[name] for name in self._executable.names])

    def recipe(self, inputs: Pairs, outputs: Pairs, options: Options) -> Recipe | None:
        return exact_recipe(self._executable, inputs, outputs, self._read)


def _build(graph: Graph, target: Target, deterministic: bool) -> Plan:
    chosen = deterministic_config(target.library.version, target.sm) if deterministic else None
    if chosen is None:
        return build(graph, target)
    engine, knobs = chosen
    return build(graph, target, engine=engine, knobs=knobs)


def _is_plain(name: str, x: Any) -> bool:
    """Return whether a tensor can be taken where it lies; all but Q, K, V and the like are dense in our graphs."""
    if x.data_ptr() % ALIGNMENT:
        return False
    if name == "stats":
        return True
    plain: bool = fits(x) if name in MOVED[True] else x.is_contiguous()
    return plain


def _facts(x: Any, copied: bool) -> Layout:
    dims = tuple(x.shape)
    return Layout(dims, packed_strides(dims) if copied else tuple(x.stride()), data_type_of(x))


# the way by a class


class _ByClass:
    """The plan of a class of shapes, and how these tensors are read as its sequences. Threads may share one."""

    def __init__(self, backward: bool, named: Named, options: Options) -> None:
        self._reading = r = read(backward, named, options)
        is_fixed = options.shapes == "exact" or options.deterministic or options.dropout > 0
        self._plan = _find_class(backward, r, is_exact=options.shapes == "exact", is_fixed=is_fixed)
        written = _WRITTEN[backward]
        self._read = [name for name in r.copied if name not in written]
        self._read_plainly = [
            name
            for name, x in named.items()
            if x is not None and name not in (*r.multipliers, *written, "k", "v") and not _is_small_plain(name, x)
        ]
        self._written_back = [name for name in r.copied if name in written]
        self._bias_dims = self._plan.problem.bias
        has_lengths = named["seq_len_q"] is not None
        self._cleared = [name for name in r.multipliers if name in written] if has_lengths else []
        self._sequences = Sequences(r.batch, r.max_q, r.max_kv, total_q=r.total_q, total_kv=r.total_kv)
        self._is_fixed = is_fixed
        self._is_direct = not (self._read or self._read_plainly or self._written_back) and (
            all(named.get(name) is None for name in ("bias", "dsink")) and (r.heads_folded == 1 or not has_lengths)
        )
        self.is_shared = self._is_direct and operator_of(named) != DENSE and _has_usual_strides(named, r)
        self.lessons: dict[tuple[int, ...], int] = self._plan.lessons if self.is_shared else {}

    def run(self, named: Named) -> None:
        """Launch on torch's current stream."""
        import torch

        buffers, bias, dbias = dict(named), named["bias"], named.get("dbias")
        for name in self._read:
            buffers[name] = self._laid_out(named[name]).copy_(named[name])
        for name in self._read_plainly:
            buffers[name] = named[name].contiguous()
        for name in self._written_back:
            buffers[name] = self._laid_out(named[name])
        for name in self._cleared:
            buffers[name].zero_()
        if bias is not None:
            buffers["bias"] = whole = bias.new_empty(self._bias_dims)
            whole[tuple(map(slice, bias.shape))] = bias
        if dbias is not None:
            buffers["dbias"] = dbias.new_empty(self._bias_dims)
        self._plan(buffers, self._sequences_of(buffers), self._reading.multipliers)
        for name in self._written_back:
            named[name].copy_(buffers[name])
        if dbias is not None:
            dbias.copy_(buffers["dbias"][tuple(map(slice, dbias.shape))])
        if named.get("dsink") is not None:
            named["dsink"].copy_(_sink_gradient(torch, named))

    def recipe(self, inputs: Pairs, outputs: Pairs, options: Options) -> Recipe | None:
        if not self._is_direct:
            return None
        return class_recipe(
            self._plan,
            self._sequences_of(dict(inputs)),
            self._reading.multipliers,
            inputs,
            outputs,
            options=options,
            cleared=self._cleared,
            is_fixed=self._is_fixed,
            is_shared=self.is_shared,
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
            len_q, len_kv = (x.unsqueeze(1).expand(-1, folded).reshape(-1) for x in (len_q, len_kv))
        return replace(
            self._sequences,
            cu_q=named["cu_seqlens_q"],
            cu_kv=named["cu_seqlens_k"],
            len_q=len_q,
            len_kv=len_kv,
            block_table=named["block_table"],
        )


def _has_usual_strides(named: Named, r: Reading) -> bool:
    """Return whether the strides of tensors would be read the same if there were more tokens or sequences."""
    packed = named["q"].dim() == 3
    return all(
        x.shape[0] > 1 or x.stride(0) == r.multipliers[name]
        for name, x in named.items()
        if x is not None and name in r.multipliers and not (packed and name == "stats")
    )


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
    """Return whether lengths, pages and what heads have can be taken where they lie."""
    if name == "block_table":
        return bool(x.stride(1) == 1 or x.shape[1] == 1)
    return bool(x.is_contiguous()) and (name in _LENGTHS or not x.data_ptr() % ALIGNMENT)


_classes: dict[Any, list[ClassPlan]] = {}


def _find_class(backward: bool, r: Reading, *, is_exact: bool, is_fixed: bool) -> ClassPlan:
    """Return the plan of a class that a call is in, built if there is none."""
    needed = Bounds(r.batch, max(r.max_q, r.least_q), r.max_kv)
    bounds = needed if is_exact else grow(*needed)
    family = repr((backward, class_problem(r.problem, Bounds(2, 2, 2), backward=backward)))
    known = _classes.setdefault(family, [])
    if is_exact or is_fixed:
        fitting = [plan for plan in known if plan.bounds == bounds]
    else:
        fitting = [plan for plan in known if plan.bounds.hold(*needed)]
    if fitting:
        return min(fitting, key=lambda plan: plan.bounds.batch * plan.bounds.q * plan.bounds.kv)
    _refuse_capture()
    made = ClassPlan(class_problem(r.problem, bounds, backward=backward), shared_target(), backward=backward)
    known.append(made)
    return made


class _Adaptive:
    """A class at first; the exact plan of a shape that keeps coming back, once it is built in the background."""

    is_shared = False

    def __init__(self, backward: bool, by_class: _ByClass, options: Options) -> None:
        self._way: Way = by_class
        self.lessons: dict[tuple[int, ...], int] = {}

    def run(self, named: Named) -> None:
        """Launch on torch's current stream."""
        self._way.run(named)

    def recipe(self, inputs: Pairs, outputs: Pairs, options: Options) -> Recipe | None:
        return self._way.recipe(inputs, outputs, options)


def _refuse_capture() -> None:
    """Refuse to build a plan while the current stream is captured.

    Raises
    ------
    UsageError
        ``plan-in-capture``.
    """
    import torch

    if torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "a plan would have to be built while a CUDA graph is captured",
            code="plan-in-capture",
            fix="call the operator with these shapes once before the capture, on any stream; this capture goes on",
        )
