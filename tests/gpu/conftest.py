"""Tests that measure time or memory have the GPU alone, where several workers of xdist run tests."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def _locked(name: str, kind: int) -> Iterator[None]:
    """Hold a lock that the workers of this run share."""
    run = os.environ["PYTEST_XDIST_TESTRUNUID"]
    with (Path(tempfile.gettempdir()) / f"cudnn-backend-tests-{run}-{name}").open("w") as file:
        fcntl.flock(file, kind)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    if "PYTEST_XDIST_TESTRUNUID" not in os.environ:
        return (yield)
    if item.get_closest_marker("alone") is not None:
        with _locked("gate", fcntl.LOCK_EX), _locked("gpu", fcntl.LOCK_EX):
            return (yield)
    with _locked("gate", fcntl.LOCK_EX):  # who waits for all others is not passed by new ones
        shared = _locked("gpu", fcntl.LOCK_SH)
        shared.__enter__()
    try:
        return (yield)
    finally:
        shared.__exit__(None, None, None)
