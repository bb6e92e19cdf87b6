"""Compare some rows of torch's attention results with the reference on the CPU: only right results pass."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import reference
from cudnn_backend_py.torch_ops.arguments import OperatorOptions

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")

from cudnn_backend_py.audit.rows import FACTS, check_sampled_gradients, check_sampled_output_rows  # noqa: E402

SEEDS = range(40)


class AttentionProblem:
    """A random attention problem with its tensors and correct results."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.kind = draw.choice([torch.float16, torch.bfloat16, torch.float32])
        batch, heads, group, d = draw.choice([1, 2]), draw.choice([1, 2]), draw.choice([1, 2]), draw.choice([8, 64])
        s_q, s_kv = draw.choice([1, 17, 64, 130]), draw.choice([1, 40, 129])
        dims = {"q": (batch, heads * group, s_q, d), "k": (batch, heads, s_kv, d), "v": (batch, heads, s_kv, d)}
        self.named = {name: torch.randn(*size).to(self.kind) for name, size in dims.items()}
        given: dict[str, Any] = {}
        if draw.random() < 0.4:
            self.named["bias"] = torch.randn(1, heads * group, s_q, s_kv).to(self.kind)
            given["bias"] = self.make_float64_array(self.named["bias"])
        if draw.random() < 0.4:
            self.named["alibi_slopes"] = 0.1 * torch.rand(heads * group)
            given["alibi_slopes"] = self.make_float64_array(self.named["alibi_slopes"])
        if draw.random() < 0.4:
            self.named["sink"] = torch.randn(heads * group)
            given["sink"] = self.make_float64_array(self.named["sink"])
        if draw.random() < 0.4:
            self.named["seq_len_q"] = torch.randint(1, s_q + 1, (batch,), dtype=torch.int32)
            self.named["seq_len_kv"] = torch.randint(1, s_kv + 1, (batch,), dtype=torch.int32)
            given |= {name: self.named[name].numpy() for name in ("seq_len_q", "seq_len_kv")}
        left, right = draw.choice([None, 5]), draw.choice([None, 0, 7])
        bottom = draw.choice([True, False])
        self.options = OperatorOptions(draw.choice([None, 0.3]), 0.0, left, right, bottom, None, False)
        given |= {"scale": self.options.scale, "left_bound": left, "right_bound": right}
        given["alignment"] = "bottom_right" if bottom else "top_left"
        q, k, v = (self.make_float64_array(self.named[name]) for name in "qkv")
        self.d_o = torch.randn(batch, heads * group, s_q, d).to(self.kind)
        made = reference.forward(q, k, v, **given)
        self.o = torch.from_numpy(made.o).to(self.kind)
        back = reference.backward(q, k, v, made.o, self.make_float64_array(self.d_o), made.stats, **given)
        self.gradients = {name: torch.from_numpy(getattr(back, name)).to(self.kind) for name in ("dq", "dk", "dv")}

    @staticmethod
    def make_float64_array(x: Any) -> Any:
        return np.asarray(x.double().numpy())

    def check(self, o: Any, gradients: dict[str, Any]) -> dict[str, list[float]]:
        found = check_sampled_output_rows(self.named, self.options, o, self.generator)
        found |= check_sampled_gradients(self.named, self.options, self.d_o, gradients, self.generator)
        return {name: x.tolist() for name, x in found.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_right_attention_results_pass_the_row_check(seed: int) -> None:
    made = AttentionProblem(seed)
    found = made.check(made.o, made.gradients)
    assert set(found) == {"o", "dq", "dk", "dv"}
    assert {name: x for name, x in found.items() if x[0]} == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_attention_results_that_are_10_percent_too_large_are_reported(seed: int) -> None:
    """An error in O is always found; for gradients over many keys, the allowed error may be larger."""
    made = AttentionProblem(seed)
    wrong = 1.1 if made.kind is not torch.bfloat16 else 1.3
    found = made.check(made.o * wrong, made.gradients)
    assert found["o"][0] == (found["o"][FACTS.index("compared")] > 0)


@pytest.mark.parametrize("name", ["o", "dq", "dk", "dv"])
def test_a_single_nan_is_found_in_any_tensor(name: str) -> None:
    made = AttentionProblem(3)
    results = {"o": made.o.clone(), **{key: x.clone() for key, x in made.gradients.items()}}
    batch, heads, rows, _ = results[name].shape
    results[name][batch - 1, heads - 1, rows // 2, 3] = float("nan")
    seen = {"o": made.o, **made.gradients, name: results[name]}
    found = made.check(seen["o"], {key: seen[key] for key in ("dq", "dk", "dv")})
    assert found[name][0] == 1.0
    assert [key for key, x in found.items() if x[0]] == [name]
    group = made.named["q"].shape[1] // made.named[name.removeprefix("d")].shape[1] if name in ("dk", "dv") else 1
    all_heads = made.named["q"].shape[1]
    assert found[name][FACTS.index("head")] == (batch - 1) * all_heads + (heads - 1) * group


@pytest.mark.parametrize("packed", [False, True])
def test_the_row_check_copies_no_data_to_the_host(packed: bool) -> None:
    """Use tensors that refuse every read of their data: on a GPU, a read would wait for the stream."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        if packed:
            q, k, v = (torch.empty(111, heads, 32, dtype=torch.float16) for heads in (4, 2, 2))
            starts = torch.empty(5, dtype=torch.int32)
            named = {"q": q, "k": k, "v": v, "cu_seqlens_q": starts, "cu_seqlens_k": starts}
            options = OperatorOptions(None, 0.0, None, 0, True, None, False, 64, 64)
        else:
            q, k, v = (torch.empty(2, heads, 64, 32, dtype=torch.float16) for heads in (4, 2, 2))
            named = {"q": q, "k": k, "v": v}
            options = OperatorOptions(None, 0.0, None, 0, False, 30.0, False)
        gradients = {f"d{name}": torch.empty_like(named[name]) for name in "qkv"}
        found = check_sampled_output_rows(named, options, torch.empty_like(q), None)
        found |= check_sampled_gradients(named, options, torch.empty_like(q), gradients, None)
        assert all(x.shape == (len(FACTS),) for x in found.values())
    assert {"o", "dq"} <= set(found)


def test_packed_and_paged_rows_are_checked_with_their_sequence() -> None:
    torch.manual_seed(0)
    generator = torch.Generator()
    lengths = [40, 0, 64, 7]
    starts = torch.tensor([0, 40, 40, 104, 111], dtype=torch.int32)
    q, k, v = (torch.randn(111, heads, 32).half() for heads in (4, 2, 2))
    o = torch.zeros(111, 4, 32).half()
    for start, length in zip(starts.tolist(), lengths, strict=False):
        if length:
            part = [x[start : start + length].transpose(0, 1)[None].double().numpy() for x in (q, k, v)]
            made = reference.forward(*part, right_bound=0)
            o[start : start + length] = torch.from_numpy(made.o[0]).transpose(0, 1).half()
    options = OperatorOptions(None, 0.0, None, 0, True, None, False, 64, 64)
    named = {"q": q, "k": k, "v": v, "cu_seqlens_q": starts, "cu_seqlens_k": starts}
    assert check_sampled_output_rows(named, options, o, generator)["o"][0] == 0
    assert check_sampled_output_rows(named, options, 1.1 * o, generator)["o"][0] == 1
    table = torch.tensor([[5, 0, 3, 1], [2, 7, 6, 4]], dtype=torch.int32)
    have = torch.tensor([33, 64], dtype=torch.int32)
    pages = [torch.randn(8, 2, 16, 32).half() for _ in range(2)]
    rows = torch.randn(2, 4, 3, 32).half()
    o = torch.zeros_like(rows)
    for b in range(2):
        keys = [
            x[table[b].long()].transpose(0, 1).reshape(1, 2, 64, 32)[:, :, : have[b]].double().numpy() for x in pages
        ]
        made = reference.forward(rows[b][None].double().numpy(), *keys, right_bound=0, alignment="bottom_right")
        o[b] = torch.from_numpy(made.o[0]).half()
    named = {"q": rows, "k": pages[0], "v": pages[1], "block_table": table, "seq_len_kv": have}
    assert check_sampled_output_rows(named, options, o, generator)["o"][0] == 0
    assert check_sampled_output_rows(named, options, 1.1 * o, generator)["o"][0] == 1
