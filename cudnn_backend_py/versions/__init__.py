"""The version store: install, list, find, verify and remove several cuDNN versions in the user's cache."""

from typing import TYPE_CHECKING

from ..system.lazy_import import make_lazy_getattr

if TYPE_CHECKING:
    from .judging_environment import make_version_environment
    from .store import (
        AvailableCudnn,
        InstalledCudnn,
        IntegrityReport,
        check_installed_versions,
        clear,
        find_default_cuda,
        find_download_size,
        find_installed,
        find_newest,
        find_newest_available,
        find_newest_version_with_jit_wheel,
        get_default_root,
        install,
        list_available,
        list_folders,
        list_installed,
        list_judging_versions,
        list_nvrtc_and_cublas_folders,
        make_environment_of_installed_cudnn,
        parse_version_numbers,
        remove,
        require_installed,
        verify,
    )

__all__ = [
    "AvailableCudnn",
    "InstalledCudnn",
    "IntegrityReport",
    "check_installed_versions",
    "clear",
    "find_default_cuda",
    "find_download_size",
    "find_installed",
    "find_newest",
    "find_newest_available",
    "find_newest_version_with_jit_wheel",
    "get_default_root",
    "install",
    "list_available",
    "list_folders",
    "list_installed",
    "list_judging_versions",
    "list_nvrtc_and_cublas_folders",
    "make_environment_of_installed_cudnn",
    "make_version_environment",
    "parse_version_numbers",
    "remove",
    "require_installed",
    "verify",
]

# A judging process needs none of them.
__getattr__ = make_lazy_getattr(
    __name__,
    AvailableCudnn="store",
    InstalledCudnn="store",
    IntegrityReport="store",
    check_installed_versions="store",
    make_environment_of_installed_cudnn="store",
    clear="store",
    find_default_cuda="store",
    find_download_size="store",
    find_installed="store",
    find_newest="store",
    find_newest_available="store",
    find_newest_version_with_jit_wheel="store",
    get_default_root="store",
    install="store",
    list_available="store",
    list_folders="store",
    list_installed="store",
    list_judging_versions="store",
    list_nvrtc_and_cublas_folders="store",
    make_version_environment="judging_environment",
    remove="store",
    require_installed="store",
    verify="store",
    parse_version_numbers="store",
)
