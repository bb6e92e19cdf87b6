"""Each recipe of CONTRIBUTING.md, followed in a copy of the repository: it edits the files that it names."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tools.codegen.__main__ import find_cudnn_header
from tools.regen import PAGE_WRITERS
from tools.repository import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# The table of recipes: number of files and their names or folders, by the title of the recipe.
STATED = {
    title: (int(count), re.findall(r"`([^`]+)`", files))
    for title, count, files in re.findall(r"^\| \[([^]]+)\]\([^)]+\) \| (\d+) \| (.+) \|$", PAGE, re.MULTILINE)
}
FOLDERS = ("benchmarks", "cudnn_backend_py", "docs", "examples", "logs", "tests", "tools")
PACKAGE = "cudnn_backend_py"
GENERATED = (f"{PACKAGE}/generated/", "tests/pure/cli/golden/")


class RepositoryCopy:
    """A copy of the repository in which a recipe is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in FOLDERS:
            shutil.copytree(ROOT / name, folder / name)
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy2(path, folder)
        self.by_hand: set[str] = set()

    def insert(self, path: str, anchor: str, text: str) -> None:
        """Insert text after the anchor, which the file must contain once."""
        found = (self.folder / path).read_text(encoding="utf-8")
        assert found.count(anchor) == 1, f"{path} must have {anchor!r} once, has it {found.count(anchor)} times"
        self.write(path, found.replace(anchor, anchor + text))

    def write(self, path: str, text: str) -> None:
        (self.folder / path).write_text(text, encoding="utf-8")
        self.by_hand.add(path)

    def read(self, path: str) -> str:
        return (self.folder / path).read_text(encoding="utf-8")

    def run(self, *arguments: str, succeeds: bool = True) -> str:
        """Run a module of the copy and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        assert (done.returncode == 0) is succeeds, output
        return output

    def run_code_generator(self, changes: Mapping[str, str], *, succeeds: bool = True) -> str:
        """Run the code generator on the pinned header with some lines replaced."""
        text = find_cudnn_header().read_text()
        for old, new in changes.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        header = self.folder.parent / "cudnn_graph.h"
        header.write_text(text)
        return self.run("tools.codegen", "--header", str(header), succeeds=succeeds)

    def regenerate_page(self, page: str) -> None:
        """Write a page as `make regen` does."""
        code = (
            "from tools.regen import PAGE_WRITERS, ROOT; "
            f"(ROOT / {page!r}).write_text(PAGE_WRITERS[{page!r}](), encoding='utf-8')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            check=True,
        )
        assert done.returncode == 0

    def run_tests(self, keyword: str, *files: str) -> None:
        """Run the tests of some files that match a keyword."""
        self.run("pytest", "-q", "-p", "no:cacheprovider", *files, "-k", keyword)

    def list_changed_files(self) -> set[str]:
        """Return the new files and those that differ from the repository."""
        return {
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file()
            and "__pycache__" not in path.parts
            and not ((original := ROOT / path.relative_to(self.folder)).is_file() and filecmp.cmp(path, original))
        }

    def check_edited_files(self, title: str) -> None:
        """Check that the recipe names each file that was edited manually, and that all others are generated."""
        count, named = STATED[title]
        unnamed = {path for path in self.by_hand if not any(f"/{name}" in f"/{path}" for name in named)}
        assert (len(self.by_hand), unnamed) == (count, set()), sorted(self.by_hand)
        written = {path for path in self.list_changed_files() - self.by_hand if not path.startswith(GENERATED)}
        assert written <= set(PAGE_WRITERS)


@pytest.fixture
def copy(tmp_path: Path) -> RepositoryCopy:
    return RepositoryCopy(tmp_path / "copy")


def add_operation_by_documented_recipe(copy: RepositoryCopy) -> None:
    """Add an operation that reverses the order of the elements along an axis."""
    attribute = "    CUDNN_ATTR_OPERATION_TRANSPOSE_XDESC "
    descriptor = "    CUDNN_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR "
    header = {
        attribute: """\
    CUDNN_ATTR_OPERATION_REVERSE_XDESC = 9900, /**< Input. @since cuDNN 9.28.0 */
    CUDNN_ATTR_OPERATION_REVERSE_YDESC = 9901, /**< Output. @since cuDNN 9.28.0 */
    CUDNN_ATTR_OPERATION_REVERSE_AXIS = 9902, /**< Axis. @since cuDNN 9.28.0 */
"""
        + attribute,
        descriptor: (
            "    CUDNN_BACKEND_OPERATION_REVERSE_DESCRIPTOR = 99, /**< Reverse. @since cuDNN 9.28.0 */\n" + descriptor
        ),
    }
    assert "OPERATION_REVERSE_XDESC: types" in copy.run_code_generator(header, succeeds=False)
    copy.insert(
        "tools/codegen/facts.toml",
        'why = "measured: RMS norm without it is finalized and supported"\n',
        """
[[facts]]
attributes = ["OPERATION_REVERSE_?DESC"]
types = ["BACKEND_DESCRIPTOR"]
count = [1, 1]
element = ["TENSOR"]
required = true
why = "invented"

[[facts]]
attributes = ["OPERATION_REVERSE_AXIS"]
types = ["INT64"]
count = [1, 1]
required = true
why = "invented"

[[operations]]
descriptors = ["OPERATION_REVERSE"]
writes = ["y"]
""",
    )
    assert copy.run_code_generator(header) == ""
    layout = f"{PACKAGE}/interpreter/layout.py"
    copy.insert(
        layout,
        "    DescriptorType.OPERATION_TRANSPOSE: run_transpose,\n",
        "    DescriptorType.OPERATION_REVERSE: run_reverse,\n",
    )
    copy.insert(
        layout,
        "# signals\n",
        """

def run_reverse(run: Run, op: Operation) -> None:
    run.write_value(op.fields["y"], np.flip(run.read_value(op.fields["x"]), op.fields["axis"]))
""",
    )
    copy.insert(
        f"{PACKAGE}/graph/build/moves.py",
        "class DataMovement(BuilderBase):\n",
        '''
    def reverse(self, x: Tensor, axis: int, **result: Any) -> Tensor:
        """Add x with the elements along an axis in reverse order and return it.

        C: ``CUDNN_BACKEND_OPERATION_REVERSE_DESCRIPTOR``.
        """
        check_types(Tensor, x=x)
        y = self._get_result_tensor("reverse", x.dims, result, data_type=x.data_type)
        check_dims(y, x.dims, "y", x=x)
        self._append_operation(DescriptorType.OPERATION_REVERSE, y.name, x=x, y=y, axis=axis)
        return y
''',
    )
    copy.insert(
        "tests/support/typical_graphs.py",
        "# block scales\n",
        """
@_register_graph(D.OPERATION_REVERSE, "reverse", supported=(), refused="invented")
def _add_reverse(g: GraphBuilder) -> None:
    g.reverse(g.tensor("x", (2, 3, 4)), 1, **IN_MEMORY)

""",
    )
    copy.insert(
        "tests/pure/interpreter/test_interpret.py",
        "lambda: interpret_single_operation(DescriptorType.OPERATION_RESHAPE, x, y, make_random_array(2, 3)),\n    )\n",
        """

def test_reverse() -> None:
    value = make_random_array(2, 3)
    x, y = make_double_tensor("x", (2, 3)), make_double_tensor("y", (2, 3))
    got = interpret_single_operation(DescriptorType.OPERATION_REVERSE, x, y, value, axis=1)
    np.testing.assert_array_equal(got, value[:, ::-1])
""",
    )
    copy.regenerate_page("docs/operations.md")
    assert "| REVERSE | `reverse` | yes |" in copy.read("docs/operations.md")
    files = ("tools/test_operations_page.py", "generated", "interpreter/test_interpret.py")
    copy.run_tests("reverse or kind or report", *(f"tests/pure/{file}" for file in files))


def add_pointwise_mode_by_documented_recipe(copy: RepositoryCopy) -> None:
    """Add a pointwise mode with two operands."""
    line = "    CUDNN_POINTWISE_HYPOT = 99, /**< Root of the sum of squares. @since cuDNN 9.28.0 */\n"
    copy.insert("tools/codegen/facts.toml", '"LOGICAL_AND", "LOGICAL_OR",', ' "HYPOT",')
    anchor = "    CUDNN_POINTWISE_LOGICAL_NOT "
    assert copy.run_code_generator({anchor: line + anchor}) == ""
    copy.insert(
        f"{PACKAGE}/interpreter/pointwise.py",
        "    PointwiseMode.DIV: np.divide,\n",
        "    PointwiseMode.HYPOT: np.hypot,\n",
    )
    copy.insert(
        "tests/pure/interpreter/test_interpret.py",
        "    PointwiseMode.DIV: lambda x, b: x / b,\n",
        "    PointwiseMode.HYPOT: math.hypot,\n",
    )
    copy.insert("tests/pure/graph/test_graph.py", '"LOGICAL_AND LOGICAL_OR', " HYPOT")
    files = ("generated", "interpreter/test_interpret.py", "graph/test_graph.py")
    copy.run_tests("HYPOT or mode or report", *(f"tests/pure/{file}" for file in files))


def add_data_type_by_documented_recipe(copy: RepositoryCopy) -> None:
    """Add a floating-point type of six bits."""
    anchor = "    CUDNN_DATA_FP8_E5M3 "
    line = "    CUDNN_DATA_FP6_E2M3 = 99, /**< FP6. @since cuDNN 9.28.0 */\n"
    assert copy.run_code_generator({anchor: line + anchor}) == ""
    copy.insert(
        f"{PACKAGE}/graph/data_types.py",
        '    _T.FP8_E5M3: DataTypeProperties(bits=8, short="f8e5m3"),\n',
        """\
    _T.FP6_E2M3: DataTypeProperties(
        bits=6,
        short="f6e2m3",
        kind="float",
        storage="uint8",
        form=FloatFormat(2, 3, 1, 0x1F, None, None, saturates=True),
        tolerance=0.06,
    ),
""",
    )
    copy.run_tests("data_type or storage or report", "tests/pure/generated", "tests/pure/graph/test_graph.py")


def add_known_issue_by_documented_recipe(copy: RepositoryCopy) -> None:
    """Add a known issue of matmuls with 96 rows."""
    copy.insert(
        f"{PACKAGE}/known_issues/matmul.py",
        "MATMUL: tuple[KnownIssue, ...] = (\n",
        """\
    KnownIssue(
        "matmul-96-rows",
        what="a matmul of 96 rows",
        effect="wrong results",
        fix="pad the rows",
        source="https://example.org/1",
        graph=lambda graph: any(op.a.dims[-2] == 96 for op in graph_queries.find_matmuls(graph)),
    ),
""",
    )
    copy.insert(
        "tests/known_issues/matmul.py",
        "MATMUL: dict[str, Examples] = {\n",
        """\
    "matmul-96-rows": Examples(
        reproductions={"": lambda: _make_batched_matmul(DataType.HALF, rows=96)},
        unaffected=lambda: _make_batched_matmul(DataType.HALF, rows=97),
        fixed=lambda: _make_batched_matmul(DataType.HALF, rows=128),
    ),
""",
    )
    copy.regenerate_page("docs/known-issues.md")
    assert "| `matmul-96-rows` |" in copy.read("docs/known-issues.md")
    copy.run_tests(
        "matmul-96-rows or every_row", "tests/pure/known_issues", "tests/pure/tools/test_known_issues_page.py"
    )


def add_target_by_documented_recipe(copy: RepositoryCopy) -> None:
    """Add another board of a known GPU architecture."""
    profile = json.loads(copy.read(f"{PACKAGE}/target/profiles/l40s.json"))
    profile |= {"name": "l40", "title": "NVIDIA L40", "aliases": []}
    profile["properties"]["deviceName"] = "NVIDIA L40"
    copy.write(f"{PACKAGE}/target/profiles/l40.json", json.dumps(profile, indent=2) + "\n")
    copy.run_tests("l40", "tests/pure/target/test_profiles.py")
    copy.run("tests.pure.cli.test_commands")
    assert "NVIDIA L40 " in copy.read("tests/pure/cli/golden/lists.txt")


def add_cudnn_version_by_documented_recipe(copy: RepositoryCopy) -> None:
    """Add a cuDNN version without new declarations in its header."""
    makefile = copy.read("Makefile")
    newest = re.findall(r"^NEWEST := 9\.(\d+)\.0$", makefile, re.MULTILINE)[0]
    newer = f"{int(newest) + 1}"
    copy.write("Makefile", makefile.replace(f"NEWEST := 9.{newest}.0", f"NEWEST := 9.{newer}.0"))
    minor = "#define CUDNN_GRAPH_MINOR "
    assert copy.run_code_generator({f"{minor}{newest}": f"{minor}{newer}"}) == ""
    assert f"cudnn_graph.h 9.{newer}.0" in copy.read(f"{PACKAGE}/generated/enums.py")
    copy.run_tests("", "tests/pure/generated")


def add_cudnn_message_by_documented_recipe(copy: RepositoryCopy) -> None:
    """Add a cuDNN message with its own rule."""
    causes = f"{PACKAGE}/diagnose/causes"
    copy.insert(f"{causes}/phrases.py", "REASON_PHRASES = (\n", '    ReasonPhrase(r"the moon is full", "full_moon"),\n')
    copy.insert(
        f"{causes}/rules.py",
        'return Cause("cuda-toolkit", headline, Basis.RULE, "stated by cuDNN", remedy)\n',
        '''

@register_phrase_rule
def explain_full_moon(case: RefusalCase, reason: Reason) -> Cause | None:
    """The moon is full.

    Problem
        Invented.
    Evidence
        Invented.
    Remedy
        Wait.
    Since
        Any version.
    """
    return Cause("full-moon", f"the moon is full{format_reason_quote(reason)}", Basis.RULE, "stated by cuDNN", "wait")
''',
    )
    codes = "tests/pure/golden/codes.txt"
    copy.write(codes, "\n".join(sorted([*copy.read(codes).split(), "full-moon"])) + "\n")
    copy.run_tests(
        "patterns_of_refusal_reasons or reason_pattern_is_unique or refusal_rule_has or codes_equal_the_golden",
        *("tests/pure/diagnose/test_phrases.py", "tests/pure/test_site.py", "tests/pure/test_errors.py"),
    )


RECIPES: Mapping[str, Callable[[RepositoryCopy], None]] = {
    "an operation": add_operation_by_documented_recipe,
    "a pointwise mode": add_pointwise_mode_by_documented_recipe,
    "a data type": add_data_type_by_documented_recipe,
    "a known issue": add_known_issue_by_documented_recipe,
    "a target": add_target_by_documented_recipe,
    "a cuDNN version": add_cudnn_version_by_documented_recipe,
    "a cuDNN message": add_cudnn_message_by_documented_recipe,
}


def test_every_documented_recipe_is_tested() -> None:
    assert list(STATED) == list(RECIPES)


@pytest.mark.parametrize("title", RECIPES)
def test_a_documented_recipe_edits_exactly_its_stated_files(title: str, copy: RepositoryCopy) -> None:
    RECIPES[title](copy)
    copy.check_edited_files(title)
