"""``graph``, ``jit`` and ``graph_cache``: build graphs in functions, once per combination of argument properties."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from .arguments import to_list
from .enums import data_type, heur_mode
from .graphs import pygraph
from .tensors import tensor

__all__ = ["graph", "graph_cache", "jit"]

P = ParamSpec("P")
R = TypeVar("R")


def graph_cache(key_fn: Callable[P, Hashable], maxsize: int = 256) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that caches a function's results under keys that `key_fn` computes from the arguments.

    Parameters
    ----------
    key_fn
        Takes the function's arguments, returns the key.
    maxsize
        How many results are kept; the oldest one goes first.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        kept: dict[Hashable, R] = {}

        @wraps(function)
        def call_cached(*args: P.args, **kwargs: P.kwargs) -> R:
            key = key_fn(*args, **kwargs)
            found = kept.get(key, kept)
            if found is not kept:
                return cast(R, found)
            result = function(*args, **kwargs)
            if len(kept) >= maxsize:
                with suppress(StopIteration, RuntimeError):  # another thread changed the dict
                    kept.pop(next(iter(kept)), None)
            return kept.setdefault(key, result)

        return call_cached

    return decorate


def jit(
    heur_modes: heur_mode | Sequence[heur_mode] = heur_mode.A, **_options: Any
) -> Callable[[Callable[P, tuple[pygraph, Sequence[tensor]]]], Callable[P, tuple[pygraph, list[int]]]]:
    """Return a decorator that builds the graph a function returns, and returns the graph and its tensors' uids.

    Parameters
    ----------
    heur_modes
        One heuristics mode, or several, for :meth:`pygraph.build`. A graph that has plans is not built again.
    """
    modes = (
        [heur_modes]
        if isinstance(heur_modes, heur_mode)
        else to_list("heur_modes", heur_modes, "a cudnn.heur_mode, or a list of them,")
    )

    def decorate(
        function: Callable[P, tuple[pygraph, Sequence[tensor]]],
    ) -> Callable[P, tuple[pygraph, list[int]]]:
        @wraps(function)
        def call_and_build(*args: P.args, **kwargs: P.kwargs) -> tuple[pygraph, list[int]]:
            made, tensors = function(*args, **kwargs)
            if made.get_execution_plan_count() <= 0:
                made.build(modes)
            return made, [item.get_uid() for item in tensors]

        return call_and_build

    return decorate


@contextmanager
def graph(
    handle: Any,
    name: str = "cudnn_graph",
    io_data_type: data_type = data_type.HALF,
    intermediate_data_type: data_type = data_type.FLOAT,
    compute_data_type: data_type = data_type.FLOAT,
    **graph_kwargs: Any,
) -> Iterator[tuple[pygraph, list[tensor]]]:
    """Yield a new graph without nodes, and an empty list to which the caller can append the graph's tensors.

    Parameters
    ----------
    handle
        What ``create_handle`` returned.
    name, io_data_type, intermediate_data_type, compute_data_type, **graph_kwargs
        As :class:`~cudnn_backend_py.frontend.graphs` takes them.
    """
    made = pygraph(
        name=name,
        io_data_type=io_data_type,
        intermediate_data_type=intermediate_data_type,
        compute_data_type=compute_data_type,
        handle=handle,
        **graph_kwargs,
    )
    yield made, []
