"""Shared hooks of the tests on a GPU."""

import os
from collections.abc import Generator

import pytest

from cudnn_backend_py.errors import NotSupported

# torch.compile's pool of processes can outlive a test process's end by five minutes, waited for all that time.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def _skipping_refusals() -> Generator[None, object, object]:
    """Run a test or its fixtures; a refusal by cuDNN skips it where its expectation was not measured."""
    try:
        return (yield)
    except NotSupported as error:
        from tests.support.gpus import skip_refused  # loads the driver, which collecting tests does not

        skip_refused(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skip a test with a fixture that cuDNN refuses on this architecture."""
    return (yield from _skipping_refusals())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that cuDNN refuses on this architecture."""
    return (yield from _skipping_refusals())
