"""Count the native descriptors that are alive, by watching the real create and destroy functions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cudnn_backend_py import library

__all__ = ["Live", "counting"]


@dataclass
class Live:
    """How many descriptors were made and destroyed since the counting began."""

    made: int = 0
    destroyed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def alive(self) -> int:
        """How many of them are left."""
        return self.made - self.destroyed


@contextmanager
def counting(*, destroy: bool = True) -> Iterator[Live]:
    """Count in a block; with `destroy` False nothing is destroyed in it, which every leak test must notice."""
    lib = library()
    live = Live()
    create_descriptor, destroy_descriptor = lib.cudnnBackendCreateDescriptor, lib.cudnnBackendDestroyDescriptor

    def counted_create(*arguments: Any) -> Any:
        status = create_descriptor(*arguments)
        with live.lock:
            live.made += 1
        return status

    def counted_destroy(pointer: Any) -> Any:
        if not destroy:
            return None
        status = destroy_descriptor(pointer)
        with live.lock:
            live.destroyed += 1
        return status

    vars(lib).update(cudnnBackendCreateDescriptor=counted_create, cudnnBackendDestroyDescriptor=counted_destroy)
    try:
        yield live
    finally:
        vars(lib).update(
            cudnnBackendCreateDescriptor=create_descriptor, cudnnBackendDestroyDescriptor=destroy_descriptor
        )
