"""Matmul, elementwise operations and reductions, as methods of ``GraphBuilder``."""

from __future__ import annotations

from typing import Any

from ...errors import GraphError
from ...generated.enums import DataType, PointwiseMode, ReduceTensorOp
from ..ir import ACTIVATION_NUMBERS, Matmul, Pointwise, Reduction, Tensor, list_pointwise_ports
from ..strides import channels_last
from .base import BuilderBase, check_types, wrap_public_methods_of_mixin

__all__ = ["MatmulAndPointwise"]

_COMPARES = ("CMP_", "LOGICAL_")
_NUMBERS = (*ACTIVATION_NUMBERS, "alpha1", "alpha2")


@wrap_public_methods_of_mixin
class MatmulAndPointwise(BuilderBase):
    """Matmul, elementwise operations and reductions."""

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        *,
        m_override: Tensor | None = None,
        n_override: Tensor | None = None,
        k_override: Tensor | None = None,
        padding_value: float | None = None,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> Tensor:
        """Add c = a @ b and return c; `result` are options of :meth:`tensor`, or ``out=`` a tensor.

        Parameters
        ----------
        a, b
            [.., M, K] and [.., K, N]; a leading dim of one divides that of the other.
        m_override, n_override, k_override
            [.., 1, 1] INT32: the rows, columns and terms each batch really has; the rest of c is `padding_value`.

        Raises
        ------
        GraphError
            ``matmul-rank-mismatch``, ``matmul-inner-dim-mismatch``, ``matmul-output-mismatch``,
            ``matmul-batch-mismatch``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR``. Epilogues are further operations on c: :meth:`pointwise`,
        :meth:`reduction`, :meth:`block_scale_quantize`.
        """
        check_types(Tensor, a=a, b=b)
        batch = tuple(max(pair) for pair in zip(a.dims[:-2], b.dims[:-2], strict=False))
        dims = (*batch, a.dims[-2], b.dims[-1]) if a.rank > 1 and b.rank > 1 else (1,)

        def make_operation(c: Tensor) -> Matmul:
            return Matmul(
                name=c.name,
                a=a,
                b=b,
                c=c,
                compute_type=self._choose_compute_type(compute_type),
                m_override=m_override,
                n_override=n_override,
                k_override=k_override,
                padding_value=padding_value,
            )

        return self._add_operation_with_result(make_operation, "mm", dims, result)

    def pointwise(
        self,
        mode: PointwiseMode,
        x: Tensor,
        b: Tensor | None = None,
        t: Tensor | None = None,
        *,
        dy: Tensor | None = None,
        compute_type: DataType | None = None,
        axis: int | None = None,
        parameters: dict[str, Any] | None = None,
        **result: Any,
    ) -> Tensor:
        """Add a pointwise operation and return its output.

        Comparisons and logic default to boolean results and computation, GEN_INDEX to int32 results; the result is
        channels last if the first operand of its dims is. `parameters` are the activation's numbers
        (``relu_lower_clip``, ``elu_alpha``, ``swish_beta`` ...).

        Raises
        ------
        GraphError
            ``pointwise-ports``, ``pointwise-not-broadcastable``, ``pointwise-axis``, ``unknown-field``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR``. Operands broadcast where their dim is 1.
        """
        check_types(PointwiseMode, mode=mode)
        check_types(Tensor, x=x)
        check_types((Tensor, type(None)), b=b, t=t, dy=dy)
        boolean = mode.name.startswith(_COMPARES)
        if "out" not in result:
            if boolean:
                result.setdefault("data_type", DataType.BOOLEAN)
            elif mode is PointwiseMode.GEN_INDEX:
                result.setdefault("data_type", DataType.INT32)
        given = [item for item in (x, b, t, dy) if item is not None]
        rank = max(item.rank for item in given)
        dims = tuple(max(item.dims[i] for item in given if item.rank == rank) for i in range(rank))
        like = next((item for item in given if item.dims == dims), None)
        if "out" not in result and like is not None and like.strides == channels_last(dims):
            result.setdefault("strides", like.strides)
        writes = "dx" if "dx" in list_pointwise_ports(mode) else "y"
        kind = compute_type
        if kind is None:  # DataType.FLOAT is 0, so "or" will not do
            kind = DataType.BOOLEAN if boolean else self.compute_type
        ports: dict[str, Any] = {"x": x, "b": b, "t": t, "dy": dy}
        numbers = parameters or {}
        if unknown := [name for name in numbers if name not in _NUMBERS]:
            raise GraphError(
                f"{mode.name} has no parameter {', '.join(unknown)}; parameters are {', '.join(_NUMBERS)}",
                code="unknown-field",
            )

        def make_operation(y: Tensor) -> Pointwise:
            return Pointwise(name=y.name, mode=mode, compute_type=kind, axis=axis, **{**ports, writes: y, **numbers})

        return self._add_operation_with_result(make_operation, mode.name.lower(), dims, result)

    def reduction(
        self,
        operator: ReduceTensorOp,
        x: Tensor,
        dims: tuple[int, ...],
        *,
        compute_type: DataType | None = None,
        deterministic: bool | None = None,
        **result: Any,
    ) -> Tensor:
        """Add a reduction of `x` to `dims` (1 where a dim is reduced) and return its result.

        Raises
        ------
        GraphError
            ``reduction-shape-mismatch`` if a dim does not divide that of `x`.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR``.
        """
        check_types(ReduceTensorOp, operator=operator)

        def make_operation(y: Tensor) -> Reduction:
            return Reduction(
                name=y.name,
                operator=operator,
                x=x,
                y=y,
                compute_type=self._choose_compute_type(compute_type),
                deterministic=deterministic,
            )

        return self._add_operation_with_result(make_operation, f"reduce_{operator.name.lower()}", dims, result)
