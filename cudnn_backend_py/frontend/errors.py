"""The exceptions programs written for cudnn-frontend expect, with the sections and codes of this package's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import CudnnBackendError, CudnnStatusError

if TYPE_CHECKING:
    from ..graph.ir import Graph
    from ..target import Target

__all__ = [
    "FrontendRuntimeError",
    "FrontendValueError",
    "as_kind",
    "attribute_not_set",
    "cudnnGraphNotSupportedError",
    "invalid_value",
    "not_supported",
    "status_as",
]


class cudnnGraphNotSupportedError(CudnnBackendError):
    """cuDNN, or a rule of cudnn-frontend, refuses the graph; :attr:`verdict` explains it.

    Like cudnn-frontend's it is neither a ``RuntimeError`` nor a ``ValueError``.
    """

    graph: Graph | None = None
    target: Target | None = None
    _verdict: Any = None

    @property
    def verdict(self) -> Any:
        """The :class:`~cudnn_backend_py.Verdict` of the graph, asked for when first read; None if it has no graph."""
        if self._verdict is None and self.graph is not None:
            from ..diagnose import explain

            self._verdict = explain(self.graph, self.target)
        return self._verdict


class FrontendValueError(CudnnBackendError, ValueError):
    """Something is missing or cannot be inferred."""


class FrontendRuntimeError(CudnnBackendError, RuntimeError):
    """A value that cannot be, or a call that cuDNN refused."""


def attribute_not_set(headline: str, **sections: str | None) -> FrontendValueError:
    """Return the error for something that must be set, or set otherwise: a ``ValueError``."""
    return FrontendValueError(headline, code="frontend-attribute", **sections)


def not_supported(headline: str, **sections: str | None) -> cudnnGraphNotSupportedError:
    """Return the error for a combination that is refused before cuDNN is asked."""
    return cudnnGraphNotSupportedError(headline, code="frontend-not-supported", **sections)


def invalid_value(headline: str, **sections: str | None) -> FrontendRuntimeError:
    """Return the error for a value out of range or arguments that exclude each other: a ``RuntimeError``."""
    return FrontendRuntimeError(headline, code="frontend-value", **sections)


@contextmanager
def status_as(kind: type[CudnnBackendError], what: str) -> Iterator[None]:
    """Turn what this package raises inside the block into `kind`, with cuDNN's error text and the same sections."""
    try:
        yield
    except (cudnnGraphNotSupportedError, FrontendValueError, FrontendRuntimeError):
        raise
    except CudnnBackendError as error:
        raise as_kind(kind, what, error) from error


def as_kind(kind: type[CudnnBackendError], what: str, error: CudnnBackendError) -> CudnnBackendError:
    """Return an exception of this package as one of `kind`: for calls that cannot afford a context manager."""
    sections = dict(error.sections)
    if isinstance(error, CudnnStatusError):
        sections.setdefault("where", f"{error.function} answered {error.status!s}")
    return kind(f"{what}: {error.headline}", code=error.code, **sections)
