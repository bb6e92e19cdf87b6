"""Convert attention graphs from a text notation to `Graph` objects, and cuDNN's logged graphs to the notation.

The start of ``tests/library/diagnose/data/attention_graphs.txt`` explains the notation.
``find_difference_from_logged_graph`` compares a logged graph with a listing, ignoring names and order;
``find_text_difference`` compares their texts.
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
from cudnn_backend_py.generated.attributes import get_attributes
from cudnn_backend_py.generated.enums import ReduceTensorOp, RngDistribution
from cudnn_backend_py.graph import Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor, packed_strides
from cudnn_backend_py.target import Target, use_target
from tests.support.child import run_python
from tests.support.logged_graph_comparison import (
    LinkedGraphItem,
    Network,
    convert_graph_to_linked_items,
    convert_logged_graph_to_linked_items,
    find_difference_of_linked_items,
    normalize_port,
)

__all__ = [
    "ARCHITECTURES",
    "AttentionGraphListing",
    "find_difference_from_logged_graph",
    "find_text_difference",
    "judge_graphs_in_child",
    "log_and_judge_graphs",
    "read_attention_graph_listings",
]

SIZE_SYMBOLS = {"b": 2, "hq": 6, "hk": 6, "hv": 6, "sq": 384, "skv": 512, "dqk": 64, "dv": 128}
PAGE_SIZE = 64
TYPE_SYMBOLS = {
    None: DataType.FLOAT,
    "F16": DataType.HALF,
    "E4M3": DataType.FP8_E4M3,
    "I32": DataType.INT32,
    "I64": DataType.INT64,
    "BOOL": DataType.BOOLEAN,
}
ARCHITECTURES = ("sm80", "sm90", "sm100")
_CHILD_PROGRAM = """
import json, pickle, sys
from tests.support.attention_listings import log_and_judge_graphs
with open(sys.argv[1], "rb") as asked:
    print(json.dumps(log_and_judge_graphs(*pickle.load(asked))))
"""
_TYPE_WORDS = {kind.c_name: word for word, kind in TYPE_SYMBOLS.items()}
_NAMED_SHAPES = {"S": "[b,hq,sq,skv]", "R": "[b,hq,sq,1]", "1": "[1,1,1,1]", "1d": "[1]", "b": "[b,1,1,1]"}
_DEFAULT_REFERENCES = {
    "STATS": "R@",
    "MAX": "R@",
    "SUMEXP": "R@",
    "SINK": "[1,hq,1,1]@",
}  # fields of these tensors if a listing has none
_USER_TENSOR_DIMS = {
    "Q": ("b", "hq", "sq", "dqk"),
    "K": ("b", "hk", "skv", "dqk"),
    "V": ("b", "hv", "skv", "dv"),
    "O": ("b", "hq", "sq", "dv"),
}
_REFERENCE_PATTERN = re.compile(
    r"(?P<name>\w+)(?::(?P<dims>\[[^\]]*\]|\w+)(?:/(?P<strides>\[[^\]]*\]))?)?(?:\.(?P<type>\w+))?(?P<marks>[!@~]*)"
)
_STATEMENT_PATTERN = re.compile(r"(?:(?P<result>\S+) = )?(?P<op>\w+)(?:/(?P<compute>\w+))?\((?P<arguments>.*)\)")
_MENTION_PATTERN = re.compile(r"\b([A-Za-z]\w*)(?!\()\b((?::(?:\[[^\]]*\]|\w+)(?:/\[[^\]]*\])?(?:\.\w+)?[!@~]*)?)")
_OVERRIDE_FIELDS = {f"{size}Override": f"{size}_override" for size in "mnk"}


@dataclass(frozen=True)
class ListingStatement:
    """One line of a listing, ``result = OP/COMPUTE(arguments)``, with arguments as (key or "", text)."""

    result: str
    op: str
    compute: str | None
    arguments: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class AttentionGraphListing:
    """An attention graph in the text notation, identified by cuDNN version and name."""

    version: str
    name: str
    lines: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.version} {self.name}"

    def replace_text(self, *changes: tuple[str, str]) -> AttentionGraphListing:
        """Return the listing with texts replaced; each old text must occur in it."""
        text = "\n".join(self.lines)
        for old, new in changes:
            assert old in text, f"{self.key} has no {old!r}"
            text = text.replace(old, new)
        return replace(self, lines=tuple(text.splitlines()))

    @cached_property
    def graph(self) -> Graph:
        """Return the listing as a graph with the listing's tensor names."""
        return _ListingReader(self.name).read_lines(self.lines)


def read_attention_graph_listings(path: Path) -> list[AttentionGraphListing]:
    """Read a file of attention graphs in the text notation; return them in order."""
    found: list[AttentionGraphListing] = []
    version = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## cuDNN "):
            version = line.split()[2].strip(",")
        elif line.startswith("# "):
            found.append(AttentionGraphListing(version, line[2:], ()))
        elif line and not line.startswith("%"):
            found[-1] = replace(found[-1], lines=(*found[-1].lines, line))
    return found


def _split_outside_brackets(text: str, separator: str = ",") -> Iterator[str]:
    """Yield the parts of a text between separators that are not inside brackets."""
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


def _parse_statement(line: str) -> ListingStatement:
    match = _STATEMENT_PATTERN.fullmatch(line)
    assert match, f"cannot parse statement: {line}"
    return ListingStatement(match["result"] or "", match["op"], match["compute"], _parse_arguments(match["arguments"]))


def _parse_arguments(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(_parse_argument(piece) for piece in _split_outside_brackets(text))


def _parse_argument(piece: str) -> tuple[str, str]:
    match = re.match(r"(\w+)(?:=|(?=\{))", piece)
    return (match[1], piece[match.end() :]) if match else ("", piece)


@dataclass
class _ListingReader:
    """Converts the lines of one listing to a graph."""

    title: str
    sizes: dict[str, int] = field(default_factory=lambda: dict(SIZE_SYMBOLS))
    tensors: dict[str, Tensor] = field(default_factory=dict)
    statements: list[ListingStatement] = field(default_factory=list)
    scope: str = ""

    def __post_init__(self) -> None:
        self.io_type = DataType.FP8_E4M3 if "fp8" in self.title else DataType.HALF
        if "fp8" in self.title:
            self.sizes["dqk"] = 128
        if "GQA" in self.title:
            self.sizes |= {"hk": 3, "hv": 3}

    def read_lines(self, lines: Iterable[str]) -> Graph:
        self.statements = [_parse_statement(line) for line in lines]
        for each in self.statements:
            if each.result:
                self.get_referenced_tensor(each.result)
        return Graph(tuple(self.make_operation(each) for each in self.statements), self.title)

    # tensors

    def parse_sizes(self, text: str) -> tuple[int, ...]:
        return tuple(self.sizes.get(word) or int(word) for word in text.strip("[]").split(","))

    @property
    def next_free_uid(self) -> int:
        """Return the next uid; with these uids cuDNN orders operations as in the listing.

        The order matters: heuristics list other configs for another order (9.19 and 9.28, sm_80 backward).
        """
        return 1000 + (1 if self.scope else -1) * len(self.tensors)

    def get_referenced_tensor(self, text: str) -> Tensor:
        """Return the tensor that a reference names; the first reference creates it."""
        match = _REFERENCE_PATTERN.fullmatch(text)
        assert match, f"cannot parse tensor: {text}"
        name = match["name"]
        key = self.scope + name if re.fullmatch(r"[vc]\d+", name) else name
        known = self.tensors.get(key)
        if known is None or match["dims"]:
            fields = self.parse_tensor_fields(name, match)
            made = Tensor(name=key, uid=known.uid if known else self.next_free_uid, **fields)
            assert known in (None, made), f"{name} is {known} and {made}"
            self.tensors[key] = made
        return self.tensors[key]

    def parse_tensor_fields(self, name: str, match: re.Match[str]) -> dict[str, Any]:
        """Return a tensor's fields from its reference and the defaults of the notation."""
        offset = self.ragged_offset(self.find_name_of_ragged_offset_owner(name)) if "~" in match["marks"] else None
        if not match["dims"]:
            legend = "S" if re.fullmatch(r"u\d+", name) else _DEFAULT_REFERENCES.get(name)
            if legend is None:
                return {**self.compute_user_tensor_shape(name), "data_type": self.io_type, "ragged_offset": offset}
            return self.parse_tensor_fields(name, _REFERENCE_PATTERN.fullmatch(f"{name}:{legend}"))  # type: ignore[arg-type]
        dims, strides = self.parse_shape(match["dims"], match["strides"])
        return {
            "dims": dims,
            "strides": strides,
            "data_type": TYPE_SYMBOLS[match["type"]],
            "by_value": "!" in match["marks"],
            "virtual": not set("!@") & set(match["marks"]),
            "ragged_offset": offset,
        }

    def parse_shape(self, dims: str, strides: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if dims == "St":
            b, h, s, t = self.parse_sizes("b,hq,skv,sq")
            return (b, h, s, t), (h * s * t, s * t, 1, s)
        found = self.parse_sizes(_NAMED_SHAPES.get(dims, dims))
        return found, self.parse_sizes(strides) if strides else packed_strides(found)

    def compute_user_tensor_shape(self, name: str) -> dict[str, Any]:
        """Return dims and strides of Q, K, V, O, a gradient or a page container, stored as b, s, h, d."""
        b, h, s, d = (self.sizes[size] for size in _USER_TENSOR_DIMS[name.removeprefix("d").removesuffix("t")])
        if "paged" in self.title and name in "KV":
            b, s = b * s // PAGE_SIZE, PAGE_SIZE
        dims, strides = (b, h, s, d), (s * h * d, d, h * d, 1)
        if name.endswith("t"):
            dims, strides = (b, h, d, s), (s * h * d, d, 1, h * d)
        return {"dims": dims, "strides": strides}

    def ragged_offset(self, owner: str) -> Tensor:
        name = f"offsets of {owner}"
        dims = (self.sizes["b"] + 1, 1, 1, 1)
        made = Tensor(
            name=name, uid=self.next_free_uid, dims=dims, strides=packed_strides(dims), data_type=DataType.INT32
        )
        return self.tensors.setdefault(name, made)

    def find_name_of_ragged_offset_owner(self, name: str) -> str:
        """Return the name of the user tensor with the same ragged offset as the tensor `name`."""
        stem = name.removeprefix("d").removesuffix("t")
        if stem in _USER_TENSOR_DIMS or name == "STATS":
            return stem
        for each in self.statements:
            result, first = each.result.split(":")[0].strip("~"), each.arguments[0][1].strip("~")
            if result == name and each.op == "RESHAPE":
                return self.find_name_of_ragged_offset_owner(first)
            if first == name and each.op in ("IDENTITY", "RED_ADD"):
                return self.find_name_of_ragged_offset_owner(result)
        return "STATS"

    # operations

    def make_operation(self, each: ListingStatement) -> Op:
        positional = [self.get_referenced_tensor(text) for key, text in each.arguments if not key]
        named = {key: text for key, text in each.arguments if key}
        name = each.result or each.op
        if each.op == "MATMUL":
            overrides: dict[str, Any] = {
                _OVERRIDE_FIELDS[key]: self.get_referenced_tensor(text) for key, text in named.items()
            }
            return Matmul(
                name=name, a=positional[0], b=positional[1], c=self.get_referenced_tensor(each.result), **overrides
            )
        if each.op.startswith("RED_"):
            operator = ReduceTensorOp[each.op.removeprefix("RED_")]
            return Reduction(name=name, operator=operator, x=positional[0], y=self.get_referenced_tensor(each.result))
        if each.op in PointwiseMode.__members__:
            return self.make_pointwise(each, positional, named)
        fields: dict[str, Any] = dict(zip("xb", positional, strict=False))
        if each.result:
            fields["y"] = self.get_referenced_tensor(each.result)
        return self.make_generic_operation(DescriptorType[f"OPERATION_{each.op}"], name, fields, named)

    def make_pointwise(self, each: ListingStatement, inputs: list[Tensor], named: dict[str, str]) -> Pointwise:
        ports: dict[str, Any] = dict(zip("xbt", inputs, strict=False)) | {"y": self.get_referenced_tensor(each.result)}
        compute = TYPE_SYMBOLS[each.compute]
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
        # One listing has an input larger than the output, which cuDNN accepts but the package refuses.
        made = Pointwise(**parts, **dict.fromkeys(ports, ports["y"]))
        for port, tensor in ports.items():
            object.__setattr__(made, port, tensor)
        return made

    def make_generic_operation(
        self, kind: DescriptorType, name: str, fields: dict[str, Any], named: dict[str, str]
    ) -> Operation:
        if kind is DescriptorType.OPERATION_RNG:
            chances = {"bernoulli_dist_probability": float(named.pop("bernoulli_dist_probability"))}
            chances |= {"distribution": RngDistribution[named.pop("distribution")]}
            fields["rng"] = Parameters(DescriptorType.RNG, chances)
        known = {normalize_port(facts.field): facts.field for facts in get_attributes(kind)}
        for key, text in named.items():
            if key == "subgraph":
                fields |= self.make_subgraph(text)
            elif key == "softmax":
                inner = dict(_parse_arguments(text.strip("{}")))
                fields["softmax"] = self.make_generic_operation(DescriptorType.OPERATION_SOFTMAX, "softmax", {}, inner)
            elif key == "comparisonMode":
                fields["comparison_mode"] = PointwiseMode[text]
            elif not key.endswith("Uid"):
                fields[known[normalize_port(key)]] = self.get_referenced_tensor(text)
        return Operation(kind, name, fields)

    def make_subgraph(self, text: str) -> dict[str, Any]:
        """Return the sub-graph; its inputs are tensors not written by an operation, its output is not read by one."""
        self.scope = "inner "
        ops = tuple(
            self.make_operation(_parse_statement(line)) for line in _split_outside_brackets(text.strip("{} "), ";")
        )
        self.scope = ""
        read = {tensor.uid: tensor for op in ops for tensor in op.inputs().values() if tensor.virtual}
        written = {tensor.uid: tensor for op in ops for tensor in op.outputs().values()}
        (source,) = set(read) - set(written)
        (result,) = set(written) - set(read)
        inner = Graph(ops, "scores", is_subgraph=True)
        return {"subgraph": inner, "subgraph_input_uid": source, "subgraph_output_uid": result}


# Comparing


def _replace_ragged_offsets_by_marks(network: Network) -> Network:
    """Replace each ragged offset by a placeholder, as the text notation does not have its fields."""
    offsets = {key for item in network.values() for port, key in item.links if port == "ragged offset"}
    marked = {}
    for key, item in network.items():
        dims = [dict(network[other].attributes)["dims"] for port, other in item.links if port == "ragged offset"]
        links = tuple(link for link in item.links if link[0] != "ragged offset")
        marked[key] = LinkedGraphItem(
            item.label, tuple(sorted({**dict(item.attributes), "ragged": tuple(dims)}.items())), links
        )
    return {key: item for key, item in marked.items() if key not in offsets}


def find_difference_from_logged_graph(listing: AttentionGraphListing, logged: Mapping[str, Any]) -> str | None:
    """Return the first difference between a listing and a logged graph; None if they differ only in names."""
    return find_difference_of_linked_items(
        _replace_ragged_offsets_by_marks(convert_graph_to_linked_items(listing.graph)),
        _replace_ragged_offsets_by_marks(convert_logged_graph_to_linked_items(logged)),
    )


# Finalizing and judging with cuDNN


def finalize_and_read_logged_graph(graph: Graph, target: Target) -> dict[str, Any]:
    """Finalize the graph and return cuDNN's log record of it."""
    with capture_log(this_thread_only=True) as log:
        OperationGraph(graph, target)
    return log.operation_graphs()[-1]  # the log has sub-graphs before the graph that contains them


def list_supported_configs(graph: Graph) -> dict[str, list[str]]:
    """Return the supported engine configs per architecture: heuristics mode, engine, knobs."""
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


def log_and_judge_graphs(graphs: Mapping[str, Graph], judge: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return cuDNN's log of each graph on an H100 or its refusal, and the supported configs of graphs in `judge`."""
    found: dict[str, dict[str, Any]] = {}
    with use_target("h100-sxm") as target:
        for key, graph in graphs.items():
            try:
                found[key] = {"log": finalize_and_read_logged_graph(graph, target)}
            except CudnnStatusError as error:
                found[key] = {"refused": str(error)}
    for key in judge:
        found[key]["verdicts"] = list_supported_configs(graphs[key])
    return found


def judge_graphs_in_child(
    graphs: Mapping[str, Graph], judge: Collection[str], environment: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the results of :func:`log_and_judge_graphs` from one child process with another environment."""
    with TemporaryDirectory() as folder:
        query_file = Path(folder, "asked.pickle")
        query_file.write_bytes(pickle.dumps((dict(graphs), list(judge))))
        child = run_python(["-c", _CHILD_PROGRAM, str(query_file)], environment=environment, check=True)
    found: dict[str, dict[str, Any]] = json.loads(child.stdout)
    return found


# Writing logged graphs as text


def find_text_difference(listing: AttentionGraphListing, logged: Mapping[str, Any]) -> str | None:
    """Write the log of the listing's graph as a listing, and return the first line that differs.

    Numbers of tensors and the order of lines are ignored; tensors in memory have the names of the listing's graph.
    """
    names = {tensor.uid: tensor.name for tensor in listing.graph.tensors if not re.search(r"\b[vcu]\d+$", tensor.name)}
    texts = (
        _rename_virtual_tensors_by_definition(listing.lines),
        _rename_virtual_tensors_by_definition(_ListingWriter(logged, names).write_lines()),
    )
    odd = [sorted((Counter(one) - Counter(other)).elements()) for one, other in (texts, texts[::-1])]
    return f"listed {odd[0]}, written {odd[1]}" if any(odd) else None


def _rename_virtual_tensors_by_definition(lines: Iterable[str]) -> list[str]:
    """Return the lines with virtual tensors named by a hash of their definition, and constants by their type.

    Every mention of a tensor has its description, not only the first.
    """
    given = list(lines)
    said: dict[str, str] = {name: what for line in given for name, what in _MENTION_PATTERN.findall(line) if what}
    numbered: dict[str, str] = {}

    def normalize_tensor_reference(match: re.Match[str]) -> str:
        name = match[1]
        if name not in said:
            return str(match[0])
        return numbered.get(name, "c" if re.fullmatch(r"c\d+", name) else name) + said[name]

    done = []
    for line in given:
        if line.startswith("SDPA"):  # numbering restarts in sub-graphs; in uN, N is a uid
            done.append(re.sub(r"(Uid=|=u)\d+", r"\1", line))
            continue
        result, _, right = line.partition(" = ")
        right = _MENTION_PATTERN.sub(normalize_tensor_reference, right)
        if re.match(r"v\d+:", result):
            name = result.split(":")[0]
            numbered[name] = "v" + hashlib.sha256((said[name] + right).encode()).hexdigest()[:12]
        done.append(f"{_MENTION_PATTERN.sub(normalize_tensor_reference, result)} = {right}")
    return done


@dataclass
class _ListingWriter:
    """Writes one logged graph as the lines of a listing."""

    logged: Mapping[str, Any]
    names: Mapping[int, str]
    seen: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"v": 0, "c": 0})

    def __post_init__(self) -> None:
        self.tensors = {record["name"]: record for record in self.logged["tensors"]}

    def write_lines(self) -> list[str]:
        return [self.write_statement(node) for node in self.logged["nodes"]]

    def write_statement(self, node: Mapping[str, Any]) -> str:
        rest = dict(node)
        op, compute = self.pop_name_and_compute_type(rest)
        inputs = [self.write_reference(rest.pop(port)) for port in ("matA", "matB") if port in rest]
        inputs += [self.write_reference(rest.pop(port)) for port in ("X", "B", "T") if port in rest]
        result = next((rest.pop(port) for port in ("Y", "matC") if port in rest), None)
        is_tensor = {key: isinstance(value, str) and value in self.tensors for key, value in rest.items()}
        inputs += [f"{key}={self.write_reference(value)}" for key, value in rest.items() if is_tensor[key]]
        inputs += [self.write_argument(key, value) for key, value in rest.items() if not is_tensor[key]]
        text = f"{op}{compute}({', '.join(inputs)})"
        return text if result is None else f"{self.write_reference(result)} = {text}"

    def pop_name_and_compute_type(self, rest: dict[str, Any]) -> tuple[str, str]:
        """Remove the operation and its default fields from a node; return its name and compute type."""
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

    def write_argument(self, key: str, value: Any) -> str:
        if key == "subgraph":
            inner = _ListingWriter(value, self.names)
            return f"subgraph={{ {' ; '.join(inner.write_lines())} }}"
        if key == "softmax":
            ports = [f"{port}={self.names.get(int(uid), 'u')}" for port, uid in value.items() if port != "operation"]
            return f"softmax{{{', '.join(ports)}}}"
        return f"{key}={re.sub('^CUDNN_(RNG_DISTRIBUTION|POINTWISE)_', '', str(value))}"

    def write_reference(self, uid: str) -> str:
        record = self.tensors[uid]
        ragged = "~" if record.get("isRagged") else ""
        is_user = self.names.get(int(uid), "").removeprefix("d").removesuffix("t") in _USER_TENSOR_DIMS
        if uid in self.seen:
            return self.seen[uid] + (ragged if is_user else "")
        self.seen[uid] = name = self.names.get(int(uid)) or self.make_next_name("c" if record["isByValue"] else "v")
        if is_user:
            return name + ragged
        kind = _TYPE_WORDS[record["dataType"]]
        mark = "!" if record["isByValue"] else "" if record["isVirtual"] else "@"
        return f"{name}:{_format_shape(record)}{f'.{kind}' if kind else ''}{mark}{ragged}"

    def make_next_name(self, letter: str) -> str:
        self.counts[letter] += 1
        return f"{letter}{self.counts[letter]}"


def _format_shape(record: Mapping[str, Any]) -> str:
    dims, strides = tuple(record["dim"]), tuple(record["stride"])
    reader = _ListingReader("")
    for word in (*_NAMED_SHAPES, "St"):
        if reader.parse_shape(word, None) == (dims, strides):
            return word
    words = {size: word for word, size in SIZE_SYMBOLS.items() if word not in ("hk", "hv")} | {3: "hk"}
    text = f"[{','.join(words.get(dim, str(dim)) for dim in dims)}]"
    return text if strides == packed_strides(dims) else f"{text}/[{','.join(map(str, strides))}]"
