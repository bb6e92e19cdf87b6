"""Forty graphs of different kinds, to compare verdicts made with and without a GPU."""

from __future__ import annotations

from collections.abc import Callable

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.generated import enums
from cudnn_backend_py.generated.enums import ReduceTensorOp
from cudnn_backend_py.graph import Parameters
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.graph.ir import Tensor
from cudnn_backend_py.graph.strides import channels_last

__all__ = ["VARIED_GRAPHS"]

HALF, BF16, FLOAT = DataType.HALF, DataType.BFLOAT16, DataType.FLOAT
Pointwise = PointwiseMode

VARIED_GRAPHS: dict[str, Callable[[], Graph]] = {}


def _register_graph(name: str, make: Callable[[], Graph]) -> None:
    assert name not in VARIED_GRAPHS
    VARIED_GRAPHS[name] = make


def _make_two_matmuls(reorder: bool, size: int) -> Graph:
    g = GraphBuilder("two_matmul", io_type=HALF)
    q, v = g.tensor("q", (1, 1, size, 64)), g.tensor("v", (1, 1, size, 64))
    k = g.tensor("k", (1, 1, 64, size), strides=(64 * size, 64 * size, 1, 64))
    order = enums.TensorReordering.F16x16 if reorder else enums.TensorReordering.NONE
    s = g.matmul(q, k, data_type=HALF, reordering=order)
    g.matmul(s, v, name="o", virtual=False)
    return g.graph()


def _make_matmul(
    data_type: DataType,
    m: int,
    n: int,
    k: int,
    *,
    transposed: bool = False,
    epilogue: tuple[Pointwise, ...] = (),
    bias: bool = False,
) -> Graph:
    g = GraphBuilder("matmul", io_type=data_type)
    a = g.tensor("a", (2, m, k))
    b = g.tensor("b", (2, k, n), strides=(k * n, 1, k) if transposed else (k * n, n, 1))
    last = not epilogue and not bias
    c = g.matmul(a, b, **({"name": "c", "virtual": False} if last else {}))
    if bias:
        c = g.pointwise(
            Pointwise.ADD, c, g.tensor("bias", (2, 1, n)), **({"name": "c", "virtual": False} if not epilogue else {})
        )
    for index, mode in enumerate(epilogue):
        end = index == len(epilogue) - 1
        c = g.pointwise(mode, c, **({"name": "c", "virtual": False} if end else {}))
    return g.graph()


def _make_pointwise(mode: Pointwise, data_type: DataType, binary: bool) -> Graph:
    g = GraphBuilder("pointwise", io_type=data_type)
    x = g.tensor("x", (4, 64, 128))
    b = g.tensor("b", (4, 64, 128)) if binary else None
    g.pointwise(mode, x, b, name="y", virtual=False)
    return g.graph()


def _make_reduction(operator: ReduceTensorOp) -> Graph:
    g = GraphBuilder("reduction", io_type=FLOAT)
    g.reduction(operator, g.tensor("x", (4, 64, 128)), (4, 64, 1), name="y", virtual=False)
    return g.graph()


def _make_matmul_with_reduction() -> Graph:
    g = GraphBuilder("matmul_reduction", io_type=HALF)
    c = g.matmul(g.tensor("a", (2, 128, 64)), g.tensor("b", (2, 64, 128)))
    g.reduction(ReduceTensorOp.ADD, c, (2, 128, 1), name="y", virtual=False, data_type=FLOAT)
    return g.graph()


def _make_convolution(kind: DescriptorType, data_type: DataType, relu: bool = False) -> Graph:
    g = GraphBuilder("convolution", io_type=data_type)
    shapes = {"image": (4, 32, 28, 28), "filter": (64, 32, 3, 3), "response": (4, 64, 28, 28)}

    def make_tensor(name: str, shape: str, **options: bool) -> Tensor:
        kind_of = FLOAT if options.get("virtual") else data_type
        return g.tensor(name, shapes[shape], kind_of, strides=channels_last(shapes[shape]), **options)  # type: ignore[arg-type]

    parameters = Parameters(
        DescriptorType.CONVOLUTION,
        {
            "comp_type": FLOAT,
            "conv_mode": enums.ConvolutionMode.CROSS_CORRELATION,
            "spatial_dims": 2,
            "dilations": (1, 1),
            "filter_strides": (1, 1),
            "pre_paddings": (1, 1),
            "post_paddings": (1, 1),
        },
    )
    ports = {
        DescriptorType.OPERATION_CONVOLUTION_FORWARD: {"x": "image", "w": "filter", "y": "response"},
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA: {"dx": "image", "w": "filter", "dy": "response"},
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER: {"x": "image", "dw": "filter", "dy": "response"},
    }[kind]
    tensors = {port: make_tensor(port, shape, virtual=relu and port == "y") for port, shape in ports.items()}
    g.operation(kind, convolution=parameters, alpha=1.0, beta=0.0, **tensors)
    if relu:
        out = make_tensor("out", "response")
        g.pointwise(Pointwise.RELU_FWD, tensors["y"], out=out)
    return g.graph()


def _make_norm(mode: enums.NormMode, training: bool) -> Graph:
    g = GraphBuilder("norm", io_type=HALF)
    x, y = g.tensor("x", (64, 256, 1, 1)), g.tensor("y", (64, 256, 1, 1))
    scale = g.tensor("scale", (1, 256, 1, 1), FLOAT)
    fields: dict[str, object] = {"x": x, "y": y, "scale": scale, "epsilon": g.scalar(1e-5), "mode": mode}
    if mode is enums.NormMode.LAYER_NORM:
        fields["bias"] = g.tensor("bias", (1, 256, 1, 1), FLOAT)
    phase = enums.NormFwdPhase.TRAINING if training else enums.NormFwdPhase.INFERENCE
    if training:
        if mode is enums.NormMode.LAYER_NORM:
            fields["mean"] = g.tensor("mean", (64, 1, 1, 1), FLOAT)
        fields["inv_variance"] = g.tensor("inv_variance", (64, 1, 1, 1), FLOAT)
    g.operation(DescriptorType.OPERATION_NORM_FORWARD, phase=phase, **fields)
    return g.graph()


def _make_unified_attention(head_dim: int, data_type: DataType) -> Graph:
    g = GraphBuilder("unified", io_type=data_type)
    b, h, s = 2, 4, 512

    def make_bshd_tensor(name: str) -> Tensor:
        return g.tensor(name, (b, h, s, head_dim), strides=(s * h * head_dim, head_dim, h * head_dim, 1))

    g.operation(
        DescriptorType.OPERATION_SDPA_FWD,
        q=make_bshd_tensor("q"),
        k=make_bshd_tensor("k"),
        v=make_bshd_tensor("v"),
        o=make_bshd_tensor("o"),
        scale=g.scalar(0.125, rank=1, name="scale"),
        stats=g.tensor("stats", (b, h, s, 1), FLOAT),
    )
    return g.graph()


def _make_flash_attention(**options: object) -> Callable[[], Graph]:
    settings = {"batch": 2, "heads": 4, "seq_q": 512, "head_dim": 64, "causal": True, "stats": True, **options}
    return lambda: sdpa_forward(**settings)  # type: ignore[arg-type]


_register_graph("two matmul, reordered, s 10", lambda: _make_two_matmuls(True, 10))
_register_graph("two matmul, reordered, s 128", lambda: _make_two_matmuls(True, 128))
_register_graph("two matmul, plain, s 64", lambda: _make_two_matmuls(False, 64))
_register_graph("matmul f16 64", lambda: _make_matmul(HALF, 64, 64, 64))
_register_graph("matmul bf16 256x512x128", lambda: _make_matmul(BF16, 256, 512, 128))
_register_graph("matmul f16 transposed b", lambda: _make_matmul(HALF, 128, 128, 256, transposed=True))
_register_graph("matmul f32", lambda: _make_matmul(FLOAT, 128, 128, 128))
_register_graph("matmul f16 odd k", lambda: _make_matmul(HALF, 128, 128, 33))
_register_graph("matmul relu", lambda: _make_matmul(HALF, 128, 128, 64, epilogue=(Pointwise.RELU_FWD,)))
_register_graph("matmul bias", lambda: _make_matmul(HALF, 128, 128, 64, bias=True))
_register_graph("matmul bias gelu", lambda: _make_matmul(BF16, 128, 256, 64, bias=True, epilogue=(Pointwise.GELU_FWD,)))
_register_graph(
    "matmul bias tanh sigmoid",
    lambda: _make_matmul(HALF, 64, 64, 64, bias=True, epilogue=(Pointwise.TANH_FWD, Pointwise.SIGMOID_FWD)),
)
_register_graph("matmul f64", lambda: _make_matmul(DataType.DOUBLE, 64, 64, 64))
_register_graph("matmul reduction", _make_matmul_with_reduction)
_register_graph("add f32", lambda: _make_pointwise(Pointwise.ADD, FLOAT, True))
_register_graph("mul f16", lambda: _make_pointwise(Pointwise.MUL, HALF, True))
_register_graph("relu f16", lambda: _make_pointwise(Pointwise.RELU_FWD, HALF, False))
_register_graph("exp f32", lambda: _make_pointwise(Pointwise.EXP, FLOAT, False))
_register_graph("reduce add", lambda: _make_reduction(ReduceTensorOp.ADD))
_register_graph("reduce max", lambda: _make_reduction(ReduceTensorOp.MAX))
_register_graph("conv forward f16", lambda: _make_convolution(DescriptorType.OPERATION_CONVOLUTION_FORWARD, HALF))
_register_graph("conv forward f32", lambda: _make_convolution(DescriptorType.OPERATION_CONVOLUTION_FORWARD, FLOAT))
_register_graph(
    "conv forward relu f16", lambda: _make_convolution(DescriptorType.OPERATION_CONVOLUTION_FORWARD, HALF, relu=True)
)
_register_graph(
    "conv backward data f16", lambda: _make_convolution(DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA, HALF)
)
_register_graph(
    "conv backward filter f16", lambda: _make_convolution(DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER, HALF)
)
_register_graph("layer norm inference", lambda: _make_norm(enums.NormMode.LAYER_NORM, False))
_register_graph("layer norm training", lambda: _make_norm(enums.NormMode.LAYER_NORM, True))
_register_graph("rms norm inference", lambda: _make_norm(enums.NormMode.RMS_NORM, False))
_register_graph("flash f16 causal", _make_flash_attention())
_register_graph("flash bf16 causal", _make_flash_attention(data_type=BF16))
_register_graph("flash f16 full", _make_flash_attention(causal=False))
_register_graph("flash f16 without stats", _make_flash_attention(stats=False))
_register_graph("flash f16 grouped heads", _make_flash_attention(heads=8, kv_heads=2))
_register_graph("flash f16 d 128 s 2048", _make_flash_attention(head_dim=128, seq_q=2048))
_register_graph("flash f16 d 40", _make_flash_attention(head_dim=40))
_register_graph("flash f16 d 20", _make_flash_attention(head_dim=20))
_register_graph("flash f16 d 256", _make_flash_attention(head_dim=256))
_register_graph("flash f16 s 1000", _make_flash_attention(seq_q=1000))
_register_graph("unified f16 d 64", lambda: _make_unified_attention(64, HALF))
_register_graph("unified bf16 d 128", lambda: _make_unified_attention(128, BF16))

assert len(VARIED_GRAPHS) == 40
