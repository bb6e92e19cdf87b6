"""Judge the rows of cudnn-frontend's published benchmarks: ``python -m tools.records.published_rows CSV RECORD``.

The CSV is a file, or several joined files, of ``benchmark/sdpa_benchmark_training/results`` of cudnn-frontend: rows of
attention that ran on a GB200 or GB300. Each row is judged with its own cuDNN version, which must be installed.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cudnn_backend_py import DataType, attention
from cudnn_backend_py.diagnose import Judge, Query

TARGET_BY_GPU_NAME = {"NVIDIA GB200": ("gb200", 100), "NVIDIA GB300": ("b300", 103)}


def read_frontend_benchmark_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the CSV rows as dicts; skip repeated header lines."""
    header: list[str] = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.reader(file):
            if row[0] == "config_name":
                header = row
            else:
                yield dict(zip(header, row, strict=True))


def read_attention_options(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the attention problem that a CSV row describes."""
    sizes = {
        "batch": "batch_size",
        "heads": "num_q_heads",
        "kv_heads": "num_kv_heads",
        "seq_q": "q_seqlen",
        "seq_kv": "kv_seqlen",
        "head_dim": "head_dim_qk",
        "head_dim_v": "head_dim_vo",
    }
    options: dict[str, Any] = {name: int(row[column]) for name, column in sizes.items()}
    options["causal"] = row["attn_mask"] == "top_left"
    if row["sliding_window_size"]:
        options |= {"left_bound": int(row["sliding_window_size"]), "right_bound": 0}
        del options["causal"]
    if row["data_type"] == "bfloat16":
        options["data_type"] = DataType.BFLOAT16
    else:
        options |= {"data_type": DataType.FP8_E4M3, "output_type": DataType.BFLOAT16, "mx": row["data_type"] == "mxfp8"}
    backward = row["profile_pass"] == "bwd"
    return options | ({"deterministic": row["deterministic_bwd"] == "True"} if backward else {"stats": True})


def main() -> None:
    """Judge the rows of a CSV file, and write a record of the outcomes."""
    source, file = map(Path, sys.argv[1:])
    seen: dict[str, str] = {}
    counts: Counter[str] = Counter()
    with Judge() as judging:
        for row in read_frontend_benchmark_rows(source):
            target, sm = TARGET_BY_GPU_NAME[row["gpu_name"]]
            number = int(float(row["cudnn_backend_version"]))
            version = (number // 10000, number // 100 % 100, number % 100)
            options, backward = read_attention_options(row), row["profile_pass"] == "bwd"
            key = json.dumps([target, version, backward, options], default=str, sort_keys=True)
            if key not in seen:
                build = attention.sdpa_backward if backward else attention.sdpa_forward
                graph = build(**options, version=version, sm=sm, allow_hazards=True)
                verdict = judging.run_query(Query(graph, target, ".".join(map(str, version)), causes=False))
                by = "" if verdict.first is None else f" by {verdict.first.mode}"
                seen[key] = f"{row['gpu_name']} {row['profile_pass']}: {verdict.outcome}{by}"
            counts[seen[key]] += 1
    record = {
        "schema": "cudnn-backend-py/published-rows",
        "source": "https://github.com/NVIDIA/cudnn-frontend: benchmark/sdpa_benchmark_training/results",
        "rows": counts.total(),
        "different problems": len(seen),
        "outcomes": counts,
    }
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
