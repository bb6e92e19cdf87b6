"""Unusual parameters of operations: factors, modes, groups, strides and padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...generated.enums import (
    ConvolutionMode,
    DescriptorType,
    NanPropagation,
    NormFwdPhase,
    NormMode,
    PaddingMode,
    PointwiseMode,
    ReduceTensorOp,
    ResampleMode,
)
from ...generated.operations import CONVOLUTIONS
from ...graph.ir import Graph, Op, Operation, Pointwise, Reduction, Tensor, compute_convolved_size
from ...graph.replace import iterate_unused_uids, make_packed_tensor, replace_tensors
from ...graph.strides import channels_last, packed_strides
from ..shapes import insert_unary_operation_before
from .deviation import (
    OTHER_RESULTS,
    Deviation,
    find_axis_order_name,
    get_operation_key,
    make_graph_change_of_operation,
    replace_operation_by_key,
    set_fields,
    set_tensor_fields,
)

__all__ = ["find_unusual_parameters"]

_D = DescriptorType


def _make_unusual_parameter_property(
    op: Op, name: str, old: object, new: object, effect: Any, title: str = "", **how: Any
) -> Deviation:
    """Return the :class:`Deviation` for one operation parameter with an unusual value."""
    inner, fields = how.get("inner", ""), how.get("fields", {name: new})
    shown = [getattr(one, "name", one) for one in (old, new)]
    word = name.replace("_", " ")
    return Deviation(
        f"{name} {get_operation_key(op)}",
        "parameter",
        f"{op.name} ({op.display_name()}) has {word} {shown[0]}",
        f"{shown[1]}",
        title or f"{op.name}: {word} {shown[0]} -> {shown[1]}",
        effect,
        (op.name,),
        make_graph_change_of_operation(op, lambda one: set_fields(one, inner, **fields)),
    )


# Reductions of what a pointwise operation makes of the elements: that mode, and the plain operator.
_OF_CHANGED_ELEMENTS = {
    ReduceTensorOp.NORM1: (PointwiseMode.ABS, ReduceTensorOp.ADD),
    ReduceTensorOp.AMAX: (PointwiseMode.ABS, ReduceTensorOp.MAX),
    ReduceTensorOp.NORM2: (PointwiseMode.MUL, ReduceTensorOp.ADD),
}


def _make_unusual_reduction_property(op: Reduction) -> Deviation:
    """Return the :class:`Deviation` for a reduction other than a sum, with the operator to use instead."""
    key, found = get_operation_key(op), op.operator.name
    mode, plain = _OF_CHANGED_ELEMENTS.get(op.operator, (None, ReduceTensorOp.ADD))
    if op.operator is ReduceTensorOp.NORM2:
        usual, effect, more = "MUL and ADD", "idea", "MUL of x by itself, then ADD (the root of its result outside)"
    elif mode is not None:
        usual, effect, more = f"ABS and {plain.name}", "exact", f"ABS, then {plain.name}"
    elif op.operator is ReduceTensorOp.AVG:
        usual, effect, more = "ADD", "idea", "ADD (its result divided by their number)"
    else:
        usual, effect, more = "ADD", "idea", f"ADD, {OTHER_RESULTS}"
    return Deviation(
        f"operator {key}",
        "parameter",
        f"{op.name} reduces with {found}",
        usual,
        f"{op.name}: reduction {found} -> {more}",
        effect,  # type: ignore[arg-type]
        (op.name,),
        make_graph_change_of_operation(op, lambda one: replace(one, operator=plain))
        if mode is None
        else lambda graph: _insert_pointwise_before_reduction(graph, key, mode, plain),
    )


def _insert_pointwise_before_reduction(graph: Graph, key: int, mode: PointwiseMode, operator: ReduceTensorOp) -> Graph:
    """Return the graph where a reduction reads its elements' absolute values, or their squares (MUL)."""
    op = next((one for one in graph.ops if get_operation_key(one) == key), None)
    if op is None:
        return graph
    assert isinstance(op, Reduction)
    name, uid = f"{op.x.name}_{mode.name.lower()}", next(iterate_unused_uids(graph))
    made = replace(make_packed_tensor(op.x, op.x.dims), name=name, uid=uid, virtual=True)
    factor = op.x if mode is PointwiseMode.MUL else None
    before = Pointwise(name=name, mode=mode, x=op.x, b=factor, y=made, compute_type=op.compute_type)
    changed = insert_unary_operation_before(graph, op, before)
    return replace_operation_by_key(changed, key, lambda one: replace(one, operator=operator))


def _make_floor_mod_property(op: Pointwise) -> Deviation:
    """Return the :class:`Deviation` for FLOOR_MOD, which no engine has: x - floor(x / b) * b instead."""
    key = get_operation_key(op)
    return Deviation(
        f"mode {key}",
        "parameter",
        f"{op.name} has mode FLOOR_MOD",
        "DIV, FLOOR, MUL and SUB",
        f"{op.name}: FLOOR_MOD -> x - floor(x / b) * b by DIV, FLOOR, MUL and SUB",
        "exact",
        (op.name,),
        lambda graph: _compute_floor_mod_by_parts(graph, key),
    )


def _compute_floor_mod_by_parts(graph: Graph, key: int) -> Graph:
    op = next((one for one in graph.ops if get_operation_key(one) == key), None)
    if not isinstance(op, Pointwise) or op.x is None or op.b is None or op.y is None:
        return graph
    uids, parts, last = iterate_unused_uids(graph), [], op.x
    for mode, other in ((PointwiseMode.DIV, op.b), (PointwiseMode.FLOOR, None), (PointwiseMode.MUL, op.b)):
        name = f"{op.name}_{mode.name.lower()}"
        made = replace(op.y, name=name, uid=next(uids), data_type=op.compute_type, virtual=True)
        parts.append(Pointwise(name=name, mode=mode, x=last, b=other, y=made, compute_type=op.compute_type))
        last = made
    parts.append(replace(op, mode=PointwiseMode.SUB, b=last))
    at = graph.ops.index(op)
    return Graph((*graph.ops[:at], *parts, *graph.ops[at + 1 :]), graph.name, graph.is_subgraph)


def find_unusual_parameters(graph: Graph) -> Iterator[Deviation]:
    """Yield factors, modes and other parameters of operations with values that kernels rarely support."""
    for op in graph.ops:
        if isinstance(op, Pointwise) and op.mode is PointwiseMode.FLOOR_MOD:
            yield _make_floor_mod_property(op)
        if isinstance(op, Reduction) and op.operator is not ReduceTensorOp.ADD:
            yield _make_unusual_reduction_property(op)
        if not isinstance(op, Operation):
            continue
        if op.fields.get("alpha", 1.0) != 1.0:
            outside = f"{op.name}: alpha {op.fields['alpha']} -> 1.0, the factor applied by a pointwise operation"
            yield _make_unusual_parameter_property(op, "alpha", op.fields["alpha"], 1.0, "idea", outside)
        if op.fields.get("beta", 0.0) != 0.0:
            outside = f"{op.name}: beta {op.fields['beta']} -> 0.0, the old value added by a pointwise operation"
            yield _make_unusual_parameter_property(op, "beta", op.fields["beta"], 0.0, "idea", outside)
        if op.kind in CONVOLUTIONS:
            yield from _find_unusual_convolution_parameters(graph, op)
        if "resample" in op.fields:
            yield from _find_unusual_resampling_parameters(op)
        if op.kind is _D.OPERATION_NORM_FORWARD and op.fields["mode"] in _PHASES:
            port = _PHASES[op.fields["mode"]]
            usual = NormFwdPhase.TRAINING if port in op.fields else NormFwdPhase.INFERENCE
            preposition, phase = "with" if port in op.fields else "without", op.fields["phase"]
            if phase is not usual and (port in op.fields or port == "inv_variance"):
                title = f"{op.name}: phase {phase.name} -> {usual.name}, {preposition} {port}"
                yield _make_unusual_parameter_property(op, "phase", phase, usual, "exact", title)


# What a norm has in its training phase alone.
_PHASES = {
    NormMode.LAYER_NORM: "inv_variance",
    NormMode.RMS_NORM: "inv_variance",
    NormMode.BATCH_NORM: "input_running_mean",
}


def _find_unusual_resampling_parameters(op: Operation) -> Iterator[Deviation]:
    given, how = op.fields["resample"].fields, {"inner": "resample"}
    mode = given["mode"]
    usual = ResampleMode.MAXPOOL if "idx" in op.fields else ResampleMode.AVGPOOL_INCLUDE_PADDING
    if mode not in (ResampleMode.MAXPOOL, ResampleMode.AVGPOOL_INCLUDE_PADDING, ResampleMode.AVGPOOL_EXCLUDE_PADDING):
        yield _make_unusual_parameter_property(op, "mode", mode, usual, "idea", **how)
    padding = PaddingMode.NEG_INF_PAD if mode is ResampleMode.MAXPOOL else PaddingMode.ZERO_PAD
    if given.get("padding_mode", padding) is not padding:
        yield _make_unusual_parameter_property(op, "padding_mode", given["padding_mode"], padding, "idea", **how)
    nan = given.get("nan_propagation")
    if nan is not None:
        other = next(one for one in NanPropagation if one is not nan)
        yield _make_unusual_parameter_property(op, "nan_propagation", nan, other, "idea", **how)


def _find_unusual_convolution_parameters(graph: Graph, op: Operation) -> Iterator[Deviation]:
    """Yield unusual parameters of a convolution: groups, strides, padding, and its mathematical mode."""
    given = op.fields["convolution"].fields
    image, weights, _ = (op.fields[port] for port in CONVOLUTIONS[op.kind])
    spatial, how = image.rank - 2, {"inner": "convolution"}
    if given["conv_mode"] is not ConvolutionMode.CROSS_CORRELATION:
        title = f"{op.name}: conv mode CONVOLUTION -> CROSS_CORRELATION, the filter turned around in memory"
        new = ConvolutionMode.CROSS_CORRELATION
        yield _make_unusual_parameter_property(op, "conv_mode", given["conv_mode"], new, "exact", title, **how)
    if weights.rank == image.rank and weights.dims[1] and image.dims[1] > weights.dims[1]:
        groups = image.dims[1] // weights.dims[1]
        dims = (weights.dims[0], image.dims[1], *weights.dims[2:])
        yield Deviation(
            f"group {get_operation_key(op)}",
            "parameter",
            f"{op.name} ({op.display_name()}) has {groups} groups ({weights.name} {list(weights.dims)})",
            "1 group",
            f"{op.name}: {groups} groups -> 1, {weights.name} {list(dims)} with zeros between groups",
            "exact",
            (op.name, weights.name),
            lambda g: set_tensor_fields(g, weights.uid, dims=dims, strides=_make_strides_like_image(image, dims)),
        )
    names = ("pre_paddings", "post_paddings", "filter_strides", "dilations")
    steps = [tuple(given.get(name, ())) for name in names]
    if weights.rank != image.rank or any(len(step) != spatial for step in steps):
        return
    before, after, strides, dilations = steps
    for name, word, values in (("filter_strides", "stride", strides), ("dilations", "dilation", dilations)):
        if max(values, default=1) > 1:
            yield _make_unusual_convolution_property(
                op, name, f"a {word} of {list(values)}", f"a {word} of 1", **{name: (1,) * spatial}
            )
    if before != after:
        even = {"pre_paddings": before, "post_paddings": before}
        found = f"padding {list(before)} before and {list(after)} after"
        yield _make_unusual_convolution_property(op, "padding", found, "the same on both sides", **even)
    taps = weights.dims[2:]
    if any(max(one, other) >= tap for one, other, tap in zip(before, after, taps, strict=True)) and max(before) > 0:
        none = {"pre_paddings": (0,) * spatial, "post_paddings": (0,) * spatial}
        sides = f"{list(before)}" if before == after else f"{list(before)} before and {list(after)} after,"
        found = f"padding {sides} as large as the filter {list(taps)}"
        yield _make_unusual_convolution_property(op, "wide padding", found, "none", **none)


def _make_strides_like_image(image: Tensor, dims: tuple[int, ...]) -> tuple[int, ...]:
    return packed_strides(dims) if find_axis_order_name(image) == "NCHW" else channels_last(dims)


def _make_unusual_convolution_property(op: Operation, name: str, found: str, usual: str, **fields: Any) -> Deviation:
    def apply_change(graph: Graph) -> Graph:
        ops = [one for one in graph.ops if get_operation_key(one) == get_operation_key(op)]
        if not ops or not isinstance(ops[0], Operation):
            return graph
        plain = set_fields(ops[0], "convolution", **fields)
        assert isinstance(plain, Operation)
        image, weights, response = (plain.fields[port] for port in CONVOLUTIONS[op.kind])
        given = plain.fields["convolution"].fields
        steps = (given[one] for one in ("pre_paddings", "post_paddings", "filter_strides", "dilations"))
        spatial = tuple(
            compute_convolved_size(*one) for one in zip(image.dims[2:], weights.dims[2:], *steps, strict=True)
        )
        old, new = response.dims[2:], (*response.dims[:2], *spatial)
        rest = Graph(tuple(plain if one is ops[0] else one for one in graph.ops), graph.name)
        same = [t for t in rest.tensors if t.rank == len(new) and t.dims[2:] == old and t.dims[2:] != image.dims[2:]]
        same = same or [t for t in rest.tensors if t.uid == response.uid]
        return replace_tensors(rest, {t.uid: make_packed_tensor(t, (*t.dims[:2], *spatial)) for t in same})

    return Deviation(
        f"{name} {get_operation_key(op)}",
        "parameter",
        f"{op.name} ({op.display_name()}) has {found}",
        usual,
        f"{op.name}: {found} -> {usual}",
        "idea",
        (op.name,),
        apply_change,
    )
