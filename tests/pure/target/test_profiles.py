"""The profiles of described GPUs are complete, typed and sourced, and have unambiguous names. Loads no library."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import cudnn_backend_py

PROFILE_FOLDER = Path(cudnn_backend_py.__path__[0]) / "target" / "profiles"
PATHS = sorted(PROFILE_FOLDER.glob("*.json"))

TRIPLES = {"maxGridSize", "maxBlockSize"}
TEXTS = {"deviceName"}
INTEGERS = {
    "regsPerBlock", "multiProcessorCount", "smCountOrigin", "warpSize", "maxSharedMemoryPerBlock",
    "maxSharedMemoryPerBlockOptin", "oversizedSharedMemoryPerBlock", "reservedSharedMemoryPerBlock",
    "maxRegistersPerSM", "maxCtasPerSM", "maxThreadsPerBlock", "maxThreadsPerSM", "pciDeviceId",
    "isTccDriver", "supportCoopLaunch", "totalGlobalMem", "smClockRateKHz", "memClockRateKHz",
    "memoryBusWidth", "l2CacheSize", "cudaDeviceId", "deviceVer", "driverVer",
}  # fmt: skip
KEYS = TRIPLES | TEXTS | INTEGERS
MAY_BE_ZERO = {
    "smCountOrigin", "oversizedSharedMemoryPerBlock", "reservedSharedMemoryPerBlock", "pciDeviceId",
    "isTccDriver", "cudaDeviceId",
}  # fmt: skip
# Properties that a described device cannot know, with the same value in every profile but those of OVERSIZED.
FIXED = {
    "smCountOrigin": 0, "oversizedSharedMemoryPerBlock": 0, "pciDeviceId": 0, "isTccDriver": 0,
    "supportCoopLaunch": 1, "cudaDeviceId": 0, "driverVer": 13000,
}  # fmt: skip

OVERSIZED = {1070: 327 * 1024}  # shared memory per block beyond the opt-in limit

ARCHITECTURE_PROFILE = {
    "sm60": "p100", "sm61": "gtx-1080-ti", "sm70": "v100", "sm72": "jetson-xavier", "sm110": "jetson-thor",
    "sm75": "t4", "sm80": "a100-80gb", "sm86": "rtx-3090", "sm87": "jetson-orin", "sm89": "l40s",
    "sm90": "h100-sxm", "sm100": "b200", "sm103": "b300", "sm107": "rubin", "sm120": "rtx-5090", "sm121": "gb10",
}  # fmt: skip
# Compute capability x 100: opt-in shared memory in KiB, resident blocks per SM, resident threads per SM.
LIMITS = {
    600: (48, 32, 2048), 610: (48, 32, 2048), 700: (96, 32, 2048), 720: (96, 32, 2048), 1100: (227, 24, 1536),
    750: (64, 16, 1024), 800: (163, 32, 2048), 860: (99, 16, 1536), 870: (163, 16, 1536),
    890: (99, 24, 1536), 900: (227, 32, 2048), 1000: (227, 32, 2048), 1030: (227, 32, 2048), 1070: (227, 32, 2048),
    1200: (99, 24, 1536), 1210: (99, 24, 1536),
}  # fmt: skip


def load_json(profile_path: Path) -> dict[str, Any]:
    profile = json.loads(profile_path.read_text(encoding="utf-8"))
    assert isinstance(profile, dict)
    return profile


@pytest.fixture(params=PATHS, ids=lambda profile_path: profile_path.stem)
def profile_path(request: pytest.FixtureRequest) -> Path:
    found = request.param
    assert isinstance(found, Path)
    return found


@pytest.fixture
def profile(profile_path: Path) -> dict[str, Any]:
    return load_json(profile_path)


def test_every_architecture_has_a_profile() -> None:
    assert set(ARCHITECTURE_PROFILE.values()) <= {profile_path.stem for profile_path in PATHS}


def test_profile_file_has_the_expected_fields(profile_path: Path, profile: dict[str, Any]) -> None:
    assert set(profile) == {"schema", "name", "title", "aliases", "properties", "sources", "citations"}
    assert profile["schema"] == 1
    assert profile["name"] == profile_path.stem
    assert profile["title"].strip()
    for name in [profile["name"], *profile["aliases"]]:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name), name


def test_profile_properties_are_complete_and_typed(profile: dict[str, Any]) -> None:
    properties = profile["properties"]
    assert set(properties) == KEYS
    for key in INTEGERS:
        assert type(properties[key]) is int, key
        assert properties[key] >= (0 if key in MAY_BE_ZERO else 1), key
    for key in TRIPLES:
        assert [type(extent) for extent in properties[key]] == [int, int, int], key
        assert all(extent > 0 for extent in properties[key]), key
    for key in TEXTS:
        assert isinstance(properties[key], str)
        assert properties[key].strip()
        assert len(properties[key].encode()) <= 255, "cuDNN 9.28 copies the name unchecked into 256 bytes"
    oversized = {"oversizedSharedMemoryPerBlock": OVERSIZED.get(properties["deviceVer"], 0)}
    assert {key: properties[key] for key in FIXED} == FIXED | oversized


def test_every_property_has_a_citation(profile: dict[str, Any]) -> None:
    sources, citations = profile["sources"], profile["citations"]
    assert set(sources) == KEYS
    assert set(sources.values()) == set(citations), "a source without citation, or a citation no one uses"
    assert all(isinstance(text, str) and text.strip() for text in citations.values())


def test_the_source_note_of_a_profile_names_its_computed_properties(profile: dict[str, Any]) -> None:
    for key, source in profile["sources"].items():
        if source == "derived":
            assert key in profile["citations"]["derived"]


def test_citations_have_a_url_or_a_known_kind(profile: dict[str, Any]) -> None:
    own_words = {"convention", "derived", "measured", "dump-without-url", "unsourced-estimate", "guess"}
    for source, text in profile["citations"].items():
        assert source in own_words or "https://" in text, source


def test_resource_limits_follow_the_architecture(profile: dict[str, Any]) -> None:
    properties = profile["properties"]
    optin_kib, blocks, threads = LIMITS[properties["deviceVer"]]
    assert properties["maxSharedMemoryPerBlockOptin"] == optin_kib * 1024
    assert properties["maxCtasPerSM"] == blocks
    assert properties["maxThreadsPerSM"] == threads
    assert properties["reservedSharedMemoryPerBlock"] == (1024 if properties["deviceVer"] >= 800 else 0)


def test_architecture_aliases_match_the_device(profile: dict[str, Any]) -> None:
    for alias in profile["aliases"]:
        if re.fullmatch(r"sm\d+", alias):
            assert profile["properties"]["deviceVer"] == int(alias[2:]) * 10


def test_each_architecture_has_one_profile() -> None:
    carriers = [
        (alias, profile["name"])
        for profile in map(load_json, PATHS)
        for alias in profile["aliases"]
        if re.fullmatch(r"sm\d+", alias)
    ]
    assert sorted(carriers) == sorted(ARCHITECTURE_PROFILE.items())


def test_profile_names_and_aliases_are_unique() -> None:
    names = Counter(name for profile in map(load_json, PATHS) for name in [profile["name"], *profile["aliases"]])
    assert [name for name, uses in names.items() if uses > 1] == []
