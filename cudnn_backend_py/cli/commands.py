"""The command group ``cudnn-backend``; a command is imported when it is run, or when help describes it."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ..command_line import Choice
from ..printable import printable
from .options import add_format_options
from .output import (
    NOT_JUDGED_EXIT_CODE,
    MainCommandGroup,
    format_json,
    print_lines,
    write_or_print,
    write_or_print_report,
)
from .wheels import add_version_options

__all__ = ["main"]


# The commands by the heading of the help they stand under.
HELP_SECTIONS = {
    "Verdicts": ("explain", "matrix", "diff", "check", "attention-table"),
    "Programs": ("why", "frontend", "log", "reasons", "audit"),
    "Graphs and plans": ("graph", "run", "plan"),
    "Setup": ("cudnn", "target", "cache", "doctor"),
}

# Where the commands are that are not in this file.
COMMANDS = {
    "explain": "explain:explain_graphs",
    "log": "verdicts:read_log",
    "why": "verdicts:explain_torch_program",
    "frontend": "verdicts:run_frontend_program",
    "matrix": "verdicts:show_verdict_matrix",
    "check": "verdicts:check_baseline",
    "diff": "verdicts:compare_two_versions",
    "attention-table": "verdicts:make_attention_support_table",
    "attention-page": "verdicts:render_attention_support_page",
    "plan": "plans:plan_commands",
    "cache": "plans:cache_commands",
    "graph": "graph:graph_commands",
    "run": "run:run_graphs",
    "audit": "audit:audit_wrong_result",
    "reasons": "reasons:explain_message",
    "target": "targets:target_commands",
    "cudnn": "installations:cudnn_commands",
}


class _CommandTable(UserDict[str, Any]):
    """Commands by name; one that is given as ``module:name`` is imported when it is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        """Return the command with this name, imported if necessary."""
        found = super().__getitem__(name)
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = self.data[name] = getattr(import_module(module), attribute)
        return found  # type: ignore[no-any-return]


@click.group(
    cls=MainCommandGroup,
    commands=_CommandTable({name: f"{__package__}.{place}" for name, place in COMMANDS.items()}),
    sections=HELP_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="cudnn-backend-py")
@add_version_options
def main() -> None:
    """Script and understand cuDNN's graph engine."""


@main.command("doctor")
@add_format_options("text", "json")
@add_version_options
def run_doctor(style: str, output: str | None) -> None:
    """Show cuDNN, driver, GPUs and problems of the environment.

    Shows version and path of the library and how it was found, NVRTC, driver or driver stub, GPUs, installed versions
    and described GPUs, then the problems, each with its fix. Needs only Python's standard library. Exit code 0 if
    graphs can be judged and plans can be built, 1 if a problem prevents that.
    """
    from ..info import collect_info, has_blocking_problem, render_info

    facts = collect_info()
    if style == "json":
        write_or_print_report(format_json(facts), output)
    else:
        write_or_print(render_info(facts), output)
    raise SystemExit(has_blocking_problem(facts))


@main.command("record", hidden=True)
@add_version_options
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--pytest-arguments", default="tests/gpu", show_default=True, help="Arguments for pytest.")
def record_gpu_tests(folder: str, pytest_arguments: str) -> None:
    """Run the GPU tests; write a record of the results into FOLDER (logs/)."""
    import shlex

    from ..testing.record import record_test_run

    try:
        arguments = shlex.split(pytest_arguments)
    except ValueError as error:
        raise click.BadParameter(
            f"{pytest_arguments!r} cannot be split into arguments: {error}", param_hint="--pytest-arguments"
        ) from None
    done = record_test_run(Path(folder), arguments)
    for why, count in done.not_run.items():
        print_lines(printable(f"not run, {count} tests: {why}"))
    print_lines(f"record written to {done.path}")
    raise SystemExit(done.code if done.code in (0, 1) else NOT_JUDGED_EXIT_CODE)


@main.command("completion", hidden=True)
@click.argument("shell", type=Choice(["bash", "zsh", "fish"]))
def print_completion_script(shell: str) -> None:
    """Print the shell script that completes commands, targets and versions.

    Switch it on in this shell by: eval "$(cudnn-backend completion bash)", and for good in ~/.bashrc, or ~/.zshrc
    after compinit; for fish: cudnn-backend completion fish > ~/.config/fish/completions/cudnn-backend.fish
    """
    from click.shell_completion import get_completion_class

    chosen = get_completion_class(shell)
    assert chosen is not None
    source = chosen(main, {}, "cudnn-backend", "_CUDNN_BACKEND_COMPLETE").source()
    # For fish: explanations have commas, and what comes first, such as the newest version, stays first.
    source = source.replace('string split ","', 'string split --max 1 ","')
    write_or_print_report(source.replace("complete --no-files", "complete --keep-order --no-files") + "\n", None)


if __name__ == "__main__":
    main()
