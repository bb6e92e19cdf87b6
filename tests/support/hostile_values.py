"""Python values with wrong lengths, changing numbers or methods that raise, to test checks of arguments."""

from __future__ import annotations

import array
import collections
import decimal
import enum
import fractions
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cudnn_backend_py import Attr, AttributeType, DataType, Descriptor, DescriptorType
from cudnn_backend_py.generated.enums import CudnnEnum, OperationGraphMode

__all__ = ["HOSTILE_VALUE_MAKERS", "make_equal_or_misreporting_value", "make_random_hostile_value"]

HOSTILE_NUMBERS = (0, 1, 5, -1, 900, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1, int(OperationGraphMode.NORM_FWD_TRAIN))
HOSTILE_EXCEPTIONS = (
    ValueError,
    TypeError,
    KeyError,
    RecursionError,
    MemoryError,
    OverflowError,
    StopIteration,
    AttributeError,
)


class ChangingIndex:
    """An object with an ``__index__`` that returns a different integer each time, or raises."""

    def __init__(self, *answers: Any) -> None:
        self.answers = itertools.cycle(answers)

    def _get_next_number(self) -> Any:
        answer = next(self.answers)
        if isinstance(answer, type):
            raise answer("from a value")
        return answer

    def __index__(self) -> int:
        return self._get_next_number()  # type: ignore[no-any-return]


class ChangingFloat(ChangingIndex):
    """An object with ``__float__`` and ``__index__`` that return a different number each time, or raise."""

    def __float__(self) -> float:
        return self._get_next_number()  # type: ignore[no-any-return]


class MisreportingInt(int):
    """An int with ``__index__``, comparisons and hash of a different number."""

    def __index__(self) -> int:
        return 7

    __int__ = __index__

    def __eq__(self, _other: object) -> bool:
        return True

    def __lt__(self, _other: object) -> bool:
        return False

    __ge__ = __gt__ = __le__ = __eq__  # type: ignore[assignment]

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise ValueError("no repr")


class MisreportingText(str):
    """A str that encodes to another text, compares equal to every text, and has length 0."""

    def encode(self, *_: Any) -> bytes:
        return b'{"deviceName":"' + b"n" * 5000 + b'"}'

    def __contains__(self, _item: object) -> bool:
        return False

    def __eq__(self, _other: object) -> bool:
        return True

    def __len__(self) -> int:
        return 0

    def __hash__(self) -> int:
        return 1

    def __str__(self) -> str:
        return "something else"


class MisreportingBytes(bytes):
    """Bytes with a wrong length."""

    def __len__(self) -> int:
        return 4

    def __bytes__(self) -> bytes:
        raise ValueError("no bytes")


class UnreliableSequence(Sequence[Any]):
    """A sequence with a changing length, and with items that differ from those of its iteration."""

    def __init__(self, length: Any, item: Any) -> None:
        self.length, self.item = length, item

    def __len__(self) -> int:
        if isinstance(self.length, type):
            raise self.length("no length")
        return next(self.length) if isinstance(self.length, Iterator) else self.length  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.item, type):
            raise self.item("no item")
        return self.item

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(1)


class EndlessList(list[Any]):
    """A list with length 3 that iterates without end."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(1)


class MisreportingTuple(tuple[Any, ...]):
    """A tuple that returns items other than its own."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return 2**40

    def __iter__(self) -> Iterator[Any]:
        raise ValueError("no iter")


class FakeVector:
    """An object with the attributes of a NumPy array of one dim."""

    def __init__(self, ndim: Any, length: Any, items: Any) -> None:
        self.ndim, self.length, self.items = ndim, length, items

    def __len__(self) -> int:
        return self.length  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        return self.items


class HostileMetaclass(type):
    """A metaclass that accepts every instance check, and raises on hash and attribute access."""

    def __hash__(cls) -> int:
        raise ValueError("no hash")

    def __eq__(cls, _other: object) -> bool:
        return True

    def __getattribute__(cls, name: str) -> Any:
        raise KeyError(name)

    def __instancecheck__(cls, _value: object) -> bool:
        return True


class HostileObject(metaclass=HostileMetaclass):
    """An object that passes every instance check and raises in most methods."""

    @property
    def __class__(self) -> Any:
        raise ValueError("no class")

    @__class__.setter
    def __class__(self, _value: Any) -> None: ...

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, _other: object) -> bool:
        raise ValueError("no eq")

    def __hash__(self) -> int:
        raise ValueError("no hash")

    def __bool__(self) -> bool:
        raise ValueError("no bool")

    def __repr__(self) -> str:
        return "\x1b[31m" * 10_000 + "\u202e\n::error::"


class FakeDescriptor:
    """An object that reports Descriptor as its class; each of its attributes is the object itself."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    @property
    def __class__(self) -> Any:
        return Descriptor

    @__class__.setter
    def __class__(self, _value: Any) -> None: ...


class ObjectWithHugeRepr:
    """An object with a repr of a million characters."""

    def __repr__(self) -> str:
        return "x" * 1_000_000


class EnumWithCudnnNames(CudnnEnum):
    """A `CudnnEnum` that is not cuDNN's, with names and numbers of its enums."""

    HALF = 2
    TRAIN = int(OperationGraphMode.NORM_FWD_TRAIN)


class EnumWithCudnnNumbers(enum.IntEnum):
    """An ``IntEnum`` that is not cuDNN's, with names and numbers of its enums."""

    HALF = 2
    TRAIN = int(OperationGraphMode.NORM_FWD_TRAIN)


class EnumOfTexts(enum.Enum):
    """An enum with text values instead of numbers."""

    HALF = "half"


def _make_object_with_odd_name(r: random.Random) -> Any:
    return type(r.choice(("int", "list", "dict", "x" * 10_000, "\x1b[0m\n", "bool_")), (), {})()


def _make_nested_list(r: random.Random) -> Any:
    value: list[Any] = []
    for _ in range(r.choice((3, 100, 5000))):
        value = [value]
    return value


def _make_self_containing_list(_r: random.Random) -> Any:
    value: list[Any] = [1, 2]
    value += [value, value]
    return value


HOSTILE_VALUE_MAKERS: tuple[Callable[[random.Random], Any], ...] = (
    lambda r: ChangingIndex(r.choice(HOSTILE_NUMBERS)),
    lambda r: ChangingIndex(1, r.choice(HOSTILE_NUMBERS)),
    lambda r: ChangingIndex(r.choice(HOSTILE_EXCEPTIONS)),
    lambda r: ChangingIndex(r.choice(("x", None, 1.5, True, KeyboardInterrupt))),
    lambda r: ChangingFloat(r.choice((1.0, "x", None, ValueError, 10**400, KeyboardInterrupt))),
    lambda r: MisreportingInt(r.choice(HOSTILE_NUMBERS)),
    lambda _: MisreportingText('{"a":1}'),
    lambda _: MisreportingText("x\0y"),
    lambda r: MisreportingBytes(bytes(r.choice((0, 4, 5000)))),
    lambda r: UnreliableSequence(
        r.choice((-1, 0, 1, 2, 3, 8, 10**9, 2**70, ValueError, KeyboardInterrupt)), r.choice(HOSTILE_NUMBERS)
    ),
    lambda r: UnreliableSequence(itertools.cycle((1, 3, 10**9)), r.choice(HOSTILE_NUMBERS)),
    lambda r: UnreliableSequence(r.choice((1, 2, 3)), r.choice((*HOSTILE_EXCEPTIONS, HostileObject(), None))),
    lambda _: EndlessList([1, 2, 3]),
    lambda _: EndlessList(range(100)),
    lambda _: MisreportingTuple((1, 2, 3)),
    lambda r: FakeVector(1, r.choice((1, 3, 10**9, -1)), r.choice(([1], [1, 2, 3], "x", None, itertools.repeat(1)))),
    lambda r: FakeVector(r.choice((0, 2, None, HostileObject())), 3, [1, 2, 3]),
    lambda r: range(r.choice((1, 3, 9, 10**5, 10**9, 2**70))),
    lambda _: itertools.repeat(1),
    lambda _: (number for number in (1, 2, 3)),
    lambda _: collections.deque((1, 2, 3)),
    lambda _: array.array("q", (1, 2, 3)),
    lambda _: memoryview(b"123"),
    lambda _: memoryview(bytes(8)).cast("B", (2, 2, 2)),
    lambda _: bytearray(b"123"),
    lambda r: {1: r.choice(HOSTILE_NUMBERS)},
    lambda _: frozenset((1, 2)),
    lambda r: np.int64(r.choice((1, 2**32, 2**40, -1))),
    lambda r: np.uint64(r.choice((1, 2**64 - 1))),
    lambda r: np.int8(r.choice((1, -1))),
    lambda r: np.float16(r.choice((0.5, float("inf"), float("nan")))),
    lambda r: np.longdouble(r.choice((0.5, "1e4000"))),
    lambda _: np.complex64(1 + 2j),
    lambda r: np.bool_(r.random() < 0.5),
    lambda r: np.zeros(r.choice(((), (1,), (3,), (2, 2), (1, 1, 1), (0,))), r.choice(("i8", "f4", "?", "O", "S3"))),
    lambda _: np.array([2, 8, 64]),
    lambda _: np.array([2, "x", None], dtype=object),
    lambda r: r.choice((np.str_("x"), np.bytes_(b"1234"), np.datetime64(3, "s"), np.void(b"1234"))),
    lambda r: decimal.Decimal(r.choice(("1", "1.5", "sNaN", "NaN", "1e999999"))),
    lambda r: fractions.Fraction(1, r.choice((1, 3))),
    lambda r: r.choice((10**400, -(10**400), 10**6000)),
    lambda _: 1 + 2j,
    lambda r: r.choice(
        ("\ud800", "a\udfff", '"\\ud800"', "\u202e", "\x1b[31m", "\ufeff{}", '{"deviceName":"\\ud800"}')
    ),
    lambda _: '{"deviceName":"' + "\\ud800" * 200 + '"}',
    lambda r: int.__new__(r.choice((DataType, Attr, AttributeType, DescriptorType)), r.choice((0, 3, 900, 4711))),
    lambda r: r.choice((*EnumWithCudnnNames, *EnumWithCudnnNumbers, *EnumOfTexts)),
    lambda _: HostileObject(),
    lambda _: FakeDescriptor(),
    lambda _: ObjectWithHugeRepr(),
    lambda _: [ObjectWithHugeRepr()] * 3,
    _make_object_with_odd_name,
    _make_nested_list,
    _make_self_containing_list,
    lambda r: r.choice((int, Descriptor, HostileObject, len, type, ..., NotImplemented, object())),
)


def make_random_hostile_value(r: random.Random) -> Any:
    return r.choice(HOSTILE_VALUE_MAKERS)(r)


def make_equal_or_misreporting_value(value: Any, r: random.Random) -> Any:
    """Return an equal value of another class, or a value that only claims to be equal."""
    if type(value) is bool:
        return r.choice((np.bool_(value), ChangingIndex(int(value)), np.array(value)))
    if type(value) is int:
        plain = int(value)
        fits = -(2**63) <= plain < 2**63
        return r.choice(
            (
                ChangingIndex(plain),
                MisreportingInt(plain),
                ChangingIndex(1, plain),
                np.int64(plain) if fits else ChangingFloat(plain),
            )
        )
    if type(value) is float:
        return r.choice((np.float64(value), ChangingFloat(value), np.array(value), decimal.Decimal(value)))
    if type(value) is str:
        return r.choice((MisreportingText(value), np.str_(value)))
    if type(value) is bytes:
        return r.choice((MisreportingBytes(value), bytearray(value), np.bytes_(value)))
    if type(value) is tuple:
        items = [make_equal_or_misreporting_value(item, r) if r.random() < 0.3 else item for item in value]
        return r.choice((tuple(items), items, collections.deque(items), MisreportingTuple(items), EndlessList(items)))
    return value
