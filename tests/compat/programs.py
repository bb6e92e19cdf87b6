"""Small programs for each operation of a graph, which either module can run, to compare the names of their parts.

``answers`` are facts of the module that runs them. Those of cudnn-frontend 1.32 are stored in ``surface-1.32.0.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from cudnn_backend_py.target import find_profile

__all__ = ["PROGRAMS", "Maker", "answer", "answers", "keys_of_nodes"]

Make = Callable[["Maker"], Any]
UNARY = [
    "abs",
    "ceil",
    "cos",
    "elu",
    "erf",
    "exp",
    "floor",
    "gelu",
    "gelu_approx_tanh",
    "identity",
    "log",
    "logical_not",
    "neg",
    "reciprocal",
    "rsqrt",
    "sigmoid",
    "sin",
    "softplus",
    "sqrt",
    "tan",
    "tanh",
]
BINARY = [
    "add",
    "add_square",
    "div",
    "logical_and",
    "logical_or",
    "mul",
    "sub",
    "max",
    "min",
    "mod",
    "pow",
    "cmp_eq",
    "cmp_ge",
    "cmp_gt",
    "cmp_le",
    "cmp_lt",
    "cmp_neq",
    "bias",
    "scale",
    "elu_backward",
    "gelu_approx_tanh_backward",
    "gelu_backward",
    "sigmoid_backward",
    "softplus_backward",
    "tanh_backward",
]
Q = (2, 4, 64, 64)


class Maker:
    """A graph of one module, and short functions for its tensors."""

    def __init__(self, cudnn: ModuleType, **options: Any) -> None:
        self.cudnn = cudnn
        kind = cudnn.data_type
        kinds = {"io_data_type": kind.HALF, "intermediate_data_type": kind.FLOAT, "compute_data_type": kind.FLOAT}
        self.g = cudnn.pygraph(**kinds, sm_version=90, **options)

    def t(self, *dims: int, kind: str = "HALF", last: bool = False, **options: Any) -> Any:
        strides = [1] * len(dims)
        order = [1, *range(len(dims) - 1, 1, -1), 0] if last else range(len(dims) - 1, -1, -1)
        step = 1
        for axis in order:
            strides[axis] = step
            step *= dims[axis]
        return self.g.tensor(list(dims), strides, getattr(self.cudnn.data_type, kind), **options)

    def f(self, *dims: int) -> Any:
        return self.t(*dims, kind="FLOAT")

    def one(self) -> Any:
        return self.t(1, 1, 1, 1, kind="FLOAT", is_pass_by_value=True)

    def images(self, count: int = 1) -> list[Any]:
        return [self.t(8, 32, 4, 4, last=True) for _ in range(count)]

    def eights(self, *names: str) -> dict[str, Any]:
        return {name: self.t(*Q, kind="FP8_E4M3") for name in names}

    def factors(self, *names: str) -> dict[str, Any]:
        return {name: self.f(1, 1, 1, 1) for name in names}


def _norm(method: str, scale: tuple[int, ...], x: tuple[int, ...] = (8, 32, 4, 4)) -> Make:
    def make(m: Maker) -> Any:
        phase = m.cudnn.norm_forward_phase.TRAINING
        return getattr(m.g, method)(
            norm_forward_phase=phase, input=m.t(*x), scale=m.f(*scale), bias=m.f(*scale), epsilon=m.one()
        )

    return make


def _norm_backward(method: str, scale: tuple[int, ...], statistics: tuple[int, ...]) -> Make:
    def make(m: Maker) -> Any:
        grad, x = m.images(2)
        arguments = {"grad": grad, "input": x, "scale": m.f(*scale), "inv_variance": m.f(*statistics)}
        more = {"has_dbias": True} if method.startswith("rms") else {"mean": m.f(*statistics)}
        return getattr(m.g, method)(**arguments, **more)

    return make


def _batchnorm(m: Maker) -> Any:
    scale, bias, mean, variance = (m.f(1, 32, 1, 1) for _ in range(4))
    return m.g.batchnorm(
        input=m.images()[0],
        scale=scale,
        bias=bias,
        in_running_mean=mean,
        in_running_var=variance,
        epsilon=m.one(),
        momentum=m.one(),
    )


def _batchnorm_inference(m: Maker) -> Any:
    names = ("mean", "inv_variance", "scale", "bias")
    return m.g.batchnorm_inference(input=m.images()[0], **{name: m.f(1, 32, 1, 1) for name in names})


def _conv(m: Maker) -> Any:
    return m.g.conv_fprop(m.images()[0], m.t(16, 32, 3, 3, last=True), padding=[1, 1], stride=[1, 1], dilation=[1, 1])


def _dgrad(m: Maker) -> Any:
    loss, weight = m.t(8, 16, 4, 4, last=True), m.t(16, 32, 3, 3, last=True)
    made = m.g.conv_dgrad(loss, weight, pre_padding=[1, 1], post_padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    return made.set_dim([8, 32, 4, 4])


def _wgrad(m: Maker) -> Any:
    made = m.g.conv_wgrad(
        m.images()[0], m.t(8, 16, 4, 4, last=True), padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="grad"
    )
    return made.set_dim([16, 32, 3, 3])


def _sdpa(m: Maker) -> Any:
    made = m.g.sdpa(q=m.t(*Q), k=m.t(*Q), v=m.t(*Q), attn_scale=0.125, generate_stats=True, use_causal_mask=True)
    for item in made:
        item.set_output(True)
    return made


def _sdpa_padded(m: Maker) -> Any:
    lengths = [m.t(2, 1, 1, 1, kind="INT32") for _ in range(2)]
    made = m.g.sdpa(
        q=m.t(*Q),
        k=m.t(*Q),
        v=m.t(*Q),
        bias=m.t(1, 4, 64, 64),
        generate_stats=False,
        use_padding_mask=True,
        seq_len_q=lengths[0],
        seq_len_kv=lengths[1],
        name="padded",
    )
    made[0].set_output(True)
    return made


def _sdpa_backward(m: Maker) -> Any:
    q, k, v, o, do = (m.t(*Q) for _ in range(5))
    made = m.g.sdpa_backward(
        q=q, k=k, v=v, o=o, dO=do, stats=m.f(2, 4, 64, 1), attn_scale=0.125, dropout=None, use_causal_mask=True
    )
    for item in made:
        item.set_output(True)
    return made


def _sdpa_fp8(m: Maker) -> Any:
    factors = m.factors("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    made = m.g.sdpa_fp8(**m.eights("q", "k", "v"), **factors, attn_scale=0.125, generate_stats=True, name="eight")
    kinds = m.cudnn.data_type
    for item, kind in zip(made, (kinds.FP8_E4M3, kinds.FLOAT, kinds.FLOAT, kinds.FLOAT), strict=True):
        item.set_output(True).set_data_type(kind)
    return made


def _sdpa_fp8_backward(m: Maker) -> Any:
    names = "descale_q descale_k descale_v descale_o descale_dO descale_s descale_dP scale_s scale_dQ scale_dK scale_dV"
    factors = m.factors(*names.split(), "scale_dP")
    made = m.g.sdpa_fp8_backward(
        **m.eights("q", "k", "v", "o", "dO"), stats=m.f(2, 4, 64, 1), **factors, attn_scale=0.125
    )
    kinds = m.cudnn.data_type
    for at, item in enumerate(made):
        item.set_output(True).set_data_type(kinds.FP8_E4M3 if at < 3 else kinds.FLOAT)
        item.set_dim(list(Q) if at < 3 else [1, 1, 1, 1])
        item.set_stride([16384, 4096, 64, 1] if at < 3 else [1, 1, 1, 1])
    return made


def _moe(m: Maker) -> Any:
    return m.g.moe_grouped_matmul(m.t(1, 64, 32), m.t(4, 32, 16), m.t(4, 1, 1, kind="INT32"), name="experts")


def _moe_backward(m: Maker) -> Any:
    return m.g.moe_grouped_matmul_bwd(m.t(1, 64, 16), m.t(1, 64, 32), m.t(4, 1, 1, kind="INT32"))


def _quantize(m: Maker) -> Any:
    return m.g.block_scale_quantize(m.t(1, 128, 128), block_size=32, axis=2)


def _dequantize(m: Maker) -> Any:
    return m.g.block_scale_dequantize(m.t(1, 128, 128, kind="FP8_E4M3"), m.t(1, 128, 4, kind="FP8_E8M0"), [1, 32])


#: The programs by name.
PROGRAMS: dict[str, Make] = {
    **{name: lambda m, name=name: getattr(m.g, name)(m.t(2, 8, 16)) for name in UNARY},  # type: ignore[misc]
    **{name: lambda m, name=name: getattr(m.g, name)(m.t(2, 8, 16), m.t(2, 8, 16)) for name in BINARY},  # type: ignore[misc]
    "binary_select": lambda m: m.g.binary_select(*(m.t(2, 8, 16) for _ in range(2)), m.t(2, 8, 16, kind="BOOLEAN")),
    "gen_index": lambda m: m.g.gen_index(m.t(2, 8, 16), axis=1),
    "relu": lambda m: m.g.relu(m.t(2, 8, 16), lower_clip=0.5),
    "leaky_relu": lambda m: m.g.leaky_relu(m.t(2, 8, 16), 0.1),
    "swish": lambda m: m.g.swish(m.t(2, 8, 16), swish_beta=0.5, name="silu"),
    "relu_backward": lambda m: m.g.relu_backward(m.t(2, 8, 16), m.t(2, 8, 16)),
    "leaky_relu_backward": lambda m: m.g.leaky_relu_backward(m.t(2, 8, 16), m.t(2, 8, 16), 0.1),
    "swish_backward": lambda m: m.g.swish_backward(m.t(2, 8, 16), m.t(2, 8, 16)),
    "matmul": lambda m: m.g.matmul(m.t(2, 8, 16), m.t(2, 16, 4)),
    "reduction": lambda m: m.g.reduction(m.t(2, 8, 16), mode=m.cudnn.reduction_mode.ADD).set_dim([2, 8, 1]),
    "conv_fprop": _conv,
    "conv_dgrad": _dgrad,
    "conv_wgrad": _wgrad,
    "layernorm": _norm("layernorm", (1, 32, 4, 4)),
    "layernorm_backward": _norm_backward("layernorm_backward", (1, 32, 4, 4), (8, 1, 1, 1)),
    "adalayernorm": _norm("adalayernorm", (8, 1, 64), (8, 16, 64)),
    "adalayernorm_backward": _norm_backward("adalayernorm_backward", (8, 32, 1, 1), (8, 1, 4, 4)),
    "rmsnorm": _norm("rmsnorm", (1, 32, 4, 4)),
    "rmsnorm_backward": _norm_backward("rmsnorm_backward", (1, 32, 4, 4), (8, 1, 1, 1)),
    "instancenorm": _norm("instancenorm", (1, 32, 1, 1)),
    "instancenorm_backward": _norm_backward("instancenorm_backward", (1, 32, 1, 1), (8, 32, 1, 1)),
    "batchnorm": _batchnorm,
    "batchnorm_inference": _batchnorm_inference,
    "batchnorm_backward": _norm_backward("batchnorm_backward", (1, 32, 1, 1), (1, 32, 1, 1)),
    "genstats": lambda m: m.g.genstats(m.images()[0]),
    "reshape": lambda m: m.g.reshape(m.t(2, 8, 16), name="flat").set_dim([1, 16, 16]).set_stride([256, 16, 1]),
    "slice": lambda m: m.g.slice(m.t(2, 8, 16), [slice(0, 1), slice(2, 6), slice(0, 16)]),
    "transpose": lambda m: m.g.transpose(m.t(2, 8, 16), permutation=[0, 2, 1]),
    "concatenate": lambda m: m.g.concatenate(inputs=[m.t(2, 8, 16), m.t(2, 8, 16)], axis=1),
    "rope": lambda m: m.g.rope(m.t(2, 4, 16, 8), m.f(16, 1, 1, 8), rope_dim=4),
    "rope_backward": lambda m: m.g.rope_backward(m.t(2, 4, 16, 8), m.f(16, 1, 1, 8)),
    "sdpa": _sdpa,
    "sdpa, padded": _sdpa_padded,
    "sdpa_backward": _sdpa_backward,
    "sdpa_fp8": _sdpa_fp8,
    "sdpa_fp8_backward": _sdpa_fp8_backward,
    "moe_grouped_matmul": _moe,
    "moe_grouped_matmul_bwd": _moe_backward,
    "block_scale_quantize": _quantize,
    "block_scale_dequantize": _dequantize,
}


def answers(cudnn: ModuleType) -> dict[str, Any]:
    """Return, for each program, the nodes as shown by ``inspect``, and the names of all tensors, in order."""
    return {name: answer(Maker(cudnn), make) for name, make in PROGRAMS.items()}


def answer(maker: Maker, make: Make) -> dict[str, Any]:
    """Return the nodes of one program, and the names of its tensors."""
    make(maker)
    shown = maker.g.inspect()
    nodes = [
        {**node, "params": {key: _plain(value) for key, value in node["params"].items()}} for node in shown["nodes"]
    ]
    tensors = {name: [item["uid"], item["is_virtual"]] for name, item in shown["tensors"].items()}
    return {"nodes": nodes, "tensors": tensors}


def keys_of_nodes(cudnn: ModuleType) -> dict[str, list[str]]:
    """Return, for each kind of node in these programs, its fields in the JSON of a graph."""
    found = {}
    for make in PROGRAMS.values():
        maker = Maker(cudnn, device_property=cudnn.create_device_properties(find_profile("h100").json()))
        with suppress(Exception):  # some programs are names only
            make(maker)
            maker.g.validate()
            for node in json.loads(repr(_lowered(maker.g)))["nodes"]:
                found[node["tag"]] = sorted(node)
    return found


def _lowered(graph: Any) -> Any:
    """Return the object with a graph's text: in cudnn-frontend the C++ graph."""
    if hasattr(graph, "_lower_to_cpp") and graph._lowered_graph is None:
        graph._lowered_graph = graph._lower_to_cpp()
        graph._lowered_graph.validate()
    return graph


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, float, str)) and type(value) in (bool, int, float, str):
        return value
    return repr(value) if isinstance(value, slice) else str(value)
