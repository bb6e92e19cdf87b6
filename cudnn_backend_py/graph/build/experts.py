"""Matmuls of mixtures of experts, as methods of ``GraphBuilder``."""

from __future__ import annotations

from typing import Any

from ...errors import GraphError
from ...generated.enums import DataType, DescriptorType, MoeGroupedMatmulMode
from ..ir import Tensor
from ..shapes import compute_expert_output_dims, has_offset_of_last_expert_end
from ..strides import make_column_major_strides
from .base import BuilderBase, check_data_type, check_dims, check_types, make_shape_error, wrap_public_methods_of_mixin

__all__ = ["MixtureOfExperts"]

_WHOLE = (DataType.INT32, DataType.INT64)


@wrap_public_methods_of_mixin
class MixtureOfExperts(BuilderBase):
    """A matmul per expert over its tokens, and the gradient with respect to the weights.

    `first_token_offset` [experts, 1, 1] INT32 says where the rows of each expert begin; the last one's go
    to the end, or to one more offset: [experts + 1, 1, 1] from cuDNN 9.28 on.
    """

    def moe_grouped_matmul(
        self,
        token: Tensor,
        weight: Tensor,
        first_token_offset: Tensor,
        *,
        mode: MoeGroupedMatmulMode = MoeGroupedMatmulMode.NONE,
        token_index: Tensor | None = None,
        token_ks: Tensor | None = None,
        top_k: int | None = None,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> Tensor:
        """Multiply each row of tokens by the weights of its expert, and return [1, rows, N], row-major.

        Parameters
        ----------
        token
            [1, rows, K], those of one expert after those of another; in mode GATHER [1, tokens, K] in any order.
        weight
            [experts, K, N]; cuDNN wants column-major strides (K fastest).
        first_token_offset
            [experts, 1, 1], or batches times as many; from cuDNN 9.28 on with one more, where the last rows end.
        token_index
            [1, rows, 1]: in mode GATHER the token of each row, INT64 (cuDNN reads 64 bits also of INT32: the fault
            ``moe-gather-32-bits``); in mode SCATTER the token it goes back to, INT32.
        token_ks, top_k
            Mode SCATTER: [1, rows, 1] INT32, which of the `top_k` experts of its token a row is; the row goes to
            ``token_index * top_k + token_ks`` (this package's reading: the header does not say).

        Raises
        ------
        GraphError
            ``operation-shape``; ``missing-field`` if a mode lacks its indices.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR``, cuDNN 9.15 and later; it refuses one expert alone.
        """
        check_types(MoeGroupedMatmulMode, mode=mode)
        tensors = {"token": token, "weight": weight, "first_token_offset": first_token_offset}
        _check_expert_tensors(tensors, weight.dims[0])
        if token.dims[2] != weight.dims[1]:
            raise make_shape_error(
                f"K is {token.dims[2]} in {token.name!r} but {weight.dims[1]} in {weight.name!r}", **tensors
            )
        gathers, scatters = (mode is item for item in (MoeGroupedMatmulMode.GATHER, MoeGroupedMatmulMode.SCATTER))
        lacks = [
            name
            for name, value, needed in (
                ("token_index", token_index, gathers or scatters),
                ("token_ks", token_ks, scatters),
                ("top_k", top_k, scatters),
            )
            if needed and value is None
        ]
        if lacks:
            raise GraphError(
                f"mode {mode.name} needs {', '.join(f'{name}=' for name in lacks)}, which is not given",
                code="missing-field",
            )
        if token_index is not None:
            rows = token_index.dims[1] if token_index.rank == 3 and gathers else token.dims[1]
            check_dims(token_index, (1, rows, 1), "token index", **tensors)
        check_dims(token_ks, (1, token.dims[1], 1), "token ks", **tensors)
        for what, item in (("token index", token_index), ("token ks", token_ks)):
            if item is not None:
                check_data_type(item, _WHOLE, what)
        dims = compute_expert_output_dims(
            token.dims, weight.dims, token_index.dims if gathers and token_index is not None else None
        )
        y = self._get_result_tensor("moe", dims, result)
        check_dims(y, dims, "output", **tensors)
        self._append_operation(
            DescriptorType.OPERATION_MOE_GROUPED_MATMUL,
            y.name,
            mode=mode,
            math_prec=self._choose_compute_type(compute_type),
            **tensors,
            output=y,
            token_index=token_index,
            token_ks=token_ks,
            top_k=top_k,
        )
        return y

    def moe_grouped_matmul_backward(
        self,
        doutput: Tensor,
        token: Tensor,
        first_token_offset: Tensor,
        *,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> Tensor:
        """Add the gradient of :meth:`moe_grouped_matmul` with respect to the weights, and return it.

        Parameters
        ----------
        doutput, token
            [1, rows, N] and [1, rows, K].
        first_token_offset
            [experts, 1, 1] INT32; from cuDNN 9.28 on with one more, where `out` with the dims of the gradient says so.

        Returns
        -------
        Tensor
            [experts, K, N], column-major (K fastest) as the weights are.

        Raises
        ------
        GraphError
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_BWD_DESCRIPTOR``, cuDNN 9.22 and later.
        """
        tensors = {"token": token, "doutput": doutput, "first_token_offset": first_token_offset}
        _check_expert_tensors(tensors, 1)
        check_dims(doutput, (1, token.dims[1], doutput.dims[2]), "doutput", **tensors)
        experts, out = first_token_offset.dims[0], result.get("out")
        if isinstance(out, Tensor) and has_offset_of_last_expert_end(experts, out.dims[0]):
            experts = out.dims[0]
        dims = (experts, token.dims[2], doutput.dims[2])
        dweight = self._get_result_tensor("dweight", dims, result, strides=make_column_major_strides(dims))
        check_dims(dweight, dims, "dweight", **tensors)
        self._append_operation(
            DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD,
            dweight.name,
            math_prec=self._choose_compute_type(compute_type),
            **tensors,
            dweight=dweight,
        )
        return dweight


def _check_expert_tensors(tensors: dict[str, Tensor], experts: int) -> None:
    check_types(Tensor, **tensors)
    offset = tensors["first_token_offset"]
    if any(item.rank != 3 for item in tensors.values()):
        ranks = ", ".join(f"{name} {item.rank}" for name, item in tensors.items())
        raise make_shape_error(f"tokens, weights and offsets must have 3 dims each, got {ranks}", **tensors)
    check_dims(tensors["token"], (1, *tensors["token"].dims[1:]), "token", **tensors)
    check_data_type(offset, _WHOLE, "first token offset")
    count = offset.dims[0]
    if offset.dims[1:] != (1, 1) or (count % experts and not has_offset_of_last_expert_end(count, experts)):
        raise make_shape_error(
            f"first token offset {offset.name!r} has dims {list(offset.dims)}, {[experts, 1, 1]} is needed: "
            "one number for each expert, and optionally one for the end",
            **tensors,
        )
