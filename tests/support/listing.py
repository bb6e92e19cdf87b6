"""Attention graphs in a text notation: read as graph values, and cuDNN's logs written in the same notation.

The notation is explained at the head of ``tests/library/diagnose/data/attention_graphs.txt``. A listing becomes a
``Graph``; a logged graph is compared with it up to names and order (``difference``), or rendered as text.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cudnn_backend_py import (
    DataType,
    DescriptorType,
    Graph,
    GraphError,
    OperationGraph,
    PointwiseMode,
    capture_log,
    explain,
)
from cudnn_backend_py.diagnose import Outcome
from cudnn_backend_py.errors import CudnnStatusError
from cudnn_backend_py.generated.descriptors import DESCRIPTORS
from cudnn_backend_py.generated.enums import ReduceTensorOp, RngDistribution
from cudnn_backend_py.graph import Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor, packed_strides
from cudnn_backend_py.target import Target, using
from tests.support.child import run_python
from tests.support.oracle import Item, Network, compare, logged_network, meant_network, plain_port

__all__ = ["ARCHITECTURES", "Listing", "answers", "answers_elsewhere", "difference", "read_listings", "same_text"]

SIZES = {"b": 2, "hq": 6, "hk": 6, "hv": 6, "sq": 384, "skv": 512, "dqk": 64, "dv": 128}
PAGE = 64
TYPES = {
    None: DataType.FLOAT,
    "F16": DataType.HALF,
    "E4M3": DataType.FP8_E4M3,
    "I32": DataType.INT32,
    "I64": DataType.INT64,
    "BOOL": DataType.BOOLEAN,
}
ARCHITECTURES = ("sm80", "sm90", "sm100")
_CHILD = """
import json, pickle, sys
from tests.support.listing import answers
with open(sys.argv[1], "rb") as asked:
    print(json.dumps(answers(*pickle.load(asked))))
"""
_TYPE_WORDS = {kind.c_name: word for word, kind in TYPES.items()}
_NAMED = {"S": "[b,hq,sq,skv]", "R": "[b,hq,sq,1]", "1": "[1,1,1,1]", "1d": "[1]", "b": "[b,1,1,1]"}
_UNSAID = {"STATS": "R@", "MAX": "R@", "SUMEXP": "R@", "SINK": "[1,hq,1,1]@"}  # the default in a listing
_USER = {
    "Q": ("b", "hq", "sq", "dqk"),
    "K": ("b", "hk", "skv", "dqk"),
    "V": ("b", "hv", "skv", "dv"),
    "O": ("b", "hq", "sq", "dv"),
}
_REFERENCE = re.compile(
    r"(?P<name>\w+)(?::(?P<dims>\[[^\]]*\]|\w+)(?:/(?P<strides>\[[^\]]*\]))?)?(?:\.(?P<type>\w+))?(?P<marks>[!@~]*)"
)
_STATEMENT = re.compile(r"(?:(?P<result>\S+) = )?(?P<op>\w+)(?:/(?P<compute>\w+))?\((?P<arguments>.*)\)")
_MENTION = re.compile(r"\b([A-Za-z]\w*)(?!\()\b((?::(?:\[[^\]]*\]|\w+)(?:/\[[^\]]*\])?(?:\.\w+)?[!@~]*)?)")
_OVERRIDES = {f"{size}Override": f"{size}_override" for size in "mnk"}


@dataclass(frozen=True)
class Statement:
    """A line: ``result = OP/COMPUTE(arguments)``, arguments as (key or "", text)."""

    result: str
    op: str
    compute: str | None
    arguments: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Listing:
    """One graph of the file; ``name`` is unique together with ``version``, the cuDNN that logged it."""

    version: str
    name: str
    lines: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.version} {self.name}"

    def edited(self, *changes: tuple[str, str]) -> Listing:
        """Return the listing with words replaced; each has to be in it."""
        text = "\n".join(self.lines)
        for old, new in changes:
            assert old in text, f"{self.key} has no {old!r}"
            text = text.replace(old, new)
        return replace(self, lines=tuple(text.splitlines()))

    @cached_property
    def graph(self) -> Graph:
        """The listing as a graph with the tensor names of the listing."""
        return _Reader(self.name).read(self.lines)


def read_listings(path: Path) -> list[Listing]:
    """Return the listings of a file in its order."""
    found: list[Listing] = []
    version = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## cuDNN "):
            version = line.split()[2].strip(",")
        elif line.startswith("# "):
            found.append(Listing(version, line[2:], ()))
        elif line and not line.startswith("%"):
            found[-1] = replace(found[-1], lines=(*found[-1].lines, line))
    return found


def _pieces(text: str, separator: str = ",") -> Iterator[str]:
    """Split at separators outside of brackets."""
    depth, piece = 0, ""
    for letter in text:
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == separator and not depth:
            yield piece.strip()
            piece = ""
        else:
            piece += letter
    if piece.strip():
        yield piece.strip()


def _statement(line: str) -> Statement:
    match = _STATEMENT.fullmatch(line)
    assert match, f"no statement: {line}"
    return Statement(match["result"] or "", match["op"], match["compute"], _arguments(match["arguments"]))


def _arguments(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(_argument(piece) for piece in _pieces(text))


def _argument(piece: str) -> tuple[str, str]:
    match = re.match(r"(\w+)(?:=|(?=\{))", piece)
    return (match[1], piece[match.end() :]) if match else ("", piece)


@dataclass
class _Reader:
    """Makes the graph of one listing."""

    title: str
    sizes: dict[str, int] = field(default_factory=lambda: dict(SIZES))
    tensors: dict[str, Tensor] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    scope: str = ""

    def __post_init__(self) -> None:
        self.io_type = DataType.FP8_E4M3 if "fp8" in self.title else DataType.HALF
        if "fp8" in self.title:
            self.sizes["dqk"] = 128
        if "GQA" in self.title:
            self.sizes |= {"hk": 3, "hv": 3}

    def read(self, lines: Iterable[str]) -> Graph:
        self.statements = [_statement(line) for line in lines]
        for each in self.statements:
            if each.result:
                self.tensor(each.result)
        return Graph(tuple(self.operation(each) for each in self.statements), self.title)

    # tensors

    def numbers(self, text: str) -> tuple[int, ...]:
        return tuple(self.sizes.get(word) or int(word) for word in text.strip("[]").split(","))

    @property
    def next_uid(self) -> int:
        """A uid that makes cuDNN order operations as in the listing: below all others, in sub-graphs above.

        The order has an effect: heuristics give other configs for another order (9.19 and 9.28, sm_80 backward).
        """
        return 1000 + (1 if self.scope else -1) * len(self.tensors)

    def tensor(self, text: str) -> Tensor:
        """Return the tensor of a reference; it is created at its first mention."""
        match = _REFERENCE.fullmatch(text)
        assert match, f"no tensor: {text}"
        name = match["name"]
        key = self.scope + name if re.fullmatch(r"[vc]\d+", name) else name
        known = self.tensors.get(key)
        if known is None or match["dims"]:
            fields = self.said(name, match)
            made = Tensor(name=key, uid=known.uid if known else self.next_uid, **fields)
            assert known in (None, made), f"{name} is {known} and {made}"
            self.tensors[key] = made
        return self.tensors[key]

    def said(self, name: str, match: re.Match[str]) -> dict[str, Any]:
        """Return a tensor's fields from its reference and the legend."""
        offset = self.offset(self.owner(name)) if "~" in match["marks"] else None
        if not match["dims"]:
            legend = "S" if re.fullmatch(r"u\d+", name) else _UNSAID.get(name)
            if legend is None:
                return {**self.user(name), "data_type": self.io_type, "ragged_offset": offset}
            return self.said(name, _REFERENCE.fullmatch(f"{name}:{legend}"))  # type: ignore[arg-type]
        dims, strides = self.shape(match["dims"], match["strides"])
        return {
            "dims": dims,
            "strides": strides,
            "data_type": TYPES[match["type"]],
            "by_value": "!" in match["marks"],
            "virtual": not set("!@") & set(match["marks"]),
            "ragged_offset": offset,
        }

    def shape(self, dims: str, strides: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if dims == "St":
            b, h, s, t = self.numbers("b,hq,skv,sq")
            return (b, h, s, t), (h * s * t, s * t, 1, s)
        found = self.numbers(_NAMED.get(dims, dims))
        return found, self.numbers(strides) if strides else packed_strides(found)

    def user(self, name: str) -> dict[str, Any]:
        """Return dims and strides of Q, K, V, O or a gradient, stored as b, s, h, d; those of a container if paged."""
        b, h, s, d = (self.sizes[size] for size in _USER[name.removeprefix("d").removesuffix("t")])
        if "paged" in self.title and name in "KV":
            b, s = b * s // PAGE, PAGE
        dims, strides = (b, h, s, d), (s * h * d, d, h * d, 1)
        if name.endswith("t"):
            dims, strides = (b, h, d, s), (s * h * d, d, 1, h * d)
        return {"dims": dims, "strides": strides}

    def offset(self, owner: str) -> Tensor:
        name = f"offsets of {owner}"
        dims = (self.sizes["b"] + 1, 1, 1, 1)
        made = Tensor(name=name, uid=self.next_uid, dims=dims, strides=packed_strides(dims), data_type=DataType.INT32)
        return self.tensors.setdefault(name, made)

    def owner(self, name: str) -> str:
        """Return the user tensor with the ragged offset of a tensor: itself, its source or its result."""
        stem = name.removeprefix("d").removesuffix("t")
        if stem in _USER or name == "STATS":
            return stem
        for each in self.statements:
            result, first = each.result.split(":")[0].strip("~"), each.arguments[0][1].strip("~")
            if result == name and each.op == "RESHAPE":
                return self.owner(first)
            if first == name and each.op in ("IDENTITY", "RED_ADD"):
                return self.owner(result)
        return "STATS"

    # operations

    def operation(self, each: Statement) -> Op:
        positional = [self.tensor(text) for key, text in each.arguments if not key]
        named = {key: text for key, text in each.arguments if key}
        name = each.result or each.op
        if each.op == "MATMUL":
            overrides: dict[str, Any] = {_OVERRIDES[key]: self.tensor(text) for key, text in named.items()}
            return Matmul(name=name, a=positional[0], b=positional[1], c=self.tensor(each.result), **overrides)
        if each.op.startswith("RED_"):
            operator = ReduceTensorOp[each.op.removeprefix("RED_")]
            return Reduction(name=name, operator=operator, x=positional[0], y=self.tensor(each.result))
        if each.op in PointwiseMode.__members__:
            return self.pointwise(each, positional, named)
        fields: dict[str, Any] = dict(zip("xb", positional, strict=False))
        if each.result:
            fields["y"] = self.tensor(each.result)
        return self.generic(DescriptorType[f"OPERATION_{each.op}"], name, fields, named)

    def pointwise(self, each: Statement, inputs: list[Tensor], named: dict[str, str]) -> Pointwise:
        ports: dict[str, Any] = dict(zip("xbt", inputs, strict=False)) | {"y": self.tensor(each.result)}
        compute = TYPES[each.compute]
        axis = int(named["axis"]) if "axis" in named else None
        parts: dict[str, Any] = {
            "name": each.result,
            "mode": PointwiseMode[each.op],
            "compute_type": compute,
            "axis": axis,
        }
        try:
            return Pointwise(**parts, **ports)
        except GraphError as error:
            if error.code != "pointwise-not-broadcastable":
                raise
        # One listing has an input larger than the output, which the package refuses and cuDNN accepts.
        made = Pointwise(**parts, **dict.fromkeys(ports, ports["y"]))
        for port, tensor in ports.items():
            object.__setattr__(made, port, tensor)
        return made

    def generic(self, kind: DescriptorType, name: str, fields: dict[str, Any], named: dict[str, str]) -> Operation:
        if kind is DescriptorType.OPERATION_RNG:
            chances = {"bernoulli_dist_probability": float(named.pop("bernoulli_dist_probability"))}
            chances |= {"distribution": RngDistribution[named.pop("distribution")]}
            fields["rng"] = Parameters(DescriptorType.RNG, chances)
        known = {plain_port(facts.field): facts.field for facts in DESCRIPTORS[kind].attributes}
        for key, text in named.items():
            if key == "subgraph":
                fields |= self.subgraph(text)
            elif key == "softmax":
                inner = dict(_arguments(text.strip("{}")))
                fields["softmax"] = self.generic(DescriptorType.OPERATION_SOFTMAX, "softmax", {}, inner)
            elif key == "comparisonMode":
                fields["comparison_mode"] = PointwiseMode[text]
            elif not key.endswith("Uid"):
                fields[known[plain_port(key)]] = self.tensor(text)
        return Operation(kind, name, fields)

    def subgraph(self, text: str) -> dict[str, Any]:
        """Return the sub-graph; tensors that no operation writes are its inputs, one that none reads is its output."""
        self.scope = "inner "
        ops = tuple(self.operation(_statement(line)) for line in _pieces(text.strip("{} "), ";"))
        self.scope = ""
        read = {tensor.uid: tensor for op in ops for tensor in op.inputs().values() if tensor.virtual}
        written = {tensor.uid: tensor for op in ops for tensor in op.outputs().values()}
        (source,) = set(read) - set(written)
        (result,) = set(written) - set(read)
        inner = Graph(ops, "scores", is_subgraph=True)
        return {"subgraph": inner, "subgraph_input_uid": source, "subgraph_output_uid": result}


# Comparing


def _marked(network: Network) -> Network:
    """Return the network with a mark in place of each ragged offset: the listings have no more information about it."""
    offsets = {key for item in network.values() for port, key in item.links if port == "ragged offset"}
    marked = {}
    for key, item in network.items():
        dims = [dict(network[other].attributes)["dims"] for port, other in item.links if port == "ragged offset"]
        links = tuple(link for link in item.links if link[0] != "ragged offset")
        marked[key] = Item(item.label, tuple(sorted({**dict(item.attributes), "ragged": tuple(dims)}.items())), links)
    return {key: item for key, item in marked.items() if key not in offsets}


def difference(listing: Listing, logged: Mapping[str, Any]) -> str | None:
    """Return the first difference between a listing and a logged graph; None if they are equal up to names."""
    return compare(_marked(meant_network(listing.graph)), _marked(logged_network(logged)))


# Judging with cuDNN


def logged(graph: Graph, target: Target) -> dict[str, Any]:
    """Return the graph in cuDNN's log of its finalization."""
    with capture_log(this_thread_only=True) as log:
        OperationGraph(graph, target)
    return log.operation_graphs()[-1]  # a sub-graph comes before the graph it is part of


def judged(graph: Graph) -> dict[str, list[str]]:
    """Return the supported configs for each architecture: heuristics mode, engine, knobs."""
    found = {}
    for name in ARCHITECTURES:
        verdict = explain(graph, name)
        assert verdict.outcome is not Outcome.NOT_JUDGED, verdict
        found[name] = [
            " ".join([item.mode, str(item.engine), *(f"{knob}={value}" for knob, value in item.knobs.items())])
            for item in verdict.candidates
            if item.state == "supported"
        ]
    return found


def answers(graphs: Mapping[str, Graph], judge: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return cuDNN's log of each graph on an H100, or the reason of its refusal, and verdicts on those in `judge`."""
    found: dict[str, dict[str, Any]] = {}
    with using("h100-sxm") as target:
        for key, graph in graphs.items():
            try:
                found[key] = {"log": logged(graph, target)}
            except CudnnStatusError as error:
                found[key] = {"refused": str(error)}
    for key in judge:
        found[key]["verdicts"] = judged(graphs[key])
    return found


def answers_elsewhere(
    graphs: Mapping[str, Graph], judge: Collection[str], environment: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the answers of the cuDNN of another environment, from one child process."""
    with TemporaryDirectory() as folder:
        query_file = Path(folder, "asked.pickle")
        query_file.write_bytes(pickle.dumps((dict(graphs), list(judge))))
        child = run_python(["-c", _CHILD, str(query_file)], environment=environment, check=True)
    found: dict[str, dict[str, Any]] = json.loads(child.stdout)
    return found


# Rendering


def same_text(listing: Listing, logged: Mapping[str, Any]) -> str | None:
    """Return the first line that differs between the log of the listing's graph, written as a listing, and the listing.

    Numbers of tensors and the order of lines are ignored; names of memory are those of the listing's graph.
    """
    names = {tensor.uid: tensor.name for tensor in listing.graph.tensors if not re.search(r"\b[vcu]\d+$", tensor.name)}
    texts = _unnumbered(listing.lines), _unnumbered(_Writer(logged, names).lines())
    odd = [sorted((Counter(one) - Counter(other)).elements()) for one, other in (texts, texts[::-1])]
    return f"listed {odd[0]}, written {odd[1]}" if any(odd) else None


def _unnumbered(lines: Iterable[str]) -> list[str]:
    """Return the lines with each virtual tensor named by a hash of the line that creates it, each constant by its type.

    The description of a tensor is at every mention instead of the first.
    """
    given = list(lines)
    said: dict[str, str] = {name: what for line in given for name, what in _MENTION.findall(line) if what}
    numbered: dict[str, str] = {}

    def mention(match: re.Match[str]) -> str:
        name = match[1]
        if name not in said:
            return str(match[0])
        return numbered.get(name, "c" if re.fullmatch(r"c\d+", name) else name) + said[name]

    done = []
    for line in given:
        if line.startswith("SDPA"):  # the numbers within sub-graphs start again; those of uN are uids
            done.append(re.sub(r"(Uid=|=u)\d+", r"\1", line))
            continue
        result, _, right = line.partition(" = ")
        right = _MENTION.sub(mention, right)
        if re.match(r"v\d+:", result):
            name = result.split(":")[0]
            numbered[name] = "v" + hashlib.sha256((said[name] + right).encode()).hexdigest()[:12]
        done.append(f"{_MENTION.sub(mention, result)} = {right}")
    return done


@dataclass
class _Writer:
    """Writes one logged graph."""

    logged: Mapping[str, Any]
    names: Mapping[int, str]
    seen: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"v": 0, "c": 0})

    def __post_init__(self) -> None:
        self.tensors = {record["name"]: record for record in self.logged["tensors"]}

    def lines(self) -> list[str]:
        return [self.statement(node) for node in self.logged["nodes"]]

    def statement(self, node: Mapping[str, Any]) -> str:
        rest = dict(node)
        op, compute = self.verb(rest)
        inputs = [self.reference(rest.pop(port)) for port in ("matA", "matB") if port in rest]
        inputs += [self.reference(rest.pop(port)) for port in ("X", "B", "T") if port in rest]
        result = next((rest.pop(port) for port in ("Y", "matC") if port in rest), None)
        is_tensor = {key: isinstance(value, str) and value in self.tensors for key, value in rest.items()}
        inputs += [f"{key}={self.reference(value)}" for key, value in rest.items() if is_tensor[key]]
        inputs += [self.parameter(key, value) for key, value in rest.items() if not is_tensor[key]]
        text = f"{op}{compute}({', '.join(inputs)})"
        return text if result is None else f"{self.reference(result)} = {text}"

    def verb(self, rest: dict[str, Any]) -> tuple[str, str]:
        """Remove the operation and its usual fields from a node; return its word and its compute type."""
        op = rest.pop("operation").removeprefix("CUDNN_BACKEND_OPERATION_").removesuffix("_DESCRIPTOR")
        usual = {"alpha1": 1.0, "alpha2": 1.0, "isDeterministic": False, "mode": "CUDNN_RESHAPE_VIEW_ONLY"}
        for key, value in usual.items():
            if rest.get(key) == value:
                rest.pop(key)
        if "pointwiseMode" in rest:
            op = rest.pop("pointwiseMode").removeprefix("CUDNN_POINTWISE_")
        if "reductionOp" in rest:
            op = "RED_" + rest.pop("reductionOp").removeprefix("CUDNN_REDUCE_TENSOR_")
        compute = _TYPE_WORDS[rest.pop("mathPrec", DataType.FLOAT.c_name)]
        return op, f"/{compute}" if compute else ""

    def parameter(self, key: str, value: Any) -> str:
        if key == "subgraph":
            inner = _Writer(value, self.names)
            return f"subgraph={{ {' ; '.join(inner.lines())} }}"
        if key == "softmax":
            ports = [f"{port}={self.names.get(int(uid), 'u')}" for port, uid in value.items() if port != "operation"]
            return f"softmax{{{', '.join(ports)}}}"
        return f"{key}={re.sub('^CUDNN_(RNG_DISTRIBUTION|POINTWISE)_', '', str(value))}"

    def reference(self, uid: str) -> str:
        record = self.tensors[uid]
        ragged = "~" if record.get("isRagged") else ""
        is_user = self.names.get(int(uid), "").removeprefix("d").removesuffix("t") in _USER
        if uid in self.seen:
            return self.seen[uid] + (ragged if is_user else "")
        self.seen[uid] = name = self.names.get(int(uid)) or self.number("c" if record["isByValue"] else "v")
        if is_user:
            return name + ragged
        kind = _TYPE_WORDS[record["dataType"]]
        mark = "!" if record["isByValue"] else "" if record["isVirtual"] else "@"
        return f"{name}:{_shape_text(record)}{f'.{kind}' if kind else ''}{mark}{ragged}"

    def number(self, letter: str) -> str:
        self.counts[letter] += 1
        return f"{letter}{self.counts[letter]}"


def _shape_text(record: Mapping[str, Any]) -> str:
    dims, strides = tuple(record["dim"]), tuple(record["stride"])
    reader = _Reader("")
    for word in (*_NAMED, "St"):
        if reader.shape(word, None) == (dims, strides):
            return word
    words = {size: word for word, size in SIZES.items() if word not in ("hk", "hv")} | {3: "hk"}
    text = f"[{','.join(words.get(dim, str(dim)) for dim in dims)}]"
    return text if strides == packed_strides(dims) else f"{text}/[{','.join(map(str, strides))}]"
