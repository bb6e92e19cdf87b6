"""The table of torch's conditions compared with torch 2.11 on an H200 for 440 calls (`tools.records.sdpa_grid`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.why.calls import BACKENDS, TorchBackendChoice
from cudnn_backend_py.why.conditions import GATES, GATES_BY_TORCH_FUNCTION, find_blocker, find_default_backend_order
from tests.support.torch_backend_cases import make_torch_call, read_machine
from tools.records import sdpa_grid

RECORDS = json.loads((Path(__file__).parent / "data" / "sdpa-torch-2.11-h200.json").read_text(encoding="utf-8"))
NAMES = [next(iter(record["environment"]), "plain") for record in RECORDS]


@pytest.mark.parametrize("record", RECORDS, ids=NAMES)
def test_the_found_condition_is_the_one_that_torch_reported_first(record: dict[str, Any]) -> None:
    machine = read_machine(record)
    for changes, able, function, choice in record["cases"]:
        blocker = find_blocker(make_torch_call({**sdpa_grid.BASE_CASE, **changes}), machine)
        gate = blocker.gate if blocker else None
        assert able == (gate in (None, "order")), (changes, gate)
        if function is not None:
            assert GATES_BY_TORCH_FUNCTION[function] == gate, changes
        if able and choice is not None:
            assert (choice == 3) == (gate is None), (changes, choice, gate)
        assert blocker is None or blocker.sure or gate == "order", changes


@pytest.mark.parametrize("record", RECORDS, ids=NAMES)
def test_torchs_recorded_backend_choice_overrides_the_conditions(record: dict[str, Any]) -> None:
    machine = read_machine(record)
    for changes, able, function, choice in record["cases"]:
        words = () if function is None else (f"something (function {function})",)
        answer = TorchBackendChoice(BACKENDS.get(choice), able, words)
        blocker = find_blocker(make_torch_call({**sdpa_grid.BASE_CASE, **changes}), machine, answer)
        assert (blocker is None) == (choice == 3), changes
        if blocker is not None and function is not None:
            assert (blocker.gate, blocker.words) == (GATES_BY_TORCH_FUNCTION[function], words)


@pytest.mark.parametrize("record", RECORDS, ids=NAMES)
def test_default_backend_order_equals_torchs_recorded_order(record: dict[str, Any]) -> None:
    order = [BACKENDS[number] for number in record["order"]]
    assert order[:4] == list(find_default_backend_order(read_machine(record)))


def test_all_conditions_but_five_are_violated_by_a_recorded_call() -> None:
    """Five of torch's conditions cannot fail on Hopper with cuDNN 9.19; the public reports cover those."""
    seen = {
        GATES_BY_TORCH_FUNCTION[function]
        for record in RECORDS
        for _, _, function, _ in record["cases"]
        if function is not None
    }
    assert set(GATES) - seen == {
        "dropout-of-version",
        "architecture",
        "dropout-steps",
        "backward-dims",
        "nested-query",
    }
    assert sum(len(record["cases"]) for record in RECORDS) == 440
