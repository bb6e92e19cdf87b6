"""The code generator with the pinned header: regenerating changes nothing, and manual edits are found."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cudnn_backend_py.generated
from tools.codegen import __main__ as codegen
from tools.codegen import header, model

GENERATED = Path(cudnn_backend_py.generated.__file__).parent


@pytest.fixture(scope="module")
def expected_files() -> dict[str, str]:
    files, problems = codegen.generate_files(codegen.find_cudnn_header())
    assert problems == []
    return files


@pytest.fixture
def copy_of_generated_files(tmp_path: Path) -> Path:
    shutil.copytree(GENERATED, tmp_path / "generated", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "generated"


def test_regenerated_files_equal_the_committed_files(expected_files: dict[str, str]) -> None:
    assert codegen.diff_generated_files(expected_files, GENERATED) == "", "run `make regen`"


def test_written_files_equal_the_committed_files_bytewise(tmp_path: Path) -> None:
    assert codegen.main(["--output", str(tmp_path)]) == 0
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    present = {path.name: path.read_bytes() for path in GENERATED.iterdir() if path.is_file()}
    assert written == present


def test_check_finds_a_manual_edit_and_names_the_command(copy_of_generated_files: Path) -> None:
    path = copy_of_generated_files / "enums.py"
    path.write_text(path.read_text().replace("NOT_SUPPORTED_SHAPE = 3002", "NOT_SUPPORTED_SHAPE = 3003"))
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "tools.codegen", "--check", "--output", str(copy_of_generated_files)],
        capture_output=True, text=True, check=False, cwd=GENERATED.parents[1],
    )  # fmt: skip
    assert done.returncode == 1
    assert "-    NOT_SUPPORTED_SHAPE = 3003\n+    NOT_SUPPORTED_SHAPE = 3002\n" in done.stdout
    assert "python -m tools.codegen" in done.stderr
    assert path.read_bytes() == before


def test_check_finds_a_missing_and_a_stray_file(copy_of_generated_files: Path, expected_files: dict[str, str]) -> None:
    (copy_of_generated_files / "prototypes.py").unlink()
    (copy_of_generated_files / "stray.py").write_text("x = 1\n")
    diff = codegen.diff_generated_files(expected_files, copy_of_generated_files)
    assert "+++ generated/prototypes.py (regenerated)" in diff
    assert "-x = 1\n" in diff


def test_a_header_of_another_cudnn_version_is_refused(tmp_path: Path) -> None:
    text = codegen.find_cudnn_header().read_text()
    other = tmp_path / "cudnn_graph.h"
    other.write_text(text.replace("#define CUDNN_GRAPH_MINOR 28", "#define CUDNN_GRAPH_MINOR 27"))
    with pytest.raises(SystemExit, match=r"\(9, 27, 0\).*pinned to \(9, 28, 0\)"):
        codegen.generate_files(other)


def find_problems_with_changed_header(old: str, new: str) -> list[str]:
    """Return the problems that the generator finds in a header with one change."""
    text = codegen.find_cudnn_header().read_text()
    assert old in text
    parsed = header.parse_header(text.replace(old, new))
    return model.build_model(parsed, model.FactsFile(Path(codegen.__file__).parent / "facts.toml")).problems


def test_an_unknown_header_attribute_is_a_problem() -> None:
    problems = find_problems_with_changed_header(
        "CUDNN_ATTR_OPERATION_SLICE_STRIDES ", "CUDNN_ATTR_OPERATION_SLICE_STEPS "
    )
    assert any(p.startswith("CUDNN_ATTR_OPERATION_SLICE_STEPS: types") for p in problems)


def test_an_attribute_without_a_descriptor_is_a_problem() -> None:
    problems = find_problems_with_changed_header("CUDNN_ATTR_KNOB_INFO_STRIDE ", "CUDNN_ATTR_NOBODYS_STRIDE ")
    assert "CUDNN_ATTR_NOBODYS_STRIDE belongs to no descriptor type" in problems


def test_new_descriptor_type_without_attributes_is_a_problem() -> None:
    old = "    CUDNN_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR "
    problems = find_problems_with_changed_header(old, f"    CUDNN_BACKEND_OPERATION_SORT_DESCRIPTOR = 99,\n{old}")
    assert "CUDNN_BACKEND_OPERATION_SORT_DESCRIPTOR has no attributes" in problems


def test_an_unused_entry_of_facts_toml_is_a_problem() -> None:
    problems = find_problems_with_changed_header(
        "CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC", "CUDNN_ATTR_OPERATION_SDPA_BWD_DODESC"
    )
    assert "facts.toml: [fields] OPERATION_SDPA_BWD_DODDESC has no effect" in problems


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"writes": ["dw"]}, "facts.toml: OPERATION_TRANSPOSE has no dw"),
        ({"writes": []}, "CUDNN_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR: which fields it writes is unknown"),
        ({"logged": {"mode": "rng.mode"}}, "facts.toml: OPERATION_TRANSPOSE has no rng.mode"),
        ({"descriptors": ["OPERATION_SORT"]}, "facts.toml: the operations OPERATION_SORT have no effect"),
    ],
)
def test_a_wrong_entry_of_facts_toml_is_a_problem(entry: dict[str, Any], problem: str) -> None:
    facts = model.FactsFile(Path(codegen.__file__).parent / "facts.toml")
    facts.operations.append({"descriptors": ["OPERATION_TRANSPOSE"], **entry})
    assert problem in model.build_model(header.parse_header(codegen.find_cudnn_header().read_text()), facts).problems


def test_unreadable_declaration_stops_the_generator() -> None:
    with pytest.raises(ValueError, match="cannot place this part of the header: 'union surprise"):
        find_problems_with_changed_header("struct cudnnContext;", "struct cudnnContext; union surprise { int a; } x;")


def test_the_parser_finds_every_declaration_of_the_header() -> None:
    """Count the declarations again by regular expressions."""
    text = codegen.find_cudnn_header().read_text()
    parsed = header.parse_header(text)
    names = set(
        re.findall(r"^\s*(?:typedef enum \{ )?(CUDNN_[A-Za-z0-9_]+)(?: CUDNN_DEPRECATED_ENUM)?\s+=", text, re.M)
    )
    names |= {"CUDNN_CROSS_CORRELATION"}  # second on its line
    assert {m.c_name for enum in parsed.enums for m in enum.members} == names
    assert len(parsed.enums) == text.count("typedef enum {")
    assert {f.name for f in parsed.functions} == set(re.findall(r"^\s*(cudnn[A-Z]\w+)\(", text, re.M))
    assert len(parsed.structs) == text.count("typedef struct") - 2  # two opaque ones


def test_no_comment_of_the_header_is_copied(expected_files: dict[str, str]) -> None:
    """Six consecutive words of the header's comments would count as a copy."""
    comments = " ".join(re.findall(r"/\*.*?\*/", codegen.find_cudnn_header().read_text(), re.S))
    facts = (Path(codegen.__file__).parent / "facts.toml").read_text()
    comments = re.sub(r"^[ *]+", " ", comments, flags=re.M)
    assert len(_list_six_word_sequences(comments)) > 2000  # the comparison below has data
    theirs, ours = (
        _list_six_word_sequences(comments),
        _list_six_word_sequences(facts) | set().union(*map(_list_six_word_sequences, expected_files.values())),
    )
    assert theirs & ours == set()


def _list_six_word_sequences(text: str) -> set[tuple[str, ...]]:
    words = [w.lower() for w in re.findall(r"[A-Za-z']+|[^\sA-Za-z']", text)]
    runs = zip(*(words[i:] for i in range(6)), strict=False)
    return {run for run in runs if all(re.fullmatch(r"[a-z']{2,}|a", word) for word in run)}
