"""Write the GPU runs of ``logs/operations-*`` into the wheel, so that ``explain`` can name a similar graph's run."""

from __future__ import annotations

import json
import re

from cudnn_backend_py.diagnose.evidence import make_graph_key_without_sizes
from cudnn_backend_py.graph.attention.recognize import read_attention
from cudnn_backend_py.plans.choice import EngineChoice
from cudnn_backend_py.target import find_profile
from tests.support.typical_graphs import TYPICAL_GRAPHS
from tools.repository import ROOT

__all__ = ["make_operation_runs_json"]

_AGREES = "agrees"


def make_operation_runs_json() -> str:
    """Return JSON with the GPU runs that agree with the interpreter, one run per line.

    Refusals are left out, as one of the records is of a JIT wheel, which has fewer engines, and so is attention, which
    is compared by its options.
    """
    lines = []
    for path in sorted((ROOT / "logs").glob("operations-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        environment = record["environment"]
        (gpu,) = environment["gpus"]
        version = [int(number) for number in re.findall(r"\d+", environment["cudnn"])[:3]]
        where = {"gpu": gpu, "sm": find_profile(gpu.removeprefix("NVIDIA ").lower()).sm, "version": version}
        for name, result in record["graphs"].items():
            graph = TYPICAL_GRAPHS[name].make()
            if _AGREES in result.values() and read_attention(graph) is None:
                tag = EngineChoice.parse(result["plan"]).tag
                row = {
                    "form": make_graph_key_without_sizes(graph),
                    **where,
                    "tag": tag,
                    "source": f"logs/{path.name}, {name}",
                }
                lines.append(json.dumps(row))
    return "[\n" + ",\n".join(lines) + "\n]\n"
