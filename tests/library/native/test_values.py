"""Attribute values from callers: read once, checked after conversion for C, and shown safely in error messages."""

from __future__ import annotations

import copy
import decimal
import fractions
import pickle
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import Attr, CudnnBackendError, DataType, Descriptor, DescriptorType, UsageError, capi
from cudnn_backend_py.generated.enums import OperationGraphMode
from cudnn_backend_py.native.launch import make_std_vectors_of_int64
from cudnn_backend_py.native.values import format_value, format_value_with_type
from tests.support.hostile_values import (
    HOSTILE_VALUE_MAKERS,
    ChangingFloat,
    ChangingIndex,
    FakeDescriptor,
    HostileObject,
    MisreportingInt,
    MisreportingText,
    ObjectWithHugeRepr,
    UnreliableSequence,
    make_equal_or_misreporting_value,
)

D = DescriptorType
CONCAT_AXIS = Attr.OPERATION_CONCAT_AXIS
TENSOR_UID = Attr.TENSOR_UNIQUE_ID
ELU_ALPHA = Attr.POINTWISE_ELU_ALPHA
LONG_NAME = '{"deviceName":"' + "n" * 300 + '"}'
TRAINING_MODE = int(OperationGraphMode.NORM_FWD_TRAIN)


def make_setter(kind: D, attribute: Attr, value: Any) -> Callable[[], Any]:
    """Return a call that sets an attribute of a new descriptor."""
    return lambda: Descriptor(kind).set(attribute, value)


INVALID_VALUE_CALLS = {
    "numpy int as axis": (make_setter(D.OPERATION_CONCAT, CONCAT_AXIS, np.int64(2**32)), "axis-out-of-range"),
    "axis by index": (make_setter(D.OPERATION_CONCAT, CONCAT_AXIS, ChangingIndex(2**32)), "axis-out-of-range"),
    "axis that changes": (make_setter(D.OPERATION_CONCAT, CONCAT_AXIS, ChangingIndex(2**32, 1)), "axis-out-of-range"),
    "axis that is": (make_setter(D.OPERATION_CONCAT, CONCAT_AXIS, MisreportingInt(2**32)), "axis-out-of-range"),
    "axis in an array": (make_setter(D.OPERATION_CONCAT, CONCAT_AXIS, np.array([2**32])), "axis-out-of-range"),
    "training mode by index": (
        make_setter(D.OPERATIONGRAPH, Attr.OPERATIONGRAPH_MODE, ChangingIndex(TRAINING_MODE)),
        "graph-mode-mismatch",
    ),
    "text that encodes to another": (
        make_setter(D.DEVICEPROP, Attr.DEVICEPROP_JSON_REPRESENTATION, MisreportingText(LONG_NAME)),
        "device-name-too-long",
    ),
    "device name of escaped surrogates": (
        make_setter(D.DEVICEPROP, Attr.DEVICEPROP_JSON_REPRESENTATION, '{"deviceName":"' + "\\ud800" * 200 + '"}'),
        "device-name-too-long",
    ),
    "lone surrogate": (
        make_setter(D.DEVICEPROP, Attr.DEVICEPROP_JSON_REPRESENTATION, '{"a":"\ud800"}'),
        "wrong-element-type",
    ),
    "array of two dims": (make_setter(D.TENSOR, Attr.TENSOR_DIMENSIONS, np.ones((2, 2), int)), "wrong-element-type"),
    "number too large for a double": (make_setter(D.POINTWISE, ELU_ALPHA, 10**400), "wrong-element-type"),
    "signaling NaN": (make_setter(D.POINTWISE, ELU_ALPHA, decimal.Decimal("sNaN")), "wrong-element-type"),
    "complex of NumPy": (make_setter(D.POINTWISE, ELU_ALPHA, np.complex64(1 + 2j)), "wrong-element-type"),
    "bool of NumPy as float": (make_setter(D.POINTWISE, ELU_ALPHA, np.bool_(True)), "wrong-element-type"),
    "forged enumerator": (
        make_setter(D.TENSOR, Attr.TENSOR_DATA_TYPE, int.__new__(DataType, 4711)),
        "unknown-enumerator",
    ),
    "forged attribute": (make_setter(D.TENSOR, int.__new__(Attr, 900), 16), "unknown-enumerator"),
    "forged kind": (lambda: Descriptor(int.__new__(D, 17)), "unknown-enumerator"),
    "a library that is none": (lambda: Descriptor(D.TENSOR, on=5), "wrong-argument"),  # type: ignore[arg-type]
    "child that says it is one": (
        make_setter(D.OPERATION_MATMUL, Attr.OPERATION_MATMUL_ADESC, FakeDescriptor()),
        "wrong-element-type",
    ),
    "endless range for a number": (
        make_setter(D.OPERATION_CONVOLUTION_FORWARD, Attr.OPERATION_CONVOLUTION_FORWARD_ALPHA, range(10**9)),
        "wrong-element-count",
    ),
    "endless range for many": (
        make_setter(D.VARIANT_PACK, Attr.VARIANT_PACK_UNIQUE_IDS, range(10**9)),
        "wrong-element-count",
    ),
    "length that is": (
        make_setter(D.TENSOR, Attr.TENSOR_DIMENSIONS, UnreliableSequence(10**9, 1)),
        "wrong-element-count",
    ),
    "negative length": (make_setter(D.TENSOR, Attr.TENSOR_DIMENSIONS, UnreliableSequence(-1, 1)), "wrong-element-type"),
    "capi count of endless": (
        lambda: capi.cudnnBackendSetAttribute(
            Descriptor(D.VARIANT_PACK), Attr.VARIANT_PACK_UNIQUE_IDS, None, 10**9, range(10**9)  # type: ignore[arg-type]
        ),
        "wrong-element-count",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "code"), INVALID_VALUE_CALLS.values(), ids=INVALID_VALUE_CALLS)
def test_values_invalid_after_conversion_are_refused(call: Callable[[], Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.code == code


@pytest.mark.parametrize(
    "raised", [ValueError, TypeError, KeyError, RecursionError, MemoryError, StopIteration, ZeroDivisionError]
)
@pytest.mark.parametrize(
    "make",
    [
        ChangingIndex,
        ChangingFloat,
        lambda error: UnreliableSequence(error, 1),
        lambda error: UnreliableSequence(2, error),
    ],
)
def test_an_exception_in_a_conversion_is_the_cause_of_the_usage_error(
    make: Callable[[Any], Any], raised: type[Exception]
) -> None:
    with pytest.raises(UsageError) as caught:
        Descriptor(D.TENSOR).set(Attr.TENSOR_DIMENSIONS, make(raised))
    assert caught.value.code == "wrong-element-type"
    assert type(caught.value.__cause__) is raised


def test_keyboard_interrupt_in_a_conversion_propagates_and_changes_nothing() -> None:
    made = Descriptor(D.TENSOR)
    with pytest.raises(KeyboardInterrupt):
        made.set(TENSOR_UID, ChangingIndex(KeyboardInterrupt))
    made.set(TENSOR_UID, 3)


VALID_NUMBERS: list[tuple[D, Attr, Any]] = [
    (D.TENSOR, TENSOR_UID, np.int64(3)),
    (D.TENSOR, TENSOR_UID, np.array(3)),
    (D.TENSOR, TENSOR_UID, ChangingIndex(3)),
    (D.TENSOR, Attr.TENSOR_IS_VIRTUAL, np.bool_(True)),
    (D.TENSOR, Attr.TENSOR_DIMENSIONS, np.array([2, 8, 64])),
    (D.TENSOR, Attr.TENSOR_DIMENSIONS, deque((2, 8, 64))),
    (D.TENSOR, Attr.TENSOR_DIMENSIONS, range(1, 4)),
    (D.POINTWISE, ELU_ALPHA, np.float16(0.5)),
    (D.POINTWISE, ELU_ALPHA, fractions.Fraction(1, 2)),
    (D.POINTWISE, ELU_ALPHA, decimal.Decimal("0.5")),
    (D.POINTWISE, ELU_ALPHA, np.array(0.5)),
    (D.RESAMPLE, Attr.RESAMPLE_STRIDES, [(1, 2), (3, 4)]),
]


@pytest.mark.parametrize(("kind", "attribute", "value"), VALID_NUMBERS)
def test_numpy_and_other_number_types_are_accepted_as_values(kind: D, attribute: Attr, value: Any) -> None:
    Descriptor(kind).set(attribute, value)


def test_each_number_is_converted_once() -> None:
    value = ChangingIndex(5, 6, 7)
    Descriptor(D.TENSOR).set(TENSOR_UID, value)
    assert next(value.answers) == 6


@pytest.mark.parametrize("maker", range(len(HOSTILE_VALUE_MAKERS)))
def test_hostile_values_are_accepted_or_raise_package_errors(maker: int) -> None:
    r = random.Random(maker)
    places: Sequence[Callable[[Any], Any]] = (
        lambda value: Descriptor(D.TENSOR).set(TENSOR_UID, value),
        lambda value: Descriptor(D.TENSOR).set(Attr.TENSOR_DIMENSIONS, [value, 2]),
        lambda value: Descriptor(D.TENSOR).set(value, 1),
        lambda value: Descriptor(D.TENSOR).set(TENSOR_UID, 1, type=value),
        lambda value: Descriptor(D.TENSOR).get(TENSOR_UID, type=value),
        lambda value: Descriptor(D.RESAMPLE).set(Attr.RESAMPLE_STRIDES, [value, value]),
        lambda value: Descriptor(D.POINTWISE).set(ELU_ALPHA, value),
        lambda value: Descriptor(D.DEVICEPROP).set(Attr.DEVICEPROP_JSON_REPRESENTATION, value),
        lambda value: Descriptor(D.OPERATIONGRAPH).set(Attr.OPERATIONGRAPH_OPS, value),
        lambda value: Descriptor(D.OPERATIONGRAPH).set(Attr.OPERATIONGRAPH_HANDLE, value),
        Descriptor,
        capi.cudnnGetErrorString,
        capi.cudnnBackendFinalize,
        lambda value: capi.cudnnSetCallback(value, None),
        lambda value: capi.cudnnBackendSetAttribute(Descriptor(D.TENSOR), TENSOR_UID, value, value, value),
        lambda value: capi.cudnnBackendGetAttribute(Descriptor(D.TENSOR), TENSOR_UID, value, value),
    )
    messages: list[str] = []
    for place in places:
        for value in (
            HOSTILE_VALUE_MAKERS[maker](r),
            make_equal_or_misreporting_value(HOSTILE_VALUE_MAKERS[maker](r), r),
        ):
            try:
                place(value)
            except CudnnBackendError as error:
                messages.append(error.render())
            except KeyboardInterrupt:
                messages.append("interrupted")
    capi.cudnnSetCallback(0, None)
    assert len(messages) > len(places)
    assert max(map(len, messages)) < 20_000


def test_errors_show_a_value_in_one_line_of_bounded_length() -> None:
    endless: list[Any] = []
    endless += [endless] * 9
    for value in (
        ObjectWithHugeRepr(),
        HostileObject(),
        MisreportingInt(3),
        "x" * 10**7,
        [ObjectWithHugeRepr()] * 10**6,
        endless,
        10**6000,
        type("n" * 10**6, (), {})(),
    ):
        for text in (format_value(value), format_value_with_type(value)):
            assert text.isprintable()
            assert len(text) < 1000
    assert format_value((1, 2, 3)) == "(1, 2, 3)"
    assert format_value_with_type("a") == "'a' (str)"


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (((1, 2**64 + 5),), "integer-overflow"),  # ctypes would truncate it to 5
        (((1, 2.5),), "wrong-element-type"),
        ((range(10**9),), "wrong-element-count"),
        (5, "wrong-element-type"),
    ],
)
def test_invalid_override_dims_are_refused(rows: Any, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_std_vectors_of_int64(rows)
    assert caught.value.code == code


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_descriptor_cannot_be_copied(make: Callable[[Any], Any]) -> None:
    with pytest.raises(UsageError, match="cannot be copied") as caught:
        make(Descriptor(D.TENSOR))
    assert caught.value.code == "not-copyable"


def test_a_descriptor_cannot_be_subclassed() -> None:
    with pytest.raises(UsageError, match="cannot be derived from class Descriptor") as caught:
        type("Mine", (Descriptor,), {})
    assert caught.value.code == "no-base-class"
