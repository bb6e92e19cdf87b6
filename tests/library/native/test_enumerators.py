"""Every enumerator of every enum, with several cuDNN versions: newer enumerators never reach an older library."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from cudnn_backend_py.generated.attributes import ENUM_OF_TYPE, get_attributes
from cudnn_backend_py.generated.enums import AttributeName, AttributeType, CudnnEnum, DescriptorType
from cudnn_backend_py.native.descriptor import _RENUMBERED_ENUMERATORS
from tests.support.child import make_cudnn_environment, run_code

VERSIONS = ("9.14.0", "9.19.0", "9.24.0", None)

SET_EVERY_ENUMERATOR_PROGRAM = """
import json
from cudnn_backend_py import AttributeType, CudnnBackendError, Descriptor, DescriptorType, library
from cudnn_backend_py.generated.attributes import ENUM_OF_TYPE, get_attributes
lib = library()
sent = []
whole = lib.cudnnBackendSetAttribute
def watched(pointer, attribute, element, count, array):
    sent.append((int(attribute), list(array)))
    return whole(pointer, attribute, element, count, array)
vars(lib)["cudnnBackendSetAttribute"] = watched
def ending(call):
    sent.clear()
    try:
        call()
    except CudnnBackendError as error:
        return [error.code, error.headline, len(sent)]
    return ["done", "", len(sent)]
found = {}
for kind in DescriptorType:
    if kind is DescriptorType.INTERMEDIATE_INFO:
        continue
    found[f"kind {kind.name}"] = ending(lambda: Descriptor(kind))
    if kind.since > lib.version:
        continue
    for facts in get_attributes(kind):
        found[f"attribute {facts.attribute.name}"] = ending(lambda: Descriptor(kind).count(facts.attribute))
        if facts.role == "output" or facts.since > lib.version:
            continue
        for element in facts.types:
            for member in ENUM_OF_TYPE.get(element, ()):
                for value in (member, int(member)):
                    made = Descriptor(kind)
                    found[f"{facts.attribute.name} {element.name} {member.name} {type(value).__name__}"] = ending(
                        lambda: made.set(facts.attribute, [value] * max(1, facts.min_count), type=element)
                    )
print(json.dumps({"version": lib.version, "found": found}))
"""


@pytest.fixture(scope="module", params=VERSIONS, ids=str)
def enumerator_outcomes(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the outcome of setting every enumerator, with one cuDNN version."""
    environment = dict(os.environ) if request.param is None else make_cudnn_environment(request.param)
    return json.loads(run_code(SET_EVERY_ENUMERATOR_PROGRAM, environment=environment).stdout)  # type: ignore[no-any-return]


def parse_key_of_enumerator_outcome(what: str) -> tuple[CudnnEnum, str]:
    """Return the enumerator in a key of `enumerator_outcomes`, and the error code if it is newer than the library."""
    first, second, *rest = what.split()
    if first == "kind":
        return DescriptorType[second], "descriptor-newer-than-library"
    if first == "attribute":
        return AttributeName[second], "attribute-newer-than-library"
    return ENUM_OF_TYPE[AttributeType[second]][rest[0]], "enumerator-newer-than-library"


def test_only_enumerators_newer_than_cudnn_are_refused(enumerator_outcomes: dict[str, Any]) -> None:
    version = tuple(enumerator_outcomes["version"])
    newer = 0
    for what, (code, headline, sent) in enumerator_outcomes["found"].items():
        enumerator, refusal = parse_key_of_enumerator_outcome(what)
        if enumerator.since > version:
            newer += 1
            since = ".".join(map(str, enumerator.since))
            text = f"{enumerator.c_name} needs cuDNN {since}, the loaded library is {'.'.join(map(str, version))}"
            assert (code, headline, sent) == (refusal, text, 0), what
        else:
            assert not code.endswith("newer-than-library"), what
    assert len(enumerator_outcomes["found"]) > 1000
    assert newer > 60 or version == (9, 28, 0)


def test_every_settable_enumerator_was_tested() -> None:
    settable = [facts for kind in DescriptorType for facts in get_attributes(kind) if facts.role != "output"]
    types = {kind for facts in settable for kind in facts.types}
    assert {AttributeType.DATA_TYPE, AttributeType.POINTWISE_MODE, AttributeType.HEUR_MODE} < types


def test_enumerators_renumbered_in_9_10_0_are_a_permutation() -> None:
    assert sorted(_RENUMBERED_ENUMERATORS.values()) == sorted(map(int, _RENUMBERED_ENUMERATORS))


def test_cudnn_9_10_0_opens_a_described_target() -> None:
    code = "from cudnn_backend_py.target import open_target; print(open_target('sm90').sm)"
    assert run_code(code, environment=make_cudnn_environment("9.10.0", optional=True)).stdout == "90\n"
