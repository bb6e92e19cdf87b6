"""Programs to audit: each calls cuDNN through one entry point and triggers one known issue.

``python -m cudnn_backend_py.audit -m tests.support.audited_programs NAME`` runs one.
:data:`CORRECT_PROGRAMS` have no known issue.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["CORRECT_PROGRAMS", "PROGRAMS_WITH_KNOWN_ISSUES", "AuditedProgram"]


@dataclass(frozen=True)
class AuditedProgram:
    """A program, the code of its known issue, the entry point, and whether its results are NaN."""

    run: Callable[[], None]
    issue_code: str
    entry_point: str
    is_nan: bool = False


def _make_random_tensor(
    *dims: int, kind: str = "float16", shift: float = 0.0, factor: float = 1.0, grad: bool = False
) -> Any:
    import torch

    made = (factor * torch.randn(*dims, device="cuda") + shift).to(getattr(torch, kind))
    return made.requires_grad_(grad)


def train_with_very_low_scores() -> None:
    """Train torch's attention with cuDNN, with all scores near -128."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    q = _make_random_tensor(2, 2, 128, 64, factor=0.1, shift=4.0, grad=True)
    k = _make_random_tensor(2, 2, 192, 64, factor=0.1, shift=-4.0, grad=True)
    v = _make_random_tensor(2, 2, 192, 64, grad=True)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    o.backward(torch.randn_like(o))
    torch.cuda.synchronize()


def attend_with_negative_scale() -> None:
    """Compute causal attention with a negative scale, by this package's torch operators."""
    import torch

    from cudnn_backend_py import torch_ops

    torch.manual_seed(0)
    q, k, v = (_make_random_tensor(2, 4, 256, 64, kind="bfloat16") for _ in range(3))
    for _ in range(3):
        torch_ops.attention(q, k, v, scale=-0.125, causal=True, shapes="exact")
    torch.cuda.synchronize()


def attend_with_negative_scale_by_frontend() -> None:
    """Compute causal attention with a negative scale, by a frontend graph."""
    import torch

    from cudnn_backend_py import frontend as cudnn

    torch.manual_seed(0)
    q, k, v, o = (_make_random_tensor(2, 2, 128, 64) for _ in range(4))
    graph, pack = _make_frontend_graph({"q": q, "k": k, "v": v})
    result, _ = graph.sdpa(
        q=pack["q"], k=pack["k"], v=pack["v"], attn_scale=-0.125, use_causal_mask=True, generate_stats=False
    )
    result.set_output(True).set_dim(o.shape).set_stride(o.stride())
    _build_and_execute_graph(cudnn, graph, {pack["q"]: q, pack["k"]: k, pack["v"]: v, result: o})


def compute_relu_of_2d_matrix() -> None:
    """Compute the ReLU of a matrix with two dims, by a frontend graph."""
    from cudnn_backend_py import frontend as cudnn

    x, y = _make_random_tensor(96, 24), _make_random_tensor(96, 24)
    graph, pack = _make_frontend_graph({"x": x})
    made = graph.relu(input=pack["x"]).set_output(True)
    _build_and_execute_graph(cudnn, graph, {pack["x"]: x, made: y})


def compute_average_pool_with_padding_at_end() -> None:
    """Compute average pooling of row-major images with padding only at the end, by a frontend graph."""
    from cudnn_backend_py import frontend as cudnn

    x, y = _make_random_tensor(2, 32, 6, 6), _make_random_tensor(2, 32, 3, 3)
    graph, pack = _make_frontend_graph({"x": x})
    made, *_ = graph.resample(
        input=pack["x"],
        window=[3, 3],
        pre_padding=[0, 0],
        post_padding=[1, 1],
        stride=[2, 2],
        resampling_mode=cudnn.resample_mode.AVGPOOL_INCLUDE_PADDING,
        padding_mode=cudnn.padding_mode.ZERO_PAD,
    )
    made.set_output(True).set_dim(y.shape).set_stride(y.stride())
    _build_and_execute_graph(cudnn, graph, {pack["x"]: x, made: y})


def compute_leaky_relu_of_matmul() -> None:
    """Compute a matmul and a leaky ReLU, by engine 0 of a frontend graph."""
    from cudnn_backend_py import frontend as cudnn

    a, b, y = (
        _make_random_tensor(2, 16, 128, kind="bfloat16"),
        _make_random_tensor(2, 128, 8, kind="bfloat16"),
        _make_random_tensor(2, 16, 8, kind="bfloat16"),
    )
    graph, pack = _make_frontend_graph({"a": a, "b": b})
    made = graph.leaky_relu(input=graph.matmul(A=pack["a"], B=pack["b"]), negative_slope=0.1)
    made.set_output(True).set_data_type(cudnn.data_type.BFLOAT16).set_dim(y.shape).set_stride(y.stride())
    _build_and_execute_graph(cudnn, graph, {pack["a"]: a, pack["b"]: b, made: y}, engine=0)


def compute_gelu_of_matmul() -> None:
    """Compute a matmul and a GELU, by engine 0 of a frontend graph."""
    from cudnn_backend_py import frontend as cudnn

    a, b, y = _make_random_tensor(2, 16, 128, factor=0.1), _make_random_tensor(2, 128, 8), _make_random_tensor(2, 16, 8)
    graph, pack = _make_frontend_graph({"a": a, "b": b})
    made = graph.gelu(input=graph.matmul(A=pack["a"], B=pack["b"]))
    made.set_output(True).set_data_type(cudnn.data_type.HALF).set_dim(y.shape).set_stride(y.stride())
    _build_and_execute_graph(cudnn, graph, {pack["a"]: a, pack["b"]: b, made: y}, engine=0)


def add_scalar_bias_to_each_matrix() -> None:
    """Add one number to each matrix of a batch, by a frontend graph."""
    from cudnn_backend_py import frontend as cudnn

    x, bias, y = _make_random_tensor(4, 6, 8), _make_random_tensor(4, 1, 1), _make_random_tensor(4, 6, 8)
    graph, pack = _make_frontend_graph({"x": x, "bias": bias})
    made = graph.add(a=pack["x"], b=pack["bias"]).set_output(True).set_dim(y.shape).set_stride(y.stride())
    _build_and_execute_graph(cudnn, graph, {pack["x"]: x, pack["bias"]: bias, made: y})


# programs with correct results


def run_attention_without_known_issues() -> None:
    """Train and evaluate attention without known issues, by torch and by this package's operators."""
    import torch

    from cudnn_backend_py import torch_ops

    torch.manual_seed(0)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for turn in range(60):
        kind, s, d = ("float16", "bfloat16")[turn % 2], (128, 200, 512)[turn % 3], (64, 128)[turn % 2]
        q, k, v = (_make_random_tensor(2, 4, s, d, kind=kind, grad=turn % 4 < 2) for _ in range(3))
        for call in (sdpa, torch_ops.scaled_dot_product_attention):
            o = call(q, k, v, is_causal=turn % 5 == 0)
            if o.requires_grad:
                o.backward(torch.randn_like(o))
        bias = _make_random_tensor(1, 4, s, s, kind=kind)
        torch_ops.attention(q.detach(), k.detach(), v.detach(), bias=bias, left_bound=70)
        lengths = torch.tensor([0, s // 2, 2 * s], dtype=torch.int32, device="cuda")
        packed = [x.detach().transpose(1, 2).reshape(2 * s, 4, d) for x in (q, k, v)]
        torch_ops.attention_varlen(*packed, lengths, None, 2 * s - s // 2, causal=turn % 2 == 0)
        pages = [_make_random_tensor(8, 16, 4, d, kind=kind) for _ in range(2)]
        table = torch.arange(8, dtype=torch.int32, device="cuda").reshape(2, 4)
        have = torch.tensor([33, 64], dtype=torch.int32, device="cuda")
        torch_ops.attention_with_kvcache(_make_random_tensor(2, 1, 4, d, kind=kind), *pages, table, have, causal=True)
    torch.cuda.synchronize()


def run_graphs_without_known_issues() -> None:
    """Compute a convolution and attention without known issues, by frontend graphs."""
    import torch

    from cudnn_backend_py import frontend as cudnn

    torch.manual_seed(0)
    like = torch.channels_last
    x, w, y = (
        _make_random_tensor(*dims).to(memory_format=like) for dims in ((4, 32, 16, 16), (32, 32, 3, 3), (4, 32, 16, 16))
    )
    graph, pack = _make_frontend_graph({"x": x, "w": w})
    made = graph.conv_fprop(image=pack["x"], weight=pack["w"], padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    made = graph.relu(input=made).set_output(True).set_dim(y.shape).set_stride(y.stride())
    q, k, v, o = (_make_random_tensor(2, 2, 128, 64) for _ in range(4))
    other, given = _make_frontend_graph({"q": q, "k": k, "v": v})
    result, _ = other.sdpa(q=given["q"], k=given["k"], v=given["v"], use_causal_mask=True, generate_stats=False)
    result.set_output(True).set_dim(o.shape).set_stride(o.stride())
    for _ in range(20):
        _build_and_execute_graph(cudnn, graph, {pack["x"]: x, pack["w"]: w, made: y})
        _build_and_execute_graph(cudnn, other, {given["q"]: q, given["k"]: k, given["v"]: v, result: o})


def _make_frontend_graph(tensors: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a frontend graph with these tensors, and the variant pack of their torch tensors."""
    import torch

    from cudnn_backend_py import frontend as cudnn

    kinds = {torch.float16: "HALF", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT"}
    kind = cudnn.data_type[kinds[next(iter(tensors.values())).dtype]]
    graph = cudnn.pygraph(
        handle=_get_shared_handle(cudnn),
        io_data_type=kind,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    named = {name: graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride())) for name, x in tensors.items()}
    return graph, named


_cached_handles: list[Any] = []


def _get_shared_handle(cudnn: Any) -> Any:
    if not _cached_handles:
        _cached_handles.append(cudnn.create_handle())
    return _cached_handles[0]


_built_graph_ids: set[int] = set()


def _build_and_execute_graph(cudnn: Any, graph: Any, pack: dict[Any, Any], engine: int | None = None) -> None:
    import torch

    if id(graph) not in _built_graph_ids:
        _built_graph_ids.add(id(graph))
        graph.validate()
        graph.build_operation_graph()
        if engine is None:
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        else:
            graph.create_execution_plan(engine, {})
        graph.check_support()
        graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")
    graph.execute(pack, workspace, handle=_get_shared_handle(cudnn))
    torch.cuda.synchronize()


PROGRAMS_WITH_KNOWN_ISSUES: dict[str, AuditedProgram] = {
    "deep-scores": AuditedProgram(train_with_very_low_scores, "backward-key-tail", "torch", is_nan=True),
    "negative-scale": AuditedProgram(attend_with_negative_scale, "scale-not-above-0", "operators", is_nan=True),
    "negative-scale-of-graph": AuditedProgram(
        attend_with_negative_scale_by_frontend, "scale-not-above-0", "frontend", is_nan=True
    ),
    "rows-of-a-matrix": AuditedProgram(compute_relu_of_2d_matrix, "elementwise-two-dims", "frontend"),
    "pooling-padded-behind": AuditedProgram(
        compute_average_pool_with_padding_at_end, "average-pool-padded-behind", "frontend"
    ),
    "leaky-product": AuditedProgram(compute_leaky_relu_of_matmul, "matmul-relu-without-slope", "frontend"),
    "gelu-of-product": AuditedProgram(compute_gelu_of_matmul, "matmul-gelu-by-tanh", "frontend"),
    "numbers-of-matrices": AuditedProgram(
        add_scalar_bias_to_each_matrix, "elementwise-number-for-each-matrix", "frontend"
    ),
}
CORRECT_PROGRAMS = {
    "right-attention": run_attention_without_known_issues,
    "right-graphs": run_graphs_without_known_issues,
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name = sys.argv[1]
    (PROGRAMS_WITH_KNOWN_ISSUES[name].run if name in PROGRAMS_WITH_KNOWN_ISSUES else CORRECT_PROGRAMS[name])()
