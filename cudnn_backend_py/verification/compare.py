"""Compare cuDNN's results for a graph on two GPUs, real or described, and name the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .answers import BuiltPlan, LibraryAndGpuProperties, VerdictAndConfigs

__all__ = ["ASPECTS", "find_differing_library_or_gpu_facts", "find_first_difference", "list_differences_of_answers"]

OUTCOME, FIRST, CONFIGS, ORDER, WORKSPACE, CODE = "outcome", "first config", "configs", "order", "workspace", "code"
ASPECTS = (OUTCOME, FIRST, CONFIGS, ORDER, WORKSPACE, CODE)
"""In what two answers may differ; the order alone where the same configs are in both."""


def list_differences_of_answers(
    one: VerdictAndConfigs, other: VerdictAndConfigs, built: Sequence[BuiltPlan | None] = ()
) -> list[str]:
    """Return the aspects in which cuDNN's results for a graph on two GPUs differ.

    Parameters
    ----------
    built
        The same engine config built on each side, if it was.
    """
    return list(_iterate_differences_of_answers(one, other, built))


def _iterate_differences_of_answers(
    one: VerdictAndConfigs, other: VerdictAndConfigs, built: Sequence[BuiltPlan | None]
) -> Iterator[str]:
    if (one.outcome, one.why) != (other.outcome, other.why):
        yield OUTCOME
    if one.first != other.first:
        yield FIRST
    if one.configs != other.configs:
        same = {mode: sorted(tags) for mode, tags in one.configs.items()} == {
            mode: sorted(tags) for mode, tags in other.configs.items()
        }
        yield ORDER if same else CONFIGS
    if any(
        _map_workspaces_by_config(other).get(key, size) != size for key, size in _map_workspaces_by_config(one).items()
    ):
        yield WORKSPACE
    if len({(item.why, item.workspace, tuple(item.kernels or ())) for item in built if item is not None}) > 1:
        yield CODE


def _map_workspaces_by_config(answer: VerdictAndConfigs) -> dict[tuple[str, str], int]:
    """Return the workspace in bytes of each engine config by heuristics mode and tag."""
    return {
        (mode, tag): size
        for mode, tags in answer.configs.items()
        for tag, size in zip(tags, answer.workspace[mode], strict=True)
    }


def find_first_difference(one: VerdictAndConfigs, other: VerdictAndConfigs, aspect: str) -> tuple[str, str]:
    """Return the first values that differ between two results in an aspect, one text for each result."""
    if aspect == OUTCOME:
        return f"{one.outcome} {one.why}".strip(), f"{other.outcome} {other.why}".strip()
    if aspect == FIRST:
        return one.first or "none", other.first or "none"
    if aspect == WORKSPACE:
        sizes, others = _map_workspaces_by_config(one), _map_workspaces_by_config(other)
        key = next(key for key, size in sizes.items() if others.get(key, size) != size)
        return f"{key[1]}: {sizes[key]} bytes", f"{others[key]} bytes"
    if aspect not in (CONFIGS, ORDER):
        return "", ""
    mode = next(mode for mode in {**one.configs, **other.configs} if one.configs.get(mode) != other.configs.get(mode))
    left, right = one.configs.get(mode, []), other.configs.get(mode, [])
    if aspect == CONFIGS:
        return _describe_extra_configs(left, right, mode), _describe_extra_configs(right, left, mode)
    place = next(index for index, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1])
    return f"mode {mode}, place {place + 1}: {left[place]}", right[place]


def _describe_extra_configs(tags: Sequence[str], others: Sequence[str], mode: str) -> str:
    only = [tag for tag in tags if tag not in others]
    more = f" and {len(only) - 1} more" if len(only) > 1 else ""
    return f"mode {mode}: {len(tags)} configs" + (f", {only[0]}{more} alone" if only else "")


def find_differing_library_or_gpu_facts(
    one: LibraryAndGpuProperties, other: LibraryAndGpuProperties
) -> dict[str, tuple[Any, Any]]:
    """Return the properties of library and GPU that differ between two child processes, each with both values."""
    library = {name: (getattr(one, name), getattr(other, name)) for name in ("cudnn", "cuda", "absent")}
    names: Mapping[str, Any] = {**one.device, **other.device}
    device = {name: (one.device.get(name), other.device.get(name)) for name in names}
    return {name: pair for name, pair in {**library, **device}.items() if pair[0] != pair[1]}
