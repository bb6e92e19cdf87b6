"""The layers and parts in docs/architecture.md agree with the imports of the package."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import cudnn_backend_py

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cudnn_backend_py"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def read_table(heading: str) -> dict[str, list[str]]:
    """Return the first table under a heading as a dict: first cell, without backticks, to the other cells."""
    section = PAGE.partition(f"{heading}\n")[2]
    rows = re.search(r"^\|[^\n]*\n\|[-|]+\|\n((?:\|.*\|\n)+)", section, re.MULTILINE)
    assert rows, f"docs/architecture.md has no table under {heading!r}"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[1].splitlines()]
    return {first.strip("`"): rest for first, *rest in cells}


ROOMS = read_table("## Parts")
NAMES = {room.removesuffix("/").removesuffix(".py"): room for room in ROOMS}
BINDING = "the binding"  # any of its parts


def split_names(cell: str) -> list[str]:
    """Return the comma-separated names in a table cell, without Markdown escapes."""
    return cell.replace("\\", "").split(", ") if cell else []


LAYERS = [[NAMES[name] for name in split_names(cells[1])] for cells in read_table("## Layers").values()]
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
MAY_IMPORT = {
    room: {other for name in split_names(cells[1]) for other in (LAYERS[0] if name == BINDING else [NAMES[name]])}
    for room, cells in ROOMS.items()
}
FROM_OUTSIDE = {room: set(split_names(cells[2])) for room, cells in ROOMS.items()}
CTYPES_OUTSIDE = read_table("### ctypes outside native")
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def parse_python_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def get_top_level_folder_or_file(path: Path) -> str:
    """Return the part of the package that contains a file: a top-level folder with ``/``, or a top-level file."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) == 1 else f"{parts[0]}/"


def get_module_name(path: Path) -> str:
    """Return the dotted module name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {get_module_name(path): path for path in FILES}


@cache
def list_imported_names(path: Path) -> tuple[str, ...]:
    """Return the dotted names that a file imports, including imports for type checkers."""
    return tuple(_find_imported_names(path))


def _find_imported_names(path: Path) -> Iterator[str]:
    package = ["cudnn_backend_py", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(parse_python_file(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def get_file_defining_name(name: str) -> Path | None:
    """Return the file of the package that defines an imported name, or None."""
    return MODULES.get(name) or MODULES.get(name.rpartition(".")[0])


def list_modules_named_in_strings(path: Path) -> Iterator[str]:
    """Yield package modules named in the strings of a file, including arguments of ``make_lazy_getattr``."""
    package = ".".join(["cudnn_backend_py", *path.relative_to(PACKAGE).parent.parts])
    for node in ast.walk(parse_python_file(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if re.fullmatch(r"cudnn_backend_py(\.\w+)+", name):
                yield name
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "make_lazy_getattr":
            for keyword in node.keywords:
                assert isinstance(keyword.value, ast.Constant), f"{path}: the module of {keyword.arg} is no text"
                yield resolve_name(f".{keyword.value.value}", package)


def list_imports_of_package_part(room: str) -> tuple[set[str], set[str]]:
    """Return the parts of the package and the external top-level modules that a part imports."""
    rooms, outside = set(), set()
    for path in FILES:
        if get_top_level_folder_or_file(path) != room:
            continue
        for name in list_imported_names(path):
            top = name.split(".")[0]
            if top == "cudnn_backend_py":
                found = get_file_defining_name(name)
                assert found is not None, f"{path} imports {name}"
                rooms.add(get_top_level_folder_or_file(found))
            elif top == "ctypes" or top not in sys.stdlib_module_names:
                outside.add(top)
    return rooms - {room}, outside


def test_layering_page_lists_every_top_level_folder_and_file() -> None:
    assert set(ROOMS) == {get_top_level_folder_or_file(path) for path in FILES}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_of_a_top_level_folder_match_the_layering_page(room: str) -> None:
    rooms, outside = list_imports_of_package_part(room)
    if BINDING in split_names(ROOMS[room][1]):
        rooms |= set(LAYERS[0])
    assert (rooms, outside) == (MAY_IMPORT[room], FROM_OUTSIDE[room])


def test_top_level_folders_import_only_those_listed_before_them() -> None:
    order = list(ROOMS)
    upward = {
        (room, other)
        for room, others in MAY_IMPORT.items()
        for other in others
        if order.index(other) > order.index(room)
    }
    assert upward == set()


def test_every_top_level_folder_is_in_one_layer_and_in_order() -> None:
    assert sorted(room for rooms in LAYERS for room in rooms) == sorted(ROOMS)
    numbers = [LAYER_OF[room] for room in ROOMS]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_no_layer_refers_to_a_higher_layer(layer: int) -> None:
    """References are imports, also inside functions and for type checkers, and module names in strings."""
    upward = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in FILES
        if LAYER_OF[get_top_level_folder_or_file(path)] == layer
        for name in (*list_imported_names(path), *list_modules_named_in_strings(path))
        if (found := get_file_defining_name(name)) is not None and LAYER_OF[get_top_level_folder_or_file(found)] > layer
    }
    assert upward == set()


def test_the_binding_imports_only_numpy() -> None:
    outside = {name for room in LAYERS[0] for name in FROM_OUTSIDE[room]}
    assert outside == {"ctypes", "numpy"}


def test_two_files_of_lower_layers_import_computed_module_names() -> None:
    """A module name computed at run time cannot be checked against the layers."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        if re.search(r"\b(import_module|__import__)\(", path.read_text(encoding="utf-8"))
    }
    assert {name for name in found if LAYER_OF[get_top_level_folder_or_file(PACKAGE / name)] < 2} == {
        "system/child.py",
        "system/lazy_import.py",
    }


def test_files_have_no_import_cycles() -> None:
    """Imports inside functions and for type checkers count as well."""
    graph = {
        path: {
            found for name in list_imported_names(path) if (found := get_file_defining_name(name)) not in (None, path)
        }
        for path in FILES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(get_module_name(path) for path in error.args[1]))


def test_the_package_imports_no_other_folder_of_the_repository() -> None:
    tops = {name.split(".")[0] for path in FILES for name in list_imported_names(path)}
    assert not tops & {path.name for path in ROOT.iterdir() if path.is_dir()} - {PACKAGE.name}


def test_page_lists_every_use_of_ctypes_outside_native_with_a_reason() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if get_top_level_folder_or_file(path) != "native/"
        and any(name.split(".")[0] == "ctypes" for name in list_imported_names(path))
    }
    assert found == set(CTYPES_OUTSIDE)
    assert all(reason for (reason,) in CTYPES_OUTSIDE.values())


def test_no_submodule_is_shadowed_by_an_imported_name() -> None:
    """``from .library import library`` in a package's ``__init__`` would hide the submodule ``library``."""
    shadowed = set()
    for path in FILES:
        if path.name != "__init__.py":
            continue
        inside = {item.stem for item in path.parent.glob("*.py")} | {
            item.parent.name for item in path.parent.glob("*/__init__.py")
        }
        for name in list_imported_names(path):
            module, _, last = name.rpartition(".")
            if last in inside and MODULES.get(name) is None and MODULES.get(module) is not None:
                shadowed.add(name)
    assert shadowed == set()


@pytest.mark.parametrize("ring", ["pure", "library", "gpu"])
def test_test_folders_are_named_after_package_folders(ring: str) -> None:
    """Each test folder is a package, since file names such as ``test_attention.py`` occur in several folders."""
    folders = {path.parent for path in (ROOT / "tests" / ring).rglob("test_*.py")} - {ROOT / "tests" / ring}
    assert folders
    assert {f"{path.name}/" for path in folders} - {"benchmarks/", "tools/", "torture/"} <= set(ROOMS)
    assert all((path / "__init__.py").is_file() for path in folders)


def list_names_imported_by_test(path: Path, seen: set[Path]) -> Iterator[str]:
    """Yield the package names that a test file imports at the top, directly or through other test files."""
    seen.add(path)
    for node in parse_python_file(path).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = path.relative_to(ROOT).parent.parts
        base = parts[: len(parts) - node.level + 1] if node.level else ()
        module = ".".join([*base, *([node.module] if node.module else [])])
        for name in (alias.name for alias in node.names):
            if module == PACKAGE.name:
                yield f"{PACKAGE.name}.{cudnn_backend_py._PUBLIC.get(name, (name,))[0]}"
            elif module.startswith(PACKAGE.name):
                yield f"{module}.{name}"
            elif (folder := ROOT / module.replace(".", "/")).with_suffix(".py").is_file() or folder.is_dir():
                places = (
                    folder / f"{name}.py",
                    folder.with_suffix(".py"),
                    folder / name / "__init__.py",
                    folder / "__init__.py",
                )
                other = next(file for file in places if file.is_file())
                if other not in seen:
                    yield from list_names_imported_by_test(other, seen)


@pytest.mark.parametrize("ring", ["pure", "library", "gpu"])
def test_tests_of_a_layer_do_not_import_higher_layers(ring: str) -> None:
    upward = {
        (path.relative_to(ROOT).as_posix(), name)
        for room in ROOMS
        for path in (ROOT / "tests" / ring / room).glob("test_*.py")
        for name in list_names_imported_by_test(path, set())
        if (found := get_file_defining_name(name)) is not None
        and LAYER_OF[get_top_level_folder_or_file(found)] > LAYER_OF[room]
    }
    assert upward == set()
