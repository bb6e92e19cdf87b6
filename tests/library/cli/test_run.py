"""``run`` without a GPU: its inputs, the planned runs, overrides, batch files, formats, exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import tracemalloc
import xml.etree.ElementTree as ET
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from cudnn_backend_py import EnvironmentNotReady, Graph, GraphError, UsageError, attention, save_graph, terminal
from cudnn_backend_py.cli import run as run_module
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.graph.serial import graph_to_json
from cudnn_backend_py.system.child import RestartingChildProcess
from cudnn_backend_py.target import profiles
from cudnn_backend_py.tuning.statistics import Timing
from cudnn_backend_py.tuning.trial import ConfigTrial, Trial, run_graph
from cudnn_backend_py.tuning.trial import runner as runner_module
from cudnn_backend_py.tuning.trial import trial as trial_module
from cudnn_backend_py.tuning.trial.bound import Comparison
from cudnn_backend_py.tuning.trial.runner import Runner
from tests.support.child import ROOT
from tests.support.typical_graphs import TYPICAL_GRAPHS

FORUM_LOG = ROOT / "tests/pure/importers/data/logs/forum-9.1.1.log.gz"
FRONTEND_JSON = ROOT / "tests/pure/importers/data/torch-frontend-1.18-sdpa.json"
EXAMPLE_GRAPHS = ("flash_backward", "flash_forward", "mha_fprop", "mha_bprop", "forum_two_matmul")


def invoke_run_command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["run", *map(str, arguments)], prog_name="cudnn-backend")


def run_command_and_get_trials(*arguments: str | Path) -> list[dict[str, Any]]:
    done = invoke_run_command(*arguments, "--format", "json")
    assert done.exit_code in (0, 1, 2), done.output
    report = json.loads(done.stdout)
    assert report["schema"] == "cudnn-backend-py/run"
    found: list[dict[str, Any]] = report["trials"]
    assert [Trial.from_dict(item).to_dict() for item in found] == found
    return found


@pytest.fixture
def matmul_file(tmp_path: Path) -> Path:
    path = tmp_path / "matmul.json"
    save_graph(TYPICAL_GRAPHS["matmul"].make(), path)
    return path


def test_run_for_a_described_gpu_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph's inputs would need 8 GB and its attention scores 1 TB: neither may be computed."""
    graph = attention.sdpa_forward(batch=32, heads=32, seq_q=65536, head_dim=128)
    for name in ("make_inputs", "load_npz_arrays", "compute_expected_outputs"):
        monkeypatch.setattr(trial_module, name, None)
    tracemalloc.start()
    try:
        found = run_graph(graph, target="h100")
        assert (found.state, len(found.configs) > 0) == ("not run", True)
        path = tmp_path / "data.npz"
        np.savez(path, nope=np.zeros(3))
        with pytest.raises(UsageError, match="data are given for nope"):
            run_graph(graph, target="h100", data=str(path))
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


def test_run_for_a_described_gpu_shows_the_planned_runs(matmul_file: Path) -> None:
    done = invoke_run_command(matmul_file, "--target", "h100", "--configs", "2")
    assert done.exit_code == 2
    assert "would run eng" in done.stdout
    assert "reads a f16[2,128,64], b f16[2,64,256], bias f16[1,1,256]" in done.stdout
    assert "writes gelu_fwd f16[2,128,256]\n" in done.stdout
    (found,) = run_command_and_get_trials(matmul_file, "--target", "h100", "--configs", "2")
    (output,) = found["outputs"]  # outputs without a comparison are not interpreted
    assert output == {"name": "gelu_fwd", "type": "f16[2,128,256]", "elements": 65536} | dict.fromkeys(
        ("compared", "median_bound", "largest_bound")
    )
    assert found["state"] == "not run"
    assert [item["state"] for item in found["configs"]] == ["not run"] * 2
    words = shlex.split(found["configs"][1]["reproduce"])
    assert words[:3] == ["cudnn-backend", "run", str(matmul_file)]
    assert invoke_run_command(*words[2:]).exit_code == 2


def test_run_does_not_change_a_graph_that_cudnn_refuses(tmp_path: Path) -> None:
    """The graph is run as it is, and its state is "refused", not "failed"."""
    data = graph_to_json(TYPICAL_GRAPHS["convolution forward"].make())
    for one in data["tensors"]:
        if one["dims"] == [4, 64, 28, 28]:
            one["dims"][2] -= 1
    path = tmp_path / "convolution.json"
    path.write_text(json.dumps(data))
    (found,) = run_command_and_get_trials(path, "--target", "h100")
    assert (found["state"], "BAD_PARAM" in found["words"]) == ("refused", True)
    assert invoke_run_command(path, "--target", "h100").exit_code == 1


def test_run_without_a_gpu_or_target_judges_nothing(matmul_file: Path) -> None:
    done = invoke_run_command(matmul_file)
    assert done.exit_code == 2
    assert "no-gpu" in done.stderr
    assert "--target l40s" in done.stderr


@pytest.mark.parametrize("name", EXAMPLE_GRAPHS)
def test_run_reads_example_graphs(name: str) -> None:
    (found,) = run_command_and_get_trials(
        ROOT / "examples" / f"{name}.py", "--target", "h100", "--dims", *_make_dims_override(name)
    )
    assert found["state"] in ("not run", "refused")
    assert found["outputs"] or found["state"] == "refused"
    if name.startswith("flash"):
        assert len(found["configs"]) > 1


def _make_dims_override(name: str) -> list[str]:
    return ["q=1,0,128,64"] if name.startswith("flash") else ["q=0,0,0,0"]


def test_run_reads_cudnn_logs_and_frontend_json() -> None:
    (found,) = run_command_and_get_trials(FORUM_LOG, "--target", "h100")
    assert found["reproduce"].startswith(f"cudnn-backend run {FORUM_LOG} ")
    (found,) = run_command_and_get_trials(
        FRONTEND_JSON, "--target", "h100", "--set", "seq_q=128", "--set", "batch=1", "--set", "heads=2"
    )
    assert (found["graph"], found["state"]) == ("sdpa_forward", "not run")
    assert "f16[1,2,128," in dict(map(tuple, found["inputs"])).popitem()[1] or found["configs"]


def test_overrides_change_the_graph_that_is_run(matmul_file: Path) -> None:
    (found,) = run_command_and_get_trials(
        *(
            matmul_file,
            "--target",
            "h100",
            "--dims",
            "a=4,256,32",
            "--type",
            "*=bf16",
            "--set",
            "gelu_fwd.mode=relu_fwd",
        ),
    )
    assert dict(map(tuple, found["inputs"]))["b"] == "bf16[4,32,256]"
    assert "--dims=a=4,256,32 " in found["reproduce"]
    assert "'--type=*=bf16' --set=gelu_fwd.mode=relu_fwd" in found["reproduce"]


def test_each_kind_of_input_data_gives_one_trial(matmul_file: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", a=np.ones((2, 128, 64)))
    kinds = ("integers", "hostile", str(tmp_path / "mine.npz"))
    found = run_command_and_get_trials(
        matmul_file, "--target", "h100", "--seed", "3", *(f"--data={kind}" for kind in kinds)
    )
    assert [(item["data"], item["seed"]) for item in found] == [(kind, 3) for kind in kinds]
    done = invoke_run_command(matmul_file, "--target", "h100", "--data=integers", "--data=hostile")
    assert "2 trials: 2 not run" in done.stdout


def test_batch_files_have_a_command_line_per_line(matmul_file: Path, tmp_path: Path) -> None:
    batch = tmp_path / "all.txt"
    batch.write_text("# two of them\nmatmul.json --data integers --seed 7\n\nmatmul.json --dims a=1,64,64 # small\n")
    found = run_command_and_get_trials("--batch", batch, "--target", "h100", "--seed", "2")
    assert [(item["data"], item["seed"]) for item in found] == [("integers", 7), ("uniform", 2)]
    assert dict(map(tuple, found[1]["inputs"]))["a"] == "f16[1,64,64]"
    for line, words in (
        ("matmul.json --format json", "applies to the whole batch"),
        ('"', "line 1"),
        ("matmul.json\nx --nope", "all.txt, line 2: No such option"),
        ("x --dims", "all.txt, line 1: Option '--dims' requires an argument."),
    ):
        batch.write_text(f"{line}\n")
        done = invoke_run_command("--batch", batch, "--target", "h100")
        assert done.exit_code == 2
        assert words in done.output


def test_batch_and_printed_commands_may_name_a_cudnn_version(matmul_file: Path, tmp_path: Path) -> None:
    batch = tmp_path / "all.txt"
    one = "matmul.json --configs 1"
    batch.write_text(f"{one} --cudnn 9.19 --data integers --seed 7\n{one} --cudnn=9.24-jit\n{one}\n{one} --cudnn=1.2\n")
    found = run_command_and_get_trials("--batch", batch, "--target", "h100", "--dims", "a=1,64,64")
    assert [item["cudnn"][:4] for item in found[:2]] == ["9.19", "9.24"]
    assert [item["state"] for item in found] == ["not run", "not run", "not run", "failed"]
    assert "cuDNN 1.2 is not installed" in found[3]["words"]
    assert "--cudnn" not in found[2]["reproduce"]
    for item, words in zip(found[:2], (["--data=integers", "--seed=7"], ["--data=uniform", "--seed=0"]), strict=True):
        (config,) = item["configs"]
        line = shlex.split(config["reproduce"])
        named = [word for word in line if word.startswith("--cudnn=")]
        assert {"--dims=a=1,64,64", f"--configs={config['tag']}", *words} <= set(line)
        assert named[0].startswith(f"--cudnn={item['cudnn'].partition('+')[0]}")
        batch.write_text(shlex.join(line[2:]))
        (again,) = run_command_and_get_trials("--batch", batch)
        assert again["configs"] == [{**config, "mode": "named"}]
    for line in (f"{one} --cudnn", f"{one} --cudnn --seed 1", f"{one} --cudnn 9.19 --full"):
        batch.write_text(line)
        done = invoke_run_command("--batch", batch, "--target", "h100")
        assert (done.exit_code, "line 1: --" in done.output) == (2, True)


def test_paths_in_a_batch_file_are_relative_to_its_folder(
    matmul_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "mine.npz", a=np.ones((2, 128, 64)))
    (tmp_path / "all.txt").write_text("matmul.json --data mine.npz --data uniform\n")
    (tmp_path / "uniform").mkdir()  # not the intended one
    monkeypatch.chdir("/")
    found = run_command_and_get_trials("--batch", tmp_path / "all.txt", "--target", "h100", "--configs", "1")
    assert [(item["state"], item["data"]) for item in found] == [
        ("not run", str(tmp_path / "mine.npz")),
        ("not run", "uniform"),
    ]


def test_an_unreadable_log_graph_does_not_stop_the_other_graphs(
    matmul_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log lacks a part of one graph; another graph has no tensor of the name in --dims."""
    whole = TYPICAL_GRAPHS["matmul"].make()
    other = TYPICAL_GRAPHS["reduction"].make()
    in_log: list[tuple[int | None, Graph | GraphError]] = [
        (1, whole),
        (2, GraphError("the log ends in it", code="log-graph")),
        (3, other),
        (4, whole),
    ]
    monkeypatch.setattr(run_module, "read_graphs_and_errors", lambda _path, _number: in_log)
    found = run_command_and_get_trials(matmul_file, "--target", "h100", "--configs", "1", "--dims", "a=1,128,64")
    assert [item["state"] for item in found] == ["not run", "failed", "failed", "not run"]
    assert found[1]["words"] == "log-graph: the log ends in it"
    assert "unknown-tensor" in found[2]["words"]
    for number, item in enumerate(found, 1):
        assert {f"--graph={number}", "--dims=a=1,128,64"} <= set(shlex.split(item["reproduce"]))


def test_trial_text_and_progress_bar_are_on_separate_lines(matmul_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_PROGRESS_DELAY_S", -1.0)
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    done = invoke_run_command(matmul_file, matmul_file, "--target", "h100", "--configs", "1")
    assert "1/2" in done.stderr
    before = done.output.split("NOT RUN")[:-1]
    assert len(before) == 2
    assert all(text.endswith("\x1b[2K") for text in before), before
    assert done.stdout.startswith("NOT RUN")


def test_printed_commands_name_the_file_of_a_described_gpu(matmul_file: Path, tmp_path: Path) -> None:
    mine = tmp_path / "my gpu.json"
    facts = json.loads((files(profiles.__package__) / "profiles" / "h100-sxm.json").read_text(encoding="utf-8"))
    mine.write_text(json.dumps({**facts, "name": "mine", "aliases": []}))
    (found,) = run_command_and_get_trials(matmul_file, "--target", mine, "--configs", "1")
    (config,) = found["configs"]
    line = shlex.split(config["reproduce"])
    assert f"--target={mine}" in line
    (again,) = run_command_and_get_trials(*line[2:])
    assert again["configs"] == [{**config, "mode": "named"}]


def test_the_unknown_target_error_says_where_targets_are_listed(matmul_file: Path) -> None:
    (found,) = run_command_and_get_trials(matmul_file, "--target", "nope")
    assert found["words"].startswith("unknown-target")
    assert "cudnn-backend target list" in found["words"]


def test_an_unreadable_graph_does_not_stop_the_other_files(matmul_file: Path, tmp_path: Path) -> None:
    found = run_command_and_get_trials(
        matmul_file, tmp_path / "none.json", matmul_file, "--target", "h100", "--dims", "a=0,0,0"
    )
    assert [item["state"] for item in found] == ["not run", "failed", "not run"]
    assert "there is no file" in found[1]["words"]
    assert run_command_and_get_trials(matmul_file, "--target", "h100", "--dims", "nope=1")[0]["words"].startswith(
        "unknown-tensor"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        *((), ("--dims", "a"), ("--dims", "a=1,x"), ("--configs", "nope"), ("--data", "nope"), ("--graph", "0")),
        ("--limit", "0"),
    ],
)
def test_run_with_wrong_arguments_exits_with_2(arguments: tuple[str, ...], matmul_file: Path) -> None:
    done = invoke_run_command(*([matmul_file, "--target", "h100"] if arguments else []), *arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_a_junit_report_is_written_to_the_output_file(matmul_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    assert invoke_run_command(matmul_file, "--target", "h100", "--format", "junit", "--output", path).exit_code == 2
    (case,) = ET.parse(path).getroot().iter("testcase")
    assert case.attrib["name"].startswith("NVIDIA H100")
    assert case.find("error") is not None


# results of a GPU


def make_trial(**facts: Any) -> Trial:
    return replace(run_graph(TYPICAL_GRAPHS["matmul"].make(), target="h100", configs=1), described=False, **facts)


WRONG_COMPARISON = Comparison("y", 3.0, (1, 2), 0.5, 0.25, 0.01, 2.0, 17, 100, 100)


@pytest.mark.parametrize(
    ("state", "comparison", "code", "said"),
    [
        (
            "right",
            replace(WRONG_COMPARISON, largest=0.5, drift=0.3, beyond=0),
            0,
            "1 of 1 configs right, largest error 0.5",
        ),
        ("wrong", WRONG_COMPARISON, 1, "wrong eng1: y: error 3"),
        ("failed", None, 2, "failed eng1: SIGSEGV"),
    ],
)
def test_run_report_states_right_and_wrong_results(
    state: str, comparison: Comparison | None, code: int, said: str, matmul_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing = Timing(12.5, 12.0, 13.0, 12)
    config = ConfigTrial(
        tag="eng1",
        mode="A",
        state=state,  # type: ignore[arg-type]
        words=str(comparison) if state == "wrong" else "SIGSEGV" if state == "failed" else "",
        comparisons=(comparison,) if comparison else (),
        cold=timing if state == "right" else None,
        warm=timing if state == "right" else None,
        reproduce="cudnn-backend run x --configs=eng1",
    )
    made = make_trial(state=state, words="", configs=(config,))
    monkeypatch.setattr(Runner, "run", lambda *_, **__: made)
    done = invoke_run_command(matmul_file)
    assert done.exit_code == code
    assert said in done.stdout
    assert ("again: cudnn-backend run x --configs=eng1" in done.stdout) == (state != "right")
    assert ("eng1 12.5 us cold, 12.5 us warm" in done.stdout) == (state == "right")
    (case,) = ET.fromstring(invoke_run_command(matmul_file, "--format", "junit").stdout).iter("testcase")
    assert [item.tag for item in case] == {"right": [], "wrong": ["failure"], "failed": ["error"]}[state]


# the Python function and its child processes


def test_run_graph_refuses_unsupported_arguments() -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    with pytest.raises(EnvironmentNotReady):
        run_graph(graph)
    for options, code in (({"configs": 0}, "trial-configs"), ({"configs": "nope"}, "engine-tag")):
        with pytest.raises(UsageError) as error:
            run_graph(graph, target="h100", **options)  # type: ignore[arg-type]
        assert error.value.code == code


def test_a_graph_without_an_engine_is_refused_with_cudnns_message() -> None:
    found = run_graph(TYPICAL_GRAPHS["transpose"].make(), target="h100")
    assert (found.state, found.exit_code, found.configs) == ("refused", 1, ())
    assert "is_pointwise_fusion" in found.words


def test_run_selects_one_engine_config_by_its_tag() -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    every = run_graph(graph, target="h100", configs="all")
    assert len(every.configs) > 3
    (one,) = run_graph(graph, target="h100", configs=every.configs[2].tag).configs
    assert one.tag == every.configs[2].tag


def test_run_in_a_child_process_gives_the_same_results_and_errors() -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    with Runner() as runner:
        there = runner.run(graph, target="h100", configs=2, given={"a": np.ones((2, 128, 64))})
        here = run_graph(graph, target="h100", configs=2, given={"a": np.ones((2, 128, 64))})
        assert replace(there, seconds=0.0) == replace(here, seconds=0.0)
        with pytest.raises(UsageError, match="is no"):
            runner.run(graph, target="h100", data="nope")
        with pytest.raises(EnvironmentNotReady):
            runner.run(graph)


def run_graphs_and_crash_at_second_config() -> None:
    """Run graphs in a child process, and crash with SIGSEGV when the second config runs."""
    real = runner_module.run_graph

    def run_and_crash(graph: Any, *, step: Any, done: Any, skip: Any, **options: Any) -> Trial:
        found = real(graph, step=step, skip=skip, **options)
        configs = []
        for number, config in enumerate(found.configs):
            step(f"running {config.tag}")
            if config.tag not in skip and number == 1:
                os.kill(os.getpid(), signal.SIGSEGV)
            item = replace(config, state="failed" if config.tag in skip else "right", words=skip.get(config.tag, ""))
            done(item)
            configs.append(item)
        return replace(found, configs=tuple(configs), state="right", described=False)

    runner_module.run_graph = run_and_crash
    runner_module.serve_trials()


def test_a_crashing_config_does_not_lose_results_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_crashing_child(_function: str, environment: Any) -> RestartingChildProcess:
        def make_environment_with_tests() -> dict[str, str]:
            given = environment()
            return {**given, "PYTHONPATH": os.pathsep.join([str(ROOT), given.get("PYTHONPATH", "")])}

        return RestartingChildProcess(
            f"{__name__}:{run_graphs_and_crash_at_second_config.__name__}", make_environment_with_tests
        )

    monkeypatch.setattr(runner_module, "RestartingChildProcess", start_crashing_child)
    with Runner(limit_s=60) as runner:
        found = runner.run(TYPICAL_GRAPHS["matmul"].make(), target="h100", configs=3)
    assert [item.state for item in found.configs] == ["right", "failed", "right"]
    assert found.configs[1].words.startswith("SIGSEGV")
    assert found.state == "failed"
