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

# A judging process needs none of them.
__getattr__ = make_lazy_getattr(
    __name__,
    InstalledCudnn="store",
    IntegrityReport="store",
    check_all="store",
    child_environment="store",
    clear="store",
    find_default_cuda="store",
    find_download_bytes="store",
    find_installed="store",
    find_newest="store",
    get_default_root="store",
    install="store",
    list_folders="store",
    list_installed="store",
    list_judging_versions="store",
    list_shared_folders="store",
    make_version_environment="store",
    remove="store",
    require_installed="store",
    verify="store",
    version_numbers="store",
)
