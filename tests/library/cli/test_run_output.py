"""Output of ``run``: text, JSON, JUnit, the progress bar. `make regen` writes the golden files."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cudnn_backend_py import save_graph
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.tuning.statistics import Timing
from cudnn_backend_py.tuning.trial import ConfigTrial, Trial
from cudnn_backend_py.tuning.trial.bound import Comparison
from cudnn_backend_py.tuning.trial.runner import Runner
from cudnn_backend_py.tuning.trial.trial import OutputFacts
from tests.support.typical_graphs import TYPICAL_GRAPHS

GOLDEN_FOLDER = Path(__file__).parent / "golden"
GOLDEN_FILE_BY_FORMAT = {"text": "run.txt", "json": "run.json", "junit": "run.xml"}

RIGHT_COMPARISON = Comparison("y", 0.5, (0, 1), 0.25, 0.2500001, 1e-6, 0.3, 0, 512, 512)
WRONG_COMPARISON = replace(
    RIGHT_COMPARISON, largest=3.0, where=(1, 2), got=0.5, wanted=0.25, bound=0.01, drift=2.0, beyond=17
)
SCALED_COMPARISON = replace(RIGHT_COMPARISON, drift=0.9, factor=1.01)
NAN_COMPARISON = replace(WRONG_COMPARISON, largest=float("inf"), got=float("nan"))
CONFIG_TRIAL = ConfigTrial(
    tag="eng1_k2=3", mode="A", state="right", comparisons=(RIGHT_COMPARISON,), notes=("TENSOR_CORE",)
)
BASE_TRIAL = Trial(
    graph="a graph",
    target="NVIDIA H200",
    sm=90,
    cudnn="9.19.0",
    data="uniform",
    seed=7,
    state="right",
    inputs=(("x", "f16[2,128,64]"),),
    outputs=(OutputFacts("y", "f32[2,128,2]", 512, 512, 1e-6, 2e-6),),
    reproduce="cudnn-backend run graph.json --data=uniform --seed=7 --configs=all",
    seconds=1.25,
)


def format_command_that_reproduces_config(tag: str) -> str:
    return f"cudnn-backend run graph.json --cudnn=9.19.0.56-full --data=uniform --seed=7 --configs={tag}"


def make_sample_trials() -> Iterator[Trial]:
    """Yield one trial of every state."""
    timed = replace(
        CONFIG_TRIAL, build_s=0.5, workspace_bytes=64, cold=Timing(12.5, 12, 13, 12), warm=Timing(9, 8, 10, 12)
    )
    yield replace(BASE_TRIAL, configs=(timed, replace(CONFIG_TRIAL, tag="eng2", state="refused", words="too small")))
    wrong = [
        replace(CONFIG_TRIAL, tag=f"eng{number}", state="wrong", words=str(item), comparisons=(item,))
        for number, item in enumerate((WRONG_COMPARISON, SCALED_COMPARISON, NAN_COMPARISON), 3)
    ]
    configs = tuple(replace(item, reproduce=format_command_that_reproduces_config(item.tag)) for item in wrong)
    yield replace(BASE_TRIAL, state="wrong", configs=(CONFIG_TRIAL, *configs))
    lost = replace(CONFIG_TRIAL, tag="eng6", state="failed", words="SIGSEGV: in <cuDNN> & so on", comparisons=())
    yield replace(
        BASE_TRIAL,
        state="failed",
        configs=(replace(lost, reproduce=format_command_that_reproduces_config("eng6")),),
        lost="a fault",
    )
    yield replace(BASE_TRIAL, state="failed", words="graph-json: it is not whole", configs=(), outputs=())
    yield replace(BASE_TRIAL, state="refused", words="NOT_SUPPORTED: this needs\ntwo lines", configs=(), outputs=())
    yield replace(BASE_TRIAL, state="not compared", words="POINTWISE cannot be interpreted", configs=(), outputs=())
    known = replace(CONFIG_TRIAL, state="not run", comparisons=())
    words = "h200 is a described GPU: nothing was run"
    unknown = (OutputFacts("y", "f32[2,128,2]", 512),)
    configs = (known, replace(known, tag="eng2"))
    yield replace(BASE_TRIAL, state="not run", described=True, words=words, configs=configs, outputs=unknown)


def format_sample_trials(style: str, folder: Path) -> str:
    """Return the output of ``run`` for the sample trials in one format."""
    path = folder / "graph.json"
    save_graph(TYPICAL_GRAPHS["matmul"].make(), path)
    made = list(make_sample_trials())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "run", lambda *_, **__: made.pop(0))
        done = CliRunner().invoke(main, ["run", *[str(path)] * len(made), "--format", style], prog_name="cudnn-backend")
    assert done.exit_code == 2
    assert done.stderr == ""
    return str(done.stdout)


@pytest.mark.parametrize("style", GOLDEN_FILE_BY_FORMAT)
def test_run_output_equals_the_golden_file(style: str, tmp_path: Path) -> None:
    assert format_sample_trials(style, tmp_path) == (GOLDEN_FOLDER / GOLDEN_FILE_BY_FORMAT[style]).read_text(
        encoding="utf-8"
    ), "run `make regen`"


def test_all_output_formats_have_the_same_content() -> None:
    report = json.loads((GOLDEN_FOLDER / GOLDEN_FILE_BY_FORMAT["json"]).read_text(encoding="utf-8"))
    assert [Trial.from_dict(item).to_dict() for item in report["trials"]] == report["trials"]
    assert [item["state"] for item in report["trials"]] == [item.state for item in make_sample_trials()]
    cases = list(
        ET.fromstring((GOLDEN_FOLDER / GOLDEN_FILE_BY_FORMAT["junit"]).read_text(encoding="utf-8")).iter("testcase")
    )
    assert [[part.tag for part in case] for case in cases] == [
        *([], ["failure"], ["error"], ["error"], ["failure"], ["error"], ["error"])
    ]


def test_each_wrong_or_failed_config_prints_a_command_to_rerun_it() -> None:
    text = (GOLDEN_FOLDER / GOLDEN_FILE_BY_FORMAT["text"]).read_text(encoding="utf-8")
    for trial in make_sample_trials():
        for config in trial.failures:
            assert f"again: {format_command_that_reproduces_config(config.tag)}\n" in text


if __name__ == "__main__":
    import tempfile

    for style, name in GOLDEN_FILE_BY_FORMAT.items():
        with tempfile.TemporaryDirectory() as folder:
            (GOLDEN_FOLDER / name).write_text(format_sample_trials(style, Path(folder)), encoding="utf-8")
