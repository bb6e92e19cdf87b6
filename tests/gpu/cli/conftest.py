"""What is compared with torch's fused attention needs a GPU that has it."""

import pytest

from tests.support.gpus import need_fused_attention


@pytest.fixture(scope="package", autouse=True)
def _fused_attention() -> None:
    need_fused_attention()
