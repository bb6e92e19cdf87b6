"""A described GPU has the verdict and engine configs of the real GPU, except for the differences listed here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import CudnnStatusError, OperationGraph, library, open_target
from cudnn_backend_py.diagnose.causes.phrases import DEVICE_NEED_BY_PATTERN
from cudnn_backend_py.generated.enums import KnobType
from cudnn_backend_py.target import Profile, find_profile
from tests.support.figures import append_measurement_to_run_record
from tests.support.varied_graphs import VARIED_GRAPHS
from tools.records.agreement import judge_graphs_of_many_kinds

DATA_FOLDER = Path(__file__).parent / "data"

# Why a list is longer on the GPU: cuDNN's own message for the engine without a device, and its meaning.
KNOWN_REASONS = (*DEVICE_NEED_BY_PATTERN, "core_engine.getStatus()")


def describe_own_gpu() -> Profile:
    """Return a description of this machine's GPU, to judge graphs for it as on a machine without one."""
    target = open_target()
    target.close()
    return target.profile


@pytest.fixture(scope="module")
def verdicts_on_gpu() -> dict[str, Any]:
    return judge_graphs_of_many_kinds(None)


def stored_verdicts() -> dict[str, Any] | None:
    path = DATA_FOLDER / f"deviceless-h100-sxm-cudnn-{library().version_text}.json"
    return json.loads(path.read_text())["graphs"] if path.is_file() else None


ONLY_ON_GPU_EXPLANATION = (
    "mode A proposes it only live; requested by hand without a device, the config passes its check"
)
ONLY_WITHOUT_DEVICE_EXPLANATION = (
    "mode A proposes it only without a device; requested by hand on the GPU, the config passes its check"
)
OTHER_ORDER_EXPLANATION = "the same configs in another order: mode A ranks them by the device"
ATTENTION_GRAPHS = ("flash", "unified", "two matmul")


def is_config_supported(name: str, config: str, on: Profile | None) -> bool:
    """Return whether the GPU, or the described GPU `on`, supports this exact engine config."""
    _, engine, *knobs = config.split(" ", 2)
    choices = dict(item.split("=") for item in knobs[0].split(",")) if knobs else {}
    target = open_target(on)
    try:
        question = OperationGraph(VARIED_GRAPHS[name](), target)
        return bool(question.config(int(engine), {KnobType[key]: int(value) for key, value in choices.items()}).tag)
    except CudnnStatusError:
        return False
    finally:
        target.close()


def explain_verdict_differences(
    name: str, deviceless: dict[str, Any], verdicts_on_gpu: dict[str, Any]
) -> tuple[dict[str, int], list[str]]:
    """Return counts, by known cause, of config differences between the described and the real GPU, and unknown ones."""
    causes: Counter[str] = Counter()
    unexplained = []
    for mode, configs in deviceless["configs"].items():
        ours, theirs = configs, verdicts_on_gpu["configs"][mode]
        for config in theirs:
            if config in ours:
                continue
            words = deviceless["refused"].get(f"{mode} engine {config.split(' ', 2)[1]}")
            if words is not None and any(item in words for item in KNOWN_REASONS):
                causes[words] += 1
            elif is_config_supported(name, config, describe_own_gpu()):
                causes[ONLY_ON_GPU_EXPLANATION] += 1
            else:
                unexplained.append(f"{mode}: {config} only live; without a device: {words}")
        for config in ours:
            if config in theirs:
                continue
            if is_config_supported(name, config, None):
                causes[ONLY_WITHOUT_DEVICE_EXPLANATION] += 1
            else:
                unexplained.append(f"{mode}: {config} only without a device, and refused by the GPU")
        if [item for item in ours if item in theirs] != [item for item in theirs if item in ours]:
            causes[OTHER_ORDER_EXPLANATION] += 1
    return dict(causes), unexplained


def check_that_verdicts_agree(deviceless: dict[str, Any], verdicts_on_gpu: dict[str, Any], what: str) -> None:
    outcomes, causes, unexplained, equal = {}, {}, {}, 0
    for name in VARIED_GRAPHS:
        left, right = deviceless[name], verdicts_on_gpu[name]
        unjudged = left["outcome"] == "could not be judged"
        if left["outcome"] != right["outcome"]:
            outcomes[name] = f"{left['outcome']}; live: {right['outcome']}"
        if left["configs"] == right["configs"]:
            equal += 1
            continue
        causes[name], missing = explain_verdict_differences(name, left, right)
        if name.startswith(ATTENTION_GRAPHS):
            missing.append("attention graphs must have equal lists")
        if missing and not unjudged:
            unexplained[name] = missing
    append_measurement_to_run_record(
        what,
        cudnn=library().version_text,
        graphs=len(VARIED_GRAPHS),
        equal_lists=equal,
        different_outcomes=outcomes,
        causes_of_differences=causes,
        unexplained=unexplained,
    )
    assert not unexplained, json.dumps(unexplained, indent=1)
    wrong = {name: text for name, text in outcomes.items() if not text.startswith("could not be judged")}
    assert not wrong


def test_the_described_gpu_agrees_with_the_real_gpu(verdicts_on_gpu: dict[str, Any]) -> None:
    check_that_verdicts_agree(
        judge_graphs_of_many_kinds(describe_own_gpu()),
        verdicts_on_gpu,
        "described GPU, with this machine's driver, against live",
    )


@pytest.mark.parametrize("path", sorted(DATA_FOLDER.glob("deviceless-*.json")), ids=lambda path: path.stem)
def test_verdicts_of_a_machine_without_a_gpu_agree_with_the_real_gpu(
    verdicts_on_gpu: dict[str, Any], path: Path
) -> None:
    stored = json.loads(path.read_text())
    same_gpu = describe_own_gpu().title == find_profile(stored["target"]).properties["deviceName"]
    if stored["cudnn"] != library().version_text or not same_gpu:
        # Answers for another version or GPU are not comparable; the pair above is compared in any case.
        assert stored["cudnn"] in path.stem
        return
    check_that_verdicts_agree(stored["graphs"], verdicts_on_gpu, "machine without GPU against live")


def test_the_stored_profile_equals_the_properties_of_the_device() -> None:
    target = open_target()
    profile = find_profile("h100-sxm")
    if target.profile.properties["deviceName"] == profile.properties["deviceName"]:
        skip = {"pciDeviceId", "driverVer"}
        different = {
            key: (value, target.profile.properties[key])
            for key, value in profile.properties.items()
            if key not in skip and key in target.profile.properties and target.profile.properties[key] != value
        }
        assert not different
    target.close()
