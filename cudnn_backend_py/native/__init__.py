"""The only hand-written ctypes of the package: finding, loading and calling libcudnn."""

from typing import TYPE_CHECKING

from ..system.lazy_import import make_lazy_getattr

if TYPE_CHECKING:
    from . import capi
    from .descriptor import Descriptor, Handle
    from .descriptors_from_values import build
    from .driver import Driver, current_device, load_driver
    from .libcudnn import ErrorText, Library, library, loaded_library
    from .log import Log, LogRecord, capture_log

__all__ = [
    "Descriptor",
    "Driver",
    "ErrorText",
    "Handle",
    "Library",
    "Log",
    "LogRecord",
    "build",
    "capi",
    "capture_log",
    "current_device",
    "library",
    "load_driver",
    "loaded_library",
]

__getattr__ = make_lazy_getattr(
    __name__,
    ErrorText="libcudnn",
    Descriptor="descriptor",
    Driver="driver",
    Handle="descriptor",
    Library="libcudnn",
    Log="log",
    LogRecord="log",
    build="descriptors_from_values",
    capi="capi",
    capture_log="log",
    current_device="driver",
    library="libcudnn",
    load_driver="driver",
    loaded_library="libcudnn",
)
