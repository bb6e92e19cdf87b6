"""Described GPUs found by name or read from a file, and refusal of descriptions that are unsafe for cuDNN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import GraphError, UsageError
from cudnn_backend_py.native.crash_guards import MAX_DEVICE_NAME_BYTES
from cudnn_backend_py.target import Profile, find_profile, list_profiles, load_profile
from cudnn_backend_py.target.profiles import PROPERTY_TYPES, check_properties

OPTIONAL = {"smCountOrigin", "oversizedSharedMemoryPerBlock", "memoryBusWidth"}
L40S = find_profile("l40s")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("l40s", "l40s"),
        ("L40S", "l40s"),
        ("sm89", "l40s"),
        ("sm_89", "l40s"),
        ("SM-89", "l40s"),
        ("SM_90", "h100-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("RTX_4090", "rtx-4090"),
        ("sm121", "gb10"),
    ],
)
def test_profile_is_found_by_name_in_any_spelling(name: str, found: str) -> None:
    assert find_profile(name).name == found


@pytest.mark.parametrize("profile", list_profiles(), ids=lambda profile: profile.name)
def test_every_profile_is_found_by_all_its_names(profile: Profile) -> None:
    for name in (profile.name, *profile.aliases):
        assert find_profile(name) is profile
        assert find_profile(name.upper()) is profile
    assert profile.sm == profile.properties["deviceVer"] // 10
    assert json.loads(profile.json()) == profile.properties


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("l4os", "did you mean l40s"),
        ("h20", "did you mean h200"),
        ("sm891", "did you mean sm89"),
        ("sm_101a", "did you mean sm110"),
        ("Hopper", "did you mean sm90?"),
        ("turing", "did you mean sm75?"),
        ("ampere", "did you mean sm80 (A100) or sm86"),
        ("blackwell", "did you mean sm100 (B200), sm103 (B300) or sm120"),
        ("voodoo2", "'cudnn-backend target list' shows all targets"),
        ("", "'cudnn-backend target list' shows all targets"),
        ("nowhere.json", "'cudnn-backend target list' shows all targets"),
    ],
)
def test_unknown_target_names_are_refused_with_suggestions(name: str, fix: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_profile(name)
    error = raised.value
    assert str(error) == f"unknown-target: no target is called {name!r}"
    assert error.sections["fix"].startswith(fix)
    assert error.sections["fix"].endswith("give mine.json")


def test_error_says_that_cuda_13_renamed_an_architecture() -> None:
    with pytest.raises(UsageError) as raised:
        find_profile("sm101")
    assert raised.value.sections["cause"] == f"sm101 is the name of sm110 ({find_profile('sm110').title}) in CUDA 12"


@pytest.mark.parametrize("name", ["rubin", "sm107", "sm_107", "VR200"])
def test_rubin_profile_says_which_properties_are_guessed(name: str) -> None:
    profile = find_profile(name)
    assert (profile.sm, profile.title) == (107, "NVIDIA Rubin, partly guessed")
    known = {key for key, source in profile.sources.items() if source == "cudnn-frontend"}
    assert known == {
        "deviceVer",
        "maxSharedMemoryPerBlockOptin",
        "multiProcessorCount",
        "oversizedSharedMemoryPerBlock",
        "smClockRateKHz",
    }
    assert profile.sources["totalGlobalMem"] == "guess"


def test_comma_separated_targets_are_refused_with_a_fix() -> None:
    with pytest.raises(UsageError) as raised:
        find_profile("h100,a100")
    assert raised.value.sections["fix"] == "one target an option: --target h100 --target a100"


def test_a_gpu_description_printed_by_the_command_line_is_read(tmp_path: Path) -> None:
    profile = find_profile("l4")
    data = {"name": "mine", "sm": profile.sm, "aliases": [], "properties": dict(profile.properties)}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    assert find_profile(str(path)).properties == profile.properties
    path.write_text(json.dumps({**data, "sm": 90}))
    with pytest.raises(GraphError, match="has sm 90 and deviceVer 890, but deviceVer must be ten times sm"):
        find_profile(str(path))


def test_a_missing_target_file_is_refused() -> None:
    with pytest.raises(UsageError) as raised:
        find_profile("nowhere.json")
    assert raised.value.sections["cause"] == "there is no file nowhere.json"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        (
            "sm122",
            "sm_122 is newer than sm_121, the newest architecture described here, and perhaps newer",
        ),
        ("SM_130", "sm_130 is newer than sm_121"),
        ("sm_50", "sm_50 is older than sm_60"),
        ("sm88", "no GPU of sm_88 is described here, the next older architecture is sm_87"),
        ("sm_90a", "sm_90 is described as sm90: the letter names features"),
        ("l4os", None),
        ("smx", None),
    ],
)
def test_architectures_without_a_description_are_refused(name: str, cause: str | None) -> None:
    with pytest.raises(UsageError) as raised:
        find_profile(name)
    said = raised.value.sections.get("cause")
    assert said is cause is None or (said is not None and cause is not None and said.startswith(cause))


def test_file_with_cudnns_device_json_is_read(tmp_path: Path) -> None:
    path = tmp_path / "MyCard.json"
    path.write_text(L40S.json(), encoding="utf-8")
    profile = find_profile(str(path))
    assert profile == Profile("MyCard", L40S.properties["deviceName"], (), L40S.properties, {}, {})
    assert profile.sm == 89


def test_gpu_profile_file_may_contain_only_device_properties(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps({"properties": dict(L40S.properties), "aliases": ["mine"]}), encoding="utf-8")
    profile = load_profile(path)
    assert (profile.name, profile.title, profile.aliases) == ("card", L40S.properties["deviceName"], ("mine",))


@pytest.mark.parametrize(
    ("content", "headline"),
    [
        (b"{", "is not JSON: Expecting property name"),
        (b"\xff", "is not UTF-8: 'utf-8' codec"),
        (b"[]", "is not a device description, an object of properties is needed"),
        (b'{"properties": 3}', "is not a device description, an object of properties is needed"),
    ],
)
def test_files_without_device_description_are_refused(tmp_path: Path, content: bytes, headline: str) -> None:
    path = tmp_path / "card.json"
    path.write_bytes(content)
    with pytest.raises(GraphError) as raised:
        load_profile(path)
    assert str(raised.value).startswith(f"device-json: {path} {headline}")


def make_changed_properties(**changed: Any) -> dict[str, Any]:
    return {**L40S.properties, **changed}


def test_optional_properties_are_filled_in() -> None:
    given = {name: value for name, value in make_changed_properties().items() if name not in OPTIONAL}
    assert check_properties(given, "here") == {**given, **dict.fromkeys(OPTIONAL, 0)}
    assert set(given) | OPTIONAL == set(PROPERTY_TYPES)


def test_unknown_properties_are_kept() -> None:
    assert check_properties(make_changed_properties(clusterSize=8), "here")["clusterSize"] == 8


@pytest.mark.parametrize(
    "name", sorted(set(PROPERTY_TYPES) - {"smCountOrigin", "oversizedSharedMemoryPerBlock", "memoryBusWidth"})
)
def test_error_names_the_missing_property(name: str) -> None:
    given = make_changed_properties()
    del given[name]
    with pytest.raises(GraphError) as raised:
        check_properties(given, "card.json")
    assert str(raised.value) == f"device-property-missing: the device description lacks {name}"
    assert raised.value.sections["where"] == "card.json"


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("warpSize", "32", "int"),
        ("warpSize", 32.0, "int"),
        ("supportCoopLaunch", True, "int"),
        ("warpSize", None, "int"),
        ("deviceName", 3, "str"),
        ("maxGridSize", 3, "list"),
        ("maxGridSize", [1, 2], "three integers"),
        ("maxBlockSize", [1, 2, 3.0], "three integers"),
        ("maxBlockSize", [1, 2, True], "three integers"),
    ],
)
def test_property_of_wrong_type_is_refused(name: str, value: object, needed: str) -> None:
    with pytest.raises(GraphError) as raised:
        check_properties(make_changed_properties(**{name: value}), "here")
    what = "a list of three integers" if needed == "three integers" else f"a value of type {needed}"
    assert str(raised.value) == f"device-property-type: device property {name} is {value!r}, {what} is needed"


WRONG = [
    "",
    "7",
    True,
    None,
    1.5,
    {},
    -1,
    2**31,
    2**63,
    2**70,
    [1, 2],
    [1, 2, True],
    [1, 2, -1],
    [2**70, 1, 1],
    "\ud800",
]


@pytest.mark.parametrize("name", PROPERTY_TYPES)
def test_every_property_refuses_values_of_wrong_type_or_range(name: str, tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    for value in WRONG:
        fits = isinstance(value, str) and PROPERTY_TYPES[name] is str and value.isascii()
        fits = fits or (name == "totalGlobalMem" and value == 2**31)
        path.write_text(json.dumps(make_changed_properties(**{name: value})), encoding="utf-8")
        if fits:
            assert find_profile(str(path)).properties[name] == value
        else:
            with pytest.raises(GraphError, match=r"^device-(property-(type|range)|json): "):
                find_profile(str(path))


@pytest.mark.parametrize("value", [True, None, 1.5, {}, -1, 2**63, [1, 2], "\ud800"])
def test_values_of_unknown_properties_are_checked(value: object) -> None:
    with pytest.raises(GraphError, match=r"device-property-(type|range): device property new is "):
        check_properties(make_changed_properties(new=value), "here")


@pytest.mark.parametrize(
    ("part", "needed"),
    [
        ({"aliases": 3}, "a list of texts is needed"),
        ({"aliases": "abc"}, "a list of texts is needed"),
        ({"aliases": [1]}, "a list of texts is needed"),
        ({"name": 3}, "a text is needed"),
        ({"title": None}, "a text is needed"),
        ({"sources": []}, "an object of texts is needed"),
        ({"citations": {"a": 1}}, "an object of texts is needed"),
        ({"schema": 2}, "has schema 2, 1 is needed"),
        ({"schema": True}, "has schema True, 1 is needed"),
        ({"alias": []}, "has the unknown keys 'alias'"),
    ],
)
def test_every_field_of_a_profile_file_is_checked(part: dict[str, Any], needed: str, tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_text(json.dumps({"properties": dict(L40S.properties), **part}), encoding="utf-8")
    with pytest.raises(GraphError, match=f"^device-json: .*{needed}"):
        load_profile(path)


@pytest.mark.parametrize("letter", ["x", "é"])
def test_length_of_the_device_name_is_limited_in_bytes(letter: str) -> None:
    each = len(letter.encode())
    longest = letter * (MAX_DEVICE_NAME_BYTES // each)
    assert check_properties(make_changed_properties(deviceName=longest), "here")["deviceName"] == longest
    with pytest.raises(GraphError) as raised:
        check_properties(make_changed_properties(deviceName=longest + letter), "here")
    size = len(longest) * each + each
    assert (
        str(raised.value)
        == f"device-name-too-long: deviceName has {size} bytes, at most {MAX_DEVICE_NAME_BYTES} are allowed"
    )
