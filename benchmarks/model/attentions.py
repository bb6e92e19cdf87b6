"""Attention implementations for the model: this package, torch's backends, cudnn-frontend."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from cudnn_backend_py import torch_ops
from cudnn_backend_py.execution.any_shape import Shapes
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph.attention import Attention as Problem

from ..contenders import load_frontend, make_torch_packed_attention
from ..frontend_graph import build_frontend_attention

__all__ = ["ATTENTION_PROVIDERS", "Attention", "AttentionNotOffered", "PagedCache", "make_attention_provider"]


_BFLOAT16 = DataType.BFLOAT16


class AttentionNotOffered(Exception):
    """Raised if a provider does not offer this kind of attention or does not support this problem."""


class PagedCache:
    """A paged cache of keys and values for several sequences and all layers.

    Attributes
    ----------
    k, v
        Per layer, [slots, h, d]: one slot per token, ``page`` consecutive slots per page.
    table
        int32 [sequences, pages of a sequence]; in order if `shuffled` is False, so that the memory is also dense.
    lengths
        int32 [sequences]: number of stored tokens.
    """

    def __init__(
        self, layers: int, sequences: int, most: int, heads: int, head_dim: int, page: int, shuffled: bool, device: str
    ) -> None:
        each = -(-most // page)
        self.page, self.sequences, self.max_tokens = page, sequences, each * page
        dims = (sequences * self.max_tokens, heads, head_dim)
        self.k = [torch.zeros(dims, device=device, dtype=torch.bfloat16) for _ in range(layers)]
        self.v = [torch.zeros(dims, device=device, dtype=torch.bfloat16) for _ in range(layers)]
        generator = torch.Generator().manual_seed(0)
        count = sequences * each
        order = torch.randperm(count, generator=generator) if shuffled else torch.arange(count)
        self.table = order.to(torch.int32).view(sequences, each).to(device)
        self.lengths = torch.zeros(sequences, device=device, dtype=torch.int32)

    def find_slots(self, sequence: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Return the memory slots of tokens, given by sequence and position."""
        return self.table[sequence, position // self.page].long() * self.page + position % self.page

    def store(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys and values [n, h, d]."""
        self.k[layer].index_copy_(0, slots, k)
        self.v[layer].index_copy_(0, slots, v)

    def view_as_pages(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the memory of a layer as [pages, page, h, d]."""
        return memory.unflatten(0, (-1, self.page))

    def get_sequences(self, memory: torch.Tensor) -> torch.Tensor:
        """Return a layer's memory as [sequences, max_tokens, h, d]; valid only if the pages are in order."""
        return memory.unflatten(0, (self.sequences, self.max_tokens))


class Attention:
    """Interface of a provider for the model; attention that it does not offer raises :class:`AttentionNotOffered`."""

    name = ""
    page = 64
    shuffled = True

    def attend_packed(self, q: Any, k: Any, v: Any, cu: Any, longest: int) -> Any:
        """Return causal attention of packed sequences, all [n, h, d]."""
        raise AttentionNotOffered("it has no packed attention here")

    def attend_padded(self, q: Any, k: Any, v: Any) -> Any:
        """Return causal attention of [b, s, h, d]."""
        raise AttentionNotOffered("it has no dense attention here")

    def attend_cached(self, q: Any, layer: int, cache: PagedCache) -> Any:
        """Return attention of one token per sequence, [b, h, d], over the tokens in a cache."""
        raise AttentionNotOffered("it has no attention to a cache here")


class TorchDefaultAttention(Attention):
    """Torch's default attention, called for each sequence; also runs without a GPU."""

    name = "torch plain"

    def attend_packed(self, q: Any, k: Any, v: Any, cu: Any, longest: int) -> Any:
        ends = cu.tolist()
        parts = [
            self.attend_padded(*(x[None, begin:end] for x in (q, k, v)))[0] for begin, end in itertools.pairwise(ends)
        ]
        return torch.cat(parts)

    def attend_padded(self, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    def attend_cached(self, q: Any, layer: int, cache: PagedCache) -> Any:
        every = torch.arange(cache.max_tokens, device=q.device).repeat(cache.sequences, 1)
        slots = cache.find_slots(torch.arange(cache.sequences, device=q.device)[:, None], every)
        k, v = (memory[layer][slots].transpose(1, 2) for memory in (cache.k, cache.v))
        there = every < cache.lengths[:, None]
        return scaled_dot_product_attention(q.unsqueeze(2), k, v, attn_mask=there[:, None, None]).squeeze(2)


class CudnnBackendPyAttention(Attention):
    """Attention by the torch operators of this package."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.name = f"ours, {shapes}"

    def attend_packed(self, q: Any, k: Any, v: Any, cu: Any, longest: int) -> Any:
        return torch_ops.attention_varlen(q, k, v, cu, cu, longest, longest, causal=True, shapes=self.shapes)

    def attend_padded(self, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch_ops.attention(q, k, v, causal=True, shapes=self.shapes).transpose(1, 2)

    def attend_cached(self, q: Any, layer: int, cache: PagedCache) -> Any:
        k, v = (cache.view_as_pages(memory[layer]) for memory in (cache.k, cache.v))
        o = torch_ops.attention_with_kvcache(q.unsqueeze(1), k, v, cache.table, cache.lengths, shapes=self.shapes)
        return o.squeeze(1)


class TorchFlashAttention(Attention):
    """Torch's FlashAttention; packed tokens use ``torch.nn.attention.varlen`` if this torch has it."""

    name = "torch flash"
    page = 256  # FlashAttention-2 does not support smaller ones
    shuffled = False

    def attend_packed(self, q: Any, k: Any, v: Any, cu: Any, longest: int) -> Any:
        call = make_torch_packed_attention()
        if call is None:
            raise AttentionNotOffered("this torch has no attention of packed tokens")
        return call(q, k, v, cu, cu, longest, longest)

    def attend_padded(self, q: Any, k: Any, v: Any) -> Any:
        return _call_torch_backend("FLASH_ATTENTION", q, k, v, is_causal=True)

    def attend_cached(self, q: Any, layer: int, cache: PagedCache) -> Any:
        """Read the cache in place: sequences have a constant stride, and each has its own length."""
        ends = torch.arange(cache.sequences + 1, device=q.device, dtype=torch.int32)
        o, *_ = torch.ops.aten._flash_attention_forward(
            q,
            cache.k[layer],
            cache.v[layer],
            ends,
            ends * cache.max_tokens,
            1,
            cache.max_tokens,
            0.0,
            False,
            False,
            seqused_k=cache.lengths,
        )
        return o


class TorchCudnnAttention(Attention):
    """cuDNN called by torch; it does not offer packed attention, so sequences are padded to the longest."""

    name = "torch cudnn"
    shuffled = False
    _places: tuple[Any, Any] = (None, None)  # positions of the tokens of a batch, shared by all layers

    def attend_packed(self, q: Any, k: Any, v: Any, cu: Any, longest: int) -> Any:
        if self._places[0] is not cu:
            lengths = (cu[1:] - cu[:-1]).long()
            row = torch.repeat_interleave(lengths, output_size=len(q))
            position = torch.arange(len(q), device=q.device) - cu[:-1].long()[row]
            self._places = cu, row * longest + position
        rows, places = (len(cu) - 1, longest), self._places[1]
        wide = (x.new_zeros(rows[0] * rows[1], *x.shape[1:]).index_copy(0, places, x) for x in (q, k, v))
        return self.attend_padded(*(x.unflatten(0, rows) for x in wide)).flatten(0, 1).index_select(0, places)

    def attend_padded(self, q: Any, k: Any, v: Any) -> Any:
        return _call_torch_backend("CUDNN_ATTENTION", q, k, v, is_causal=True)

    def attend_cached(self, q: Any, layer: int, cache: PagedCache) -> Any:
        """Read the whole cache, and mask tokens that are not stored."""
        k, v = (cache.get_sequences(memory[layer]) for memory in (cache.k, cache.v))
        there = torch.arange(cache.max_tokens, device=q.device) < cache.lengths[:, None]
        return _call_torch_backend("CUDNN_ATTENTION", q.unsqueeze(1), k, v, attn_mask=there[:, None, None]).squeeze(1)


class TorchCudnnNestedAttention(Attention):
    """cuDNN called by torch, with nested tensors."""

    name = "torch cudnn, nested"
    shuffled = False

    def attend_packed(self, q: Any, k: Any, v: Any, cu: Any, longest: int) -> Any:
        ends = cu.long()
        nested = (
            torch.nested.nested_tensor_from_jagged(x, ends, min_seqlen=1, max_seqlen=longest).transpose(1, 2)
            for x in (q, k, v)
        )
        with _select_torch_backend("CUDNN_ATTENTION"):
            return scaled_dot_product_attention(*nested, is_causal=True).transpose(1, 2).values()


def _call_torch_backend(backend: str, q: Any, k: Any, v: Any, **options: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with _select_torch_backend(backend):
        return scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)


def _select_torch_backend(name: str) -> AbstractContextManager[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    context: AbstractContextManager[None] = sdpa_kernel(getattr(SDPBackend, name))
    return context


class CudnnFrontendAttention(Attention):
    """cudnn-frontend, called from an autograd function: one graph for each shape of dense tensors.

    For packed tokens, one graph per upper bound of the length, a power of two; lengths and offsets are inputs.
    """

    name = "cudnn-frontend"
    _ones: Any = None  # query lengths of 1, for decoding

    def __init__(self, folder: str | None = None) -> None:
        frontend, said = load_frontend(folder)
        if frontend is None:
            raise AttentionNotOffered(said)
        self._frontend = frontend
        self._made: dict[Any, Any] = {}
        self._numbers: tuple[Any, dict[str, Any]] = None, {}  # lengths and offsets of a batch, for all layers

    def attend_packed(self, q: Any, k: Any, v: Any, cu: Any, longest: int) -> Any:
        tokens, h, d = q.shape
        batch, s, total = (1 << (size - 1).bit_length() for size in (len(cu) - 1, longest, tokens))
        if self._numbers[0] is not cu:
            self._numbers = cu, _make_lengths_and_offsets(cu, batch, h, d)
        numbers = self._numbers[1]

        def run_packed_graph(direction: Any, buffers: dict[str, Any]) -> None:
            self._run_graph_built_once(
                (direction, batch, s, total, h, d), partial(_build_ragged_graph, direction), buffers | numbers
            )

        stats = torch.empty(tokens, h, device=q.device)
        return _FrontendAutogradFunction.apply(run_packed_graph, stats, q.contiguous(), k.contiguous(), v.contiguous())

    def attend_padded(self, q: Any, k: Any, v: Any) -> Any:
        b, s, h, d = q.shape

        def run_padded_graph(direction: Any, buffers: dict[str, Any]) -> None:
            self._run_graph_built_once((direction, b, s, h, d), partial(_build_dense_graph, direction), buffers)

        stats = torch.empty(b, h, s, 1, device=q.device)
        return _FrontendAutogradFunction.apply(run_padded_graph, stats, q.contiguous(), k.contiguous(), v.contiguous())

    def attend_cached(self, q: Any, layer: int, cache: PagedCache) -> Any:
        b, h, d = q.shape
        if self._ones is None:
            self._ones = torch.ones_like(cache.lengths)
        o = torch.empty_like(q)
        numbers = {
            "seq_len_q": self._ones,
            "seq_len_kv": cache.lengths,
            **{f"page_table_{name}": cache.table for name in "kv"},
        }
        buffers = {"q": q.contiguous(), "k": cache.k[layer], "v": cache.v[layer], "o": o, **numbers}
        self._run_graph_built_once(
            (b, h, d, cache.max_tokens, cache.page, len(cache.k[layer]) // cache.page), _build_paged_graph, buffers
        )
        return o

    def _run_graph_built_once(self, key: tuple[Any, ...], make: Callable[..., Any], buffers: dict[str, Any]) -> None:
        if key not in self._made:
            graph, tensors = make(self._frontend.cudnn, self._frontend.handle, key)
            self._made[key] = graph, self._frontend.call(graph, tensors)
        graph, arguments = self._made[key]
        stream = torch.cuda.current_stream().cuda_stream
        self._frontend.cudnn.set_stream(handle=self._frontend.handle, stream=stream)
        graph.execute(*arguments(buffers))


def _build_dense_graph(direction: Any, cudnn: Any, handle: Any, key: tuple[Any, ...]) -> Any:
    _, b, s, h, d = key
    size = {"batch": b, "heads": h, "seq_q": s, "head_dim": d, "data_type": _BFLOAT16, "causal": True}
    return build_frontend_attention(cudnn, handle, Problem(**size, stats=direction == "forward"), direction)


def _build_ragged_graph(direction: Any, cudnn: Any, handle: Any, key: tuple[Any, ...]) -> Any:
    _, b, s, total, h, d = key
    is_forward = direction == "forward"
    problem = Problem(
        batch=b,
        heads=h,
        seq_q=s,
        head_dim=d,
        data_type=_BFLOAT16,
        causal=True,
        padding=True,
        ragged=True,
        ragged_stats=True,
        stats=is_forward,
        max_total_seq_q=None if is_forward else total,
        max_total_seq_kv=None if is_forward else total,
    )
    return build_frontend_attention(cudnn, handle, problem, direction)


def _build_paged_graph(cudnn: Any, handle: Any, key: tuple[Any, ...]) -> Any:
    b, h, d, most, page, pages = key
    size = {"batch": b, "heads": h, "seq_q": 1, "head_dim": d, "data_type": _BFLOAT16, "padding": True}
    problem = Problem(**size, seq_kv=most, page_size=page, pages_k=pages, pages_v=pages)
    return build_frontend_attention(cudnn, handle, problem, "forward")


def _make_lengths_and_offsets(cu: Any, batch: int, heads: int, head_dim: int) -> dict[str, Any]:
    """Return lengths and offsets, padded with empty sequences up to `batch`."""
    ends = torch.cat([cu, cu[-1:].expand(batch + 1 - len(cu))])
    lengths, tokens = ends.diff(), ends * (heads * head_dim)
    numbers = {f"ragged_{name}": tokens for name in ("q", "k", "v", "o")}
    return numbers | {"ragged_stats": ends * heads, "seq_len_q": lengths, "seq_len_kv": lengths}


class _FrontendAutogradFunction(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, run: Callable[[Any, dict[str, Any]], None], stats: Any, q: Any, k: Any, v: Any) -> Any:
        o = torch.empty_like(q)
        run("forward", {"q": q, "k": k, "v": v, "o": o, "stats": stats})
        ctx.save_for_backward(q, k, v, o, stats)
        ctx.run = run
        return o

    @staticmethod
    def backward(ctx: Any, d_o: Any) -> Any:
        q, k, v, o, stats = ctx.saved_tensors
        made = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
        given = {"q": q, "k": k, "v": v, "o": o, "stats": stats, "do": d_o.contiguous()}
        ctx.run("backward", given | made)
        return None, None, *made.values()


ATTENTION_PROVIDERS: dict[str, Callable[[], Attention]] = {
    "torch flash": TorchFlashAttention,
    "ours, adaptive": lambda: CudnnBackendPyAttention("adaptive"),
    "torch cudnn": TorchCudnnAttention,
    "ours, any": lambda: CudnnBackendPyAttention("any"),
    "cudnn-frontend": CudnnFrontendAttention,
    "torch cudnn, nested": TorchCudnnNestedAttention,
    "ours, exact": lambda: CudnnBackendPyAttention("exact"),
    "torch plain": TorchDefaultAttention,
}


def make_attention_provider(name: str) -> Attention:
    """Return the provider with this name.

    Raises
    ------
    AttentionNotOffered
        It is not available.
    """
    return ATTENTION_PROVIDERS[name]()
