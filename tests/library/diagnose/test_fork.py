"""`run_in_fork` with exceptions that are raised while the parent reads the answer of the child."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from cudnn_backend_py.diagnose.fork import run_in_fork
from tests.library.native.test_interruptions import ERRORS


class SignalSenderWhenUnpickled:
    """An object that sends a signal when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return signal.raise_signal, (signal.SIGUSR1,)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_of_a_signal_handler_reaches_the_caller(error: BaseException) -> None:
    def raise_error(_number: int, _frame: object) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, raise_error)
    try:
        with pytest.raises(type(error)) as caught:
            run_in_fork(SignalSenderWhenUnpickled, lambda: "otherwise")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught.value is error
