"""``GraphBuilder``: write a graph operation by operation; names, uids, shapes and strides fill themselves in."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import GraphError
from ..generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp, TensorReordering
from .ir import (
    Graph,
    Matmul,
    Op,
    Operation,
    Pointwise,
    Reduction,
    Tensor,
    packed_strides,
    pointwise_ports,
)

__all__ = ["GraphBuilder"]

_COMPARES = ("CMP_", "LOGICAL_")


class GraphBuilder:
    """Collects tensors and operations and makes a :class:`~cudnn_backend_py.graph.ir.Graph` of them.

    Results are virtual tensors of `intermediate_type` unless told otherwise: ``virtual=False`` makes one an output.

    Examples
    --------
    >>> from cudnn_backend_py import DataType, GraphBuilder
    >>> g = GraphBuilder("scores", io_type=DataType.HALF)
    >>> q, k = g.tensor("q", (1, 8, 64)), g.tensor("k", (1, 64, 16))
    >>> s = g.matmul(q, k, name="s", virtual=False, data_type=DataType.HALF)
    >>> print(g.graph().ops[0])
    s = matmul(q, k) : f16[1,8,16]
    """

    def __init__(
        self,
        name: str = "graph",
        *,
        io_type: DataType = DataType.HALF,
        intermediate_type: DataType = DataType.FLOAT,
        compute_type: DataType = DataType.FLOAT,
        first_uid: int = 1,
    ) -> None:
        self.name = name
        self.io_type = io_type
        self.intermediate_type = intermediate_type
        self.compute_type = compute_type
        self._uid = first_uid - 1
        self._names: set[str] = set()
        self._uids: set[int] = set()
        self.ops: list[Op] = []

    def _fresh_name(self, wanted: str | None, stem: str) -> str:
        if wanted is not None:
            self._names.add(wanted)
            return wanted
        number = 0
        name = stem
        while name in self._names:
            number += 1
            name = f"{stem}{number}"
        self._names.add(name)
        return name

    def _fresh_uid(self) -> int:
        self._uid += 1
        while self._uid in self._uids:
            self._uid += 1
        return self._uid

    def tensor(
        self,
        name: str,
        dims: tuple[int, ...],
        data_type: DataType | None = None,
        *,
        strides: tuple[int, ...] | Literal["packed"] = "packed",
        uid: int | None = None,
        alignment: int = 16,
        virtual: bool = False,
        by_value: bool = False,
        value: float | int | None = None,
        reordering: TensorReordering = TensorReordering.NONE,
        ragged_offset: Tensor | None = None,
    ) -> Tensor:
        """Return a new tensor; strides are in elements, ``packed`` is row-major."""
        number = self._fresh_uid() if uid is None else uid
        self._uids.add(number)
        return Tensor(
            name=self._fresh_name(name, name),
            uid=number,
            dims=tuple(dims),
            strides=packed_strides(tuple(dims)) if strides == "packed" else tuple(strides),
            data_type=self.io_type if data_type is None else data_type,
            alignment=alignment,
            virtual=virtual,
            by_value=by_value,
            value=value,
            reordering=reordering,
            ragged_offset=ragged_offset,
        )

    def scalar(
        self,
        value: float | int | None,
        *,
        rank: int = 4,
        name: str | None = None,
        data_type: DataType | None = None,
    ) -> Tensor:
        """Return a by-value tensor of one element, all dims and strides 1; `value` None is given at execution."""
        kind = data_type or (DataType.INT32 if isinstance(value, int) else DataType.FLOAT)
        ones = (1,) * rank
        return self.tensor(self._fresh_name(name, "c"), ones, kind, strides=ones, by_value=True, value=value)

    def _result(self, stem: str, dims: tuple[int, ...], options: dict[str, Any]) -> Tensor:
        """Return the tensor an operation writes: the one given as ``out``, or a new one, virtual by default."""
        out = options.pop("out", None)
        if out is not None:
            if options:
                raise GraphError(f"out= is given, so {', '.join(options)} has no effect", code="options-with-out")
            assert isinstance(out, Tensor)
            return out
        options.setdefault("virtual", True)
        options.setdefault("data_type", self.intermediate_type if options["virtual"] else self.io_type)
        name = self._fresh_name(options.pop("name", None), stem)
        return self.tensor(name, options.pop("dims", dims), **options)

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        *,
        m_override: Tensor | None = None,
        n_override: Tensor | None = None,
        k_override: Tensor | None = None,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> Tensor:
        """Add c = a @ b and return c; `result` are the options of :meth:`tensor`, or ``out=`` a tensor."""
        batch = tuple(max(pair) for pair in zip(a.dims[:-2], b.dims[:-2], strict=False))
        c = self._result("mm", (*batch, a.dims[-2], b.dims[-1]) if a.rank > 1 and b.rank > 1 else (), result)
        self.ops.append(
            Matmul(
                name=f"{c.name}",
                a=a,
                b=b,
                c=c,
                compute_type=compute_type or self.compute_type,
                m_override=m_override,
                n_override=n_override,
                k_override=k_override,
            )
        )
        return c

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
        """Add a pointwise operation and return what it writes.

        Comparisons and logic default to boolean results and computation, GEN_INDEX to int32 results; `parameters`
        are the activation's numbers (``relu_lower_clip``, ``elu_alpha``, ``swish_beta`` ...).
        """
        boolean = mode.name.startswith(_COMPARES)
        if "out" not in result:
            if boolean:
                result.setdefault("data_type", DataType.BOOLEAN)
            elif mode is PointwiseMode.GEN_INDEX:
                result.setdefault("data_type", DataType.INT32)
        given = [item for item in (x, b, t, dy) if item is not None]
        rank = max(item.rank for item in given)
        dims = tuple(max(item.dims[i] for item in given if item.rank == rank) for i in range(rank))
        y = self._result(mode.name.lower(), dims, result)
        writes = "dx" if "dx" in pointwise_ports(mode) else "y"
        kind = compute_type or (DataType.BOOLEAN if boolean else self.compute_type)
        tensors: dict[str, Any] = {"x": x, "b": b, "t": t, "dy": dy, writes: y}
        self.ops.append(
            Pointwise(name=y.name, mode=mode, compute_type=kind, axis=axis, **tensors, **(parameters or {}))
        )
        return y

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
        """Add a reduction of `x` to `dims` (1 where a dim is reduced) and return its result."""
        y = self._result(f"reduce_{operator.name.lower()}", dims, result)
        self.ops.append(
            Reduction(
                name=y.name,
                operator=operator,
                x=x,
                y=y,
                compute_type=compute_type or self.compute_type,
                deterministic=deterministic,
            )
        )
        return y

    def operation(self, kind: DescriptorType, name: str | None = None, **fields: Any) -> Operation:
        """Add any other operation, with the fields of its descriptor, and return it."""
        stem = kind.name.removeprefix("OPERATION_").lower()
        op = Operation(kind, name or f"{stem}{len(self.ops)}", fields)
        self.ops.append(op)
        return op

    def graph(self) -> Graph:
        """Return the graph; checks it as a whole."""
        return Graph(tuple(self.ops), self.name)
