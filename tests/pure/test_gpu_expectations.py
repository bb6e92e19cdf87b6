"""Expected performance of tests/gpu by architecture, the GPU memory limit, and skip reasons in the record of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cudnn_backend_py.testing.record import record_test_run
from tests.support.child import ROOT
from tests.support.gpu_memory import MEMORY_LIMIT_VARIABLE, find_memory_skip_reason, read_memory_limit
from tests.support.gpu_requirements import EXPECTED_COUNTS, MEASURED_GPUS, OTHER_GPUS_KEY

USED = {
    name
    for path in (ROOT / "tests" / "gpu").rglob("*.py")
    for name in re.findall(
        r"\bget_minimum_expected_count_on_this_gpu\(\s*\"([^\"]+)\"", path.read_text(encoding="utf-8")
    )
}


@pytest.mark.parametrize("where", EXPECTED_COUNTS)
def test_expected_counts_of_gpu_tests_exist_for_every_architecture(where: str) -> None:
    assert set(EXPECTED_COUNTS[where]) == USED
    assert all(EXPECTED_COUNTS[OTHER_GPUS_KEY][name] <= least for name, least in EXPECTED_COUNTS[where].items())


def test_measured_architectures_and_versions_are_parsed() -> None:
    assert (90, "9.19.0") in MEASURED_GPUS
    assert len(MEASURED_GPUS) == len(EXPECTED_COUNTS) - 1


def test_gpu_memory_limit_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEMORY_LIMIT_VARIABLE, raising=False)
    assert read_memory_limit() is None
    monkeypatch.setenv(MEMORY_LIMIT_VARIABLE, "16")
    assert read_memory_limit() == 16_000_000_000
    assert find_memory_skip_reason(16, 16) == ""
    assert "it needs 17.0 GB of GPU memory, 16.0 are left" in find_memory_skip_reason(17_000_000_000, 16_000_000_000)


def test_record_of_a_test_run_contains_skip_reasons(tmp_path: Path) -> None:
    text = "import pytest\n\ndef test_a():\n    pytest.skip('no second GPU')\n\ntest_b = test_a\n\ndef test_c(): pass\n"
    (tmp_path / "test_three.py").write_text(text)
    done = record_test_run(tmp_path / "logs", [str(tmp_path / "test_three.py"), "-q", "-p", "no:cacheprovider"])
    assert done.code == 0
    assert done.not_run == {"no second GPU": 2}
    record = json.loads(done.path.read_text())
    assert record["not run"] == done.not_run
    assert record["counts"]["skipped"] == 2
