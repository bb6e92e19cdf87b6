"""Verdicts: the forum thread's graph, flash attention on every architecture, and what cannot be judged."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import DataType, DescriptorType, GraphBuilder, explain, library, load_plan
from cudnn_backend_py.diagnose import render_text
from cudnn_backend_py.engine import OperationGraph
from cudnn_backend_py.graph import save_graph, sdpa_forward
from cudnn_backend_py.native.find import LIBRARY_VARIABLE
from cudnn_backend_py.target import open_target
from examples import flash_forward, forum_two_matmul
from tests.support.child import ROOT, Finished, older_cudnn, run_code, run_python

FORUM = "examples/forum_two_matmul.py"
OLDER = "9.19.0"
SHARED_MEMORY_SM89 = 101376


def command(*arguments: str, **options: Any) -> Finished:
    return run_python(["-m", "cudnn_backend_py", *arguments], **options)


def test_forum_graph_needs_more_shared_memory_than_sm89_has() -> None:
    answer = command("explain", FORUM, "--cudnn", OLDER, "--target", "sm89", "--format", "json")
    assert answer.code == 1
    verdict = json.loads(answer.stdout)
    assert verdict["outcome"] == "not supported"
    first = verdict["candidates"][0]
    assert (first["mode"], first["engine"]) == ("A", 0)
    assert first["reasons"][0]["status"] == "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT"
    cause = verdict["cause"]
    assert cause["code"] == "shared-memory-per-block-insufficient"
    assert cause["basis"] == "measured"
    assert cause["headline"] == (
        "engine 0 needs 153600 bytes (150 KiB) of shared memory per block, sm_89 has 101376 bytes (99 KiB) at most"
    )
    assert "not the free memory of the GPU" in cause["detail"]


def test_forum_verdict_as_text_names_status_engine_and_limit() -> None:
    answer = command("explain", FORUM, "--cudnn", OLDER, "--target", "l40s")
    assert answer.code == 1
    assert answer.stdout.startswith("NOT SUPPORTED: graph 'forum_two_matmul' on NVIDIA L40S (sm_89), cuDNN 9.19.0\n")
    cause = next(line for line in answer.stdout.splitlines() if line.startswith("cause:"))
    assert "shared memory per block" in cause
    assert str(SHARED_MEMORY_SM89) in cause
    assert "A        engine 0 KERNEL_CFG=0 refused\n    CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT: " in (
        answer.stdout
    )


@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_forum_graph_is_supported_where_shared_memory_suffices(target: str) -> None:
    answer = command("explain", FORUM, f"--cudnn={OLDER}", "--target", target)
    assert answer.code == 0
    assert answer.stdout.startswith("SUPPORTED: ")


def test_newest_cudnn_removed_the_pattern() -> None:
    verdict = explain(forum_two_matmul.graph(), "sm89")
    assert verdict.exit_code == 1
    assert verdict.cause is not None
    assert verdict.cause.code == "pattern-removed"
    assert "no longer supported" in verdict.cause.headline


FLASH_TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100")


def check_flash(folder: Path) -> None:
    """Judge, build, save and load causal flash forward with statistics for every architecture; run in any process."""
    graph = flash_forward.graph()
    for name in FLASH_TARGETS:
        target = open_target(name)
        plans: list[Any] = []
        verdict = explain(graph, target, build=True, plans=plans)
        assert verdict.supported, render_text(verdict)
        assert verdict.stage == "plan"
        plans[0].save(folder / f"{name}.json")
        loaded = load_plan(folder / f"{name}.json", target)
        assert loaded.graph == graph
        assert loaded.workspace_bytes == plans[0].workspace_bytes
        target.close()


def test_causal_flash_with_stats_builds_everywhere(tmp_path: Path) -> None:
    check_flash(tmp_path)


def test_causal_flash_with_stats_builds_everywhere_with_an_older_cudnn(tmp_path: Path) -> None:
    code = (
        "import pathlib; from cudnn_backend_py import library; from tests.library.test_explain import check_flash; "
        f"assert library().version == (9, 19, 0); check_flash(pathlib.Path({str(tmp_path)!r}))"
    )
    run_code(code, environment=older_cudnn(), timeout_s=180)
    assert len(list(tmp_path.glob("*.json"))) == len(FLASH_TARGETS)


def test_refused_candidates_keep_their_reasons_where_others_survive() -> None:
    verdict = explain(flash_forward.graph(), "sm80")
    refused = [candidate for candidate in verdict.candidates if candidate.state == "refused"]
    assert verdict.supported
    assert refused
    assert all(candidate.reasons for candidate in refused)
    assert any(candidate.knobs for candidate in verdict.candidates if candidate.state == "supported")


def test_every_mode_can_be_asked() -> None:
    verdict = explain(flash_forward.graph(), "sm90", mode=("A", "B", "FALLBACK"))
    assert verdict.modes == ("A", "B", "FALLBACK")
    assert {candidate.mode for candidate in verdict.candidates} == {"A", "B", "FALLBACK"}


def test_a_graph_json_is_judged_like_its_python_file(tmp_path: Path) -> None:
    save_graph(flash_forward.graph(), tmp_path / "graph.json")
    answer = command("explain", str(tmp_path / "graph.json"), "--target", "sm90", "--format", "json")
    assert answer.code == 0
    verdict = json.loads(answer.stdout)
    assert (
        verdict["candidates"] == json.loads(json.dumps(explain(flash_forward.graph(), "sm90").to_dict()))["candidates"]
    )


def test_several_targets_exit_with_the_worst() -> None:
    answer = command("explain", "examples/flash_forward.py", "--target", "sm90", "--target", "sm75", "--format", "json")
    assert answer.code == 1
    assert [verdict["outcome"] for verdict in json.loads(answer.stdout)] == ["supported", "not supported"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("explain", FORUM), "there is no GPU in this process"),
        (("explain", FORUM, "--target", "sm90", "--cudnn", "9.1.1"), "cudnn-version-not-installed"),
        (("explain", FORUM, "--target", "sm8"), "unknown-target"),
        (("explain", "README.md", "--target", "sm90"), "graph-file"),
        (("explain", "nothing.json", "--target", "sm90"), "there is no file nothing.json"),
        (("explain", FORUM, "--target", "sm90", "--mode", "C"), "no heuristics mode is called 'C'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_judged_exits_with_2(arguments: tuple[str, ...], words: str) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    answer = command(*arguments, environment=environment)
    assert answer.code == 2
    assert words in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr


def test_without_any_driver_library_nothing_is_called_unsupported(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "cudnn_backend_py", tmp_path / "cudnn_backend_py", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for environment in (dict(os.environ), older_cudnn()):
        environment["PYTHONPATH"] = str(tmp_path)
        answer = command("explain", FORUM, "--target", "sm89", cwd=tmp_path, environment=environment)
        if "driver: real" in answer.stdout:
            continue  # a machine with a driver has nothing missing
        assert answer.code == 2, answer.stdout
        assert answer.stdout.startswith("COULD NOT BE JUDGED"), answer.stdout
        assert "there is no libcuda.so.1" in answer.stdout or "SUBLIBRARY_LOADING_FAILED" in answer.stdout


def test_a_missing_library_lists_every_place(tmp_path: Path) -> None:
    environment = {**os.environ, LIBRARY_VARIABLE: str(tmp_path)}
    answer = command("explain", FORUM, "--target", "sm90", environment=environment)
    assert answer.code == 2
    assert f"{tmp_path} does not exist or holds no libcudnn.so.9" in answer.stdout

    isolated = f"""
import sys
sys.path[:] = [item for item in sys.path if "site-packages" not in item] + [{str(tmp_path)!r}]
import cudnn_backend_py.native as native
try:
    native.library()
except OSError as error:
    print(error.render())
"""
    bare = {key: value for key, value in os.environ.items() if key != LIBRARY_VARIABLE}
    shutil.copytree(ROOT / "cudnn_backend_py", tmp_path / "cudnn_backend_py")
    text = run_python(["-S", "-c", isolated], environment=bare, cwd=tmp_path, check=True).stdout
    assert text.startswith("cudnn-library-not-found: no libcudnn.so.9 can be loaded")
    for place in (
        "explicit path: none given",
        f"environment variable {LIBRARY_VARIABLE}: not set",
        "already loaded in this process: no libcudnn.so",
        "wheel nvidia-cudnn-cu12",
        "wheel nvidia-cudnn-jit-cu12",
        "system: no ",
        "dynamic loader: libcudnn.so.9 cannot be loaded",
    ):
        assert place in text, place


def test_two_libraries_in_one_process_are_refused() -> None:
    other = older_cudnn()[LIBRARY_VARIABLE]
    text = run_code(
        f"""
from cudnn_backend_py import EnvironmentNotReady, library
print(library().version_text)
try:
    library({other!r})
except EnvironmentNotReady as error:
    print(error.code)
print(library(library().path) is library())
"""
    ).stdout
    assert text.split() == [library().version_text, "cudnn-library-already-loaded", "True"]


def test_a_graph_newer_than_the_library_says_which_version_it_needs(tmp_path: Path) -> None:
    g = GraphBuilder("softmax", io_type=DataType.FLOAT)
    g.operation(DescriptorType.OPERATION_SOFTMAX, x=g.tensor("x", (1, 2, 8, 8)), y=g.tensor("y", (1, 2, 8, 8)))
    save_graph(g.graph(), tmp_path / "softmax.json")
    answer = command(
        "explain", str(tmp_path / "softmax.json"), "--target", "sm90", "--cudnn", OLDER, "--format", "json"
    )
    assert answer.code == 1
    cause = json.loads(answer.stdout)["cause"]
    assert cause["code"] == "descriptor-newer-than-library"
    assert "needs cuDNN 9.20.0, the loaded library is 9.19.0" in cause["headline"]


def test_cudnns_own_refusal_of_the_operation_graph_is_a_verdict() -> None:
    g = GraphBuilder("overlap", io_type=DataType.HALF)
    x = g.tensor("x", (1, 8, 8), alignment=1)
    y = g.tensor("y", (1, 8, 8))
    g.operation(DescriptorType.OPERATION_RESHAPE, x=x, y=g.tensor("z", (1, 4, 4)))
    g.operation(DescriptorType.OPERATION_TRANSPOSE, x=y, y=g.tensor("w", (1, 8, 8)), permutation=(0, 0, 0))
    verdict = explain(g.graph(), "sm90")
    assert verdict.exit_code == 1
    assert verdict.stage in ("operation graph", "heuristics")
    assert verdict.control is not None
    assert verdict.control.supported


def test_a_device_that_cannot_be_asked_is_not_called_unsupported() -> None:
    """Double-precision matmul has only a cuBLASLt engine on the full wheel, which needs a device to say more."""
    g = GraphBuilder("double", io_type=DataType.DOUBLE, intermediate_type=DataType.DOUBLE, compute_type=DataType.DOUBLE)
    g.matmul(g.tensor("a", (2, 64, 64)), g.tensor("b", (2, 64, 64)), name="c", virtual=False)
    verdict = explain(g.graph(), "h100-sxm")
    said = {reason.text for candidate in verdict.candidates for reason in candidate.reasons[:1]}
    needs_device = any("create_cublas_handle" in text or "cga_count == 0" in text for text in said)
    assert (verdict.outcome == "could not be judged") == needs_device


def test_candidates_are_those_the_engine_layer_sees() -> None:
    graph = sdpa_forward(batch=1, heads=2, seq_q=256, head_dim=64, causal=True)
    target = open_target("sm90")
    seen = [config.tag for config in OperationGraph(graph, target).heuristics("A").configs]
    told = [
        candidate.engine for candidate in explain(graph, target, mode="A").candidates if candidate.state != "refused"
    ]
    assert [int(tag.split("_")[0].removeprefix("eng")) for tag in seen] == told
    target.close()


def test_info_says_what_judges() -> None:
    answer = command("info", "--format", "json")
    assert answer.code == 0
    facts = json.loads(answer.stdout)
    assert facts["cudnn"] == library().version_text
    assert facts["python"] == sys.version.split()[0]
    assert any(name.startswith("l40s ") for name in facts["known targets"])
    older = json.loads(command("info", "--format", "json", "--cudnn", OLDER).stdout)
    assert older["cudnn"] == OLDER
