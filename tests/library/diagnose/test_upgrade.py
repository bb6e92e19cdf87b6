"""Comparison of two versions on real cuDNN; graphs reported as unchanged are compared byte by byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cudnn_backend_py.diagnose.surveys.upgrade import Effect, compare_versions
from cudnn_backend_py.errors import EnvironmentNotReady, UsageError
from cudnn_backend_py.graph import save_graph
from cudnn_backend_py.graph.attention import sdpa_forward
from examples import conv_bias_relu, flash_backward, forum_two_matmul
from tests.support.child import OLDER_VERSION, FinishedChild, run_python
from tests.support.logs import LOG_FOLDER
from tools.campaign.graphs import make_random_graph
from tools.records.upgraded import find_graphs_with_changed_outcome

OLDEST_VERSION = "9.14.0"
GRAPH_FAMILIES = ("attention", "attention backward", "matmul", "convolution", "pointwise", "reduction", "fusion")


def run_command(*arguments: str) -> FinishedChild:
    return run_python(["-m", "cudnn_backend_py", *arguments])


def test_verdicts_configs_plans_kernel_code_and_reasons_are_compared() -> None:
    graphs = {
        "forward": sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64),
        "backward": flash_backward.graph(),
        "conv": conv_bias_relu.graph(),
        "odd": sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=20),
        "forum": forum_two_matmul.graph(),
    }
    found = compare_versions(graphs, ["h100"], OLDER_VERSION, "default", progress=False)
    by = {one.graph: one for one in found.changes}
    assert list(by) == list(graphs)
    assert [item.what for item in by["forum"].differences][:1] == ["verdict"]
    assert by["forum"].is_worse
    assert by["odd"].old.cause is not None
    assert "configs" in {item.what for item in by["forward"].differences}
    facts = by["forward"].to_dict()["old"]
    assert facts["cudnn"] == f"{OLDER_VERSION}+cu12"
    assert list(facts["configs"]) == ["A", "B", "FALLBACK"]
    assert facts["plan"] == facts["configs"]["A"][0]
    assert facts["kernels"][0]["registers"] >= 32
    assert facts["kernels"][0]["code_bytes"] > 4096
    assert facts["build_s"] > 0


def test_graphs_reported_as_unchanged_are_equal_byte_by_byte(tmp_path: Path) -> None:
    """Compare verdicts, configs and kernel instructions of both versions again, independently of the tested code."""
    graphs = {family: make_random_graph(1, family, version=(9, 14, 0)) for family in GRAPH_FAMILIES}
    found = compare_versions(graphs, ["h100"], OLDEST_VERSION, OLDER_VERSION, progress=False)
    unchanged = [one for one in found.changes if one.effect is Effect.UNCHANGED]
    assert len(found.changes) == len(GRAPH_FAMILIES)
    assert unchanged
    assert (
        find_graphs_with_changed_outcome(
            {one.graph: graphs[one.graph] for one in unchanged}, OLDEST_VERSION, OLDER_VERSION, tmp_path
        )
        == []
    )


def test_comparing_graphs_alone_or_together_gives_equal_kernels() -> None:
    """NVRTC 12.9 and the NVRTC of cuDNN 9.28 compile a kernel differently if they compiled another one before."""
    families = {"fusion": 910063, "norm backward": 910192}
    graphs = {family: make_random_graph(seed, family, version=(9, 14, 0)) for family, seed in families.items()}
    together = compare_versions(graphs, ["a100"], OLDER_VERSION, "default", progress=False, workers=1)
    for one in together.changes:
        (alone,) = compare_versions(
            {one.graph: graphs[one.graph]}, ["a100"], OLDER_VERSION, "default", progress=False, workers=1
        ).changes
        assert (one.old.candidates, one.new.candidates) == (alone.old.candidates, alone.new.candidates)
        assert None not in one.plans


def test_diff_command_compares_graph_files_and_logs(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    save_graph(sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64), paths[0])
    save_graph(forum_two_matmul.graph(), paths[1])
    done = run_command("diff", OLDER_VERSION, "default", "--target", "h100", "--format", "json", *map(str, paths))
    assert done.code == 1, done.stderr
    data = json.loads(done.stdout)
    assert [one["effect"] for one in data["changes"]] == ["changed", "changed"]
    done = run_command("diff", OLDEST_VERSION, OLDER_VERSION, "--target", "h100", "--format", "junit", str(paths[1]))
    assert (done.code, done.stdout.count("<testcase")) in ((0, 1), (1, 1))


def test_compare_lists_graphs_beyond_its_time_limit(tmp_path: Path) -> None:
    """The results are reported after each query, and a time limit of 0 starts no query."""
    graphs = {name: sdpa_forward(batch=2, heads=4, seq_q=seq, head_dim=64) for name, seq in (("a", 64), ("b", 128))}
    progress: list[tuple[int, tuple[str, ...]]] = []
    found = compare_versions(
        graphs,
        ["h100"],
        OLDER_VERSION,
        "default",
        progress=False,
        workers=1,
        keep=lambda so_far: progress.append((len(so_far().changes), so_far().unjudged_graphs)),
    )
    assert progress == [(0, ("a", "b")), (1, ("b",)), (1, ("b",)), (2, ())]
    assert (found.unjudged_graphs, found.unfinished_work) == ((), [])
    save_graph(graphs["a"], tmp_path / "a.json")
    output = tmp_path / "found.json"
    between = (OLDER_VERSION, "default", "--target", "h100", "--limit", "0", "--format", "json")
    done = run_command("diff", *between, "--output", str(output), str(tmp_path / "a.json"))
    assert done.code == 2
    assert "1 graph was not judged within the time limit" in done.stderr
    data = json.loads(output.read_text())
    assert (data["changes"], data["not_asked"]) == ([], [graphs["a"].name])


def test_graphs_of_a_log_that_cannot_be_rebuilt_are_listed(tmp_path: Path) -> None:
    text = (LOG_FOLDER / "torch-frontend-1.18.log").read_text(encoding="utf-8")
    _, second = (line for line in text.splitlines() if line.startswith('{"context"'))
    odd = second.replace('"HALF"', '"HALFISH"')
    log = tmp_path / "odd.log"
    log.write_text(text.replace(second, odd), encoding="utf-8")
    done = run_command("diff", OLDEST_VERSION, OLDER_VERSION, "--target", "h100", "--format", "json", str(log))
    assert "skipped, because it could not be rebuilt: graph 2 of" in done.stderr
    assert "HALFISH" in done.stderr
    data = json.loads(done.stdout)
    assert [one["graph"] for one in data["changes"]] == ["odd.log:1"]
    assert done.code == (1 if data["counts"]["changed"] else 2)
    log.write_text(odd + "\n", encoding="utf-8")
    done = run_command("diff", OLDEST_VERSION, OLDER_VERSION, "--target", "h100", str(log))
    assert (done.code, done.stdout) == (2, "")
    assert "HALFISH" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([OLDER_VERSION, OLDER_VERSION, "--target", "h100"], "are the same cuDNN version"),
        ([OLDER_VERSION, "9.1.1", "--target", "h100"], "9.1.1"),
        ([OLDER_VERSION, "default", "--target", "h100", "--time"], "--time runs on the GPU"),
    ],
)
def test_invalid_arguments_are_reported(tmp_path: Path, arguments: list[str], words: str) -> None:
    path = tmp_path / "a.json"
    save_graph(sdpa_forward(batch=1, heads=1, seq_q=64, head_dim=64), path)
    done = run_command("diff", *arguments, str(path))
    assert done.code == 2
    assert words in done.stderr


def test_compare_versions_refuses_invalid_arguments() -> None:
    graph = {"a": sdpa_forward(batch=1, heads=1, seq_q=64, head_dim=64)}
    with pytest.raises(UsageError, match="no graphs"):
        compare_versions({}, ["h100"], OLDER_VERSION, "default", progress=False)
    with pytest.raises(UsageError, match="unknown-target"):
        compare_versions(graph, ["h101"], OLDER_VERSION, "default", progress=False)
    with pytest.raises(EnvironmentNotReady, match="cudnn-version-not-installed"):
        compare_versions(graph, ["h100"], "9.1.1", "default", progress=False)
