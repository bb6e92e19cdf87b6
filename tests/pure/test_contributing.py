"""Files and make targets named in CONTRIBUTING.md exist. `tests/library/test_recipes.py` follows its recipes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^### ([^\n]+)\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL))
PATHS = sorted(set(re.findall(r"`([\w.]+/[\w./]*|\w+\.(?:py|toml|md))`", PAGE)))
MADE_THERE = {"mine.py"}


@pytest.mark.parametrize("path", PATHS)
def test_path_named_in_contributing_exists(path: str) -> None:
    assert path in MADE_THERE or any((folder / path).exists() for folder in (ROOT, ROOT / "cudnn_backend_py"))


def test_recipe_table_lists_all_recipes_and_their_files() -> None:
    table = re.findall(r"^\| \[(.+)\]\(#(.+)\) \| \d+ \| (.+) \|$", PAGE, re.MULTILINE)
    assert [name for name, _, _ in table] == [name[0].lower() + name[1:] for name in RECIPES]
    for (_, anchor, files), (name, text) in zip(table, RECIPES.items(), strict=True):
        assert anchor == name.lower().replace(" ", "-")
        named = re.findall(r"`([^`]+)`", files)
        assert named
        missing = [file for file in named if f"`{file}" not in text]
        assert not missing, name


def test_make_targets_named_in_contributing_exist() -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", PAGE)) <= made
