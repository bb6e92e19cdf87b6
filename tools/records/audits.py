"""Run the audit of attention calls on programs with cuDNN's known issues, and measure its cost on correct ones.

``python -m tools.records.audits faults logs/NAME.json --cudnn OTHER`` audits unmodified programs with known issues,
then runs ``cudnn-backend audit`` on the stored cases. ``cost`` times programs with and without an audit.
``counting`` times calls that an audit does not sample, and needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from cudnn_backend_py.audit.report import AuditReport
from cudnn_backend_py.execution.timing import without_garbage_collection
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.system.child import make_call_command
from cudnn_backend_py.why.cost import StepTime, format_overhead, judge_overhead_of_paired_runs, measure_step_time
from tests.support.audited_programs import CORRECT_PROGRAMS, PROGRAMS_WITH_KNOWN_ISSUES

__all__ = ["audit_program", "audit_programs", "measure_audit_cost", "run_audit_command"]

TIME_LIMIT_S = 300.0
MAX_COST_SHARE = 0.02  # largest share of a program's time that an audit may take
ROOT = Path(__file__).parents[2]


def audit_program(name: str, folder: Path, *, by_environment: bool) -> dict[str, Any]:
    """Run a program with an audit, enabled by environment variables or a command; return the audit's report."""
    program = ["-m", "tests.support.audited_programs", name]
    output = folder / "report.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if by_environment:
        environment |= {
            "CUDNN_BACKEND_AUDIT": "100",
            "CUDNN_BACKEND_AUDIT_FOLDER": str(folder / "cases"),
            "CUDNN_BACKEND_AUDIT_REPORT": str(output),
        }
        command = [sys.executable, *program]
    else:
        options = ["--folder", str(folder / "cases"), "--output", str(output)]
        command = [sys.executable, "-m", "cudnn_backend_py.audit", *options, *program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S)
    if not output.exists():
        return {"failed": done.stderr[-1500:], "wrong": [], "code": done.returncode}
    return {**json.loads(output.read_text()), "code": done.returncode, "said": done.stderr[-300:]}


def run_audit_command(file: str, versions: Sequence[str], reduce_s: float) -> dict[str, Any]:
    """Run ``cudnn-backend audit`` on the file of a stored case (a wrong call), and return its result."""
    words = [f"--cudnn={version}" for version in versions]
    words += ["--format=json", f"--reduce={reduce_s:g}", f"--limit={TIME_LIMIT_S:g}", file]
    command = make_call_command("cudnn_backend_py.cli.commands:main", "audit", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S + 60)
    try:
        found: dict[str, Any] = json.loads(done.stdout)["cases"][0]
    except (ValueError, KeyError, IndexError):
        return {"failed": done.stderr[-1500:], "asked": [], "faults": []}
    return found


def audit_program_and_its_stored_cases(name: str, versions: Sequence[str], reduce_s: float) -> dict[str, Any]:
    """Audit a program, run ``cudnn-backend audit`` on each stored case, and return what both found."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        report = audit_program(name, folder, by_environment=name != "deep-scores")
        modes = [oct((folder / "cases").stat().st_mode & 0o777)] if (folder / "cases").exists() else []
        found: dict[str, Any] = {"name": name, "report": report, "modes": modes}
        if name in CORRECT_PROGRAMS:
            ran = not report["code"] and sum(report.get("sampled", {}).values()) >= 4
            return found | {"ok": ran and not report["wrong"], "seconds": round(time.monotonic() - began, 1)}
        kept = [one["file"] for one in report["wrong"] if one["file"]]
        found["examined"] = [run_audit_command(file, versions, reduce_s) for file in kept]
        found["programs"] = [_run_reproduction(one.get("program", "")) for one in found["examined"]]
        codes = {fault for one in found["examined"] for fault in one["faults"]}
        named = [
            one
            for one in found["examined"]
            if one.get("engine") is not None and PROGRAMS_WITH_KNOWN_ISSUES[name].issue_code in one["faults"]
        ]
        found |= {
            "fault": PROGRAMS_WITH_KNOWN_ISSUES[name].issue_code,
            "faults": sorted(codes),
            "seconds": round(time.monotonic() - began, 1),
        }
        return found | {
            "ok": bool(named) and found["seconds"] <= TIME_LIMIT_S,
            "is_nan": PROGRAMS_WITH_KNOWN_ISSUES[name].is_nan,
        }


def summarize_audited_program(row: dict[str, Any]) -> dict[str, Any]:
    """Return an audited program's findings without file paths and report texts, to store in logs/."""
    report = row["report"]
    found = {name: row[name] for name in ("name", "ok", "seconds", "fault", "is_nan", "modes") if name in row}
    found["entry_point"] = (
        PROGRAMS_WITH_KNOWN_ISSUES[row["name"]].entry_point if row["name"] in PROGRAMS_WITH_KNOWN_ISSUES else ""
    )
    found |= {name: report.get(name) for name in ("calls", "sampled", "checked", "passed_over", "unjudged")}
    found["kept"] = len(report["wrong"])
    found["cases"] = [
        {
            "wrong": one["case"]["wrong"],
            "backend": one["case"]["backend"],
            "plan": one["case"]["tag"],
            "engine": one["engine"],
            "since": one["since"],
            "until": one["until"],
            "faults": one["faults"],
            "asked": [
                {key: item[key] for key in ("version", "state", "wrong", "right", "other")} for item in one["asked"]
            ],
            "data": one["data"],
            "seconds": one["seconds"],
            "reproduction": {key: again.get(key) for key in ("code", "bytes")},
        }
        for one, again in zip(row.get("examined", []), row.get("programs", []), strict=True)
        if "case" in one
    ]
    return found


def _run_reproduction(program: str) -> dict[str, Any]:
    """Run a reproduction program, which must not need other files, and return its output."""
    if not program:
        return {}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=120)
    return {
        "code": done.returncode,
        "said": done.stdout[-300:] or done.stderr[-300:],
        "bytes": os.path.getsize(program),
    }


def audit_programs(
    versions: Sequence[str], reduce_s: float, workers: int, names: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the findings of each audited program, as by `audit_program_and_its_stored_cases`."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(
            lambda name: audit_program_and_its_stored_cases(name, versions, reduce_s),
            names or [*PROGRAMS_WITH_KNOWN_ISSUES, *CORRECT_PROGRAMS],
        )


# cost of audits


def _make_audited_workloads() -> dict[str, Callable[[], Any]]:
    """Return, by workload name, a function that runs one round of the workload."""
    import torch

    from cudnn_backend_py import torch_ops

    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 1024, 16, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))

    def run_torch_attention() -> None:
        with torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def run_attention_operators() -> None:
        with torch.no_grad():
            torch_ops.attention(q, k, v, causal=True)

    found: dict[str, Callable[[], Any]] = {
        "torch's attention": run_torch_attention,
        "the operators": run_attention_operators,
        "training step": _make_training_step(),
        "forward pass": _make_training_step(training=False),
        "the frontend": _make_convolution_step(),
    }
    return found


def _make_training_step(training: bool = True) -> Callable[[], None]:
    """Return a step of a transformer of twelve layers, or only its forward pass."""
    import torch

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads, self.qkv = heads, torch.nn.Linear(width, 3 * width)
            self.out, self.norm, self.more = (
                torch.nn.Linear(width, width),
                torch.nn.LayerNorm(width),
                torch.nn.LayerNorm(width),
            )
            self.mlp = torch.nn.Sequential(
                torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
            )

        def forward(self, x: Any) -> Any:
            b, s, width = x.shape
            q, k, v = self.qkv(self.norm(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(o.transpose(1, 2).reshape(b, s, width))
            return x + self.mlp(self.more(x))

    model = torch.nn.Sequential(*(Block(768, 12) for _ in range(12))).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(8, 1024, 768, device="cuda", dtype=torch.bfloat16)

    if not training:
        return torch.no_grad()(lambda: model(x))  # type: ignore[no-any-return]

    def run_training_step() -> None:
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return run_training_step


def _make_convolution_step() -> Callable[[], None]:
    import torch

    from cudnn_backend_py import frontend as cudnn
    from tests.support import audited_programs

    like = torch.channels_last
    x, y = (torch.randn(16, 64, 28, 28, device="cuda").half().to(memory_format=like) for _ in range(2))
    w = torch.randn(64, 64, 3, 3, device="cuda").half().to(memory_format=like)
    graph, pack = audited_programs._make_frontend_graph({"x": x, "w": w})
    made = graph.conv_fprop(image=pack["x"], weight=pack["w"], padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    made.set_output(True).set_dim(list(y.shape)).set_stride(list(y.stride()))
    buffers = {pack["x"]: x, pack["w"]: w, made: y}
    audited_programs._build_and_execute_graph(cudnn, graph, buffers)
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")
    handle = audited_programs._get_shared_handle(cudnn)
    return lambda: graph.execute(buffers, workspace, handle=handle)


def measure_audit_cost(
    time_calls: float = 12.0, block_s: float = 0.5, names: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the time that auditing 1 % of the calls adds to correct programs, from blocks with and without audit.

    The blocks of a pair run directly after one another, in alternating order; the median of their ratios is reported
    with its 95 % interval. Short blocks with an audit that samples nothing measure the cost of counting calls. Blocks
    that are at least as long as one sample measure the cost of the whole audit, also separately for blocks with and
    without a sample.
    """
    from cudnn_backend_py.audit import audit
    from cudnn_backend_py.audit.look import COST, EVERY

    for name, loop in _make_audited_workloads().items():
        if names and name not in names:
            continue
        rounds = 1
        for _ in range(3):  # warm-up, and the number of rounds of a block
            rounds = max(1, min(200_000, round(block_s / measure_step_time(loop, rounds).clock)))
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):  # load kernels, then the number of rounds that allow a sample
                with audit(folder=folder, first=4, patience_s=5.0) as warm:
                    measure_step_time(loop, max(1, rounds // 4))
            pays = (warm.host_s + warm.gpu_s) / max(1, sum(warm.sampled.values())) / COST
            counting, _, _ = _time_blocks_with_and_without_audit(
                loop, max(1, rounds // 10), time_calls / 2, 10**9, 1e-9, folder
            )
            rounds = max(1, round(rounds * min(4.0, max(1.0, 1.2 * pays / block_s))))
            times, sampled, report = _time_blocks_with_and_without_audit(loop, rounds, time_calls, EVERY, COST, folder)
        found = judge_overhead_of_paired_runs(*times, MAX_COST_SHARE)
        yield {
            "program": name,
            "counting": judge_overhead_of_paired_runs(*counting, MAX_COST_SHARE),
            "audited": found,
            "without_a_sample": _compute_audit_overhead_of_time_pairs(times, [count == 0 for count in sampled]),
            "with_samples": _compute_audit_overhead_of_time_pairs(times, [count > 0 for count in sampled]),
            "own_account": round(report.cost, 5),
            "counted_ns": round(1e9 * report.counted_s / max(1, report.calls)),
            "setup_s": round(report.setup_s, 3),
            "calls": report.calls,
            "sampled": sum(sampled),
            "us_of_a_sample": round(1e6 * (report.host_s + report.gpu_s) / max(1, sum(sampled)), 1),
            "passed_over": dict(report.passed_over),
            "unjudged": dict(report.unjudged),
            "kept": len(report.wrong),
            "ok": found["verdict"] == "passed" and not report.wrong,
        }


def _compute_audit_overhead_of_time_pairs(
    times: tuple[list[StepTime], list[StepTime]], chosen: Sequence[bool]
) -> dict[str, Any] | None:
    """Return the audit's overhead from the chosen pairs of times without and with it; None if none is chosen."""
    some = [[one for one, wanted in zip(turns, chosen, strict=True) if wanted] for turns in times]
    return judge_overhead_of_paired_runs(some[0], some[1], MAX_COST_SHARE) if any(chosen) else None


def _time_blocks_with_and_without_audit(
    loop: Callable[[], Any], rounds: int, time_calls: float, every: int, cost: float, folder: str
) -> tuple[tuple[list[StepTime], list[StepTime]], list[int], AuditReport]:
    """Time alternating blocks of calls; return times without and with audit, sampled calls by block, and the report.

    One audit runs through all blocks, and is paused in the blocks without an audit.
    """
    from cudnn_backend_py.audit.case import CaseFolder
    from cudnn_backend_py.audit.watch import RunningAudit

    report = AuditReport()
    watch = RunningAudit(every, cost, CaseFolder(folder), report, first=0, patience_s=2.0)
    plain: list[StepTime] = []
    audited: list[StepTime] = []
    sampled: list[int] = []
    watch.start()
    with without_garbage_collection():
        deadline = time.perf_counter() + time_calls
        while time.perf_counter() < deadline or len(plain) < 4:
            for is_audited in (False, True) if len(sampled) % 2 else (True, False):
                before = sum(report.sampled.values())
                with nullcontext() if is_audited else watch.pause():
                    (audited if is_audited else plain).append(measure_step_time(loop, rounds))
                if is_audited:
                    sampled.append(sum(report.sampled.values()) - before)
    watch.stop()
    return (plain, audited), sampled, report


def measure_unsampled_call_cost() -> dict[str, int]:
    """Return the nanoseconds that an audit adds to an unsampled call, for positional and keyword arguments."""
    import torch

    from cudnn_backend_py.audit import audit

    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention

    def accept_positional_arguments(
        query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False
    ) -> None:
        return None

    def accept_keyword_arguments(
        q: Any, k: Any, v: Any, *, causal: bool = False, scale: Any = None, **others: Any
    ) -> None:
        return None

    def time_calls(given: tuple[Any, ...], named: dict[str, Any]) -> float:
        attend = functional.scaled_dot_product_attention
        began = time.thread_time()
        for _ in range(20_000):
            attend(*given, **named)
        return time.thread_time() - began

    found = {}
    ways: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
        "python": (accept_positional_arguments, (1, 2, 3), {"is_causal": True}),
        "python, by name": (accept_keyword_arguments, (1, 2, 3), {"causal": True}),
        "builtin": ("a".split, (None,), {"maxsplit": 1}),
    }
    try:
        for name, (function, given, named) in ways.items():
            turns = []
            for _ in range(15):
                functional.scaled_dot_product_attention = function
                plain = time_calls(given, named)
                with tempfile.TemporaryDirectory() as folder, audit(folder=folder, first=0, every=10**9):
                    turns.append(time_calls(given, named) - plain)
            found[name] = round(1e9 * median(turns) / 20_000)
    finally:
        functional.scaled_dot_product_attention = original
    return found


def main() -> int:
    """Run the measurement named on the command line and print it; write it to a file if one is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["faults", "cost", "counting"])
    parser.add_argument("record", nargs="?", type=Path)
    parser.add_argument(
        "--cudnn", action="append", default=[], help="another cuDNN version, or the path of its libcudnn"
    )
    parser.add_argument("--reduce", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12.0, help="total seconds of blocks for each program")
    parser.add_argument("--block", type=float, default=0.5, help="shortest time of a block in seconds")
    parser.add_argument("--only", action="append", default=[])
    options = parser.parse_args()
    record = make_measurement_record_header(
        f"audit-{options.what}", ("cudnn_backend_py", "python", "cudnn", "gpus", "driver version")
    )
    if options.what == "faults":
        rows = []
        for row in audit_programs(options.cudnn, options.reduce, options.workers, options.only):
            rows.append(row)
            asked_of = [(one["version"], one["state"]) for case in row.get("examined", []) for one in case["asked"]]
            print(row["name"], "ok" if row["ok"] else "NOT", row["seconds"], row.get("faults"), asked_of, flush=True)
            if not row["ok"]:
                print(json.dumps(row, indent=1, default=str)[:3000], flush=True)
        record["programs"] = [summarize_audited_program(row) for row in rows]
    else:  # 'counting' needs no GPU
        record["unsampled_ns"] = measure_unsampled_call_cost()
        print(f"an unsampled call takes more, in ns: {record['unsampled_ns']}", flush=True)
        record["programs"] = rows = []
        for row in measure_audit_cost(options.seconds, options.block, options.only) if options.what == "cost" else ():
            rows.append(row)
            for what in ("counting", "audited"):
                a_round = f"a round of {row[what]['clock']['plain_us']:.1f} us"
                print(f"{row['program']}, {what}: {a_round}, {format_overhead(row[what])}", flush=True)
            write_record(record, options.record)
    write_record(record, options.record)
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
