"""A plan as a CUDA graph."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from ..native.cuda import CudaGraphHandle, current_context, in_context
from .executable import Executable
from .stream_state import _Lane

__all__ = ["CudaGraph"]


class CudaGraph:
    """A CUDA graph cuDNN made of a plan: launched again and again, given other buffers without being made anew."""

    def __init__(self, executable: Executable, by_name: Mapping[str, Any]) -> None:
        self._executable = executable
        lane = executable._lane(by_name.values())
        self._context = lane.holder.context
        self._elsewhere = executable._may_be_elsewhere
        self._held: list[Any] = []
        with in_context(self._context):
            self._graph = CudaGraphHandle()
            finalizer: Any = weakref.finalize(self, self._graph.close)
            finalizer.atexit = False
            pack = self._pack(lane, by_name)
            lane.launcher.populate(lane.holder.handle, pack, self.address)
            self._graph.instantiate()
        self._stream = lane.stream
        self._go = self._graph.bound(self._stream)

    def _pack(self, lane: _Lane, by_name: Mapping[str, Any]) -> Any:
        pack, held = self._executable._pack_for(lane, by_name)
        self._held = [pack, held, by_name]
        return pack

    @property
    def address(self) -> int:
        """Address of the ``cudaGraph_t``, to add to a graph of one's own as a child."""
        return self._graph.graph.value or 0

    def update(self, *buffers: Any, **named: Any) -> None:
        """Give the graph other buffers. C: ``cudnnBackendUpdateCudaGraph``, ``cuGraphExecUpdate``."""
        executable = self._executable
        by_name = executable._normal(executable._named(buffers, named))
        lane = executable._lane(by_name.values())
        with in_context(self._context):
            lane.launcher.update(lane.holder.handle, self._pack(lane, by_name), self.address)
            self._graph.update()
        self._go = self._graph.bound(self._stream)

    def launch(self, stream: int | None = None) -> None:
        """Run it on a stream, on the one that was current when it was made by default.

        Raises
        ------
        CudnnBackendError
            ``cuda-driver``.
        """
        if stream is not None or (self._elsewhere and current_context() != self._context):
            with in_context(self._context):
                self._graph.launch(self._stream if stream is None else stream)
        elif self._go():
            self._graph.launch(self._stream)

    __call__ = launch

    def close(self) -> None:
        """Destroy the graph; work on the device goes on."""
        self._graph.close()
        self._held.clear()
