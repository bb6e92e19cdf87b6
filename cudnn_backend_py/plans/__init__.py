"""From a graph to a plan: lowered, asked about, chosen, built once, kept on disk."""

from .plan import Plan, build_plan, load_plan

__all__ = ["Plan", "build_plan", "load_plan"]
