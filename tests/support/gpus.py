"""What some tests need of the GPUs here."""

from __future__ import annotations

import pytest

from cudnn_backend_py.native import load_driver

__all__ = ["needs_two_gpus"]

needs_two_gpus = pytest.mark.skipif(load_driver().devices < 2, reason="did not run: there are no two GPUs")
