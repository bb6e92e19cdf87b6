"""Reference attention in NumPy and float64, to check cuDNN's results; independent of graphs."""

from .backward_pass import Backward, backward
from .forward_pass import Forward, forward
from .layouts import alibi_slopes, gather_pages, ragged_pack, ragged_unpack, unpack_block_mask
from .problem import Options, ScoreModifier

__all__ = [
    "Backward",
    "Forward",
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
