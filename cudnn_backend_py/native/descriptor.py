"""``Descriptor``: the thin mutable wrapper of one cuDNN backend descriptor, and ``Handle``.

Ownership is structure: a native descriptor is held by one small owner object, wrappers and parents hold owners.
Closing a wrapper drops its hold; the native object is destroyed when nobody needs it any more. So a child that was
closed under a living parent is no dangling pointer, and nothing depends on the order of destruction.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

from ..errors import CudnnStatusError, UsageError
from ..generated.attributes import ATTRIBUTE_FACTS, ATTRIBUTE_OWNER, ATTRIBUTES, AttributeFacts
from ..generated.enums import AttributeName, AttributeType, DescriptorType
from .cuda import same_context
from .driver import current_device
from .hazards import check_before_finalize, check_before_get, check_before_set, constant_buffer
from .library import DescriptorPointer, HandlePointer, Library, library
from .values import C_TYPES, from_c, matches, to_c

__all__ = ["Descriptor", "Handle"]


class _Owner:
    """One live native object; destroyed when the last holder lets go, never at interpreter exit."""

    __slots__ = ("__weakref__", "device", "needs", "pointer")

    def __init__(self, pointer: Any, destroy: Callable[[Any], Any], needs: tuple[_Owner, ...] = ()) -> None:
        self.pointer = pointer
        self.device: int | None = None  # ordinal of the GPU it is bound to, through a handle
        self.needs: dict[AttributeName | None, tuple[_Owner, ...]] = {None: needs}
        finalizer: Any = weakref.finalize(self, destroy, pointer)
        finalizer.atexit = False

    def held_pointer(self) -> Any:
        """Return the pointer as a value that holds this owner, so that close() in another thread frees nothing."""
        pointer = type(self.pointer)(self.pointer.value)
        pointer.owner = self
        return pointer


def _version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _create(lib: Library, kind: DescriptorType) -> DescriptorPointer:
    pointer = DescriptorPointer()
    lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(pointer))
    return pointer


def _closed(what: str) -> UsageError:
    return UsageError(f"{what} is closed", code="descriptor-closed", fix="use it before close(), or make another one")


class Handle:
    """A cuDNN handle on the current CUDA device, whose ordinal is ``device``.

    C: ``cudnnCreate``, ``cudnnDestroy``. It needs a GPU. Destroying it waits for the device.

    Raises
    ------
    CudnnStatusError
        ``NOT_INITIALIZED`` where there is no GPU.
    """

    def __init__(self, *, on: Library | None = None) -> None:
        self._library = on or library()
        pointer = HandlePointer()
        self._library.cudnnCreate(ctypes.byref(pointer))
        self._pid = os.getpid()
        self.device = current_device()
        self._owner: _Owner | None = _Owner(pointer, _destroyer(self._library.cudnnDestroy, self._pid))
        self._owner.device = self.device

    @property
    def owner(self) -> _Owner:
        """The holder of the native handle; raises if closed or if this process was forked after its creation."""
        if self._owner is None:
            raise _closed("this handle")
        if os.getpid() != self._pid:
            raise UsageError(
                f"this handle was made by process {self._pid}, this is process {os.getpid()}",
                code="handle-after-fork",
                fix="create handles after the fork: CUDA contexts do not survive it",
            )
        return self._owner

    @property
    def pointer(self) -> HandlePointer:
        """The ``cudnnHandle_t``; the native handle lives as long as this value."""
        pointer: HandlePointer = self.owner.held_pointer()
        return pointer

    def set_stream(self, stream: int) -> Self:
        """Run on the CUDA stream `stream` (address of a ``cudaStream_t``; 0 is the default stream).

        C: ``cudnnSetStream``. The stream must outlive its use.
        """
        self._library.cudnnSetStream(self.pointer, stream)
        return self

    @property
    def stream(self) -> int:
        """Address of the current ``cudaStream_t``. C: ``cudnnGetStream``."""
        stream = ctypes.c_void_p()
        self._library.cudnnGetStream(self.pointer, ctypes.byref(stream))
        return stream.value or 0

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._owner is None

    def close(self) -> None:
        """Let go of the handle; harmless when repeated."""
        self._owner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _destroyer(destroy: Callable[[Any], Any], pid: int) -> Callable[[Any], None]:
    def run(pointer: Any) -> None:
        if os.getpid() == pid:
            with same_context():  # cuDNN leaves the handle's GPU current
                destroy(pointer)

    return run


class Descriptor:
    """One backend descriptor: create, set, get, finalize, close.

    C: ``cudnnBackendCreateDescriptor`` and its family. Values are Python values; element types and counts come
    from the generated facts, and what does not fit is refused before C sees it.

    Examples
    --------
    >>> from cudnn_backend_py import Attr, DataType, Descriptor, DescriptorType
    >>> x = Descriptor(DescriptorType.TENSOR)
    >>> _ = x.set(Attr.TENSOR_DATA_TYPE, DataType.HALF).set(Attr.TENSOR_UNIQUE_ID, 1)
    >>> _ = x.set(Attr.TENSOR_DIMENSIONS, (2, 8, 64)).set(Attr.TENSOR_STRIDES, (512, 64, 1))
    >>> x.set(Attr.TENSOR_BYTE_ALIGNMENT, 16).finalize().get(Attr.TENSOR_DIMENSIONS)
    (2, 8, 64)
    """

    __slots__ = ("__weakref__", "_finalized", "_given", "_library", "_lock", "_owner", "kind")

    def __init__(self, kind: DescriptorType, *, on: Library | None = None) -> None:
        if not isinstance(kind, DescriptorType):
            raise UsageError(f"{kind!r} is no DescriptorType", code="unknown-enumerator")
        lib = on or library()
        if kind.since and kind.since > lib.version:
            raise UsageError(
                f"{kind.c_name} needs cuDNN {_version_text(kind.since)}, the loaded library is {lib.version_text}",
                code="descriptor-newer-than-library",
                fix=f"load a cuDNN of at least {_version_text(kind.since)}",
            )
        try:
            pointer = _create(lib, kind)
        except CudnnStatusError as error:
            raise _about(error, kind) from None
        self._hold(kind, lib, pointer)

    def _hold(self, kind: DescriptorType, lib: Library, pointer: DescriptorPointer) -> None:
        self.kind = kind
        self._library = lib
        self._finalized = False
        self._given: dict[AttributeName, Sequence[Any]] = {}
        self._lock = threading.Lock()
        self._owner: _Owner | None = _Owner(pointer, lib.cudnnBackendDestroyDescriptor)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "finalized" if self._finalized else "open"
        return f"<Descriptor {self.kind.name}, {state}>"

    @property
    def owner(self) -> _Owner:
        """The holder of the native descriptor; raises if closed."""
        if self._owner is None:
            raise _closed(f"this {self.kind.c_name}")
        return self._owner

    @property
    def pointer(self) -> DescriptorPointer:
        """The ``cudnnBackendDescriptor_t``; the native descriptor lives as long as this value."""
        pointer: DescriptorPointer = self.owner.held_pointer()
        return pointer

    @property
    def library(self) -> Library:
        """The library it belongs to."""
        return self._library

    @property
    def finalized(self) -> bool:
        """Whether it was finalized, by us or by cuDNN."""
        return self._finalized

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._owner is None

    def close(self) -> None:
        """Let go of the native descriptor; harmless when repeated. A parent that uses it keeps it alive."""
        self._owner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def set(self, attribute: AttributeName, value: Any, *, type: AttributeType | None = None) -> Self:
        """Set an attribute and return the descriptor.

        C: ``cudnnBackendSetAttribute``.

        Parameters
        ----------
        attribute
            One of this descriptor's attributes.
        value
            A Python value, or a sequence of them where the attribute takes several.
        type
            The element type, where the attribute accepts more than one and the first that fits is not meant.

        Raises
        ------
        UsageError
            ``descriptor-closed``, ``descriptor-finalized``, ``attribute-of-another-descriptor``,
            ``attribute-newer-than-library``, ``attribute-read-only``, ``wrong-element-type``,
            ``wrong-element-count``, ``unknown-enumerator``, ``integer-overflow``, ``child-not-finalized``.
        CudnnStatusError
            What cuDNN itself refuses.
        """
        facts = self._facts(attribute)
        if facts.role == "output":
            raise self._misuse(f"{attribute.c_name} is read-only", "attribute-read-only", attribute)
        if self._finalized:
            raise self._misuse(
                f"{attribute.c_name} cannot be set, this {self.kind.c_name} is finalized",
                "descriptor-finalized",
                attribute,
                fix="set every attribute before finalize(), or make another descriptor",
            )
        values = _as_sequence(value, facts)
        element = self._element_type(values, facts, type)
        self._check_count(values, facts)
        owners: tuple[_Owner, ...] = ()
        kinds: tuple[DescriptorType, ...] | None = None
        try:
            check_before_set(attribute, values)
            if element is AttributeType.BACKEND_DESCRIPTOR:
                owners = tuple(self._child(item, facts) for item in values)
                array = to_c([owner.pointer for owner in owners], element)
                kinds = tuple(item.kind for item in values)
            elif element is AttributeType.HANDLE:
                owners = tuple(_handle_owner(item) for item in values)
                array = to_c([owner.pointer for owner in owners], element)
            elif element is AttributeType.CHAR:
                array = ctypes.create_string_buffer(values[0].encode())
                kinds = ()
            elif attribute is AttributeName.TENSOR_CONSTANT_VALUE:
                constant = constant_buffer(values[0])  # lives until the call returns; cuDNN copies the element
                array = to_c([ctypes.addressof(constant)], element)
            else:
                array = to_c(values, element)
        except UsageError as error:
            raise self._misuse(error.headline, error.code, attribute) from None
        with self._lock:
            owner = self.owner
            device = self._one_device(owner, owners, attribute)
            try:
                self._library.cudnnBackendSetAttribute(owner.pointer, attribute, element, len(array), array)
            except CudnnStatusError as error:
                raise _about(error, self.kind, attribute) from None
            if owners:
                owner.needs[attribute] = owners
                owner.device = device
            self._given[attribute] = tuple(array) if kinds is None else kinds
        return self

    def initialize(self) -> Self:
        """Forget every attribute that was set, and return the descriptor.

        C: ``cudnnBackendInitialize``, which cuDNN deprecates. A finalized descriptor is refused: what already uses
        it would be left with an empty one.

        Raises
        ------
        UsageError
            ``descriptor-closed``, ``descriptor-finalized``.
        """
        with self._lock:
            owner = self.owner
            if self._finalized:
                raise self._misuse(f"this {self.kind.c_name} is finalized", "descriptor-finalized", None)
            self._library.cudnnBackendInitialize(owner.pointer)
            self._given.clear()
            owner.needs.clear()
        return self

    def finalize(self) -> Self:
        """Check and freeze the descriptor, and return it.

        C: ``cudnnBackendFinalize``. For an execution plan this compiles its kernels.

        Raises
        ------
        UsageError
            ``descriptor-closed``, ``descriptor-finalized``.
        CudnnStatusError
            What cuDNN refuses, with its words.
        """
        with self._lock:
            owner = self.owner
            if self._finalized:
                raise self._misuse(f"this {self.kind.c_name} is already finalized", "descriptor-finalized", None)
            try:
                check_before_finalize(self.kind, self._given)
            except UsageError as error:
                raise self._misuse(error.headline, error.code, None, error.sections.get("fix")) from None
            try:
                self._library.cudnnBackendFinalize(owner.pointer)
            except CudnnStatusError as error:
                raise _about(error, self.kind) from None
            self._finalized = True
        return self

    def get(self, attribute: AttributeName, *, type: AttributeType | None = None) -> Any:
        """Return an attribute as a Python value: one value, a tuple where it may hold several, text for CHAR.

        C: ``cudnnBackendGetAttribute``. Descriptor-valued attributes come back as new, finalized descriptors.

        Raises
        ------
        UsageError
            ``descriptor-closed``, ``attribute-of-another-descriptor``, ``attribute-newer-than-library``.
        CudnnStatusError
            What cuDNN refuses, such as reading an attribute of a descriptor that is not finalized.
        """
        facts = self._facts(attribute)
        element = self._read_type(facts, type)
        self._check_readable(attribute)
        with self._lock:
            try:
                return self._get(attribute, facts, element)
            except CudnnStatusError as error:
                raise _about(error, self.kind, attribute) from None

    def _get(self, attribute: AttributeName, facts: AttributeFacts, element: AttributeType) -> Any:
        owner = self.owner
        single = facts.max_count == 1
        # cuDNN answers a count of 0 for knob choices it does hold, so a bounded attribute is asked for its bound.
        count = facts.max_count if facts.max_count is not None else self._count(owner, attribute, element)
        if element is AttributeType.BACKEND_DESCRIPTOR:
            children = self._get_children(owner, attribute, facts.element[0], count)
            return children[0] if single and children else children
        array = (C_TYPES[element] * max(1, count))()
        written = ctypes.c_int64()
        self._library.cudnnBackendGetAttribute(owner.pointer, attribute, element, count, ctypes.byref(written), array)
        held = min(count, written.value)
        if element is AttributeType.CHAR:
            return bytes(array.raw[:held]).split(b"\0", 1)[0].decode()
        values = from_c(array, held, element)
        return values[0] if single and values else values

    def _get_children(
        self, owner: _Owner, attribute: AttributeName, kind: DescriptorType, count: int
    ) -> tuple[Descriptor, ...]:
        """Offer cuDNN `count` descriptors and keep those it fills; the others never become Python objects."""
        lib = self._library
        pointers: list[DescriptorPointer] = []
        held = 0
        written = ctypes.c_int64()
        try:
            pointers.extend(_create(lib, kind) for _ in range(count))
            array = to_c(pointers, AttributeType.BACKEND_DESCRIPTOR)
            lib.cudnnBackendGetAttribute(
                owner.pointer,
                attribute,
                AttributeType.BACKEND_DESCRIPTOR,
                count,
                ctypes.byref(written),
                array,
            )
            held = min(count, written.value)
        finally:
            for pointer in pointers[held:]:
                lib.cudnnBackendDestroyDescriptor(pointer)
        children = tuple(Descriptor.__new__(Descriptor) for _ in range(held))
        for child, pointer in zip(children, pointers, strict=False):
            child._hold(kind, lib, pointer)
            child._adopt(self)
        return children

    def count(self, attribute: AttributeName, element: AttributeType | None = None) -> int:
        """Return how many elements cuDNN holds for an attribute.

        C: ``cudnnBackendGetAttribute`` with a requested count of 0. For ``ENGINEHEUR_RESULTS`` these are the
        candidates; how many survive their support check is known only from ``get``.
        """
        kind = self._read_type(self._facts(attribute), element)
        self._check_readable(attribute, count_only=True)
        with self._lock:
            try:
                return self._count(self.owner, attribute, kind)
            except CudnnStatusError as error:
                raise _about(error, self.kind, attribute) from None

    def _count(self, owner: _Owner, attribute: AttributeName, element: AttributeType) -> int:
        held = ctypes.c_int64()
        self._library.cudnnBackendGetAttribute(owner.pointer, attribute, element, 0, ctypes.byref(held), None)
        return held.value

    def _adopt(self, source: Descriptor) -> None:
        """Mark as filled and finalized by cuDNN from `source`, which must outlive it."""
        self._finalized = True
        self.owner.needs[None] = (source.owner,)
        self.owner.device = source.owner.device

    def execute(self, handle: Handle, variant_pack: Descriptor) -> None:
        """Run this execution plan on the handle's stream; returns before the device has finished.

        C: ``cudnnBackendExecute``. Borrows: the variant pack's device buffers, until the stream has passed.
        """
        self.check_usable(DescriptorType.EXECUTION_PLAN)
        if not isinstance(variant_pack, Descriptor):
            raise self._misuse(f"{variant_pack!r} is no Descriptor", "wrong-argument", None)
        variant_pack.check_usable(DescriptorType.VARIANT_PACK)
        plan, pack, running = self.owner, variant_pack.owner, _handle_owner(handle)
        self._one_device(plan, (running,), None)
        try:
            self._library.cudnnBackendExecute(running.pointer, plan.pointer, pack.pointer)
        except CudnnStatusError as error:
            raise _about(error, self.kind) from None

    # checks

    def _one_device(self, owner: _Owner, others: Sequence[_Owner], attribute: AttributeName | None) -> int | None:
        """Return the GPU that all of these are bound to, None if none is bound."""
        devices = {item.device for item in (owner, *others) if item.device is not None}
        if len(devices) > 1:
            raise self._misuse(
                f"this {self.kind.c_name} is bound to GPU {owner.device}, what it is given to GPU "
                f"{', '.join(sorted(str(item.device) for item in others if item.device != owner.device))}",
                "handle-of-another-device",
                attribute,
                fix="make handle, graph and plan while the same device is current",
            )
        return devices.pop() if devices else None

    def check_usable(self, kind: DescriptorType) -> None:
        """Check that this is an open, finalized descriptor of `kind`.

        Raises
        ------
        UsageError
            ``wrong-descriptor-kind``, ``descriptor-closed``, ``descriptor-not-finalized``.
        """
        if self.kind is not kind:
            raise self._misuse(
                f"a {kind.c_name} is needed, this is a {self.kind.c_name}", "wrong-descriptor-kind", None
            )
        _ = self.owner
        if not self._finalized:
            raise self._misuse(f"this {kind.c_name} is not finalized", "descriptor-not-finalized", None)

    def _facts(self, attribute: AttributeName) -> AttributeFacts:
        if not isinstance(attribute, AttributeName):
            raise self._misuse(f"{attribute!r} is no AttributeName", "unknown-enumerator", None)
        if self.kind not in ATTRIBUTE_OWNER[attribute]:
            owners = ", ".join(kind.c_name for kind in ATTRIBUTE_OWNER[attribute])
            known = ", ".join(facts.attribute.name for facts in ATTRIBUTES[self.kind])
            raise self._misuse(
                f"{attribute.c_name} is an attribute of {owners}, not of {self.kind.c_name}",
                "attribute-of-another-descriptor",
                attribute,
                fix=f"the attributes of this descriptor are {known}",
            )
        facts = ATTRIBUTE_FACTS[attribute]
        if facts.since > self._library.version:
            needed = _version_text(facts.since)
            raise self._misuse(
                f"{attribute.c_name} needs cuDNN {needed}, the loaded library is {self._library.version_text}",
                "attribute-newer-than-library",
                attribute,
                fix=f"load a cuDNN of at least {needed} (cudnn-backend cudnn install {needed})",
            )
        return facts

    def _check_readable(self, attribute: AttributeName, *, count_only: bool = False) -> None:
        try:
            check_before_get(attribute, count_only=count_only)
        except UsageError as error:
            raise self._misuse(error.headline, error.code, attribute) from None

    def _read_type(self, facts: AttributeFacts, asked: AttributeType | None) -> AttributeType:
        if asked is None:
            return facts.types[0]
        if not isinstance(asked, AttributeType) or asked not in facts.types:
            accepted = " or ".join(kind.c_name for kind in facts.types)
            raise self._misuse(
                f"{facts.attribute.c_name} takes {accepted}, not {asked!r}", "wrong-element-type", facts.attribute
            )
        return asked

    def _element_type(self, values: Sequence[Any], facts: AttributeFacts, asked: AttributeType | None) -> AttributeType:
        if asked is not None:
            return self._read_type(facts, asked)
        if len(facts.types) == 1 or not values:
            return facts.types[0]
        for kind in facts.types:
            if kind is AttributeType.BACKEND_DESCRIPTOR:
                if isinstance(values[0], Descriptor):
                    return kind
            elif all(matches(value, kind) for value in values):
                return kind
        return facts.types[0]

    def _check_count(self, values: Sequence[Any], facts: AttributeFacts) -> None:
        high = facts.max_count
        if len(values) < facts.min_count or (high is not None and len(values) > high):
            needed = str(high) if high == facts.min_count else f"{facts.min_count} to {high or 'any number'}"
            raise self._misuse(
                f"{facts.attribute.c_name} takes {needed} elements, got {len(values)}",
                "wrong-element-count",
                facts.attribute,
            )

    def _child(self, value: Any, facts: AttributeFacts) -> _Owner:
        names = " or ".join(kind.name for kind in facts.element) or "any kind"
        if not isinstance(value, Descriptor):
            raise UsageError(
                f"{value!r} ({type(value).__name__}) is no Descriptor of kind {names}",
                code="wrong-element-type",
            )
        owner = value.owner
        if facts.element and value.kind not in facts.element:
            raise UsageError(
                f"{facts.attribute.c_name} takes a descriptor of kind {names}, got {value.kind.name}",
                code="wrong-descriptor-kind",
            )
        if value is self:
            raise UsageError(f"this {self.kind.c_name} cannot contain itself", code="descriptor-cycle")
        if not value.finalized:
            raise UsageError(
                f"the {value.kind.c_name} given to {facts.attribute.c_name} is not finalized",
                code="child-not-finalized",
            )
        return owner

    def _misuse(self, headline: str, code: str, attribute: AttributeName | None, fix: str | None = None) -> UsageError:
        where = f"{self.kind.c_name}, {attribute.c_name}" if attribute is not None else self.kind.c_name
        return UsageError(headline, code=code, where=f"{where}; checked before any cuDNN call", fix=fix)


def _as_sequence(value: Any, facts: AttributeFacts) -> Sequence[Any]:
    """Return the elements of `value`: itself if it is one value, its items if it is a sequence of them."""
    kind = facts.types[0]
    if kind is AttributeType.CHAR:
        if not isinstance(value, str) or "\0" in value:
            raise UsageError(f"{facts.attribute.c_name} takes text without NUL", code="wrong-element-type")
        return (value,)
    if isinstance(value, (str, bytes)):
        return (value,)
    pair = AttributeType.FRACTION in facts.types
    if isinstance(value, Sequence) and not (pair and facts.max_count == 1):
        return value
    if hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1:
        return list(value.tolist())
    return (value,)


def _handle_owner(value: Any) -> _Owner:
    if not isinstance(value, Handle):
        raise UsageError(f"{value!r} ({type(value).__name__}) is no Handle", code="wrong-element-type")
    return value.owner


def _about(error: CudnnStatusError, kind: DescriptorType, attribute: AttributeName | None = None) -> CudnnStatusError:
    """Return the same exception with the descriptor and attribute it is about."""
    subject = f"{kind.c_name}, {attribute.c_name}" if attribute is not None else kind.c_name
    return type(error)(
        f"{error.headline} for {subject}",
        code=error.code,
        status=error.status,
        function=error.function,
        last_error=error.last_error,
        descriptor=kind,
        attribute=attribute,
    )
