"""Execution plans: build, measure, save, load."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import EnvironmentNotReady, GraphError
from ..generated.enums import AttributeName as Attr
from ..generated.enums import DescriptorType
from ..graph import Graph, graph_from_json, graph_to_json
from ..native import Descriptor
from ..system.strict import read_json
from ..target import Target, open_target
from .engine import EngineConfig

__all__ = ["Plan", "build_plan", "load_plan"]

SCHEMA = "cudnn-backend-py/plan"
SCHEMA_VERSION = 1
MAX_BYTES = 64 << 20  # of a plan file
_KEYS = {
    "schema": str,
    "version": int,
    "cudnn": str,
    "target": str,
    "sm": int,
    "tag": str,
    "graph": dict,
    "plan": str,
    "sha256": str,
}


class Plan:
    """A finalized execution plan: one engine config, compiled for one target.

    C: ``CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR``. Owns: its descriptor. Borrows: the target's handle.
    """

    def __init__(self, descriptor: Descriptor, graph: Graph, target: Target, tag: str) -> None:
        self.descriptor = descriptor
        self.graph = graph
        self.target = target
        self.tag = tag

    def __repr__(self) -> str:
        return f"<Plan {self.tag} of {self.graph.name!r} for {self.target.name}, {self.workspace_bytes} bytes>"

    @cached_property
    def workspace_bytes(self) -> int:
        """Bytes of device memory the plan needs while it runs."""
        return int(self.descriptor.get(Attr.EXECUTION_PLAN_WORKSPACE_SIZE))

    def json(self) -> str:
        """Return cuDNN's own serialization, compiled kernels included.

        C: ``CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION``.
        """
        return str(self.descriptor.get(Attr.EXECUTION_PLAN_JSON_REPRESENTATION))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan with its graph, cuDNN version and target, so that a load can check them."""
        record = {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "cudnn": self.target.library.version_text,
            "target": self.target.name,
            "sm": self.target.sm,
            "tag": self.tag,
            "graph": graph_to_json(self.graph),
            "plan": self.json(),
        }
        record["sha256"] = _digest(record)
        Path(path).write_text(json.dumps(record) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Let go of the plan; harmless when repeated. Work on the device must have finished."""
        self.descriptor.close()


def build_plan(config: EngineConfig, *, kernel_cache: Descriptor | None = None) -> Plan:
    """Finalize the execution plan of an engine config; this compiles its kernels.

    Parameters
    ----------
    kernel_cache
        A finalized ``CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR`` to take compiled kernels from and to put them into.

    Raises
    ------
    CudnnStatusError
        Also for configs that passed their support check: a failed compilation shows only here.
    """
    target = config.graph.target
    plan = Descriptor(DescriptorType.EXECUTION_PLAN, on=target.library)
    if target.handle is not None:
        plan.set(Attr.EXECUTION_PLAN_HANDLE, target.handle)
    plan.set(Attr.EXECUTION_PLAN_ENGINE_CONFIG, config.descriptor)
    if target.device is not None:
        plan.set(Attr.EXECUTION_PLAN_DEVICEPROP, target.device)
    if kernel_cache is not None:
        plan.set(Attr.EXECUTION_PLAN_KERNEL_CACHE, kernel_cache)
    return Plan(plan.finalize(), config.graph.graph, target, config.tag)


def load_plan(path: str | os.PathLike[str], target: Target | str | None = None) -> Plan:
    """Read a plan that :meth:`Plan.save` wrote and make it ready on `target` (the GPU of this process by default).

    A plan holds code that runs on the GPU: load only files you trust.

    Raises
    ------
    EnvironmentNotReady
        ``plan-version-mismatch``, ``plan-architecture-mismatch``: cuDNN reads plans of its own version only, and the
        code inside is for one architecture.
    GraphError
        ``plan-file`` if the file cannot be read, is larger than ``MAX_BYTES``, is no plan, or was changed since; what
        :func:`graph_from_json` refuses.
    """
    record = _read_record(path)
    return restore_plan(record, graph_from_json(record["graph"]), open_target(target), os.fspath(path))


def restore_plan(record: Mapping[str, Any], graph: Graph, target: Target, source: str) -> Plan:
    """Return the plan of a record with ``cudnn``, ``sm``, ``tag`` and ``plan``, ready on `target`.

    Raises
    ------
    EnvironmentNotReady
        As :func:`load_plan`; `source` is named in the message.
    """
    lib = target.library
    if record["cudnn"] != lib.version_text:
        raise EnvironmentNotReady(
            f"{source} was saved by cuDNN {record['cudnn']}, the loaded library is {lib.version_text}",
            code="plan-version-mismatch",
            fix=f"load cuDNN {record['cudnn']}, or build the plan again",
        )
    if record["sm"] != target.sm:
        raise EnvironmentNotReady(
            f"{source} holds code for sm_{record['sm']}, the target is sm_{target.sm}",
            code="plan-architecture-mismatch",
            fix="build the plan for this target",
        )
    plan = Descriptor(DescriptorType.EXECUTION_PLAN, on=lib)
    if target.handle is not None:
        plan.set(Attr.EXECUTION_PLAN_HANDLE, target.handle)
    elif target.device is not None:
        plan.set(Attr.EXECUTION_PLAN_DEVICEPROP, target.device)
    plan.set(Attr.EXECUTION_PLAN_JSON_REPRESENTATION, record["plan"])
    return Plan(plan.finalize(), graph, target, record["tag"])


def _digest(record: dict[str, Any]) -> str:
    """Return the hash of everything in a plan file but the hash itself."""
    rest = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    record: Any = read_json(path, code="plan-file", max_bytes=MAX_BYTES)
    found = (record.get("schema"), record.get("version")) if isinstance(record, dict) else None
    if found != (SCHEMA, SCHEMA_VERSION) or type(found[1]) is not int:
        raise GraphError(
            f"{os.fspath(path)} is no plan file of version {SCHEMA_VERSION}",
            code="plan-file",
            fix="plan files are written by Plan.save and 'cudnn-backend build'",
        )
    if _digest(record) != record.get("sha256"):
        raise GraphError(f"{os.fspath(path)} was changed since it was saved", code="plan-file")
    for key, kind in _KEYS.items():
        if type(record.get(key)) is not kind:
            raise GraphError(
                f"{os.fspath(path)} is no plan file: {key!r} is of type {type(record.get(key)).__name__}, "
                f"{kind.__name__} is needed",
                code="plan-file",
            )
    if unknown := sorted(set(record) - set(_KEYS)):
        raise GraphError(f"{os.fspath(path)} is no plan file: it has {', '.join(unknown)}, too", code="plan-file")
    return dict(record)
