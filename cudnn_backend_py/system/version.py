"""Versions of this package and of cuDNN: as numbers, as text and as ranges. Imports no other module of the package.

What takes a version takes any tuple of three numbers; what gives one gives a :class:`Version`. cuDNN reports its
version as one integer, its wheels and files are named with plain numbers, and none has letters: tuples compare those as
they are. ``packaging.version`` would cost an import, and knows neither the integers nor windows of versions. It reads
the versions of other programs, such as torch's, which have letters (``why``, ``torch_ops``).
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "DESCRIBED_GPUS_SINCE",
    "JIT_SINCE",
    "Version",
    "VersionRange",
    "VersionTuple",
    "format_cuda_version_number",
    "format_version_numbers",
    "parse_leading_numbers",
    "parse_version_numbers",
]

#: The first version whose jit wheel judges anything: that of 9.12.0 lacks a library that its own graph library opens.
JIT_SINCE = (9, 13, 0)

#: The first version that judges for a described GPU.
DESCRIBED_GPUS_SINCE = (9, 8, 0)

__version__ = "0.1.0"

VersionTuple = tuple[int, int, int]


def format_version_numbers(numbers: Iterable[int]) -> str:
    """Format a version: ``9.19.0`` for (9, 19, 0); two or four numbers are accepted as well."""
    return ".".join(map(str, numbers))


def format_cuda_version_number(number: int) -> str:
    """Format CUDA's version number: ``12.9`` for 12090."""
    return f"{number // 1000}.{number % 1000 // 10}"


def parse_version_numbers(text: str) -> tuple[int, ...]:
    """Parse a version text to a tuple of numbers for comparison; a CUDA suffix such as ``+cu12`` is ignored.

    Raises
    ------
    ValueError
        If something else than a number is between the dots.
    """
    return tuple(map(int, text.partition("+cu")[0].split(".")))


def is_same_version(one: str, other: str) -> bool:
    """Return whether two version texts have the same numbers, and the same CUDA major where both name one."""
    (numbers, _, cuda), (other_numbers, _, other_cuda) = one.partition("+cu"), other.partition("+cu")
    return numbers == other_numbers and (not cuda or not other_cuda or cuda == other_cuda)


def parse_leading_numbers(name: str) -> tuple[int, ...]:
    """Parse the version at the start of a name: (9, 19, 0) for ``9.19.0-full``, () if there is no number."""
    found = re.match(r"[0-9]+(\.[0-9]+)+", name)
    return parse_version_numbers(found[0]) if found else ()


class Version(NamedTuple):
    """A version of cuDNN: a tuple of three numbers, ``9.19.0`` as text."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return format_version_numbers(self)

    @property
    def number(self) -> int:
        """The version as one integer, like ``CUDNN_VERSION``: 91900."""
        return self.major * 10_000 + self.minor * 100 + self.patch

    @staticmethod
    def from_numbers(version: VersionTuple) -> "Version":
        """Make a Version from a tuple of three numbers."""
        return version if isinstance(version, Version) else Version(*version)

    @staticmethod
    def from_text(text: str) -> "Version":
        """Return the version in a text such as ``9.19.0``.

        Raises
        ------
        ValueError
            If it is not three numbers with dots between.
        """
        major, minor, patch = parse_version_numbers(text)
        return Version(major, minor, patch)

    @staticmethod
    def read(version: VersionTuple | str | int) -> "Version":
        """Return a version given as ``(9, 19, 0)``, ``"9.19.0"`` or 91900; a fourth number is left out.

        Raises
        ------
        ValueError
            If it is something else.
        """
        try:
            if isinstance(version, int):
                numbers: tuple[int, ...] = Version.from_number(version)
            else:
                numbers = parse_version_numbers(version) if isinstance(version, str) else tuple(map(int, version))
            major, minor, patch = numbers[:3]
        except (TypeError, ValueError):
            major = 0
        if major < 1:
            raise ValueError(
                f"a version needs three numbers, such as (9, 19, 0), '9.19.0' or 91900; got {version!r}"
            ) from None
        return Version(major, minor, patch)

    @staticmethod
    def from_number(number: int) -> "Version":
        """Convert a number from ``cudnnGetVersion``: 91900 gives 9.19.0."""
        return Version(number // 10_000, number // 100 % 100, number % 100)


_FIRST = Version(9, 0, 0)  # the oldest cuDNN this package serves


class VersionRange(NamedTuple):
    """A range of cuDNN versions from ``since`` up to but not including ``until``, without those in ``except_``.

    Where ``until`` is None it holds for all later ones.
    """

    since: VersionTuple = _FIRST
    until: VersionTuple | None = None
    except_: tuple[VersionTuple, ...] = ()

    def __contains__(self, version: VersionTuple) -> bool:  # type: ignore[override]
        ended = self.until is not None and version >= self.until
        return version >= self.since and not ended and version not in self.except_

    def __str__(self) -> str:
        since = f"cuDNN {format_version_numbers(self.since)}"
        return f"{since} and later" if self.until is None else f"{since} to before {format_version_numbers(self.until)}"
