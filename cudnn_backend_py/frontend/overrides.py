"""Override shapes: dims and strides of one launch that differ from those of the plan."""

from __future__ import annotations

from typing import Any

from ..known_issues import KnownIssue
from ..native.launch import Overrides
from .arguments import to_int_list, to_list
from .errors import make_invalid_value_error, make_wrong_results_error
from .runner import InternalTensorPlacement

__all__ = ["read_shape_overrides"]


def read_shape_overrides(
    memory: InternalTensorPlacement, fault: KnownIssue | None, uids: Any, shapes: Any, strides: Any
) -> Overrides | None:
    """Return override dims and strides as one list per uid, after checking counts and ranks; None without uids.

    Parameters
    ----------
    fault
        What cuDNN was measured to get wrong where the dims of a tensor in memory are others, if anything.

    Raises
    ------
    TypeError
        For what is no list of int, or no list of such lists.
    RuntimeError
        Where they are not as many, a uid is no tensor's or comes twice, or a number is negative.
    cudnnGraphNotSupportedError
        For other dims than the plan was built with, where there is a `fault`.
    """
    named = to_int_list("override_uids", uids)
    if not named:
        return None
    dims, steps = (
        [] if rows is None else [to_int_list(what, row) for row in to_list(what, rows, "a list of lists of int")]
        for what, rows in (("override_shapes", shapes), ("override_strides", strides))
    )
    if not len(set(named)) == len(named) == len(dims) == len(steps):
        raise make_invalid_value_error(
            f"override_uids is {named}, but {len(dims)} override_shapes and {len(steps)} override_strides were given",
            fix="name each tensor once, and give one of each for it",
        )
    built = memory.by_uid
    for uid, row, step in zip(named, dims, steps, strict=True):
        if uid not in built:
            raise make_invalid_value_error(
                f"override_uids has {uid}, but the uids of the graph's tensors are {sorted(built)}",
                fix="name a tensor of the graph",
            )
        rank = len(built[uid].dims)
        if not len(row) == len(step) == rank or min((*row, *step), default=0) < 0:
            raise make_invalid_value_error(
                f"the override dims {row} and strides {step} of uid {uid} must have {rank} non-negative numbers each",
                fix=f"give {rank} of each, none negative",
            )
        if fault is not None and not built[uid].virtual and built[uid].dims != tuple(row):
            raise make_wrong_results_error(fault, f"uid {uid} has dims {row}, built were {list(built[uid].dims)}")
    return named, dims, steps
