"""Cases from issue and forum threads of cudnn-frontend and NVIDIA.

Details that a thread leaves open (often the channels or the batch) are chosen so that the complaint appears; a comment
notes this where it matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.generated.enums import ConvolutionMode, NormFwdPhase, NormMode, TensorReordering
from cudnn_backend_py.graph import Operation, Parameters
from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.ir import Tensor, packed_strides
from cudnn_backend_py.graph.strides import channels_last

from .case import NEWEST_VERSION, ReportedGraph

__all__ = ["CASES"]

HALF, BF16, FLOAT, INT8 = DataType.HALF, DataType.BFLOAT16, DataType.FLOAT, DataType.INT8
FP4, FP8, E8M0 = DataType.FP4_E2M1, DataType.FP8_E4M3, DataType.FP8_E8M0
Pointwise: TypeAlias = PointwiseMode
Kind: TypeAlias = DescriptorType

Dims: TypeAlias = tuple[int, ...]
Strides: TypeAlias = Callable[[Dims], Dims]

FRONTEND_URL = "https://github.com/NVIDIA/cudnn-frontend"
FORUM_URL = "https://forums.developer.nvidia.com/t"


def make_row_major_strides(dims: Dims) -> Dims:
    """Return the strides of a contiguous row-major tensor with these dims."""
    return packed_strides(dims)


def _change_operation_fields(graph: Graph, **changes: Any) -> Graph:
    """Return a one-operation graph with some fields of its operation changed."""
    op = _get_single_operation(graph)
    return Graph((Operation(op.kind, op.name, {**op.fields, **changes}),), graph.name)


def _get_single_operation(graph: Graph) -> Operation:
    (op,) = graph.ops
    assert isinstance(op, Operation)
    return op


def _make_convolution(
    image: Dims,
    filters: Dims,
    *,
    gradient: bool = False,
    data_type: DataType = FLOAT,
    result_type: DataType | None = None,
    padding: int = 0,
    stride: int = 1,
    layout: Strides = channels_last,
    filter_layout: Strides | None = None,
    then: tuple[tuple[Pointwise, Dims | None], ...] = (),
    operand_type: DataType | None = None,
) -> Graph:
    """Return a convolution or its data gradient, then pointwise operations with operands of the given dims."""
    g = GraphBuilder("conv", io_type=data_type)
    windows = zip(image[2:], filters[2:], strict=True)
    y_dims = (image[0], filters[0], *((n + 2 * padding - r) // stride + 1 for n, r in windows))
    given, made = (y_dims, image) if gradient else (image, y_dims)
    source, result = ("dy", "dx") if gradient else ("x", "y")

    def add_result_tensor(index: int) -> Tensor:
        last = index == len(then)
        kind = (result_type or data_type) if last else FLOAT
        return g.tensor(result if last else f"step{index}", made, kind, strides=layout(made), virtual=not last)

    geometry = {
        "comp_type": FLOAT,
        "conv_mode": ConvolutionMode.CROSS_CORRELATION,
        "spatial_dims": 2,
        "dilations": (1, 1),
        "filter_strides": (stride, stride),
        "pre_paddings": (padding, padding),
        "post_paddings": (padding, padding),
    }
    value = add_result_tensor(0)
    tensors: dict[str, Any] = {
        source: g.tensor(source, given, strides=layout(given)),
        "w": g.tensor("w", filters, strides=(filter_layout or layout)(filters)),
        result: value,
    }
    kind = Kind.OPERATION_CONVOLUTION_BACKWARD_DATA if gradient else Kind.OPERATION_CONVOLUTION_FORWARD
    g.operation(kind, convolution=Parameters(Kind.CONVOLUTION, geometry), alpha=1.0, beta=0.0, **tensors)
    for index, (mode, dims) in enumerate(then, 1):
        operand = None if dims is None else g.tensor(f"operand{index}", dims, operand_type, strides=layout(dims))
        value = g.pointwise(mode, value, operand, out=add_result_tensor(index))
    return g.graph()


def _make_two_matmuls() -> Graph:
    g = GraphBuilder("attention_by_hand", io_type=HALF)
    q, v = g.tensor("q", (1, 1, 10, 64)), g.tensor("v", (1, 1, 10, 64))
    k = g.tensor("k", (1, 1, 64, 10), strides=(640, 640, 1, 64))
    s = g.matmul(q, k, name="s", data_type=HALF, reordering=TensorReordering.F16x16)
    g.matmul(s, v, name="o", virtual=False)
    return g.graph()


def _make_matmul(data_type: DataType) -> Graph:
    compute = DataType.DOUBLE if data_type is DataType.DOUBLE else FLOAT
    g = GraphBuilder("matmul", io_type=data_type, compute_type=compute)
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), name="c", virtual=False)
    return g.graph()


def _make_swiglu() -> Graph:
    g = GraphBuilder("swiglu", io_type=BF16)
    x, w1, w3 = g.tensor("x", (1, 512, 256)), g.tensor("w1", (1, 256, 512)), g.tensor("w3", (1, 256, 512))
    gate = g.pointwise(Pointwise.SWISH_FWD, g.matmul(x, w1))
    hidden = g.pointwise(Pointwise.MUL, gate, g.matmul(x, w3), data_type=BF16)
    g.matmul(hidden, g.tensor("w2", (1, 512, 256)), name="y", virtual=False)
    return g.graph()


def _make_unary_pointwise(mode: Pointwise, dims: Dims, strides: Dims, result_strides: Dims) -> Graph:
    g = GraphBuilder(mode.name.lower(), io_type=FLOAT)
    x, y = g.tensor("x", dims, strides=strides), g.tensor("y", dims, strides=result_strides)
    g.pointwise(mode, x, out=y)
    return g.graph()


def _make_slice(layout: Strides) -> Graph:
    """Return a graph that copies a slice of a larger tensor by adding 0, as in one user's report."""
    g = GraphBuilder("slice", io_type=FLOAT)
    x = g.tensor("x", (1, 4, 32, 32), strides=layout((1, 8, 32, 32)))
    y = g.tensor("y", (1, 4, 32, 32), strides=layout((1, 4, 32, 32)))
    g.pointwise(Pointwise.ADD, x, g.scalar(0.0), out=y)
    return g.graph()


def _add_channel_tensors(g: GraphBuilder, channels: int, *names: str) -> dict[str, Any]:
    return {name: g.tensor(name, (1, channels, 1, 1), FLOAT) for name in names}


def _add_image_tensors(g: GraphBuilder, dims: Dims, *names: str) -> dict[str, Any]:
    return {name: g.tensor(name, dims, strides=channels_last(dims)) for name in names}


def _make_batch_norm(dims: Dims) -> Graph:
    g = GraphBuilder("batch_norm", io_type=HALF)
    g.operation(
        Kind.OPERATION_NORM_FORWARD,
        mode=NormMode.BATCH_NORM,
        phase=NormFwdPhase.TRAINING,
        epsilon=g.scalar(1e-5),
        **_add_image_tensors(g, dims, "x", "y"),
        **_add_channel_tensors(g, dims[1], "scale", "bias", "mean", "inv_variance"),
    )
    return g.graph()


def _make_batch_norm_backward(dims: Dims) -> Graph:
    g = GraphBuilder("batch_norm_backward", io_type=HALF)
    shared = (2, 4 * dims[1], 1, 1)
    g.operation(
        Kind.OPERATION_NORM_BACKWARD,
        mode=NormMode.BATCH_NORM,
        peer_stat=tuple(g.tensor(f"peer{index}", shared, FLOAT) for index in range(2)),
        **_add_image_tensors(g, dims, "x", "dy", "dx"),
        **_add_channel_tensors(g, dims[1], "mean", "inv_variance", "scale", "dscale", "dbias"),
    )
    return g.graph()


def _make_layer_norm(scaled: bool) -> Graph:
    g = GraphBuilder("layer_norm", io_type=HALF)
    dims = (2048, 1024, 1, 1)
    x, y = g.tensor("x", dims), g.tensor("y", dims)
    normed = g.tensor("normed", dims, FLOAT, virtual=True) if scaled else y
    g.operation(
        Kind.OPERATION_NORM_FORWARD,
        mode=NormMode.LAYER_NORM,
        phase=NormFwdPhase.INFERENCE,
        epsilon=g.scalar(1e-5),
        x=x,
        y=normed,
        **_add_channel_tensors(g, dims[1], "scale", "bias"),
    )
    if scaled:
        g.pointwise(Pointwise.MUL, normed, g.tensor("factor", dims), out=y)
    return g.graph()


def _add_block_quantization(
    g: GraphBuilder, x: Tensor, name: str, *, block: int = 32, virtual: bool = False
) -> tuple[Tensor, Tensor]:
    """Quantize a tensor in blocks along its innermost dim; return the quantized tensor and its scales."""
    transposed = x.strides[-1] != 1
    dims = (x.dims[0], x.dims[1] // block, x.dims[2]) if transposed else (*x.dims[:2], x.dims[2] // block)
    y = g.tensor(name, x.dims, FP8, strides=x.strides, virtual=virtual)
    scale = _add_scale_tensor(g, f"{name}_scale", dims, transposed, virtual=virtual)
    g.operation(Kind.OPERATION_BLOCK_SCALE_QUANTIZE, x=x, y=y, scale=scale, math_prec=FLOAT, block_size=block)
    return y, scale


def _add_scale_tensor(g: GraphBuilder, name: str, dims: Dims, transposed: bool, *, virtual: bool = False) -> Tensor:
    strides = (dims[1] * dims[2], 1, dims[1]) if transposed else packed_strides(dims)
    return g.tensor(name, dims, E8M0, strides=strides, reordering=TensorReordering.F8_128x4, virtual=virtual)


def _add_dequantization(g: GraphBuilder, x: Tensor, scale: Tensor) -> Tensor:
    block = (1, 32) if x.strides[-1] == 1 else (32, 1)
    y = g.tensor(f"{x.name}_wide", x.dims, FLOAT, strides=x.strides, virtual=True)
    g.operation(Kind.OPERATION_BLOCK_SCALE_DEQUANTIZE, x=x, scale=scale, y=y, math_prec=FLOAT, block_size=block)
    return y


def _make_quantization() -> Graph:
    g = GraphBuilder("quantize", io_type=BF16)
    _add_block_quantization(g, g.tensor("x", (1, 128, 128)), "y")
    return g.graph()


def _make_mx_matmul(*, quantize_inputs: bool = False, quantize_result: bool = False) -> Graph:
    """Return a matmul of dequantized 128 x 128 tensors, optionally with quantized inputs or a quantized result."""
    g = GraphBuilder("mx_matmul", io_type=BF16)
    size = (1, 128, 128)
    wide = []
    for name, strides, dims in (("a", (16384, 128, 1), (1, 128, 4)), ("b", (16384, 1, 128), (1, 4, 128))):
        if quantize_inputs:
            narrow = _add_block_quantization(g, g.tensor(name, size, strides=strides), f"{name}_narrow", virtual=True)
        else:
            scale = _add_scale_tensor(g, f"{name}_scale", dims, name == "b")
            narrow = g.tensor(name, size, FP8, strides=strides), scale
        wide.append(_add_dequantization(g, *narrow))
    c = g.matmul(*wide, name="c", virtual=quantize_result)
    if quantize_result:
        _add_block_quantization(g, c, "y")
    return g.graph()


def _make_softmax_with_log2() -> Graph:
    graph = sdpa_forward(
        batch=2,
        heads=8,
        seq_q=512,
        head_dim=64,
        data_type=BF16,
        stats=True,
        implementation="unified",
        version=(9, 24, 0),
    )
    softmax = _get_single_operation(graph).fields["softmax"]
    return _change_operation_fields(
        graph, softmax=Operation(softmax.kind, softmax.name, {**softmax.fields, "stats_log2": True})
    )


def _make_paged_attention(q_batch: int) -> Graph:
    graph = sdpa_forward(
        batch=16,
        heads=32,
        kv_heads=8,
        seq_q=1,
        seq_kv=4096,
        head_dim=128,
        page_size=16,
        pages_k=32768,
        pages_v=32768,
        ragged=True,
        stats=False,
        implementation="unified",
    )
    given = _get_single_operation(graph).fields
    return _change_operation_fields(
        graph, **{port: replace(given[port], dims=(q_batch, 32, 1, 128)) for port in ("q", "o")}
    )


def _make_attention_backward_builder(
    head_dim: int, *, batch: int = 2, heads: int = 8, seq: int = 512, **more: Any
) -> Callable[[], Graph]:
    return partial(sdpa_backward, batch=batch, heads=heads, seq_q=seq, head_dim=head_dim, data_type=BF16, **more)


def _make_backward_of_one_query(heads: int, seq_q: int = 1) -> Graph:
    shape: dict[str, Any] = {"batch": 1, "heads": heads, "seq_q": seq_q, "seq_kv": 128, "head_dim": 64}
    return sdpa_backward(**shape, data_type=BF16, allow_hazards=True)


def _make_mx_attention_of_head_dim_512(**more: Any) -> Graph:
    return sdpa_forward(
        batch=1,
        heads=8,
        kv_heads=1,
        seq_q=4096,
        head_dim=512,
        data_type=FP8,
        output_type=BF16,
        stats=True,
        left_bound=128,
        right_bound=0,
        **more,
    )


_make_fp8_convolution = partial(_make_convolution, (1, 3, 16, 16), (64, 3, 3, 3), data_type=FP8, operand_type=FLOAT)
_DESCALE_OPERATIONS = ((Pointwise.MUL, (1, 1, 1, 1)), (Pointwise.MUL, (1, 1, 1, 1)))
_make_convolution_relu = partial(
    _make_convolution, (256, 3, 224, 224), (32, 3, 5, 5), then=((Pointwise.RELU_FWD, None),)
)
_make_convolution_bias = partial(
    _make_convolution, (4, 64, 16, 16), (32, 64, 3, 3), padding=1, then=((Pointwise.ADD, (1, 32, 1, 1)),)
)
_make_stem_convolution = partial(
    _make_convolution, (1, 3, 224, 224), (64, 3, 7, 7), padding=3, stride=2, then=((Pointwise.ADD, (1, 64, 1, 1)),)
)
_make_data_gradient_relu = partial(
    _make_convolution, (4, 64, 16, 16), (64, 64, 3, 3), gradient=True, padding=1, then=((Pointwise.RELU_FWD, None),)
)
_make_convolution_with_float_result = partial(
    _make_convolution, (1, 32, 32, 32), (32, 32, 3, 3), result_type=FLOAT, padding=1
)
_make_sigmoid = partial(_make_unary_pointwise, Pointwise.SIGMOID_FWD, (1, 3, 32, 32))
_make_small_identity = partial(_make_unary_pointwise, Pointwise.IDENTITY, (2, 2, 3), (6, 3, 1))

CASES: list[ReportedGraph] = [
    ReportedGraph(
        name="attention by hand",
        source=f"{FORUM_URL}/using-cudnn-backend-to-create-a-fused-attention-fprop-graph/318288",
        title="two chained matmuls, as in the documentation's attention, get no engine on an L40S",
        graph=_make_two_matmuls,
        target="l40s",
        version="9.19.0",
        cause="the only engine keeps tiles in more shared memory than a block of this GPU has",
        cause_words=("shared memory",),
        expected_message="Kernel request for shared memory is exceeding the shared memory in the GPU",
        remedy="run it on an A100, where blocks have 163 KiB",
        remedy_kinds=("target",),
        fixed_target="sm80",
    ),
    ReportedGraph(
        name="fp8 convolution nchw",
        source=f"{FRONTEND_URL}/issues/131",
        title="an FP8 convolution with two descales has no engine on an RTX 4090-class GPU",
        graph=partial(_make_fp8_convolution, layout=make_row_major_strides, then=_DESCALE_OPERATIONS),
        target="sm89",
        cause="x, w and the result are NCHW, the engines that fuse pointwise operations need NHWC",
        cause_words=("NHWC",),
        expected_message="Epilogue tensors must be row major or N(D)HWC layout.",
        remedy="strides with the channels innermost",
        remedy_kinds=("layout",),
        fixed_graph=partial(_make_fp8_convolution, layout=channels_last, then=_DESCALE_OPERATIONS),
    ),
    ReportedGraph(
        name="convolution relu nchw",
        source=f"{FRONTEND_URL}/issues/104",
        title="a float convolution followed by ReLU is not supported",
        graph=partial(_make_convolution_relu, layout=make_row_major_strides),
        target="sm80",
        cause="x, w and the result are NCHW, the fused engines need NHWC",
        cause_words=("NHWC",),
        expected_message="Epilogue tensors must be row major or N(D)HWC layout.",
        remedy="strides with the channels innermost",
        remedy_kinds=("layout",),
        fixed_graph=partial(_make_convolution_relu, layout=channels_last),
    ),
    ReportedGraph(
        name="filter strides",
        source=f"{FRONTEND_URL}/issues/110",
        title="convolution and bias with an NHWC image and hand-made filter strides fail",
        graph=partial(_make_convolution_bias, filter_layout=lambda dims: (dims[1] * dims[2] * dims[3], 1, 9, 3)),
        target="sm80",
        cause="the strides of w are neither NCHW nor NHWC: its elements overlap",
        cause_words=("stride",),
        expected_message="wDesc.getNumElementsWithStride() != wDesc.getNumElementsWithoutStride()",
        remedy="NHWC strides for the filter as well",
        remedy_kinds=("layout",),
        fixed_graph=_make_convolution_bias,
    ),
    ReportedGraph(
        name="backward d192",
        source=f"{FRONTEND_URL}/issues/242",
        title="the backward pass of attention with head dim 192 is refused on a Blackwell data-center GPU",
        graph=_make_attention_backward_builder(192, batch=32, heads=64, kv_heads=16, seq=1024),
        target="b300",
        cause="192 for q, k and v: above 128, the backward pass takes 192 with 128 for v, or 256 for all",
        cause_words=("192", "128"),
        expected_message="Embedding dim per head for q and k is not less than equal to 128",
        remedy="all padded to 256",
        remedy_kinds=("pad_head_dim",),
        fixed_graph=_make_attention_backward_builder(
            256, batch=32, heads=64, kv_heads=16, seq=1024, deterministic=True
        ),
    ),
    ReportedGraph(
        name="backward d256 ampere",
        source=f"{FRONTEND_URL}/issues/874",
        title="attention with head dim 256 trains on Hopper, and is refused on Ampere",
        graph=_make_attention_backward_builder(256),
        target="sm80",
        cause="the backward pass takes head dims up to 128 on this GPU, and this one is 256",
        cause_words=("256", "128"),
        expected_message="Embedding dim per head for q and k is not less than equal to 128",
        remedy="a Hopper GPU",
        remedy_kinds=("target",),
        fixed_target="h100",
    ),
    ReportedGraph(
        name="backward d256 before 9.23",
        source=f"{FRONTEND_URL}/pull/335",
        title="the backward pass with head dim 256 needs kernels of the frontend's own on Blackwell",
        graph=_make_attention_backward_builder(256),
        target="sm100",
        version="9.19.0",
        cause="this cuDNN's backward pass takes head dims up to 128 on Blackwell, and this one is 256",
        cause_words=("256", "128"),
        expected_message="Embedding dim per head for q and k is not less than equal to 128",
        remedy="cuDNN 9.23 or newer",
        remedy_kinds=("version",),
        fixed_graph=_make_attention_backward_builder(256, deterministic=True),
        fixed_version=NEWEST_VERSION,
    ),
    ReportedGraph(
        name="backward d512",
        source=f"{FRONTEND_URL}/pull/887",
        title="no backward pass for head dim 512 in cuDNN, so the frontend gets kernels of its own",
        graph=_make_attention_backward_builder(512),
        target="sm100",
        cause="the head dim is 512, beyond what any engine's backward pass takes",
        cause_words=("512",),
        expected_message="Embedding dim per head for q and k is not less than equal to 128",
        remedy="none with cuDNN's engines",
        remedy_kinds=(),
    ),
    ReportedGraph(
        name="attention on turing",
        source=f"{FRONTEND_URL}/issues/120",
        title="fused attention has no engine on a T4",
        graph=partial(sdpa_forward, batch=1, heads=8, seq_q=512, head_dim=64),
        target="t4",
        cause="the attention engines need sm80 (Ampere) or newer, and this GPU is sm75",
        cause_words=("Ampere",),
        expected_message="only Ampere or above is supported for this engine",
        remedy="a newer GPU, such as an L4",
        remedy_kinds=("target",),
        fixed_target="l4",
    ),
    ReportedGraph(
        name="backward one query",
        source=f"{FRONTEND_URL}/issues/1071",
        title="the backward pass of one batch, one head and one query ends the process",
        graph=partial(_make_backward_of_one_query, 1),
        target="h200",
        complaint="crash",
        cause="batch, heads and queries are all 1, which ends the heuristics of cuDNN 9.26 and newer",
        cause_words=("heads", "1"),
        expected_message="SIGSEGV",
        remedy="two heads, two queries (one padded), or cuDNN 9.25",
        remedy_kinds=("pad_sequence", "heads", "version"),
        fixed_graph=partial(_make_backward_of_one_query, 1, 2),
    ),
    ReportedGraph(
        name="transposing identity",
        source=f"{FRONTEND_URL}/issues/119",
        title="an identity from packed strides to swapped ones, meant as a transposition, is not supported",
        graph=partial(_make_small_identity, (6, 1, 3)),
        target="sm80",
        cause="elements of y overlap: its strides are those of a transposed tensor with other dims",
        cause_words=("y", "overlap"),
        expected_message='get_matrix_layout(*port) != "RowMajor"',
        remedy="the same strides for both",
        remedy_kinds=("layout",),
        fixed_graph=partial(_make_small_identity, (6, 3, 1)),
    ),
    ReportedGraph(
        name="sigmoid nchw",
        source=f"{FRONTEND_URL}/issues/171",
        title="a sigmoid of an image in NCHW has no engine on an RTX A2000",
        graph=partial(_make_sigmoid, make_row_major_strides((1, 3, 32, 32)), make_row_major_strides((1, 3, 32, 32))),
        target="sm86",
        cause="x and y are NCHW, the engine for pointwise operations needs NHWC for four dims",
        cause_words=("NHWC",),
        expected_message="!is_supported",
        remedy="strides with the channels innermost",
        remedy_kinds=("layout",),
        fixed_graph=partial(_make_sigmoid, channels_last((1, 3, 32, 32)), channels_last((1, 3, 32, 32))),
    ),
    ReportedGraph(
        name="slice as add",
        source=f"{FRONTEND_URL}/issues/172",
        title="a slice, written as an addition of 0 to a view of part of the channels, is not supported",
        graph=partial(_make_slice, make_row_major_strides),
        target="sm86",
        cause="x and y are NCHW, the engine for pointwise operations needs NHWC for four dims",
        cause_words=("NHWC",),
        expected_message="!is_supported",
        remedy="strides with the channels innermost",
        remedy_kinds=("layout",),
        fixed_graph=partial(_make_slice, channels_last),
    ),
    ReportedGraph(
        name="batch norm c35",
        source=f"{FRONTEND_URL}/issues/133",
        title="batch norm of 35 channels in half precision finds no engine",
        graph=partial(_make_batch_norm, (160, 35, 48, 24)),
        target="sm89",
        cause="35 channels are no multiple of the 8 halves that the engine loads at a time",
        cause_words=("35", "8"),
        expected_message="tunable_params.c % tunable_params.elements_per_ldg != 0",
        remedy="40 channels",
        remedy_kinds=("pad_channels",),
        fixed_graph=partial(_make_batch_norm, (160, 40, 48, 24)),
    ),
    ReportedGraph(
        name="batch norm backward c4",  # the thread states that all dims are equal, but not how many there are
        source=f"{FRONTEND_URL}/issues/122",
        title="the backward pass of batch norm across GPUs is not supported when all dims are small and equal",
        graph=partial(_make_batch_norm_backward, (4, 4, 4, 4)),
        target="rtx-4090",
        cause="4 channels are no multiple of the 8 halves that the engine loads at a time",
        cause_words=("4", "8"),
        expected_message="tunable_params.c % tunable_params.elements_per_ldg != 0",
        remedy="8 channels",
        remedy_kinds=("pad_channels",),
        fixed_graph=partial(_make_batch_norm_backward, (8, 8, 8, 8)),
    ),
    ReportedGraph(
        name="layer norm and product",
        source=f"{FRONTEND_URL}/issues/88",
        title="layer norm followed by a product is not supported on an RTX 3050",
        graph=partial(_make_layer_norm, True),
        target="sm86",
        cause="the norm engines take no pointwise operation before or after a layer norm",
        cause_words=("norm", "pointwise"),
        expected_message="matcher->hasProloguePwNodes() || matcher->hasEpiloguePwNodes()",
        remedy="the layer norm alone, the product in a graph of its own",
        remedy_kinds=("split", "drop_operation"),
        fixed_graph=partial(_make_layer_norm, False),
    ),
    ReportedGraph(
        name="quantize alone",
        source=f"{FRONTEND_URL}/issues/220",
        title="a graph of nothing but a block-scale quantization has no engine on Blackwell",
        graph=_make_quantization,
        target="sm100",
        cause="there is no matmul: quantization in blocks is only fused to one",
        cause_words=("matmul", "quantize"),
        expected_message="(mmaNodeCount == 0) && !is_pointwise_fusion && (resampleNodeCount == 0)",
        remedy="quantize in the graph of the matmul that makes the values",
        remedy_kinds=(),
        fixed_graph=partial(_make_mx_matmul, quantize_result=True),
    ),
    ReportedGraph(
        name="quantize and matmul",
        source=f"{FRONTEND_URL}/issues/199",
        title="quantize, dequantize and matmul in one graph are not supported on Blackwell",
        graph=partial(_make_mx_matmul, quantize_inputs=True),
        target="sm100",
        cause="what the dequantize operations read must be an input of the graph, and it is made in it",
        cause_words=("dequantize",),
        expected_message="Block scale dequantize nodes for A and B must occur before the matmul and be entrance nodes",
        remedy="quantize first, outside this graph",
        remedy_kinds=("split", "drop_operation"),
        fixed_graph=_make_mx_matmul,
    ),
    ReportedGraph(
        name="fp4 convolution",
        source=f"{FRONTEND_URL}/issues/499",
        title="a convolution in FP4 has no engine on an RTX 5090",
        graph=partial(_make_convolution_with_float_result, data_type=FP4),
        target="sm120",
        cause="no convolution engine takes FP4",
        cause_words=("FP4",),
        expected_message="core_engine.getStatus()",
        remedy="FP8",
        remedy_kinds=("data_type",),
        fixed_graph=partial(_make_convolution_with_float_result, data_type=FP8),
    ),
    ReportedGraph(
        name="float matmul before ampere",  # the thread uses a V100
        source=f"{FRONTEND_URL}/issues/39",
        title="a float matmul has no engine on a GPU older than Ampere",
        graph=partial(_make_matmul, FLOAT),
        target="t4",
        version="9.19.0",
        cause="this GPU's engine multiplies tiles of 16-bit elements, and a and b are 32-bit",
        cause_words=("FLOAT",),
        # The configs of mode A and their reasons differ between machines; this is from mode FALLBACK.
        expected_message="is_cutlass_sm8x() && (this->getDeviceProp()->deviceVer < 800)",
        message_source="any reason",
        remedy="half precision, or an Ampere GPU",
        remedy_kinds=("data_type", "target"),
        fixed_graph=partial(_make_matmul, HALF),
    ),
    ReportedGraph(
        name="double matmul",
        source=f"{FRONTEND_URL}/issues/70",
        title="a matmul in double precision is not supported",
        graph=partial(_make_matmul, DataType.DOUBLE),
        target="sm80",
        version="9.19.0",
        cause="no matmul engine takes double",
        cause_words=("double",),
        expected_message="!is_input_compute_type_match",
        remedy="half precision",
        remedy_kinds=("data_type",),
        fixed_graph=partial(_make_matmul, HALF),
    ),
    ReportedGraph(
        name="dgrad relu",  # the thread does not state the layout
        source=f"{FRONTEND_URL}/issues/40",
        title="the data gradient of a convolution with an activation after it has no engine on Turing",
        graph=partial(_make_data_gradient_relu, layout=make_row_major_strides),
        target="t4",
        cause="dy, w and the result are NCHW, the fused engines need NHWC",
        cause_words=("NHWC",),
        expected_message="FORT conv dgrad: all tensors (dx, w, dy) must be in NHWC layout.",
        remedy="strides with the channels innermost",
        remedy_kinds=("layout",),
        fixed_graph=partial(_make_data_gradient_relu, layout=channels_last),
    ),
    ReportedGraph(
        name="stats in base 2",
        source=f"{FRONTEND_URL}/issues/1160",
        title="every attention graph of a newer frontend fails on an older cuDNN",
        graph=_make_softmax_with_log2,
        target="sm100",
        version="9.24.0",
        cause="the softmax computes stats in base 2, an attribute this cuDNN does not know yet",
        cause_words=("STATS_LOG2", "9.27"),
        expected_message="CUDNN_ATTR_OPERATION_SOFTMAX_STATS_LOG2",
        message_source="our headline",
        remedy="leave the attribute out, or cuDNN 9.27",
        remedy_kinds=("version",),
        fixed_version=NEWEST_VERSION,
    ),
    ReportedGraph(
        name="convolution bias nchw 9.14",  # the thread does not state the dims
        source=f"{FORUM_URL}/cudnn-bug-report-backend-graph-api-conv-bias-fusion-returns-not-supported/347562",
        title="convolution and bias joined by a virtual tensor, float and NCHW, are not supported on an RTX 4080",
        graph=partial(_make_stem_convolution, layout=make_row_major_strides),
        target="sm89",
        version="9.14.0",
        cause="x, w and the result are NCHW, the fused engines need NHWC",
        cause_words=("NHWC",),
        expected_message="Epilogue tensors must be row major or N(D)HWC layout.",
        remedy="strides with the channels innermost",
        remedy_kinds=("layout",),
        fixed_graph=partial(_make_stem_convolution, layout=channels_last),
    ),
    ReportedGraph(
        name="swiglu in one graph",
        source=f"{FRONTEND_URL}/issues/195",
        title="can the three matmuls of a SwiGLU layer be one graph?",
        graph=_make_swiglu,
        target="sm90",
        version="9.14.0",
        cause="this cuDNN's engines take two matmuls in a graph, and there are three",
        cause_words=("matmul",),
        expected_message="mmaNodeCount > 2",
        remedy="cuDNN 9.19, or the last matmul in a graph of its own",
        remedy_kinds=("version", "split"),
        fixed_version="9.19.0",
    ),
    ReportedGraph(
        name="mxfp8 d512",  # the thread's graph is one operation, which does not accept scales by block here
        source=f"{FRONTEND_URL}/pull/897",
        title="MXFP8 attention with head dim 512 passes the support check, and its plan cannot be built",
        graph=partial(_make_mx_attention_of_head_dim_512, mx=True),
        target="sm100",
        cause="the engine does not check its head dim for MXFP8, and its kernel does not compile for 512",
        cause_words=("512",),
        expected_message="Encountered runtime kernel compilation failure",
        remedy="FP8 with one scale for each tensor",
        remedy_kinds=("data_type",),
        fixed_graph=_make_mx_attention_of_head_dim_512,
        build=True,
    ),
    ReportedGraph(
        name="paged and packed",
        source=f"{FRONTEND_URL}/issues/132",
        title="attention of packed queries over paged keys and values is refused",
        graph=partial(_make_paged_attention, 17),
        target="h100",
        cause="q has a batch of 17, the offsets' count: 16 sequences have 17 offsets, and q's batch stays 16",
        cause_words=("17",),
        expected_message="ragged dim should match dim value + 1 of original tensor",
        remedy="a batch of 16 for q and o",
        remedy_kinds=(),
        fixed_graph=partial(_make_paged_attention, 16),
    ),
]
