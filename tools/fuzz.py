"""Random attribute calls on descriptors of every type: ``python -m tools.fuzz SEED CALLS_PER_TYPE LOG``.

Each call is written to LOG before it is made, so that after a crash the last line is the call that crashed. Values are
plausible, of an unusual class, random or hostile; descriptors are of every kind, and open, finalized or closed. Only
exceptions of the package may be raised, and the KeyboardInterrupt that some values raise. With ``FUZZ_THREADS=N``, N
threads use the same descriptors and fork children that delete the inherited descriptors.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Self, TextIO

from cudnn_backend_py import (
    Attr,
    AttributeType,
    CudnnBackendError,
    Descriptor,
    DescriptorType,
    HeurMode,
    OperationGraph,
    build_plan,
    capi,
    capture_log,
    library,
    open_target,
)
from cudnn_backend_py.generated.attributes import ENUM_OF_TYPE, AttributeFacts, get_attributes
from cudnn_backend_py.generated.enums import Severity
from cudnn_backend_py.native import build
from cudnn_backend_py.native.values import format_value
from cudnn_backend_py.plans.lower import lower
from tests.support.hostile_values import make_equal_or_misreporting_value, make_random_hostile_value
from tests.support.varied_graphs import VARIED_GRAPHS

DESCRIPTOR_TYPES = [
    kind for kind in DescriptorType if kind is not DescriptorType.INTERMEDIATE_INFO and kind.since <= library().version
]
EDGE_INTEGERS = (0, 1, 2, 3, 4, 7, 8, 16, 64, 128, -1, -2, 2**15, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1)
TOO_LARGE_INTEGERS = (2**63, -(2**63) - 1, 2**64, 10**30)
EDGE_REALS = (0.0, 1.0, -1.0, 0.5, 1e300, -1e300, 1e-300, math.inf, -math.inf, math.nan)
EDGE_TEXTS = (
    "",
    "x",
    "{}",
    "[]",
    "null",
    "{",
    "\u00e9",
    "a\0b",
    "0" * 300,
    '{"deviceName":"' + "n" * 300 + '"}',
    "[" * 2000,
)


class Fuzzer:
    """Makes random calls on descriptors from a seed, and counts their outcomes."""

    def __init__(self, seed: int, log: TextIO) -> None:
        self.random = random.Random(seed)
        self.log = log
        self.outcomes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.texts = list(EDGE_TEXTS)
        self.names: dict[Descriptor, int] = {}
        self.good: dict[DescriptorType, list[Descriptor]] = {kind: [] for kind in DescriptorType}
        self.pool: dict[DescriptorType, list[Descriptor]] = {kind: [] for kind in DescriptorType}
        self._add_finalized_descriptors()

    def copy_for_thread(self, seed: int) -> Self:
        """Return a fuzzer for another thread, which shares the descriptors of this one."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, random=random.Random(seed), outcomes=Counter(), calls=Counter())
        return other

    def _add_finalized_descriptors(self) -> None:
        """Create the finalized descriptors of real graphs, engines, configs and plans."""
        target = open_target("sm90")
        assert target.device is not None
        self.good[DescriptorType.DEVICEPROP].append(target.device)
        self.texts.append(target.profile.json())
        built: dict[int, Descriptor] = {}
        values: list[Any] = []
        for name, make in VARIED_GRAPHS.items():
            try:
                values.append(lower(make()))
                for value in values[-1]:
                    build(value, on=target.library, built=built)
                graph = OperationGraph(make(), target)
            except CudnnBackendError:
                continue
            self.good[DescriptorType.OPERATIONGRAPH].append(graph.descriptor)
            question = Descriptor(DescriptorType.ENGINEHEUR).set(Attr.ENGINEHEUR_OPERATION_GRAPH, graph.descriptor)
            question.set(Attr.ENGINEHEUR_MODE, HeurMode.A).set(Attr.ENGINEHEUR_DEVICEPROP, target.device)
            self.good[DescriptorType.ENGINEHEUR].append(question.finalize())
            configs = graph.heuristics("A").configs[:2]
            for config in configs:
                self.good[DescriptorType.ENGINECFG].append(config.descriptor)
                engine = config.descriptor.get(Attr.ENGINECFG_ENGINE)
                self.good[DescriptorType.ENGINE].append(engine)
                self.good[DescriptorType.KNOB_CHOICE] += config.descriptor.get(Attr.ENGINECFG_KNOB_CHOICES)
                self.good[DescriptorType.KNOB_INFO] += engine.get(Attr.ENGINE_KNOB_INFO)
            if name in ("matmul_f16", "sdpa_forward") or not self.good[DescriptorType.EXECUTION_PLAN]:
                for config in configs:
                    try:
                        plan = build_plan(config)
                    except CudnnBackendError:
                        continue
                    self.good[DescriptorType.EXECUTION_PLAN].append(plan.descriptor)
                    self.texts.append(plan.json())
                    break
        for descriptor in built.values():
            self.good[descriptor.kind].append(descriptor)
        pack = Descriptor(DescriptorType.VARIANT_PACK).set(Attr.VARIANT_PACK_UNIQUE_IDS, (1, 2))
        self.good[DescriptorType.VARIANT_PACK].append(
            pack.set(Attr.VARIANT_PACK_DATA_POINTERS, (4096, 8192)).finalize()
        )

    def choose_descriptor(self, kind: DescriptorType | None = None) -> Descriptor:
        """Return an existing or new descriptor: open, finalized or closed."""
        kind = kind or self.random.choice(DESCRIPTOR_TYPES)
        choice = self.random.random()
        if choice < 0.6 and self.good[kind]:
            return self.random.choice(self.good[kind])
        if choice < 0.9 and self.pool[kind]:
            return self.random.choice(self.pool[kind])
        fresh = Descriptor(kind)
        if choice > 0.95:
            fresh.close()
        return fresh

    def make_plausible_value(self, facts: AttributeFacts) -> Any:
        """Return a plausible value for an attribute: one of its types, and an allowed number of elements."""
        kind = self.random.choice(facts.types)
        if kind is AttributeType.CHAR:
            return self.make_random_text()
        high = facts.max_count or max(3, facts.min_count)
        count = self.random.randint(facts.min_count, max(high, facts.min_count))
        values = tuple(self.make_plausible_element(kind, facts) for _ in range(count))
        return values[0] if count == 1 and self.random.random() < 0.5 else values

    def make_plausible_element(self, kind: AttributeType, facts: AttributeFacts) -> Any:
        """Return one plausible element of a type."""
        if kind is AttributeType.BACKEND_DESCRIPTOR:
            return self.choose_descriptor(
                self.random.choice([k for k in facts.element if k in DESCRIPTOR_TYPES] or [None])
            )
        if kind in ENUM_OF_TYPE:
            return self.random.choice(list(ENUM_OF_TYPE[kind]))
        if kind is AttributeType.BOOLEAN:
            return self.random.random() < 0.5
        if kind in (AttributeType.FLOAT, AttributeType.DOUBLE):
            return self.random.choice(EDGE_REALS)
        if kind is AttributeType.FRACTION:
            return (self.random.choice(EDGE_INTEGERS), self.random.choice(EDGE_INTEGERS))
        if kind is AttributeType.VOID_PTR:
            if facts.attribute is Attr.TENSOR_CONSTANT_VALUE:
                return self.random.choice((b"", b"1234", b"12345678", bytes(16), bytes(1000), 4096))
            return self.random.choice((None, 0, 4096, 2**40))
        return self.random.choice(EDGE_INTEGERS)

    def make_random_text(self) -> str:
        """Return a text: random characters, valid JSON, or valid JSON with one change.

        The JSON of a plan is truncated but not changed: cuDNN uses its code and sizes unchecked, which is why
        ``load_plan`` checks a hash.
        """
        text = self.random.choice(self.texts)
        if self.random.random() < 0.5 and len(text) > 100:
            place = self.random.randrange(len(text))
            end = "" if "operationGraph" in text else self.random.choice('x"{},9') + text[place + 1 :]
            text = text[:place] + end
        return text

    def make_random_value(self, depth: int = 0) -> Any:
        """Return a random value of any Python type."""
        r = self.random
        makers: list[Callable[[], Any]] = [
            lambda: r.choice(EDGE_INTEGERS),
            lambda: r.choice(TOO_LARGE_INTEGERS),
            lambda: r.choice(EDGE_REALS),
            lambda: r.random() < 0.5,
            lambda: None,
            self.make_random_text,
            lambda: b"bytes",
            self.choose_descriptor,
            object,
            lambda: {"a": 1},
            lambda: 1 + 2j,
            lambda: r.choice(list(r.choice(list(ENUM_OF_TYPE.values())))),
            *[lambda: make_random_hostile_value(r)] * 12,
        ]
        if depth < 2:
            makers += [lambda: [self.make_random_value(depth + 1) for _ in range(r.choice((0, 1, 2, 3, 9)))]] * 3
        return r.choice(makers)()

    def make_random_call(self, kind: DescriptorType) -> None:
        """Make one random call on a descriptor of `kind` and count its outcome."""
        r = self.random
        pool = self.pool[kind]
        if not pool or r.random() < 0.15:
            pool.append(Descriptor(kind))
            if len(pool) > 6:
                pool.pop(r.randrange(6))
        if r.random() < 0.03:
            self.fill_and_finalize(pool[-1])
            return
        own = [facts.attribute for facts in get_attributes(kind)]
        attribute: Any = r.choice(own) if own and r.random() < 0.85 else r.choice(list(Attr))
        if r.random() < 0.02:
            attribute = self.make_random_value()
        descriptor = r.choice(pool) if r.random() < 0.8 or not self.good[kind] else r.choice(self.good[kind])
        facts = next((item for item in get_attributes(kind) if item.attribute is attribute), None)
        what = r.random()
        element_type: Any = None
        if r.random() < 0.15:
            element_type = r.choice(list(AttributeType)) if r.random() < 0.9 else self.make_random_value()
        if what < 0.62:
            value = (
                self.make_plausible_value(facts)
                if facts is not None and r.random() < 0.65
                else self.make_random_value()
            )
            if r.random() < 0.25:
                value = make_equal_or_misreporting_value(value, r)
            if r.random() < 0.2:
                self.make_capi_call(descriptor, attribute, value, element_type)
            else:
                self.make_method_call("set", descriptor, attribute, value, element_type)
        elif what < 0.82:
            self.make_method_call("get", descriptor, attribute, None, element_type)
        elif what < 0.86:
            self.make_method_call("count", descriptor, attribute, None, element_type)
        elif what < 0.98:
            self.make_method_call("finalize", descriptor, None, None, None)
        elif descriptor in pool:
            self.make_method_call("close", descriptor, None, None, None)

    def make_capi_call(self, descriptor: Descriptor, attribute: Any, value: Any, element_type: Any) -> None:
        """Make a call of :mod:`cudnn_backend_py.capi`, often with an invalid argument."""
        r = self.random

        wrong: tuple[Any, ...] = (None, "x", 5, 1 + 2j)

        def replace_value_sometimes(value: Any) -> Any:
            return value if r.random() < 0.8 else self.make_random_value()

        count = replace_value_sometimes(
            len(value) + isinstance(value, str)
            if any(type(value) is kind for kind in (tuple, list, str))
            else r.choice((1, 2**70))
        )
        pair = (
            replace_value_sometimes(descriptor),
            replace_value_sometimes(self.choose_descriptor(DescriptorType.VARIANT_PACK)),
        )
        calls: list[tuple[str, Callable[[], Any]]] = [
            (
                "set",
                lambda: capi.cudnnBackendSetAttribute(
                    replace_value_sometimes(descriptor), attribute, element_type, count, value
                ),
            ),
            (
                "get",
                lambda: capi.cudnnBackendGetAttribute(
                    replace_value_sometimes(descriptor), attribute, element_type, replace_value_sometimes(1)
                ),
            ),
            ("create", lambda: capi.cudnnBackendCreateDescriptor(replace_value_sometimes(descriptor.kind))),
            ("initialize", lambda: capi.cudnnBackendInitialize(replace_value_sometimes(descriptor))),
            ("finalize", lambda: capi.cudnnBackendFinalize(replace_value_sometimes(descriptor))),
            ("execute", lambda: capi.cudnnBackendExecute(replace_value_sometimes(None), *pair)),
            (
                "populate",
                lambda: capi.cudnnBackendPopulateCudaGraph(
                    replace_value_sometimes(None), *pair, replace_value_sometimes(4096)
                ),
            ),
            ("error string", lambda: capi.cudnnGetErrorString(replace_value_sometimes(r.choice(EDGE_INTEGERS)))),
            ("property", lambda: capi.cudnnGetProperty(replace_value_sometimes(r.choice((0, 1, 2, 9))))),
            ("stream", lambda: capi.cudnnSetStream(replace_value_sometimes(None), replace_value_sometimes(0))),
            (
                "runtime error",
                lambda: capi.cudnnQueryRuntimeError(replace_value_sometimes(None), replace_value_sometimes(0)),
            ),
            (
                "callback",
                lambda: capi.cudnnSetCallback(
                    replace_value_sometimes(2), _ignore_message, replace_value_sometimes(None)
                ),
            ),
            ("capture", lambda: _finalize_with_captured_log(descriptor)),
            ("no callback", lambda: capi.cudnnSetCallback(0, r.choice(wrong))),
            ("value", lambda: build(replace_value_sometimes(None), on=replace_value_sometimes(library()))),
            ("execute plan", lambda: descriptor.execute(replace_value_sometimes(None), pair[1])),
        ]
        name, call = calls[0] if r.random() < 0.5 else r.choice(calls)
        self.make_and_count_call(f"c {name}", descriptor, attribute, value, element_type, call)

    def fill_and_finalize(self, descriptor: Descriptor) -> None:
        """Set all required and some other attributes to plausible values, and finalize the descriptor."""
        for facts in get_attributes(descriptor.kind):
            if facts.role != "output" and (facts.required or self.random.random() < 0.3):
                self.make_method_call("set", descriptor, facts.attribute, self.make_plausible_value(facts), None)
        self.make_method_call("finalize", descriptor, None, None, None)

    def format_descriptor(self, descriptor: Descriptor) -> str:
        """Return a descriptor's repr, followed by a number for it that is the same in each run."""
        number = self.names.setdefault(descriptor, len(self.names))
        return f"{descriptor!r}#{number}"

    def format_value(self, value: Any) -> str:
        """Return a value as text; descriptors appear as by `format_descriptor`, the same in each run."""
        if type(value) is Descriptor:
            return self.format_descriptor(value)
        if (type(value) is list or type(value) is tuple) and len(value) < 20:
            return (
                "("
                + ", ".join(
                    self.format_value(item) if type(item) is Descriptor else format_value(item) for item in value
                )
                + ")"
            )
        return format_value(value)

    def make_method_call(
        self, verb: str, descriptor: Descriptor, attribute: Any, value: Any, element_type: Any
    ) -> None:
        """Make a call of a ``Descriptor`` method."""

        def call_method() -> None:
            if verb == "set":
                descriptor.set(attribute, value, type=element_type)
            elif verb == "get":
                descriptor.get(attribute, type=element_type)
            elif verb == "count":
                descriptor.count(attribute, element_type)
            elif verb == "finalize":
                descriptor.finalize()
            else:
                descriptor.close()

        self.make_and_count_call(verb, descriptor, attribute, value, element_type, call_method)

    def make_and_count_call(
        self, verb: str, descriptor: Descriptor, attribute: Any, value: Any, element_type: Any, call: Callable[[], Any]
    ) -> None:
        """Write the call to the log, make it, and count its outcome."""
        number = sum(self.calls.values())
        of = attribute.name if type(attribute) is Attr and hasattr(attribute, "_name_") else format_value(attribute)
        subject = f"{self.format_descriptor(descriptor)} {of} {self.format_value(value)[:300]}"
        text = f"{number} {verb} {subject} type={format_value(element_type)}"
        self.log.write(text)
        self.log.flush()
        self.calls[descriptor.kind.name] += 1
        try:
            call()
        except CudnnBackendError as error:
            if len(str(error)) > 20_000 or len(error.render()) > 200_000:
                raise AssertionError(f"a message of {len(error.render())} letters came out of: {text}") from error
            outcome = error.code
        except KeyboardInterrupt:
            outcome = "interrupted"
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} came out of: {text}") from error
        else:
            outcome = "done"
        self.outcomes[f"{verb} {outcome}"] += 1
        self.log.write(f" -> {outcome}\n")


def _ignore_message(*_arguments: Any) -> None:
    """Ignore a message of cuDNN's log."""


def _finalize_with_captured_log(descriptor: Descriptor) -> None:
    with capture_log(Severity.ERROR):
        descriptor.finalize()


def run_in_threads(fuzzer: Fuzzer, count: int, work: Callable[[Fuzzer], None]) -> list[Fuzzer]:
    """Run work on the same descriptors in several threads, and fork a few times while they run."""
    siblings = [fuzzer.copy_for_thread(number) for number in range(count)]
    failed: list[BaseException] = []

    def call_and_report_errors(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    workers = [
        threading.Thread(target=call_and_report_errors, args=(lambda item=item: work(item),)) for item in siblings
    ]
    for thread in workers:
        thread.start()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            fuzzer.good.clear()
            fuzzer.pool.clear()
            fuzzer.names.clear()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            raise AssertionError("a forked child did not end well")
    for thread in workers:
        thread.join()
    if failed:
        raise failed[0]
    return siblings


def main(seed: int, calls_per_type: int, log_path: str, kinds: list[str]) -> None:
    """Make the calls on all descriptor types in turn, and print the counts as JSON."""
    with open(log_path, "w", encoding="utf-8", errors="backslashreplace") as log:
        fuzzer = Fuzzer(seed, log)
        chosen = [DescriptorType[name] for name in kinds] or DESCRIPTOR_TYPES

        def make_calls_of_thread(one: Fuzzer) -> None:
            for _ in range(calls_per_type):
                for kind in chosen:
                    one.make_random_call(kind)

        threads = int(os.environ.get("FUZZ_THREADS", "0"))
        fuzzers = run_in_threads(fuzzer, threads, make_calls_of_thread) if threads else [fuzzer]
        if not threads:
            make_calls_of_thread(fuzzer)
    calls, outcomes = Counter[str](), Counter[str]()
    for one in fuzzers:
        calls += one.calls
        outcomes += one.outcomes
    print(json.dumps({"cudnn": library().version_text, "calls": calls, "outcomes": outcomes}))


def disable_known_issue_guards() -> None:
    """Disable the guards against known crashes of cuDNN, to show that this program finds the crashes."""
    from cudnn_backend_py.native import descriptor

    vars(descriptor)["check_before_finalize"] = lambda *_given: None


if __name__ == "__main__":
    if os.environ.get("FUZZ_WITHOUT_HAZARDS"):
        disable_known_issue_guards()
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
