"""The verdict and engine-config list without a device equal the live ones, or the difference is listed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import library, open_target
from cudnn_backend_py.diagnose.rules import NEEDS_DEVICE
from cudnn_backend_py.target import find_profile
from tests.support.agreement import judge
from tests.support.figures import add_figure
from tests.support.zoo import ZOO

DATA = Path(__file__).parent / "data"

# Why a list is longer live: cuDNN's own words for the engine without a device, and what they mean.
NEEDS_DEVICE_WORDS = (*NEEDS_DEVICE, "core_engine.getStatus()")


def described_here() -> dict[str, Any]:
    """Return the answers for the described GPU, in this process with its real driver."""
    return judge("h100-sxm")


@pytest.fixture(scope="module")
def live() -> dict[str, Any]:
    return judge(None)


def stored() -> dict[str, Any] | None:
    path = DATA / f"deviceless-h100-sxm-cudnn-{library().version_text}.json"
    return json.loads(path.read_text())["graphs"] if path.is_file() else None


def only_live(deviceless: dict[str, Any], live: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    """Return the cause of each config that is only in the live list, counted, and what has no cause."""
    causes: dict[str, int] = {}
    unexplained = []
    for mode, configs in deviceless["configs"].items():
        kept = []
        for config in live["configs"][mode]:
            if config in configs:
                kept.append(config)
                continue
            engine = config.split(" ", 2)[1]
            words = deviceless["refused"].get(f"{mode} engine {engine}", "no reason")
            known = [item for item in NEEDS_DEVICE_WORDS if item in words]
            if known:
                causes[words] = causes.get(words, 0) + 1
            else:
                unexplained.append(f"{mode}: {config} only live; without a device: {words}")
        if configs != kept:
            unexplained.append(f"{mode}: {configs} in another order or more than live {kept}")
    return causes, unexplained


def check(deviceless: dict[str, Any], live: dict[str, Any], what: str) -> None:
    outcomes, causes, unexplained, equal = {}, {}, {}, 0
    for name in ZOO:
        left, right = deviceless[name], live[name]
        unjudged = left["outcome"] == "could not be judged"
        if left["outcome"] != right["outcome"]:
            outcomes[name] = f"{left['outcome']}; live: {right['outcome']}"
        if left["configs"] == right["configs"]:
            equal += 1
            continue
        causes[name], missing = only_live(left, right)
        if missing and not unjudged:
            unexplained[name] = missing
    add_figure(
        what,
        cudnn=library().version_text,
        graphs=len(ZOO),
        equal_lists=equal,
        different_outcomes=outcomes,
        configs_only_live=causes,
        unexplained=unexplained,
    )
    assert not unexplained, json.dumps(unexplained, indent=1)
    wrong = {name: text for name, text in outcomes.items() if not text.startswith("could not be judged")}
    assert not wrong


def test_described_gpu_agrees_with_live(live: dict[str, Any]) -> None:
    check(described_here(), live, "described GPU, with this machine's driver, against live")


@pytest.mark.parametrize("path", sorted(DATA.glob("deviceless-*.json")), ids=lambda path: path.stem)
def test_answers_of_a_machine_without_gpu_agree_with_live(live: dict[str, Any], path: Path) -> None:
    stored = json.loads(path.read_text())
    if stored["cudnn"] != library().version_text:
        # Another version's answers say nothing about this one; the pair above is compared in any case.
        assert stored["cudnn"] in path.stem
        return
    check(stored["graphs"], live, "machine without GPU against live")


def test_profile_equals_the_device() -> None:
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
