"""Docstrings as the site shows them: roles such as ``:class:`~a.b.Name``` become code."""

from __future__ import annotations

import re

__all__ = ["plain_roles"]

_ROLE = re.compile(r":\w+:`(~?)([^`]+)`")


def plain_roles(text: str) -> str:
    """Return a docstring in Markdown: roles as code, a name after ``~`` without its modules, and no doubled marks."""
    text = _ROLE.sub(lambda match: f"`{match[2].rpartition('.')[2] if match[1] else match[2].lstrip('.')}`", text)
    return text.replace("``", "`")
