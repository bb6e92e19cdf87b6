"""Attention of cuDNN as PyTorch operators: autograd, fake tensors, ``torch.compile``.

Importing this module does not import torch: the operators ``cudnn_backend::sdpa_forward`` and
``cudnn_backend::sdpa_backward`` are defined when a function of it is first called, or when torch is there already.
It needs torch 2.4 or later.

An operator in Python costs torch's dispatcher more than the launch costs us. So where nobody can tell the difference
(plain tensors, no tracing, no mode, no transform) the functions here run what the operators run, without it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .errors import EnvironmentNotReady, UsageError
from .execution.executable import Executable
from .generated.enums import DataType
from .graph.attention import Attention, SoftCap, deterministic_config, sdpa_backward, sdpa_forward
from .graph.data_types import DATA_TYPES, HALF_TYPES
from .graph.ir import Graph, packed_strides
from .plans.build import build, shared_target
from .plans.plan import Plan
from .system.version import VersionTuple
from .target import Target

__all__ = ["attention", "clear_plans", "scaled_dot_product_attention"]

# The tensors an operator takes, in its order; the first three must be there.
_TENSORS = ("q", "k", "v", "bias", "seq_len_q", "seq_len_kv", "alibi_slopes", "sink", "rng")
_OPTIONS = "float? scale, float dropout, int? left_bound, int? right_bound, bool bottom_right, float? soft_cap"
_ARGUMENTS = "Tensor q, Tensor k, Tensor v, " + ", ".join(f"Tensor? {name}" for name in _TENSORS[3:]) + ", " + _OPTIONS
_FORWARD, _BACKWARD = "cudnn_backend::sdpa_forward", "cudnn_backend::sdpa_backward"
_SCHEMAS = {
    _FORWARD: f"({_ARGUMENTS}, bool deterministic, bool stats) -> (Tensor, Tensor)",
    _BACKWARD: f"(Tensor d_o, Tensor o, Tensor stats, {_ARGUMENTS}, bool deterministic, bool dbias, bool dsink)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
}
_ALIGNMENT = 16  # bytes, of addresses and strides
_SMALL_WORKSPACE = 1 << 20  # bytes a plan may keep; more is asked of torch's allocator at each call


class _Options(NamedTuple):
    """The options of both operators, in their order."""

    scale: float | None
    dropout: float
    left_bound: int | None
    right_bound: int | None
    bottom_right: bool
    soft_cap: float | None
    deterministic: bool


@dataclass(frozen=True)
class _Tensor:
    """What a graph needs to know of a tensor; strides in elements."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    data_type: DataType | None


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Do what ``torch.nn.functional.scaled_dot_product_attention`` does, by a plan of cuDNN.

    Its arguments and results are torch's, with these limits: CUDA tensors of float16 or bfloat16; a row that
    `attn_mask` leaves nothing has no defined result; `dropout_p` draws another mask than torch from the same generator.

    Parameters
    ----------
    query, key, value
        [b, h, s, d] (or [b, s, d]), in any layout with d dense: strides are taken as they are. Others are copied.
    attn_mask
        bool (True takes part) or of the query's type, broadcast to [b, h, s_q, s_kv]. A mask that needs a gradient
        gets one.
    scale
        Factor of the scores, 1 / sqrt(d) if not given.
    enable_gqa
        Let key and value have fewer heads, of which query's number is a multiple.

    Returns
    -------
    Tensor
        [b, h, s_q, d_v], laid out as `query`: [b, s, h, d] in memory if its heads lie closer than its rows.

    Raises
    ------
    EnvironmentNotReady
        ``torch-missing``.
    UsageError
        ``torch-tensor`` for a tensor that cannot be taken, ``torch-option`` for arguments that exclude each other.
    GraphError
        ``attention-heads``, ``attention-hazard``: what cuDNN is known to get wrong.
    NotSupported
        What cuDNN refuses, such as a head dim that is no multiple of 8.
    """
    torch = _ready()
    if is_causal and attn_mask is not None:
        raise UsageError("attn_mask and is_causal exclude each other", code="torch-option")
    flat = query.dim() == 3
    if flat:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        attn_mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
    _check_dims(query=query, key=key, value=value)
    if not enable_gqa and not query.size(1) == key.size(1) == value.size(1):
        raise UsageError(
            f"query has {query.size(1)} heads, key {key.size(1)} and value {value.size(1)}: equally many are needed",
            code="torch-option",
            fix="enable_gqa=True lets groups of query heads share key and value heads",
        )
    if torch.is_autocast_enabled("cuda"):
        kind = torch.get_autocast_dtype("cuda")
        query, key, value = query.to(kind), key.to(kind), value.to(kind)
    bias = None if attn_mask is None else _bias(torch, attn_mask, query, key)
    o = attention(query, key, value, bias=bias, dropout=dropout_p, causal=is_causal, scale=scale)
    return o.squeeze(1) if flat else o


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    seq_len_q: Any = None,
    seq_len_kv: Any = None,
    alibi_slopes: Any = None,
    sink: Any = None,
    scale: float | None = None,
    causal: bool = False,
    left_bound: int | None = None,
    right_bound: int | None = None,
    alignment: Literal["top_left", "bottom_right"] = "top_left",
    soft_cap: float | None = None,
    dropout: float = 0.0,
    deterministic: bool | None = None,
    return_stats: bool = False,
) -> Any:
    """Return attention with the options of :class:`~cudnn_backend_py.graph.attention.Attention`.

    Gradients flow to `q`, `k`, `v`, and to `bias` and `sink` where they need one. It runs on torch's current stream;
    workspace comes from torch's allocator; a plan is built at the first call with such dims, strides and options.

    Parameters
    ----------
    q, k, v
        [b, h, s, d] float16 or bfloat16 on one GPU, in any layout with d dense.
    bias
        [b or 1, h or 1, s_q or 1, s_kv or 1] of q's type, added to the scaled scores.
    seq_len_q, seq_len_kv
        [b, 1, 1, 1] or [b] int32: the real lengths, for padded sequences; both or neither.
    alibi_slopes, sink
        [1, h, 1, 1] or [h] float32.
    soft_cap
        Scores become ``soft_cap * tanh(score / soft_cap)``.
    dropout
        Probability; seed and offset are drawn from torch's generator of that GPU.
    deterministic
        Backward without atomics; as ``torch.are_deterministic_algorithms_enabled()`` says if not given.
    return_stats
        Also return the log of the sum of exponentials, [b, h, s_q, 1] float32; no gradient flows through it.

    Raises
    ------
    EnvironmentNotReady
        ``torch-missing``.
    UsageError
        ``torch-tensor``, ``torch-option``.
    GraphError
        What :class:`~cudnn_backend_py.graph.attention.Attention` refuses, ``attention-hazard``.
    NotSupported
        What cuDNN refuses.
    """
    torch = _ready()
    _check_dims(q=q, k=k, v=v)
    _check_types(torch, q, k, v)
    if (seq_len_q is None) != (seq_len_kv is None):
        raise UsageError("seq_len_q and seq_len_kv need each other, one is given", code="torch-option")
    if alignment not in ("top_left", "bottom_right"):
        raise UsageError(f"alignment {alignment!r} is neither top_left nor bottom_right", code="torch-option")
    if causal and right_bound not in (None, 0):
        raise UsageError(f"causal means right_bound 0, got {right_bound}", code="torch-option")
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    # In memory: seed, a hole, offset, a hole; both must lie at multiples of 16 bytes.
    rng = torch.randint(0, 2**62, (4,), device=q.device, dtype=torch.int64) if dropout else None
    learned = [x for x in (q, k, v, bias, sink) if x is not None]
    wants_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in learned)
    wants_stats = return_stats or wants_gradients
    tensors = (
        q,
        k,
        v,
        bias,
        *(None if x is None else x.reshape(-1, 1, 1, 1) for x in (seq_len_q, seq_len_kv)),
        *(None if x is None else x.reshape(1, -1, 1, 1) for x in (alibi_slopes, sink)),
        rng,
    )
    right_bound = 0 if causal else right_bound
    is_bottom_right = alignment == "bottom_right"
    options = (scale, float(dropout), left_bound, right_bound, is_bottom_right, soft_cap, deterministic)
    if not _is_eager(torch, tensors):
        o, stats = torch.ops.cudnn_backend.sdpa_forward(*tensors, *options, wants_stats)
    elif wants_gradients:
        o, stats = _functions[0].apply(options, *tensors)
    else:
        o, stats = _forward(torch, tensors, options, wants_stats)
    return (o, stats) if return_stats else o


def clear_plans() -> None:
    """Forget the plans of the operators, after the GPU has finished. Not while another thread uses them."""
    if _runners:
        import torch

        torch.cuda.synchronize()
    _runners.clear()


# what is checked before an operator is called


def _check_dims(**tensors: Any) -> None:
    for name, x in tensors.items():
        if x.dim() != 4:
            raise UsageError(
                f"{name} has {x.dim()} dims, b, h, s and d are needed",
                code="torch-tensor",
                fix="flatten the dims before the heads into one",
            )


def _check_types(torch: Any, q: Any, k: Any, v: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.device != q.device or x.device.type not in ("cuda", "meta"):
            other = "" if x is q else f", q on {q.device}"
            raise UsageError(f"{name} is on {x.device}{other}: one CUDA device is needed", code="torch-tensor")
        if x.dtype != q.dtype or x.dtype not in (torch.float16, torch.bfloat16):
            other = "" if x is q else f", q {_type_name(q)}"
            raise UsageError(
                f"{name} is {_type_name(x)}{other}: float16 for all or bfloat16 for all is needed", code="torch-tensor"
            )


def _is_eager(torch: Any, tensors: tuple[Any, ...]) -> bool:
    """Return whether nobody could see the operators: plain tensors of a GPU, no tracing, no mode, no transform."""
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
    except AttributeError:  # a torch that cannot be asked
        return False


def _bias(torch: Any, mask: Any, query: Any, key: Any) -> Any:
    """Return torch's attn_mask as a bias [b or 1, h or 1, s_q, s_kv]."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), float("-inf"))
    elif mask.dtype != query.dtype:
        raise UsageError(f"attn_mask is {mask.dtype}, bool or the query's {query.dtype} is needed", code="torch-tensor")
    if not 2 <= mask.dim() <= 4:
        raise UsageError(f"attn_mask has {mask.dim()} dims, 2 to 4 are needed", code="torch-tensor")
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask.expand(mask.size(0), mask.size(1), query.size(2), key.size(2))


# the operators


def _ready() -> Any:
    """Return torch, with the operators defined."""
    try:
        import torch
    except ImportError as error:
        raise EnvironmentNotReady(
            "PyTorch is not installed, which these functions work on",
            code="torch-missing",
            cause=str(error),
            fix="install torch, or run plans on other buffers through cudnn_backend_py.plan",
        ) from None
    if not _defined:
        _define()
    return torch


_defining = threading.Lock()
_defined: list[str] = []
_functions: list[Any] = []  # the subclass of torch.autograd.Function


def _define() -> bool:
    """Define the operators, once."""
    import torch

    with _defining:
        if not _defined:
            for name, (run, fake) in {
                _FORWARD: (_run_forward, _fake_forward),
                _BACKWARD: (_run_backward, _fake_backward),
            }.items():
                torch.library.define(name, _SCHEMAS[name], tags=(torch.Tag.pt2_compliant_tag,))
                torch.library.impl(name, "cuda", run)
                torch.library.register_fake(name, fake)
            torch.library.register_autograd(_FORWARD, _differentiate, setup_context=_remember)
            torch.library.register_autograd(_BACKWARD, _refuse_second_derivative)
            members = {"forward": staticmethod(_function_forward), "backward": staticmethod(_function_backward)}
            _functions.append(type("CudnnAttention", (torch.autograd.Function,), members))
            _defined.extend(_SCHEMAS)
    return True


# What torch.compiler.assume_constant_result sets: a trace calls the function instead of looking into it.
_define._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _function_forward(ctx: Any, options: tuple[Any, ...], *tensors: Any) -> tuple[Any, Any]:
    import torch

    o, stats = _forward(torch, tensors, options, wants_stats=True)
    _keep(ctx, tensors, options, o, stats)
    return o, stats


def _function_backward(ctx: Any, d_o: Any, _d_stats: Any) -> tuple[Any, ...]:
    return None, *_gradients(ctx, d_o, 1)


def _fake_forward(*arguments: Any) -> tuple[Any, Any]:
    """Return empty outputs."""
    import torch

    q, _, v, *_ = arguments
    b, h, s, _ = q.shape
    rows = (b, h, s, 1) if arguments[-1] else (0,)
    return _empty_like(q, v.shape[3]), torch.empty(rows, dtype=torch.float32, device=q.device)


def _fake_backward(*arguments: Any) -> tuple[Any, ...]:
    _, _, _, q, k, v, *_ = arguments
    tensors = dict(zip(_TENSORS, arguments[3:], strict=False))
    wanted = {"bias": arguments[-2], "sink": arguments[-1]}
    extra = (_dense(tensors[name]) if want else q.new_empty((0,)) for name, want in wanted.items())
    return (*(_empty_like(x, x.shape[3]) for x in (q, k, v)), *extra)


def _empty_like(x: Any, head_dim: Any) -> Any:
    """Return memory for [b, h, s, head_dim], dense, heads before rows or rows before heads as in x."""
    b, h, s, _ = x.shape
    if x.stride(1) >= x.stride(2):
        return x.new_empty((b, h, s, head_dim))
    return x.new_empty((b, s, h, head_dim)).transpose(1, 2)


def _dense(x: Any) -> Any:
    return x.new_empty(x.shape)


def _on_device(torch: Any, x: Any) -> Any:
    """Return a context in which the GPU of a tensor is the current one."""
    device = x.get_device()
    return nullcontext() if device == torch.cuda.current_device() else torch.cuda.device(device)


def _run_forward(*arguments: Any) -> tuple[Any, Any]:
    import torch

    count, wants_stats = len(_TENSORS), arguments[-1]
    o, stats = _forward(torch, arguments[:count], arguments[count:-1], wants_stats)
    return o, stats if wants_stats else arguments[0].new_empty((0,), dtype=torch.float32)


def _forward(torch: Any, tensors: tuple[Any, ...], options: tuple[Any, ...], wants_stats: bool) -> tuple[Any, Any]:
    """Return the output and, if wanted, its statistics."""
    q, _, v, *_ = tensors
    with _on_device(torch, q):
        b, h, s, _ = q.shape
        o = _empty_like(q, v.shape[3])
        stats = q.new_empty((b, h, s, 1), dtype=torch.float32) if wants_stats else None
        _run(False, dict(zip(_TENSORS, tensors, strict=True)), {"o": o, "stats": stats}, options)
    return o, stats


def _run_backward(*arguments: Any) -> tuple[Any, ...]:
    d_o, o, stats, *rest = arguments
    import torch

    with _on_device(torch, rest[0]):
        outputs = _fake_backward(*arguments)
        gradients = dict(zip(("dq", "dk", "dv"), outputs, strict=False))
        gradients |= {"dbias": outputs[3] if arguments[-2] else None, "dsink": outputs[4] if arguments[-1] else None}
        named = dict(zip(_TENSORS, rest, strict=False)) | {"do": d_o, "o": o, "stats": stats}
        _run(True, named, gradients, tuple(rest[len(_TENSORS) : -2]))
    return outputs


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    count = len(_TENSORS)
    ctx.has_stats = inputs[-1]
    _keep(ctx, inputs[:count], inputs[count:-1], *output)


def _keep(ctx: Any, tensors: tuple[Any, ...], options: tuple[Any, ...], o: Any, stats: Any) -> None:
    """Keep what the backward pass needs."""
    ctx.save_for_backward(*tensors, o, stats)
    ctx.options = options
    ctx.mark_non_differentiable(stats)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_o: Any, _d_stats: Any) -> tuple[Any, ...]:
    if d_o is not None and not ctx.has_stats:
        raise UsageError("the backward pass needs the statistics of the forward pass: stats=True", code="torch-option")
    return *_gradients(ctx, d_o, 0), *[None] * (len(_Options._fields) + 1)


def _gradients(ctx: Any, d_o: Any, first: int) -> tuple[Any, ...]:
    """Return the gradients of the tensors, which are the function's inputs from the first one on."""
    import torch

    if d_o is None:
        return (None,) * len(_TENSORS)
    *tensors, o, stats = ctx.saved_tensors
    wants = [bool(ctx.needs_input_grad[first + _TENSORS.index(name)]) for name in ("bias", "sink")]
    # Where a gradient of the gradient may be asked for, the operator refuses that.
    needs_operator = torch.is_grad_enabled() or not _is_eager(torch, (d_o, *tensors))
    backward = torch.ops.cudnn_backend.sdpa_backward if needs_operator else _run_backward
    dq, dk, dv, *extra = backward(d_o, o, stats, *tensors, *ctx.options, *wants)
    found = dict(zip(("q", "k", "v"), (dq, dk, dv), strict=True))
    found |= {name: x if wanted else None for name, x, wanted in zip(("bias", "sink"), extra, wants, strict=True)}
    return tuple(found.get(name) for name in _TENSORS)


def _refuse_second_derivative(_ctx: Any, *_gradients: Any) -> None:
    raise UsageError(
        "attention by cuDNN has no second derivative",
        code="torch-option",
        fix="use torch's math backend where gradients of gradients are needed",
    )


# plans, and the way to them

_runners: dict[tuple[Any, ...], _Runner] = {}
_building = threading.Lock()


def _run(backward: bool, inputs: dict[str, Any], outputs: dict[str, Any], options: tuple[Any, ...]) -> None:
    """Run the pass on the current stream of the current device; None stands for what is not.

    How outputs lie in memory follows from the inputs.
    """
    rng = inputs.pop("rng")
    if rng is not None:
        inputs |= {"dropout_seed": rng, "dropout_offset": rng[2:]}
    key = (
        backward,
        options,
        *[x is None for x in outputs.values()],
        *[
            None if x is None else (x.shape, x.stride(), x.dtype, x.get_device(), x.data_ptr() % _ALIGNMENT)
            for x in inputs.values()
        ],
    )
    named = inputs | outputs
    runner = _runners.get(key)
    if runner is None:
        with _building:
            runner = _runners.get(key) or _Runner(backward, named, _Options(*options))
            _runners[key] = runner
    runner.run(named)


class _Runner:
    """The plan of one problem, with the tensors that have to be copied for it. Threads may share one."""

    def __init__(self, backward: bool, named: Mapping[str, Any], options: _Options) -> None:
        _check_tensors(named)
        present = {name: x for name, x in named.items() if x is not None}
        written = ("dq", "dk", "dv", "dbias", "dsink") if backward else ("o", "stats")
        self._copied = [name for name, x in present.items() if name not in written and not _is_plain(name, x)]
        facts = {name: _facts(x, name in self._copied) for name, x in present.items()}
        target = shared_target()
        graph = attention_graph(facts, options, backward=backward, version=target.library.version, sm=target.sm)
        plan = _build(graph, target, options.deterministic and backward)
        # The key of this runner holds whatever a check would look at.
        self._executable = Executable(plan, workspace="torch", check=False)
        if self._executable.workspace_bytes <= _SMALL_WORKSPACE:
            self._executable = Executable(plan, check=False)

    def run(self, named: dict[str, Any]) -> None:
        """Launch on torch's current stream."""
        import torch

        for name in self._copied:
            named[name] = named[name].clone(memory_format=torch.contiguous_format)
        self._executable(*[named[name] for name in self._executable.names])


def _build(graph: Graph, target: Target, deterministic: bool) -> Plan:
    chosen = deterministic_config(target.library.version, target.sm) if deterministic else None
    if chosen is None:
        return build(graph, target)
    engine, knobs = chosen
    return build(graph, target, engine=engine, knobs=knobs)


def _is_plain(name: str, x: Any) -> bool:
    """Return whether a tensor can be taken where it lies; all but Q, K, V and the like are dense in our graphs."""
    if x.data_ptr() % _ALIGNMENT:
        return False
    plain: bool = _fits(x) if name in ("q", "k", "v", "o", "do", "dq", "dk", "dv") else x.is_contiguous()
    return plain


def _fits(x: Any) -> bool:
    """Return whether cuDNN reads such strides right: d dense, nothing expanded, multiples of 16 bytes."""
    size = x.element_size()
    return (x.stride(-1) == 1 or x.shape[-1] == 1) and all(
        dim == 1 or (stride > 0 and stride * size % _ALIGNMENT == 0)
        for dim, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)
    )


_TYPES = {DATA_TYPES[kind].torch[0]: kind for kind in HALF_TYPES}


def _facts(x: Any, copied: bool) -> _Tensor:
    dims = tuple(x.shape)
    return _Tensor(dims, packed_strides(dims) if copied else tuple(x.stride()), _TYPES.get(_type_name(x)))


def _check_tensors(named: Mapping[str, Any]) -> None:
    """Check types, dims and device: the graph is made for those.

    Raises
    ------
    UsageError
        ``torch-tensor``.
    """
    q, k, v = (named[name] for name in "qkv")
    (b, h, s_q, d), (_, kv_heads, s_kv, _), (_, v_heads, _, d_v) = q.shape, k.shape, v.shape
    lens, heads, small = (b, 1, 1, 1), (1, h, 1, 1), _type_name(q)
    bias: Any = () if named["bias"] is None else named["bias"].shape  # its dims are checked with the problem
    needed: dict[str, tuple[tuple[Any, ...], str]] = {
        "k": ((b, kv_heads, s_kv, d), small),
        "v": ((b, v_heads, s_kv, d_v), small),
        "do": ((b, h, s_q, d_v), small),
        "bias": (bias, small),
        "stats": ((b, h, s_q, 1), "float32"),
        "seq_len_q": (lens, "int32"),
        "seq_len_kv": (lens, "int32"),
        "alibi_slopes": (heads, "float32"),
        "sink": (heads, "float32"),
        "dropout_seed": ((4,), "int64"),
    }
    for name, (dims, kind) in needed.items():
        x = named.get(name)
        if x is not None and (tuple(x.shape), _type_name(x), x.device) != (tuple(dims), kind, q.device):
            raise UsageError(
                f"{name} is {_type_name(x)} {list(x.shape)} on {x.device}, {kind} {list(dims)} on {q.device} is needed",
                code="torch-tensor",
            )


def _type_name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def attention_graph(
    tensors: Mapping[str, _Tensor],
    options: _Options,
    *,
    backward: bool,
    version: VersionTuple,
    sm: int,
) -> Graph:
    """Return the graph of a pass over such tensors, by their names in :class:`Attention`; ``stats`` if wanted."""
    q, k, v = (tensors[name] for name in "qkv")
    assert q.data_type is not None  # checked with the tensors
    layout: dict[str, Any] = {
        name: x.strides
        for name, x in tensors.items()
        if name in ("q", "k", "v", "o", *(("do", "dq", "dk", "dv") if backward else ()))
    }
    bias: Any = tensors["bias"].dims if "bias" in tensors else None
    problem = Attention(
        batch=q.dims[0],
        heads=q.dims[1],
        seq_q=q.dims[2],
        head_dim=q.dims[3],
        seq_kv=k.dims[2],
        head_dim_v=v.dims[3],
        kv_heads=k.dims[1],
        v_heads=v.dims[1],
        data_type=q.data_type,
        layout=layout,
        scale=options.scale,
        left_bound=options.left_bound,
        right_bound=options.right_bound,
        alignment="bottom_right" if options.bottom_right else "top_left",
        padding="seq_len_q" in tensors,
        bias=bias,
        dbias="dbias" in tensors,
        alibi="alibi_slopes" in tensors,
        score_modifier=None if options.soft_cap is None else SoftCap(options.soft_cap),
        dropout=options.dropout,
        sink="sink" in tensors,
        dsink="dsink" in tensors,
        stats="stats" in tensors and not backward,
        deterministic=options.deterministic and backward,
    )
    make = sdpa_backward if backward else sdpa_forward
    return make(problem, version=version, sm=sm)


if "torch" in sys.modules and hasattr(sys.modules["torch"], "library"):
    _define()
