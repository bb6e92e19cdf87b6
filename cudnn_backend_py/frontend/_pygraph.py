"""``cudnn._pygraph``: ``pygraph`` and ``GraphContext`` at the import path of cudnn-frontend 1.32."""

from __future__ import annotations

from inspect import signature

from .context import GraphContext
from .graphs import pygraph
from .recorded import OPERATIONS

__all__ = ["GraphContext", "pygraph"]


def _list_arguments(method: str) -> tuple[str, ...]:
    given = signature(getattr(pygraph, method)).parameters
    return tuple(name for name in given if name not in ("self", "compute_data_type", "name"))


_METHOD_ARGUMENTS = {name: _list_arguments(name) for name, operation in OPERATIONS.items() if operation.is_pointwise}
_NUMBER_ARGUMENTS = {"axis", "elu_alpha", "lower_clip", "negative_slope", "softplus_beta", "swish_beta", "upper_clip"}
# The elementwise operations that take nothing but tensors, and their arguments.
pygraph._POINTWISE_TENSOR_ARGS = {  # type: ignore[attr-defined]
    name: arguments for name, arguments in _METHOD_ARGUMENTS.items() if not _NUMBER_ARGUMENTS.intersection(arguments)
}
