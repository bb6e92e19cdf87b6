"""Skip test groups that this machine cannot run: tests/library needs libcudnn, tests/gpu a GPU.

Each skipped group is reported once; with ``CUDNN_BACKEND_REQUIRE=library,gpu`` it is a failure. A child process looks
for the driver, so that this process loads no library for ``pytest tests/pure``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cudnn_backend_py.native.find import CUDNN_SONAME, find_cudnn_places
from tests.support.chromium import find_chromium

if TYPE_CHECKING:
    from cudnn_backend_py.plans.cache import PlanCache
    from cudnn_backend_py.plans.engine import EngineConfig
    from cudnn_backend_py.plans.plan import Plan

# The tests start a thousand processes. Without bytecode files, each would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Use the cuDNN versions that `make` installed in this environment, not others of the user.
if (_VERSIONS := Path(sys.prefix) / "cudnn").is_dir():
    os.environ.setdefault("CUDNN_BACKEND_CACHE", str(_VERSIONS))

# Shells ignore Ctrl-C for background jobs; tests that interrupt child processes need the default handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
SITE = TESTS.parent / "site"
REQUIRE_VARIABLE = "CUDNN_BACKEND_REQUIRE"
_LOAD = f"import ctypes; ctypes.CDLL({CUDNN_SONAME!r})"
_DRIVER = "from cudnn_backend_py.native import load_driver as d; print(d().kind, d().devices)"


def _find_skip_reason_of_library_tests() -> str | None:
    """Return the reason to skip tests that need libcudnn; None if libcudnn exists, even a broken one."""
    places = [place.path for place in find_cudnn_places()]
    if any(path and os.path.isabs(path) for path in places):
        return None
    if (
        CUDNN_SONAME in places
        and subprocess.run([sys.executable, "-c", _LOAD], stderr=subprocess.DEVNULL).returncode == 0
    ):
        return None
    return f"no {CUDNN_SONAME} was found"


def _find_skip_reason_of_gpu_tests() -> str | None:
    """Return the reason to skip tests that need a GPU; None if the real driver finds a GPU."""
    kind, devices = subprocess.run([sys.executable, "-c", _DRIVER], stdout=subprocess.PIPE, check=True).stdout.split()
    if kind == b"real" and int(devices):
        return None
    return f"no GPU: libcuda.so.1 is {kind.decode()}, {int(devices)} devices"


def _find_skip_reason_of_browser_tests() -> str | None:
    return None if find_chromium() else "no chromium on PATH"


def _find_skip_reason_of_site_tests() -> str | None:
    if not (SITE / "index.html").is_file():
        return "the site is not built: make docs"
    return _find_skip_reason_of_browser_tests() or _find_skip_reason_of_library_tests()


RINGS: dict[str, Callable[[], str | None]] = {
    "library": cache(_find_skip_reason_of_library_tests),
    "gpu": cache(_find_skip_reason_of_gpu_tests),
    "browser": _find_skip_reason_of_browser_tests,
    "site": cache(_find_skip_reason_of_site_tests),
}


def _is_test_group_selected(arguments: Iterable[str], ring: str) -> bool:
    """Return whether the command line selects tests in the folder of a test group, such as ``tests/gpu``."""
    folder = TESTS / ring
    paths = [Path(argument.split("::")[0]).resolve() for argument in arguments]
    return any(path == folder or path in folder.parents or folder in path.parents for path in paths)


def _find_skipped_groups(config: pytest.Config) -> dict[str, str]:
    selected = [ring for ring in RINGS if _is_test_group_selected(config.args, ring)]
    return {ring: why for ring in selected if (why := RINGS[ring]()) is not None}


class _SkippedTestFile(pytest.File):
    """A test file of a skipped test group (library, gpu, browser or site), which is not imported."""

    def collect(self) -> Iterable[pytest.Item]:
        return ()


@pytest.fixture(scope="session", autouse=True)
def plan_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterable[None]:
    """Store plans of tests and their child processes in a temporary folder, not in the user's cache."""
    before = os.environ.get("CUDNN_BACKEND_PLAN_CACHE")
    os.environ["CUDNN_BACKEND_PLAN_CACHE"] = str(tmp_path_factory.mktemp("plans") / "cache")
    yield
    os.environ.pop("CUDNN_BACKEND_PLAN_CACHE")
    if before is not None:
        os.environ["CUDNN_BACKEND_PLAN_CACHE"] = before


def pytest_configure(config: pytest.Config) -> None:
    alone = "alone: the test measures time or GPU memory, and no other is to run on the GPU meanwhile"
    config.addinivalue_line("markers", alone)


def pytest_sessionstart(session: pytest.Session) -> None:
    required = os.environ.get(REQUIRE_VARIABLE, "").split(",")
    for ring, why in _find_skipped_groups(session.config).items():
        if ring in required:
            pytest.exit(f"{REQUIRE_VARIABLE} requests tests/{ring}: {why}", returncode=1)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    for ring, absence in RINGS.items():
        if TESTS / ring in module_path.parents and absence() is not None:
            return _SkippedTestFile.from_parent(parent, path=module_path)
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    missing = _find_skipped_groups(config)
    if missing:
        text = ", ".join(f"tests/{ring} ({why})" for ring, why in missing.items())
        terminalreporter.write_line(f"not run: {text}", yellow=True)


@pytest.fixture(name="cache")
def fresh_plan_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlanCache]:
    """Return an empty plan cache on disk, and clear the plans cached in this process."""
    from cudnn_backend_py.plans.build import forget_plans
    from cudnn_backend_py.plans.cache import PlanCache

    monkeypatch.setenv("CUDNN_BACKEND_PLAN_CACHE", str(tmp_path / "plans"))
    forget_plans()
    yield PlanCache(tmp_path / "plans")
    forget_plans()


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the tag of every built plan is appended."""
    from cudnn_backend_py.plans import build as planning

    tags: list[str] = []
    real = planning.build_plan

    def build_and_record_tag(config: EngineConfig) -> Plan:
        tags.append(config.tag)
        return real(config)

    monkeypatch.setattr(planning, "build_plan", build_and_record_tag)
    return tags
