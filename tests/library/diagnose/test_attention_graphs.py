"""Attention graphs of this package equal those of cudnn-frontend in the descriptions that cuDNN logs.

``data/attention_graphs.txt`` has cuDNN's log of cudnn-frontend's graphs. The options that must give the same graph
are listed here; if ours differs on purpose, the reason is here, and cuDNN must support ours
wherever it supports the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import DataType, Graph
from cudnn_backend_py.graph.attention import SoftCap, sdpa_backward, sdpa_forward
from tests.support.attention_listings import (
    ARCHITECTURES,
    PAGE_SIZE,
    SIZE_SYMBOLS,
    AttentionGraphListing,
    find_difference_from_logged_graph,
    find_text_difference,
    judge_graphs_in_child,
    log_and_judge_graphs,
    read_attention_graph_listings,
)
from tests.support.child import make_older_cudnn_environment
from tests.support.logged_graph_comparison import assert_logged_graph_equals, find_undetected_changes

LISTINGS = {
    listing.key: listing
    for listing in read_attention_graph_listings(Path(__file__).parent / "data/attention_graphs.txt")
}
VERSIONS = {"9.19": (9, 19, 0), "9.28": (9, 28, 0)}

PROBLEM_SIZES = {"batch": 2, "heads": 6, "seq_q": 384, "seq_kv": 512, "head_dim": 64, "head_dim_v": 128}
FP8_OPTIONS = {"head_dim": 128, "data_type": DataType.FP8_E4M3}
PAGE_COUNT = SIZE_SYMBOLS["b"] * SIZE_SYMBOLS["skv"] // PAGE_SIZE
CAUSAL_BOTTOM_RIGHT = {"causal": True, "alignment": "bottom_right"}
WINDOW_OPTIONS = {"left_bound": 128, "right_bound": 0}
WINDOW_BOTTOM_RIGHT = WINDOW_OPTIONS | {"alignment": "bottom_right"}
PAGED_OPTIONS = {"padding": True, "page_size": PAGE_SIZE, "pages_k": PAGE_COUNT, "pages_v": PAGE_COUNT}
RAGGED_OPTIONS = {"ragged": True, "ragged_stats": True, "layout": {"stats": "bhsd"}}
BIAS_OPTIONS = {"bias": (1, 6, 384, 512)}
MAX_AND_SUM_OPTIONS = {"max": True, "sum_exp": True}
UNIFIED_OPTIONS = {"implementation": "unified"}

OPTIONS_BY_LISTING: dict[str, dict[str, Any]] = {
    "9.19 fwd nomask stats": {},
    "9.19 fwd noscale": {"scale": "none"},
    "9.19 fwd causal TL": {"causal": True},
    "9.19 fwd causal BR": CAUSAL_BOTTOM_RIGHT,
    "9.19 fwd right=64 TL": {"right_bound": 64},
    "9.19 fwd SWA TL left=128 right=0": WINDOW_OPTIONS,
    "9.19 fwd SWA BR left=128 right=0": WINDOW_BOTTOM_RIGHT,
    "9.19 fwd padding": {"padding": True},
    "9.19 fwd padding+SWA BR": {"padding": True} | WINDOW_BOTTOM_RIGHT,
    "9.19 fwd bias": BIAS_OPTIONS,
    "9.19 fwd alibi+causal": {"alibi": True, "causal": True},
    "9.19 fwd dropout p": {"dropout": 0.1},
    "9.19 fwd dropout custom": {"dropout_mask": True},
    "9.19 fwd GQA": {"kv_heads": 3},
    "9.19 fwd ragged": RAGGED_OPTIONS,
    "9.19 fwd paged": PAGED_OPTIONS,
    "9.19 fwd sink": {"sink": True},
    "9.19 fwd max+sumexp nostats": {"stats": False} | MAX_AND_SUM_OPTIONS,
    "9.19 fwd softcap score_mod": {"score_modifier": SoftCap(50.0)},
    "9.19 fwd UNIFIED stats": UNIFIED_OPTIONS,
    "9.19 fwd UNIFIED paged": UNIFIED_OPTIONS | PAGED_OPTIONS,
    "9.19 fwd UNIFIED ragged": UNIFIED_OPTIONS | RAGGED_OPTIONS,
    "9.19 bwd nomask": {},
    "9.19 bwd causal deterministic": {"causal": True, "deterministic": True},
    "9.19 bwd GQA causal": {"kv_heads": 3, "causal": True},
    "9.19 bwd padding": {"padding": True},
    "9.19 bwd ragged GQA maxtotal": RAGGED_OPTIONS | {"kv_heads": 3, "max_total_seq_q": 700, "max_total_seq_kv": 900},
    "9.19 bwd bias dbias": BIAS_OPTIONS | {"dbias": True},
    "9.19 bwd dropout": {"dropout": 0.1},
    "9.19 bwd alibi causal": {"alibi": True, "causal": True},
    "9.19 bwd sink": {"sink": True, "dsink": True},
    "9.19 bwd SWA BR": WINDOW_BOTTOM_RIGHT,
    "9.19 fp8 fwd causal": FP8_OPTIONS | {"causal": True},
    "9.19 fp8 bwd GQA": FP8_OPTIONS | {"kv_heads": 3},
    "9.28 fwd right=64 TL": {"right_bound": 64},
    "9.28 fwd causal BR": CAUSAL_BOTTOM_RIGHT,
    "9.28 fwd SWA BR left=128 right=0": WINDOW_BOTTOM_RIGHT,
    "9.28 fwd padding+SWA BR": {"padding": True} | WINDOW_BOTTOM_RIGHT,
    "9.28 fwd sink": {"sink": True},
    "9.28 fwd maxsum+stats": MAX_AND_SUM_OPTIONS,
    "9.28 fwd UNIFIED stats": UNIFIED_OPTIONS,
    "9.28 fwd UNIFIED padding": UNIFIED_OPTIONS | {"padding": True},
    "9.28 fwd UNIFIED causal": UNIFIED_OPTIONS | {"causal": True},
    "9.28 fwd UNIFIED bias": UNIFIED_OPTIONS | BIAS_OPTIONS,
    "9.28 fwd UNIFIED alibi causal": UNIFIED_OPTIONS | {"alibi": True, "causal": True},
    "9.28 fwd UNIFIED softcap": UNIFIED_OPTIONS | {"score_modifier": SoftCap(50.0)},
    "9.28 fwd UNIFIED sink": UNIFIED_OPTIONS | {"sink": True},
    "9.28 fwd UNIFIED maxsum": UNIFIED_OPTIONS | MAX_AND_SUM_OPTIONS,
    "9.28 fwd UNIFIED SWA BR pad": UNIFIED_OPTIONS | {"padding": True} | WINDOW_BOTTOM_RIGHT,
}


# Intended differences from the listing: the reason, and the replacements that give our graph.
ROW_MAJOR_EXPLANATION = "virtual tensors are row-major; strides of a tensor that is never in memory mean nothing"
STATS_ORDER_EXPLANATION = (
    "the statistics of an empty row are -inf, and -inf - -inf is NaN: they are subtracted before the mask"
)
SHARED_PROBABILITY_EXPLANATION = "forward and backward must draw the same mask, so both have the forward pass' 1 - p"
SINK_MAXIMUM_EXPLANATION = (
    "the maximum of a row has one element a row; the listing has the dims of the input, with odd strides"
)

TextChanges = tuple[tuple[str, str], ...]
PRODUCT_CHANGES: TextChanges = (("/[294912,49152,768,1] = MUL(", " = MUL("),)
GROUPED_PRODUCT_CHANGES: TextChanges = (("/[294912,128,768,1] = MUL(", " = MUL("), ("/[196608,1,384,3] = ", " = "))
PROBABILITY_CHANGES: TextChanges = (("0.8999999761581421", "0.8999999985098839"),)


def list_text_changes_for_reordered_statistics(stats: str) -> TextChanges:
    return (
        ("GEN_INDEX/I32(v5", "GEN_INDEX/I32(v12"),
        ("BINARY_SELECT(v5,", "BINARY_SELECT(v12,"),
        (f"SUB(v11, {stats})", f"SUB(v5, {stats})"),
        ("EXP(v12)", "EXP(v11)"),
    )


DELIBERATE_DIFFERENCES: dict[str, tuple[str, TextChanges]] = {
    "9.19 fwd sink": (SINK_MAXIMUM_EXPLANATION, (("v3:[b,hq,sq,skv]/[1179648,1,3072,6]", "v3:R"),)),
    **{key: (ROW_MAJOR_EXPLANATION, PRODUCT_CHANGES) for key in OPTIONS_BY_LISTING if key.startswith("9.19 bwd ")},
    "9.19 bwd padding": (
        f"{ROW_MAJOR_EXPLANATION}; {STATS_ORDER_EXPLANATION}",
        PRODUCT_CHANGES + list_text_changes_for_reordered_statistics("STATS:R@"),
    ),
    "9.19 bwd ragged GQA maxtotal": (
        f"{ROW_MAJOR_EXPLANATION}; {STATS_ORDER_EXPLANATION}",
        PRODUCT_CHANGES + list_text_changes_for_reordered_statistics("STATS:R@~"),
    ),
    "9.19 bwd dropout": (
        f"{ROW_MAJOR_EXPLANATION}; {SHARED_PROBABILITY_EXPLANATION}",
        PRODUCT_CHANGES + PROBABILITY_CHANGES,
    ),
    "9.19 fp8 bwd GQA": (ROW_MAJOR_EXPLANATION, GROUPED_PRODUCT_CHANGES),
}

LogsAndVerdicts = Mapping[str, Mapping[str, Any]]


def build_graph_with_options_of_listing(key: str) -> Graph:
    """Build this package's graph for the attention options of one logged graph of cudnn-frontend."""
    make = sdpa_backward if " bwd " in key else sdpa_forward
    defaults: dict[str, Any] = {
        "implementation": "composite",
        "stats": " fwd " in key,
        "version": VERSIONS[LISTINGS[key].version],
    }
    return make(**(PROBLEM_SIZES | defaults | OPTIONS_BY_LISTING[key]))


def make_expected_graph_listing(key: str) -> AttentionGraphListing:
    """Return a logged graph of cudnn-frontend, changed where this package's graph differs deliberately."""
    return (
        LISTINGS[key].replace_text(*DELIBERATE_DIFFERENCES[key][1]) if key in DELIBERATE_DIFFERENCES else LISTINGS[key]
    )


def select_graphs_to_judge(version: str) -> tuple[dict[str, Graph], list[str]]:
    """Return cudnn-frontend's logged graphs for a version and ours, and the names of those that need a verdict."""
    keys = [key for key in LISTINGS if LISTINGS[key].version == version or key in DELIBERATE_DIFFERENCES]
    graphs = {f"listed {key}": LISTINGS[key].graph for key in keys} | {
        f"ours {key}": build_graph_with_options_of_listing(key) for key in keys
    }
    return graphs, [name for name in graphs if name.split(" ", 1)[1] in DELIBERATE_DIFFERENCES]


@pytest.fixture(scope="module")
def answers_by_version() -> dict[str, LogsAndVerdicts]:
    """Return cuDNN's logs and verdicts of all graphs by cuDNN version; the older version runs in a child process."""
    return {
        "9.19": judge_graphs_in_child(*select_graphs_to_judge("9.19"), make_older_cudnn_environment()),
        "9.28": log_and_judge_graphs(*select_graphs_to_judge("9.28")),
    }


def test_every_listed_graph_has_attention_options() -> None:
    assert set(OPTIONS_BY_LISTING) == set(LISTINGS)
    assert set(DELIBERATE_DIFFERENCES) <= set(LISTINGS)


@pytest.mark.parametrize("key", LISTINGS)
def test_a_graph_listing_round_trip_is_lossless(key: str, answers_by_version: dict[str, LogsAndVerdicts]) -> None:
    """A graph's text form, converted to a graph, to cuDNN's log and back to text, is unchanged."""
    listing = LISTINGS[key]
    logged = answers_by_version[listing.version][f"listed {key}"]["log"]
    assert_logged_graph_equals(listing.graph, logged)
    assert find_difference_from_logged_graph(listing, logged) is None
    assert find_text_difference(listing, logged) is None


@pytest.mark.parametrize("key", LISTINGS)
def test_our_graph_equals_the_logged_graph_of_cudnn_frontend(
    key: str, answers_by_version: dict[str, LogsAndVerdicts]
) -> None:
    """Only the differences stated in ``DELIBERATE_DIFFERENCES`` are allowed."""
    assert (
        find_difference_from_logged_graph(
            make_expected_graph_listing(key), answers_by_version[LISTINGS[key].version][f"ours {key}"]["log"]
        )
        is None
    )


@pytest.mark.parametrize("key", DELIBERATE_DIFFERENCES)
@pytest.mark.parametrize("version", VERSIONS)
def test_graphs_that_differ_from_cudnn_frontend_keep_its_engine_configs(
    version: str, key: str, answers_by_version: dict[str, LogsAndVerdicts]
) -> None:
    """For our graph, cuDNN has every engine config that it has for the graph of cudnn-frontend."""
    assert (
        find_difference_from_logged_graph(LISTINGS[key], answers_by_version[version][f"ours {key}"]["log"]) is not None
    )
    listed, mine = (answers_by_version[version][f"{side} {key}"]["verdicts"] for side in ("listed", "ours"))
    assert any(listed.values())
    for architecture in ARCHITECTURES:
        assert set(listed[architecture]) <= set(mine[architecture]), architecture


def test_scratch_tensors_of_ragged_gradients_have_the_same_ragged_offsets() -> None:
    """cudnn-frontend's logged graphs show that these tensors are ragged, but not their offsets."""
    graph = build_graph_with_options_of_listing("9.19 bwd ragged GQA maxtotal")
    for scratch, like in {"dv_full": "dv", "dk_full": "dk", "dq_accum": "dq", "softmax_sum": "stats"}.items():
        assert graph.tensor(scratch).ragged_offset == graph.tensor(like).ragged_offset is not None


LISTINGS_WITH_CHANGED_LOGS = (
    "9.19 fwd dropout p",
    "9.19 fwd ragged",
    "9.28 fwd padding+SWA BR",
    "9.28 fwd UNIFIED SWA BR pad",
)


@pytest.mark.parametrize("key", LISTINGS_WITH_CHANGED_LOGS)
def test_find_difference_finds_each_changed_value_in_a_log(
    key: str, answers_by_version: dict[str, LogsAndVerdicts]
) -> None:
    """Change each number, flag and name in cuDNN's log, one at a time; each change must be found."""
    listing = LISTINGS[key]
    logged = answers_by_version[listing.version][f"listed {key}"]["log"]
    missed = find_undetected_changes(logged, lambda other: find_difference_from_logged_graph(listing, other))
    # For a ragged offset the listings have only a mark; its dims are compared.
    assert not [path for path in missed if "isRagged" not in path or "dim" in path]


def replace_text_of_graph_listing(*changes: tuple[str, str], key: str = "9.19 fwd causal TL") -> AttentionGraphListing:
    return LISTINGS[key].replace_text(*changes)


CHANGED_LISTINGS = {
    "compute type": (
        replace_text_of_graph_listing(("GEN_INDEX(v2, axis=3)", "GEN_INDEX/I32(v2, axis=3)")),
        "compute type",
    ),
    "axis": (replace_text_of_graph_listing(("axis=3", "axis=2")), "axis"),
    "type": (replace_text_of_graph_listing(("v12:S.F16", "v12:S")), "data type"),
    "virtual": (replace_text_of_graph_listing(("STATS:R@", "STATS:R")), "virtual"),
    "by value": (replace_text_of_graph_listing(("c1:1!", "c1:1@")), "by value"),
    "dims": (replace_text_of_graph_listing(("c1:1!", "c1:R!")), "dims"),
    "strides": (replace_text_of_graph_listing(("v1:S", "v1:[b,hq,sq,skv]/[1179648,1,3072,6]")), "strides"),
    "ragged": (replace_text_of_graph_listing(("(v12, V)", "(v12, V~)")), "ragged"),
    "swapped": (replace_text_of_graph_listing(("CMP_GE/BOOL(v4, v3)", "CMP_GE/BOOL(v3, v4)")), "links"),
    "mode": (replace_text_of_graph_listing(("CMP_GE", "CMP_GT")), "mode"),
    "operation": (replace_text_of_graph_listing(("RED_MAX", "RED_MIN")), "operator"),
    "shared constant": (replace_text_of_graph_listing(("c2:1!", "c1")), "tensors are meant"),
    "probability": (
        replace_text_of_graph_listing(*PROBABILITY_CHANGES, key="9.19 bwd dropout"),
        "bernoulli_dist_probability",
    ),
    "port": (
        replace_text_of_graph_listing(("leftBoundDesc", "shiftRightBoundDesc"), key="9.28 fwd SWA BR left=128 right=0"),
        "links",
    ),
    "inside": (replace_text_of_graph_listing(("CMP_GE", "CMP_GT"), key="9.28 fwd UNIFIED causal"), "mode"),
}


@pytest.mark.parametrize(("other", "words"), CHANGED_LISTINGS.values(), ids=CHANGED_LISTINGS)
def test_find_difference_names_what_changed_in_a_listing(
    other: AttentionGraphListing, words: str, answers_by_version: dict[str, LogsAndVerdicts]
) -> None:
    found = find_difference_from_logged_graph(other, answers_by_version[other.version][f"listed {other.key}"]["log"])
    assert found is not None
    assert words in found
