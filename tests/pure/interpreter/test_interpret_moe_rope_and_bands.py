"""MoE matmuls, block scales, RoPE, bands and signals in the interpreter, compared with loops; edge cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py.generated.enums import DataType, DescriptorType, MoeGroupedMatmulMode, PointwiseMode, SignalMode
from cudnn_backend_py.graph import Graph, GraphBuilder, Operation
from cudnn_backend_py.graph.formats import from_f8_128x4_order, round_to_data_type, to_f8_128x4_order
from cudnn_backend_py.interpreter import interpret
from tests.support.interpreting import Array, assert_graph_error, make_double_tensor, make_random_array

INF, NAN = math.inf, math.nan


# experts


def run_moe_grouped_matmul(
    mode: MoeGroupedMatmulMode, offsets: list[int], token: Array, weight: Array, **given: Any
) -> Array:
    g = GraphBuilder("experts", io_type=DataType.DOUBLE)
    tensors = {
        "token": g.tensor("token", token.shape),
        "weight": g.tensor("weight", weight.shape),
        "first_token_offset": g.tensor("offsets", (len(offsets), 1, 1), DataType.INT32),
    }
    top_k = given.pop("top_k", None)
    more = {name: g.tensor(name, value.shape, DataType.INT32) for name, value in given.items()}
    g.moe_grouped_matmul(**tensors, mode=mode, top_k=top_k, **more, name="y", virtual=False)
    offset = np.array(offsets).reshape(-1, 1, 1)
    return interpret(g.graph(), {"token": token, "weight": weight, "offsets": offset, **given})["y"]


def test_each_row_is_multiplied_by_the_weights_of_its_expert() -> None:
    token, weight = make_random_array(1, 9, 4), make_random_array(3, 4, 5)
    got = run_moe_grouped_matmul(MoeGroupedMatmulMode.NONE, [2, 2, 6], token, weight)
    owner = [0, 0, 1, 1, 1, 1, 2, 2, 2]  # rows before the first offset: measured on an H200 with cuDNN 9.19
    for row, expert in enumerate(owner):
        np.testing.assert_allclose(got[0, row], token[0, row] @ weight[expert])


def test_moe_rows_are_gathered_and_scattered_by_their_indices() -> None:
    token, weight = make_random_array(1, 4, 3), make_random_array(2, 3, 2)
    index = np.array([3, 0, 0, 2, 1, 3]).reshape(1, 6, 1)
    got = run_moe_grouped_matmul(MoeGroupedMatmulMode.GATHER, [0, 4], token, weight, token_index=index)
    for row, source in enumerate(index.ravel()):
        np.testing.assert_allclose(got[0, row], token[0, source] @ weight[int(row >= 4)])
    rows = make_random_array(1, 6, 3, seed=1)
    where, turn = np.array([0, 2, 1, 1, 0, 2]).reshape(1, 6, 1), np.array([0, 1, 1, 0, 1, 0]).reshape(1, 6, 1)
    back = run_moe_grouped_matmul(
        MoeGroupedMatmulMode.SCATTER, [0, 3], rows, weight, token_index=where, token_ks=turn, top_k=2
    )
    for row in range(6):
        place = where[0, row, 0] * 2 + turn[0, row, 0]
        np.testing.assert_allclose(back[0, place], rows[0, row] @ weight[int(row >= 3)])


def test_moe_offsets_of_several_batches_are_read_in_expert_order() -> None:
    token, weight = make_random_array(1, 8, 3), make_random_array(2, 3, 2)
    got = run_moe_grouped_matmul(MoeGroupedMatmulMode.NONE, [0, 1, 4, 6], token, weight)
    for row, expert in enumerate([0, 1, 1, 1, 0, 0, 1, 1]):
        np.testing.assert_allclose(got[0, row], token[0, row] @ weight[expert])


def test_an_additional_moe_offset_ends_the_last_expert() -> None:
    token, weight = make_random_array(1, 9, 4), make_random_array(3, 4, 5)
    np.testing.assert_array_equal(
        run_moe_grouped_matmul(MoeGroupedMatmulMode.NONE, [0, 2, 6, 9], token, weight),
        run_moe_grouped_matmul(MoeGroupedMatmulMode.NONE, [0, 2, 6], token, weight),
    )
    ended = run_moe_grouped_matmul(MoeGroupedMatmulMode.NONE, [0, 2, 6, 8], token, weight)
    np.testing.assert_allclose(ended[0, 7], token[0, 7] @ weight[2])
    assert np.isnan(ended[0, 8]).all()
    batches = run_moe_grouped_matmul(MoeGroupedMatmulMode.NONE, [0, 1, 4, 5, 6, 7, 9], token, weight)
    np.testing.assert_allclose(batches[0, 8], token[0, 8] @ weight[2])


def test_the_dw_dims_of_moe_backward_give_the_number_of_experts() -> None:
    token, dy = make_random_array(1, 7, 3), make_random_array(1, 7, 2, seed=1)
    g = GraphBuilder("experts", io_type=DataType.DOUBLE)
    offset = g.tensor("offsets", (3, 1, 1), DataType.INT32)
    out = g.tensor("dw", (2, 3, 2), strides=(6, 1, 3))
    g.moe_grouped_matmul_backward(g.tensor("dy", dy.shape), g.tensor("token", token.shape), offset, out=out)
    got = interpret(g.graph(), {"dy": dy, "token": token, "offsets": [[[0]], [[4]], [[6]]]})["dw"]
    np.testing.assert_allclose(got[1], token[0, 4:6].T @ dy[0, 4:6])


def test_a_moe_weight_gradient_sums_over_the_rows_of_each_expert() -> None:
    token, dy = make_random_array(1, 7, 3), make_random_array(1, 7, 2, seed=1)
    g = GraphBuilder("experts", io_type=DataType.DOUBLE)
    offset = g.tensor("offsets", (3, 1, 1), DataType.INT32)
    out = g.moe_grouped_matmul_backward(
        g.tensor("dy", dy.shape), g.tensor("token", token.shape), offset, name="dw", virtual=False
    )
    assert (out.dims, out.strides) == ((3, 3, 2), (6, 1, 3))
    got = interpret(g.graph(), {"dy": dy, "token": token, "offsets": [[[0]], [[4]], [[4]]]})["dw"]
    want = np.zeros((3, 3, 2))
    for row in range(7):
        want[0 if row < 4 else 2] += np.outer(token[0, row], dy[0, row])
    np.testing.assert_allclose(got, want)


@pytest.mark.parametrize(
    ("offsets", "given", "match"),
    [
        ([0, 5], {}, "rows 0 to 5 of 4"),
        ([3, 1], {}, "rows 3 to 1 of 4"),
        ([0, 2], {"token_index": np.array([0, 4, 1]).reshape(1, 3, 1)}, "holds 4, indices below 4"),
    ],
)
def test_moe_offsets_and_indices_out_of_range_are_refused(
    offsets: list[int], given: dict[str, Any], match: str
) -> None:
    mode = MoeGroupedMatmulMode.GATHER if given else MoeGroupedMatmulMode.NONE
    assert_graph_error(
        "interpret-input",
        match,
        lambda: run_moe_grouped_matmul(mode, offsets, make_random_array(1, 4, 3), make_random_array(2, 3, 2), **given),
    )


# block scales


@pytest.mark.parametrize(("block", "axis"), [(32, -1), (32, 1), (16, -1), (16, 1)])
@pytest.mark.parametrize("order", ["plain", "128x4"])
def test_block_quantization_equals_a_loop_over_blocks(block: int, axis: int, order: Any) -> None:
    g = GraphBuilder("mx", io_type=DataType.DOUBLE)
    x = make_random_array(2, 64, 96) * 10
    x[0, :32, :32] = 0
    small, scales = g.block_scale_quantize(
        g.tensor("x", x.shape), block, axis=axis, scale_order=order, name="y", virtual=False
    )
    kinds = (
        (DataType.FP8_E4M3, DataType.FP8_E8M0, 448.0) if block == 32 else (DataType.FP4_E2M1, DataType.FP8_E4M3, 6.0)
    )
    assert (small.data_type, scales.data_type) == kinds[:2]
    got = interpret(g.graph(), {"x": x}, rounding=True)
    moved, values, factors = (np.moveaxis(item, axis, -1) for item in (x, got["y"], got["y.scale"]))
    assert scales.strides[axis] == 1
    for n, row in np.ndindex(*moved.shape[:2]):
        for number in range(moved.shape[2] // block):
            part = slice(number * block, (number + 1) * block)
            scale = round_to_data_type(np.abs(moved[n, row, part]).max() / kinds[2], kinds[1]).item()
            assert factors[n, row, number] == scale
            want = round_to_data_type(moved[n, row, part] / scale, kinds[0]) if scale else np.zeros(block)
            np.testing.assert_array_equal(values[n, row, part], want)


def test_negative_block_scales_are_applied() -> None:
    g = GraphBuilder("negative", io_type=DataType.DOUBLE)
    y = g.block_scale_dequantize(g.tensor("x", (1, 4)), g.tensor("scale", (1, 2)), 2, negative_scales=True)
    g.pointwise(PointwiseMode.IDENTITY, y, name="y", virtual=False)
    assert interpret(g.graph(), {"x": [[1, 2, 3, 4]], "scale": [[-1, 2]]})["y"].tolist() == [[-1, -2, 6, 8]]


def test_128x4_tiles_store_scales_at_the_documented_positions() -> None:
    scales = np.arange(2 * 256 * 8).reshape(2, 256, 8)
    memory = to_f8_128x4_order(scales)
    for n, row, block in [(0, 0, 0), (0, 1, 0), (0, 33, 2), (1, 127, 3), (1, 128, 4), (0, 255, 7), (1, 70, 5)]:
        tile = (n * 2 + row // 128) * 2 + block // 4
        place = tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + block % 4
        assert memory[place] == scales[n, row, block]
    np.testing.assert_array_equal(from_f8_128x4_order(memory, scales.shape), scales)
    assert_graph_error("operation-shape", "multiples of 128 and 4", lambda: to_f8_128x4_order(np.zeros((64, 4))))


# positions


@pytest.mark.parametrize("width", [6, 4])
@pytest.mark.parametrize("upright", [False, True])
def test_rope_rotates_pairs_and_rope_backward_rotates_them_back(width: int, upright: bool) -> None:
    x, half, positions = make_random_array(2, 3, 5, 6), width // 2, 7
    angle = make_random_array(positions, half, seed=1)
    freqs = np.concatenate([angle, np.full((positions, half), NAN)], -1)  # unread elements
    dims = (1, 1, positions, width) if upright else (positions, 1, 1, width)
    g = GraphBuilder("rope", io_type=DataType.DOUBLE)
    f = g.tensor("f", dims)
    y = g.rope_forward(g.tensor("x", x.shape), f, output_scale=2.0, rope_dim=width, name="y", virtual=False)
    g.rope_backward(y, f, output_scale=0.5, rope_dim=width, name="again", virtual=False)
    got = interpret(g.graph(), {"x": x, "f": freqs.reshape(dims)})
    want = 2 * x
    for s, j in np.ndindex(5, half):
        one, other = 6 - width + j, 6 - width + half + j
        c, z = math.cos(angle[s, j]), math.sin(angle[s, j])
        want[..., s, one] = 2 * (x[..., s, one] * c - x[..., s, other] * z)
        want[..., s, other] = 2 * (x[..., s, other] * c + x[..., s, one] * z)
    np.testing.assert_allclose(got["y"], want)
    np.testing.assert_allclose(got["again"], x)


def test_rope_backward_is_the_transpose_of_rope() -> None:
    x, dy, freqs = (
        make_random_array(1, 1, 3, 4),
        make_random_array(1, 1, 3, 4, seed=1),
        make_random_array(3, 1, 1, 4, seed=2),
    )
    g = GraphBuilder("rope", io_type=DataType.DOUBLE)
    f = g.tensor("f", freqs.shape)
    g.rope_forward(g.tensor("x", x.shape), f, name="y", virtual=False)
    g.rope_backward(g.tensor("dy", x.shape), f, name="dx", virtual=False)
    got = interpret(g.graph(), {"x": x, "dy": dy, "f": freqs})
    np.testing.assert_allclose((got["y"] * dy).sum(), (got["dx"] * x).sum())


def test_a_band_matrix_is_expanded_and_contracted() -> None:
    band = make_random_array(2, 3, 5, 4)
    g = GraphBuilder("band", io_type=DataType.DOUBLE)
    widths = {"lower_bandwidth": 1, "upper_bandwidth": 2}
    whole = g.expand_band_matrix(g.tensor("x", band.shape), 6, **widths, pad_value=-7.0, name="whole", virtual=False)
    g.contract_band_matrix(whole, **widths, pad_value=9.0, name="again", virtual=False)
    got = interpret(g.graph(), {"x": band})
    matrix, again = np.full((2, 3, 5, 6), -7.0), band.copy()
    for row in range(5):
        for k in range(4):
            if 0 <= row - 1 + k < 6:
                matrix[..., row, row - 1 + k] = band[..., row, k]
            else:
                again[..., row, k] = 9
    np.testing.assert_array_equal(got["whole"], matrix)
    np.testing.assert_array_equal(got["again"], again)


def test_unsupported_options_of_band_matrices_are_refused() -> None:
    def run_band_operation(kind: DescriptorType = DescriptorType.OPERATION_CONTRACT_BAND_MATRIX, **more: Any) -> Any:
        fields = {
            "x": make_double_tensor("x", (1, 3, 3)),
            "y": make_double_tensor("y", (1, 3, 3)),
            "lower_bandwidth": 1,
            "upper_bandwidth": 1,
        }
        op = Operation(kind, "band", {**fields, "axis": 2, **more})
        given = {item.name: make_random_array(*item.dims) for item in op.inputs().values()}
        return interpret(Graph((op,)), given)["y"]

    assert run_band_operation(max_token_value=-1).shape == (1, 3, 3)
    assert_graph_error("interpret-operation", "max_token_value", lambda: run_band_operation(max_token_value=2))
    assert_graph_error(
        "interpret-operation", "along axis 1 of a tensor with 3 dims", lambda: run_band_operation(axis=1)
    )
    expand, one = DescriptorType.OPERATION_EXPAND_BAND_MATRIX, make_double_tensor("one", (1, 1, 1))
    assert run_band_operation(expand).shape == (1, 3, 3)
    for name in ("kv_token_offset", "speculative_mask"):
        assert_graph_error("interpret-operation", name, lambda name=name: run_band_operation(expand, **{name: one}))


# signals


def test_a_signal_sets_its_flag_and_passes_its_input_on() -> None:
    def run_signal(mode: SignalMode, flag: int) -> dict[str, Any]:
        g = GraphBuilder("signal", io_type=DataType.DOUBLE)
        x = g.tensor("x", (1, 2, 2))
        g.signal(mode, x, g.tensor("flag", (1, 1, 1), DataType.INT32), 7, name="y", virtual=False)
        return interpret(g.graph(), {"x": np.ones((1, 2, 2)), "flag": [[[flag]]]}, keep=["flag"])

    assert run_signal(SignalMode.SET, 0)["flag"].item() == 7
    assert run_signal(SignalMode.WAIT, 7)["y"].sum() == 4
    assert_graph_error(
        "interpret-input", "waits until tensor 'flag' is 7, but its value is 3", lambda: run_signal(SignalMode.WAIT, 3)
    )


# edges of pointwise operations, as measured


def test_pointwise_edge_case_results_equal_cudnn_results() -> None:
    def run_pointwise(mode: PointwiseMode, **ports: list[float]) -> str:
        g = GraphBuilder("edges", io_type=DataType.DOUBLE)
        tensors = {name: g.tensor(name, (len(value),)) for name, value in ports.items()}
        g.pointwise(mode, tensors.pop("x"), **tensors, name="out", virtual=False)
        return str(interpret(g.graph(), dict(ports))["out"].tolist())

    operands = {"x": [NAN, 1.0, NAN, -0.0], "b": [2.0, NAN, NAN, 0.0]}
    assert (
        run_pointwise(PointwiseMode.MAX, **operands)[:16]
        == run_pointwise(PointwiseMode.MIN, **operands)[:16]
        == "[2.0, 1.0, nan, "
    )
    assert (
        run_pointwise(PointwiseMode.RELU_BWD, x=[-1.0, 0.0, 1.0, NAN], dy=[INF, NAN, INF, 2.0])
        == "[0.0, 0.0, inf, 2.0]"
    )
    assert run_pointwise(PointwiseMode.ELU_BWD, x=[NAN, 1.0, -INF], dy=[1.0, INF, 1.0]) == "[nan, inf, 0.0]"
    assert run_pointwise(PointwiseMode.ADD, x=[-0.0, INF], b=[-0.0, -INF]) == "[-0.0, nan]"


def test_low_precision_types_overflow_as_measured_on_a_gpu() -> None:
    """Expected values for 8-bit floats and integers were measured on an H200 with cuDNN 9.19."""
    x = [1e9, -1e9, INF, NAN, -1e-9, 300.7]

    def round_to_type(kind: DataType) -> str:
        g = GraphBuilder("saturation", io_type=DataType.DOUBLE)
        g.pointwise(PointwiseMode.IDENTITY, g.tensor("x", (6,)), name="y", virtual=False, data_type=kind)
        return str(interpret(g.graph(), {"x": x}, rounding=True)["y"].tolist())

    assert round_to_type(DataType.FP8_E4M3) == "[nan, nan, nan, nan, -0.0, 288.0]"
    assert round_to_type(DataType.FP8_E5M2) == "[nan, nan, inf, nan, -0.0, 320.0]"
    assert round_to_type(DataType.HALF) == "[inf, -inf, inf, nan, -0.0, 300.75]"
    assert round_to_type(DataType.INT8) == "[127, -128, 127, 0, 0, 127]"
    assert round_to_type(DataType.FP4_E2M1) == "[6.0, -6.0, 6.0, 0.0, -0.0, 6.0]"
