"""Why torch did not use cuDNN: the attention calls of a program, and the condition that excluded cuDNN from each.

``with why_not_cudnn() as report:`` in a program, ``python -m cudnn_backend_py.why program.py`` next to it.
"""

from .findings import why_not_cudnn
from .report import Finding, WhyReport

__all__ = ["Finding", "WhyReport", "why_not_cudnn"]
