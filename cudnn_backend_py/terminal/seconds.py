"""Times that a user gives, in seconds: 0 or more, and never nan, which is neither more nor less than any limit."""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = ["Seconds"]


class Seconds(click.FloatRange):
    """The type of an option that takes a time."""

    name = "number of seconds"

    def __init__(self, *, more_than_0: bool = False) -> None:
        super().__init__(min=0, min_open=more_than_0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return seconds
