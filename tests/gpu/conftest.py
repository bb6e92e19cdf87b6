"""Hooks of the tests on a GPU."""

import os
from collections.abc import Generator

import pytest

from cudnn_backend_py.errors import NotSupported

# torch.compile's pool of processes can outlive a test process by five minutes, which would wait for it.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def _skipping_refusals() -> Generator[None, object, object]:
    """Run a test or its fixtures; skip it if cuDNN refuses on a GPU without measured expectations."""
    try:
        return (yield)
    except NotSupported as error:
        from tests.support.gpus import skip_refused  # loads the driver, which collecting tests does not

        skip_refused(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skip a test if cuDNN refuses its fixture on this architecture."""
    return (yield from _skipping_refusals())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test if cuDNN refuses it on this architecture."""
    return (yield from _skipping_refusals())
