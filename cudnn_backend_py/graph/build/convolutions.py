"""Convolutions and their gradients, as methods of ``GraphBuilder``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import GraphError
from ...generated.enums import ConvolutionMode, DataType, DescriptorType
from ..ir import Parameters, Tensor
from ..shapes import infer_convolution_input_dims, infer_convolution_output_dims
from ..strides import channels_last
from .base import (
    BuilderBase,
    check_dims,
    check_types,
    expand_per_spatial_dim,
    make_shape_error,
    wrap_public_methods_of_mixin,
)

__all__ = ["Convolutions"]

Each = int | Sequence[int]
"""One number for all spatial dims, or one for each."""

_SIDES = ("pre_paddings", "post_paddings", "filter_strides", "dilations")
_CROSS_CORRELATION = ConvolutionMode.CROSS_CORRELATION


@wrap_public_methods_of_mixin
class Convolutions(BuilderBase):
    """Convolutions of images [n, c, sizes ..] with weights [k, c / groups, taps ..], over one to three spatial dims.

    Padding, stride and dilation are in elements, one number for all spatial dims or one for each; `post_padding` is as
    `padding` unless given. Results are channels last if the image, or the gradient, is; most of cuDNN's engines want
    all tensors so.
    """

    def convolution(
        self,
        image: Tensor,
        weights: Tensor,
        *,
        padding: Each = 0,
        post_padding: Each | None = None,
        stride: Each = 1,
        dilation: Each = 1,
        mode: ConvolutionMode = _CROSS_CORRELATION,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> Tensor:
        """Add the convolution of an image (n, c, sizes ..) with weights (k, c / groups, taps ..) and return its result.

        Padding, stride and dilation are in elements, one number for all spatial dims or one for each; `post_padding`
        is as `padding` unless given. The result (n, k, sizes ..) is channels last if the image is. How many groups
        there are follows from the channels of both.

        Raises
        ------
        GraphError
            ``wrong-argument`` if the spatial dims are not as many everywhere, or a stride or dilation is not positive;
            ``operation-shape`` if the channels are no multiple of those of the weights, or the result has other dims.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR``.
        """
        check_types(Tensor, image=image, weights=weights)
        sides = _read_convolution_window(
            image, weights.rank - 2, repr(weights.name), padding, post_padding, stride, dilation
        )
        _check_groups(image.dims[1], weights, image=image)
        dims = infer_convolution_output_dims(image.dims, weights.dims, sides)
        if min(dims) < 1:
            taps = f"{list(weights.dims[2:])} taps of {weights.name!r} with dilation {list(sides[3])}"
            headline = f"{taps} are more than {image.name!r} has with its padding"
            raise make_shape_error(headline, "dim-not-positive", image=image, weights=weights)
        y = self._get_result_tensor("conv", dims, result, **_make_channels_last_option_like(dims, image))
        check_dims(y, dims, "the result", image=image, weights=weights)
        self._append_operation(
            DescriptorType.OPERATION_CONVOLUTION_FORWARD,
            y.name,
            x=image,
            w=weights,
            y=y,
            **self._make_convolution_fields(sides, mode, compute_type),
        )
        return y

    def convolution_backward_data(
        self,
        dy: Tensor,
        weights: Tensor,
        *,
        groups: int = 1,
        padding: Each = 0,
        post_padding: Each | None = None,
        stride: Each = 1,
        dilation: Each = 1,
        mode: ConvolutionMode = _CROSS_CORRELATION,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> Tensor:
        """Add the gradient with respect to the image, which is also a transposed convolution, and return it.

        Parameters
        ----------
        dy
            The gradient of the result, [n, k, sizes ..].
        weights
            [k, c / groups, taps ..].
        result
            ``dims=`` those of the image: with a stride several images have the same result, and the smallest is taken
            where dims are not given.

        Raises
        ------
        GraphError
            ``wrong-argument`` as :meth:`convolution`; ``operation-shape`` if the convolution of an image of these dims
            has other dims than `dy`.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR``.
        """
        check_types(Tensor, dy=dy, weights=weights)
        _check_number_of_groups(groups)
        sides = _read_convolution_window(
            dy, weights.rank - 2, repr(weights.name), padding, post_padding, stride, dilation
        )
        dims = self._get_requested_dims(result, infer_convolution_input_dims(dy.dims, weights.dims, sides, groups))
        dx = self._get_result_tensor("dgrad", dims, result, **_make_channels_last_option_like(dims, dy))
        if dx.rank != dy.rank:
            raise make_shape_error(
                f"dx {dx.name!r} has {dx.rank} dims, dy has {dy.rank}: the same number is needed",
                dy=dy,
                weights=weights,
                dx=dx,
            )
        _check_groups(dx.dims[1], weights, dx=dx)
        check_dims(dy, infer_convolution_output_dims(dx.dims, weights.dims, sides), "dy", weights=weights, dx=dx)
        self._append_operation(
            DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,
            dx.name,
            dy=dy,
            w=weights,
            dx=dx,
            **self._make_convolution_fields(sides, mode, compute_type),
        )
        return dx

    def convolution_backward_filter(
        self,
        image: Tensor,
        dy: Tensor,
        taps: Sequence[int],
        *,
        groups: int = 1,
        padding: Each = 0,
        post_padding: Each | None = None,
        stride: Each = 1,
        dilation: Each = 1,
        mode: ConvolutionMode = _CROSS_CORRELATION,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> Tensor:
        """Add the gradient with respect to the weights, [k, c / groups, taps ..], and return it.

        Parameters
        ----------
        image
            [n, c, sizes ..].
        dy
            The gradient of the result, [n, k, sizes ..].
        taps
            Sizes of the filter, one for each spatial dim; they do not follow from the others.

        Raises
        ------
        GraphError
            ``wrong-argument`` as :meth:`convolution`; ``operation-shape`` if the convolution of the image with weights
            of these dims has other dims than `dy`.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR``.
        """
        check_types(Tensor, image=image, dy=dy)
        _check_number_of_groups(groups)
        sides = _read_convolution_window(image, len(taps), "the filter", padding, post_padding, stride, dilation)
        if dy.rank != image.rank:
            raise make_shape_error(
                f"{image.name!r} has {image.rank} dims but {dy.name!r} has {dy.rank}: the same number is needed",
                image=image,
                dy=dy,
            )
        if image.dims[1] % groups or dy.dims[1] % groups:
            raise make_shape_error(
                f"{groups} groups do not divide the {image.dims[1]} and {dy.dims[1]} channels of image and result",
                image=image,
                dy=dy,
            )
        dims = (dy.dims[1], image.dims[1] // groups, *taps)
        check_dims(dy, infer_convolution_output_dims(image.dims, dims, sides), "dy", image=image)
        dw = self._get_result_tensor("wgrad", dims, result, **_make_channels_last_option_like(dims, image))
        check_dims(dw, dims, "dw", image=image, dy=dy)
        self._append_operation(
            DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER,
            dw.name,
            x=image,
            dy=dy,
            dw=dw,
            **self._make_convolution_fields(sides, mode, compute_type),
        )
        return dw

    def _make_convolution_fields(
        self, sides: list[tuple[int, ...]], mode: ConvolutionMode, compute_type: DataType | None
    ) -> dict[str, Any]:
        """Return the convolution's descriptor fields other than tensors."""
        parameters = {
            "comp_type": self._choose_compute_type(compute_type),
            "conv_mode": mode,
            "spatial_dims": len(sides[0]),
            **dict(zip(_SIDES, sides, strict=True)),
        }
        return {"convolution": Parameters(DescriptorType.CONVOLUTION, parameters), "alpha": 1.0, "beta": 0.0}


def _read_convolution_window(
    image: Tensor, taps: int, weights: str, padding: Each, post_padding: Each | None, stride: Each, dilation: Each
) -> list[tuple[int, ...]]:
    """Return padding before and after, stride and dilation, each with one number per spatial dim."""
    spatial = image.rank - 2
    after = padding if post_padding is None else post_padding
    sides = [expand_per_spatial_dim(given, spatial) for given in (padding, after, stride, dilation)]
    if spatial < 1 or taps != spatial or any(len(side) != spatial for side in sides) or min(sides[2] + sides[3]) < 1:
        raise GraphError(
            f"{image.name!r} {list(image.dims)} has {spatial} spatial dims, {weights} {taps}, "
            f"padding {sides[0]}, {sides[1]}, stride {sides[2]}, dilation {sides[3]}: all of these must have the same "
            "number of spatial dims, 1 or more, and each stride and dilation must be above 0",
            code="wrong-argument",
            fix="images are [n, c, sizes ..], weights [k, c / groups, taps ..]; one number applies to all spatial dims",
        )
    return sides


def _check_number_of_groups(groups: int) -> None:
    if groups < 1:
        raise GraphError(f"groups= is {groups}, 1 or more is needed", code="wrong-argument")


def _check_groups(channels: int, weights: Tensor, **image: Tensor) -> None:
    per_group = weights.dims[1]
    if channels % per_group:
        raise make_shape_error(
            f"{channels} channels are no multiple of the {per_group} per group of {weights.name!r}",
            **image,
            weights=weights,
        )
    groups = channels // per_group
    if weights.dims[0] % groups:
        raise make_shape_error(
            f"{weights.name!r} has {weights.dims[0]} filters, no multiple of the {groups} groups: "
            f"{channels} channels in groups of {per_group}",
            **image,
            weights=weights,
        )


def _make_channels_last_option_like(dims: tuple[int, ...], like: Tensor) -> dict[str, Any]:
    return {"strides": channels_last(dims)} if like.strides == channels_last(like.dims) else {}
