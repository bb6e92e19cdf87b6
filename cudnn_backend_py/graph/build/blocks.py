"""Quantization with one scale for each block of elements, as methods of ``GraphBuilder``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from ...errors import GraphError
from ...generated.enums import DataType, DescriptorType, TensorReordering
from ..ir import Tensor
from ..shapes import compute_scale_dims, find_block_size_per_axis
from ..strides import make_strides_in_order
from .base import BuilderBase, Output, check_dims, check_types, make_shape_error, wrap_public_methods_of_mixin

__all__ = ["BlockScaling", "QuantizeOutputs"]

_NVFP4 = 16  # elements of a block


class QuantizeOutputs(NamedTuple):
    """Quantized elements and their block scales."""

    y: Tensor
    scale: Tensor


@wrap_public_methods_of_mixin
class BlockScaling(BuilderBase):
    """Builder methods that quantize and dequantize with block scales, as for MXFP8 and NVFP4."""

    def block_scale_quantize(
        self,
        x: Tensor,
        block_size: int,
        *,
        axis: int = -1,
        scale_type: DataType | None = None,
        scale_order: Literal["plain", "128x4"] | None = None,
        scale: Output = True,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> QuantizeOutputs:
        """Quantize x to few bits with one scale per block along an axis, and return both.

        Parameters
        ----------
        block_size
            32 for MXFP8, 16 for NVFP4: y is FP8_E4M3 or FP4_E2M1 and the scales FP8_E8M0 or FP8_E4M3 unless told
            otherwise.
        axis
            Of the blocks. In the scales it has stride 1.
        scale_order
            ``plain``: one scale for each block, row-major. ``128x4``: as the matrix units of Blackwell read them, with
            dims rounded up to whole tiles (:func:`~cudnn_backend_py.graph.formats.to_f8_128x4_order`).
            Unless given, the order that cuDNN needs: tiles for `x` of 3 dims, plain for others.

        Raises
        ------
        GraphError
            ``wrong-argument`` if there is no such axis; ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR``, cuDNN 9.7 and later.
        """
        check_types(Tensor, x=x)
        if not -x.rank <= axis < x.rank or block_size < 1:
            raise GraphError(
                f"block_size is {block_size} and axis {axis} for {x.name!r} {list(x.dims)}: a block size of 1 or "
                f"more and an axis from {-x.rank} to {x.rank - 1} are needed",
                code="wrong-argument",
            )
        small = block_size == _NVFP4
        sizes = [1] * x.rank
        sizes[axis] = block_size
        tiled = scale_order == "128x4" or (scale_order is None and x.rank == 3)
        dims = compute_scale_dims(x.dims, sizes, tiled=tiled)
        order = [axis % x.rank, *(other for other in range(x.rank - 1, -1, -1) if other != axis % x.rank)]
        options = {"strides": make_strides_in_order(dims, order)}
        if tiled:
            options["reordering"] = TensorReordering.F8_128x4  # type: ignore[assignment]
        if isinstance(scale, bool):
            given: Output = scale and options
        else:
            given = scale if isinstance(scale, Tensor) else {**options, **scale}
        kind = scale_type or (DataType.FP8_E4M3 if small else DataType.FP8_E8M0)
        few = DataType.FP4_E2M1 if small else DataType.FP8_E4M3
        y = self._get_result_tensor("quantized", x.dims, result, data_type=few, strides=x.strides)
        check_dims(y, x.dims, "y", x=x)
        scales = self._make_optional_output(given, f"{y.name}.scale", dims, kind)
        if scales is None:
            raise GraphError("the scales are needed, so scale=False is not allowed", code="missing-field")
        self._append_operation(
            DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE,
            y.name,
            x=x,
            y=y,
            scale=scales,
            math_prec=self._choose_compute_type(compute_type),
            block_size=block_size,
        )
        return QuantizeOutputs(y, scales)

    def block_scale_dequantize(
        self,
        x: Tensor,
        scale: Tensor,
        block_size: int | Sequence[int],
        *,
        negative_scales: bool | None = None,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> Tensor:
        """Multiply each element by the scale of its block, and return the product.

        Parameters
        ----------
        x
            Elements of few bits.
        scale
            One for each block, with dims rounded up to whole tiles if it is in F8_128x4 order.
        block_size
            Elements of a block along the last dims, such as 32 or (1, 32).
        negative_scales
            Whether scales may be negative; a scale's sign counts in any case here.

        Raises
        ------
        GraphError
            ``operation-shape`` if the dims of the scales do not fit such blocks.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR``, cuDNN 9.7 and later. cuDNN wants the result to
        be virtual.
        """
        check_types(Tensor, x=x, scale=scale)
        sizes = (block_size,) if isinstance(block_size, int) else tuple(block_size)
        axes = find_block_size_per_axis(x.dims, sizes, scale.dims) if min(sizes, default=0) > 0 else None
        tiled = scale.reordering is not TensorReordering.NONE
        if axes is None or (not tiled and compute_scale_dims(x.dims, axes) != scale.dims):
            headline = (
                f"scale {scale.name!r} has dims {list(scale.dims)}, which fit no blocks of {list(sizes)} in {x.name!r}"
            )
            raise make_shape_error(headline, x=x, scale=scale)
        y = self._get_result_tensor("dequantized", x.dims, result, strides=x.strides)
        check_dims(y, x.dims, "y", x=x)
        self._append_operation(
            DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE,
            y.name,
            x=x,
            scale=scale,
            y=y,
            math_prec=self._choose_compute_type(compute_type),
            block_size=sizes if len(sizes) > 1 else sizes[0],
            neg_scale=negative_scales,
        )
        return y
