"""The generated binding: valid hashes, complete tables, and sample values. Needs no cuDNN header or library."""

from __future__ import annotations

import copy
import hashlib
import pickle
import re
from enum import IntEnum
from pathlib import Path

import pytest

import cudnn_backend_py.generated
from cudnn_backend_py.generated import attributes, enums, prototypes
from cudnn_backend_py.generated.enums import AttributeName as A
from cudnn_backend_py.generated.enums import AttributeType as T
from cudnn_backend_py.generated.enums import DescriptorType as D
from cudnn_backend_py.system.version import parse_version_numbers

GENERATED = Path(cudnn_backend_py.generated.__file__).parent
NEWEST = re.findall(r"^NEWEST := (.+)$", (GENERATED.parents[1] / "Makefile").read_text(), re.MULTILINE)[0]
FILES = sorted(path for path in GENERATED.iterdir() if path.is_file())
EVERY_ENUM = sorted(enums.ENUMS.items())


def has_valid_hash(text: str) -> bool:
    found = re.search(r"^.*seal: sha256:([0-9a-f]{64}).*\n", text, re.M)
    return found is not None and hashlib.sha256(text.replace(found[0], "").encode()).hexdigest() == found[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_generated_file_contains_its_own_hash(path: Path) -> None:
    assert has_valid_hash(path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_one_changed_letter_makes_the_hash_invalid(path: Path) -> None:
    text = path.read_text()
    assert not has_valid_hash(text[:-2] + ("y" if text[-2] != "y" else "z") + text[-1:])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_first_lines_name_the_generator_command_and_the_header_version(path: Path) -> None:
    head = "\n".join(path.read_text().splitlines()[:5])
    assert "python -m tools.codegen" in head
    assert NEWEST in head


def test_generator_report_lists_no_problems() -> None:
    report = (GENERATED / "REPORT.md").read_text()
    assert "## Problems\n\nNone.\n" in report
    covered = re.findall(r"^\| ([a-z ]+) \| (\d+) \| (\d+) \| (\d+) \|$", report, re.M)
    assert [kind for kind, *_ in covered] == ["enums", "enumerators", "functions", "descriptor types", "attributes"]
    assert all(
        int(declared) > 20 and (declared, "0") == (written, missing) for _, declared, written, missing in covered
    )


# --------------------------------------------------------------------------------------------- enums


@pytest.mark.parametrize(("c_name", "cls"), EVERY_ENUM)
def test_c_names_begin_with_cudnn_and_are_unique(c_name: str, cls: type[enums.CudnnEnum]) -> None:
    names = [member.c_name for member in cls]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"CUDNN_\w+", name) for name in names)
    assert cls.__doc__ == f"C enum {c_name}."


@pytest.mark.parametrize(
    ("member", "value", "c_name"),
    [
        (enums.Status.NOT_SUPPORTED_SHAPE, 3002, "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"),
        (enums.DataType.HALF, 2, "CUDNN_DATA_HALF"),
        (enums.HeurMode.A, 3, "CUDNN_HEUR_MODE_A"),
        (enums.HeurMode.MODES_COUNT, 4, "CUDNN_HEUR_MODES_COUNT"),
        (enums.GenStatsMode.SUM_SQSUM, 0, "CUDNN_GENSTATS_SUM_SQSUM"),
        (enums.OperationGraphMode.AUTO, -1, "CUDNN_OPERATIONGRAPH_MODE_AUTO"),
        (enums.ConvolutionMode.CROSS_CORRELATION, 1, "CUDNN_CROSS_CORRELATION"),
        (D.OPERATION_SDPA_FWD, 41, "CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR"),
        (A.OPERATION_SDPA_BWD_DODDESC, 2862, "CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC"),
        (T.NAN_PROPOGATION, 10, "CUDNN_TYPE_NAN_PROPOGATION"),
    ],
)
def test_enum_members_have_the_values_and_names_of_the_header(member: enums.CudnnEnum, value: int, c_name: str) -> None:
    assert (int(member), member.c_name) == (value, c_name)


@pytest.mark.parametrize(
    ("enum", "name", "nearest"),
    [
        (enums.AttributeName, "TENSOR_DIMENSION", "TENSOR_DIMENSIONS"),
        (enums.AttributeName, "CUDNN_ATTR_TENSOR_UNIQUE_ID", "TENSOR_UNIQUE_ID"),
        (enums.DataType, "FP16", "HALF"),
        (enums.DataType, "float32", "FLOAT"),
        (enums.PointwiseMode, "RELU", "RELU_FWD"),
        (enums.HeurMode, "CUDNN_HEUR_MODES_COUNT", "MODES_COUNT"),
    ],
)
def test_an_unknown_member_names_the_nearest(enum: type[enums.CudnnEnum], name: str, nearest: str) -> None:
    with pytest.raises(AttributeError, match=f"^{enum.__name__} has no member {name}; did you mean {nearest}[?]$"):
        getattr(enum, name)


def test_an_unknown_name_like_no_member_is_an_attribute_error() -> None:
    for name in ("zzz", "_private", "__wrapped__"):
        assert not hasattr(enums.DataType, name)
        with pytest.raises(AttributeError, match=f"^DataType has no member {name}$"):
            getattr(enums.DataType, name)


def test_usual_names_of_data_types_are_those_of_members() -> None:
    assert set(enums.USUAL_DATA_TYPES.values()) <= set(enums.DataType.__members__)


def test_enum_members_have_the_cudnn_version_that_added_them() -> None:
    assert A.OPERATION_SDPA_BWD_DBIAS_DESC.since == (9, 28, 0)
    assert D.DEVICEPROP.since == (9, 8, 0)
    assert enums.Status.SUCCESS.since == (9, 0, 0)
    assert enums.OperationGraphMode.SDPA_FWD.since == (9, 23, 0)  # missing in the header
    assert enums.CudaGraphRetention.NONE.since == (9, 28, 0)
    assert D.OPERATION_ROPE_BWD.since == A.OPERATION_ROPE_BWD_DYDESC.since == (9, 24, 0)  # the header has 9.25


def test_deprecated_enum_members_are_marked() -> None:
    assert A.OPERATIONGRAPH_HANDLE.deprecated
    assert enums.ActivationMode.RELU.deprecated
    assert enums.ErrQueryMode.RAWCODE.deprecated
    assert not enums.Status.BAD_PARAM.deprecated
    alias = enums.Status.ALLOC_FAILED
    assert alias is enums.Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED
    assert not alias.deprecated
    assert "CUDNN_STATUS_ALLOC_FAILED" in enums.DEPRECATED


def test_constants_have_the_values_of_the_header() -> None:
    assert parse_version_numbers(NEWEST) == enums.HEADER_VERSION
    assert enums.DIM_MAX == 8
    assert (enums.SEV_ERROR_EN, enums.SEV_WARNING_EN, enums.SEV_INFO_EN) == (2, 4, 8)


# ---------------------------------------------------------------------------------------- prototypes


def test_sample_prototypes_equal_those_of_the_header() -> None:
    assert prototypes.FUNCTIONS["cudnnBackendGetAttribute"] == (
        "cudnnStatus_t",
        (
            "cudnnBackendDescriptor_t",
            "cudnnBackendAttributeName_t",
            "cudnnBackendAttributeType_t",
            "int64_t",
            "int64_t *",
            "void *",
        ),
        (9, 0, 0),
    )
    assert prototypes.FUNCTIONS["cudnnGetErrorString"][0] == "const char *"
    assert prototypes.FUNCTIONS["cudnnGetVersion"][1] == ()
    assert prototypes.FUNCTIONS["cudnnGetCallback"][1][1] == "void **"
    assert prototypes.FUNCTIONS["cudnnGetExecutionPlanWorkspaceSize"][2] == (9, 23, 0)


@pytest.mark.parametrize("kind", enums.ENUMS.values(), ids=lambda kind: kind.__name__)
def test_members_are_those_of_an_ordinary_enum(kind: type[enums.CudnnEnum]) -> None:
    plain = IntEnum("plain", {name: int(member) for name, member in kind.__members__.items()})
    assert [*kind.__members__] == [*plain.__members__]
    assert [(one.name, one.value, int(one)) for one in kind] == [(one.name, one.value, int(one)) for one in plain]
    for ours, theirs in zip(kind, plain, strict=True):
        assert vars(ours) == vars(theirs) | {"__objclass__": kind}
        assert kind(int(ours)) is kind[ours.name] is getattr(kind, ours.name) is ours
        assert pickle.loads(pickle.dumps(ours)) is copy.deepcopy(ours) is ours
        assert ours in kind
        assert (str(ours), hash(ours)) == (str(theirs), hash(theirs))
        assert repr(ours) == repr(theirs).replace("plain", kind.__name__)
    with pytest.raises(ValueError, match="is not a valid"):
        kind(-12345)
    with pytest.raises(AttributeError, match="reassign member"):
        setattr(kind, next(iter(kind.__members__)), 1)


# ---------------------------------------------------------------------------------------- attributes

ALL_FACTS = [facts for kind in D for facts in attributes.get_attributes(kind)]


def test_every_attribute_has_a_description_and_a_descriptor() -> None:
    assert {facts.attribute for facts in ALL_FACTS} == set(A)
    assert len(ALL_FACTS) == len(A) == 383
    assert len(D) == 51


@pytest.mark.parametrize("kind", list(D), ids=lambda kind: kind.name)
def test_attributes_of_a_descriptor_have_different_field_names(kind: D) -> None:
    rows = attributes.get_attributes(kind)
    assert len({facts.field for facts in rows}) == len(rows)
    assert all(facts.owner is kind for facts in rows)
    assert all(attributes.get_attribute_facts(facts.attribute) is facts for facts in rows)


@pytest.mark.parametrize("facts", ALL_FACTS, ids=lambda facts: facts.attribute.name)
def test_attribute_descriptions_are_consistent(facts: attributes.AttributeFacts) -> None:
    assert facts.types
    assert facts.max_count is None or 0 <= facts.min_count <= facts.max_count
    assert (T.BACKEND_DESCRIPTOR in facts.types) == bool(facts.element)
    assert facts.since == facts.attribute.since
    assert not (facts.required and facts.role == "output")


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (A.OPERATION_MATMUL_ADESC, "a"),
        (A.OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, "gemm_m_override"),
        (A.OPERATION_MATMUL_DESC, "matmul"),
        (A.OPERATION_POINTWISE_PW_DESCRIPTOR, "pointwise"),
        (A.OPERATION_CONVOLUTION_FORWARD_CONV_DESC, "convolution"),
        (A.OPERATION_REDUCTION_DESC, "reduction"),
        (A.OPERATION_POINTWISE_DXDESC, "dx"),
        (A.TENSOR_UNIQUE_ID, "unique_id"),
        (A.OPERATION_SDPA_BWD_DODDESC, "d_o"),
        (A.OPERATION_BN_FINALIZE_EXP_AVERATE_FACTOR_DESC, "exp_average_factor"),
        (A.OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, "seq_len_kv"),
        (A.OPERATION_CONTRACT_BAND_MAX_TOKEN_VALUE, "max_token_value"),
    ],
)
def test_attributes_have_the_expected_field_names(name: A, field: str) -> None:
    assert attributes.get_attribute_facts(name).field == field


def test_mistakes_of_the_cudnn_header_are_corrected() -> None:
    facts = {name: attributes.get_attribute_facts(name) for name in A}
    assert facts[A.OPERATION_REDUCTION_DESC].element == (D.REDUCTION,)
    assert facts[A.RESAMPLE_NAN_PROPAGATION].types == (T.NAN_PROPOGATION,)
    assert facts[A.CONVOLUTION_CONV_MODE].types == (T.CONVOLUTION_MODE,)
    assert facts[A.OPERATIONGRAPH_IS_SAME_TOPOLOGY].element == (D.OPERATIONGRAPH,)


def test_operations_of_a_graph_are_the_operation_descriptors() -> None:
    element = attributes.get_attribute_facts(A.OPERATIONGRAPH_OPS).element
    assert set(element) == {kind for kind in D if kind.name.startswith("OPERATION_")}
    assert D.OPERATIONGRAPH not in element


def test_every_attribute_type_with_enum_values_has_its_enum() -> None:
    plain = {
        T.HANDLE, T.BOOLEAN, T.INT64, T.FLOAT, T.DOUBLE, T.VOID_PTR,
        T.BACKEND_DESCRIPTOR, T.INT32, T.CHAR, T.FRACTION,
    }  # fmt: skip
    assert set(attributes.ENUM_OF_TYPE) == set(T) - plain
    assert attributes.ENUM_OF_TYPE[T.HEUR_MODE] is enums.HeurMode
