"""The public API of cudnn-frontend's Python module as data, and how our module differs from it.

``python -m tests.compat facts`` reads names, parameters, defaults and enum values of the real module, and the names
of nodes and tensors in graphs, and stores them in ``surface-1.32.0.json``. ``make regen`` compares our module with them
in ``docs/frontend-names.md``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .programs import read_node_fields, run_programs

__all__ = [
    "FACTS_FILE",
    "Difference",
    "find_differences",
    "read_public_api",
    "read_stored_public_api",
    "render_name_differences_page",
]

FACTS_FILE = Path(__file__).with_name("surface-1.32.0.json")
Signature = list[list[str | None]]  # name and default of each parameter; None if it is required
COMPARED_CLASSES = (
    "pygraph",
    "Tensor",
    "tensor",
    "Node",
    "Handle",
    "DeviceInfo",
    "GraphContext",
    "Graph",
    "kernel_cache",
    "device_properties",
    "knob",
)
COMPILED_CLASSES = {"device_properties": "device_properties", "kernel_cache": "kernel_cache", "knob": "knob"}
COMPARED_MODULES = (
    "collect_env",
    "datatypes",
    "engines",
    "experimental",
    "experimental.ops",
    "graph_types",
    "nodes",
    "ops",
    "torch",
    "wrapper",
    "yarn",
)
KERNEL_REASON = "a kernel of cudnn-frontend's own, not of cuDNN's backend"
#: Reason for a difference of our module, by ``class.member``, ``class.member(parameter)`` or name.
DIFFERENCE_REASONS = {
    "engines": "cuDNN's engines are listed; those of cudnn-frontend's own kernels are not",
    "torch": "attention of torch through cudnn-frontend's own kernels; `cudnn_backend_py.torch_ops` is ours",
    "ops": f"{KERNEL_REASON}; each name is refused by name",
    "experimental.ops": "only `moe_grouped_matmul`; the others are cudnn-frontend's own kernels",
    "pygraph.(kwargs)": "unknown keywords are refused",
    "pygraph.tensor(kwargs)": "unknown keywords are refused",
    "Graph.(kwargs)": "available as `options`",
    "pygraph.moe_grouped_matmul(compute_data_type)": "without a value, the graph's type, as there",
    "pygraph.moe_grouped_matmul_bwd(compute_data_type)": "without a value, the graph's type, as there",
}
KERNEL_OPERATION_PATTERN = re.compile(r"(gdn|gdn2|gdp|kda|mamba2)(_summary)?(_bwd)?")


def _find_recorded_reason_for_difference(key: str) -> str:
    """Return the recorded reason for a name that is missing or different in our module, or an empty text."""
    if key.endswith(("(kwargs)", "(graph_kwargs)")) and key not in DIFFERENCE_REASONS:
        return "unknown keywords are refused"
    return DIFFERENCE_REASONS.get(key) or DIFFERENCE_REASONS.get(key.partition("(")[0] if "(" in key else "", "")


# Reading cudnn-frontend's module


def read_public_api(cudnn: ModuleType) -> dict[str, Any]:
    """Return names, parameters, defaults and enum values of the imported cudnn-frontend module."""
    backend: Any = cudnn._pybind_module
    lazy = {*cudnn._LAZY_OPTIONAL_IMPORTS, *cudnn._MOE_EP_OPTIONAL_IMPORTS}
    eager = {name for name in (*cudnn.__all__, "handle") if not name.startswith("__")}
    kernels = {name for name in dir(cudnn) if re.match(r"(\w+_)?(causal_conv1d|gnn)_", name)} | lazy
    kernels |= {name for name in dir(cudnn) if name.startswith("long_fft")}
    enums: dict[str, dict[str, int]] = {}
    signatures: dict[str, Any] = {}
    for name in sorted(eager - kernels):
        value = getattr(cudnn, name)
        if isinstance(value, type) and isinstance(getattr(value, "__members__", None), Mapping):
            enums[name] = {member: int(item.value) for member, item in value.__members__.items()}
        elif inspect.isroutine(value):
            signatures[name] = _read_signature(value, name)
    enums["convolution_mode"] = {key: int(item.value) for key, item in backend.convolution_mode.__members__.items()}
    for name in COMPARED_CLASSES:
        owner = getattr(backend if name in COMPILED_CLASSES else cudnn, name)
        for member, value in _iterate_members(owner):
            signatures[f"{name}.{member}"] = value
    signatures |= _read_operations(cudnn, backend)
    return {
        "version": cudnn.__version__,
        "names": sorted(eager - kernels),
        "kernels": sorted(kernels),
        "modules": list(COMPARED_MODULES),
        "enums": enums,
        "signatures": signatures,
        "answers": run_programs(cudnn),
        "nodes in JSON": read_node_fields(cudnn),
    }


def _iterate_members(owner: type) -> Iterator[tuple[str, Any]]:
    if "__init__" in vars(owner) and inspect.isfunction(owner.__init__):
        yield "", _read_signature(owner.__init__, "__init__")
    for member in dir(owner):
        if member.startswith("_"):
            continue
        value = getattr(owner, member)
        yield member, _read_signature(value, member) if callable(value) and inspect.isroutine(value) else None


def _read_signature(function: Any, name: str) -> Signature:
    """Return the parameters of a function; for a C++ function they are read from its help text."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return _parse_help_text(function.__doc__ or "", name)
    return [
        [item.name, None if item.default is item.empty and item.kind not in (2, 4) else _format_default(item.default)]
        for item in parameters
        if item.name != "self"
    ]


def _format_default(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "..."
    if hasattr(default, "name") and hasattr(type(default), "__members__"):
        return f"{type(default).__name__}.{default.name}"
    if default == () or default == []:
        return "[]"
    return "factory" if repr(default) == "<factory>" else repr(default)


def _parse_help_text(text: str, name: str) -> Signature:
    """Return the parameters of all overloads in a help text, without duplicates."""
    found: dict[str, str | None] = {}
    for line in text.splitlines():
        start = re.match(rf"\s*(\d+\. )?{name}\(", line)
        for part in _split_parameters(line[start.end() : line.rindex(")")]) if start else ():
            parameter, _, default = part.partition(" = ")
            parameter = parameter.partition(":")[0].strip()
            if re.fullmatch(r"[A-Za-z_]\w*", parameter) and parameter != "self" and not re.match(r"arg\d*$", parameter):
                found[parameter] = _simplify_default(default) if default else found.get(parameter)
    return [[parameter, default] for parameter, default in found.items()]


def _simplify_default(text: str) -> str:
    text = re.sub(r"<(?:\w+\.)*(\w+\.\w+): -?\d+>", r"\1", text.strip())
    return re.sub(r"^cudnn\._compiled_module\.", "", text)


def _split_parameters(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[(<") - (letter in "])>" and text[at - 1] != "-")
        if letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _read_operations(cudnn: ModuleType, backend: Any) -> dict[str, Signature]:
    """Return the parameters of each graph operation from C++, as the Python method only forwards keywords."""
    import cudnn._pygraph as made  # type: ignore[import-not-found]

    found: dict[str, Signature] = {}
    tables = {**made._STRUCTURED_OPS, **made._CAPTURED_OPS}
    for name in dir(cudnn.pygraph):
        spec = tables.get(name)
        written = (
            _parse_help_text(getattr(backend.backend_graph, name).__doc__ or "", name)
            if hasattr(backend.backend_graph, name)
            else []
        )
        if spec is None and ["args", "..."] not in _read_signature_if_callable(getattr(cudnn.pygraph, name)):
            continue
        if not written:
            continue
        known = {parameter for parameter, _ in written}
        more = [*(spec or {}).get("inputs", ()), *(spec or {}).get("keyword_inputs", ())]
        more += [*(spec or {}).get("python_only_attrs", ()), *(spec or {}).get("python_only_in_kwargs", ())]
        more += (spec or {}).get("python_only_out_kwargs", ())
        written += [[parameter, "None"] for parameter in more if parameter not in known]
        if spec is not None:
            written.append(["out_dims", "None"])
        found[f"pygraph.{name}"] = written
    return found


def _read_signature_if_callable(value: Any) -> Signature:
    return _read_signature(value, "") if callable(value) else []


def read_stored_public_api() -> dict[str, Any]:
    """Return the stored public API of cudnn-frontend: names, parameters, defaults and enum values."""
    facts: dict[str, Any] = json.loads(FACTS_FILE.read_text(encoding="utf-8"))
    return facts


# Comparison with our module


@dataclass(frozen=True)
class Difference:
    """A name or parameter that is missing or different in our module; ``reason`` may be empty."""

    area: str
    name: str
    description: str
    reason: str


def find_differences(facts: Mapping[str, Any], ours: ModuleType) -> list[Difference]:
    """Return the differences of our module from cudnn-frontend's stored API, except for its own kernels."""
    found = [
        Difference("module", name, "missing", DIFFERENCE_REASONS.get(name, ""))
        for name in facts["names"]
        if not _has_name(ours, name)
    ]
    found += _find_module_differences(facts["modules"])
    for name, members in facts["enums"].items():
        kind = getattr(ours, name, None)
        mine = {} if kind is None else {key: item.value for key, item in kind.__members__.items()}
        for member, value in members.items():
            if mine.get(member) != value:
                found.append(Difference(name, member, f"{value}, here {mine.get(member)}", ""))
    for name, parameters in facts["signatures"].items():
        found += _find_signature_differences(name, parameters, ours)
    return found


def _has_name(ours: ModuleType, name: str) -> bool:
    return hasattr(ours, name)


def _find_module_differences(modules: list[str]) -> Iterator[Difference]:
    from cudnn_backend_py.frontend.as_cudnn import SUBMODULES

    for name in modules:
        if name not in SUBMODULES or name in DIFFERENCE_REASONS:
            yield Difference("module", f"cudnn.{name}", "not whole" if name in SUBMODULES else "missing",
                             DIFFERENCE_REASONS.get(name, ""))  # fmt: skip


def _find_signature_differences(name: str, parameters: Signature | None, ours: ModuleType) -> Iterator[Difference]:
    owner, _, member = name.partition(".")
    target = _find_member(ours, owner, member)
    if owner == "pygraph" and KERNEL_OPERATION_PATTERN.fullmatch(member):
        return  # exists, but raises an error that names it
    if target is _MISSING:
        why = (
            KERNEL_REASON
            if owner == "pygraph" and KERNEL_OPERATION_PATTERN.fullmatch(member)
            else _find_recorded_reason_for_difference(name)
        )
        yield Difference(owner, member or owner, "missing", why)
        return
    if parameters is None or not callable(target) or KERNEL_OPERATION_PATTERN.fullmatch(member):
        return
    mine = _read_our_parameters(target)
    where = name
    for parameter, default in parameters:
        assert parameter is not None
        why = _find_recorded_reason_for_difference(f"{where}({parameter})")
        if parameter in ("args", "kwargs") and parameter not in mine:
            if not why and parameter == "kwargs":
                yield Difference(owner, f"{member}({parameter})", "missing", why)
            continue
        if parameter not in mine:
            yield Difference(owner, f"{member}({parameter})", "missing", why)
        elif not _is_equivalent_default(default, mine[parameter]):
            yield Difference(owner, f"{member}({parameter})", f"default {default}, here {mine[parameter]}", why)


_MISSING = object()


def _find_member(ours: ModuleType, owner: str, member: str) -> Any:
    from cudnn_backend_py.frontend import handles, plan_list

    holder = getattr(ours, owner, None) or getattr(handles, owner, None) or getattr(plan_list, owner, None)
    if holder is None:
        return _MISSING
    if not member:
        return holder
    fields = getattr(holder, "__dataclass_fields__", {})
    notes = getattr(holder, "__annotations__", {})
    return getattr(holder, member, fields.get(member, notes.get(member, _MISSING)))


def _read_our_parameters(target: Any) -> dict[str, str | None]:
    from cudnn_backend_py.frontend.ops.linear import WINDOW_PARAMETERS

    made = isinstance(target, type) and "__init__" in vars(
        target
    )  # a class derived from a number is created by __new__
    function = target.__init__ if made else target
    mine = {str(name): default for name, default in _read_signature(function, "")}
    operation = getattr(target, "operation", None)
    if operation is not None:
        mine |= dict.fromkeys((*operation.kernel_only_arguments, "out_dims"), "None")
    if "arguments" in mine:  # a convolution, which has two signatures
        mine |= WINDOW_PARAMETERS
    return mine


_EMPTY_DEFAULTS = {
    "None",
    "data_type.NOT_SET",
    "norm_forward_phase.NOT_SET",
    "tensor_reordering.NONE",
    "-1",
    "factory",
    "[]",
}


def _is_equivalent_default(theirs: str | None, mine: str | None) -> bool:
    """Return whether two defaults are equivalent; ours may have one for a parameter that theirs requires."""
    return theirs is None or theirs == mine or {theirs, mine} <= _EMPTY_DEFAULTS or theirs == "..."


# Documentation page


def render_name_differences_page(facts: Mapping[str, Any], ours: ModuleType) -> str:
    """Return the documentation page (Markdown) of missing and different names."""
    found = find_differences(facts, ours)
    total = _count_public_names(facts)
    lines = [
        f"# Names of cudnn-frontend {facts['version']}",
        "",
        f"Which names of cudnn-frontend differ in `cudnn_backend_py.frontend`. All {total} names, parameters, defaults",
        "and enum values of its backend part were compared, and the names of nodes, ports and tensors in",
        f"{len(facts['answers'])} programs that use every operation.",
        "",
        "| backend part | in cudnn-frontend | the same here |",
        "|---|--:|--:|",
    ]
    groups = {
        "names of the module": (len(facts["names"]), lambda one: one.area == "module"),
        "enum values": (sum(map(len, facts["enums"].values())), lambda one: one.area in facts["enums"]),
        "methods, attributes and their parameters": (
            sum(1 + len(item or ()) for item in facts["signatures"].values()),
            lambda one: one.area not in facts["enums"] and one.area != "module",
        ),
    }
    for title, (count, belongs) in groups.items():
        lines.append(f"| {title} | {count} | {count - sum(belongs(one) and '.' not in one.name for one in found)} |")
    lines += ["", "## Differences", "", "| part | name | difference | reason |", "|---|---|---|---|"]
    lines += [f"| {one.area} | `{one.name}` | {one.description} | {one.reason} |" for one in found]
    lines += [
        "",
        "## Kernels of cudnn-frontend itself, refused by name",
        "",
        ", ".join(f"`{name}`" for name in facts["kernels"]) + ".",
        "",
    ]
    return "\n".join(lines)


def _count_public_names(facts: Mapping[str, Any]) -> int:
    parameters = sum(1 + len(item or ()) for item in facts["signatures"].values())
    return len(facts["names"]) + sum(map(len, facts["enums"].values())) + parameters
