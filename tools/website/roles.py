"""A griffe extension that converts docstrings for the API reference to Markdown before they are parsed."""

from __future__ import annotations

from typing import Any

import griffe

from cudnn_backend_py.diagnose.causes.rule_texts import convert_sphinx_roles_to_markdown

__all__ = ["DocstringRoleExtension"]


class DocstringRoleExtension(griffe.Extension):
    """Rewrite every docstring into Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = convert_sphinx_roles_to_markdown(obj.docstring.value)
