"""The table of known issues, by operation: graphs that cuDNN accepts and then computes wrong, or crashes on.

A new issue is a row in the file of its operation, and examples under its code in ``tests/known_issues``.
"""

from __future__ import annotations

from ..graph.attention.known_issue import KnownIssue
from ..graph.attention.measured import MEASURED, MEASURED_ATTENTION
from .attention_backward import ATTENTION_BACKWARD
from .attention_eight_bit import ATTENTION_EIGHT_BIT
from .attention_forward import ATTENTION_FORWARD
from .convolution import CONVOLUTION
from .experts import EXPERTS
from .matmul import MATMUL
from .norm import NORM
from .pointwise import POINTWISE
from .resampling import RESAMPLING
from .signals_and_concatenations import OTHERS

__all__ = ["FAULTS", "FAULTS_BY_OPERATION", "MEASURED"]

FAULTS_BY_OPERATION: dict[str, tuple[KnownIssue, ...]] = {
    "Attention": (*MEASURED_ATTENTION, *ATTENTION_BACKWARD, *ATTENTION_FORWARD, *ATTENTION_EIGHT_BIT),
    "Convolution": CONVOLUTION,
    "Matmul": MATMUL,
    "Matmul of experts": EXPERTS,
    "Norms": NORM,
    "Resampling": RESAMPLING,
    "Pointwise operations and reductions": POINTWISE,
    "Signals and concatenation": OTHERS,
}
FAULTS: tuple[KnownIssue, ...] = tuple(row for rows in FAULTS_BY_OPERATION.values() for row in rows)
