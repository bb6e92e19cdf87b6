"""Random calls on descriptors of every type raise only exceptions of this package, and the process survives."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudnn_backend_py import DescriptorType
from tests.support.child import make_older_cudnn_environment
from tests.torture.harness import BrokenGuarantee
from tests.torture.level0 import run_fuzzer

CALLS_PER_TYPE = 1000  # for each of three seeds; `make torture` makes more
CREATABLE_KINDS = {kind.name for kind in DescriptorType} - {"INTERMEDIATE_INFO"}
OUTCOMES = {
    "set done",
    "set wrong-element-type",
    "set wrong-element-count",
    "set attribute-of-another-descriptor",
    "set attribute-read-only",
    "set descriptor-closed",
    "set interrupted",
    "c set done",
    "c set wrong-element-count",
    "c callback done",
    "set descriptor-finalized",
    "set wrong-descriptor-kind",
    "set child-not-finalized",
    "set unknown-enumerator",
    "set integer-overflow",
    "set cudnn-status",
    "get done",
    "get cudnn-status",
    "get wrong-element-type",
    "finalize done",
    "finalize cudnn-status",
    "finalize descriptor-finalized",
    "finalize attribute-missing",
    "close done",
}


@pytest.mark.parametrize("seed", [101, 102, 103])
def test_random_calls_raise_only_exceptions_of_the_package(seed: int, tmp_path: Path) -> None:
    counted = run_fuzzer(seed, CALLS_PER_TYPE, tmp_path)
    assert set(counted["calls"]) == CREATABLE_KINDS
    assert min(counted["calls"].values()) > 0.95 * CALLS_PER_TYPE
    assert set(counted["outcomes"]) >= OUTCOMES  # the calls are of every kind, not all refused at the start


def test_random_calls_set_attributes_newer_than_the_library(tmp_path: Path) -> None:
    counted = run_fuzzer(106, 500, tmp_path, make_older_cudnn_environment())
    assert counted["cudnn"] == "9.19.0"
    assert counted["outcomes"]["set attribute-newer-than-library"] > 10


def test_a_crash_is_reported_with_its_seed_and_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the table of known issues, the fuzzer crashes cuDNN; the report has the seed and the last call."""
    monkeypatch.setenv("FUZZ_WITHOUT_HAZARDS", "1")
    with pytest.raises(BrokenGuarantee, match=r"(?s)seed 101 ended with SIG.*finalize <Descriptor"):
        run_fuzzer(101, 300, tmp_path)
