"""The rooms of docs/architecture.md against the imports of the package: no more, no less."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cudnn_backend_py"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED_EXCEPTIONS = {("info.py", "__init__.py")}


def table(heading: str) -> dict[str, list[str]]:
    """Return the first table under a heading: first cell without backticks -> the other cells."""
    section = PAGE.partition(f"{heading}\n")[2]
    rows = re.search(r"^\|[^\n]*\n\|[-|]+\|\n((?:\|.*\|\n)+)", section, re.MULTILINE)
    assert rows, f"docs/architecture.md has no table under {heading!r}"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[1].splitlines()]
    return {first.strip("`"): rest for first, *rest in cells}


def quoted(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


ROOMS = table("## The rooms")
MAY_IMPORT = {room: quoted(cells[1]) for room, cells in ROOMS.items()}
FROM_OUTSIDE = {room: quoted(cells[2]) for room, cells in ROOMS.items()}
CTYPES_OUTSIDE = table("### ctypes outside native")


def room_of(path: Path) -> str:
    """Return the room a file of the package is in: its name, or that of its folder."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) == 1 else f"{parts[0]}/"


def imported(path: Path) -> Iterator[str]:
    """Yield the full name of every module, or member of a package, a file imports anywhere."""
    package = ["cudnn_backend_py", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_room(name: str) -> str:
    """Return the room a name of the package comes from."""
    _, first, *_ = name.split(".")
    if (PACKAGE / first).is_dir():
        return f"{first}/"
    return f"{first}.py" if (PACKAGE / f"{first}.py").is_file() else "__init__.py"


FILES = sorted(PACKAGE.rglob("*.py"))


def used(room: str) -> tuple[set[str], set[str]]:
    """Return the rooms and the top-level modules from outside that a room imports."""
    rooms, outside = set(), set()
    for path in FILES:
        if room_of(path) != room:
            continue
        for name in imported(path):
            top = name.split(".")[0]
            if top == "cudnn_backend_py":
                rooms.add(imported_room(name))
            elif top == "ctypes" or top not in sys.stdlib_module_names:
                outside.add(top)
    return rooms - {room}, outside


def test_page_lists_every_room() -> None:
    assert set(ROOMS) == {room_of(path) for path in FILES}


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_what_the_page_says(room: str) -> None:
    assert used(room) == (MAY_IMPORT[room], FROM_OUTSIDE[room])


def test_rooms_import_only_rooms_above_them() -> None:
    order = list(ROOMS)
    upward = {
        (room, other)
        for room, others in MAY_IMPORT.items()
        for other in others
        if order.index(other) > order.index(room)
    }
    assert upward <= NAMED_EXCEPTIONS


def test_nobody_imports_the_generator() -> None:
    assert not [room for room, others in MAY_IMPORT.items() if "codegen/" in others]


def test_ctypes_outside_native_is_named_with_its_reason() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if room_of(path) != "native/" and any(name.split(".")[0] == "ctypes" for name in imported(path))
    }
    assert found == set(CTYPES_OUTSIDE)
    assert all(reason for (reason,) in CTYPES_OUTSIDE.values())


def test_page_lists_every_file_of_native() -> None:
    listed = {name for row in table("### Inside native") for name in re.findall(r"[\w.]+\.(?:py|c)\b", row)}
    assert listed == {path.name for path in (PACKAGE / "native").glob("*.[pc]*") if path.suffix in (".py", ".c")} - {
        "__init__.py"
    }
