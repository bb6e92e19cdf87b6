"""Builders of composite attention graphs for the examples: options are added to a shared base problem."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.graph.attention.backward import build_composite_backward
from cudnn_backend_py.graph.attention.forward import build_composite_forward
from cudnn_backend_py.graph.attention.problem import Attention
from cudnn_backend_py.graph.ir import Graph

from .example import BASE_OPTIONS

__all__ = ["make_attention_backward", "make_attention_forward"]


def make_attention_forward(**options: Any) -> Graph:
    """Return the forward graph of the base attention problem with these options."""
    return build_composite_forward(Attention(**BASE_OPTIONS | options), None)


def make_attention_backward(**options: Any) -> Graph:
    """Return the backward graph of the base attention problem with these options."""
    return build_composite_backward(Attention(**BASE_OPTIONS | options), None)
