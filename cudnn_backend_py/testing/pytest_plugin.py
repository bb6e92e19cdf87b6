"""The pytest plugin: verdicts as assertions, tests for each of some targets, tests for one GPU or cuDNN only.

Fixtures ``assert_supported`` and ``assert_not_supported`` are the functions of :mod:`cudnn_backend_py.testing`;
``cudnn_target`` is one target of the marker ``cudnn_target`` or of the option ``--cudnn-target``. Loading the plugin
imports nothing else of this package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..diagnose import Verdict

_MARKERS = (
    "cudnn_target(*names): run the test, which takes the fixture cudnn_target, for each of these described GPUs",
    "requires_sm(*architectures): skip the test unless the GPU here is of one of these, such as 90",
    "requires_cudnn(minimum=None, below=None): skip the test unless the cuDNN here is at least minimum, such as "
    "'9.20', and older than below",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--cudnn-target``."""
    parser.getgroup("cudnn").addoption(
        "--cudnn-target",
        action="append",
        default=[],
        metavar="NAME",
        help="a described GPU (sm90), a device JSON, or gpu; repeatable. What tests without the marker cudnn_target "
        "run for; of the targets of those with it, the others are skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and check the option."""
    for line in _MARKERS:
        config.addinivalue_line("markers", line)
    for name in config.getoption("--cudnn-target"):
        if name != "gpu":
            _check_target(name)


def _check_target(name: str) -> None:
    from ..errors import CudnnBackendError
    from ..target import find_profile

    try:
        find_profile(name)
    except CudnnBackendError as error:
        raise pytest.UsageError(f"--cudnn-target: {error.render()}") from None


@pytest.fixture
def assert_supported() -> Callable[..., Verdict]:
    """``assert_supported(graph, target, version=None, build=False)``: fails with the verdict's text."""
    from .assertions import assert_supported as function

    return function


@pytest.fixture
def assert_not_supported() -> Callable[..., Verdict]:
    """``assert_not_supported(graph, target, cause=None)``: fails with the verdict's text."""
    from .assertions import assert_not_supported as function

    return function


@pytest.fixture
def cudnn_target(request: pytest.FixtureRequest) -> str:
    """One of the targets of the marker ``cudnn_target``, or of ``--cudnn-target`` if there is no marker."""
    pytest.fail(
        f"{request.node.name} takes the fixture cudnn_target and has no target: mark it with "
        "@pytest.mark.cudnn_target('sm90'), or run pytest --cudnn-target sm90",
        pytrace=False,
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes the fixture ``cudnn_target`` for each of its targets."""
    if "cudnn_target" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("cudnn_target")
    asked: list[str] = metafunc.config.getoption("--cudnn-target")
    names: Sequence[str] = asked if marker is None else () if _target_fault(marker) else marker.args
    chosen = {_canonical(name) for name in asked}
    if names:
        metafunc.parametrize("cudnn_target", [_parameter(name, chosen) for name in names])


def _parameter(name: str, chosen: set[str]) -> Any:
    if not chosen or _canonical(name) in chosen:
        return pytest.param(name, id=name)
    reason = f"--cudnn-target leaves {name} out"
    return pytest.param(name, id=name, marks=pytest.mark.skip(reason=reason))


def _canonical(name: str) -> str:
    """Return the name of the profile a target is, so that sm90 and h100 are the same."""
    from ..errors import CudnnBackendError
    from ..target import find_profile

    try:
        return find_profile(name).name
    except CudnnBackendError:  # gpu, or a mistake that the test itself will show
        return name


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that is for another GPU or another cuDNN; one whose markers are wrong is an error."""
    if any(marker.name == "cudnn_target" for marker in item.own_markers) and "cudnn_target" not in _fixtures(item):
        pytest.fail(
            f"{item.name} is marked with cudnn_target and does not take the fixture cudnn_target", pytrace=False
        )
    for marker in item.iter_markers():
        if (check := _MARKER_CHECKS.get(marker.name)) is not None and (fault := check(marker)):
            pytest.fail(f"{item.name}: the marker {_shown(marker)} is wrong: {fault}", pytrace=False)
    for marker in item.iter_markers("requires_sm"):
        _check_gpu(*marker.args)
    for marker in item.iter_markers("requires_cudnn"):
        _check_cudnn(*marker.args, **marker.kwargs)


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def _shown(marker: pytest.Mark) -> str:
    given = [*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())]
    return f"{marker.name}({', '.join(given)})"


def _target_fault(marker: pytest.Mark) -> str:
    named = marker.args and not marker.kwargs and all(isinstance(name, str) for name in marker.args)
    return "" if named else "names of targets are needed, such as 'sm90'"


def _sm_fault(marker: pytest.Mark) -> str:
    numbers = marker.args and not marker.kwargs and all(type(number) is int for number in marker.args)
    return "" if numbers else "numbers of architectures are needed, such as 90"


def _cudnn_fault(marker: pytest.Mark) -> str:
    given = {**dict(zip(("minimum", "below"), marker.args, strict=False)), **marker.kwargs}
    once = 0 < len(given) == len(marker.args) + len(marker.kwargs) <= 2 and set(given) <= {"minimum", "below"}
    fits = all(isinstance(text, str) and re.fullmatch(r"\d+(\.\d+){0,3}", text) for text in given.values())
    return "" if once and fits else "minimum or below is needed, a version such as '9.20'"


_MARKER_CHECKS: dict[str, Callable[[pytest.Mark], str]] = {
    "cudnn_target": _target_fault,
    "requires_sm": _sm_fault,
    "requires_cudnn": _cudnn_fault,
}


def _check_gpu(*architectures: int) -> None:
    sm, absence = _gpu_here()
    needed = " or ".join(f"sm_{number}" for number in architectures)
    if sm is None:
        pytest.skip(f"needs a GPU of {needed}: {absence}")
    if sm not in architectures:
        pytest.skip(f"needs a GPU of {needed}, this one is sm_{sm}")


def _check_cudnn(minimum: str | None = None, below: str | None = None) -> None:
    from ..system.version import version_numbers, version_text

    version, absence = _cudnn_here()
    needed = " and ".join(f"{word} {text}" for word, text in (("at least", minimum), ("below", below)) if text)
    if version is None:
        pytest.skip(f"needs cuDNN {needed}: {absence}")
    if (minimum and version < version_numbers(minimum)) or (below and version >= version_numbers(below)):
        pytest.skip(f"needs cuDNN {needed}, here is {version_text(version)}")


@cache
def _gpu_here() -> tuple[int | None, str]:
    """Return the architecture of the GPU of this process, or why there is none."""
    from ..errors import CudnnBackendError
    from ..target import using

    try:
        with using("gpu") as target:
            return target.sm, ""
    except CudnnBackendError as error:
        return None, str(error)


@cache
def _cudnn_here() -> tuple[tuple[int, ...] | None, str]:
    """Return the version of the cuDNN of this process, or why there is none."""
    from ..errors import CudnnBackendError
    from ..native import library

    try:
        return library().version, ""
    except CudnnBackendError as error:
        return None, str(error)
