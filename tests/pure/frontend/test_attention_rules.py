"""Attention methods of cudnn-frontend: refused arguments, their exceptions, and inferred values. Loads no library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.frontend import attention_implementation, cudnnGraphNotSupportedError, data_type, tensor
from cudnn_backend_py.frontend import diagonal_alignment as corner
from cudnn_backend_py.frontend.errors import FrontendRuntimeError, convert_errors
from cudnn_backend_py.frontend.ops.attention_node import make_alibi_slopes
from cudnn_backend_py.frontend.ops.node import pack_strides
from cudnn_backend_py.generated.enums import KnobType
from tests.support.frontend_attention import FLOAT, HALF, INT32, NodeCheckContext, RecordingGraph

INT64, FP8 = data_type.INT64, data_type.FP8_E4M3
OptionsByName = dict[str, Any]


def make_bshd_tensor(b: int = 2, h: int = 4, s: int = 128, d: int = 64, kind: data_type = HALF) -> tensor:
    return tensor([b, h, s, d], [h * s * d, d, h * d, 1], kind)


def make_scalar_tensor(kind: data_type = FLOAT, **options: Any) -> tensor:
    return tensor([1] * 4, [1] * 4, kind, **options)


def make_padding_mask_options() -> OptionsByName:
    sizes = {name: tensor([2, 1, 1, 1], [1] * 4, INT32) for name in ("seq_len_q", "seq_len_kv")}
    return {"use_padding_mask": True, **sizes}


def make_stats_tensor(*strides: int) -> tensor:
    return tensor([2, 4, 128, 1], strides, FLOAT)


def add_int32_ragged_offset_to_tensor(item: tensor) -> tensor:
    return item.set_ragged_offset(tensor([3, 1, 1, 1], [1] * 4, INT32))


def make_paged_kv_options(size: int = 64, **options: Any) -> OptionsByName:
    tables = {f"paged_attention_{name}_table": tensor([2, 1, 2, 1], [2, 2, 1, 1], INT32) for name in ("k", "v")}
    return {"k": make_bshd_tensor(4, s=size), "v": make_bshd_tensor(4, s=size), **tables, **options}


def make_dropout_arguments(p: float = 0.1) -> tuple[Any, ...]:
    return (p, make_scalar_tensor(INT64), make_scalar_tensor(INT64))


def add_sdpa(g: RecordingGraph, **options: Any) -> list[tensor | None]:
    s = options.pop("s", 128)
    s_kv, d, d_v, heads = options.pop("s_kv", s), options.pop("d", 64), options.pop("d_v", None), options.pop("h_kv", 4)
    tensors = {
        "q": make_bshd_tensor(s=s, d=d),
        "k": make_bshd_tensor(h=heads, s=s_kv, d=d),
        "v": make_bshd_tensor(h=heads, s=s_kv, d=d_v or d),
    }
    defaults: OptionsByName = {"generate_stats": False, "attn_scale": 0.125}
    return g.sdpa(**(tensors | defaults | options))


def add_sdpa_backward(g: RecordingGraph, **options: Any) -> list[tensor | None]:
    s = options.pop("s", 128)
    s_kv, d = options.pop("s_kv", s), options.pop("d", 64)
    tensors = {"q": make_bshd_tensor(s=s, d=d), "k": make_bshd_tensor(s=s_kv, d=d), "v": make_bshd_tensor(s=s_kv, d=d)}
    tensors |= {"o": make_bshd_tensor(s=s, d=d), "dO": make_bshd_tensor(s=s, d=d)}
    stats = tensor([2, 4, s, 1], [4 * s, s, 1, 1], FLOAT)
    defaults: OptionsByName = {"stats": stats, "attn_scale": 0.125}
    return g.sdpa_backward(**(tensors | defaults | options))


def add_sdpa_fp8(g: RecordingGraph, **options: Any) -> list[tensor | None]:
    d = options.pop("d", 128)
    scales = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    defaults: OptionsByName = {name: make_bshd_tensor(d=d, kind=FP8) for name in "qkv"} | {
        name: make_scalar_tensor() for name in scales
    }
    defaults |= {"generate_stats": False, "attn_scale": 0.125}
    outputs = g.sdpa_fp8(**(defaults | {name: value for name, value in options.items() if name != "o_type"}))
    assert outputs[0] is not None
    outputs[0].set_data_type(options.get("o_type", FP8))
    return outputs


def add_sdpa_fp8_backward(g: RecordingGraph, **options: Any) -> list[tensor | None]:
    d = options.pop("d", 128)
    names = [f"descale_{name}" for name in ("q", "k", "v", "o", "dO", "s", "dP")]
    names += [f"scale_{name}" for name in ("s", "dQ", "dK", "dV", "dP")]
    defaults: OptionsByName = {name: make_bshd_tensor(d=d, kind=FP8) for name in ("q", "k", "v", "o", "dO")} | {
        n: make_scalar_tensor() for n in names
    }
    defaults |= {"stats": tensor([2, 4, 128, 1], [512, 128, 1, 1], FLOAT), "attn_scale": 0.125}
    outputs = g.sdpa_fp8_backward(**(defaults | options))
    for item in outputs[:3]:
        assert item is not None
        item.set_data_type(FP8)
    return outputs


NotSupportedError = cudnnGraphNotSupportedError
UNIFIED, COMPOSITE = attention_implementation.UNIFIED, attention_implementation.COMPOSITE
BOTTOM_RIGHT_MASK = {"diagonal_alignment": corner.BOTTOM_RIGHT, "diagonal_band_right_bound": 0}

# (method, options, version, sm, exception, part of its message); a function may create the options
REFUSED_PROBLEMS: list[
    tuple[Callable[..., Any], OptionsByName | Callable[[], OptionsByName], tuple[int, int, int], int, type, str]
] = [
    (add_sdpa, lambda: {"q": tensor([2, 4, 128], [512, 128, 1], HALF)}, (9, 19, 0), 90, ValueError, "dim for q"),
    (
        add_sdpa,
        lambda: {"k": tensor([2, 4, 128, 64], [1, 1, 1, 2], HALF)},
        (9, 19, 0),
        90,
        NotSupportedError,
        "last dimension",
    ),
    (add_sdpa, {"h_kv": 3}, (9, 19, 0), 90, NotSupportedError, "group-query"),
    (add_sdpa, lambda: {"bias": make_scalar_tensor(data_type.BOOLEAN)}, (9, 19, 0), 90, NotSupportedError, "boolean"),
    (add_sdpa, {"use_padding_mask": True}, (9, 19, 0), 90, ValueError, "padding mask requires"),
    (
        add_sdpa,
        lambda: make_padding_mask_options() | {"use_padding_mask": False},
        (9, 19, 0),
        90,
        ValueError,
        "only if padding",
    ),
    (
        add_sdpa,
        lambda: {"q": add_int32_ragged_offset_to_tensor(make_bshd_tensor())},
        (9, 19, 0),
        90,
        NotSupportedError,
        "ragged",
    ),
    (add_sdpa, lambda: {"dropout": make_dropout_arguments(1.0)}, (9, 19, 0), 90, ValueError, "cannot be 1"),
    (add_sdpa, BOTTOM_RIGHT_MASK | {"s": 256, "s_kv": 128}, (9, 19, 0), 90, NotSupportedError, "max_s_q > max_s_kv"),
    (
        add_sdpa,
        lambda: BOTTOM_RIGHT_MASK | {"bias": make_scalar_tensor(HALF)},
        (9, 19, 0),
        90,
        NotSupportedError,
        "is_bias=False",
    ),
    (add_sdpa, BOTTOM_RIGHT_MASK | {"s": 100}, (9, 5, 1), 90, NotSupportedError, "multiple of 64"),
    (add_sdpa, lambda: {"sink_token": make_scalar_tensor()}, (9, 12, 0), 90, ValueError, "before 9.13"),
    (add_sdpa, {}, (9, 10, 1), 90, NotSupportedError, "known bugs"),
    (add_sdpa, {"diagonal_band_left_bound": 5, "s": 2048}, (9, 14, 0), 90, NotSupportedError, "9.14.0"),
    (add_sdpa, {"score_mod": lambda g, x: x, "use_causal_mask": True}, (9, 19, 0), 90, NotSupportedError, "score mod"),
    (add_sdpa, {"d": 60}, (9, 19, 0), 90, NotSupportedError, "multiple of 8"),
    (add_sdpa, {"use_alibi_mask": True}, (9, 19, 0), 90, NotSupportedError, "alibi"),
    (add_sdpa, {"diagonal_band_left_bound": 0}, (9, 9, 0), 90, NotSupportedError, "left bound"),
    (
        add_sdpa,
        {"diagonal_band_left_bound": 9, "s": 256, "s_kv": 128},
        (9, 19, 0),
        90,
        NotSupportedError,
        "max_s_q <= max_s_kv",
    ),
    (add_sdpa, {"diagonal_band_left_bound": 9}, (9, 10, 0), 90, NotSupportedError, "known bugs"),
    (add_sdpa, {"diagonal_band_left_bound": 9}, (9, 8, 0), 90, NotSupportedError, "9.10.2"),
    (add_sdpa, {"diagonal_band_right_bound": -1}, (9, 19, 0), 90, ValueError, "right bound"),
    (
        add_sdpa,
        lambda: {"s": 1, "s_kv": 128, "sink_token": make_scalar_tensor()},
        (9, 19, 0),
        90,
        NotSupportedError,
        "decode",
    ),
    (add_sdpa, {"s": 1, "s_kv": 128, "use_causal_mask": True}, (9, 9, 0), 90, NotSupportedError, "decode"),
    (add_sdpa, make_paged_kv_options, (9, 19, 0), 90, NotSupportedError, "paged"),
    (add_sdpa, {"paged_attention_max_seq_len_kv": 128}, (9, 19, 0), 90, NotSupportedError, "without paged"),
    (
        add_sdpa,
        lambda: make_paged_kv_options() | make_padding_mask_options(),
        (9, 4, 0),
        90,
        NotSupportedError,
        "9.5.0",
    ),
    (add_sdpa, {}, (9, 19, 0), 75, NotSupportedError, "SM80"),
    (add_sdpa, {"d": 192}, (9, 9, 0), 80, NotSupportedError, "ampere"),
    (
        add_sdpa,
        lambda: make_padding_mask_options() | {"q": add_int32_ragged_offset_to_tensor(make_bshd_tensor())},
        (9, 18, 0),
        80,
        NotSupportedError,
        "THD",
    ),
    (add_sdpa, {"use_causal_mask": True, "implementation": UNIFIED}, (9, 19, 0), 90, NotSupportedError, "bounds"),
    (add_sdpa, {"implementation": UNIFIED}, (9, 13, 0), 90, NotSupportedError, "9.13.1"),
    (
        add_sdpa,
        lambda: {"block_mask": make_scalar_tensor(), "implementation": COMPOSITE},
        (9, 19, 0),
        90,
        NotSupportedError,
        "block mask",
    ),
    (add_sdpa_fp8, {}, (9, 10, 0), 90, NotSupportedError, "9.10.0"),
    (add_sdpa_fp8, {}, (9, 19, 0), 80, NotSupportedError, "Hopper"),
    (add_sdpa_fp8, lambda: {"bias": make_scalar_tensor(HALF)}, (9, 19, 0), 90, NotSupportedError, "bias"),
    (add_sdpa_fp8, {"d": 192}, (9, 19, 0), 100, NotSupportedError, "d_v"),
    (add_sdpa_fp8, {"d": 256}, (9, 24, 0), 100, NotSupportedError, "both 256 from 9.26"),
    (add_sdpa_fp8, {"d": 264}, (9, 28, 0), 100, NotSupportedError, "multiple of 16"),
    (add_sdpa_fp8, {"d": 528}, (9, 28, 0), 100, NotSupportedError, "up to 512"),
    (add_sdpa_fp8, {"use_alibi_mask": True}, (9, 19, 0), 90, NotSupportedError, "alibi"),
    (add_sdpa_fp8, {"use_causal_mask_bottom_right": True}, (9, 19, 0), 90, NotSupportedError, "Blackwell"),
    (add_sdpa_fp8, {"o_type": HALF}, (9, 19, 0), 90, NotSupportedError, "HALF"),
    (add_sdpa_backward, {"s": 1}, (9, 19, 0), 90, NotSupportedError, "s_q = s_kv = 1"),
    (add_sdpa_backward, {"d": 160}, (9, 19, 0), 80, NotSupportedError, "128"),
    (add_sdpa_backward, {"d": 264}, (9, 19, 0), 90, NotSupportedError, "256"),
    (add_sdpa_backward, {"d": 192}, (9, 19, 0), 100, NotSupportedError, "192"),
    (add_sdpa_backward, {"max_total_seq_len_q": 100}, (9, 19, 0), 90, NotSupportedError, "packed layout"),
    (add_sdpa_backward, {"diagonal_band_left_bound": 0}, (9, 28, 0), 90, ValueError, "left bound"),
    (add_sdpa_backward, {"use_deterministic_algorithm": True}, (9, 17, 0), 100, NotSupportedError, "deterministic"),
    (add_sdpa_backward, lambda: {"dSink_token": make_scalar_tensor()}, (9, 19, 0), 90, ValueError, "sink_token"),
    (
        add_sdpa_backward,
        lambda: make_padding_mask_options()
        | {"q": add_int32_ragged_offset_to_tensor(make_bshd_tensor()), "dBias": make_scalar_tensor()},
        (9, 19, 0),
        100,
        NotSupportedError,
        "dbias",
    ),
    (
        add_sdpa_backward,
        lambda: make_padding_mask_options()
        | {"q": add_int32_ragged_offset_to_tensor(make_bshd_tensor()), "sink_token": make_scalar_tensor()},
        (9, 25, 0),
        90,
        NotSupportedError,
        "sink token",
    ),
    (
        add_sdpa_backward,
        lambda: {"stats": make_stats_tensor(4 * 128, 1, 4, 1)},
        (9, 25, 0),
        90,
        NotSupportedError,
        "packed as b, h, s",
    ),
    (add_sdpa_fp8_backward, {"d": 64}, (9, 19, 0), 90, NotSupportedError, "128"),
    (add_sdpa_fp8_backward, {"d": 256}, (9, 28, 0), 100, NotSupportedError, "192"),
    (
        add_sdpa_fp8_backward,
        lambda: {name: make_bshd_tensor(s=1, d=128, kind=FP8) for name in ("q", "k", "v", "o", "dO")},
        (9, 19, 0),
        100,
        NotSupportedError,
        "s_q = s_kv = 1",
    ),
    (
        add_sdpa_fp8_backward,
        lambda: make_padding_mask_options()
        | {"q": add_int32_ragged_offset_to_tensor(make_bshd_tensor(d=128, kind=FP8))},
        (9, 19, 0),
        90,
        NotSupportedError,
        "THD",
    ),
    (add_sdpa_fp8_backward, {}, (9, 18, 0), 100, NotSupportedError, "9.19.0"),
    (
        add_sdpa_fp8_backward,
        lambda: make_padding_mask_options()
        | {
            "q": add_int32_ragged_offset_to_tensor(make_bshd_tensor(d=128, kind=FP8)),
            "sink_token": make_scalar_tensor(),
        },
        (9, 25, 0),
        100,
        NotSupportedError,
        "sink token",
    ),
]


@pytest.mark.parametrize(("method", "options", "version", "sm", "kind", "words"), REFUSED_PROBLEMS)
def test_problems_that_cudnn_frontend_refuses_raise_the_same_error(
    method: Callable[..., Any],
    options: OptionsByName | Callable[[], OptionsByName],
    version: tuple[int, int, int],
    sm: int,
    kind: type[Exception],
    words: str,
) -> None:
    recorder = RecordingGraph(version, sm)
    method(recorder, **(options() if callable(options) else options))
    with pytest.raises(kind, match=f"(?i){words}") as caught:
        recorder.validate()
    assert isinstance(caught.value, cudnnGraphNotSupportedError) == (kind is NotSupportedError)


@pytest.mark.parametrize(
    ("method", "width", "sm", "padded"),
    [
        (add_sdpa, 60, 90, "64"),
        (add_sdpa_backward, 60, 90, "64"),
        (add_sdpa_backward, 60, 80, "64"),
        (add_sdpa_fp8, 72, 90, "80"),
        (add_sdpa, 260, 90, None),  # beyond what padding makes valid
        (add_sdpa_backward, 160, 80, None),  # aligned, but too wide
    ],
)
def test_a_head_dim_that_padding_makes_valid_gets_the_padded_one_as_the_fix(
    method: Callable[..., Any], width: int, sm: int, padded: str | None
) -> None:
    recorder = RecordingGraph((9, 28, 0), sm)
    method(recorder, d=width)
    with pytest.raises(NotSupportedError) as caught:
        recorder.validate()
    fix = getattr(caught.value, "sections", {}).get("fix")
    assert fix is None if padded is None else fix.startswith(f"pad the head dim with zeros to {padded}, ")


def test_unpacked_statistics_need_cudnn_9_12_forward_and_9_26_backward() -> None:
    for version, written, read in (((9, 11, 0), False, False), ((9, 25, 0), True, False), ((9, 26, 0), True, True)):
        for method, works in ((add_sdpa, written), (add_sdpa_backward, read)):
            recorder = RecordingGraph(version, 90)
            options = {"generate_stats": True} if method is add_sdpa else {"stats": make_stats_tensor(512, 1, 4, 1)}
            outputs = method(recorder, **options)
            if method is add_sdpa and (stats := outputs[1]) is not None:
                stats.set_dim([2, 4, 128, 1]).set_stride([512, 1, 4, 1]).set_data_type(FLOAT)
            if works:
                recorder.validate()
            else:
                with pytest.raises(NotSupportedError, match=r"packed as b, h, s .* \[512, 1, 4, 1\]"):
                    recorder.validate()


@pytest.mark.parametrize("method", [add_sdpa, add_sdpa_backward, add_sdpa_fp8, add_sdpa_fp8_backward])
def test_sdpa_calls_with_default_arguments_are_accepted(method: Callable[..., Any]) -> None:
    recorder = RecordingGraph((9, 19, 0), 90)
    method(recorder)
    assert recorder.graph().ops


@pytest.mark.parametrize(
    ("width", "version", "sm"),
    [(256, (9, 26, 0), 100), (272, (9, 19, 0), 100), (512, (9, 28, 0), 103), (256, (9, 19, 0), 90)],
)
def test_large_head_dims_are_accepted_for_fp8(width: int, version: tuple[int, int, int], sm: int) -> None:
    recorder = RecordingGraph(version, sm)
    add_sdpa_fp8(recorder, d=width)
    recorder.validate()
    assert recorder.graph().ops


def test_a_sliding_window_with_more_queries_than_keys_is_accepted_for_fp8() -> None:
    recorder = RecordingGraph((9, 19, 0), 90)
    add_sdpa_fp8(recorder, left_bound=9, **{name: make_bshd_tensor(s=64, d=128, kind=FP8) for name in ("k", "v")})
    recorder.validate()
    assert recorder.graph().ops


def test_ragged_fp8_attention_is_accepted_on_sm_120() -> None:
    recorder = RecordingGraph((9, 28, 0), 120)
    add_sdpa_fp8(
        recorder,
        **make_padding_mask_options(),
        **{name: add_int32_ragged_offset_to_tensor(make_bshd_tensor(d=128, kind=FP8)) for name in "qkv"},
    )
    recorder.validate()
    assert recorder.graph().ops


@pytest.mark.parametrize(
    ("version", "sm", "d"), [((9, 19, 0), 100, 128), ((9, 28, 0), 90, 128), ((9, 28, 0), 100, 136)]
)
def test_mxfp8_scale_types_are_checked_before_the_gpu(version: tuple[int, int, int], sm: int, d: int) -> None:
    recorder = RecordingGraph(version, sm)
    tensors = {name: make_bshd_tensor(d=d, kind=FP8) for name in "qkv"} | {
        f"descale_{name}": make_scalar_tensor() for name in "qkv"
    }
    recorder.sdpa_mxfp8(**tensors, generate_stats=False)
    with pytest.raises(ValueError, match="descale_q to have FP8_E8M0"):
        recorder.validate()


def test_lengths_and_offsets_of_rank_1_are_not_modified() -> None:
    recorder = RecordingGraph((9, 28, 0))
    sizes = {name: tensor([2], [1], INT32, name=name) for name in ("seq_len_q", "seq_len_kv")}
    offsets = tensor([3], [1], INT32, name="offsets")
    add_sdpa(recorder, use_padding_mask=True, **sizes, q=make_bshd_tensor().set_ragged_offset(offsets))
    graph = recorder.graph()
    assert {name: graph.tensor(name).dims for name in sizes} == dict.fromkeys(sizes, (2, 1, 1, 1))
    assert graph.tensor("offsets").dims == (3, 1, 1, 1)
    assert [item.dim for item in (*sizes.values(), offsets)] == [[2], [2], [3]]


@pytest.mark.parametrize("known", ["dim", "stride", "neither"])
@pytest.mark.parametrize("method", [add_sdpa, add_sdpa_backward, add_sdpa_fp8, add_sdpa_fp8_backward])
def test_missing_fields_of_an_output_are_inferred(method: Callable[..., Any], known: str) -> None:
    recorder = RecordingGraph((9, 19, 0), 100)
    result = method(recorder)[0]
    wanted = make_bshd_tensor(d=128 if method in (add_sdpa_fp8, add_sdpa_fp8_backward) else 64)
    if known == "dim":
        result.set_dim(wanted.dim)
    if known == "stride":
        result.set_stride(wanted.stride)
    recorder.validate()
    assert result.dim == wanted.dim
    assert result.stride == (wanted.stride if known == "stride" else list(pack_strides(wanted.dim)))


def test_an_output_with_three_dims_or_strides_is_refused() -> None:
    for change in (lambda o: o.set_dim([2, 4, 64]), lambda o: o.set_stride([4, 2, 1])):
        recorder = RecordingGraph()
        change(add_sdpa(recorder)[0])
        with pytest.raises(ValueError, match="for o is invalid"):
            recorder.validate()


def test_an_error_for_a_newer_attribute_becomes_graph_not_supported() -> None:
    with (
        pytest.raises(NotSupportedError, match=r"the graph: one; install"),
        convert_errors(FrontendRuntimeError, "the graph"),
    ):
        raise UsageError("one", code="attribute-newer-than-library", fix="install")
    with pytest.raises(FrontendRuntimeError), convert_errors(FrontendRuntimeError, "the graph"):
        raise UsageError("one", code="frontend-value")


INVALID_ARGUMENTS: list[tuple[Callable[..., Any], OptionsByName, type, str]] = [
    (add_sdpa, {"generate_stats": None}, RuntimeError, "exactly one"),
    (add_sdpa, {"is_inference": True}, RuntimeError, "exactly one"),
    (add_sdpa, {"generate_stats": 1}, RuntimeError, "must be a bool"),
    (add_sdpa, {"use_causal_mask": True, "use_causal_mask_bottom_right": True}, RuntimeError, "cannot both"),
    (add_sdpa, {"use_causal_mask": True, "diagonal_band_right_bound": 0}, RuntimeError, "at the same time"),
    (add_sdpa, {"sliding_window_length": 3, "diagonal_band_left_bound": 3}, RuntimeError, "at the same time"),
    (add_sdpa, {"diagonal_band_left_bound": 1.5}, RuntimeError, "must be an int"),
    (add_sdpa, {"attn_scale": "1"}, RuntimeError, "attn_scale"),
    (add_sdpa, {"dropout": (0.1,)}, RuntimeError, "dropout"),
    (add_sdpa_backward, {"dropout": (make_scalar_tensor(), make_scalar_tensor())}, RuntimeError, "dropout"),
    (add_sdpa, {"no_such_option": 1}, TypeError, "no_such_option"),
    (add_sdpa, {"q": None}, TypeError, "Q of attention"),
    (add_sdpa, {"bias": 3}, TypeError, "Bias"),
    (add_sdpa, {"compute_data_type": 1}, TypeError, "data_type"),
    (add_sdpa_fp8, {"right_bound": 0, "use_causal_mask": True}, RuntimeError, "at the same time"),
]


@pytest.mark.parametrize(("method", "options", "kind", "words"), INVALID_ARGUMENTS)
def test_invalid_arguments_are_refused_at_the_call(
    method: Callable[..., Any], options: OptionsByName, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        method(RecordingGraph(), **options)


def test_explicit_bounds_override_mask_flags_in_the_backward_pass() -> None:
    recorder = RecordingGraph()
    add_sdpa_backward(
        recorder,
        use_causal_mask=True,
        use_causal_mask_bottom_right=True,
        diagonal_band_right_bound=3,
        sliding_window_length=5,
        diagonal_band_left_bound=7,
    )
    request = recorder._nodes[0].request  # type: ignore[attr-defined]
    assert (request.alignment, request.right_bound, request.left_bound) == (corner.BOTTOM_RIGHT, 3, 7)


def test_attention_outputs_have_names_and_inferred_shapes() -> None:
    recorder = RecordingGraph()
    o, stats = add_sdpa(recorder, generate_stats=True, name="sdpa", d_v=32)
    assert o is not None
    assert stats is not None
    assert (o.name, stats.name, o.virtual, o.dim) == ("sdpa::O", "sdpa::Stats", True, [])
    recorder.validate()
    assert (o.dim, o.stride) == ([2, 4, 128, 32], [16384, 4096, 32, 1])
    assert (stats.dim, stats.stride, stats.data_type) == ([2, 4, 128, 1], [512, 128, 1, 1], FLOAT)
    assert add_sdpa(RecordingGraph())[1] is None
    assert len(add_sdpa_fp8(RecordingGraph())) == 4
    assert [item.name for item in add_sdpa_fp8_backward(RecordingGraph(), name="b") if item is not None][3:] == [
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
        ((9, 28, 0), {"dropout": make_dropout_arguments(), "generate_stats": True}, False),
        ((9, 28, 0), {"dropout": make_dropout_arguments()}, True),
        ((9, 13, 0), {}, False),
        ((9, 19, 0), {"attn_scale": None}, True),
    ],
)
def test_auto_chooses_the_same_implementation_as_cudnn_frontend(
    version: tuple[int, int, int], options: OptionsByName, unified: bool
) -> None:
    recorder = RecordingGraph(version)
    o, _ = add_sdpa(recorder, **options)
    assert o is not None
    o.set_output(True)  # a virtual one would be of the graph's type of virtual tensors, float32
    assert any("SDPA" in op.kind.name for op in recorder.graph().ops) is unified


def test_dynamic_shapes_and_double_compute_type_use_the_composite_graph() -> None:
    for situation in (NodeCheckContext(is_dynamic_shape_enabled=True), NodeCheckContext(compute_type=data_type.DOUBLE)):
        recorder = RecordingGraph(situation=situation)
        add_sdpa(recorder)
        assert all("SDPA" not in op.kind.name for op in recorder.graph().ops)


@pytest.mark.parametrize("implementation", [attention_implementation.AUTO, UNIFIED, COMPOSITE])
@pytest.mark.parametrize("kind", [data_type.FLOAT, data_type.DOUBLE, data_type.INT8])
@pytest.mark.parametrize("version", [(9, 19, 0), (9, 28, 0)])
def test_float32_uses_the_composite_graph_and_double_and_int8_are_refused(
    version: tuple[int, int, int], kind: data_type, implementation: attention_implementation
) -> None:
    """The unified operation would run a 16-bit kernel on float32 data."""
    recorder = RecordingGraph(version)
    tensors = {name: make_bshd_tensor(kind=kind) for name in "qkv"}
    if kind is FLOAT and implementation is not UNIFIED:
        add_sdpa(recorder, implementation=implementation, **tensors)
        assert all("SDPA" not in op.kind.name for op in recorder.graph().ops)
        return
    add_sdpa(recorder, implementation=implementation, **tensors)
    with pytest.raises(NotSupportedError, match="elements of other types than fp16, bf16"):
        recorder.graph()


def test_stats_together_with_score_max_are_refused() -> None:
    recorder = RecordingGraph()
    add_sdpa(recorder, generate_stats=True, score_max=tensor([2, 4, 128, 1], [512, 128, 1, 1], FLOAT))
    recorder.validate()
    with pytest.raises(NotSupportedError, match="invalid"):
        recorder.graph()


def test_the_inverse_dropout_scale_is_used_in_the_backward_pass() -> None:
    recorder = RecordingGraph()
    mask = tensor([2, 4, 128, 128], [65536, 16384, 128, 1], HALF)
    add_sdpa_backward(recorder, dropout=(mask, make_scalar_tensor(name="scale"), make_scalar_tensor(name="inverse")))
    graph = recorder.graph()
    readers = {
        name: [op for op in graph.ops if name in {t.name for t in op.inputs().values()}] for name in ("inverse",)
    }
    assert [op.outputs()["y"].name for op in readers["inverse"]] == ["softmax_sum"]


def test_alibi_slopes_are_constants_of_the_graph() -> None:
    recorder = RecordingGraph()
    add_sdpa(recorder, use_alibi_mask=True, use_causal_mask=True)
    graph = recorder.graph()
    assert recorder.emitter is not None
    assert recorder.emitter.constants == {graph.tensor("alibi_slopes").uid: make_alibi_slopes(4)}
    assert make_alibi_slopes(4) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    assert make_alibi_slopes(6)[4:] == [2.0**-1, 2.0**-3]


def test_max_total_seq_len_is_ignored_where_unsupported() -> None:
    def has_ragged_dq_accumulator(d: int, sm: int) -> bool:
        recorder = RecordingGraph((9, 19, 0), sm)
        tensors = {
            name: add_int32_ragged_offset_to_tensor(make_bshd_tensor(d=d)) for name in ("q", "k", "v", "o", "dO")
        }
        gradients = add_sdpa_backward(recorder, **tensors, **make_padding_mask_options(), max_total_seq_len_q=128, d=d)
        assert gradients[0] is not None
        add_int32_ragged_offset_to_tensor(gradients[0])
        return recorder.graph().tensor("dq_accum").ragged_offset is not None

    assert has_ragged_dq_accumulator(64, 90)
    assert not has_ragged_dq_accumulator(72, 90)
    assert not has_ragged_dq_accumulator(64, 80)


def test_deterministic_backward_attention_selects_an_engine_on_blackwell() -> None:
    def choose_engine(sm: int, method: Callable[..., Any], **options: Any) -> Any:
        recorder = RecordingGraph((9, 28, 0), sm)
        method(recorder, **options)
        return recorder._nodes[0].choose_engine(recorder.situation or NodeCheckContext((9, 28, 0), sm))  # type: ignore[attr-defined]

    assert choose_engine(90, add_sdpa_backward, use_deterministic_algorithm=True) is None
    assert choose_engine(100, add_sdpa_backward) is None
    chosen = choose_engine(100, add_sdpa_backward, use_deterministic_algorithm=True)
    assert (chosen.engine, chosen.knobs[KnobType.STAGES]) == (5, 2)
    assert choose_engine(100, add_sdpa_fp8_backward) is not None
    assert choose_engine(100, add_sdpa) is None


def test_only_one_of_k_and_v_may_be_paged() -> None:
    recorder = RecordingGraph()
    options = make_paged_kv_options() | make_padding_mask_options()
    del options["paged_attention_v_table"]
    options |= {"v": make_bshd_tensor(), "implementation": COMPOSITE}
    add_sdpa(recorder, **options)
    loads = [op for op in recorder.graph().ops if "PAGED" in op.kind.name]
    assert [op.inputs()["container"].dims for op in loads] == [(4, 4, 64, 64)]
    assert loads[0].outputs()["y"].dims == (2, 4, 64, 128)


def test_sdpa_refuses_fp8_tensors() -> None:
    recorder = RecordingGraph()
    add_sdpa(recorder, **{name: make_bshd_tensor(kind=FP8) for name in "qkv"})
    with pytest.raises(NotSupportedError, match="FP8_E4M3"):
        recorder.graph()


def test_a_score_modifier_that_returns_none_is_refused() -> None:
    recorder = RecordingGraph()
    add_sdpa(recorder, score_mod=lambda g, x: None)
    with pytest.raises(TypeError, match="score_mod"):
        recorder.graph()
