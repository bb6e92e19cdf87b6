"""Stored audit cases: their contents, their folder, and the refusal of damaged files."""

from __future__ import annotations

import io
import json
import pickle
import random
import stat
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cudnn_backend_py import CudnnBackendError, EnvironmentNotReady, GraphBuilder, PointwiseMode, UsageError
from cudnn_backend_py.audit.case import Case, CaseFolder, load_case


def make_case(value: float = 7.0, **fields: object) -> Case:
    """Return a case of a ReLU graph with one wrong element in its result."""
    g = GraphBuilder("activation")
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (4, 6, 8), strides=(64, 8, 1)), name="y", virtual=False)
    x = np.zeros((4, 8, 8), np.float16)
    x[:, :6] = np.random.default_rng(0).standard_normal((4, 6, 8))
    y = np.maximum(x[:, :6], 0)
    y[2, 3, 4] = value
    made = Case(
        entry_point="frontend",
        place="x.py:3 in f",
        found=("y: wrong",),
        wrong=("y",),
        graph=g.graph(),
        tag="eng1",
        cudnn="9.19.0",
        library="/nowhere/libcudnn.so.9",
        gpu="H200",
        sm=90,
        versions={"torch": "2.11"},
        images={"x": x.reshape(-1)[: 3 * 64 + 48].view(np.uint8), "y": y.reshape(-1).view(np.uint8)},
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def test_a_stored_audit_case_is_read_back_unchanged(tmp_path: Path) -> None:
    kept = replace(make_case(), at=(1, 2), numbers={"alpha": 0.5})
    path, why = CaseFolder(tmp_path / "audit").store(kept)
    assert path is not None
    assert not why
    found = load_case(path)
    for name in (
        "entry_point",
        "place",
        "found",
        "wrong",
        "at",
        "graph",
        "tag",
        "cudnn",
        "sm",
        "versions",
        "numbers",
        "date",
    ):
        assert getattr(found, name) == getattr(kept, name), name
    assert found.given()["x"].shape == (4, 6, 8)
    assert found.given()["alpha"] == 0.5
    assert found.results()["y"][2, 3, 4] == 7.0
    assert str(found).startswith("frontend: activation by eng1, cuDNN 9.19.0, H200")


def test_audit_case_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    path, _ = CaseFolder(folder).store(make_case())
    assert path is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    folder.chmod(0o777)
    with pytest.raises(EnvironmentNotReady) as error:
        CaseFolder(folder).store(make_case(8.0, cudnn="9.28.0"))
    assert error.value.code == "audit-folder"


def test_a_second_audit_case_of_the_same_kind_is_not_stored(tmp_path: Path) -> None:
    folder = CaseFolder(tmp_path / "audit")
    first, _ = folder.store(make_case())
    again, why = folder.store(make_case(9.0))
    assert again == first
    assert "kept already" in why
    other, _ = folder.store(make_case(cudnn="9.28.0"))
    assert other != first
    assert folder.cases() == [first, other]


def test_number_and_size_of_stored_audit_cases_are_limited(tmp_path: Path) -> None:
    few = CaseFolder(tmp_path / "few", most_cases=1)
    few.store(make_case())
    path, why = few.store(make_case(cudnn="9.28.0"))
    assert path is None
    assert "1 cases are kept already" in why
    large = make_case().size_bytes
    small = CaseFolder(tmp_path / "small", most_bytes=2 * large)
    assert small.store(make_case())[0] is None, "the file has more bytes than its buffers"
    tiny = CaseFolder(tmp_path / "tiny", most_bytes=large - 1)
    path, why = tiny.store(make_case())
    assert path is None
    assert f"its buffers have {large} bytes" in why
    assert not (tmp_path / "tiny").exists()
    assert tiny.cases() == []


def test_an_invalid_audit_case_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "about.npz", about=np.frombuffer(b'{"schema": "x", "version": 1}', np.uint8))
    for name in ("text.npz", "other.npz", "about.npz", "missing.npz"):
        with pytest.raises(UsageError) as error:
            load_case(tmp_path / name)
        assert error.value.code == "audit-case", name
    with pytest.raises(UsageError, match="is a program and not a case") as error:
        load_case(tmp_path / "train.ipynb")
    assert error.value.sections["fix"].startswith("python -m cudnn_backend_py.audit ")


def test_audit_command_lists_valid_cases_next_to_a_broken_file(tmp_path: Path) -> None:
    from cudnn_backend_py.cli.commands import main

    path, _ = CaseFolder(tmp_path / "audit").store(make_case())
    assert path is not None
    path.with_name("case-000000000000.npz").write_bytes(b"cut off")
    run = CliRunner().invoke(main, ["audit", "--folder", str(path.parent)])
    assert run.exit_code == 0
    assert "frontend: activation by eng1" in run.stdout
    assert "case-000000000000.npz is not a case of an audit: File is not a zip file" in run.stdout
    found = json.loads(CliRunner().invoke(main, ["audit", "--folder", str(path.parent), "--format", "json"]).stdout)
    assert sorted("error" in one for one in found["cases"]) == [False, True]


def make_audit_case_file(about: Any, compression: int = zipfile.ZIP_STORED, **arrays: Any) -> bytes:
    """Return the bytes of a case file with changed fields and other arrays."""
    with np.load(io.BytesIO(make_case().to_bytes())) as held:
        said = json.loads(held["about"].tobytes())
        memory = {name: held[name] for name in held.files if name != "about"}
    text = about if isinstance(about, bytes) else json.dumps({**said, **about}).encode()
    file, found = io.BytesIO(), {"about": np.frombuffer(text, np.uint8), **memory, **arrays}
    with zipfile.ZipFile(file, "w", compression) as members:
        for name, value in found.items():
            array = io.BytesIO()
            np.lib.format.write_array(array, np.asarray(value))
            members.writestr(f"{name}.npy", value if isinstance(value, bytes) else array.getvalue())
    return file.getvalue()


def _make_npy_with_header(header: str) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"abc"


HOSTILE = {
    "nothing": make_audit_case_file(b"null"),
    "a number": make_audit_case_file(b"5"),
    "deep": make_audit_case_file(b"[" * 100_000),
    "a place that is a number": make_audit_case_file({"place": 5}),
    "one name for many": make_audit_case_file({"wrong": "y"}),
    "an architecture that is code": make_audit_case_file({"sm": "90,); import os  #"}),
    "numbers in a list": make_audit_case_file({"numbers": [1.0]}),
    "three places": make_audit_case_file({"at": [1, 2, 3]}),
    "no version": make_audit_case_file({"cudnn": "../../etc"}),
    "floats": make_audit_case_file({}, **{"memory:x": np.zeros(3)}),
    "compressed": make_audit_case_file({}, zipfile.ZIP_DEFLATED),
    "a bomb": make_audit_case_file({}, zipfile.ZIP_DEFLATED, **{"memory:x": np.zeros(50_000_000, np.uint8)}),
    "931 GiB": make_audit_case_file(
        {}, **{"memory:x": _make_npy_with_header("{'descr':'|u1','fortran_order':False,'shape':(1000000000000,)}")}
    ),
    "a code": make_audit_case_file({}, **{"memory:x": _make_npy_with_header("__import__('os').abort()")}),
    "an unended header": make_audit_case_file({}, **{"memory:x": _make_npy_with_header("(" * 100)}),
    "a pickle": make_audit_case_file({}, **{"memory:x": pickle.dumps(print)}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_audit_case_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "case.npz").write_bytes(HOSTILE[name])
    with pytest.raises(CudnnBackendError) as error:
        load_case(tmp_path / "case.npz")
    assert error.value.code == "audit-case"


def test_a_case_file_with_random_byte_changes_is_read_or_refused(tmp_path: Path) -> None:
    whole, rng = make_case().to_bytes(), random.Random(0)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "case.npz").write_bytes(data)
        try:
            found = load_case(tmp_path / "case.npz")
        except CudnnBackendError:
            refused += 1
        else:
            assert found.graph is not None
            found.given(), found.results(), str(found)
    assert refused > 150


def test_a_program_given_as_a_case_file_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("print('training')\n")
    with pytest.raises(UsageError) as raised:
        load_case(program)
    assert f"python -m cudnn_backend_py.audit {program}" in raised.value.sections["fix"]
