"""Edge cases of norms, their gradients, and batch norm statistics."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from cudnn_backend_py import DataType, GraphBuilder
from cudnn_backend_py.generated.enums import (
    NormMode,
)
from cudnn_backend_py.graph.formats import round_to_data_type
from tests.support.edges.case import CHANNELS_LAST, FLOAT_TYPES, IMAGE_SHAPE, IN_MEMORY, Array, add_edge_case
from tests.support.edges.numbers import make_tensor_with_edge_cases_to_reduce

__all__: list[str] = []

N, T = NormMode, DataType


def _make_norm_inputs(kind: DataType, dims: tuple[int, ...], reduced: tuple[int, ...], hostile: bool) -> Array:
    """Return inputs with random, constant, zero, tiny or huge sets to reduce; `hostile` adds NaN and infinities."""
    if hostile:
        made = make_tensor_with_edge_cases_to_reduce(kind, dims, reduced)
        return np.where(np.isfinite(made) & (np.abs(made) > 1e4), 3.0, made)
    axes = [axis for axis, (few, size) in enumerate(zip(reduced, dims, strict=True)) if few != size]
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    order = [*kept, *axes]
    count = int(np.prod([dims[axis] for axis in kept]))
    sets = np.random.default_rng(8).normal(size=(count, int(np.prod(dims)) // count)) * 0.5 + 0.25
    sets[0], sets[1] = 0.0, 3.0
    sets[2] *= 1e-3
    sets[3] = sets[3] * 100 + 1000
    return round_to_data_type(sets.reshape([dims[axis] for axis in order]).transpose(np.argsort(order)), kind)


def _add_norm_cases(mode: NormMode, kind: DataType, *, training: bool, hostile: bool, epsilon: float = 0.1) -> None:
    by_channel = mode in (N.BATCH_NORM, N.INSTANCE_NORM)
    layout: Any = "channels_last" if by_channel else "packed"
    dims = {N.ADA_LAYER_NORM: (4, 64, 256)}.get(mode, (8, 32, 16, 16) if by_channel else (64, 256, 1, 1))
    scale = {N.ADA_LAYER_NORM: (4, 1, 256)}.get(mode, (1, 32, 1, 1) if by_channel else (1, 256, 1, 1))
    sets = {N.ADA_LAYER_NORM: (4, 64, 1), N.BATCH_NORM: (1, 32, 1, 1), N.INSTANCE_NORM: (8, 32, 1, 1)}
    reduced = sets.get(mode, (64, 1, 1, 1))
    weights = kind if mode is N.ADA_LAYER_NORM else T.FLOAT

    def build_norm(g: GraphBuilder) -> None:
        x = g.tensor("x", dims, strides=layout)
        a, b = (g.tensor(name, scale, weights, strides=layout) for name in ("scale", "bias"))
        more: dict[str, Any] = {}
        if mode is N.BATCH_NORM:
            for name in ("running_mean", "running_var"):
                more[name] = g.tensor(name, scale, T.FLOAT, strides=layout)
            more["momentum"] = 0.25
        g.norm_forward(
            mode,
            x,
            a,
            None if mode is N.RMS_NORM else b,
            training=training,
            epsilon=epsilon,
            data_type=kind,
            **more,
            **IN_MEMORY,
        )

    words = f"{mode.name} {'training' if training else 'inference'}{' hostile' if hostile else ''} {epsilon:g}"
    add_edge_case(
        f"norm/{words}/{kind.name}", kind, build_norm, x=lambda: _make_norm_inputs(kind, dims, reduced, hostile)
    )


for _norm_mode in (N.LAYER_NORM, N.RMS_NORM, N.ADA_LAYER_NORM, N.INSTANCE_NORM, N.BATCH_NORM):
    for _kind in FLOAT_TYPES:
        for _training in (True, False):
            if _norm_mode is N.BATCH_NORM and not _training:
                continue
            _add_norm_cases(_norm_mode, _kind, training=_training, hostile=False)
            if _training:
                _add_norm_cases(_norm_mode, _kind, training=True, hostile=True)
                _add_norm_cases(_norm_mode, _kind, training=True, hostile=False, epsilon=1e-5)


def _add_norm_backward_cases(mode: NormMode, kind: DataType) -> None:
    by_channel = mode in (N.BATCH_NORM, N.INSTANCE_NORM)
    layout: Any = "channels_last" if by_channel else "packed"
    dims = (8, 32, 16, 16) if by_channel else (64, 256, 1, 1)
    scale = (1, 32, 1, 1) if by_channel else (1, 256, 1, 1)
    sets = {N.BATCH_NORM: (1, 32, 1, 1), N.INSTANCE_NORM: (8, 32, 1, 1)}.get(mode, (64, 1, 1, 1))

    def build_norm_backward(g: GraphBuilder) -> None:
        x, dy = (g.tensor(name, dims, strides=layout) for name in ("x", "dy"))
        names = ("inv_variance",) if mode is N.RMS_NORM else ("mean", "inv_variance")
        saved = {name: g.tensor(name, sets, T.FLOAT, strides=layout) for name in names}
        weights = g.tensor("scale", scale, T.FLOAT, strides=layout)
        g.norm_backward(mode, dy, x, weights, **saved, data_type=kind, **IN_MEMORY)

    inverse = partial(np.full, sets, 2.0)
    hostile = partial(_make_norm_inputs, kind, dims, sets, True)
    add_edge_case(
        f"norm/{mode.name} backward hostile/{kind.name}", kind, build_norm_backward, x=hostile, inv_variance=inverse
    )
    add_edge_case(
        f"norm/{mode.name} backward hostile gradient/{kind.name}",
        kind,
        build_norm_backward,
        dy=hostile,
        inv_variance=inverse,
    )


for _norm_mode in (N.LAYER_NORM, N.RMS_NORM, N.INSTANCE_NORM, N.BATCH_NORM):
    for _kind in (T.HALF, T.FLOAT):
        _add_norm_backward_cases(_norm_mode, _kind)


def _build_batch_norm_finalize(g: GraphBuilder) -> None:
    names = ("sum", "sqsum", "scale", "bias", "running_mean", "running_var")
    total, squares, scale, bias, mean, var = (g.tensor(name, (1, 32, 1, 1), T.FLOAT, **CHANNELS_LAST) for name in names)
    g.batch_norm_finalize(
        total, squares, scale, bias, accum_count=16, epsilon=0.1, momentum=0.25, running_mean=mean, running_var=var
    )


def _make_random_sums_of_squares() -> Array:
    return np.random.default_rng(9).uniform(100, 200, (1, 32, 1, 1))


add_edge_case("norm/BN_FINALIZE/FLOAT", T.FLOAT, _build_batch_norm_finalize, sqsum=_make_random_sums_of_squares)


def _build_gen_stats(g: GraphBuilder) -> None:
    x, w = g.tensor("x", IMAGE_SHAPE, **CHANNELS_LAST), g.tensor("w", (64, 32, 1, 1), **CHANNELS_LAST)
    g.gen_stats(g.convolution(x, w, **IN_MEMORY))


add_edge_case("norm/GEN_STATS/HALF", T.HALF, _build_gen_stats)
