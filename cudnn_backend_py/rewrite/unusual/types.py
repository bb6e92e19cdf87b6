"""Unusual data types: of tensors, in memory or virtual, and of the computation. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ...generated.enums import (
    DataType,
    DescriptorType,
    NormMode,
    PointwiseMode,
)
from ...generated.operations import CONVOLUTIONS
from ...graph.data_types import HALF_TYPES, LOW_PRECISION_TYPES
from ...graph.ir import Graph, Matmul, Op, Operation, Pointwise, Reduction, Tensor
from ..relations import BLOCK_SCALES, NORMS
from .blocks import small_port, usual_format
from .deviation import (
    Deviation,
    at_operation,
    in_memory,
    key_of,
    made_of,
    multiplies_integers,
    of_several,
    set_fields,
    type_word,
    with_fields,
)

__all__ = ["FINALIZED", "odd_computing", "odd_types", "virtual_types"]

_D, _P, _T = DescriptorType, PointwiseMode, DataType


_FLOATS = (_T.HALF, _T.BFLOAT16, _T.FLOAT, *LOW_PRECISION_TYPES)


# What ports hold that are not the numbers of a model.
_OF_PORTS = {
    **dict.fromkeys(
        ("m_override", "n_override", "k_override", "first_token_offset", "token_index", "token_ks"), _T.INT32
    ),
    **dict.fromkeys(("mean", "inv_variance", "invstd", "sum", "sqsum", "epsilon", "exp_avg_factor"), _T.FLOAT),
    "idx": _T.INT8,
}


_OF_NORMS = ("scale", "bias", "dscale", "dbias", "bn_scale", "dbn_scale", "dbn_bias")


FINALIZED = (_D.OPERATION_BN_FINALIZE_STATISTICS, _D.OPERATION_BN_BWD_WEIGHTS)


def _types_of_ports(graph: Graph) -> dict[int, DataType]:
    """Return the types that tensors have in their ports, by uid, where the operation says them."""
    found: dict[int, DataType] = {}
    small = usual_format(graph)
    for op in graph.ops:
        if isinstance(op, Reduction) and not op.y.virtual:
            found[op.y.uid] = _T.FLOAT
        for port, tensor in op.ports():
            name = port.split("[")[0]
            of_norm = op.kind in NORMS and op.parameters().get("mode") is not NormMode.ADA_LAYER_NORM
            if name in _OF_PORTS:
                found[tensor.uid] = _OF_PORTS[name]
            elif of_norm and (name in _OF_NORMS or "running" in name or name == "peer_stat"):
                found[tensor.uid] = _T.FLOAT
            elif op.kind in BLOCK_SCALES and name == small_port(op) and small:
                found[tensor.uid] = small
            elif op.kind in FINALIZED and (port not in ("x", "dy") or op.kind is FINALIZED[0]):
                found[tensor.uid] = _T.HALF if port.startswith("eq_") and op.kind is FINALIZED[0] else _T.FLOAT
    return found


def _usual_type(tensors: list[Tensor]) -> DataType | None:
    """Return the type of most tensors; of as many, that of floats, of what is read first."""
    counted = Counter(tensor.data_type for tensor in tensors)
    order = {kind: place for place, kind in enumerate(reversed(list(dict.fromkeys(t.data_type for t in tensors))))}
    plain = {kind: kind in (_T.HALF, _T.BFLOAT16, _T.FLOAT) for kind in counted}
    return max(counted, key=lambda kind: (counted[kind], plain[kind], order[kind])) if counted else None


def odd_types(graph: Graph) -> Iterator[Deviation]:
    """Yield tensors in memory of another type than the others, or than their port holds."""
    known = _types_of_ports(graph)
    written = {tensor.uid for op in graph.ops for tensor in op.outputs().values()}
    scales = {t.uid for op in graph.ops if op.kind in BLOCK_SCALES for p, t in op.ports() if p == "scale"}
    main = [t for t in in_memory(graph) if t.uid not in known and t.uid not in scales]
    main.sort(key=lambda tensor: tensor.uid in written)
    usual = _usual_type(main)
    reduced = made_of(graph, Reduction)
    for tensor in in_memory(graph):
        needed = known.get(tensor.uid, None if tensor.uid in scales else usual)
        if needed is None or tensor.data_type is needed:
            continue
        if {needed, tensor.data_type} == {_T.FP8_E4M3, _T.FP8_E5M2} and tensor.uid in known:
            continue
        if tensor.uid in written and tensor.data_type in _widened(tensor.uid in reduced, usual):
            continue
        as_others = "" if tensor.uid in known else ", as the others"
        yield Deviation(
            f"type {tensor.uid}",
            "data type",
            f"{tensor.name} has data type {type_word(tensor.data_type)}",
            type_word(needed),
            f"{tensor.name}: {type_word(tensor.data_type)} -> {type_word(needed)}{as_others}",
            "changes numerics",
            (tensor.name,),
            lambda g, uid=tensor.uid, new=needed: with_fields(g, uid, data_type=new),  # type: ignore[misc]
        )
    if usual in (_T.DOUBLE, _T.INT64, _T.INT32, _T.BOOLEAN, _T.UINT8):
        same = [tensor for tensor in main if tensor.data_type is usual]
        old, new = type_word(usual), type_word(_T.FLOAT)
        one = of_several(same, "type of all", "data type", old, new, "changes numerics", data_type=_T.FLOAT)
        yield replace(one, undo=lambda g: _in_float(one.undo(g)))


def _widened(is_reduced: bool, usual: DataType | None) -> tuple[DataType, ...]:
    """Return the types that a result, maybe of a reduction, may have beside that of the operands."""
    if is_reduced:
        return (_T.FLOAT,)
    if usual in LOW_PRECISION_TYPES:
        return (*HALF_TYPES, _T.FLOAT)
    return (_T.INT32, _T.FLOAT) if usual is _T.INT8 else ()


def _in_float(graph: Graph | None) -> Graph | None:
    """Return the graph whose operations compute in float32."""
    return graph and Graph(tuple(_compute_in(op, _T.FLOAT) for op in graph.ops), graph.name)


def virtual_types(graph: Graph) -> Iterator[Deviation]:
    """Yield virtual tensors that are not float32, nor of the type in which a product or a norm holds them."""
    given = {one.data_type for one in in_memory(graph)}
    for tensor in graph.tensors:
        if not tensor.virtual:
            continue
        needed = _type_between(graph.users([tensor.uid]), tensor, given)
        if tensor.data_type is not needed:
            yield Deviation(
                f"type {tensor.uid}",
                "data type",
                f"virtual tensor {tensor.name} has data type {type_word(tensor.data_type)}",
                type_word(needed),
                f"virtual tensor {tensor.name}: {type_word(tensor.data_type)} -> {type_word(needed)}",
                "changes numerics",
                (tensor.name,),
                lambda g, uid=tensor.uid, new=needed: with_fields(g, uid, data_type=new),  # type: ignore[misc]
            )


def _type_between(users: Sequence[Op], tensor: Tensor, given: Collection[DataType]) -> DataType:
    """Return the type that a virtual tensor usually has: that of the other operand, of the input of a norm.

    By the operations that read or write it, and the types of tensors in memory.
    """
    for op in users:
        ports = op.inputs()
        if isinstance(op, Matmul) and tensor.uid in (op.a.uid, op.b.uid):
            other = op.b if op.a.uid == tensor.uid else op.a
            return other.data_type if other.uid != tensor.uid and not other.virtual else tensor.data_type
        if op.kind in NORMS and tensor.uid in {one.uid for one in ports.values()} and ports["x"].uid != tensor.uid:
            kinds = (_T.FLOAT, ports["x"].data_type)
            return tensor.data_type if tensor.data_type in kinds else kinds[1]
        if op.kind in CONVOLUTIONS and any(one.uid == tensor.uid for one in ports.values()):
            return next((one.data_type for one in ports.values() if one.uid != tensor.uid), _T.FLOAT)
        if op.kind in NORMS and any(t.uid == tensor.uid for t in op.outputs().values()) and "x" in ports:
            kinds = (_T.FLOAT, ports["x"].data_type)
            return tensor.data_type if tensor.data_type in kinds else kinds[1]
    integers = [op for op in users if tensor.uid in {t.uid for t in op.outputs().values()} and multiplies_integers(op)]
    kind = tensor.data_type
    if integers and kind is _T.INT32:
        return kind
    logical = {op.mode for op in users if isinstance(op, Pointwise) and op.y == tensor}
    if any(mode.name.startswith(("CMP_", "LOGICAL_")) or mode is _P.GEN_INDEX for mode in logical):
        return kind
    return kind if kind in HALF_TYPES and kind in given else _T.FLOAT


_INNER = {"convolution": "comp_type", "resample": "comp_type"}


def _computing_in(op: Op) -> DataType | None:
    """Return the type in which an operation computes; None where it says none."""
    if not isinstance(op, Operation):
        return op.compute_type if isinstance(op, Matmul | Pointwise | Reduction) else None
    inner = next((name for name in _INNER if name in op.fields), "")
    kind = op.fields[inner].fields.get(_INNER[inner]) if inner else op.fields.get("math_prec")
    return kind if isinstance(kind, DataType) else None


def _compute_in(op: Op, kind: DataType) -> Op:
    if isinstance(op, Operation):
        inner = next((name for name in _INNER if name in op.fields), "")
        given = inner or "math_prec" in op.fields
        return set_fields(op, inner, **{_INNER.get(inner, "math_prec"): kind}) if given else op
    assert isinstance(op, Matmul | Pointwise | Reduction)
    return replace(op, compute_type=kind)


def odd_computing(graph: Graph) -> Iterator[Deviation]:
    """Yield operations that do not compute in float32: integers in int32, doubles in double."""
    for op in graph.ops:
        kind, kinds = _computing_in(op), {tensor.data_type for tensor in op.inputs().values()}
        usual = _T.INT32 if multiplies_integers(op) else _T.FLOAT
        index = isinstance(op, Pointwise) and (op.mode is _P.GEN_INDEX or kinds <= {_T.INT32, _T.BOOLEAN})
        if kind is None or kind is usual or index or (kind is _T.DOUBLE and kinds == {_T.DOUBLE}):
            continue
        yield Deviation(
            f"compute {key_of(op)}",
            "compute type",
            f"{op.name} ({op.verb()}) computes in {type_word(kind)}",
            type_word(usual),
            f"{op.name}: computation in {type_word(kind)} -> {type_word(usual)}",
            "changes numerics",
            (op.name,),
            at_operation(op, lambda one, usual=usual: _compute_in(one, usual)),  # type: ignore[misc]
        )
