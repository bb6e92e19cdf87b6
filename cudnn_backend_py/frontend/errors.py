"""The exceptions that programs for cudnn-frontend expect, with error codes and explanations of this package."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..errors import REASON_LINE, CudnnBackendError, CudnnStatusError, UsageError
from ..generated.enums import Status
from ..printable import printable

if TYPE_CHECKING:
    from ..graph.ir import Graph
    from ..known_issues import KnownIssue
    from ..target import Target

__all__ = [
    "EngineNotSupported",
    "FrontendIndexError",
    "FrontendKeyError",
    "FrontendRuntimeError",
    "FrontendUsageError",
    "FrontendValueError",
    "GraphRefused",
    "KernelNotOffered",
    "PlanExcluded",
    "convert_error",
    "convert_errors",
    "cudnnGraphNotSupportedError",
    "format_error",
    "get_headline",
    "make_attribute_not_set_error",
    "make_error_for_tensor_of_other_graph",
    "make_invalid_value_error",
    "make_kernel_not_offered_error",
    "make_missing_plan_error",
    "make_not_supported_error",
    "make_wrong_results_error",
]


class _DetailedError(CudnnBackendError):
    """An exception with all details in its text, as programs log ``str(error)`` without notes."""

    def __init__(self, headline: str, *, code: str, fix: str | None = None, **sections: str | None) -> None:
        super().__init__(headline, code=code, **sections)  # the notes follow the text, which has the fix
        if fix:
            more = self.sections.pop("more", None)
            self.sections |= {"fix": fix} | ({"more": more} if more else {})

    def __str__(self) -> str:
        words = _get_innermost_reason(self)
        parts = [str(self.args[0]), f"cuDNN: {words}" if words else "", self.sections.get("fix", "")]
        return "; ".join(printable(part) for part in parts if part)

    def render(self) -> str:
        """Return the whole message: the headline, then the sections."""
        headline = str(self.args[0])
        return f"{headline}\n{self._body()}" if self.sections else headline


class cudnnGraphNotSupportedError(_DetailedError):
    """cuDNN or a rule of cudnn-frontend refuses the graph; :attr:`verdict` explains it.

    Like cudnn-frontend's it is neither a ``RuntimeError`` nor a ``ValueError``.
    """

    graph: Graph | None = None
    target: Target | None = None
    _verdict: Any = None

    def __init__(self, headline: str = "", *, code: str = "frontend-not-supported", **sections: str | None) -> None:
        super().__init__(headline, code=code, **sections)  # a program raises it with a text alone

    @property
    def verdict(self) -> Any:
        """The :class:`~cudnn_backend_py.diagnose.Verdict` of the graph, made on first use; None without a graph."""
        if self._verdict is None and self.graph is not None:
            from ..diagnose import explain

            self._verdict = explain(self.graph, self.target)
        return self._verdict


class KernelNotOffered(cudnnGraphNotSupportedError, NotImplementedError):
    """Raised for a feature that only cudnn-frontend's own kernels have, not cuDNN's backend."""


class FrontendValueError(_DetailedError, ValueError):
    """Raised if a tensor, property or argument is missing and cannot be inferred."""


class FrontendRuntimeError(_DetailedError, RuntimeError):
    """Raised for an invalid value, or for a call that cuDNN refused."""


class FrontendIndexError(FrontendRuntimeError, IndexError):
    """Raised for a plan index that the graph does not have; also a ``RuntimeError``, as in cudnn-frontend."""


class FrontendKeyError(_DetailedError, KeyError):
    """Raised for a tensor name that the graph does not have, or has several times."""


class EngineNotSupported(cudnnGraphNotSupportedError, FrontendRuntimeError):
    """Raised if cuDNN does not support an engine and knobs that a program chose; also a ``RuntimeError``."""


class GraphRefused(cudnnGraphNotSupportedError, FrontendRuntimeError):
    """Raised for a graph refused before its plans are requested; also a ``RuntimeError``, as in cudnn-frontend."""


class PlanExcluded(cudnnGraphNotSupportedError, FrontendValueError):
    """Raised for a requested plan that a filter excludes; also a ``ValueError``, as in cudnn-frontend 1.32."""


class FrontendUsageError(_DetailedError, UsageError):
    """Raised for wrong usage, such as an unknown target or a file that is not a notebook."""


def make_attribute_not_set_error(headline: str, **sections: str | None) -> FrontendValueError:
    """Return the error for a property or argument that is missing or set to a wrong value: a ``ValueError``."""
    return FrontendValueError(headline, code="frontend-attribute", **sections)


def make_error_for_tensor_of_other_graph(name: str, uid: int, other: str) -> FrontendValueError:
    """Return the error for a tensor of another graph with the same uid as a tensor of this graph."""
    return make_attribute_not_set_error(
        f"tensor {name!r} belongs to another graph, and its uid {uid} is the uid of tensor {other!r} in this graph",
        fix="create it in this graph, for example with tensor_like(), or give it a unique uid with set_uid()",
    )


def make_not_supported_error(headline: str, **sections: str | None) -> cudnnGraphNotSupportedError:
    """Return the error for a combination that is refused before cuDNN is queried."""
    return cudnnGraphNotSupportedError(headline, code="frontend-not-supported", **sections)


def make_invalid_value_error(headline: str, **sections: str | None) -> FrontendRuntimeError:
    """Return the error for a value out of range or mutually exclusive arguments: a ``RuntimeError``."""
    return FrontendRuntimeError(headline, code="frontend-value", **sections)


def make_missing_plan_error(plan: object, count: int) -> FrontendIndexError:
    """Return the error for a plan index outside the list."""
    return FrontendIndexError(
        f"plan index {plan!r} is out of range, the graph has {count} plans",
        code="frontend-value",
        fix="graph.plans lists them",
    )


def make_kernel_not_offered_error(what: str) -> KernelNotOffered:
    """Return the error for a feature that only cudnn-frontend's own kernels have, where `what` says so."""
    return KernelNotOffered(
        f"{what} (CuTe DSL or another engine), which is not part of cuDNN's backend: "
        "this module offers the backend's graphs",
        code="frontend-not-offered",
        fix="run the program with nvidia-cudnn-frontend, or leave it out",
    )


def make_wrong_results_error(issue: KnownIssue, where: str) -> cudnnGraphNotSupportedError:
    """Return the error for dims with which an existing plan or kernel cache is known to compute wrong results."""
    return cudnnGraphNotSupportedError(
        f"cuDNN gets this wrong ({issue.code}): {issue.what}",
        code="frontend-not-supported",
        where=where,
        cause=f"{issue.effect}; {issue.evidence or issue.source}",
        fix=issue.fix,
    )


def format_error(error: CudnnBackendError) -> str:
    """Return an error's text with only one of cuDNN's messages, or with a summary of the graph's verdict.

    Where cuDNN writes a log no verdict is made, which would add its own graphs to it.
    """
    verdict = None
    if "CUDNN_LOGLEVEL_DBG" not in os.environ:
        with suppress(CudnnBackendError):  # this cuDNN may be unable to judge
            verdict = getattr(error, "verdict", None)
    short = [str(error.args[0])]
    if verdict is None or verdict.supported:  # then it is the program's own choice that is refused
        sections = {**error.sections, "cudnn": _get_innermost_reason(error)}
        short = [CudnnBackendError(error.headline, code=error.code, **sections).render()]
    if verdict is not None:
        from ..diagnose.report.summary import format_summary

        short.append(format_summary(verdict).rstrip())
    return "\n".join(short)


def _get_innermost_reason(error: CudnnBackendError) -> str:
    """Return cuDNN's first (innermost) reason with its status; without a reason, the last line of its messages."""
    text = error.sections.get("cudnn", "").strip()
    found = re.search(REASON_LINE, text)
    return (text.rpartition("\n")[2] if found is None else found[0]).strip()


@contextmanager
def convert_errors(kind: type[CudnnBackendError], what: str, fix: str | None = None) -> Iterator[None]:
    """Convert this package's errors in the block to the exception type `kind`, with the same sections and cuDNN's text.

    What the loaded cuDNN is too old for is a graph that is not supported, whatever `kind`. `fix` is said where the
    other exception says none.
    """
    try:
        yield
    except (cudnnGraphNotSupportedError, FrontendValueError, FrontendRuntimeError):
        raise
    except CudnnBackendError as error:
        old = error.code.endswith("-newer-than-library")
        raise convert_error(cudnnGraphNotSupportedError if old else kind, what, error, fix) from error


def convert_error(
    kind: type[CudnnBackendError], what: str, error: CudnnBackendError, fix: str | None = None
) -> CudnnBackendError:
    """Convert an exception of this package to the type `kind`, in calls where a context manager is too slow."""
    sections = {**({"fix": fix} if fix else {}), **error.sections}
    if isinstance(error, CudnnStatusError):
        sections.setdefault("where", f"{error.function} answered {error.status!s}")
    return kind(f"{what}: {get_headline(error)}", code=error.code, **sections)


def get_headline(error: CudnnBackendError) -> str:
    """Return an exception's headline, with statuses under their C names, as programs search messages for these."""
    if isinstance(error, CudnnStatusError) and isinstance(error.status, Status):
        return error.headline.replace(f"answered {error.status.name}", f"answered {error.status.c_name}")
    return error.headline
