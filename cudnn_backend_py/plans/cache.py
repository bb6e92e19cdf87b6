"""``PlanCache``: plans stored on disk, so that each is built once for all processes.

A plan holds code that runs on the GPU. So the folder is the user's own and no one else may write to it, and every byte
of an entry is under a SHA-256 that is compared before anything of it is used. Entries are files, ``<key>.plan``: one
line with the schema and the hash, then JSON. A reader sees a whole entry or none; writers take turns by a lock that
the system gives back when a process dies, so what a killed one left is overwritten by the next.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from ..errors import CudnnBackendError, CudnnStatusError, GraphError, UsageError
from ..frozen import FrozenValue
from ..graph import Graph, graph_to_json
from ..native.variables import list_library_variables
from ..system.interruption import reraise_interruption
from ..system.private_folder import CacheWarning, KeyedRecordFolder, PrivateFolder, get_user_folder
from ..target import Target
from .plan import Plan, restore_plan
from .record import PlanRecord, get_plan_gpu_properties

__all__ = ["CacheEntry", "PlanCache", "PlanCacheWarning", "default_cache", "make_plan_key"]

VARIABLE = "CUDNN_BACKEND_PLAN_CACHE"
MAX_BYTES = 256 << 20

_ENTRY_SCHEMA = "cudnn-backend-py/cached-plan 1"  # part of every key too: another schema, another entry
_UNUSABLE_ENTRY_ERRORS = (
    CudnnBackendError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    OverflowError,
)


class PlanCacheWarning(CacheWarning):
    """Warns that a cached plan was not used or a plan could not be cached; it is built instead."""


class CacheEntry(FrozenValue):
    """Facts about one cached plan, such as its key, graph, cuDNN version, target and size.

    Attributes
    ----------
    key
        As :func:`make_plan_key` gives it.
    graph, tag
        Name of the graph; engine and knob choices.
    cudnn, target, sm
        cuDNN version, name of the target and its architecture (90 for sm_90).
    size_bytes
        Of the file.
    used
        When it was last read or written, in seconds since 1970.
    evidence
        What was given with it.
    """

    key: str
    graph: str
    tag: str
    cudnn: str
    target: str
    sm: int
    size_bytes: int
    used: float
    evidence: dict[str, Any] | None


def make_plan_key(graph: Graph, target: Target, options: Mapping[str, Any]) -> str:
    """Return the cache key of a plan: a SHA-256 of graph, cuDNN, target and options, as 64 hex digits.

    It covers the whole graph, names and uids included, because a cached plan is called by them: a plan of a graph that
    differs in names only would be the same kernel and take other buffers. Then the cuDNN version and the CUDA major
    it was built with, and the environment variables that change what cuDNN chooses or compiles. Then the target's
    architecture and limits, and not whether it is described or here, so that what was built ahead of time for a
    description is found on the GPU. Then the options.

    NVRTC's version is not covered: clear the cache to have kernels compiled by another one.

    Parameters
    ----------
    options
        What else decides about the plan: plain values, enumerators, collections and dataclasses of these.

    Raises
    ------
    UsageError
        ``plan-option`` for an option that has no JSON.
    """
    lib = target.library
    limits = get_plan_gpu_properties(target.profile, lib)
    cudnn = [lib.version_text, lib.cuda_version // 1000, list_library_variables()]
    about = [_ENTRY_SCHEMA, *cudnn, limits, graph_to_json(graph), options]
    try:
        text = json.dumps(about, sort_keys=True, default=_to_json_value)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the options of a plan cannot be written as JSON: {error}",
            code="plan-option",
            fix="give numbers, text, enumerators, and tuples, mappings, sets or dataclasses of these",
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, asdict(value)]
    raise TypeError(f"{value!r} is a {type(value).__name__}, which JSON cannot contain")


class PlanCache:
    """Plans in a folder of the user, one file each.

    What is wrong with an entry (damaged, of another schema, not readable by this cuDNN) is a
    :class:`PlanCacheWarning`, and the entry counts as absent; so is a plan that cannot be written. Any number of
    processes and threads may share a folder.

    Parameters
    ----------
    folder
        Made with mode 0700 when the first plan is put into it; by default ``plans`` in the user's cache folder.
    max_bytes
        Before their sizes come to more than this, the entries not used for the longest time are removed.

    Raises
    ------
    UsageError
        ``cache-folder-name`` if no folder can have that name, ``plan-cache-bound``.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
            raise UsageError(
                f"max_bytes of a plan cache must be an int of at least 0, got {max_bytes!r}",
                code="plan-cache-bound",
            )
        self._files = open_plan_files(get_default_folder() if folder is None else folder, max_bytes)

    def __repr__(self) -> str:
        return f"<PlanCache {self.folder}, at most {self._files.max_bytes} bytes>"

    @property
    def folder(self) -> Path:
        """The folder of the cached plans."""
        return self._files.folder

    def get(self, key: str, target: Target, *, graph: Graph | None = None) -> Plan | None:
        """Return the cached plan of a key, ready to run on `target`; None if there is no usable one.

        Parameters
        ----------
        graph
            The graph the key was made of, which need not be read from the entry then.

        Raises
        ------
        EnvironmentNotReady
            ``cache-folder-not-private``.
        UsageError
            ``plan-cache-key`` for what is no key.
        """
        entry = self._files.read(key)
        if entry is None:
            return None
        source = str(self._files.path(key))
        try:
            record = PlanRecord.from_dict(entry, source)
            return restore_plan(record, graph or record.read_graph(), target, source)
        except _UNUSABLE_ENTRY_ERRORS as error:  # the hash is right, so another program wrote it
            reraise_interruption(error)
            self._files.warn(f"{source} is ignored: {error!s}")
        return None

    def evidence(self, key: str) -> dict[str, Any] | None:
        """Return the evidence stored with a cached plan, such as tuning times; None without plan or evidence.

        Raises
        ------
        CudnnBackendError
            As :meth:`get`.
        """
        entry = self._files.read(key)
        return None if entry is None else entry.get("evidence")

    def put(self, key: str, plan: Plan, evidence: Mapping[str, Any] | None = None) -> None:
        """Store a plan under the key, replacing an older one; `evidence` is data on why this plan was chosen.

        Parameters
        ----------
        evidence
            Why this plan: data that JSON can hold.

        Raises
        ------
        CudnnBackendError
            As :meth:`get`; ``plan-cache-evidence`` if JSON cannot hold it.
        """
        if not isinstance(evidence, Mapping | None):
            raise UsageError(
                f"the evidence for a plan must be a mapping, got a {type(evidence).__name__}",
                code="plan-cache-evidence",
            )
        try:
            record = plan.record()
        except CudnnStatusError as error:
            return self._files.warn(f"plan {plan.tag} is not cached, as cuDNN does not serialize it: {error}")
        beside = {"evidence": None if evidence is None else dict(evidence)}
        return self._files.write(key, record.to_dict() | beside)

    def clear(self) -> int:
        """Remove every entry and return how many there were. Other files of the folder are left alone.

        Raises
        ------
        EnvironmentNotReady
            ``cache-folder-not-private``, ``cache-folder-unusable``.
        """
        return self._files.clear()

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the entries of the cache, the most recently used first; every entry is read and checked.

        Raises
        ------
        EnvironmentNotReady
            ``cache-folder-not-private``, ``cache-folder-unusable``.
        """
        found = []
        for entry, status in self._files.read_all():
            try:
                found.append(_make_cache_entry(entry, status))
            except (GraphError, KeyError):
                self._files.warn(f"{self._files.path(entry['key'])} is ignored: it has no plan")
        return tuple(found)


def _make_cache_entry(entry: Mapping[str, Any], status: os.stat_result) -> CacheEntry:
    record = PlanRecord.from_dict(entry, entry["key"])
    return CacheEntry(
        key=entry["key"],
        graph=record.graph["name"],
        tag=record.tag,
        cudnn=record.cudnn,
        target=record.target,
        sm=record.sm,
        size_bytes=status.st_size,
        used=status.st_mtime,
        evidence=entry["evidence"],
    )


def get_default_folder() -> Path:
    """Return the folder of plans: ``CUDNN_BACKEND_PLAN_CACHE``, else one in the user's cache folder."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return get_user_folder("plans")


def default_cache() -> PlanCache | None:
    """Return the cache of :func:`get_default_folder`; None if ``CUDNN_BACKEND_PLAN_CACHE`` is set to nothing."""
    return None if os.environ.get(VARIABLE) == "" else PlanCache()


def open_plan_files(folder: str | os.PathLike[str], max_bytes: int) -> KeyedRecordFolder:
    """Return the folder of a :class:`PlanCache` as an object that reads and writes its files by key."""
    private = PrivateFolder(
        folder,
        title="plan cache",
        reason="a plan is code that runs on the GPU",
        code="cache-folder-not-private",
        otherwise=f"set {VARIABLE} to a folder of this user, or to nothing to have no cache",
    )
    return KeyedRecordFolder(
        private, schema=_ENTRY_SCHEMA, suffix="plan", max_bytes=max_bytes, warning=PlanCacheWarning
    )
