"""Unusual data types: of tensors in memory, of virtual tensors, and of computation."""

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
from ...graph.data_types import HALF_TYPES, LOW_PRECISION_TYPES, get_data_type_word
from ...graph.ir import BLOCK_SCALES, Graph, Matmul, Op, Operation, Pointwise, Reduction, Tensor
from ..relations import NORMS
from .blocks import find_usual_block_scaled_type, get_field_name_of_block_scaled_tensor
from .deviation import (
    Deviation,
    find_tensors_computed_from_operation_kind,
    find_tensors_in_memory,
    get_operation_key,
    is_integer_product,
    is_logical_operation,
    make_graph_change_of_operation,
    make_unusual_property_of_tensors,
    set_fields,
    set_tensor_fields,
)

__all__ = ["FINALIZED", "find_unusual_compute_types", "find_unusual_types", "find_unusual_virtual_types"]

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


def _find_types_required_by_operations(graph: Graph) -> dict[int, DataType]:
    """Return, by uid, the data type that an operation requires of a tensor."""
    small = find_usual_block_scaled_type(graph)
    found: dict[int, DataType] = {}
    for op in graph.ops:
        if isinstance(op, Reduction) and not op.y.virtual:
            found[op.y.uid] = _T.FLOAT
        for port, tensor in op.ports():
            kind = _find_type_required_by_field(op, port.split("[")[0], small)
            if kind is not None:
                found[tensor.uid] = kind
    return found


def _find_type_required_by_field(op: Op, port: str, small: DataType | None) -> DataType | None:
    """Return the type that an operation's field requires; None for any. `small`: type of block-scaled tensors."""
    if port in _OF_PORTS:
        return _OF_PORTS[port]
    if op.kind in NORMS and op.parameters().get("mode") is not NormMode.ADA_LAYER_NORM:
        return _T.FLOAT if port in _OF_NORMS or "running" in port or port == "peer_stat" else None
    if op.kind in BLOCK_SCALES:
        return small if port == get_field_name_of_block_scaled_tensor(op) else None
    if op.kind is _D.OPERATION_BN_FINALIZE_STATISTICS:
        return _T.HALF if port.startswith("eq_") else _T.FLOAT
    return _T.FLOAT if op.kind is _D.OPERATION_BN_BWD_WEIGHTS and port not in ("x", "dy") else None


def _find_most_frequent_type(tensors: list[Tensor]) -> DataType | None:
    """Return the most frequent type of tensors; in a tie a float type, then the one that occurs first."""
    counted = Counter(tensor.data_type for tensor in tensors)
    order = {kind: place for place, kind in enumerate(reversed(list(dict.fromkeys(t.data_type for t in tensors))))}
    plain = {kind: kind in (_T.HALF, _T.BFLOAT16, _T.FLOAT) for kind in counted}
    return max(counted, key=lambda kind: (counted[kind], plain[kind], order[kind])) if counted else None


def find_unusual_types(graph: Graph) -> Iterator[Deviation]:
    """Yield tensors in memory with a type unlike the others', or unlike what their operation requires."""
    known = _find_types_required_by_operations(graph)
    written = {tensor.uid for op in graph.ops for tensor in op.outputs().values()}
    scales = {t.uid for op in graph.ops if op.kind in BLOCK_SCALES for p, t in op.ports() if p == "scale"}
    main = [t for t in find_tensors_in_memory(graph) if t.uid not in known and t.uid not in scales]
    main.sort(key=lambda tensor: tensor.uid in written)
    usual = _find_most_frequent_type(main)
    reduced = find_tensors_computed_from_operation_kind(graph, Reduction)
    for tensor in find_tensors_in_memory(graph):
        in_port = tensor.uid in known
        needed = known.get(tensor.uid, None if tensor.uid in scales else usual)
        fitting = {needed, *(_list_wider_types(tensor.uid in reduced, usual) if tensor.uid in written else ())}
        if in_port and needed in _EIGHT_BITS:
            fitting |= _EIGHT_BITS
        if needed is not None and tensor.data_type not in fitting:
            yield _make_unusual_data_type_property(tensor, tensor.name, needed, "" if in_port else ", as the others")
    if usual in (_T.DOUBLE, _T.INT64, _T.INT32, _T.BOOLEAN, _T.UINT8):
        same = [tensor for tensor in main if tensor.data_type is usual]
        same += [tensor for tensor in graph.tensors if tensor.virtual and tensor.data_type is usual is _T.DOUBLE]
        old, new = get_data_type_word(usual), get_data_type_word(_T.FLOAT)
        one = make_unusual_property_of_tensors(
            same, "type of all", "data type", old, new, "changes numerics", data_type=_T.FLOAT
        )
        own = {item.key for item in find_unusual_compute_types(graph)}  # undone, or not, by themselves
        if usual is _T.DOUBLE and any(_find_compute_type(op) is usual for op in graph.ops):
            one = replace(one, title=f"{one.title}, and computation, too")
        yield replace(one, undo=lambda g: _set_float32_computation(one.undo(g), own))


_EIGHT_BITS = {_T.FP8_E4M3, _T.FP8_E5M2}  # either of which a port holds that holds one of them


def _make_unusual_data_type_property(tensor: Tensor, name: str, needed: DataType, as_others: str = "") -> Deviation:
    """Return the :class:`Deviation` for a tensor with another type than `needed`, which its text calls `name`."""
    found, uid = get_data_type_word(tensor.data_type), tensor.uid
    return Deviation(
        f"type {uid}",
        "data type",
        f"{name} has data type {found}",
        get_data_type_word(needed),
        f"{name}: {found} -> {get_data_type_word(needed)}{as_others}",
        "changes numerics",
        (tensor.name,),
        lambda graph: set_tensor_fields(graph, uid, data_type=needed),
    )


def _list_wider_types(is_reduced: bool, usual: DataType | None) -> tuple[DataType, ...]:
    """Return the types wider than operand type `usual` that a result may have; for reductions, float32 only."""
    if is_reduced:
        return (_T.FLOAT,)
    if usual in LOW_PRECISION_TYPES:
        return (*HALF_TYPES, _T.FLOAT)
    return (_T.INT32, _T.FLOAT) if usual is _T.INT8 else ()


def _set_float32_computation(graph: Graph | None, but: Collection[str]) -> Graph | None:
    """Return the graph computing in float32, except logical operations, and those with these compute type keys."""
    if graph is None:
        return None
    kept = {op for op in graph.ops if _find_compute_type(op) is _T.BOOLEAN or _make_compute_type_key(op) in but}
    return Graph(tuple(op if op in kept else _set_compute_type(op, _T.FLOAT) for op in graph.ops), graph.name)


def _make_compute_type_key(op: Op) -> str:
    return f"compute {get_operation_key(op)}"


def find_unusual_virtual_types(graph: Graph) -> Iterator[Deviation]:
    """Yield virtual tensors that are neither float32 nor of a type that a product or norm requires."""
    given = {one.data_type for one in find_tensors_in_memory(graph)}
    for tensor in graph.tensors:
        if tensor.virtual:
            needed = _find_usual_type_of_virtual_tensor(graph.users([tensor.uid]), tensor, given)
            if tensor.data_type is not needed:
                yield _make_unusual_data_type_property(tensor, f"virtual tensor {tensor.name}", needed)


def _find_usual_type_of_virtual_tensor(users: Sequence[Op], tensor: Tensor, given: Collection[DataType]) -> DataType:
    """Return the usual type of a virtual tensor between the operations that write and read it.

    Parameters
    ----------
    given
        The types of tensors in memory.
    """
    for op in users:
        for rule in (
            _find_type_of_other_matmul_operand,
            _find_usual_type_of_norm_tensor,
            _find_type_of_other_convolution_input,
        ):
            if (kind := rule(op, tensor)) is not None:
                return kind
    kind = tensor.data_type
    writers = [op for op in users if tensor.uid in {one.uid for one in op.outputs().values()}]
    integers = kind is _T.INT32 and any(map(is_integer_product, writers))
    if integers or any(map(is_logical_operation, writers)) or (kind in HALF_TYPES and kind in given):
        return kind
    return _T.FLOAT


def _find_type_of_other_matmul_operand(op: Op, tensor: Tensor) -> DataType | None:
    """Return the data type of a matmul's other operand, or of `tensor` if the other is virtual."""
    if not isinstance(op, Matmul) or tensor.uid not in (op.a.uid, op.b.uid):
        return None
    other = op.b if op.a.uid == tensor.uid else op.a
    return tensor.data_type if other.virtual or other.uid == tensor.uid else other.data_type


def _find_usual_type_of_norm_tensor(op: Op, tensor: Tensor) -> DataType | None:
    """Return a norm tensor's usual type: float32 for a float32 tensor, else the type of the norm's input."""
    x = op.inputs().get("x") if op.kind in NORMS else None
    if x is None or x.uid == tensor.uid:
        return None
    return tensor.data_type if tensor.data_type is _T.FLOAT else x.data_type


def _find_type_of_other_convolution_input(op: Op, tensor: Tensor) -> DataType | None:
    """Return the type of a convolution's other input, if the tensor is one of its inputs."""
    inputs = op.inputs() if op.kind in CONVOLUTIONS else {}
    if all(one.uid != tensor.uid for one in inputs.values()):
        return None
    return next((one.data_type for one in inputs.values() if one.uid != tensor.uid), _T.FLOAT)


_INNER = {"convolution": "comp_type", "resample": "comp_type"}


def _find_compute_type(op: Op) -> DataType | None:
    """Return the compute type of an operation; None if it has none."""
    if not isinstance(op, Operation):
        return op.compute_type if isinstance(op, Matmul | Pointwise | Reduction) else None
    inner = next((name for name in _INNER if name in op.fields), "")
    kind = op.fields[inner].fields.get(_INNER[inner]) if inner else op.fields.get("math_prec")
    return kind if isinstance(kind, DataType) else None


def _set_compute_type(op: Op, kind: DataType) -> Op:
    if isinstance(op, Operation):
        inner = next((name for name in _INNER if name in op.fields), "")
        given = inner or "math_prec" in op.fields
        return set_fields(op, inner, **{_INNER.get(inner, "math_prec"): kind}) if given else op
    assert isinstance(op, Matmul | Pointwise | Reduction)
    return replace(op, compute_type=kind)


def find_unusual_compute_types(graph: Graph) -> Iterator[Deviation]:
    """Yield operations with a compute type other than float32, int32 for integers, double for doubles."""
    for op in graph.ops:
        kind, kinds = _find_compute_type(op), {tensor.data_type for tensor in op.inputs().values()}
        usual = _T.INT32 if is_integer_product(op) else _T.FLOAT
        index = isinstance(op, Pointwise) and (op.mode is _P.GEN_INDEX or kinds <= {_T.INT32, _T.BOOLEAN})
        if kind is None or kind is usual or index or (kind is _T.DOUBLE and kinds == {_T.DOUBLE}):
            continue
        of_types = f" of {', '.join(sorted(map(get_data_type_word, kinds)))}" if usual is _T.INT32 else ""
        yield Deviation(
            _make_compute_type_key(op),
            "compute type",
            f"{op.name} ({op.display_name()}{of_types}) computes in {get_data_type_word(kind)}",
            get_data_type_word(usual),
            f"{op.name}: computation in {get_data_type_word(kind)} -> {get_data_type_word(usual)}",
            "changes numerics",
            (op.name,),
            make_graph_change_of_operation(op, lambda one, usual=usual: _set_compute_type(one, usual)),  # type: ignore[misc]
        )
