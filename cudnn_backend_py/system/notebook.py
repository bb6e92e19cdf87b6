"""Notebook display of values; the drawing function is imported on first use.

So data knows none of the reports that show it, and a program that shows nothing imports none of them.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["HtmlDisplay", "SvgDisplay"]


def _draw_for_notebook(value: object) -> str | None:
    root: Any = sys.modules[__name__.partition(".")[0]]
    shown: str | None = root._draw_for_notebook(value)
    return shown


class HtmlDisplay:
    """A value that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return _draw_for_notebook(self)


class SvgDisplay:
    """A value that a notebook shows as a picture, or as text where a picture does not help."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        return _draw_for_notebook(self)
