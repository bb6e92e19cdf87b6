"""Check samples of a program's attention calls and cuDNN graph executions; store and rerun wrong ones.

``with audit() as report:`` in a program, ``CUDNN_BACKEND_AUDIT=100`` or ``python -m cudnn_backend_py.audit program.py``
next to one that is left as it is, and ``cudnn-backend audit FILE`` for a case that was kept.
"""

from .case import Case, load_case
from .examination import CaseReport, examine
from .look import audit
from .report import AuditReport

__all__ = ["AuditReport", "Case", "CaseReport", "audit", "examine", "load_case"]
