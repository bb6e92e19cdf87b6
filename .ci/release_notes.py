"""Print the section of CHANGELOG.md about a release: ``python .ci/release_notes.py v0.1.0``.

The tag must be ``v`` and the version in ``cudnn_backend_py/system/version.py``. CHANGELOG.md must have a heading for
it, such as ``## 0.1.0 (2026-01-31)``, followed by text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["release_notes"]

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


def release_notes(tag: str, said: str, changes: str) -> str:
    """Return the changelog section of a tag; raise ``SystemExit`` if tag, version file and changelog do not agree."""
    found = VERSION.search(said)
    if found is None or tag != f"v{found[1]}":
        raise SystemExit(f"the tag is {tag}, the version is {found and found[1]}")
    section = re.search(
        rf"^## {re.escape(found[1])} \(\d{{4}}-\d\d-\d\d\)\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL
    )
    if section is None or not section[1].strip():
        raise SystemExit(f"CHANGELOG.md has no section '## {found[1]} (date)' with text")
    return section[1].strip()


if __name__ == "__main__":
    version = (ROOT / "cudnn_backend_py/system/version.py").read_text(encoding="utf-8")
    print(release_notes(sys.argv[1], version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
