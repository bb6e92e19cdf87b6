"""Why was cuDNN not used? Each call of attention in a torch program, and what kept cuDNN out of it.

``with why_not_cudnn() as report:`` in a program, ``python -m cudnn_backend_py.why program.py`` next to it.
"""

from .look import why_not_cudnn
from .report import Finding, WhyReport

__all__ = ["Finding", "WhyReport", "why_not_cudnn"]
