"""``FrontendPrivateAliases``: private attributes of cudnn-frontend 1.32's graph that programs use, as aliases."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, Self

from .plan_list import PlanList
from .recorded import GraphRecord
from .runner import Runner
from .tensors import tensor

__all__ = ["FrontendPrivateAliases"]


class _BoundBuffersByUid(MutableMapping[int, Any]):
    """A live mapping from tensor uids to the buffers that are bound to the graph's tensors."""

    def __init__(self, record: GraphRecord) -> None:
        self._record = record

    def __getitem__(self, uid: int) -> Any:
        found = self._record.find_tensor(uid)
        if found is None:
            raise KeyError(uid)
        return self._record.bound_buffers[found]

    def __setitem__(self, uid: int, value: Any) -> None:
        found = self._record.find_tensor(uid)
        if found is None:
            raise KeyError(uid)
        self._record.bound_buffers[found] = value

    def __delitem__(self, uid: int) -> None:
        found = self._record.find_tensor(uid)
        if found is None:
            raise KeyError(uid)
        del self._record.bound_buffers[found]

    def __iter__(self) -> Iterator[int]:
        return iter([item.uid for item in self._record.bound_buffers])

    def __len__(self) -> int:
        return len(self._record.bound_buffers)


class FrontendPrivateAliases:
    """Mixin of ``pygraph`` with aliases for private attributes of cudnn-frontend's graph."""

    record: GraphRecord
    _plans: PlanList
    _operation_graph: Any
    _current: Runner | None

    @property
    def _is_built(self) -> bool:
        return self._current is not None

    @property
    def _planning_done(self) -> bool:
        return bool(len(self._plans))

    _cpp_plans_created = _planning_done

    @property
    def _plan_index(self) -> int:
        return self._plans.candidate

    @property
    def _lowered_graph(self) -> Self | None:
        """This graph once its operation graph is built, else None."""
        return None if self._operation_graph is None else self

    @property
    def _tensor_by_uid(self) -> dict[int, tensor]:
        return {item.uid: item for item in self.record.tensors}

    @property
    def _data_bindings(self) -> MutableMapping[int, Any]:
        return _BoundBuffersByUid(self.record)
