"""``GraphBuilder``: write a graph operation by operation; names, uids, shapes and strides fill themselves in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from ..errors import GraphError
from ..generated.enums import (
    ConvolutionMode,
    DataType,
    DescriptorType,
    PointwiseMode,
    ReduceTensorOp,
    TensorReordering,
)
from .ir import (
    Graph,
    Matmul,
    Op,
    Operation,
    Parameters,
    Pointwise,
    Reduction,
    Tensor,
    convolved_size,
    packed_strides,
    pointwise_ports,
)
from .strides import channels_last

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

    def free_name(self, stem: str) -> str:
        """Return `stem`, or `stem` with a number if a tensor is called so already."""
        number = 0
        name = stem
        while name in self._names:
            number += 1
            name = f"{stem}{number}"
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
        vector_count: int = 1,
        vector_dim: int = -1,
        scratch: bool = False,
    ) -> Tensor:
        """Return a new tensor; strides are in elements, ``packed`` is row-major.

        Raises
        ------
        GraphError
            ``name-twice``, ``uid-twice`` if the builder gave it to another tensor, and what a tensor can have wrong.
        """
        if name in self._names:
            raise GraphError(f"graph {self.name!r} already has a tensor {name!r}", code="name-twice")
        if uid in self._uids:
            raise GraphError(f"uid {uid} for tensor {name!r} belongs to another tensor already", code="uid-twice")
        tensor = Tensor(
            name=name,
            uid=self._fresh_uid() if uid is None else uid,
            dims=tuple(dims),
            strides=packed_strides(tuple(dims)) if strides == "packed" else tuple(strides),
            data_type=self.io_type if data_type is None else data_type,
            alignment=alignment,
            virtual=virtual,
            by_value=by_value,
            value=value,
            reordering=reordering,
            ragged_offset=ragged_offset,
            vector_count=vector_count,
            vector_dim=vector_dim,
            scratch=scratch,
        )
        self._names.add(name)
        self._uids.add(tensor.uid)
        return tensor

    def scalar(
        self,
        value: float | int | None,
        *,
        rank: int = 4,
        name: str | None = None,
        data_type: DataType | None = None,
    ) -> Tensor:
        """Return a by-value tensor of one element, all dims and strides 1; `value` None is given at execution."""
        fitting = DataType.INT32 if isinstance(value, int) else DataType.FLOAT
        kind = fitting if data_type is None else data_type
        ones = (1,) * rank
        return self.tensor(name or self.free_name("c"), ones, kind, strides=ones, by_value=True, value=value)

    def _result(self, stem: str, dims: tuple[int, ...], options: dict[str, Any]) -> Tensor:
        """Return the tensor an operation writes: the one given as ``out``, or a new one, virtual by default."""
        out = options.pop("out", None)
        if out is not None:
            if options:
                raise GraphError(f"out= is given, so {', '.join(options)} has no effect", code="options-with-out")
            _check_types(Tensor, out=out)
            assert isinstance(out, Tensor)
            return out
        options.setdefault("virtual", True)
        options.setdefault("data_type", self.intermediate_type if options["virtual"] else self.io_type)
        name = options.pop("name", None) or self.free_name(stem)
        return self.tensor(name, options.pop("dims", dims), **options)

    def _add(self, make: Callable[[Tensor], Op], stem: str, dims: tuple[int, ...], options: dict[str, Any]) -> Tensor:
        """Add the operation made for its result and return that; a refused one leaves name and uid free."""
        uid, is_new = self._uid, options.get("out") is None
        result = self._result(stem, dims, options)
        try:
            self.ops.append(make(result))
        except GraphError:
            if is_new:
                self._uid = uid
                self._names.discard(result.name)
                self._uids.discard(result.uid)
            raise
        return result

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
        _check_types(Tensor, a=a, b=b)
        batch = tuple(max(pair) for pair in zip(a.dims[:-2], b.dims[:-2], strict=False))
        dims = (*batch, a.dims[-2], b.dims[-1]) if a.rank > 1 and b.rank > 1 else (1,)

        def make(c: Tensor) -> Matmul:
            return Matmul(
                name=c.name,
                a=a,
                b=b,
                c=c,
                compute_type=self.compute_type if compute_type is None else compute_type,
                m_override=m_override,
                n_override=n_override,
                k_override=k_override,
            )

        return self._add(make, "mm", dims, result)

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
        _check_types(PointwiseMode, mode=mode)
        _check_types(Tensor, x=x)
        _check_types((Tensor, type(None)), b=b, t=t, dy=dy)
        boolean = mode.name.startswith(_COMPARES)
        if "out" not in result:
            if boolean:
                result.setdefault("data_type", DataType.BOOLEAN)
            elif mode is PointwiseMode.GEN_INDEX:
                result.setdefault("data_type", DataType.INT32)
        given = [item for item in (x, b, t, dy) if item is not None]
        rank = max(item.rank for item in given)
        dims = tuple(max(item.dims[i] for item in given if item.rank == rank) for i in range(rank))
        writes = "dx" if "dx" in pointwise_ports(mode) else "y"
        kind = compute_type
        if kind is None:  # DataType.FLOAT is 0, so "or" will not do
            kind = DataType.BOOLEAN if boolean else self.compute_type
        ports: dict[str, Any] = {"x": x, "b": b, "t": t, "dy": dy}
        numbers = parameters or {}

        def make(y: Tensor) -> Pointwise:
            return Pointwise(name=y.name, mode=mode, compute_type=kind, axis=axis, **{**ports, writes: y, **numbers})

        return self._add(make, mode.name.lower(), dims, result)

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
        _check_types(ReduceTensorOp, operator=operator)

        def make(y: Tensor) -> Reduction:
            return Reduction(
                name=y.name,
                operator=operator,
                x=x,
                y=y,
                compute_type=self.compute_type if compute_type is None else compute_type,
                deterministic=deterministic,
            )

        return self._add(make, f"reduce_{operator.name.lower()}", dims, result)

    def convolution(
        self,
        image: Tensor,
        weights: Tensor,
        *,
        padding: int | Sequence[int] = 0,
        post_padding: int | Sequence[int] | None = None,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        mode: ConvolutionMode = ConvolutionMode.CROSS_CORRELATION,
        compute_type: DataType | None = None,
        **result: Any,
    ) -> Tensor:
        """Add the convolution of an image (n, c, sizes ..) with weights (k, c / groups, taps ..) and return its result.

        Padding, stride and dilation are in elements, one number for all spatial dims or one for each; `post_padding`
        is as `padding` unless given. The result is channels last if the image is.

        Raises
        ------
        GraphError
            ``wrong-argument`` if the spatial dims are not as many everywhere, or a stride is 0.
        """
        _check_types(Tensor, image=image, weights=weights)
        spatial = image.rank - 2
        after = padding if post_padding is None else post_padding
        window = [
            (given,) * spatial if isinstance(given, int) else tuple(given)
            for given in (padding, after, stride, dilation)
        ]
        if weights.rank != image.rank or any(len(side) != spatial for side in window) or 0 in window[2]:
            raise GraphError(
                f"image has {spatial} spatial dims, weights {weights.rank - 2}, "
                f"padding {window[0]}, {window[1]}, stride {window[2]}, dilation {window[3]}: "
                "as many are needed of each, and no stride of 0",
                code="wrong-argument",
            )
        sizes = zip(image.dims[2:], weights.dims[2:], *window, strict=True)
        dims = (image.dims[0], weights.dims[0], *(convolved_size(*item) for item in sizes))
        if "out" not in result and image.strides == channels_last(image.dims):
            result.setdefault("strides", channels_last(result.get("dims", dims)))
        parameters = Parameters(
            DescriptorType.CONVOLUTION,
            {
                "comp_type": self.compute_type if compute_type is None else compute_type,
                "conv_mode": mode,
                "spatial_dims": spatial,
                **dict(zip(("pre_paddings", "post_paddings", "filter_strides", "dilations"), window, strict=True)),
            },
        )

        def make(y: Tensor) -> Operation:
            fields = {"x": image, "w": weights, "y": y, "convolution": parameters, "alpha": 1.0, "beta": 0.0}
            return Operation(DescriptorType.OPERATION_CONVOLUTION_FORWARD, y.name, fields)

        return self._add(make, "conv", dims, result)

    def operation(self, kind: DescriptorType, name: str | None = None, **fields: Any) -> Operation:
        """Add any other operation, with the fields of its descriptor, and return it."""
        stem = kind.name.removeprefix("OPERATION_").lower()
        op = Operation(kind, name or f"{stem}{len(self.ops)}", fields)
        self.ops.append(op)
        return op

    def graph(self) -> Graph:
        """Return the graph; checks it as a whole."""
        return Graph(tuple(self.ops), self.name)


def _check_types(kind: type | tuple[type, ...], **arguments: object) -> None:
    needed = kind[0] if isinstance(kind, tuple) else kind
    for name, value in arguments.items():
        if not isinstance(value, kind):
            raise GraphError(f"{name}= is {value!r}, {needed.__name__} is needed", code="wrong-field-type")
