"""The version store: cuDNN wheels unpacked in the user's cache folder. Finds libraries, loads none.

``cudnn-backend cudnn install`` fills it (:mod:`cudnn_backend_py.versions`). Its layout::

    <root>/9.27.0.95-cu12/nvidia/cudnn_jit/lib/libcudnn.so.9
    <root>/nvrtc-cu12/nvidia/cuda_nvrtc/lib/libnvrtc.so.12      shared by all versions for that CUDA major
    <root>/cublas-cu12/nvidia/cublas/lib/libcublasLt.so.12      for full wheels
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import UsageError
from ..frozen import FrozenValue
from ..system.user_folder import get_user_folder
from ..system.version import JIT_SINCE, format_version_numbers, parse_version_numbers

if TYPE_CHECKING:
    from ..system.private_folder import PrivateFolder

__all__ = [
    "Cuda",
    "Flavor",
    "StoredLibrary",
    "VersionRequest",
    "check_cuda_major",
    "find_newest_stored_library",
    "find_version_folder",
    "format_install_command",
    "get_default_root",
    "get_folder_shared_by_cudnn_versions",
    "list_stored_libraries",
    "match_version_folder_name",
    "open_store",
    "split_folder_name",
]

STORE_VARIABLE = "CUDNN_BACKEND_CACHE"
# Earlier releases had full wheels in folders without a flavor, and one wheel of a version.
_FOLDER_PATTERN = r"(?P<version>9(?:\.[0-9]{1,9}){3})-cu(?P<cuda>12|13)(?:-(?P<flavor>jit|full))?"
_REQUEST_PATTERN = (
    r"(?P<numbers>latest|[0-9]{1,9}(?:\.[0-9]{1,9}){1,3})"
    r"(?:-(?P<flavor>jit|full))?(?:\+cu(?P<cuda>12|13))?(?:-(?P<other>jit|full))?"
)
Cuda = Literal["12", "13"]
Flavor = Literal["jit", "full"]
_CUDA_MAJORS: tuple[Cuda, ...] = ("12", "13")
_FLAVORS: tuple[Flavor, ...] = ("jit", "full")
_LIBRARY_PATHS = ("nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cudnn_jit/lib/libcudnn.so.9")  # full, jit


class StoredLibrary(FrozenValue):
    """A libcudnn of the version store: version, full or JIT wheel, CUDA major, path."""

    version: tuple[int, ...]
    is_full: bool
    cuda: str
    path: Path

    @property
    def rank(self) -> tuple[tuple[int, ...], bool, str, Path]:
        """What libraries are compared by: the newer one is greater, then the full wheel, then the newer CUDA."""
        return self.version, self.is_full, self.cuda, self.path


def get_default_root() -> Path:
    """Return the store's folder: ``CUDNN_BACKEND_CACHE``, else one in the user's cache folder."""
    if override := os.environ.get(STORE_VARIABLE):
        return Path(override)
    return get_user_folder("cudnn")


def open_store(root: Path | None = None) -> PrivateFolder:
    """Return the version store as a folder that only its user can write.

    Raises
    ------
    UsageError
        ``cache-folder-name``.
    """
    from ..system.private_folder import PrivateFolder  # finding a library does without it

    return PrivateFolder(
        get_default_root() if root is None else root,
        title="version store",
        reason="libraries are loaded from this folder",
        code="cache-not-private",
        otherwise=f"set {STORE_VARIABLE} to a folder of this user",
    )


def get_folder_shared_by_cudnn_versions(root: Path, package: str, cuda: str) -> Path:
    """Return the folder of NVRTC or cuBLAS that all cuDNN versions for a CUDA major share."""
    return root / f"{package}-cu{cuda}"


def match_version_folder_name(name: str) -> re.Match[str] | None:
    """Match the name of a version's folder; groups are version, CUDA major and wheel kind. None for other names."""
    return re.fullmatch(_FOLDER_PATTERN, name) if "-cu" in name else None  # compiled only where there is a store


def find_version_folder(library: Path) -> Path | None:
    """Return the folder of the version that contains this libcudnn; None if it is in no version store."""
    return next((folder for folder in library.parents[3:4] if match_version_folder_name(folder.name)), None)


def split_folder_name(folder: Path) -> tuple[str, str, str]:
    """Return version, CUDA major and wheel kind (``jit``, ``full`` or empty) from a version folder's name."""
    version, _, rest = folder.name.partition("-cu")
    cuda, _, flavor = rest.partition("-")
    return version, cuda, flavor


def format_install_command(folder: Path) -> str:
    """Return the command that reinstalls the version of a folder, with everything that it needs."""
    version, cuda, flavor = split_folder_name(folder)
    other = next((one for one in _FLAVORS if folder.with_name(f"{folder.name}-{one}").exists()), None)
    flavor = flavor or {None: "", "full": "jit", "jit": "full"}[other]
    return f"cudnn-backend cudnn install {version} --cuda {cuda}" + (f" --{flavor}" if flavor else "")


class VersionRequest(FrozenValue):
    """A requested cuDNN version: its leading numbers, and the wheel kind (JIT or full) and CUDA major if given."""

    numbers: tuple[int, ...]
    flavor: Flavor | None
    cuda: Cuda | None

    @classmethod
    def parse(cls, text: str, cuda: Cuda | None = None, flavor: Flavor | None = None) -> VersionRequest:
        """Parse a requested version such as ``9.19``, ``9.19.0.56-jit`` or ``9.19+cu12``.

        Or ``latest``, which has no numbers.

        Raises
        ------
        UsageError
            ``cudnn-version-malformed``, ``cuda-major-unknown``.
        """
        if not isinstance(text, str):
            raise UsageError(
                f"cuDNN version must be a str, got a {type(text).__name__}: as a number 9.20 is 9.2",
                code="cudnn-version-malformed",
                fix='give for example "9.19", "9.19.0" or "9.19.0.56"',
            )
        match = re.fullmatch(_REQUEST_PATTERN, text)
        if match is None:
            from ..system.nearest import find_most_similar_name  # for this error alone

            near = find_most_similar_name(
                text, [format_version_numbers(one.version[:3]) for one in list_stored_libraries()]
            )
            raise UsageError(
                f"cuDNN version {text!r} is malformed: it needs two to four numbers separated by dots",
                code="cudnn-version-malformed",
                fix=f"did you mean {near}?" if near else 'give for example "9.19", "9.19.0" or "9.19.0+cu13"',
            )
        if cuda is not None:
            check_cuda_major(cuda)
        wheels: set[Flavor] = {named for named in _FLAVORS if named in (match["flavor"], match["other"], flavor)}
        majors: set[Cuda] = {named for named in _CUDA_MAJORS if named in (match["cuda"], cuda)}
        if len(wheels) > 1 or len(majors) > 1:
            both = " and ".join(f"the {named} wheel" for named in sorted(wheels) if len(wheels) > 1) or " and ".join(
                f"CUDA {named}" for named in sorted(majors)
            )
            raise UsageError(
                f"cuDNN version {text!r} and the options require {both} at once",
                code="cudnn-version-malformed",
                fix="choose one of them, in the version or in an option",
            )
        numbers = () if match["numbers"] == "latest" else parse_version_numbers(match["numbers"])
        return cls(numbers, *wheels or (None,), *majors or (None,))

    def matches(self, library: StoredLibrary) -> bool:
        """Return whether the request matches a library of the store."""
        numbers = library.version[: len(self.numbers)] == self.numbers
        wheel = self.flavor in (None, "full" if library.is_full else "jit")
        return numbers and wheel and self.cuda in (None, library.cuda)

    @property
    def arguments(self) -> str:
        """The arguments of ``cudnn-backend cudnn install`` for this request."""
        text = format_version_numbers(self.numbers) or "latest"
        return text + (f" --cuda {self.cuda}" if self.cuda else "") + (f" --{self.flavor}" if self.flavor else "")

    @property
    def requested_wheel_text(self) -> str:
        """Text to append to a message: ``" as the full wheel"``, or empty if no wheel is requested."""
        return f" as the {self.flavor} wheel" if self.flavor else ""

    def __str__(self) -> str:
        return (format_version_numbers(self.numbers) or "latest") + (f"+cu{self.cuda}" if self.cuda else "")


def check_cuda_major(cuda: Cuda) -> Cuda:
    if cuda not in _CUDA_MAJORS:
        raise UsageError(
            f'CUDA major {cuda!r} has no cuDNN 9 wheels, "12" or "13" is needed',
            code="cuda-major-unknown",
        )
    return cuda


def find_newest_stored_library(
    nvrtc: Collection[str] = (), wanted: VersionRequest | None = None
) -> StoredLibrary | None:
    """Return the newest stored library that can judge graphs without a GPU, NVRTC preferred; None without one.

    Parameters
    ----------
    nvrtc
        CUDA majors with an NVRTC outside the store.
    wanted
        The version to find; any if not given.
    """
    found = list_stored_libraries()
    root = get_default_root().expanduser()
    compiling = {
        *nvrtc,
        *(major for major in _CUDA_MAJORS if get_folder_shared_by_cudnn_versions(root, "nvrtc", major).is_dir()),
    }
    fitting = (one for one in found if wanted is None or wanted.matches(one))
    return max(fitting, key=lambda one: (one.cuda in compiling, one.rank), default=None)


def list_stored_libraries() -> list[StoredLibrary]:
    """Return the store's libraries that can judge graphs without a GPU; none if others can write to the store."""
    root = get_default_root().expanduser()
    with suppress(OSError, ValueError):
        status = os.stat(root)
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return [one for name in os.listdir(root) for one in _list_stored_libraries(root / name)]
    return []


def _list_stored_libraries(folder: Path) -> list[StoredLibrary]:
    if (match := match_version_folder_name(folder.name)) is None:
        return []
    numbers = parse_version_numbers(match["version"])
    there = [(file, folder / file) for file in _LIBRARY_PATHS if (folder / file).is_file()]
    return [
        StoredLibrary(numbers, file == _LIBRARY_PATHS[0], match["cuda"], path)
        for file, path in there
        if file == _LIBRARY_PATHS[0] or numbers >= JIT_SINCE
    ]
