"""Run a few attention graphs once each, under compute-sanitizer."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cudnn_backend_py import open_target
from cudnn_backend_py.graph.attention import Attention
from tests.support.attention_cases import add_expected_results, make_attention_case
from tests.support.attention_runs import build_first_plan, execute_attention_case

ATTENTION_SIZES: dict[str, Any] = {"batch": 2, "heads": 2, "seq_q": 192, "seq_kv": 256, "head_dim": 64, "stats": True}
ATTENTION_CASES: dict[str, tuple[bool, dict[str, Any]]] = {
    "forward": (False, {"causal": True}),
    "backward": (True, {"causal": True, "kv_heads": 1}),
    "ragged forward": (False, {"ragged": True}),
    "ragged backward": (True, {"ragged": True, "max_total_seq_q": 384, "max_total_seq_kv": 512}),
    "paged": (False, {"padding": True, "page_size": 64}),
}


def _create_cuda_context() -> None:
    """Create the GPU's context first, because a query without a context is a driver error."""
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert not cuda.cuInit(0)
    assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    assert not cuda.cuCtxSetCurrent(context)


def main() -> None:
    """Run all attention cases, and compare their results with the float64 reference."""
    _create_cuda_context()
    version = open_target().library.version
    for name, (backward, options) in ATTENTION_CASES.items():
        problem = Attention(**ATTENTION_SIZES, **options)
        case = add_expected_results(make_attention_case(problem, np.random.default_rng(1), backward=backward))
        for form in ["composite"] if backward or version < (9, 21, 0) else ["composite", "unified"]:
            graph = case.graph(form, version)
            plan = build_first_plan(graph)
            assert not isinstance(plan, str), plan
            found = execute_attention_case(case, graph, plan)
            for output, want in case.expected.items():
                where = case.make_mask_of_defined_elements(output)
                got = case.unpack_output(output, found[output])[where]
                assert np.linalg.norm(got - want[where]) <= 2e-3 * np.linalg.norm(want[where]), (name, form, output)
            print(f"{name}, {form}: agrees", flush=True)


if __name__ == "__main__":
    main()
