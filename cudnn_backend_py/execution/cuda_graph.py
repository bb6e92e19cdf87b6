"""A plan as a CUDA graph that cuDNN makes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from ..errors import UsageError
from ..native.cuda import CudaGraphHandle, get_current_context, in_context
from .stream_state import StreamState

__all__ = ["CudaGraph"]


class CudaGraphSource(Protocol):
    """The methods of an executable that :class:`CudaGraph` uses."""

    may_need_context_switch: bool

    def get_stream_state(self, buffers: Any) -> StreamState: ...

    def get_variant_pack(self, state: StreamState, by_name: Mapping[str, Any]) -> tuple[Any, Any]: ...

    def resolve(self, buffers: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]: ...


class CudaGraph:
    """A CUDA graph that cuDNN made from a plan; it can be launched repeatedly and given other buffers."""

    def __init__(self, executable: CudaGraphSource, by_name: Mapping[str, Any]) -> None:
        self._executable = executable
        state = executable.get_stream_state(by_name.values())
        self._context = state.holder.context
        self._may_need_context_switch = executable.may_need_context_switch
        self._held: list[Any] = []
        with in_context(self._context):
            self._graph = CudaGraphHandle()
            finalizer: Any = weakref.finalize(self, self._graph.close)
            finalizer.atexit = False
            pack = self._get_variant_pack(state, by_name)
            state.launcher.populate(state.holder.handle, pack, self.address)
            self._graph.instantiate()
        self._stream = state.stream
        self._launch_function = self._graph.bind_launch(self._stream)

    def _get_variant_pack(self, state: StreamState, by_name: Mapping[str, Any]) -> Any:
        pack, held = self._executable.get_variant_pack(state, by_name)
        self._held = [pack, held, by_name]
        return pack

    @property
    def address(self) -> int:
        """The address of the ``cudaGraph_t``, which can be added to another graph as a child."""
        return self._graph.graph.value or 0

    def update(self, *buffers: Any, **named: Any) -> None:
        """Replace the buffers of the graph. C: ``cudnnBackendUpdateCudaGraph``, ``cuGraphExecUpdate``.

        Raises
        ------
        UsageError
            ``cuda-graph-closed``.
        """
        self._check_open()
        executable = self._executable
        by_name = executable.resolve(buffers, named)
        state = executable.get_stream_state(by_name.values())
        with in_context(self._context):
            state.launcher.update(state.holder.handle, self._get_variant_pack(state, by_name), self.address)
            self._graph.update()
        self._launch_function = self._graph.bind_launch(self._stream)

    def launch(self, stream: int | None = None) -> None:
        """Launch the graph on a stream; by default on the stream that was current when it was made.

        Raises
        ------
        CudnnBackendError
            ``cuda-driver``, ``cuda-graph-closed``.
        """
        if stream is not None or (self._may_need_context_switch and get_current_context() != self._context):
            self._check_open()
            with in_context(self._context):
                self._graph.launch(self._stream if stream is None else stream)
        elif self._launch_function():
            self._graph.launch(self._stream)

    __call__ = launch

    def close(self) -> None:
        """Destroy the graph; work already on the device is not interrupted."""
        self._graph.close()
        self._held.clear()
        self._launch_function = self._check_open

    def _check_open(self) -> int:
        if not self.address:
            raise UsageError(
                "this CUDA graph is closed", code="cuda-graph-closed", fix="run.cuda_graph(...) makes another"
            )
        return 0
