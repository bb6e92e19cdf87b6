"""Comparisons with torch's fused attention need a GPU that supports it."""

import pytest

from tests.support.gpus import require_fused_attention


@pytest.fixture(scope="package", autouse=True)
def _require_fused_attention() -> None:
    require_fused_attention()
