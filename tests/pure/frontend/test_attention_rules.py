"""Attention under cudnn-frontend's names: refusals, their exceptions, and inferred values. No library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.frontend import attention_implementation, cudnnGraphNotSupportedError, data_type, tensor
from cudnn_backend_py.frontend import diagonal_alignment as corner
from cudnn_backend_py.frontend.errors import FrontendRuntimeError, convert_errors
from cudnn_backend_py.frontend.ops.attention_node import alibi_slopes
from cudnn_backend_py.frontend.ops.node import pack_strides
from cudnn_backend_py.generated.enums import KnobType
from tests.support.frontend_attention import FLOAT, HALF, INT32, CheckContext, RecordingGraph

INT64, FP8 = data_type.INT64, data_type.FP8_E4M3
Options = dict[str, Any]


def make(b: int = 2, h: int = 4, s: int = 128, d: int = 64, kind: data_type = HALF) -> tensor:
    return tensor([b, h, s, d], [h * s * d, d, h * d, 1], kind)


def one(kind: data_type = FLOAT, **options: Any) -> tensor:
    return tensor([1] * 4, [1] * 4, kind, **options)


def lengths() -> Options:
    sizes = {name: tensor([2, 1, 1, 1], [1] * 4, INT32) for name in ("seq_len_q", "seq_len_kv")}
    return {"use_padding_mask": True, **sizes}


def per_row(*strides: int) -> tensor:
    return tensor([2, 4, 128, 1], strides, FLOAT)


def ragged(item: tensor) -> tensor:
    return item.set_ragged_offset(tensor([3, 1, 1, 1], [1] * 4, INT32))


def pages(size: int = 64, **options: Any) -> Options:
    tables = {f"paged_attention_{name}_table": tensor([2, 1, 2, 1], [2, 2, 1, 1], INT32) for name in ("k", "v")}
    return {"k": make(4, s=size), "v": make(4, s=size), **tables, **options}


def dropout(p: float = 0.1) -> tuple[Any, ...]:
    return (p, one(INT64), one(INT64))


def forward(g: RecordingGraph, **options: Any) -> list[tensor | None]:
    s = options.pop("s", 128)
    s_kv, d, d_v, heads = options.pop("s_kv", s), options.pop("d", 64), options.pop("d_v", None), options.pop("h_kv", 4)
    tensors = {"q": make(s=s, d=d), "k": make(h=heads, s=s_kv, d=d), "v": make(h=heads, s=s_kv, d=d_v or d)}
    defaults: Options = {"generate_stats": False, "attn_scale": 0.125}
    return g.sdpa(**(tensors | defaults | options))


def backward(g: RecordingGraph, **options: Any) -> list[tensor | None]:
    s = options.pop("s", 128)
    s_kv, d = options.pop("s_kv", s), options.pop("d", 64)
    tensors = {"q": make(s=s, d=d), "k": make(s=s_kv, d=d), "v": make(s=s_kv, d=d)}
    tensors |= {"o": make(s=s, d=d), "dO": make(s=s, d=d)}
    stats = tensor([2, 4, s, 1], [4 * s, s, 1, 1], FLOAT)
    defaults: Options = {"stats": stats, "attn_scale": 0.125}
    return g.sdpa_backward(**(tensors | defaults | options))


def forward_fp8(g: RecordingGraph, **options: Any) -> list[tensor | None]:
    d = options.pop("d", 128)
    scales = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    defaults: Options = {name: make(d=d, kind=FP8) for name in "qkv"} | {name: one() for name in scales}
    defaults |= {"generate_stats": False, "attn_scale": 0.125}
    outputs = g.sdpa_fp8(**(defaults | {name: value for name, value in options.items() if name != "o_type"}))
    assert outputs[0] is not None
    outputs[0].set_data_type(options.get("o_type", FP8))
    return outputs


def backward_fp8(g: RecordingGraph, **options: Any) -> list[tensor | None]:
    d = options.pop("d", 128)
    names = [f"descale_{name}" for name in ("q", "k", "v", "o", "dO", "s", "dP")]
    names += [f"scale_{name}" for name in ("s", "dQ", "dK", "dV", "dP")]
    defaults: Options = {name: make(d=d, kind=FP8) for name in ("q", "k", "v", "o", "dO")} | {n: one() for n in names}
    defaults |= {"stats": tensor([2, 4, 128, 1], [512, 128, 1, 1], FLOAT), "attn_scale": 0.125}
    outputs = g.sdpa_fp8_backward(**(defaults | options))
    for item in outputs[:3]:
        assert item is not None
        item.set_data_type(FP8)
    return outputs


Refused = cudnnGraphNotSupportedError
UNIFIED, COMPOSITE = attention_implementation.UNIFIED, attention_implementation.COMPOSITE
BR = {"diagonal_alignment": corner.BOTTOM_RIGHT, "diagonal_band_right_bound": 0}

# (method, options, version, sm, exception, part of its message); a function may create the options
RULES: list[tuple[Callable[..., Any], Options | Callable[[], Options], tuple[int, int, int], int, type, str]] = [
    (forward, lambda: {"q": tensor([2, 4, 128], [512, 128, 1], HALF)}, (9, 19, 0), 90, ValueError, "dim for q"),
    (forward, lambda: {"k": tensor([2, 4, 128, 64], [1, 1, 1, 2], HALF)}, (9, 19, 0), 90, Refused, "last dimension"),
    (forward, {"h_kv": 3}, (9, 19, 0), 90, Refused, "group-query"),
    (forward, lambda: {"bias": one(data_type.BOOLEAN)}, (9, 19, 0), 90, Refused, "boolean"),
    (forward, {"use_padding_mask": True}, (9, 19, 0), 90, ValueError, "padding mask requires"),
    (forward, lambda: lengths() | {"use_padding_mask": False}, (9, 19, 0), 90, ValueError, "only if padding"),
    (forward, lambda: {"q": ragged(make())}, (9, 19, 0), 90, Refused, "ragged"),
    (forward, lambda: {"dropout": dropout(1.0)}, (9, 19, 0), 90, ValueError, "cannot be 1"),
    (forward, BR | {"s": 256, "s_kv": 128}, (9, 19, 0), 90, Refused, "max_s_q > max_s_kv"),
    (forward, lambda: BR | {"bias": one(HALF)}, (9, 19, 0), 90, Refused, "is_bias=False"),
    (forward, BR | {"s": 100}, (9, 5, 1), 90, Refused, "multiple of 64"),
    (forward, lambda: {"sink_token": one()}, (9, 12, 0), 90, ValueError, "before 9.13"),
    (forward, {}, (9, 10, 1), 90, Refused, "known bugs"),
    (forward, {"diagonal_band_left_bound": 5, "s": 2048}, (9, 14, 0), 90, Refused, "9.14.0"),
    (forward, {"score_mod": lambda g, x: x, "use_causal_mask": True}, (9, 19, 0), 90, Refused, "score mod"),
    (forward, {"d": 60}, (9, 19, 0), 90, Refused, "multiple of 8"),
    (forward, {"use_alibi_mask": True}, (9, 19, 0), 90, Refused, "alibi"),
    (forward, {"diagonal_band_left_bound": 0}, (9, 9, 0), 90, Refused, "left bound"),
    (forward, {"diagonal_band_left_bound": 9, "s": 256, "s_kv": 128}, (9, 19, 0), 90, Refused, "max_s_q <= max_s_kv"),
    (forward, {"diagonal_band_left_bound": 9}, (9, 10, 0), 90, Refused, "known bugs"),
    (forward, {"diagonal_band_left_bound": 9}, (9, 8, 0), 90, Refused, "9.10.2"),
    (forward, {"diagonal_band_right_bound": -1}, (9, 19, 0), 90, ValueError, "right bound"),
    (forward, lambda: {"s": 1, "s_kv": 128, "sink_token": one()}, (9, 19, 0), 90, Refused, "decode"),
    (forward, {"s": 1, "s_kv": 128, "use_causal_mask": True}, (9, 9, 0), 90, Refused, "decode"),
    (forward, pages, (9, 19, 0), 90, Refused, "paged"),
    (forward, {"paged_attention_max_seq_len_kv": 128}, (9, 19, 0), 90, Refused, "without paged"),
    (forward, lambda: pages() | lengths(), (9, 4, 0), 90, Refused, "9.5.0"),
    (forward, {}, (9, 19, 0), 75, Refused, "SM80"),
    (forward, {"d": 192}, (9, 9, 0), 80, Refused, "ampere"),
    (forward, lambda: lengths() | {"q": ragged(make())}, (9, 18, 0), 80, Refused, "THD"),
    (forward, {"use_causal_mask": True, "implementation": UNIFIED}, (9, 19, 0), 90, Refused, "bounds"),
    (forward, {"implementation": UNIFIED}, (9, 13, 0), 90, Refused, "9.13.1"),
    (forward, lambda: {"block_mask": one(), "implementation": COMPOSITE}, (9, 19, 0), 90, Refused, "block mask"),
    (forward_fp8, {}, (9, 10, 0), 90, Refused, "9.10.0"),
    (forward_fp8, {}, (9, 19, 0), 80, Refused, "Hopper"),
    (forward_fp8, lambda: {"bias": one(HALF)}, (9, 19, 0), 90, Refused, "bias"),
    (forward_fp8, {"d": 192}, (9, 19, 0), 100, Refused, "d_v"),
    (forward_fp8, {"d": 256}, (9, 24, 0), 100, Refused, "both 256 from 9.26"),
    (forward_fp8, {"d": 264}, (9, 28, 0), 100, Refused, "multiple of 16"),
    (forward_fp8, {"d": 528}, (9, 28, 0), 100, Refused, "up to 512"),
    (forward_fp8, {"use_alibi_mask": True}, (9, 19, 0), 90, Refused, "alibi"),
    (forward_fp8, {"use_causal_mask_bottom_right": True}, (9, 19, 0), 90, Refused, "Blackwell"),
    (forward_fp8, {"o_type": HALF}, (9, 19, 0), 90, Refused, "HALF"),
    (backward, {"s": 1}, (9, 19, 0), 90, Refused, "s_q = s_kv = 1"),
    (backward, {"d": 160}, (9, 19, 0), 80, Refused, "128"),
    (backward, {"d": 264}, (9, 19, 0), 90, Refused, "256"),
    (backward, {"d": 192}, (9, 19, 0), 100, Refused, "192"),
    (backward, {"max_total_seq_len_q": 100}, (9, 19, 0), 90, Refused, "packed layout"),
    (backward, {"diagonal_band_left_bound": 0}, (9, 28, 0), 90, ValueError, "left bound"),
    (backward, {"use_deterministic_algorithm": True}, (9, 17, 0), 100, Refused, "deterministic"),
    (backward, lambda: {"dSink_token": one()}, (9, 19, 0), 90, ValueError, "sink_token"),
    (backward, lambda: lengths() | {"q": ragged(make()), "dBias": one()}, (9, 19, 0), 100, Refused, "dbias"),
    (backward, lambda: lengths() | {"q": ragged(make()), "sink_token": one()}, (9, 25, 0), 90, Refused, "sink token"),
    (backward, lambda: {"stats": per_row(4 * 128, 1, 4, 1)}, (9, 25, 0), 90, Refused, "packed as b, h, s"),
    (backward_fp8, {"d": 64}, (9, 19, 0), 90, Refused, "128"),
    (backward_fp8, {"d": 256}, (9, 28, 0), 100, Refused, "192"),
    (
        backward_fp8,
        lambda: {name: make(s=1, d=128, kind=FP8) for name in ("q", "k", "v", "o", "dO")},
        (9, 19, 0),
        100,
        Refused,
        "s_q = s_kv = 1",
    ),
    (backward_fp8, lambda: lengths() | {"q": ragged(make(d=128, kind=FP8))}, (9, 19, 0), 90, Refused, "THD"),
    (backward_fp8, {}, (9, 18, 0), 100, Refused, "9.19.0"),
    (
        backward_fp8,
        lambda: lengths() | {"q": ragged(make(d=128, kind=FP8)), "sink_token": one()},
        (9, 25, 0),
        100,
        Refused,
        "sink token",
    ),
]


@pytest.mark.parametrize(("method", "options", "version", "sm", "kind", "words"), RULES)
def test_refusals_of_cudnn_frontend_are_refused_alike(
    method: Callable[..., Any],
    options: Options | Callable[[], Options],
    version: tuple[int, int, int],
    sm: int,
    kind: type[Exception],
    words: str,
) -> None:
    recorder = RecordingGraph(version, sm)
    method(recorder, **(options() if callable(options) else options))
    with pytest.raises(kind, match=f"(?i){words}") as caught:
        recorder.validate()
    assert isinstance(caught.value, cudnnGraphNotSupportedError) == (kind is Refused)


def test_statistics_that_are_not_packed_are_written_since_912_and_read_since_926() -> None:
    for version, written, read in (((9, 11, 0), False, False), ((9, 25, 0), True, False), ((9, 26, 0), True, True)):
        for method, works in ((forward, written), (backward, read)):
            recorder = RecordingGraph(version, 90)
            options = {"generate_stats": True} if method is forward else {"stats": per_row(512, 1, 4, 1)}
            outputs = method(recorder, **options)
            if method is forward and (stats := outputs[1]) is not None:
                stats.set_dim([2, 4, 128, 1]).set_stride([512, 1, 4, 1]).set_data_type(FLOAT)
            if works:
                recorder.validate()
            else:
                with pytest.raises(Refused, match=r"packed as b, h, s .* \[512, 1, 4, 1\]"):
                    recorder.validate()


@pytest.mark.parametrize("method", [forward, backward, forward_fp8, backward_fp8])
def test_the_unchanged_problems_are_accepted(method: Callable[..., Any]) -> None:
    recorder = RecordingGraph((9, 19, 0), 90)
    method(recorder)
    assert recorder.graph().ops


@pytest.mark.parametrize(
    ("width", "version", "sm"),
    [(256, (9, 26, 0), 100), (272, (9, 19, 0), 100), (512, (9, 28, 0), 103), (256, (9, 19, 0), 90)],
)
def test_heads_of_8_bits_are_as_wide_as_cudnn_has_them(width: int, version: tuple[int, int, int], sm: int) -> None:
    recorder = RecordingGraph(version, sm)
    forward_fp8(recorder, d=width)
    recorder.validate()
    assert recorder.graph().ops


def test_a_window_of_more_queries_than_keys_is_accepted_in_8_bits() -> None:
    recorder = RecordingGraph((9, 19, 0), 90)
    forward_fp8(recorder, left_bound=9, **{name: make(s=64, d=128, kind=FP8) for name in ("k", "v")})
    recorder.validate()
    assert recorder.graph().ops


def test_ragged_heads_of_8_bits_are_left_to_cudnn_on_sm_12x() -> None:
    recorder = RecordingGraph((9, 28, 0), 120)
    forward_fp8(recorder, **lengths(), **{name: ragged(make(d=128, kind=FP8)) for name in "qkv"})
    recorder.validate()
    assert recorder.graph().ops


@pytest.mark.parametrize(
    ("version", "sm", "d"), [((9, 19, 0), 100, 128), ((9, 28, 0), 90, 128), ((9, 28, 0), 100, 136)]
)
def test_scales_of_blocks_are_checked_before_the_device(version: tuple[int, int, int], sm: int, d: int) -> None:
    recorder = RecordingGraph(version, sm)
    tensors = {name: make(d=d, kind=FP8) for name in "qkv"} | {f"descale_{name}": one() for name in "qkv"}
    recorder.sdpa_mxfp8(**tensors, generate_stats=False)
    with pytest.raises(ValueError, match="descale_q to have FP8_E8M0"):
        recorder.validate()


def test_lengths_and_offsets_keep_the_rank_they_were_given_with() -> None:
    recorder = RecordingGraph((9, 28, 0))
    sizes = {name: tensor([2], [1], INT32, name=name) for name in ("seq_len_q", "seq_len_kv")}
    offsets = tensor([3], [1], INT32, name="offsets")
    forward(recorder, use_padding_mask=True, **sizes, q=make().set_ragged_offset(offsets))
    graph = recorder.graph()
    assert {name: graph.tensor(name).dims for name in sizes} == dict.fromkeys(sizes, (2, 1, 1, 1))
    assert graph.tensor("offsets").dims == (3, 1, 1, 1)
    assert [item.dim for item in (*sizes.values(), offsets)] == [[2], [2], [3]]


@pytest.mark.parametrize("known", ["dim", "stride", "neither"])
@pytest.mark.parametrize("method", [forward, backward, forward_fp8, backward_fp8])
def test_missing_fields_of_an_output_are_inferred(method: Callable[..., Any], known: str) -> None:
    recorder = RecordingGraph((9, 19, 0), 100)
    result = method(recorder)[0]
    wanted = make(d=128 if method in (forward_fp8, backward_fp8) else 64)
    if known == "dim":
        result.set_dim(wanted.dim)
    if known == "stride":
        result.set_stride(wanted.stride)
    recorder.validate()
    assert result.dim == wanted.dim
    assert result.stride == (wanted.stride if known == "stride" else list(pack_strides(wanted.dim)))


def test_an_output_of_three_dims_or_strides_is_refused() -> None:
    for change in (lambda o: o.set_dim([2, 4, 64]), lambda o: o.set_stride([4, 2, 1])):
        recorder = RecordingGraph()
        change(forward(recorder)[0])
        with pytest.raises(ValueError, match="for o is invalid"):
            recorder.validate()


def test_features_of_newer_cudnns_are_not_supported() -> None:
    with (
        pytest.raises(Refused, match=r"the graph: one; install"),
        convert_errors(FrontendRuntimeError, "the graph"),
    ):
        raise UsageError("one", code="attribute-newer-than-library", fix="install")
    with pytest.raises(FrontendRuntimeError), convert_errors(FrontendRuntimeError, "the graph"):
        raise UsageError("one", code="frontend-value")


ARGUMENTS: list[tuple[Callable[..., Any], Options, type, str]] = [
    (forward, {"generate_stats": None}, RuntimeError, "exactly one"),
    (forward, {"is_inference": True}, RuntimeError, "exactly one"),
    (forward, {"generate_stats": 1}, RuntimeError, "must be a bool"),
    (forward, {"use_causal_mask": True, "use_causal_mask_bottom_right": True}, RuntimeError, "cannot both"),
    (forward, {"use_causal_mask": True, "diagonal_band_right_bound": 0}, RuntimeError, "at the same time"),
    (forward, {"sliding_window_length": 3, "diagonal_band_left_bound": 3}, RuntimeError, "at the same time"),
    (forward, {"diagonal_band_left_bound": 1.5}, RuntimeError, "must be an int"),
    (forward, {"attn_scale": "1"}, RuntimeError, "attn_scale"),
    (forward, {"dropout": (0.1,)}, RuntimeError, "dropout"),
    (backward, {"dropout": (one(), one())}, RuntimeError, "dropout"),
    (forward, {"no_such_option": 1}, TypeError, "no_such_option"),
    (forward, {"q": None}, TypeError, "Q of attention"),
    (forward, {"bias": 3}, TypeError, "Bias"),
    (forward, {"compute_data_type": 1}, TypeError, "data_type"),
    (forward_fp8, {"right_bound": 0, "use_causal_mask": True}, RuntimeError, "at the same time"),
]


@pytest.mark.parametrize(("method", "options", "kind", "words"), ARGUMENTS)
def test_impossible_arguments_are_refused_at_the_call(
    method: Callable[..., Any], options: Options, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        method(RecordingGraph(), **options)


def test_a_bound_overrides_the_flags_in_the_backward_pass() -> None:
    recorder = RecordingGraph()
    backward(
        recorder,
        use_causal_mask=True,
        use_causal_mask_bottom_right=True,
        diagonal_band_right_bound=3,
        sliding_window_length=5,
        diagonal_band_left_bound=7,
    )
    request = recorder._nodes[0].request  # type: ignore[attr-defined]
    assert (request.alignment, request.right_bound, request.left_bound) == (corner.BOTTOM_RIGHT, 3, 7)


def test_outputs_are_named_and_filled_in() -> None:
    recorder = RecordingGraph()
    o, stats = forward(recorder, generate_stats=True, name="sdpa", d_v=32)
    assert o is not None
    assert stats is not None
    assert (o.name, stats.name, o.virtual, o.dim) == ("sdpa::O", "sdpa::Stats", True, [])
    recorder.validate()
    assert (o.dim, o.stride) == ([2, 4, 128, 32], [16384, 4096, 32, 1])
    assert (stats.dim, stats.stride, stats.data_type) == ([2, 4, 128, 1], [512, 128, 1, 1], FLOAT)
    assert forward(RecordingGraph())[1] is None
    assert len(forward_fp8(RecordingGraph())) == 4
    assert [item.name for item in backward_fp8(RecordingGraph(), name="b") if item is not None][3:] == [
        "b::Amax_dQ",
        "b::Amax_dK",
        "b::Amax_dV",
        "b::Amax_dP",
    ]


@pytest.mark.parametrize(
    ("version", "options", "unified"),
    [
        ((9, 19, 0), {}, True),
        ((9, 19, 0), {"use_causal_mask": True}, False),
        ((9, 28, 0), {"use_causal_mask": True}, True),
        ((9, 28, 0), {"dropout": dropout(), "generate_stats": True}, False),
        ((9, 28, 0), {"dropout": dropout()}, True),
        ((9, 13, 0), {}, False),
        ((9, 19, 0), {"attn_scale": None}, True),
    ],
)
def test_auto_chooses_as_cudnn_frontend_does(version: tuple[int, int, int], options: Options, unified: bool) -> None:
    recorder = RecordingGraph(version)
    o, _ = forward(recorder, **options)
    assert o is not None
    o.set_output(True)  # a virtual one would be of the graph's type of virtual tensors, float32
    assert any("SDPA" in op.kind.name for op in recorder.graph().ops) is unified


def test_dynamic_shapes_and_other_compute_types_are_never_unified() -> None:
    for situation in (CheckContext(is_dynamic_shape_enabled=True), CheckContext(compute=data_type.DOUBLE)):
        recorder = RecordingGraph(situation=situation)
        forward(recorder)
        assert all("SDPA" not in op.kind.name for op in recorder.graph().ops)


@pytest.mark.parametrize("implementation", [attention_implementation.AUTO, UNIFIED, COMPOSITE])
@pytest.mark.parametrize("kind", [data_type.FLOAT, data_type.DOUBLE, data_type.INT8])
@pytest.mark.parametrize("version", [(9, 19, 0), (9, 28, 0)])
def test_floats_of_32_bits_are_never_unified_and_other_types_are_refused(
    version: tuple[int, int, int], kind: data_type, implementation: attention_implementation
) -> None:
    """As one operation, it would run a kernel for 16 bits on them."""
    recorder = RecordingGraph(version)
    tensors = {name: make(kind=kind) for name in "qkv"}
    if kind is FLOAT and implementation is not UNIFIED:
        forward(recorder, implementation=implementation, **tensors)
        assert all("SDPA" not in op.kind.name for op in recorder.graph().ops)
        return
    forward(recorder, implementation=implementation, **tensors)
    with pytest.raises(Refused, match="elements of other types than fp16, bf16"):
        recorder.graph()


def test_statistics_the_expanded_softmax_cannot_write_are_refused() -> None:
    recorder = RecordingGraph()
    forward(recorder, generate_stats=True, score_max=tensor([2, 4, 128, 1], [512, 128, 1, 1], FLOAT))
    recorder.validate()
    with pytest.raises(Refused, match="invalid"):
        recorder.graph()


def test_a_given_dropout_mask_has_its_inverse_scale_in_the_backward_pass() -> None:
    recorder = RecordingGraph()
    mask = tensor([2, 4, 128, 128], [65536, 16384, 128, 1], HALF)
    backward(recorder, dropout=(mask, one(name="scale"), one(name="inverse")))
    graph = recorder.graph()
    readers = {
        name: [op for op in graph.ops if name in {t.name for t in op.inputs().values()}] for name in ("inverse",)
    }
    assert [op.outputs()["y"].name for op in readers["inverse"]] == ["softmax_sum"]


def test_alibi_slopes_are_constants_of_the_graph() -> None:
    recorder = RecordingGraph()
    forward(recorder, use_alibi_mask=True, use_causal_mask=True)
    graph = recorder.graph()
    assert recorder.emitter is not None
    assert recorder.emitter.constants == {graph.tensor("alibi_slopes").uid: alibi_slopes(4)}
    assert alibi_slopes(4) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    assert alibi_slopes(6)[4:] == [2.0**-1, 2.0**-3]


def test_unsupported_bounds_of_total_lengths_are_dropped() -> None:
    def scratch(d: int, sm: int) -> bool:
        recorder = RecordingGraph((9, 19, 0), sm)
        tensors = {name: ragged(make(d=d)) for name in ("q", "k", "v", "o", "dO")}
        gradients = backward(recorder, **tensors, **lengths(), max_total_seq_len_q=128, d=d)
        assert gradients[0] is not None
        ragged(gradients[0])
        return recorder.graph().tensor("dq_accum").ragged_offset is not None

    assert scratch(64, 90)
    assert not scratch(72, 90)
    assert not scratch(64, 80)


def test_blackwell_has_a_separate_deterministic_engine() -> None:
    def choice(sm: int, method: Callable[..., Any], **options: Any) -> Any:
        recorder = RecordingGraph((9, 28, 0), sm)
        method(recorder, **options)
        return recorder._nodes[0].engine_choice(recorder.situation or CheckContext((9, 28, 0), sm))  # type: ignore[attr-defined]

    assert choice(90, backward, use_deterministic_algorithm=True) is None
    assert choice(100, backward) is None
    chosen = choice(100, backward, use_deterministic_algorithm=True)
    assert (chosen.engine, chosen.knobs[KnobType.STAGES]) == (5, 2)
    assert choice(100, backward_fp8) is not None
    assert choice(100, forward) is None


def test_pages_of_other_sizes_and_one_paged_tensor_are_accepted() -> None:
    recorder = RecordingGraph()
    options = pages() | lengths()
    del options["paged_attention_v_table"]
    options |= {"v": make(), "implementation": COMPOSITE}
    forward(recorder, **options)
    loads = [op for op in recorder.graph().ops if "PAGED" in op.kind.name]
    assert [op.inputs()["container"].dims for op in loads] == [(4, 4, 64, 64)]
    assert loads[0].outputs()["y"].dims == (2, 4, 64, 128)


def test_fp8_has_its_own_methods() -> None:
    recorder = RecordingGraph()
    forward(recorder, **{name: make(kind=FP8) for name in "qkv"})
    with pytest.raises(Refused, match="FP8_E4M3"):
        recorder.graph()


def test_the_result_of_a_modifier_is_checked() -> None:
    recorder = RecordingGraph()
    forward(recorder, score_mod=lambda g, x: None)
    with pytest.raises(TypeError, match="score_mod"):
        recorder.graph()
