"""The libcudnn loaded in this process, and its functions with checked arguments.

Every function of ``cudnn_graph.h`` becomes a function with the header's argument types when it is first used, and every
one that returns a status gets the same check, so no caller can forget it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ..errors import CudnnStatusError, EnvironmentNotReady, NotSupportedStatus, UsageError
from ..generated.enums import AttributeName, CudnnEnum, DescriptorType, Status
from ..generated.prototypes import FUNCTIONS
from ..system.interruption import reraise_interruption
from ..system.version import Version, format_version_numbers
from .callbacks import LogCallback, get_stored_exceptions
from .destructors import DestructorFactory, make_destructor_type
from .driver import Driver, load_driver
from .find import (
    LIBRARY_VARIABLE,
    LibrarySearchResult,
    find_cublaslt_places,
    find_cudnn_places,
    find_installed_version,
    find_nvrtc_places,
    get_library_path,
    list_mapped_files,
)
from .version_store import VersionRequest

__all__ = ["ErrorText", "Library", "library", "loaded_library"]

LAST_ERROR_BYTES = 65536


class Pointer(ctypes.c_void_p):
    """An opaque pointer; functions of :class:`Library` accept only its own type: no ints, None or other handles."""


class DescriptorPointer(Pointer):
    """``cudnnBackendDescriptor_t``."""


class HandlePointer(Pointer):
    """``cudnnHandle_t``."""


class NativeObject:
    """Base of native objects: refuses subclasses and copies, which could share the pointer."""

    __slots__ = ()

    def __init_subclass__(cls, *, wraps: bool = False) -> None:
        if not wraps:
            raise UsageError(
                f"class {cls.__name__} cannot be derived from class "
                f"{cls.__base__.__name__ if cls.__base__ else 'object'}",
                code="no-base-class",
                fix="store a descriptor or handle in your own object",
            )

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise UsageError(
            f"a {type(self).__name__} cannot be copied or pickled: it owns a native object",
            code="not-copyable",
            fix="copy or pickle the graph it was made from",
        )


class Fraction(ctypes.Structure):
    """``cudnnFraction_t``."""

    _fields_ = (("numerator", ctypes.c_int64), ("denominator", ctypes.c_int64))


_C_TYPES: dict[str, Any] = {
    "void": None,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "unsigned": ctypes.c_uint,
    "const char *": ctypes.c_char_p,
    "char *": ctypes.c_char_p,
    "const void *": ctypes.c_void_p,
    "void *": ctypes.c_void_p,
    "void **": ctypes.POINTER(ctypes.c_void_p),
    "int *": ctypes.POINTER(ctypes.c_int),
    "unsigned *": ctypes.POINTER(ctypes.c_uint),
    "int64_t *": ctypes.POINTER(ctypes.c_int64),
    "size_t *": ctypes.POINTER(ctypes.c_size_t),
    "cudnnHandle_t": HandlePointer,
    "cudnnHandle_t *": ctypes.POINTER(HandlePointer),
    "cudnnBackendDescriptor_t": DescriptorPointer,
    "cudnnBackendDescriptor_t const": DescriptorPointer,
    "cudnnBackendDescriptor_t *": ctypes.POINTER(DescriptorPointer),
    "cudaStream_t": ctypes.c_void_p,
    "cudaStream_t *": ctypes.POINTER(ctypes.c_void_p),
    "cudaGraph_t": ctypes.c_void_p,
    "cudnnCallback_t": LogCallback,
    "cudnnCallback_t *": ctypes.POINTER(ctypes.c_void_p),
    "cudnnStatus_t *": ctypes.POINTER(ctypes.c_int),
    "cudnnRuntimeTag_t *": ctypes.c_void_p,
}


def _get_c_type(spelling: str) -> Any:
    """Return the ctypes type of a C type in the header; every plain enum is an int."""
    if spelling in _C_TYPES:
        return _C_TYPES[spelling]
    if "*" in spelling:
        raise AssertionError(f"no ctypes type for {spelling!r}: add it to _C_TYPES")
    return ctypes.c_int


_BYREF_TYPE = type(ctypes.byref(ctypes.c_int()))
_CTYPES_DATA_TYPE = ctypes.c_int.__mro__[-2]  # every ctypes object


def _check_argument_types(name: str, types: Sequence[Any], kinds: tuple[type, ...]) -> None:
    """Check that ctypes can convert the arguments without running Python code; pointers must be of their own type."""
    if len(kinds) != len(types):
        raise UsageError(f"{name} takes {len(types)} arguments, got {len(kinds)}", code="wrong-argument")
    for place, (needed, kind) in enumerate(zip(types, kinds, strict=True), 1):
        is_pointer = needed in (DescriptorPointer, HandlePointer)
        fits = (
            kind is needed if is_pointer else issubclass(kind, (int, bytes, type(None), _BYREF_TYPE, _CTYPES_DATA_TYPE))
        )
        if not fits:
            needs = f"a {needed.__name__}" if is_pointer else "a ctypes object, int, bytes or None"
            raise UsageError(
                f"argument {place} of {name} must be {needs}, got an object of type {kind.__name__}",
                code="wrong-argument",
            )


class ErrorText:
    """The text of ``cudnnGetLastErrorString`` after a query; ``truncated`` if it filled the buffer."""

    __slots__ = ("text", "truncated")

    def __init__(self, text: str = "", truncated: bool = False) -> None:
        self.text, self.truncated = text, truncated


class _KnownEnumerators(dict[type[CudnnEnum], frozenset[int]]):
    """The enumerator values of each enum that a version of cuDNN knows."""

    def __init__(self, version: Version) -> None:
        self._version = version

    def __missing__(self, enum: type[CudnnEnum]) -> frozenset[int]:
        known = self[enum] = frozenset(int(item) for item in enum if item.since <= self._version)
        return known


class Library:
    """A loaded libcudnn: its version, where it came from, and its functions under their C names.

    The functions are attributes (``library.cudnnBackendFinalize``) that take ctypes values and raise
    :class:`CudnnStatusError`; :mod:`cudnn_backend_py.native.capi` has the same ones with Python values.
    """

    def __init__(self, cdll: ctypes.CDLL, place: LibrarySearchResult, driver: Driver, mapped: list[str]) -> None:
        self._cdll = cdll
        self._unchecked: dict[tuple[str, bool], Any] = {}
        self._destructor_types: dict[tuple[str, bool], DestructorFactory] = {}
        self._thread = threading.local()
        self._exceptions = get_stored_exceptions()
        self._functions: list[Any] = []  # all of ctypes
        self._errcheck = self._make_errcheck()
        self._is_callback_active = self._exceptions.may_be_pending()
        self.place = place
        self.driver = driver
        self.path = get_library_path(cdll)
        self.version = Version.from_number(int(self.cudnnGetVersion()))
        self.enumerators = _KnownEnumerators(self.version)
        self.cuda_version = int(self.cudnnGetCudartVersion())
        cuda_major = self.cuda_version // 1000
        beside = self.path if os.path.isabs(self.path) else None
        self.nvrtc = _load_first_loadable_library("NVRTC", find_nvrtc_places(cuda_major, beside, mapped))
        # Full wheels abort the process on some graphs where libcublasLt cannot be loaded; the jit wheels have no use
        # for it.
        self.cublaslt = _load_first_loadable_library("cuBLASLt", find_cublaslt_places(cuda_major, beside, mapped))

    @property
    def version_text(self) -> str:
        """The version as ``9.28.0``."""
        return str(self.version)

    @property
    def build_text(self) -> str:
        """The version with the CUDA major for which the library was built: ``9.28.0+cu12``."""
        return f"{self.version}+cu{self.cuda_version // 1000}"

    def __repr__(self) -> str:
        return f"<cuDNN {self.build_text} at {self.path}>"

    def make_too_new_error(self, enumerator: CudnnEnum) -> UsageError:
        """Return the exception for an enum value that is newer than this library.

        A number cuDNN does not know is no refusal to it: 9.14 to 9.24 die of the data types of 9.25 and 9.26.
        """
        needed, kind = format_version_numbers(enumerator.since), type(enumerator)
        return UsageError(
            f"{enumerator.c_name} needs cuDNN {needed}, the loaded library is {self.version_text}",
            code="attribute-newer-than-library"
            if kind is AttributeName
            else "descriptor-newer-than-library"
            if kind is DescriptorType
            else "enumerator-newer-than-library",
            fix=f"load a cuDNN of at least {needed} (cudnn-backend cudnn install {needed})",
        )

    def __getattr__(self, name: str) -> Any:
        function = self._make_checked_function(name)
        setattr(self, name, function)
        return function

    def _make_checked_function(self, name: str) -> Any:
        """Return a function of the header that checks its arguments before ctypes converts them.

        In ctypes' own conversions no code of Python may run: what is raised there becomes another exception.
        """
        prototype = FUNCTIONS.get(name)
        if prototype is None:
            raise AttributeError(name)
        function = self._load_function(self._cdll, name)
        returns, parameters, _ = prototype
        function.argtypes = types = list(map(_get_c_type, parameters))
        has_status = returns == "cudnnStatus_t"
        function.restype = ctypes.c_int if has_status else _get_c_type(returns)
        self._add_errcheck(function)
        accepted: set[tuple[type, ...]] = set()  # types of arguments, looked at

        def call(*arguments: Any) -> Any:
            if (kinds := tuple(map(type, arguments))) not in accepted:
                _check_argument_types(name, types, kinds)
                accepted.add(kinds)
            try:
                answer = function(*arguments)
            except ctypes.ArgumentError as error:
                raise UsageError(
                    f"ctypes cannot convert the arguments of {name}: {error}", code="wrong-argument"
                ) from None
            if answer and has_status:
                raise self.make_status_error(answer, name)
            return answer

        return call

    def _load_function(self, cdll: ctypes.CDLL, name: str) -> Any:
        """Return a function of the header as a new ctypes function; old libraries lack some of them."""
        try:
            return cdll[name]
        except AttributeError:
            since = format_version_numbers(FUNCTIONS[name][2] or ())
            raise UsageError(
                f"{name} needs cuDNN {since}, the loaded library is {self.version_text}",
                code="function-newer-than-library",
                where=self.path,
                fix=f"load a cuDNN of at least {since} (cudnn-backend cudnn install {since})",
            ) from None

    def get_unchecked_function(self, name: str, *, brief: bool = False) -> Any:
        """Return a C function that returns its status instead of raising, for frequent calls.

        Its arguments are not converted: pointers and 64-bit numbers must be ctypes objects or bytes, plain ints are C
        ints; the caller raises :meth:`make_status_error`. `brief` is for functions that only write to host memory:
        they keep Python's global lock, which costs less than handing it over twice.
        """
        function = self._unchecked.get((name, brief))
        if function is None:
            function = self._unchecked[name, brief] = self.get_function_without_errcheck(name, brief=brief)
            self._add_errcheck(function)
        return function

    def get_function_without_errcheck(self, name: str, *, brief: bool = False) -> Any:
        """Return a C function that returns its status, and that raises no exception stored by a callback.

        The caller must call :meth:`raise_stored_exception` afterwards.
        """
        path: Any = self._cdll._name
        cdll = (ctypes.PyDLL if brief else ctypes.CDLL)(path, handle=self._cdll._handle)
        function = self._load_function(cdll, name)
        function.restype = ctypes.c_int
        return function

    def get_destructor_type(self, destroy: str, *, is_brief: bool = False) -> DestructorFactory:
        """Return a factory of objects that call the cuDNN function `destroy` when their last reference is gone."""
        end = self._destructor_types.get((destroy, is_brief))
        if end is None:
            # Not of plans alone: what they are made of may be the last to hold code on the device.
            has_gpu = self.driver.devices > 0 and not is_brief
            end = self._destructor_types[destroy, is_brief] = make_destructor_type(
                self.get_unchecked_function(destroy, brief=is_brief),
                is_brief=is_brief,
                beside_captures=has_gpu,
                keeps_context=has_gpu and destroy == "cudnnDestroy",  # which leaves the handle's GPU current
            )
        return end

    def set_callback_active(self, is_heard: bool) -> None:
        """Set whether cuDNN's log callback calls Python; if so, every C function raises exceptions stored by it.

        Looking costs as much as a short C function, so it is done as long as something may come, and no longer.
        """
        if not is_heard and self._exceptions.may_be_pending():
            return
        self._is_callback_active = is_heard
        for function in tuple(self._functions):
            if is_heard:
                function.errcheck = self._errcheck
            elif function.errcheck is not None:
                del function.errcheck

    def _make_errcheck(self) -> Callable[[Any, Any, Any], Any]:
        """Return the ctypes ``errcheck`` that raises callbacks' exceptions; kept forever, as ctypes borrows it."""
        pending_count, raise_stored_exception = self._exceptions.pending_count, self._exceptions.raise_stored_exception

        def raise_pending_exception(answer: Any, _load_function: Any, _arguments: Any) -> Any:
            if pending_count.value:
                raise_stored_exception()
            return answer

        return raise_pending_exception

    def _add_errcheck(self, function: Any) -> None:
        self._functions.append(
            function
        )  # before it is queried: `set_callback_active` of another thread finds it, or was heard of
        if self._is_callback_active:
            function.errcheck = self._errcheck

    def make_status_error(self, number: int, function: str) -> CudnnStatusError:
        """Return the exception for a status, with cuDNN's last-error text of this thread.

        An exception that waits in this thread is raised instead.
        """
        self.raise_stored_exception()
        answer = self._read_last_error()
        status: Status | int = Status(number) if number in _KNOWN_STATUS_NUMBERS else number
        kind = NotSupportedStatus if 3000 <= number < 4000 else CudnnStatusError
        name = status.name if isinstance(status, Status) else f"status {number}"
        return kind(f"{function} answered {name}", status=status, function=function, last_error=answer.text)

    def raise_stored_exception(self) -> None:
        """Raise the stored exception of Python code that C called in this thread, if any."""
        if self._exceptions.pending_count.value:
            self._exceptions.raise_stored_exception()

    def _read_last_error(self) -> ErrorText:
        buffer = getattr(self._thread, "buffer", None)
        if buffer is None:
            buffer = self._thread.buffer = ctypes.create_string_buffer(LAST_ERROR_BYTES)
        buffer[0] = b"\0"
        self.cudnnGetLastErrorString(buffer, LAST_ERROR_BYTES)
        raw = buffer.value
        return ErrorText(raw.decode("utf-8", "replace"), truncated=len(raw) >= LAST_ERROR_BYTES - 1)

    @contextmanager
    def collect_messages(self) -> Iterator[ErrorText]:
        """In a block of calls, collect cuDNN's last-error text of this thread: clear it first, read it at the end.

        C: ``cudnnGetLastErrorString``. The text is per thread, cleared by reading and left in place by later
        successful calls, so an old one must be drained before the question. Status errors pass through with
        their own text.

        Yields
        ------
        Answer
            Filled when the block ends.
        """
        answer = ErrorText()
        self._read_last_error()
        try:
            yield answer
        except CudnnStatusError as error:
            answer.text = error.last_error
            raise
        heard = self._read_last_error()
        answer.text, answer.truncated = heard.text, heard.truncated


_KNOWN_STATUS_NUMBERS = {int(status) for status in Status}

_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_library: Library | None = None


def loaded_library() -> Library | None:
    """Return the library if this package has loaded one in this process; load nothing."""
    return _library


def library(path: str | os.PathLike[str] | None = None, *, version: str | None = None) -> Library:
    """Load libcudnn once per process and return it.

    Parameters
    ----------
    path
        The file, or the folder that holds ``libcudnn.so.9``.
    version
        An installed version such as ``"9.27"``, ``"9.28.0"``, ``"9.26.0+cu13"`` or ``"latest"``.

    Without both: ``CUDNN_BACKEND_LIBRARY``, a libcudnn that this process has already loaded, the newest installed
    version of the version store and the wheels on ``sys.path``, the system.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-library-not-found``, with every place looked at; ``cudnn-version-not-installed``;
        ``cudnn-library-already-loaded`` if another one is in use: a process holds one libcudnn.
    UsageError
        ``cudnn-version-malformed``.
    """
    global _library
    if version is not None:
        path = _find_installed_path(version, path)
    with _lock:
        if _library is None:
            _library = _load_library(path)
        elif path is not None:
            _check_is_loaded_library(_library, path)
        return _library


def _find_installed_path(version: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        raise UsageError("library() needs either a path or a version, got both", code="cudnn-version-malformed")
    if (found := find_installed_version(version)) is None:
        raise EnvironmentNotReady(
            f"cuDNN {version} is not installed",
            code="cudnn-version-not-installed",
            fix=f"cudnn-backend cudnn install {VersionRequest.parse(version).arguments}",
        )
    return found


def _check_is_loaded_library(loaded: Library, path: str | os.PathLike[str]) -> None:
    place = next(find_cudnn_places(path))
    if place.path != loaded.path:
        raise EnvironmentNotReady(
            f"cuDNN {loaded.build_text} is loaded, so {os.fspath(path)} cannot be loaded as well",
            code="cudnn-library-already-loaded",
            where=f"loaded from {loaded.path}",
            fix=f"start another process with {LIBRARY_VARIABLE}={os.fspath(path)}",
        )


def _load_library(path: str | os.PathLike[str] | None) -> Library:
    driver = load_driver()
    mapped = list_mapped_files()
    places = []
    for place in find_cudnn_places(path, mapped=mapped):
        if place.path is None:
            places.append(place)
            continue
        try:
            cdll = ctypes.CDLL(place.path)
        except OSError as error:
            reraise_interruption(error)
            places.append(LibrarySearchResult(place.how, None, f"{place.path} cannot be loaded: {error}"))
            continue
        return Library(cdll, place, driver, mapped)
    given = os.fspath(path) if path is not None else os.environ.get(LIBRARY_VARIABLE)
    raise EnvironmentNotReady(
        f"no libcudnn.so.9 can be loaded: {places[0]}" if given else "no libcudnn.so.9 can be loaded",
        code="cudnn-library-not-found",
        where="\n".join(map(str, places)),
        fix=f"set {LIBRARY_VARIABLE} to the path of a libcudnn.so.9 or of its folder, or unset it"
        if given and path is None
        else "cudnn-backend cudnn install 9.27, or add --cudnn 9.27, which installs it;\n"
        "or pip install 'cudnn-backend-py[jit-cu12]'\n"
        f"or set {LIBRARY_VARIABLE} to the path of libcudnn.so.9",
    )


def _dlopen_with_global_symbols(path: str) -> None:
    """Load a library with global symbols; for a path, do so without blocking other Python threads."""
    if os.path.sep in path:
        ctypes.CDLL(None).dlopen(os.fsencode(path), os.RTLD_NOW | os.RTLD_GLOBAL)
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)  # with an exception if it cannot be loaded


def _load_first_loadable_library(name: str, places: Iterator[LibrarySearchResult]) -> LibrarySearchResult:
    """Load the first library of `places` that can be loaded; cuDNN then finds it by its SONAME."""
    looked = []
    for place in places:
        if place.path is not None:
            try:
                _dlopen_with_global_symbols(place.path)
            except OSError as error:
                reraise_interruption(error)
                looked.append(f"{place.path} cannot be loaded: {error}")
                continue
            return place
        looked.append(str(place))
    return LibrarySearchResult(name, None, "\n".join(looked))
