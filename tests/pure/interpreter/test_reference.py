"""The NumPy reference of attention compared with a naive dense softmax, and its gradients with finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cudnn_backend_py.errors import GraphError
from cudnn_backend_py.interpreter.reference import (
    BackwardResults,
    ForwardResults,
    alibi_slopes,
    backward,
    forward,
    gather_pages,
    ragged_pack,
    ragged_unpack,
    unpack_block_mask,
)

Array = NDArray[np.float64]


class SoftCap:
    """The score modifier cap * tanh(score / cap)."""

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def forward(self, score: Array) -> Array:
        return self.cap * np.tanh(score / self.cap)

    def backward(self, d_score: Array, score: Array) -> Array:
        return d_score * (1 - np.tanh(score / self.cap) ** 2)


# ------------------------------------------------------------------------------------------ the naive attention


def find_unmasked_scores(dims: tuple[int, ...], options: dict[str, Any]) -> NDArray[np.bool_]:
    """Return a boolean array [b, h, s_q, s_kv], true for scores that no mask removes, computed score by score."""
    batch, _, seq_q, seq_kv = dims
    keep = np.zeros(dims, bool)
    lengths_q = options.get("seq_len_q", [seq_q] * batch)
    lengths_kv = options.get("seq_len_kv", [seq_kv] * batch)
    left, right, blocks = (options.get(name) for name in ("left_bound", "right_bound", "block_mask"))
    for n, h, i, j in np.ndindex(dims):
        row = i
        if options.get("alignment") == "bottom_right":
            row = i + int(lengths_kv[n]) - int(lengths_q[n])
        keep[n, h, i, j] = (
            i < lengths_q[n]
            and j < lengths_kv[n]
            and (right is None or j <= row + right)
            and (left is None or j + left > row)
            and (blocks is None or blocks[n, h, i // 128, j // 128])
        )
    return keep


def compute_naive_attention(q: Array, k: Array, v: Array, keep: NDArray[np.bool_], **options: Any) -> ForwardResults:
    """Return attention computed from the full score matrix, head by head."""
    batch, heads, seq_q, seq_kv = keep.shape
    o = np.zeros((batch, heads, seq_q, v.shape[3]))
    stats, largest, total = (np.zeros((batch, heads, seq_q, 1)) for _ in range(3))
    scale = options.get("scale") or 1 / math.sqrt(q.shape[3])
    bias = np.broadcast_to(options.get("bias", 0.0), keep.shape)
    lengths_q = options.get("seq_len_q", [seq_q] * batch)
    for n, h in np.ndindex(batch, heads):
        score = scale * q[n, h] @ k[n, h // (heads // k.shape[1])].T
        if "score_modifier" in options:
            score = options["score_modifier"].forward(score)
        score = score + bias[n, h]
        if "alibi_slopes" in options:
            distance = np.arange(seq_kv) - np.arange(seq_q)[:, None]
            score = score + np.ravel(options["alibi_slopes"])[h] * distance
        logits = np.where(keep[n, h], score, -np.inf)
        if "sink" in options:
            sink = np.full((seq_q, 1), np.ravel(options["sink"])[h])
            sink[int(lengths_q[n]) :] = -np.inf
            logits = np.hstack([logits, sink])
        top = logits.max(axis=1, keepdims=True)
        exps = np.exp(logits - np.where(np.isinf(top), 0, top))
        exp_sum = exps.sum(axis=1, keepdims=True)
        prob = exps[:, :seq_kv] / np.where(exp_sum == 0, 1, exp_sum)
        if "dropout_mask" in options:
            prob = prob * options["dropout_mask"][n, h] * options.get("dropout_scale", 1.0)
        o[n, h] = prob @ v[n, h // (heads // v.shape[1])]
        largest[n, h], total[n, h] = top, exp_sum
        with np.errstate(divide="ignore"):
            stats[n, h] = top + np.log(exp_sum)
    return ForwardResults(o, stats, largest, total)


# ------------------------------------------------------------------------------------------ the cases

RANDOM_GENERATOR = np.random.default_rng(9)
B, H, S_Q, S_KV, D, D_V = 2, 4, 5, 7, 3, 2
BIAS_DIMS = [(1, 1, 5, 7), (2, 4, 5, 7), (1, 4, 5, 7), (2, 1, 1, 7), (1, 4, 5, 1), (1, 1, 1, 1)]
PADDED_LENGTHS = {"seq_len_q": np.array([3, 5]), "seq_len_kv": np.array([7, 4])}


def make_random_normal_array(*dims: int) -> Array:
    return RANDOM_GENERATOR.standard_normal(dims)


MASKED_BIAS = np.where(RANDOM_GENERATOR.random((1, 4, 5, 7)) < 0.4, -np.inf, make_random_normal_array(1, 4, 5, 7))
MASKED_BIAS[:, :, 2] = -np.inf

OPTION_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"right_bound": 0},
    "causal bottom right": {"right_bound": 0, "alignment": "bottom_right"},
    "right bound": {"right_bound": 2},
    "left bound": {"left_bound": 2},
    "window": {"left_bound": 3, "right_bound": 1},
    "diagonal alone, bottom right": {"left_bound": 1, "right_bound": 0, "alignment": "bottom_right"},
    "window, bottom right": {"left_bound": 3, "right_bound": 0, "alignment": "bottom_right"},
    "more rows than columns, causal bottom right": {"right_bound": 0, "alignment": "bottom_right", "dims": (7, 4)},
    "more rows than columns, left bound": {"left_bound": 2, "dims": (8, 3)},
    "one row": {"right_bound": 0, "alignment": "bottom_right", "dims": (1, 7)},
    "one column": {"dims": (5, 1)},
    "padding": PADDED_LENGTHS,
    "padding of Q alone": {"seq_len_q": np.array([2, 5], np.int32)},
    "padding of K alone": {"seq_len_kv": np.array([3, 6], np.int32)},
    "padding, an empty entry": {"seq_len_q": np.array([0, 4]), "seq_len_kv": np.array([0, 7])},
    "padding, no columns": {"seq_len_q": np.array([5, 4]), "seq_len_kv": np.array([0, 7])},
    "padding, window": {**PADDED_LENGTHS, "left_bound": 2, "right_bound": 1},
    "padding, window, bottom right": {**PADDED_LENGTHS, "left_bound": 3, "right_bound": 0, "alignment": "bottom_right"},
    **{f"bias {dims}": {"bias": make_random_normal_array(*dims)} for dims in BIAS_DIMS},
    "bias that masks": {"bias": MASKED_BIAS},
    "bias that masks, sink": {"bias": MASKED_BIAS, "sink": make_random_normal_array(H)},
    "alibi": {"alibi_slopes": alibi_slopes(H), "right_bound": 0},
    "alibi, bottom right": {"alibi_slopes": make_random_normal_array(H), "right_bound": 0, "alignment": "bottom_right"},
    "modifier": {"score_modifier": SoftCap(0.7)},
    "modifier, bias, alibi": {
        "score_modifier": SoftCap(0.7),
        "bias": make_random_normal_array(1, H, 5, 7),
        "alibi_slopes": make_random_normal_array(H),
    },
    "dropout by 0 and 1": {"dropout_mask": RANDOM_GENERATOR.integers(0, 2, (B, H, S_Q, S_KV)), "dropout_scale": 2.0},
    "dropout by real numbers": {"dropout_mask": make_random_normal_array(B, H, S_Q, S_KV), "dropout_scale": 1.25},
    "sink": {"sink": make_random_normal_array(H)},
    "sink [1, h, 1, 1]": {"sink": make_random_normal_array(1, H, 1, 1)},
    "sink without weight": {"sink": np.array([0.1, -np.inf, 2.0, -1.0])},
    "sink, rows without columns": {
        "sink": make_random_normal_array(H),
        "right_bound": 0,
        "alignment": "bottom_right",
        "dims": (7, 4),
    },
    "sink, padding": {"sink": make_random_normal_array(H), **PADDED_LENGTHS},
    "sink, dropout": {"sink": make_random_normal_array(H), "dropout_mask": make_random_normal_array(B, H, S_Q, S_KV)},
    "GQA": {"heads": (2, 2)},
    "MQA": {"heads": (1, 1)},
    "GQA, h_k is not h_v": {"heads": (2, 1), "right_bound": 0},
    "GQA, h_v of Q": {"heads": (1, 4)},
    "everything": {
        "heads": (2, 4),
        "scale": 0.8,
        "score_modifier": SoftCap(1.5),
        "bias": make_random_normal_array(2, 1, 5, 7),
        "alibi_slopes": make_random_normal_array(H),
        **PADDED_LENGTHS,
        "left_bound": 4,
        "right_bound": 1,
        "alignment": "bottom_right",
        "sink": make_random_normal_array(H),
        "dropout_mask": make_random_normal_array(B, H, S_Q, S_KV),
        "dropout_scale": 1.1,
    },
}


class AttentionCase:
    """Random Q, K, V and dO for some options, with the results of the reference and of the naive attention."""

    def __init__(self, name: str) -> None:
        options = dict(OPTION_CASES[name])
        seq_q, seq_kv = options.pop("dims", (S_Q, S_KV))
        heads_k, heads_v = options.pop("heads", (H, H))
        self.random = random = np.random.default_rng(list(name.encode()))
        self.q = random.standard_normal((B, H, seq_q, D))
        self.k = random.standard_normal((B, heads_k, seq_kv, D))
        self.v = random.standard_normal((B, heads_v, seq_kv, D_V))
        self.d_o = random.standard_normal((B, H, seq_q, D_V))
        self.options = options
        self.keep = find_unmasked_scores((B, H, seq_q, seq_kv), options)

    def compute_naive_attention(self, **changed: Any) -> ForwardResults:
        tensors = {"q": self.q, "k": self.k, "v": self.v, **self.options, **changed}
        return compute_naive_attention(keep=self.keep, **tensors)

    def forward(self, tile: int = 128) -> ForwardResults:
        return forward(self.q, self.k, self.v, tile=tile, **self.options)

    def backward(self, tile: int = 128) -> BackwardResults:
        saved = self.forward()
        return backward(self.q, self.k, self.v, saved.o, self.d_o, saved.stats, tile=tile, **self.options)

    def check_gradient(self, name: str, got: Array | None, step: float = 1e-5) -> None:
        """Compare the gradient of sum(O * dO) with central differences along random directions."""
        at = np.asarray(self.options.get(name, getattr(self, name, None)), np.float64)
        assert got is not None
        assert (got.dtype, got.size) == (np.float64, at.size)

        def compute_loss(change: Array) -> float:
            return float((self.compute_naive_attention(**{name: at + change}).o * self.d_o).sum())

        for _ in range(6):
            line = self.random.standard_normal(at.shape)
            line /= np.linalg.norm(line)
            expected = (compute_loss(step * line) - compute_loss(-step * line)) / (2 * step)
            assert np.vdot(got, line) == pytest.approx(expected, rel=1e-8, abs=1e-9), name


parametrize_cases = pytest.mark.parametrize("name", OPTION_CASES)


def assert_close(got: Array, expected: Array) -> None:
    assert got.dtype == np.float64
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------ forward and backward


@parametrize_cases
def test_forward_equals_the_naive_attention(name: str) -> None:
    expected, got = AttentionCase(name).compute_naive_attention(), AttentionCase(name).forward()
    for field in ("o", "stats", "max", "sum_exp"):
        assert_close(getattr(got, field), getattr(expected, field))


@parametrize_cases
def test_gradients_equal_finite_differences(name: str) -> None:
    this = AttentionCase(name)
    got = this.backward()
    for tensor in ("q", "k", "v"):
        gradient = getattr(got, f"d{tensor}")
        assert gradient.shape == getattr(this, tensor).shape
        this.check_gradient(tensor, gradient)
    optional = {"bias": (got.dbias, np.shape(this.options.get("bias"))), "sink": (got.dsink, (1, H, 1, 1))}
    for option, (gradient, dims) in optional.items():
        if option in this.options:
            assert gradient.shape == dims
            this.check_gradient(option, gradient)
        else:
            assert gradient is None


@parametrize_cases
@pytest.mark.parametrize("tile", [1, 2, 3, 4, 7])
def test_the_tile_size_does_not_change_the_results(name: str, tile: int) -> None:
    this = AttentionCase(name)
    for whole, tiled in ((this.forward(), this.forward(tile)), (this.backward(), this.backward(tile))):
        for field, expected in vars(whole).items():
            if expected is not None:
                assert_close(getattr(tiled, field), expected)


def test_some_cases_have_fully_masked_rows() -> None:
    empty = [name for name in OPTION_CASES if not AttentionCase(name).keep.any(axis=3).all()]
    assert {"more rows than columns, left bound", "padding, no columns", "everything"} <= set(empty)


@pytest.mark.parametrize(
    "options",
    [
        {"right_bound": 0, "alignment": "bottom_right"},
        {"seq_len_q": [1, 4], "seq_len_kv": [3, 0]},
        {"bias": np.full((1, 1, 6, 1), -np.inf)},
    ],
)
def test_results_of_fully_masked_rows_are_zero(options: dict[str, Any]) -> None:
    q, k, v, d_o = (
        make_random_normal_array(2, 2, 6, 3),
        make_random_normal_array(2, 2, 3, 3),
        make_random_normal_array(2, 2, 3, 3),
        make_random_normal_array(2, 2, 6, 3),
    )
    got = forward(q, k, v, **options)
    empty = ~find_unmasked_scores((2, 2, 6, 3), options).any(axis=3, keepdims=True)
    empty |= options.get("bias", np.zeros(1)) == -np.inf
    assert empty.any()
    assert not got.o[np.broadcast_to(empty, q.shape)].any()
    assert (got.stats[empty] == -np.inf).all()
    assert (got.max[empty] == -np.inf).all()
    assert not got.sum_exp[empty].any()
    gradients = backward(q, k, v, got.o, d_o, got.stats, **options)
    assert not gradients.dq[np.broadcast_to(empty, q.shape)].any()
    assert np.isfinite(gradients.dk).all()
    assert np.isfinite(gradients.dv).all()


def test_a_row_with_only_a_sink_has_statistics_and_a_padding_row_has_none() -> None:
    q, k, v = (
        make_random_normal_array(1, 2, 4, 3),
        make_random_normal_array(1, 2, 4, 3),
        make_random_normal_array(1, 2, 4, 3),
    )
    got = forward(q, k, v, sink=[0.5, -3.0], seq_len_q=[3], seq_len_kv=[0])
    assert not got.o.any()
    for values in (got.stats, got.max):
        assert values[0, :, :, 0].tolist() == [[0.5] * 3 + [-math.inf], [-3.0] * 3 + [-math.inf]]
    assert got.sum_exp[0, :, :, 0].tolist() == [[1, 1, 1, 0]] * 2


def test_padding_is_never_read() -> None:
    this = AttentionCase("everything")
    clean, clean_gradients = this.forward(), this.backward()
    bias = np.broadcast_to(this.options["bias"], this.keep.shape).copy()
    dirty = {"bias": bias, "dropout_mask": this.options["dropout_mask"].copy()}
    o, stats = clean.o.copy(), clean.stats.copy()
    for n in range(B):
        rows, cols = slice(PADDED_LENGTHS["seq_len_q"][n], None), slice(PADDED_LENGTHS["seq_len_kv"][n], None)
        for tensor in (this.q, this.d_o, o, stats, *dirty.values()):
            tensor[n, :, rows] = np.nan
        for tensor in (this.k, this.v):
            tensor[n, :, cols] = np.nan
        for tensor in dirty.values():
            tensor[n, :, :, cols] = np.nan
    options = {**this.options, **dirty}
    assert_close(forward(this.q, this.k, this.v, **options).o, clean.o)
    gradients = backward(this.q, this.k, this.v, o, this.d_o, stats, **options)
    for field in ("dq", "dk", "dv", "dsink"):
        assert_close(getattr(gradients, field), getattr(clean_gradients, field))


def test_equal_scores_average_the_values() -> None:
    v = make_random_normal_array(1, 1, 4, 2)
    got = forward(np.zeros((1, 1, 4, 8)), make_random_normal_array(1, 1, 4, 8), v, right_bound=0)
    means = np.cumsum(v, axis=2) / np.arange(1, 5)[:, None]
    assert_close(got.o, means)
    assert_close(got.stats, np.log(np.arange(1.0, 5)).reshape(1, 1, 4, 1))
    assert_close(got.sum_exp, np.arange(1.0, 5).reshape(1, 1, 4, 1))
    assert not got.max.any()


def test_large_scores_do_not_overflow() -> None:
    q, k, v = (
        1e4 * make_random_normal_array(1, 1, 6, 4),
        1e4 * make_random_normal_array(1, 1, 9, 4),
        make_random_normal_array(1, 1, 9, 4),
    )
    got = forward(q, k, v, tile=2)
    best = (q @ k.swapaxes(2, 3)).argmax(axis=3)[0, 0]
    assert_close(got.o, v[:, :, best])
    assert np.isfinite(backward(q, k, v, got.o, got.o, got.stats).dq).all()


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_half_and_float_inputs_are_computed_in_float64(kind: type) -> None:
    q, k, v, d_o = (make_random_normal_array(1, 2, 5, 4).astype(kind) for _ in range(4))
    wide = [x.astype(np.float64) for x in (q, k, v, d_o)]
    got, expected = forward(q, k, v), forward(*wide[:3])
    assert np.array_equal(got.o, expected.o)
    gradients = backward(q, k, v, got.o, d_o, got.stats)
    assert np.array_equal(gradients.dk, backward(*wide[:3], expected.o, wide[3], expected.stats).dk)
    assert gradients.dk.dtype == np.float64


def test_inputs_are_not_changed() -> None:
    this = AttentionCase("everything")
    arrays = {"q": this.q, "k": this.k, "v": this.v, "d_o": this.d_o}
    arrays |= {name: value for name, value in this.options.items() if isinstance(value, np.ndarray)}
    before = {name: array.copy() for name, array in arrays.items()}
    this.backward(2)
    assert all(np.array_equal(array, before[name]) for name, array in arrays.items())


@pytest.mark.parametrize("tile", [50, 128, 1000])
def test_block_mask_equals_a_bias_of_minus_infinity(tile: int) -> None:
    q, k, v, d_o = (
        make_random_normal_array(1, 2, 200, 3),
        make_random_normal_array(1, 2, 300, 3),
        make_random_normal_array(1, 1, 300, 2),
        make_random_normal_array(1, 2, 200, 2),
    )
    blocks = np.array([[[1, 0, 1], [0, 0, 0]], [[0, 1, 0], [1, 1, 1]]], bool)[None]
    bias = np.where(np.kron(blocks, np.ones((128, 128)))[:, :, :200, :300], 0.0, -np.inf)
    got, expected = forward(q, k, v, block_mask=blocks, tile=tile), forward(q, k, v, bias=bias)
    assert_close(got.o, expected.o)
    assert_close(got.stats, expected.stats)
    assert (got.stats[0, 0, 128:] == -np.inf).all()
    ours = backward(q, k, v, got.o, d_o, got.stats, block_mask=blocks, tile=tile)
    theirs = backward(q, k, v, got.o, d_o, got.stats, bias=bias)
    for field in ("dq", "dk", "dv"):
        assert_close(getattr(ours, field), getattr(theirs, field))


def test_block_mask_equals_the_naive_attention() -> None:
    q, k, v = (
        make_random_normal_array(1, 1, 130, 2),
        make_random_normal_array(1, 1, 260, 2),
        make_random_normal_array(1, 1, 260, 2),
    )
    options = {"block_mask": np.array([[[[True, False, True], [False, True, True]]]]), "right_bound": 100}
    keep = find_unmasked_scores((1, 1, 130, 260), options)
    assert_close(forward(q, k, v, **options).o, compute_naive_attention(q, k, v, keep).o)


def test_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="causal"):
        forward(
            make_random_normal_array(1, 1, 2, 2),
            make_random_normal_array(1, 1, 2, 2),
            make_random_normal_array(1, 1, 2, 2),
            causal=True,
        )  # type: ignore[call-arg]


# ------------------------------------------------------------------------------------------ memory forms


@pytest.mark.parametrize("interleaved", [False, True])
def test_ragged_packing_is_reversible(interleaved: bool) -> None:
    dense = make_random_normal_array(3, 2, 5, 4).astype(np.float32)
    lengths = np.array([2, 0, 5], np.int32)
    row = 2 * 4 * (3 if interleaved else 1)  # the gap between rows of Q, K and V in one buffer
    strides = (0, 4, row, 1)
    offsets = np.concatenate([[0], np.cumsum(lengths) * row]).astype(np.int32).reshape(4, 1, 1, 1)
    buffer = ragged_pack(dense, lengths, offsets, strides, 8 * row)
    assert buffer.dtype == np.float32
    assert np.isnan(buffer).sum() == 8 * row - 7 * 8
    for h, i, d in np.ndindex(2, 5, 4):
        assert buffer[2 * row + i * row + h * 4 + d] == dense[2, h, i, d]
    back = ragged_unpack(buffer, offsets, lengths, dense.shape, strides)
    assert np.array_equal(back, np.where(np.arange(5)[:, None] < lengths[:, None, None, None], dense, 0))


def test_ragged_unpack_keeps_the_data_type() -> None:
    got = ragged_unpack(np.arange(6, dtype=np.uint8), [0, 2, 6], [1, 2], (2, 1, 3, 2), (0, 0, 2, 1))
    assert got.dtype == np.uint8
    assert got.tolist() == [[[[0, 1], [0, 0], [0, 0]]], [[[2, 3], [4, 5], [0, 0]]]]


def test_gather_pages_copies_pages_by_the_page_table() -> None:
    container = make_random_normal_array(6, 2, 4, 3)
    table = np.array([[5, 0, 2], [1, 3, 99]], np.int32).reshape(2, 1, 3, 1)
    dense = gather_pages(container, table, 7)
    assert dense.shape == (2, 2, 7, 3)
    for n, h, s in np.ndindex(2, 2, 7):
        assert np.array_equal(dense[n, h, s], container[table[n, 0, s // 4, 0], h, s % 4])


def compute_alibi_slopes_of_paper(heads: int) -> list[float]:
    """Return the ALiBi slopes of the paper: a geometric sequence for powers of two, else combined from two of them."""
    if math.log2(heads).is_integer():
        return [2 ** (-8 / heads * (head + 1)) for head in range(heads)]
    lower = 2 ** math.floor(math.log2(heads))
    return compute_alibi_slopes_of_paper(lower) + compute_alibi_slopes_of_paper(2 * lower)[0::2][: heads - lower]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 17, 64])
def test_alibi_slopes_equal_the_formula_of_the_paper(heads: int) -> None:
    got = alibi_slopes(heads)
    assert (got.shape, got.dtype) == ((1, heads, 1, 1), np.float32)
    assert got.ravel().tolist() == np.array(compute_alibi_slopes_of_paper(heads), np.float32).tolist()


def test_alibi_slopes_of_eight_heads_are_powers_of_one_half() -> None:
    assert alibi_slopes(8).ravel().tolist() == [2.0**-n for n in range(1, 9)]


def test_unpack_block_mask_reads_the_lowest_bit_first() -> None:
    bits = np.array([[[[0b00000101, 0b00000010]]]], np.uint8)
    assert np.flatnonzero(unpack_block_mask(bits, 10)).tolist() == [0, 2, 9]
    assert unpack_block_mask(bits, 9).shape == (1, 1, 1, 9)


# ------------------------------------------------------------------------------------------ what is refused


def make_zero_array(*dims: int) -> Array:
    return np.zeros(dims)


VALID_INPUTS: dict[str, Any] = {
    "q": make_zero_array(2, 4, 5, 3),
    "k": make_zero_array(2, 2, 7, 3),
    "v": make_zero_array(2, 1, 7, 6),
    "o": make_zero_array(2, 4, 5, 6),
    "d_o": make_zero_array(2, 4, 5, 6),
    "stats": make_zero_array(2, 4, 5, 1),
}
WRONG_SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"q": make_zero_array(4, 5, 3)}, "Q must have 4 dims, got 3: (4, 5, 3)"),
    ({"k": make_zero_array(7)}, "K must have 4 dims, got 1: (7,)"),
    ({"v": make_zero_array(2, 1, 7, 6, 1)}, "V must have 4 dims, got 5: (2, 1, 7, 6, 1)"),
    ({"o": make_zero_array(5, 6)}, "O must have 4 dims, got 2: (5, 6)"),
    ({"d_o": make_zero_array(5, 6)}, "dO must have 4 dims, got 2: (5, 6)"),
    ({"stats": make_zero_array(2, 4, 5)}, "Stats must have 4 dims, got 3: (2, 4, 5)"),
    ({"k": make_zero_array(2, 2, 0, 3)}, "K dims (2, 2, 0, 3) hold a 0, 1 or more is needed"),
    (
        {"k": make_zero_array(3, 2, 7, 3)},
        "Q has batch 2, K has batch 3: dims (2, 4, 5, 3) of Q and (3, 2, 7, 3) of K",
    ),
    (
        {"v": make_zero_array(1, 1, 7, 6)},
        "Q has batch 2, V has batch 1: dims (2, 4, 5, 3) of Q and (1, 1, 7, 6) of V",
    ),
    (
        {"k": make_zero_array(2, 3, 7, 3)},
        "Q has 4 heads, no multiple of the 3 heads of K: dims (2, 4, 5, 3) of Q and (2, 3, 7, 3) of K",
    ),
    (
        {"v": make_zero_array(2, 8, 7, 6)},
        "Q has 4 heads, no multiple of the 8 heads of V: dims (2, 4, 5, 3) of Q and (2, 8, 7, 6) of V",
    ),
    (
        {"v": make_zero_array(2, 1, 8, 6)},
        "K has sequence 7, V has sequence 8: dims (2, 2, 7, 3) of K and (2, 1, 8, 6) of V",
    ),
    (
        {"k": make_zero_array(2, 2, 7, 4)},
        "Q has head dim 3, K has head dim 4: dims (2, 4, 5, 3) of Q and (2, 2, 7, 4) of K",
    ),
    (
        {"o": make_zero_array(2, 4, 5, 3)},
        "O dims (2, 4, 5, 3) differ from (2, 4, 5, 6), "
        "the b, h, s of Q dims (2, 4, 5, 3) and the d of V dims (2, 1, 7, 6)",
    ),
    ({"d_o": make_zero_array(2, 4, 6, 6)}, "O dims (2, 4, 5, 6) differ from dO dims (2, 4, 6, 6)"),
    (
        {"stats": make_zero_array(2, 4, 5, 6)},
        "Stats dims (2, 4, 5, 6) differ from (2, 4, 5, 1), one number per row of Q dims (2, 4, 5, 3)",
    ),
    ({"seq_len_q": [5, 5, 5]}, "seq_len_q dims (3,) do not hold 2 values"),
    ({"seq_len_q": [[5, 5]]}, "seq_len_q dims (1, 2) do not hold 2 values"),
    ({"seq_len_q": [5, 6]}, "seq_len_q holds [6], 0 to 5 is needed"),
    ({"seq_len_kv": [-1, 8]}, "seq_len_kv holds [-1, 8], 0 to 7 is needed"),
    ({"bias": make_zero_array(1, 5, 7)}, "bias must have 4 dims, got 3: (1, 5, 7)"),
    (
        {"bias": make_zero_array(1, 2, 5, 7)},
        "bias dims (1, 2, 5, 7) do not broadcast to the scores' dims (2, 4, 5, 7)",
    ),
    ({"alibi_slopes": make_zero_array(2)}, "alibi_slopes dims (2,) differ from (1, 4, 1, 1)"),
    ({"sink": make_zero_array(4, 1, 1, 1)}, "sink dims (4, 1, 1, 1) differ from (1, 4, 1, 1)"),
    (
        {"dropout_mask": make_zero_array(1, 4, 5, 7)},
        "dropout_mask dims (1, 4, 5, 7) differ from the scores' dims (2, 4, 5, 7)",
    ),
    (
        {"block_mask": np.ones((2, 4, 1, 2), bool)},
        "block_mask dims (2, 4, 1, 2) differ from (2, 4, 1, 1), one entry per 128 x 128 block of (2, 4, 5, 7)",
    ),
]
WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"q": np.zeros((2, 4, 5, 3), np.uint8)}, "Q has element type uint8, a NumPy floating-point type is needed"),
    ({"bias": np.zeros((1, 4, 5, 7), int)}, "bias has element type int64, a NumPy floating-point type is needed"),
    ({"seq_len_q": [5.0, 4.0]}, "seq_len_q has element type float64, integers are needed"),
    ({"block_mask": np.ones((2, 4, 1, 1), np.uint8)}, "block_mask has element type uint8, bool is needed"),
]
WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"alignment": "bottom"}, "alignment is 'bottom', neither 'top_left' nor 'bottom_right'"),
    ({"tile": 0}, "tile is 0, 1 column or more is needed"),
]
INVALID_INPUTS = [
    (changed, code, headline)
    for code, rows in (
        ("reference-shape", WRONG_SHAPES),
        ("reference-type", WRONG_TYPES),
        ("reference-option", WRONG_OPTIONS),
    )
    for changed, headline in rows
]


def get_error_code_and_headline(call: Callable[..., object], *arguments: Any, **options: Any) -> tuple[str, str]:
    with pytest.raises(GraphError) as caught:
        call(*arguments, **options)
    assert set(caught.value.sections) == {"where", "fix"}
    return caught.value.code, caught.value.headline


@pytest.mark.parametrize(("changed", "code", "headline"), INVALID_INPUTS, ids=[row[2] for row in INVALID_INPUTS])
def test_invalid_inputs_are_refused(changed: dict[str, Any], code: str, headline: str) -> None:
    given = {**VALID_INPUTS, **changed}
    assert get_error_code_and_headline(backward, **given) == (code, headline)
    if not {"o", "d_o", "stats"} & set(changed):
        inputs = {name: value for name, value in given.items() if name not in ("o", "d_o", "stats")}
        assert get_error_code_and_headline(forward, **inputs) == (code, headline)


def test_the_unchanged_inputs_of_the_error_cases_are_valid() -> None:
    assert backward(**VALID_INPUTS).dk.shape == (2, 2, 7, 3)


class TruncatingScoreModifier(SoftCap):
    """A score modifier that returns too few elements, in forward or in backward."""

    def __init__(self, direction: str) -> None:
        super().__init__(1.0)
        setattr(self, direction, lambda score, *_: score[..., :1])


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_score_modifier_that_changes_the_dims_is_refused(direction: str) -> None:
    assert get_error_code_and_headline(backward, **VALID_INPUTS, score_modifier=TruncatingScoreModifier(direction)) == (
        "reference-shape",
        f"score_modifier.{direction} returned dims (2, 4, 5, 1) for scores of dims (2, 4, 5, 7)",
    )


PAGES, TABLE = make_zero_array(3, 1, 4, 2), np.zeros((2, 1, 2, 1), np.int32)
INVALID_LAYOUTS: list[tuple[Callable[..., object], tuple[Any, ...], str, str]] = [
    (
        ragged_pack,
        (np.zeros((1, 1, 2, 2), np.uint8), [2], [0, 4], (4, 4, 2, 1), 4),
        "reference-type",
        "dense has element type uint8, a NumPy floating-point type is needed: there are NaN between sequences",
    ),
    (
        ragged_pack,
        (make_zero_array(2, 2), [2], [0, 4], (4, 4, 2, 1), 4),
        "reference-shape",
        "dense must have 4 dims, got 2: (2, 2)",
    ),
    (
        ragged_pack,
        (make_zero_array(1, 1, 2, 2), [3], [0, 4], (4, 4, 2, 1), 4),
        "reference-shape",
        "lengths holds [3], 0 to 2 is needed",
    ),
    (
        ragged_pack,
        (make_zero_array(1, 1, 2, 2), [2], [0], (4, 4, 2, 1), 4),
        "reference-shape",
        "offsets dims (1,) do not hold 2 values",
    ),
    (
        ragged_pack,
        (make_zero_array(1, 1, 2, 2), [2], [0, 4], (2, 1), 4),
        "reference-shape",
        "strides (2, 1) hold 2 numbers, 4 are needed",
    ),
    (
        ragged_pack,
        (make_zero_array(2, 1, 2, 2), [2, 2], [0, 8, 16], (4, 4, 2, 1), 8),
        "reference-shape",
        "batch entry 1 of offset 8 and length 2 reaches elements 8 to 11, the buffer has 8",
    ),
    (
        ragged_unpack,
        (make_zero_array(2, 2), [0, 4], [2], (1, 1, 2, 2), (4, 4, 2, 1)),
        "reference-shape",
        "buffer must have 1 dim, got 2: (2, 2)",
    ),
    (
        ragged_unpack,
        (make_zero_array(4), [0, 4], [2], (2, 2), (4, 4, 2, 1)),
        "reference-shape",
        "dims (2, 2) hold 2 numbers, 4 are needed",
    ),
    (
        ragged_unpack,
        (make_zero_array(4), [-2, 4], [2], (1, 1, 2, 2), (4, 4, 2, 1)),
        "reference-shape",
        "batch entry 0 of offset -2 and length 2 reaches elements -2 to 1, the buffer has 4",
    ),
    (
        gather_pages,
        (make_zero_array(3, 4, 2), TABLE, 8),
        "reference-shape",
        "container must have 4 dims, got 3: (3, 4, 2)",
    ),
    (
        gather_pages,
        (PAGES, TABLE[:, 0], 8),
        "reference-shape",
        "table dims (2, 2, 1) differ from (b, 1, n, 1)",
    ),
    (
        gather_pages,
        (PAGES, TABLE.astype(np.float32), 8),
        "reference-type",
        "table has element type float32, integers are needed",
    ),
    (
        gather_pages,
        (PAGES, TABLE, 9),
        "reference-shape",
        "seq_kv is 9, table dims (2, 1, 2, 1) and pages of 4 hold 1 to 8",
    ),
    (
        gather_pages,
        (PAGES, TABLE - 1, 8),
        "reference-shape",
        "table names pages [-1, -1, -1, -1], the container has 0 to 2",
    ),
    (alibi_slopes, (0,), "reference-option", "heads is 0, 1 or more is needed"),
    (
        unpack_block_mask,
        (np.ones((1, 1, 1, 1), bool), 8),
        "reference-type",
        "bits have element type bool, uint8 is needed",
    ),
    (
        unpack_block_mask,
        (np.ones((1, 1, 1, 1), np.uint8), 9),
        "reference-shape",
        "bits dims (1, 1, 1, 1) do not end in ceil(blocks / 8) = 2 for 9 blocks",
    ),
]


@pytest.mark.parametrize(
    ("call", "arguments", "code", "headline"), INVALID_LAYOUTS, ids=[row[3] for row in INVALID_LAYOUTS]
)
def test_invalid_memory_layouts_are_refused(
    call: Callable[..., object], arguments: tuple[Any, ...], code: str, headline: str
) -> None:
    assert get_error_code_and_headline(call, *arguments) == (code, headline)
