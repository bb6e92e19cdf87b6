"""From a graph to a plan: lowered, asked about, chosen, built once, kept on disk."""

from typing import TYPE_CHECKING

from ..system.later import import_later

if TYPE_CHECKING:
    from .plan import Plan, build_plan, load_plan

__all__ = ["Plan", "build_plan", "load_plan"]

__getattr__ = import_later(__name__, Plan="plan", build_plan="plan", load_plan="plan")
