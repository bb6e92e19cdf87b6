"""For a grid of calls, `why` finds without torch the first condition that excludes cuDNN, the one torch reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.why.conditions import find_blocker, find_condition_by_message, find_releases
from tests.support.torch_backend_cases import make_torch_call, parse_torch_backend_choice, read_machine
from tools.records import sdpa_grid

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
CASE_COUNT = 320


def list_calls_judged_differently_than_by_torch(record: dict[str, Any]) -> list[str]:
    """Return a line for each call for which the package's answer differs from torch's."""
    machine, found = read_machine(record), []
    for item in record["cases"]:
        case, answer = item["case"], item["answer"]
        if "unmade" in answer or not isinstance(answer["cudnn"], bool):
            continue
        call = make_torch_call(case)
        ours = find_blocker(call, machine)
        gate = ours.gate if ours else None
        reported = find_condition_by_message(tuple(answer["words"]))
        short = {
            name: value for name, value in case.items() if name not in "qkv" and value != sdpa_grid.BASE_CASE.get(name)
        }
        if answer["cudnn"] != (gate in (None, "order")):
            found.append(f"{short}: torch {answer['cudnn']} {reported}, ours {gate}")
        elif not answer["cudnn"] and reported is not None and reported != gate:
            found.append(f"{short}: torch {reported}, ours {gate}")
        elif answer["cudnn"] and isinstance(answer["choice"], int) and (answer["choice"] == 3) != (gate is None):
            found.append(f"{short}: torch chose {answer['choice']}, ours {gate}")
        named = find_blocker(call, machine, parse_torch_backend_choice(answer))
        if (named is None) != (answer["choice"] == 3):
            found.append(f"{short}: torch chose {answer['choice']}, asked: {named and named.gate}")
    return found


@pytest.mark.parametrize(
    "setting", ["", "TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED=1", "TORCH_CUDNN_SDPA_DEPRIORITIZED=1"]
)
def test_first_condition_excluding_cudnn_is_the_one_torch_reports(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "grid.json"
    name, _, value = setting.partition("=")
    environment = {**os.environ, **({name: value} if name else {})}
    subprocess.run([sys.executable, sdpa_grid.__file__, str(path), str(CASE_COUNT)], check=True, env=environment)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert find_releases(read_machine(record).torch), "no gates of this torch are known"
    answered = [item for item in record["cases"] if "unmade" not in item["answer"]]
    assert len(answered) > CASE_COUNT * 0.9
    assert list_calls_judged_differently_than_by_torch(record) == []
