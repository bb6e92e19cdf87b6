"""Commands that build, keep, tune and time plans: ``build``, ``cache``, ``tune``, ``bench``, ``compare``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import CudnnStatusError, NotSupported
from ..printable import printable
from .output import NOT_JUDGED, OutputFile, say, warn, write_report

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["add_commands"]


def _judge(graph: Graph, target: str | None) -> int:
    """Return 1 if cuDNN does not support a graph whose plan was refused, 2 if that cannot be said."""
    from ..diagnose import Question, judge

    verdict = judge(Question(graph, target or "gpu", build=True))
    return verdict.exit_code or NOT_JUDGED


def add_commands(main: click.Group, load: Callable[[str], Graph], with_version: Callable[[Any], Any]) -> None:
    """Add the commands to the group; `load` reads a graph file, `with_version` adds ``--cudnn``."""

    @main.command("build")
    @with_version
    @click.argument("graph_file", metavar="GRAPH", type=click.Path(exists=True, dir_okay=False))
    @click.option("--target", default=None, help="A described GPU; the GPU of this machine by default.")
    @click.option("-o", "--output", required=True, type=OutputFile(), help="Write the plan here.")
    @click.option("--mode", default="A", show_default=True, help="Heuristics mode: A, B or FALLBACK.")
    @click.option("--engine", type=int, default=None, help="Take this engine instead.")
    @click.option("--knob", "knobs", multiple=True, metavar="KNOB=VALUE", help="Knob value of the engine; repeatable.")
    def build(
        graph_file: str, target: str | None, output: str, mode: str, engine: int | None, knobs: tuple[str, ...]
    ) -> None:
        """Build the plan of GRAPH ahead of time, also for a GPU that is not here, and save it.

        Exit code 1 if cuDNN does not support GRAPH, as explain says; 2 if the plan cannot be had for another reason.
        """
        from ..plans.build import build as build_plan
        from ..plans.build import parse_knobs

        choices = parse_knobs(knobs) or None
        asked = load(graph_file)
        try:
            plan = build_plan(asked, target, mode=mode, engine=engine, knobs=choices)
        except (CudnnStatusError, NotSupported) as error:
            warn(error.render())
            raise SystemExit(_judge(asked, target)) from None
        plan.save(output)
        say(f"{output}: {plan.tag} for {plan.target.name} (sm_{plan.target.sm}), {plan.workspace_bytes} bytes")

    @main.group("cache")
    def cache() -> None:
        """Plans that are kept on disk."""

    @cache.command("list")
    def list_entries() -> None:
        """List the kept plans, the last used first."""
        from ..plans.cache import default_cache

        kept = default_cache()
        if kept is None:
            say("the plan cache is turned off (CUDNN_BACKEND_PLAN_CACHE is set to nothing)")
            return
        entries = kept.entries()
        for entry in entries:
            say(printable(str(entry)))
        say(f"{len(entries)} plans in {kept.folder}")

    @cache.command("clear")
    def clear() -> None:
        """Delete the kept plans."""
        from ..plans.cache import default_cache

        kept = default_cache()
        if kept is None:
            click.echo("the plan cache is turned off (CUDNN_BACKEND_PLAN_CACHE is set to nothing)")
            return
        click.echo(f"{kept.clear()} plans removed from {kept.folder}")

    @main.command("tune")
    @with_version
    @click.argument("graph_file", metavar="GRAPH", type=click.Path(exists=True, dir_okay=False))
    @click.option("--budget", default=30.0, show_default=True, help="Seconds.")
    @click.option("--engines", is_flag=True, help="Also engines and knob values heuristics do not propose.")
    @click.option("--max-candidates", default=32, show_default=True)
    @click.option("--json", "json_path", type=OutputFile(), help="Write the evidence here.")
    def tune(graph_file: str, budget: float, engines: bool, max_candidates: int, json_path: str | None) -> None:
        """Time the engine configs of GRAPH on the GPU of this machine and remember the fastest."""
        from ..tuning.search import tune as tune_graph

        tune_graph(
            load(graph_file),
            json_path=json_path,
            budget_s=budget,
            engines=engines,
            max_candidates=max_candidates,
        )

    @main.command("bench")
    @with_version
    @click.option("--output", type=OutputFile(), help="Write the figures here, as JSON.")
    @click.option("--plot", type=OutputFile(), help="Draw them here (needs matplotlib).")
    @click.option("--cudnn-frontend", "frontend", metavar="FOLDER", help="Folder that holds its package cudnn.")
    @click.option("--quick", is_flag=True, help="Fewer shapes and rounds, under a minute.")
    def bench(output: str | None, plot: str | None, frontend: str | None, quick: bool) -> None:
        """Time calls and kernels beside cudnn-frontend and torch, on the GPU of this machine."""
        from ..bench.run import run_bench

        run_bench(Path(output) if output else None, Path(plot) if plot else None, frontend, quick)

    @main.command("compare")
    @click.argument("log_file", metavar="[LOG]", required=False, type=click.Path(exists=True, dir_okay=False))
    @click.option("--grid", type=click.Choice(["whole", "little"]), help="Shapes, without LOG.  [default: whole]")
    @click.option(
        *("--cudnn-version", "versions"),
        multiple=True,
        metavar="VERSION",
        help="Repeatable; the cuDNN of this process if not given, which 'default' also is.",
    )
    @click.option("--target", metavar="NAME", help="Name the plans for a described GPU; nothing is timed.")
    @click.option(
        "--configs", type=click.IntRange(1), default=2, show_default=True, help="Engine configs of a version."
    )
    @click.option("--rounds", type=click.IntRange(5), default=11, show_default=True, help="Of GPU times.")
    @click.option("--limit", default=600.0, show_default=True, metavar="SECONDS", help="Begin nothing after it.")
    @click.option(
        "--format", "style", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True
    )
    @click.option("--output", type=OutputFile(), help="Write it here, not to standard output.")
    @click.option("--plot", type=OutputFile(), help="Draw it here (needs matplotlib).")
    def compare(
        log_file: str | None,
        grid: str | None,
        versions: tuple[str, ...],
        target: str | None,
        configs: int,
        rounds: int,
        limit: float,
        style: str,
        output: str | None,
        plot: str | None,
    ) -> None:
        """Compare attention on the GPU of this machine: cuDNN by version and config, torch's backends, flash-attn.

        For 40 shapes, or for each graph of attention in LOG, a log of cuDNN: forward and backward, GPU and host time.
        Where there is no GPU, --target names the plans that would be compared.
        """
        from ..bench.compare import DEFAULT, Comparison, run_command

        if log_file and grid:
            raise click.UsageError("--grid is about shapes without LOG")
        if plot and target:
            raise click.UsageError("--plot draws times, and for --target nothing is timed")
        what = log_file or f"--grid={grid or 'whole'}"
        wanted = Comparison(what, versions or (DEFAULT,), target, configs, rounds, limit)
        write_report(run_command(wanted, style, Path(plot) if plot else None), output)
