"""``PlanRecord``: a plan as data in files, caches and bytes, with checks of its integrity and target."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from ..errors import EnvironmentNotReady, GraphError, UsageError
from ..frozen import FrozenValue
from ..graph import Graph, graph_from_json
from ..native import Library
from ..printable import format_in_angle_brackets, format_repr
from ..system.version import is_same_version
from ..target import Profile, Target, find_profile

__all__ = [
    "PlanRecord",
    "add_hash",
    "get_plan_gpu_properties",
    "is_plan_file",
    "load_record",
    "parse_record",
    "save_record",
]

SCHEMA = "cudnn-backend-py/plan"
SCHEMA_VERSION = 1
MAX_BYTES = 64 << 20  # of a plan file
_FIELD_TYPES = {"cudnn": str, "target": str, "sm": int, "tag": str, "graph": dict, "plan": str}
_ENVELOPE_KEYS = ("schema", "version", "sha256")
_WRITERS = "plan files are written by Plan.save and 'cudnn-backend plan build'"

# The properties of a GPU that decide whether and how code for it runs. Its name, clocks, memory size, driver and place
# on the bus are not among them: a description made without the GPU does not know them all.
_PLAN_PROPERTIES = (
    "deviceVer",
    "multiProcessorCount",
    "warpSize",
    "regsPerBlock",
    "maxRegistersPerSM",
    "maxSharedMemoryPerBlock",
    "maxSharedMemoryPerBlockOptin",
    "oversizedSharedMemoryPerBlock",
    "reservedSharedMemoryPerBlock",
    "maxCtasPerSM",
    "maxThreadsPerBlock",
    "maxThreadsPerSM",
)
# Plans are bound to the bus width, so that an H200 refuses those of an H100. cuDNN 9.19 does not read it off a GPU.
_BUS_WIDTH_SINCE = (9, 27, 0)


class PlanRecord(FrozenValue):
    """A plan as plain data: cuDNN's serialization with graph, target and cuDNN version.

    Attributes
    ----------
    cudnn, target, sm
        Version of the cuDNN that wrote it, name of the target and its architecture (90 for sm_90).
    tag
        Engine and knob choices, such as ``eng2_k24=7``.
    graph
        The graph as graph JSON.
    plan
        cuDNN's own serialization, compiled kernels included.
    """

    cudnn: str
    target: str
    sm: int
    tag: str
    graph: dict[str, Any]
    plan: str

    def __repr__(self) -> str:
        return format_in_angle_brackets(
            f"PlanRecord {self.tag} for {self.target}, cuDNN {self.cudnn}, {len(self.plan)} letters"
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str) -> PlanRecord:
        """Read the record from plain data and ignore unknown keys; `source` names the data in error messages.

        Raises
        ------
        GraphError
            ``plan-file`` where something is missing or of another type.
        """
        for name, kind in _FIELD_TYPES.items():
            if name not in data:
                raise GraphError(f"{source} is not a plan file: it has no {name!r}", code="plan-file", fix=_WRITERS)
            if type(data.get(name)) is not kind:
                raise GraphError(
                    f"{source} is not a plan file: {name!r} is of type {type(data.get(name)).__name__}, "
                    f"{kind.__name__} is needed",
                    code="plan-file",
                )
        return cls(**{name: data[name] for name in _FIELD_TYPES})

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return {name: getattr(self, name) for name in _FIELD_TYPES}

    def read_graph(self) -> Graph:
        """Parse the graph that is stored with the plan, and return it.

        Raises
        ------
        GraphError
            As :func:`graph_from_json`.
        """
        return graph_from_json(self.graph)

    def check_target(self, target: Target, source: str) -> None:
        """Raise an error unless the plan fits the target's cuDNN and architecture; errors name `source`.

        Raises
        ------
        EnvironmentNotReady
            ``plan-version-mismatch``, ``plan-architecture-mismatch``.
        """
        if not is_same_version(self.cudnn, target.library.build_text):
            raise EnvironmentNotReady(
                f"{source} was saved by cuDNN {self.cudnn}, the loaded library is {target.library.build_text}",
                code="plan-version-mismatch",
                fix=f"load cuDNN {self.cudnn}, or build the plan again",
            )
        if self.sm != target.sm:
            raise EnvironmentNotReady(
                f"{source} has code for sm_{self.sm}, the target is sm_{target.sm}",
                code="plan-architecture-mismatch",
                fix="build the plan for this target",
            )

    def describe_gpu_difference(self, target: Target) -> str:
        """Describe how the plan's GPU differs from a target; empty if the GPU's properties are not known."""
        try:
            built = get_plan_gpu_properties(find_profile(self.target), target.library)
        except (UsageError, GraphError):  # a live GPU, or a description that is not here
            return ""
        here = get_plan_gpu_properties(target.profile, target.library)
        return "; ".join(
            f"{name} is {built[name]} there, {here[name]} here" for name in built if built[name] != here[name]
        )


def get_plan_gpu_properties(profile: Profile, lib: Library) -> dict[str, Any]:
    """Return those properties of a GPU that must be equal where a plan is built and where it runs."""
    names = _PLAN_PROPERTIES if lib.version < _BUS_WIDTH_SINCE else (*_PLAN_PROPERTIES, "memoryBusWidth")
    return {name: profile.properties.get(name, 0) for name in names}


def add_hash(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data as a dict with the key ``sha256`` added: the hash of all other entries."""
    rest = {key: value for key, value in data.items() if key != "sha256"}
    return rest | {"sha256": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def save_record(record: PlanRecord, path: str | os.PathLike[str]) -> None:
    """Write a plan file atomically."""
    sealed = add_hash({"schema": SCHEMA, "version": SCHEMA_VERSION, **record.to_dict()})
    from ..system.atomic_file import write_atomically  # a first plan saves no file

    write_atomically(path, json.dumps(sealed) + "\n")


def load_record(path: str | os.PathLike[str]) -> PlanRecord:
    """Return the record of a plan file, after checking the file's hash.

    Raises
    ------
    GraphError
        ``plan-file`` if the file cannot be read, is larger than ``MAX_BYTES``, is no plan, or was changed since.
    """
    from ..system.untrusted_files import read_json  # a plan for the GPU here reads no file

    return parse_record(read_json(path, code="plan-file", max_bytes=MAX_BYTES), os.fspath(path))


def is_plan_file(data: Any) -> bool:
    """Return whether parsed JSON is the content of a plan file, by its schema."""
    return isinstance(data, dict) and data.get("schema") == SCHEMA


def parse_record(data: Any, source: str) -> PlanRecord:
    """Return the record from the parsed JSON of a plan file, after checking its hash; errors name `source`."""
    found = (data.get("schema"), data.get("version")) if isinstance(data, dict) else None
    if found != (SCHEMA, SCHEMA_VERSION) or type(found[1]) is not int:
        why = (
            "it is not a JSON object"
            if found is None
            else f"its schema is {format_repr(found[0])} and its version {format_repr(found[1])}, "
            f"{SCHEMA!r} and {SCHEMA_VERSION} are needed"
        )
        raise GraphError(
            f"{source} is not a plan file of version {SCHEMA_VERSION}: {why}", code="plan-file", fix=_WRITERS
        )
    if add_hash(data)["sha256"] != data.get("sha256"):
        raise GraphError(
            f"{source} was changed after it was saved",
            code="plan-file",
            cause="its sha256 is not that of its content",
            fix="copy the saved file again, or build the plan again",
        )
    record = PlanRecord.from_dict(data, source)
    if unknown := sorted({*data} - {*_FIELD_TYPES, *_ENVELOPE_KEYS}):
        raise GraphError(
            f"{source} is not a plan file: it has the unknown fields {', '.join(unknown)}",
            code="plan-file",
            fix=_WRITERS,
        )
    return record
