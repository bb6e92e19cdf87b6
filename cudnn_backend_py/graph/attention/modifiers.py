"""Score modifiers: small graphs that change the attention scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...frozen import FrozenValue
from ...generated.enums import PointwiseMode

if TYPE_CHECKING:
    from ..builder import GraphBuilder
    from ..ir import Tensor

__all__ = ["SoftCap"]

_MODE = PointwiseMode


class SoftCap(FrozenValue):
    """cap * tanh(score / cap): scores stay between -cap and cap (Gemma 2, arXiv:2408.00118)."""

    cap: float

    def forward(self, g: GraphBuilder, score: Tensor) -> Tensor:
        """Return the capped score."""
        cap = self._make_cap_scalar(g)
        tanh = g.pointwise(_MODE.TANH_FWD, g.pointwise(_MODE.DIV, score, cap))
        return g.pointwise(_MODE.MUL, tanh, cap, name="capped")

    def backward(self, g: GraphBuilder, d_score: Tensor, score: Tensor) -> Tensor:
        """Return d_score * (1 - tanh(score / cap)^2)."""
        scaled = g.pointwise(_MODE.DIV, score, self._make_cap_scalar(g))
        return g.pointwise(_MODE.TANH_BWD, scaled, dy=d_score, name="d_uncapped")

    def _make_cap_scalar(self, g: GraphBuilder) -> Tensor:
        return g.scalar(float(self.cap), name=g.make_unused_name("cap"))
