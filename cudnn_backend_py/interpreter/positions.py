"""Evaluation of operations that depend on positions: rotary embeddings and band matrices.

The header documents neither. Of rotations, cudnn-frontend 1.32 says that the last `rope_dim` elements of a head are
rotated, that the whole head is scaled, and that kernels read the first half of the columns of the angles only; an
element is paired with the one half of the rotated part further on, as GPT-NeoX does. A band holds element k of row i
at column i - lower_bandwidth + k. Neither the pairs nor the band were measured.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..generated.enums import DescriptorType
from ..generated.operations import DEFAULTS
from ..graph.ir import Operation
from .run import Handler, Run

__all__ = ["OPERATIONS"]

Floats = NDArray[np.float64]


def run_rope(run: Run, op: Operation) -> None:
    """Rotate the last `rope_dim` elements of each head by the angles of their position, and scale the head.

    Angles are [positions, 1, 1, rope_dim], or [1, 1, positions, rope_dim]; the first half of their columns is read:
    (x1, x2) becomes (x1 * cos - x2 * sin, x2 * cos + x1 * sin). The gradient turns the other way.
    """
    backward = op.kind is DescriptorType.OPERATION_ROPE_BWD
    x = run.read_floats(op.fields["dy" if backward else "x"])
    seq, head = x.shape[2:]
    angles = run.read_floats(op.fields["freqs"])
    if angles.shape[0] > 1:
        angles = angles.transpose(1, 2, 0, 3)
    width = op.fields.get("rope_dim") or head
    half = width // 2
    angles = angles[:, :, :seq, :half] * (-1 if backward else 1)
    kept, first, second = x[..., : head - width], x[..., head - width : head - half], x[..., head - half :]
    cos, sin = np.cos(angles), np.sin(angles)
    turned = np.concatenate([kept, first * cos - second * sin, second * cos + first * sin], -1)
    scale = op.fields.get("output_scale", DEFAULTS[op.kind]["output_scale"])
    run.write_value(op.fields["dx" if backward else "y"], turned * scale)


def _find_band_columns(op: Operation, rows: int, columns: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the column of each band element, [rows, lower + upper + 1], and whether it is inside the matrix."""
    if op.fields["axis"] != op.fields["x"].rank - 1:
        raise GraphError(
            f"a band along axis {op.fields['axis']} of a tensor with {op.fields['x'].rank} dims cannot be interpreted",
            code="interpret-operation",
            where=f"operation {op.name!r}",
            fix="use the last axis",
        )
    for name in ("kv_token_offset", "speculative_mask", "max_token_value"):
        if op.fields.get(name) not in (None, DEFAULTS[op.kind].get(name)):
            raise GraphError(
                f"a diagonal band with {name} cannot be interpreted: cuDNN's header does not define the effect "
                f"of {name}",
                code="interpret-operation",
                where=f"operation {op.name!r}",
            )
    lower, upper = op.fields["lower_bandwidth"], op.fields["upper_bandwidth"]
    places = np.arange(rows).reshape(-1, 1) + np.arange(-lower, upper + 1)
    return np.clip(places, 0, columns - 1), (places >= 0) & (places < columns)


def run_expand_band(run: Run, op: Operation) -> None:
    """Write a matrix from its diagonal band, with `pad_value` elsewhere."""
    x, y = run.read_floats(op.fields["x"]), op.fields["y"]
    places, inside = _find_band_columns(op, x.shape[-2], y.dims[-1])
    made = np.full(y.dims, float(op.fields.get("pad_value", DEFAULTS[op.kind]["pad_value"])))
    rows = np.broadcast_to(np.arange(x.shape[-2]).reshape(-1, 1), places.shape)
    made[..., rows[inside], places[inside]] = x[..., inside]
    run.write_value(y, made)


def run_contract_band(run: Run, op: Operation) -> None:
    """Write the diagonal band of a matrix, with `pad_value` outside of the matrix."""
    x, y = run.read_floats(op.fields["x"]), op.fields["y"]
    places, inside = _find_band_columns(op, x.shape[-2], x.shape[-1])
    taken = np.take_along_axis(x, np.broadcast_to(places, (*x.shape[:-1], places.shape[1])), -1)
    run.write_value(y, np.where(inside, taken, op.fields.get("pad_value", DEFAULTS[op.kind]["pad_value"])))


OPERATIONS: dict[DescriptorType, Handler] = {
    DescriptorType.OPERATION_ROPE_FWD: run_rope,
    DescriptorType.OPERATION_ROPE_BWD: run_rope,
    DescriptorType.OPERATION_EXPAND_BAND_MATRIX: run_expand_band,
    DescriptorType.OPERATION_CONTRACT_BAND_MATRIX: run_contract_band,
}
