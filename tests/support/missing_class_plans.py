"""Print as JSON the reasons why cuDNN has no shape-class plan on described GPUs: ``{gpu: {case: reason}}``.

The reason is empty if a plan was built or, for cases without a build, if cuDNN supports an engine config.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from cudnn_backend_py.errors import CudnnStatusError, NotSupported
from cudnn_backend_py.graph.attention import Attention, SoftCap
from cudnn_backend_py.graph.attention.shape_class import (
    explain_missing_shape_class,
    find_best_shape_class_bounds,
    make_shape_class_graph,
    make_shape_class_problem,
)
from cudnn_backend_py.plans.build import build
from cudnn_backend_py.plans.select import Selection, select
from cudnn_backend_py.target import Target, use_target

CASES_TO_BUILD = ("causal", "causal backward")  # only these, as a build takes a second
SHAPE_CLASS_CASES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True, "kv_heads": 2},
    "window": {"causal": True, "left_bound": 64, "alignment": "bottom_right"},
    "sink": {"sink": True},
    "alibi": {"alibi": True, "causal": True},
    "bias": {"bias": (1, 8, 100, 300)},
    "cap": {"score_modifier": SoftCap(5.0)},
    "dropout": {"dropout": 0.1},
    "d40": {"head_dim": 40},
    "d128": {"head_dim": 128},
    "d256": {"head_dim": 256},
    "deterministic": {"deterministic": True},
    "paged": {"padding": True, "page_size": 16, "pages_k": 64, "pages_v": 64},
    "decoding": {"padding": True, "page_size": 16, "pages_k": 64, "pages_v": 64, "seq_q": 1},
}


def explain_missing_shape_class_plans(gpu: str) -> dict[str, str]:
    """Return for each case the reason that it has no shape-class plan on a described GPU, empty if it has one."""
    found: dict[str, str] = {}
    with use_target(gpu) as target:
        for name, options in SHAPE_CLASS_CASES.items():
            whole = Attention(
                **{"batch": 3, "heads": 8, "seq_q": 100, "seq_kv": 300, "head_dim": 64, "stats": True} | options
            )
            found[name] = _explain_missing_shape_class_plan(name, whole, target, backward=False)
            if whole.page_size is None:
                found[f"{name} backward"] = _explain_missing_shape_class_plan(
                    f"{name} backward", whole, target, backward=True
                )
    return found


def _explain_missing_shape_class_plan(name: str, p: Attention, target: Target, *, backward: bool) -> str:
    version = target.library.version
    why = explain_missing_shape_class(p, backward=backward, version=version, sm=target.sm)
    if why:
        return why
    whole = make_shape_class_problem(p, find_best_shape_class_bounds(p), backward=backward)
    graph = make_shape_class_graph(replace(whole, name="class"), backward, version, target.sm)
    try:
        if name in CASES_TO_BUILD:
            build(graph, target, cache=False).close()
        else:
            select(graph, target, Selection())
    except (CudnnStatusError, NotSupported) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps({gpu: explain_missing_shape_class_plans(gpu) for gpu in sys.argv[1:]}))
