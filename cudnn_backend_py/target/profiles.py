"""Described GPUs: one JSON file each, with the source of every number. Loads no library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import GraphError, UsageError
from ..frozen import FrozenValue
from ..native.crash_guards import MAX_DEVICE_NAME_BYTES

__all__ = ["Profile", "find_profile", "list_profiles", "load_profile"]

PROFILE_FOLDER = Path(__file__).parent / "profiles"

# The keys cuDNN 9.8 to 9.28 request or understand, and the type of each.
PROPERTY_TYPES: dict[str, type] = {
    "maxGridSize": list,
    "maxBlockSize": list,
    "regsPerBlock": int,
    "multiProcessorCount": int,
    "smCountOrigin": int,
    "warpSize": int,
    "maxSharedMemoryPerBlock": int,
    "maxSharedMemoryPerBlockOptin": int,
    "oversizedSharedMemoryPerBlock": int,
    "reservedSharedMemoryPerBlock": int,
    "maxRegistersPerSM": int,
    "maxCtasPerSM": int,
    "maxThreadsPerBlock": int,
    "maxThreadsPerSM": int,
    "pciDeviceId": int,
    "isTccDriver": int,
    "supportCoopLaunch": int,
    "totalGlobalMem": int,
    "smClockRateKHz": int,
    "memClockRateKHz": int,
    "memoryBusWidth": int,
    "l2CacheSize": int,
    "cudaDeviceId": int,
    "deviceVer": int,
    "driverVer": int,
    "deviceName": str,
}

_PROPERTY_LIMITS = {"totalGlobalMem": (1 << 63) - 1}  # of the others cuDNN keeps 31 bits

_OPTIONAL_PROPERTIES = {"smCountOrigin": 0, "oversizedSharedMemoryPerBlock": 0, "memoryBusWidth": 0}


class Profile(FrozenValue):
    """A described GPU; ``properties`` is the value of ``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION``.

    ``sources`` names for each property a key of ``citations``.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    properties: Mapping[str, Any]
    sources: Mapping[str, str]
    citations: Mapping[str, str]

    @property
    def sm(self) -> int:
        """The architecture: 89 for ``sm_89``."""
        return int(self.properties["deviceVer"]) // 10

    def json(self) -> str:
        """Return the device description for cuDNN."""
        return json.dumps(dict(self.properties), separators=(",", ":"))


def check_properties(properties: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check device properties; return them with the keys added that newer cuDNN versions require.

    Raises
    ------
    GraphError
        ``device-property-missing``, ``device-property-type``, ``device-property-range``, ``device-name-too-long``:
        cuDNN reads some of these without looking. Keys this package does not know are kept for newer cuDNN versions;
        they are numbers, texts, or lists of three numbers, too.
    """
    missing = [key for key in PROPERTY_TYPES if key not in properties and key not in _OPTIONAL_PROPERTIES]
    if missing:
        raise GraphError(
            f"the device description lacks {', '.join(missing)}",
            code="device-property-missing",
            where=where,
            fix="start from 'cudnn-backend target show NAME', or read a GPU with 'cudnn-backend target read'",
        )
    filled = {**_OPTIONAL_PROPERTIES, **properties}
    for key, value in filled.items():
        _check_property(key, value, where)
    length = len(filled["deviceName"].encode())
    if length > MAX_DEVICE_NAME_BYTES:
        raise GraphError(
            f"deviceName has {length} bytes, at most {MAX_DEVICE_NAME_BYTES} are allowed",
            code="device-name-too-long",
            where=where,
            cause="[measured] cuDNN 9.28 copies a longer name past its buffer",
        )
    return filled


def _check_property(key: str, value: Any, where: str) -> None:
    def make_error(headline: str, code: str) -> GraphError:
        return GraphError(f"device property {key} is {value!r}, {headline}", code=code, where=where)

    kind = PROPERTY_TYPES.get(key)
    if kind is None and type(value) not in (int, str, list):
        raise make_error("an integer, a text or a list is needed", "device-property-type")
    if kind is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise make_error(f"a value of type {kind.__name__} is needed", "device-property-type")
    if isinstance(value, list) and (len(value) != 3 or not all(type(item) is int for item in value)):
        raise make_error("a list of three integers is needed", "device-property-type")
    numbers = value if isinstance(value, list) else [value] if isinstance(value, int) else []
    most = _PROPERTY_LIMITS.get(key, (1 << 31) - 1) if kind is not None else (1 << 63) - 1
    if any(not 0 <= number <= most for number in numbers):
        raise make_error(f"a number from 0 to {most} is needed", "device-property-range")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise make_error("a text without half a surrogate pair is needed", "device-property-type") from None


def load_profile(path: Path) -> Profile:
    """Read a described GPU from a profile file, or from a device description as printed by cuDNN.

    Raises
    ------
    GraphError
        ``device-json`` for what is no JSON object, has parts that mean nothing or are of the wrong type, and what
        :func:`check_properties` refuses.
    """
    from ..system.untrusted_files import read_json  # a plan for the GPU here reads no file

    data = read_json(path, code="device-json", max_bytes=_MAX_PROFILE_BYTES)
    bare = not isinstance(data, dict) or "properties" not in data
    given = data if bare else data["properties"]
    if not isinstance(given, dict):
        raise GraphError(f"{path} is not a device description, an object of properties is needed", code="device-json")
    properties = check_properties(given, str(path))
    if bare:
        return Profile(path.stem, properties["deviceName"], (), properties, {}, {})
    known = ("schema", "properties", "sm", *_PROFILE_FIELDS)
    if unknown := sorted(set(data) - set(known)):
        raise GraphError(
            f"{path} has the unknown keys {', '.join(map(repr, unknown))}",
            code="device-json",
            fix=f"remove them; the known keys are {', '.join(known)}",
        )
    if type(schema := data.get("schema", 1)) is not int or schema != 1:
        raise GraphError(f"{path} has schema {schema!r}, 1 is needed", code="device-json")
    if (sm := data.get("sm", properties["deviceVer"] // 10)) != properties["deviceVer"] // 10:
        raise GraphError(
            f"{path} has sm {sm!r} and deviceVer {properties['deviceVer']}, but deviceVer must be ten times sm",
            code="device-json",
        )
    for key, needed in _PROFILE_FIELDS.items():
        if key in data and not _is_valid_field(data[key], needed):
            raise GraphError(f"{path} has {key} {data[key]!r}, {needed} is needed", code="device-json")
    return Profile(
        name=data.get("name", path.stem),
        title=data.get("title", properties["deviceName"]),
        aliases=tuple(data.get("aliases", ())),
        properties=properties,
        sources=data.get("sources", {}),
        citations=data.get("citations", {}),
    )


# What a profile holds next to the properties, and of what form.
_PROFILE_FIELDS = {
    "name": "a text",
    "title": "a text",
    "aliases": "a list of texts",
    "sources": "an object of texts",
    "citations": "an object of texts",
}
_MAX_PROFILE_BYTES = 1 << 20


def _is_valid_field(value: Any, form: str) -> bool:
    if form == "a text":
        return isinstance(value, str)
    kind, texts = (list, value) if form == "a list of texts" else (dict, getattr(value, "values", tuple)())
    return isinstance(value, kind) and all(isinstance(text, str) for text in texts)


_load_own_profile = cache(load_profile)  # the package's files do not change


@cache
def list_profiles() -> tuple[Profile, ...]:
    """Return the profiles (described GPUs) that come with the package, by architecture and name."""
    profiles = map(_load_own_profile, PROFILE_FOLDER.glob("*.json"))
    return tuple(sorted(profiles, key=lambda profile: (profile.sm, profile.name)))


def find_profile(name: str) -> Profile:
    """Return the profile called `name` (or ``sm89``, ``sm_89``), or read the one in a JSON file.

    Raises
    ------
    UsageError
        ``unknown-target``, with the names that are near.
    """
    wanted = name.lower().replace("_", "-").replace("sm-", "sm")
    if (own := _find_own_profile(wanted)) is not None:
        return own
    path = Path(name)
    if path.suffix == ".json" and os.path.isfile(name):  # unlike Path.is_file False for a name no file can have
        return load_profile(path)
    raise UsageError(
        f"no target is called {name!r}",
        code="unknown-target",
        cause=f"there is no file {name}" if path.suffix == ".json" else _explain_missing_profile(wanted),
        fix=_suggest_targets(wanted, [name for one in list_profiles() for name in (one.name, *one.aliases)]),
    )


@cache
def _find_own_profile(wanted: str) -> Profile | None:
    """Return the package's profile with this name or alias; None if there is none. Reads few files as JSON."""
    for path in PROFILE_FOLDER.glob("*.json"):
        if f'"{wanted}"' in path.read_text(encoding="utf-8"):
            profile = _load_own_profile(path)
            if wanted in (profile.name, *profile.aliases):
                return profile
    return None


def _suggest_targets(wanted: str, names: Collection[str]) -> str:
    """Return the suggestion for an unknown target name, such as a similar known name."""
    parts = [part.strip() for part in wanted.split(",")]
    if len(parts) > 1 and all(part in names for part in parts):
        return f"one target an option: {' '.join(f'--target {part}' for part in parts)}"
    from ..system.nearest import find_most_similar_name  # for this error alone

    near = _RENAMED_ARCHITECTURES.get(wanted.rstrip("af")) or _TARGETS_BY_ARCHITECTURE_NAME.get(wanted)
    near = near or find_most_similar_name(wanted, names)
    return (
        f"{f'did you mean {near}? ' if near else ''}'cudnn-backend target list' shows all targets; sm89 stands for an "
        "architecture; for another GPU change a copy of 'cudnn-backend target show NAME --device-json > mine.json' and "
        "give mine.json"
    )


_RENAMED_ARCHITECTURES = {"sm101": "sm110"}  # names that CUDA 13 changed
_TARGETS_BY_ARCHITECTURE_NAME = {
    "pascal": "sm60 or sm61",
    "volta": "sm70",
    "turing": "sm75",
    "ampere": "sm80 (A100) or sm86 (A40, RTX 3090)",
    "ada": "sm89",
    "ada-lovelace": "sm89",
    "hopper": "sm90",
    "blackwell": "sm100 (B200), sm103 (B300) or sm120 (RTX 5090)",
}


def _explain_missing_profile(wanted: str) -> str | None:
    """Return why there is no profile for an architecture such as ``sm122``; None if the name is no architecture."""
    if renamed := _RENAMED_ARCHITECTURES.get(wanted.rstrip("af")):
        title = next(profile.title for profile in list_profiles() if renamed in profile.aliases)
        return f"{wanted} is the name of {renamed} ({title}) in CUDA 12"
    match = re.fullmatch(r"sm([0-9]{2,4})[af]?", wanted)
    if match is None:
        return None
    sm = int(match[1])
    known = sorted({profile.sm for profile in list_profiles()})
    older = [one for one in known if one < sm]
    if not older:
        return f"sm_{sm} is older than sm_{known[0]}, the oldest architecture described here"
    if sm in known:
        return f"sm_{sm} is described as sm{sm}: the letter names features of its code, not another GPU"
    if sm > known[-1]:
        return (
            f"sm_{sm} is newer than sm_{known[-1]}, the newest architecture described here, and perhaps newer than "
            "this cuDNN: read the GPU itself with 'cudnn-backend target read', and give the JSON"
        )
    return (
        f"no GPU of sm_{sm} is described here, the next older architecture is sm_{older[-1]}: start a JSON "
        f"file from the output of 'cudnn-backend target show sm{older[-1]} --device-json', with deviceVer {sm * 10}"
    )
