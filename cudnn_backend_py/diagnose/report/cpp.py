"""Write a graph as a C++ program that uses cuDNN's C API: one line for every descriptor and attribute."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ...generated.attributes import AttributeFacts, DescriptorValue, get_attributes
from ...generated.enums import AttributeType, CudnnEnum, DescriptorType
from ...graph import Graph
from ...native.values import is_convertible
from ...plans.lower import lower
from ...system.version import Version, VersionTuple
from ...target import Profile
from ..causes.find import UNJUDGED_CAUSE_CODES
from ..causes.phrases import DEVICE_NEED_BY_PATTERN
from ..explanation import control_graph
from ..verdict import ENGINES_MISSING_CODE, Verdict

__all__ = ["make_cpp_program"]

_C_TYPES = {
    AttributeType.BOOLEAN: "bool",
    AttributeType.INT64: "int64_t",
    AttributeType.INT32: "int32_t",
    AttributeType.FLOAT: "float",
    AttributeType.DOUBLE: "double",
    AttributeType.FRACTION: "cudnnFraction_t",
}


def make_cpp_program(graph: Graph, profile: Profile, verdict: Verdict) -> str:
    """Return a C++17 program that makes the verdict's queries and ends with the same exit code.

    It needs ``cudnn_graph.h`` and libcudnn, nothing of this package. Built with ``-DUSE_GPU`` it asks the GPU of its
    process, else the described one; with ``--build`` it builds plans.
    """
    operations, control = _CppWriter(graph), _CppWriter(control_graph())
    texts = {
        "GRAPH": _format_comment(graph.name),
        "TARGET": _format_comment(f"{profile.title} (sm_{profile.sm})"),
        "VERDICT": f"{verdict.outcome} by cuDNN {_format_comment(verdict.cudnn)}, exit code {verdict.exit_code}",
        "CAUSE": _format_comment(verdict.cause.headline if verdict.cause else "none was needed"),
        "HEADER_NEEDED": str(Version.from_numbers(max(operations.header_needed, control.header_needed)).number),
        "LIBRARY_NEEDED": str(Version.from_numbers(operations.library_needed).number),
        "DEVICE_JSON": _format_raw_json(profile),
        "CONTROL": control.make_function("control_operations"),
        "OPERATIONS": operations.make_function("operations"),
        "MODES": ", ".join(f'{{CUDNN_HEUR_MODE_{mode}, "{mode}"}}' for mode in verdict.modes),
        "ASKS_DEVICE": ", ".join(map(_format_string, _find_missing_device_phrases(verdict))),
        "LACKS_ENGINES": str(verdict.cause is not None and verdict.cause.code == ENGINES_MISSING_CODE).lower(),
        "GRAPH_STRING": _format_string(graph.name),
        "TARGET_STRING": _format_string(f"{profile.title} (sm_{profile.sm})"),
    }
    return re.sub(r"@([A-Z_]+)@", lambda match: texts[match[1]], _PROGRAM_TEMPLATE)


def _find_missing_device_phrases(verdict: Verdict) -> Sequence[str]:
    """Return the phrases of cuDNN's messages that report a missing device; empty if the graph was judged."""
    unjudged = verdict.cause is not None and verdict.cause.code in UNJUDGED_CAUSE_CODES
    return list(DEVICE_NEED_BY_PATTERN) if unjudged else []


class _CppWriter:
    """The C++ text of a graph's descriptors, in dependency order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.header_needed: VersionTuple = (9, 0, 0)
        self.library_needed: VersionTuple = (9, 0, 0)
        self._lines: list[str] = []
        self._names_by_id: dict[int, str] = {}
        self._used_names: set[str] = set()
        self._tensor_names = {tensor.uid: tensor.name for tensor in _list_all_tensors(graph)}
        self._values = lower(graph)  # kept: `_names_by_id` knows them by identity
        names = [
            self._write_descriptor(value, f"op_{op.name}", str(op))
            for op, value in zip(graph.ops, self._values, strict=True)
        ]
        self._lines.append(f"    return {{{', '.join(names)}}};")

    def make_function(self, name: str) -> str:
        """Return the function that makes the operations."""
        return "\n".join([f"std::vector<Descriptor> {name}() {{", *self._lines, "}"])

    def _write_descriptor(self, value: DescriptorValue, wish: str, comment: str = "") -> str:
        """Write a descriptor and its dependencies once; return its name."""
        if id(value) in self._names_by_id:
            return self._names_by_id[id(value)]
        if value.kind is DescriptorType.TENSOR:
            uid = value.fields["unique_id"]
            wish = f"tensor_{self._tensor_names.get(uid, uid)}"
        name = self._names_by_id[id(value)] = self._make_identifier(wish)
        self._require_version(value.kind, value.kind.since)
        lines = [f"    // {_format_comment(comment)}"] if comment else []
        lines.append(f"    const Descriptor {name} = create({value.kind.c_name});")
        for facts in get_attributes(value.kind):
            content = value.fields.get(facts.field)
            if content is not None:
                lines.append(self._format_attribute(name, facts, content))
        self._lines += [*lines, f"    finalize({name}, {_format_string(name)});", ""]
        return name

    def _format_attribute(self, name: str, facts: AttributeFacts, content: Any) -> str:
        self._require_version(facts.attribute, facts.since)
        one_pair = AttributeType.FRACTION in facts.types and facts.max_count == 1
        items = content if isinstance(content, tuple) and not one_pair else (content,)
        kind = _find_element_type(items, facts)
        if kind is AttributeType.BACKEND_DESCRIPTOR:
            children = (self._write_descriptor(item, f"{name}_{facts.field}") for item in items)
            return _format_set_call(name, facts, kind, "", children)
        for item in items:
            if isinstance(item, CudnnEnum):
                self.header_needed = max(self.header_needed, item.since)
        c_type = f"<{_C_TYPES[kind]}>" if kind in _C_TYPES else ""
        return _format_set_call(name, facts, kind, c_type, (_format_literal(item, kind) for item in items))

    def _require_version(self, named: CudnnEnum, since: VersionTuple) -> None:
        self.library_needed = max(self.library_needed, since)
        self.header_needed = max(self.header_needed, since, named.since)

    def _make_identifier(self, wish: str) -> str:
        """Return an unused identifier based on `wish`."""
        base = re.sub(r"\W", "_", wish, flags=re.ASCII)
        name, count = base, 1
        while name in self._used_names:
            count += 1
            name = f"{base}_{count}"
        self._used_names.add(name)
        return name


def _list_all_tensors(graph: Graph) -> Iterator[Any]:
    """Yield the tensors of a graph and of its inner graphs."""
    yield from graph.tensors
    for op in graph.ops:
        for inner in op.subgraphs():
            yield from _list_all_tensors(inner)


def _find_element_type(items: Sequence[Any], facts: AttributeFacts) -> AttributeType:
    """Return an attribute's first type that can hold all values, as if they were set from Python."""
    for kind in facts.types:
        if kind is AttributeType.BACKEND_DESCRIPTOR:
            if isinstance(items[0], DescriptorValue):
                return kind
        elif all(is_convertible(item, kind) for item in items):
            return kind
    return facts.types[0]


def _format_set_call(
    name: str, facts: AttributeFacts, kind: AttributeType, c_type: str, elements: Iterator[str]
) -> str:
    return f"    set{c_type}({name}, {facts.attribute.c_name}, {kind.c_name}, {{{', '.join(elements)}}});"


def _format_literal(value: Any, kind: AttributeType) -> str:
    if isinstance(value, CudnnEnum):
        return value.c_name
    if kind is AttributeType.BOOLEAN:
        return "true" if value else "false"
    if kind in (AttributeType.FLOAT, AttributeType.DOUBLE):
        return {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(text := repr(float(value)), text)
    if kind is AttributeType.FRACTION:
        return f"{{{value[0]}, {value[1]}}}"
    return "INT64_MIN" if value == -(1 << 63) else str(int(value))


def _format_string(text: str) -> str:
    """Return a C string literal of ASCII characters."""
    plain = "".join(char if char.isascii() and char.isprintable() and char not in '"\\' else "_" for char in text)
    return f'"{plain}"'


def _format_comment(text: str) -> str:
    """Return text for a line comment: one line of ASCII without backslashes."""
    return "".join(char if char.isascii() and char.isprintable() and char != "\\" else "_" for char in text)


def _format_raw_json(profile: Profile) -> str:
    """Return the device JSON for a C++ raw string ``R"json(...)json"``, with closing parentheses escaped."""
    return json.dumps(dict(profile.properties), indent=1).replace(")", "\\u0029")


_PROGRAM_TEMPLATE = r"""// Judges one graph with cuDNN's C API.
//
// graph:    @GRAPH@
// target:   @TARGET@
// recorded: @VERDICT@
// cause:    @CAUSE@
//
// README.txt says how to compile and run it. Built with -DUSE_GPU it judges for the GPU of this process, else for the
// GPU that kDevice describes. With --build it also builds plans.
// Exit code: 0 supported, 1 not supported, 2 could not be judged.

#include <cudnn_graph.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#if CUDNN_VERSION < @HEADER_NEEDED@
#error "this graph uses names of a newer cuDNN: compile with the headers of version @HEADER_NEEDED@ or later"
#endif

namespace {

using Descriptor = cudnnBackendDescriptor_t;

constexpr size_t kLibraryNeeded = @LIBRARY_NEEDED@;  // the newest attribute of the graph came with it

enum Outcome { kSupported = 0, kNotSupported = 1, kCouldNotBeJudged = 2 };  // also the exit code

// An answer other than success, with cuDNN's own message.
struct Refused {
    cudnnStatus_t status;
    std::string call;
    std::string words;
};

// cuDNN's explanation of what this thread asked last; reading clears it.
std::string last_error() {
    std::vector<char> text(1 << 16);
    cudnnGetLastErrorString(text.data(), text.size());
    return text.data();
}

void check(cudnnStatus_t status, const std::string &call) {
    if (status != CUDNN_STATUS_SUCCESS) throw Refused{status, call, last_error()};
}

// BAD_PARAM and NOT_SUPPORTED speak of the graph, other statuses of the machine.
bool about_the_graph(const Refused &refused) { return 2000 <= refused.status && refused.status < 4000; }

void print(const Refused &refused) {
    std::printf("%s: %s\n%s\n", refused.call.c_str(), cudnnGetErrorString(refused.status), refused.words.c_str());
}

// Descriptors live until the process ends.
Descriptor create(cudnnBackendDescriptorType_t type) {
    Descriptor made = nullptr;
    check(cudnnBackendCreateDescriptor(type, &made), "creating a descriptor of type " + std::to_string(type));
    return made;
}

template <class Element>
void set(Descriptor descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         std::initializer_list<Element> values) {
    check(cudnnBackendSetAttribute(descriptor, name, type, static_cast<int64_t>(values.size()), values.begin()),
          "setting attribute " + std::to_string(name));
}

void finalize(Descriptor descriptor, const std::string &name) {
    check(cudnnBackendFinalize(descriptor), "finalizing " + name);
}

// Returns how many elements cuDNN has written.
int64_t get(Descriptor descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
            void *values) {
    int64_t held = 0;
    check(cudnnBackendGetAttribute(descriptor, name, type, count, &held, values),
          "reading attribute " + std::to_string(name));
    return held;
}

std::vector<Descriptor> get_descriptors(Descriptor descriptor, cudnnBackendAttributeName_t name,
                                        cudnnBackendDescriptorType_t type, int64_t count) {
    std::vector<Descriptor> found;
    for (int64_t i = 0; i < count; ++i) found.push_back(create(type));
    const int64_t held = get(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, found.data());
    if (held < count) found.resize(held);
    return found;
}

// Step 1: what is requested.

#ifdef USE_GPU

constexpr bool kDescribed = false;
const char *const kTarget = "the GPU of this process";

using Device = cudnnHandle_t;

Device open_device() {
    cudnnHandle_t handle = nullptr;
    check(cudnnCreate(&handle), "cudnnCreate");
    return handle;
}

void bind_graph(Descriptor graph, Device handle) {
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, {handle});
}

void bind_heuristics(Descriptor, Device) {}

void bind_plan(Descriptor plan, Device handle) {
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, {handle});
}

#else

constexpr bool kDescribed = true;
const char *const kTarget = @TARGET_STRING@;

const char kDevice[] = R"json(@DEVICE_JSON@)json";

using Device = Descriptor;

Device open_device() {
    const Descriptor device = create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    check(cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, sizeof kDevice,
                                   kDevice),
          "setting CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION");
    finalize(device, "the device description");
    return device;
}

void bind_graph(Descriptor, Device) {}

void bind_heuristics(Descriptor question, Device device) {
    set(question, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, {device});
}

void bind_plan(Descriptor plan, Device device) {
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, {device});
}

#endif

// Step 2: the operations, and the graph of them.

// Graph @GRAPH@.
@OPERATIONS@

// A graph known to be supported, asked first: where it is refused, nothing can be judged.
@CONTROL@

Descriptor operation_graph(const std::vector<Descriptor> &nodes, Device device) {
    const Descriptor graph = create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    check(cudnnBackendSetAttribute(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                   static_cast<int64_t>(nodes.size()), nodes.data()),
          "setting CUDNN_ATTR_OPERATIONGRAPH_OPS");
    bind_graph(graph, device);
    finalize(graph, "the operation graph");
    return graph;
}

// Step 3: heuristics.

struct Mode {
    cudnnBackendHeurMode_t number;
    const char *name;
};

const std::vector<Mode> kModes = {@MODES@};
const std::vector<Mode> kControlModes = {{CUDNN_HEUR_MODE_A, "A"}, {CUDNN_HEUR_MODE_FALLBACK, "FALLBACK"}};

struct Answer {
    int64_t candidates;
    std::vector<Descriptor> configs;  // those that passed their support check
    std::string words;                // why others did not
};

Answer heuristics(Descriptor graph, Device device, const Mode &mode) {
    last_error();  // an old text would be taken for the answer
    const Descriptor question = create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set(question, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, {graph});
    set(question, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, {mode.number});
    bind_heuristics(question, device);
    finalize(question, "the heuristics query");
    Answer answer{};
    answer.candidates = get(question, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
    if (answer.candidates > 0) {
        answer.configs = get_descriptors(question, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                         answer.candidates);
    }
    answer.words = last_error();
    return answer;
}

// An engine config in short: engine 2 with knob 24 at 7 is eng2_k24=7.
std::string tag(Descriptor config) {
    const Descriptor engine =
        get_descriptors(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1).at(0);
    int64_t index = -1;
    get(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    std::string text = "eng" + std::to_string(index);
    for (const Descriptor choice :
         get_descriptors(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                         CUDNN_KNOB_TYPE_COUNTS)) {
        cudnnBackendKnobType_t knob = CUDNN_KNOB_TYPE_COUNTS;
        int64_t value = -1;
        get(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &knob);
        get(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value);
        text += "_k" + std::to_string(knob) + "=" + std::to_string(value);
    }
    return text;
}

void print(const Answer &answer, const Mode &mode) {
    std::printf("heuristics mode %s: %zu of %lld candidates left\n", mode.name, answer.configs.size(),
                static_cast<long long>(answer.candidates));
    for (const Descriptor config : answer.configs) std::printf("  supported: %s\n", tag(config).c_str());
    if (!answer.words.empty()) std::printf("%s\n", answer.words.c_str());
}

// Step 4: plans.

Descriptor build_plan(Descriptor config, Device device) {
    const Descriptor plan = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    bind_plan(plan, device);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, {config});
    finalize(plan, "the plan of " + tag(config));
    return plan;
}

bool some_plan_builds(Descriptor graph, Device device) {
    for (const Mode &mode : kControlModes) {
        for (const Descriptor config : heuristics(graph, device, mode).configs) {
            try {
                build_plan(config, device);
                return true;
            } catch (const Refused &) {
            }
        }
    }
    return false;
}

Outcome judge_plans(const std::vector<Descriptor> &configs, Descriptor control, Device device) {
    bool driver_refused = false;
    for (const Descriptor config : configs) {
        try {
            const Descriptor plan = build_plan(config, device);
            int64_t workspace = 0;
            get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
            std::printf("  built: %s, workspace %lld bytes\n", tag(config).c_str(), static_cast<long long>(workspace));
            return kSupported;
        } catch (const Refused &refused) {
            print(refused);
            driver_refused = driver_refused || refused.status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
        }
    }
    if (kDescribed && driver_refused) {
        std::puts("the CUDA driver of this machine does not accept code for the described GPU: hide its GPU");
        return kCouldNotBeJudged;
    }
    if (!some_plan_builds(control, device)) {
        std::puts("no plan can be built here, not even that of the control graph");
        return kCouldNotBeJudged;
    }
    return kNotSupported;
}

// The verdict.

// An engine that queries the device for these is refused where there is none: that says nothing about the graph.
const std::vector<std::string> kAsksDevice = {@ASKS_DEVICE@};

// Whether the library of the verdict lacks engines that might support the graph: then a refusal is not cuDNN's.
const bool kLacksEngines = @LACKS_ENGINES@;

bool queries_device(const std::string &words) {
    for (const std::string &sign : kAsksDevice) {
        if (kDescribed && words.find(sign) != std::string::npos) return true;
    }
    return false;
}

bool control_is_supported(Descriptor control, Device device) {
    for (const Mode &mode : kControlModes) {
        const Answer answer = heuristics(control, device, mode);
        if (!answer.configs.empty()) return true;
        std::puts("the control graph is refused");
        print(answer, mode);
    }
    return false;
}

Outcome judge(bool build) {
    const Device device = open_device();
    const Descriptor control = operation_graph(control_operations(), device);
    if (!control_is_supported(control, device)) return kCouldNotBeJudged;
    if (cudnnGetVersion() < kLibraryNeeded) {
        std::printf("the graph needs cuDNN %zu\n", kLibraryNeeded);
        return kNotSupported;
    }
    Descriptor graph = nullptr;
    try {
        graph = operation_graph(operations(), device);
    } catch (const Refused &refused) {
        print(refused);
        return about_the_graph(refused) ? kNotSupported : kCouldNotBeJudged;
    }
    std::vector<Descriptor> configs;
    std::string words;
    for (const Mode &mode : kModes) {
        try {
            const Answer answer = heuristics(graph, device, mode);
            print(answer, mode);
            configs.insert(configs.end(), answer.configs.begin(), answer.configs.end());
            words += answer.words;
        } catch (const Refused &refused) {
            print(refused);
            if (!about_the_graph(refused)) return kCouldNotBeJudged;
        }
    }
    if (configs.empty()) return kLacksEngines || queries_device(words) ? kCouldNotBeJudged : kNotSupported;
    return build ? judge_plans(configs, control, device) : kSupported;
}

}  // namespace

int main(int argc, char **argv) {
    std::setvbuf(stdout, nullptr, _IONBF, 0);  // a crash loses nothing that was said
    const bool build = argc > 1 && std::strcmp(argv[1], "--build") == 0;
    Outcome outcome = kCouldNotBeJudged;
    try {
        outcome = judge(build);
    } catch (const Refused &refused) {
        print(refused);
    }
    const char *const words[] = {"SUPPORTED", "NOT SUPPORTED", "COULD NOT BE JUDGED"};
    std::printf("%s: graph %s on %s, cuDNN %zu\n", words[outcome], @GRAPH_STRING@, kTarget, cudnnGetVersion());
    return outcome;
}
"""
