"""The generated attribute facts compared with the real library: it accepts what they allow, and refuses the rest."""

from __future__ import annotations

import pytest

from cudnn_backend_py.generated.attributes import AttributeFacts, get_attributes
from cudnn_backend_py.generated.enums import AttributeName as A
from cudnn_backend_py.generated.enums import AttributeType as T
from cudnn_backend_py.generated.enums import DescriptorType as D
from cudnn_backend_py.generated.enums import Status
from tests.support.attribute_queries import AttributeAnswer, AttributeQuery, run_queries

NO_LIBRARY_ANSWER = "CreateDescriptor refuses the kind, so no attribute of it can be judged"
UNCREATABLE = {D.INTERMEDIATE_INFO: NO_LIBRARY_ANSWER}

# The library accepts any element type here.
TYPE_NOT_LOOKED_AT = {
    A.DEVICEPROP_JSON_REPRESENTATION,
    A.EXECUTION_PLAN_JSON_REPRESENTATION,
    A.KERNEL_CACHE_JSON_REPRESENTATION,
}

# The library accepts no element type here: declared in the header, not implemented in 9.28.
NOT_IMPLEMENTED = {
    A.EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS,
    A.OPERATION_REDUCTION_DIMS,
    A.OPERATION_REDUCTION_INIT_VALUES,
    A.OPERATION_REDUCTION_SUBGRAPH,
    A.OPERATION_REDUCTION_SUBGRAPH_ACCUMULATOR_UIDS,
    A.OPERATION_REDUCTION_SUBGRAPH_COMPUTE_TYPES,
    A.OPERATION_REDUCTION_SUBGRAPH_CURRENT_UIDS,
    A.OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS,
    A.VARIANT_PACK_INTERMEDIATES,
}

# The type is accepted and the value then refused, because the element of this test is an empty descriptor.
VALUE_REFUSED = {
    A.ENGINECFG_KNOB_CHOICES: Status.NOT_INITIALIZED,
    A.OPERATIONGRAPH_OPS: Status.BAD_PARAM_NOT_FINALIZED,
}

# A handle cannot be made without a GPU, and an invalid one must not be passed.
NEEDS_A_HANDLE = {A.DEVICEPROP_HANDLE, A.EXECUTION_PLAN_HANDLE, A.OPERATIONGRAPH_HANDLE}

# The only attributes with elements that the library checks for the right descriptor type.
ELEMENT_CHECKED = {
    A.OPERATION_REDUCTION_DESC,
    A.OPERATION_REDUCTION_GROUP_OFFSET_DESC,
    A.OPERATION_REDUCTION_XDESC,
    A.OPERATION_REDUCTION_YDESC,
}

SETTABLE = [
    pytest.param(kind, facts, id=facts.attribute.name)
    for kind in D
    if kind not in UNCREATABLE
    for facts in get_attributes(kind)
    if facts.role != "output"
]
INPUTS: list[tuple[D, AttributeFacts]] = [(p.values[0], p.values[1]) for p in SETTABLE]  # type: ignore[misc]
OUTPUTS = [(kind, f) for kind in D for f in get_attributes(kind) if f.role == "output"]


def query(kind: D, facts: AttributeFacts, element_type: T, count: int | None = None) -> AttributeQuery:
    return AttributeQuery(
        kind=kind,
        attribute=facts.attribute,
        type=element_type,
        count=max(facts.min_count, 1) if count is None else count,
        element=facts.element[0] if facts.element else D.TENSOR,
        addresses=facts.attribute is A.TENSOR_CONSTANT_VALUE,
        by_value=facts.attribute is A.TENSOR_CONSTANT_VALUE,
    )


@pytest.fixture(scope="module")
def answers() -> dict[tuple[A, T], AttributeAnswer]:
    """Return the answers for every settable attribute with every element type; one child answers some 12000 queries."""
    queries = [
        (kind, facts, element_type)
        for kind, facts in INPUTS
        for element_type in T
        if not (element_type is T.HANDLE and facts.attribute in NEEDS_A_HANDLE)
    ]
    replies = run_queries(query(*one) for one in queries)
    return {(facts.attribute, t): reply for (_, facts, t), reply in zip(queries, replies, strict=True)}


def test_attributes_listed_as_exceptions_are_settable() -> None:
    named = TYPE_NOT_LOOKED_AT | NOT_IMPLEMENTED | set(VALUE_REFUSED) | NEEDS_A_HANDLE | ELEMENT_CHECKED
    assert named <= {facts.attribute for _, facts in INPUTS}


@pytest.mark.parametrize(("kind", "facts"), SETTABLE)
def test_declared_types_are_accepted(
    kind: D, facts: AttributeFacts, answers: dict[tuple[A, T], AttributeAnswer]
) -> None:
    for element_type in facts.types:
        if facts.attribute in NEEDS_A_HANDLE:
            assert element_type is T.HANDLE
            continue
        answer = answers[facts.attribute, element_type]
        expected = VALUE_REFUSED.get(facts.attribute, Status.SUCCESS)
        if facts.attribute in NOT_IMPLEMENTED:
            expected = Status.NOT_SUPPORTED
        assert not answer.died
        assert Status(answer.status) is expected, answer.last_error


@pytest.mark.parametrize(("kind", "facts"), SETTABLE)
def test_other_types_are_refused(kind: D, facts: AttributeFacts, answers: dict[tuple[A, T], AttributeAnswer]) -> None:
    others = {t: answers[facts.attribute, t] for t in T if t not in facts.types and t is not T.HANDLE}
    assert not any(answer.died for answer in others.values())
    taken = {t for t, answer in others.items() if answer.status == Status.SUCCESS}
    assert taken == (set(others) if facts.attribute in TYPE_NOT_LOOKED_AT else set())


def test_wrong_types_are_refused_with_one_of_four_statuses(answers: dict[tuple[A, T], AttributeAnswer]) -> None:
    declared = {facts.attribute: facts.types for _, facts in INPUTS}
    seen = {Status(a.status) for (name, t), a in answers.items() if t not in declared[name] and a.status}
    assert seen == {
        Status.BAD_PARAM, Status.BAD_PARAM_ATTRIBUTE_TYPE, Status.NOT_SUPPORTED, Status.NOT_INITIALIZED,
    }  # fmt: skip


def test_element_counts_outside_the_range_are_refused_if_the_library_checks() -> None:
    """Try one element fewer than the minimum, and one more than a maximum; some attributes accept any number."""
    queries = [
        (facts, query(kind, facts, facts.types[0], count))
        for kind, facts in INPUTS
        if facts.types != (T.HANDLE,) and facts.attribute not in TYPE_NOT_LOOKED_AT | NOT_IMPLEMENTED
        for count in (facts.min_count - 1, (facts.max_count or -2) + 1)
        if count >= 0
    ]
    replies = run_queries(one for _, one in queries)
    taken = {f.attribute for (f, _), reply in zip(queries, replies, strict=True) if reply.status == Status.SUCCESS}
    arrays = {f.attribute for _, f in INPUTS if f.max_count not in (None, 1) and T.INT64 in f.types}
    descriptors = {f.attribute for _, f in INPUTS if T.BACKEND_DESCRIPTOR in f.types}
    assert not any(reply.died for reply in replies)
    assert taken <= arrays | descriptors
    assert A.OPERATION_MATMUL_ADESC in taken  # reads the first of any number, also of none
    assert A.TENSOR_DIMENSIONS in taken  # nine dimensions are refused only by finalize


@pytest.mark.parametrize(
    "name",
    [
        A.OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE,
        A.OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
        A.OPERATION_CONVOLUTION_BWD_FILTER_BETA,
        A.OPERATION_CONVOLUTION_FORWARD_ALPHA,
        A.EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS,
        A.VARIANT_PACK_OVERRIDE_SHAPES,
    ],
    ids=lambda name: name.name,
)
def test_measured_maximum_counts_replace_those_of_the_header(name: A) -> None:
    kind, facts = next(pair for pair in INPUTS if pair[1].attribute is name)
    assert facts.max_count is not None
    at_most, beyond = run_queries(query(kind, facts, facts.types[0], n) for n in (facts.max_count, facts.max_count + 1))
    assert Status(at_most.status) is Status.SUCCESS
    assert Status(beyond.status) is Status.BAD_PARAM


def test_the_library_checks_descriptor_types_of_elements_in_four_attributes_only() -> None:
    """Everywhere else, a descriptor of the wrong type is accepted silently or crashes the process."""
    wrong = [
        (facts, AttributeQuery(kind, facts.attribute, T.BACKEND_DESCRIPTOR, element=other))
        for kind, facts in INPUTS
        if T.BACKEND_DESCRIPTOR in facts.types and facts.attribute not in NOT_IMPLEMENTED | set(VALUE_REFUSED)
        for other in (D.RNG,)
        if other not in facts.element
    ]
    replies = run_queries(one for _, one in wrong)
    checked = {
        facts.attribute
        for (facts, _), reply in zip(wrong, replies, strict=True)
        if not reply.died and reply.status == Status.BAD_PARAM_DESCRIPTOR_TYPE
    }
    assert checked == ELEMENT_CHECKED


def test_a_tensor_for_an_operation_graph_crashes_the_process() -> None:
    (reply,) = run_queries(
        [AttributeQuery(D.ENGINEHEUR, A.ENGINEHEUR_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, element=D.TENSOR)]
    )
    assert reply.died


def test_output_attributes_cannot_be_set() -> None:
    queries = [query(kind, facts, facts.types[0]) for kind, facts in OUTPUTS if kind not in UNCREATABLE]
    statuses = {Status(reply.status) for reply in run_queries(queries)}
    assert statuses == {Status.BAD_PARAM, Status.NOT_SUPPORTED}


def test_a_descriptor_type_that_cannot_be_created_is_refused() -> None:
    (reply,) = run_queries([AttributeQuery(D.INTERMEDIATE_INFO, A.INTERMEDIATE_INFO_SIZE, T.INT64)])
    assert Status(reply.status) is Status.BAD_PARAM_NULL_POINTER
