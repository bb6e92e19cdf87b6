"""Count cuDNN descriptors that are not destroyed, by wrapping the create and destroy functions."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cudnn_backend_py import library
from cudnn_backend_py.native.destructors import make_destructor_type

__all__ = ["DescriptorCount", "count_descriptors"]


@dataclass
class DescriptorCount:
    """Numbers of descriptors created and destroyed since counting began."""

    created: int = 0
    destroyed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def undestroyed_count(self) -> int:
        """Return the number of descriptors that are not destroyed yet."""
        return self.created - self.destroyed


@contextmanager
def count_descriptors(*, destroy: bool = True) -> Iterator[DescriptorCount]:
    """Count descriptors in a block; `destroy=False` prevents their destruction, a leak that tests must detect."""
    lib = library()
    live = DescriptorCount()
    create_descriptor, name = lib.cudnnBackendCreateDescriptor, "cudnnBackendDestroyDescriptor"
    ends = {is_brief: lib.get_destructor_type(name, is_brief=is_brief) for is_brief in (False, True)}

    def count_and_create(*arguments: Any) -> Any:
        status = create_descriptor(*arguments)
        with live.lock:
            live.created += 1
        return status

    def count_and_destroy(pointer: int) -> int:
        if not destroy:
            return 0
        status: int = lib.get_unchecked_function(name)(ctypes.c_void_p(pointer))
        with live.lock:
            live.destroyed += 1
        return status

    counted = make_destructor_type(_DESTROY_SIGNATURE(count_and_destroy))
    vars(lib)["cudnnBackendCreateDescriptor"] = count_and_create
    lib._destructor_types.update({(name, is_brief): counted for is_brief in ends})
    try:
        yield live
    finally:
        vars(lib)["cudnnBackendCreateDescriptor"] = create_descriptor
        lib._destructor_types.update({(name, is_brief): end for is_brief, end in ends.items()})


_DESTROY_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
