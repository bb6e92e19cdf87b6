"""The exceptions; their text states the problem, cuDNN's error text, and what to do.

Every exception is one printable line as ``str(exc)``: ``code: headline``, and cuDNN's first reason if it gave one. The
rest is attached as a note, so logs stay short and tracebacks show everything; its parts are kept as they were given.
All of them pickle, so a child process can hand one to its parent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Self

from .printable import make_lines_printable, printable

if TYPE_CHECKING:
    from .generated.enums import AttributeName, DescriptorType, Status

__all__ = [
    "CudnnBackendError",
    "CudnnStatusError",
    "EnvironmentNotReady",
    "GraphError",
    "NotSupported",
    "NotSupportedStatus",
    "UsageError",
]

_MAX_SHOWN = 4000  # characters of a headline that are printed
_MAX_REASON = 300  # characters of cuDNN's reason
# A line of cuDNN's last-error text that gives a reason; compiled where it is first used.
REASON_LINE = r"(?m)^\s*(?:Warning|Error): (?P<status>CUDNN_STATUS_\w+); Reason: (?P<text>.*)$"
_SECTIONS = ("where", "cudnn", "cause", "fix", "more")


class CudnnBackendError(Exception):
    """Base of all exceptions that this package raises deliberately.

    Parameters
    ----------
    headline
        One sentence that is alone and names the object and the values found and needed.
    code
        Kebab-case name of the fault, stable across releases.
    where, cudnn, cause, fix, more
        The sections of the full message, in this order; empty ones are left out.
    """

    def __init__(self, headline: str, *, code: str, **sections: str | None) -> None:
        unknown = set(sections) - set(_SECTIONS)
        if unknown:
            raise TypeError(f"unknown message sections {sorted(unknown)}, known are {list(_SECTIONS)}")
        shown = headline if len(headline) <= _MAX_SHOWN else f"{headline[:_MAX_SHOWN]}... ({len(headline)} characters)"
        super().__init__(f"{code}: {printable(shown)}")
        self.headline = headline
        self.code = code
        self.sections = {name: text for name in _SECTIONS if (text := sections.get(name))}
        if self.sections:
            self.add_note(self._body())

    @property
    def reason(self) -> str:
        """The first reason in cuDNN's last-error text, which is its innermost one; empty if there is none."""
        found = re.search(REASON_LINE, self.sections.get("cudnn", ""))
        return "" if found is None else found["text"].strip()

    def __str__(self) -> str:
        shown, reason = str(self.args[0]), printable(self.reason[:_MAX_REASON])
        return f"{shown}; cuDNN: {reason}" if reason and reason not in shown else shown

    def _body(self) -> str:
        lines = []
        for name, text in self.sections.items():
            first, *rest = make_lines_printable(text).splitlines()
            lines.append(f"  {name + ':':<7} {first}")
            lines += [f"          {line}" for line in rest]
        return "\n".join(lines)

    def render(self) -> str:
        """Return the whole message: the headline, then the sections."""
        return f"{self.args[0]}\n{self._body()}" if self.sections else str(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the message as plain data."""
        return {
            "type": type(self).__name__,
            "code": self.code,
            "headline": self.headline,
            **self.sections,
            **self._fields(),
        }

    def _fields(self) -> dict[str, Any]:
        return {}

    def _arguments(self) -> dict[str, Any]:
        """Return the keyword arguments that construct an equal exception."""
        return {"code": self.code, **self.sections}

    @classmethod
    def _rebuild(cls, headline: str, arguments: dict[str, Any]) -> Self:
        return cls(headline, **arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self)._rebuild, (self.headline, self._arguments()), self.__dict__)


class EnvironmentNotReady(CudnnBackendError, OSError):
    """This machine cannot run cuDNN: no libcudnn, no driver library, no NVRTC, or mixed sub-libraries."""


class GraphError(CudnnBackendError, ValueError):
    """An invalid graph value, found before any cuDNN call."""


class UsageError(CudnnBackendError, ValueError):
    """A call that must not reach C: wrong element type or count, closed or finalized descriptor."""


class CudnnStatusError(CudnnBackendError):
    """A cuDNN function returned a status other than ``CUDNN_STATUS_SUCCESS``.

    Attributes
    ----------
    status
        The status as :class:`~cudnn_backend_py.generated.enums.Status`, or a plain ``int`` newer than our header.
    function
        Name of the C function.
    last_error
        Text of ``cudnnGetLastErrorString`` read right after the call in the same thread; ``""`` if there was none.
    descriptor, attribute
        What the call was about, where it was about a descriptor.
    """

    def __init__(
        self,
        headline: str,
        *,
        code: str = "cudnn-status",
        status: Status | int,
        function: str,
        last_error: str = "",
        descriptor: DescriptorType | None = None,
        attribute: AttributeName | None = None,
        **sections: str | None,
    ) -> None:
        self.status = status
        self.function = function
        self.last_error = last_error
        self.descriptor = descriptor
        self.attribute = attribute
        sections.pop("cudnn", None)
        words = last_error.rstrip() or "no last-error text"
        super().__init__(headline, code=code, cudnn=f"{format_status(status)}, {function}\n{words}", **sections)

    @property
    def refuses(self) -> bool:
        """Whether cuDNN refused the arguments of the call (BAD_PARAM, NOT_SUPPORTED) rather than failed internally."""
        return 2000 <= int(self.status) < 4000

    def _fields(self) -> dict[str, Any]:
        return {
            "status": int(self.status),
            "status_name": _find_status_name(self.status),
            "function": self.function,
            "last_error": self.last_error,
            "descriptor": self.descriptor.c_name if self.descriptor is not None else None,
            "attribute": self.attribute.c_name if self.attribute is not None else None,
        }

    def _arguments(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "status": self.status,
            "function": self.function,
            "last_error": self.last_error,
            "descriptor": self.descriptor,
            "attribute": self.attribute,
            **{name: text for name, text in self.sections.items() if name != "cudnn"},
        }


class NotSupported(CudnnBackendError):
    """No engine runs the request: cuDNN refused it, or all proposed configs exceed the caller's limits.

    ``verdict`` carries the explanation where one was requested.
    """

    verdict: Any = None


class NotSupportedStatus(CudnnStatusError, NotSupported):
    """cuDNN returned one of ``CUDNN_STATUS_NOT_SUPPORTED*`` (3000 to 3999)."""


def format_status(status: Status | int) -> str:
    """Return ``NAME (number)``, also for numbers newer than our header."""
    return f"{_find_status_name(status) or 'status unknown to this package'} ({int(status)})"


def _find_status_name(status: Status | int) -> str | None:
    from .generated.enums import Status  # whose import takes 8 ms

    return status.c_name if isinstance(status, Status) else None
