"""`why` reports as text, JSON and HTML, from findings built by hand. Loads no library and no torch."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cudnn_backend_py.why import Finding, WhyReport
from cudnn_backend_py.why.calls import CallSite, Machine, TensorFacts, TorchBackendChoice, TorchCall, TorchSwitches
from cudnn_backend_py.why.conditions import RELEASES, apply_remedy, find_blocker, find_other_blockers
from cudnn_backend_py.why.query_cudnn import CallVerdict
from tests.support.child import ROOT

GOLDEN = Path(__file__).parent / "golden"
MACHINE = Machine((2, 11, 0), (9, 19, 0), 90, (13, 0), "NVIDIA H200", {}, True)


def make_call(dtype: str = "bfloat16", dim: int = 128, **facts: object) -> TorchCall:
    one = TensorFacts((4, 16, 1024, dim), (16 * 1024 * dim, 1024 * dim, dim, 1), dtype)
    return TorchCall(**{"q": one, "k": one, "v": one, "causal": True, **facts})  # type: ignore[arg-type]


def make_sdpa_call_finding(torch_call: TorchCall, answer: TorchBackendChoice, **facts: object) -> Finding:
    blocker = find_blocker(torch_call, MACHINE, answer)
    made = {
        "call": torch_call,
        "place": CallSite("model.py", 33, "attend", "train.py:12 in main"),
        "count": 120,
        "threads": ("MainThread",),
        "compiled": False,
        "answer": answer,
        "blocker": blocker,
        "also": find_other_blockers(torch_call, MACHINE, blocker) if blocker else (),
        "cured": apply_remedy(torch_call, blocker)[1],
    }
    return Finding(**{**made, **facts})  # type: ignore[arg-type]


WORDS = ("Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float",)
SIDE = CallVerdict("supported", faults=("sdpa-x: what happens",), plan_s=0.25, target="NVIDIA H200", cudnn="9.19.0")
REPORT = WhyReport(
    machine=MACHINE,
    findings=(
        make_sdpa_call_finding(
            make_call(
                "float32", 60, dropout=0.1, switches=TorchSwitches(order=("flash", "efficient", "math", "cudnn"))
            ),
            TorchBackendChoice("efficient", False, WORDS, False, True),
            side=SIDE,
            times={"cudnn": {"first_ms": 60.0, "ms": 0.1}, "efficient": {"first_ms": 1.0, "ms": 0.4}},
        ),
        make_sdpa_call_finding(
            make_call(switches=TorchSwitches(cudnn=False)),
            TorchBackendChoice("flash", False, ("cuDNN attention has been runtime disabled.",), True, True),
            compiled=True,
            count=1,
            threads=("MainThread", "worker"),
        ),
        make_sdpa_call_finding(
            make_call(mask=TensorFacts((1024, 1024), (1024, 1), "float32")), TorchBackendChoice("cudnn", True), count=7
        ),
    ),
    unseen=("a thing <b>&amp;",),
)


def _assert_equals_golden_file(name: str, text: str) -> None:
    path = GOLDEN / name
    assert text == path.read_text(encoding="utf-8"), f"if this is meant, write the new text to {path}"


def test_text_equals_the_golden_file() -> None:
    _assert_equals_golden_file("report.txt", str(REPORT))


def test_a_call_that_allows_only_cudnn_fails_where_cudnn_is_excluded() -> None:
    alone = TorchSwitches(flash=False, efficient=False, math=False)
    unanswered = TorchBackendChoice()
    report = replace(REPORT, findings=(make_sdpa_call_finding(make_call(dim=60, switches=alone), unanswered),))
    text = "no other backend is allowed, so torch raises 'No available kernel. Aborting execution.'"
    assert f"   fails on this GPU: {text}" in str(report).splitlines()
    for call, answer in (
        (make_call(switches=alone), unanswered),  # cuDNN computes it
        (make_call(dim=60, switches=TorchSwitches(flash=False, efficient=False)), unanswered),
        (make_call(dim=60, switches=alone), TorchBackendChoice("math", False)),
    ):
        assert not make_sdpa_call_finding(call, answer).fails


def test_the_page_names_the_versions_of_the_table() -> None:
    [line] = [line for line in (ROOT / "docs/why.md").read_text().splitlines() if "table covers" in line]
    for release in RELEASES:
        assert ".".join(map(str, release.since)) in line


def test_json_equals_the_golden_file() -> None:
    text = REPORT.to_json()
    _assert_equals_golden_file("report.json", text)
    data = json.loads(text)
    assert [one["uses_cudnn"] for one in data["findings"]] == [False, False, True]
    assert TorchBackendChoice.from_dict(data["findings"][0]["answer"]) == REPORT.findings[0].answer


def test_report_json_is_valid_for_nan_and_undecodable_names() -> None:
    """A scale of NaN is a valid float, and a file name need not be UTF-8."""
    odd = replace(
        REPORT.findings[1], call=make_call(scale=math.nan, dropout=math.inf), place=CallSite("\udcff.py", 1, "f")
    )
    text = replace(REPORT, findings=(odd,)).to_json()
    (found,) = json.loads(text, parse_constant=lambda word: pytest.fail(word))["findings"]
    assert (found["call"]["scale"], found["call"]["dropout"], found["place"]["file"]) == ("nan", "inf", "\udcff.py")
    text.encode()


def test_html_report_is_escaped_and_self_contained() -> None:
    page = REPORT.to_html()
    assert "a thing &lt;b&gt;&amp;amp;" in page
    assert not re.search(r"https?://|<script|src=|href=", page)
    assert page.count("<article") == 3
    assert page.count('<article class="ok"') == 1


def test_report_text_contains_no_foreign_terminal_escapes() -> None:
    place = CallSite("m\x1b[31m.py", 1, "f\n::error")
    text = str(WhyReport(machine=MACHINE, findings=(replace(REPORT.findings[0], place=place),)))
    assert "\x1b" not in text
    assert "\n::" not in text


def test_the_report_states_that_no_attention_call_was_observed() -> None:
    assert str(WhyReport(machine=MACHINE, findings=())).startswith("why not cuDNN? no attention call was observed\n")


def test_the_report_states_that_torch_was_not_imported() -> None:
    report = WhyReport(machine=Machine((0, 0, 0), None, None), findings=())
    assert str(report).splitlines()[1] == "torch not imported, cuDNN none, no GPU"


def test_why_not_cudnn_without_torch_raises_environment_not_ready() -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom cudnn_backend_py.why import why_not_cudnn\n"
    code += "from cudnn_backend_py.errors import EnvironmentNotReady\ntry:\n    with why_not_cudnn(): pass\n"
    code += "except EnvironmentNotReady as error: print(error.code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "why-without-torch\n", done.stderr


@pytest.mark.parametrize(
    ("torch_call", "gate", "changed"),
    [
        (make_call("float32"), "dtype", "with q, k and v in bfloat16"),
        (replace(make_call(), k=make_call("float16").k), "dtype", "with q, k and v in bfloat16"),
        (make_call(dim=60), "shapes", "with head dims of 64 and 64"),
        (make_call(dim=264), "shapes", ""),
        (make_call(switches=TorchSwitches(deterministic=True)), "deterministic", ""),
    ],
)
def test_a_remedy_removes_the_blocker(torch_call: TorchCall, gate: str, changed: str) -> None:
    blocker = find_blocker(torch_call, MACHINE)
    assert blocker is not None
    assert blocker.gate == gate
    cured, said = apply_remedy(torch_call, blocker)
    assert said == changed
    assert (find_blocker(cured, MACHINE) is None) == bool(changed)
