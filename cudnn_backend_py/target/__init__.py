"""Targets: the GPU in this process, or a described one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from ..errors import CudnnStatusError, EnvironmentNotReady, UsageError
from ..generated.enums import AttributeName as Attr
from ..generated.enums import DescriptorType, Status
from ..native import Descriptor, Driver, Handle, Library, current_device, library
from ..native.cuda import query_device_limits, query_device_name, query_sm_version
from ..system.version import DESCRIBED_GPUS_SINCE
from .profiles import Profile, check_properties, find_profile, list_profiles, load_profile

__all__ = [
    "Profile",
    "Target",
    "find_profile",
    "list_profiles",
    "load_profile",
    "open_target",
    "read_device",
    "read_device_profile",
    "require_gpu",
    "use_target",
]

_OVERSIZED_SHARED_MEMORY_SM = 100  # cuDNN reports no such memory on sm_90; newer GPUs are queried


class Target:
    """The GPU that a graph is judged for.

    A described target holds a finalized ``CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR`` and needs no GPU; a live one holds a
    handle on the current CUDA device. ``close`` releases either.
    """

    def __init__(
        self, profile: Profile, *, library: Library, device: Descriptor | None = None, handle: Handle | None = None
    ) -> None:
        self.profile = profile
        self.device = device
        self.handle = handle
        self.library = library

    @property
    def name(self) -> str:
        """The canonical name of the described GPU, or ``gpu`` for the real GPU of this process."""
        return self.profile.name

    @property
    def sm(self) -> int:
        """The architecture, 89 for sm_89."""
        return self.profile.sm

    @property
    def is_live(self) -> bool:
        """Whether the target is a real GPU of this process, not a described one."""
        return self.handle is not None

    def __repr__(self) -> str:
        return f"<Target {self}>"

    def __str__(self) -> str:
        kind = "the GPU in this process" if self.is_live else "described, no GPU used"
        return f"{self.profile.title} (sm_{self.sm}, {kind})"

    def close(self) -> None:
        """Release the handle or the device descriptor; harmless when repeated."""
        for held in (self.handle, self.device):
            if held is not None:
                held.close()


def open_target(name: str | Profile | Target | None = None, *, on: Library | None = None) -> Target:
    """Open the target called `name`; the caller must close it.

    Parameters
    ----------
    name
        A profile's name or alias (``l40s``, ``sm89``), the path of a device JSON file, a :class:`Profile`, or
        ``gpu`` / None for the current CUDA device of this process.

    Raises
    ------
    EnvironmentNotReady
        ``no-gpu`` if the GPU of this process is requested and there is none; ``device-description-unavailable``
        if cuDNN is older than 9.8 or cannot load the libraries that it needs to judge graphs.
    UsageError
        ``unknown-target``.
    """
    if isinstance(name, Target):
        return name
    lib = on or library()
    if name is None or name == "gpu":
        return _open_gpu_target(lib)
    profile = name if isinstance(name, Profile) else find_profile(name)
    return _open_described_target(profile, lib)


_NAME_A_TARGET = "name a described target, such as target='sm89' or --target l40s (cudnn-backend target list)"


def require_gpu(driver: Driver, *, fix: str = _NAME_A_TARGET) -> None:
    """Raise if the CUDA driver finds no GPU.

    Raises
    ------
    EnvironmentNotReady
        ``no-gpu``.
    """
    if driver.kind != "real" or driver.devices == 0:
        raise EnvironmentNotReady(
            "there is no GPU in this process",
            code="no-gpu",
            where=f"libcuda.so.1: {driver.kind}, {driver.devices} devices",
            fix=fix,
        )


def _open_gpu_target(lib: Library) -> Target:
    require_gpu(lib.driver)
    return Target(read_device_profile(current_device(), on=lib), handle=Handle(on=lib), library=lib)


def _open_described_target(profile: Profile, lib: Library) -> Target:
    check_properties(profile.properties, profile.name)
    if lib.version < DESCRIBED_GPUS_SINCE:
        raise EnvironmentNotReady(
            f"cuDNN {lib.build_text} cannot judge for a described GPU, 9.8.0 is the first that can",
            code="device-description-unavailable",
            fix="use a newer cuDNN (--cudnn 9.19.0), or run on the GPU itself",
        )
    device = Descriptor(DescriptorType.DEVICEPROP, on=lib)
    device.set(Attr.DEVICEPROP_JSON_REPRESENTATION, profile.json())
    try:
        device.finalize()
    except CudnnStatusError as error:
        if error.status is Status.SUBLIBRARY_VERSION_MISMATCH:
            raise EnvironmentNotReady(
                f"the sub-libraries next to {lib.path} belong to other cuDNN versions than {lib.version}",
                code="cudnn-sublibraries-mixed",
                cause=error.headline,
                fix="reinstall cuDNN, all of its packages in one version",
            ) from None
        if error.status is not Status.SUBLIBRARY_LOADING_FAILED:
            raise
        raise EnvironmentNotReady(
            f"cuDNN {lib.build_text} cannot load the libraries that it needs to judge graphs",
            code="device-description-unavailable",
            where=f"libcuda.so.1: {lib.driver.kind}; {lib.driver.note}\nNVRTC: {lib.nvrtc.path or lib.nvrtc.found}",
            cause=f"{error.headline}\n{error.last_error}",
            fix="install the CUDA driver, or reinstall this package with a C compiler, which builds its driver stub"
            if lib.driver.kind == "missing"
            else "cudnn-backend doctor shows the problem, such as another cuDNN on LD_LIBRARY_PATH",
        ) from None
    return Target(profile, device=device, library=lib)


def read_device(ordinal: int = 0, *, on: Library | None = None) -> dict[str, Any]:
    """Return the properties of a GPU in this process, as cuDNN describes them.

    C: ``CUDNN_ATTR_DEVICEPROP_DEVICE_ID``, ``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`` (since 9.8.0).

    Raises
    ------
    UsageError
        ``unknown-device`` if there are not so many GPUs.
    """
    lib = on or library()
    _check_device_ordinal(ordinal, lib)
    with Descriptor(DescriptorType.DEVICEPROP, on=lib) as device:
        device.set(Attr.DEVICEPROP_DEVICE_ID, ordinal).finalize()
        properties: dict[str, Any] = json.loads(device.get(Attr.DEVICEPROP_JSON_REPRESENTATION))
    return properties


def _check_device_ordinal(ordinal: int, lib: Library) -> None:
    if not 0 <= ordinal < lib.driver.devices or lib.driver.kind != "real":
        raise UsageError(
            f"there is no GPU number {ordinal}: this process has {lib.driver.devices} GPUs, counted from 0",
            code="unknown-device",
            where=f"libcuda.so.1: {lib.driver.kind}",
            fix="run it on a machine with that GPU; targets that need none are listed by 'cudnn-backend target list'",
        )


class _LazyMapping(Mapping[str, Any]):
    """A mapping that knows some values and reads the others at the first access."""

    def __init__(self, known: dict[str, Any], read: Callable[[], dict[str, Any]]) -> None:
        self._known, self._read = known, cache(read)

    def __getitem__(self, key: str) -> Any:
        return self._known[key] if key in self._known else self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def read_device_profile(ordinal: int = 0, *, on: Library | None = None) -> Profile:
    """Return the profile of a GPU of this process; an empty profile with cuDNN before 9.8.

    Architecture, name and limits come from the driver; the first access to another property queries cuDNN, which takes
    16 ms on an H200.

    Raises
    ------
    UsageError
        ``unknown-device``, as :func:`read_device`.
    """
    lib = on or library()
    if lib.version < DESCRIBED_GPUS_SINCE:
        return Profile("gpu", "the current GPU", (), {"deviceVer": 0}, {}, {})
    _check_device_ordinal(ordinal, lib)
    sm = query_sm_version(ordinal)
    known: dict[str, Any] = {
        "deviceVer": 10 * sm,
        "deviceName": query_device_name(ordinal),
        **query_device_limits(ordinal),
    }
    if sm < _OVERSIZED_SHARED_MEMORY_SM:
        known["oversizedSharedMemoryPerBlock"] = 0
    properties = _LazyMapping(known, lambda: read_device(ordinal, on=lib))
    sources = _LazyMapping({}, lambda: dict.fromkeys(properties, "measured"))
    return Profile("gpu", known["deviceName"], (), properties, sources, {})


@contextlib.contextmanager
def use_target(name: str | Profile | Target | None, *, on: Library | None = None) -> Iterator[Target]:
    """Open a target for a block, and close it afterwards; a target that is already open stays open."""
    chosen = open_target(name, on=on)
    try:
        yield chosen
    finally:
        if chosen is not name:
            chosen.close()
