"""Find a text among the messages in cuDNN's library files. Loads no library."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..native.environment import find_sublibraries
from ..native.find import find_cudnn_places
from ..plans.kernels import read_section_table
from ..system.interruption import reraise_interruption

__all__ = ["find_library_with_message"]

_MIN_CHARACTERS = 10  # of a part of a message that is searched
_PART_WORDS = 3  # few, as others may be filled in
_MAX_PARTS = 12
_MAX_MATCHES = 100
_MAX_MESSAGE_BYTES = 1_000
_FORMAT_PATTERN = re.compile(r"%[-+ #\d.]*[hlzjt]*[a-zA-Z]|\{\}")


def find_library_with_message(text: str) -> Path | None:
    """Return the sub-library of an installed cuDNN that can print the text; None if none can.

    Compared is what comes before `` at: ``, with the formats of C in the library's messages.
    """
    statement = re.split(r"\sat: ", text.strip(), maxsplit=1)[0].strip()
    searched = sorted(_iterate_parts(statement), key=len)[-_MAX_PARTS:]
    if not searched or len(statement) > _MAX_MESSAGE_BYTES:
        return None
    for place in find_cudnn_places():
        if place.path is not None and Path(place.path).is_absolute():
            for files in find_sublibraries(Path(place.path).parent).values():
                if any(_is_format_of(one, statement) for one in _list_constants(files[0], searched)):
                    return files[0]
    return None


def _iterate_parts(statement: str) -> Iterator[bytes]:
    """Yield a statement, and parts of a few words each, without those that have numbers."""
    if len(statement) >= _MIN_CHARACTERS:
        yield statement.encode()
    for run in re.split(r"\S*\d\S*|\n", statement):
        words = run.split(" ")
        for first in range(max(1, len(words) - _PART_WORDS + 1)):
            part = " ".join(words[first : first + _PART_WORDS]).strip()
            if len(part) >= _MIN_CHARACTERS:
                yield part.encode()


def _is_format_of(constant: str, statement: str) -> bool:
    pattern = ".+".join(map(re.escape, _FORMAT_PATTERN.split(constant.strip())))
    return re.fullmatch(pattern, statement, re.DOTALL) is not None


def _list_constants(file: Path, parts: Sequence[bytes]) -> list[str]:
    """Return the texts among the constants of a library file that contain one of the parts; none if it is damaged."""
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            places = [(offset, size) for name, _, offset, size in read_section_table(content) if name == ".rodata"]
            return [text for place in places for part in parts for text in _iterate_texts(content, *place, part)]
    except OSError as error:
        reraise_interruption(error)
    except (IndexError, ValueError, struct.error):  # also for an empty file
        pass
    return []


def _iterate_texts(content: mmap.mmap, offset: int, size: int, part: bytes) -> Iterator[str]:
    at = content.find(part, offset, offset + size)
    for _ in range(_MAX_MATCHES):
        if at < 0:
            return
        begin = content.rfind(b"\0", max(offset, at - _MAX_MESSAGE_BYTES), at)
        end = content.find(b"\0", at, at + _MAX_MESSAGE_BYTES)
        if begin >= 0 and end >= 0:
            yield content[begin + 1 : end].decode("utf-8", "replace")
        at = content.find(part, at + len(part), offset + size)
