"""`cudnn-backend plan compare` without a GPU: the compared cases, the plans, and the report."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cudnn_backend_py.cli.compare import comparison as compare
from cudnn_backend_py.cli.compare.contenders import make_torch_calls
from cudnn_backend_py.cli.compare.problems import build_attention_graph, count_flops, format_attention_problem
from cudnn_backend_py.errors import EnvironmentNotReady, UsageError
from cudnn_backend_py.graph import save_graph
from cudnn_backend_py.graph.attention import Attention, sdpa_forward
from cudnn_backend_py.graph.attention.recognize import read_attention
from cudnn_backend_py.plans.build import shared_target
from cudnn_backend_py.plans.engine import OperationGraph
from cudnn_backend_py.plans.select import Selection, candidates
from cudnn_backend_py.tuning.timed_plans import BuiltPlans, PlanTimer, _build_first_plans, _build_plan_or_return_none
from tests.support.child import OLDER_VERSION, FinishedChild, run_python
from tests.support.logs import LOG_FOLDER
from tools.campaign.graphs import make_random_graph

TRAINING_LOG = str(LOG_FOLDER / "torch-training-9.19.0.log.gz")


def run_plan_compare(*arguments: str) -> FinishedChild:
    return run_python(["-m", "cudnn_backend_py", "plan", "compare", *arguments])


def make_timing(median: float) -> dict[str, float]:
    return {"median_us": median, "low_us": median - 0.1, "high_us": median + 0.1, "samples": 9}


# compared cases


def test_plan_compare_covers_forty_shapes_forward_and_backward() -> None:
    shapes = list(compare.make_standard_attention_problems())
    assert len({format_attention_problem(shape) for shape in shapes}) == len(shapes) == 40
    assert set(compare.make_attention_grid()) < set(shapes)
    assert {shape.head_dim for shape in shapes} == {64, 96, 128, 256}
    assert {shape.data_type.name for shape in shapes} == {"BFLOAT16", "HALF"}
    other = [shape for shape in shapes if shape.seq_kv != shape.seq_q]
    assert [(shape.seq_q, shape.seq_kv) for shape in other] == [(4096, 128), (1024, 8192)]
    assert "s4096/128" in format_attention_problem(other[0])
    assert count_flops(other[0], "forward") == 4 * 4 * 16 * 4096 * 128 * 64
    cases = compare.make_comparison_cases("--grid=whole")
    assert [(case.name, case.direction) for case in cases[:2]] == [
        (format_attention_problem(shapes[0]), "forward"),
        (format_attention_problem(shapes[0]), "backward"),
    ]
    assert len(cases) == 80


def test_each_attention_graph_of_a_log_is_a_comparison_case() -> None:
    cases = compare.make_comparison_cases(TRAINING_LOG)
    assert [case.direction for case in cases] == ["forward", "backward"] * 3
    assert cases[2].name == "graph 3: b2 h4 s384 d64 causal bf16"
    assert all(case.problem is not None and not case.reason_without_torch for case in cases)
    with pytest.raises(UsageError, match="has no attention among its 1 logged graphs"):
        compare.make_comparison_cases(str(LOG_FOLDER / "forum-9.1.1.log.gz"))


def test_plan_compare_names_attention_graphs_that_could_not_be_rebuilt(tmp_path: Path) -> None:
    log = tmp_path / "odd.log"
    text = (LOG_FOLDER / "torch-frontend-1.18.log").read_text(encoding="utf-8")
    log.write_text(text.replace('"HALF"', '"HALFISH"'), encoding="utf-8")
    with pytest.raises(UsageError, match="compare-no-attention") as caught:
        compare.make_comparison_cases(str(log))
    assert "1 could not be rebuilt, the first: " in str(caught.value.sections["cause"])
    assert "HALFISH" in str(caught.value.sections["cause"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dropout": 0.1}, "dropout"),
        ({"bias": (1, 2, 128, 128)}, "bias"),
        ({"left_bound": 64, "causal": True}, "a window"),
        ({"padding": True}, "padding"),
        ({"head_dim_v": 32}, "values of another width"),
        ({"causal": True, "seq_kv": 256, "alignment": "bottom_right"}, "causal from the bottom right"),
    ],
)
def test_problems_that_torchs_backends_compute_differently_are_not_compared(options: dict[str, Any], why: str) -> None:
    use = read_attention(sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, **options))
    assert use is not None
    plain, words = compare._convert_to_dense_attention(use.problem)
    assert plain is None
    assert words.endswith(why)


def test_plain_attention_problem_is_recognized_in_its_graph() -> None:
    for problem in compare.make_standard_attention_problems():
        use = read_attention(build_attention_graph(problem, "forward", (9, 28, 0), 90))
        assert use is not None
        assert compare._convert_to_dense_attention(use.problem) == (problem, "")


# without a GPU


def test_plans_for_a_described_gpu_are_listed_and_reproducible() -> None:
    done = run_plan_compare(
        TRAINING_LOG, "--target", "h100", "--cudnn", OLDER_VERSION, "--cudnn", "default", "--format", "json"
    )
    assert done.code == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["described"] == "NVIDIA H100 SXM5 80GB"
    assert record["versions"][0] == f"{OLDER_VERSION}+cu12"
    assert len(set(record["versions"])) == 2
    assert not {"gpu_name", "torch"} & set(record)
    assert len(record["rows"]) == record["cases"] == 6
    for row in record["rows"]:
        assert list(row["plans"]) == [f"cuDNN {version}" for version in record["versions"]]
        assert all(plan.startswith("eng") and plan.count(",") == 1 for plan in row["plans"].values())
        assert "gpu" not in row
    words = shlex.split(record["command"])
    assert words[:3] == ["cudnn-backend", "plan", "compare"]
    again = run_plan_compare(*words[3:], "--format", "json")
    assert again.code == 0, again.stderr
    assert json.loads(again.stdout)["rows"] == record["rows"]
    text = compare.format_text(record)
    assert "Time is not judged" in text
    assert record["rows"][0]["plans"][f"cuDNN {OLDER_VERSION}+cu12"] in text
    assert record["command"] in compare.format_markdown(record)


def test_a_record_that_reached_its_time_limit_can_be_resumed(tmp_path: Path) -> None:
    """Existing rows are kept; the new rows equal those of a complete run."""
    path, target = tmp_path / "record.json", ("--target", "h100", "--format", "json", "--output")
    assert run_plan_compare(TRAINING_LOG, *target, str(path)).code == 0
    whole = json.loads(path.read_text())
    kept = {**whole["rows"][2], "notes": ["kept"]}
    path.write_text(json.dumps({**whole, "rows": [kept], "seconds": 100.0}))
    assert run_plan_compare(TRAINING_LOG, "--resume", str(path), "--limit", "50", *target, str(path)).code == 0
    record = json.loads(path.read_text())
    assert record["rows"] == [*whole["rows"][:2], kept, *whole["rows"][3:]]
    assert record["seconds"] > 100
    assert [(part["rows"], part["seconds"]) for part in record["resumed"]] == [(1, 100.0)]
    assert [one.name for one in tmp_path.iterdir()] == ["record.json"]
    none = run_plan_compare(TRAINING_LOG, "--limit", "0", *target, str(tmp_path / "none.json"))
    assert (none.code, "6 of 6 cases were not started" in none.stderr) == (0, True)
    other = run_plan_compare(TRAINING_LOG, "--resume", str(path), "--configs", "1", *target, str(path))
    assert (other.code, "compare-resume" in other.stderr) == (2, True)
    assert json.loads(path.read_text()) == record


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": [{"shape": "b1"}], "seconds": 1, "command": "x"}', "\x00"])
def test_an_invalid_record_cannot_be_resumed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="compare-resume"):
        compare.read_record(path)


def test_plan_compare_reports_each_row_once_it_is_measured() -> None:
    shown: list[int] = []
    record = compare.run_comparison(
        compare.Comparison(TRAINING_LOG, target="h100"), keep=lambda so_far: shown.append(len(so_far["rows"]))
    )
    assert shown == list(range(1, len(record["rows"]) + 1))


def test_plan_compare_without_a_gpu_is_refused() -> None:
    done = run_plan_compare("--grid", "little")
    assert done.code == 2
    assert "no-gpu" in done.stderr
    assert "--target" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([TRAINING_LOG, "--grid", "little", "--target", "h100"], "--grid"),
        (["--target", "h100", "--plot", "x.svg"], "--plot draws measured times"),
        (["--target", "h1000"], "unknown-target"),
        (["--target", "h100", "--cudnn", "9.1.1"], "cudnn-version-not-installed"),
        ([str(LOG_FOLDER / "forum-9.1.1.log.gz"), "--target", "h100"], "compare-no-attention"),
    ],
)
def test_plan_compare_refuses_invalid_arguments(arguments: list[str], words: str) -> None:
    done = run_plan_compare(*arguments)
    assert done.code == 2
    assert words in done.stderr


def test_the_timing_process_continues_after_a_refused_graph(tmp_path: Path) -> None:
    refused = sdpa_forward(batch=1, heads=1, seq_q=64, head_dim=20)
    taken = sdpa_forward(batch=1, heads=1, seq_q=64, head_dim=64)
    save_graph(taken, tmp_path / "taken.json")
    with PlanTimer(None, "h100", 1) as plans:
        found = plans.build(refused)
        assert found.configs == ()
        assert found.refused
        assert len(plans.build(taken).configs) == 1
        assert plans.child_properties["sm"] == 90
    with PlanTimer(None) as plans:
        assert plans.build(taken) == BuiltPlans(refused="no-gpu: there is no GPU in this process")


def test_configs_that_do_not_compile_are_skipped() -> None:
    """The first config of this graph passes the check, but does not compile."""
    target = shared_target("h100")
    question = OperationGraph(make_random_graph(19, "pointwise", version=(9, 14, 0)), target)
    configs = candidates(question, Selection()).configs[:3]
    alone = [None if plan is None else plan.tag for plan in map(_build_plan_or_return_none, configs)]
    tags = [tag for tag in alone if tag is not None]
    assert alone[0] is None
    assert tags
    assert [plan.tag for plan in _build_first_plans(configs, 1)] == tags[:1]


# report


def make_comparison_record() -> dict[str, Any]:
    gpu = {"cuDNN 9.19.0": make_timing(10.0), "ours, exact": make_timing(10.1), "torch flash": make_timing(15.0)}
    row = {"shape": "b1", "direction": "forward", "plans": {"cuDNN 9.19.0": "eng2"}, "gpu": gpu, "flops": 1e9}
    more = {
        "host": {"torch flash": make_timing(20.0)},
        "fastest": compare.find_fastest(gpu),
        "configs": {},
        "notes": ["no GPU"],
    }
    facts = {"cudnn": "9.19.0", "python": "3.12"}
    record = {"rows": [row | more], "environment": facts, "gpu_name": "H200", "versions": ["9.19.0", "9.28.0"]}
    return record | {
        "torch": "2.11",
        "date": "2026-11-22",
        "cases": 3,
        "command": "cudnn-backend plan compare --rounds=9",
    }


def test_comparison_report_shows_versions_plans_and_its_command() -> None:
    text = compare.format_text(make_comparison_record())
    assert "10.0 *" in text
    assert "10.1 *" in text
    assert "15.0 *" not in text
    for shown in (text, compare.format_markdown(make_comparison_record())):
        for words in ("cuDNN 9.19.0 and 9.28.0", "torch 2.11", "eng2", "cudnn-backend plan compare --rounds=9"):
            assert words in shown
        assert "no GPU (b1 forward)" in shown
        assert "2 of 3 cases were not started" in shown
    assert "| 15.0 / 20.0 |" in compare.format_markdown(make_comparison_record())


def test_report_shows_another_config_only_if_it_is_faster_beyond_noise() -> None:
    first, same, faster = ({"tag": name, "gpu": make_timing(us)} for name, us in (("a", 10.0), ("b", 9.95), ("c", 8.0)))
    assert [suffix for suffix, _ in compare._select_first_and_fastest_config([first, same])] == [""]
    assert [
        (suffix, one["tag"]) for suffix, one in compare._select_first_and_fastest_config([first, same, faster])
    ] == [
        ("", "a"),
        (", best config", "c"),
    ]
    assert list(compare._select_first_and_fastest_config([])) == []


def test_absence_of_matplotlib_is_reported_before_measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(compare, "run_comparison", lambda *_, **__: pytest.fail("nothing must be measured"))
    with pytest.raises(EnvironmentNotReady, match="matplotlib-missing"):
        compare.run_compare_command(compare.Comparison("--grid=little"), "text", tmp_path / "x.svg")
    with pytest.raises(EnvironmentNotReady, match="matplotlib-missing"):
        compare.draw_comparison(make_comparison_record(), tmp_path / "x.svg")


def test_reasons_of_unsuitable_torch_backends_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch warns of each reason before it raises an error; a substitute for torch does so here, without a GPU."""

    class Tensor:
        def detach(self) -> Tensor:
            return self

        clone = detach

    def raise_no_kernel(*_arguments: object, **_options: object) -> None:
        warnings.warn("Flash attention kernel not used because:", UserWarning, stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    torch, attention = ModuleType("torch"), ModuleType("torch.nn.attention")
    torch.nn = SimpleNamespace(functional=SimpleNamespace(scaled_dot_product_attention=raise_no_kernel))  # type: ignore[attr-defined]
    attention.SDPBackend = SimpleNamespace(FLASH_ATTENTION=1)  # type: ignore[attr-defined]
    attention.sdpa_kernel = lambda _backend: nullcontext()  # type: ignore[attr-defined]
    for module in (torch, attention):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = Attention(batch=1, heads=1, seq_q=64, head_dim=64, causal=True)
        assert not list(make_torch_calls(problem, "forward", dict.fromkeys("qkv", Tensor())))
