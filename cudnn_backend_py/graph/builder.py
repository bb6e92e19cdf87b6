"""``GraphBuilder``: write a graph operation by operation, with names, uids, shapes and strides inferred."""

from __future__ import annotations

from .build.attention import AttentionOperations
from .build.blocks import BlockScaling
from .build.convolutions import Convolutions
from .build.experts import MixtureOfExperts
from .build.moves import DataMovement
from .build.norms import Normalizations
from .build.products import MatmulAndPointwise
from .build.resampling import Resampling

__all__ = ["GraphBuilder"]


class GraphBuilder(
    MatmulAndPointwise,
    Convolutions,
    Normalizations,
    Resampling,
    DataMovement,
    BlockScaling,
    MixtureOfExperts,
    AttentionOperations,
):
    """Collects tensors and operations and returns a :class:`~cudnn_backend_py.graph.ir.Graph` of them.

    There is a method for each kind of operation in cuDNN's header. The tensor it returns, or the first one it returns,
    is virtual and of `intermediate_type` unless told otherwise: ``virtual=False`` makes it an output. Its further
    keywords are options of :meth:`tensor`, or ``out=`` a tensor to write. Results next to the first one (statistics,
    indices, scales) are in memory: True requests one, a tensor or a dict of options says which. Dims that do not fit
    are refused before any cuDNN call, with the names and sizes of the tensors. An enumerator may be given by its name:
    ``"RELU_FWD"``; a data type also as NumPy and torch call it.

    Examples
    --------
    >>> from cudnn_backend_py import DataType, GraphBuilder
    >>> g = GraphBuilder("scores", io_type=DataType.HALF)
    >>> q, k = g.tensor("q", (1, 8, 64)), g.tensor("k", (1, 64, 16))
    >>> s = g.matmul(q, k, name="s", virtual=False, data_type=DataType.HALF)
    >>> print(g.graph().ops[0])
    s = matmul(q, k) : f16[1,8,16]
    """
