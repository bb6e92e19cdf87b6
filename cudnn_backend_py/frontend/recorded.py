"""The recorded nodes, ports and tensor names of a graph, as cudnn-frontend reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

from ..printable import format_repr
from .arguments import check_instance
from .context import GraphContext
from .enums import NodeType, data_type
from .errors import (
    make_attribute_not_set_error,
    make_error_for_tensor_of_other_graph,
    make_invalid_value_error,
    make_kernel_not_offered_error,
)
from .ops.infer import infer_matmul, infer_pointwise
from .ops.node import pack_strides
from .tensors import tensor

__all__ = ["OPERATIONS", "GraphRecord", "Node", "Operation", "make_class_record_operations"]

Class = TypeVar("Class", bound=type)

_row_major_stride = pack_strides  # its name in cudnn.nodes


class Node:
    """An operation of a graph: name, kind, tensors by port, and the given arguments as ``params``.

    It is read only: what is changed in it changes no graph.
    """

    def __init__(self, name: str, node_type: NodeType, compute_data_type: Any = None) -> None:
        self.name = name
        self.node_type = node_type
        self.compute_data_type = compute_data_type
        self.inputs: dict[str, tensor] = {}
        self.outputs: dict[str, tensor] = {}
        self.params: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Node({self.name!r}, {self.node_type.name})"

    def validate(self) -> None:
        """Check that every port has a tensor.

        Raises
        ------
        ValueError
            If one is None.
        """
        for port, item in {**self.inputs, **self.outputs}.items():
            if item is None:
                raise make_attribute_not_set_error(f"port {port!r} of node {self.name!r} is None", fix="give a tensor")

    def infer_properties(self, context: GraphContext) -> None:
        """Set missing tensor types from the context, and infer dims and strides of matmul and elementwise results.

        Raises
        ------
        ValueError
            If the dims of the inputs do not fit.
        """
        for item in (*self.inputs.values(), *self.outputs.values()):
            if item.data_type == data_type.NOT_SET:
                kind = context.intermediate_data_type if item.virtual else context.io_data_type
                item.set_data_type(data_type.NOT_SET if kind is None else kind)
        if self.node_type is NodeType.MATMUL:
            infer_matmul(self.name, self.inputs, self.outputs["C"])
        elif self.node_type is NodeType.POINTWISE:
            infer_pointwise(self.name, list(self.inputs.values()), self.outputs["OUT_0"])


@dataclass(frozen=True)
class Operation:
    """An operation's result ports, tensor name suffixes and special arguments, as in cudnn-frontend 1.32.

    ``results`` are the ports of the returned tensors, in order; ``name_suffixes`` are the ends of their names by port,
    where they differ from the port. ``output_arguments`` are arguments that the operation writes, ``list_arguments``
    those that are lists of tensors, ``kernel_only_arguments`` those that only cudnn-frontend's own kernels have.
    ``new_second_argument`` is a tensor that is the second argument in 1.32 and does not exist in earlier versions.
    """

    node_type: NodeType
    results: tuple[str, ...]
    name_suffixes: Mapping[str, str] = field(default_factory=dict)
    output_arguments: tuple[str, ...] = ()
    list_arguments: tuple[str, ...] = ()
    kernel_only_arguments: tuple[str, ...] = ()
    new_second_argument: str = ""
    is_pointwise: bool = False

    def get_name_suffix(self, port: str) -> str:
        """Return the suffix of a result tensor's name."""
        return self.name_suffixes.get(port, port)


_STATISTICS_SUFFIXES = {
    "mean": "MEAN",
    "inv_var": "INV_VARIANCE",
    "next_running_mean": "NEXT_RUNNING_MEAN",
    "next_running_var": "NEXT_RUNNING_VAR",
}
_NORM_RESULTS = ("Y", "mean", "inv_var")
_GRADIENT_RESULTS = ("DX", "DScale", "DBias")
_GRADIENT_SUFFIXES = {"DScale": "DSCALE", "DBias": "DBIAS"}
_SOFTMAX_KERNEL_ARGUMENTS = ("softmax_precision", "attn_scale_prefolded")


def _make_norm_operations() -> dict[str, Operation]:
    made = {
        "rmsnorm": Operation(NodeType.RMSNORM, ("Y", "inv_var"), _STATISTICS_SUFFIXES),
        "rmsnorm_backward": Operation(NodeType.RMSNORM_BWD, _GRADIENT_RESULTS, {"DScale": "Dscale", "DBias": "Dbias"}),
        "batchnorm": Operation(
            NodeType.BATCHNORM,
            (*_NORM_RESULTS, "next_running_mean", "next_running_var"),
            _STATISTICS_SUFFIXES,
            list_arguments=("peer_stats",),
        ),
        "batchnorm_inference": Operation(NodeType.BATCHNORM_INFERENCE, ("Y",)),
        "batchnorm_backward": Operation(
            NodeType.BATCHNORM_BWD, _GRADIENT_RESULTS, _GRADIENT_SUFFIXES, list_arguments=("peer_stats",)
        ),
        "genstats": Operation(NodeType.GENSTATS, ("SUM", "SQ_SUM")),
        "bn_finalize": Operation(
            NodeType.BN_FINALIZE,
            ("EQ_SCALE", "EQ_BIAS", "MEAN", "INV_VARIANCE", "NEXT_RUNNING_MEAN", "NEXT_RUNNING_VAR"),
        ),
    }
    for name in ("layernorm", "adalayernorm", "instancenorm"):
        made[name] = Operation(NodeType[name.upper()], _NORM_RESULTS, _STATISTICS_SUFFIXES)
        made[f"{name}_backward"] = Operation(NodeType[f"{name.upper()}_BWD"], _GRADIENT_RESULTS, _GRADIENT_SUFFIXES)
    return made


_POINTWISE_METHODS = [
    "abs",
    "add",
    "add_square",
    "bias",
    "binary_select",
    "ceil",
    "cmp_eq",
    "cmp_ge",
    "cmp_gt",
    "cmp_le",
    "cmp_lt",
    "cmp_neq",
    "cos",
    "div",
    "elu",
    "elu_backward",
    "erf",
    "exp",
    "floor",
    "gelu",
    "gelu_approx_tanh",
    "gelu_approx_tanh_backward",
    "gelu_backward",
    "gen_index",
    "identity",
    "leaky_relu",
    "leaky_relu_backward",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "max",
    "min",
    "mod",
    "mul",
    "neg",
    "pow",
    "reciprocal",
    "relu",
    "relu_backward",
    "rsqrt",
    "scale",
    "sigmoid",
    "sigmoid_backward",
    "sin",
    "softplus",
    "softplus_backward",
    "sqrt",
    "sub",
    "swish",
    "swish_backward",
    "tan",
    "tanh",
    "tanh_backward",
]
_SHAPE_METHODS = ("reshape", "slice", "transpose", "concatenate", "rope")

#: By method of ``pygraph``.
OPERATIONS: dict[str, Operation] = {
    **{name: Operation(NodeType.POINTWISE, ("OUT_0",), is_pointwise=True) for name in _POINTWISE_METHODS},
    **_make_norm_operations(),
    **{name: Operation(NodeType[name.upper()], ("OUT_0",)) for name in _SHAPE_METHODS},
    "concatenate": Operation(NodeType.CONCATENATE, ("OUT_0",), list_arguments=("inputs",)),
    "rope_backward": Operation(NodeType.ROPE_BWD, ("OUT_0",)),
    "matmul": Operation(NodeType.MATMUL, ("C",)),
    "reduction": Operation(NodeType.REDUCTION, ("OUT_0",), new_second_argument="group_offset"),
    "conv_fprop": Operation(NodeType.CONV_FPROP, ("Y",)),
    "conv_dgrad": Operation(NodeType.CONV_DGRAD, ("DX",)),
    "conv_wgrad": Operation(NodeType.CONV_WGRAD, ("DW",)),
    "moe_grouped_matmul": Operation(NodeType.MOE_GROUPED_MATMUL, ("OUT_0",)),
    "moe_grouped_matmul_bwd": Operation(NodeType.MOE_GROUPED_MATMUL_BWD, ("dweight",)),
    "block_scale_quantize": Operation(
        NodeType.BLOCK_SCALE_QUANTIZE,
        ("Y", "scale"),
        kernel_only_arguments=("group_offset",),
        new_second_argument="group_offset",
    ),
    "block_scale_dequantize": Operation(NodeType.BLOCK_SCALE_DEQUANTIZE, ("OUT_0",)),
    "sdpa": Operation(
        NodeType.SDPA,
        ("O", "Stats"),
        output_arguments=("rng_dump", "score_max", "score_sum_exp"),
        kernel_only_arguments=(*_SOFTMAX_KERNEL_ARGUMENTS, "kv_mask"),
    ),
    "sdpa_backward": Operation(
        NodeType.SDPA_BWD,
        ("dQ", "dK", "dV"),
        output_arguments=("dBias", "dSink_token", "rng_dump"),
        kernel_only_arguments=_SOFTMAX_KERNEL_ARGUMENTS,
    ),
    "sdpa_fp8": Operation(
        NodeType.SDPA_FP8,
        ("O", "Stats", "Amax_S", "Amax_O"),
        output_arguments=("rng_dump", "score_max", "score_sum_exp"),
        kernel_only_arguments=(*_SOFTMAX_KERNEL_ARGUMENTS, "sf_o"),
    ),
    "sdpa_fp8_backward": Operation(
        NodeType.SDPA_FP8_BWD,
        ("dQ", "dK", "dV", "amax_dQ", "amax_dK", "amax_dV", "amax_dP"),
        output_arguments=("dSink_token",),
        kernel_only_arguments=_SOFTMAX_KERNEL_ARGUMENTS,
    ),
    "sdpa_mxfp8": Operation(
        NodeType.SDPA_MXFP8,
        ("O", "Stats", "Amax_O"),
        kernel_only_arguments=(*_SOFTMAX_KERNEL_ARGUMENTS, "sf_o", "scale_o"),
    ),
    "sdpa_mxfp8_backward": Operation(
        NodeType.SDPA_MXFP8_BWD,
        ("dQ", "dK", "dV", "amax_dQ", "amax_dK", "amax_dV"),
        output_arguments=("dSink_token",),
        kernel_only_arguments=_SOFTMAX_KERNEL_ARGUMENTS,
    ),
    # In cudnn-frontend's C++ only; ports as its C++ calls them.
    "rng": Operation(NodeType.RNG, ("Y",)),
    "resample": Operation(NodeType.RESAMPLE, ("Y", "Index")),
    "paged_cache_load": Operation(NodeType.PAGED_CACHE_LOAD, ("yOut",)),
}


#: Results of these get their dims when the graph is validated; those of others have them at once.
_DEFERRED_NODE_TYPES = (NodeType.MATMUL, NodeType.POINTWISE)


class GraphRecord:
    """The nodes and tensors of one graph in order of creation; `owner` is a weak reference to the graph."""

    def __init__(self, owner: Callable[[], Any] | None = None) -> None:
        self.owner = owner
        self.nodes: list[Node] = []
        self.tensors: dict[tensor, None] = {}
        self.bound_buffers: dict[tensor, Any] = {}
        self._node_counts: Counter[str] = Counter()
        self._next_uid = 1
        self.shown_results: dict[tensor, None] = {}
        self.is_recording = False

    def add_tensor(self, item: tensor) -> tensor:
        """Add a tensor to the graph, even one created by another graph; give it a uid if it has none.

        Raises
        ------
        ValueError
            If its uid is that of another tensor.
        """
        if item.uid and item not in self.tensors:
            self.claim_uid(item, item.uid)
        self.tensors.setdefault(item)
        if self.owner is not None:  # which the record of a function of the scores has not
            item.owner = self.owner
        if not item.uid_given and not item.uid:
            item.uid = self._take_next_free_uid()
        return item

    def move_to_end(self, item: tensor) -> None:
        """Move a tensor to the end of the recorded tensors, if it is one of them."""
        if item in self.tensors:
            del self.tensors[item]
            self.tensors[item] = None

    def set_inferred_result_shapes(self, results: Iterable[tensor]) -> None:
        """Set the inferred dims and strides of results, so that programs can read them."""
        for item in results:
            if not (item.dim and item.stride):
                item.dim, item.stride = item.infer_dims_and_strides()
                self.shown_results[item] = None

    def remove_inferred_shapes(self) -> None:
        """Remove inferred dims and strides that the program has not set itself, as the inputs may have changed."""
        for item in self.shown_results:
            item.dim = item.dim if item.dim_given else []
            item.stride = item.stride if item.stride_given else []

    def _take_next_free_uid(self, but: int = 0) -> int:
        taken = {but, *(item.uid for item in self.tensors)}
        while self._next_uid in taken:
            self._next_uid += 1
        self._next_uid += 1
        return self._next_uid - 1

    def notify_graph_of_change(self, what: str, item: tensor | None = None) -> None:
        """Notify the graph of the change `what` to one tensor or all; raise if the graph is finalized."""
        graph = None if self.owner is None else self.owner()
        if graph is not None:
            graph._invalidate(what, item)

    def claim_uid(self, item: tensor, uid: int) -> None:
        """Give a tensor the uid that a program chose; another tensor that got this uid by default gets a new one.

        Raises
        ------
        ValueError
            If a program gave it to another tensor; for a tensor of another graph, if another one has it.
        RuntimeError
            If cuDNN has the operations of the other one already.
        """
        other = next((other for other in self.tensors if other.uid == uid and other is not item), None)
        if other is None:
            return
        if None not in (item.owner, self.owner) and item.owner is not self.owner:
            raise make_error_for_tensor_of_other_graph(item.name, uid, other.name)
        if other.uid_given:
            raise make_attribute_not_set_error(
                f"uid {uid} is already user-assigned to tensor {other.name!r}", fix="give each tensor a uid of its own"
            )
        self.notify_graph_of_change(
            f"uid {uid} for tensor {item.name!r} changes that of tensor {other.name!r} in", other
        )
        other.uid = self._take_next_free_uid(but=uid)

    def make_node_name(self, operation: str, name: str) -> str:
        """Return the name of a new node: the given one, or the operation with a number."""
        if name:
            return name
        self._node_counts[operation] += 1
        return f"{operation}.{self._node_counts[operation] - 1}"

    def map_tensors_by_name(self) -> dict[str, tensor]:
        """Return the tensors with a unique name."""
        named = Counter(item.name for item in self.tensors)
        return {item.name: item for item in self.tensors if named[item.name] == 1}

    def find_tensor(self, name_or_uid: str | int) -> tensor | None:
        """Return a tensor by name or uid, None if there is none.

        Raises
        ------
        ValueError
            If several have that name.
        """
        if isinstance(name_or_uid, int):
            return next((item for item in self.tensors if item.uid == name_or_uid), None)
        found = [item for item in self.tensors if item.name == name_or_uid]
        if len(found) > 1:
            raise make_attribute_not_set_error(
                f"tensor name {name_or_uid!r} is ambiguous, {len(found)} have it", fix="look it up by its uid"
            )
        return found[0] if found else None


def make_class_record_operations(cls: Class) -> Class:
    """Make a graph class record a node per operation, with results named as in cudnn-frontend 1.32."""
    for name, operation in OPERATIONS.items():
        if hasattr(cls, name):
            setattr(cls, name, _make_recorder(name, operation, getattr(cls, name)))
    return cls


def _make_recorder(method: str, operation: Operation, add: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(add)
    def record_and_add_operation(self: Any, *args: Any, out_dims: Any = None, **kwargs: Any) -> Any:
        record: GraphRecord = self.record
        if record.is_recording:
            return add(self, *args, **kwargs)
        record.notify_graph_of_change(f"{method} is added to")
        parameters, names, valued, tensors, kinds = _inspect_parameters(add)
        if out_dims is not None and operation.node_type in _DEFERRED_NODE_TYPES:
            raise TypeError(f"{method}() takes no out_dims, its dims follow from its inputs")
        if operation.new_second_argument and len(args) > 1 and (args[1] is None or _is_tensor(args[1])):
            args, kwargs = (args[0], *args[2:]), {**kwargs, operation.new_second_argument: args[1]}
        for argument in operation.kernel_only_arguments:
            if kwargs.pop(argument, None):
                raise make_kernel_not_offered_error(
                    f"argument {argument} of {method} needs a kernel of cudnn-frontend's own"
                )
        kwargs = _drop_none_arguments(operation, valued, kwargs)
        if names[:1] == ["norm_forward_phase"] and args and _is_tensor(args[0]):
            args, kwargs = _reorder_norm_arguments(method, names, args, kwargs)
        given = _bind_arguments(method, parameters, self, args, kwargs)
        # The other way round, as cudnn-frontend 1.32 has them.
        if operation.is_pointwise and isinstance(given.get("compute_data_type"), str):
            args, kwargs = _reorder_name_argument(names, args, kwargs)
            given = _bind_arguments(method, parameters, self, args, kwargs)
        for argument, kind in kinds.items():
            if given.get(argument) is not None:
                check_instance(f"{argument} of {method}", given[argument], kind, f"a {_format_type(kind)}")
        name = record.make_node_name(method, _read_name_argument(given))
        if "name" in names and len(args) > names.index("name"):
            args = (*args[: names.index("name")], name, *args[names.index("name") + 1 :])
        else:
            kwargs["name"] = name
        node = Node(name, operation.node_type, _choose_compute_type(given, self.context.compute_type))
        parts = [f"IN_{at}" for at in range(len(names))] if operation.is_pointwise else names
        args = tuple(
            _to_graph_tensor(self, f"{name}::{parts[at]}", item) if at < len(names) and names[at] in tensors else item
            for at, item in enumerate(args)
        )
        labels = dict(zip(names, parts, strict=True))
        kwargs = {
            key: _to_graph_tensor(self, f"{name}::{labels[key]}", item) if key in tensors else item
            for key, item in kwargs.items()
        }
        _record_arguments(
            node,
            operation,
            method,
            _merge_arguments_and_keywords(_bind_arguments(method, parameters, self, args, kwargs)),
        )
        for item in (*node.inputs.values(), *node.outputs.values()):
            record.add_tensor(item)
        record.is_recording = True
        try:
            result = add(self, *args, **kwargs)
        finally:
            record.is_recording = False
        _record_results(record, node, operation, result, out_dims)
        record.nodes.append(node)
        if node.node_type not in _DEFERRED_NODE_TYPES:
            record.set_inferred_result_shapes(node.outputs.values())
        return result

    record_and_add_operation.__dict__["operation"] = operation
    return record_and_add_operation


@cache
def _inspect_parameters(add: Callable[..., Any]) -> tuple[Signature, list[str], set[str], set[str], dict[str, type]]:
    """Return a method's signature, and its parameters: all, with a value as default, tensors, flags and enums.

    Of a kind are those whose default is a value, those that may be tensors, and, with the class that is needed, those
    that are flags or words of an enumeration; types of data may be torch's.
    """
    parameters = signature(add)
    defaults = {name: one.default for name, one in parameters.parameters.items()}
    valued = {name for name, default in defaults.items() if default not in (None, Parameter.empty)}
    tensors = {name for name, one in parameters.parameters.items() if _may_be_tensor(str(one.annotation))}
    kinds = {
        name: type(default)
        for name, default in defaults.items()
        if isinstance(default, (bool, Enum)) and not isinstance(default, data_type)
    }
    return parameters, [name for name in defaults if name != "self"], valued, tensors, kinds


def _may_be_tensor(annotation: str) -> bool:
    return "tensor" in annotation or annotation.startswith("tuple[Any")


def _bind_arguments(
    method: str, parameters: Signature, graph: Any, args: Any, kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        return parameters.bind(graph, *args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"{method}(): {error}") from None


def _format_type(kind: type) -> str:
    return "bool" if kind is bool else f"cudnn.{kind.__name__}"


def _drop_none_arguments(operation: Operation, valued: set[str], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Remove arguments that are None from a call if the parameter's default is not None, so that the default applies.

    Of a matmul and of pointwise operations that is so for the type they compute in alone.
    """
    optional = {"compute_data_type"} & valued if operation.node_type in _DEFERRED_NODE_TYPES else valued
    return {name: value for name, value in kwargs.items() if value is not None or name not in optional}


def _choose_compute_type(given: Mapping[str, Any], of_graph: data_type) -> Any:
    kind = given.get("compute_data_type")
    return of_graph if kind is None or kind is data_type.NOT_SET else kind


def _read_name_argument(given: Mapping[str, Any]) -> str:
    name = given.get("name", given.get("keywords", {}).get("name"))
    return "" if name is None else check_instance("the name of an operation", name, str, "a text")


def _reorder_norm_arguments(
    method: str, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a norm in this package's order: tensors first, then the phase."""
    behind = names[1 : names.index("epsilon") + 1]
    if len(args) > len(behind):
        kwargs = {**kwargs, "norm_forward_phase": args[len(behind)]}
        args = args[: len(behind)]
    if "norm_forward_phase" not in kwargs:
        raise make_invalid_value_error(f"{method} has no norm_forward_phase", fix="give norm_forward_phase=...")
    return (), {**dict(zip(behind, args, strict=False)), **kwargs}


def _reorder_name_argument(
    names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Reorder a call's arguments if the name is before the compute type, as in cudnn-frontend 1.32."""
    at = names.index("compute_data_type")
    if len(args) <= at:  # by its keyword, where it can only be wrong
        return args, kwargs
    behind = ("name", "compute_data_type")
    return args[:at], {**dict(zip(behind, args[at:], strict=False)), **kwargs}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tensor) or hasattr(value, "__dlpack__")


def _to_graph_tensor(graph: Any, name: str, value: Any) -> Any:
    """Convert a framework's tensor to a graph tensor, and keep it for execution; return other values unchanged."""
    if type(value) in (list, tuple):
        return type(value)(_to_graph_tensor(graph, f"{name}_{at}", item) for at, item in enumerate(value))
    if isinstance(value, tensor) or not hasattr(value, "__dlpack__"):
        return value
    made = graph.tensor_like(value.detach() if getattr(value, "requires_grad", False) else value, name=name)
    graph.record.bound_buffers[made] = value
    return made


def _merge_arguments_and_keywords(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, with ``**keywords`` merged, without the name and the compute type."""
    flat = {**given, **given.get("keywords", {})}
    for name in ("self", "arguments", "keywords", "name", "compute_data_type"):
        flat.pop(name, None)
    return flat


def _record_arguments(node: Node, operation: Operation, method: str, given: Mapping[str, Any]) -> None:
    if operation.is_pointwise:
        node.params["mode"] = method
    if method == "matmul":
        node.params["padding"] = 0.0  # cudnn-frontend notes this one where it is not given, too
    for name, value in given.items():
        if value is None:
            continue
        if name in operation.list_arguments or name == "dropout":
            if not isinstance(value, Iterable):
                raise TypeError(f"{name} of {method} is {format_repr(value)}, a list is needed")
            _record_list_argument(node, name, value)
        elif isinstance(value, tensor):
            if name in operation.output_arguments:
                node.outputs[name] = value
            else:
                node.inputs[f"IN_{len(node.inputs)}" if operation.is_pointwise else name] = value
        else:
            node.params[name] = value


def _record_list_argument(node: Node, name: str, values: Iterable[Any]) -> None:
    values = list(values)
    for at, value in enumerate(values):
        (node.inputs if isinstance(value, tensor) else node.params)[f"{name}_{at}"] = value
    if values:
        node.params[f"_{name}_n" if name == "dropout" else f"_n_{name}"] = len(values)


def _record_results(record: GraphRecord, node: Node, operation: Operation, result: Any, out_dims: Any) -> None:
    dims = out_dims if isinstance(out_dims, dict) or out_dims is None else {operation.results[0]: out_dims}
    items = result if isinstance(result, list) else [result]
    for port, item in zip(operation.results, items, strict=False):
        if item is None:
            continue
        item.set_name(f"{node.name}::{operation.get_name_suffix(port)}")
        if dims and port in dims:
            item.set_dim(dims[port])
        node.outputs[port] = record.add_tensor(item)
