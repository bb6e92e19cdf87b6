"""Pooling and resampling, as methods of ``GraphBuilder``."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

from ...errors import GraphError
from ...generated.enums import DataType, DescriptorType, NanPropagation, PaddingMode, ResampleMode
from ..ir import Parameters, Tensor
from ..shapes import compute_pooled_size
from .base import (
    BuilderBase,
    Output,
    check_dims,
    check_equal_ranks,
    check_types,
    expand_per_spatial_dim,
    make_strides_like,
    wrap_public_methods_of_mixin,
)

__all__ = ["ResampleOutputs", "Resampling"]

Part = int | Fraction
Each = Part | Sequence[Part]
"""One number for all spatial dims, or one for each; upsampling has fractions."""

_SIDES = ("window_dims", "strides", "pre_paddings", "post_paddings")


class ResampleOutputs(NamedTuple):
    """The outputs of a resample operation; idx is None if not requested."""

    y: Tensor
    idx: Tensor | None


@wrap_public_methods_of_mixin
class Resampling(BuilderBase):
    """Pooling over one to three spatial dims of x [n, c, sizes ..].

    `window` and the others are in elements, one number for all spatial dims or one for each; `stride` is as `window`
    and `post_padding` as `padding` unless given. Where padding is not said to be of a mode, it is minus infinity for
    MAXPOOL, the edge for BILINEAR, and zero for the others.
    """

    def resample(
        self,
        mode: ResampleMode,
        x: Tensor,
        window: Each,
        *,
        stride: Each | None = None,
        padding: Each = 0,
        post_padding: Each | None = None,
        padding_mode: PaddingMode | None = None,
        nan_propagation: NanPropagation = NanPropagation.PROPAGATE_NAN,
        idx: Output = False,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> ResampleOutputs:
        """Add pooling and return [n, c, sizes ..] in the layout of `x`, and an index for the backward pass.

        Parameters
        ----------
        idx
            Of MAXPOOL: INT8 in the dims of y, which element of its window is the largest; cuDNN has it for channels
            last.

        Raises
        ------
        GraphError
            ``wrong-argument`` if numbers are not as many as spatial dims, or a stride is not positive;
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR``.
        """
        check_types(ResampleMode, mode=mode)
        check_equal_ranks(3, x=x)
        sides = _read_pooling_window(x, window, stride, padding, post_padding)
        dims = _compute_pooled_dims(x.dims, sides)
        y = self._get_result_tensor("pool", dims, result, strides=make_strides_like(dims, x))
        check_dims(y, dims, "y", x=x)
        made = self._make_optional_output(idx, f"{y.name}.idx", dims, DataType.INT8, y.strides)
        self._append_operation(
            DescriptorType.OPERATION_RESAMPLE_FWD,
            y.name,
            x=x,
            y=y,
            idx=made,
            resample=self._make_resample_parameters(mode, sides, padding_mode, nan_propagation, compute_type),
        )
        return ResampleOutputs(y, made)

    def resample_backward(
        self,
        mode: ResampleMode,
        dy: Tensor,
        window: Each,
        *,
        stride: Each | None = None,
        padding: Each = 0,
        post_padding: Each | None = None,
        padding_mode: PaddingMode | None = None,
        nan_propagation: NanPropagation = NanPropagation.PROPAGATE_NAN,
        idx: Tensor | None = None,
        x: Tensor | None = None,
        y: Tensor | None = None,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> Tensor:
        """Add the gradient of :meth:`resample` with respect to x, and return it.

        Parameters
        ----------
        dy
            [n, c, sizes ..], the gradient of y.
        idx
            What the forward pass wrote; MAXPOOL needs it, or x and y, which the header requires for NCHW.
        result
            ``dims=`` those of x, where `x` is not given and it is not the smallest image that fits.

        Raises
        ------
        GraphError
            As :meth:`resample`; ``missing-field`` if MAXPOOL has neither an index nor x.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR``.
        """
        check_types(ResampleMode, mode=mode)
        check_equal_ranks(3, dy=dy, **({} if x is None else {"x": x}))
        if mode is ResampleMode.MAXPOOL and idx is None and x is None:
            raise GraphError("the gradient of MAXPOOL needs idx=, or x= and y=", code="missing-field")
        sides = _read_pooling_window(dy, window, stride, padding, post_padding)
        smallest = (
            *dy.dims[:2],
            *(int((size - 1) * s + w - b - a) for size, w, s, b, a in zip(dy.dims[2:], *sides, strict=True)),
        )
        dims = self._get_requested_dims(result, smallest) if x is None else x.dims
        check_dims(idx, dy.dims, "idx", dy=dy)
        check_dims(y, dy.dims, "y", dy=dy)
        dx = self._get_result_tensor(
            "dpool", dims, result, strides=make_strides_like(dims, dy) if x is None else x.strides
        )
        check_dims(dx, dims, "dx", x=x)
        check_dims(dy, _compute_pooled_dims(dx.dims, sides), "dy", dx=dx)
        self._append_operation(
            DescriptorType.OPERATION_RESAMPLE_BWD,
            dx.name,
            dy=dy,
            dx=dx,
            idx=idx,
            x=x,
            y=y,
            resample=self._make_resample_parameters(mode, sides, padding_mode, nan_propagation, compute_type),
        )
        return dx

    def _make_resample_parameters(
        self,
        mode: ResampleMode,
        sides: list[tuple[Fraction, ...]],
        padding_mode: PaddingMode | None,
        nan_propagation: NanPropagation,
        compute_type: DataType | None,
    ) -> Parameters:
        usual = {ResampleMode.MAXPOOL: PaddingMode.NEG_INF_PAD, ResampleMode.BILINEAR: PaddingMode.EDGE_VAL_PAD}
        return Parameters(
            DescriptorType.RESAMPLE,
            {
                "mode": mode,
                "comp_type": self._choose_compute_type(compute_type),
                "nan_propagation": nan_propagation,
                "padding_mode": usual.get(mode, PaddingMode.ZERO_PAD) if padding_mode is None else padding_mode,
                "spatial_dims": len(sides[0]),
                **{name: _convert_to_fractions_if_needed(side) for name, side in zip(_SIDES, sides, strict=True)},
            },
        )


def _read_pooling_window(
    x: Tensor, window: Each, stride: Each | None, padding: Each, post_padding: Each | None
) -> list[tuple[Fraction, ...]]:
    """Return window, stride and padding before and after, each with one number per spatial dim."""
    spatial = x.rank - 2
    given = (window, window if stride is None else stride, padding, padding if post_padding is None else post_padding)
    parts = [expand_per_spatial_dim(side, spatial) for side in given]
    if any(isinstance(part, (bool, str)) for part in chain(*parts)):
        raise TypeError  # which :func:`wrap_builder_method`; a Fraction takes them
    sides = [tuple(map(Fraction, side)) for side in parts]
    if any(len(side) != spatial for side in sides) or min((*sides[0], *sides[1])) <= 0:
        shown = ", ".join(f"{name} ({', '.join(map(str, side))})" for name, side in zip(_SIDES, sides, strict=True))
        raise GraphError(
            f"{x.name!r} {list(x.dims)} has {spatial} spatial dims, {shown}: each of these must have "
            "one number for each spatial dim, and each window and stride must be above 0",
            code="wrong-argument",
        )
    return sides


def _compute_pooled_dims(dims: tuple[int, ...], sides: list[tuple[Fraction, ...]]) -> tuple[int, ...]:
    made = (*dims[:2], *(compute_pooled_size(*item) for item in zip(dims[2:], *sides, strict=True)))
    if min(made) < 1:
        raise GraphError(
            f"no window fits into {list(dims)}: y would have dims {list(made)}",
            code="operation-shape",
            where=", ".join(f"{name} {tuple(map(str, side))}" for name, side in zip(_SIDES, sides, strict=True)),
        )
    return made


def _convert_to_fractions_if_needed(side: tuple[Fraction, ...]) -> tuple[Any, ...]:
    """Return integers, or pairs of numerator and denominator if some value is not an integer."""
    if all(part.denominator == 1 for part in side):
        return tuple(part.numerator for part in side)
    return tuple((part.numerator, part.denominator) for part in side)
