"""Graph builder that draws sizes, types, layouts and chains of operations from a seed: ``RandomGraphBuilder``.

Values stay in the range of 16-bit floats. Discontinuous operations (comparisons, rounding to integers) mostly read
tensors in memory, so that a rounding difference does not change their results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cudnn_backend_py.generated.enums import DataType, PointwiseMode, ReduceTensorOp
from cudnn_backend_py.graph import GraphBuilder, Tensor
from cudnn_backend_py.graph.strides import channels_last, make_strides_in_order, packed_strides
from cudnn_backend_py.system.version import VersionTuple

__all__ = ["REDUCTION_WEIGHTS", "RandomGraphBuilder", "StrideFunction"]

_Item = TypeVar("_Item")
_P, _R = PointwiseMode, ReduceTensorOp
StrideFunction = Callable[[tuple[int, ...]], tuple[int, ...]]
"""Strides of a tensor in memory, from its dims."""

SMOOTH_MODES = (
    _P.RELU_FWD, _P.TANH_FWD, _P.SIGMOID_FWD, _P.ELU_FWD, _P.GELU_FWD, _P.GELU_APPROX_TANH_FWD, _P.SWISH_FWD,
    _P.SOFTPLUS_FWD, _P.ABS, _P.NEG, _P.IDENTITY, _P.ERF, _P.SIN, _P.COS,
)  # fmt: skip
MODES_FOR_POSITIVE_INPUTS = (_P.SQRT, _P.RSQRT, _P.LOG, _P.RECIPROCAL)  # infinite or NaN for inputs <= 0
MODES_WITH_LARGE_ERRORS = (_P.CEIL, _P.FLOOR, _P.TAN, _P.EXP)
ARITHMETIC_MODES = (_P.ADD, _P.ADD, _P.SUB, _P.MUL, _P.MUL, _P.MAX, _P.MIN, _P.DIV, _P.ADD_SQUARE, _P.ATAN2)
COMPARISON_MODES = (_P.CMP_EQ, _P.CMP_NEQ, _P.CMP_GT, _P.CMP_GE, _P.CMP_LT, _P.CMP_LE)
GRADIENT_MODES = (
    _P.RELU_BWD, _P.TANH_BWD, _P.SIGMOID_BWD, _P.ELU_BWD, _P.GELU_BWD, _P.SOFTPLUS_BWD, _P.SWISH_BWD,
    _P.GELU_APPROX_TANH_BWD,
)  # fmt: skip
REDUCTION_WEIGHTS = {**dict.fromkeys(_R, 0.15), _R.ADD: 8, _R.MAX: 4, _R.MIN: 4, _R.AMAX: 4}  # cuDNN refuses the others
INTEGER_TYPES = (DataType.INT8, DataType.UINT8, DataType.INT32, DataType.INT64)


class RandomGraphBuilder:
    """Builds one random graph; the seed determines all choices."""

    def __init__(self, family: str, seed: int, version: VersionTuple | None) -> None:
        self.random = random.Random(f"{family} {seed}")
        self.version = version
        self.g = GraphBuilder(f"{family} {seed}")
        self.layout: StrideFunction = packed_strides
        self.whole_batch = False  # whether operands mostly have the batch dim: cuDNN computes others wrong

    # choices

    def make_random_bool(self, probability: float) -> bool:
        return self.random.random() < probability

    def choose(self, *choices: _Item) -> _Item:
        return self.random.choice(choices)

    def choose_weighted(self, weights: Mapping[_Item, float]) -> _Item:
        return self.random.choices(list(weights), list(weights.values()))[0]

    def make_random_int(self, least: int, most: int) -> int:
        return self.random.randint(least, most)

    def is_version_at_least(self, *version: int) -> bool:
        """Return whether the cuDNN version to judge is this one or later; True if it is not known."""
        return self.version is None or self.version >= version

    def choose_io_type(self, weights: Mapping[DataType, float]) -> DataType:
        """Choose and set the type of stored tensors; with DOUBLE, operations also compute in DOUBLE."""
        kind = self.choose_weighted(weights)
        self.g.io_type = kind
        if kind is DataType.DOUBLE:
            self.g.compute_type = self.g.intermediate_type = DataType.DOUBLE
        return kind

    def choose_layout(self, weights: Mapping[str, float], rank: int) -> str:
        """Choose the layout of tensors of the largest rank: row-major, channels last, permuted or with gaps."""
        name = self.choose_weighted(weights)
        order = list(range(rank))
        self.random.shuffle(order)
        gap = self.choose(8, 16, 64)

        def compute_permuted_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
            return make_strides_in_order(dims, order) if len(dims) == rank else packed_strides(dims)

        def compute_strides_with_gaps(dims: tuple[int, ...]) -> tuple[int, ...]:
            return packed_strides((*dims[:-1], dims[-1] + gap)) if dims[-1] > 1 else packed_strides(dims)

        layouts: dict[str, StrideFunction] = {
            "packed": packed_strides,
            "last": channels_last,
            "permuted": compute_permuted_strides,
            "gaps": compute_strides_with_gaps,
        }
        self.layout = layouts[name]
        return name

    # tensors

    def add_tensor(self, stem: str, dims: Sequence[int], kind: DataType | None = None, **options: Any) -> Tensor:
        """Add a stored input tensor with this graph's layout."""
        options.setdefault("strides", self.layout(tuple(dims)))
        return self.g.tensor(self.g.make_unused_name(stem), tuple(dims), kind, **options)

    def make_virtual_result_options(self, dims: tuple[int, ...], kind: DataType | None = None) -> dict[str, Any]:
        """Return the options of a virtual result, with strides like those of a stored tensor without gaps."""
        strides = self.layout(dims)
        sound = sorted(strides) == sorted(
            make_strides_in_order(dims, sorted(range(len(dims)), key=strides.__getitem__))
        )
        made: dict[str, Any] = {"virtual": True, "strides": strides if sound else packed_strides(dims)}
        return made | ({} if kind is None else {"data_type": kind})

    def make_stored_result_options(self, dims: tuple[int, ...], kind: DataType | None = None) -> dict[str, Any]:
        """Return the options of a stored result."""
        made: dict[str, Any] = {"virtual": False, "strides": self.layout(dims)}
        return made | ({} if kind is None else {"data_type": kind})

    def choose_output_type(self) -> DataType:
        """Return a type for a stored result, mostly that of the inputs."""
        kind = self.g.io_type
        if kind in (DataType.FP8_E4M3, DataType.FP8_E5M2):
            return self.choose(DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, kind)
        if kind in (DataType.HALF, DataType.BFLOAT16) and self.make_random_bool(0.2):
            return DataType.FLOAT
        if kind is DataType.FLOAT and self.make_random_bool(0.1):
            return self.choose(DataType.HALF, DataType.BFLOAT16)
        return kind

    def add_scalar(self, rank: int, value: float | None = None) -> Tensor:
        """Add a scalar by value, between -2 and 2 by default."""
        return self.g.scalar(self.random.randint(-16, 16) / 8 if value is None else value, rank=rank)

    def choose_operand(self, dims: tuple[int, ...], *, channel: int | None, earlier: Sequence[Tensor] = ()) -> Tensor:
        """Return the second operand of an elementwise operation: a bias, whole tensor, scalar or earlier result."""
        same = [tensor for tensor in earlier if tensor.dims == dims]
        what = self.choose_weighted(
            {"bias": 4, "whole": 3, "number": 2, "one": 0.5, "rows": 0.7, "earlier": 1.5 if same else 0}
        )
        if what == "earlier":
            return self.choose(*same)
        if what == "whole":
            return self.add_tensor("residual", dims)
        if what == "number":
            return self.add_scalar(len(dims))
        if what == "one":
            return self.add_tensor("factor", (1,) * len(dims), DataType.FLOAT)
        axis = len(dims) - 1 if channel is None else channel
        if what == "rows":
            return self.add_tensor("row", tuple(1 if i == axis else dim for i, dim in enumerate(dims)))
        kind = DataType.FLOAT if self.make_random_bool(0.3) else None
        kept = {axis, 0} if self.whole_batch and len(dims) == 3 and self.make_random_bool(0.93) else {axis}
        return self.add_tensor("bias", tuple(dim if i in kept else 1 for i, dim in enumerate(dims)), kind)

    # chains

    def add_operation_with_elementwise_chain(
        self,
        make: Callable[[dict[str, Any]], Tensor],
        dims: tuple[int, ...],
        *,
        length: int,
        channel: int | None = 1,
        reduce: float = 0.0,
        kind: DataType | None = None,
    ) -> Tensor:
        """Add an operation and a chain of elementwise operations; return the chain's stored result.

        Parameters
        ----------
        make
            Adds the operation, given the options of its result.
        length
            Length of the chain.
        channel
            The axis of a bias.
        reduce
            Probability that a reduction ends the chain.
        kind
            Type of the result.
        """
        kind = self.choose_output_type() if kind is None else kind
        reduces = self.make_random_bool(reduce)
        if not length and not reduces:
            return make(self.make_stored_result_options(dims, kind))
        spills = self.make_random_bool(0.12)  # the output of the operation is also stored
        z = make(self.make_stored_result_options(dims, kind) if spills else self.make_virtual_result_options(dims))
        return self.add_elementwise_chain(z, length, channel=channel, kind=kind, reduces=reduces)

    def add_elementwise_chain(
        self,
        z: Tensor,
        length: int,
        *,
        channel: int | None,
        kind: DataType | None = None,
        reduces: bool = False,
        virtual: bool = False,
    ) -> Tensor:
        """Add elementwise operations, perhaps with a reduction; the last result is stored unless ``virtual``."""
        earlier = [z]
        for step in range(length):
            last = step == length - 1 and not reduces and not virtual
            options = (
                self.make_stored_result_options(z.dims, kind) if last else self.make_virtual_result_options(z.dims)
            )
            if not last and self.make_random_bool(0.06):
                options = self.make_stored_result_options(z.dims, self.g.io_type if kind is None else kind)
            z = self.add_elementwise(z, options, channel=channel, earlier=earlier)
            earlier.append(z)
        return self.add_reduction(z, virtual=False) if reduces else z

    def add_elementwise(
        self, z: Tensor, options: dict[str, Any], *, channel: int | None, earlier: Sequence[Tensor] = ()
    ) -> Tensor:
        """Add one elementwise operation, and others that it needs, and return its result."""
        g, dims, rank = self.g, z.dims, z.rank
        what = self.choose_weighted(
            {"smooth": 6, "arithmetic": 7, "select": 0.7, "gradient": 1.2, "positive": 0.7, "rough": 0.4}
        )
        between = self.make_virtual_result_options(dims)
        if what == "arithmetic":
            mode = self.choose(*ARITHMETIC_MODES)
            b = self.choose_operand(dims, channel=channel, earlier=[] if mode is _P.DIV else earlier)
            x, b = (b, z) if mode is _P.SUB and b.dims == dims and self.make_random_bool(0.3) else (z, b)
            return g.pointwise(mode, x, b, **options)
        if what == "gradient":
            mode = self.choose(*GRADIENT_MODES)
            return g.pointwise(
                mode, self.add_tensor("x", dims), dy=z, **options, parameters=self.choose_activation_parameters(mode)
            )
        if what == "select":
            leaf = self.add_tensor("leaf", dims)
            mask = self.add_comparison_mask(leaf, between, channel)
            return g.pointwise(_P.BINARY_SELECT, z, self.choose_operand(dims, channel=channel), mask, **options)
        if what == "positive":
            safe = g.pointwise(_P.ADD, g.pointwise(_P.ABS, z, **between), self.add_scalar(rank, 0.5), **between)
            return g.pointwise(self.choose(*MODES_FOR_POSITIVE_INPUTS), safe, **options)
        if what == "rough":
            mode = self.choose(*MODES_WITH_LARGE_ERRORS)
            if mode is _P.EXP:
                return g.pointwise(mode, g.pointwise(_P.MIN, z, self.add_scalar(rank, 3.0), **between), **options)
            leaf = g.pointwise(mode, self.add_tensor("leaf", dims), **between)
            return g.pointwise(self.choose(_P.ADD, _P.MUL, _P.MAX), z, leaf, **options)
        mode = self.choose(*SMOOTH_MODES)
        return g.pointwise(mode, z, **options, parameters=self.choose_activation_parameters(mode))

    def add_comparison_mask(self, leaf: Tensor, between: dict[str, Any], channel: int | None) -> Tensor:
        """Add a comparison of a stored tensor with an operand, or of an index with another index."""
        g = self.g
        strides = between["strides"]
        if self.make_random_bool(0.05):  # elementwise engines do not support GEN_INDEX
            axis, other = self.make_random_int(0, leaf.rank - 1), self.make_random_int(0, leaf.rank - 1)
            kind = DataType.INT32
            rows, columns = (
                g.pointwise(_P.GEN_INDEX, leaf, axis=i, strides=strides, data_type=kind, compute_type=kind)
                for i in (axis, other)
            )
            return g.pointwise(self.choose(*COMPARISON_MODES), rows, columns, strides=strides)
        first = self.add_comparison(leaf, self.choose_operand(leaf.dims, channel=channel), strides)
        if self.make_random_bool(0.3):
            second = self.add_comparison(leaf, self.add_scalar(leaf.rank), strides)
            return g.pointwise(self.choose(_P.LOGICAL_AND, _P.LOGICAL_OR), first, second, strides=strides)
        return g.pointwise(_P.LOGICAL_NOT, first, strides=strides) if self.make_random_bool(0.2) else first

    def add_comparison(
        self, x: Tensor, b: Tensor, strides: tuple[int, ...], mode: PointwiseMode | None = None
    ) -> Tensor:
        """Add a comparison, mostly computed in float32, which most engines need."""
        kind = DataType.FLOAT if self.make_random_bool(0.95) else None
        return self.g.pointwise(mode or self.choose(*COMPARISON_MODES), x, b, strides=strides, compute_type=kind)

    def choose_activation_parameters(self, mode: PointwiseMode) -> dict[str, Any]:
        """Return random parameters of an activation, or none."""
        if self.make_random_bool(0.6):
            return {}
        name = mode.name
        if name.startswith("RELU"):
            clip = {"relu_lower_clip_slope": 0.1} if self.make_random_bool(0.5) else {"relu_upper_clip": 6.0}
            return clip | ({"relu_lower_clip": 0.5} if self.make_random_bool(0.2) else {})
        for stem, key in (("ELU", "elu_alpha"), ("SOFTPLUS", "softplus_beta"), ("SWISH", "swish_beta")):
            if name.startswith(stem):
                return {key: self.choose(0.5, 1.5, 2.0)}
        return {}

    def add_reduction(self, x: Tensor, *, virtual: bool, operator: ReduceTensorOp | None = None) -> Tensor:
        """Add a reduction over some axes, and return its result in float32, which cuDNN requires."""
        axes = [axis for axis, dim in enumerate(x.dims) if dim > 1] or [x.rank - 1]
        if self.make_random_bool(0.12):
            chosen = set(self.random.sample(axes, self.make_random_int(1, len(axes))))
        else:  # columns, rows, or all elements
            rest = {0, *range(2, x.rank)} if x.rank > 3 else set(range(x.rank - 1))
            last = set(range(x.rank)) - rest
            chosen = self.choose(rest, last, rest | last)
        dims = tuple(1 if axis in chosen else dim for axis, dim in enumerate(x.dims))
        count = 1
        for whole, part in zip(x.dims, dims, strict=True):
            count *= whole // part
        operator = self.choose_weighted(REDUCTION_WEIGHTS) if operator is None else operator
        if operator in (_R.MUL, _R.MUL_NO_ZEROS) and count > 64:
            operator = _R.ADD
        kind = DataType.DOUBLE if self.g.io_type is DataType.DOUBLE else DataType.FLOAT
        options = (
            self.make_virtual_result_options(dims, kind) if virtual else self.make_stored_result_options(dims, kind)
        )
        return self.g.reduction(operator, x, dims, **options)
