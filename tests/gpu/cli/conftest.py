"""Comparisons with torch's fused attention need a GPU that supports it."""

import pytest

from tests.support.gpus import need_fused_attention


@pytest.fixture(scope="package", autouse=True)
def _fused_attention() -> None:
    need_fused_attention()
