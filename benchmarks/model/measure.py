"""Measure training and serving of the model with one attention provider, in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from cudnn_backend_py.errors import CudnnBackendError

from .attentions import Attention, AttentionNotOffered, PagedCache, make_attention_provider
from .gpt import Gpt, ModelSizes, TrainingBatch, compute_loss, make_packed_batches, make_padded_batches, make_prompts

__all__ = ["BATCH_LAYOUTS", "FULL_WORK", "SMALL_WORK", "WorkAmount", "measure_attention_provider"]

BATCH_LAYOUTS = ("packed", "padded")  # for training; the packed layout is used for serving as well


@dataclass(frozen=True)
class WorkAmount:
    """The amount of work: the same steps on the same batches for every provider.

    In the first epoch, each step has a different length. An epoch ends after `limit_s`, so that a slow machine does not
    block the run; then only the losses before that point are compared.
    """

    sizes: ModelSizes = field(default_factory=ModelSizes)
    steps: int = 64  # number of steps of the first epoch
    tokens: int = 16384  # tokens of a packed batch
    rows: int = 8  # sequences of a padded batch
    max_packed_length: int = 4096
    max_padded_length: int = 2048
    requests: int = 64
    max_prompt_length: int = 1024
    decoded_tokens: int = 64
    later_steps: int = 24  # number of steps of later epochs
    limit_s: float = 40.0  # time limit of an epoch
    is_contiguous: bool = False  # whether q, k and v are copied out of their common tensor


FULL_WORK = WorkAmount()
SMALL_WORK = WorkAmount(ModelSizes(2, 2, 16, 64, 256), 3, 128, 2, 64, 48, 3, 24, 3, 3)
COMPARED_BATCHES = 4  # batches with losses and gradients compared at the same weights
GPU_MEMORY_DIVISOR = (
    16  # each process reserves this fraction of the GPU's memory at the start, as ten processes share the GPU
)


class GpuSynchronizedClock:
    """A clock in milliseconds that waits for all GPU work before and after a measurement."""

    def __init__(self, device: str) -> None:
        self._wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None

    @contextmanager
    def __call__(self, into: list[float]) -> Iterator[None]:
        self._wait()
        start = time.perf_counter()
        yield
        self._wait()
        into.append(round((time.perf_counter() - start) * 1e3, 3))


class TrainingRun:
    """A model with optimizer and the batches of all epochs; all providers have the same initial weights."""

    def __init__(self, effort: WorkAmount, attention: Attention, way: str, device: str) -> None:
        self.effort, self.attention, self.device = effort, attention, device
        self.model = Gpt(effort.sizes, device=device, is_contiguous=effort.is_contiguous)
        self._begin = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.reset()

        def make_batches_of_layout(count: int, seed: int) -> list[TrainingBatch]:
            if way == "packed":
                return make_packed_batches(count, effort.tokens, effort.max_packed_length, effort.sizes, seed, device)
            return make_padded_batches(count, effort.rows, effort.max_padded_length, effort.sizes, seed, device)

        self.first, self.other, self.warm = (
            make_batches_of_layout(effort.steps, 1),
            make_batches_of_layout(effort.later_steps, 2),
            make_batches_of_layout(6, 3),
        )
        self._wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None

    def reset(self) -> None:
        """Restore the initial weights."""
        self.model.load_state_dict(self._begin)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=self.device == "cuda")

    def warm_up(self) -> None:
        """Run steps without attention, and allocate the memory of later steps, before any measurement."""
        for batch in self.warm:
            self.step(batch, _skip_attention)
        self.reset()
        if self.device == "cuda":  # allocate now: later calls of the driver would wait for other processes
            torch.cuda.empty_cache()
            torch.empty(torch.cuda.mem_get_info()[1] // GPU_MEMORY_DIVISOR, dtype=torch.uint8, device="cuda")
            torch.cuda.reset_peak_memory_stats()

    def make_attention_function(self, batch: TrainingBatch) -> Callable[..., Any]:
        """Return the attention function of a batch, as the model calls it."""
        if batch.cu is not None:
            cu = batch.cu
            return lambda _layer, q, k, v: self.attention.attend_packed(q, k, v, cu, batch.longest)
        rows = batch.sequences, batch.longest
        return lambda _layer, q, k, v: self.attention.attend_padded(*(x.unflatten(0, rows) for x in (q, k, v))).flatten(
            0, 1
        )

    def compute_loss_and_gradients(
        self, batch: TrainingBatch, attend: Callable[..., Any] | None = None
    ) -> torch.Tensor:
        """Run the forward and the backward pass of a batch, and return its loss."""
        loss = compute_loss(
            self.model(batch.tokens, batch.positions, attend or self.make_attention_function(batch)), batch.targets
        )
        loss.backward()
        return loss.detach()

    def step(self, batch: TrainingBatch, attend: Callable[..., Any] | None = None) -> torch.Tensor:
        """Run a training step and return its loss."""
        loss = self.compute_loss_and_gradients(batch, attend)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def train_epoch(self, batches: list[TrainingBatch]) -> dict[str, Any]:
        """Train on batches, one after the other; return the time of each step.

        For each step: the time until the GPU was done, until the host had queued it, and the time between CUDA events.
        """
        steps: list[float] = []
        host: list[float] = []
        events: list[tuple[Any, Any]] = []
        losses = []
        tokens = 0
        for batch in batches:
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self.device == "cuda" else []
            self._wait()
            start = time.perf_counter()
            for event in pair[:1]:
                event.record()
            losses.append(self.step(batch))
            for event in pair[1:]:
                event.record()
            queued = time.perf_counter()
            self._wait()
            steps.append(round((time.perf_counter() - start) * 1e3, 3))
            host.append(round((queued - start) * 1e3, 3))
            events += [(pair[0], pair[1])] if pair else []
            tokens += batch.real
            if sum(steps) > self.effort.limit_s * 1e3:
                break
        seconds = sum(steps) / 1e3
        found = {
            "first_step_ms": steps[0],
            "step_ms": round(statistics.median(steps), 3),
            "host_ms": round(statistics.median(host), 3),
            "seconds": round(seconds, 4),
            "tokens_per_second": round(tokens / seconds),
            "steps": len(steps),
            "steps_ms": steps,
            "hosts_ms": host,
            "losses": [round(float(loss), 5) for loss in losses],
        }
        cuda = [round(begin.elapsed_time(end), 3) for begin, end in events]
        return found | ({"cuda_ms": round(statistics.median(cuda), 3)} if cuda else {})

    def compute_losses_at_initial_weights(self) -> dict[str, Any]:
        """Return the losses and gradients of the first batches at the initial weights; they differ by rounding only.

        Of the gradients, the norms for the weights of each layer that produce q, k and v are returned.
        """
        self.reset()
        losses, norms = [], []
        for batch in self.first[:COMPARED_BATCHES]:
            losses.append(float(self.compute_loss_and_gradients(batch)))
            norms.append([float(block.qkv.weight.grad.float().norm()) for block in self.model.blocks])
            self.optimizer.zero_grad(set_to_none=True)
        return {"losses": losses, "gradients": norms}


def _skip_attention(_layer: int, _q: Any, _k: Any, v: Any) -> Any:
    return v


def measure_training(made: TrainingRun) -> dict[str, Any]:
    """Return the times of training: first epoch, new lengths, and the first lengths again."""
    found = {"first epoch": made.train_epoch(made.first)}
    found["new lengths"] = made.train_epoch(made.other)
    met = made.first[: min(made.effort.later_steps, found["first epoch"]["steps"])]
    found["known lengths"] = made.train_epoch(met)
    return found


class ServingRun:
    """A model that answers requests, with a cache of keys and values."""

    def __init__(self, effort: WorkAmount, attention: Attention, model: Gpt, device: str) -> None:
        self.effort, self.attention, self.model, self.device = effort, attention, model, device
        self.extra = 2 * effort.decoded_tokens + 4
        self.prompts, self.tails = make_prompts(
            effort.requests, effort.max_prompt_length, self.extra, effort.sizes, 5, device
        )
        sizes = effort.sizes
        most = effort.max_prompt_length + self.extra
        self.cache = PagedCache(
            sizes.layers,
            effort.requests,
            most,
            sizes.heads,
            sizes.head_dim,
            attention.page,
            attention.shuffled,
            device,
        )
        self.rows = torch.arange(effort.requests, device=device)
        self.clock = GpuSynchronizedClock(device)

    def prefill(self) -> torch.Tensor:
        """Process the packed prompts, and return the logits after each."""
        batch, cache = self.prompts, self.cache
        assert batch.cu is not None
        cu = batch.cu
        lengths = cu[1:] - cu[:-1]
        sequence = torch.repeat_interleave(self.rows, lengths.long(), output_size=len(batch.tokens))
        slots = cache.find_slots(sequence, batch.positions)

        def run_attention(layer: int, q: Any, k: Any, v: Any) -> Any:
            cache.store(layer, slots, k, v)
            return self.attention.attend_packed(q, k, v, cu, batch.longest)

        logits: torch.Tensor = self.model(batch.tokens, batch.positions, run_attention)
        cache.lengths.copy_(lengths)
        return logits[cu[1:].long() - 1]

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """Process one more token of each request, and return its logits."""
        cache = self.cache
        positions = cache.lengths.long()
        slots = cache.find_slots(self.rows, positions)
        cache.lengths.add_(1)

        def run_attention(layer: int, q: Any, k: Any, v: Any) -> Any:
            cache.store(layer, slots, k, v)
            return self.attention.attend_cached(q, layer, cache)

        logits: torch.Tensor = self.model(tokens, positions, run_attention)
        return logits

    def serve_eagerly(self) -> dict[str, Any]:
        """Serve token by token, without a CUDA graph."""
        first: list[float] = []
        rest: list[float] = []
        with self.clock(first):
            logits = [self.prefill()]
        with self.clock(first):
            logits.append(self.decode(self.tails[0]))
        count = self.effort.decoded_tokens
        with self.clock(rest):
            logits += [self.decode(self.tails[number]) for number in range(1, count)]
        losses = [float(compute_loss(x, self.tails[number])) for number, x in enumerate(logits)]
        return {
            "prefill_ms": first[0],
            "first_decode_ms": first[1],
            "decode_ms": round(rest[0] / (count - 1), 4),
            "tokens_per_second": round(self.effort.requests * (count - 1) / rest[0] * 1e3),
            "loss": round(statistics.mean(losses), 5),
        }

    def serve_by_cuda_graph(self) -> dict[str, Any]:
        """Serve by a CUDA graph of one step, which is replayed while tokens and lengths change."""
        at = self.effort.decoded_tokens
        given = self.tails[at].clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for number in range(2):
                given.copy_(self.tails[at + number])
                self.decode(given)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        at += 2
        graph = torch.cuda.CUDAGraph()
        before = self.cache.lengths.clone()
        with torch.cuda.graph(graph, stream=stream):
            logits = self.decode(given)
        assert torch.equal(before, self.cache.lengths), "a capture runs nothing"
        spent: list[float] = []
        losses = []
        count = self.effort.decoded_tokens
        for number in range(count):
            with self.clock(spent):
                given.copy_(self.tails[at + number])
                graph.replay()
            losses.append(float(compute_loss(logits, self.tails[at + number + 1])))
        milliseconds = statistics.median(spent)
        return {
            "decode_ms": round(milliseconds, 4),
            "tokens_per_second": round(self.effort.requests / milliseconds * 1e3),
            "loss": round(statistics.mean(losses), 5),
        }


def measure_attention_provider(
    name: str, way: str, effort: WorkAmount, device: str, ready: Callable[[], None]
) -> dict[str, Any]:
    """Return the times of a provider in one of :data:`BATCH_LAYOUTS`, or the reason why a part is not offered.

    `ready` is called just before the clock starts; attention has not been used before.
    """
    if device == "cuda":
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
    try:
        made = TrainingRun(effort, make_attention_provider(name), way, device)
        made.warm_up()
    except AttentionNotOffered as error:
        ready()
        return {way: {"not measured": str(error)}}
    finally:
        if device == "cuda":
            torch.cuda.synchronize()
    ready()
    trained = _measure_or_return_error(measure_training, made)
    if "not measured" in trained:
        return {way: trained}
    if device == "cuda":
        trained["gpu_memory_bytes"] = torch.cuda.max_memory_allocated()
    served = _measure_serving(effort, made.attention, made.model, device) if way == "packed" else {}
    return {way: trained | {"same weights": _measure_or_return_error(made.compute_losses_at_initial_weights)}} | served


def _measure_serving(effort: WorkAmount, attention: Attention, model: Gpt, device: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with torch.no_grad():
        served = ServingRun(effort, attention, model, device)
        ways = {"serving": served.serve_eagerly}
        if device == "cuda":
            ways["serving, captured"] = served.serve_by_cuda_graph
        for way, run in ways.items():
            found[way] = _measure_or_return_error(run)
            if "not measured" in found[way]:
                break  # after this error the state of the GPU is undefined
    return found


def _measure_or_return_error(run: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """Return the measured figures, or the reason why the measurement failed."""
    try:
        return run(*given)
    except (AttentionNotOffered, RuntimeError, TypeError, AssertionError, CudnnBackendError) as error:
        return {"not measured": f"{type(error).__name__}: {str(error).strip()[:400]}"}
