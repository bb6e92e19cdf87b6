"""Counts of live native descriptors, from the real create and destroy functions."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cudnn_backend_py import library
from cudnn_backend_py.native.destructors import make_destructor_type

__all__ = ["Live", "counting"]


@dataclass
class Live:
    """Numbers of descriptors created and destroyed since the start of counting."""

    made: int = 0
    destroyed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def alive(self) -> int:
        """The number of live descriptors."""
        return self.made - self.destroyed


@contextmanager
def counting(*, destroy: bool = True) -> Iterator[Live]:
    """Count in a block; with `destroy` False none is destroyed in it, which every leak test has to notice."""
    lib = library()
    live = Live()
    create_descriptor, name = lib.cudnnBackendCreateDescriptor, "cudnnBackendDestroyDescriptor"
    ends = {is_brief: lib.destructor_type(name, is_brief=is_brief) for is_brief in (False, True)}

    def counted_create(*arguments: Any) -> Any:
        status = create_descriptor(*arguments)
        with live.lock:
            live.made += 1
        return status

    def counted_destroy(pointer: int) -> int:
        if not destroy:
            return 0
        status: int = lib.unchecked(name)(ctypes.c_void_p(pointer))
        with live.lock:
            live.destroyed += 1
        return status

    counted = make_destructor_type(_DESTROY(counted_destroy))
    vars(lib)["cudnnBackendCreateDescriptor"] = counted_create
    lib._ends.update({(name, is_brief): counted for is_brief in ends})
    try:
        yield live
    finally:
        vars(lib)["cudnnBackendCreateDescriptor"] = create_descriptor
        lib._ends.update({(name, is_brief): end for is_brief, end in ends.items()})


_DESTROY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
