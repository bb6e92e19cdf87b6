"""Invalid files, and command lines that read them, to test exit codes and error messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cudnn_backend_py.graph import graph_to_json
from cudnn_backend_py.target import find_profile
from tests.support.damaged_texts import HOSTILE_TEXTS
from tests.support.reporting import make_two_matmuls

__all__ = ["BAD_GRAPHS", "BAD_TARGETS", "EXECUTED_MARKER", "list_commands_with_bad_files", "write_bad_files"]

_GRAPH_DATA = graph_to_json(make_two_matmuls())
_TENSOR_DATA = _GRAPH_DATA["tensors"][0]
_TARGET_DATA = dict(find_profile("h100").properties)


def _make_graph_text(**changed: Any) -> str:
    return json.dumps({**_GRAPH_DATA, **changed})


def _make_graph_text_with_changed_tensor(**changed: Any) -> str:
    return _make_graph_text(tensors=[{**_TENSOR_DATA, **changed}, *_GRAPH_DATA["tensors"][1:]])


def _make_nested_list(depth: int) -> Any:
    return [_make_nested_list(depth - 1)] if depth else 1


EXECUTED_MARKER = "executed"  # file that is written if a command executes a data file as Python
_MARKER_PROGRAM = f"from pathlib import Path\nPath({EXECUTED_MARKER!r}).touch()\n"

# Graph files: by content, the exit code of every command that reads it.
BAD_GRAPHS: dict[str, tuple[str | bytes, int]] = {
    "empty.json": ("", 2),
    "deep.json": ("[" * 100_000, 2),
    "digits.json": ("9" * 5000, 2),
    "field.json": (_make_graph_text(operations=[{**_GRAPH_DATA["operations"][0], "a": _make_nested_list(900)}]), 2),
    "nan.json": (_make_graph_text_with_changed_tensor(uid=float("nan")), 2),
    "twice.json": (_make_graph_text()[:-1] + ', "version": 1}', 2),
    "true.json": (_make_graph_text(version=True), 2),
    "one.json": (_make_graph_text(version=1.0), 2),
    "surrogate.json": (_make_graph_text_with_changed_tensor(name="\ud800"), 2),
    "name.json": (_make_graph_text(name="\udfff"), 2),
    "bytes.json": (b"\xff\xfe\x00", 2),
    "mark.json": ("\ufeff" + _make_graph_text(), 2),
    "cut.json": (_make_graph_text()[:-20], 2),
    "list.json": ("[]", 2),
    "schema.json": (_make_graph_text(schema=HOSTILE_TEXTS[0]), 2),
    "keys.json": (_make_graph_text_with_changed_tensor(**{HOSTILE_TEXTS[1]: 1}), 2),
    "uid.json": (_make_graph_text_with_changed_tensor(uid=2**70), 2),
    "dims.json": (_make_graph_text_with_changed_tensor(dims=HOSTILE_TEXTS[4]), 2),
    "large.json": (" " * ((16 << 20) + 1), 2),
    "exit.py": ("raise SystemExit(1)", 2),
    "leave.py": ("import sys\ndef graph(): sys.exit(0)", 2),
    "interrupt.py": ("raise KeyboardInterrupt", 130),
    "syntax.py": ("def graph(:\n", 2),
    "memory.py": ("raise MemoryError", 2),
    "recursion.py": ("def graph(): return graph()", 2),
    "words.py": (f"raise ValueError({HOSTILE_TEXTS[0] + HOSTILE_TEXTS[1]!r})", 2),
    "mute.py": ("class E(Exception):\n    def __str__(self): raise E\nraise E", 2),
    "stop.py": ("raise GeneratorExit", 2),
    "none.py": ("print('said')\ndef graph(): return 3", 2),
    "import.py": ("import there_is_no_such_module", 2),
    "ours.py": ("from cudnn_backend_py import Graph\ndef graph(): return Graph(())", 2),
    "bare": ("no Python", 2),
    **dict.fromkeys(
        (
            *("evil", "evil.log", "evil.txt", "evil.json", "evil.JSON", "evil.PY", "evil.py ", "evil.pyw", "evil.py.1"),
            *("evil.ipynb", "evil.cpp", "evil.c", "evil.CU", "evil.h", "evil.toml", "evil.plan", "evil.onnx"),
        ),
        (_MARKER_PROGRAM, 2),
    ),
}
BAD_TARGETS: dict[str, str] = {
    "deep": "[" * 100_000,
    "aliases": json.dumps({"properties": _TARGET_DATA, "aliases": 3}),
    "surrogate": json.dumps({**_TARGET_DATA, "deviceName": "\ud800"}),
    "bool": json.dumps({**_TARGET_DATA, "warpSize": True}),
    "text": json.dumps({**_TARGET_DATA, "warpSize": "32"}),
    "negative": json.dumps({**_TARGET_DATA, "multiProcessorCount": -1}),
    "huge": json.dumps({**_TARGET_DATA, "totalGlobalMem": 2**70}),
    "nan": json.dumps({**_TARGET_DATA, "deviceVer": float("nan")}),
    "missing": "{}",
}
_BASELINE_TOML = 'schema = "cudnn-backend-py/check"\nversion = 1\ntargets = ["sm80"]\n[graphs]\ng = "deep.json"\n'
_BAD_BASELINES = {
    "deep": "x = " + "[" * 100_000,
    "digits": "x = " + "9" * 5000,
    "types": _BASELINE_TOML.replace('"deep.json"', "3"),
    "version": _BASELINE_TOML.replace("version = 1", "version = true"),
    "graph": _BASELINE_TOML,
    "missing": _BASELINE_TOML.replace("deep.json", "no such.json"),
    "python": _BASELINE_TOML.replace("deep.json", "exit.py"),
    **{
        name: _BASELINE_TOML.replace("deep.json", name)
        for name in ("evil.log", "evil.txt", "evil.PY", "link.py", "to.txt")
    },
    "expected": _BASELINE_TOML + "[[expected]]\ngraph = 1\n",
    "bytes": b"\xff",
}


def write_bad_files(folder: Path) -> None:
    """Write all invalid files into a folder: graphs, ``*.target.json``, ``*.toml``."""
    for name, (content, _) in BAD_GRAPHS.items():
        _write_file(folder / name, content)
    for name, target in BAD_TARGETS.items():
        _write_file(folder / f"{name}.target.json", target)
    for name, baseline in _BAD_BASELINES.items():
        _write_file(folder / f"{name}.toml", baseline)
    _write_file(folder / "good.json", _make_graph_text())
    (folder / "folder.json").mkdir()
    (folder / "folder.json" / "__main__.py").write_text(_MARKER_PROGRAM)
    (folder / "evil_module.py").write_text(_MARKER_PROGRAM)
    (folder / "link.py").symlink_to("evil.txt")
    (folder / "to.txt").symlink_to("evil_module.py")


def _write_file(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))


# Arguments of each command; GRAPH, TARGET, BASELINE or FILE is the place of the invalid file.
_COMMAND_ARGUMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "explain": (
        ("GRAPH", "--target", "sm80"),
        ("GRAPH", "--target", "sm80", "--format", "json"),
        ("good.json", "--target", "TARGET"),
        ("good.json", "--target", "sm80", "--output", "FILE"),
        ("good.json", "--target", "sm80", "--execute"),
        ("good.json", "--target", "sm80", "--mode", "FILE"),
        ("good.json", "--target", "sm80", "--format", "FILE"),
        ("good.json", "--cudnn", "FILE"),
        ("good.json", "--limit", "FILE"),
        ("GRAPH", "--whatif", "--format", "json"),
        ("good.json", "--whatif", "--target", "TARGET"),
        ("good.json", "--whatif", "--budget", "FILE"),
        ("GRAPH", "--format", "archive", "--target", "sm80"),
        ("good.json", "--format", "archive", "--target", "TARGET"),
        ("good.json", "--format", "archive", "--output", "FILE"),
    ),
    "log": (("FILE",), ("folder.json", "--format", "json"), ("GRAPH", "--format", "json"), ("GRAPH",)),
    "why": (
        ("--target", "TARGET", "good.json"),
        ("--format", "FILE", "good.json"),
        ("--budget", "FILE", "good.json"),
        ("--output", "nowhere/why.txt", "good.json"),
        ("-m",),
        (),
    ),
    "graph lint": (("GRAPH",), ("FILE",), ("good.json", "--format", "FILE")),
    "graph draw": (
        ("GRAPH",),
        ("GRAPH", "--format", "png"),
        ("good.json", "--format", "FILE"),
        ("good.json", "--output", "FILE"),
        ("good.json", "--graph", "FILE"),
    ),
    "completion": (("FILE",), ()),
    "matrix": (
        ("GRAPH", "--target", "sm80", "--format", "json"),
        ("good.json", "--target", "TARGET"),
        ("good.json", "--workers", "0"),
        ("GRAPH", "--since", "--target", "sm80", "--format", "json"),
        ("good.json", "--since", "--target", "TARGET"),
        ("good.json", "--target", "sm80", "--cudnn", "FILE"),
    ),
    "diff": (
        ("9.19.0", "default", "GRAPH", "--target", "sm80", "--format", "json"),
        ("9.19.0", "default", "good.json", "--target", "TARGET"),
        ("9.19.0", "FILE", "good.json"),
        ("9.19.0",),
    ),
    "frontend": (("FILE",), ("--target", "TARGET", "FILE"), ()),
    "reasons": (("x", "--format", "FILE"),),
    "check": (("BASELINE",), ("BASELINE", "--format", "json"), ("BASELINE", "--update"), ("GRAPH",), ("FILE",)),
    "attention-table": (
        ("--row", "FILE"),
        ("--row", "forward: plain", "--target", "TARGET"),
        ("--row", "no such", "--output", "FILE"),
    ),
    "attention-page": (("GRAPH",), ("TARGET",), ("FILE",), ()),
    "doctor": (("--format", "FILE"), ("FILE",)),
    "target list": (("FILE",),),
    "target show": (("TARGET",), ("TARGET", "--device-json"), ("FILE",), ()),
    "target read": (("--device", "99"), ("--device", "FILE"), ("--device", "-1")),
    "target verify": (
        ("--target", "TARGET"),
        ("--as", "TARGET"),
        ("--limit", "FILE"),
        ("--contribute", "--target", "sm80"),
    ),
    "cudnn install": (("FILE",), ("9.19.0", "--cuda", "FILE"), ()),
    "cudnn list": (("FILE",),),
    "cudnn verify": (("FILE",), ("99.99.99",), ("--format", "FILE")),
    "cudnn remove": (("FILE",), ("99.99.99",), ()),
    "record": (("FILE", "--pytest-arguments", "'"), ("good.json",), ()),
    "plan build": (
        ("GRAPH", "--target", "sm80", "--output", "p.plan"),
        ("good.json", "--target", "TARGET", "--output", "p.plan"),
        ("good.json", "--target", "sm80", "--output", "FILE"),
        ("good.json", "--target", "sm80", "--output", "p.plan", "--mode", "FILE"),
        ("good.json", "--target", "sm80", "--output", "p.plan", "--knob", "FILE"),
        ("good.json", "--target", "sm80"),
    ),
    "cache list": (("FILE",),),
    "cache clear": (("FILE",),),
    "run": (
        ("GRAPH", "--target", "sm80", "--format", "json"),
        ("good.json", "--target", "TARGET"),
        ("good.json", "--target", "sm80", "--output", "FILE"),
        ("good.json", "--target", "sm80", "--data", "FILE"),
        ("good.json", "--target", "sm80", "--configs", "FILE"),
        ("good.json", "--target", "sm80", "--dims", "FILE"),
        ("--batch", "FILE", "--target", "sm80"),
        (),
    ),
    "plan tune": (("GRAPH",), ("good.json", "--budget", "FILE"), ("good.json", "--json", "FILE")),
    "audit": (
        ("FILE",),
        ("good.json",),
        ("good.json", "--format", "json"),
        ("good.json", "--target", "TARGET"),
        ("good.json", "--cudnn", "FILE"),
        ("good.json", "--limit", "FILE"),
        ("good.json", "--reduce", "FILE"),
    ),
    "plan compare": (
        ("GRAPH", "--target", "sm80"),
        ("--target", "TARGET"),
        ("--target", "sm80", "--cudnn", "FILE"),
        ("--target", "sm80", "--rounds", "FILE"),
        ("--target", "sm80", "--plot", "FILE"),
        ("--target", "sm80", "--resume", "GRAPH"),
        ("FILE", "--target", "sm80"),
    ),
}
_OTHER_PATHS = ("no such.json", "folder.json", "link.py", "to.txt", "-")
_INVALID_OUTPUT_PATHS = ("good.json/inner", "no such folder/file", HOSTILE_TEXTS[0], HOSTILE_TEXTS[4] + "/x", "a\udcff")


def list_commands_with_bad_files() -> dict[str, list[tuple[list[str], int | None]]]:
    """Return command lines that read invalid files, by command, each with its exit code (None: 2)."""
    values = {
        "GRAPH": [*((name, code) for name, (_, code) in BAD_GRAPHS.items()), *((name, 2) for name in _OTHER_PATHS)],
        "TARGET": [*((f"{name}.target.json", 2) for name in BAD_TARGETS), ("no such", 2), (HOSTILE_TEXTS[0], 2)],
        "BASELINE": [(f"{name}.toml", 2) for name in _BAD_BASELINES],
        "FILE": [
            (name, 2 if name.isascii() and name.isprintable() else None) for name in _INVALID_OUTPUT_PATHS
        ],  # some of the graphs can be exported
    }
    found: dict[str, list[tuple[list[str], int | None]]] = {}
    for command, rows in _COMMAND_ARGUMENTS.items():
        lines = found[command] = []
        for row in rows:
            word = next((one for one in row if one in values), None)
            for value, code in values[word] if word else [("", 2)]:
                code = code if command not in ("log", "attention-page", "check", "plan compare") else 2
                code = (
                    None if command == "run" and word == "GRAPH" else code
                )  # for `run` the file may be a log with other graphs
                lines.append(([*command.split(), *(value if one == word else one for one in row)], code))
        lines.append(([*command.split(), f"--{HOSTILE_TEXTS[0]}"], 2))
        lines.append(([*command.split(), "--help"], 0))
    return found
