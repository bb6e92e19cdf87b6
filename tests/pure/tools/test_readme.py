"""tools/README.md names every program in tools/, and no file that does not exist."""

from __future__ import annotations

import re

from tools.repository import ROOT

TOOLS = ROOT / "tools"
PAGE = (TOOLS / "README.md").read_text(encoding="utf-8")


def test_readme_names_every_program() -> None:
    programs = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for path in TOOLS.rglob("*.py")
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    assert set(re.findall(r"python -m (tools\.[\w.]+)", PAGE)) | {"tools.codegen"} == programs


def test_files_named_in_the_readme_exist() -> None:
    named = [name for cell in re.findall(r"^\| (`.+?) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(.+?)`", cell)]
    assert named
    assert [name for name in named if not list(TOOLS.glob(f"**/{name}"))] == []
