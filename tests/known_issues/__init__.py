"""Example graphs of cuDNN's known issues, by the code of their row in `cudnn_backend_py.known_issues`."""

from __future__ import annotations

from .attention_backward import ATTENTION_BACKWARD
from .attention_eight_bit import ATTENTION_EIGHT_BIT
from .attention_forward import ATTENTION_FORWARD
from .attention_refused import ATTENTION_REFUSED
from .convolution import CONVOLUTION
from .example import BASE_OPTIONS, Examples, GraphMaker, Reproduction, make_example_graph
from .experts import EXPERTS
from .matmul import MATMUL
from .norm import NORM
from .others import OTHERS
from .pointwise import POINTWISE
from .resampling import RESAMPLING

__all__ = ["BASE_OPTIONS", "EXAMPLES", "Examples", "GraphMaker", "Reproduction", "make_example_graph"]

EXAMPLES: dict[str, Examples] = {
    **ATTENTION_REFUSED,
    **ATTENTION_BACKWARD,
    **ATTENTION_FORWARD,
    **ATTENTION_EIGHT_BIT,
    **CONVOLUTION,
    **MATMUL,
    **EXPERTS,
    **NORM,
    **RESAMPLING,
    **POINTWISE,
    **OTHERS,
}
