"""Skip these tests on GPUs that torch's fused attention does not support."""

import pytest

from tests.support.gpu_requirements import require_fused_attention


@pytest.fixture(scope="package", autouse=True)
def _require_fused_attention() -> None:
    require_fused_attention()
