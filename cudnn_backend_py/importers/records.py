"""Logs of cuDNN written by any program, read as a stream of records.

The form, from 9.0 to 9.28: a line ``I! CuDNN (v91900 56) function NAME() called:``, lines that begin with ``i! ``, the
last two of them ``Time: ...`` and ``Process=...; Thread=...;``; W and E for warnings and errors. Whatever else is in
the file is skipped. Memory is bounded whatever the file holds: lines, records and writers have a largest size and
number, and beyond it the oldest is given up.
"""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Generic, TypeVar

from ..errors import UsageError
from ..generated.enums import Severity
from ..native.log import LogRecord

__all__ = ["ForeignJson", "LogFileRecord", "LruDict", "Source", "read_log", "scan_log"]

MAX_LINE = 1 << 20  # characters
MAX_RECORD = 1 << 18
MAX_FILE = 8 << 20  # of one JSON value
MAX_STREAMS = 256  # writers whose lines are mixed
_PIECE = 1 << 18

Source = str | os.PathLike[str] | IO[str] | IO[bytes] | Iterable[str | bytes]

_SEVERITIES = {"F": Severity.FATAL, "E": Severity.ERROR, "W": Severity.WARNING, "I": Severity.INFO}
_MARK = re.compile(r"(?P<before>.{0,200}?(?:^|[\s\]):|>]))(?P<letter>[IWEFiwef])! (?P<text>.*)", re.DOTALL)
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]?|\d\d:\d\d:\d\d\S*|\x1b\[[\d;]*m")
_END = re.compile(r"Process=(?P<process>\d+); Thread=(?P<thread>\d+);")
_FUNCTION = re.compile(r"function (\w+)\(\) called")
_HEAD = "CuDNN (v"
_BODY = ("    ", "Time: ", "Process=")  # how lines after the first begin
_FRONTEND = '{"context":'

K = TypeVar("K")
V = TypeVar("V")


class LruDict(Generic[K, V]):
    """A bounded dict that evicts the least recently used entry."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.items: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key in self.items:
            self.items.move_to_end(key)
        return self.items.get(key)

    def store(self, key: K, value: V) -> V | None:
        """Store the value; return the evicted value, None if none was evicted."""
        self.items[key] = value
        self.items.move_to_end(key)
        return self.items.popitem(last=False)[1] if len(self.items) > self.size else None


@dataclass(frozen=True, slots=True)
class LogFileRecord(LogRecord):
    """A record of a log file: ``line`` is its first line, counted from 1; ``whole`` is False if truncated.

    ``thread`` and ``process`` are 0 where the end of the record, which names them, is missing.
    """

    line: int = 0
    whole: bool = True


@dataclass(slots=True)
class _IncompleteRecord:
    """A log record of which more lines may follow."""

    severity: Severity
    line: int
    lines: list[str] = field(default_factory=list)
    size: int = 0
    cut: bool = False

    def add(self, text: str, limit: int = MAX_RECORD) -> None:
        if self.size + len(text) > limit:
            self.cut = True
            return
        self.lines.append(text)
        self.size += len(text) + 1

    def finish(self, end: re.Match[str] | None = None) -> LogFileRecord:
        thread, process = (int(end["thread"][:18]), int(end["process"][:18])) if end else (0, 0)
        whole = end is not None and not self.cut and bool(_FUNCTION.search(self.lines[0]))
        return LogFileRecord(self.severity, "\n".join(self.lines), thread, process, self.line, whole)


def read_log(source: Source) -> Iterator[LogFileRecord]:
    """Yield the records of a cuDNN log, in constant memory.

    Lines of several writers may be mixed if they differ in what is before ``I!`` (``[rank1]: ``, a container's
    name); a record another one begins in is yielded as it is, with ``whole`` False, and so is one without its head.

    Parameters
    ----------
    source
        A path (``.gz`` is unpacked), an open text or binary file, or text or bytes in pieces of any length.

    Raises
    ------
    UsageError
        ``log-file`` if the file cannot be read.
    """
    return (item for item in scan_log(source) if isinstance(item, LogFileRecord))


@dataclass(frozen=True, slots=True)
class ForeignJson:
    """JSON in a log that is not part of cuDNN's records: from cudnn-frontend, or the whole file."""

    text: str
    line: int


def scan_log(source: Source) -> Iterator[LogFileRecord | ForeignJson]:
    """Yield the records of a log and the JSON between them."""
    opened: LruDict[str, _IncompleteRecord] = LruDict(MAX_STREAMS)
    whole_file: _IncompleteRecord | None = None
    begun = False
    for number, (line, is_cut) in enumerate(_iterate_lines(source), 1):
        found = _parse_log_line(line)
        if found is None:
            if not begun and line.strip():
                begun = True
                whole_file = _IncompleteRecord(Severity.INFO, number) if line.lstrip().startswith("{") else None
            if whole_file is not None:
                whole_file.add(line, MAX_FILE)
            elif (at := line.find(_FRONTEND)) >= 0:
                yield ForeignJson(line[at:], number)
            continue
        begun = True
        stream, letter, text = found
        current = opened.get(stream)
        if current is None or letter.isupper():
            if letter.islower() and not text.startswith(_BODY):
                continue
            if current is not None:
                yield current.finish()
            current = _IncompleteRecord(_SEVERITIES[letter.upper()], number)
            if (lost := opened.store(stream, current)) is not None:
                yield lost.finish()
        current.add(text)
        current.cut = current.cut or is_cut
        if text.startswith("Process=") and (end := _END.match(text)):
            yield current.finish(end)
            del opened.items[stream]
    for current in opened.items.values():
        yield current.finish()
    if whole_file is not None:
        yield ForeignJson("\n".join(whole_file.lines), whole_file.line)


def _parse_log_line(line: str) -> tuple[str, str, str] | None:
    """Return writer prefix, severity letter and text of a log line; None if cuDNN did not write it."""
    if line[1:3] == "! " and (line[0] in "iwef" or (line[0] in "IWEF" and line.startswith(_HEAD, 3))):
        return "", line[0], line[3:]
    if "! " not in line[:240]:
        return None
    match = _MARK.match(line)
    if match is None or (match["letter"].isupper() and not match["text"].startswith(_HEAD)):
        return None
    return _STAMP.sub("", match["before"]).strip(), match["letter"], match["text"]


def _iterate_chunks(source: Source) -> Iterator[str | bytes]:
    if isinstance(source, (str, os.PathLike)):
        opener = gzip.open if os.fspath(source).endswith(".gz") else open
        begun = False
        try:
            with opener(source, "rb") as stream:
                while piece := stream.read1(_PIECE):  # what there is: what is cut off has no more
                    begun = True
                    yield piece
        except (OSError, EOFError, ValueError, zlib.error) as error:
            if begun and isinstance(error, EOFError):  # a packed log that is cut off, as one that is not packed may be
                return
            raise UsageError(f"cannot read the log {os.fspath(source)!r}: {error}", code="log-file") from None
    elif hasattr(source, "read"):
        while data := source.read(_PIECE):
            yield data
    else:
        yield from source


def _iterate_lines(source: Source) -> Iterator[tuple[str, bool]]:
    """Yield each line without its end, and whether it was truncated because of its length."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    rest, skipping, begun = "", False, False
    for piece in _iterate_chunks(source):
        if not begun and isinstance(piece, (bytes, bytearray)):
            encoding = "utf-16" if piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
            decode = codecs.getincrementaldecoder(encoding)("replace").decode
        begun = True
        text = decode(piece) if isinstance(piece, (bytes, bytearray)) else piece
        first, *others = text.split("\n")
        if not others:
            if not skipping:
                rest += first
            if len(rest) > MAX_LINE:
                yield rest[:MAX_LINE], True
                rest, skipping = "", True
            continue
        if not skipping:
            yield (rest + first).removesuffix("\r"), False
        skipping = False
        for line in others[:-1]:
            yield line.removesuffix("\r"), False
        rest = others[-1]
    if rest:
        yield rest, False
