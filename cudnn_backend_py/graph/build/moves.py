"""``GraphBuilder`` methods that move elements, signal between GPUs, or generate random numbers."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from ...errors import GraphError
from ...generated.enums import DataType, DescriptorType, ReshapeMode, RngDistribution, SignalMode
from ..ir import Parameters, Tensor
from ..shapes import compute_concatenated_dims, compute_sliced_dims, permute_dims
from .base import (
    BuilderBase,
    check_data_type,
    check_dims,
    check_equal_ranks,
    check_types,
    make_shape_error,
    make_strides_like,
    read_values_per_dim,
    wrap_public_methods_of_mixin,
)

__all__ = ["DataMovement"]

Slices = Sequence[slice]


@wrap_public_methods_of_mixin
class DataMovement(BuilderBase):
    """Operations that move elements without changing them, in the same data type by default."""

    def reshape(self, x: Tensor, dims: Sequence[int], *, mode: ReshapeMode | None = None, **result: Any) -> Tensor:
        """Reshape x, row-major unless ``strides=`` is given, and return it.

        VIEW_ONLY, the default, reads the memory of `x` with the dims and strides of the result, which is a transpose
        if they are swapped; LOGICAL (cuDNN 9.22) keeps the row-major order of elements.

        Raises
        ------
        GraphError
            ``operation-shape`` if the number of elements changes.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR``.
        """
        check_types(Tensor, x=x)
        y = self._get_result_tensor("reshape", read_values_per_dim(dims, "dims"), result, data_type=x.data_type)
        if math.prod(y.dims) != math.prod(x.dims):
            headline = f"{x.name!r} has {math.prod(x.dims)} elements, {y.name!r} {math.prod(y.dims)}"
            raise make_shape_error(headline, x=x, y=y)
        self._append_operation(DescriptorType.OPERATION_RESHAPE, y.name, x=x, y=y, mode=mode)
        return y

    def transpose(self, x: Tensor, permutation: Sequence[int], **result: Any) -> Tensor:
        """Transpose x and return it: dim i of the result is dim ``permutation[i]`` of x.

        Its strides are those of x, in the same order, unless told otherwise.

        Raises
        ------
        GraphError
            ``wrong-argument`` if the permutation is none; ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR``, cuDNN 9.22 and later.
        """
        check_types(Tensor, x=x)
        order = read_values_per_dim(permutation, "permutation")
        if sorted(order) != list(range(x.rank)):
            raise GraphError(
                f"permutation {order} of {x.name!r} {list(x.dims)}: each of 0 to {x.rank - 1} is needed once",
                code="wrong-argument",
            )
        dims = permute_dims(x.dims, order)
        y = self._get_result_tensor(
            "transpose", dims, result, data_type=x.data_type, strides=permute_dims(x.strides, order)
        )
        check_dims(y, dims, "y", x=x)
        self._append_operation(DescriptorType.OPERATION_TRANSPOSE, y.name, x=x, y=y, permutation=order)
        return y

    def slice(self, x: Tensor, slices: Slices, **result: Any) -> Tensor:
        """Take a part of x, given by one ``slice`` per dim with steps of at least 1, and return it.

        Raises
        ------
        GraphError
            ``wrong-field-type``; ``wrong-argument`` if slices are not as many as dims, or go backwards;
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_SLICE_DESCRIPTOR``, cuDNN 9.22 and later.
        """
        check_types(Tensor, x=x)
        parts = read_values_per_dim(slices if isinstance(slices, Sequence) else [slices], "slices")
        if wrong := [part for part in parts if not _is_slice(part)]:
            raise GraphError(
                f"slices= has {wrong[0]!r}, slice(start, stop) is needed for each dim of {x.name!r} {list(x.dims)}",
                code="wrong-field-type",
            )
        if len(parts) != x.rank or any(part.step is not None and part.step < 1 for part in parts):
            raise GraphError(
                f"the {len(parts)} slices {[*parts]} do not fit {x.name!r} {list(x.dims)}: each of its {x.rank} dims "
                "needs one slice, with a positive step",
                code="wrong-argument",
            )
        ranges = [part.indices(size) for part, size in zip(parts, x.dims, strict=True)]
        dims = compute_sliced_dims(ranges)
        if min(dims) < 1:
            raise make_shape_error(f"the slice of {x.name!r} is empty: it has dims {list(dims)}", x=x)
        starts, stops, steps = zip(*ranges, strict=True)
        y = self._get_result_tensor("slice", dims, result, data_type=x.data_type, strides=make_strides_like(dims, x))
        check_dims(y, dims, "y", x=x)
        self._append_operation(
            DescriptorType.OPERATION_SLICE,
            y.name,
            x=x,
            y=y,
            start_indices=starts,
            limit_indices=stops,
            strides=steps,
        )
        return y

    def concatenate(
        self, inputs: Sequence[Tensor], axis: int, *, in_place_index: int | None = None, **result: Any
    ) -> Tensor:
        """Concatenate tensors along an axis, and return the result.

        `in_place_index` says which of them is in the memory of the result already.

        Raises
        ------
        GraphError
            ``wrong-argument`` if there is no such axis or input; ``operation-shape`` if other dims differ.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR``.
        """
        wrong = ""
        if not inputs:
            wrong = "concatenate has no inputs, at least one is needed"
        elif not 0 <= axis < inputs[0].rank:
            first = inputs[0]
            wrong = f"axis is {axis}, 0 to {first.rank - 1} is needed for {first.name!r} {list(first.dims)}"
        elif not 0 <= (in_place_index or 0) < len(inputs):
            wrong = f"in_place_index is {in_place_index}, 0 to {len(inputs) - 1} is needed for {len(inputs)} inputs"
        if wrong:
            raise GraphError(wrong, code="wrong-argument")
        named = {f"input[{number}]": item for number, item in enumerate(inputs)}
        check_equal_ranks(1, **named)
        first = inputs[0]
        for port, item in named.items():
            check_dims(item, (*first.dims[:axis], item.dims[axis], *first.dims[axis + 1 :]), port, first=first)
        dims = compute_concatenated_dims([item.dims for item in inputs], axis)
        y = self._get_result_tensor(
            "concat", dims, result, data_type=first.data_type, strides=make_strides_like(dims, first)
        )
        check_dims(y, dims, "output", **named)
        self._append_operation(
            DescriptorType.OPERATION_CONCAT,
            y.name,
            axis=axis,
            input=tuple(inputs),
            inplace_index=in_place_index,
            output=y,
        )
        return y

    def paged_cache_load(
        self,
        container: Tensor,
        page_table: Tensor,
        sequence: Tensor,
        *,
        length: int | None = None,
        transposed: bool = False,
        **result: Any,
    ) -> Tensor:
        """Gather keys or values from their pages, and return them: [b, h, s, d], or [b, h, d, s] if `transposed`.

        Parameters
        ----------
        container
            [pages, h, page size, d].
        page_table
            [b, 1, pages of a sequence, 1] INT32: which page holds which positions.
        sequence
            [b, 1, 1, 1] INT32: the real length of each sequence.
        length
            s; all positions of the pages unless given.

        Raises
        ------
        GraphError
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR``; cuDNN has it in attention.
        """
        check_types(Tensor, container=container, page_table=page_table, sequence=sequence)
        tensors = {"container": container, "page_table": page_table, "sequence": sequence}
        if any(item.rank != 4 for item in tensors.values()):
            raise make_shape_error(
                f"container, page table and sequence lengths have {container.rank}, {page_table.rank} and "
                f"{sequence.rank} dims, "
                "but each must have 4: "
                "[pages, h, page size, d], [b, 1, pages of a sequence, 1], [b, 1, 1, 1]",
                **tensors,
            )
        batch, pages = page_table.dims[0], page_table.dims[2]
        _, heads, size, d = container.dims
        s = pages * size if length is None else length
        if s < 1:
            raise GraphError(f"length= is {length}, 1 or more is needed", code="wrong-argument")
        check_dims(page_table, (batch, 1, -(-s // size), 1), "page table", **tensors)
        check_dims(sequence, (batch, 1, 1, 1), "sequence", **tensors)
        dims = (batch, heads, d, s) if transposed else (batch, heads, s, d)
        strides = (heads * s * d, s * d, 1, d) if transposed else (heads * s * d, s * d, d, 1)
        y = self._get_result_tensor("pages", dims, result, data_type=container.data_type, strides=strides)
        check_dims(y, dims, "y", **tensors)
        self._append_operation(DescriptorType.OPERATION_PAGED_CACHE_LOAD, y.name, y=y, **tensors)
        return y

    def signal(self, mode: SignalMode, x: Tensor, flag: Tensor, value: int, **result: Any) -> Tensor:
        """Copy x and set a flag afterwards, or wait for the flag and then copy x; return the copy.

        Parameters
        ----------
        flag
            One INT32 in memory, which another graph, also on another GPU, may wait for or set.

        Raises
        ------
        GraphError
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_SIGNAL_DESCRIPTOR``.
        """
        check_types(SignalMode, mode=mode)
        check_types(Tensor, x=x, flag=flag)
        check_dims(flag, (1,) * flag.rank, "flag", x=x)
        y = self._get_result_tensor("signal", x.dims, result, data_type=x.data_type, strides=x.strides)
        check_dims(y, x.dims, "y", x=x)
        self._append_operation(DescriptorType.OPERATION_SIGNAL, y.name, mode=mode, value=value, flag=flag, x=x, y=y)
        return y

    def rng(
        self,
        dims: Sequence[int],
        seed: Tensor | int,
        offset: Tensor,
        *,
        distribution: RngDistribution = RngDistribution.BERNOULLI,
        probability: float | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        mean: float | None = None,
        standard_deviation: float | None = None,
        **result: Any,
    ) -> Tensor:
        """Generate random numbers of one distribution and return them.

        Parameters
        ----------
        seed, offset
            INT64 of one element: the key of the generator, and where in its sequence to begin.
        probability
            Of a one among zeros, for BERNOULLI.
        minimum, maximum
            For UNIFORM.
        mean, standard_deviation
            For NORMAL.

        Raises
        ------
        GraphError
            ``operation-shape``; ``wrong-argument`` if numbers of another distribution are given, or its own are not.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR``; cuDNN has it in attention.
        """
        check_types(RngDistribution, distribution=distribution)
        check_types((Tensor, int), seed=seed)
        check_types(Tensor, offset=offset)
        for name, item in (("seed", seed), ("offset", offset)):
            if isinstance(item, Tensor):
                check_dims(item, (1,) * item.rank, name)
                check_data_type(item, (DataType.INT64, DataType.INT32), name)
        if probability is not None and not 0 <= probability <= 1:
            raise GraphError(f"probability= is {probability}, 0 to 1 is needed", code="wrong-argument")
        numbers = {
            RngDistribution.BERNOULLI: {"bernoulli_dist_probability": probability},
            RngDistribution.UNIFORM: {"uniform_dist_minimum": minimum, "uniform_dist_maximum": maximum},
            RngDistribution.NORMAL: {"normal_dist_mean": mean, "normal_dist_standard_deviation": standard_deviation},
        }
        for kind, values in numbers.items():
            wrong = [name for name, value in values.items() if (value is None) == (kind is distribution)]
            if wrong:
                state = "needs" if kind is distribution else "does not use"
                shown = ", ".join(f"{name.removeprefix(f'{kind.name.lower()}_dist_')}=" for name in wrong)
                raise GraphError(f"the distribution {distribution.name} {state} {shown}", code="wrong-argument")
        sizes = read_values_per_dim(dims, "dims")
        y = self._get_result_tensor("rng", sizes, result, data_type=DataType.FLOAT)
        check_dims(y, sizes, "y")
        self._append_operation(
            DescriptorType.OPERATION_RNG,
            y.name,
            y=y,
            seed=seed,
            offset=offset,
            rng=Parameters(DescriptorType.RNG, {"distribution": distribution, **numbers[distribution]}),
        )
        return y


def _is_slice(part: object) -> bool:
    return isinstance(part, builtins.slice) and all(
        isinstance(end, int | None) for end in (part.start, part.stop, part.step)
    )
