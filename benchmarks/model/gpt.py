"""A small GPT over packed tokens, and batches of random lengths to train and serve it with.

The caller passes attention as a function; the model itself does not use the layout of the sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

__all__ = [
    "AttentionFunction",
    "Gpt",
    "ModelSizes",
    "TrainingBatch",
    "compute_loss",
    "make_packed_batches",
    "make_padded_batches",
    "make_prompts",
]

AttentionFunction = Callable[[int, Any, Any, Any], Any]  # layer, q, k, v [n, h, d] to o [n, h, d]


@dataclass(frozen=True)
class ModelSizes:
    layers: int = 8
    heads: int = 12
    head_dim: int = 64
    vocabulary: int = 512
    positions: int = 4096

    @property
    def width(self) -> int:
        """Number of features per token."""
        return self.heads * self.head_dim


class _TransformerBlock(nn.Module):  # type: ignore[misc]  # torch may be absent where types are checked
    def __init__(self, sizes: ModelSizes, layer: int, is_contiguous: bool) -> None:
        super().__init__()
        self.layer, self.heads, self.is_contiguous = layer, (sizes.heads, sizes.head_dim), is_contiguous
        width = sizes.width
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        for last in (
            self.out,
            self.down,
        ):  # keeps the magnitude of the residual sum independent of the number of layers
            nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * sizes.layers))

    def forward(self, x: torch.Tensor, attend: AttentionFunction) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(1, (3, *self.heads)).unbind(1)
        if self.is_contiguous:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        x = x + self.out(attend(self.layer, q, k, v).flatten(1))
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x)), approximate="tanh"))


class Gpt(nn.Module):  # type: ignore[misc]
    """A decoder in bfloat16: the same seed gives the same weights."""

    def __init__(self, sizes: ModelSizes, seed: int = 0, device: str = "cuda", *, is_contiguous: bool = False) -> None:
        super().__init__()
        self.sizes = sizes
        torch.manual_seed(seed)
        self.tokens, self.places = (
            nn.Embedding(sizes.vocabulary, sizes.width),
            nn.Embedding(sizes.positions, sizes.width),
        )
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList(_TransformerBlock(sizes, layer, is_contiguous) for layer in range(sizes.layers))
        self.last = nn.LayerNorm(sizes.width)
        self.to(device, torch.bfloat16)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: AttentionFunction) -> torch.Tensor:
        """Return logits [n, vocabulary] of tokens [n] at positions [n]."""
        x = self.tokens(tokens) + self.places(positions)
        for block in self.blocks:
            x = block(x, attend)
        return torch.nn.functional.linear(self.last(x), self.tokens.weight)


def compute_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy in nats; targets of -1 do not count."""
    return cross_entropy(logits.float(), targets, ignore_index=-1)


@dataclass(frozen=True)
class TrainingBatch:
    """Sequences to train on: tokens, targets and positions [n], and the layout of the sequences.

    Packed: `cu` int32 [sequences + 1] has the start of each. Padded: `cu` is None, `sequences` rows of `longest`.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    sequences: int
    longest: int
    real: int
    cu: torch.Tensor | None = None


def _make_random_text(length: int, vocabulary: int, generator: torch.Generator) -> torch.Tensor:
    """Return random tokens, most of them determined by the previous token, so that the model can learn."""
    noise = torch.randint(vocabulary, (length + 1,), generator=generator).tolist()
    kept = (torch.rand(length + 1, generator=generator) < 0.85).tolist()
    text = noise[:1]
    for number in range(1, length + 1):
        text.append((text[-1] * 5 + 7) % vocabulary if kept[number] else noise[number])
    return torch.tensor(text)


def _make_random_length(least: int, most: int, generator: torch.Generator) -> int:
    """Return a random length, uniform on a logarithmic scale."""
    share = float(torch.rand((), generator=generator))
    return round(math.exp(math.log(least) + share * (math.log(most) - math.log(least))))


def make_packed_batches(
    count: int, tokens: int, most: int, sizes: ModelSizes, seed: int, device: str = "cuda"
) -> list[TrainingBatch]:
    """Return batches of whole sequences of 16 to `most` tokens, with about `tokens` in total."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        lengths: list[int] = []
        while sum(lengths) < tokens:
            lengths.append(min(_make_random_length(16, most, generator), max(16, tokens - sum(lengths))))
        texts = [_make_random_text(length, sizes.vocabulary, generator) for length in lengths]
        cu = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        batches.append(
            TrainingBatch(
                torch.cat([text[:-1] for text in texts]).to(device),
                torch.cat([text[1:] for text in texts]).to(device),
                torch.cat([torch.arange(length) for length in lengths]).to(device),
                len(lengths),
                max(lengths),
                sum(lengths),
                cu.to(device),
            )
        )
    return batches


def make_padded_batches(
    count: int, sequences: int, most: int, sizes: ModelSizes, seed: int, device: str = "cuda"
) -> list[TrainingBatch]:
    """Return batches of `count` sequences of 16 to `most` tokens, padded to the longest of each batch.

    Each batch has a different longest length, as far as there are enough lengths.
    """
    generator = torch.Generator().manual_seed(seed)
    batches: list[TrainingBatch] = []
    for number in range(count):
        lengths = [_make_random_length(16, most, generator) for _ in range(sequences)]
        longest = max(lengths)
        while number < most - 16 and longest in [batch.longest for batch in batches]:
            lengths[0] = longest = 16 + (longest - 16 + 1) % (most - 15)
            lengths = [min(length, longest) for length in lengths]
        tokens = torch.zeros(sequences, longest, dtype=torch.int64)
        targets = torch.full((sequences, longest), -1)
        for row, length in enumerate(lengths):
            text = _make_random_text(length, sizes.vocabulary, generator)
            tokens[row, :length], targets[row, :length] = text[:-1], text[1:]
        positions = torch.arange(longest).repeat(sequences)
        batches.append(
            TrainingBatch(
                tokens.flatten().to(device),
                targets.flatten().to(device),
                positions.to(device),
                sequences,
                longest,
                sum(lengths),
            )
        )
    return batches


def make_prompts(
    count: int, most: int, after: int, sizes: ModelSizes, seed: int, device: str = "cuda"
) -> tuple[TrainingBatch, torch.Tensor]:
    """Return packed prompts of random lengths, and the next `after` tokens of each, [after + 1, count]."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [_make_random_length(16, most, generator) for _ in range(count)]
    texts = [_make_random_text(length + after, sizes.vocabulary, generator) for length in lengths]
    cu = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    heads = [text[:length] for text, length in zip(texts, lengths, strict=True)]
    tails: Any = [text[length:] for text, length in zip(texts, lengths, strict=True)]
    targets = [text[1 : length + 1] for text, length in zip(texts, lengths, strict=True)]
    return (
        TrainingBatch(
            torch.cat(heads).to(device),
            torch.cat(targets).to(device),
            torch.cat([torch.arange(length) for length in lengths]).to(device),
            count,
            max(lengths),
            sum(lengths),
            cu.to(device),
        ),
        torch.stack(tails, 1).to(device),
    )
