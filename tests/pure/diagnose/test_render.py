"""Verdicts as text, plain data and exit code; the verdicts are built by the test. Loads no library."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from cudnn_backend_py.diagnose import Basis, Candidate, Cause, Control, Outcome, Reason, Verdict, render_text
from cudnn_backend_py.diagnose.report.summary import MAX_COLUMNS, format_graph_line, format_summary, render_summary
from cudnn_backend_py.diagnose.verdict import RemedyCheck
from cudnn_backend_py.generated.enums import KnobType
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.terminal import render_as_text
from tests.support.graphs import make_sdpa
from tests.support.typical_graphs import TYPICAL_GRAPHS

GOLDEN_FOLDER = Path(__file__).parent / "golden"
NOT_SUPPORTED_STATUS = "CUDNN_STATUS_NOT_SUPPORTED"

NOT_SUPPORTED_VERDICT = Verdict(
    outcome=Outcome.NOT_SUPPORTED,
    stage="heuristics",
    graph="two_matmul",
    graph_text="graph two_matmul\n  q : f16[1,64,64] (uid 1)\n  o = matmul(q, q) : f16[1,64,64]",
    target="l40s",
    target_title="NVIDIA L40S",
    sm=89,
    live=False,
    cudnn="9.19.0",
    library="/opt/cudnn/libcudnn.so.9",
    driver="stub",
    modes=("A", "FALLBACK"),
    control=Control("control", True),
    candidates=(
        Candidate(
            "A",
            0,
            {"CUDNN_KNOB_TYPE_KERNEL_CFG": 0, "CUDNN_KNOB_TYPE_TILE_M": -1},
            "refused",
            (
                Reason(
                    f"{NOT_SUPPORTED_STATUS}_SHARED_MEMORY_INSUFFICIENT",
                    "Kernel request [bold]too large[/bold] at: requested > limit",
                ),
                Reason(NOT_SUPPORTED_STATUS, "finalize_internal()\nsecond line"),
            ),
        ),
        Candidate("FALLBACK", None, {}, "refused"),
    ),
    reasons=(Reason("", "CuDNN said something else"),),
    cause=Cause(
        "shared-memory-per-block-insufficient",
        "engine 0 needs 106496 bytes, sm_89 has 101376 bytes at most",
        Basis.MEASURED,
        "this is on-chip shared memory\nnot free memory",
        "judge for a GPU with more:\nsm80 or sm90",
    ),
    environment=("libcuda.so.1 is this package's stub",),
    limits=("judged without a GPU",),
)
SUPPORTED_VERDICT = dataclasses.replace(
    NOT_SUPPORTED_VERDICT,
    outcome=Outcome.SUPPORTED,
    stage="plan",
    target="gpu",
    target_title="NVIDIA H100",
    sm=90,
    live=True,
    candidates=(
        Candidate("A", 3, {}, "build failed", (Reason("CUDNN_STATUS_INTERNAL_ERROR", "NVRTC"),)),
        Candidate("A", 5, {"CUDNN_KNOB_TYPE_TILE_M": 2}, "built", (), 4096, ("RUNTIME_COMPILATION",), ("TENSOR_CORE",)),
        Candidate("FALLBACK", 1, {}, "supported"),
    ),
    reasons=(),
    cause=None,
    environment=(),
    limits=(),
)
NOT_JUDGED_VERDICT = dataclasses.replace(
    NOT_SUPPORTED_VERDICT,
    outcome=Outcome.NOT_JUDGED,
    stage="environment",
    sm=0,
    cudnn="none",
    library="",
    driver="not asked",
    control=Control("control", False, (Reason("CUDNN_STATUS_INTERNAL_ERROR", "no driver"),)),
    candidates=(),
    reasons=(),
    cause=Cause("cudnn-library-not-found", "no libcudnn.so.9 was found", Basis.MEASURED),
    limits=(),
)
VERDICT_WITHOUT_REASON = dataclasses.replace(
    NOT_SUPPORTED_VERDICT, control=None, candidates=(), reasons=(), cause=None, environment=(), limits=()
)
VERDICTS = {
    "supported": (SUPPORTED_VERDICT, 0),
    "not_supported": (NOT_SUPPORTED_VERDICT, 1),
    "silent": (VERDICT_WITHOUT_REASON, 1),
    "not_judged": (NOT_JUDGED_VERDICT, 2),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict_text_equals_the_golden_file(name: str) -> None:
    assert render_text(VERDICTS[name][0]) == (GOLDEN_FOLDER / f"verdict_{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "variables", [{"FORCE_COLOR": "1"}, {"TERM": "xterm-256color", "COLORTERM": "truecolor"}, {"COLUMNS": "20"}]
)
def test_verdict_text_has_no_colors_in_any_terminal(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    plain = render_text(NOT_SUPPORTED_VERDICT)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert render_text(NOT_SUPPORTED_VERDICT) == plain
    assert "\x1b" not in plain


def test_long_reasons_are_not_wrapped() -> None:
    long = "x" * 400
    verdict = dataclasses.replace(NOT_SUPPORTED_VERDICT, reasons=(Reason("", long),))
    assert f"    {long}\n" in render_text(verdict, width=80)


def test_a_verdict_with_a_reason_does_not_report_it_as_missing() -> None:
    text = render_text(dataclasses.replace(VERDICT_WITHOUT_REASON, reasons=(Reason("", "one word"),)))
    assert "\ncuDNN offered no engine config\n\ncuDNN's messages that name no engine config\n    one word\n" in text


@pytest.mark.parametrize("name", VERDICTS)
def test_exit_code_agrees_with_the_supported_property(name: str) -> None:
    verdict, code = VERDICTS[name]
    assert verdict.exit_code == code
    assert verdict.supported is (code == 0)


def test_every_outcome_has_an_exit_code() -> None:
    codes = {outcome: dataclasses.replace(VERDICT_WITHOUT_REASON, outcome=outcome).exit_code for outcome in Outcome}
    assert codes == {Outcome.SUPPORTED: 0, Outcome.NOT_SUPPORTED: 1, Outcome.NOT_JUDGED: 2}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict_data_is_strict_json_with_all_fields(name: str) -> None:
    verdict = VERDICTS[name][0]
    data = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert data.pop("schema") == "cudnn-backend-py/verdict"
    assert data.pop("version") == 1
    assert set(data) == {item.name for item in dataclasses.fields(Verdict)}
    assert data["outcome"] == verdict.outcome.value


def test_verdict_data_contains_configs_knobs_and_reasons() -> None:
    data = json.loads(json.dumps(NOT_SUPPORTED_VERDICT.to_dict()))
    assert data["candidates"][0] == {
        "tag": "eng0_k24=0",
        "mode": "A",
        "engine": 0,
        "knobs": {"CUDNN_KNOB_TYPE_KERNEL_CFG": 0, "CUDNN_KNOB_TYPE_TILE_M": -1},
        "state": "refused",
        "reasons": [
            {
                "status": f"{NOT_SUPPORTED_STATUS}_SHARED_MEMORY_INSUFFICIENT",
                "text": "Kernel request [bold]too large[/bold] at: requested > limit",
            },
            {"status": NOT_SUPPORTED_STATUS, "text": "finalize_internal()\nsecond line"},
        ],
        "workspace_bytes": None,
        "shared_memory_bytes": None,
        "behavior_notes": [],
        "numerical_notes": [],
        "kernels": None,
        "build_s": None,
    }
    assert data["cause"]["basis"] == "measured"
    assert data["control"] == {"graph": "control", "supported": True, "reasons": []}
    assert data["modes"] == ["A", "FALLBACK"]


CAUSE_WITH_REMEDY = Cause(
    "layout", "x has layout NCHW, NHWC is needed", Basis.MEASURED, "", "x -> NHWC (exact)", "support check"
)


def test_first_line_reports_that_only_fallback_supports_the_graph() -> None:
    text = render_text(dataclasses.replace(SUPPORTED_VERDICT, only_fallback=CAUSE_WITH_REMEDY))
    assert text.startswith(
        f"SUPPORTED by FALLBACK only, mode A refuses ({CAUSE_WITH_REMEDY.headline}): graph 'two_matmul' on NVIDIA"
    )
    assert "other modes: x -> NHWC (exact) [passes its support check, not built]\n" in text
    assert "by FALLBACK" not in render_text(SUPPORTED_VERDICT)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("", "x -> NHWC (exact)"),
        ("not asked", "x -> NHWC (exact) [not judged]"),
        ("support check", "x -> NHWC (exact) [passes its support check, not built]"),
        ("built", "x -> NHWC (exact) [a plan of it was built]"),
    ],
)
def test_the_text_of_a_remedy_states_how_it_was_checked(asked: RemedyCheck, words: str) -> None:
    verdict = dataclasses.replace(NOT_SUPPORTED_VERDICT, cause=dataclasses.replace(CAUSE_WITH_REMEDY, asked=asked))
    label = "suggestion:  " if asked == "not asked" else "remedy:      "
    assert f"{label}{words}\n" in render_text(verdict)


def test_how_a_remedy_was_checked_is_not_shown_without_a_remedy() -> None:
    assert dataclasses.replace(CAUSE_WITH_REMEDY, remedy="", asked="built").advice == ""


def test_a_long_graph_name_is_shortened_before_target_and_version() -> None:
    verdict = dataclasses.replace(SUPPORTED_VERDICT, graph="norm, " * 30)
    first = format_summary(verdict).splitlines()[0]
    assert len(first) <= MAX_COLUMNS
    assert "graph 'norm, norm" in first
    assert first.endswith(f"..' on {verdict.target_title} (sm_{verdict.sm}), cuDNN {verdict.cudnn}")


def test_the_first_line_of_one_engine_config_has_graph_and_version_and_the_last_its_tag() -> None:
    long = Candidate("named", 1, {KnobType(number).c_name: 1 for number in (24, 27, 38, 40, 41)}, "supported", ())
    short = dataclasses.replace(long, knobs={KnobType.KERNEL_CFG.c_name: 21})
    for candidate in (long, short, dataclasses.replace(long, knobs={})):
        verdict = dataclasses.replace(
            SUPPORTED_VERDICT, candidates=(candidate,), graph="attention forward", target_title="NVIDIA H100 SXM5 80GB"
        )
        verdict = dataclasses.replace(verdict, cudnn="9.28.0+cu12")
        first, *_, last = format_summary(verdict).splitlines()
        assert len(first) <= MAX_COLUMNS
        assert first.startswith("SUPPORTED, not built: graph 'attention forward' on NVIDIA H100 SXM5 80GB")
        assert first.endswith(f", cuDNN {verdict.cudnn}")
        assert candidate.tag in last


def test_the_hint_after_the_engine_configs_is_not_truncated() -> None:
    long = Candidate("A", 1, {KnobType(number): 1 for number in (24, 27, 38, 40, 41)}, "supported", ())
    refused = Candidate("A", 2, {}, "refused", (Reason("CUDNN_STATUS_NOT_SUPPORTED", "no"),))
    verdict = dataclasses.replace(SUPPORTED_VERDICT, candidates=(long, refused))
    assert format_summary(verdict).splitlines()[-1].endswith("first eng1_k24=1_k27=1_k38=1_k40=1_k41=1; -v: the others")


def test_engines_that_do_not_fit_in_the_short_line_are_counted_only() -> None:
    engines = ", ".join(map(str, range(10)))
    counts = f"557 configs of 22 engines checked: 0 pass the support check; one knob at a time: engine {engines}"
    verdict = dataclasses.replace(NOT_SUPPORTED_VERDICT, every_engine=counts)
    assert format_summary(verdict).splitlines()[-1].endswith(" check; of 10 one knob at a time (-v)")
    assert counts in render_text(verdict)


def test_verdict_data_contains_the_engine_config_tags() -> None:
    data = json.loads(json.dumps(NOT_SUPPORTED_VERDICT.to_dict()))
    assert [item["tag"] for item in data["candidates"]] == ["eng0_k24=0", ""]
    assert Verdict.from_dict(data).to_dict() == NOT_SUPPORTED_VERDICT.to_dict()


@pytest.mark.parametrize(
    "graph",
    [*(TYPICAL_GRAPHS[name].make() for name in sorted(TYPICAL_GRAPHS)), Graph((make_sdpa(),))],
    ids=lambda graph: graph.name,
)
def test_every_written_tensor_is_an_output_in_the_text(graph: Graph) -> None:
    written = {tensor.name for tensor in graph.tensors if not tensor.virtual and _is_tensor_written(graph, tensor.uid)}
    left = {name for op in graph.ops for name in str(op).partition(" = ")[0].split(", ")}
    assert written <= left
    read = format_graph_line(str(graph)).partition(" -> ")[0].replace(",", " ").split()
    assert written.isdisjoint(read)


def _is_tensor_written(graph: Graph, uid: int) -> bool:
    return any(tensor.uid == uid for op in graph.ops for tensor in op.outputs().values())


@pytest.mark.parametrize("verdict", [SUPPORTED_VERDICT, NOT_SUPPORTED_VERDICT])
def test_the_plain_summary_is_what_rich_prints_outside_a_terminal(verdict: Verdict) -> None:
    named = dataclasses.replace(verdict, graph="::warning::\x1b[1m\tname")
    assert format_summary(named) == render_as_text(render_summary(named))
