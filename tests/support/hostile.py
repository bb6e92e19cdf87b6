"""Values that misreport themselves, raise or change: no check may trust them. Each is made from a seeded random."""

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

__all__ = ["MAKERS", "disguise", "hostile"]

NUMBERS = (0, 1, 5, -1, 900, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1, int(OperationGraphMode.NORM_FWD_TRAIN))
EXCEPTIONS = (
    ValueError,
    TypeError,
    KeyError,
    RecursionError,
    MemoryError,
    OverflowError,
    StopIteration,
    AttributeError,
)


class Index:
    """A number by ``__index__``, a different one each time."""

    def __init__(self, *answers: Any) -> None:
        self.answers = itertools.cycle(answers)

    def _answer(self) -> Any:
        answer = next(self.answers)
        if isinstance(answer, type):
            raise answer("from a value")
        return answer

    def __index__(self) -> int:
        return self._answer()  # type: ignore[no-any-return]


class Real(Index):
    """A number by ``__float__`` as well."""

    def __float__(self) -> float:
        return self._answer()  # type: ignore[no-any-return]


class Int(int):
    """An int that claims to be another one."""

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


class Text(str):
    """A text that encodes to another one, and claims to contain nothing."""

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


class Bytes(bytes):
    """Bytes that claim another length."""

    def __len__(self) -> int:
        return 4

    def __bytes__(self) -> bytes:
        raise ValueError("no bytes")


class Row(Sequence[Any]):
    """A sequence with random length, items and order."""

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


class List(list[Any]):
    """A list with more items than it claims."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(1)


class Tuple(tuple[Any, ...]):
    """A tuple that returns other items."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return 2**40

    def __iter__(self) -> Iterator[Any]:
        raise ValueError("no iter")


class Vector:
    """An object that looks like an array of one dim."""

    def __init__(self, ndim: Any, length: Any, items: Any) -> None:
        self.ndim, self.length, self.items = ndim, length, items

    def __len__(self) -> int:
        return self.length  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        return self.items


class Meta(type):
    """A metaclass with hostile methods."""

    def __hash__(cls) -> int:
        raise ValueError("no hash")

    def __eq__(cls, _other: object) -> bool:
        return True

    def __getattribute__(cls, name: str) -> Any:
        raise KeyError(name)

    def __instancecheck__(cls, _value: object) -> bool:
        return True


class Liar(metaclass=Meta):
    """An object that claims to be of any class, has any attribute, and raises on most."""

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


class Everything:
    """An object that has every attribute, which is itself, and claims to be a Descriptor."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    @property
    def __class__(self) -> Any:
        return Descriptor

    @__class__.setter
    def __class__(self, _value: Any) -> None: ...


class Loud:
    """An object with a large repr."""

    def __repr__(self) -> str:
        return "x" * 1_000_000


class Mine(CudnnEnum):
    """An enum of another package with cuDNN's names."""

    HALF = 2
    TRAIN = int(OperationGraphMode.NORM_FWD_TRAIN)


class Alike(enum.IntEnum):
    """An enum of another package with cuDNN's numbers."""

    HALF = 2
    TRAIN = int(OperationGraphMode.NORM_FWD_TRAIN)


class Words(enum.Enum):
    """An enum without numbers."""

    HALF = "half"


def _odd_type(r: random.Random) -> Any:
    return type(r.choice(("int", "list", "dict", "x" * 10_000, "\x1b[0m\n", "bool_")), (), {})()


def _nested(r: random.Random) -> Any:
    value: list[Any] = []
    for _ in range(r.choice((3, 100, 5000))):
        value = [value]
    return value


def _own_tail(_r: random.Random) -> Any:
    value: list[Any] = [1, 2]
    value += [value, value]
    return value


MAKERS: tuple[Callable[[random.Random], Any], ...] = (
    lambda r: Index(r.choice(NUMBERS)),
    lambda r: Index(1, r.choice(NUMBERS)),
    lambda r: Index(r.choice(EXCEPTIONS)),
    lambda r: Index(r.choice(("x", None, 1.5, True, KeyboardInterrupt))),
    lambda r: Real(r.choice((1.0, "x", None, ValueError, 10**400, KeyboardInterrupt))),
    lambda r: Int(r.choice(NUMBERS)),
    lambda _: Text('{"a":1}'),
    lambda _: Text("x\0y"),
    lambda r: Bytes(bytes(r.choice((0, 4, 5000)))),
    lambda r: Row(r.choice((-1, 0, 1, 2, 3, 8, 10**9, 2**70, ValueError, KeyboardInterrupt)), r.choice(NUMBERS)),
    lambda r: Row(itertools.cycle((1, 3, 10**9)), r.choice(NUMBERS)),
    lambda r: Row(r.choice((1, 2, 3)), r.choice((*EXCEPTIONS, Liar(), None))),
    lambda _: List([1, 2, 3]),
    lambda _: List(range(100)),
    lambda _: Tuple((1, 2, 3)),
    lambda r: Vector(1, r.choice((1, 3, 10**9, -1)), r.choice(([1], [1, 2, 3], "x", None, itertools.repeat(1)))),
    lambda r: Vector(r.choice((0, 2, None, Liar())), 3, [1, 2, 3]),
    lambda r: range(r.choice((1, 3, 9, 10**5, 10**9, 2**70))),
    lambda _: itertools.repeat(1),
    lambda _: (number for number in (1, 2, 3)),
    lambda _: collections.deque((1, 2, 3)),
    lambda _: array.array("q", (1, 2, 3)),
    lambda _: memoryview(b"123"),
    lambda _: memoryview(bytes(8)).cast("B", (2, 2, 2)),
    lambda _: bytearray(b"123"),
    lambda r: {1: r.choice(NUMBERS)},
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
    lambda r: r.choice((*Mine, *Alike, *Words)),
    lambda _: Liar(),
    lambda _: Everything(),
    lambda _: Loud(),
    lambda _: [Loud()] * 3,
    _odd_type,
    _nested,
    _own_tail,
    lambda r: r.choice((int, Descriptor, Liar, len, type, ..., NotImplemented, object())),
)


def hostile(r: random.Random) -> Any:
    """Return one of the hostile values."""
    return r.choice(MAKERS)(r)


def disguise(value: Any, r: random.Random) -> Any:
    """Return an equal value in another form, or one that claims to be equal."""
    if type(value) is bool:
        return r.choice((np.bool_(value), Index(int(value)), np.array(value)))
    if type(value) is int:
        plain = int(value)
        fits = -(2**63) <= plain < 2**63
        return r.choice((Index(plain), Int(plain), Index(1, plain), np.int64(plain) if fits else Real(plain)))
    if type(value) is float:
        return r.choice((np.float64(value), Real(value), np.array(value), decimal.Decimal(value)))
    if type(value) is str:
        return r.choice((Text(value), np.str_(value)))
    if type(value) is bytes:
        return r.choice((Bytes(value), bytearray(value), np.bytes_(value)))
    if type(value) is tuple:
        items = [disguise(item, r) if r.random() < 0.3 else item for item in value]
        return r.choice((tuple(items), items, collections.deque(items), Tuple(items), List(items)))
    return value
