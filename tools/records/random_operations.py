"""Random convolutions and norms, with PyTorch's results on the CPU in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cudnn_backend_py import DataType, Graph, GraphBuilder
from cudnn_backend_py.generated.enums import ConvolutionMode, NormMode
from cudnn_backend_py.graph.formats import round_to_data_type

__all__ = ["RandomOperationProblem", "compute_largest_error_ratio", "make_random_convolutions", "make_random_norms"]

Array = NDArray[Any]
N, T = NormMode, DataType
ROUNDING_ERRORS = {T.HALF: 2.0**-11, T.BFLOAT16: 2.0**-8, T.FLOAT: 2.0**-24}  # half the distance between numbers near 1


@dataclass
class RandomOperationProblem:
    """A graph with its inputs, and for each output PyTorch's result and the sum of the magnitudes of its terms."""

    title: str
    graph: Graph
    inputs: dict[str, Array]
    reference: Callable[[], dict[str, tuple[Array, Array]]] = field(repr=False)
    kind: DataType
    is_convolution: bool = False


def compute_largest_error_ratio(
    found: Array, want: Array, size: Array, problem: RandomOperationProblem, kind: DataType
) -> float:
    """Return the largest ratio of an error to its allowed error.

    The allowed error is two roundings of the result, plus a number of float32 roundings of the sum of all magnitudes: 8
    for a norm, 32 for a convolution, and 2^15 for products of float32, because tensor cores round both factors to 11
    bits, and of BFLOAT16, because one gradient engine accumulates in the type of its result.
    """
    roundings = (32.0 if problem.kind is T.HALF else 2.0**15) if problem.is_convolution else 8.0
    allowed = (
        2 * ROUNDING_ERRORS[kind] * np.abs(want)
        + roundings * ROUNDING_ERRORS[T.FLOAT] * size
        + 2.0**-24 * (kind is T.HALF)
    )
    return float((np.abs(found - want) / np.maximum(allowed, 1e-300)).max(initial=0.0))


def _make_torch_tensor(values: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).double()


def _convert_to_numpy(values: torch.Tensor | None) -> Array:
    assert values is not None
    return np.asarray(values.detach().numpy())


# convolutions


def make_random_convolutions(number: int) -> Iterator[RandomOperationProblem]:
    """Yield random convolutions or their gradients without end, with `number` as seed."""
    random = np.random.default_rng([number, 1])
    which = ("forward", "data", "filter")[number % 3]
    while True:
        yield _make_random_convolution(random, which)


def _make_random_convolution(random: np.random.Generator, which: str) -> RandomOperationProblem:
    def choose_randomly(*values: Any) -> Any:
        return values[int(random.integers(len(values)))]

    kind = choose_randomly(T.HALF, T.BFLOAT16, T.FLOAT)
    spatial = choose_randomly(2, 2, 2, 3, 3, 1)
    groups = choose_randomly(1, 1, 1, 2, 4)
    n, c, k = choose_randomly(1, 2, 3), groups * choose_randomly(8, 16, 32), groups * choose_randomly(8, 16, 24, 64)
    size = [int(random.integers(5, (40, 20, 10)[spatial - 1])) for _ in range(spatial)]
    taps = [choose_randomly(1, 2, 3, 3, 4) for _ in range(spatial)]
    stride, dilation = ([choose_randomly(*values) for _ in range(spatial)] for values in ((1, 1, 2, 3), (1, 1, 1, 2)))
    even = choose_randomly(True, True, False)
    before = [choose_randomly(0, 1, 2) for _ in range(spatial)]
    after = before if even else [choose_randomly(0, 1, 2) for _ in range(spatial)]
    turned = choose_randomly(False, False, False, True)
    layout = choose_randomly("channels_last", "channels_last", "channels_last", "packed")
    while any(s + b + a < d * (t - 1) + 1 for s, b, a, d, t in zip(size, before, after, dilation, taps, strict=True)):
        size = [s + 1 for s in size]
    sides = {"padding": before, "post_padding": after, "stride": stride, "dilation": dilation}
    mode = ConvolutionMode.CONVOLUTION if turned else ConvolutionMode.CROSS_CORRELATION
    x_dims, w_dims = (n, c, *size), (k, c // groups, *taps)
    x, w = (_make_torch_tensor(round_to_data_type(random.normal(size=dims), kind)) for dims in (x_dims, w_dims))

    def apply_convolution(image: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        pads = [pad for axis in reversed(range(spatial)) for pad in (before[axis], after[axis])]
        flipped = weights.flip(*range(2, 2 + spatial)) if turned else weights
        convolve: Any = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[spatial - 1]
        compute_result_or_gradient: torch.Tensor = convolve(
            nn.functional.pad(image, pads), flipped, stride=stride, dilation=dilation, groups=groups
        )
        return compute_result_or_gradient

    y_dims = tuple(apply_convolution(x, w).shape)
    dy = _make_torch_tensor(round_to_data_type(random.normal(size=y_dims), kind))
    g = GraphBuilder(f"convolution {which}", io_type=kind)
    options: dict[str, Any] = {"strides": layout}
    dims = {"x": x_dims, "w": w_dims, "dy": y_dims}
    read = {"forward": ("x", "w"), "data": ("dy", "w"), "filter": ("x", "dy")}[which]
    left, right = (g.tensor(name, dims[name], **options) for name in read)
    out: dict[str, Any] = {"virtual": False, "mode": mode, "data_type": kind, **sides, **options}
    if which == "forward":
        made = g.convolution(left, right, **out)
    elif which == "data":
        made = g.convolution_backward_data(left, right, dims=x_dims, **out)
    else:
        made = g.convolution_backward_filter(left, right, tuple(taps), groups=groups, **out)
    values = {"x": x, "w": w, "dy": dy}

    def compute_result_or_gradient(image: torch.Tensor, weights: torch.Tensor, gradient: torch.Tensor) -> Array:
        image, weights = image.clone().requires_grad_(), weights.clone().requires_grad_()
        y = apply_convolution(image, weights)
        if which == "forward":
            return _convert_to_numpy(y)
        y.backward(gradient)
        return _convert_to_numpy(image.grad if which == "data" else weights.grad)

    def compute_reference() -> dict[str, tuple[Array, Array]]:
        return {
            made.name: (compute_result_or_gradient(x, w, dy), compute_result_or_gradient(x.abs(), w.abs(), dy.abs()))
        }

    title = f"{which} {kind.name} x {list(x_dims)} w {list(w_dims)} {sides} {layout}{' turned' if turned else ''}"
    return RandomOperationProblem(
        title, g.graph(), {name: values[name].numpy() for name in read}, compute_reference, kind, True
    )


# norms

_NORM_MODES = (N.LAYER_NORM, N.RMS_NORM, N.ADA_LAYER_NORM, N.INSTANCE_NORM, N.BATCH_NORM)


def make_random_norms(number: int) -> Iterator[RandomOperationProblem]:
    """Yield random norms or their gradients without end, with `number` as seed."""
    random = np.random.default_rng([number, 2])
    mode = _NORM_MODES[number % 5]
    which = ("training", "backward", "inference")[number // 5 % (2 if mode is N.BATCH_NORM else 3)]
    while True:
        yield _make_random_norm(random, mode, which)


def _make_random_norm(random: np.random.Generator, mode: NormMode, which: str) -> RandomOperationProblem:
    def choose_randomly(*values: Any) -> Any:
        return values[int(random.integers(len(values)))]

    kind = choose_randomly(T.HALF, T.BFLOAT16, T.FLOAT)
    epsilon = choose_randomly(1e-5, 1e-3, 0.1)
    x_dims: tuple[int, ...]
    w_dims: tuple[int, ...]
    sets: tuple[int, ...]
    if mode in (N.BATCH_NORM, N.INSTANCE_NORM):
        x_dims = (
            choose_randomly(2, 3, 8),
            choose_randomly(8, 16, 32, 64),
            choose_randomly(4, 7, 16),
            choose_randomly(4, 8, 15),
        )
        w_dims, layout = (1, x_dims[1], 1, 1), "channels_last"
        sets = w_dims if mode is N.BATCH_NORM else (*x_dims[:2], 1, 1)
    elif mode is N.ADA_LAYER_NORM:
        x_dims, layout = (
            (choose_randomly(1, 2, 4), choose_randomly(7, 16, 64), choose_randomly(64, 128, 256, 512)),
            "packed",
        )
        w_dims, sets = (x_dims[0], 1, x_dims[2]), (*x_dims[:2], 1)
    else:
        x_dims, layout = (choose_randomly(1, 5, 33, 64), choose_randomly(64, 128, 256, 768, 1024), 1, 1), "packed"
        w_dims, sets = (1, x_dims[1], 1, 1), (x_dims[0], 1, 1, 1)
    weights = kind if mode is N.ADA_LAYER_NORM else T.FLOAT
    x = _make_torch_tensor(
        round_to_data_type(
            random.normal(size=x_dims) * choose_randomly(0.1, 1.0, 10.0) + choose_randomly(0.0, 0.0, 1.0), kind
        )
    )
    scale = _make_torch_tensor(round_to_data_type(random.uniform(0.5, 2.0, w_dims), weights))
    bias = _make_torch_tensor(round_to_data_type(random.normal(size=w_dims), weights))
    dy = _make_torch_tensor(round_to_data_type(random.normal(size=x_dims), kind))
    axes = tuple(axis for axis, (few, size) in enumerate(zip(sets, x_dims, strict=True)) if few != size)
    if not axes:
        axes = tuple(axis for axis, few in enumerate(sets) if few == 1 and axis)
    members = int(np.prod([x_dims[axis] for axis in axes]))
    centered = mode is not N.RMS_NORM

    def compute_statistics(image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = image.mean(axes, keepdim=True) if centered else torch.zeros(sets, dtype=torch.float64)
        return mean, ((image - mean) ** 2).mean(axes, keepdim=True)

    def apply_norm(image: torch.Tensor, factor: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return PyTorch's norm of an image, times a factor and plus a shift."""
        if mode is N.LAYER_NORM:
            plain = nn.functional.layer_norm(image, x_dims[1:], eps=epsilon)
        elif mode is N.ADA_LAYER_NORM:
            plain = nn.functional.layer_norm(image, x_dims[2:], eps=epsilon)
        elif mode is N.INSTANCE_NORM:
            plain = nn.functional.instance_norm(image, eps=epsilon)
        elif mode is N.BATCH_NORM:
            plain = nn.functional.batch_norm(image, None, None, training=True, eps=epsilon)
        else:
            plain = nn.functional.rms_norm(image, x_dims[1:], eps=epsilon)
        return plain * factor + shift

    g = GraphBuilder(f"norm {which}", io_type=kind)
    options: dict[str, Any] = {"strides": layout}
    image, factor = g.tensor("x", x_dims, **options), g.tensor("scale", w_dims, weights, **options)
    inputs = {"x": x.numpy(), "scale": scale.numpy()}
    out: dict[str, Any] = {"virtual": False, "data_type": kind}
    title = f"{mode.name} {which} {kind.name} {list(x_dims)} epsilon {epsilon}"
    if which == "backward":
        return _make_random_norm_backward(
            title, g, mode, image, factor, inputs, dy, out, options, compute_statistics, apply_norm, epsilon
        )
    shift = g.tensor("bias", w_dims, weights, **options) if centered else None
    if shift is not None:
        inputs["bias"] = bias.numpy()
    more: dict[str, Any] = {}
    running = mode is N.BATCH_NORM and choose_randomly(True, False)
    if running:
        for name, value in (("running_mean", random.normal(size=sets)), ("running_var", random.uniform(0.5, 2, sets))):
            more[name], inputs[name] = g.tensor(name, sets, T.FLOAT, **options), round_to_data_type(value, T.FLOAT)
        more["momentum"] = 0.25
    made = g.norm_forward(mode, image, factor, shift, training=which == "training", epsilon=epsilon, **more, **out)

    def compute_reference() -> dict[str, tuple[Array, Array]]:
        mean, variance = compute_statistics(x)
        inverse = 1 / (variance + epsilon).sqrt()
        added = bias if centered else torch.zeros(())
        y = apply_norm(x, scale, added)
        size = (x.abs() + mean.abs()) * inverse * scale + added.abs()
        found = {made.y: (y, size)}
        if made.mean is not None:
            found[made.mean] = (mean, x.abs().mean(axes, keepdim=True))
        if made.inv_variance is not None:
            found[made.inv_variance] = (inverse, inverse * (1 + mean**2 / (variance + epsilon)))
        if running:
            unbiased = variance * members / (members - 1)
            pairs = (("running_mean", made.next_running_mean, mean), ("running_var", made.next_running_var, unbiased))
            for name, tensor, value in pairs:
                assert tensor is not None
                before = torch.from_numpy(inputs[name])
                found[tensor] = (0.75 * before + 0.25 * value, before.abs() + x.abs().max() ** 2)
        return {
            tensor.name: (_convert_to_numpy(want), _convert_to_numpy(much)) for tensor, (want, much) in found.items()
        }

    return RandomOperationProblem(title, g.graph(), inputs, compute_reference, kind)


def _make_random_norm_backward(
    title: str,
    g: GraphBuilder,
    mode: NormMode,
    image: Any,
    factor: Any,
    inputs: dict[str, Array],
    dy: torch.Tensor,
    out: dict[str, Any],
    options: dict[str, Any],
    statistics: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    apply: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    epsilon: float,
) -> RandomOperationProblem:
    x, scale = torch.from_numpy(inputs["x"]), torch.from_numpy(inputs["scale"])
    mean, variance = statistics(x)
    inverse = 1 / (variance + epsilon).sqrt()
    inputs |= {"dy": dy.numpy(), "inv_variance": round_to_data_type(inverse.numpy(), T.FLOAT)}
    gradient = g.tensor("dy", tuple(x.shape), **options)
    given: dict[str, Any] = {"inv_variance": g.tensor("inv_variance", tuple(inverse.shape), T.FLOAT, **options)}
    if mode is not N.RMS_NORM:
        inputs["mean"] = round_to_data_type(mean.numpy(), T.FLOAT)
        given["mean"] = g.tensor("mean", tuple(mean.shape), T.FLOAT, **options)
    made = g.norm_backward(mode, gradient, image, factor, **given, **out)

    def compute_reference() -> dict[str, tuple[Array, Array]]:
        leaves = [x.clone().requires_grad_(), scale.clone().requires_grad_(), torch.zeros_like(scale).requires_grad_()]
        apply(*leaves).backward(dy)
        normal = (x.abs() + mean.abs()) * inverse
        axes = tuple(axis for axis, size in enumerate(scale.shape) if size == 1)
        reach = tuple(axis for axis, size in enumerate(inverse.shape) if size == 1)
        g_size = dy.abs() * scale
        spread = normal * (g_size * normal).mean(reach, keepdim=True) + g_size.mean(reach, keepdim=True)
        found = {made.dx: (leaves[0].grad, inverse * (g_size + spread))}
        found[made.dscale] = (leaves[1].grad, (dy.abs() * normal).sum(axes, keepdim=True))
        if made.dbias is not None:
            found[made.dbias] = (leaves[2].grad, dy.abs().sum(axes, keepdim=True))
        return {
            tensor.name: (_convert_to_numpy(want), _convert_to_numpy(much)) for tensor, (want, much) in found.items()
        }

    return RandomOperationProblem(title, g.graph(), inputs, compute_reference, image.data_type)
