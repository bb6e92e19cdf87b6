"""Described GPUs: one JSON file each, every number with its source. Loads no library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import GraphError, UsageError
from ..native.hazards import DEVICE_NAME_BYTES

__all__ = ["Profile", "find_profile", "list_profiles", "load_profile"]

FOLDER = Path(__file__).parent / "profiles"

# The keys cuDNN 9.8 to 9.28 ask for or understand, and the type of each.
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

_OPTIONAL = {"smCountOrigin": 0, "oversizedSharedMemoryPerBlock": 0, "memoryBusWidth": 0}


@dataclass(frozen=True, slots=True)
class Profile:
    """A GPU as cuDNN sees it: ``properties`` is what ``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`` takes.

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
        """The architecture as in ``sm_89``: 89."""
        return int(self.properties["deviceVer"]) // 10

    def json(self) -> str:
        """Return the device description for cuDNN."""
        return json.dumps(dict(self.properties), separators=(",", ":"))


def check_properties(properties: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `properties` with the keys newer cuDNN versions want filled in.

    Raises
    ------
    GraphError
        ``device-property-missing``, ``device-property-type``, ``device-name-too-long``: cuDNN reads some of these
        without looking.
    """
    missing = [key for key in PROPERTY_TYPES if key not in properties and key not in _OPTIONAL]
    if missing:
        raise GraphError(
            f"the device description lacks {', '.join(missing)}",
            code="device-property-missing",
            where=where,
            fix="start from 'cudnn-backend target show NAME', or read a GPU with 'cudnn-backend target read'",
        )
    filled = {**_OPTIONAL, **properties}
    for key, kind in PROPERTY_TYPES.items():
        value: Any = filled[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise GraphError(
                f"device property {key} is {value!r}, {kind.__name__} is needed",
                code="device-property-type",
                where=where,
            )
        if isinstance(value, list) and (len(value) != 3 or not all(type(item) is int for item in value)):
            raise GraphError(
                f"device property {key} is {value!r}, three integers are needed",
                code="device-property-type",
                where=where,
            )
    length = len(filled["deviceName"].encode())
    if length > DEVICE_NAME_BYTES:
        raise GraphError(
            f"deviceName has {length} bytes, at most {DEVICE_NAME_BYTES} are safe",
            code="device-name-too-long",
            where=where,
            cause="[measured] cuDNN 9.28 copies a longer name past its buffer",
        )
    return filled


def load_profile(path: Path) -> Profile:
    """Read a profile, or a bare device description as cuDNN prints it.

    Raises
    ------
    GraphError
        ``device-json`` for what is no JSON object, and what :func:`check_properties` refuses.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise GraphError(f"{path} is no JSON: {error}", code="device-json") from None
    bare = not isinstance(data, dict) or "properties" not in data
    given = data if bare else data["properties"]
    if not isinstance(given, dict):
        raise GraphError(f"{path} holds no device description: an object of properties is needed", code="device-json")
    properties = check_properties(given, str(path))
    if bare:
        return Profile(path.stem, properties["deviceName"], (), properties, {}, {})
    return Profile(
        name=data.get("name", path.stem),
        title=data.get("title", properties["deviceName"]),
        aliases=tuple(data.get("aliases", ())),
        properties=properties,
        sources=data.get("sources", {}),
        citations=data.get("citations", {}),
    )


@cache
def list_profiles() -> tuple[Profile, ...]:
    """Return the profiles that come with the package, by architecture and name."""
    profiles = (load_profile(path) for path in FOLDER.glob("*.json"))
    return tuple(sorted(profiles, key=lambda profile: (profile.sm, profile.name)))


def find_profile(name: str) -> Profile:
    """Return the profile called `name` (or ``sm89``, ``sm_89``), or the one in the JSON file of that path.

    Raises
    ------
    UsageError
        ``unknown-target``, with the names that are near.
    """
    wanted = name.lower().replace("_", "-").replace("sm-", "sm")
    names: dict[str, Profile] = {}
    for profile in list_profiles():
        names[profile.name] = profile
        names.update(dict.fromkeys(profile.aliases, profile))
    if wanted in names:
        return names[wanted]
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        return load_profile(path)
    near = get_close_matches(wanted, names, n=4)
    raise UsageError(
        f"no target is called {name!r}",
        code="unknown-target",
        where=f"known: {', '.join(sorted(names))}",
        fix=f"did you mean {' or '.join(near)}" if near else "give one of these, or a JSON file",
    )
