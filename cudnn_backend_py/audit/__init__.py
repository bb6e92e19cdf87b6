"""Is my result right? Samples of a program's calls are checked, what is wrong is kept, and run again elsewhere.

``with audit() as report:`` in a program, ``CUDNN_BACKEND_AUDIT=100`` or ``python -m cudnn_backend_py.audit program.py``
next to one that is left as it is, and ``cudnn-backend audit FILE`` for a case that was kept.
"""

from .case import Case, load_case
from .examination import Examined, examine
from .look import audit
from .report import AuditReport

__all__ = ["AuditReport", "Case", "Examined", "audit", "examine", "load_case"]
