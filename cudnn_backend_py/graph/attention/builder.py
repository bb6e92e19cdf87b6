"""Code shared by forward and backward graphs of attention: tensors, and the operations that mask the scores."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from ...generated.enums import (
    DataType,
    DescriptorType,
    PointwiseMode,
    ReduceTensorOp,
    RngDistribution,
    TensorReordering,
)
from ...system.version import Version, VersionTuple
from ..build.products import MatmulAndPointwise
from ..ir import Graph, Operation, Parameters, Tensor, packed_strides
from ..strides import swap_last_two_axes
from .problem import MX_BLOCK, Attention

if TYPE_CHECKING:
    from ..builder import GraphBuilder  # and in a function: only a score modifier may need all of its methods

__all__ = ["LOWEST", "SINGLE_OPS_SINCE", "AttentionBuilder"]

LOWEST = -3.4028234663852886e38  # of all float32 numbers
SINGLE_OPS_SINCE = Version(9, 21, 0)  # DIAGONAL_BAND_MASK, SOFTMAX and sub-graphs serve attention from here on
INFINITY_SINCE = Version(9, 10, 0)  # before it masks are built with the lowest finite float

_ONES = (1, 1, 1, 1)
_MODE = PointwiseMode


class AttentionBuilder:
    """Builds the graph of one attention problem.

    Parameters
    ----------
    builder
        An existing builder to add to, which may already have operations.
    tensors
        The tensors to use of it, by their name in the problem (``q``, ``stats``, ``seq_len_q`` ...), K and V with dims
        b, h, s, d. They are used as they are, whatever the problem says of their dims, strides and types.
    """

    def __init__(
        self,
        problem: Attention,
        name: str,
        version: VersionTuple | None,
        builder: GraphBuilder | None = None,
        tensors: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self.p = problem
        self.g: MatmulAndPointwise = _make_builder(problem, name) if builder is None else builder
        self.version = version
        self.single_ops = version is not None and version >= SINGLE_OPS_SINCE
        self._once: dict[str, Tensor] = dict(tensors)
        self._given = frozenset(self._once)
        self._upright = set(self._given)  # those whose s and d were not swapped

    # tensors in memory

    def get_or_make_tensor(self, name: str, dims: tuple[int, ...], data_type: DataType, **options: Any) -> Tensor:
        """Return the tensor with this name: the caller's tensor, or a new one, made on the first call."""
        if name not in self._once:
            self._once[name] = self.tensor(name, dims, data_type, **options)
        return self._once[name]

    def tensor(self, stem: str, dims: tuple[int, ...], data_type: DataType, **options: Any) -> Tensor:
        """Return a new tensor named `stem`, with a number added if the name is used."""
        return self.g.tensor(self.g.make_unused_name(stem), dims, data_type, **options)

    def scalar(self, value: float | int | None, stem: str, **options: Any) -> Tensor:
        """Return a new by-value tensor of one element, named as by :meth:`tensor`."""
        return self.g.scalar(value, name=self.g.make_unused_name(stem), **options)

    def _rename_if_used(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return a result's options, with a new name if another tensor already has the name in them."""
        return options | {"name": self.g.make_unused_name(options["name"])} if options.get("name") else options

    def transpose_given_tensor(self, name: str) -> None:
        """Swap dims s and d of a tensor that the caller provided; a second call does nothing."""
        if name in self._upright:
            self._upright.discard(name)
            given = self._once[name]
            self._once[name] = replace(
                given, dims=swap_last_two_axes(given.dims), strides=swap_last_two_axes(given.strides)
            )

    def get_io_tensor(self, name: str, *, transposed: bool = False) -> Tensor:
        """Return ``q``, ``k``, ``v``, ``o`` or a gradient; `transposed` swaps its s and d dims (and strides)."""
        p = self.p
        if transposed:
            self.transpose_given_tensor(name)
        if name in self._once:
            return self._once[name]
        dims: tuple[int, ...] = p.dims(name)
        strides: tuple[int, ...] = p.strides(name)
        if transposed:
            dims, strides = swap_last_two_axes(dims), swap_last_two_axes(strides)
        kind = p.data_type if name in ("q", "k", "v", "do") or p.output_type is None else p.output_type
        offset = self.get_ragged_offset(name.removeprefix("d")) if p.ragged and not self.is_paged(name) else None
        return self.get_or_make_tensor(name, dims, kind, strides=strides, ragged_offset=offset)

    def is_paged(self, name: str) -> bool:
        """Return whether a tensor is a container of pages: K and V with a page table."""
        if self.p.page_size is None or name not in ("k", "v"):
            return False
        return name not in self._given or f"page_table_{name}" in self._given

    def make_tensor_like(self, name: str, suffix: str, data_type: DataType) -> Tensor:
        """Return the tensor ``{name}_{suffix}``, such as ``q_t``, with the dims and strides of the tensor `name`."""
        return self.get_or_make_tensor(f"{name}_{suffix}", self.p.dims(name), data_type, strides=self.p.strides(name))

    def get_ragged_offset(self, name: str) -> Tensor:
        """Return the ragged offset tensor of `name`: the position of each sequence's first element."""
        return self.get_or_make_tensor(f"ragged_{name}", (self.p.batch + 1, 1, 1, 1), self.p.offset_type, strides=_ONES)

    def get_per_row_tensor(self, name: str) -> Tensor:
        """Return an output or input [b, h, s_q, 1] float32 such as ``stats``."""
        if name in self._once:
            return self._once[name]
        offset = self.get_ragged_offset("stats") if self.p.ragged_stats else None
        strides = self.p.strides("stats")
        return self.get_or_make_tensor(
            name, self.p.dims("stats"), DataType.FLOAT, strides=strides, ragged_offset=offset
        )

    def get_per_head_tensor(self, name: str) -> Tensor:
        """Return a tensor [1, h, 1, 1] float32 such as ``sink``."""
        return self.get_or_make_tensor(name, (1, self.p.heads, 1, 1), DataType.FLOAT)

    def get_device_scalar(self, name: str) -> Tensor:
        """Return a device scalar [1, 1, 1, 1] float32 such as ``descale_q``."""
        return self.get_or_make_tensor(name, _ONES, DataType.FLOAT)

    def dequantize(self, x: Tensor, name: str, axis: int, *, transposed: bool = False) -> Tensor:
        """Dequantize a tensor with blocks of 32 along `axis` to float32, using the scale tensor called `name`.

        `transposed` says that x has s and d swapped, which its scales, where they are given, then need as well.

        The scales have dims as x, the blocked one counted in blocks, rounded up to what the F8_128x4 order wants:
        multiples of 4 along the blocks, of 128 along the other of the last two dims.
        """
        if transposed:
            self.transpose_given_tensor(name)
        dims, strides = list(x.dims), [0] * x.rank
        other = 5 - axis
        dims[axis] = _round_up_to_multiple(-(-dims[axis] // MX_BLOCK), 4)
        dims[other] = _round_up_to_multiple(dims[other], 128)
        strides[axis], strides[other] = 1, dims[axis]
        strides[1] = dims[2] * dims[3]
        strides[0] = strides[1] * dims[1]
        scale = self.get_or_make_tensor(
            name,
            tuple(dims),
            DataType.FP8_E8M0,
            strides=tuple(strides),
            reordering=TensorReordering.F8_128x4,
        )
        y = self.tensor(f"{x.name}_values", x.dims, DataType.FLOAT, virtual=True)
        self.g.operation(
            DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE,
            x=x,
            scale=scale,
            y=y,
            math_prec=DataType.FLOAT,
            # cuDNN supports both; scales that were given come from graphs of cudnn-frontend, which never says another.
            block_size=(1, MX_BLOCK) if axis == 3 or name in self._given else (MX_BLOCK, 1),
        )
        return y

    @property
    def seq_lens(self) -> tuple[Tensor | None, Tensor | None]:
        """The sequence length tensors of Q, and of K and V; None where the problem has no padding."""
        return self._get_length_tensor("q"), self._get_length_tensor("kv")

    def _get_length_tensor(self, side: str) -> Tensor | None:
        name = f"seq_len_{side}"
        if not self.p.padding or f"cu_{name}" in self._once:
            return self._once.get(name)
        return self.get_or_make_tensor(name, (self.p.batch, 1, 1, 1), DataType.INT32, strides=_ONES)

    @property
    def cumulative_lengths(self) -> dict[str, Tensor]:
        """Running sums of the lengths, [b + 1, 1, 1, 1], if given in place of the lengths (cuDNN 9.24)."""
        names = ("cu_seq_len_q", "cu_seq_len_kv")
        return {name: self._once[name] for name in names if name in self._once}

    @property
    def score_dims(self) -> tuple[int, int, int, int]:
        p = self.p
        return (p.batch, p.heads, p.seq_q, p.seq_kv)

    @property
    def row_dims(self) -> tuple[int, int, int, int]:
        return (*self.score_dims[:3], 1)

    @property
    def minus_infinity(self) -> Tensor:
        """A new constant for masked scores."""
        lowest = self.version is not None and self.version < INFINITY_SINCE
        return self.scalar(LOWEST if lowest else -math.inf, "minus_infinity")

    def get_page_table(self, name: str) -> Tensor:
        """Return ``page_table_k`` or ``page_table_v`` [b, 1, pages per sequence, 1] int32."""
        if f"page_table_{name}" in self._once:
            return self._once[f"page_table_{name}"]
        return self.get_or_make_tensor(
            f"page_table_{name}", (self.p.batch, 1, self.p.pages_per_sequence, 1), DataType.INT32
        )

    # operations

    def pointwise(self, mode: PointwiseMode, x: Tensor, *others: Tensor, **options: Any) -> Tensor:
        """Add a pointwise operation and return its result."""
        return self.g.pointwise(mode, x, *others, **self._rename_if_used(options))

    def matmul(self, a: Tensor, b: Tensor, over: str, **options: Any) -> Tensor:
        """Add a matrix product; `over` gives the sizes bounded by sequence lengths, as in "m=q k=kv"."""
        lens = dict(zip(("q", "kv"), self.seq_lens, strict=True))
        for item in over.split():
            size, _, which = item.partition("=")
            options[f"{size}_override"] = lens[which]
        return self.g.matmul(a, b, **self._rename_if_used(options))

    def add_product(self, x: Tensor, *factors: Tensor | None, **last: Any) -> Tensor:
        """Multiply by every factor that is not None, one operation each; `last` are options of the final result."""
        given = [factor for factor in factors if factor is not None]
        for index, by in enumerate(given):
            x = self.pointwise(_MODE.MUL, x, by, **(last if index == len(given) - 1 else {}))
        return x

    def add_integer_pointwise(self, mode: PointwiseMode, x: Tensor, b: Tensor) -> Tensor:
        """Add an int32 pointwise operation, ADD or SUB, and return its result."""
        return self.pointwise(mode, x, b, compute_type=DataType.INT32, data_type=DataType.INT32)

    def generate_index(self, like: Tensor, axis: int, compute_type: DataType = DataType.INT32) -> Tensor:
        """Return the int32 index along an axis, with the dims of `like`."""
        return self.pointwise(
            _MODE.GEN_INDEX,
            like,
            axis=axis,
            compute_type=compute_type,
            name="row" if axis == 2 else "column",
        )

    def transpose(self, x: Tensor, **options: Any) -> Tensor:
        """Return x with its last two dims swapped, by a reshape with swapped dims and strides."""
        options.setdefault("strides", swap_last_two_axes(packed_strides(x.dims)))
        options.setdefault("data_type", self.g.intermediate_type)
        options |= {"virtual": True, "ragged_offset": x.ragged_offset}
        y = self.tensor(options.pop("name"), swap_last_two_axes(x.dims), **options)
        self.g.operation(DescriptorType.OPERATION_RESHAPE, x=x, y=y)
        return y

    def add_sum(self, x: Tensor, dims: tuple[int, ...], **options: Any) -> Tensor:
        """Return the sum of x over the dims that have a smaller size in `dims` (or in ``out``)."""
        return self.reduction(ReduceTensorOp.ADD, x, dims, **options)

    def reduction(self, operator: ReduceTensorOp, x: Tensor, dims: tuple[int, ...], **options: Any) -> Tensor:
        """Add a reduction to `dims` and return its result."""
        return self.g.reduction(operator, x, dims, **self._rename_if_used(options))

    def write_amax(self, name: str, x: Tensor) -> None:
        """Write the largest absolute value of x to the device scalar `name`."""
        self.g.reduction(ReduceTensorOp.AMAX, x, _ONES, out=self.get_device_scalar(name))

    # scores

    def scale(self) -> Tensor | None:
        """Return the factor of the scores as a by-value or memory tensor, None if there is none."""
        if self.p.scale == "none":
            return None
        if self.p.scale == "tensor":
            return self.get_device_scalar("scale")
        if "scale" not in self._once:
            self._once["scale"] = self.scalar(self.p.scale_value, "scale")
        return self._once["scale"]

    def apply_score_modifier(self, score: Tensor) -> Tensor:
        """Return the scaled scores after the problem's score modifier, unchanged if there is none."""
        modifier = self.p.score_modifier
        return score if modifier is None else modifier.forward(cast("GraphBuilder", self.g), score)

    def backpropagate_through_modifier(self, d_score: Tensor, score: Tensor) -> Tensor:
        """Return the gradient of the scaled scores, given `d_score`, the gradient of the modified scores."""
        modifier = self.p.score_modifier
        return d_score if modifier is None else modifier.backward(cast("GraphBuilder", self.g), d_score, score)

    def add_biases(self, score: Tensor) -> Tensor:
        """Add the bias and the ALiBi term to the scores, as far as the problem has them."""
        p = self.p
        if p.bias is not None:
            score = self.pointwise(
                _MODE.ADD, score, self.get_or_make_tensor("bias", p.bias, p.data_type), name="biased"
            )
        if p.alibi:
            distance = self.add_integer_pointwise(
                _MODE.SUB, self.generate_index(score, 3), self.generate_index(score, 2)
            )
            slopes = self.get_per_head_tensor("alibi_slopes")
            score = self.pointwise(_MODE.ADD, score, self.pointwise(_MODE.MUL, distance, slopes), name="with_alibi")
        return score

    def mask_padding(self, score: Tensor) -> Tensor:
        """Mask rows and columns beyond the sequence lengths."""
        seq_q, seq_kv = self.seq_lens
        if not self.p.padding or seq_q is None or seq_kv is None:
            return score
        inside_kv = self.pointwise(_MODE.CMP_LT, self.generate_index(score, 3), seq_kv)
        inside_q = self.pointwise(_MODE.CMP_LT, self.generate_index(score, 2), seq_q)
        keep = self.pointwise(_MODE.LOGICAL_AND, inside_q, inside_kv, name="inside")
        return self.pointwise(_MODE.BINARY_SELECT, score, self.minus_infinity, keep, name="padded")

    def mask_outside_band(self, score: Tensor) -> Tensor:
        """Mask the scores outside the right and left bounds of the diagonal band."""
        if self.p.right_bound is not None:
            score = self._add_right_band_mask(score) if self.single_ops else self._mask_right_by_select(score)
        if self.p.left_bound is not None:
            score = self._add_left_band_mask(score) if self.single_ops else self._mask_left_by_select(score)
        return score

    @property
    def _is_bottom_right(self) -> bool:
        return self.p.alignment == "bottom_right"

    def _get_tensor_or_constant(self, tensor: Tensor | None, value: int, name: str) -> Tensor:
        return tensor if tensor is not None else self.scalar(value, name)

    def _mask_right_by_select(self, score: Tensor) -> Tensor:
        p = self.p
        column = self.generate_index(score, 3, DataType.FLOAT)
        row = self.generate_index(score, 2, DataType.FLOAT)
        if self._is_bottom_right:
            seq_q, seq_kv = self.seq_lens
            row = self.add_integer_pointwise(_MODE.ADD, row, self._get_tensor_or_constant(seq_kv, p.seq_kv, "s_kv"))
            row = self.add_integer_pointwise(_MODE.SUB, row, self._get_tensor_or_constant(seq_q, p.seq_q, "s_q"))
        if p.right_bound:  # last: kernels read another order wrongly where lengths differ within a batch
            row = self.add_integer_pointwise(_MODE.ADD, row, self.scalar(p.right_bound, "right_bound"))
        keep = self.pointwise(_MODE.CMP_GE, row, column, name="keep_right")
        return self.pointwise(_MODE.BINARY_SELECT, score, self.minus_infinity, keep, name="masked_right")

    def _mask_left_by_select(self, score: Tensor) -> Tensor:
        p = self.p
        assert p.left_bound is not None
        column = self.generate_index(score, 3, DataType.FLOAT)
        seq_q, seq_kv = self.seq_lens
        if self._is_bottom_right and seq_q is not None and seq_kv is not None:
            column = self.add_integer_pointwise(_MODE.ADD, column, self.scalar(p.left_bound, "left_bound"))
            column = self.add_integer_pointwise(_MODE.SUB, column, seq_kv)
            column = self.add_integer_pointwise(_MODE.ADD, column, seq_q)
        else:
            column = self.pointwise(_MODE.ADD, column, self._make_left_bound_constant())
        row = self.generate_index(score, 2, DataType.FLOAT)
        keep = self.pointwise(_MODE.CMP_GT, column, row, name="keep_left")
        return self.pointwise(_MODE.BINARY_SELECT, score, self.minus_infinity, keep, name="masked_left")

    def _make_left_bound_constant(self) -> Tensor:
        """Return the left bound from the top-left corner as a float constant, the form the kernels accept."""
        p = self.p
        assert p.left_bound is not None
        bound = p.left_bound - (p.seq_kv - p.seq_q if self._is_bottom_right else 0)
        return self.scalar(float(bound), "left_bound")

    def _add_band_mask(self, score: Tensor, mode: PointwiseMode, name: str, **fields: Any) -> Tensor:
        y = self.tensor(name, score.dims, DataType.FLOAT, virtual=True)
        self.g.operation(
            DescriptorType.OPERATION_DIAGONAL_BAND_MASK,
            x=score,
            b=self.minus_infinity,
            y=y,
            comparison_mode=mode,
            **fields,
        )
        return y

    def _add_right_band_mask(self, score: Tensor) -> Tensor:
        p = self.p
        fields: dict[str, Tensor | None] = {}
        if p.right_bound:
            fields["shift_right_bound"] = self.scalar(p.right_bound, "right_bound")
        if self._is_bottom_right:
            running = self.cumulative_lengths
            seq_q, seq_kv = self.seq_lens
            if "cu_seq_len_kv" not in running:
                fields["seq_len_kv"] = self._get_tensor_or_constant(seq_kv, p.seq_kv, "s_kv")
            if "cu_seq_len_q" not in running:
                fields["seq_len_q"] = self._get_tensor_or_constant(seq_q, p.seq_q, "s_q")
            fields |= running
        return self._add_band_mask(score, _MODE.CMP_GE, "masked_right", **fields)

    def _add_left_band_mask(self, score: Tensor) -> Tensor:
        seq_q, seq_kv = self.seq_lens
        lengths = {"seq_len_kv": seq_kv, "seq_len_q": seq_q, **self.cumulative_lengths}
        if not (self._is_bottom_right and any(lengths.values())):
            return self._add_band_mask(score, _MODE.CMP_GT, "masked_left", left_bound=self._make_left_bound_constant())
        bound = self.scalar(self.p.left_bound, "left_bound")
        return self._add_band_mask(score, _MODE.CMP_GT, "masked_left", **lengths, left_bound=bound)

    # dropout

    @property
    def keep_probability(self) -> float:
        """1 - p, with the dropout probability p rounded to float32 as in cudnn-frontend, in both passes."""
        rounded: float = struct.unpack("f", struct.pack("f", self.p.dropout))[0]
        return 1.0 - rounded

    def get_random_state_tensor(self, name: str) -> Tensor:
        """Return ``dropout_seed`` or ``dropout_offset`` [1, 1, 1, 1]."""
        return self.get_or_make_tensor(f"dropout_{name}", _ONES, self.p.seed_type)

    def rng_dump(self) -> Tensor:
        """Return the output ``rng_dump`` [b, h, s_q, s_kv] float32."""
        return self.get_or_make_tensor("rng_dump", self.score_dims, DataType.FLOAT)

    def add_philox_mask(self) -> Tensor:
        """Add the random mask of dropout, 1 with the keep probability, and return it."""
        p = self.p
        if p.rng_dump:
            mask = self.rng_dump()
        else:
            mask = self.tensor("dropout_keep", self.score_dims, DataType.FLOAT, virtual=True)
        self.g.operation(
            DescriptorType.OPERATION_RNG,
            "rng",
            y=mask,
            seed=self.get_random_state_tensor("seed"),
            offset=self.get_random_state_tensor("offset"),
            rng=Parameters(
                DescriptorType.RNG,
                {"distribution": RngDistribution.BERNOULLI, "bernoulli_dist_probability": self.keep_probability},
            ),
        )
        return mask

    def add_dropout_factors(self) -> tuple[Tensor, ...]:
        """Return the factors of the probabilities in cuDNN's order: mask and scale; empty without dropout."""
        p = self.p
        if p.dropout_mask:
            return self.get_device_scalar("dropout_scale"), self.get_or_make_tensor(
                "dropout_mask", self.score_dims, p.data_type
            )
        if not p.dropout:
            return ()
        scale = self.scalar(1.0 / self.keep_probability, "dropout_scale")
        return self.add_philox_mask(), scale

    # sub-graphs

    @contextmanager
    def collect_subgraph(self, name: str) -> Iterator[list[Graph]]:
        """Move the operations that a block adds into a sub-graph; the yielded list holds it after the block, if any."""
        outside, self.g.ops = self.g.ops, []
        made: list[Graph] = []
        try:
            yield made
            if self.g.ops:
                made.append(Graph(tuple(self.g.ops), name, is_subgraph=True))
        finally:
            self.g.ops = outside

    def make_softmax_fields(self) -> dict[str, Any]:
        """Return a SOFTMAX operation's fields for the requested statistics and the sink."""
        p = self.p
        wanted = {"stats": p.stats, "max": p.max, "sum_exp": p.sum_exp}
        fields: dict[str, Any] = {name: self.get_per_row_tensor(name) for name, want in wanted.items() if want}
        if p.sink:
            fields["sink"] = self.get_per_head_tensor("sink")
        if p.stats and p.stats_log2:
            fields["stats_log2"] = True
        return fields

    def make_softmax_operation(self, x: Tensor, y: Tensor) -> Operation:
        """Return a SOFTMAX operation without adding it to the graph."""
        return Operation(DescriptorType.OPERATION_SOFTMAX, "softmax", {"x": x, "y": y, **self.make_softmax_fields()})


def _make_builder(problem: Attention, name: str) -> MatmulAndPointwise:
    """Return a builder, with the methods of all operations only if the problem has a score modifier."""
    if problem.score_modifier is None:
        return MatmulAndPointwise(problem.name or name, io_type=problem.data_type)
    from ..builder import GraphBuilder

    return GraphBuilder(problem.name or name, io_type=problem.data_type)


def _round_up_to_multiple(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
