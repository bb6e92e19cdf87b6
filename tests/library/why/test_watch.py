"""Calls of torch's attention are recorded wherever they are made, and the program is not affected."""

from __future__ import annotations

import contextlib
import math
import pickle
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.why import WhyReport, why_not_cudnn

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
F = torch.nn.functional
ORIGINAL = [F.scaled_dot_product_attention]  # in a list, where the watch renames nothing


@pytest.fixture(autouse=True)
def _check_torch_is_restored() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        yield
        torch._dynamo.reset()
    assert F.scaled_dot_product_attention is ORIGINAL[0]


def make_random_qkv(*dims: int, **how: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    return tuple(torch.randn(*(dims or (2, 4, 32, 16)), **how) for _ in range(3))


def make_report(call_attention: Any, *args: Any) -> WhyReport:
    with why_not_cudnn(run_query=False) as report:
        call_attention(*args)
    assert not any("call: " in one or "calls: " in one for one in report.unseen), report.unseen
    return report


def test_the_time_budget_must_be_a_number_of_seconds() -> None:
    for budget_s in (math.nan, -1.0, "60", True):
        with pytest.raises(UsageError, match="number of seconds") as caught, why_not_cudnn(budget_s=budget_s):  # type: ignore[arg-type]
            pass
        assert caught.value.code == "why-option"


def attend(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_calls_are_counted_by_source_line_and_shape() -> None:
    def call_attention() -> None:
        for length in (32, 32, 64):
            attend(*make_random_qkv(2, 4, length, 16))
        F.scaled_dot_product_attention(*make_random_qkv(), dropout_p=0.5, scale=0.1)

    report = make_report(call_attention)
    assert sorted((one.count, one.call.q.dims[2], one.call.causal) for one in report.findings) == [
        (1, 32, False),
        (1, 64, True),
        (2, 32, True),
    ]
    assert {one.place.function for one in report.findings} == {"attend", "call_attention"}
    assert all(one.place.file == __file__ for one in report.findings)
    assert next(one for one in report.findings if not one.call.causal).call.scale == 0.1


def test_aten_calls_are_recorded_and_backend_calls_are_listed() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class PassThroughMode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    aten = torch.ops.aten
    before = aten.scaled_dot_product_attention._op
    backend = "_scaled_dot_product_flash_attention_for_cpu"

    def call_attention(q: Any, k: Any, v: Any) -> None:
        for _ in range(2):
            aten.scaled_dot_product_attention(q, k, v, is_causal=True)
        aten.scaled_dot_product_attention.default(q, k, v, scale=0.5)
        for call in (getattr(aten, backend), getattr(aten, backend).default, getattr(torch, backend)):
            call(q, k, v)
        with PassThroughMode():
            attend(q, k, v)
        torch.compile(attend, backend="aot_eager")(q, k, v)

    report = make_report(call_attention, *make_random_qkv())
    assert {one.place.file for one in report.findings} == {__file__}
    seen = sorted((one.call.scale or 0, one.count, one.place.function) for one in report.findings)
    assert seen == [(0, 1, "attend"), (0, 1, "attend"), (0, 2, "call_attention"), (0.5, 1, "call_attention")]
    [named] = [one for one in report.unseen if "names the backend" in one]
    assert f"{backend} at {__file__}:" in named
    assert "called 3 times" in named
    assert aten.scaled_dot_product_attention._op is before


def test_different_calls_at_one_source_line_are_counted_separately() -> None:
    """Use more shapes than the first lookup table holds, and vary all that torch's backend choice may depend on."""
    given = {length: make_random_qkv(2, 4, length, 16) for length in range(8, 15)}
    q, k, v = given[8]
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [(one, {}) for one in given.values()]
    ways += [((q, k, v), {"attn_mask": torch.zeros(1, 1, 8, 8)}), ((q, k, v), {"dropout_p": 0.5})]
    ways += [((q.requires_grad_(), *given[8][1:]), {}), ((q.detach().half(), k.half(), v.half()), {})]
    ways += [((q.detach().transpose(2, 3).contiguous().transpose(2, 3), k, v), {}), ((k, k, k), {}), ((k, k, v), {})]
    ways[0] = ((q.detach(), k, v), {})

    def call_attention() -> None:
        for _ in range(3):
            for tensors, options in ways:
                F.scaled_dot_product_attention(*tensors, **options)

    report = make_report(call_attention)
    assert sum(one.count for one in report.findings) == 3 * len(ways)
    counts = sorted(one.count for one in report.findings)
    assert counts == [3] * (len(ways) - 3) + [9]  # of equal tensors, the same or not


def test_calls_at_one_line_with_different_torch_state_are_counted_separately() -> None:
    """Change backend switches and order, gradient mode and autocast between calls with the same tensors."""
    given = make_random_qkv(2, 4, 32, 16)

    def call_attention() -> None:
        cuda, autocast = torch.backends.cuda, torch.autocast
        for _ in range(3):
            for context in (
                torch.no_grad(),
                torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]),
                autocast("cpu", dtype=torch.bfloat16),
                autocast("cpu", dtype=torch.float16),
                autocast("cpu", enabled=False),
            ):
                with context:
                    attend(*given)
            torch.use_deterministic_algorithms(True, warn_only=_ == 1)
            attend(*given)
            torch.use_deterministic_algorithms(False)
        assert cuda.math_sdp_enabled()

    report = make_report(call_attention)
    assert sorted(one.count for one in report.findings) == [1, 2, 3, 3, 3, 3, 3]
    assert {one.call.autocast for one in report.findings} == {"", "bfloat16", "float16"}


def test_repeatedly_defined_functions_do_not_fill_the_call_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in code evaluated from strings count as one place, and the lookup table of calls stays bounded."""
    from cudnn_backend_py.why import watch as rooms

    monkeypatch.setattr(rooms, "MAX_GROUPS", 8)
    given, kept, text = make_random_qkv(), [], "F.scaled_dot_product_attention(*given)"
    watch = rooms.AttentionCallWatch()
    watch.start()
    try:
        for _ in range(40):
            kept.append(compile(text, "made", "eval"))
            eval(kept[-1], {"F": F, "given": given})
    finally:
        watch.stop()
    assert watch._thread.known is not None
    assert len(watch._thread.known) <= 9
    assert [(group.count, group.place.file) for group in watch.groups.values()] == [(40, "made")]


def test_a_call_that_torch_refuses_raises_the_error_of_torch() -> None:
    refused = []
    for function in (ORIGINAL[0], None):
        with why_not_cudnn(run_query=False), pytest.raises(TypeError) as caught:
            (function or F.scaled_dot_product_attention)(*make_random_qkv(), wrong=1)
        refused.append(str(caught.value))
    assert refused[0] == refused[1]


def test_recording_a_repeated_attention_call_has_low_overhead() -> None:
    """Count the Python functions that run in a watched attention call, as a measure of the cost of watching."""
    given, events = make_random_qkv(), []
    with why_not_cudnn(run_query=False):
        attend(*given)
        attend(*given)
        sys.setprofile(lambda frame, event, arg: events.append(event))
        try:
            attend(*given)
        finally:
            sys.setprofile(None)
    called = [event for event in events if event in ("call", "c_call")]
    assert len(called) <= 22, called


def test_threads_with_a_reused_id_keep_their_names() -> None:
    def call_attention() -> None:
        for number in range(3):  # one after the other: the number of an ended thread is used again
            thread = threading.Thread(target=attend, args=make_random_qkv(), name=f"worker {number}")
            thread.start()
            thread.join()

    (one,) = make_report(call_attention).findings
    assert (one.count, one.threads) == (3, ("worker 0", "worker 1", "worker 2"))


def test_attention_functions_imported_by_name_are_recorded() -> None:
    scope: dict[str, Any] = {}
    with why_not_cudnn(run_query=False) as report:
        ORIGINAL_NAME(*make_random_qkv())
        exec("from torch.nn.functional import scaled_dot_product_attention as taken", scope)
    assert [one.count for one in report.findings] == [1]
    assert ORIGINAL_NAME is ORIGINAL[0]


ORIGINAL_NAME = F.scaled_dot_product_attention


def test_calls_of_several_threads_are_reported_together() -> None:
    def call_attention() -> None:
        threads = [
            threading.Thread(target=attend, args=make_random_qkv(), name=f"worker {number}") for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        attend(*make_random_qkv())

    (one,) = make_report(call_attention).findings
    assert one.count == 4
    assert one.threads == ("MainThread", "worker 0", "worker 1", "worker 2")


def test_the_type_set_by_autocast_is_recorded() -> None:
    def call_attention() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            attend(*make_random_qkv())

    (one,) = make_report(call_attention).findings
    assert (one.call.q.dtype, one.call.autocast) == ("bfloat16", "bfloat16")


def test_watched_backward_passes_give_the_same_gradients() -> None:
    q, k, v = make_random_qkv(requires_grad=True)
    attend(q, k, v).sum().backward()
    wanted, q.grad = q.grad, None
    report = make_report(
        lambda: torch.utils.checkpoint.checkpoint(attend, q, k, v, use_reentrant=False).sum().backward()
    )
    assert torch.equal(q.grad, wanted)
    assert sum(one.count for one in report.findings) == 2  # once more for the backward pass
    assert all(one.call.training for one in report.findings)


def _run_compiled_attention_layer(backend: str, mode: Any = None) -> tuple[Any, dict[str, Any]]:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()

    def run_attention_layer(q: Any, k: Any, v: Any) -> Any:
        return attend(q * 2, k, v) + 1

    call_attention = torch.compile(run_attention_layer, backend=backend, dynamic=mode)
    results = [call_attention(*make_random_qkv()) for _ in range(3)]
    call_attention(*make_random_qkv(2, 4, 48, 16))
    reported = {name: dict(counters[name]) for name in ("graph_break", "frames")}
    return results, {**reported, "graphs": counters["stats"]["unique_graphs"]}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_watch_does_not_change_how_a_program_is_compiled(backend: str) -> None:
    plain = _run_compiled_attention_layer(backend)
    with why_not_cudnn(run_query=False) as report:
        seen = _run_compiled_attention_layer(backend)
    assert seen[1] == plain[1]
    assert seen[1]["graph_break"] == {}
    assert all(torch.equal(one, other) for one, other in zip(plain[0], seen[0], strict=True))
    assert all(one.compiled for one in report.findings)
    assert sum(one.count for one in report.findings) == 4
    assert {(one.place.file, one.place.function) for one in report.findings} == {(__file__, "attend")}


def test_autocast_and_backend_settings_in_a_compiled_graph_are_recorded() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run_attention_layer(q: Any, k: Any, v: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first = attend(q, k, v)
        with torch.no_grad(), sdpa_kernel([SDPBackend.MATH]):
            return first.float() + attend(q, k, v)

    report = make_report(
        torch.compile(run_attention_layer, backend="aot_eager", fullgraph=True), *make_random_qkv(requires_grad=True)
    )
    first, second = sorted(report.findings, key=lambda one: one.call.q.dtype)
    assert (first.call.q.dtype, first.call.training, first.call.switches.cudnn) == ("bfloat16", True, True)
    assert (second.call.q.dtype, second.call.training, second.call.switches.cudnn) == ("float32", False, False)
    assert second.blocker is not None
    assert second.blocker.gate == "disabled"


@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_nested_tensors_keep_their_lengths(layout: str) -> None:
    def call_attention() -> None:
        jagged = layout == "jagged"
        parts = [torch.randn(*((length, 4, 16) if jagged else (4, length, 16))) for length in (7, 5)]
        one = torch.nested.nested_tensor(parts, layout=getattr(torch, layout))
        one = one.transpose(1, 2) if jagged else one
        F.scaled_dot_product_attention(one, one, one)

    (one,) = make_report(call_attention).findings
    assert one.call.q.lengths == (7, 5)
    assert one.call.q.form == ("jagged" if layout == "jagged" else "nested")


def test_attention_in_torch_layers_is_recorded_at_the_call_of_the_program() -> None:
    attention_layer = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.randn(2, 6, 16)
    plain = attention_layer(x, x, x, need_weights=False)[0]

    def call_attention() -> None:
        assert torch.equal(attention_layer(x, x, x, need_weights=False)[0], plain)
        with torch.inference_mode():
            attention_layer.eval()(x, x, x, need_weights=False)

    trained, fast = sorted(make_report(call_attention).findings, key=lambda one: one.call.kind, reverse=True)
    assert (trained.call.kind, fast.call.kind) == ("sdpa", "encoder")
    assert trained.place.function == fast.place.function == "call_attention"
    assert fast.blocker is not None
    assert fast.blocker.gate == "fast-path"


def test_the_encoder_fast_path_is_recorded_with_unpadded_lengths() -> None:
    """An encoder turns padded sequences into nested tensors, which have one length per sequence and no common size."""
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 4, batch_first=True), 2).eval()
    x, padding = torch.randn(2, 6, 16), torch.zeros(2, 6, dtype=torch.bool)
    padding[0, 4:] = True

    def call_attention() -> None:
        with torch.no_grad():
            encoder(x, src_key_padding_mask=padding)

    (one,) = make_report(call_attention).findings
    assert (one.call.kind, one.count, one.call.q.lengths) == ("encoder", 2, (4, 6))


def test_flex_attention_is_recorded_as_one_call_compiled_or_not() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    with why_not_cudnn(run_query=False) as report:
        torch.nn.attention.flex_attention.flex_attention(*make_random_qkv(1, 2, 128, 16))
    (one,) = report.findings
    assert (one.call.kind, one.count, one.blocker and one.blocker.gate) == ("flex", 1, "flex")
    assert torch.nn.attention.flex_attention.flex_attention is flex_attention


def test_varlen_attention_is_recorded_even_if_torch_refuses_it() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    q = torch.randn(12, 4, 16)
    lengths = torch.tensor([0, 5, 12], dtype=torch.int32)
    with why_not_cudnn(run_query=False) as report, pytest.raises(Exception, match=r"(?i)cpu|backend|kernel"):
        varlen.varlen_attn(q, q, q, lengths, lengths, 7, 7)
    (one,) = report.findings
    assert (one.call.kind, one.blocker and one.blocker.gate) == ("varlen", "varlen")
    with why_not_cudnn(run_query=False) as report, contextlib.suppress(RuntimeError, NotImplementedError):
        varlen.varlen_attn_out(torch.empty_like(q), q, q, q, lengths, lengths, 7, 7)
    (one,) = report.findings
    assert (one.call.kind, one.call.q.dims) == ("varlen", (12, 4, 16))


def test_fx_and_torchscript_trace_the_unwrapped_function() -> None:
    def call_attention() -> None:
        class Layer(torch.nn.Module):  # type: ignore[misc]
            def forward(self, q: Any) -> Any:
                return torch.nn.functional.scaled_dot_product_attention(q, q, q)

        graph = torch.fx.symbolic_trace(Layer()).graph
        assert ORIGINAL[0] in [node.target for node in graph.nodes]
        scripted = torch.jit.script(_call_attention_for_torchscript)
        assert "aten::scaled_dot_product_attention" in str(scripted.graph)
        with torch._subclasses.FakeTensorMode():
            assert attend(*make_random_qkv()).shape == (2, 4, 32, 16)

    make_report(call_attention)


def _call_attention_for_torchscript(q: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, q, q)


def test_functions_pickled_during_a_watch_are_not_wrappers() -> None:
    with why_not_cudnn(run_query=False):
        kept = pickle.dumps({"attend": F.scaled_dot_product_attention, "layer": torch.nn.MultiheadAttention(8, 2)})
    assert pickle.loads(kept)["attend"] is ORIGINAL[0]


def test_an_exception_in_the_watched_block_is_raised_and_the_report_kept() -> None:
    def call_attention(report: WhyReport) -> None:
        attend(*make_random_qkv())
        raise KeyError("of the program")

    with why_not_cudnn(run_query=False) as report, pytest.raises(KeyError, match="of the program"):
        call_attention(report)
    assert [one.count for one in report.findings] == [1]
    with why_not_cudnn(run_query=False) as wrong, pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(torch.ones(2, 3), torch.ones(4), torch.ones(1))
    assert len(wrong.findings) <= 1  # a call that torch refuses is a call


def test_attention_calls_are_recorded_again_by_a_second_watch() -> None:
    reports = [make_report(attend, *make_random_qkv()) for _ in range(2)]
    assert [[one.count for one in report.findings] for report in reports] == [[1], [1]]


def test_a_function_is_not_compiled_again_for_another_watch() -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    call_attention = torch.compile(attend, backend="eager")
    plain = call_attention(*make_random_qkv())
    counts = []
    for _ in range(12):  # more than dynamo compiles again
        with why_not_cudnn(run_query=False) as report:
            assert torch.equal(call_attention(*make_random_qkv()), plain)
        counts.append(sum(one.count for one in report.findings))
        call_attention(*make_random_qkv())
    assert counters["stats"]["unique_graphs"] <= 2
    assert counts == [1] * 12
