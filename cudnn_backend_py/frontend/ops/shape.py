"""Operations that move elements, block scaling, random numbers and pooling, under cudnn-frontend's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...generated.enums import (
    DescriptorType,
    NanPropagation,
    PaddingMode,
    ResampleMode,
    ReshapeMode,
    RngDistribution,
)
from ...graph.data_types import ELEMENT_BITS
from ...graph.ir import Parameters
from ...graph.shapes import compute_concatenated_dims, compute_pooled_size, compute_sliced_dims, permute_dims
from ...graph.strides import copy_stride_order, make_strides_in_order
from ..arguments import check_instance, to_float, to_int, to_int_list, to_list
from ..enums import data_type, padding_mode, resample_mode, reshape_mode, rng_distribution
from ..errors import make_attribute_not_set_error, make_invalid_value_error
from ..tensors import tensor, to_float32_hex
from .base import OpsBase
from .infer import NOT_SET, OpNode, check_data_type, fill_dims_and_strides, require_version
from .node import Emitter, fill_data_type

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["BlockScaleOps", "ShapeOps"]

Slices = Sequence[slice]


def _require_output_type_of_input(node: OpNode) -> None:
    """Set a result's missing data type to its input's; raise if the result has another type."""
    x, y = node.inputs["X"], node.outputs["Y"]
    if y.data_type == NOT_SET:
        y.data_type = x.data_type
    if y.data_type != x.data_type:
        raise make_invalid_value_error(
            f"data types of {node.tag.lower()} {node.name!r} mismatch: x {x.data_type.name}, y {y.data_type.name}",
            fix=f"call set_data_type(cudnn.data_type.{x.data_type.name}) on the result, "
            "or give the graph no other type",
        )


class _Reshape(OpNode):
    tag = "RESHAPE"
    needs = ("X",)

    def __init__(self, name: str, x: tensor, mode: reshape_mode) -> None:
        super().__init__(name, NOT_SET, {"X": x}, {})
        if not isinstance(mode, reshape_mode):
            raise TypeError(f"reshape_mode is {mode!r}, a cudnn.reshape_mode is needed")
        self.mode = mode
        self.add_output("Y")

    def list_parameters(self) -> dict[str, Any]:
        y = self.outputs["Y"]
        return {"reshape_mode": self.mode.name, "dim": list(y.dim), "stride": list(y.stride)}

    def infer_shapes(self) -> None:
        x, y = self.inputs["X"], self.outputs["Y"]
        fill_dims_and_strides(y, None)
        if self.mode is reshape_mode.LOGICAL:
            _require_output_type_of_input(self)
        elif y.data_type == NOT_SET:
            y.data_type = x.data_type

    def emit(self, to: Emitter) -> None:
        logical = self.mode is reshape_mode.LOGICAL
        if logical:
            require_version(to, (9, 22), "a LOGICAL reshape")
        y = to.emit_tensor(self.outputs["Y"])
        mode = ReshapeMode.LOGICAL if logical else None
        to.builder.operation(
            DescriptorType.OPERATION_RESHAPE, y.name, x=to.emit_tensor(self.inputs["X"]), y=y, mode=mode
        )


class _Transpose(OpNode):
    tag = "TRANSPOSE"
    needs = ("X",)

    def __init__(self, name: str, compute: Any, x: tensor, permutation: list[int]) -> None:
        super().__init__(name, check_data_type(compute), {"X": x}, {})
        self.permutation = permutation
        self.add_output("Y")

    def list_parameters(self) -> dict[str, Any]:
        return {"permutation": self.permutation}

    def infer_shapes(self) -> None:
        x, y = self.inputs["X"], self.outputs["Y"]
        if not self.permutation:
            raise make_attribute_not_set_error(
                f"transpose {self.name!r} has no permutation", fix="give one int for each dim"
            )
        if sorted(self.permutation) != list(range(len(x.dim))):
            raise make_invalid_value_error(
                f"the permutation {self.permutation} of transpose {self.name!r} is invalid",
                where=f"its input has {len(x.dim)} dims",
                fix=f"give each of 0 to {len(x.dim) - 1} once",
            )
        fill_dims_and_strides(y, permute_dims(x.dim, self.permutation), permute_dims(x.stride, self.permutation))
        _require_output_type_of_input(self)

    def emit(self, to: Emitter) -> None:
        require_version(to, (9, 22), "transpose")
        y = to.emit_tensor(self.outputs["Y"])
        x = to.emit_tensor(self.inputs["X"])
        to.builder.operation(DescriptorType.OPERATION_TRANSPOSE, y.name, x=x, y=y, permutation=self.permutation)


class _Slice(OpNode):
    """A slice: an offset into a tensor in memory, or an operation for a virtual tensor or an output."""

    tag = "SLICE"
    needs = ("X",)

    def __init__(self, name: str, compute: Any, x: tensor, slices: Slices) -> None:
        super().__init__(name, check_data_type(compute), {"X": x}, {})
        self.slices = [*to_list("slices", slices, "a list of slices")]
        for item in self.slices:
            check_instance("a part of slices", item, slice, "a slice for each dim")
        self.add_output("Y").data_type = getattr(x, "data_type", NOT_SET)

    def infer(self, context: Context) -> None:
        x, y = self.inputs["X"], self.outputs["Y"]
        fill_data_type(x, context)
        if y.data_type == NOT_SET:
            y.data_type = x.data_type  # of the input, before that of virtual tensors
        super().infer(context)

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """Start, stop and step of each dim."""
        return [one.indices(size) for one, size in zip(self.slices, self.inputs["X"].dim, strict=False)]

    def list_parameters(self) -> dict[str, Any]:
        return {
            "slices": [[start, stop] for start, stop, _ in self.ranges],
            "slice_strides": [step for _, _, step in self.ranges],
        }

    def infer_shapes(self) -> None:
        x, y = self.inputs["X"], self.outputs["Y"]
        if len(self.slices) != len(x.dim):
            raise make_attribute_not_set_error(
                f"slice {self.name!r} has {len(self.slices)} slices for {len(x.dim)} dims", fix="give one for each dim"
            )
        for axis, (_, _, step) in enumerate(self.ranges):
            if step <= 0:
                raise make_invalid_value_error(
                    f"slice {self.name!r} has an invalid step of {step} in dim {axis}: it must be at least 1"
                )
        dims = list(compute_sliced_dims(self.ranges))
        fill_dims_and_strides(
            y, dims, [stride * step for stride, (_, _, step) in zip(x.stride, self.ranges, strict=True)]
        )
        if list(y.dim) != dims:
            raise make_invalid_value_error(
                f"the result of slice {self.name!r} has dims {list(y.dim)}, but its slices have dims {dims}",
                fix="give it these dims, or none",
            )
        _require_output_type_of_input(self)
        y.in_memory = y.virtual and (x.in_memory or not x.virtual)
        if y.in_memory:
            # An address that is less aligned than the whole tensor's must be called so.
            while self._compute_byte_offset() % y.alignment:
                y.alignment //= 2

    def _compute_byte_offset(self) -> int:
        """Return the bytes from the start of the whole tensor to the start of the slice."""
        x = self.inputs["X"]
        elements = sum(start * stride for (start, _, _), stride in zip(self.ranges, x.stride, strict=True))
        kind = x.data_type.backend
        return elements * (8 if kind is None else ELEMENT_BITS[kind]) // 8

    def emit(self, to: Emitter) -> None:
        if not self.outputs["Y"].in_memory:
            self._emit_operation(to)
            return
        x, y = to.emit_tensor(self.inputs["X"]), to.emit_tensor(self.outputs["Y"])
        memory, before = to.slices.get(x.uid, (x.uid, 0))
        to.slices[y.uid] = (memory, before + self._compute_byte_offset())

    def _emit_operation(self, to: Emitter) -> None:
        require_version(to, (9, 22), "a slice of a virtual tensor, or one that is an output,")
        y = to.emit_tensor(self.outputs["Y"])
        starts, stops, steps = zip(*self.ranges, strict=True)
        to.builder.operation(
            DescriptorType.OPERATION_SLICE,
            y.name,
            x=to.emit_tensor(self.inputs["X"]),
            y=y,
            start_indices=starts,
            limit_indices=stops,
            strides=steps,
        )


class _Concatenate(OpNode):
    tag = "CONCATENATE"

    def __init__(self, name: str, inputs: Sequence[tensor], axis: int, in_place_index: int | None) -> None:
        items = to_list("inputs", inputs, "a list of tensors")
        super().__init__(name, NOT_SET, {str(index): item for index, item in enumerate(items)}, {})
        self.axis = to_int("axis", axis)
        self.in_place_index = None if in_place_index is None else to_int("in_place_index", in_place_index)
        self.add_output("Y")

    def list_parameters(self) -> dict[str, Any]:
        return {"axis": self.axis, "in_place_index": self.in_place_index}

    def check(self, context: Context) -> None:
        if not self.inputs:
            raise make_invalid_value_error(f"concatenate {self.name!r} has no inputs", fix="give at least one tensor")

    def infer_shapes(self) -> None:
        first = self.inputs["0"]
        if not 0 <= self.axis < len(first.dim):
            raise make_invalid_value_error(
                f"concatenate {self.name!r} has an invalid axis {self.axis} for dims {first.dim}",
                fix=f"give one of 0 to {len(first.dim) - 1}",
            )
        dims = compute_concatenated_dims([item.dim for item in self.inputs.values()], self.axis)
        fill_dims_and_strides(self.outputs["Y"], dims, copy_stride_order(dims, first.stride))

    def emit(self, to: Emitter) -> None:
        y = to.emit_tensor(self.outputs["Y"])
        to.builder.operation(
            DescriptorType.OPERATION_CONCAT,
            y.name,
            axis=self.axis,
            input=[to.emit_tensor(item) for item in self.inputs.values()],
            inplace_index=self.in_place_index,
            output=y,
        )


class _Rng(OpNode):
    tag = "RNG"
    needs = ("Seed", "Offset")

    def __init__(
        self, name: str, inputs: dict[str, Any], distribution: rng_distribution, probability: float | None
    ) -> None:
        super().__init__(name, NOT_SET, inputs, {})
        self.distribution, self.probability = distribution, probability
        self.add_output("Y")

    def list_parameters(self) -> dict[str, Any]:
        return {"distribution": self.distribution.name, "bernoulli_probability": self.probability}

    def infer_shapes(self) -> None:
        fill_dims_and_strides(self.outputs["Y"], None)

    def emit(self, to: Emitter) -> None:
        if self.distribution is not rng_distribution.BERNOULLI or self.probability is None:
            raise make_attribute_not_set_error(
                f"rng {self.name!r} has distribution {self.distribution.name} and probability {self.probability}; "
                "only BERNOULLI with a probability is supported"
            )
        y = to.emit_tensor(self.outputs["Y"])
        parameters = {
            "distribution": RngDistribution.BERNOULLI,
            "bernoulli_dist_probability": float(self.probability),
        }
        to.builder.operation(
            DescriptorType.OPERATION_RNG,
            y.name,
            y=y,
            rng=Parameters(DescriptorType.RNG, parameters),
            seed=to.emit_tensor(self.inputs["Seed"]),
            offset=to.emit_tensor(self.inputs["Offset"]),
        )


class _Resample(OpNode):
    tag = "RESAMPLE"
    needs = ("X",)

    def __init__(
        self,
        name: str,
        compute: Any,
        x: tensor,
        modes: tuple[resample_mode, padding_mode],
        window: dict[str, list[int]],
        generate_index: bool,
    ) -> None:
        super().__init__(name, check_data_type(compute), {"X": x}, {})
        self.mode, self.padding = modes
        self.window = window
        self.add_output("Y")
        if generate_index and self.mode is resample_mode.MAXPOOL:
            self.add_output("Index")

    def list_parameters(self) -> dict[str, Any]:
        modes = {"resample_mode": self.mode.name, "padding_mode": self.padding.name}
        return {**modes, **self.window, "generate_index": "Index" in self.outputs}

    def check(self, context: Context) -> None:
        super().check(context)
        if self.mode is resample_mode.NOT_SET or self.padding is padding_mode.NOT_SET:
            raise make_attribute_not_set_error(
                f"resample {self.name!r} has an invalid mode: resample mode {self.mode.name} and padding mode "
                f"{self.padding.name}, neither may be NOT_SET"
            )
        if len({len(values) for values in self.window.values()}) > 1:
            raise make_invalid_value_error(
                f"window, stride and padding of resample {self.name!r} have different lengths",
                where="\n".join(f"{side} {values}" for side, values in self.window.items()),
                fix="give one number for each spatial dim",
            )

    def infer_shapes(self) -> None:
        x, y = self.inputs["X"].dim, self.outputs["Y"]
        dims = list(x)
        for axis, (size, stride, before, after) in enumerate(zip(*self.window.values(), strict=True), 2):
            if axis < len(x):
                dims[axis] = compute_pooled_size(x[axis], size, stride, before, after)
        fill_dims_and_strides(y, dims)
        if "Index" in self.outputs:
            self.outputs["Index"].dim = list(y.dim)
            fill_dims_and_strides(self.outputs["Index"], y.dim)

    def emit(self, to: Emitter) -> None:
        y = to.emit_tensor(self.outputs["Y"])
        fields = {
            "window_dims": "window",
            "strides": "stride",
            "pre_paddings": "pre_padding",
            "post_paddings": "post_padding",
        }
        parameters = {
            "mode": ResampleMode[self.mode.name],
            "comp_type": to.get_compute_type(self),
            "nan_propagation": NanPropagation.PROPAGATE_NAN,
            "padding_mode": PaddingMode[self.padding.name],
            "spatial_dims": len(self.window["window"]),
            **{field: tuple(self.window[side]) for field, side in fields.items()},
        }
        to.builder.operation(
            DescriptorType.OPERATION_RESAMPLE_FWD,
            y.name,
            x=to.emit_tensor(self.inputs["X"]),
            y=y,
            idx=to.emit_optional_tensor(self.outputs.get("Index")),
            alpha=1.0,
            beta=0.0,
            resample=Parameters(DescriptorType.RESAMPLE, parameters),
        )


class _PagedCacheLoad(OpNode):
    tag = "PAGED_CACHE_LOAD"
    needs = ("container", "seqLen", "pageTable")

    def __init__(self, name: str, inputs: dict[str, Any]) -> None:
        super().__init__(name, NOT_SET, inputs, {})
        self.add_output("yOut")

    def infer(self, context: Context) -> None:
        y, container = self.outputs["yOut"], self.inputs["container"]
        if y.data_type == NOT_SET:
            y.data_type = container.data_type if container.data_type != NOT_SET else context.io_type
        super().infer(context)

    def infer_shapes(self) -> None:
        y, container, table = self.outputs["yOut"], self.inputs["container"], self.inputs["pageTable"]
        fill_dims_and_strides(y, None)
        sequence = y.dim[3 if y.stride[2] == 1 else 2]
        needed = -(-sequence // container.dim[2])
        if table.ragged_offset is None and needed != table.dim[2]:
            raise make_invalid_value_error(
                f"page table of {self.name!r} has {table.dim[2]} pages, but {needed} are needed: a mismatch",
                where=f"{sequence} positions in blocks of {container.dim[2]}",
            )

    def emit(self, to: Emitter) -> None:
        y = to.emit_tensor(self.outputs["yOut"])
        to.builder.operation(
            DescriptorType.OPERATION_PAGED_CACHE_LOAD,
            y.name,
            container=to.emit_tensor(self.inputs["container"]),
            y=y,
            sequence=to.emit_tensor(self.inputs["seqLen"]),
            page_table=to.emit_tensor(self.inputs["pageTable"]),
        )


# Tag -> operation, where it reads and writes, its version, and the ports' names
_ROPE_DESCRIPTORS = {
    "ROPE": (DescriptorType.OPERATION_ROPE_FWD, ("x", "y"), (9, 24), ("INPUT", "OUTPUT")),
    "ROPE_BWD": (DescriptorType.OPERATION_ROPE_BWD, ("dy", "dx"), (9, 24), ("DY", "DX")),
}


class _Rope(OpNode):
    def __init__(
        self, tag: str, name: str, compute: Any, inputs: dict[str, Any], output_scale: float, rope_dim: int
    ) -> None:
        super().__init__(name, check_data_type(compute), inputs, {})
        self.tag = tag
        self.needs = tuple(inputs)
        self.output_scale, self.rope_dim = to_float("output_scale", output_scale), to_int("rope_dim", rope_dim)
        self.add_output(_ROPE_DESCRIPTORS[tag][3][1]).in_memory = True

    def list_parameters(self) -> dict[str, Any]:
        return {"output_scale": to_float32_hex(self.output_scale), "rope_dim": self.rope_dim}

    def infer_shapes(self) -> None:
        source, target = (
            ports[port] for ports, port in zip((self.inputs, self.outputs), _ROPE_DESCRIPTORS[self.tag][3], strict=True)
        )
        fill_dims_and_strides(target, source.dim, source.stride)

    def emit(self, to: Emitter) -> None:
        kind, fields, version, (source, target) = _ROPE_DESCRIPTORS[self.tag]
        require_version(to, version, self.tag.lower())
        y = to.emit_tensor(self.outputs[target])
        tensors = dict(zip(fields, (to.emit_tensor(self.inputs[source]), y), strict=True))
        to.builder.operation(
            kind,
            y.name,
            **tensors,
            freqs=to.emit_tensor(self.inputs["FREQS"]),
            output_scale=None if self.output_scale == 1.0 else self.output_scale,
            rope_dim=self.rope_dim or None,
        )


class ShapeOps(OpsBase):
    """Mixin of ``pygraph`` with methods that add reshapes, slices, concatenations, random numbers and pooling."""

    def reshape(self, input: tensor, name: str = "", reshape_mode: reshape_mode = reshape_mode.VIEW_ONLY) -> tensor:
        """Return `input` with the dims and strides set on the result; strides are channels last by default.

        VIEW_ONLY looks at the same memory, LOGICAL (cuDNN 9.22) keeps the row-major order of elements.
        """
        return self._add_node(_Reshape(name, input, reshape_mode)).outputs["Y"]

    def transpose(
        self, input: tensor, permutation: Sequence[int], compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor:
        """Return `input` with dim i of the result being dim ``permutation[i]``; needs cuDNN 9.22."""
        node = _Transpose(name, compute_data_type, input, to_int_list("permutation", permutation))
        return self._add_node(node).outputs["Y"]

    def slice(
        self, input: tensor, slices: Slices = (), compute_data_type: data_type = NOT_SET, name: str = ""
    ) -> tensor:
        """Return a part of `input`, by one slice per dim.

        A part of a tensor in memory is that memory from an offset on, and costs nothing. One of a virtual tensor is
        an operation, and needs cuDNN 9.22.
        """
        return self._add_node(_Slice(name, compute_data_type, input, slices)).outputs["Y"]

    def concatenate(
        self, inputs: Sequence[tensor], axis: int, in_place_index: int | None = None, name: str = ""
    ) -> tensor:
        """Return `inputs` concatenated along `axis`.

        `in_place_index` says which of them is in the memory of the result already.
        """
        node = _Concatenate(name, inputs, axis, in_place_index)
        return self._add_node(node).outputs["Y"]

    def rng(
        self,
        seed: tensor,
        offset: tensor,
        distribution: rng_distribution = rng_distribution.BERNOULLI,
        bernoulli_probability: float | None = None,
        name: str = "",
    ) -> tensor:
        """Return random zeros and ones in the dims set on the result.

        Parameters
        ----------
        seed, offset
            INT64 tensors of one element: the key of the generator, and where in its sequence to begin.
        bernoulli_probability
            That of a one.

        Notes
        -----
        cudnn-frontend has it in C++ only.
        """
        node = _Rng(name, {"Seed": seed, "Offset": offset}, distribution, bernoulli_probability)
        return self._add_node(node).outputs["Y"]

    def resample(
        self,
        input: tensor,
        window: Sequence[int],
        stride: Sequence[int],
        pre_padding: Sequence[int],
        post_padding: Sequence[int],
        resampling_mode: resample_mode = resample_mode.MAXPOOL,
        padding_mode: padding_mode = padding_mode.NEG_INF_PAD,
        generate_index: bool = False,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor | None]:
        """Return [Y, index]: `input` pooled or resampled over its spatial dims, channels last.

        The index, of the largest element in each window, is None unless `generate_index` in mode MAXPOOL.

        Notes
        -----
        cudnn-frontend has it in C++ only.
        """
        sides = {"window": window, "stride": stride, "pre_padding": pre_padding, "post_padding": post_padding}
        node = _Resample(
            name,
            compute_data_type,
            input,
            (resampling_mode, padding_mode),
            {side: to_int_list(side, values) for side, values in sides.items()},
            generate_index,
        )
        outputs = self._add_node(node).outputs
        return [outputs["Y"], outputs.get("Index")]

    def paged_cache_load(self, container: tensor, seq_len: tensor, page_table: tensor, name: str = "") -> tensor:
        """Return a paged cache as one tensor, with the dims set on the result.

        Parameters
        ----------
        container
            [pages, h, page size, d].
        seq_len
            [b, 1, 1, 1], INT32.
        page_table
            [b, 1, pages of a sequence, 1], INT32.

        Notes
        -----
        cudnn-frontend has it in C++ only; its attention adds it where it is given page tables.
        """
        inputs = {"container": container, "seqLen": seq_len, "pageTable": page_table}
        return self._add_node(_PagedCacheLoad(name, inputs)).outputs["yOut"]

    def rope(
        self,
        input: tensor,
        freqs: tensor,
        output_scale: float = 1.0,
        rope_dim: int = 0,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> tensor:
        """Return `input` [b, h, s, d] with the last `rope_dim` elements of each head rotated; 0 means all.

        Parameters
        ----------
        freqs
            Angles [positions, 1, 1, rope_dim], of which the first half of the columns is read.
        output_scale
            Factor of the whole result.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR``. Since cudnn-frontend 1.32; its result is an output. Needs
        cuDNN 9.24.
        """
        node = _Rope("ROPE", name, compute_data_type, {"INPUT": input, "FREQS": freqs}, output_scale, rope_dim)
        return self._add_node(node).outputs["OUTPUT"]

    def rope_backward(
        self,
        dY: tensor,
        freqs: tensor,
        output_scale: float = 1.0,
        rope_dim: int = 0,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> tensor:
        """Return the gradient of :meth:`rope` with respect to its input.

        C: ``CUDNN_BACKEND_OPERATION_ROPE_BWD_DESCRIPTOR``, cuDNN 9.24 and later.
        """
        node = _Rope("ROPE_BWD", name, compute_data_type, {"DY": dY, "FREQS": freqs}, output_scale, rope_dim)
        return self._add_node(node).outputs["DX"]


def _check_block_size(node: OpNode, sizes: Sequence[int]) -> None:
    if min(sizes) < 1:
        raise make_invalid_value_error(
            f"block size {list(sizes)} of {node.tag.lower()} {node.name!r} is not positive", fix="give at least 1"
        )


class _Quantize(OpNode):
    tag = "BLOCK_SCALE_QUANTIZE"
    needs = ("X",)

    def __init__(self, name: str, compute: Any, x: tensor, block_size: int, axis: int | None, transpose: bool) -> None:
        super().__init__(name, check_data_type(compute), {"X": x}, {})
        self.block_size = to_int("block_size", block_size)
        self.axis = None if axis is None else to_int("axis", axis)
        self.transpose = bool(transpose)
        self.add_output("Y")
        self.add_output("scale")

    def list_parameters(self) -> dict[str, Any]:
        return {"block_size": self.block_size, "axis": self.axis, "transpose": self.transpose}

    def check(self, context: Context) -> None:
        super().check(context)
        _check_block_size(self, [self.block_size])
        rank = len(self.inputs["X"].dim)
        if self.axis is not None and not -rank <= self.axis < rank:
            raise make_attribute_not_set_error(
                f"axis {self.axis} of block_scale_quantize {self.name!r} is out of range for the input of {rank} dims",
                fix=f"give one of 0 to {rank - 1}",
            )

    def infer_shapes(self) -> None:
        x, y, scale = self.inputs["X"], self.outputs["Y"], self.outputs["scale"]
        fill_dims_and_strides(
            y, y.dim or x.dim, self._make_transposed_strides(y.dim or x.dim) if self.transpose else x.stride
        )
        dims = scale.dim
        if not dims:
            dims = list(x.dim)
            dims[-1 if self.axis is None else self.axis] //= self.block_size
        fill_dims_and_strides(
            scale, dims, self._make_transposed_strides(dims) if self.transpose else copy_stride_order(dims, x.stride)
        )

    def _make_transposed_strides(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Return strides in x's memory order, rotated so that the axis of the scale blocks is the fastest one."""
        x = self.inputs["X"]
        # Of equal strides those of size 1 are faster, and of these the last.
        order = sorted(range(len(x.dim)), key=lambda axis: (x.stride[axis], x.dim[axis] != 1, -axis))
        if self.axis is not None:
            turn = order.index(self.axis % len(order))
            order = order[turn:] + order[:turn]
        return make_strides_in_order(dims, order)

    def emit(self, to: Emitter) -> None:
        y = to.emit_tensor(self.outputs["Y"])
        to.builder.operation(
            DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE,
            y.name,
            x=to.emit_tensor(self.inputs["X"]),
            y=y,
            scale=to.emit_tensor(self.outputs["scale"]),
            math_prec=to.get_compute_type(self),
            block_size=self.block_size,
        )


class _Dequantize(OpNode):
    tag = "BLOCK_SCALE_DEQUANTIZE"
    needs = ("X", "scale")

    def __init__(
        self, name: str, compute: Any, x: tensor, scale: tensor, block_size: list[int], negative: bool
    ) -> None:
        super().__init__(name, check_data_type(compute), {"X": x, "scale": scale}, {})
        self.block_size, self.negative = block_size, bool(negative)
        self.add_output("Y")

    def list_parameters(self) -> dict[str, Any]:
        return {"block_size": self.block_size, "is_negative_scale": self.negative}

    def check(self, context: Context) -> None:
        super().check(context)
        if not self.block_size:
            raise make_attribute_not_set_error(
                f"block_scale_dequantize {self.name!r} has no block size", fix="give block_size=, such as [1, 32]"
            )
        _check_block_size(self, self.block_size)
        if not self.outputs["Y"].virtual:
            raise make_invalid_value_error(
                f"the result of block_scale_dequantize {self.name!r} is an output, but must be virtual",
                fix="use it in another operation, such as identity, and make that operation's result the output",
            )

    def infer_shapes(self) -> None:
        x = self.inputs["X"]
        fill_dims_and_strides(self.outputs["Y"], x.dim, x.stride)

    def emit(self, to: Emitter) -> None:
        y = to.emit_tensor(self.outputs["Y"])
        to.builder.operation(
            DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE,
            y.name,
            x=to.emit_tensor(self.inputs["X"]),
            scale=to.emit_tensor(self.inputs["scale"]),
            y=y,
            math_prec=to.get_compute_type(self),
            block_size=self.block_size,
            neg_scale=self.negative if to.context.version >= (9, 14) else None,
        )


class BlockScaleOps(OpsBase):
    """Mixin of ``pygraph`` with the methods that quantize and dequantize with block scales."""

    def block_scale_quantize(
        self,
        input: tensor,
        block_size: int,
        axis: int | None = None,
        transpose: bool = False,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> list[tensor]:
        """Return [Y, scale] of `input` in blocks of `block_size` along `axis`, by default the last dim.

        The dims of Y are those of `input`, the scale's are divided by the block size along the axis. With
        `transpose` the axis has stride 1 in both.
        """
        node = self._add_node(_Quantize(name, compute_data_type, input, block_size, axis, transpose))
        return [node.outputs["Y"], node.outputs["scale"]]

    def block_scale_dequantize(
        self,
        input: tensor,
        descale: tensor,
        block_size: Sequence[int],
        is_negative_scale: bool = False,
        compute_data_type: data_type = NOT_SET,
        name: str = "",
    ) -> tensor:
        """Return `input` multiplied by its block scales: a virtual tensor with the dims and strides of `input`."""
        sizes = to_int_list("block_size", block_size)
        node = _Dequantize(name, compute_data_type, input, descale, sizes, is_negative_scale)
        return self._add_node(node).outputs["Y"]
