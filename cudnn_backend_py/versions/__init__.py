"""The version store: install, list, find, verify and remove several cuDNN versions in the user's cache."""

from typing import TYPE_CHECKING

from ..system.lazy_import import make_lazy_getattr

if TYPE_CHECKING:
    from .store import (
        InstalledCudnn,
        IntegrityReport,
        check_all,
        child_environment,
        clear,
        find_default_cuda,
        find_download_bytes,
        find_installed,
        find_newest,
        get_default_root,
        install,
        list_folders,
        list_installed,
        list_judging_versions,
        list_shared_folders,
        make_version_environment,
        remove,
        require_installed,
        verify,
        version_numbers,
    )

__all__ = [
    "InstalledCudnn",
    "IntegrityReport",
    "check_all",
    "child_environment",
    "clear",
    "find_default_cuda",
    "find_download_bytes",
    "find_installed",
    "find_newest",
    "get_default_root",
    "install",
    "list_folders",
    "list_installed",
    "list_judging_versions",
    "list_shared_folders",
    "make_version_environment",
    "remove",
    "require_installed",
    "verify",
    "version_numbers",
]

__getattr__ = make_lazy_getattr(__name__, **dict.fromkeys(__all__, "store"))  # a judging process needs none of it
