"""What the tests of the torch operators share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cudnn_backend_py.torch_ops import set_shapes


@pytest.fixture(autouse=True)
def adaptive_shapes() -> Iterator[None]:
    """Begin each test with the policy that users begin with."""
    former = set_shapes("adaptive")
    yield
    set_shapes(former)
