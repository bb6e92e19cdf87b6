"""Pages that the build of the site writes: gallery, commands, enums, files, cuDNN's reasons, JSON tables."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import click

from cudnn_backend_py.cli.commands import HELP_SECTIONS, main
from cudnn_backend_py.cli.graph_file import load_graph_file
from cudnn_backend_py.diagnose.causes.conditions import describe_condition
from cudnn_backend_py.diagnose.causes.rule_texts import convert_sphinx_roles_to_markdown
from cudnn_backend_py.diagnose.framework_messages import (
    COMMANDS,
    LOG_INSTRUCTIONS,
    MESSAGE_ENTRIES,
    STATUS_ENTRIES,
    MessagePattern,
)
from cudnn_backend_py.diagnose.report.drawing import draw_graph
from cudnn_backend_py.generated.enums import CudnnEnum
from cudnn_backend_py.known_issues import FAULTS
from cudnn_backend_py.system.version import parse_version_numbers
from tools.website.reasons import ReasonEntry, list_reason_entries, list_rules, make_message_anchor

__all__ = [
    "ROOT",
    "find_graph_files",
    "list_known_issues",
    "list_operations",
    "make_commands_page",
    "make_enums_page",
    "make_graph_gallery_page",
    "make_reasons_page",
    "make_source_files_page",
]

ROOT = Path(__file__).parents[2]


# gallery


def _read_docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def find_graph_files() -> list[Path]:
    """Return the example files that define a graph and can be read without cuDNN."""
    return [
        path
        for path in sorted((ROOT / "examples").glob("*.py"))
        if not path.stem.startswith("frontend_") and "\ndef graph(" in path.read_text(encoding="utf-8")
    ]


def make_graph_gallery_page() -> str:
    """Return the page of examples: each graph with its drawing, its text and the command that judges it."""
    parts = [
        "---\nhide: [navigation]\n---\n\n# Gallery of graphs\n\n"
        "Graphs to copy, each with the command that judges it. Boxes are operations with their results, rounded boxes "
        "are tensors in memory, and dashed boxes are virtual tensors. [Plots](#plots) are at the end.\n"
    ]
    for path in find_graph_files():
        text = path.read_text(encoding="utf-8")
        graph = load_graph_file(str(path))
        title, _, rest = _read_docstring(path).partition("\n")
        found = re.search(r"cudnn-backend explain \S.*", rest)
        command = found[0] if found else f"cudnn-backend explain examples/{path.name} --target h100"
        lines = "\n".join(str(op) for op in graph.ops)
        parts.append(
            f"\n## {path.stem.replace('_', ' ')} {{ #{path.stem} }}\n\n{title}\n\n"
            f'<div class="drawing" tabindex="0" role="group" aria-label="drawing of {path.stem}" markdown="0">'
            f"{draw_graph(graph)}</div>\n\n"
            f"```console\n$ {command}\n```\n\n"
            f'??? note "The graph as text"\n\n    ```text\n{_indent_text(lines)}\n    ```\n\n'
            f'??? note "The file"\n\n    [{path.name}](files/examples/{path.name}){{ download }}\n\n'
            f"    ```python\n{_indent_text(text.rstrip())}\n    ```\n"
        )
    parts.append(
        "\n## Plots { #plots }\n\nTFLOP/s of attention, by `cudnn-backend plan compare --plot`; the figures are in "
        "[Speed of attention](attention-speed.md).\n\n![TFLOP/s of attention by dims: cuDNN by version, the operators "
        "of this package, and torch's backends](compare.svg)\n\nTokens per second of a small model with five "
        "implementations of attention, [trained and served](attention-speed.md#a-model).\n\n![Tokens per second of "
        "training and serving, by implementation of attention](model.svg)\n"
    )
    return "".join(parts)


def _indent_text(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


# commands


def _list_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            one = command.commands[name]
            if not one.hidden:
                yield f"{path} {name}", one
                yield from _list_commands(one, f"{path} {name}")


def make_commands_page() -> str:
    """Return the page of commands: the help text of each, in the sections of the main help."""
    parts = [
        "# Commands\n\nThe help of every command. Common options, exit codes and completion: "
        "[The command line](../how-to/command-line.md).\n"
    ]
    commands = dict(_list_commands(main, "cudnn-backend"))
    for title, names in HELP_SECTIONS.items():
        parts.append(f"\n## {title}\n")
        for name, command in commands.items():
            if name.split()[1] in names:
                context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
                text = command.get_help(context).strip()
                parts.append(f"\n### {name.removeprefix('cudnn-backend ')}\n\n```text\n{text}\n```\n")
    return "".join(parts)


# enums


def make_enums_page() -> str:
    """Return the page of all enums of the header, with numbers and the versions that added them."""
    parts = [
        "---\nsearch:\n  boost: 0.2\n---\n\n# Enums\n\n"
        "Every enum of `cudnn_graph.h`, from `cudnn_backend_py.enums`. Names are those of C without the common prefix "
        "of their enum: `DataType.HALF` is `CUDNN_DATA_HALF`. `Attr` is short for `AttributeName`.\n"
    ]
    for enum in sorted(CudnnEnum.__subclasses__(), key=lambda one: one.__name__):
        rows = [f"| `{one.name}` | {int(one)} | {_format_added_version(one.since)} |" for one in enum]
        parts.append(f"\n## {enum.__name__}\n\n| name | value | since |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "".join(parts)


def _format_added_version(version: tuple[int, ...] | None) -> str:
    return "" if version is None else ".".join(map(str, version))


# files

_CODE_SUFFIXES = (".py", ".c", ".h", ".cpp", ".cu")


def _read_first_line(path: Path) -> str:
    """Return the first line of a module's docstring, or the first sentence of a C file's first comment."""
    if path.suffix == ".py":
        return convert_sphinx_roles_to_markdown(_read_docstring(path).partition("\n")[0])
    text = path.read_text(encoding="utf-8")
    comment = re.match(r"/\*.*?\*/|(?://[^\n]*\n)+", text, re.DOTALL)
    words = " ".join(re.sub(r"^(/\*|\*/| \*|//)|\*/$", "", comment[0] if comment else "", flags=re.MULTILINE).split())
    return re.split(r"(?<=[.]) ", words)[0]


def make_source_files_page() -> str:
    """Return the page of source files by folder of the package, with the first line of their docstrings."""
    package = ROOT / "cudnn_backend_py"
    parts = [
        "---\nsearch:\n  boost: 0.2\n---\n\n# Files\n\n"
        "The files of each room of the package. [Architecture](../architecture.md) describes the rooms.\n"
    ]
    rooms = sorted(path.parent for path in package.glob("*/__init__.py"))
    for room in (*rooms, package):
        found = room.rglob("*") if room != package else room.glob("*")
        files = sorted(path for path in found if path.suffix in _CODE_SUFFIXES)
        rows = [
            f"| `{path.relative_to(room).as_posix()}` | {_read_first_line(path).replace('|', chr(92) + '|')} |"
            for path in files
        ]
        title = f"`{room.name}/`" if room != package else "The folder above"
        parts.append(f"\n## {title}\n\n| file | contents |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "".join(parts)


# reasons


def make_reasons_page() -> str:
    """Return the page of cuDNN's reasons, by rule."""
    found = list(list_reason_entries())
    versions = sorted({one for entry in found for one in entry.versions}, key=parse_version_numbers)
    parts = [
        "---\nsearch:\n  boost: 0.3\n---\n\n# cuDNN's reasons\n\n"
        "Paste a message of cuDNN, torch, cudnn-frontend, JAX, TransformerEngine, onnxruntime or TensorFlow to find "
        "its explanation; the search box of every page and `cudnn-backend reasons TEXT` accept it too.\n\n"
        '<form class="reason" id="reason-form"><label for="reason">Message</label>'
        '<textarea id="reason" rows="2" placeholder="Embedding dim per head for q and k is not a multiple of 8">'
        "</textarea>"
        '<div id="reason-found" role="status"></div></form>\n\n'
        f"{len(found):,} reasons of cuDNN {', '.join(versions)} for refused graphs, by the rule that reads them. Their "
        "numbers are those of one example graph; `cudnn-backend explain` finds the cause for your own graph.\n"
    ]
    parts.append(_make_program_message_section())
    for rule in list_rules():
        mine = [entry for entry in found if entry.rule == rule.name]
        parts.append(f"\n## {rule.title} {{ #{rule.anchor} }}\n\n{rule.text}\n")
        parts += map(_format_reason_entry, mine)
    return "".join(parts)


def _make_program_message_section() -> str:
    """Return the section of messages of other programs: the meaning, and how each program shows cuDNN's reasons."""
    how = "".join(f"\n| {name or 'any other'} | {text} |" for name, text in LOG_INSTRUCTIONS.items())
    parts = [f"\n## Messages of programs {{ #messages }}\n\n| program | cuDNN's own reasons |\n|---|---|{how}\n"]
    parts += map(_format_message_entry, (*MESSAGE_ENTRIES, *STATUS_ENTRIES))
    return "".join(parts)


def _format_message_entry(row: MessagePattern) -> str:
    commands = [row.command] if row.command else ["why", "frontend", "log"]
    helps = " ".join(COMMANDS[name] for name in commands)
    program = f" Printed by {row.program}." if row.program else ""
    return f"\n### {row.title} {{ #{make_message_anchor(row)} }}\n\n{row.meaning}{program}\n\n{row.fix} {helps}\n"


def _format_reason_entry(entry: ReasonEntry) -> str:
    statement = _escape_markdown(entry.statement)
    said = f"\n`{entry.status}`"
    if entry.expression:
        said += f", condition `{' '.join(entry.expression.split()).replace('`', chr(39))}`"
    if words := describe_condition(entry.text):
        said += f": {_escape_markdown(words)}"
    seen = f"Seen with cuDNN {', '.join(entry.versions)}; {', '.join(f'sm_{sm}' for sm in entry.sm)}."
    with_what = f" Every such graph had {', '.join(entry.operations)}." if entry.operations else ""
    return f"\n### {statement} {{ #{entry.anchor} }}\n{said}.\n{seen}{with_what}\n"


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", escape(" ".join(text.split()), quote=False))


# tables as JSON


def list_known_issues() -> list[dict[str, Any]]:
    """Return every known issue as plain data."""
    return [
        {
            "code": row.code,
            "graphs": row.what,
            "effect": row.effect,
            "versions": row.version_range_text,
            "sm": list(row.sm),
            "fix": row.fix,
            "source": row.source,
            "evidence": row.evidence,
            "measured": row.is_measured,
            "refused": row.refused,
        }
        for row in FAULTS
    ]


def list_operations() -> list[dict[str, str]]:
    """Return the first table of docs/operations.md as plain data."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("<!-- kinds -->")[2].partition("<!-- end of kinds -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [dict(zip(head, (cell.replace("`", "") for cell in row), strict=True)) for row in rows]


def format_json(data: Any) -> str:
    """Return data as JSON, with a line per row if it is a list of rows."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
