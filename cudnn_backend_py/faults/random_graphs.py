"""Faults that random graphs found: ``python -m tools.campaign``, measured for this package."""

from __future__ import annotations

from ..generated.enums import DataType, DescriptorType, NormFwdPhase, NormMode, PointwiseMode, ResampleMode
from ..graph.attention.fault import Fault
from ..graph.builder import GraphBuilder
from ..graph.data_types import HALF_TYPES
from ..graph.ir import Graph
from ..graph.strides import channels_last
from . import look
from .random_elementwise import RANDOM_ELEMENTWISE

__all__ = ["RANDOM_GRAPHS"]

_D = DescriptorType
_SOURCE = "tests/gpu/graph/test_faults.py"


def _computed_behind(graph: Graph) -> bool:
    """A concatenation with a computed tensor that is not its first."""
    return any(
        tensor.virtual
        for op in look.of_kind(graph, _D.OPERATION_CONCAT)
        for port, tensor in op.inputs().items()
        if port != "input[0]"
    )


def _bfloat16_pool(graph: Graph) -> bool:
    """A pooling alone, of bfloat16 over two dims, channels last."""
    pools = list(look.of_kind(graph, _D.OPERATION_RESAMPLE_FWD))
    return len(pools) == len(graph.ops) == 1 and any(
        x.data_type is DataType.BFLOAT16 and x.rank == 4 and x.strides == channels_last(x.dims)
        for x in (pools[0].fields["x"],)
    )


def _pool_of_computed(graph: Graph) -> bool:
    """A pooling of what elementwise operations make, in memory or not."""
    written = {tensor.uid for op in graph.ops for tensor in op.outputs().values()}
    return any(op.fields["x"].uid in written for op in look.of_kind(graph, _D.OPERATION_RESAMPLE_FWD))


def _pool_gradient_of_lines(graph: Graph) -> bool:
    """The gradient of a pooling over one dim."""
    return any(op.fields["dy"].rank == 3 for op in look.of_kind(graph, _D.OPERATION_RESAMPLE_BWD))


def _int8_into_int32(graph: Graph) -> bool:
    """A convolution of INT8 whose result is INT32 in memory."""
    return any(
        item.image.data_type is DataType.INT8
        and item.forward
        and item.op.fields["y"].data_type is DataType.INT32
        and not item.op.fields["y"].virtual
        for item in look.convolutions(graph)
    )


def _added_to_batch_norm_otherwise(graph: Graph) -> bool:
    """A batch norm in training, and its sum with another operand than a whole one of its types, behind it."""
    for norm in look.of_kind(graph, _D.OPERATION_NORM_FORWARD):
        x, y = norm.fields["x"], norm.fields["y"]
        if norm.fields["mode"] is NormMode.BATCH_NORM and norm.fields["phase"] is NormFwdPhase.TRAINING:
            for op in look.of_mode(graph, PointwiseMode.ADD):
                if op.x is not None and op.b is not None and y.uid in (op.x.uid, op.b.uid):
                    operand = op.b if op.x.uid == y.uid else op.x
                    shorter = x.data_type is DataType.FLOAT and operand.data_type in HALF_TYPES
                    if operand is op.x or operand.dims != y.dims or shorter:
                        return True
    return False


# What they are shown with


def _joined(*, behind: bool) -> Graph:
    """Return a convolution whose result stands beside a tensor that is there already."""
    g = GraphBuilder("joined")
    x = g.tensor("x", (1, 32, 8, 8), strides="channels_last")
    w = g.tensor("w", (32, 32, 1, 1), strides="channels_last")
    y = g.convolution(x, w, data_type=DataType.HALF)
    z = g.tensor("z", (1, 32, 8, 8), strides="channels_last")
    g.concatenate([z, y] if behind else [y, z], 1, in_place_index=0 if behind else 1, name="whole", virtual=False)
    return g.graph()


def _pool(kind: DataType, *, before: bool = False) -> Graph:
    """Return a pooling, of what a ReLU makes or not."""
    g = GraphBuilder("pool", io_type=kind)
    x = g.tensor("x", (2, 64, 7, 13), strides="channels_last")
    if before:
        x = g.pointwise(PointwiseMode.RELU_FWD, x, strides=x.strides)
    g.resample(ResampleMode.AVGPOOL_INCLUDE_PADDING, x, 2, virtual=False, name="y")
    return g.graph()


def _pool_gradient(sizes: tuple[int, ...]) -> Graph:
    """Return the gradient of an average pool of windows of three, two apart."""
    g = GraphBuilder("pool", io_type=DataType.FLOAT)
    dy = g.tensor("dy", (2, 32, *((size - 3) // 2 + 1 for size in sizes)), strides="channels_last")
    dims = (2, 32, *sizes)
    g.resample_backward(ResampleMode.AVGPOOL_INCLUDE_PADDING, dy, 3, stride=2, dims=dims, virtual=False, name="dx")
    return g.graph()


def _integers(kind: DataType) -> Graph:
    """Return a convolution of INT8 into a type."""
    g = GraphBuilder("integers", io_type=DataType.INT8)
    x = g.tensor("x", (1, 32, 8, 8), strides="channels_last")
    w = g.tensor("w", (32, 32, 1, 1), strides="channels_last")
    g.convolution(x, w, compute_type=DataType.INT32, data_type=kind, virtual=False, name="y")
    return g.graph()


def _added_to_batch_norm(operand: tuple[int, ...], kind: DataType = DataType.HALF) -> Graph:
    """Return a ReLU of the sum of a batch norm in training, of images of a type, and an operand of float16."""
    g, per = GraphBuilder("added", io_type=kind), (1, 32, 1, 1)
    x = g.tensor("x", (4, 32, 4, 5), strides="channels_last")
    scale, bias = (g.tensor(name, per, DataType.FLOAT, strides="channels_last") for name in ("scale", "bias"))
    y = g.norm_forward(NormMode.BATCH_NORM, x, scale, bias, training=True).y
    other = g.tensor("operand", operand, DataType.HALF, strides="channels_last")
    y = g.pointwise(PointwiseMode.ADD, y, other, strides=x.strides)
    g.pointwise(PointwiseMode.RELU_FWD, y, virtual=False, name="out", strides=x.strides)
    return g.graph()


RANDOM_GRAPHS: tuple[Fault, ...] = (
    *RANDOM_ELEMENTWISE,
    Fault(
        "pooling-of-bfloat16",
        what="a pooling of bfloat16 alone, over two dims, channels last",
        effect="engine 3 of 9.19 and 2 of 9.28 write 32 bits for each element: wrong, and beyond the end of the result",
        fix="take another engine, or use float16 or float32",
        source=_SOURCE,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90: all of 41 graphs; the other engine of each is right",
        sm=(90,),
        engines=(2, 3),
        graph=_bfloat16_pool,
        depends_on="the engine",
        reproductions={"": lambda: _pool(DataType.BFLOAT16)},
        unlike=lambda: _pool(DataType.HALF),
        cure=lambda: _pool(DataType.HALF),
    ),
    Fault(
        "pooling-behind-elementwise",
        what="a pooling of what elementwise operations make in the same graph",
        effect="the result is NaN, or not written",
        fix="pool in a graph of its own",
        source=_SOURCE,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90: all of 73 random graphs",
        graph=_pool_of_computed,
        reproductions={"": lambda: _pool(DataType.HALF, before=True)},
        unlike=lambda: _pool(DataType.HALF),
        cure=lambda: _pool(DataType.HALF),
    ),
    Fault(
        "pooling-gradient-over-one-dim",
        what="the gradient of a pooling over one dim",
        effect="a misaligned address where channels are last; a plan of row-major images is refused when it runs",
        fix="describe the tensors with a dim of 1 more",
        source=_SOURCE,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90, all modes: 24 of 24",
        graph=_pool_gradient_of_lines,
        reproductions={"": lambda: _pool_gradient((15,))},
        unlike=lambda: _pool_gradient((7, 15)),
        cure=lambda: _pool_gradient((7, 15)),
    ),
    Fault(
        "convolution-int8-into-int32",
        what="a forward convolution of INT8 into INT32",
        effect="engines 28, which is proposed first, and 0 multiply by the bits of the float32 alpha, 0x3f800000",
        fix="write FLOAT or INT8, or take engine 71",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90; a factor given as INT32 is kept as the float of the same bits",
        sm=(90,),
        engines=(0, 28),
        graph=_int8_into_int32,
        reproductions={"": lambda: _integers(DataType.INT32)},
        unlike=lambda: _integers(DataType.FLOAT),
        cure=lambda: _integers(DataType.FLOAT),
    ),
    Fault(
        "batch-norm-operand",
        what=(
            "a batch norm in training, and its sum with an operand that has not all of its dims, or 16 bits where the "
            "image is float32, or stands before it"
        ),
        effect=(
            "engine 0, the only one, reads the operand as a whole tensor that lies as the image does: memory behind it "
            "is added, and a number by value is an illegal address; one of 16 bits is read as float32; a plan of a "
            "whole operand that stands first is refused when it runs"
        ),
        fix="give a whole operand, of float32 for a float32 image, behind the norm; or add it in a graph of its own",
        source=_SOURCE,
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_90: operands of six dims, over two and three dims of the image, "
            "float16, bfloat16 and float32, ReLU and swish; each element up to the end of the operand's memory is as "
            "if it were whole, 17 of 17 graphs; whole operands and none are right, 10 of 10, float32 beside float16 too"
        ),
        sm=(90,),
        engines=(0,),
        graph=_added_to_batch_norm_otherwise,
        reproductions={
            "": lambda: _added_to_batch_norm((1, 32, 1, 1)),
            "type": lambda: _added_to_batch_norm((4, 32, 4, 5), DataType.FLOAT),
        },
        unlike=lambda: _added_to_batch_norm((4, 32, 4, 5)),
        cure=lambda: _added_to_batch_norm((4, 32, 4, 5)),
    ),
    Fault(
        "concatenation-behind",
        what="a concatenation in which a tensor that the graph computes is not the first",
        effect="it is written to the beginning of the result, without room for the others",
        fix="let what is computed be the first",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: 4 of 4 random graphs; 3 of 3 with the computed tensor first are right",
        graph=_computed_behind,
        reproductions={"": lambda: _joined(behind=True)},
        unlike=lambda: _joined(behind=False),
        cure=lambda: _joined(behind=False),
    ),
)
