"""``Node``: an operation of a graph under construction; ``Emitter``: conversion of nodes to a ``Graph``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import CudnnBackendError
from ...generated.enums import DataType, TensorReordering
from ...graph import GraphBuilder
from ...graph.booleans import BOOLEANS_IN_MEMORY, describe_boolean_memory_format
from ...graph.ir import Graph, Tensor, packed_strides
from ...known_issues import KnownIssueWarning, find_known_issues, warn_about_issues, warn_once
from ..enums import data_type, to_data_type
from ..errors import make_attribute_not_set_error, make_invalid_value_error
from ..tensors import tensor as UserTensor

if TYPE_CHECKING:
    from ...plans.choice import EngineChoice
    from ...system.version import VersionTuple
    from ..context import Context

__all__ = [
    "Emitter",
    "FrontendKnownIssueWarning",
    "Node",
    "add_dims_to_errors",
    "broadcast_dims",
    "check_and_infer_properties",
    "check_data_type",
    "fill_data_type",
    "pack_strides",
    "warn_about_known_issues",
]


class FrontendKnownIssueWarning(KnownIssueWarning):
    """Warns of a known cuDNN bug that affects a graph, or that cuDNN packs booleans in memory as bits."""


def warn_about_known_issues(graph: Graph, sm: int, version: VersionTuple) -> None:
    """Warn about each known issue of a graph, and about boolean tensors in memory, which cuDNN packs as bits."""
    warn_about_issues(find_known_issues(graph, sm, version), FrontendKnownIssueWarning)
    if said := describe_boolean_memory_format(graph):
        warn_once(BOOLEANS_IN_MEMORY, said, FrontendKnownIssueWarning)


class Node:
    """One operation of a graph under construction, as the user wrote it.

    A subclass sets ``tag``, cudnn-frontend's name for it in JSON, and writes :meth:`emit`; :meth:`check` and
    :meth:`infer` where it has something to check and to infer.
    """

    tag = ""

    def __init__(self, name: str, compute: data_type, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        self.name = name
        self.compute = compute
        self.inputs: dict[str, UserTensor] = {port: item for port, item in inputs.items() if item is not None}
        self.outputs: dict[str, UserTensor] = {port: item for port, item in outputs.items() if item is not None}

    def add_output(self, port: str) -> UserTensor:
        """Add a virtual output tensor with cudnn-frontend's name at a port, and return it."""
        made = UserTensor(is_virtual=True, name=f"{self.name}::{port}")
        self.outputs[port] = made
        return made

    def iterate_tensors(self) -> Iterable[UserTensor]:
        """Yield all input and output tensors of the node."""
        yield from self.inputs.values()
        yield from self.outputs.values()

    def list_required_ranks(self) -> dict[UserTensor, int]:
        """Return the rank that cuDNN requires, by tensor; lower ranks are extended by dims of size 1."""
        return {}

    def check(self, context: Context) -> None:
        """Raise cudnn-frontend's exception if it would refuse this operation before it queries cuDNN."""

    def infer(self, context: Context) -> None:
        """Fill in dims and strides of outputs that the user did not set."""

    def emit(self, to: Emitter) -> None:
        """Add the node's operations to the graph that the emitter `to` builds."""
        raise NotImplementedError

    def choose_engine(self, context: Context) -> EngineChoice | None:
        """Return the engine that the graph needs if heuristics do not list it, else None."""
        return None

    def list_parameters(self) -> dict[str, Any]:
        """Return the node's parameters other than tensors, as plain data."""
        return {}

    def to_json(self) -> dict[str, Any]:
        """Return the node as plain data, in cudnn-frontend's terms."""
        return {
            "tag": self.tag,
            "name": self.name,
            "compute_data_type": None if self.compute == data_type.NOT_SET else self.compute.name,
            "inputs": {port: item.uid for port, item in self.inputs.items()},
            "outputs": {port: item.uid for port, item in self.outputs.items()},
            **self.list_parameters(),
        }


@contextmanager
def add_dims_to_errors(node: Node) -> Iterator[None]:
    """Convert index errors of shape inference into an error that shows the dims of the node's inputs."""
    try:
        yield
    except CudnnBackendError:
        raise
    except (LookupError, ArithmeticError, ValueError) as error:
        raise make_attribute_not_set_error(
            f"{node.tag.lower()} {node.name!r} does not fit the dims of its inputs",
            fix="give tensors of the rank that the operation needs: "
            + ", ".join(f"{port} has {list(item.dim)}" for port, item in node.inputs.items()),
        ) from error


def check_and_infer_properties(node: Node, context: Context) -> None:
    """Check a node, infer missing properties, and give each of its tensors a type."""
    node.check(context)
    with add_dims_to_errors(node):
        node.infer(context)
    for item in node.iterate_tensors():
        fill_data_type(item, context)
        if item.ragged_offset is not None:
            fill_data_type(item.ragged_offset, context)


def fill_data_type(item: UserTensor, context: Context) -> None:
    """Set a missing data type of a tensor to the graph's default for virtual tensors or for those in memory."""
    if item.data_type == data_type.NOT_SET:
        item.data_type = context.intermediate_type if item.virtual else context.io_type


class Emitter:
    """Converts nodes into operations of one :class:`~cudnn_backend_py.GraphBuilder`.

    ``context`` has the types, version and architecture of the graph; ``tensors`` maps each user tensor to its graph
    tensor. ``constants`` are float32 tensors in memory with values that belong to the graph (slopes of
    ALiBi), by uid; ``slices`` are parts of other tensors: uid to (uid of the whole, bytes from its start).
    """

    def __init__(self, context: Context, name: str, own: Iterable[UserTensor] = (), nodes: Iterable[Node] = ()) -> None:
        self.context = context
        self._ranks = {item: rank for node in nodes for item, rank in node.list_required_ranks().items()}
        self._own = {item for item in own if item.uid}
        self.builder = GraphBuilder(
            name,
            first_uid=1 + max((item.uid for item in self._own if not item.uid_given), default=0),
            io_type=context.io_type.backend or DataType.FLOAT,
            intermediate_type=context.intermediate_type.backend or DataType.FLOAT,
            compute_type=context.compute_type.backend or DataType.FLOAT,
        )
        self.tensors: dict[UserTensor, Tensor] = {}
        self.constants: dict[int, Sequence[float]] = {}
        self.slices: dict[int, tuple[int, int]] = {}

    def make_graph(self) -> Graph:
        """Return the finished graph, and warn about its known issues."""
        made = self.builder.graph()
        warn_about_known_issues(made, self.context.sm, self.context.version)
        return made

    def emit_tensor(self, source: UserTensor) -> Tensor:
        """Return the graph tensor of a user's tensor, created on the first call."""
        made = self.tensors.get(source)
        if made is None:
            kind = source.data_type.backend
            if kind is None:
                raise make_invalid_value_error(
                    f"tensor {source.name!r} has no data type", fix="call set_data_type(...) on it"
                )
            offset = None if source.ragged_offset is None else self.emit_tensor(source.ragged_offset)
            ones = (1,) * (self._ranks.get(source, 0) - len(source.dim))
            made = self.builder.tensor(
                self.builder.make_unused_name(source.name or "tensor"),
                (*source.dim, *ones),
                kind,
                strides=(*source.stride, *ones),
                uid=source.uid if source.uid_given or source in self._own else None,
                alignment=source.alignment,
                virtual=source.virtual and not (source.by_value or source.in_memory),
                by_value=source.by_value,
                value=source.value,
                reordering=TensorReordering[source.reordering.name],
                ragged_offset=offset,
                ragged_offset_multiplier=1 if offset is None else source.ragged_offset_multiplier,
                vector_count=source.vector_count,
                vector_dim=source.vector_dimension,
            )
            self.tensors[source] = made
            source.uid = made.uid
        return made

    def emit_optional_tensor(self, source: UserTensor | None) -> Tensor | None:
        """Return the graph tensor of a user's tensor; None if there is no tensor."""
        return None if source is None else self.emit_tensor(source)

    def get_compute_type(self, node: Node) -> DataType:
        """Return a node's compute type: its own, else the graph's."""
        kind = node.compute if node.compute != data_type.NOT_SET else self.context.compute_type
        return kind.backend or DataType.FLOAT


def check_data_type(value: Any) -> data_type:
    """Return a data type argument, given as a ``cudnn.data_type`` or a torch dtype.

    Raises
    ------
    TypeError
        If it is something else.
    """
    if isinstance(value, data_type):
        return value
    try:
        return to_data_type(value)
    except TypeError:
        raise TypeError(f"compute_data_type is {value!r}, a cudnn.data_type is needed") from None


def pack_strides(dims: Sequence[int]) -> list[int]:
    """Return row-major strides in elements; empty for empty dims."""
    return list(packed_strides(tuple(dims))) if dims else []


def broadcast_dims(*shapes: Sequence[int]) -> list[int]:
    """Return the dims to which operands broadcast, aligned at the last dim.

    Raises
    ------
    FrontendValueError
        If two sizes differ and neither is 1.
    """
    rank = max(map(len, shapes))
    full = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    for sizes in zip(*full, strict=True):
        if len(set(sizes) - {1}) > 1:
            raise make_attribute_not_set_error(f"shapes {', '.join(map(str, map(list, shapes)))} do not broadcast")
    return [max(sizes) for sizes in zip(*full, strict=True)]
