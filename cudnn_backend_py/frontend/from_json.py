"""Rebuild a ``pygraph`` from cudnn-frontend's JSON, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import CudnnBackendError
from ..importers.frontend_json import FrontendTensorRecords, make_unsupported_node_error, parse_number, read_nodes
from .enums import (
    attention_implementation,
    convolution_mode,
    data_type,
    diagonal_alignment,
    moe_grouped_matmul_mode,
    norm_forward_phase,
    padding_mode,
    reduction_mode,
    resample_mode,
    reshape_mode,
    rng_distribution,
    tensor_reordering,
)
from .errors import make_invalid_value_error
from .ops.attention_node import AttentionNode, get_port_name
from .ops.attention_rules import AttentionRequest, Kind
from .tensors import tensor

__all__ = ["add_nodes_from_json", "check_nodes"]


@dataclass(frozen=True)
class _MethodCall:
    """How a JSON node becomes a method call: the method, its tensor arguments by port, and its other arguments."""

    method: str
    ports: Mapping[str, str]
    numbers: Mapping[str, tuple[str, Callable[[Any], Any]]] = field(default_factory=dict)


def _return_unchanged(value: Any) -> Any:
    return value


def _make_enum_reader(enum: Any) -> Callable[[Any], Any]:
    return lambda name: _read_enum_member(enum, name)


def _read_enum_member(enum: Any, name: Any) -> Any:
    if not isinstance(name, str) or name not in enum.__members__:
        raise make_invalid_value_error(
            f"the JSON of the graph has {str(name)[:60]!r} where a {enum.__name__} is needed"
        )
    return enum[name]


def _read_number(value: Any) -> Any:
    """Return the number in a JSON value, in any of cudnn-frontend's notations."""
    number = parse_number(value)
    if number is None:
        raise make_invalid_value_error(f"the JSON of the graph has {str(value)[:60]!r} where a number is needed")
    return number


_WINDOW_NUMBERS = {name: (name, _return_unchanged) for name in ("pre_padding", "post_padding", "stride", "dilation")}
_CONVOLUTION_NUMBERS = {**_WINDOW_NUMBERS, "math_mode": ("convolution_mode", _make_enum_reader(convolution_mode))}
_PHASE_NUMBERS = {"forward_phase": ("norm_forward_phase", _make_enum_reader(norm_forward_phase))}
_NORM_PORTS = {"X": "input", "SCALE": "scale", "BIAS": "bias", "EPSILON": "epsilon"}
_GRADIENT_PORTS = {"DY": "grad", "X": "input", "SCALE": "scale", "MEAN": "mean", "INV_VARIANCE": "inv_variance"}
_ROPE_NUMBERS = {"output_scale": ("output_scale", _read_number), "rope_dim": ("rope_dim", _return_unchanged)}
_RUNNING_STATISTICS_PORTS = {
    "PREV_RUNNING_MEAN": "in_running_mean",
    "PREV_RUNNING_VAR": "in_running_var",
    "MOMENTUM": "momentum",
}

METHOD_CALLS: dict[str, _MethodCall] = {
    "MATMUL": _MethodCall("matmul", {"A": "A", "B": "B"}, {"padding_value": ("padding", _read_number)}),
    "REDUCTION": _MethodCall(
        "reduction",
        {"X": "input", "GROUP_OFFSET": "group_offset"},
        {"mode": ("mode", _make_enum_reader(reduction_mode))},
    ),
    "CONV_FPROP": _MethodCall("conv_fprop", {"X": "image", "W": "weight"}, _CONVOLUTION_NUMBERS),
    "CONV_DGRAD": _MethodCall("conv_dgrad", {"DY": "loss", "W": "filter"}, _CONVOLUTION_NUMBERS),
    "CONV_WGRAD": _MethodCall("conv_wgrad", {"X": "image", "DY": "loss"}, _CONVOLUTION_NUMBERS),
    "LAYER_NORM": _MethodCall("layernorm", _NORM_PORTS, _PHASE_NUMBERS),
    "ADA_LAYER_NORM": _MethodCall("adalayernorm", _NORM_PORTS, _PHASE_NUMBERS),
    "RMS_NORM": _MethodCall("rmsnorm", _NORM_PORTS, _PHASE_NUMBERS),
    "INSTANCE_NORM": _MethodCall("instancenorm", _NORM_PORTS, _PHASE_NUMBERS),
    "BATCHNORM": _MethodCall("batchnorm", _NORM_PORTS | _RUNNING_STATISTICS_PORTS),
    "LAYER_NORM_BPROP": _MethodCall("layernorm_backward", _GRADIENT_PORTS),
    "ADA_LAYER_NORM_BPROP": _MethodCall("adalayernorm_backward", _GRADIENT_PORTS),
    "RMS_NORM_BPROP": _MethodCall("rmsnorm_backward", _GRADIENT_PORTS),
    "INSTANCE_NORM_BPROP": _MethodCall("instancenorm_backward", _GRADIENT_PORTS),
    "DBN": _MethodCall("batchnorm_backward", _GRADIENT_PORTS),
    "BATCHNORM_INFERENCE": _MethodCall(
        "batchnorm_inference",
        {"X": "input", "MEAN": "mean", "INV_VARIANCE": "inv_variance", "SCALE": "scale", "BIAS": "bias"},
    ),
    "GENSTATS": _MethodCall("genstats", {"X": "input"}),
    "BN_FINALIZE": _MethodCall(
        "bn_finalize",
        {
            "SUM": "sum",
            "SQ_SUM": "sq_sum",
            "SCALE": "scale",
            "BIAS": "bias",
            "EPSILON": "epsilon",
            "ACCUM_COUNT": "accum_count",
            **_RUNNING_STATISTICS_PORTS,
        },
    ),
    "RNG": _MethodCall(
        "rng",
        {"Seed": "seed", "Offset": "offset"},
        {
            "distribution": ("distribution", _make_enum_reader(rng_distribution)),
            "bernoulli_probability": ("bernoulli_probability", _read_number),
        },
    ),
    "PAGED_CACHE_LOAD": _MethodCall(
        "paged_cache_load", {"container": "container", "seqLen": "seq_len", "pageTable": "page_table"}
    ),
    "RESHAPE": _MethodCall(
        "reshape", {"X": "input"}, {"reshape_mode": ("reshape_mode", _make_enum_reader(reshape_mode))}
    ),
    "TRANSPOSE": _MethodCall("transpose", {"X": "input"}, {"permutation": ("permutation", _return_unchanged)}),
    "ROPE": _MethodCall("rope", {"INPUT": "input", "FREQS": "freqs"}, _ROPE_NUMBERS),
    "ROPE_BWD": _MethodCall("rope_backward", {"DY": "dY", "FREQS": "freqs"}, _ROPE_NUMBERS),
    "RESAMPLE": _MethodCall(
        "resample",
        {"X": "input"},
        {
            "window": ("window", _return_unchanged),
            **{name: _WINDOW_NUMBERS[name] for name in ("stride", "pre_padding", "post_padding")},
            "resample_mode": ("resampling_mode", _make_enum_reader(resample_mode)),
            "padding_mode": ("padding_mode", _make_enum_reader(padding_mode)),
            "generate_index": ("generate_index", bool),
        },
    ),
    "MOE_GROUPED_MATMUL": _MethodCall(
        "moe_grouped_matmul",
        {
            "Token": "token",
            "Weight": "weight",
            "FirstTokenOffset": "first_token_offset",
            "TokenIndex": "token_index",
            "TokenKs": "token_ks",
        },
        {"mode": ("mode", _make_enum_reader(moe_grouped_matmul_mode)), "top_k": ("top_k", _return_unchanged)},
    ),
    "MOE_GROUPED_MATMUL_BWD": _MethodCall(
        "moe_grouped_matmul_bwd", {"DOutput": "doutput", "Token": "token", "FirstTokenOffset": "first_token_offset"}
    ),
    "BLOCK_SCALE_QUANTIZE": _MethodCall(
        "block_scale_quantize",
        {"X": "input"},
        {
            "block_size": ("block_size", _return_unchanged),
            "axis": ("axis", _return_unchanged),
            "transpose": ("transpose", bool),
        },
    ),
    "BLOCK_SCALE_DEQUANTIZE": _MethodCall(
        "block_scale_dequantize",
        {"X": "input", "scale": "descale"},
        {"block_size": ("block_size", _return_unchanged), "is_negative_scale": ("is_negative_scale", bool)},
    ),
}
_TAGS_WITH_OWN_READERS = ("POINTWISE", "SLICE", "CONCATENATE")
_SCALED_TENSORS = ("q", "k", "v", "o", "s", "do", "dp", "q_t", "k_t", "do_t")
_OUTPUT_ARGUMENTS = ("max", "sum_exp", "rng_dump", "dbias", "dsink")  # outputs that are given as arguments
_ATTENTION_ARGUMENTS = {
    get_port_name(name): name
    for name in (
        *("q", "k", "v", "o", "do", "dq", "dk", "dv", "stats", "scale", "bias", "block_mask", "sink"),
        *("seq_len_q", "seq_len_kv", "cu_seq_len_q", "cu_seq_len_kv", "page_table_k", "page_table_v"),
        *("dropout_seed", "dropout_offset", "dropout_mask", "dropout_scale", "dropout_scale_inv"),
        *("q_t", "k_t", "do_t", "do_f16", *_OUTPUT_ARGUMENTS),
        *(f"descale_{name}" for name in _SCALED_TENSORS),
        *(f"{kind}_{name}" for kind in ("scale", "amax") for name in ("s", "o", "dq", "dk", "dv", "dp")),
    )
}
_POINTWISE_NUMBERS = {
    "relu_lower_clip_slope": "negative_slope",
    "relu_lower_clip": "lower_clip",
    "relu_upper_clip": "upper_clip",
    "swish_beta": "swish_beta",
}
_METHODS_WITHOUT_COMPUTE_TYPE = ("reshape", "concatenate", "rng", "paged_cache_load")


def check_nodes(data: Any) -> None:
    """Raise if the JSON of a graph has nodes that :func:`add_nodes_from_json` cannot add.

    Raises
    ------
    GraphError
        ``frontend-json``.
    """
    for number, node in enumerate(read_nodes(data)):
        tag = node["tag"]
        if not (tag in METHOD_CALLS or tag in _TAGS_WITH_OWN_READERS or tag.startswith("SDPA")):
            raise make_unsupported_node_error(
                number, tag, f"{', '.join((*METHOD_CALLS, *_TAGS_WITH_OWN_READERS))}, SDPA"
            )


def add_nodes_from_json(graph: Any, data: Mapping[str, Any]) -> None:
    """Add the nodes in a graph's JSON to a ``pygraph``, with the tensors' dims, strides, types, names and uids.

    Raises
    ------
    RuntimeError
        What is missing, or cannot be.
    """
    writer = _GraphRebuilder(graph, data)
    for node in data["nodes"]:
        try:
            writer.add_node(node)
        except CudnnBackendError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            name = str(node.get("name"))[:60]
            raise make_invalid_value_error(f"node {name!r} of the JSON cannot be read: {error}") from error


def _get_attention_argument(port: Any) -> str:
    if port not in _ATTENTION_ARGUMENTS:
        raise make_invalid_value_error(f"the attention node of the JSON has the unknown port {str(port)[:60]!r}")
    return _ATTENTION_ARGUMENTS[port]


def _swap_kv_dims_back(item: tensor | None) -> None:
    """Swap the last two dims of K or V back to [b, h, s, d], if the built graph had swapped them."""
    if item is not None and len(item.stride) == 4 and item.stride[3] != 1 and item.stride[2] == 1:
        for sizes in (item.dim, item.stride):
            sizes[2:] = reversed(sizes[2:])


class _GraphRebuilder:
    def __init__(self, graph: Any, data: Mapping[str, Any]) -> None:
        self.graph = graph
        self.records = FrontendTensorRecords(data)
        self.made: dict[int, tensor] = {}  # by the identity of the record

    def add_node(self, node: Mapping[str, Any]) -> None:
        """Add one node to the graph, and set the properties of its results."""
        inputs, outputs = node.get("inputs"), node.get("outputs")
        if not isinstance(inputs, dict) or not isinstance(outputs, dict):
            raise make_invalid_value_error(
                f"node {str(node.get('name'))[:60]!r} of the JSON has no inputs or no outputs"
            )
        given = {port: self._get_tensor(key) for port, key in inputs.items()}
        if str(node["tag"]).startswith("SDPA"):
            self._add_attention(node, given)
        else:
            self._add_operation(node, given)
        made = self.graph._nodes[-1].outputs
        if node["tag"] == "RESHAPE":  # says the dims of its result, whose tensor may not
            made["Y"].set_dim(node.get("dim") or ()).set_stride(node.get("stride") or ())
        for port, key in outputs.items():
            if port not in made:
                name = str(node.get("name"))[:60]
                raise make_invalid_value_error(f"node {name!r} of the JSON has the unknown output {str(port)[:60]!r}")
            self._set_tensor_properties(made[port], key)
        for port in [port for port in made if port not in outputs]:  # such as a gradient that is left out
            del made[port]

    def _add_operation(self, node: Mapping[str, Any], given: Mapping[str, tensor]) -> None:
        method, arguments = self._read_method_call(node, given)
        compute = node.get("compute_data_type")
        if compute is not None and method not in _METHODS_WITHOUT_COMPUTE_TYPE:
            arguments["compute_data_type"] = _read_enum_member(data_type, compute)
        name = node.get("name")
        getattr(self.graph, method)(**arguments, name=name if isinstance(name, str) else "")

    def _add_attention(self, node: Mapping[str, Any], given: Mapping[str, tensor]) -> None:
        outputs = {_get_attention_argument(port): key for port, key in node["outputs"].items()}
        tensors = {_get_attention_argument(port): item for port, item in given.items()}
        tensors |= {name: self._get_tensor(key) for name, key in outputs.items() if name in _OUTPUT_ARGUMENTS}
        if node.get("score_mod"):
            name = str(node.get("name"))[:60]
            raise make_invalid_value_error(
                f"attention {name!r} of the JSON has a score function, which JSON does not contain",
                fix="create the graph with its program, or serialize() the built plan",
            )
        if node.get("attn_scale_value") is not None:
            tensors.pop("scale", None)  # which a graph that was built has as a tensor, too
        for name in ("k", "v"):
            _swap_kv_dims_back(tensors.get(name))
        eight = any(name.startswith("descale_") for name in tensors)
        kind: Kind = "mxfp8" if node.get("is_mxfp8") else "fp8" if eight else "half"

        def read_option(key: str, how: Callable[[Any], Any], default: Any = None) -> Any:
            return default if node.get(key) is None else how(node[key])

        request = AttentionRequest(
            name=str(node.get("name") or ""),
            kind=kind,
            backward="BWD" in node["tag"],
            tensors=tensors,
            scale=read_option("attn_scale_value", _read_number),
            alibi=bool(node.get("alibi_mask")),
            padding=bool(node.get("padding_mask")),
            alignment=read_option(
                "diagonal_alignment", _make_enum_reader(diagonal_alignment), diagonal_alignment.TOP_LEFT
            ),
            left_bound=node.get("left_bound"),
            right_bound=node.get("right_bound"),
            dropout=read_option("dropout_probability", _read_number),
            stats="stats" in outputs,
            max_seq_kv=node.get("max_seq_len_kv"),
            max_total_seq_q=node.get("max_total_seq_len_q"),
            max_total_seq_kv=node.get("max_total_seq_len_kv"),
            deterministic=bool(node.get("is_deterministic_algorithm")),
            implementation=read_option(
                "implementation", _make_enum_reader(attention_implementation), attention_implementation.AUTO
            ),
            compute=read_option("compute_data_type", _make_enum_reader(data_type), data_type.NOT_SET),
            stats_log2=bool(node.get("stats_use_log2")),
            unfuse_fma=bool(node.get("unfuse_fma")),
        )
        self.graph._add_node(
            AttentionNode(request, [name for name in outputs if name not in _OUTPUT_ARGUMENTS], self.graph)
        )

    def _read_method_call(self, node: Mapping[str, Any], given: Mapping[str, tensor]) -> tuple[str, dict[str, Any]]:
        tag = node["tag"]
        if tag == "POINTWISE":
            return self._read_pointwise_call(node, given)
        if tag == "CONCATENATE":
            found: dict[str, Any] = {"inputs": list(given.values()), "axis": node.get("axis")}
            return "concatenate", found | {"in_place_index": node.get("in_place_index")}
        if tag == "SLICE":
            steps = node.get("slice_strides") or [1] * len(node.get("slices", ()))
            return "slice", {
                "input": given["X"],
                "slices": [
                    slice(int(first), int(last), int(step))
                    for (first, last), step in zip(node["slices"], steps, strict=True)
                ],
            }
        call = METHOD_CALLS[tag]
        arguments: dict[str, Any] = {call.ports[port]: item for port, item in given.items() if port in call.ports}
        if tag == "RMS_NORM_BPROP":
            arguments["has_dbias"] = "DBIAS" in node["outputs"]
        left = [port for port in given if port not in call.ports]
        if left:
            raise make_invalid_value_error(
                f"node {str(node.get('name'))[:60]!r} of the JSON has the unknown inputs {', '.join(left)[:60]}"
            )
        if node.get("peer_stats"):
            arguments["peer_stats"] = [self._get_tensor(key) for key in node["peer_stats"]]
        for key, (argument, convert) in call.numbers.items():
            if node.get(key) is not None:
                arguments[argument] = convert(node[key])
        return call.method, arguments

    def _read_pointwise_call(self, node: Mapping[str, Any], given: Mapping[str, tensor]) -> tuple[str, dict[str, Any]]:
        mode = str(node.get("mode"))
        method = mode.lower().removesuffix("_fwd")
        method = f"{method.removesuffix('_bwd')}_backward" if method.endswith("_bwd") else method
        if not hasattr(type(self.graph), method):
            raise make_invalid_value_error(
                f"the JSON of the graph has mode {mode[:60]!r}, which is not an elementwise operation"
            )
        from inspect import signature

        names = [name for name in signature(getattr(type(self.graph), method)).parameters if name != "self"]
        arguments: dict[str, Any] = dict(zip(names, given.values(), strict=False))
        for key, argument in _POINTWISE_NUMBERS.items():
            if node.get(key) is not None and argument in names:
                arguments[argument] = _read_number(node[key])
        if method == "gen_index":
            arguments["axis"] = node.get("axis")
        return method, arguments

    def _get_tensor(self, key: Any) -> tensor:
        record = self.records.get(key)
        made = self.made.get(id(record))
        if made is None:
            made = self.graph.tensor(record.get("dim") or ())
            self._set_tensor_properties(made, key)
            self.graph.record.add_tensor(made)
        return made

    def _set_tensor_properties(self, item: tensor, key: Any) -> None:
        """Apply a tensor's JSON record to the tensor, and register it for later nodes."""
        record = self.records.get(key)
        self.made[id(record)] = item
        if isinstance(record.get("name"), str) and record["name"]:
            item.set_name(record["name"])
        if record.get("dim"):
            item.set_dim(record["dim"])
        if record.get("stride"):
            item.set_stride(record["stride"])
        if record.get("data_type") is not None:
            item.set_data_type(_read_enum_member(data_type, record["data_type"]))
        if record.get("uid"):  # variant packs name it, also where it was not given
            item.set_uid(record["uid"])
        item.set_is_virtual(bool(record.get("is_virtual")))
        if record.get("is_pass_by_value"):
            item.set_is_pass_by_value(True)
            item.value = parse_number(record.get("pass_by_value"))
        if record.get("reordering_type") is not None:
            item.set_reordering_type(_read_enum_member(tensor_reordering, record["reordering_type"]))
        if record.get("alignment") is not None:
            item.set_alignment(record["alignment"])
        if record.get("vector") is not None:
            item.set_vector_count_and_dimension(*record["vector"])
        if record.get("ragged_offset_uid") is not None:
            item.set_ragged_offset(self._get_tensor(record["ragged_offset_uid"]))
            item.set_ragged_offset_multiplier(record.get("ragged_offset_multiplier", 1))
