"""Random attention problems with input data, for the graph builder, the float64 reference and the GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import DataType, Graph, attention, reference
from cudnn_backend_py.graph import Matmul
from cudnn_backend_py.graph.attention import Attention, SoftCap
from cudnn_backend_py.graph.formats import get_storage_type, round_to_data_type
from cudnn_backend_py.interpreter.philox import dropout_mask

__all__ = ["AttentionCase", "make_attention_case", "make_random_attention_problem", "map_options_to_value_text"]

Array = NDArray[np.float64]
FP8_TYPES = (DataType.FP8_E4M3, DataType.FP8_E5M2)
_GRADIENT_NAMES = ("dq", "dk", "dv")


class ArraySoftCap:
    """The soft cap cap * tanh(score / cap), evaluated on NumPy arrays."""

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def forward(self, score: Array) -> Array:
        return self.cap * np.tanh(score / self.cap)

    def backward(self, d_score: Array, score: Array) -> Array:
        return d_score * (1 - np.tanh(score / self.cap) ** 2)


@dataclass
class AttentionCase:
    """An attention problem with its data as dense arrays [b, h, s, d], and the sequence lengths."""

    problem: Attention
    backward: bool
    values: dict[str, Array]
    seq_q: NDArray[np.int64]
    seq_kv: NDArray[np.int64]
    mask: Array | None = None
    expected: dict[str, Array] = field(default_factory=dict)
    valid_rows: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def graph(
        self, implementation: str = "composite", version: tuple[int, int, int] | None = None, **options: Any
    ) -> Graph:
        """Return the graph of the problem, in the composite or unified form."""
        make = attention.sdpa_backward if self.backward else attention.sdpa_forward
        return make(self.problem, implementation=implementation, version=version, **options)  # type: ignore[arg-type]

    def make_inputs_of_graph(self, graph: Graph) -> dict[str, Array]:
        """Return the value of each graph input; K and V are transposed, ragged or paged where the graph needs it."""
        swapped = list_transposed_inputs(graph) | self._list_transposed_block_scaled_tensors()
        found: dict[str, Array] = {}
        written = {tensor.name for tensor in graph.outputs}
        for tensor in graph.variant_pack_tensors:
            if tensor.name in written or tensor.scratch or tensor.by_value:
                continue
            found[tensor.name] = self.get_stored_tensor(tensor.name, swapped=tensor.name in swapped)
        return found

    def get_stored_tensor(self, name: str, *, swapped: bool = False) -> Array:
        """Return a tensor as it is stored: dense, or one buffer of all sequences if it is ragged."""
        value = self.values[name]
        place = self._find_ragged_layout(name)
        if place is not None:
            offsets, lengths, strides = place
            return reference.ragged_pack(value, lengths, offsets, strides, int(offsets[-1]))
        return value.swapaxes(2, 3) if swapped else value

    def unpack_output(self, name: str, array: Array) -> Array:
        """Return an output as [b, h, s, d]; a ragged one is unpacked, with 0 after each sequence."""
        place = self._find_ragged_layout(name)
        if place is None:
            return array
        offsets, lengths, strides = place
        return reference.ragged_unpack(array, offsets, lengths, self.expected[name].shape, strides)

    def _list_transposed_block_scaled_tensors(self) -> set[str]:
        """Return the names of the block-scaled tensors with s and d swapped, and of their scales."""
        if not self.problem.mx:
            return set()
        names = {"k", "v"} if self.backward else {"k"}
        return names | {f"descale_{name}" for name in names}

    def _find_ragged_layout(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...]] | None:
        """Return offsets, lengths and strides of a ragged tensor, None for a dense one."""
        p = self.problem
        base = "stats" if name in ("stats", "max", "sum_exp") else name.removeprefix("d")
        if not (p.ragged_stats if base == "stats" else p.ragged and base in ("q", "k", "v", "o")):
            return None
        lengths = self.seq_kv if base in ("k", "v") else self.seq_q
        return self.values[f"ragged_{base}"].ravel().astype(np.int64), lengths, p.strides(base)

    def make_mask_of_defined_elements(self, name: str) -> NDArray[np.bool_]:
        """Return the mask of defined elements of an output: rows with a key, columns inside the sequence length."""
        want = self.expected[name]
        if name in ("o", "dq", "stats", "max", "sum_exp"):
            return np.broadcast_to(self.valid_rows, want.shape)
        if name in ("dk", "dv"):
            inside = np.arange(want.shape[2]) < self.seq_kv[:, None]
            return np.broadcast_to(inside[:, None, :, None], want.shape)
        return np.ones(want.shape, bool)


def list_transposed_inputs(graph: Graph) -> set[str]:
    """Return which of k and v are stored with s and d swapped, because a matmul reads them as its right operand."""
    seen = {op.b.name for op in graph.ops if isinstance(op, Matmul) and op.a.name in ("q", "do")}
    return seen & {"k", "v"}


# random problems


def make_random_attention_problem(
    rng: np.random.Generator, *, backward: bool, tiny: bool, fp8: bool | None = None
) -> Attention:
    """Return a random attention problem: `tiny` for NumPy only, otherwise of sizes that kernels support."""

    def draw_bool(p: float) -> bool:
        return bool(rng.random() < p)

    def choose_randomly(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    is_fp8 = draw_bool(0.15 if tiny else 0.35) if fp8 is None else fp8
    o: dict[str, Any] = {"batch": int(rng.integers(1, 4)), "stats": draw_bool(0.7)}
    o["heads"] = choose_randomly(1, 2, 4, 6)
    divisors = [n for n in (1, 2, 3, 6) if o["heads"] % n == 0]
    o["kv_heads"] = o["heads"] if draw_bool(0.6) else choose_randomly(*divisors)
    o["v_heads"] = o["kv_heads"] if draw_bool(0.8) else choose_randomly(*divisors)
    if tiny:
        o["seq_q"], o["seq_kv"] = int(rng.integers(1, 10)), int(rng.integers(1, 12))
        o["head_dim"], o["head_dim_v"] = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    else:
        sizes = (64, 128, 192, 256, 384, 100, 333, 72)
        o["seq_q"], o["seq_kv"] = choose_randomly(*sizes), choose_randomly(*sizes, 1024)
        if not backward and draw_bool(0.08):
            o["seq_q"] = choose_randomly(1, 1, 2, 5)  # cuDNN has separate kernels for decoding (few queries)
        o["head_dim"] = choose_randomly(64, 128, 32, 96, 80, 40, 64, 128, 192, 256)
        o["head_dim_v"] = o["head_dim"] if draw_bool(0.8) else choose_randomly(64, 128)
        if is_fp8:
            o["head_dim"] = o["head_dim_v"] = 128 if backward else choose_randomly(64, 128)
    o["data_type"] = choose_randomly(*FP8_TYPES) if is_fp8 else choose_randomly(DataType.HALF, DataType.BFLOAT16)
    if draw_bool(0.15):
        o["scale"] = choose_randomly("tensor", "none", 0.3)
    _set_random_mask_options(rng, o, draw_bool)
    o["mx"] = tiny and is_fp8 and draw_bool(0.4)
    kind = (
        choose_randomly("plain", "padding")
        if o["mx"]
        else choose_randomly("plain", "plain", "plain", "padding", "ragged", "paged")
    )
    if kind == "paged" and backward:
        kind = "ragged"
    o["padding"] = kind != "plain"
    if kind == "ragged":
        o["ragged"] = True
        o["ragged_stats"] = draw_bool(0.4)
        o["offset_type"] = choose_randomly(DataType.INT32, DataType.INT64)
        if backward and draw_bool(0.3):
            o["max_total_seq_q"] = o["batch"] * o["seq_q"]
            o["max_total_seq_kv"] = o["batch"] * o["seq_kv"]
    elif kind == "paged":
        o["page_size"] = choose_randomly(1, 2, 4) if tiny else choose_randomly(16, 64, 128)
    if kind in ("plain", "padding"):
        o["layout"] = choose_randomly("bshd", "bhsd", "sbhd", {"q": "bhsd", "v": "sbhd", "do": "bhsd"})
        same = o["kv_heads"] == o["v_heads"] == o["heads"] and o["head_dim"] == o["head_dim_v"]
        if same and draw_bool(0.3):
            o["seq_kv"] = o["seq_q"]
            o["layout"] = "packed"
        elif draw_bool(0.25):
            o["layout"] = _make_random_strides(rng, Attention(**o), 1 if tiny else 16)
    _set_random_score_options(rng, o, draw_bool, choose_randomly, backward=backward, is_fp8=is_fp8)
    if backward:
        o["stats"] = True
        o["deterministic"] = draw_bool(0.25)
    else:
        if draw_bool(0.25):
            o |= {"stats": draw_bool(0.3), "max": draw_bool(0.8), "sum_exp": draw_bool(0.8)}
    return Attention(**o)


def _make_random_strides(rng: np.random.Generator, p: Attention, step: int) -> dict[str, tuple[int, ...]]:
    """Return strides in a random order of b, h and s, with gaps of multiples of `step` bytes."""
    gap = max(1, step // get_storage_type(p.data_type).itemsize)
    layout = {}
    for name in ("q", "k", "v", "o", "do", "dq", "dk", "dv"):
        dims, strides, size = p.dims(name), [1, 1, 1, 1], 1
        for axis in (3, *rng.permutation(3)):
            strides[axis] = size
            size = strides[axis] * dims[axis] + gap * int(rng.integers(0, 3))
        layout[name] = tuple(strides)
    return layout


def _set_random_mask_options(rng: np.random.Generator, o: dict[str, Any], chance: Any) -> None:
    if chance(0.4):
        o["right_bound"] = 0 if chance(0.7) else int(rng.integers(1, 1 + max(1, o["seq_kv"] // 2)))
    if chance(0.25):
        o["left_bound"] = int(rng.integers(1, 1 + o["seq_kv"]))
    if ("right_bound" in o or "left_bound" in o) and chance(0.4):
        o["alignment"] = "bottom_right"


def _set_random_score_options(
    rng: np.random.Generator, o: dict[str, Any], chance: Any, pick: Any, *, backward: bool, is_fp8: bool
) -> None:
    if chance(0.2):
        o["bias"] = (pick(1, o["batch"]), pick(1, o["heads"]), o["seq_q"], o["seq_kv"])
        o["dbias"] = backward and not is_fp8 and chance(0.6)
    o["alibi"] = chance(0.15)
    if chance(0.12) and not is_fp8:
        o["score_modifier"] = SoftCap(float(rng.uniform(0.5, 3.0)))
    if chance(0.25):
        if backward or chance(0.7):
            o["dropout"] = float(pick(0.1, 0.25, 0.5))
            o["rng_dump"] = chance(0.5)
            o["seed_type"] = pick(DataType.INT32, DataType.INT64)
        else:
            o["dropout_mask"] = True
    if chance(0.2):
        o["sink"] = True
        o["dsink"] = backward and chance(0.7)


def map_options_to_value_text(p: Attention) -> dict[str, str]:
    """Return the value of each option as text, by which tests count how many random problems have it."""
    groups = {True: "MHA", False: "MQA" if p.kv_heads == 1 else "GQA"}[p.kv_heads == p.heads]
    layouts = p.layout if isinstance(p.layout, str) else "strides" if "dv" in p.layout else "by tensor"
    words = {
        "data type": ("mx " if p.mx else "") + p.data_type.name,
        "heads": groups + (", V's own" if p.v_heads != p.kv_heads else ""),
        "head dims": "equal" if p.head_dim == p.head_dim_v else "different",
        "layout": layouts,
        "scale": p.scale if isinstance(p.scale, str) else "default" if p.scale is None else "number",
        "left bound": "none" if p.left_bound is None else p.alignment,
        "right bound": "none" if p.right_bound is None else f"{'0' if p.right_bound == 0 else '> 0'} {p.alignment}",
        "lengths": "ragged" if p.ragged else "paged" if p.page_size else "padding" if p.padding else "full",
        "ragged offsets": p.offset_type.name if p.ragged else "none",
        "bias": "none" if p.bias is None else "broadcast" if 1 in p.bias[:2] else "full",
        "dropout": "mask" if p.dropout_mask else "none" if not p.dropout else f"Philox {p.seed_type.name}",
        "score modifier": type(p.score_modifier).__name__ if p.score_modifier else "none",
    }
    flags = ("alibi", "sink", "dsink", "dbias", "stats", "max", "sum_exp", "rng_dump", "ragged_stats", "deterministic")
    words |= {name: "yes" if getattr(p, name) else "no" for name in (*flags, "block_mask")}
    words["max_total_seq"] = "no" if p.max_total_seq_q is None else "yes"
    return words


# data of the problems


def make_attention_case(p: Attention, rng: np.random.Generator, *, backward: bool) -> AttentionCase:
    """Return a case for a problem with random data and the results of the reference."""
    seq_q, seq_kv = _make_random_lengths(p, rng)
    values: dict[str, Array] = {
        "seq_len_q": seq_q.reshape(-1, 1, 1, 1).astype(float),
        "seq_len_kv": seq_kv.reshape(-1, 1, 1, 1).astype(float),
    }
    for name in ("q", "k", "v", "do"):
        heads, dim = {"q": (p.heads, p.head_dim), "k": (p.kv_heads, p.head_dim), "v": (p.v_heads, p.head_dim_v)}.get(
            name, (p.heads, p.head_dim_v)
        )
        seq = p.seq_kv if name in ("k", "v") else p.seq_q
        values[name] = round_to_data_type(rng.standard_normal((p.batch, heads, seq, dim)), p.data_type)
    case = AttentionCase(p, backward, values, seq_q, seq_kv)
    if p.mx:
        _add_block_scaled_values(case, rng)
    _add_ragged_offsets(case)
    _add_score_inputs(case, rng)
    if p.dropout:
        seed, offset = (values[name].item() for name in ("dropout_seed", "dropout_offset"))
        keep = 1 - float(np.float32(p.dropout))
        case.mask = dropout_mask(seed, offset, (p.batch, p.heads, p.seq_q, p.seq_kv), keep)
    if p.page_size is not None:
        _add_paged_keys_and_values(case, rng)
    return case


def _make_random_lengths(p: Attention, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if not p.padding:
        return np.full(p.batch, p.seq_q), np.full(p.batch, p.seq_kv)
    return rng.integers(1, p.seq_q + 1, p.batch), rng.integers(1, p.seq_kv + 1, p.batch)


def _add_ragged_offsets(case: AttentionCase) -> None:
    p = case.problem
    if not p.ragged:
        return
    for name in ("q", "k", "v", "o", "stats"):
        lengths = case.seq_kv if name in ("k", "v") else case.seq_q
        tokens = np.concatenate([[0], np.cumsum(lengths)])
        case.values[f"ragged_{name}"] = (tokens * p.strides(name)[2]).reshape(-1, 1, 1, 1).astype(float)


def _add_score_inputs(case: AttentionCase, rng: np.random.Generator) -> None:
    """Add inputs for scale, ALiBi, sink, bias, dropout, FP8 scales and block mask."""
    p, values = case.problem, case.values
    values["scale"] = np.full((1, 1, 1, 1), 0.25)
    values["alibi_slopes"] = reference.alibi_slopes(p.heads).astype(np.float64)
    values["sink"] = round_to_data_type(rng.standard_normal((1, p.heads, 1, 1)), DataType.FLOAT)
    if p.bias is not None:
        values["bias"] = round_to_data_type(rng.standard_normal(p.bias), p.data_type)
    values["dropout_seed"] = np.full((1, 1, 1, 1), float(rng.integers(1 << 30)))
    values["dropout_offset"] = np.full((1, 1, 1, 1), float(rng.integers(1 << 12)))
    if p.dropout_mask:
        keep = rng.random((p.batch, p.heads, p.seq_q, p.seq_kv)) >= 0.2
        values["dropout_mask"] = keep.astype(np.float64)
        values["dropout_scale"] = np.full((1, 1, 1, 1), 1.25)
    powers = {"s": 6, "dp": 4, "o": 1, "dq": 2, "dk": 1, "dv": 0, "q": -1, "k": 1, "v": -1, "do": -2}
    for name, power in powers.items():
        values[f"scale_{name}"] = np.full((1, 1, 1, 1), 2.0**power)
        values.setdefault(f"descale_{name}", np.full((1, 1, 1, 1), 2.0**-power))
    if p.block_mask:
        rows, columns = math.ceil(p.seq_q / 128), math.ceil(p.seq_kv / 128)
        values["block_mask"] = rng.integers(1, 256, (p.batch, p.heads, rows, math.ceil(columns / 8))).astype(float)


def _add_block_scaled_values(case: AttentionCase, rng: np.random.Generator) -> None:
    """Split the values into 8-bit numbers and scales of blocks of 32, along d or s as the matmul requires."""
    along_s = ("q", "k", "do") if case.backward else ("v",)
    along_d = ("q", "k", "v", "do") if case.backward else ("q", "k")
    for name, axis in (*((name, 3) for name in along_d), *((name, 2) for name in along_s)):
        true = case.values.setdefault(f"{name}_true", case.values[name])
        label = f"{name}_t" if case.backward and axis == 2 else name
        dims = list(true.shape)
        dims[axis] = math.ceil(math.ceil(dims[axis] / 32) / 4) * 4
        dims[5 - axis] = math.ceil(dims[5 - axis] / 128) * 128
        scale = 2.0 ** rng.integers(-2, 3, dims)
        case.values[f"descale_{label}"] = scale
        case.values[label] = true / np.repeat(scale, 32, axis)[tuple(map(slice, true.shape))]
    case.values["do_f16"] = case.values.get("do_true", case.values["do"])


def _add_paged_keys_and_values(case: AttentionCase, rng: np.random.Generator) -> None:
    """Copy K and V into pages in random order; page memory after the last token is NaN."""
    p, size = case.problem, case.problem.page_size
    assert size is not None
    count = p.pages_per_sequence
    for name in ("k", "v"):
        dense = case.values[name]
        container = np.full(p.dims(name), np.nan)
        table = rng.permutation(p.batch * count).reshape(p.batch, 1, count, 1)
        for b in range(p.batch):
            for index in range(count):
                page = dense[b, :, index * size : (index + 1) * size]
                container[table[b, 0, index, 0], :, : page.shape[1]] = page
        case.values[f"{name}_dense"] = dense
        case.values[name] = np.nan_to_num(container)
        case.values[f"page_table_{name}"] = table.astype(float)


def get_reference_options(case: AttentionCase) -> dict[str, Any]:
    """Return the keyword arguments of the float64 reference for a case."""
    p, v = case.problem, case.values
    options: dict[str, Any] = {
        "left_bound": p.left_bound,
        "right_bound": p.right_bound,
        "alignment": p.alignment,
    }
    if p.scale is None or not isinstance(p.scale, str):
        options["scale"] = p.scale_value
    else:
        options["scale"] = 1.0 if p.scale == "none" else float(v["scale"].item())
    if p.padding:
        options |= {"seq_len_q": case.seq_q, "seq_len_kv": case.seq_kv}
    if p.bias is not None:
        options["bias"] = v["bias"]
    if p.alibi:
        options["alibi_slopes"] = v["alibi_slopes"]
    if p.sink:
        options["sink"] = v["sink"]
    if isinstance(p.score_modifier, SoftCap):
        options["score_modifier"] = ArraySoftCap(p.score_modifier.cap)
    if p.dropout:
        options |= {"dropout_mask": case.mask, "dropout_scale": 1 / (1 - float(np.float32(p.dropout)))}
    if p.dropout_mask:
        options |= {"dropout_mask": v["dropout_mask"], "dropout_scale": v["dropout_scale"].item()}
    if p.block_mask:
        columns = math.ceil(p.seq_kv / 128)
        options["block_mask"] = reference.unpack_block_mask(v["block_mask"].astype(np.uint8), columns)
    return options


def add_expected_results(case: AttentionCase) -> AttentionCase:
    """Add the results of the reference to a case; a backward case also gets its o and stats from it."""
    p, v = case.problem, case.values
    options = get_reference_options(case)
    q, k, values, d_o = (_get_values_before_paging_or_scaling(case, name) for name in ("q", "k", "v", "do"))
    scaled = p.is_fp8 and not p.mx
    if scaled:
        q, k, values = (x * v[f"descale_{name}"] for name, x in (("q", q), ("k", k), ("v", values)))
    forward = reference.forward(q, k, values, **options)
    case.valid_rows = np.isfinite(forward.stats) & (np.arange(p.seq_q) < case.seq_q[:, None])[:, None, :, None]
    if not case.backward:
        case.expected = _compute_expected_outputs(case, forward)
        return case
    o_scale = v["scale_o"] if scaled else 1.0
    v["o"] = v["o_f16"] = round_to_data_type(forward.o * o_scale, DataType.BFLOAT16 if p.mx else p.data_type)
    v["stats"] = round_to_data_type(forward.stats, DataType.FLOAT)
    d_o = d_o * v["descale_do"] if scaled else d_o
    gradient = reference.backward(q, k, values, v["o"] / o_scale, d_o, v["stats"], **options)
    case.expected = _compute_expected_gradients(case, gradient)
    return case


def _get_values_before_paging_or_scaling(case: AttentionCase, name: str) -> Array:
    """Return the dense values of an input, before it was split into pages or blocks."""
    return case.values.get(f"{name}_dense", case.values.get(f"{name}_true", case.values[name]))


def _compute_expected_outputs(case: AttentionCase, forward: reference.ForwardResults) -> dict[str, Array]:
    p, v = case.problem, case.values
    expected = {"o": forward.o * v["scale_o"] if p.is_fp8 and not p.mx else forward.o}
    for name in ("stats", "max", "sum_exp"):
        if getattr(p, name):
            expected[name] = getattr(forward, name)
    if p.is_fp8 and bool(case.valid_rows.all()):
        expected["amax_o"] = np.abs(forward.o).max().reshape(1, 1, 1, 1)
    return expected


def _compute_expected_gradients(case: AttentionCase, gradient: reference.BackwardResults) -> dict[str, Array]:
    p, v = case.problem, case.values
    expected: dict[str, Array] = {}
    for name in _GRADIENT_NAMES:
        value = getattr(gradient, name)
        expected[name] = value * v[f"scale_{name}"] if p.is_fp8 and not p.mx else value
        if p.is_fp8 and bool(case.valid_rows.all()):
            expected[f"amax_{name}"] = np.abs(value).max().reshape(1, 1, 1, 1)
    if p.dbias and gradient.dbias is not None:
        expected["dbias"] = gradient.dbias
    if p.dsink and gradient.dsink is not None:
        expected["dsink"] = gradient.dsink
    return expected
