"""Attention of cudnn-frontend 1.25 and later on the GPU: cumulative lengths, offset multipliers, log2 statistics."""

from __future__ import annotations

import math
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import library

torch = pytest.importorskip("torch")

QUERIES, KEYS = (37, 128, 5, 64), (91, 128, 77, 64)
HEADS, KV_HEADS, WIDTH = 8, 2, 64
ATTENTION_SCALE = WIDTH**-0.5
FrontendType = cudnn.data_type


def skip_before_version(*version: int) -> None:
    if library().version < version:
        pytest.skip(f"did not run: cuDNN {library().version_text} is older than {version}")


def make_cumulative_lengths(lengths: tuple[int, ...]) -> list[int]:
    return [sum(lengths[:at]) for at in range(len(lengths) + 1)]


def make_int32_tensor(values: Any) -> Any:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def compute_reference_attention(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    """Return O and the natural log-sum-exp of one sequence; tensors have dims s, h, d."""
    q, k, v = q.double(), *(x.double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = torch.einsum("shd,thd->hst", q, k) * ATTENTION_SCALE
    if causal:
        s, t = scores.shape[1:]
        rows, columns = (torch.arange(n, device="cuda") for n in (s, t))
        scores = scores.masked_fill(columns[None] > rows[:, None] + t - s, -math.inf)
    return torch.einsum("hst,thd->shd", scores.softmax(-1), v), scores.logsumexp(-1).T


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("log2", [False, True])
@pytest.mark.parametrize("multiplied", [False, True])
def test_packed_sequences_are_given_by_cumulative_lengths(multiplied: bool, log2: bool, causal: bool) -> None:
    """One operation reads ``cu_seq_len`` and, with a multiplier, the same cumulative lengths as ragged offsets."""
    skip_before_version(9, 27, 0) if log2 else skip_before_version(9, 24, 0)
    torch.manual_seed(1)
    q = torch.randn(sum(QUERIES), HEADS, WIDTH, device="cuda").half()
    k, v = (torch.randn(sum(KEYS), KV_HEADS, WIDTH, device="cuda").half() for _ in "kv")
    o = torch.full_like(q, torch.nan)
    stats = torch.full((sum(QUERIES), HEADS), torch.nan, device="cuda")
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    g = cudnn.pygraph(
        io_data_type=FrontendType.HALF,
        intermediate_data_type=FrontendType.FLOAT,
        compute_data_type=FrontendType.FLOAT,
        handle=handle,
    )
    pack: dict[Any, Any] = {}

    def add_int32_tensor(name: str, buffer: Any) -> Any:
        made = g.tensor(name=name, dim=[len(buffer), 1, 1, 1], stride=[1, 1, 1, 1], data_type=FrontendType.INT32)
        pack[made] = buffer
        return made

    def set_ragged_offset_from_lengths(item: Any, lengths: tuple[int, ...], row: int) -> None:
        item.set_ragged_offset(
            add_int32_tensor(
                f"{item.name} starts", make_int32_tensor(make_cumulative_lengths(lengths)) * (1 if multiplied else row)
            )
        )
        if multiplied:
            item.set_ragged_offset_multiplier(row)

    made = {}
    for name, lengths, heads in (("q", QUERIES, HEADS), ("k", KEYS, KV_HEADS), ("v", KEYS, KV_HEADS)):
        dims = [len(lengths), heads, max(lengths), WIDTH]
        strides = [heads * max(lengths) * WIDTH, WIDTH, heads * WIDTH, 1]
        made[name] = g.tensor(name=name, dim=dims, stride=strides)
        set_ragged_offset_from_lengths(made[name], lengths, heads * WIDTH)
    made["o"], made["stats"] = g.sdpa(
        q=made["q"],
        k=made["k"],
        v=made["v"],
        attn_scale=ATTENTION_SCALE,
        generate_stats=True,
        use_padding_mask=True,
        use_causal_mask_bottom_right=causal,
        cu_seq_len_q=add_int32_tensor("sums of queries", make_int32_tensor(make_cumulative_lengths(QUERIES))),
        cu_seq_len_kv=add_int32_tensor("sums of keys", make_int32_tensor(make_cumulative_lengths(KEYS))),
        **({"stats_use_log2": True} if log2 else {}),
    )
    dims = [len(QUERIES), HEADS, max(QUERIES), WIDTH]
    made["o"].set_output(True).set_dim(dims).set_stride([HEADS * max(QUERIES) * WIDTH, WIDTH, HEADS * WIDTH, 1])
    set_ragged_offset_from_lengths(made["o"], QUERIES, HEADS * WIDTH)
    made["stats"].set_output(True).set_dim([*dims[:3], 1]).set_stride([HEADS * max(QUERIES), 1, HEADS, 1])
    made["stats"].set_data_type(FrontendType.FLOAT)
    set_ragged_offset_from_lengths(made["stats"], QUERIES, HEADS)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    assert len(g.graph().ops) == 1
    pack |= {made["q"]: q, made["k"]: k, made["v"]: v, made["o"]: o, made["stats"]: stats}
    workspace = torch.empty(max(1, g.get_workspace_size()), dtype=torch.uint8, device="cuda")
    for _ in range(2):  # by Python, then by the compiled call
        o.fill_(torch.nan)
        stats.fill_(torch.nan)
        g.execute(pack, workspace, handle=handle)
        torch.cuda.synchronize()
        for one, (first, key) in enumerate(
            zip(make_cumulative_lengths(QUERIES), make_cumulative_lengths(KEYS), strict=True)
        ):
            if one == len(QUERIES):
                break
            rows, keys = slice(first, first + QUERIES[one]), slice(key, key + KEYS[one])
            want, sums = compute_reference_attention(q[rows], k[keys], v[keys], causal)
            torch.testing.assert_close(o[rows].double(), want, atol=4e-3, rtol=4e-3)
            want_stats = sums / math.log(2) if log2 else sums
            torch.testing.assert_close(stats[rows].double(), want_stats, atol=1e-3, rtol=1e-3)


def test_override_shapes_of_a_matmul_use_their_workspace_size() -> None:
    """Run one plan with new dims at each call, each with the workspace size that cuDNN 9.23 reports for its dims."""
    skip_before_version(9, 23, 0)
    torch.manual_seed(2)
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    g = cudnn.pygraph(
        io_data_type=FrontendType.BFLOAT16,
        intermediate_data_type=FrontendType.FLOAT,
        compute_data_type=FrontendType.FLOAT,
        handle=handle,
        is_override_shape_enabled=True,
    )
    a = g.tensor(dim=[1, 64, 256], stride=[64 * 256, 256, 1], uid=1)
    b = g.tensor(dim=[1, 256, 128], stride=[256 * 128, 1, 256], uid=2)
    g.matmul(a, b).set_output(True).set_uid(3)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    y = torch.randn(1, 128, 256, device="cuda").bfloat16().transpose(1, 2)
    for m in (64, 17, 48, 96):
        x, z = torch.randn(1, m, 256, device="cuda").bfloat16(), torch.full((1, m, 128), torch.nan, device="cuda")
        buffers = {1: x, 2: y, 3: z.bfloat16()}
        other: tuple[Any, ...] = (
            list(buffers),
            [list(item.shape) for item in buffers.values()],
            [list(item.stride()) for item in buffers.values()],
        )
        size = g.get_workspace_size(handle, *other)
        assert size >= 0
        g.execute(buffers, torch.empty(max(1, size), dtype=torch.uint8, device="cuda"), handle, *other)
        torch.cuda.synchronize()
        torch.testing.assert_close(buffers[3].double(), x.double() @ y.double(), atol=0.3, rtol=1e-2)


def test_threads_execute_one_graph_with_separate_variant_packs() -> None:
    """Each thread has its own variant pack, handle and stream, and reads its own results."""
    import threading

    g = cudnn.pygraph(io_data_type=FrontendType.BFLOAT16, compute_data_type=FrontendType.FLOAT)
    a, b = (g.tensor(dim=[1, 64, 64], stride=[4096, 64, 1]) for _ in "ab")
    c = g.matmul(a, b)
    c.set_output(True)
    g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    wrong: list[tuple[int, float]] = []

    def execute_in_thread(number: int) -> None:
        handle, stream = cudnn.create_handle(), torch.cuda.Stream()
        cudnn.set_stream(handle=handle, stream=stream.cuda_stream)
        with torch.cuda.stream(stream):
            x = torch.full((1, 64, 64), float(number + 1), device="cuda", dtype=torch.bfloat16)
            y = torch.eye(64, device="cuda", dtype=torch.bfloat16)[None]
            workspace = torch.empty(max(1, g.get_workspace_size()), dtype=torch.uint8, device="cuda")
            outs = [torch.empty_like(x) for _ in range(2)]
            for at in range(300):
                out = outs[at % 2]
                g.execute({a: x, b: y, c: out}, workspace, handle=handle)
                if at % 10 == 0 and (seen := out.mean().item()) != number + 1:
                    wrong.append((number, seen))

    threads = [threading.Thread(target=execute_in_thread, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
