"""``python -m cudnn.collect_env``: print facts about this machine for a bug report, as text or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from typing import Any

from ..info import collect_info
from ..printable import printable

__all__ = ["collect_env_info", "format_report", "main"]

_PACKAGE_PREFIXES = ("nvidia-", "cudnn", "torch", "triton", "cuda-", "transformer-engine", "flashinfer", "jax", "numpy")
_VARIABLE_PREFIXES = ("CUDNN_", "CUDA_", "NVIDIA_", "TORCH_", "PYTORCH_", "NVTE_")
_PATH_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX")


def collect_env_info() -> dict[str, dict[str, Any]]:
    """Return facts about this machine by section, using only the standard library; failing probes do not raise."""
    probes = {
        "cuDNN, driver, GPUs": collect_info,
        "Packages": _list_packages,
        "Environment variables": _list_environment_variables,
    }
    return {title: _run_probe(probe) for title, probe in probes.items()}


def _run_probe(probe: Any) -> dict[str, Any]:
    try:
        return dict(probe())
    except Exception as error:  # a report that says what failed is better than none
        return {"error": f"{type(error).__name__}: {error}"}


def _list_packages() -> dict[str, str]:
    found = {str(item.metadata["Name"]).lower(): item.version for item in distributions()}
    return {name: version for name, version in sorted(found.items()) if name.startswith(_PACKAGE_PREFIXES)}


def _list_environment_variables() -> dict[str, str]:
    return {
        name: text
        for name, text in sorted(os.environ.items())
        if name.startswith(_VARIABLE_PREFIXES) or name in _PATH_VARIABLES
    }


def format_report(report: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the facts about this machine as text."""
    lines = ["### cudnn_backend_py.frontend: environment"]
    for title, facts in report.items():
        width = max(map(len, facts), default=0)
        lines += [
            "",
            f"==== {title} ====",
            *(f"{name:<{width}} : {_format_plain_value(value)}" for name, value in facts.items()),
        ]
    return "\n".join(lines)


def _format_plain_value(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, default=str))


def main() -> None:
    """Print the report; with ``--json`` as JSON."""
    report = collect_env_info()
    print(json.dumps(report, indent=2, default=str) if "--json" in sys.argv[1:] else format_report(report))


if __name__ == "__main__":
    main()
