"""Faults that random graphs found in convolutions, poolings, norms and experts, measured for this package."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import Any, Literal

from ..generated.enums import DataType, DescriptorType, MoeGroupedMatmulMode, NormMode, PointwiseMode, ResampleMode
from ..graph.attention.fault import Fault
from ..graph.builder import GraphBuilder
from ..graph.data_types import ELEMENT_BITS
from ..graph.ir import Graph, Operation, Pointwise, Tensor
from ..graph.strides import channels_last, column_major, packed_strides
from ..system.version import Window
from . import look
from .crashes import crashes, versions_of_crash

__all__ = ["RANDOM_CONVOLUTIONS"]

_D, _P, _T, _R = DescriptorType, PointwiseMode, DataType, ResampleMode
_ASKED, _RUN = "tests/library/graph/test_faults.py", "tests/gpu/graph/test_faults.py"
_ROWS = (NormMode.LAYER_NORM, NormMode.RMS_NORM, NormMode.ADA_LAYER_NORM)
_FILTER = _D.OPERATION_CONVOLUTION_BACKWARD_FILTER
_LATER = "the versions between were not measured"


def _behind(graph: Graph, tensors: Iterable[Tensor]) -> Iterator[Pointwise]:
    """Yield the elementwise operations that any of the tensors goes into, and what they make."""
    reached = {tensor.uid for tensor in tensors}
    for op in graph.ops:
        if isinstance(op, Pointwise) and any(item.uid in reached for item in op.inputs().values()):
            reached |= {item.uid for item in op.outputs().values()}
            yield op


def _makers(elementwise: Sequence[Pointwise]) -> dict[int, int]:
    """Return which elementwise operations alone make each tensor, directly or not: by uid, a bit for each."""
    makers: dict[int, int] = {}
    for number, op in enumerate(elementwise):  # in an order in which nothing is read before it is written
        bits = 1 << number
        for tensor in op.inputs().values():
            bits |= makers.get(tensor.uid, 0)
        makers.update({tensor.uid: bits for tensor in op.outputs().values()})
    return makers


def _packed(tensor: Tensor) -> bool:
    """Return whether a tensor is row-major and not channels last as well."""
    return tensor.strides == packed_strides(tensor.dims) != channels_last(tensor.dims)


def _sides(item: look.Convolution) -> dict[str, Any]:
    return dict(item.op.parameters()["convolution"].fields)


def _response(item: look.Convolution) -> Tensor:
    found: Tensor = item.op.fields.get("y") or item.op.fields["dy"]
    return found


# What they are about


def _part_of_rows(graph: Graph) -> bool:
    """A convolution, and not before it an operand with some of the dims that are the rows of its matrix, not all.

    Rows are batch and spatial dims; of the gradient of a filter, channels and taps are the columns. Operations on other
    tensors than the result are fused as those behind it.
    """
    elementwise = [op for op in graph.ops if isinstance(op, Pointwise)]
    makers: dict[int, int] | None = None
    partly: dict[tuple[int, tuple[int, ...]], int] = {}  # a bit for each operation with such an operand
    for item in look.convolutions(graph):
        result = next(iter(item.op.outputs().values()))
        together = range(1, result.rank) if item.op.kind is _FILTER else (0, *range(2, result.rank))
        rank, wide = result.rank, tuple(axis for axis in together if result.dims[axis] > 1)
        if (rank, wide) not in partly:
            found = [any(_is_part(one, rank, wide) for one in op.inputs().values()) for op in elementwise]
            partly[rank, wide] = sum(1 << number for number, yes in enumerate(found) if yes)
        if not partly[rank, wide]:
            continue
        makers = _makers(elementwise) if makers is None else makers
        before = reduce(or_, (makers.get(tensor.uid, 0) for tensor in item.op.inputs().values()))
        if partly[rank, wide] & ~before:
            return True
    return False


def _is_part(operand: Tensor, rank: int, wide: tuple[int, ...]) -> bool:
    """Return whether a tensor has more than one element along some of these axes, and one along the others."""
    return operand.rank == rank and len({operand.dims[axis] > 1 for axis in wide}) == 2


def _strided_rows(graph: Graph) -> bool:
    """The data gradient of a convolution with a stride, and behind it an operand of rows that has no channels."""
    ranks = {
        operand.rank
        for op in graph.ops
        if isinstance(op, Pointwise)
        for operand in op.inputs().values()
        if operand.rank > 1 and operand.dims[1] == 1 < math.prod(operand.dims)
    }
    return any(
        item.image.rank in ranks
        for item in look.convolutions(graph)
        if item.op.kind is _D.OPERATION_CONVOLUTION_BACKWARD_DATA and max(_sides(item)["filter_strides"]) > 1
    )


def _padded_unevenly(graph: Graph) -> bool:
    """A gradient of a convolution with other padding before than after."""
    return any(
        not item.forward and tuple(_sides(item)["pre_paddings"]) != tuple(_sides(item)["post_paddings"])
        for item in look.convolutions(graph)
    )


def _second_unaligned(graph: Graph) -> bool:
    """A convolution of row-major tensors, the first of which has no multiple of 128 bytes.

    The engines lay both out again, channels last, one right behind the other in the workspace: the second of them, the
    filter or, of the filter's gradient, the image, begins where the first ends, and is read from the 128 bytes before.
    """
    for item in look.convolutions(graph):
        first = item.image if item.forward else _response(item)
        second = item.image if item.op.kind is _FILTER else item.weights
        size = math.prod(first.dims) * ELEMENT_BITS[first.data_type] // 8
        moved = all(_packed(one) and one.dims[1] > 1 < math.prod(one.dims[2:]) for one in (first, second))
        if moved and size % 128:
            return True
    return False


def _packed_forward(graph: Graph) -> bool:
    """A forward convolution of packed images."""
    return any(item.forward and _packed(item.image) for item in look.convolutions(graph))


def _forward_into_half(graph: Graph) -> bool:
    """A forward convolution alone, into float16."""
    return len(graph.ops) == 1 and any(
        item.forward and item.op.fields["y"].data_type is _T.HALF for item in look.convolutions(graph)
    )


def _packed_behind(graph: Graph) -> bool:
    """A convolution of packed images that elementwise operations make."""
    return any(item.image.virtual and _packed(item.image) for item in look.convolutions(graph))


def _between(graph: Graph) -> bool:
    """The gradient of a filter with operations before and after it."""
    return any(op.fields["x"].virtual and op.fields["dw"].virtual for op in look.of_kind(graph, _FILTER))


def _filter_of_three(graph: Graph) -> bool:
    """The gradient of a filter of three taps along each dim, one apart."""
    return any(
        item.op.kind is _FILTER and set(item.weights.dims[2:]) == {3} and set(_sides(item)["filter_strides"]) == {1}
        for item in look.convolutions(graph)
    )


def _filter_in_bfloat16(graph: Graph) -> bool:
    """The gradient of a filter alone, in bfloat16."""
    return len(graph.ops) == 1 and any(op.fields["dw"].data_type is _T.BFLOAT16 for op in look.of_kind(graph, _FILTER))


def _operand_of_experts(graph: Graph) -> bool:
    """A matmul of experts, and behind it an operand in memory that has more than rows."""
    experts = look.of_kind(graph, _D.OPERATION_MOE_GROUPED_MATMUL)
    return any(
        not (operand.virtual or operand.by_value) and not operand.dims[1] > operand.dims[2] == 1
        for op in _behind(graph, (one.fields["output"] for one in experts))
        for operand in op.inputs().values()
        if operand.rank == 3
    )


def _scattered(graph: Graph) -> bool:
    """A matmul of experts that scatters its rows."""
    experts = look.of_kind(graph, _D.OPERATION_MOE_GROUPED_MATMUL)
    return any(op.fields["mode"] is MoeGroupedMatmulMode.SCATTER for op in experts)


def _normed_rows(graph: Graph) -> list[Tensor]:
    """Return what norms of rows make."""
    norms = look.of_kind(graph, _D.OPERATION_NORM_FORWARD)
    return [norm.fields["y"] for norm in norms if norm.fields["mode"] in _ROWS]


def _normed_twice(graph: Graph) -> bool:
    """A norm of rows, and behind it an elementwise operation that reads one tensor twice."""
    return any(
        op.x is not None and op.b is not None and op.x.uid == op.b.uid for op in _behind(graph, _normed_rows(graph))
    )


def _norm_with_operand(graph: Graph) -> bool:
    """A norm of rows, and behind it an elementwise operation with an operand of its own."""
    behind = list(_behind(graph, _normed_rows(graph)))
    made = {tensor.uid for op in graph.ops for tensor in op.outputs().values()} if behind else set()
    return any(tensor.uid not in made for op in behind for tensor in op.inputs().values())


def _pools(graph: Graph, mode: ResampleMode | None = None) -> Iterator[Operation]:
    """Yield the forward resamplings of a mode, or those but BILINEAR."""
    for op in look.of_kind(graph, _D.OPERATION_RESAMPLE_FWD):
        found = op.fields["resample"].fields["mode"]
        if found is mode or (mode is None and found is not _R.BILINEAR):
            yield op


def _padded_behind(graph: Graph) -> bool:
    """An average pooling of packed images that counts its padding, or its gradient, with windows that are cut.

    The kernels end each window at the size of the image and the padding before it, whatever is padded behind, and
    divide by what is left of it.
    """
    for op in look.of_kind(graph, _D.OPERATION_RESAMPLE_FWD, _D.OPERATION_RESAMPLE_BWD):
        image, response = (op.fields.get("x") or op.fields["dx"], op.fields.get("y") or op.fields["dy"])
        facts = op.fields["resample"].fields
        if facts["mode"] is _R.AVGPOOL_INCLUDE_PADDING and _packed(image):
            sides = zip(facts["window_dims"], facts["strides"], facts["pre_paddings"], strict=True)
            for size, windows, (window, stride, before) in zip(image.dims[2:], response.dims[2:], sides, strict=True):
                if (windows - 1) * stride + window - before > size + before:
                    return True
    return False


# What they are shown with


def _normed(mode: PointwiseMode) -> Graph:
    """Return a layer norm, and an elementwise operation of it and a tensor in memory."""
    g = GraphBuilder("normed", io_type=DataType.FLOAT)
    dims, per = (32, 32, 1, 1), (1, 32, 1, 1)
    y = g.norm_forward(NormMode.LAYER_NORM, g.tensor("x", dims), g.tensor("scale", per), g.tensor("bias", per)).y
    other = g.tensor("other", dims)
    if mode is _P.RELU_BWD:
        g.pointwise(mode, other, dy=y, virtual=False, name="out")
    else:
        g.pointwise(mode, y, other, virtual=False, name="out")
    return g.graph()


def _experts(*, matmul: bool = False) -> Graph:
    """Return a matmul of four experts, and another one of its result or not."""
    g = GraphBuilder("experts", io_type=DataType.HALF)
    weight = g.tensor("weight", (4, 64, 64), strides=column_major((4, 64, 64)))
    first = g.tensor("first", (4, 1, 1), DataType.INT32)
    token = g.tensor("token", (1, 32, 64))
    y = g.moe_grouped_matmul(token, weight, first, mode=MoeGroupedMatmulMode.NONE, virtual=matmul, name="y")
    if matmul:
        g.matmul(y, g.tensor("b", (1, 64, 32)), virtual=False, name="c")
    return g.graph()


def _convolved(
    form: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    kind: DataType = _T.HALF,
    strides: Literal["packed", "channels_last"] = "channels_last",
    before: bool = False,
    operand: tuple[int, ...] | None = None,
    **window: Any,
) -> Graph:
    """Return a convolution, or a gradient of one, behind a scale or not, before a sum with an operand or not."""
    g = GraphBuilder("convolved", io_type=kind)
    like: dict[str, Any] = {"strides": strides}
    image = g.tensor("x", x, **like)
    y = (x[0], w[0], *(g.convolution(image, g.tensor("w", w, **like), **window).dims[2:]))
    g = GraphBuilder("convolved", io_type=kind)
    result: dict[str, Any] = {"virtual": operand is not None, "name": "out"}
    if form != "forward" or not before:
        result["strides"] = (channels_last if strides == "channels_last" else packed_strides)(
            {"forward": y, "data": x, "filter": w}[form]
        )
    if form == "data":
        z = g.convolution_backward_data(g.tensor("dy", y, **like), g.tensor("w", w, **like), dims=x, **window, **result)
    else:
        image = g.tensor("x", x, **like)
        for mode in (_P.MUL, _P.ADD) if before else ():
            part = g.tensor(mode.name.lower(), (1, x[1], *[1] * (len(x) - 2)), **like)
            image = g.pointwise(mode, image, part, strides=image.strides, data_type=_T.FLOAT)
        if before:
            image = g.pointwise(_P.RELU_FWD, image, strides=image.strides, data_type=kind)
        if form == "forward":
            z = g.convolution(image, g.tensor("w", w, **like), **window, **result)
        else:
            z = g.convolution_backward_filter(image, g.tensor("dy", y, **like), w[2:], **window, **result)
    if operand is not None:
        g.pointwise(_P.ADD, z, g.tensor("operand", operand, **like), virtual=False, strides=z.strides, name="sum")
    return g.graph()


def _deep(kind: DataType) -> Graph:
    """Return a convolution over three dims of float16 into a type."""
    g = GraphBuilder("deep", io_type=_T.HALF)
    x = g.tensor("x", (2, 16, 6, 10, 10), strides="channels_last")
    w = g.tensor("w", (32, 16, 3, 3, 3), strides="channels_last")
    g.convolution(x, w, padding=1, data_type=kind, virtual=False, name="y")
    return g.graph()


def _gradient(**more: Any) -> Graph:
    """Return the gradient of a filter in float32, padded by 1 unless told otherwise."""
    return _convolved("filter", (1, 64, 6, 14), (8, 64, 3, 3), kind=_T.FLOAT, padding=1, **more)


def _split(kind: DataType) -> Graph:
    """Return the gradient of a filter that sums 96 terms, of which a config of engine 47 sums 64 first."""
    return _convolved("filter", (4, 8, 10, 14), (32, 8, 3, 3), kind=kind, stride=(2, 3), padding=(2, 0))


def _spread(operand: tuple[int, ...]) -> Graph:
    """Return the data gradient of a convolution with a stride of 2, and an operand added to it."""
    return _convolved("data", (1, 32, 14, 14), (32, 32, 3, 3), stride=2, padding=1, operand=operand)


def _weighted(operand: tuple[int, ...]) -> Graph:
    """Return the gradient of a filter of eight channels and 16 results, and an operand added to it."""
    return _convolved("filter", (2, 8, 7, 5), (16, 8, 3, 3), padding=1, operand=operand)


def _routed(
    operand: tuple[int, ...] | None = None, mode: MoeGroupedMatmulMode = MoeGroupedMatmulMode.NONE, rows: int = 64
) -> Graph:
    """Return a matmul of two experts, and an operand added to it or not."""
    g = GraphBuilder("routed", io_type=_T.HALF)
    more: dict[str, Any] = {}
    if mode is MoeGroupedMatmulMode.SCATTER:
        more = {name: g.tensor(name, (1, rows, 1), _T.INT32) for name in ("token_index", "token_ks")} | {"top_k": 1}
    weight = g.tensor("weight", (2, 64, 32), strides=column_major((2, 64, 32)))
    first = g.tensor("first_token_offset", (2, 1, 1), _T.INT32)
    token = g.tensor("token", (1, rows, 64))
    y = g.moe_grouped_matmul(token, weight, first, mode=mode, **more, virtual=operand is not None, name="y")
    if operand is not None:
        g.pointwise(_P.ADD, y, g.tensor("operand", operand), virtual=False, name="sum")
    return g.graph()


def _shifted(operand: tuple[int, ...] | None) -> Graph:
    """Return a layer norm, and the sum with an operand or a ReLU behind it."""
    g = GraphBuilder("shifted", io_type=_T.FLOAT)
    dims, per = (16, 64, 1, 1), (1, 64, 1, 1)
    y = g.norm_forward(NormMode.LAYER_NORM, g.tensor("x", dims), g.tensor("scale", per), g.tensor("bias", per)).y
    if operand is None:
        g.pointwise(_P.RELU_FWD, y, virtual=False, name="out")
    else:
        g.pointwise(_P.ADD, y, g.tensor("operand", operand), virtual=False, name="out")
    return g.graph()


def _doubled(*, twice: bool) -> Graph:
    """Return a layer norm, and its sum with itself or another tensor."""
    g = GraphBuilder("doubled", io_type=_T.FLOAT)
    dims, per = (16, 64, 1, 1), (1, 64, 1, 1)
    y = g.norm_forward(NormMode.LAYER_NORM, g.tensor("x", dims), g.tensor("scale", per), g.tensor("bias", per)).y
    g.pointwise(_P.ADD, y, y if twice else g.tensor("other", dims), virtual=False, name="sum")
    return g.graph()


def _pooled(
    sizes: tuple[int, ...],
    window: int | tuple[int, ...] = 3,
    mode: ResampleMode = _R.MAXPOOL,
    *,
    strides: Literal["packed", "channels_last"] = "channels_last",
    **sides: Any,
) -> Graph:
    g = GraphBuilder("pooled", io_type=_T.HALF)
    g.resample(mode, g.tensor("x", (2, 32, *sizes), strides=strides), window, virtual=False, name="y", **sides)
    return g.graph()


def _spread_back(sizes: tuple[int, ...], fewer: tuple[int, ...], **sides: Any) -> Graph:
    """Return the gradient of an average pool of windows of three, two apart, that counts its padding, row-major."""
    g, dims, less = GraphBuilder("spread back", io_type=_T.HALF), (2, 32, *sizes), (2, 32, *fewer)
    x, y, dy = (g.tensor(name, held, strides="packed") for name, held in (("x", dims), ("y", less), ("dy", less)))
    mode = _R.AVGPOOL_INCLUDE_PADDING
    g.resample_backward(mode, dy, 3, stride=2, dims=dims, x=x, y=y, **sides, virtual=False, name="dx")
    return g.graph()


def _upsampled(sizes: tuple[int, ...]) -> Graph:
    """Return a bilinear resampling to twice the sizes."""
    g, half = GraphBuilder("upsampled", io_type=_T.FLOAT), Fraction(1, 2)
    x = g.tensor("x", (2, 8, *sizes), strides="channels_last")
    g.resample(_R.BILINEAR, x, 2, stride=half, padding=half, post_padding=1, virtual=False, name="y")
    return g.graph()


def _unpooled(*given: str, sizes: tuple[int, ...] = (7, 13)) -> Graph:
    """Return the gradient of a max pool from its index, or its image and its result; a dim of 1 is not pooled."""
    g, dims = GraphBuilder("unpooled", io_type=_T.HALF), (2, 32, *sizes)
    window, stride = (tuple(most if size > 1 else 1 for size in sizes) for most in (3, 2))
    less = (2, 32, *((size - 1) // 2 or 1 for size in sizes))
    ports = {"idx": (less, _T.INT8), "x": (dims, _T.HALF), "y": (less, _T.HALF)}
    held: dict[str, Any] = {name: g.tensor(name, *ports[name], strides="channels_last") for name in given}
    dy = g.tensor("dy", less, strides="channels_last")
    g.resample_backward(_R.MAXPOOL, dy, window, stride=stride, dims=dims, **held, virtual=False, name="dx")
    return g.graph()


RANDOM_CONVOLUTIONS: tuple[Fault, ...] = (
    Fault(
        "norm-activation-gradient",
        what="a norm of rows in float32, and the gradient of an activation that reads its result from no memory",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="use 9.24.0 or later, which refuses the graph, or leave the gradient to a graph of its own",
        source=_ASKED,
        evidence=(
            "measured deviceless with 9.16.0 to 9.22.0 on sm_90, layer, RMS and ada-layer norms, and on sm_80, sm_89, "
            "sm_100 and sm_120 with 9.19.0; 9.24.0 to 9.28.0 refuse it"
        ),
        versions=versions_of_crash("norm-activation-gradient"),
        graph=crashes("norm-activation-gradient"),
        step="check",
        reproductions={"": lambda: _normed(_P.RELU_BWD)},
        unlike=lambda: _normed(_P.MUL),
        cure=lambda: _normed(_P.MUL),
    ),
    Fault(
        "experts-and-matmul",
        what="a matmul of experts, and another matmul in the same graph",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="leave the other matmul to a graph of its own",
        source=_ASKED,
        evidence="measured deviceless with 9.18.0 to 9.28.0 on sm_90: before it, after it, and after an activation",
        versions=versions_of_crash("experts-and-matmul"),
        graph=crashes("experts-and-matmul"),
        step="check",
        reproductions={"": lambda: _experts(matmul=True)},
        unlike=_experts,
        cure=_experts,
    ),
    Fault(
        "convolution-operand-part-of-rows",
        what=(
            "a convolution or a gradient of one, and an elementwise operation behind it, or on other tensors, with an "
            "operand that has some of the batch and spatial dims and not all of them; of a filter's gradient, some of "
            "channels and taps"
        ),
        effect="engines 4 and 7 read other elements of it: results are wrong, or a misaligned address",
        fix="repeat the operand along the dims it lacks, or leave the operation to a graph of its own",
        source=_RUN,
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_90, float16 and float32: operands of a batch, an image, a channel "
            "of a filter, all of them wrong, 46 of 46 random graphs too, one of them on another tensor; of nothing, of "
            "channels, of rows and whole, right"
        ),
        sm=(90,),
        engines=(4, 7),
        graph=_part_of_rows,
        reproductions={
            "": lambda: _weighted((1, 8, 1, 1)),
            "forward": lambda: _convolved("forward", (2, 8, 7, 5), (16, 8, 3, 3), padding=1, operand=(1, 1, 7, 5)),
            "data": lambda: _convolved("data", (2, 8, 7, 5), (16, 8, 3, 3), padding=1, operand=(2, 1, 1, 1)),
        },
        unlike=lambda: _weighted((1, 8, 3, 3)),
        cure=lambda: _weighted((1, 8, 3, 3)),
    ),
    Fault(
        "strided-gradient-operand-of-rows",
        what=(
            "the data gradient of a convolution with a stride, and an elementwise operation behind it with an operand "
            "that has batch and spatial dims, and no channels"
        ),
        effect="engine 1 reads other elements of it",
        fix="repeat the operand for each channel, or take another engine",
        source=_RUN,
        evidence=f"measured with 9.28.0 on sm_90: 2 of 2 random graphs; {_LATER}",
        sm=(90,),
        engines=(1,),
        depends_on="the engine",
        graph=_strided_rows,
        reproductions={"": lambda: _spread((1, 1, 14, 14))},
        unlike=lambda: _spread((1, 32, 14, 14)),
        cure=lambda: _spread((1, 32, 14, 14)),
    ),
    Fault(
        "gradient-padded-unevenly",
        what="a gradient of a convolution with other padding before than after",
        effect="engines 1, 18 and 20 of a filter's gradient and 50 of the data's are wrong, often in every element",
        fix="take another engine, or pad the image first",
        source=_RUN,
        evidence="measured with 9.19.0 on sm_90, float16 and float32, one and two dims, both layouts",
        sm=(90,),
        engines=(1, 18, 20, 50),
        depends_on="the engine",
        graph=_padded_unevenly,
        reproductions={"": lambda: _gradient(post_padding=(2, 1))},
        unlike=_gradient,
        cure=_gradient,
    ),
    Fault(
        "packed-images-unaligned",
        what=(
            "a convolution or a gradient of one, of row-major tensors (NCHW), whose image, or of gradients whose "
            "response, has no multiple of 128 bytes"
        ),
        effect=(
            "engine 4 of 9.28 and engines 70 and 78 of 9.19 lay tensors out again in the workspace, one right behind "
            "the other, and read the second from an address that is a multiple of 128: wrong in every element"
        ),
        fix="lay the tensors out as channels last, or choose sizes of a multiple of 128 bytes, or take another engine",
        source=_RUN,
        evidence=(
            "measured on sm_90: of 129 convolutions, by size, type and channels, the 24 whose first tensor has another "
            "number of bytes, and no other; a filter of one tap, which lies the same both ways, is right"
        ),
        sm=(90,),
        engines=(4, 70, 78),
        depends_on="the engine",
        graph=_second_unaligned,
        reproductions={
            "": lambda: _convolved("filter", (3, 8, 10, 5), (16, 8, 1, 1), strides="packed"),
            "data": lambda: _convolved("data", (1, 64, 7, 5), (16, 64, 3, 3), strides="packed", padding=1),
            "many channels": lambda: _convolved("filter", (1, 64, 7, 5), (32, 64, 1, 1), strides="packed"),
        },
        unlike=lambda: _convolved("filter", (3, 8, 8, 8), (16, 8, 1, 1), strides="packed"),
        cure=lambda: _convolved("filter", (3, 8, 10, 5), (16, 8, 1, 1)),
    ),
    Fault(
        "packed-images-engine-7",
        what="a forward convolution of row-major images (NCHW)",
        effect="engine 7 is wrong in every element",
        fix="lay the images out as channels last, or take another engine",
        source=_RUN,
        evidence=(
            "measured on sm_90 with 9.28.0, where it is proposed for 8, 16 and 32 bits, and with 9.19.0, where it is "
            "for 8 bits: of its kernel configurations (KERNEL_CFG) 26, 27, 29 and 30 are wrong, 21 and 22 right"
        ),
        sm=(90,),
        engines=(7,),
        depends_on="the engine",
        graph=_packed_forward,
        reproductions={"": lambda: _convolved("forward", (2, 16, 7, 5), (8, 16, 1, 1), strides="packed")},
        unlike=lambda: _convolved("forward", (2, 16, 7, 5), (8, 16, 1, 1)),
        cure=lambda: _convolved("forward", (2, 16, 7, 5), (8, 16, 1, 1)),
    ),
    Fault(
        "packed-images-behind",
        what="a convolution of row-major images (NCHW) that elementwise operations make in the same graph",
        effect="engine 4 is wrong in every element, or does not end",
        fix="lay the images out as channels last, or leave the operations to a graph of their own",
        source=_RUN,
        evidence=f"measured with 9.28.0 on sm_90; no plan of 9.19.0 compiles; {_LATER}",
        sm=(90,),
        engines=(4,),
        depends_on="the engine",
        graph=_packed_behind,
        reproductions={
            "": lambda: _convolved("forward", (1, 32, 11, 10), (32, 32, 3, 3), strides="packed", before=True, padding=1)
        },
        unlike=lambda: _convolved("forward", (1, 32, 11, 10), (32, 32, 3, 3), before=True, padding=1),
        cure=lambda: _convolved("forward", (1, 32, 11, 10), (32, 32, 3, 3), before=True, padding=1),
    ),
    Fault(
        "convolution-minus-infinity",
        what="a forward convolution alone, into float16",
        effect="engine 47 writes 0 for every result of -inf, as of those below -65504; infinity is written as it is",
        fix="take another engine, or write a type that holds the results",
        source=_RUN,
        evidence="measured with 9.19.0 on sm_90, over two and three dims, both layouts; no gradient has it",
        sm=(90,),
        engines=(47,),
        depends_on="results of -inf",
        graph=_forward_into_half,
        reproductions={"": lambda: _deep(_T.HALF)},
        unlike=lambda: _convolved("data", (2, 16, 6, 10), (32, 16, 3, 3), padding=1),
        cure=lambda: _deep(_T.FLOAT),
    ),
    Fault(
        "filter-gradient-between",
        what="the gradient of a filter with elementwise operations before and after it",
        effect="engine 1, the only one, writes NaN",
        fix="leave the operations after it to a graph of their own",
        source=_RUN,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90, over two and three dims; without those before it is right",
        sm=(90,),
        graph=_between,
        reproductions={
            "": lambda: _convolved("filter", (1, 16, 6, 6), (8, 16, 3, 3), padding=1, before=True, operand=(1, 1, 1, 1))
        },
        unlike=lambda: _convolved("filter", (1, 16, 6, 6), (8, 16, 3, 3), padding=1, operand=(1, 1, 1, 1)),
        cure=lambda: _convolved("filter", (1, 16, 6, 6), (8, 16, 3, 3), padding=1, operand=(1, 1, 1, 1)),
    ),
    Fault(
        "filter-gradient-transformed",
        what="the gradient of a filter of three taps along each dim",
        effect="engine 17 transforms its operands, off by 2^-17 of the result, and has no numerical note that says so",
        fix="take another engine where whole numbers have to stay whole",
        source=_RUN,
        evidence="measured with 9.19.0 on sm_90, float16 and float32; of those with notes none is further off",
        sm=(90,),
        engines=(17,),
        depends_on="the engine",
        graph=_filter_of_three,
        reproductions={
            "": lambda: _convolved("filter", (3, 8, 9, 7), (8, 8, 3, 3), kind=_T.FLOAT, strides="packed", padding=1)
        },
        unlike=lambda: _convolved("filter", (3, 8, 9, 7), (8, 8, 1, 1), kind=_T.FLOAT, strides="packed"),
        cure=lambda: _convolved("filter", (3, 8, 9, 7), (8, 8, 1, 1), kind=_T.FLOAT),
    ),
    Fault(
        "filter-gradient-split",
        what="the gradient of a filter alone, in bfloat16",
        effect=(
            "where a config of engine 47 splits the sums (SPLIT_K above 1), those of the first part are rounded to the "
            "type of the result before the others are added, and no numerical note says so"
        ),
        fix="take a config with SPLIT_K of 1 or another engine, or write float32",
        source=_RUN,
        evidence=(
            "measured with 9.19.0 on sm_90: 13 of 13 plans with SPLIT_K of 2 to 4, each element of one as if the first "
            "64 of 96 terms were rounded; 3 with SPLIT_K of 1 are right, and float32; float16 has the numerical note "
            "REDUCED_PRECISION_REDUCTION, and is within it"
        ),
        sm=(90,),
        engines=(47,),
        depends_on="the engine's SPLIT_K",
        graph=_filter_in_bfloat16,
        reproductions={"": lambda: _split(_T.BFLOAT16)},
        unlike=lambda: _split(_T.FLOAT),
        cure=lambda: _split(_T.FLOAT),
    ),
    Fault(
        "experts-operand",
        what="a matmul of experts, and an elementwise operation behind it with an operand of columns or of one element",
        effect="engine 7 reads other elements of it, or memory behind it: results are wrong or NaN",
        fix="take engine 4, which 9.28.0 proposes first, or leave the operation to a graph of its own",
        source=_RUN,
        evidence=(
            "measured on sm_90: with 9.19.0 operands [1, 1, n], [1, rows, n] and [1, 1, 1]; with 9.28.0 the second of "
            "them; numbers by value and [1, rows, 1] are right"
        ),
        versions=Window(since=(9, 18, 0)),
        sm=(90,),
        engines=(7,),
        graph=_operand_of_experts,
        reproductions={"": lambda: _routed((1, 64, 32))},
        unlike=_routed,
        cure=_routed,
    ),
    Fault(
        "experts-scatter",
        what="a matmul of experts that scatters its rows",
        effect=(
            "where the places of an expert's rows are not in order, only the first 8 of a tile go where they should: "
            "the others stay unwritten, and memory behind the result is written"
        ),
        fix="scatter the rows in a kernel of your own",
        source=_RUN,
        evidence="measured with 9.28.0 on sm_90; 9.21.0 is the first to take it there; in order, and 8 rows, are right",
        versions=Window(since=(9, 21, 0)),
        sm=(90,),
        depends_on="token_index",
        graph=_scattered,
        reproductions={"": lambda: _routed(mode=MoeGroupedMatmulMode.SCATTER)},
        unlike=_routed,
        cure=_routed,
    ),
    Fault(
        "norm-operand-twice",
        what="a norm of rows, and behind it an elementwise operation that reads one tensor twice, as y + y",
        effect="an illegal address",
        fix="write it with one operand, as 2 y or y^2, or leave it to a graph of its own",
        source=_RUN,
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_90, engines 4 and 5: layer, RMS and ada-layer norms, ADD, MAX, MIN "
            "and ADD_SQUARE, float32 and float16"
        ),
        sm=(90,),
        graph=_normed_twice,
        reproductions={"": lambda: _doubled(twice=True)},
        unlike=lambda: _doubled(twice=False),
        cure=lambda: _doubled(twice=False),
    ),
    Fault(
        "norm-operands-in-turn",
        what="a norm of rows, and behind it an elementwise operation with an operand of its own",
        effect=(
            "the second plan of a process takes the kernel of the first where only the dims of the operand differ: "
            "other elements are read, or an illegal address"
        ),
        fix="let such operands have the same dims in all of a process, or leave the operation to a graph of its own",
        source=_RUN,
        evidence=(
            "measured with 9.28.0 on sm_90, layer, RMS and ada-layer norms: 43 of 84 plans; 9.22.0 to 9.28.0 do not "
            "compile the second, 9.16.0 to 9.21.0 do, and 9.19.0 is right"
        ),
        versions=Window(since=(9, 22, 0)),
        sm=(90,),
        engines=(4, 5),
        depends_on="what was built before",
        graph=_norm_with_operand,
        reproductions={"": lambda: _shifted((1, 64, 1, 1)), "before": lambda: _shifted((16, 64, 1, 1))},
        unlike=lambda: _shifted(None),
        cure=lambda: _shifted(None),
    ),
    Fault(
        "pooling-over-one-dim",
        what="a pooling over one dim",
        effect="NaN, or not written, where channels are last; a plan of row-major images is refused when it runs",
        fix="describe the tensors with a dim of 1 more",
        source=_RUN,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90: float16, bfloat16, float32 and INT8, all modes, 21 of 21",
        sm=(90,),
        graph=lambda graph: any(op.fields["x"].rank == 3 for op in _pools(graph)),
        reproductions={"": lambda: _pooled((13,), stride=2)},
        unlike=lambda: _pooled((1, 13), (1, 3), stride=(1, 2)),
        cure=lambda: _pooled((1, 13), (1, 3), stride=(1, 2)),
    ),
    Fault(
        "bilinear-three-dims",
        what="BILINEAR resampling over three dims",
        effect="most elements are NaN or not written",
        fix="resample two dims and the third in graphs of their own",
        source=_RUN,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90, float32: 8 of 8; a dim of 1 does not help",
        sm=(90,),
        graph=lambda graph: any(op.fields["x"].rank == 5 for op in _pools(graph, _R.BILINEAR)),
        reproductions={"": lambda: _upsampled((5, 6, 7))},
        unlike=lambda: _upsampled((5, 6)),
        cure=lambda: _upsampled((5, 6)),
    ),
    Fault(
        "bilinear-one-dim",
        what="BILINEAR resampling over one dim",
        effect="the process ends by a division by zero while engines are chosen",
        fix="describe the tensors with a dim of 1 more",
        source=_ASKED,
        evidence="measured deviceless with 9.16.0 to 9.28.0 on sm_90",
        graph=crashes("bilinear-one-dim"),
        step="check",
        reproductions={"": lambda: _upsampled((5,))},
        unlike=lambda: _upsampled((1, 5)),
        cure=lambda: _upsampled((5, 6)),
    ),
    Fault(
        "max-pool-gradient-of-both",
        what="the gradient of a max pool, channels last, from its image and its result instead of an index",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="give the index that the forward pass writes, or use 9.20.0 or later, which refuses the graph",
        source=_ASKED,
        evidence="measured deviceless with 9.16.0 and 9.19.0 on sm_90; 9.20.0 and later refuse it",
        versions=versions_of_crash("max-pool-gradient-of-both"),
        graph=crashes("max-pool-gradient-of-both"),
        step="check",
        reproductions={"": lambda: _unpooled("x", "y")},
        unlike=lambda: _unpooled("idx"),
        cure=lambda: _unpooled("idx"),
    ),
    Fault(
        "max-pool-gradient-one-dim",
        what="the gradient of a max pool over one dim, channels last",
        effect=(
            "the process ends by a division by zero while a plan is built, where what stands behind the one stride in "
            "memory is 0; elsewhere the kernel is written for a stride of that"
        ),
        fix="describe the tensors with a dim of 1 more",
        source=_ASKED,
        evidence=(
            "measured deviceless with 9.14.0, 9.16.0, 9.19.0, 9.21.0, 9.24.0, 9.26.0 and 9.28.0 on sm_90, 9.19.0 and "
            "9.28.0 on sm_80 and sm_100 too: float16, bfloat16, float32 and INT8; averages and row-major images are "
            "built"
        ),
        graph=crashes("max-pool-gradient-one-dim"),
        step="build",
        reproductions={"": lambda: _unpooled("idx", sizes=(13,))},
        unlike=lambda: _unpooled("idx", sizes=(1, 13)),
        cure=lambda: _unpooled("idx", sizes=(1, 13)),
    ),
    Fault(
        "average-pool-padded-behind",
        what=(
            "AVGPOOL_INCLUDE_PADDING of row-major images (NCHW), or its gradient, with windows that reach further into "
            "the padding behind than there is before"
        ),
        effect="such windows are divided by fewer elements than they have: 1.5 or 2.25 times what is right",
        fix="lay the images out as channels last, or pad them evenly",
        source=_RUN,
        evidence=(
            "measured with 9.19.0 on sm_90: forward 6 of 6, 16 and 32 bits, padded more before 6 of 6 right; gradients "
            "2 of 2, bfloat16 over three dims and float16 over two, each element as if windows ended at the size and "
            "the padding before it; 2 forward whose padding behind no window reaches are right"
        ),
        sm=(90,),
        engines=(1,),
        graph=_padded_behind,
        reproductions={
            "": lambda: _pooled(
                (6, 6), mode=_R.AVGPOOL_INCLUDE_PADDING, strides="packed", stride=2, padding=0, post_padding=1
            ),
            "gradient": lambda: _spread_back((9, 4), (5, 3), padding=1, post_padding=2),
            "gradient, three dims": lambda: _spread_back((7, 4, 4), (3, 1, 2), padding=0, post_padding=(1, 0, 2)),
        },
        unlike=lambda: _pooled(
            (6, 6), mode=_R.AVGPOOL_INCLUDE_PADDING, strides="packed", stride=2, padding=1, post_padding=0
        ),
        cure=lambda: _pooled((6, 6), mode=_R.AVGPOOL_INCLUDE_PADDING, stride=2, padding=0, post_padding=1),
    ),
)
