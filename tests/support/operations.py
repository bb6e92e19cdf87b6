"""One small graph for each kind of operation, with as many of its fields set as cuDNN accepts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.generated import enums
from cudnn_backend_py.graph import Matmul, Parameters, Pointwise, Tensor
from cudnn_backend_py.graph.strides import channels_last
from tests.support.graphs import make_sdpa, make_tensor

__all__ = ["OPERATION_GRAPHS"]

D, T, P = DescriptorType, DataType, PointwiseMode
HALF, FLOAT, INT32, INT64 = T.HALF, T.FLOAT, T.INT32, T.INT64
IMAGE, POOLED, CHANNEL = (4, 32, 28, 28), (4, 32, 14, 14), (1, 32, 1, 1)

OPERATION_GRAPHS: dict[str, Callable[[], Graph]] = {}


def _register_graph(name: str, kind: DescriptorType, make: Callable[[GraphBuilder], dict[str, Any]]) -> None:
    def make_graph() -> Graph:
        g = GraphBuilder(name, io_type=HALF)
        g.operation(kind, **make(g))
        return g.graph()

    assert name not in OPERATION_GRAPHS
    OPERATION_GRAPHS[name] = make_graph


def _make_tensors(
    g: GraphBuilder, names: str, dims: tuple[int, ...], kind: DataType = HALF, **options: Any
) -> dict[str, Any]:
    return {name: g.tensor(name, dims, kind, **options) for name in names.split()}


def _make_image_tensors(
    g: GraphBuilder, names: str, dims: tuple[int, ...] = IMAGE, kind: DataType = HALF
) -> dict[str, Any]:
    return _make_tensors(g, names, dims, kind, strides=channels_last(dims))


def _make_resample_parameters(mode: enums.ResampleMode, padding: enums.PaddingMode) -> Parameters:
    return Parameters(
        D.RESAMPLE,
        {
            "spatial_dims": 2,
            "post_paddings": (1, 1),
            "pre_paddings": (0, 1),
            "strides": (2, 2),
            "window_dims": (3, 3),
            "mode": mode,
            "comp_type": FLOAT,
            "nan_propagation": enums.NanPropagation.PROPAGATE_NAN,
            "padding_mode": padding,
        },
    )


_MAX_POOL_PARAMETERS = _make_resample_parameters(enums.ResampleMode.MAXPOOL, enums.PaddingMode.NEG_INF_PAD)
_AVERAGE_POOL_PARAMETERS = _make_resample_parameters(
    enums.ResampleMode.AVGPOOL_INCLUDE_PADDING, enums.PaddingMode.ZERO_PAD
)


def _make_convolution_fields(g: GraphBuilder) -> dict[str, Any]:
    parameters = {
        "comp_type": FLOAT,
        "conv_mode": enums.ConvolutionMode.CONVOLUTION,
        "spatial_dims": 2,
        "dilations": (1, 2),
        "filter_strides": (2, 1),
        "pre_paddings": (0, 1),
        "post_paddings": (1, 2),
    }
    ports = (
        _make_image_tensors(g, "x")
        | _make_image_tensors(g, "w", (64, 32, 3, 3))
        | _make_image_tensors(g, "y", (4, 64, 14, 27))
    )
    return {"convolution": Parameters(D.CONVOLUTION, parameters), "alpha": 1.0, "beta": 0.0, **ports}


def _make_bn_finalize_fields(g: GraphBuilder) -> dict[str, Any]:
    names = "y_sum y_sq_sum scale bias saved_mean saved_inv_std eq_scale eq_bias"
    names += " prev_running_mean prev_running_var updated_running_mean updated_running_var"
    return {
        "stats_mode": enums.BnFinalizeStatsMode.TRAINING,
        "math_prec": FLOAT,
        **_make_tensors(g, names, CHANNEL, FLOAT),
        **_make_tensors(g, "accum_count", (1, 1, 1, 1), INT64, by_value=True),
        **_make_tensors(g, "epsilon exp_average_factor", (1, 1, 1, 1), FLOAT, by_value=True),
    }


def _make_norm_forward_fields(g: GraphBuilder) -> dict[str, Any]:
    names = "scale bias mean inv_variance input_running_mean input_running_var output_running_mean output_running_var"
    peers = _make_tensors(g, "p0 p1", (2, 128, 1, 1), FLOAT)
    return {
        "mode": enums.NormMode.BATCH_NORM,
        "phase": enums.NormFwdPhase.TRAINING,
        **_make_image_tensors(g, "x y"),
        **_make_tensors(g, names, CHANNEL, FLOAT),
        **_make_tensors(g, "epsilon exp_avg_factor", (1, 1, 1, 1), FLOAT, by_value=True),
        "peer_stat": tuple(peers.values()),
    }


def _make_norm_backward_fields(g: GraphBuilder) -> dict[str, Any]:
    return {
        "mode": enums.NormMode.LAYER_NORM,
        **_make_tensors(g, "x dy dx", (64, 256, 1, 1)),
        **_make_tensors(g, "scale dscale dbias", (1, 256, 1, 1), FLOAT),
        **_make_tensors(g, "mean inv_variance", (64, 1, 1, 1), FLOAT),
        **_make_tensors(g, "epsilon", (1, 1, 1, 1), FLOAT, by_value=True),
    }


def _make_rng_fields_maker(
    chosen: enums.RngDistribution, seed: int | None = None, **numbers: float
) -> Callable[[GraphBuilder], dict[str, Any]]:
    def make_fields(g: GraphBuilder) -> dict[str, Any]:
        state = _make_tensors(g, "offset" if seed is not None else "seed offset", (1, 1, 1, 1), INT64)
        given = {} if seed is None else {"seed": seed}
        rng = Parameters(D.RNG, {"distribution": chosen, **numbers})
        return {"rng": rng, **_make_tensors(g, "y", (4, 16, 8, 8), FLOAT), **state, **given}

    return make_fields


def _make_block_scale_fields(g: GraphBuilder, names: str, values: DataType, reals: DataType) -> dict[str, Any]:
    first, second = names.split()
    order = enums.TensorReordering.F8_128x4
    return {
        **_make_tensors(g, first, (2, 128, 128), values),
        **_make_tensors(g, second, (2, 128, 128), reals),
        **_make_tensors(g, "scale", (2, 128, 4), T.FP8_E8M0, reordering=order),
        "math_prec": FLOAT,
    }


def _make_band_fields(g: GraphBuilder) -> dict[str, Any]:
    return {"lower_bandwidth": 8, "upper_bandwidth": 8, "axis": 3}


_register_graph(
    "gen stats",
    D.OPERATION_GEN_STATS,
    lambda g: {
        "mode": enums.GenStatsMode.SUM_SQSUM,
        "math_prec": FLOAT,
        **_make_image_tensors(g, "x"),
        **_make_tensors(g, "sum sqsum", CHANNEL, FLOAT),
    },
)
_register_graph("bn finalize", D.OPERATION_BN_FINALIZE_STATISTICS, _make_bn_finalize_fields)
_register_graph(
    "bn backward weights",
    D.OPERATION_BN_BWD_WEIGHTS,
    lambda g: {
        "math_prec": FLOAT,
        **_make_image_tensors(g, "x dy"),
        **_make_tensors(g, "mean invstd bn_scale dbn_scale dbn_bias eq_dy_scale eq_x_scale eq_bias", CHANNEL, FLOAT),
    },
)
_register_graph("convolution", D.OPERATION_CONVOLUTION_FORWARD, _make_convolution_fields)
_register_graph(
    "resample",
    D.OPERATION_RESAMPLE_FWD,
    lambda g: {
        **_make_image_tensors(g, "x"),
        **_make_image_tensors(g, "y", POOLED),
        **_make_image_tensors(g, "idx", POOLED, T.INT8),
        "resample": _MAX_POOL_PARAMETERS,
    },
)
_register_graph(
    "resample average",
    D.OPERATION_RESAMPLE_FWD,
    lambda g: {
        **_make_image_tensors(g, "x"),
        **_make_image_tensors(g, "y", POOLED),
        "resample": _AVERAGE_POOL_PARAMETERS,
        "alpha": 1.0,
        "beta": 0.0,
    },
)
_register_graph(
    "resample backward",
    D.OPERATION_RESAMPLE_BWD,
    lambda g: {
        **_make_image_tensors(g, "dx"),
        **_make_image_tensors(g, "dy", POOLED),
        **_make_image_tensors(g, "idx", POOLED, T.INT8),
        "resample": _MAX_POOL_PARAMETERS,
    },
)
_register_graph(
    "concat",
    D.OPERATION_CONCAT,
    lambda g: {
        "axis": 1,
        "input": (g.tensor("a", (4, 16, 8, 8)), g.tensor("b", (4, 24, 8, 8))),
        "output": g.tensor("o", (4, 40, 8, 8)),
        "inplace_index": 0,
    },
)
_register_graph(
    "signal",
    D.OPERATION_SIGNAL,
    lambda g: {
        "mode": enums.SignalMode.SET,
        "value": 7,
        **_make_tensors(g, "flag", (1, 1, 1), INT32),
        **_make_tensors(g, "x y", (4, 16, 8)),
    },
)
_register_graph("norm forward", D.OPERATION_NORM_FORWARD, _make_norm_forward_fields)
_register_graph("norm backward", D.OPERATION_NORM_BACKWARD, _make_norm_backward_fields)
_register_graph(
    "reshape", D.OPERATION_RESHAPE, lambda g: {"x": g.tensor("x", (4, 16, 8)), "y": g.tensor("y", (4, 8, 16))}
)
_register_graph(
    "reshape logical",
    D.OPERATION_RESHAPE,
    lambda g: {
        "x": g.tensor("x", (4, 16, 8)),
        "y": g.tensor("y", (4, 8, 16)),
        "mode": enums.ReshapeMode.LOGICAL,
    },
)
_BERNOULLI = enums.RngDistribution.BERNOULLI
_register_graph("rng bernoulli", D.OPERATION_RNG, _make_rng_fields_maker(_BERNOULLI, bernoulli_dist_probability=0.75))
_register_graph(
    "rng seeded", D.OPERATION_RNG, _make_rng_fields_maker(_BERNOULLI, 1234, bernoulli_dist_probability=0.75)
)
_register_graph(
    "rng uniform",
    D.OPERATION_RNG,
    _make_rng_fields_maker(enums.RngDistribution.UNIFORM, uniform_dist_minimum=-1.0, uniform_dist_maximum=2.0),
)
_register_graph(
    "rng normal",
    D.OPERATION_RNG,
    _make_rng_fields_maker(enums.RngDistribution.NORMAL, normal_dist_mean=0.5, normal_dist_standard_deviation=2.0),
)
_register_graph(
    "paged cache",
    D.OPERATION_PAGED_CACHE_LOAD,
    lambda g: {
        "container": g.tensor("container", (16, 4, 64, 64)),
        "y": g.tensor("y", (2, 4, 256, 64)),
        "sequence": g.tensor("sequence", (2, 1, 1, 1), INT32),
        "page_table": g.tensor("page_table", (2, 1, 4, 1), INT32),
    },
)
_register_graph(
    "block scale quantize",
    D.OPERATION_BLOCK_SCALE_QUANTIZE,
    lambda g: {
        **_make_block_scale_fields(g, "x y", FLOAT, T.FP8_E4M3),
        "block_size": 32,
    },
)
_register_graph(
    "block scale dequantize",
    D.OPERATION_BLOCK_SCALE_DEQUANTIZE,
    lambda g: {
        **_make_block_scale_fields(g, "x y", T.FP8_E4M3, FLOAT),
        "block_size": (1, 32),
    },
)
_register_graph(
    "expand band",
    D.OPERATION_EXPAND_BAND_MATRIX,
    lambda g: {
        "x": g.tensor("x", (1, 2, 64, 17)),
        "y": g.tensor("y", (1, 2, 64, 64)),
        **_make_band_fields(g),
        "pad_value": 0.5,
    },
)
_register_graph(
    "contract band",
    D.OPERATION_CONTRACT_BAND_MATRIX,
    lambda g: {
        "x": g.tensor("x", (1, 2, 64, 64)),
        "y": g.tensor("y", (1, 2, 64, 17)),
        **_make_band_fields(g),
        "max_token_value": 9,
    },
)
_register_graph(
    "moe",
    D.OPERATION_MOE_GROUPED_MATMUL,
    lambda g: {
        "mode": enums.MoeGroupedMatmulMode.NONE,
        "math_prec": FLOAT,
        "token": g.tensor("token", (1, 256, 64)),
        "weight": g.tensor("weight", (8, 64, 128)),
        "first_token_offset": g.tensor("offsets", (8, 1, 1), INT32),
        "output": g.tensor("output", (1, 256, 128)),
    },
)
_register_graph(
    "moe backward",
    D.OPERATION_MOE_GROUPED_MATMUL_BWD,
    lambda g: {
        "math_prec": FLOAT,
        "token": g.tensor("token", (1, 256, 64)),
        "dweight": g.tensor("dweight", (8, 64, 128)),
        "first_token_offset": g.tensor("offsets", (8, 1, 1), INT32),
        "doutput": g.tensor("doutput", (1, 256, 128)),
    },
)
_register_graph(
    "softmax",
    D.OPERATION_SOFTMAX,
    lambda g: {
        **_make_tensors(g, "x y", (2, 4, 128, 128), FLOAT),
        **_make_tensors(g, "stats max sum_exp", (2, 4, 128, 1), FLOAT),
        **_make_tensors(g, "sink", (1, 4, 1, 1), FLOAT),
        "stats_log2": True,
    },
)
_register_graph(
    "transpose",
    D.OPERATION_TRANSPOSE,
    lambda g: {
        "x": g.tensor("x", (2, 4, 8, 16)),
        "y": g.tensor("y", (2, 4, 16, 8)),
        "permutation": (0, 1, 3, 2),
    },
)
_register_graph(
    "slice",
    D.OPERATION_SLICE,
    lambda g: {
        "x": g.tensor("x", (2, 4, 8, 16)),
        "y": g.tensor("y", (2, 4, 4, 8)),
        "start_indices": (0, 0, 2, 0),
        "limit_indices": (2, 4, 6, 16),
        "strides": (1, 1, 1, 2),
    },
)
_register_graph(
    "rope",
    D.OPERATION_ROPE_FWD,
    lambda g: {
        **_make_tensors(g, "x y", (2, 4, 128, 64)),
        "freqs": g.tensor("f", (1, 1, 128, 64), FLOAT),
        "output_scale": 2.0,
        "rope_dim": 32,
    },
)
_register_graph(
    "rope backward",
    D.OPERATION_ROPE_BWD,
    lambda g: {
        **_make_tensors(g, "dy dx", (2, 4, 128, 64)),
        "freqs": g.tensor("f", (1, 1, 128, 64), FLOAT),
    },
)
_register_graph(
    "diagonal band",
    D.OPERATION_DIAGONAL_BAND_MASK,
    lambda g: {
        **_make_tensors(g, "x y", (2, 4, 128, 128), FLOAT),
        **_make_tensors(g, "left_bound", (1, 1, 1, 1), INT32, by_value=True),
        **_make_tensors(g, "b", (1, 1, 1, 1), FLOAT, by_value=True),
        **_make_tensors(g, "seq_len_kv seq_len_q", (2, 1, 1, 1), INT32),
        "comparison_mode": P.CMP_GT,
    },
)


def _make_pointwise_parameters_graph() -> Graph:
    steps: tuple[tuple[PointwiseMode, dict[str, Any]], ...] = (
        (P.ADD, {"b": make_tensor("b", 4, 8, 16), "alpha1": 2.0, "alpha2": 0.5}),
        (P.RELU_FWD, {"relu_lower_clip": 0.5, "relu_upper_clip": 6.0, "relu_lower_clip_slope": 0.1}),
        (P.ELU_FWD, {"elu_alpha": 0.3}),
        (P.SOFTPLUS_FWD, {"softplus_beta": 0.7}),
        (P.SWISH_FWD, {"swish_beta": 0.9}),
        (P.GEN_INDEX, {"axis": 1}),
    )
    x, ops = make_tensor("x", 4, 8, 16), []
    for number, (mode, options) in enumerate(steps):
        y = make_tensor(f"y{number}", 4, 8, 16, virtual=number < len(steps) - 1)
        ops.append(Pointwise(name=f"p{number}", mode=mode, x=x, y=y, **options))
        x = y
    return Graph(tuple(ops), "pointwise numbers")


def _make_padded_matmul_graph() -> Graph:
    a, b, c = (make_tensor(name, 2, 64, 64, data_type=HALF) for name in "abc")
    rows = Tensor(name="rows", uid=900, dims=(2, 1, 1), strides=(1, 1, 1), data_type=INT32)
    return Graph((Matmul(name="mm", a=a, b=b, c=c, m_override=rows, padding_value=1.5),), "padded matmul")


def _make_graph_with_vectorized_tensor() -> Graph:
    x, y = (
        dataclasses.replace(make_tensor(name, 4, 8, 4, 4, data_type=T.INT8), vector_count=4, vector_dim=1)
        for name in "xy"
    )
    return Graph((Pointwise(name="identity", mode=P.IDENTITY, x=x, y=y),), "vectors")


OPERATION_GRAPHS |= {
    "pointwise numbers": _make_pointwise_parameters_graph,
    "padded matmul": _make_padded_matmul_graph,
    "vectors": _make_graph_with_vectorized_tensor,
    "sdpa with sub-graph": lambda: Graph((make_sdpa(),), "sdpa"),
}
