"""``audit``: check cuDNN results computed in a ``with`` block or a whole program. Imports torch on use."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import CudnnBackendError, EnvironmentNotReady, UsageError
from ..printable import make_lines_printable
from ..system.after_import import call_after_import
from .case import CaseFolder
from .report import AuditReport

if TYPE_CHECKING:
    from .watch import RunningAudit

__all__ = ["COST", "EVERY", "VARIABLE", "audit", "audit_from_environment"]

VARIABLE = "CUDNN_BACKEND_AUDIT"
EVERY, COST, FIRST = 100, 0.01, 16
PATIENCE_S = 60.0


@contextlib.contextmanager
def audit(
    *,
    every: int = EVERY,
    cost: float = COST,
    first: int = FIRST,
    folder: str | os.PathLike[str] | None = None,
    patience_s: float = PATIENCE_S,
    seed: int = 0,
) -> Iterator[AuditReport]:
    """Check samples of the calls in a ``with`` block: torch's attention, this package's operators and frontend graphs.

    Attention is computed again in sampled rows, other graphs by the interpreter in another process. What is wrong is
    kept in a private folder, with its buffers: ``cudnn-backend audit FILE`` finds out by which engine and version.

    Parameters
    ----------
    every
        One call in so many is sampled, at random distances. 1 samples all.
    cost
        The part of the time that the audit may take: counting calls, and checks, of the host and the GPU together.
        After the first ones calls that are due are passed over, and counted, until the time that has passed pays for
        all this and one check more. A quarter of it is for checks, also where counting takes more than the rest.
    first
        So many of the first calls of each function are all sampled.
    folder
        Where cases are kept; what ``CUDNN_BACKEND_AUDIT_FOLDER`` says, or a folder of the user's cache, if not given.
    patience_s
        Seconds that the end of the block may wait for the interpreter.
    seed
        Of the distances and the rows.

    Yields
    ------
    AuditReport
        Complete after the block.

    Raises
    ------
    UsageError
        ``audit-option``.
    EnvironmentNotReady
        ``audit-without-torch``.
    """
    _check_options(every, cost)
    _check_option("first", first, "an int of 0 or more", isinstance(first, int) and first >= 0)
    _check_option(
        "patience_s", patience_s, "seconds, 0 or more", isinstance(patience_s, (int, float)) and patience_s >= 0
    )
    _check_option("seed", seed, "an int", isinstance(seed, int))
    try:
        from .watch import RunningAudit
    except ImportError as error:
        raise EnvironmentNotReady(
            "torch cannot be imported", code="audit-without-torch", cause=str(error), fix="install torch in this Python"
        ) from error
    report = AuditReport()
    watch = RunningAudit(every, cost, CaseFolder(folder), report, first=first, patience_s=patience_s, seed=seed)
    watch.start()
    try:
        yield report
    finally:
        watch.stop()


def _check_options(every: int, cost: float) -> None:
    most = sys.maxsize
    _check_option("every", every, f"an int from 1 to {most}", isinstance(every, int) and 1 <= every <= most)
    _check_option(
        "cost", cost, "a part of the time above 0 and up to 1", isinstance(cost, (int, float)) and 0 < cost <= 1
    )


def _check_option(name: str, value: object, needed: str, fits: bool) -> None:
    if isinstance(value, bool) or not fits:
        raise UsageError(f"{name} must be {needed}, got {value!r:.60}", code="audit-option")


def audit_from_environment() -> None:
    """Audit this process from the import of torch to its end, if ``CUDNN_BACKEND_AUDIT`` is set.

    Its value is `every` of :func:`audit`, such as 100; nothing and 0 mean no audit. The report goes to standard error
    where something is wrong, or where ``CUDNN_BACKEND_AUDIT_REPORT`` names a file, to that file as JSON.
    """
    said = os.environ.get(VARIABLE, "").strip()
    if said in ("", "0"):
        return
    try:
        every = int(said)
        _check_options(every, COST)
    except (ValueError, UsageError):
        warnings.warn(f"{VARIABLE} must be a number of calls, got {said!r}: nothing is audited", stacklevel=3)
        return
    call_after_import("torch", lambda: _start_audit_on_import(every))


def _start_audit_on_import(every: int) -> None:
    process = os.getpid()

    def start_process_audit() -> None:
        from .watch import RunningAudit

        try:
            watch = RunningAudit(every, COST, CaseFolder(), AuditReport(), patience_s=PATIENCE_S)
            watch.start()
        except (CudnnBackendError, ImportError) as error:
            warnings.warn(f"nothing is audited: {error}", stacklevel=2)
            return
        atexit.register(_stop_audit_and_write_report, watch, process)

    start_process_audit()


def _stop_audit_and_write_report(watch: RunningAudit, process: int) -> None:
    if os.getpid() != process:  # a forked child has no part in it
        return
    watch.stop()
    report = watch.report
    named = os.environ.get("CUDNN_BACKEND_AUDIT_REPORT")
    if named:
        with contextlib.suppress(OSError), open(named, "w", encoding="utf-8") as file:
            file.write(report.to_json())
    elif report.wrong:
        sys.stderr.write(make_lines_printable(str(report)))
