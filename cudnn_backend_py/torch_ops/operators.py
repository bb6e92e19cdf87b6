"""The operators ``cudnn_backend::sdpa_forward`` and ``sdpa_backward``: schemas, fake tensors, gradients.

An operator in Python costs torch's dispatcher more than the launch costs us. So where no one can report the difference
(plain tensors, no tracing, no mode, no transform) :func:`attend` runs what the operators run, without it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from ..errors import EnvironmentNotReady, UsageError
from ..graph.attention.shape_class import MOST_HEADS
from .arguments import SCALES, TENSORS, Decide, OperatorOptions, check_call, check_output_tensor, is_fp8
from .compiled import STEP
from .strategies import run_attention_pass
from .transforms import (
    AttentionPasses,
    is_torch_func_derivative_active,
    is_torch_func_transform_active,
    refuse_compiled_transform,
    refuse_forward_mode_derivative,
    refuse_second_derivative,
)

__all__ = ["BACKWARD", "FORWARD", "SCHEMAS", "attend", "is_eager", "load_torch"]

_OPTION_SCHEMA = (
    "float? scale, float dropout, SymInt? left_bound, SymInt? right_bound, bool bottom_right, float? soft_cap, "
    "bool deterministic, SymInt? max_q, SymInt? max_kv, str shapes"
)
_INPUT_SCHEMA = "Tensor q, Tensor k, Tensor v, " + ", ".join(f"Tensor? {name}" for name in TENSORS[3:])
_SCALE_SCHEMA = ", ".join(f"Tensor? {name}" for name in SCALES)
FORWARD, BACKWARD = "cudnn_backend::sdpa_forward", "cudnn_backend::sdpa_backward"
SCHEMAS = {
    FORWARD: f"({_INPUT_SCHEMA}, {_SCALE_SCHEMA}, {_OPTION_SCHEMA}, bool stats) -> (Tensor, Tensor, Tensor)",
    BACKWARD: f"(Tensor d_o, Tensor o, Tensor stats, {_INPUT_SCHEMA}, {_OPTION_SCHEMA}, bool dbias, bool dsink)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
}
_TENSOR_COUNT, _SCALE_COUNT = len(TENSORS), len(SCALES)
_NO_SCALES = (None,) * _SCALE_COUNT
_AMAX_O_INDEX = 4  # where amax_o is in the tensor of both: each is at a multiple of 16 bytes


def load_torch() -> Any:
    """Import and return torch, after defining the operators.

    Raises
    ------
    EnvironmentNotReady
        ``torch-missing``.
    """
    try:
        import torch
    except ImportError as error:
        raise EnvironmentNotReady(
            "PyTorch is not installed, and these functions work on its tensors",
            code="torch-missing",
            cause=str(error),
            fix="install torch, or run plans on other buffers through cudnn_backend_py.plan",
        ) from None
    if not _defined_operators:
        _define_operators()
    return torch


def attend(
    torch: Any,
    tensors: tuple[Any, ...],
    scales: tuple[Any, ...],
    options: tuple[Any, ...],
    *,
    wants_stats: bool,
    out: Any = None,
) -> tuple[Any, Any, Any]:
    """Compute attention; return the output, statistics if wanted or needed for gradients, and FP8 amax_s and amax_o.

    Parameters
    ----------
    tensors, scales, options
        As :data:`TENSORS`, :data:`SCALES` (or empty) and :class:`OperatorOptions` name them.
    out
        Where the output is written, which gradients cannot be taken of.
    """
    needs_gradients = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (*tensors[:4], tensors[_SINK_INDEX])
    )
    if out is not None and needs_gradients:
        raise UsageError(
            "out= is written in place, so no gradient can be computed",
            code="torch-option",
            fix="omit out=, or call it under torch.no_grad()",
        )
    if needs_gradients and (rows := _find_max_backward_batch(torch, tensors)) is not None:
        parts = [
            attend(torch, part, scales, options, wants_stats=wants_stats) for part in _split_batch(torch, tensors, rows)
        ]
        o, stats, amax = zip(*parts, strict=True)
        return torch.cat(o), torch.cat(stats), amax[0]
    if _has_tangents(torch, tensors):
        refuse_forward_mode_derivative()
    if not is_eager(torch, tensors):
        # Before torch holds options against the schema, and where a traced program raises what was raised.
        decide, named = _get_evaluator_of_symbolic_conditions(torch), dict(zip(TENSORS, tensors, strict=True))
        named |= dict(zip(SCALES, scales, strict=True)) if scales else {}
        check_call(named, OperatorOptions(*options), decide=decide)
        if out is not None:
            check_output_tensor(out, tensors[0], tensors[2], decide)
        if torch.compiler.is_compiling():
            if is_torch_func_derivative_active():
                refuse_compiled_transform()
        elif is_torch_func_transform_active(torch):
            found = _transformable_passes[0].forward.apply(options, scales, *tensors)
            return found if out is None else (out.copy_(found[0]), *found[1:])
        found = torch.ops.cudnn_backend.sdpa_forward(
            *tensors, *(scales or _NO_SCALES), *options, wants_stats or needs_gradients
        )
        return found if out is None else (out.copy_(found[0]), *found[1:])
    if not STEP.is_requested:
        STEP.request_build(torch, _compute_gradients_for_compiled_launcher)
    if needs_gradients:
        o, stats, amax = _autograd_functions[0].apply(options, scales, *tensors)
        return o, stats, amax
    return _launch_forward(torch, tensors, scales, options, wants_stats, out)


_SINK_INDEX = TENSORS.index("sink")


def _find_max_backward_batch(torch: Any, tensors: tuple[Any, ...]) -> int | None:
    """Return the largest batch that one backward pass supports; None if this call's batch is small enough.

    Raises
    ------
    UsageError
        ``torch-tensor`` if it cannot be split.
    """
    q, starts = tensors[0], tensors[TENSORS.index("cu_seqlens_q")]
    heads, batch = q.shape[1], (q.shape[0] if starts is None else starts.shape[0] - 1)
    if not _get_evaluator_of_symbolic_conditions(torch)(heads * batch > MOST_HEADS):
        return None
    if starts is not None or heads > MOST_HEADS:
        raise UsageError(
            f"{batch} sequences of {heads} heads are too many: gradients need at most {MOST_HEADS} heads in all",
            code="torch-tensor",
            fix="call it with fewer sequences" if starts is not None else "call it with fewer heads",
        )
    return MOST_HEADS // int(heads)


def _split_batch(torch: Any, tensors: tuple[Any, ...], rows: int) -> Iterator[tuple[Any, ...]]:
    """Yield the tensors of a dense call, split along the batch into parts of at most `rows` entries."""
    batch = tensors[0].shape[0]
    names = ("q", "k", "v", "bias", "seq_len_q", "seq_len_kv")
    for part, first in enumerate(range(0, batch, rows)):
        found = dict(zip(TENSORS, tensors, strict=True))
        for name in names:
            x = found[name]
            if x is not None and x.shape[0] == batch:
                found[name] = x[first : first + rows]
        if found["rng"] is not None:  # of its own, or all parts would drop the same
            found["rng"] = found["rng"] + part
        yield tuple(found.values())


def _get_evaluator_of_symbolic_conditions(torch: Any) -> Decide:
    """Return a function that evaluates conditions on dims, treating unknown symbolic ones as false."""
    if not (torch.compiler.is_compiling() or "torch.fx.experimental.symbolic_shapes" in sys.modules):
        return bool
    try:
        from torch.fx.experimental.symbolic_shapes import guard_or_false
    except ImportError:  # torch before 2.8
        return bool
    return guard_or_false  # type: ignore[no-any-return]


def _has_tangents(torch: Any, tensors: tuple[Any, ...]) -> bool:
    """Return whether a tensor has a tangent of forward-mode differentiation."""
    forward_mode = torch.autograd.forward_ad
    return forward_mode._current_level >= 0 and any(
        x is not None and forward_mode.unpack_dual(x).tangent is not None for x in tensors
    )


def is_eager(torch: Any, tensors: tuple[Any, ...]) -> bool:
    """Return whether all tensors are plain GPU tensors and no tracing, mode or transform is active."""
    if torch.compiler.is_compiling():
        return False
    plain = (torch.Tensor, torch.nn.Parameter)
    try:
        return (
            all(x is None or type(x) in plain for x in tensors)
            and tensors[0].is_cuda
            and not torch._C._len_torch_dispatch_stack()
            and not torch._C._len_torch_function_stack()
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch._C._get_tracing_state() is None
        )
    except AttributeError:  # a torch that cannot be queried
        return False


# definition, once


_definition_lock = threading.Lock()
_defined_operators: list[str] = []
_autograd_functions: list[Any] = []  # the subclass of torch.autograd.Function
_transformable_passes: list[AttentionPasses] = []  # those that transforms of torch.func support


def _define_operators() -> bool:
    """Define the operators, once."""
    import torch

    with _definition_lock:
        if not _defined_operators:
            for name, (run_it, fake) in {
                FORWARD: (_run_forward, _fake_forward),
                BACKWARD: (_run_backward, _fake_backward),
            }.items():
                torch.library.define(name, SCHEMAS[name], tags=(torch.Tag.pt2_compliant_tag,))
                torch.library.impl(name, "cuda", run_it)
                torch.library.register_fake(name, fake)
            torch.library.register_autograd(FORWARD, _run_operator_backward, setup_context=_save_context)
            torch.library.register_autograd(BACKWARD, refuse_second_derivative)
            members = {"forward": staticmethod(_run_autograd_forward), "backward": staticmethod(_run_autograd_backward)}
            _autograd_functions.append(type("CudnnAttention", (torch.autograd.Function,), members))
            _transformable_passes.append(AttentionPasses(torch))
            _defined_operators.extend(SCHEMAS)
    return True


# What torch.compiler.assume_constant_result sets: a trace calls the function instead of looking into it.
_define_operators._dynamo_marked_constant = True  # type: ignore[attr-defined]


# outputs, real and fake


def _allocate_output(x: Any, head_dim: Any) -> Any:
    """Allocate a dense [b, h, s, head_dim] with heads and rows in the order of x, or a packed [t, h, head_dim]."""
    if x.dim() == 3:
        return x.new_empty((*x.shape[:2], head_dim))
    b, h, s, _ = x.shape
    if _has_heads_first(x):
        return x.new_empty((b, h, s, head_dim))
    return x.new_empty((b, s, h, head_dim)).transpose(1, 2)


def _has_heads_first(x: Any) -> bool:
    return bool(x.stride(1) >= x.stride(2))


def _allocate_stats(q: Any) -> Any:
    """Allocate float32 statistics without initial values, [b, h, s, 1] or [h, t], in the layout of q."""
    import torch

    if q.dim() == 3:
        return q.new_empty(q.shape[:2], dtype=torch.float32).t()
    b, h, s, _ = q.shape
    if _has_heads_first(q):
        return q.new_empty((b, h, s, 1), dtype=torch.float32)
    return q.new_empty((b, s, h, 1), dtype=torch.float32).transpose(1, 2)


def _allocate_empty_placeholder_tensor(x: Any) -> Any:
    import torch

    return x.new_empty((0,), dtype=torch.float32)


def _allocate_amax(q: Any) -> Any:
    import torch

    return q.new_empty((2 * _AMAX_O_INDEX,), dtype=torch.float32)


def _fake_forward(*arguments: Any) -> tuple[Any, Any, Any]:
    """Fake kernel of the forward operator: check a call like the real kernel, and return outputs without data."""
    import torch

    tensors, rest = arguments[:_TENSOR_COUNT], arguments[_TENSOR_COUNT:]
    named = dict(zip((*TENSORS, *SCALES), (*tensors, *rest[:_SCALE_COUNT]), strict=True))
    check_call(named, OperatorOptions(*rest[_SCALE_COUNT:-1]), decide=_get_evaluator_of_symbolic_conditions(torch))
    q, _, v, *_ = tensors
    stats = _allocate_stats(q) if arguments[-1] else _allocate_empty_placeholder_tensor(q)
    return (
        _allocate_output(q, v.shape[-1]),
        stats,
        _allocate_amax(q) if is_fp8(q) else _allocate_empty_placeholder_tensor(q),
    )


def _fake_backward(d_o: Any, o: Any, stats: Any, *arguments: Any) -> tuple[Any, ...]:
    """Fake kernel of the backward operator: check a call like the real kernel, and return gradients without data."""
    import torch

    named = dict(zip(TENSORS, arguments, strict=False)) | {"do": d_o, "o": o, "stats": stats}
    check_call(
        named,
        OperatorOptions(*arguments[_TENSOR_COUNT:-2]),
        backward=True,
        decide=_get_evaluator_of_symbolic_conditions(torch),
    )
    return _allocate_gradients(*arguments)


def _allocate_gradients(*arguments: Any) -> tuple[Any, ...]:
    named = dict(zip(TENSORS, arguments, strict=False))
    wanted = {"bias": arguments[-2], "sink": arguments[-1]}
    extra = (_allocate_contiguous(named[name]) if want else named["q"].new_empty((0,)) for name, want in wanted.items())
    return (*(_allocate_output(x, x.shape[-1]) for x in arguments[:3]), *extra)


def _allocate_contiguous(x: Any) -> Any:
    return x.new_empty(x.shape)


# the passes


def _use_device_of_tensor(torch: Any, x: Any) -> Any:
    """Return a context manager that makes a tensor's GPU the current device."""
    device = x.get_device()
    return nullcontext() if device == torch.cuda.current_device() else torch.cuda.device(device)


def _run_forward(*arguments: Any) -> tuple[Any, Any, Any]:
    import torch

    tensors, rest = arguments[:_TENSOR_COUNT], arguments[_TENSOR_COUNT:]
    scales, options, wants_stats = rest[:_SCALE_COUNT], rest[_SCALE_COUNT:-1], rest[-1]
    scales = scales if is_fp8(tensors[0]) else ()
    found = _launch_forward(torch, tensors, scales, options, wants_stats, None)
    o, stats, amax = (_allocate_empty_placeholder_tensor(tensors[0]) if x is None else x for x in found)
    return o, stats, amax


def _launch_forward(
    torch: Any,
    tensors: tuple[Any, ...],
    scales: tuple[Any, ...],
    options: tuple[Any, ...],
    wants_stats: bool,
    out: Any,
) -> tuple[Any, Any, Any]:
    """Launch the forward pass; return the output, statistics if wanted, and amax values of FP8."""
    q, _, v, *_ = tensors
    with _use_device_of_tensor(torch, q):
        o = _allocate_output(q, v.shape[-1]) if out is None else out
        stats = _allocate_stats(q) if wants_stats else None
        amax = _allocate_amax(q) if scales else None
        outputs = {"o": o, "stats": stats}
        inputs = dict(zip(TENSORS, tensors, strict=True))
        if amax is not None:
            inputs |= dict(zip(SCALES, scales, strict=True))
            outputs |= {"amax_s": amax, "amax_o": amax[_AMAX_O_INDEX:]}
        run_attention_pass(False, inputs, outputs, options, is_given=out is not None)
    return o, stats, amax


def _run_backward(*arguments: Any) -> tuple[Any, ...]:
    d_o, o, stats, *rest = arguments
    import torch

    with _use_device_of_tensor(torch, rest[0]):
        outputs = _allocate_gradients(*rest)
        gradients = dict(zip(("dq", "dk", "dv"), outputs, strict=False))
        gradients |= {"dbias": outputs[3] if arguments[-2] else None, "dsink": outputs[4] if arguments[-1] else None}
        named = dict(zip(TENSORS, rest, strict=False)) | {"do": d_o, "o": o, "stats": stats}
        options, dbias = tuple(rest[_TENSOR_COUNT:-2]), gradients["dbias"]
        if dbias is not None:
            named["bias"] = _expand_bias(named, OperatorOptions(*options))
            gradients["dbias"] = dbias if named["bias"].shape == dbias.shape else _allocate_contiguous(named["bias"])
        run_attention_pass(True, named, gradients, options)
        if gradients["dbias"] is not dbias:
            dbias.copy_(gradients["dbias"].sum_to_size(dbias.shape))
    return outputs


def _expand_bias(named: dict[str, Any], options: OperatorOptions) -> Any:
    """Return the bias expanded to all rows and keys, as cuDNN always writes its gradient in this size.

    What lay after such a gradient was lost with 9.19.0 on an H200. Of batches and heads cuDNN writes the sum.
    """
    bias, q, k = named["bias"], named["q"], named["k"]
    rows, keys = (
        (options.max_q or 1, options.max_kv or options.max_q or 1) if q.dim() == 3 else (q.shape[2], k.shape[2])
    )
    *shared, s_q, s_kv = bias.shape
    return bias.expand(*shared, rows if s_q == 1 else s_q, keys if s_kv == 1 else s_kv)


# gradients


def _run_autograd_forward(
    ctx: Any, options: tuple[Any, ...], scales: tuple[Any, ...], *tensors: Any
) -> tuple[Any, ...]:
    import torch

    found = _launch_forward(torch, tensors, scales, options, True, None)
    _save_for_backward(ctx, tensors, options, *found)
    return found


def _run_autograd_backward(ctx: Any, d_o: Any, *_unused: Any) -> tuple[Any, ...]:
    return None, None, *_compute_gradients_from_context(ctx, d_o, 2)


def _save_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any, Any]) -> None:
    ctx.has_stats = inputs[-1]
    _save_for_backward(ctx, inputs[:_TENSOR_COUNT], inputs[_TENSOR_COUNT + _SCALE_COUNT : -1], *output)


def _save_for_backward(
    ctx: Any, tensors: tuple[Any, ...], options: tuple[Any, ...], o: Any, stats: Any, amax: Any
) -> None:
    """Save in the autograd context what the backward pass needs."""
    ctx.save_for_backward(*tensors, o, stats)
    ctx.options = options
    ctx.mark_non_differentiable(*(x for x in (stats, amax) if x is not None))
    ctx.set_materialize_grads(False)


def _run_operator_backward(ctx: Any, d_o: Any, *_unused: Any) -> tuple[Any, ...]:
    if d_o is not None and not ctx.has_stats:
        raise UsageError("the backward pass needs the statistics of the forward pass: stats=True", code="torch-option")
    return *_compute_gradients_from_context(ctx, d_o, 0), *[None] * (_SCALE_COUNT + len(OperatorOptions._fields) + 1)


def _compute_gradients_from_context(ctx: Any, d_o: Any, first: int) -> tuple[Any, ...]:
    """Return the gradients of an autograd function's inputs, of which the tensors begin at index `first`."""
    if d_o is None:
        return (None,) * _TENSOR_COUNT
    *tensors, o, stats = ctx.saved_tensors
    wants = [bool(ctx.needs_input_grad[first + TENSORS.index(name)]) for name in ("bias", "sink")]
    return _compute_gradients(d_o, o, stats, tensors, ctx.options, wants)


def _compute_gradients(
    d_o: Any, o: Any, stats: Any, tensors: Any, options: Any, wants: Sequence[bool]
) -> tuple[Any, ...]:
    import torch

    # Where a gradient of the gradient may be requested, the operator refuses that.
    needs_operator = torch.is_grad_enabled() or not is_eager(torch, (d_o, *tensors))
    backward = torch.ops.cudnn_backend.sdpa_backward if needs_operator else _run_backward
    dq, dk, dv, *extra = backward(d_o, o, stats, *tensors, *options, *wants)
    found = dict(zip(("q", "k", "v"), (dq, dk, dv), strict=True))
    found |= {name: x if wanted else None for name, x, wanted in zip(("bias", "sink"), extra, wants, strict=True)}
    return tuple(found.get(name) for name in TENSORS)


def _compute_gradients_for_compiled_launcher(
    _operator: int, tensors: tuple[Any, ...], options: tuple[Any, ...], wanted: int
) -> Any:
    """Return the gradients for the compiled step; bits of `wanted` request those of bias and sink."""
    d_o, o, stats, *inputs = tensors
    wants = [bool(wanted >> TENSORS.index(name) & 1) for name in ("bias", "sink")]
    return _compute_gradients(d_o, o, stats, inputs, options, wants)


if "torch" in sys.modules and hasattr(sys.modules["torch"], "library"):
    _define_operators()
