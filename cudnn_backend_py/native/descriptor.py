"""``Descriptor``: the thin mutable wrapper of one cuDNN backend descriptor, and ``Handle``.

Ownership is structure: a native descriptor is held by one small owner object, wrappers and parents hold owners.
Closing a wrapper drops its hold; the native object is destroyed when no one needs it any more. So a child that was
closed under a living parent is no dangling pointer, and nothing depends on the order of destruction.

Nothing is left half done by an exception that comes in the middle, such as KeyboardInterrupt: an owner exists before
its native object, what a native object may point to is held before it is reported, and a descriptor whose state is not
known any more can only be closed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from typing import Any, Self, final

from ..errors import CudnnStatusError, UsageError
from ..generated.attributes import AttributeFacts, get_attribute_facts, get_attributes
from ..generated.enums import AttributeName, AttributeType, DescriptorType, Status
from .crash_guards import check_before_finalize, check_before_get, check_before_set, require_constant_bytes
from .crashing_graphs import NestedDescriptor
from .destructors import DestructorFactory
from .driver import current_device
from .libcudnn import DescriptorPointer, HandlePointer, Library, NativeObject, library
from .values import (
    C_TYPES,
    format_value,
    format_value_with_type,
    is_instance,
    read_attribute_elements,
    read_c_array,
    read_number,
    to_c_elements,
)

__all__ = ["Descriptor", "Handle"]


class _NativeOwner:
    """The owner of one native cuDNN object; the object is destroyed with the last reference to its owner."""

    __slots__ = ("_destructor", "device", "needs", "pointer")

    def __init__(self, pointer: Any, end: DestructorFactory) -> None:
        self.pointer = pointer
        self.device: int | None = None  # ordinal of the GPU it is bound to, through a handle
        self.needs: dict[AttributeName | None, tuple[_NativeOwner, ...]] = {}
        self._destructor = end((pointer, self.needs), ctypes.addressof(pointer))

    def get_owning_pointer(self) -> Any:
        """Return a pointer object that keeps the native object alive, even if another thread calls close()."""
        pointer = type(self.pointer)(self.pointer.value)
        pointer.owner = self
        return pointer


# cuDNN 9.10.0 alone put its two new operations before these; its own log names what each number makes. 9.12 and later,
# and the header, have them at the end.
_RENUMBERED_ENUMERATORS = {
    DescriptorType.OPERATION_EXPAND_BAND_MATRIX: 36,
    DescriptorType.OPERATION_CONTRACT_BAND_MATRIX: 37,
    DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE: 38,
    DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE: 39,
    DescriptorType.DEVICEPROP: 40,
}


def _create_descriptor(lib: Library, kind: DescriptorType) -> _NativeOwner:
    owner = _NativeOwner(DescriptorPointer(), lib.get_destructor_type("cudnnBackendDestroyDescriptor"))
    number = _RENUMBERED_ENUMERATORS.get(kind, kind) if lib.version == (9, 10, 0) else kind
    lib.cudnnBackendCreateDescriptor(number, ctypes.byref(owner.pointer))
    return owner


def _make_closed_error(what: str) -> UsageError:
    return UsageError(f"{what} is closed", code="descriptor-closed", fix="use it before close(), or create another one")


def _get_library(on: Library | None) -> Library:
    if on is None:
        return library()
    if not is_instance(on, Library):
        raise UsageError(
            f"on= must be a Library, got {format_value_with_type(on)}",
            code="wrong-argument",
            fix="give what library() returns, or omit on=",
        )
    return on


@final
class Handle(NativeObject, wraps=True):
    """A cuDNN handle on the current CUDA device, with the ordinal ``device``.

    C: ``cudnnCreate``, ``cudnnDestroy``. It needs a GPU. Destroying it waits for the device.

    Raises
    ------
    CudnnStatusError
        ``NOT_INITIALIZED`` where there is no GPU.
    """

    def __init__(self, *, on: Library | None = None) -> None:
        self._owner: _NativeOwner | None = None
        self._library = _get_library(on)
        self._pid = os.getpid()
        owner = _NativeOwner(HandlePointer(), self._library.get_destructor_type("cudnnDestroy"))
        self._library.cudnnCreate(ctypes.byref(owner.pointer))
        self.device = owner.device = current_device()
        self._owner = owner

    @property
    def owner(self) -> _NativeOwner:
        """The owner of the native handle; raises if closed or if this process was forked after its creation."""
        if self._owner is None:
            raise _make_closed_error("this handle")
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
        pointer: HandlePointer = self.owner.get_owning_pointer()
        return pointer

    def set_stream(self, stream: int) -> Self:
        """Set the CUDA stream on which the handle runs (address of a ``cudaStream_t``; 0 is the default stream).

        C: ``cudnnSetStream``. The stream must outlive its use.
        """
        address = read_number(stream, "cudaStream_t", 0, MAX_ADDRESS)
        self._library.cudnnSetStream(self.pointer, address)
        return self

    @property
    def stream(self) -> int:
        """The address of the handle's current ``cudaStream_t``. C: ``cudnnGetStream``."""
        stream = ctypes.c_void_p()
        self._library.cudnnGetStream(self.pointer, ctypes.byref(stream))
        return stream.value or 0

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called on the handle."""
        return self._owner is None

    def close(self) -> None:
        """Release the handle; harmless when repeated."""
        self._owner = None
        self._library.raise_stored_exception()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


MAX_ADDRESS = (1 << 64) - 1


@final
class Descriptor(NativeObject, wraps=True):
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

    __slots__ = ("__weakref__", "_finalized", "_given", "_kind", "_library", "_lock", "_may_be_half_changed", "_owner")

    def __init__(self, kind: DescriptorType, *, on: Library | None = None) -> None:
        if type(kind) is not DescriptorType or DescriptorType._value2member_map_.get(kind) is not kind:
            near = DescriptorType.find_nearest(kind)
            raise UsageError(
                f"{format_value(kind)} is not a DescriptorType",
                code="unknown-enumerator",
                fix=f"use DescriptorType.{near.name}" if near else "use a member of DescriptorType",
            )
        lib = _get_library(on)
        if kind not in lib.enumerators[DescriptorType]:
            raise lib.make_too_new_error(kind)
        try:
            owner = _create_descriptor(lib, kind)
        except CudnnStatusError as error:
            raise _add_descriptor_to_message(error, kind) from None
        self._set_fields(kind, lib, owner)

    def _set_fields(self, kind: DescriptorType, lib: Library, owner: _NativeOwner) -> None:
        self._kind = kind
        self._library = lib
        self._finalized = False
        self._may_be_half_changed = False  # whether a call that changes it was interrupted
        self._given: dict[AttributeName, Sequence[Any]] = {}
        self._lock = threading.RLock()  # a log callback or a garbage collection may use it in the middle of a call
        self._owner: _NativeOwner | None = owner

    def __repr__(self) -> str:
        state = "closed" if self.closed else "finalized" if self._finalized else "open"
        return f"<Descriptor {self._kind.name}, {state}>"

    @property
    def kind(self) -> DescriptorType:
        """The type of the descriptor."""
        return self._kind

    @property
    def owner(self) -> _NativeOwner:
        """The owner of the native descriptor; raises if closed."""
        owner = self._owner  # read once: another thread may close it
        if owner is None:
            raise _make_closed_error(f"this {self._kind.c_name}")
        return owner

    @property
    def pointer(self) -> DescriptorPointer:
        """The ``cudnnBackendDescriptor_t``; the native descriptor lives as long as this value."""
        pointer: DescriptorPointer = self.owner.get_owning_pointer()
        return pointer

    @property
    def library(self) -> Library:
        """The library that created the descriptor."""
        return self._library

    @property
    def finalized(self) -> bool:
        """Whether the descriptor was finalized, by this package or by cuDNN."""
        return self._finalized

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called on the descriptor."""
        return self._owner is None

    def close(self) -> None:
        """Release the native descriptor; harmless when repeated. A parent that uses it keeps it alive."""
        self._owner = None
        self._library.raise_stored_exception()

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
            ``wrong-element-count``, ``unknown-enumerator``, ``enumerator-newer-than-library``, ``integer-overflow``,
            ``child-not-finalized``, ``descriptor-interrupted``. What a value's own methods raised is its cause.
        CudnnStatusError
            What cuDNN itself refuses.
        """
        facts = self._get_attribute_facts(attribute)
        if facts.role == "output":
            raise self._make_misuse_error(
                f"{attribute.c_name} is read-only",
                "attribute-read-only",
                attribute,
                fix="do not set it: cuDNN computes it, and get() reads it",
            )
        if self._finalized:
            self._check_open(attribute)
        owners: tuple[_NativeOwner, ...] = ()
        try:
            element, values = self._convert_values(read_attribute_elements(value, facts), facts, type)
            check_before_set(attribute, values)
            if element is AttributeType.BACKEND_DESCRIPTOR or element is AttributeType.HANDLE:
                owners = tuple([owner for owner, _ in values])
                given: Sequence[Any] = [part for _, part in values]
                array = (C_TYPES[element] * len(owners))(*[owner.pointer for owner in owners])
            elif element is AttributeType.CHAR:
                array, given = ctypes.create_string_buffer(values[0].encode()), ()
            elif attribute is AttributeName.TENSOR_CONSTANT_VALUE:
                # It lives until the call returns; cuDNN copies the element.
                constant, given = ctypes.create_string_buffer(require_constant_bytes(values[0])), ()
                array = (ctypes.c_void_p * 1)(ctypes.addressof(constant))
            else:
                array, given = (C_TYPES[element] * len(values))(*values), values
        except UsageError as error:
            raise self._make_misuse_error(
                error.headline, error.code, attribute, error.sections.get("fix")
            ) from error.__cause__
        with self._lock:
            owner = self._owner
            if owner is None or self._finalized or self._may_be_half_changed:
                owner = self._check_open(attribute)
            if owners:
                device = self._find_common_device(owner, owners, attribute)
                before = owner.needs.get(attribute, ())
                owner.needs[attribute] = before + owners
            self._may_be_half_changed = True
            try:
                self._library.cudnnBackendSetAttribute(owner.pointer, attribute, element, len(array), array)
            except CudnnStatusError as error:
                if owners:
                    owner.needs[attribute] = before
                self._may_be_half_changed = False
                raise _add_descriptor_to_message(error, self._kind, attribute) from None
            if owners:
                owner.needs[attribute] = owners
                owner.device = device
            self._given[attribute] = given
            self._may_be_half_changed = False
        return self

    def initialize(self) -> Self:
        """Reset every attribute that was set, and return the descriptor.

        C: ``cudnnBackendInitialize``, which cuDNN deprecates. A finalized descriptor is refused: what already uses
        it would be left with an empty one.

        Raises
        ------
        UsageError
            ``descriptor-closed``, ``descriptor-finalized``.
        """
        with self._lock:
            owner = self._check_open(None)
            self._may_be_half_changed = True
            self._library.cudnnBackendInitialize(owner.pointer)
            self._given.clear()
            owner.needs.clear()
            self._may_be_half_changed = False
        return self

    def finalize(self) -> Self:
        """Check and freeze the descriptor, and return it.

        C: ``cudnnBackendFinalize``. For an execution plan this compiles its kernels.

        Raises
        ------
        UsageError
            ``descriptor-closed``, ``descriptor-finalized``, ``descriptor-interrupted``.
        CudnnStatusError
            What cuDNN refuses, with its text.
        """
        with self._lock:
            owner = self._check_open(None)
            try:
                check_before_finalize(self._kind, self._given, self._library.version)
            except UsageError as error:
                raise self._make_misuse_error(error.headline, error.code, None, error.sections.get("fix")) from None
            self._may_be_half_changed = True
            try:
                self._library.cudnnBackendFinalize(owner.pointer)
            except CudnnStatusError as error:
                self._may_be_half_changed = False
                raise _add_descriptor_to_message(error, self._kind) from None
            self._finalized = True
            self._may_be_half_changed = False
        return self

    def _check_open(self, attribute: AttributeName | None) -> _NativeOwner:
        """Check that the descriptor is neither closed nor finalized, and return its owner."""
        owner = self._get_owner_unless_interrupted()
        if self._finalized:
            this = f"this {self._kind.c_name} is"
            raise self._make_misuse_error(
                f"{this} already finalized"
                if attribute is None
                else f"{attribute.c_name} cannot be set, {this} finalized",
                "descriptor-finalized",
                attribute,
                fix="set every attribute before finalize(), or make another descriptor",
            )
        return owner

    def _get_owner_unless_interrupted(self) -> _NativeOwner:
        owner = self.owner
        if self._may_be_half_changed:
            raise self._make_misuse_error(
                f"a call that changes this {self._kind.c_name} was interrupted or is still running",
                "descriptor-interrupted",
                None,
                fix="close it and make another one",
            )
        return owner

    def get(self, attribute: AttributeName, *, type: AttributeType | None = None, judging: bool = False) -> Any:
        """Return an attribute as a Python value: one value, a tuple for arrays, a str for CHAR.

        C: ``cudnnBackendGetAttribute``. Descriptor-valued attributes come back as new, finalized descriptors.

        Parameters
        ----------
        judging
            Return an empty list of engine configs also where an environment problem explains it.

        Raises
        ------
        UsageError
            ``descriptor-closed``, ``attribute-of-another-descriptor``, ``attribute-newer-than-library``.
        CudnnStatusError
            What cuDNN refuses, such as reading an attribute of a descriptor that is not finalized.
        EnvironmentNotReady
            ``ENGINEHEUR_RESULTS`` is empty because cuDNN cannot judge here: NVRTC is missing, for example.
        """
        facts = self._get_attribute_facts(attribute)
        element = self._choose_element_type(facts, type)
        self._check_readable(attribute)
        with self._lock:
            try:
                value = self._read_attribute(attribute, facts, element)
            except CudnnStatusError as error:
                raise _add_descriptor_to_message(error, self._kind, attribute) from None
        if not value and not judging and attribute is AttributeName.ENGINEHEUR_RESULTS:
            self._raise_cause_of_empty_config_list()
        return value

    def _raise_cause_of_empty_config_list(self) -> None:
        from .environment_problems import raise_problem_explaining_empty_config_list  # only for an empty list

        raise_problem_explaining_empty_config_list(self._library)

    def _read_attribute(self, attribute: AttributeName, facts: AttributeFacts, element: AttributeType) -> Any:
        owner = self._get_owner_unless_interrupted()
        single = facts.max_count == 1
        # cuDNN answers a count of 0 for knob choices it does hold, so a bounded attribute is requested its bound.
        count = facts.max_count if facts.max_count is not None else self._count_elements(owner, attribute, element)
        if element is AttributeType.BACKEND_DESCRIPTOR:
            children = self._get_children(owner, attribute, facts.element[0], count)
            return children[0] if single and children else children
        array = (C_TYPES[element] * max(1, count))()
        written = ctypes.c_int64()
        self._library.cudnnBackendGetAttribute(owner.pointer, attribute, element, count, ctypes.byref(written), array)
        held = min(count, written.value)
        if element is AttributeType.CHAR:
            return bytes(array.raw[:held]).split(b"\0", 1)[0].decode("utf-8", "replace")
        values = read_c_array(array, held, element)
        return values[0] if single and values else values

    def _get_children(
        self, owner: _NativeOwner, attribute: AttributeName, kind: DescriptorType, count: int
    ) -> tuple[Descriptor, ...]:
        """Read child descriptors: give cuDNN `count` empty descriptors, and return those that it filled."""
        lib = self._library
        offered = [_create_descriptor(lib, kind) for _ in range(count)]
        array = (DescriptorPointer * count)(*[item.pointer for item in offered])
        written = ctypes.c_int64()
        lib.cudnnBackendGetAttribute(
            owner.pointer,
            attribute,
            AttributeType.BACKEND_DESCRIPTOR,
            count,
            ctypes.byref(written),
            array,
        )
        children = tuple(Descriptor.__new__(Descriptor) for _ in range(min(count, written.value)))
        for child, filled in zip(children, offered, strict=False):
            child._set_fields(kind, lib, filled)
            child._finalized = True
            filled.needs[None] = (owner,)  # which must outlive it
            filled.device = owner.device
        return children

    def count(self, attribute: AttributeName, element: AttributeType | None = None, *, judging: bool = False) -> int:
        """Return the number of elements of an attribute; ``judging`` as in :meth:`get`.

        For ``ENGINEHEUR_RESULTS`` these are the candidates; how many survive their support check is known only from
        ``get``.

        C: ``cudnnBackendGetAttribute`` with a requested count of 0 and no array. cuDNN 9.14 to 9.28 answer 0 then for
        ``ENGINECFG_KNOB_CHOICES`` that are there, and BAD_PARAM for ``ENGINEHEUR_OPERATION_GRAPH``: where an attribute
        has a largest count and cuDNN answers so, that many elements are requested, and those it writes are counted.

        Raises
        ------
        EnvironmentNotReady
            There are no candidates because cuDNN cannot judge here.
        """
        facts = self._get_attribute_facts(attribute)
        kind = self._choose_element_type(facts, element)
        self._check_readable(attribute, count_only=True)
        with self._lock:
            try:
                held = self._count_elements(self._get_owner_unless_interrupted(), attribute, kind)
            except CudnnStatusError as error:
                if facts.max_count is None or error.status is not Status.BAD_PARAM:
                    raise _add_descriptor_to_message(error, self._kind, attribute) from None
                held = 0
        if not held and not judging and attribute is AttributeName.ENGINEHEUR_RESULTS:
            self._raise_cause_of_empty_config_list()
        if held or facts.max_count is None:
            return held
        found = self.get(attribute, type=kind)
        return len(found) if isinstance(found, tuple) else 1

    def _count_elements(self, owner: _NativeOwner, attribute: AttributeName, element: AttributeType) -> int:
        held = ctypes.c_int64()
        self._library.cudnnBackendGetAttribute(owner.pointer, attribute, element, 0, ctypes.byref(held), None)
        return held.value

    def execute(self, handle: Handle, variant_pack: Descriptor) -> None:
        """Run this execution plan on the handle's stream; returns before the device has finished.

        C: ``cudnnBackendExecute``. Borrows: the variant pack's device buffers, until the stream has passed.
        """
        self.check_usable(DescriptorType.EXECUTION_PLAN)
        if type(variant_pack) is not Descriptor:
            raise self._make_misuse_error(
                f"the variant pack must be a Descriptor, got {format_value(variant_pack)}", "wrong-argument", None
            )
        variant_pack.check_usable(DescriptorType.VARIANT_PACK)
        plan, pack, running = self.owner, variant_pack.owner, _get_handle_owner(handle)
        self._find_common_device(plan, (running,), None)
        try:
            self._library.cudnnBackendExecute(running.pointer, plan.pointer, pack.pointer)
        except CudnnStatusError as error:
            raise _add_descriptor_to_message(error, self._kind) from None

    # checks

    def _find_common_device(
        self, owner: _NativeOwner, others: Sequence[_NativeOwner], attribute: AttributeName | None
    ) -> int | None:
        """Return the one GPU that these native objects are bound to; None if none is bound to a GPU."""
        devices = {item.device for item in (owner, *others) if item.device is not None}
        if len(devices) > 1:
            raise self._make_misuse_error(
                f"this {self._kind.c_name} is bound to GPU {owner.device}, the given objects to GPU "
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
        if self._kind is not kind:
            raise self._make_misuse_error(
                f"a {kind.c_name} is needed, but this is a {self._kind.c_name}", "wrong-descriptor-kind", None
            )
        _ = self.owner
        if not self._finalized:
            raise self._make_misuse_error(f"this {kind.c_name} is not finalized", "descriptor-not-finalized", None)

    def _get_attribute_facts(self, attribute: AttributeName) -> AttributeFacts:
        known = AttributeName._value2member_map_.get(attribute) if type(attribute) is AttributeName else None
        if known is None or known is not attribute:
            near = AttributeName.find_nearest(attribute)
            raise self._make_misuse_error(
                f"{format_value(attribute)} is not an AttributeName",
                "unknown-enumerator",
                None,
                fix=f"use Attr.{near.name}" if near else "use a member of Attr",
            )
        facts = get_attribute_facts(attribute)
        if self._kind is not facts.owner:
            own = ", ".join(one.attribute.name for one in get_attributes(self._kind))
            raise self._make_misuse_error(
                f"{attribute.c_name} is an attribute of {facts.owner.c_name}, not of {self._kind.c_name}",
                "attribute-of-another-descriptor",
                attribute,
                fix=f"the attributes of this descriptor are {own}",
            )
        if facts.since > self._library.version:
            error = self._library.make_too_new_error(attribute)
            raise self._make_misuse_error(error.headline, error.code, attribute, error.sections.get("fix"))
        return facts

    def _check_readable(self, attribute: AttributeName, *, count_only: bool = False) -> None:
        try:
            check_before_get(attribute, count_only=count_only)
        except UsageError as error:
            raise self._make_misuse_error(error.headline, error.code, attribute, error.sections.get("fix")) from None

    def _choose_element_type(self, facts: AttributeFacts, asked: AttributeType | None) -> AttributeType:
        if asked is None:
            return facts.types[0]
        for kind in facts.types:
            if kind is asked:
                return kind
        accepted = " or ".join(kind.c_name for kind in facts.types)
        raise self._make_misuse_error(
            f"{facts.attribute.c_name} needs {accepted}, got {format_value(asked)}",
            "wrong-element-type",
            facts.attribute,
        )

    def _convert_values(
        self, values: Sequence[Any], facts: AttributeFacts, asked: AttributeType | None
    ) -> tuple[AttributeType, Sequence[Any]]:
        """Return the requested element type, or the first that fits, and the values converted to it."""
        kinds = facts.types if asked is None else (self._choose_element_type(facts, asked),)
        if len(kinds) > 1 and values and type(values[0]) is Descriptor and AttributeType.BACKEND_DESCRIPTOR in kinds:
            kinds = (AttributeType.BACKEND_DESCRIPTOR,)
        for kind in kinds[:-1]:
            try:
                return kind, self._convert_to_type(values, facts, kind)
            except UsageError as error:
                refused = error
        try:
            return kinds[-1], self._convert_to_type(values, facts, kinds[-1])
        except UsageError:
            if len(kinds) == 1:
                raise
            raise refused from None

    def _convert_to_type(self, values: Sequence[Any], facts: AttributeFacts, kind: AttributeType) -> Sequence[Any]:
        if kind is AttributeType.BACKEND_DESCRIPTOR:
            return [self._check_and_read_nested_descriptor(value, facts) for value in values]
        if kind is AttributeType.HANDLE:
            return [(_get_handle_owner(value), None) for value in values]
        if kind is AttributeType.CHAR or facts.attribute is AttributeName.TENSOR_CONSTANT_VALUE:
            return values
        return to_c_elements(values, kind, self._library)

    def _check_and_read_nested_descriptor(
        self, value: Any, facts: AttributeFacts
    ) -> tuple[_NativeOwner, NestedDescriptor]:
        if type(value) is not Descriptor:
            raise UsageError(
                f"{format_value_with_type(value)} is not a Descriptor of kind {_format_kind_names(facts)}",
                code="wrong-element-type",
            )
        owner = value.owner
        if facts.element and value._kind not in facts.element:
            raise UsageError(
                f"{facts.attribute.c_name} takes a descriptor of kind {_format_kind_names(facts)}, "
                f"got {value._kind.name}",
                code="wrong-descriptor-kind",
            )
        if value is self:
            raise UsageError(f"this {self._kind.c_name} cannot contain itself", code="descriptor-cycle")
        if not value._finalized:
            raise UsageError(
                f"the {value._kind.c_name} given to {facts.attribute.c_name} is not finalized",
                code="child-not-finalized",
            )
        return owner, NestedDescriptor(value._kind, value._given)

    def _make_misuse_error(
        self, headline: str, code: str, attribute: AttributeName | None, fix: str | None = None
    ) -> UsageError:
        where = f"{self._kind.c_name}, {attribute.c_name}" if attribute is not None else self._kind.c_name
        return UsageError(headline, code=code, where=f"{where}; checked before any cuDNN call", fix=fix)


def _format_kind_names(facts: AttributeFacts) -> str:
    return " or ".join(kind.name for kind in facts.element) or "any kind"


def _get_handle_owner(value: Any) -> _NativeOwner:
    if type(value) is not Handle:
        raise UsageError(f"{format_value_with_type(value)} is not a Handle", code="wrong-element-type")
    return value.owner


def _add_descriptor_to_message(
    error: CudnnStatusError, kind: DescriptorType, attribute: AttributeName | None = None
) -> CudnnStatusError:
    """Return the same exception with the descriptor and attribute added to its message."""
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
