"""Evaluation of expert matmuls: one product per expert over its rows.

Rows before the first offset go to the first expert, as cuDNN 9.19 does on an H200; in the backward pass, which was not
measured, to none. Rows after an offset that says where the last expert's end go to none, which was not measured
either. An expert without rows writes none, and its gradient is 0. The header does not say what the modes do with their
indices: rows are gathered by ``token_index``, and scattered to ``token_index * top_k + token_ks``, as 9.28 does, where
its faults do not hide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..generated.enums import DescriptorType, MoeGroupedMatmulMode
from ..graph.ir import Operation
from ..graph.shapes import has_offset_of_last_expert_end
from .run import Handler, Run

__all__ = ["OPERATIONS"]


def _iterate_expert_rows(run: Run, op: Operation, rows: int, experts: int) -> Iterator[tuple[int, slice]]:
    """Yield the index of each expert and the slice of rows that the offsets assign to it."""
    tensor = op.fields["first_token_offset"]
    offsets = run.read_value(tensor).reshape(-1).tolist()
    if not has_offset_of_last_expert_end(len(offsets), experts):
        offsets.append(rows)
    forward = op.kind is DescriptorType.OPERATION_MOE_GROUPED_MATMUL
    for number, (start, stop) in enumerate(pairwise(offsets)):
        if not 0 <= start <= stop <= rows:
            raise GraphError(
                f"{tensor.name!r} assigns rows {start} to {stop} of {rows} to expert {number}: offsets must not "
                "exceed the number of rows",
                code="interpret-input",
                where=f"operation {op.name!r}",
            )
        yield number, slice(0 if forward and number == 0 else start, stop)


def _read_indices(run: Run, op: Operation, name: str, below: int) -> NDArray[np.int64]:
    """Return the values of an index tensor, after checking that each is in range."""
    values = run.read_value(op.fields[name]).reshape(-1)
    wrong = values[(values < 0) | (values >= below)]
    if wrong.size:
        raise GraphError(
            f"{op.fields[name].name!r} holds {wrong[0]}, indices below {below} are needed",
            code="interpret-input",
            where=f"operation {op.name!r}",
        )
    return values.astype(np.int64)


def run_moe(run: Run, op: Operation) -> None:
    """Multiply each row of tokens [1, rows, K] by the weights [experts, K, N] of its expert.

    Offsets may be batches times experts: the experts take turns.
    """
    fields, mode = op.fields, op.fields["mode"]
    token, weight, output = run.read_floats(fields["token"])[0], run.read_floats(fields["weight"]), fields["output"]
    if mode is MoeGroupedMatmulMode.GATHER:
        token = token[_read_indices(run, op, "token_index", token.shape[0])]
    made = np.full((token.shape[0], weight.shape[2]), np.nan)
    for number, rows in _iterate_expert_rows(run, op, token.shape[0], weight.shape[0]):
        made[rows] = token[rows] @ weight[number % weight.shape[0]]
    made = run.round_to_type(made, fields["math_prec"])
    if mode is MoeGroupedMatmulMode.SCATTER:
        top_k, count = fields["top_k"], output.dims[1]
        places = _read_indices(run, op, "token_index", max(1, count // top_k)) * top_k + _read_indices(
            run, op, "token_ks", top_k
        )
        scattered = np.full((count, weight.shape[2]), np.nan)
        scattered[places] = made
        made = scattered
    run.write_value(output, made[None])


def run_moe_backward(run: Run, op: Operation) -> None:
    """Write dweight[e] = token^T @ doutput over the rows of each expert."""
    fields, dweight = op.fields, op.fields["dweight"]
    token, doutput = run.read_floats(fields["token"])[0], run.read_floats(fields["doutput"])[0]
    made = np.zeros(dweight.dims)
    for number, rows in _iterate_expert_rows(run, op, token.shape[0], made.shape[0]):
        made[number % made.shape[0]] += token[rows].T @ doutput[rows]
    run.write_value(dweight, run.round_to_type(made, fields["math_prec"]))


OPERATIONS: dict[DescriptorType, Handler] = {
    DescriptorType.OPERATION_MOE_GROUPED_MATMUL: run_moe,
    DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD: run_moe_backward,
}
