"""``Graph``: a graph written in a ``with`` block with a framework's tensors, then called like a function."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from ..native import Handle
from .enums import TORCH_NAMES, heur_mode, to_data_type
from .errors import FrontendRuntimeError, make_attribute_not_set_error, make_invalid_value_error
from .graphs import pygraph
from .handles import DescribedHandle, create_handle, default_target, destroy_handle, get_cached_handle, set_stream
from .recorded import OPERATIONS
from .tensors import tensor

__all__ = ["Graph", "destroy_default_handle", "get_default_handle"]

# What leaving the block does, or what the call does; by hand it would leave the wrapper after.
_BLOCKED_METHODS = frozenset(
    {
        "build",
        "build_operation_graph",
        "build_plan_at_index",
        "build_plans",
        "check_support",
        "create_execution_plan",
        "create_execution_plans",
        "deselect_behavior_notes",
        "deselect_engines",
        "deselect_numeric_notes",
        "deselect_workspace_greater_than",
        "execute",
        "execute_plan_at_index",
        "get_behavior_notes",
        "get_behavior_notes_for_plan_at_index",
        "get_engine_count",
        "get_execution_plan_count",
        "get_knobs_for_engine",
        "get_plan_name_at_index",
        "key",
        "populate_cuda_graph",
        "select_behavior_notes",
        "select_numeric_notes",
        "update_cuda_graph",
        "validate",
    }
)


def _import_torch(purpose: str) -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise FrontendRuntimeError(
            f"torch cannot be imported, and {purpose}",
            code="frontend-torch-missing",
            cause=str(error),
            fix="pip install torch, or use cudnn.pygraph, which takes addresses and any DLPack tensor",
        ) from error


_default_handles: dict[tuple[int, ...], Handle] = {}  # by process, thread and device


def get_default_handle(stream: Any = None) -> Any:
    """Return the handle of ``Graph(handle="auto")``: one per thread and device, on torch's current stream.

    Parameters
    ----------
    stream
        Address of another CUDA stream.

    Raises
    ------
    RuntimeError
        If there is no torch, or no GPU.
    """
    if default_target() is not None:
        return create_handle()
    cuda = _import_torch("the default handle follows torch's current stream").cuda
    handle = get_cached_handle(_default_handles, threading.get_ident(), cuda.current_device())
    set_stream(handle=handle, stream=cuda.current_stream().cuda_stream if stream is None else stream)
    return handle


def destroy_default_handle() -> None:
    """Destroy the handles made by :func:`get_default_handle`; its next call makes a new one."""
    while _default_handles:
        destroy_handle(_default_handles.popitem()[1])


class _FrameworkTensors:
    """Maps the framework tensors that a graph was written with to graph tensors, by identity.

    They are not kept alive. The entry of a freed tensor is ignored, also if a new tensor has its address.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[], Any], tensor]] = {}

    def find_tensor(self, source: Any) -> tensor | None:
        get_source_if_alive, made = self._known.get(id(source), (lambda: None, None))
        return made if get_source_if_alive() is source else None

    def add_tensor(self, source: Any, made: tensor) -> tensor:
        get_source_if_alive: Callable[[], Any]
        try:
            get_source_if_alive = weakref.ref(source)
        except TypeError:

            def get_source_if_alive() -> Any:
                return source

        self._known[id(source)] = (get_source_if_alive, made)
        return made


class Graph:
    """A graph that is built at the end of its ``with`` block and then called with tensors.

    Inside the block it has the operations of :class:`~cudnn_backend_py.frontend.graphs`, and they take torch
    tensors (anything with DLPack) where those take ``cudnn.tensor``: layout and type count, values do not. A port
    is called ``"node::argument"``, for example ``"sdpa::q"`` (``"node::0"`` for a positional argument), and
    ``"node::Y"`` for an output; a node without a name is called after its operation and number, ``"matmul.0"``.

    Parameters
    ----------
    handle
        What ``create_handle`` returned; ``"auto"`` for :func:`get_default_handle`; None to give one at each call.
    inputs, outputs
        The order of positional arguments and results, see :meth:`set_io_tuples`.
    heuristics
        Heuristics modes, A and FALLBACK unless given.
    workspace_alloc
        Whether the graph allocates its workspace, at the first call. If not, each call needs ``workspace=``.
    **options
        Those of :class:`~cudnn_backend_py.frontend.graphs`; the data types may be torch dtypes too.

    Raises
    ------
    ValueError
        If `inputs`, `outputs` or `heuristics` is no list or tuple.
    TypeError
        For an unknown option, when the block is entered.
    """

    def __init__(
        self,
        *,
        handle: Any = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        heuristics: Sequence[heur_mode] | None = None,
        workspace_alloc: bool = True,
        **options: Any,
    ) -> None:
        for argument, value in (("inputs", inputs), ("outputs", outputs), ("heuristics", heuristics)):
            _require_list(argument, [] if value is None else value)
        for key in {"io_data_type", "intermediate_data_type", "compute_data_type"} & set(options):
            options[key] = to_data_type(options[key])
        self._handle = handle or None
        self._options = options
        self._heuristics = list(heuristics or (heur_mode.A, heur_mode.FALLBACK))
        self.__workspace: Any = None if workspace_alloc else False
        self._wanted = (inputs or (), outputs or ())
        self._graph: pygraph | None = None
        self._built = False
        self._sources = _FrameworkTensors()
        self._created: list[tensor] = []
        self._ports_in: dict[str, tensor] = {}
        self._ports_out: dict[str, tensor] = {}
        self._counts: Counter[str] = Counter()
        self._nodes: set[str] = set()
        self._order: tuple[list[tensor], list[tensor]] | None = None

    def __repr__(self) -> str:
        state = "built" if self._built else "empty" if self._graph is None else "under construction"
        ports = {"inputs": self._ports_in, "outputs": self._ports_out}
        texts = (
            f"{what} {[port for port, item in found.items() if _needs_buffer(item)]}" for what, found in ports.items()
        )
        return f"<cudnn.Graph {state}: {', '.join(texts)}>"

    def __str__(self) -> str:
        return repr(self) if self._graph is None else str(self._graph)

    # The block

    def __enter__(self) -> Self:
        if self._graph is not None:
            raise make_invalid_value_error("this Graph was already built", fix="use a new Graph for each with block")
        handle = None if self._handle == "auto" else self._handle
        self._graph = pygraph(handle=handle, **self._options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Build the graph, unless the block raised.

        Raises
        ------
        ValueError, RuntimeError, cudnnGraphNotSupportedError
            As ``validate``, ``build_operation_graph``, ``create_execution_plans``, ``check_support`` and
            ``build_plans`` do, and as :meth:`set_io_tuples` does.
        """
        graph = self._graph
        if error is not None or graph is None:
            self._graph = None
            return
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans(self._heuristics)
        graph.check_support()
        graph.build_plans()
        self._built = True
        if any(self._wanted):
            self.set_io_tuples(*self._wanted)

    def __getattr__(self, name: str) -> Any:
        graph = None if name.startswith("_") else self._graph
        if graph is None:
            raise AttributeError(f"a cudnn.Graph has no {name!r} outside its with block")
        if name in _BLOCKED_METHODS:
            raise make_invalid_value_error(
                f"Calling {name} via wrapper is not allowed: cudnn.Graph calls {name} itself",
                fix="use cudnn.pygraph to call it yourself",
            )
        attribute = getattr(graph, name)
        if name in ("tensor", "tensor_like"):
            return partial(self._create_tensor, attribute)
        if name in OPERATIONS:
            return partial(self._add_node, name, attribute)
        return attribute

    def _create_tensor(self, make: Callable[..., tensor], *args: Any, **kwargs: Any) -> tensor:
        made = make(*args, **kwargs)
        self._created.append(made)
        return made

    def _add_node(self, operation: str, add: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        node = kwargs.setdefault("name", f"{operation}.{self._counts[operation]}")
        self._counts[operation] += 1
        if node in self._nodes:
            raise make_attribute_not_set_error(
                f"node name {node!r} is used already", fix="give each node a name of its own"
            )
        self._nodes.add(node)
        positional = [self._convert_argument(f"{node}::{position}", value) for position, value in enumerate(args)]
        named = {key: self._convert_argument(f"{node}::{key}", value) for key, value in kwargs.items()}
        result = add(*positional, **named)
        for position, item in enumerate(result if isinstance(result, (list, tuple)) else [result]):
            if isinstance(item, tensor):
                self._ports_out[item.name or f"{node}::{position}"] = item
        return result

    def _convert_argument(self, port: str, value: Any) -> Any:
        """Replace the framework tensors in an argument by graph tensors, and record the ports they are used at."""
        if type(value) in (list, tuple):
            return type(value)(
                self._convert_argument(f"{port}::{position}", item) for position, item in enumerate(value)
            )
        if hasattr(value, "__dlpack__"):
            value = self._find_graph_tensor(value)
        if isinstance(value, tensor):
            self._ports_in[port] = value
        return value

    def _find_graph_tensor(self, source: Any) -> tensor:
        found = self._sources.find_tensor(source)
        if found is None:
            assert self._graph is not None
            plain = source.detach() if getattr(source, "requires_grad", False) else source
            found = self._sources.add_tensor(source, self._graph.tensor_like(plain))
        return found

    # Inputs and outputs

    def set_io_tuples(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Set the order of positional arguments and of results.

        Parameters
        ----------
        inputs, outputs
            Each a port, the name or uid of a tensor, a ``cudnn.tensor``, or a tensor the graph was written with.
            Together they must be all tensors of the graph that are in memory.

        Raises
        ------
        ValueError
            If one is unknown, virtual or named twice, or one is left out.
        """
        _require_list("inputs", inputs)
        _require_list("outputs", outputs)
        if not self._built:
            self._wanted = (inputs, outputs)
            return
        order = (
            [self._find_io_tensor("input", position, which, self._ports_in) for position, which in enumerate(inputs)],
            [
                self._find_io_tensor("output", position, which, self._ports_out)
                for position, which in enumerate(outputs)
            ],
        )
        self._check_io_order(*order)
        self._order = order

    def _find_io_tensor(self, role: str, position: int, which: Any, ports: dict[str, tensor]) -> tensor:
        found = self._find_tensor_by_name_uid_or_source(which, ports)
        if found is None:
            raise make_attribute_not_set_error(
                f"{role} {position} ({which!r}) not found among the {role}s of the graph",
                where=f"{role}s: {', '.join(ports) or 'none'}",
                fix=f"name one of {', '.join(ports) or 'none'}",
            )
        if found.virtual:
            raise make_attribute_not_set_error(
                f"{role} {position} ({which!r}) is a virtual tensor: it is not in memory",
                fix="call set_output(True) on it",
            )
        return found

    def _find_tensor_by_name_uid_or_source(self, which: Any, ports: dict[str, tensor]) -> tensor | None:
        candidates = [*ports.values(), *self._created]
        if isinstance(which, str):
            return ports.get(which) or next((item for item in candidates if item.name == which), None)
        if isinstance(which, int):
            return next((item for item in candidates if item.uid == which), None)
        known = which if isinstance(which, tensor) else self._sources.find_tensor(which)
        return next((item for item in candidates if item is known), None)

    def _check_io_order(self, inputs: list[tensor], outputs: list[tensor]) -> None:
        seen: set[tensor] = set()
        for item in (*inputs, *outputs):
            if item in seen:
                raise make_attribute_not_set_error(
                    f"tensor {item.name!r} is a duplicate: it is named twice in inputs= and outputs=",
                    fix="name it once",
                )
            seen.add(item)
        left_out = [port for port, item in self._ports_out.items() if _needs_buffer(item) and item not in outputs]
        left_out += [port for port, item in self._ports_in.items() if _needs_buffer(item) and item not in seen]
        if left_out:
            raise make_attribute_not_set_error(
                f"the tensors {', '.join(left_out)} are in memory, but specified neither as input nor as output",
                fix="name them in inputs= or outputs=, or call the graph with a dict",
            )

    # The call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph with tensors in the order of ``inputs``, or with a dict.

        Parameters
        ----------
        *args
            The inputs; or one dict from ports, names, uids or ``cudnn.tensor`` to tensors. Outputs that are not in
            the dict are made and put into it, under their ports.
        **kwargs
            ``handle``, ``workspace`` (a tensor on the device) and what else ``pygraph.execute`` takes.

        Returns
        -------
        Any
            The output, a torch tensor, or the list of outputs in the order of ``outputs``; or the dict.

        Raises
        ------
        RuntimeError
            Before the block ended; without a handle or workspace; if the dict lacks an input.
        ValueError
            If no order was set, or the number of inputs is another one.
        """
        if self._graph is None or not self._built:
            raise make_invalid_value_error("this Graph is not built yet: call it after its with block")
        if len(args) == 1 and isinstance(args[0], dict):
            options = self._make_execute_options(kwargs)
            self._graph.execute(self._make_variant_pack(args[0]), **options)
            return args[0]
        outputs = self._run_with_positional_tensors(args, kwargs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _make_execute_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of ``execute``, with the graph's handle and workspace as defaults."""
        assert self._graph is not None
        if "handle" not in options and self._handle is None:
            raise make_invalid_value_error(
                "Need to specify cudnn handle to execute graph",
                fix="call graph(..., handle=handle), or create Graph(handle='auto')",
            )
        if "workspace" not in options and self.__workspace is False:
            raise make_invalid_value_error(
                "Need to specify workspace to execute graph: no workspace was given, "
                f"{self._graph.get_workspace_size()} bytes are needed",
                fix="call graph(..., workspace=...)",
            )
        if "handle" not in options:
            options["handle"] = get_default_handle() if self._handle == "auto" else self._handle
        if isinstance(options["handle"], DescribedHandle):
            raise FrontendRuntimeError(
                f"this graph was built for the described target {options['handle'].target.name}, on which plans "
                "cannot run",
                code="plan-without-device",
                fix="run the program where the GPU is, without a described target",
            )
        if "workspace" not in options:
            options["workspace"] = self._get_or_allocate_workspace()
        return options

    def _get_or_allocate_workspace(self) -> Any:
        assert self._graph is not None
        if self.__workspace is None:
            torch = _import_torch("the workspace is a torch tensor")
            self.__workspace = torch.empty(self._graph.get_workspace_size(), device="cuda", dtype=torch.uint8)
        return self.__workspace

    def _run_with_positional_tensors(self, args: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        if self._order is None:
            raise make_attribute_not_set_error(
                "the order of inputs and outputs is not set, so positional tensors are ambiguous",
                fix="call set_io_tuples(), or give the graph a dict",
            )
        inputs, outputs = self._order
        if len(args) != len(inputs):
            raise make_attribute_not_set_error(
                f"{len(args)} tensors were given, but the graph has {len(inputs)} inputs",
                fix="give one tensor for each input",
            )
        options = self._make_execute_options(options)
        results = [_allocate_output(item) for item in outputs]
        assert self._graph is not None
        self._graph.execute(dict(zip((*inputs, *outputs), (*args, *results), strict=True)), **options)
        return results

    def _make_variant_pack(self, given: dict[Any, Any]) -> dict[tensor, Any]:
        """Return the variant pack for a dict of buffers, and add allocated outputs to the dict."""
        pack: dict[tensor, Any] = {}
        for port, item in self._list_ports():
            if _needs_buffer(item) and (value := _find_buffer(given, port, item)) is not None:
                pack[item] = value
        outputs = {item: port for port, item in self._ports_out.items() if not item.virtual}
        missing = [
            port for port, item in self._ports_in.items() if not (item.virtual or item in pack or item in outputs)
        ]
        if missing:
            raise make_invalid_value_error(f"the dict has no tensors for the inputs {', '.join(missing)}")
        for item, port in outputs.items():
            if item not in pack:
                pack[item] = given[port] = _allocate_output(item)
        return pack

    def _list_ports(self) -> Iterator[tuple[str, tensor]]:
        yield from self._ports_in.items()
        yield from self._ports_out.items()
        yield from ((item.name, item) for item in self._created)


def _needs_buffer(item: tensor) -> bool:
    """Return whether a tensor needs a buffer in the variant pack: it is in memory and not a known scalar."""
    return not item.virtual and item.value is None


def _find_buffer(given: dict[Any, Any], port: str, item: tensor) -> Any:
    for key in (port, item, item.name, item.uid):
        if key in given:
            if not hasattr(given[key], "__dlpack__"):
                raise make_invalid_value_error(
                    f"tensor {key!r} is a {type(given[key]).__name__}, one with DLPack is needed"
                )
            return given[key]
    return None


def _allocate_output(item: tensor) -> Any:
    """Return a new torch tensor on the device for an output.

    Raises
    ------
    TypeError
        If torch has no such type.
    """
    torch = _import_torch("outputs are torch tensors")
    kind = getattr(torch, TORCH_NAMES.get(item.data_type, ""), None)
    if kind is None:
        raise TypeError(f"output {item.name!r} is {item.data_type}, for which this torch has no type")
    return torch.empty_strided(item.dim, item.stride, device="cuda", dtype=kind)


def _require_list(argument: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)):
        raise make_attribute_not_set_error(f"{argument} is a {type(value).__name__}, a list or tuple is needed")
