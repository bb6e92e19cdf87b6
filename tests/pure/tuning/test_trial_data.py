"""Generated inputs: valid for each tensor's role, of the requested kind, stored by strides."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode, TensorReordering, UsageError
from cudnn_backend_py.graph import attention
from cudnn_backend_py.graph.encoded import decode_graph, encode_graph
from cudnn_backend_py.graph.strides import channels_last
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.data import (
    DATA_KINDS,
    convert_numbers_to_memory_image,
    list_input_tensors,
    load_npz_arrays,
    make_inputs,
    read_numbers_from_memory_image,
)
from cudnn_backend_py.tuning.trial.reproduce import make_command_line
from tests.support.interpreting import assert_graph_error, make_double_tensor
from tests.support.typical_graphs import TYPICAL_GRAPHS

ATTENTION_OPTIONS: dict[str, dict[str, Any]] = {
    "padding": {"padding": True},
    "ragged": {"ragged": True, "stats": True},
    "paged": {"padding": True, "page_size": 16, "pages_k": 20, "pages_v": 20},
    "dropout": {"dropout": 0.2},
}


def make_sdpa_forward_graph(**options: Any) -> Graph:
    return attention.sdpa_forward(**{"batch": 3, "heads": 2, "seq_q": 64, "head_dim": 32} | options)


def make_inputs_by_name(graph: Graph, kind: str = "uniform", seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    made = make_inputs(graph, kind, seed)
    return {item.name: made[item.uid] for item in list_input_tensors(graph)}


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.parametrize("name", sorted(TYPICAL_GRAPHS))
def test_every_typical_graph_runs_on_every_kind_of_data(name: str, kind: str) -> None:
    """The interpreter checks indices, offsets and pages; values written to memory and read back are unchanged."""
    graph = TYPICAL_GRAPHS[name].make()
    made = make_inputs(graph, kind)
    results = interpret(graph, made, rounding=True)
    assert set(results) == {item.name for item in graph.outputs}
    if kind != "hostile":
        finite = [np.isfinite(values).mean() for values in results.values()]
        assert min(finite) > 0.95, dict(zip(results, finite, strict=True))
    for item in list_input_tensors(graph):
        image = convert_numbers_to_memory_image(item, made[item.uid])
        assert image.nbytes <= item.span_bytes
        np.testing.assert_array_equal(read_numbers_from_memory_image(item, image), made[item.uid], err_msg=item.name)


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.parametrize("name", sorted(ATTENTION_OPTIONS))
def test_attention_inputs_have_valid_lengths_offsets_and_pages(name: str, kind: str) -> None:
    graph = make_sdpa_forward_graph(**ATTENTION_OPTIONS[name])
    found = make_inputs_by_name(graph, kind)
    assert interpret(graph, make_inputs(graph, kind))["o"].size
    if "seq_len_q" in found:
        lengths = found["seq_len_q"].reshape(-1)
        assert lengths[0] == 64
        assert (lengths[:-1] > 0).all()
        assert (lengths[-1] == 0) == (kind == "hostile")
        if "ragged_q" in found:
            stride = graph.tensor("q").strides[2]
            np.testing.assert_array_equal(np.diff(found["ragged_q"].reshape(-1)), lengths * stride)
            assert found["q"].shape == (found["ragged_q"].max(),)
    if "page_table_k" in found:
        assert len(set(found["page_table_k"].reshape(-1)[:12])) == 12


def test_the_backward_pass_reads_the_outputs_of_its_forward_pass() -> None:
    options: dict[str, Any] = {"batch": 2, "heads": 2, "seq_q": 64, "head_dim": 32, "scale": 0.3, "causal": True}
    graph = attention.sdpa_backward(**options)
    held = make_inputs_by_name(graph, "integers")
    forward_graph = attention.sdpa_forward(**options, stats=True)
    wanted = interpret(
        forward_graph, {name: held[name].swapaxes(2, 3) if name == "v" else held[name] for name in "qkv"}
    )
    np.testing.assert_allclose(held["stats"], wanted["stats"], rtol=1e-6)
    np.testing.assert_allclose(held["o"], wanted["o"], rtol=1e-3, atol=1e-7)


def test_equal_seeds_give_equal_data_and_other_seeds_do_not() -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    one, again, other = (make_inputs_by_name(graph, seed=seed)["a"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).mean() > 0.9


def test_uniform_integer_and_hostile_data_have_expected_values() -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    uniform, integers, hostile = (make_inputs_by_name(graph, kind)["a"] for kind in DATA_KINDS)
    assert np.abs(uniform).max() <= 1
    assert set(np.unique(integers)) == {-3, -2, -1, 0, 1, 2, 3}
    assert np.isnan(hostile).any() or np.isinf(hostile).any()
    assert np.nanmax(np.abs(hostile[np.isfinite(hostile)])) > 1e4
    assert ((hostile != 0) & (np.abs(hostile) < 6e-5)).any()
    assert (hostile == 0).all(axis=-1).any()


def test_hostile_data_make_forward_statistics_below_minus_88() -> None:
    graph = make_sdpa_forward_graph(stats=True)
    stats = interpret(graph, make_inputs(graph, "hostile"))["stats"]
    assert (stats < -88).any()


def test_half_the_heads_have_hostile_statistics_below_minus_88() -> None:
    """Below -88, exp(0 - lse) overflows float32 in a kernel that treats padding as 0."""
    made = [make_inputs_by_name(make_sdpa_backward_graph(), "hostile", 2 * number + 1)["stats"] for number in range(12)]
    deep = np.concatenate([(stats < -88.8).all(axis=(2, 3)).reshape(-1) for stats in made])
    assert 0.4 < deep.mean() < 0.72  # 9 of 16


def make_sdpa_backward_graph(**options: Any) -> Graph:
    return attention.sdpa_backward(**{"batch": 3, "heads": 4, "seq_q": 24, "head_dim": 32} | options)


MASKED_ATTENTION_OPTIONS: dict[str, dict[str, Any]] = {
    "right bound": {"right_bound": 9, "alignment": "bottom_right"},
    "left bound": {"left_bound": 20, "seq_kv": 56, "alignment": "bottom_right", "right_bound": 0},
    "soft cap": {"score_modifier": attention.SoftCap(2.0)},
    "sink": {"sink": True, "dsink": True, "padding": True},
    "ragged": {"ragged": True, "ragged_stats": True},
    "unscaled": {"scale": "none"},
    "square": {"seq_q": 32},
    "fp8": {"data_type": DataType.FP8_E5M2, "head_dim": 128},
    "dropout": {"dropout": 0.25},
}


@pytest.mark.parametrize("version", [(9, 19, 0), (9, 28, 0)], ids=lambda version: f"9.{version[1]}")
@pytest.mark.parametrize("name", MASKED_ATTENTION_OPTIONS)
def test_generated_backward_statistics_equal_softmax_statistics(name: str, version: tuple[int, int, int]) -> None:
    """Probabilities recomputed from the generated statistics sum to 1 in each row that has a key and no sink."""
    options: dict[str, Any] = {"batch": 3, "heads": 4, "seq_q": 24, "head_dim": 32} | MASKED_ATTENTION_OPTIONS[name]
    graph = attention.sdpa_backward(**options, version=version, implementation="composite", allow_hazards=True)
    rows = interpret(graph, make_inputs(graph, "integers", 3), keep=["p"])["p"].sum(axis=3)
    rows = rows[rows > 0]
    if name == "sink":
        assert rows.max() < 1
    else:
        np.testing.assert_allclose(rows, 1, rtol=1e-4)
    assert rows.size


def test_generated_variances_are_positive() -> None:
    assert make_inputs_by_name(TYPICAL_GRAPHS["batch norm, training"].make(), "hostile")["running_var"].min() >= 0.5


@pytest.mark.parametrize(
    ("kind", "bits"), [(DataType.FP4_E2M1, 4), (DataType.INT4, 4), (DataType.BOOLEAN, 1), (DataType.HALF, 16)]
)
def test_types_shorter_than_a_byte_are_packed_in_memory(kind: DataType, bits: int) -> None:
    held = make_double_tensor("x", (3, 5), data_type=kind)
    values = np.arange(15).reshape(3, 5) % 2
    image = convert_numbers_to_memory_image(held, values)
    assert image.nbytes == -(-15 * bits // 8)
    np.testing.assert_array_equal(read_numbers_from_memory_image(held, image), values)


def test_memory_image_of_a_tensor_follows_strides_and_scale_tiles() -> None:
    strided = make_double_tensor("x", (2, 3, 2, 2), channels_last((2, 3, 2, 2)), data_type=DataType.FLOAT)
    values = np.arange(24.0).reshape(2, 3, 2, 2)
    np.testing.assert_array_equal(convert_numbers_to_memory_image(strided, values)[:3], values[0, :, 0, 0])
    tiled = make_double_tensor("s", (1, 128, 4), data_type=DataType.FP8_E8M0, reordering=TensorReordering.F8_128x4)
    scales = 2.0 ** (np.arange(512).reshape(1, 128, 4) % 7)
    image = convert_numbers_to_memory_image(tiled, scales)
    assert (
        image[4]
        == convert_numbers_to_memory_image(
            make_double_tensor("t", (1,), data_type=DataType.FP8_E8M0), scales[0, 32, :1]
        )[0]
    )
    np.testing.assert_array_equal(read_numbers_from_memory_image(tiled, image), scales)


def test_given_input_arrays_are_used(tmp_path: Path) -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    path = tmp_path / "a.npz"
    np.savez(path, a=np.full((2, 128, 64), 2.0))
    made = make_inputs(graph, given=load_npz_arrays(path, graph))
    assert (made[graph.tensor("a").uid] == 2).all()
    assert np.abs(made[graph.tensor("b").uid]).max() <= 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"kind": "odd"}, "not a kind of data"),
        ({"given": {"nope": 1}}, "the graph reads a, b, bias"),
        ({"given": {"a": np.zeros((1, 2))}}, r"has dims \(2, 128, 64\)"),
    ],
)
def test_invalid_input_data_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match) as error:
        make_inputs(TYPICAL_GRAPHS["matmul"].make(), **options)
    assert error.value.code == "trial-data"


def test_files_without_numeric_arrays_are_refused(tmp_path: Path) -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    path = tmp_path / "no.npz"
    path.write_text("no")
    np.savez_compressed(tmp_path / "whole.npz", a=np.arange(1000.0))
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "short.npz").write_bytes(whole[:300])
    (tmp_path / "damaged.npz").write_bytes(whole[:200] + bytes(50) + whole[250:])
    np.savez(tmp_path / "objects.npz", a=np.array([None]))
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "texts.npz", a=np.array(["1"]))
    np.savez(tmp_path / "complex.npz", a=np.array([1 + 1j]))
    with zipfile.ZipFile(tmp_path / "endless.npz", "w") as file, file.open("a.npy", "w") as array:
        np.lib.format.write_array_header_1_0(array, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    files = sorted(path.name for path in tmp_path.glob("*.np?") if path.name != "whole.npz")
    assert len(files) == 8
    for name in (*files, "missing.npz"):
        with pytest.raises(UsageError, match=r"is no|are not numbers") as error:
            load_npz_arrays(tmp_path / name, graph)
        assert error.value.code == "trial-data", name


@pytest.mark.parametrize("shape", [(1 << 24,), (2, 128, 64), (2, 128, 1 << 40)])
def test_array_sizes_in_a_file_are_checked_before_allocation(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A few compressed bytes may claim to be gigabytes, in the header of an array or in the size of the file."""
    graph, path = TYPICAL_GRAPHS["matmul"].make(), tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("a.npy", "w") as array:
        np.lib.format.write_array_header_1_0(array, {"descr": "<f8", "fortran_order": False, "shape": shape})
        for _ in range(16):
            array.write(bytes(1 << 23))
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"data of shape \(16777216,\) is given|bytes, .* are needed") as error:
            load_npz_arrays(path, graph)
        assert error.value.code == "trial-data"
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_an_array_file_header_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "header.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("a.npy", "w") as array:
        array.write(b"\x93NUMPY\x02\x00" + (1 << 26).to_bytes(4, "little"))
        array.write(b" " * (1 << 26))
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="the header of an array has 67108864 bytes"):
            load_npz_arrays(path, TYPICAL_GRAPHS["matmul"].make())
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_a_misspelt_kind_of_data_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"hostle is not a file; data must be uniform, .*; did you mean hostile\?"):
        load_npz_arrays("hostle", TYPICAL_GRAPHS["matmul"].make())


def test_a_graph_is_encoded_as_one_command_line_argument() -> None:
    graph = make_sdpa_forward_graph(ragged=True)
    word = encode_graph(graph)
    assert decode_graph(word) == graph
    assert set(word) <= set("graph:abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
    line = make_command_line(None, graph, "--seed=1")
    assert line == f"cudnn-backend run {word} --seed=1"
    assert make_command_line("'a b.json' --dims=q=1", graph) == "cudnn-backend run 'a b.json' --dims=q=1"
    for broken in (word[:-8], word[:20] + "!" + word[21:], "graph:", "graph:AAAA"):
        assert_graph_error("graph-json", "graph", lambda broken=broken: decode_graph(broken))  # type: ignore[misc]


def test_generated_integers_of_unknown_meaning_are_small() -> None:
    g = GraphBuilder("whole", io_type=DataType.INT32)
    g.pointwise(PointwiseMode.ADD, g.tensor("x", (4, 4)), g.tensor("y", (4, 4)), virtual=False)
    assert np.abs(make_inputs_by_name(g.graph())["x"]).max() <= 3


def test_the_reproduce_command_sets_the_library_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    monkeypatch.delenv("CUDNN_BACKEND_LIBRARY", raising=False)
    assert make_command_line("a.json --set=x", graph, "--seed=3") == "cudnn-backend run a.json --set=x --seed=3"
    monkeypatch.setenv("CUDNN_BACKEND_LIBRARY", "/a place/libcudnn.so.9")
    named = "env 'CUDNN_BACKEND_LIBRARY=/a place/libcudnn.so.9' cudnn-backend run"
    assert make_command_line("a.json", graph, "--seed=3") == f"{named} a.json --seed=3"
    assert make_command_line(None, graph) == f"{named} {encode_graph(graph)}"
    line = make_command_line("a.json --cudnn=9.19.0.56-jit", graph)
    assert line == "cudnn-backend run a.json --cudnn=9.19.0.56-jit"
