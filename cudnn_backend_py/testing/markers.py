"""Checks of the markers of the pytest plugin."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ..errors import CudnnBackendError
from ..system.nearest import find_most_similar_name
from ..system.version import Version, parse_version_numbers
from ..target import find_profile, list_profiles

__all__ = ["find_marker_error", "get_first_three_numbers"]


def find_marker_error(marker: pytest.Mark) -> str:
    """Describe the error in a marker of the plugin, with at most one suggestion; empty if it is valid."""
    check = _CHECKS.get(marker.name)
    return "" if check is None else check(marker)


def get_first_three_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, which cuDNN reports; a wheel's fourth number is dropped."""
    return parse_version_numbers(version)[:3]


def _format_suggestion(suggestion: object) -> str:
    """Format the suggestion to append to an error text; empty if there is no suggestion."""
    return "" if suggestion is None else f"; did you mean {suggestion!r}?"


def _find_target_error(marker: pytest.Mark) -> str:
    if not marker.args or marker.kwargs or not all(isinstance(name, str) for name in marker.args):
        given = [*marker.args, *marker.kwargs.values()]
        instead = next((name for value in given if (name := _find_nearest_target(str(value)))), None)
        return f"names of targets are needed, such as 'sm90'{_format_suggestion(instead)}"
    return next((fault for name in marker.args if (fault := _describe_unknown_target(name))), "")


def _describe_unknown_target(name: str) -> str:
    """Describe the error in the name of a target; empty if it exists."""
    if name == "gpu":
        return ""
    try:
        find_profile(name)
    except CudnnBackendError as error:
        return f"{error.headline}{_format_suggestion(_find_nearest_target(name))}"
    return ""


def _find_nearest_target(name: str) -> str | None:
    known = [name for profile in list_profiles() for name in (profile.name, *profile.aliases)]
    return find_most_similar_name(f"sm{name}" if name.isdecimal() else name, ["gpu", *known])


def _find_architecture_error(marker: pytest.Mark) -> str:
    given = [*marker.args, *marker.kwargs.values()]
    if not marker.args or marker.kwargs or not all(type(number) is int for number in marker.args):
        instead = next((number for value in given if (number := _find_nearest_architecture(str(value)))), None)
        return f"numbers of architectures are needed, such as 90{_format_suggestion(instead)}"
    known = _list_known_architectures()
    # Newer ones than those described here are let through: up to where only ten times an architecture can be meant.
    unknown = [number for number in given if number not in known and not known[-1] < number < 10 * known[0]]
    return (
        f"no GPU has architecture sm_{unknown[0]}{_format_suggestion(_find_nearest_architecture(str(unknown[0])))}"
        if unknown
        else ""
    )


def _list_known_architectures() -> list[int]:
    return sorted({profile.sm for profile in list_profiles()})


def _find_nearest_architecture(text: str) -> int | None:
    """Return the architecture nearest to the number in a text such as ``sm_90``, ``9.0`` or ``900``."""
    known = _list_known_architectures()
    number = int("0" + "".join(character for character in text if character in "0123456789"))
    number = number * 10 if number < 20 else number // 10 if number >= 10 * known[0] else number
    return min(known, key=lambda sm: abs(sm - number)) if number else None


def _find_version_error(marker: pytest.Mark) -> str:
    names = ("minimum", "below")
    if unknown := [name for name in marker.kwargs if name not in names]:
        instead = _format_suggestion(find_most_similar_name(unknown[0], names))
        return f"{unknown[0]} is not one of its arguments, minimum and below{instead}"
    given = {**dict(zip(names, marker.args, strict=False)), **marker.kwargs}
    if not 0 < len(given) == len(marker.args) + len(marker.kwargs):
        return "minimum or below is needed, a version such as '9.20'"
    for name, value in given.items():
        if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,2}(\.[0-9]+){0,3}", value):
            return f"{name} must be a version such as '9.20'{_format_suggestion(_find_nearest_version(str(value)))}"
    if len(given) == 2 and not get_first_three_numbers(given["minimum"]) < get_first_three_numbers(given["below"]):
        return f"no version is at least {given['minimum']} and below {given['below']}"
    return ""


def _find_nearest_version(text: str) -> str | None:
    """Return the version in a text such as ``v9.20``, ``>=9.20`` or ``92000`` (the header's form)."""
    if match := re.search(r"[0-9]+(\.[0-9]+)+", text):
        return match[0]
    return str(Version.from_number(int(text))) if re.fullmatch(r"9[0-9]{4}", text) else None


_CHECKS: dict[str, Callable[[pytest.Mark], str]] = {
    "cudnn_target": _find_target_error,
    "requires_sm": _find_architecture_error,
    "requires_cudnn": _find_version_error,
}
