"""Tensors of a plan that need a buffer or a number, and a caller's values for them by position, name or uid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from ..graph.ir import Graph, Tensor

__all__ = ["Arguments"]


class Arguments:
    """The tensors of a graph that need a device buffer or a host scalar when a plan runs.

    Attributes
    ----------
    given
        What a caller gives, in the order of positions: inputs, then outputs.
    held
        What a caller need not give: scratch tensors, and by-value tensors whose number the graph holds.
    names
        The names of ``given``.
    by_value
        The by-value tensors of both, by name.
    """

    def __init__(self, graph: Graph) -> None:
        tensors = graph.variant_pack_tensors
        written = {tensor.uid for tensor in graph.outputs}
        self.held = [tensor for tensor in tensors if tensor.scratch or (tensor.by_value and tensor.value is not None)]
        held = {tensor.uid for tensor in self.held}
        given = [tensor for tensor in tensors if tensor.uid not in held]
        self.given = [tensor for tensor in given if tensor.uid not in written]
        self.given += [tensor for tensor in given if tensor.uid in written]
        self.names = tuple(tensor.name for tensor in self.given)
        self.by_value = {tensor.name: tensor for tensor in tensors if tensor.by_value}
        self._tensors: dict[str | int, Tensor] = {tensor.name: tensor for tensor in tensors}
        self._tensors |= {tensor.uid: tensor for tensor in tensors}

    def __getitem__(self, key: str | int) -> Tensor:
        """Return the tensor of a name or uid.

        Raises
        ------
        UsageError
            ``unknown-buffer``.
        """
        try:
            return self._tensors[key]
        except (KeyError, TypeError):
            names = ", ".join(dict.fromkeys(tensor.name for tensor in self._tensors.values()))
            raise UsageError(
                f"the graph has no tensor {key!r} in memory", code="unknown-buffer", where=f"it has {names}"
            ) from None

    def resolve(self, buffers: Mapping[str | int, Any], *, also: tuple[Tensor, ...] = ()) -> dict[str, Any]:
        """Return the given buffers by tensor name; raise if one is missing, where None counts as missing.

        Parameters
        ----------
        also
            Tensors of ``held`` that are needed as well.

        Raises
        ------
        UsageError
            ``unknown-buffer``, ``buffer-twice``, ``missing-buffer``.
        """
        by_name = self.match(buffers)
        missing = [tensor.name for tensor in (*self.given, *also) if tensor.name not in by_name]
        if missing:
            raise UsageError(
                f"no buffer was given for {', '.join(missing)}", code="missing-buffer", fix="give a buffer for each"
            )
        return by_name

    def match(self, buffers: Mapping[str | int, Any]) -> dict[str, Any]:
        """Return the given buffers by tensor name as :meth:`resolve` does, but allow missing ones.

        Raises
        ------
        UsageError
            ``unknown-buffer``, ``buffer-twice``.
        """
        by_name: dict[str, Any] = {}
        for key, buffer in buffers.items():
            name = self[key].name
            if name in by_name:
                raise UsageError(f"tensor {name!r} was given twice, by name and by uid", code="buffer-twice")
            if buffer is not None:
                by_name[name] = buffer
        return by_name

    def merge(self, buffers: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str | int, Any]:
        """Return buffers given by position and by name as one mapping.

        Raises
        ------
        UsageError
            ``unknown-buffer`` for too many, ``buffer-twice``.
        """
        if len(buffers) > len(self.names):
            raise UsageError(
                f"the plan takes {len(self.names)} buffers, got {len(buffers)}",
                code="unknown-buffer",
                where=f"in this order: {', '.join(self.names)}",
            )
        by_name: dict[str | int, Any] = dict(zip(self.names, buffers, strict=False))
        for name, buffer in named.items():
            if name in by_name:
                raise UsageError(f"tensor {name!r} was given twice, by position and by name", code="buffer-twice")
            by_name[name] = buffer
        return by_name
