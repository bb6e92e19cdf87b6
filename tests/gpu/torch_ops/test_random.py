"""Random attention problems through the operators, each result compared with a float64 reference."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.gpu.torch_ops.campaign import CAMPAIGN_PARTS, CampaignRecord
from tests.support.figures import append_measurement_to_run_record

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
pytestmark = pytest.mark.filterwarnings("default::UserWarning")  # of known issues that others reported
PROBLEM_COUNT = 40


@pytest.mark.parametrize("shapes", ["any", "adaptive"])
@pytest.mark.parametrize("part", CAMPAIGN_PARTS)
def test_random_attention_problems_give_right_results(part: str, shapes: str) -> None:
    make, run, _ = CAMPAIGN_PARTS[part]
    rng, record = random.Random(f"{part} {shapes}"), CampaignRecord()
    for _ in range(PROBLEM_COUNT):
        run(torch, make(rng), record, shapes)
    found = record.to_dict()[part]
    append_measurement_to_run_record(f"torch operators, random problems, {part}, {shapes}", worst=found["worst"])
    assert found["right"] == PROBLEM_COUNT, found["wrong"]
