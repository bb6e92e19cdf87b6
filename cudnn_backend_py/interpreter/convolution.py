"""Evaluation of convolutions and their gradients: one matrix product per filter tap.

Sums are in float64 and rounded once, to the compute type, in a run that rounds. A tap that is on padding is a product
with 0: an infinite weight makes NaN of it in the forward pass, as it does in a matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..generated.enums import ConvolutionMode, DataType, DescriptorType
from ..generated.operations import CONVOLUTIONS
from ..graph.ir import Operation, compute_convolved_size
from .run import Handler, Run

__all__ = ["OPERATIONS", "read_alpha_requiring_zero_beta"]

Floats = NDArray[np.float64]
ArrayIndex = tuple[Any, ...]


def read_alpha_requiring_zero_beta(op: Operation) -> float:
    """Return an operation's alpha; refuse beta other than 0, which would add to uninitialized memory."""
    if op.fields.get("beta"):
        raise GraphError(
            f"{op.kind.name.removeprefix('OPERATION_').lower()} with beta {op.fields['beta']} "
            "cannot be interpreted, 0 is needed",
            code="interpret-operation",
            where=f"operation {op.name!r}",
        )
    return float(op.fields.get("alpha", 1.0))


def run_forward(run: Run, op: Operation) -> None:
    """Slide w [k, c / groups, taps ..] over zero-padded x [n, c, sizes ..]; CONVOLUTION flips w."""
    alpha, window = read_alpha_requiring_zero_beta(op), _TapPositions(op)
    y = op.fields["y"]
    x, w = window.pad_image(run.read_floats(op.fields["x"])), window.split_groups(run.read_floats(op.fields["w"]))
    made = np.zeros((y.dims[0], window.groups, y.dims[1] // window.groups, math.prod(y.dims[2:])))
    for tap, place in window:
        made += w[tap] @ window.flatten_positions(x[place])
    run.write_value(y, alpha * run.round_to_type(made.reshape(y.dims), window.kind))


def run_backward_data(run: Run, op: Operation) -> None:
    """Write the gradient with respect to x: the sum of the products of dy with each tap."""
    alpha, window = read_alpha_requiring_zero_beta(op), _TapPositions(op)
    dx, dy = op.fields["dx"], op.fields["dy"]
    response, w = window.flatten_positions(run.read_floats(dy)), window.split_groups(run.read_floats(op.fields["w"]))
    whole = np.zeros((*dx.dims[:2], *window.sizes))
    for tap, place in window:
        part = w[tap].swapaxes(1, 2) @ response
        whole[place] += part.reshape(*dx.dims[:2], *dy.dims[2:])
    run.write_value(dx, alpha * run.round_to_type(whole[window.inner], window.kind))


def run_backward_filter(run: Run, op: Operation) -> None:
    """Write the gradient with respect to w: the product of dy and the image under each tap."""
    alpha, window = read_alpha_requiring_zero_beta(op), _TapPositions(op)
    dw = op.fields["dw"]
    x, response = (
        window.pad_image(run.read_floats(op.fields["x"])),
        window.flatten_positions(run.read_floats(op.fields["dy"])),
    )
    made = np.zeros((window.groups, dw.dims[0] // window.groups, *dw.dims[1:]))
    for tap, place in window:
        made[tap] = (response @ window.flatten_positions(x[place]).swapaxes(2, 3)).sum(axis=0)
    run.write_value(dw, alpha * run.round_to_type(made.reshape(dw.dims), window.kind))


class _TapPositions:
    """For each filter tap of a convolution, the elements of the padded image that it multiplies."""

    def __init__(self, op: Operation) -> None:
        image, weights, response = (op.fields[port].dims for port in CONVOLUTIONS[op.kind])
        given = op.fields["convolution"].fields
        self.kind: DataType = given["comp_type"]
        self.groups = image[1] // weights[1]
        self._padding = list(zip(given["pre_paddings"], given["post_paddings"], strict=True))
        self._strides, self._dilations = given["filter_strides"], given["dilations"]
        self._turned = given["conv_mode"] is ConvolutionMode.CONVOLUTION
        self._taps, self._out = weights[2:], response[2:]
        self.sizes = [size + sum(pads) for size, pads in zip(image[2:], self._padding, strict=True)]
        inner = (slice(before, before + size) for size, (before, _) in zip(image[2:], self._padding, strict=True))
        self.inner: ArrayIndex = (slice(None), slice(None), *inner)
        sides = zip(self.sizes, self._taps, self._strides, self._dilations, strict=True)
        fits = tuple(compute_convolved_size(size, taps, 0, 0, stride, step) for size, taps, stride, step in sides)
        if fits != self._out or (image[0], weights[0]) != response[:2]:
            raise GraphError(
                f"the response tensor of convolution {op.name!r} has dims {list(response)}, "
                f"{[image[0], weights[0], *fits]} is needed",
                code="interpret-shape",
                where=f"image {list(image)}, weights {list(weights)}, response {list(response)}",
            )

    def pad_image(self, x: Floats) -> Floats:
        return np.pad(x, ((0, 0), (0, 0), *self._padding))

    def __iter__(self) -> Iterator[tuple[ArrayIndex, ArrayIndex]]:
        """Yield the index of each tap in the grouped weights, and that of the image elements it multiplies."""
        for tap in product(*map(range, self._taps)):
            at = [taps - 1 - i for i, taps in zip(tap, self._taps, strict=True)] if self._turned else tap
            starts = [i * dilation for i, dilation in zip(at, self._dilations, strict=True)]
            place = (
                slice(start, start + (out - 1) * stride + 1, stride)
                for start, out, stride in zip(starts, self._out, self._strides, strict=True)
            )
            yield (..., *tap), (slice(None), slice(None), *place)

    def split_groups(self, w: Floats) -> Floats:
        """Return the weights by group: [groups, k / groups, c / groups, taps ..]."""
        return w.reshape(self.groups, -1, *w.shape[1:])

    def flatten_positions(self, x: Floats) -> Floats:
        """Return [n, c, sizes ..] as [n, groups, c / groups, positions]."""
        return x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, -1)


OPERATIONS: dict[DescriptorType, Handler] = {
    DescriptorType.OPERATION_CONVOLUTION_FORWARD: run_forward,
    DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA: run_backward_data,
    DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER: run_backward_filter,
}
