"""``GraphTensors``: tensors of a graph under construction, and the values that programs can read back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, SupportsIndex

from ..errors import CudnnBackendError
from ..execution.buffers import read_dlpack_facts
from ..printable import format_repr
from .arguments import check_instance, to_float
from .context import Context
from .enums import DLPACK_TYPES, data_type, scalar_type, tensor_reordering, to_data_type
from .errors import make_attribute_not_set_error
from .ops.node import Node as OperationNode
from .ops.node import pack_strides
from .recorded import GraphRecord, Node
from .tensors import tensor as UserTensor

__all__ = ["GraphTensors"]


class GraphTensors:
    """Mixin of ``pygraph`` that creates its tensors, and finds its tensors and nodes."""

    record: GraphRecord
    context: Context
    _created: list[UserTensor]
    _nodes: list[OperationNode]

    @abstractmethod
    def _list_used_tensors(self) -> list[UserTensor]: ...

    # tensors

    def tensor(
        self,
        dim: Iterable[int],
        stride: Iterable[int] | None = None,
        data_type: Any = data_type.NOT_SET,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: UserTensor | None = None,
        reordering_type: tensor_reordering | None = tensor_reordering.NONE,
        name: str = "",
        uid: int | None = -1,
        ragged_offset_multiplier: int = 1,
        alignment_value: int = 1,
    ) -> UserTensor:
        """Return a new tensor of the graph; strides in elements, row-major by default."""
        context = self.context
        kind = to_data_type(data_type)
        if kind.backend is None:
            kind = context.intermediate_type if is_virtual else context.io_type
        made = UserTensor(dim, () if stride is None else stride, kind, is_virtual, is_pass_by_value)
        made.stride = made.stride or pack_strides(made.dim)
        made.name = check_instance("name", name or f"tensor_{len(self.record.map_tensors_by_name())}", str, "a text")
        if ragged_offset is not None:
            made.set_ragged_offset(ragged_offset)
        if reordering_type is not made.reordering:
            made.set_reordering_type(reordering_type)
        made.set_ragged_offset_multiplier(ragged_offset_multiplier).set_alignment_value(alignment_value)
        if uid is not None and uid != -1:
            made.set_uid(uid)
        return self._add_tensor(made)

    _make_tensor = tensor

    def tensor_like(self, template: Any, name: str = "", is_virtual: bool = False) -> UserTensor:
        """Return a new tensor with the dims, strides and type of a graph tensor, torch tensor or DLPack object.

        A buffer in host memory becomes a by-value scalar.

        Raises
        ------
        ValueError
            If `template` is no tensor of any kind.
        """
        if isinstance(template, UserTensor):
            by_value = template.by_value
            return self.tensor(template.dim, template.stride, template.data_type, is_virtual, by_value, name=name)
        dims, strides, kind, on_host = _read_framework_tensor_layout(template)
        return self.tensor(dims, strides, kind, is_virtual, is_pass_by_value=on_host, name=name)

    def tensor_scalar(
        self, value: float | int, scalar_type: scalar_type = scalar_type.RUNTIME_PARAM, name: str = ""
    ) -> UserTensor:
        """Return a by-value scalar tensor of rank 1 with this number."""
        whole = isinstance(value, SupportsIndex) and not isinstance(value, bool)
        made = UserTensor([1], [1], data_type.INT32 if whole else data_type.FLOAT, is_pass_by_value=True)
        made.set_name(name or f"scalar_{len(self.record.map_tensors_by_name())}")
        made.value = int(value) if whole else to_float("value", value)
        made.scalar_type = scalar_type
        return self._add_tensor(made)

    def _add_tensor(self, made: UserTensor) -> UserTensor:
        """Add a new tensor to the graph and return it; raise if another tensor has its uid."""
        self.record.add_tensor(made)
        self._created.append(made)
        return made

    # inspection

    def infer_dims_and_strides(self, item: UserTensor) -> tuple[list[int], list[int]]:
        """Return the inferred dims and strides of a tensor, empty where unknown."""
        seen = self._list_used_tensors()
        kept = [(each, each.dim, each.stride, each.data_type) for each in seen]
        self.record.remove_inferred_shapes()
        try:
            for node in self._nodes:
                with suppress(CudnnBackendError, ValueError, LookupError, TypeError, ArithmeticError):
                    node.infer(self.context)
            return item.dim, item.stride
        finally:
            for each, dim, stride, kind in kept:
                each.dim, each.stride, each.data_type = dim, stride, kind

    @property
    def nodes(self) -> list[Node]:
        """The operations in the order they were written."""
        return list(self.record.nodes)

    @property
    def tensors(self) -> dict[str, UserTensor]:
        """The tensors with a unique name, by name."""
        return self.record.map_tensors_by_name()

    def find_tensor(self, name_or_uid: str | int) -> UserTensor | None:
        """Return a tensor by name or uid, None if there is none.

        Raises
        ------
        ValueError
            If several have that name.
        """
        return self.record.find_tensor(name_or_uid)

    def get_node(self, name: str) -> Node | None:
        """Return the first node with that name, None if there is none."""
        return next((node for node in self.record.nodes if node.name == name), None)

    def get_inputs(self) -> list[UserTensor]:
        """Return the tensors in memory that no node writes."""
        written = {item for node in self.record.nodes for item in node.outputs.values()}
        return [item for item in self.tensors.values() if not item.virtual and item not in written]

    def get_outputs(self) -> list[UserTensor]:
        """Return the tensors in memory that a node writes."""
        written = {item for node in self.record.nodes for item in node.outputs.values()}
        return [item for item in self.tensors.values() if not item.virtual and item in written]

    def inspect(self) -> dict[str, Any]:
        """Return context, nodes and tensors as plain data, as cudnn-frontend 1.32 does."""
        context = self.context
        return {
            "context": {
                "io_data_type": _data_type_to_json(context.io_data_type),
                "compute_data_type": _data_type_to_json(context.compute_data_type),
            },
            "nodes": [
                {
                    "name": node.name,
                    "type": node.node_type.name,
                    "inputs": {port: item.name for port, item in node.inputs.items()},
                    "outputs": {port: item.name for port, item in node.outputs.items()},
                    "params": dict(node.params),
                }
                for node in self.record.nodes
            ],
            "tensors": {
                name: {
                    "dim": item.get_dim(),
                    "stride": item.get_stride(),
                    "dtype": _data_type_to_json(item.data_type),
                    "is_virtual": item.virtual,
                    "uid": item.uid,
                }
                for name, item in self.tensors.items()
            },
        }


def _data_type_to_json(kind: data_type) -> str:
    return str(None if kind.backend is None else kind)


def _read_framework_tensor_layout(source: Any) -> tuple[Sequence[int], Sequence[int], data_type, bool]:
    """Return dims, strides in elements, type, and whether the tensor is in host memory."""
    if hasattr(source, "data_ptr") and hasattr(source, "stride"):  # torch
        kind = to_data_type(source.dtype)
        return tuple(source.shape), tuple(source.stride()), kind, source.device.type == "cpu"
    if not hasattr(source, "__dlpack__"):
        raise make_attribute_not_set_error(
            f"{format_repr(source)} is neither a tensor of this module nor one with DLPack (__dlpack__)",
            fix="give a cudnn.tensor, or a torch, CuPy, JAX or NumPy array",
        )
    facts = read_dlpack_facts(source)
    return facts.dims, facts.strides, DLPACK_TYPES.get(facts.type_text, data_type.NOT_SET), facts.on_host
