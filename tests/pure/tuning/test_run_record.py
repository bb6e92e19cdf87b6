"""logs/run-*.json: output of `cudnn-backend run` on a GPU for five examples and foreign graphs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from cudnn_backend_py.interpreter.data import DATA_KINDS
from cudnn_backend_py.tuning.trial import Trial
from tests.support.records import list_records_as_test_parameters

ROOT = Path(__file__).parents[3]
EXAMPLES = [
    f"examples/{name}.py" for name in ("flash_forward", "flash_backward", "mha_fprop", "mha_bprop", "forum_two_matmul")
]
IMPORTERS_DATA = "tests/pure/importers/data"
FRONTEND_LOG = f"{IMPORTERS_DATA}/logs/torch-frontend-1.18.log"  # of cudnn-frontend, with two graphs
OTHER_LOGS = [
    f"{IMPORTERS_DATA}/logs/forum-9.1.1.log.gz",
    f"{IMPORTERS_DATA}/torch-frontend-1.18-sdpa.json",
]  # of cuDNN, of cudnn-frontend


def load_trials(path: Path) -> list[Trial]:
    return [Trial.from_dict(item) for item in json.loads(path.read_text(encoding="utf-8"))["trials"]]


def get_graph_file(trial: Trial) -> str:
    """Return the file of the graph that a trial ran, from its reproduce command."""
    return shlex.split(trial.reproduce)[2]


def get_graph_arguments(trial: Trial) -> str:
    """Return the graph file that a trial ran, with the option that selects one of its graphs."""
    return " ".join(
        word for word in shlex.split(trial.reproduce)[2:] if not word.startswith(("--data", "--seed", "--configs"))
    )


@pytest.mark.parametrize("path", list_records_as_test_parameters("run-"))
def test_all_recorded_graphs_ran_with_right_results(path: Path) -> None:
    found = load_trials(path)
    assert {get_graph_file(trial) for trial in found} == {*EXAMPLES, *OTHER_LOGS, FRONTEND_LOG}
    assert len({trial.target for trial in found}) == 1
    for trial in found:
        assert trial.state == "right", (get_graph_file(trial), trial.words)
        assert trial.configs
        for config in trial.configs:
            assert config.state == "right", config.words
            assert config.comparisons
            assert all(item.is_right and item.compared for item in config.comparisons)
            assert config.cold is not None
            assert config.warm is not None


@pytest.mark.parametrize("path", list_records_as_test_parameters("run-"))
def test_every_graph_ran_on_every_kind_of_data_and_has_reproduce_commands(path: Path) -> None:
    found = load_trials(path)
    ran = {(get_graph_arguments(trial), trial.data) for trial in found}
    whole = [*EXAMPLES, *OTHER_LOGS, *(f"{FRONTEND_LOG} --graph={number}" for number in (1, 2))]
    assert ran == {(one, kind) for one in whole for kind in DATA_KINDS}
    assert len(ran) == len(found)
    for trial in found:
        assert (ROOT / get_graph_file(trial)).is_file()
        for config in trial.configs:
            words = shlex.split(config.reproduce)
            assert {f"--data={trial.data}", f"--seed={trial.seed}", f"--configs={config.tag}"} <= set(words)
