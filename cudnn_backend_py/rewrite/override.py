"""Override dims, data types, attributes or attention options of a graph, requested by name.

Dims that belong together change together, and what an operation writes follows from what it reads. Pure, knows nothing
of cuDNN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import GraphError
from ..generated.enums import CudnnEnum, DataType, DescriptorType, PointwiseMode
from ..graph import data_types
from ..graph.attention import Attention, sdpa_backward, sdpa_forward
from ..graph.attention.recognize import read_attention
from ..graph.data_types import DATA_TYPES
from ..graph.ir import Graph, Matmul, Op, Operation, Parameters, Pointwise, Tensor
from ..graph.replace import iterate_all_ops, make_packed_tensor, replace_tensors
from .relations import Axis, AxisGroups, find_dim_relation, name_operation_in_errors

__all__ = ["apply_settings", "describe_attention_scale", "find_type", "override", "set_data_types", "set_dims"]

_D = DescriptorType
_ROUNDS = 20  # in which dims follow from each other


def _make_error(headline: str, fix: str | None = None) -> GraphError:
    return GraphError(headline, code="override", fix=fix)


def override(
    graph: Graph,
    *,
    dims: Mapping[str, tuple[int, ...]] | None = None,
    types: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Graph:
    """Return a graph with other settings, data types and dims, applied in this order; all else stays unchanged.

    Parameters
    ----------
    dims
        New dims by tensor name; 0 leaves a dim as it is.
    types
        Names of data types by tensor name; ``*`` means all tensors in memory that hold short floats.
    settings
        As for :func:`apply_settings`.

    Raises
    ------
    GraphError
        ``override``: a name is unknown, or the graph would be invalid; also what building a graph refuses.
    """
    graph = apply_settings(graph, settings or {})
    graph = set_data_types(graph, types or {})
    return set_dims(graph, dims) if dims else graph


# data types


def find_type(name: str) -> DataType:
    """Return the data type with this name: cuDNN's name, the short name in printed graphs, or a framework's name.

    Raises
    ------
    GraphError
        ``override``.
    """
    if (kind := data_types.find_type(name)) is not None:
        return kind
    raise _make_error(
        f"{name!r} is not a data type", f"use one of {', '.join(facts.short for facts in DATA_TYPES.values())}"
    )


def set_data_types(graph: Graph, types: Mapping[str, str]) -> Graph:
    """Return a graph with other data types for the named tensors."""
    new: dict[int, Tensor] = {}
    for name, kind in types.items():
        for tensor in _find_low_precision_tensors(graph) if name == "*" else [graph.tensor(name)]:
            new[tensor.uid] = dataclasses.replace(tensor, data_type=find_type(kind))
    return replace_tensors(graph, new) if new else graph


def _find_low_precision_tensors(graph: Graph) -> list[Tensor]:
    return [
        tensor
        for tensor in graph.tensors
        if DATA_TYPES[tensor.data_type].kind == "float" and DATA_TYPES[tensor.data_type].bits <= 16
    ]


# dims


def set_dims(graph: Graph, dims: Mapping[str, tuple[int, ...]]) -> Graph:
    """Return a graph with other dims for the named tensors; the dims of all other tensors are inferred."""
    sizes = _DimInference(graph)
    for name, wanted in dims.items():
        tensor = graph.tensor(name)
        if len(wanted) != tensor.rank or min(wanted) < 0:
            raise _make_error(
                f"{name!r} has {tensor.rank} dims {list(tensor.dims)}, but {list(wanted)} is requested",
                f"give {tensor.rank} numbers of 0 or more; 0 keeps a dim",
            )
        for axis, size in enumerate(wanted):
            if size:
                sizes.request_size((tensor.uid, axis), size)
    sizes.infer_outputs()
    return sizes.build_graph()


class _DimInference:
    """Computes the dims of all tensors of a graph after some dims are changed."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._tensors = {tensor.uid: tensor for tensor in graph.tensors}
        self._dims = {uid: list(tensor.dims) for uid, tensor in self._tensors.items()}
        self._groups = AxisGroups(graph.tensors)
        for op in iterate_all_ops(graph):
            with name_operation_in_errors(op):
                relation = find_dim_relation(op)
                links = (*(relation.pair_equal_axes(self._tensors) or ()), *relation.pair_likely_equal_axes())
            for one, other in links:
                if one in self._groups and other in self._groups and self._find_size(one) == self._find_size(other):
                    self._groups.merge(one, other)
        self._fixed: dict[Axis, int] = {}
        self._members = self._groups.list_axes_by_group()

    def _find_size(self, axis: Axis) -> int:
        return self._dims[axis[0]][axis[1]]

    def request_size(self, axis: Axis, size: int) -> None:
        """Set a dim and all dims that must equal it to the requested size."""
        root = self._groups.find_representative(axis)
        if self._fixed.get(root, size) != size:
            name = self._tensors[axis[0]].name
            raise _make_error(
                f"dim {axis[1]} of {name!r} is requested as {size}, but another requested dim, which must be equal, "
                f"is {self._fixed[root]}"
            )
        self._fixed[root] = size
        self._set_size(axis, size)

    def _set_size(self, axis: Axis, size: int) -> bool:
        if self._find_size(axis) == size:
            return False
        root = self._groups.find_representative(axis)
        if self._fixed.get(root, size) != size:
            name = self._tensors[axis[0]].name
            raise _make_error(f"dim {axis[1]} of {name!r} is inferred as {size}, but {self._fixed[root]} is requested")
        for uid, index in self._members[root]:
            self._dims[uid][index] = size
        return True

    def infer_outputs(self) -> None:
        """Infer the dims of operations' outputs from those of their inputs, until no dim changes."""
        for _ in range(_ROUNDS):
            changed = False
            for op in iterate_all_ops(self._graph):
                with name_operation_in_errors(op):
                    following = find_dim_relation(op).compute_dims_from_others(self._dims)
                for uid, dims in following.items():
                    if len(dims) != len(self._dims[uid]):
                        continue
                    for axis, size in enumerate(dims):
                        changed |= self._set_size((uid, axis), size)
            if not changed:
                return
        sizes = [f"dim {index} of {self._tensors[uid].name!r} as {size}" for (uid, index), size in self._fixed.items()]
        wanted = f"the requested dims contradict each other: {', '.join(sizes)}"
        raise _make_error(wanted if sizes else "the operations infer contradictory dims after the change")

    def build_graph(self) -> Graph:
        """Return the graph with the current dims."""
        new: dict[int, Tensor] = {}
        for uid, tensor in self._tensors.items():
            dims = tuple(self._dims[uid])
            if min(dims) < 1:
                raise _make_error(f"{tensor.name!r} would have dims {list(dims)}, 1 or more is needed")
            if dims != tensor.dims:
                new[uid] = make_packed_tensor(tensor, dims)
        for tensor in self._tensors.values():
            offset = tensor.ragged_offset
            if offset is not None and (changed := new.get(tensor.uid)) is not None:
                held = new.get(offset.uid, offset)
                new[offset.uid] = make_packed_tensor(held, (changed.dims[0] + 1, *held.dims[1:]))
        for uid, tensor in list(new.items()):
            if tensor.ragged_offset is not None and tensor.ragged_offset.uid in new:
                new[uid] = dataclasses.replace(tensor, ragged_offset=new[tensor.ragged_offset.uid])
        made = replace_tensors(self._graph, new) if new else self._graph
        ops = tuple(_extend_slice_limits(op, self._tensors) for op in made.ops)
        return Graph(ops, made.name, made.is_subgraph)


def _extend_slice_limits(op: Op, before: Mapping[int, Tensor]) -> Op:
    """Move the limits of a slice that were at the end of an axis to the axis's new end."""
    if not isinstance(op, Operation) or op.kind is not _D.OPERATION_SLICE:
        return op
    old, x = before[op.fields["x"].uid].dims, op.fields["x"].dims
    limits = tuple(
        now if limit == was else limit for limit, was, now in zip(op.fields["limit_indices"], old, x, strict=True)
    )
    return Operation(op.kind, op.name, {**op.fields, "limit_indices": limits})


# settings


def apply_settings(graph: Graph, settings: Mapping[str, str]) -> Graph:
    """Return a graph with other attributes, by-value numbers, or attention options.

    Parameters
    ----------
    settings
        By ``OPERATION.FIELD``, an attribute (``conv.stride``, ``act.mode``); by the name of a by-value tensor, whose
        number is set; or, of a graph that is attention, by a field of
        :class:`~cudnn_backend_py.graph.attention.Attention` (``causal``, ``dropout``), ``implementation``, or
        ``direction``: the graph is built again. Values are texts: ``true`` and ``false`` (an empty text is true),
        numbers, enumerators by name, several separated by commas.

    Raises
    ------
    GraphError
        ``override``, and what the attention builder refuses.
    """
    options: dict[str, str] = {}
    by_value = {tensor.name: tensor for tensor in graph.tensors if tensor.by_value}
    for key, value in settings.items():
        owner, dot, name = key.rpartition(".")
        if dot:
            op = next((op for op in graph.ops if op.name == owner), None)
            if op is None:
                names = ", ".join(op.name for op in graph.ops)
                raise _make_error(f"the graph has no operation named {owner!r}", f"the operations are {names}")
            with _name_setting_in_errors(key):
                changed = _set_field(op, name, value)
            graph = _replace_operation(graph, op, changed)
        elif key in by_value:
            tensor = by_value[key]
            with _name_setting_in_errors(key):
                held = _read_integer(value) if DATA_TYPES[tensor.data_type].kind == "integer" else _read_number(value)
            graph = replace_tensors(graph, {tensor.uid: dataclasses.replace(tensor, value=held)})
        else:
            options[key] = value
    return _rebuild_attention(graph, options) if options else graph


@contextmanager
def _name_setting_in_errors(key: str) -> Iterator[None]:
    """In the block, begin the headlines of errors about a value with the name of its setting."""
    try:
        yield
    except GraphError as error:
        if error.code != "override":
            raise
        raise _make_error(f"setting {key!r}: {error.headline}", error.sections.get("fix")) from None


def _replace_operation(graph: Graph, old: Op, new: Op) -> Graph:
    made = Graph(tuple(new if op is old else op for op in graph.ops), graph.name, graph.is_subgraph)
    return set_dims(made, {})


def _read_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _make_error(f"{text!r} is not a number") from None


def _read_integer(text: str) -> int:
    number = _read_number(text)
    if not number.is_integer():
        raise _make_error(f"{text!r} is not a whole number")
    return int(number)


_ALIASES = {
    "padding": ("pre_paddings", "post_paddings"),
    "stride": ("filter_strides", "strides"),
    "dilation": ("dilations",),
    "window": ("window_dims",),
    "compute_type": ("comp_type", "math_prec", "compute_type"),
}


def _set_field(op: Op, name: str, text: str) -> Op:
    """Return the operation with one attribute set, either its own or one of its nested parameters."""
    names = _ALIASES.get(name, (name,))
    if not isinstance(op, Operation):
        for item in dataclasses.fields(op):  # type: ignore[arg-type]
            if item.name in names and not isinstance(getattr(op, item.name), Tensor) and item.name != "name":
                value = _read_value(text, getattr(op, item.name), str(item.type))
                return dataclasses.replace(op, **{item.name: value})  # type: ignore[type-var]
        raise _make_missing_field_error(op, name)
    fields = dict(op.fields)
    found = False
    for key, value in op.fields.items():
        if key in names and not isinstance(value, (Tensor, Graph, Op, Parameters)):
            fields[key], found = _read_value(text, value), True
        elif isinstance(value, Parameters):
            inner = {field: _read_value(text, held) if field in names else held for field, held in value.fields.items()}
            found |= any(field in names for field in value.fields)
            fields[key] = Parameters(value.kind, inner)
    if not found:
        raise _make_missing_field_error(op, name)
    return Operation(op.kind, op.name, fields)


def _make_missing_field_error(op: Op, name: str) -> GraphError:
    known: set[str] = set()
    for key, value in op.parameters().items():
        known |= set(value.fields) if isinstance(value, Parameters) else {key}
    return _make_error(f"operation {op.name!r} has no field called {name!r}", f"it has {', '.join(sorted(known))}")


def _read_value(text: str, held: Any, annotation: str = "") -> Any:
    """Convert a text to the type of the value that it replaces."""
    if isinstance(held, tuple):
        parts = text.split(",")
        parts = parts * len(held) if len(parts) == 1 else parts
        if len(parts) != len(held):
            raise _make_error(f"{text!r} has {len(parts)} numbers separated by commas, {len(held)} are needed")
        return tuple(_read_value(part, one) for part, one in zip(parts, held, strict=True))
    if isinstance(held, bool):
        return _read_boolean(text)
    if isinstance(held, DataType):
        return find_type(text)
    if isinstance(held, CudnnEnum):
        members = type(held).__members__
        if text.upper() not in members:
            raise _make_error(f"{text!r} is not a {type(held).__name__}", f"use one of {', '.join(members)}")
        return members[text.upper()]
    if isinstance(held, int):
        return _read_integer(text)
    if isinstance(held, float) or "float" in annotation:
        return _read_number(text)
    raise _make_error(
        f"the present value is {held!r}, and a value of this type cannot be given as text", "build the graph in Python"
    )


def _read_boolean(text: str) -> bool:
    known = {"true": True, "yes": True, "1": True, "": True, "false": False, "no": False, "0": False}
    if text.lower() not in known:
        raise _make_error(f"{text!r} is neither true nor false", "give true or false")
    return known[text.lower()]


# attention


def _rebuild_attention(graph: Graph, settings: Mapping[str, str]) -> Graph:
    """Return an attention graph, rebuilt with other options."""
    use = read_attention(graph)
    names = [item.name for item in dataclasses.fields(Attention)]
    if use is None:
        by_value = [tensor.name for tensor in graph.tensors if tensor.by_value]
        raise _make_error(
            f"the graph has no setting {', '.join(settings)}",
            f"use OPERATION.FIELD, with {', '.join(op.name for op in graph.ops)}"
            + (f"; or {', '.join(by_value)}" if by_value else "")
            + "; options of attention only where the graph is attention",
        )
    options: dict[str, Any] = {name: getattr(use.problem, name) for name in names}
    if options["score_modifier"] is not None:
        raise _make_error(
            "attention with a score modifier cannot be rebuilt: the modifier cannot be read from the graph",
            "build the graph in Python with the other options",
        )
    options["scale"] = describe_attention_scale(graph)
    backward, form = use.backward, "unified" if use.form == "unified" else "composite"
    for key, text in settings.items():
        if key == "direction":
            if text not in ("forward", "backward"):
                raise _make_error(f"direction must be forward or backward, got {text!r}")
            backward = text == "backward"
        elif key == "implementation":
            form = text
        elif key not in names:
            raise _make_error(
                f"attention has no option {key!r}", f"it has {', '.join(names)}, implementation, direction"
            )
        else:
            with _name_setting_in_errors(key):
                _set_option(options, key, text)
    if backward:
        options |= {"max": False, "sum_exp": False, "stats": True}
    else:
        options |= {"dbias": False, "dsink": False, "deterministic": False}
        options |= {"max_total_seq_q": None, "max_total_seq_kv": None}
    build = sdpa_backward if backward else sdpa_forward
    version = (9, 21, 0) if use.form == "single operations" else None
    made = build(implementation=form, version=version, allow_hazards=True, **options)  # type: ignore[arg-type]
    return Graph(made.ops, graph.name, made.is_subgraph)


def _read_bias_dims(text: str) -> tuple[int, ...] | None:
    return tuple(_read_integer(part) for part in text.split(",")) if text else None


def _read_scale(text: str) -> float | str:
    return text if text in ("tensor", "none") else _read_number(text)


def _read_integer_or_none(text: str) -> int | None:
    return None if text in ("none", "") else _read_integer(text)


def _refuse_score_modifier(text: str) -> None:
    raise _make_error("a score modifier cannot be given as text: build the graph in Python")


# How the options of attention are read; the others are whole numbers or None.
_READERS: dict[str, Callable[[str], Any]] = {
    **{item.name: _read_boolean for item in dataclasses.fields(Attention) if str(item.type) == "bool"},
    **dict.fromkeys(("data_type", "output_type", "seed_type", "offset_type"), find_type),
    **dict.fromkeys(("layout", "alignment"), str),
    "bias": _read_bias_dims,
    "scale": _read_scale,
    "dropout": _read_number,
    "score_modifier": _refuse_score_modifier,
}
_FOLLOWERS = {  # options that stay equal to another one where they were
    "heads": ("kv_heads", "v_heads"),
    "kv_heads": ("v_heads",),
    "seq_q": ("seq_kv",),
    "head_dim": ("head_dim_v",),
    "data_type": ("output_type",),
}
_SCORES = ("batch", "heads", "seq_q", "seq_kv")  # the dims of the scores, and of a bias
_LAID_OUT = (
    *_SCORES,
    "head_dim",
    "head_dim_v",
    "kv_heads",
    "v_heads",
    "ragged",
    "page_size",
)  # with these, strides change


def _set_option(options: dict[str, Any], key: str, text: str) -> None:
    """Set an option of attention, and options that had its old value by default; recompute the layouts."""
    before = options[key]
    value = options[key] = _READERS.get(key, _read_integer_or_none)(text)
    options |= {same: value for same in _FOLLOWERS.get(key, ()) if options[same] == before}
    if key == "causal":
        options["right_bound"] = 0 if value else None
    if key == "right_bound":
        options["causal"] = False
    if key == "ragged" and value:
        options["padding"] = True
    if key in _LAID_OUT:
        options["layout"] = _find_layout_names(options)
    if key in _SCORES and options["bias"] is not None:
        place = _SCORES.index(key)
        follows = options["bias"][place] == before != 1
        options["bias"] = (
            *options["bias"][:place],
            value if follows else options["bias"][place],
            *options["bias"][place + 1 :],
        )


def _find_layout_names(options: Mapping[str, Any]) -> Any:
    """Return the layout name of each attention tensor, from its strides over heads and tokens."""
    layout = options["layout"]
    if isinstance(layout, str):
        return layout
    named: dict[str, str] = {}
    for name, strides in layout.items():
        if isinstance(strides, str):
            named[name] = strides
        elif name != "stats":
            b, h, s, _ = strides
            named[name] = "sbhd" if s > b else "bhsd" if h > s else "bshd"
    return named or "bshd"


def describe_attention_scale(graph: Graph) -> Any:
    """Return the scale factor of the scores as a number; ``tensor`` if it is in memory, ``none`` without one."""
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in (_D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD):
            return _describe_scale_factor(op.fields.get("scale"))
    score = next((op.c for op in graph.ops if isinstance(op, Matmul)), None)
    for op in graph.ops:
        if (
            isinstance(op, Pointwise)
            and op.mode is PointwiseMode.MUL
            and score is not None
            and op.x is not None
            and op.b is not None
            and score.uid in (op.x.uid, op.b.uid)
        ):
            other = op.b if op.x.uid == score.uid else op.x
            if math.prod(other.dims) == 1:
                return _describe_scale_factor(other)
    return "none"


def _describe_scale_factor(tensor: Tensor | None) -> Any:
    if tensor is None:
        return "none"
    return float(tensor.value) if tensor.by_value and tensor.value is not None else "tensor"
