"""The pytest plugin: assertions on verdicts, one test per target, tests that need a certain GPU or cuDNN.

Fixtures ``assert_supported`` and ``assert_not_supported`` are the functions of :mod:`cudnn_backend_py.testing`;
``cudnn_target`` is one target of the marker ``cudnn_target`` or of the option ``--cudnn-target``. A marker that means
nothing is an error of the collection, never a skip. Loading the plugin imports nothing else of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..diagnose import Verdict

_MARKERS = {
    "cudnn_target": "(*names): run the test, which takes the fixture cudnn_target, for each of these described GPUs",
    "requires_sm": "(*architectures): skip the test unless the GPU here is of one of these, such as 90",
    "requires_cudnn": "(minimum=None, below=None): skip the test unless the cuDNN here is at least minimum, such as "
    "'9.20', and older than below",
}


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
    """Register the plugin's markers, and check the option ``--cudnn-target``."""
    for name, meaning in _MARKERS.items():
        config.addinivalue_line("markers", f"{name}{meaning}")
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
    """Fixture: the function ``assert_supported(graph, target, ...)``, which fails with the verdict's text."""
    from .assertions import assert_supported as function

    return function


@pytest.fixture
def assert_not_supported() -> Callable[..., Verdict]:
    """Fixture: the function ``assert_not_supported(graph, target, ...)``, which fails with the verdict's text."""
    from .assertions import assert_not_supported as function

    return function


@pytest.fixture
def cudnn_target(request: pytest.FixtureRequest) -> str:
    """One of the targets of the marker ``cudnn_target``, or of ``--cudnn-target`` if there is no marker."""
    pytest.fail(
        f"{request.node.name} uses the fixture cudnn_target without a target: mark it with "
        "@pytest.mark.cudnn_target('sm90'), or run pytest --cudnn-target sm90",
        pytrace=False,
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the fixture ``cudnn_target`` once per target."""
    if "cudnn_target" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("cudnn_target")
    asked: list[str] = metafunc.config.getoption("--cudnn-target")
    names: Sequence[str] = asked
    if marker is not None:
        from .markers import find_marker_error

        names = () if find_marker_error(marker) else marker.args
    if names:
        chosen = {_find_canonical_target_name(name) for name in asked}
        metafunc.parametrize("cudnn_target", [_make_target_parameter(name, chosen) for name in names])


def _make_target_parameter(name: str, chosen: set[str]) -> Any:
    if not chosen or _find_canonical_target_name(name) in chosen:
        return pytest.param(name, id=name)
    reason = f"--cudnn-target leaves {name} out"
    return pytest.param(name, id=name, marks=pytest.mark.skip(reason=reason))


def _find_canonical_target_name(name: str) -> str:
    """Return the canonical name of a target, so that aliases such as sm90 and h100 compare equal."""
    from ..errors import CudnnBackendError
    from ..target import find_profile

    try:
        return find_profile(name).name
    except CudnnBackendError:  # gpu, or a mistake that the test itself will show
        return name


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse to collect a file or class with invalid markers, with an error that explains them."""
    report = yield
    items = [node for node in report.result or () if isinstance(node, pytest.Item)]
    faults = dict.fromkeys(fault for item in items for fault in _find_marker_errors(item))
    if not faults:
        return report
    return pytest.CollectReport(report.nodeid, "failed", "\n".join(faults), [], report.sections)


def _find_marker_errors(item: pytest.Item) -> Iterator[str]:
    ours = [marker for marker in item.iter_markers() if marker.name in _MARKERS]
    if not ours:
        return
    from .markers import find_marker_error

    name = getattr(item, "originalname", None) or item.name
    if any(marker.name == "cudnn_target" for marker in item.own_markers) and "cudnn_target" not in _list_fixture_names(
        item
    ):
        yield f"{name} is marked with cudnn_target and does not take the fixture cudnn_target"
    for marker in ours:
        if fault := find_marker_error(marker):
            yield f"{name}: the marker {_format_marker(marker)} is wrong: {fault}"


def _list_fixture_names(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def _format_marker(marker: pytest.Mark) -> str:
    given = [*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())]
    return f"{marker.name}({', '.join(given)})"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs another GPU or cuDNN, and say how to run it."""
    for fault in _find_marker_errors(item):  # of a marker that was added after the collection
        pytest.fail(fault, pytrace=False)
    lacks = [_explain_missing_gpu(*marker.args) for marker in item.iter_markers("requires_sm")]
    lacks += [_explain_missing_cudnn(*marker.args, **marker.kwargs) for marker in item.iter_markers("requires_cudnn")]
    for reason in filter(None, lacks):
        item.add_marker(pytest.mark.skip(reason=reason))  # pytest then names the line of the test, not one of here


def _explain_missing_gpu(*architectures: int) -> str | None:
    """Explain why no GPU of this machine is suitable; None if one is."""
    sm, absence = _find_gpu_architecture_or_reason()
    if sm in architectures:
        return None
    needed = " or ".join(f"sm_{number}" for number in architectures)
    found = absence if sm is None else f"the one here is sm_{sm}"
    return f"needs a GPU of {needed}: {found}; run it where there is one{_describe_suitable_gpu(architectures[0])}"


def _describe_suitable_gpu(architecture: int) -> str:
    """Return the name of a GPU with which the test can run."""
    from ..target import list_profiles

    return next((f", such as {profile.title}" for profile in list_profiles() if profile.sm == architecture), "")


def _explain_missing_cudnn(minimum: str | None = None, below: str | None = None) -> str | None:
    """Explain why the cuDNN of this process is not suitable; None if it is."""
    from ..native.find import LIBRARY_VARIABLE
    from ..system.version import format_version_numbers
    from .markers import get_first_three_numbers

    version, absence = _find_cudnn_version_or_reason()
    old = version is not None and minimum is not None and version < get_first_three_numbers(minimum)
    new = version is not None and below is not None and version >= get_first_three_numbers(below)
    if version is not None and not old and not new:
        return None
    needed = " and ".join(f"{word} {text}" for word, text in (("at least", minimum), ("below", below)) if text)
    window = ",".join(f"{sign}{text}" for sign, text in ((">=", minimum), ("<", below)) if text)
    found = absence if version is None else f"here is {format_version_numbers(version)}"
    install = f"pip install 'nvidia-cudnn-cu12{window}'"
    return f"needs cuDNN {needed}: {found}; {install}, or name the file of one in {LIBRARY_VARIABLE}"


@cache
def _find_gpu_architecture_or_reason() -> tuple[int | None, str]:
    """Return the architecture of the GPU of this process, or why there is none."""
    from ..errors import CudnnBackendError
    from ..target import use_target

    try:
        with use_target("gpu") as target:
            return target.sm, ""
    except CudnnBackendError as error:
        return None, error.headline


@cache
def _find_cudnn_version_or_reason() -> tuple[tuple[int, ...] | None, str]:
    """Return the version of the cuDNN of this process, or why there is none."""
    from ..errors import CudnnBackendError
    from ..native import library

    try:
        return library().version, ""
    except CudnnBackendError as error:
        return None, error.headline
