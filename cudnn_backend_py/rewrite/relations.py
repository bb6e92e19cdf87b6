"""`find_dim_relation`: how the dims of an operation's tensors depend on each other; one class per kind of operation.

Changes of dims, overrides and reductions all take from here which dims change together and what follows from them. The
sizes themselves are computed by `graph/shapes.py`, as in builders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from ..errors import GraphError
from ..generated.enums import DescriptorType, NormMode
from ..generated.operations import CONVOLUTIONS
from ..graph.ir import BLOCK_SCALES, Matmul, Op, Operation, Tensor
from ..graph.shapes import (
    compute_concatenated_dims,
    compute_expert_output_dims,
    compute_pooled_size,
    compute_scale_dims,
    find_block_size_per_axis,
    infer_convolution_input_dims,
    infer_convolution_output_dims,
    permute_dims,
)

__all__ = [
    "NORMS",
    "Axis",
    "AxisGroups",
    "DimRelation",
    "Dims",
    "Link",
    "WindowRelation",
    "find_dim_relation",
    "name_operation_in_errors",
]

_D = DescriptorType
Axis = tuple[int, int]  # uid of a tensor, index of its dim
Link = tuple[Axis, Axis]  # axes that are one and the same dim
Dims = tuple[int, ...]
DimsByUid = Mapping[int, Sequence[int]]

NORMS = (_D.OPERATION_NORM_FORWARD, _D.OPERATION_NORM_BACKWARD)


class AxisGroups:
    """Groups of tensor axes with equal sizes; merging two axes merges their groups."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._parent: dict[Axis, Axis] = {(t.uid, axis): (t.uid, axis) for t in tensors for axis in range(t.rank)}

    def __contains__(self, axis: Axis) -> bool:
        return axis in self._parent

    def find_representative(self, axis: Axis) -> Axis:
        """Return the axis that represents the group of an axis."""
        parent = self._parent
        while parent[axis] != axis:
            parent[axis] = axis = parent[parent[axis]]
        return axis

    def merge(self, one: Axis, other: Axis) -> None:
        """Merge the groups of two axes."""
        self._parent[self.find_representative(one)] = self.find_representative(other)

    def list_axes_by_group(self) -> dict[Axis, list[Axis]]:
        """Return a mapping from each group's representative axis to all axes of the group."""
        found: dict[Axis, list[Axis]] = {}
        for axis in self._parent:
            found.setdefault(self.find_representative(axis), []).append(axis)
        return found


class DimRelation:
    """Relations between the dims of one operation's tensors; this base class knows none."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.fields: Mapping[str, Any] = op.fields if isinstance(op, Operation) else {}

    def pair_equal_axes(self, tensors: Mapping[int, Tensor]) -> Iterable[Link] | None:
        """Return pairs of axes that always have the same size; None if further axes may be related.

        Parameters
        ----------
        tensors
            All tensors of the graph, by uid.
        """
        del tensors
        return None

    def pair_likely_equal_axes(self) -> Iterable[Link]:
        """Return further pairs of axes that probably have the same size, by their positions and current sizes."""
        return ()

    def compute_dims_from_others(self, dims: DimsByUid) -> dict[int, Dims]:
        """Return, by uid, the dims that the operation computes for some tensors if the others have `dims`."""
        del dims
        return {}

    def compute_required_dims(self, dims: DimsByUid) -> dict[int, Dims]:
        """Return by uid the dims that cuDNN requires if the other tensors have `dims`."""
        return self.compute_dims_from_others(dims)


class _ElementwiseRelation(DimRelation):
    def pair_equal_axes(self, tensors: Mapping[int, Tensor]) -> Iterable[Link]:
        outputs = list(self.op.outputs().values())
        first = max(outputs, key=lambda t: max(t.dims)) if outputs else None
        for _, tensor in self.op.ports():
            if first is None or tensor.uid == first.uid or tensor.rank != first.rank:
                continue
            for axis in range(tensor.rank):
                if tensor.dims[axis] == first.dims[axis]:
                    yield (tensor.uid, axis), (first.uid, axis)


class _MatmulRelation(DimRelation):
    def pair_equal_axes(self, tensors: Mapping[int, Tensor]) -> Iterable[Link]:
        assert isinstance(self.op, Matmul)
        a, b, c = self.op.a, self.op.b, self.op.c
        m, n = c.rank - 2, c.rank - 1
        yield from (((a.uid, m), (c.uid, m)), ((b.uid, n), (c.uid, n)), ((a.uid, n), (b.uid, m)))
        for axis in range(m):
            for side in (a, b):
                if side.dims[axis] == c.dims[axis]:
                    yield (side.uid, axis), (c.uid, axis)


class _RngRelation(DimRelation):
    def pair_equal_axes(self, tensors: Mapping[int, Tensor]) -> Iterable[Link]:
        return ()


class WindowRelation(DimRelation):
    """Relations of an operation that moves a window over an image: convolution, pooling, or a gradient."""

    image: Tensor

    def find_window_outputs_and_sizes(self, dims: DimsByUid) -> tuple[list[Tensor], Dims]:
        """Return the tensors with one element per window, and their spatial dims."""
        raise NotImplementedError


class _ConvolutionRelation(WindowRelation):
    def __init__(self, op: Op) -> None:
        super().__init__(op)
        self.image, self.weights, self.response = (self.fields[port] for port in CONVOLUTIONS[op.kind])

    def pair_equal_axes(self, tensors: Mapping[int, Tensor]) -> Iterable[Link] | None:
        image, weights, response = self.image, self.weights, self.response
        if min(image.rank, weights.rank) < 2 or image.dims[1] != weights.dims[1]:
            return None  # groups
        return (
            ((image.uid, 0), (response.uid, 0)),
            ((image.uid, 1), (weights.uid, 1)),
            ((weights.uid, 0), (response.uid, 1)),
        )

    def _read_window_parameters(self) -> list[Any]:
        facts = self.fields["convolution"].fields
        return [facts[name] for name in ("pre_paddings", "post_paddings", "filter_strides", "dilations")]

    def find_window_outputs_and_sizes(self, dims: DimsByUid) -> tuple[list[Tensor], Dims]:
        return [self.response], infer_convolution_output_dims(
            dims[self.image.uid], dims[self.weights.uid], self._read_window_parameters()
        )[2:]

    def compute_dims_from_others(self, dims: DimsByUid) -> dict[int, Dims]:
        x, w, y = (dims[tensor.uid] for tensor in (self.image, self.weights, self.response))
        if self.op.kind is _D.OPERATION_CONVOLUTION_BACKWARD_DATA:
            return {self.image.uid: (*x[:2], *self._compute_image_sizes(w, y))}
        _, sizes = self.find_window_outputs_and_sizes(dims)
        if self.op.kind is _D.OPERATION_CONVOLUTION_FORWARD:
            return {self.response.uid: (x[0], w[0], *sizes)}
        return {self.response.uid: (*y[:2], *sizes)}  # the gradient that fits the image

    def _compute_image_sizes(self, weights: Sequence[int], response: Sequence[int]) -> Dims:
        """Return the image's new spatial dims: the smallest that fit, plus as many unused elements as before."""
        sides, groups = self._read_window_parameters(), self.image.dims[1] // self.weights.dims[1]
        before = infer_convolution_input_dims(self.response.dims, self.weights.dims, sides, groups)
        now = infer_convolution_input_dims(response, weights, sides, groups)
        sizes = zip(self.image.dims[2:], before[2:], now[2:], strict=True)
        return tuple(size + new - old for size, old, new in sizes)


class _PoolingRelation(WindowRelation):
    def __init__(self, op: Op) -> None:
        super().__init__(op)
        self.image = self.fields["x" if op.kind is _D.OPERATION_RESAMPLE_FWD else "dx"]

    def find_window_outputs_and_sizes(self, dims: DimsByUid) -> tuple[list[Tensor], Dims]:
        facts = self.fields["resample"].fields
        names = ("window_dims", "strides", "pre_paddings", "post_paddings")
        sides = zip(*([_convert_pair_to_fraction(part) for part in facts[name]] for name in names), strict=True)
        sizes = zip(dims[self.image.uid][2:], sides, strict=True)
        found = tuple(compute_pooled_size(size, *side) for size, side in sizes)
        return [self.fields[port] for port in ("y", "idx", "dy") if port in self.fields], found

    def pair_likely_equal_axes(self) -> Iterable[Link]:
        return _pair_axes((tensor for _, tensor in self.op.ports()), (0, 1))

    def compute_dims_from_others(self, dims: DimsByUid) -> dict[int, Dims]:
        tensors, sizes = self.find_window_outputs_and_sizes(dims)
        return {tensor.uid: (*dims[self.image.uid][:2], *sizes) for tensor in tensors}


def _convert_pair_to_fraction(part: Any) -> Any:
    from fractions import Fraction  # it imports decimal

    return Fraction(*part) if isinstance(part, tuple) else part


class _BlockScaleRelation(DimRelation):
    def pair_equal_axes(self, tensors: Mapping[int, Tensor]) -> Iterable[Link]:
        x, y = self.fields["x"], self.fields["y"]
        return [((x.uid, axis), (y.uid, axis)) for axis in range(x.rank)]  # the scales are rounded up as it is

    def compute_dims_from_others(self, dims: DimsByUid) -> dict[int, Dims]:
        x, scale = self.fields["x"], self.fields["scale"]
        given = self.fields.get("block_size", 32)
        sizes = find_block_size_per_axis(x.dims, given if isinstance(given, tuple) else (given,), scale.dims)
        if sizes is None:
            return {}
        return {scale.uid: compute_scale_dims(dims[x.uid], sizes, tiled=scale.reordering.name == "F8_128x4")}


class _ReshapeRelation(DimRelation):
    def pair_equal_axes(self, tensors: Mapping[int, Tensor]) -> Iterable[Link] | None:
        x, y = self.fields["x"], self.fields["y"]
        if any(tensor.span_elements != math.prod(tensor.dims) for tensor in (x, y)):
            return None  # without gaps, as they would be with other dims, they may not describe the same memory
        if x.rank == 1:
            return [((x.uid, 0), (y.uid, 0))] if x.dims == y.dims else None
        turned = _is_transposed(x) != _is_transposed(y)
        if x.dims == y.dims:
            swapped = x.dims[-1] == x.dims[-2] and turned
        elif y.dims == (*x.dims[:-2], x.dims[-1], x.dims[-2]) and (turned or 1 in x.dims[-2:]):
            swapped = True
        else:
            return None
        last = x.rank - 1
        other = {last: last - 1, last - 1: last} if swapped else {}
        return [((x.uid, axis), (y.uid, other.get(axis, axis))) for axis in range(x.rank)]


def _is_transposed(tensor: Tensor) -> bool:
    return tensor.strides[-1] > tensor.strides[-2]


class _ConcatenationRelation(DimRelation):
    def pair_likely_equal_axes(self) -> Iterable[Link]:
        axes = [axis for axis in range(self.fields["output"].rank) if axis != self.fields["axis"]]
        return _pair_axes((tensor for _, tensor in self.op.ports()), axes)

    def compute_dims_from_others(self, dims: DimsByUid) -> dict[int, Dims]:
        inputs = [dims[item.uid] for item in self.fields["input"]]
        return {self.fields["output"].uid: compute_concatenated_dims(inputs, self.fields["axis"])}


class _SliceRelation(DimRelation):
    def pair_likely_equal_axes(self) -> Iterable[Link]:
        x, y = self.fields["x"], self.fields["y"]
        names = ("start_indices", "limit_indices", "strides")
        parts = zip(*(self.fields[name] for name in names), x.dims, strict=True)
        return _pair_axes((x, y), [axis for axis, part in enumerate(parts) if part[:3] == (0, part[3], 1)])


class _TransposeRelation(DimRelation):
    def pair_likely_equal_axes(self) -> Iterable[Link]:
        x, y = self.fields["x"], self.fields["y"]
        return [((y.uid, axis), (x.uid, source)) for axis, source in enumerate(self.fields["permutation"])]

    def compute_dims_from_others(self, dims: DimsByUid) -> dict[int, Dims]:
        return {self.fields["y"].uid: permute_dims(dims[self.fields["x"].uid], self.fields["permutation"])}


class _MoeGroupedMatmulRelation(DimRelation):
    def pair_likely_equal_axes(self) -> Iterable[Link]:
        token, weight, output = (self.fields[name] for name in ("token", "weight", "output"))
        yield from (((token.uid, 2), (weight.uid, 1)), ((weight.uid, 2), (output.uid, 2)))
        yield (weight.uid, 0), (self.fields["first_token_offset"].uid, 0)
        if token.dims[1] == output.dims[1]:  # rows may be gathered
            yield (token.uid, 1), (output.uid, 1)
        for name in ("token_index", "token_ks"):
            if name in self.fields:
                yield (self.fields[name].uid, 1), (output.uid, 1)

    def compute_required_dims(self, dims: DimsByUid) -> dict[int, Dims]:
        token, weight, output = (self.fields[name] for name in ("token", "weight", "output"))
        rows = dims[self.fields["token_index"].uid] if "token_index" in self.fields else None
        return {output.uid: compute_expert_output_dims(dims[token.uid], dims[weight.uid], rows)}


class _MoeGroupedMatmulBackwardRelation(DimRelation):
    def pair_likely_equal_axes(self) -> Iterable[Link]:
        token, gradient, weight = (self.fields[name] for name in ("token", "doutput", "dweight"))
        yield from (((token.uid, 1), (gradient.uid, 1)), ((token.uid, 2), (weight.uid, 1)))
        yield (gradient.uid, 2), (weight.uid, 2)

    def compute_required_dims(self, dims: DimsByUid) -> dict[int, Dims]:
        token, gradient, weight = (self.fields[name].uid for name in ("token", "doutput", "dweight"))
        return {weight: (dims[weight][0], dims[token][2], dims[gradient][2])}


class _AttentionRelation(DimRelation):
    _RANK: ClassVar[int] = 4

    def pair_equal_axes(self, tensors: Mapping[int, Tensor]) -> Iterable[Link] | None:
        return None if "page_table_k" in self.fields else self._iterate_equal_axes(tensors)

    def _iterate_equal_axes(self, tensors: Mapping[int, Tensor]) -> Iterator[Link]:
        fields = self.fields
        q, k, v, o = (fields[name] for name in ("q", "k", "v", "o"))
        yield from (((q.uid, 3), (k.uid, 3)), ((v.uid, 3), (o.uid, 3)))
        yield from (((k.uid, 2), (v.uid, 2)), ((q.uid, 2), (o.uid, 2)))
        for name, of in (("dq", q), ("dk", k), ("dv", v), ("d_o", o)):
            if name in fields:
                yield from (((fields[name].uid, axis), (of.uid, axis)) for axis in range(4))
        if "stats" in fields:
            yield (fields["stats"].uid, 2), (q.uid, 2)
        softmax = fields.get("softmax")
        scores = [tensors[fields["subgraph_input_uid"]]] if fields.get("subgraph_input_uid") in tensors else []
        scores += [softmax.fields["x"], softmax.fields["y"]] if isinstance(softmax, Operation) else []
        for score in scores:
            yield from (((score.uid, 2), (q.uid, 2)), ((score.uid, 3), (k.uid, 2)))
        for name in ("dropout_rng_dump", "dbias"):
            tensor = fields.get(name)
            if isinstance(tensor, Tensor):
                yield from (
                    ((tensor.uid, axis), (side.uid, 2))
                    for axis, side in ((2, q), (3, k))
                    if tensor.rank == side.rank == 4 and tensor.dims[axis] == side.dims[2]
                )

    def pair_likely_equal_axes(self) -> Iterable[Link]:
        inner = [tensor for graph in self.op.subgraphs() for item in graph.ops for _, tensor in item.ports()]
        return _pair_axes([*(tensor for _, tensor in self.op.ports()), *inner], (0, 1))

    def compute_required_dims(self, dims: DimsByUid) -> dict[int, Dims]:
        ports = dict(self.op.ports())
        if {ports[name].rank for name in ("q", "k", "v")} != {self._RANK}:
            return {}
        q, k, v = (tuple(dims[ports[name].uid]) for name in ("q", "k", "v"))
        b, heads, s_q, s_kv = q[0], q[1], q[2], k[2]
        needed: dict[str, Dims] = {"o": (b, heads, s_q, v[3])}
        needed |= dict.fromkeys(("stats", "max", "sum_exp"), (b, heads, s_q, 1))
        needed |= dict.fromkeys(("seq_len_q", "seq_len_kv"), (b, 1, 1, 1))
        needed |= dict.fromkeys(("dropout_rng_dump", "x", "y"), (b, heads, s_q, s_kv))  # x and y of the softmax
        needed |= {"sink": (1, heads, 1, 1)}
        needed |= {"d_o": needed["o"], "dq": q, "dk": k, "dv": v}
        if "page_table_k" in ports or "page_table_v" in ports:  # then K has the dims of pages
            needed = {name: sizes for name, sizes in needed.items() if name not in ("dropout_rng_dump", "x", "y")}
        inner = {name.removeprefix("softmax."): tensor for name, tensor in ports.items()}  # of the nested softmax
        return {inner[name].uid: sizes for name, sizes in needed.items() if name in inner}


class _PagedCacheRelation(DimRelation):
    def compute_required_dims(self, dims: DimsByUid) -> dict[int, Dims]:
        container, table, y = (self.fields[name].uid for name in ("container", "page_table", "y"))
        pages, heads, _, features = dims[container]
        rows, rest = divmod(math.prod(dims[y][2:]) // features, dims[table][2])  # y may be transposed
        return {} if rest else {container: (pages, heads, rows, features)}


class _BroadcastRelation(DimRelation):
    """Relations of an operation that broadcasts: each dim is 1 or equals the largest tensor's dim."""

    def pair_likely_equal_axes(self) -> Iterable[Link]:
        tensors = [tensor for _, tensor in self.op.ports()]
        first = max(tensors, key=lambda tensor: math.prod(tensor.dims))
        return _pair_axes([first, *tensors], range(first.rank))


class _NormRelation(_BroadcastRelation):
    def pair_equal_axes(self, tensors: Mapping[int, Tensor]) -> Iterable[Link] | None:
        return self._pair_axes_of_norm() if self.fields.get("mode") is NormMode.BATCH_NORM else None

    def _pair_axes_of_norm(self) -> Iterator[Link]:
        x = self.fields["x"]
        for _, tensor in self.op.ports():
            if tensor.rank == x.rank:
                yield from (((tensor.uid, a), (x.uid, a)) for a in range(x.rank) if tensor.dims[a] == x.dims[a] > 1)


def _pair_axes(tensors: Iterable[Tensor], axes: Iterable[int]) -> Iterator[Link]:
    """Yield pairs of an axis of the first tensor and the same axis of another, if their ranks and sizes are equal."""
    first, *others = tensors
    wanted = list(axes)
    for tensor in others:
        if tensor.rank == first.rank:
            yield from (
                ((tensor.uid, axis), (first.uid, axis))
                for axis in wanted
                if tensor.dims[axis] == first.dims[axis] and (first.dims[axis] > 1 or axis > 1)
            )


_RELATIONS: dict[DescriptorType, type[DimRelation]] = {
    _D.OPERATION_MATMUL: _MatmulRelation,
    **dict.fromkeys((_D.OPERATION_POINTWISE, _D.OPERATION_REDUCTION), _ElementwiseRelation),
    **dict.fromkeys((_D.OPERATION_SOFTMAX, _D.OPERATION_DIAGONAL_BAND_MASK), _ElementwiseRelation),
    _D.OPERATION_RNG: _RngRelation,
    **dict.fromkeys(CONVOLUTIONS, _ConvolutionRelation),
    **dict.fromkeys((_D.OPERATION_RESAMPLE_FWD, _D.OPERATION_RESAMPLE_BWD), _PoolingRelation),
    **dict.fromkeys(BLOCK_SCALES, _BlockScaleRelation),
    _D.OPERATION_RESHAPE: _ReshapeRelation,
    _D.OPERATION_CONCAT: _ConcatenationRelation,
    _D.OPERATION_SLICE: _SliceRelation,
    _D.OPERATION_TRANSPOSE: _TransposeRelation,
    _D.OPERATION_MOE_GROUPED_MATMUL: _MoeGroupedMatmulRelation,
    _D.OPERATION_MOE_GROUPED_MATMUL_BWD: _MoeGroupedMatmulBackwardRelation,
    **dict.fromkeys((_D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD), _AttentionRelation),
    _D.OPERATION_PAGED_CACHE_LOAD: _PagedCacheRelation,
    **dict.fromkeys(NORMS, _NormRelation),
    **dict.fromkeys((_D.OPERATION_GEN_STATS, _D.OPERATION_BN_BWD_WEIGHTS), _BroadcastRelation),
    **dict.fromkeys((_D.OPERATION_BN_FINALIZE_STATISTICS, _D.OPERATION_SIGNAL), _BroadcastRelation),
    **dict.fromkeys((_D.OPERATION_ROPE_FWD, _D.OPERATION_ROPE_BWD), _BroadcastRelation),
}


def find_dim_relation(op: Op) -> DimRelation:
    """Return the relations between the dims of an operation's tensors."""
    return _RELATIONS.get(op.kind, DimRelation)(op)


@contextmanager
def name_operation_in_errors(op: Op) -> Iterator[None]:
    """Turn an arithmetic or type error in the block into a GraphError that names the operation.

    Raises
    ------
    GraphError
        ``override``.
    """
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        headline = f"the dims of {op.name!r} cannot be inferred from its tensors and numbers: {error}"
        raise GraphError(headline, code="override", where=str(op)) from error
