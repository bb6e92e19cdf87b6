"""Pytest plugin of compatibility runs: choose the module ``cudnn``, describe a GPU, write one JSON line per test.

``python -m tests.compat run`` passes its options in ``PYTEST_ADDOPTS``, so that a pytest that a test starts has them as
well; such an inner pytest writes no lines.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .compare import REACHED_EXECUTE
from .recorder import Recorder
from .run import make_row_of_test_without_result

INNER_PYTEST_VARIABLE = "CUDNN_COMPAT_INNER"
GRAPH_ARGUMENT_NAMES = (
    "name", "io_data_type", "intermediate_data_type", "compute_data_type", "handle", "sm_count", "sm_version",
    "kernel_cache", "device_property", "is_dynamic_shape_enabled", "is_override_shape_enabled",
)  # fmt: skip

#: Modules that only cudnn-frontend has, and that files with tests of backend graphs import.
FRONTEND_ONLY_NAMES = {
    "_device": ("_primary_context", "ensure_current_context"),
    "engines": ("BaseEngine",),
    "frost": (),
    "frost.buffers": ("DeviceBuffer",),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin to pytest."""
    group = parser.getgroup("compat")
    group.addoption("--compat-module", choices=("frontend", "cudnn"), default="cudnn", help="module to import as cudnn")
    group.addoption("--compat-target", default=None, help="described GPU to use instead of a real one (h100, a100)")
    group.addoption("--compat-out", default=None, help="append one JSON line for each test to this file")
    group.addoption("--compat-sample", type=int, default=1, help="run one test in N, chosen by a hash of its id")
    group.addoption("--compat-part", type=int, default=0, help="number of the part that is run, from 0 to N - 1")
    group.addoption(
        "--compat-fast", action="store_true", help="with a described GPU: build no plans in the large files"
    )
    group.addoption("--compat-seed", type=int, default=0, help="number that changes the seeds of all tests")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install the module under test as ``cudnn`` before the tests' own conftest imports it."""
    options = early_config.known_args_namespace
    if options.compat_module == "frontend":
        importlib.import_module("cudnn_backend_py.frontend").install()
        _install_placeholder_modules()
    instead = None
    if options.compat_target:
        instead = _do_nothing
        _describe_gpu_to_torch(options.compat_target)
    cudnn = importlib.import_module("cudnn")
    if options.compat_target:
        _describe_gpu_to_cudnn(cudnn, options.compat_target)
        if options.compat_fast:
            _skip_plan_builds(cudnn.pygraph)
    early_config.stash[_hooks_key] = CompatibilityHooks(Recorder(cudnn, instead), deviceless=instead is not None)


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks that seed tests, record their use of ``cudnn``, and write their results."""
    sweep = config.stash[_hooks_key]
    sweep.out = None if INNER_PYTEST_VARIABLE in os.environ else config.getoption("--compat-out")
    sweep.sample, sweep.part = config.getoption("--compat-sample"), config.getoption("--compat-part")
    sweep.seed = config.getoption("--compat-seed")
    config.pluginmanager.register(sweep, "compat-sweep")


def _do_nothing() -> None:
    return None


class CompatibilityHooks:
    """The pytest hooks of a worker: seed and sample tests, record their calls, and write the results."""

    def __init__(self, recorder: Recorder, deviceless: bool) -> None:
        self.recorder = recorder
        self.deviceless = deviceless
        self.out: str | None = None
        self.sample, self.part = 1, 0
        self.seed = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self) -> None:
        self._seed_generators("collection")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.sample > 1:
            kept = [item for item in items if _hash_text(item.nodeid) % self.sample == self.part]
            left = [item for item in items if _hash_text(item.nodeid) % self.sample != self.part]
            items[:] = kept
            config.hook.pytest_deselected(items=left)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.out and _is_first_worker():
            _append_json_line(
                self.out,
                make_row_of_test_without_result(report.nodeid, report.nodeid, _format_reason(report), "failed"),
            )

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self.out and _is_first_worker() and session.items:
            ids = Path(self.out + ".collected")
            ids.write_text("\n".join(item.nodeid for item in session.items) + "\n", encoding="utf-8")
            Path(self.out + ".about").write_text(json.dumps(_collect_run_facts(session.config)), encoding="utf-8")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        """Write the line of a test after a crash of its worker; called by pytest-xdist in the controlling process."""
        if self.out:
            _append_json_line(
                self.out,
                make_row_of_test_without_result(crashitem, crashitem.partition("::")[0], "the process died", "crashed"),
            )

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, None]:
        os.environ[INNER_PYTEST_VARIABLE] = "1"
        self.recorder.reset()
        self.reports: list[pytest.TestReport] = []
        self.started = time.perf_counter()
        self._seed_generators(item.nodeid)
        yield
        self._write_result(item.nodeid)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, None]:
        outcome = yield
        recorder = self.recorder
        if not self.deviceless or not recorder.execution_count or recorder.errors_since_execute:
            return
        if outcome.excinfo is None or outcome.excinfo[0] is not KeyboardInterrupt:
            outcome.force_exception(pytest.skip.Exception(REACHED_EXECUTE))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, None]:
        outcome = yield
        self.reports.append(outcome.get_result())

    def _write_result(self, nodeid: str) -> None:
        if not self.out or not self.reports:
            return
        worst = max(self.reports, key=lambda report: ("passed", "skipped", "failed").index(report.outcome))
        recorder = self.recorder
        line = {
            "id": nodeid,
            "file": nodeid.partition("::")[0],
            "outcome": worst.outcome,
            "reason": "" if worst.passed else _format_reason(worst),
            "stage": recorder.stage,
            "executes": recorder.execution_count,
            "graphs": recorder.graphs,
            "errors": recorder.errors,
            "errors_in_all": recorder.error_count,
            "seconds": round(time.perf_counter() - self.started, 3),
        }
        _append_json_line(self.out, line)

    def _seed_generators(self, name: str) -> None:
        number = (_hash_text(name) + self.seed) % 2**32
        random.seed(number)
        for module in ("numpy", "torch"):
            if module in sys.modules:
                seed = sys.modules[module].random.seed if module == "numpy" else sys.modules[module].manual_seed
                seed(number)


_hooks_key = pytest.StashKey[CompatibilityHooks]()


def _is_first_worker() -> bool:
    return os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"


def _hash_text(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def _format_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason of a skipped or failed test in one line."""
    if isinstance(report.longrepr, tuple):
        text = report.longrepr[2].removeprefix("Skipped: ")
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else str(report.longrepr)
    lines = text.strip().splitlines()
    return lines[0][:300] if lines else ""


def _collect_run_facts(config: pytest.Config) -> dict[str, Any]:
    """Return the facts of a run: versions, and the name of the real or described GPU."""
    cudnn, torch = sys.modules["cudnn"], sys.modules.get("torch")
    target = config.getoption("--compat-target")
    return {
        "module version": getattr(cudnn, "__version__", "unknown"),
        "cudnn": cudnn.backend_version_string(),
        "torch": torch.__version__ if torch else "not imported",
        "python": ".".join(map(str, sys.version_info[:3])),
        "device": f"described {target}" if target else _get_gpu_name(torch),
    }


def _get_gpu_name(torch: Any) -> str:
    return str(torch.cuda.get_device_name()) if torch and torch.cuda.is_available() else "no GPU"


def _append_json_line(path: str, line: dict[str, Any]) -> None:
    """Append one JSON line in a single write, because the workers of one run share the file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


# Placeholders for names that our module does not have


def _install_placeholder_modules() -> None:
    """Make the names in ``FRONTEND_ONLY_NAMES`` importable; their use raises an error."""
    from cudnn_backend_py.frontend.errors import make_kernel_not_offered_error

    def raise_kernel_not_available(self: Any, *args: Any, **kwargs: Any) -> None:
        raise make_kernel_not_offered_error(type(self).__name__)

    for name, members in FRONTEND_ONLY_NAMES.items():
        full = f"cudnn.{name}"
        module = importlib.import_module(full) if name == "engines" else sys.modules.setdefault(full, ModuleType(full))
        for member in members:
            setattr(module, member, type(member, (), {"__init__": raise_kernel_not_available}))
    device: Any = sys.modules["cudnn._device"]
    device.is_available = lambda: sys.modules["torch"].cuda.is_available()
    device.device_count = lambda: sys.modules["torch"].cuda.device_count()


# The described GPU


def _describe_gpu_to_torch(target: str) -> None:
    from cudnn_backend_py.frontend import described_torch
    from cudnn_backend_py.native import load_driver
    from cudnn_backend_py.target import find_profile

    load_driver()
    described_torch.install(find_profile(target).properties, lambda: sys.modules["cudnn"].backend_version())


def _describe_gpu_to_cudnn(cudnn: Any, target: str) -> None:
    """Make every graph use the properties of the described GPU, and dummy handles."""
    from cudnn_backend_py.target import find_profile

    profile = find_profile(target)
    describe = cudnn.create_device_properties
    device = describe(profile.json())
    cudnn.create_device_properties = lambda which: describe(profile.json() if isinstance(which, int) else which)
    ours = "cudnn_backend_py" in (cudnn.__file__ or "")
    handle = _create_described_handle(target) if ours else cudnn.Handle(1, 0, 0)
    cudnn.create_handle = lambda: handle
    cudnn.destroy_handle = cudnn.set_stream = lambda *args, **kwargs: None
    cudnn.get_stream = lambda *args, **kwargs: 0
    if ours:
        importlib.import_module("cudnn.wrapper").get_default_handle = (
            lambda: 1
        )  # otherwise it reports that nothing can run
    make, load = cudnn.pygraph.__init__, cudnn.pygraph.deserialize

    def init_with_device(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.update(zip(GRAPH_ARGUMENT_NAMES, args, strict=False))
        kwargs.pop("handle", None)
        make(self, **{"device_property": device, "sm_version": profile.sm, **kwargs})

    def deserialize(self: Any, *args: Any) -> Any:
        return load(self, args[-1])

    cudnn.pygraph.__init__, cudnn.pygraph.deserialize = init_with_device, deserialize


def _create_described_handle(target: str) -> Any:
    from cudnn_backend_py.frontend import handles

    handles.set_default_target(target)
    try:
        return handles.create_handle()
    finally:
        handles.set_default_target(None)


def _skip_plan_builds(graph: Any) -> None:
    """Make graphs check support without building plans, because compiling kernels takes most of the time."""

    def build_without_plans(self: Any, *modes: Any) -> None:
        self.validate()
        self.build_operation_graph()
        self.create_execution_plans(*modes)
        self.check_support()

    graph.build = build_without_plans
    graph.build_plans = graph.build_plan_at_index = lambda self, *args, **kwargs: None
    graph.get_workspace_size = graph.get_workspace_size_plan_at_index = lambda self, *args: 0
