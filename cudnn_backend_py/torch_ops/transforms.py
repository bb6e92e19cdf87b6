"""Attention under the transforms of ``torch.func``: grad, vjp, jacrev and vmap.

A transform needs a ``torch.autograd.Function`` with ``setup_context`` and a rule for vmap, which operators do not have.
Both passes are such functions here. Each calls the operator of its pass; vmap folds samples into the batch where that
is the same, and calls the operator for each sample otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from ..errors import UsageError
from ..graph.attention.shape_class import MOST_HEADS
from .arguments import SCALES, TENSORS, is_fp8

__all__ = [
    "AttentionPasses",
    "is_torch_func_derivative_active",
    "is_torch_func_transform_active",
    "refuse_compiled_transform",
    "refuse_forward_mode_derivative",
    "refuse_second_derivative",
]

_BATCHED_TENSORS = ("q", "k", "v", "bias", "seq_len_q", "seq_len_kv")  # tensors with a dim of the batch
_BACKWARD_INPUTS = ("do", "o", "stats")
_ALL_INPUTS = (*_BACKWARD_INPUTS, *TENSORS)
Tensors = tuple[Any, ...]


def is_torch_func_transform_active(torch: Any) -> bool:
    """Return whether a differentiating or mapping torch.func transform is active; functionalize does not count."""
    try:
        interpreter = torch._C._functorch.peek_interpreter_stack()
        return interpreter is not None and interpreter.key() != torch._C._functorch.TransformType.Functionalize
    except AttributeError:  # a torch that cannot be queried
        return False


def is_torch_func_derivative_active() -> bool:
    """Return whether torch.func differentiates: a grad, vjp, jacrev or jvp is active."""
    import torch

    kinds = torch._C._functorch.TransformType
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(interpreter.key() in (kinds.Grad, kinds.Jvp) for interpreter in stack)


# What torch.compiler.assume_constant_result sets: a trace calls the function, and guards the active transforms itself.
is_torch_func_derivative_active._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse_second_derivative(*_: Any) -> NoReturn:
    """Raise the error that second derivatives are not supported."""
    raise UsageError(
        "attention by cuDNN has no second derivative",
        code="torch-option",
        fix="use torch's math backend where gradients of gradients are needed",
    )


def refuse_forward_mode_derivative(*_: Any) -> NoReturn:
    """Raise the error that forward-mode differentiation is not supported."""
    raise UsageError(
        "attention by cuDNN has no forward-mode derivative",
        code="torch-option",
        fix="use torch.func.vjp or jacrev instead of jvp or jacfwd, or torch's math backend",
    )


def refuse_compiled_transform() -> NoReturn:
    """Raise the error that compiled code cannot use torch.func derivatives of the operators."""
    raise UsageError(
        "torch.compile cannot trace a derivative of torch.func through attention by cuDNN",
        code="torch-option",
        fix="use torch.autograd.grad in compiled code, or keep the transform out of it with torch.compiler.disable",
    )


class AttentionPasses:
    """The forward and backward pass as autograd functions that support the transforms of torch.func.

    Attributes
    ----------
    forward
        ``forward.apply(options, scales, *tensors)`` returns the output, its statistics and the amaxes.
    backward
        ``backward.apply(options, wants, d_o, o, stats, *tensors)`` returns the gradients of Q, K, V, bias and sink;
        `wants` are whether those of the last two are needed.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        members: dict[str, Callable[..., Any]] = {
            "forward": self._run_forward,
            "setup_context": _save_for_backward,
            "backward": self._differentiate,
            "vmap": self._vmap_forward,
            "jvp": refuse_forward_mode_derivative,
        }
        self.forward = self._make_autograd_function("CudnnAttentionTransformed", members)
        members = {
            "forward": self._run_backward,
            "setup_context": _save_nothing,
            "backward": refuse_second_derivative,
            "vmap": self._vmap_backward,
            "jvp": refuse_forward_mode_derivative,
        }
        self.backward = self._make_autograd_function("CudnnAttentionTransformedBackward", members)

    def _make_autograd_function(self, name: str, members: Mapping[str, Callable[..., Any]]) -> Any:
        made = {key: staticmethod(member) for key, member in members.items()}
        return type(name, (self._torch.autograd.Function,), made)

    def _run_forward(self, options: Tensors, scales: Tensors, *tensors: Any) -> Tensors:
        factors = scales or (None,) * len(SCALES)
        found: Tensors = self._torch.ops.cudnn_backend.sdpa_forward(*tensors, *factors, *options, True)
        return found

    def _run_backward(self, options: Tensors, wants: Tensors, *tensors: Any) -> Tensors:
        found: Tensors = self._torch.ops.cudnn_backend.sdpa_backward(*tensors, *options, *wants)
        return found

    def _differentiate(self, ctx: Any, d_o: Any, *_: Any) -> Tensors:
        """Return the gradients of the forward pass's arguments."""
        if d_o is None:
            return (None,) * (2 + len(TENSORS))
        *tensors, o, stats = ctx.saved_tensors
        wants = tuple(bool(ctx.needs_input_grad[2 + TENSORS.index(name)]) for name in ("bias", "sink"))
        dq, dk, dv, dbias, dsink = self.backward.apply(ctx.options, wants, d_o, o, stats, *tensors)
        found = {"q": dq, "k": dk, "v": dv, "bias": dbias if wants[0] else None, "sink": dsink if wants[1] else None}
        return None, None, *(found.get(name) for name in TENSORS)

    def _vmap_forward(self, info: Any, in_dims: Tensors, options: Tensors, scales: Tensors, *tensors: Any) -> Any:
        samples = _VmapSampleTensors(info.batch_size, TENSORS, tensors, in_dims[2:])
        is_shared = all(dim is None for dim in in_dims[1])
        if samples.folds and is_shared:
            pieces = [
                (_unfold_samples(o, count), _unfold_samples(stats, count), amax.expand(count, *amax.shape))
                for count, folded in samples.iterate_calls_with_folded_samples()
                for o, stats, amax in [self.forward.apply(options, scales, *folded)]
            ]
            return _join_samples(self._torch.cat, pieces)
        calls = []
        for index in range(info.batch_size):
            factors = tuple(_select_sample(x, dim, index) for x, dim in zip(scales, in_dims[1], strict=True))
            calls.append(self.forward.apply(options, factors, *samples.select(index)))
        return _join_samples(self._torch.stack, calls)

    def _vmap_backward(self, info: Any, in_dims: Tensors, options: Tensors, wants: Tensors, *tensors: Any) -> Any:
        samples = _VmapSampleTensors(info.batch_size, _ALL_INPUTS, tensors, in_dims[2:], splits_bias=wants[0])
        if not samples.folds or wants[1]:
            calls = [self.backward.apply(options, wants, *samples.select(i)) for i in range(info.batch_size)]
            return _join_samples(self._torch.stack, calls)
        pieces = []
        for count, folded in samples.iterate_calls_with_folded_samples():
            *found, dbias, dsink = self.backward.apply(options, wants, *folded)
            dbias = _unfold_samples(dbias, count) if wants[0] else dbias.expand(count, 0)
            if wants[0] and samples.shares_bias:
                dbias = dbias.sum(1, keepdim=True)
            pieces.append((*(_unfold_samples(x, count) for x in found), dbias, dsink.expand(count, 0)))
        return _join_samples(self._torch.cat, pieces)


class _VmappedTensor(NamedTuple):
    """A tensor and the dim along which vmap maps it; the dim is None if all samples share the tensor."""

    tensor: Any
    dim: int | None


class _VmapSampleTensors:
    """The tensors of an operator call under vmap, to be split or folded into calls without vmap.

    Parameters
    ----------
    splits_bias
        Each entry of the folded batch needs a bias of its own, for its gradient.

    Attributes
    ----------
    folds
        Whether one call with a larger batch does the same.
    shares_bias
        Whether the entries of a sample's batch share the bias.
    """

    def __init__(
        self, count: int, names: Sequence[str], tensors: Tensors, dims: Tensors, *, splits_bias: bool = False
    ) -> None:
        self._count = count
        self._mapped = {name: _VmappedTensor(x, dim) for name, x, dim in zip(names, tensors, dims, strict=True)}
        self._splits_bias = splits_bias
        q, bias = self._take_first_sample("q"), self._take_first_sample("bias")
        is_plain = all(self._mapped[name].tensor is None for name in ("cu_seqlens_q", "block_table", "rng"))
        of_batch = all(
            x.dim is None or name in (*_BATCHED_TENSORS, *_BACKWARD_INPUTS) for name, x in self._mapped.items()
        )
        self.folds = is_plain and of_batch and not is_fp8(q)
        self.shares_bias = bias is not None and bias.shape[0] == 1 < q.shape[0]

    def _take_first_sample(self, name: str) -> Any:
        """Return the first sample of the tensor with this name."""
        tensor, dim = self._mapped[name]
        return tensor if tensor is None else _select_sample(tensor, dim, 0)

    def select(self, index: int) -> Tensors:
        """Return the tensors of one sample."""
        return tuple(_select_sample(x.tensor, x.dim, index) for x in self._mapped.values())

    def iterate_calls_with_folded_samples(self) -> Any:
        """Yield calls with several samples folded into the batch, each with its number of samples."""
        q = self._take_first_sample("q")
        most = max(1, MOST_HEADS // max(1, q.shape[0] * q.shape[1]))
        for first in range(0, self._count, most):
            count = min(most, self._count - first)
            yield count, tuple(self._fold_samples(name, first, count, q.shape[0]) for name in self._mapped)

    def _fold_samples(self, name: str, first: int, count: int, batch: int) -> Any:
        tensor, dim = self._mapped[name]
        if tensor is None or name not in (*_BATCHED_TENSORS, *_BACKWARD_INPUTS):
            return tensor
        if dim is None:
            if name == "bias" and tensor.shape[0] == 1 and not self._splits_bias:
                return tensor
            tensor = tensor.unsqueeze(0).expand(count, *tensor.shape)
        else:
            tensor = tensor.movedim(dim, 0).narrow(0, first, count)
        return tensor.expand(count, batch, *tensor.shape[2:]).flatten(0, 1)


def _select_sample(tensor: Any, dim: int | None, index: int) -> Any:
    return tensor if dim is None else tensor.select(dim, index)


def _unfold_samples(x: Any, count: int) -> Any:
    return x.unflatten(0, (count, x.shape[0] // count))


def _join_samples(join: Callable[[Sequence[Any]], Any], calls: Sequence[Tensors]) -> tuple[Tensors, int]:
    """Join the outputs of all samples with `join`; return them and the dim along which the samples are."""
    return tuple(join(outputs) for outputs in zip(*calls, strict=True)), 0


def _save_for_backward(ctx: Any, inputs: Tensors, output: Tensors) -> None:
    """Save in the autograd context what the backward pass needs."""
    options, _, *tensors = inputs
    o, stats, amax = output
    ctx.save_for_backward(*tensors, o, stats)
    ctx.options = options
    ctx.mark_non_differentiable(stats, amax)
    ctx.set_materialize_grads(False)


def _save_nothing(_ctx: Any, _inputs: Tensors, _output: Tensors) -> None:
    """Save nothing, as there is no second derivative."""
