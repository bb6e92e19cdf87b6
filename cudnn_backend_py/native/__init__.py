"""The only hand-written ctypes of the package: finding, loading and calling libcudnn."""

from typing import TYPE_CHECKING

from ..system.later import import_later
from . import capi
from .descriptor import Descriptor, Handle
from .driver import Driver, current_device, load_driver
from .from_values import build
from .libcudnn import Answer, Library, library, loaded_library

if TYPE_CHECKING:
    from .log import Log, LogRecord, capture_log

__all__ = [
    "Answer",
    "Descriptor",
    "Driver",
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

__getattr__ = import_later(__name__, Log="log", LogRecord="log", capture_log="log")
