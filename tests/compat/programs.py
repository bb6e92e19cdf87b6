"""Programs for each operation, run by cudnn-frontend and by this package to compare the names of nodes and tensors.

The results of ``run_programs`` for cudnn-frontend 1.32 are stored in ``surface-1.32.0.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from cudnn_backend_py.target import find_profile

__all__ = ["PROGRAMS", "GraphMaker", "read_node_fields", "run_program", "run_programs"]

GraphProgram = Callable[["GraphMaker"], Any]
UNARY_METHODS = [
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
BINARY_METHODS = [
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
ATTENTION_DIMS = (2, 4, 64, 64)


class GraphMaker:
    """A graph of cudnn-frontend or of this package, with methods that add its tensors."""

    def __init__(self, cudnn: ModuleType, **options: Any) -> None:
        self.cudnn = cudnn
        kind = cudnn.data_type
        kinds = {"io_data_type": kind.HALF, "intermediate_data_type": kind.FLOAT, "compute_data_type": kind.FLOAT}
        self.graph = cudnn.pygraph(**kinds, sm_version=90, **options)

    def add_tensor(self, *dims: int, kind: str = "HALF", last: bool = False, **options: Any) -> Any:
        strides = [1] * len(dims)
        order = [1, *range(len(dims) - 1, 1, -1), 0] if last else range(len(dims) - 1, -1, -1)
        step = 1
        for axis in order:
            strides[axis] = step
            step *= dims[axis]
        return self.graph.tensor(list(dims), strides, getattr(self.cudnn.data_type, kind), **options)

    def add_float_tensor(self, *dims: int) -> Any:
        return self.add_tensor(*dims, kind="FLOAT")

    def add_scalar(self) -> Any:
        return self.add_tensor(1, 1, 1, 1, kind="FLOAT", is_pass_by_value=True)

    def add_images(self, count: int = 1) -> list[Any]:
        return [self.add_tensor(8, 32, 4, 4, last=True) for _ in range(count)]

    def add_fp8_tensors(self, *names: str) -> dict[str, Any]:
        return {name: self.add_tensor(*ATTENTION_DIMS, kind="FP8_E4M3") for name in names}

    def add_scale_factors(self, *names: str) -> dict[str, Any]:
        return {name: self.add_float_tensor(1, 1, 1, 1) for name in names}


def _make_norm_program(method: str, scale: tuple[int, ...], x: tuple[int, ...] = (8, 32, 4, 4)) -> GraphProgram:
    def add_norm(m: GraphMaker) -> Any:
        phase = m.cudnn.norm_forward_phase.TRAINING
        return getattr(m.graph, method)(
            norm_forward_phase=phase,
            input=m.add_tensor(*x),
            scale=m.add_float_tensor(*scale),
            bias=m.add_float_tensor(*scale),
            epsilon=m.add_scalar(),
        )

    return add_norm


def _make_norm_backward_program(method: str, scale: tuple[int, ...], statistics: tuple[int, ...]) -> GraphProgram:
    def add_norm_backward(m: GraphMaker) -> Any:
        grad, x = m.add_images(2)
        arguments = {
            "grad": grad,
            "input": x,
            "scale": m.add_float_tensor(*scale),
            "inv_variance": m.add_float_tensor(*statistics),
        }
        more = {"has_dbias": True} if method.startswith("rms") else {"mean": m.add_float_tensor(*statistics)}
        return getattr(m.graph, method)(**arguments, **more)

    return add_norm_backward


def _add_batchnorm(m: GraphMaker) -> Any:
    scale, bias, mean, variance = (m.add_float_tensor(1, 32, 1, 1) for _ in range(4))
    return m.graph.batchnorm(
        input=m.add_images()[0],
        scale=scale,
        bias=bias,
        in_running_mean=mean,
        in_running_var=variance,
        epsilon=m.add_scalar(),
        momentum=m.add_scalar(),
    )


def _add_batchnorm_inference(m: GraphMaker) -> Any:
    names = ("mean", "inv_variance", "scale", "bias")
    return m.graph.batchnorm_inference(
        input=m.add_images()[0], **{name: m.add_float_tensor(1, 32, 1, 1) for name in names}
    )


def _add_convolution(m: GraphMaker) -> Any:
    return m.graph.conv_fprop(
        m.add_images()[0], m.add_tensor(16, 32, 3, 3, last=True), padding=[1, 1], stride=[1, 1], dilation=[1, 1]
    )


def _add_image_gradient(m: GraphMaker) -> Any:
    loss, weight = m.add_tensor(8, 16, 4, 4, last=True), m.add_tensor(16, 32, 3, 3, last=True)
    made = m.graph.conv_dgrad(loss, weight, pre_padding=[1, 1], post_padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    return made.set_dim([8, 32, 4, 4])


def _add_filter_gradient(m: GraphMaker) -> Any:
    made = m.graph.conv_wgrad(
        m.add_images()[0],
        m.add_tensor(8, 16, 4, 4, last=True),
        padding=[1, 1],
        stride=[1, 1],
        dilation=[1, 1],
        name="grad",
    )
    return made.set_dim([16, 32, 3, 3])


def _add_sdpa(m: GraphMaker) -> Any:
    made = m.graph.sdpa(
        q=m.add_tensor(*ATTENTION_DIMS),
        k=m.add_tensor(*ATTENTION_DIMS),
        v=m.add_tensor(*ATTENTION_DIMS),
        attn_scale=0.125,
        generate_stats=True,
        use_causal_mask=True,
    )
    for item in made:
        item.set_output(True)
    return made


def _add_padded_sdpa(m: GraphMaker) -> Any:
    lengths = [m.add_tensor(2, 1, 1, 1, kind="INT32") for _ in range(2)]
    made = m.graph.sdpa(
        q=m.add_tensor(*ATTENTION_DIMS),
        k=m.add_tensor(*ATTENTION_DIMS),
        v=m.add_tensor(*ATTENTION_DIMS),
        bias=m.add_tensor(1, 4, 64, 64),
        generate_stats=False,
        use_padding_mask=True,
        seq_len_q=lengths[0],
        seq_len_kv=lengths[1],
        name="padded",
    )
    made[0].set_output(True)
    return made


def _add_sdpa_backward(m: GraphMaker) -> Any:
    q, k, v, o, do = (m.add_tensor(*ATTENTION_DIMS) for _ in range(5))
    made = m.graph.sdpa_backward(
        q=q,
        k=k,
        v=v,
        o=o,
        dO=do,
        stats=m.add_float_tensor(2, 4, 64, 1),
        attn_scale=0.125,
        dropout=None,
        use_causal_mask=True,
    )
    for item in made:
        item.set_output(True)
    return made


def _add_sdpa_fp8(m: GraphMaker) -> Any:
    factors = m.add_scale_factors("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    made = m.graph.sdpa_fp8(
        **m.add_fp8_tensors("q", "k", "v"), **factors, attn_scale=0.125, generate_stats=True, name="eight"
    )
    kinds = m.cudnn.data_type
    for item, kind in zip(made, (kinds.FP8_E4M3, kinds.FLOAT, kinds.FLOAT, kinds.FLOAT), strict=True):
        item.set_output(True).set_data_type(kind)
    return made


def _add_sdpa_fp8_backward(m: GraphMaker) -> Any:
    names = "descale_q descale_k descale_v descale_o descale_dO descale_s descale_dP scale_s scale_dQ scale_dK scale_dV"
    factors = m.add_scale_factors(*names.split(), "scale_dP")
    made = m.graph.sdpa_fp8_backward(
        **m.add_fp8_tensors("q", "k", "v", "o", "dO"),
        stats=m.add_float_tensor(2, 4, 64, 1),
        **factors,
        attn_scale=0.125,
    )
    kinds = m.cudnn.data_type
    for at, item in enumerate(made):
        item.set_output(True).set_data_type(kinds.FP8_E4M3 if at < 3 else kinds.FLOAT)
        item.set_dim(list(ATTENTION_DIMS) if at < 3 else [1, 1, 1, 1])
        item.set_stride([16384, 4096, 64, 1] if at < 3 else [1, 1, 1, 1])
    return made


def _add_moe_matmul(m: GraphMaker) -> Any:
    return m.graph.moe_grouped_matmul(
        m.add_tensor(1, 64, 32), m.add_tensor(4, 32, 16), m.add_tensor(4, 1, 1, kind="INT32"), name="experts"
    )


def _add_moe_matmul_backward(m: GraphMaker) -> Any:
    return m.graph.moe_grouped_matmul_bwd(
        m.add_tensor(1, 64, 16), m.add_tensor(1, 64, 32), m.add_tensor(4, 1, 1, kind="INT32")
    )


def _add_quantization(m: GraphMaker) -> Any:
    return m.graph.block_scale_quantize(m.add_tensor(1, 128, 128), block_size=32, axis=2)


def _add_dequantization(m: GraphMaker) -> Any:
    return m.graph.block_scale_dequantize(
        m.add_tensor(1, 128, 128, kind="FP8_E4M3"), m.add_tensor(1, 128, 4, kind="FP8_E8M0"), [1, 32]
    )


#: The programs by name.
PROGRAMS: dict[str, GraphProgram] = {
    **{name: lambda m, name=name: getattr(m.graph, name)(m.add_tensor(2, 8, 16)) for name in UNARY_METHODS},  # type: ignore[misc]
    **{
        name: lambda m, name=name: getattr(m.graph, name)(m.add_tensor(2, 8, 16), m.add_tensor(2, 8, 16))  # type: ignore[misc]
        for name in BINARY_METHODS
    },
    "binary_select": lambda m: m.graph.binary_select(
        *(m.add_tensor(2, 8, 16) for _ in range(2)), m.add_tensor(2, 8, 16, kind="BOOLEAN")
    ),
    "gen_index": lambda m: m.graph.gen_index(m.add_tensor(2, 8, 16), axis=1),
    "relu": lambda m: m.graph.relu(m.add_tensor(2, 8, 16), lower_clip=0.5),
    "leaky_relu": lambda m: m.graph.leaky_relu(m.add_tensor(2, 8, 16), 0.1),
    "swish": lambda m: m.graph.swish(m.add_tensor(2, 8, 16), swish_beta=0.5, name="silu"),
    "relu_backward": lambda m: m.graph.relu_backward(m.add_tensor(2, 8, 16), m.add_tensor(2, 8, 16)),
    "leaky_relu_backward": lambda m: m.graph.leaky_relu_backward(m.add_tensor(2, 8, 16), m.add_tensor(2, 8, 16), 0.1),
    "swish_backward": lambda m: m.graph.swish_backward(m.add_tensor(2, 8, 16), m.add_tensor(2, 8, 16)),
    "matmul": lambda m: m.graph.matmul(m.add_tensor(2, 8, 16), m.add_tensor(2, 16, 4)),
    "reduction": lambda m: m.graph.reduction(m.add_tensor(2, 8, 16), mode=m.cudnn.reduction_mode.ADD).set_dim(
        [2, 8, 1]
    ),
    "conv_fprop": _add_convolution,
    "conv_dgrad": _add_image_gradient,
    "conv_wgrad": _add_filter_gradient,
    "layernorm": _make_norm_program("layernorm", (1, 32, 4, 4)),
    "layernorm_backward": _make_norm_backward_program("layernorm_backward", (1, 32, 4, 4), (8, 1, 1, 1)),
    "adalayernorm": _make_norm_program("adalayernorm", (8, 1, 64), (8, 16, 64)),
    "adalayernorm_backward": _make_norm_backward_program("adalayernorm_backward", (8, 32, 1, 1), (8, 1, 4, 4)),
    "rmsnorm": _make_norm_program("rmsnorm", (1, 32, 4, 4)),
    "rmsnorm_backward": _make_norm_backward_program("rmsnorm_backward", (1, 32, 4, 4), (8, 1, 1, 1)),
    "instancenorm": _make_norm_program("instancenorm", (1, 32, 1, 1)),
    "instancenorm_backward": _make_norm_backward_program("instancenorm_backward", (1, 32, 1, 1), (8, 32, 1, 1)),
    "batchnorm": _add_batchnorm,
    "batchnorm_inference": _add_batchnorm_inference,
    "batchnorm_backward": _make_norm_backward_program("batchnorm_backward", (1, 32, 1, 1), (1, 32, 1, 1)),
    "genstats": lambda m: m.graph.genstats(m.add_images()[0]),
    "reshape": lambda m: m.graph.reshape(m.add_tensor(2, 8, 16), name="flat")
    .set_dim([1, 16, 16])
    .set_stride([256, 16, 1]),
    "slice": lambda m: m.graph.slice(m.add_tensor(2, 8, 16), [slice(0, 1), slice(2, 6), slice(0, 16)]),
    "transpose": lambda m: m.graph.transpose(m.add_tensor(2, 8, 16), permutation=[0, 2, 1]),
    "concatenate": lambda m: m.graph.concatenate(inputs=[m.add_tensor(2, 8, 16), m.add_tensor(2, 8, 16)], axis=1),
    "rope": lambda m: m.graph.rope(m.add_tensor(2, 4, 16, 8), m.add_float_tensor(16, 1, 1, 8), rope_dim=4),
    "rope_backward": lambda m: m.graph.rope_backward(m.add_tensor(2, 4, 16, 8), m.add_float_tensor(16, 1, 1, 8)),
    "sdpa": _add_sdpa,
    "sdpa, padded": _add_padded_sdpa,
    "sdpa_backward": _add_sdpa_backward,
    "sdpa_fp8": _add_sdpa_fp8,
    "sdpa_fp8_backward": _add_sdpa_fp8_backward,
    "moe_grouped_matmul": _add_moe_matmul,
    "moe_grouped_matmul_bwd": _add_moe_matmul_backward,
    "block_scale_quantize": _add_quantization,
    "block_scale_dequantize": _add_dequantization,
}


def run_programs(cudnn: ModuleType) -> dict[str, Any]:
    """Run every program; return the nodes of each, as ``inspect`` shows them, and its tensor names, in order."""
    return {name: run_program(GraphMaker(cudnn), make) for name, make in PROGRAMS.items()}


def run_program(maker: GraphMaker, make: GraphProgram) -> dict[str, Any]:
    """Run one program; return its nodes as ``inspect`` shows them, and the names of its tensors."""
    make(maker)
    shown = maker.graph.inspect()
    nodes = [
        {**node, "params": {key: _to_plain_data(value) for key, value in node["params"].items()}}
        for node in shown["nodes"]
    ]
    tensors = {name: [item["uid"], item["is_virtual"]] for name, item in shown["tensors"].items()}
    return {"nodes": nodes, "tensors": tensors}


def read_node_fields(cudnn: ModuleType) -> dict[str, list[str]]:
    """Return by kind of node the JSON fields that it has in these programs."""
    found = {}
    for make in PROGRAMS.values():
        maker = GraphMaker(cudnn, device_property=cudnn.create_device_properties(find_profile("h100").json()))
        with suppress(Exception):  # some programs cannot be built; only their names are compared
            make(maker)
            maker.graph.validate()
            for node in json.loads(repr(_lower_graph(maker.graph)))["nodes"]:
                found[node["tag"]] = sorted(node)
    return found


def _lower_graph(graph: Any) -> Any:
    """Lower a graph of cudnn-frontend to its C++ graph, so that ``repr`` gives its JSON, and return it."""
    if hasattr(graph, "_lower_to_cpp") and graph._lowered_graph is None:
        graph._lowered_graph = graph._lower_to_cpp()
        graph._lowered_graph.validate()
    return graph


def _to_plain_data(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_to_plain_data(item) for item in value]
    if isinstance(value, (bool, int, float, str)) and type(value) in (bool, int, float, str):
        return value
    return repr(value) if isinstance(value, slice) else str(value)
