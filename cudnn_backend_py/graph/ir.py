"""Graphs as values: tensors, operations, and the graph that binds them. Loads no library.

All of them are frozen, so they can be compared, printed, varied one field at a time (``dataclasses.replace``) and
saved. What can be known wrong without cuDNN is refused here, naming the tensor, the value found and the value needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import GraphError
from ..generated.descriptors import DESCRIPTORS
from ..generated.enums import (
    DIM_MAX,
    AttributeType,
    CudnnEnum,
    DataType,
    DescriptorType,
    PointwiseMode,
    ReduceTensorOp,
    TensorReordering,
)
from .ports import BACKWARD_MODES, BINARY_MODES, OUTPUT_PORTS, SHORT_TYPES, TERNARY_MODES

__all__ = [
    "Graph",
    "Matmul",
    "Op",
    "Operation",
    "Parameters",
    "Pointwise",
    "Reduction",
    "Tensor",
    "packed_strides",
]


def packed_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of `dims`, in elements."""
    strides = [1]
    for dim in reversed(dims[1:]):
        strides.append(strides[-1] * dim)
    return tuple(reversed(strides))


# Bits per element; INT4, UINT4 and FP4 are packed two to a byte.
ELEMENT_BITS: dict[DataType, int] = {
    DataType.FLOAT: 32,
    DataType.DOUBLE: 64,
    DataType.HALF: 16,
    DataType.INT8: 8,
    DataType.INT32: 32,
    DataType.INT8x4: 32,
    DataType.UINT8: 8,
    DataType.UINT8x4: 32,
    DataType.INT8x32: 256,
    DataType.BFLOAT16: 16,
    DataType.INT64: 64,
    DataType.BOOLEAN: 1,
    DataType.FP8_E4M3: 8,
    DataType.FP8_E5M2: 8,
    DataType.FAST_FLOAT_FOR_FP8: 32,
    DataType.FP8_E8M0: 8,
    DataType.FP4_E2M1: 4,
    DataType.INT4: 4,
    DataType.UINT4: 4,
    DataType.UINT32: 32,
    DataType.COMPLEX_FP32: 64,
    DataType.COMPLEX_FP64: 128,
    DataType.BYTE_BOOLEAN: 8,
    DataType.FP8_E5M3: 8,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """A tensor of a graph.

    C: ``CUDNN_BACKEND_TENSOR_DESCRIPTOR``.

    Parameters
    ----------
    name
        For people; unique in a graph.
    uid
        For cuDNN and the variant pack; unique in a graph.
    dims, strides
        Sizes and strides in elements, at most 8 of them; attention tensors are ordered b, h, s, d.
    data_type
        Type of the elements.
    alignment
        What the address is a multiple of, in bytes.
    virtual
        Exists only inside the graph, never in memory.
    by_value
        A scalar given as a host value instead of a device address; ``value`` holds it if it is known already.
    reordering
        Layout of the elements inside blocks.
    ragged_offset
        The tensor with the start of each sequence, in elements, for variable-length sequences.
    vector_count, vector_dim
        Elements packed into one, and along which dimension, for the vectorized integer types.
    """

    name: str
    uid: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    data_type: DataType
    alignment: int = 16
    virtual: bool = False
    by_value: bool = False
    value: float | int | None = None
    reordering: TensorReordering = TensorReordering.NONE
    ragged_offset: Tensor | None = None
    vector_count: int = 1
    vector_dim: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(self.dims))
        object.__setattr__(self, "strides", tuple(self.strides))
        _check_tensor(self)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def span_elements(self) -> int:
        """Elements from the first to the last one, the last included."""
        return 1 + sum((dim - 1) * stride for dim, stride in zip(self.dims, self.strides, strict=True))

    @property
    def span_bytes(self) -> int:
        """Bytes of device memory the tensor reaches over."""
        return -(-self.span_elements * ELEMENT_BITS[self.data_type] * self.vector_count // 8)

    @property
    def type_text(self) -> str:
        """The type as in ``f16[2,8,64]``."""
        return f"{SHORT_TYPES[self.data_type]}[{','.join(map(str, self.dims))}]"

    def __str__(self) -> str:
        marks = [f"uid {self.uid}", f"strides {list(self.strides)}", f"align {self.alignment}"]
        marks += [name for name in ("virtual", "by_value") if getattr(self, name)]
        if self.value is not None:
            marks.append(f"value {self.value}")
        if self.reordering is not TensorReordering.NONE:
            marks.append(f"reordering {self.reordering.name}")
        if self.ragged_offset is not None:
            marks.append(f"ragged_offset {self.ragged_offset.name}")
        if self.vector_count != 1:
            marks.append(f"vector {self.vector_count} along {self.vector_dim}")
        return f"{self.name} : {self.type_text} ({', '.join(marks)})"


def _check_tensor(tensor: Tensor) -> None:
    def fault(headline: str, code: str, fix: str | None = None) -> GraphError:
        where = (
            f"tensor {tensor.name!r}, checked before any cuDNN call\ndims    {tensor.dims}\nstrides {tensor.strides}"
        )
        return GraphError(headline, code=code, where=where, fix=fix)

    for name in ("dims", "strides"):
        for value in getattr(tensor, name):
            if isinstance(value, bool) or not isinstance(value, int):
                raise fault(f"tensor {tensor.name!r} has {name} of {type(value).__name__}, int is needed", "dims-type")
    if not 1 <= tensor.rank <= DIM_MAX:
        raise fault(f"tensor {tensor.name!r} has {tensor.rank} dims, 1 to {DIM_MAX} are possible", "rank-out-of-range")
    if len(tensor.strides) != tensor.rank:
        raise fault(
            f"tensor {tensor.name!r} has {tensor.rank} dims but {len(tensor.strides)} strides",
            "strides-rank-mismatch",
            f"give one stride per dim, in elements; packed strides for these dims are {packed_strides(tensor.dims)}",
        )
    if min(tensor.dims) < 1:
        raise fault(
            f"tensor {tensor.name!r} has a dim of {min(tensor.dims)}, at least 1 is needed",
            "dim-not-positive",
        )
    if min(tensor.strides) < 0:
        raise fault(
            f"tensor {tensor.name!r} has a stride of {min(tensor.strides)}, 0 or more is needed",
            "stride-negative",
        )
    if max(math.prod(tensor.dims), tensor.span_elements) * 32 >= 1 << 63:
        raise fault(
            f"tensor {tensor.name!r} reaches over {tensor.span_elements} elements, its size does not fit 64 bits",
            "tensor-size-overflow",
        )
    if not isinstance(tensor.uid, int) or not 0 <= tensor.uid < 1 << 63:
        raise fault(
            f"tensor {tensor.name!r} has uid {tensor.uid!r}, an int of 0 or more is needed",
            "uid-out-of-range",
        )
    if tensor.alignment < 1 or tensor.alignment & (tensor.alignment - 1):
        raise fault(
            f"tensor {tensor.name!r} has alignment {tensor.alignment}, a power of two in bytes is needed",
            "alignment-not-power-of-two",
        )
    if tensor.virtual and tensor.by_value:
        raise fault(f"tensor {tensor.name!r} is virtual and by value, it can be one of them", "virtual-by-value")
    if tensor.value is not None and not tensor.by_value:
        raise fault(f"tensor {tensor.name!r} has a value but is not by value", "value-without-by-value")
    if not isinstance(tensor.data_type, DataType):
        raise fault(f"tensor {tensor.name!r} has data type {tensor.data_type!r}, a DataType is needed", "data-type")


class Op:
    """An operation of a graph: named inputs and outputs that are tensors, and parameters."""

    __slots__ = ()
    name: str

    @property
    def kind(self) -> DescriptorType:
        """The descriptor type of the operation."""
        raise NotImplementedError

    def ports(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (port, tensor) of every tensor the operation touches."""
        raise NotImplementedError

    def is_output(self, port: str) -> bool:
        """Return whether the operation writes this port."""
        return port.split("[")[0] in OUTPUT_PORTS[self.kind]

    def inputs(self) -> dict[str, Tensor]:
        """Return the tensors it reads, by port."""
        return {port: tensor for port, tensor in self.ports() if not self.is_output(port)}

    def outputs(self) -> dict[str, Tensor]:
        """Return the tensors it writes, by port."""
        return {port: tensor for port, tensor in self.ports() if self.is_output(port)}

    def parameters(self) -> dict[str, Any]:
        """Return what is not a tensor, apart from the name."""
        raise NotImplementedError

    def verb(self) -> str:
        """Return the word for it in the text form."""
        return self.kind.name.removeprefix("OPERATION_").lower()

    def __str__(self) -> str:
        plain = {"compute_type": DataType.FLOAT}
        inputs = [
            tensor.name if port in ("a", "b", "x") else f"{port}={tensor.name}"
            for port, tensor in self.inputs().items()
        ]
        extra = [
            f"{key}={_text(value)}"
            for key, value in self.parameters().items()
            if value is not None and key not in ("mode", "operator") and plain.get(key) != value
        ]
        outputs = self.outputs()
        left = ", ".join(tensor.name for tensor in outputs.values())
        types = ", ".join(tensor.type_text for tensor in outputs.values())
        return f"{left} = {self.verb()}({', '.join(inputs + extra)}) : {types}"


def _text(value: Any) -> str:
    if isinstance(value, CudnnEnum):
        return value.name
    if isinstance(value, Graph):
        return "{" + "; ".join(map(str, value.ops)) + "}"
    return str(value)


class _FixedOp(Op):
    """An operation whose ports and parameters are its dataclass fields."""

    __slots__ = ()

    def ports(self) -> Iterator[tuple[str, Tensor]]:
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                yield item.name, value

    def parameters(self) -> dict[str, Any]:
        return {
            item.name: value
            for item in fields(self)  # type: ignore[arg-type]
            if item.name != "name" and not isinstance(value := getattr(self, item.name), Tensor)
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Matmul(_FixedOp):
    """c = a @ b over the last two dims; leading dims of a and b divide those of c (grouped heads).

    C: ``CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR``. a is [..., M, K], b is [..., K, N], c is [..., M, N]; an
    override tensor gives M, N or K per batch.
    """

    name: str
    a: Tensor
    b: Tensor
    c: Tensor
    compute_type: DataType = DataType.FLOAT
    m_override: Tensor | None = None
    n_override: Tensor | None = None
    k_override: Tensor | None = None
    padding_value: float | None = None

    @property
    def kind(self) -> DescriptorType:
        return DescriptorType.OPERATION_MATMUL

    def __post_init__(self) -> None:
        a, b, c = self.a.dims, self.b.dims, self.c.dims
        if not len(a) == len(b) == len(c) >= 2:
            raise _shape_fault(self, "matmul-rank-mismatch", "a, b and c have different ranks, or fewer than 2 dims")
        if a[-1] != b[-2]:
            raise _shape_fault(
                self,
                "matmul-inner-dim-mismatch",
                f"K is {a[-1]} in {self.a.name!r} and {b[-2]} in {self.b.name!r}",
            )
        if (c[-2], c[-1]) != (a[-2], b[-1]):
            raise _shape_fault(
                self,
                "matmul-output-mismatch",
                f"{self.c.name!r} is {c[-2]} by {c[-1]}, {a[-2]} by {b[-1]} is needed",
            )
        for axis, (left, right, out) in enumerate(zip(a[:-2], b[:-2], c[:-2], strict=True)):
            if max(left, right) != out or out % left or out % right:
                raise _shape_fault(
                    self,
                    "matmul-batch-mismatch",
                    f"dim {axis} is {left} in {self.a.name!r}, {right} in {self.b.name!r}, {out} in {self.c.name!r}",
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pointwise(_FixedOp):
    """An elementwise operation; inputs broadcast to the output where their dim is 1.

    C: ``CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR``. Unary modes read x; binary ones x and b; BINARY_SELECT gives
    ``t ? x : b``; backward activations read dy and x and write dx.
    """

    name: str
    mode: PointwiseMode
    x: Tensor | None = None
    b: Tensor | None = None
    t: Tensor | None = None
    y: Tensor | None = None
    dy: Tensor | None = None
    dx: Tensor | None = None
    compute_type: DataType = DataType.FLOAT
    alpha1: float | None = None
    alpha2: float | None = None
    axis: int | None = None
    relu_lower_clip: float | None = None
    relu_upper_clip: float | None = None
    relu_lower_clip_slope: float | None = None
    elu_alpha: float | None = None
    softplus_beta: float | None = None
    swish_beta: float | None = None

    def verb(self) -> str:
        return self.mode.name.lower()

    @property
    def kind(self) -> DescriptorType:
        return DescriptorType.OPERATION_POINTWISE

    def __post_init__(self) -> None:
        needed = pointwise_ports(self.mode)
        given = {port for port, _ in self.ports()}
        if given != needed:
            raise GraphError(
                f"{self.mode.name} takes {_names(needed)}, got {_names(given)}",
                code="pointwise-ports",
                where=f"operation {self.name!r}",
            )
        output = self.dx if self.dx is not None else self.y
        assert output is not None
        for port, tensor in self.inputs().items():
            fits = tensor.rank == output.rank and all(
                dim in (1, out) for dim, out in zip(tensor.dims, output.dims, strict=True)
            )
            if not fits:
                raise _shape_fault(
                    self,
                    "pointwise-not-broadcastable",
                    f"{tensor.name!r} ({port}) does not broadcast to {output.name!r}: every dim must be 1 or equal",
                )
        if (self.axis is not None) != (self.mode is PointwiseMode.GEN_INDEX):
            raise GraphError(
                f"{self.mode.name} with axis {self.axis}: GEN_INDEX takes one, nothing else does",
                code="pointwise-axis",
                where=f"operation {self.name!r}",
            )
        if self.axis is not None and not 0 <= self.axis < output.rank:
            raise _shape_fault(self, "pointwise-axis", f"axis {self.axis} is not one of the {output.rank} dims")


def pointwise_ports(mode: PointwiseMode) -> set[str]:
    """Return the names of the tensors a pointwise mode takes and gives."""
    if mode in BACKWARD_MODES:
        return {"dy", "x", "dx"}
    if mode in TERNARY_MODES:
        return {"x", "b", "t", "y"}
    return {"x", "b", "y"} if mode in BINARY_MODES else {"x", "y"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction(_FixedOp):
    """y = operator over the dims of x that are smaller in y (1, or a factor: groups of heads).

    C: ``CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR``.
    """

    name: str
    operator: ReduceTensorOp
    x: Tensor
    y: Tensor
    compute_type: DataType = DataType.FLOAT
    deterministic: bool | None = None

    def verb(self) -> str:
        return f"reduce_{self.operator.name.lower()}"

    @property
    def kind(self) -> DescriptorType:
        return DescriptorType.OPERATION_REDUCTION

    def __post_init__(self) -> None:
        x, y = self.x, self.y
        if x.rank != y.rank or any(big % small for big, small in zip(x.dims, y.dims, strict=True)):
            raise _shape_fault(
                self, "reduction-shape-mismatch", f"every dim of {y.name!r} must divide that of {x.name!r}"
            )


@dataclass(frozen=True, slots=True)
class Parameters:
    """A parameter descriptor of a generic operation, such as a convolution's: kind and fields."""

    kind: DescriptorType
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_fields(self.kind, self.fields, f"parameters {self.kind.name}")

    def __hash__(self) -> int:
        return hash((self.kind, tuple(sorted(self.fields))))


@dataclass(frozen=True, slots=True)
class Operation(Op):
    """Any other operation: ``fields`` are those of its generated descriptor value.

    A field holds a :class:`Tensor` or a tuple of them, a number, an enumerator, :class:`Parameters` for a parameter
    descriptor, or a :class:`Graph` for a sub-graph.
    """

    type: DescriptorType
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> DescriptorType:
        return self.type

    def __post_init__(self) -> None:
        if not self.kind.name.startswith("OPERATION_"):
            raise GraphError(f"{self.kind.c_name} is no operation", code="not-an-operation", where=self.name)
        _check_fields(self.kind, self.fields, f"operation {self.name!r}")

    def __hash__(self) -> int:
        return hash((self.kind, self.name, tuple(sorted(self.fields))))

    def ports(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.fields.items():
            if isinstance(value, Tensor):
                yield name, value
            elif isinstance(value, tuple) and value and isinstance(value[0], Tensor):
                yield from ((f"{name}[{index}]", item) for index, item in enumerate(value))

    def parameters(self) -> dict[str, Any]:
        tensors = {port.split("[")[0] for port, _ in self.ports()}
        return {name: value for name, value in self.fields.items() if name not in tensors}


def _check_fields(kind: DescriptorType, given: Mapping[str, Any], where: str) -> None:
    facts = {item.field: item for item in DESCRIPTORS[kind].attributes if item.role != "output"}
    unknown = sorted(set(given) - set(facts))
    if unknown:
        raise GraphError(
            f"{kind.c_name} has no field {', '.join(unknown)}",
            code="unknown-field",
            where=where,
            fix=f"its fields are {', '.join(facts)}",
        )
    missing = [name for name, item in facts.items() if item.required and given.get(name) is None]
    if missing:
        raise GraphError(f"{kind.c_name} needs {', '.join(missing)}", code="missing-field", where=where)
    for name, value in given.items():
        tensor_expected = facts[name].types == (AttributeType.BACKEND_DESCRIPTOR,)
        items = value if isinstance(value, tuple) else (value,)
        if tensor_expected and not all(
            isinstance(item, (Tensor, Parameters, Operation, Graph, type(None))) for item in items
        ):
            raise GraphError(
                f"field {name} of {kind.c_name} is {value!r}, a Tensor, Parameters or Graph is needed",
                code="wrong-field-type",
                where=where,
            )


def _names(ports: set[str]) -> str:
    return ", ".join(sorted(ports)) or "nothing"


def _shape_fault(op: Op, code: str, headline: str) -> GraphError:
    shapes = "\n".join(f"{port:<4} {tensor.name} {list(tensor.dims)}" for port, tensor in op.ports())
    return GraphError(headline, code=code, where=f"{op.verb()} {op.name!r}, checked before any cuDNN call\n{shapes}")


@dataclass(frozen=True, slots=True)
class Graph:
    """An operation graph: operations in an order in which every virtual tensor is made before it is read.

    C: ``CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR``. Operations may be given in any order; they are sorted, stably.

    Raises
    ------
    GraphError
        ``empty-graph``, ``uid-twice``, ``name-twice``, ``tensor-produced-twice``, ``missing-producer``, ``cycle``.
    """

    ops: tuple[Op, ...]
    name: str = "graph"
    is_subgraph: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", _sorted_ops(tuple(self.ops), self.name, self.is_subgraph))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor, in the order operations touch them, ragged offsets included."""
        seen: dict[int, Tensor] = {}
        for op in self.ops:
            for _, tensor in op.ports():
                seen.setdefault(tensor.uid, tensor)
                if tensor.ragged_offset is not None:
                    seen.setdefault(tensor.ragged_offset.uid, tensor.ragged_offset)
            for value in op.parameters().values():
                if isinstance(value, Graph):
                    seen.update((tensor.uid, tensor) for tensor in value.tensors if tensor.uid not in seen)
        return tuple(seen.values())

    def tensor(self, key: str | int) -> Tensor:
        """Return the tensor of that name or uid."""
        for tensor in self.tensors:
            if key in (tensor.name, tensor.uid):
                return tensor
        names = ", ".join(tensor.name for tensor in self.tensors)
        raise GraphError(f"graph {self.name!r} has no tensor {key!r}", code="unknown-tensor", where=f"it has {names}")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors in memory that operations write."""
        return tuple(tensor for op in self.ops for tensor in op.outputs().values() if not tensor.virtual)

    @property
    def variant_pack_tensors(self) -> tuple[Tensor, ...]:
        """The tensors a variant pack must give: all that are not virtual."""
        return tuple(tensor for tensor in self.tensors if not tensor.virtual)

    def __str__(self) -> str:
        lines = [f"graph {self.name}"]
        lines += [f"  {tensor}" for tensor in self.tensors if not tensor.virtual]
        lines += [f"  {op}" for op in self.ops]
        return "\n".join(lines)


def _sorted_ops(ops: tuple[Op, ...], name: str, is_subgraph: bool) -> tuple[Op, ...]:
    if not ops:
        raise GraphError(f"graph {name!r} has no operations", code="empty-graph")
    tensors: dict[int, Tensor] = {}
    names: dict[str, int] = {}
    producer: dict[int, Op] = {}
    for op in ops:
        for port, tensor in op.ports():
            _register(tensor, tensors, names)
            if op.is_output(port):
                if tensor.uid in producer:
                    raise GraphError(
                        f"tensor {tensor.name!r} is written by {producer[tensor.uid].name!r} and by {op.name!r}",
                        code="tensor-produced-twice",
                        where=f"graph {name!r}",
                    )
                producer[tensor.uid] = op
    waiting = list(ops)
    made: set[int] = set()
    ordered: list[Op] = []
    while waiting:
        ready = [op for op in waiting if all(t.uid in made or t.uid not in producer for t in op.inputs().values())]
        if not ready:
            raise GraphError(
                f"the operations {', '.join(repr(op.name) for op in waiting)} wait for each other",
                code="cycle",
                where=f"graph {name!r}",
            )
        first = ready[0]
        waiting.remove(first)
        ordered.append(first)
        made.update(tensor.uid for tensor in first.outputs().values())
    for op in ordered:
        for port, tensor in op.inputs().items():
            if tensor.virtual and tensor.uid not in producer and not is_subgraph:
                raise GraphError(
                    f"virtual tensor {tensor.name!r} is read by {op.name!r} ({port}) but no operation writes it",
                    code="missing-producer",
                    where=f"graph {name!r}",
                    fix="let an operation of the graph write it, or make it a tensor in memory (virtual=False)",
                )
    return tuple(ordered)


def _register(tensor: Tensor, tensors: dict[int, Tensor], names: dict[str, int]) -> None:
    known = tensors.setdefault(tensor.uid, tensor)
    if known is not tensor and known != tensor:
        raise GraphError(
            f"uid {tensor.uid} belongs to two tensors, {known.name!r} and {tensor.name!r}",
            code="uid-twice",
            where=f"{known}\n{tensor}",
            fix="give every tensor its own uid, and use one and the same Tensor value everywhere",
        )
    uid = names.setdefault(tensor.name, tensor.uid)
    if uid != tensor.uid:
        raise GraphError(
            f"the name {tensor.name!r} belongs to two tensors, uids {uid} and {tensor.uid}", code="name-twice"
        )
    if tensor.ragged_offset is not None:
        _register(tensor.ragged_offset, tensors, names)
