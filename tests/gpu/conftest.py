"""Pytest hooks for tests on a GPU: limit memory, and skip tests of graphs that cuDNN refuses on other GPUs."""

import os
from collections.abc import Generator, Iterator

import pytest

from cudnn_backend_py.errors import NotSupported

# Without this, torch.compile's worker processes delay the end of a test process by up to five minutes.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def _skip_if_cudnn_refuses_a_graph() -> Generator[None, object, object]:
    """Run a test or its fixtures; skip it if cuDNN refuses a graph on a GPU without measured expectations."""
    try:
        return (yield)
    except NotSupported as error:
        from tests.support.gpu_requirements import (
            skip_if_support_not_measured_on_this_gpu,  # imported late, because it loads the driver
        )

        skip_if_support_not_measured_on_this_gpu(error)
        raise


def pytest_configure(config: pytest.Config) -> None:
    # a warning of torch: its autograd thread may have no CUDA context at its first call
    config.addinivalue_line("filterwarnings", "ignore:Attempting to run cuBLAS")
    config.addinivalue_line("markers", "gpu_bytes(needed): the test takes so many bytes of GPU memory")


@pytest.fixture(scope="session", autouse=True)
def limited_gpu_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Limit each test process to CUDNN_BACKEND_GPU_MEMORY_GB; the first process occupies the rest of GPU memory."""
    from tests.support.gpu_memory import MEMORY_LIMIT_VARIABLE, limit_torch_memory, occupy_memory_above_limit

    if not os.environ.get(MEMORY_LIMIT_VARIABLE):
        yield
        return
    limit_torch_memory()
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        yield
        return
    with occupy_memory_above_limit(processes=int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test if cuDNN refuses a graph of its fixtures on this architecture, or if GPU memory is too small."""
    if (marker := item.get_closest_marker("gpu_bytes")) is not None:
        from tests.support.gpu_memory import find_memory_skip_reason, get_free_memory

        if why := find_memory_skip_reason(marker.args[0], get_free_memory()):
            pytest.skip(why)
    return (yield from _skip_if_cudnn_refuses_a_graph())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test if cuDNN refuses one of its graphs on this architecture."""
    return (yield from _skip_if_cudnn_refuses_a_graph())
