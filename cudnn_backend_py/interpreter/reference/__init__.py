"""Reference attention in NumPy and float64, to check cuDNN's results; independent of graphs."""

from .backward_pass import BackwardResults, backward
from .forward_pass import ForwardResults, forward
from .layouts import alibi_slopes, gather_pages, ragged_pack, ragged_unpack, unpack_block_mask
from .problem import Options, ScoreModifier

__all__ = [
    "BackwardResults",
    "ForwardResults",
    "Options",
    "ScoreModifier",
    "alibi_slopes",
    "backward",
    "forward",
    "gather_pages",
    "ragged_pack",
    "ragged_unpack",
    "unpack_block_mask",
]
