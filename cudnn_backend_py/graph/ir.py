"""Graphs as values: operations, and the graph that connects operations and tensors. Loads no library.

All of them are frozen, so they can be compared, printed, varied one field at a time (``dataclasses.replace``) and
saved. What can be known wrong without cuDNN is refused here, naming the tensor, the value found and the value needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ..errors import GraphError
from ..frozen import FrozenValue
from ..generated.attributes import ENUM_OF_TYPE, AttributeFacts, get_attributes
from ..generated.enums import (
    AttributeType,
    CudnnEnum,
    DataType,
    DescriptorType,
    NormFwdPhase,
    PointwiseMode,
    ReduceTensorOp,
)
from ..generated.operations import BACKWARD_MODES, BINARY_MODES, CONVOLUTIONS, OUTPUT_PORTS, TERNARY_MODES
from ..printable import format_in_angle_brackets, format_repr, make_lines_printable, printable
from ..system.notebook import SvgDisplay
from .data_types import suggest_enumerator
from .strides import packed_strides
from .tensor import LEAST, MOST, Tensor, check_name, describe_first_wrong_field_type

__all__ = [
    "ACTIVATION_NUMBERS",
    "BLOCK_SCALES",
    "Graph",
    "Matmul",
    "Op",
    "Operation",
    "Parameters",
    "Pointwise",
    "Reduction",
    "Tensor",
    "check_graph",
    "check_graph_writes_memory",
    "packed_strides",
]


class Op:
    """An operation of a graph: input and output tensors by port name, and parameters."""

    __slots__ = ()
    name: str

    @property
    def kind(self) -> DescriptorType:
        """The descriptor type of the operation."""
        raise NotImplementedError

    def ports(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (port, tensor) for every tensor of the operation."""
        raise NotImplementedError

    def is_output(self, port: str) -> bool:
        """Return whether the operation writes this port."""
        return port.split("[")[0] in OUTPUT_PORTS[self.kind]

    def subgraphs(self) -> Iterator[Graph]:
        """Yield the sub-graphs among the operation's parameters, including those of operations inside parameters."""
        for value in self.parameters().values():
            if isinstance(value, Graph):
                yield value
            elif isinstance(value, Op):
                yield from value.subgraphs()

    def inputs(self) -> dict[str, Tensor]:
        """Return the tensors that the operation reads, by port."""
        return {port: tensor for port, tensor in self.ports() if not self.is_output(port)}

    def outputs(self) -> dict[str, Tensor]:
        """Return the tensors that the operation writes, by port."""
        return {port: tensor for port, tensor in self.ports() if self.is_output(port)}

    def parameters(self) -> dict[str, Any]:
        """Return the operation's attributes other than its tensors and its name."""
        raise NotImplementedError

    def display_name(self) -> str:
        """Return the name under which the operation is printed, such as ``matmul``."""
        return self.kind.name.removeprefix("OPERATION_").lower()

    def __repr__(self) -> str:
        return format_in_angle_brackets(f"{type(self).__name__} {self}")

    def __str__(self) -> str:
        plain = {"compute_type": DataType.FLOAT}
        inputs = [
            printable(tensor.name) if port in ("a", "b", "x") else f"{port}={printable(tensor.name)}"
            for port, tensor in self.inputs().items()
            if "." not in port
        ]
        extra = [
            f"{key}={_format_value(value)}"
            for key, value in self.parameters().items()
            if value is not None and key not in ("mode", "operator") and plain.get(key) != value
        ]
        outputs = [tensor for port, tensor in self.outputs().items() if "." not in port or not tensor.virtual]
        left = ", ".join(printable(tensor.name) for tensor in outputs)
        types = ", ".join(tensor.type_text for tensor in outputs)
        return make_lines_printable(f"{left} = {self.display_name()}({', '.join(inputs + extra)}) : {types}")


def check_graph(graph: object) -> None:
    """Refuse a value that is not a :class:`Graph`.

    Raises
    ------
    GraphError
        ``not-a-graph``.
    """
    if not isinstance(graph, Graph):
        raise GraphError(
            f"{format_repr(graph)} is not a Graph",
            code="not-a-graph",
            fix="load_graph(path) reads a graph JSON, GraphBuilder.graph() returns what was built",
        )


def check_graph_writes_memory(graph: Graph) -> None:
    """Refuse a graph that writes no tensor in memory, as its results would be lost.

    Raises
    ------
    GraphError
        ``graph-writes-nothing``.
    """
    if any(written and not tensor.virtual for op in graph.ops for _, tensor, written in _iterate_tensors(op)):
        return
    if any(op.kind is DescriptorType.OPERATION_SIGNAL for op in graph.ops):  # it sets a flag that it also reads
        return
    read = {tensor.uid for op in graph.ops for _, tensor, written in _iterate_tensors(op) if not written}
    made = {tensor.uid: tensor.name for op in graph.ops for _, tensor, written in _iterate_tensors(op) if written}
    last = [name for uid, name in made.items() if uid not in read]
    raise GraphError(
        f"graph {graph.name!r} writes nothing: the results of all its operations are virtual",
        code="graph-writes-nothing",
        where=f"no operation reads {', '.join(map(printable, last[:6]))}" if last else "",
        fix="set virtual=False for the results that are wanted",
    )


def _format_value(value: Any) -> str:
    if isinstance(value, CudnnEnum):
        return value.name
    if isinstance(value, Graph):
        return "{" + "; ".join(map(str, value.ops)) + "}"
    if isinstance(value, Op):
        return "{" + str(value) + "}"
    if isinstance(value, Parameters):
        parts = (f"{key}={_format_value(item)}" for key, item in value.fields.items())
        return f"{value.kind.name.lower()}({', '.join(parts)})"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    return str(value)


class _OperationWithFields(Op, FrozenValue, kw_only=True):
    """Base class of operations with ports and parameters as fields."""

    def _check_types(self) -> None:
        if wrong := describe_first_wrong_field_type(self):
            raise GraphError(
                f"operation {self.name!r} has {wrong}", code="wrong-field-type", where=f"a {type(self).__name__}"
            )
        check_name(self.name, "an operation")

    def ports(self) -> Iterator[tuple[str, Tensor]]:
        for name in self.field_names:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                yield name, value

    def parameters(self) -> dict[str, Any]:
        return {
            name: value
            for name in self.field_names
            if name != "name" and not isinstance(value := getattr(self, name), Tensor)
        }

    def subgraphs(self) -> Iterator[Graph]:
        return iter(())  # no field holds one


class Matmul(_OperationWithFields):
    """c = a @ b over the last two dims; leading dims of a and b may divide those of c (grouped heads).

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
        self._check_types()
        a, b, c = self.a.dims, self.b.dims, self.c.dims
        if not len(a) == len(b) == len(c) >= 2:
            ranks = f"{self.a.name!r} has {len(a)} dims, {self.b.name!r} {len(b)}, {self.c.name!r} {len(c)}"
            raise _make_shape_error(self, "matmul-rank-mismatch", f"{ranks}: equal ranks of at least 2 are needed")
        if a[-1] != b[-2]:
            raise _make_shape_error(
                self,
                "matmul-inner-dim-mismatch",
                f"K is {a[-1]} in {self.a.name!r} but {b[-2]} in {self.b.name!r}",
            )
        if (c[-2], c[-1]) != (a[-2], b[-1]):
            raise _make_shape_error(
                self,
                "matmul-output-mismatch",
                f"{self.c.name!r} is {c[-2]} by {c[-1]}, {a[-2]} by {b[-1]} is needed",
            )
        for axis, (left, right, out) in enumerate(zip(a[:-2], b[:-2], c[:-2], strict=True)):
            if max(left, right) != out or out % left or out % right:
                raise _make_shape_error(
                    self,
                    "matmul-batch-mismatch",
                    f"dim {axis} is {left} in {self.a.name!r}, {right} in {self.b.name!r}, {out} in {self.c.name!r}",
                )


# The numbers of activations, as fields of a Pointwise and as attributes of its descriptor.
ACTIVATION_NUMBERS = (
    "relu_lower_clip",
    "relu_upper_clip",
    "relu_lower_clip_slope",
    "elu_alpha",
    "softplus_beta",
    "swish_beta",
)


class Pointwise(_OperationWithFields):
    """An elementwise operation; inputs broadcast to the output in dims of size 1.

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

    def display_name(self) -> str:
        return self.mode.name.lower()

    @property
    def kind(self) -> DescriptorType:
        return DescriptorType.OPERATION_POINTWISE

    def __post_init__(self) -> None:
        self._check_types()
        needed = list_pointwise_ports(self.mode)
        given = {port for port, _ in self.ports()}
        if given != needed:
            raise GraphError(
                f"{self.mode.name} takes {_join_ports(needed)}, got {_join_ports(given)}",
                code="pointwise-ports",
                where=f"operation {self.name!r}",
                fix=f"give {_join_ports(needed - given)}"
                if needed - given
                else f"leave out {_join_ports(given - needed)}",
            )
        output = self.dx if self.dx is not None else self.y
        assert output is not None
        for port, tensor in self.inputs().items():
            fits = tensor.rank == output.rank and all(
                dim in (1, out) for dim, out in zip(tensor.dims, output.dims, strict=True)
            )
            if not fits:
                raise _make_shape_error(
                    self,
                    "pointwise-not-broadcastable",
                    f"{tensor.name!r} ({port}) does not broadcast to {output.name!r}: every dim must be 1 or equal",
                )
        if (self.axis is not None) != (self.mode is PointwiseMode.GEN_INDEX):
            raise GraphError(
                f"{self.mode.name} has axis {self.axis}, but only GEN_INDEX has an axis"
                if self.axis is not None
                else "GEN_INDEX has no axis, one is needed",
                code="pointwise-axis",
                where=f"operation {self.name!r}",
            )
        if self.axis is not None and not 0 <= self.axis < output.rank:
            raise _make_shape_error(self, "pointwise-axis", f"axis {self.axis} is not one of the {output.rank} dims")


def list_pointwise_ports(mode: PointwiseMode) -> set[str]:
    """Return the names of the input and output tensors of a pointwise mode."""
    if mode in BACKWARD_MODES:
        return {"dy", "x", "dx"}
    if mode in TERNARY_MODES:
        return {"x", "b", "t", "y"}
    return {"x", "b", "y"} if mode in BINARY_MODES else {"x", "y"}


def compute_convolved_size(size: int, taps: int, before: int, after: int, stride: int, dilation: int) -> int:
    """Return the output size of a filter along one dim; below 1 if the filter does not fit."""
    return 1 + (size + before + after - 1 - (taps - 1) * dilation) // stride


class Reduction(_OperationWithFields):
    """y = operator over the dims of x that are smaller in y (1, or a divisor: groups of heads).

    C: ``CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR``.
    """

    name: str
    operator: ReduceTensorOp
    x: Tensor
    y: Tensor
    compute_type: DataType = DataType.FLOAT
    deterministic: bool | None = None

    def display_name(self) -> str:
        return f"reduce_{self.operator.name.lower()}"

    @property
    def kind(self) -> DescriptorType:
        return DescriptorType.OPERATION_REDUCTION

    def __post_init__(self) -> None:
        self._check_types()
        x, y = self.x, self.y
        if x.rank != y.rank or any(big % small for big, small in zip(x.dims, y.dims, strict=True)):
            raise _make_shape_error(
                self,
                "reduction-shape-mismatch",
                f"every dim of {y.name!r} must divide that of {x.name!r}: {list(y.dims)} of {list(x.dims)}",
            )


class Parameters(FrozenValue):
    """A parameter descriptor of an operation, such as a convolution's: descriptor type and fields.

    ``fields`` becomes read-only, in the order of the attributes, without what is None. What has one
    number for each spatial dim is a tuple, also of one.
    """

    kind: DescriptorType
    fields: Mapping[str, Any]

    def __init__(self, kind: DescriptorType, fields: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(kind, fields)

    def __post_init__(self) -> None:
        if not isinstance(self.kind, DescriptorType):
            raise _make_descriptor_type_error("the type of the parameters", self.kind)
        given = _check_fields(self.kind, self.fields, f"parameters {self.kind.name}")
        several = {item.field for item in get_attributes(self.kind) if item.max_count != 1}
        whole = {key: (item,) if key in several and isinstance(item, int) else item for key, item in given.items()}
        object.__setattr__(self, "fields", MappingProxyType(whole))

    def __hash__(self) -> int:
        return hash((self.kind, tuple(self.fields.items())))

    def __reduce__(self) -> tuple[Any, ...]:  # a mappingproxy does not pickle
        return (Parameters, (self.kind, dict(self.fields)))


class Operation(Op, FrozenValue):
    """An operation without a class of its own; ``fields`` are the attributes of its cuDNN descriptor.

    A field holds a :class:`Tensor` or a tuple of them, a number, an enumerator, :class:`Parameters` for a parameter
    descriptor, a :class:`Graph` for a sub-graph, or an :class:`Operation` inside this one, whose ports are then
    called ``softmax.x``. ``fields`` becomes read-only, as in :class:`Parameters`.
    """

    type: DescriptorType
    name: str
    fields: Mapping[str, Any]

    def __init__(self, type: DescriptorType, name: str, fields: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(type, name, fields)

    @property
    def kind(self) -> DescriptorType:
        return self.type

    def __post_init__(self) -> None:
        if not isinstance(self.type, DescriptorType):
            raise _make_descriptor_type_error(f"the type of operation {self.name!r}", self.type)
        if not self.kind.name.startswith("OPERATION_"):
            raise GraphError(
                f"{self.kind.c_name} is not the descriptor type of an operation",
                code="not-an-operation",
                where=str(self.name),
            )
        check_name(self.name, "an operation")
        given = _check_fields(self.kind, self.fields, f"operation {self.name!r}")
        object.__setattr__(self, "fields", given)
        if self.kind in CONVOLUTIONS:
            _check_convolution_ranks(self)
        elif self.kind in _PORTS_OF_EQUAL_DIMS:
            _check_result_keeps_dims(self)

    def __hash__(self) -> int:
        return hash((self.kind, self.name, tuple(self.fields.items())))

    def __reduce__(self) -> tuple[Any, ...]:  # a mappingproxy does not pickle
        return (Operation, (self.type, self.name, dict(self.fields)))

    def ports(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.fields.items():
            if isinstance(value, Tensor):
                yield name, value
            elif isinstance(value, Operation):
                yield from ((f"{name}.{port}", tensor) for port, tensor in value.ports())
            elif isinstance(value, tuple) and value and isinstance(value[0], Tensor):
                yield from ((f"{name}[{index}]", item) for index, item in enumerate(value))

    def is_output(self, port: str) -> bool:
        head, _, inner = port.partition(".")
        if inner:
            nested = self.fields[head]
            assert isinstance(nested, Operation)
            return nested.is_output(inner)
        if port in _STATISTICS and self.fields.get("phase") is NormFwdPhase.INFERENCE:
            return False  # what a training phase writes, inference reads
        return Op.is_output(self, port)

    def parameters(self) -> dict[str, Any]:
        tensors = {port.split("[")[0] for port, _ in self.ports()}
        return {name: value for name, value in self.fields.items() if name not in tensors}


def _check_convolution_ranks(op: Operation) -> None:
    """Refuse a convolution of tensors with different numbers of dims."""
    (first, tensor), *others = op.ports()
    for port, other in others:
        if other.rank != tensor.rank:
            raise _make_shape_error(
                op,
                "operation-shape",
                f"{first} {tensor.name!r} has {tensor.rank} dims, {port} {other.name!r} has {other.rank}: "
                "a convolution needs as many of all its tensors",
            )


BLOCK_SCALES = (
    DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE,
    DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE,
)


# The input of an operation that keeps its dims, and the result.
_PORTS_OF_EQUAL_DIMS = {
    **dict.fromkeys((*BLOCK_SCALES, DescriptorType.OPERATION_ROPE_FWD), ("x", "y")),
    DescriptorType.OPERATION_ROPE_BWD: ("dy", "dx"),
}


def _check_result_keeps_dims(op: Operation) -> None:
    """Refuse a result with other dims than the input, of operations that scale blocks or rotate elements."""
    source, result = _PORTS_OF_EQUAL_DIMS[op.kind]
    x, y = op.fields[source], op.fields[result]
    if y.dims != x.dims:
        needed = f"{list(x.dims)} is needed: those of {source} {x.name!r}"
        raise _make_shape_error(op, "operation-shape", f"{result} {y.name!r} has dims {list(y.dims)}, {needed}")


_STATISTICS = ("mean", "inv_variance")  # of a norm

# What a field may hold for an attribute's element type, and what that is called.
_ELEMENTS: dict[AttributeType, tuple[str, type | tuple[type, ...]]] = {
    AttributeType.BOOLEAN: ("bool", bool),
    AttributeType.INT32: ("int", int),
    AttributeType.INT64: ("int", int),
    AttributeType.VOID_PTR: ("int", int),
    AttributeType.FLOAT: ("float", (float, int)),
    AttributeType.DOUBLE: ("float", (float, int)),
    AttributeType.FRACTION: ("(numerator, denominator)", tuple),
    **{kind: (enum.__name__, enum) for kind, enum in ENUM_OF_TYPE.items()},
}


def _make_descriptor_type_error(who: str, kind: object) -> GraphError:
    return GraphError(f"{who} is {kind!r}, but a DescriptorType is needed", code="wrong-field-type")


def _check_fields(kind: DescriptorType, given: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return a descriptor's fields, checked, read-only and in its order, with lists as tuples and without None."""
    if not isinstance(given, Mapping):
        raise GraphError(
            f"{where} has fields {given!r}, a mapping of names to values is needed", code="wrong-field-type"
        )
    facts = {item.field: item for item in get_attributes(kind) if item.role != "output"}
    unknown = sorted(map(str, set(given) - set(facts)))
    if unknown:
        raise GraphError(
            f"{kind.c_name} has no field {', '.join(unknown)}",
            code="unknown-field",
            where=where,
            fix=f"its fields are {', '.join(facts)}",
        )
    missing = [name for name, item in facts.items() if item.required and given.get(name) is None]
    if missing:
        raise GraphError(f"{kind.c_name} needs a value for {', '.join(missing)}", code="missing-field", where=where)
    checked = {name: _convert_lists_to_tuples(given[name]) for name in facts if given.get(name) is not None}
    for name, value in checked.items():
        several = isinstance(value, tuple) and facts[name].max_count != 1
        if not all(_is_valid_attribute_value(item, facts[name]) for item in (value if several else (value,))):
            raise GraphError(
                f"field {name} of {kind.c_name} is {_format_briefly(value)}, "
                f"{_describe_required_type(facts[name])} is needed{_suggest_member(value, facts[name])}",
                code="wrong-field-type",
                where=where,
            )
    return MappingProxyType(checked)


def _suggest_member(value: object, facts: AttributeFacts) -> str:
    """Return the enumerator most similar to a text, to append to an error text; empty if none."""
    enums = (ENUM_OF_TYPE[kind] for kind in facts.types if kind in ENUM_OF_TYPE)
    return next((text for enum in enums if (text := suggest_enumerator(enum, value, f"{enum.__name__}."))), "")


def _convert_lists_to_tuples(value: Any) -> Any:
    return tuple(map(_convert_lists_to_tuples, value)) if isinstance(value, (list, tuple)) else value


def _is_valid_attribute_value(item: Any, facts: AttributeFacts) -> bool:
    for kind in facts.types:
        if kind is AttributeType.BACKEND_DESCRIPTOR:
            if _get_descriptor_type(item) in facts.element:
                return True
        elif isinstance(item, _ELEMENTS[kind][1]) and (kind is AttributeType.BOOLEAN or not isinstance(item, bool)):
            return not isinstance(item, int) or LEAST <= item <= MOST
    return False


def _get_descriptor_type(item: Any) -> DescriptorType | None:
    if isinstance(item, Tensor):
        return DescriptorType.TENSOR
    if isinstance(item, Graph):
        return DescriptorType.OPERATIONGRAPH
    return item.kind if isinstance(item, (Parameters, Operation)) else None


def _describe_required_type(facts: AttributeFacts) -> str:
    words: list[str] = []
    for kind in facts.types:
        if kind is not AttributeType.BACKEND_DESCRIPTOR:
            words.append(_ELEMENTS[kind][0])
            continue
        for element in facts.element:
            plain = {DescriptorType.TENSOR: "Tensor", DescriptorType.OPERATIONGRAPH: "Graph"}.get(element)
            stem = "Operation" if element.name.startswith("OPERATION_") else "Parameters"
            words.append(plain or f"{stem} {element.name}")
    one = " or ".join(dict.fromkeys(words))
    return one if facts.max_count == 1 else f"{one}, or a tuple of them,"


def _format_briefly(value: Any) -> str:
    """Return a value as text for a message: a graph value by its type and name."""
    if isinstance(value, Parameters):
        return f"Parameters {value.kind.name}"
    if isinstance(value, (Tensor, Op, Graph)):
        return f"{type(value).__name__} {value.name!r}"
    return repr(value)


def _join_ports(ports: set[str]) -> str:
    return ", ".join(sorted(ports)) or "nothing"


def _make_shape_error(op: Op, code: str, headline: str) -> GraphError:
    shapes = "\n".join(f"{port:<4} {printable(tensor.name)} {list(tensor.dims)}" for port, tensor in op.ports())
    return GraphError(
        headline, code=code, where=f"{op.display_name()} {op.name!r}, checked before any cuDNN call\n{shapes}"
    )


class _GraphCaches:
    """Caches of a graph, filled on demand; they are not fields and so not part of its value."""

    _by_key: dict[str | int, Tensor]
    _places: dict[int, int]
    _tensors: tuple[Tensor, ...]
    _uses: Mapping[int, tuple[int, ...]]


class Graph(_GraphCaches, SvgDisplay, FrozenValue):
    """An operation graph: operations in an order in which every virtual tensor is written before it is read.

    C: ``CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR``. Operations may be given in any order; they are sorted, stably.

    Raises
    ------
    GraphError
        ``empty-graph``, ``not-an-operation``, ``uid-twice``, ``name-twice``, ``tensor-produced-twice``,
        ``missing-producer``, ``cycle``.
    """

    ops: tuple[Op, ...]
    name: str = "graph"
    is_subgraph: bool = False

    def __post_init__(self) -> None:
        check_name(self.name, "a graph")
        for op in self.ops:
            if not isinstance(op, Op):
                raise GraphError(
                    f"graph {self.name!r} contains {op!r}, an operation is needed", code="not-an-operation"
                )
        object.__setattr__(self, "ops", _sort_ops(tuple(self.ops), self.name, self.is_subgraph))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor in order of first use, including ragged offsets and those of sub-graphs."""
        try:
            return self._tensors
        except AttributeError:
            object.__setattr__(self, "_tensors", self._find_tensors())
        return self._tensors

    def _find_tensors(self) -> tuple[Tensor, ...]:
        seen: dict[int, Tensor] = {}
        for op in self.ops:
            for _, tensor, _ in _iterate_tensors(op):
                touched: Tensor | None = tensor
                while touched is not None:
                    seen.setdefault(touched.uid, touched)
                    touched = touched.ragged_offset
        return tuple(seen.values())

    def tensor(self, key: str | int) -> Tensor:
        """Return the tensor with this name or uid."""
        try:
            return self._map_tensors_by_key()[key]
        except (KeyError, TypeError):  # the second of what cannot be hashed
            pass
        names = ", ".join(printable(tensor.name) for tensor in self.tensors)
        raise GraphError(f"graph {self.name!r} has no tensor {key!r}", code="unknown-tensor", where=f"it has {names}")

    def _map_tensors_by_key(self) -> dict[str | int, Tensor]:
        """Return the tensors by name and by uid."""
        try:
            return self._by_key
        except AttributeError:
            named = {tensor.name: tensor for tensor in self.tensors}
            object.__setattr__(self, "_by_key", {**named, **{tensor.uid: tensor for tensor in self.tensors}})
        return self._by_key

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors in memory that operations write, without scratch memory."""
        return tuple(
            tensor
            for op in self.ops
            for _, tensor, written in _iterate_tensors(op)
            if written and not tensor.virtual and not tensor.scratch
        )

    @property
    def variant_pack_tensors(self) -> tuple[Tensor, ...]:
        """The tensors a variant pack must provide: all that are not virtual."""
        return tuple(tensor for tensor in self.tensors if not tensor.virtual)

    def get_tensor_index(self, tensor: Tensor) -> int:
        """Return the index of a tensor in ``tensors``."""
        try:
            return self._places[tensor.uid]
        except AttributeError:
            object.__setattr__(self, "_places", {one.uid: place for place, one in enumerate(self.tensors)})
        return self._places[tensor.uid]

    @property
    def uses(self) -> Mapping[int, tuple[int, ...]]:
        """For each tensor's uid, the indices of the operations that read or write it, ascending.

        An operation touches what its sub-graphs touch, and the ragged offset of what it touches.
        """
        try:
            return self._uses
        except AttributeError:
            object.__setattr__(self, "_uses", MappingProxyType(self._find_uses()))
        return self._uses

    def _find_uses(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for place, op in enumerate(self.ops):
            for _, tensor, _ in _iterate_tensors(op):
                touched: Tensor | None = tensor
                while touched is not None:
                    places = found.setdefault(touched.uid, [])
                    if not places or places[-1] != place:
                        places.append(place)
                    touched = touched.ragged_offset
        return {uid: tuple(places) for uid, places in found.items()}

    def users(self, uids: Iterable[int]) -> tuple[Op, ...]:
        """Return the operations that read or write any of these tensors, in graph order."""
        return tuple(self.ops[place] for place in sorted({place for uid in uids for place in self.uses.get(uid, ())}))

    def __repr__(self) -> str:
        counts = ((len(self.ops), "operation"), (len(self.tensors), "tensor"))
        return format_in_angle_brackets(
            f"Graph {self.name!r}: " + ", ".join(f"{n} {what}{'s' if n > 1 else ''}" for n, what in counts)
        )

    def __str__(self) -> str:
        lines = [f"graph {printable(self.name)}"]
        lines += [f"  {tensor}" for tensor in self.tensors if not tensor.virtual]
        lines += [f"  {op}" for op in self.ops]
        return make_lines_printable("\n".join(lines))  # a line may begin with a name


def _iterate_tensors(op: Op) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield (port, tensor, whether written) of an operation and its sub-graphs; sub-graph ports are ``graph.port``."""
    for port, tensor in op.ports():
        yield port, tensor, op.is_output(port)
    for graph in op.subgraphs():
        for inner in graph.ops:
            for port, tensor, written in _iterate_tensors(inner):
                yield f"{graph.name}.{port}", tensor, written


def _sort_ops(ops: tuple[Op, ...], name: str, is_subgraph: bool) -> tuple[Op, ...]:
    """Return the operations sorted so that each tensor is written before it is read, otherwise in the given order."""
    if not ops:
        raise GraphError(f"graph {name!r} has no operations", code="empty-graph")
    producer = _find_producers(ops, name)
    waits_for: list[set[int]] = []
    for index, op in enumerate(ops):
        sources = set()
        for port, tensor, written in _iterate_tensors(op):
            source = producer.get(tensor.uid)
            # What a sub-graph writes and reads itself does not make its operation wait.
            if source is not None and not written and not (source == index and "." in port):
                sources.add(source)
            inside = is_subgraph or "." in port  # there the enclosing operation gives what no one writes
            if tensor.virtual and not written and source is None and not inside:
                raise GraphError(
                    f"virtual tensor {tensor.name!r} is read by {op.name!r} ({port}) but no operation writes it",
                    code="missing-producer",
                    where=f"graph {name!r}",
                    fix="let an operation of the graph write it, or make it a tensor in memory (virtual=False)",
                )
        waits_for.append(sources)
    feeds: dict[int, list[int]] = {}
    for index, sources in enumerate(waits_for):
        for source in sources:
            feeds.setdefault(source, []).append(index)
    ready = [index for index, sources in enumerate(waits_for) if not sources]
    ordered: list[Op] = []
    while ready:
        first = heapq.heappop(ready)
        ordered.append(ops[first])
        for index in feeds.get(first, ()):
            waits_for[index].discard(first)
            if not waits_for[index]:
                heapq.heappush(ready, index)
    if len(ordered) < len(ops):
        names = ", ".join(repr(ops[index].name) for index in _find_cycle(waits_for))
        raise GraphError(f"the operations {names} form a cycle", code="cycle", where=f"graph {name!r}")
    return tuple(ordered)


def _find_producers(ops: tuple[Op, ...], name: str) -> dict[int, int]:
    """Return the index of the operation that writes each tensor, by uid; check that uids and names are unique."""
    tensors: dict[int, Tensor] = {}
    names: dict[str, int] = {}
    producer: dict[int, int] = {}
    for index, op in enumerate(ops):
        for _, tensor, written in _iterate_tensors(op):
            _register_tensor(tensor, tensors, names)
            if written and tensor.uid in producer:
                raise GraphError(
                    f"tensor {tensor.name!r} is written by {ops[producer[tensor.uid]].name!r} and by {op.name!r}",
                    code="tensor-produced-twice",
                    where=f"graph {name!r}",
                    fix="let each operation write a tensor of its own",
                )
            if written:
                producer[tensor.uid] = index
    return producer


def _find_cycle(waits_for: list[set[int]]) -> list[int]:
    """Return the indices of the operations of one cycle, ascending."""
    index = next(index for index, sources in enumerate(waits_for) if sources)
    path: list[int] = []
    while index not in path:
        path.append(index)
        index = min(waits_for[index])
    return sorted(path[path.index(index) :])


def _register_tensor(tensor: Tensor, tensors: dict[int, Tensor], names: dict[str, int]) -> None:
    known = tensors.setdefault(tensor.uid, tensor)
    if known is not tensor and known != tensor:
        if known.name == tensor.name:
            other = [name for name in Tensor.field_names if getattr(known, name) != getattr(tensor, name)]
            raise GraphError(
                f"tensor {tensor.name!r} (uid {tensor.uid}) is used in two ways, with different {', '.join(other)}",
                code="uid-twice",
                where=f"{known}\n{tensor}",
                fix="give one of its uses a tensor of its own: another input, or what another operation writes",
            )
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
        _register_tensor(tensor.ragged_offset, tensors, names)
