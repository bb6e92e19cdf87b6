"""Former names of modules: they still import, with a warning that names the new one."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["MOVED", "find_former"]

_PACKAGE = __name__.partition(".")[0]

MOVED = {
    "bench.grid": "bench.compare",
    "bound": "execution.executable",
    "buffers": "execution.buffers",
    "caching": "plans.cache",
    "cli_execution": "cli.plans",
    "comparing": "tuning.statistics",
    "diagnose.apart": "diagnose.fork",
    "diagnose.ask": "diagnose.judges",
    "diagnose.attention_graph": "graph.attention.recognize",
    "diagnose.case": "diagnose.causes.case",
    "diagnose.changes": "graph.rewrite.changes",
    "diagnose.check": "diagnose.surveys.baseline",
    "diagnose.ci": "diagnose.report.ci",
    "diagnose.drawing": "graph.drawing",
    "diagnose.environment": "target.environment",
    "diagnose.fusing": "graph.rewrite.fusion",
    "diagnose.known": "graph.faults",
    "diagnose.logcalls": "importers.calls",
    "diagnose.logfile": "importers.records",
    "diagnose.loggraphs": "importers.graphs",
    "diagnose.padding": "graph.rewrite.dims",
    "diagnose.page": "diagnose.report.html",
    "diagnose.render": "diagnose.report.text",
    "diagnose.repro": "diagnose.report.archive",
    "diagnose.repro_cpp": "diagnose.report.cpp",
    "diagnose.report.svg": "graph.drawing",
    "diagnose.rewrite": "graph.rewrite.tensors",
    "diagnose.rules": "diagnose.causes.rules",
    "diagnose.support": "diagnose.surveys.attention",
    "diagnose.support_page": "diagnose.report.attention_page",
    "diagnose.tables": "diagnose.report.tables",
    "diagnose.words": "plans.refusals",
    "engine": "plans.engine",
    "graph.attention.frame": "graph.attention.builder",
    "graph.attention.hazards": "graph.faults",
    "graph.frontend_json": "importers.frontend_json",
    "graph.logged": "importers.cudnn_json",
    "graph.ports": "generated.operations",
    "lower": "plans.lower",
    "native.hazards": "native.crash_guards",
    "native.shortcut": "native.fast_call",
    "native.surroundings": "native.environment",
    "planning": "plans.build",
    "pytest_plugin": "testing.pytest_plugin",
    "record": "testing.record",
    "selection": "plans.select",
    "tuning.trial.data": "graph.interpret.data",
    "tuning.trial.forward_pass": "graph.interpret.forward_pass",
}


class _Loader(Loader):
    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself where its former name was asked for."""
        new = f"{_PACKAGE}.{MOVED[module.__name__.partition('.')[2]]}"
        warnings.warn(f"{module.__name__} is now {new}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(new)


def find_former(fullname: str) -> ModuleSpec | None:
    """Return the spec of a module that is asked for by a former name, None for any other."""
    return ModuleSpec(fullname, _Loader()) if fullname.partition(".")[2] in MOVED else None
