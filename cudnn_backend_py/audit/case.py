"""Cases: calls with wrong results, stored with graph, plan, versions and buffers in a private folder.

A case is one ``.npz`` file that holds no code: the array ``about`` is JSON, the others are the memory of tensors as it
was. The folder has mode 0700, and a bound on the number of cases and on their bytes: what would exceed it is not kept,
and said.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ..errors import EnvironmentNotReady, UsageError
from ..graph import Graph, Tensor, graph_from_json, graph_to_json
from ..graph.formats import get_storage_type
from ..interpreter.data import read_numbers_from_memory_image
from ..interpreter.npz import ArrayHeader, read_arrays
from ..printable import format_repr
from ..system.private_folder import PrivateFolder, get_user_folder
from ..system.python_file import is_python_file
from ..system.typed_data import read_fields
from ..system.untrusted_files import parse_json
from ..tuning.agreement import has_numpy_element_per_value

__all__ = ["FOLDER_VARIABLE", "MOST_BYTES", "MOST_CASES", "Case", "CaseFolder", "get_default_case_folder", "load_case"]

SCHEMA, SCHEMA_VERSION = "cudnn-backend-py/audit-case", 1
FOLDER_VARIABLE = "CUDNN_BACKEND_AUDIT_FOLDER"
MOST_CASES, MOST_BYTES = 20, 1 << 30
_NAME = re.compile(r"case-[0-9a-f]{12}\.npz")
_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){1,3}(\+cu\d{1,3})?")
_LARGEST = 8 << 30  # bytes of a file that is read
Image = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call with a wrong result, with all that is needed to run it again: graph, plan, versions and buffers.

    Attributes
    ----------
    entry point, place
        ``torch``, ``operators`` or ``frontend``; file, line and function of the program's call.
    found
        What was seen, as text: output, place, what it holds and what is right.
    wrong
        Names of the outputs that are wrong.
    at
        Of attention, the batch entry and the head of queries where something wrong was found.
    graph
        What was run; None where the call has no graph, and `without` says why.
    tag
        Engine and knobs, such as ``eng2_k24=7``; empty where the entry point does not report.
    backend
        Of a call of torch, which of its backends ran.
    cudnn, library, gpu, sm
        Version, path of libcudnn, the GPU and its architecture.
    versions
        Of Python, torch, this package and what else matters, by name.
    images
        Memory of tensors by name, as bytes: inputs as they were read, outputs as they were written.
    numbers
        By-value numbers by the names of their tensors.
    """

    entry_point: str
    place: str
    found: tuple[str, ...]
    wrong: tuple[str, ...]
    at: tuple[int, int] | None = None
    graph: Graph | None
    without: str = ""
    tag: str = ""
    backend: str = ""
    cudnn: str
    library: str
    gpu: str
    sm: int
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))
    images: Mapping[str, Image] = field(default_factory=dict, repr=False)
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file name; cases with the same graph, plan, cuDNN version and wrong outputs have the same name."""
        graph = "" if self.graph is None else json.dumps(graph_to_json(self.graph), sort_keys=True)
        kind = json.dumps(
            [self.entry_point, graph, self.without, self.tag, self.backend, self.cudnn, sorted(self.wrong)]
        )
        return f"case-{hashlib.sha256(kind.encode()).hexdigest()[:12]}.npz"

    @property
    def size_bytes(self) -> int:
        """The total size of the case's buffers in bytes."""
        return sum(image.nbytes for image in self.images.values())

    def given(self) -> dict[str, Any]:
        """Return the inputs of the graph by name: arrays with the tensors' dims, flat for ragged tensors."""
        assert self.graph is not None
        written = {tensor.uid for tensor in self.graph.outputs}
        found: dict[str, Any] = {name: np.asarray(number) for name, number in self.numbers.items()}
        for tensor in self.graph.variant_pack_tensors:
            if tensor.name in self.images and tensor.uid not in written:
                found[tensor.name] = decode_memory(tensor, self.images[tensor.name])
        return found

    def results(self) -> dict[str, NDArray[Any]]:
        """Return the program's results by name."""
        assert self.graph is not None
        return {
            tensor.name: decode_memory(tensor, self.images[tensor.name])
            for tensor in self.graph.outputs
            if tensor.name in self.images
        }

    def to_bytes(self) -> bytes:
        """Return the case as the bytes of a case file."""
        about = asdict(replace(self, graph=None, images={}))
        about |= {"graph": None if self.graph is None else graph_to_json(self.graph)}
        about = {"schema": SCHEMA, "version": SCHEMA_VERSION} | {key: x for key, x in about.items() if key != "images"}
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        file = io.BytesIO()
        arrays: dict[str, Any] = {f"memory:{name}": x.view(np.uint8) for name, x in self.images.items()}
        np.savez(file, about=text, **arrays)
        return file.getvalue()

    def __str__(self) -> str:
        graph = self.without if self.graph is None else self.graph.name
        engine = self.tag or self.backend
        lines = [
            f"{self.entry_point}: {graph}{engine and f' by {engine}'}, cuDNN {self.cudnn}, {self.gpu}",
            f"  {self.place}",
        ]
        return "\n".join([*lines, *(f"  {item}" for item in self.found)])


def decode_memory(tensor: Tensor, image: Image) -> NDArray[Any]:
    """Return a tensor's elements as an array, decoded from the bytes of its memory."""
    kind = get_storage_type(tensor.data_type) if has_numpy_element_per_value(tensor.data_type) else np.dtype(np.uint8)
    flat = np.ascontiguousarray(image).view(np.uint8).reshape(-1)
    return read_numbers_from_memory_image(tensor, flat[: flat.size // kind.itemsize * kind.itemsize].view(kind))


def load_case(path: str | os.PathLike[str]) -> Case:
    """Load a case file.

    Raises
    ------
    UsageError
        ``audit-case``: no such file, or none of this package's.
    GraphError
        What :func:`graph_from_json` refuses.
    """
    about, images = _read_case_file(path)
    name = os.fspath(path)
    hints = {key: kind for key, kind in get_type_hints(Case).items() if key not in ("graph", "images")}
    found = read_fields(
        hints | {"schema": str, "version": int, "graph": Mapping[str, Any] | None}, about, name, code="audit-case"
    )
    if found.pop("schema") != SCHEMA or found.pop("version") > SCHEMA_VERSION:
        raise _make_case_error(name, "it has another format, or comes from a later version of this package")
    if found["at"] is not None and min(found["at"]) < 0:
        raise _make_case_error(name, f"'at' is {found['at']}, but must be the indices of a batch entry and a head")
    if _VERSION.fullmatch(found["cudnn"]) is None:
        raise _make_case_error(name, f"cudnn is {format_repr(found['cudnn'], 40)}, which is not a version")
    graph = None if found["graph"] is None else graph_from_json(found["graph"])
    return Case(**{**found, "graph": graph, "images": images})


def _make_case_error(name: str, why: str) -> UsageError:
    return UsageError(f"{name} is not a case of an audit: {why}", code="audit-case")


def _read_case_file(path: str | os.PathLike[str]) -> tuple[Any, dict[str, Image]]:
    """Read a case file: its description and memory; refuse one that unpacks to more than its stated size."""
    if is_python_file(os.fspath(path)) or os.fspath(path).endswith(".ipynb"):
        raise UsageError(
            f"{os.fspath(path)} is a program and not a case of an audit",
            code="audit-case",
            fix=f"python -m cudnn_backend_py.audit {os.fspath(path)} runs it and writes the cases",
        )
    size = os.path.getsize(path) if os.path.exists(path) else 0

    def check_headers(headers: Mapping[str, ArrayHeader]) -> None:
        if any(header.compressed for header in headers.values()):
            raise ValueError("the arrays of the file are compressed, but an audit case has none that are")
        declared = sum(header.size_bytes for header in headers.values())
        if declared > size:
            raise ValueError(f"the arrays of the file declare {declared} bytes, but the file has only {size}")
        if size > _LARGEST:
            raise ValueError(f"the file has {size} bytes, at most {_LARGEST} are allowed")
        for name, header in headers.items():
            if header.dtype != np.uint8:
                raise ValueError(f"array {name!r} of the file has type {header.dtype}, uint8 is needed")

    held = read_arrays(path, code="audit-case", what="case of an audit", check=check_headers)
    try:
        about = held.pop("about").tobytes().decode()
    except (KeyError, UnicodeDecodeError) as error:
        raise _make_case_error(os.fspath(path), f"its description of the call cannot be read: {error!r}") from None
    images = {name.removeprefix("memory:"): image for name, image in held.items()}
    return parse_json(about, os.fspath(path), code="audit-case"), images


def get_default_case_folder() -> Path:
    """Return the folder of cases: ``CUDNN_BACKEND_AUDIT_FOLDER``, or one in the user's cache."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else get_user_folder("audit")


class CaseFolder:
    """A folder of cases that only its user can read and write.

    Parameters
    ----------
    path
        :func:`get_default_case_folder` if not given.
    most_cases, most_bytes
        How many are kept, and how many bytes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        most_cases: int = MOST_CASES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.most_cases, self.most_bytes = most_cases, most_bytes
        self._folder = PrivateFolder(
            get_default_case_folder() if path is None else path,
            title="folder of audited cases",
            reason="it holds what a program computed with",
            code="audit-folder",
            otherwise=f"set {FOLDER_VARIABLE} to another one",
        )

    @property
    def path(self) -> Path:
        """The path of the folder."""
        return self._folder.path

    def store(self, case: Case) -> tuple[Path | None, str]:
        """Store a case unless one of the same name is stored; return its file, or None and the reason.

        Raises
        ------
        EnvironmentNotReady
            ``audit-folder``, ``cache-folder-unusable``.
        """
        if case.size_bytes > self.most_bytes:
            return None, f"its buffers have {case.size_bytes} bytes, {self.most_bytes} are kept at most"
        with self._folder.translate_errors(), self._folder.open(create=True) as folder, folder.lock():
            os.fchmod(folder.descriptor, 0o700)
            files = folder.files(_NAME.fullmatch)
            if case.name in (name for name, _ in files):
                return folder.path / case.name, "one of its kind is kept already"
            data = case.to_bytes()
            if len(files) >= self.most_cases:
                return None, f"{len(files)} cases are kept already in {self.path}, which is the most"
            if sum(status.st_size for _, status in files) + len(data) > self.most_bytes:
                return None, f"the cases in {self.path} would have more than {self.most_bytes} bytes"
            folder.write(case.name, data)
            return folder.path / case.name, ""

    def cases(self) -> list[Path]:
        """Return the files of all cases, oldest first; an empty list if the folder does not exist."""
        try:
            with self._folder.translate_errors(), self._folder.open() as folder:
                files = sorted(folder.files(_NAME.fullmatch), key=lambda item: item[1].st_mtime)
                return [folder.path / name for name, _ in files]
        except EnvironmentNotReady as error:
            if error.code == "cache-folder-unusable":
                return []
            raise
