"""The environment variables that change the answers or compiled code of cuDNN, NVRTC and cuBLASLt.

The names were found by recording every ``getenv`` of these libraries (tests/library/native/test_variables.py does so
again for each cuDNN that is installed). A rule by prefix covers the variables that a later version adds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["LOG_VARIABLES", "Variables", "list_library_variables"]

#: Names and values, sorted by name.
Variables = tuple[tuple[str, str], ...]

#: They choose what cuDNN logs and where. Measured: no answer depends on them.
LOG_VARIABLES = (
    *("CUDNN_LOGLEVEL_DBG", "CUDNN_LOGDEST_DBG", "CUDNN_LOGINFO_DBG", "CUDNN_LOGWARN_DBG", "CUDNN_LOGERR_DBG"),
    *("CUDNN_ERRSRC_DBG", "CUDNN_NVTX_LEVEL"),
)

_RESULT_VARIABLE_PREFIXES = ("CUDNN_", "CUBLAS", "NVRTC", "NVVM_", "LIBNVVM_", "CASK_", "EDG_")
_RESULT_VARIABLE_NAMES = frozenset(
    (
        *("NVIDIA_TF32_OVERRIDE", "CUDA_CACHE_DISABLE", "CUDA_FORCE_PTX_JIT", "CUDA_ENABLE_MODULE_LAZY_LOADING"),
        *("NV_NVVM_VERSION", "LLVM_OVERRIDE_PRODUCER", "AS_SECURE_LOG_FILE", "DUMP_KNOBS_TO_FILE"),
    )
)
# What a container image says about itself, and where libraries are: those are found before they are loaded.
_IGNORED_VARIABLE_NAMES = frozenset(
    (
        *("CUDNN_VERSION", "CUBLAS_VERSION", "NVRTC_VERSION", "CUBLASMP_VERSION"),
        *("CUDNN_HOME", "CUDNN_PATH", "CUDNN_ROOT", "CUDNN_ROOT_DIR", "CUDNN_LIBRARY", "CUDNN_INCLUDE_DIR"),
        *LOG_VARIABLES,
    )
)
_PACKAGE_VARIABLE_PREFIX = "CUDNN_BACKEND_"


def list_library_variables(environ: Mapping[str, str] | None = None) -> Variables:
    """Return the variables of an environment (by default this process's) that may change cuDNN's answer."""
    given = os.environ if environ is None else environ
    return tuple(sorted((name, value) for name, value in given.items() if _may_change_results(name)))


def _may_change_results(name: str) -> bool:
    if name in _IGNORED_VARIABLE_NAMES or name.startswith(_PACKAGE_VARIABLE_PREFIX):
        return False
    return name in _RESULT_VARIABLE_NAMES or name.startswith(_RESULT_VARIABLE_PREFIXES)
