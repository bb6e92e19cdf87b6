"""Remarks about architectures that are too old or too new for the cuDNN version to have code for them."""

from __future__ import annotations

from dataclasses import replace

from ..system.version import Version
from ..target import Target
from .verdict import Basis, Cause

__all__ = [
    "choose_target_for_control_graph",
    "describe_version_architecture_mismatch",
    "replace_cause_if_cudnn_is_older_than_gpu",
]

# NVIDIA supports GPUs before Turing up to cuDNN 9.10: its support matrices, and why PyTorch dropped Volta
# (https://github.com/pytorch/pytorch/issues/172352). Read from the files: the full 9.10.0 holds machine code from
# sm_50 on, the jit wheels of 9.12 to 9.24 and the full 9.28 from sm_75 on, but for some of the kernels compiled
# ahead of time.
_OLDEST_SUPPORTED_SM = 75
_FIRST_VERSION_WITHOUT_OLD_SM = Version(9, 11, 0)


def choose_target_for_control_graph(sm: int) -> str:
    """Return a described target other than sm_`sm` on which every cuDNN supports the control graph."""
    return "sm80" if sm != 80 else "sm90"


def describe_version_architecture_mismatch(target: Target, *, control_supported: bool) -> str:
    """Return a remark if cuDNN is too new or too old for the GPU's architecture, else empty text.

    Parameters
    ----------
    control_supported
        Whether cuDNN supports the control graph on the target; that it does on the target of
        :func:`choose_target_for_control_graph` is known.
    """
    sm, lib = target.sm, target.library
    if 0 < sm < _OLDEST_SUPPORTED_SM and lib.version >= _FIRST_VERSION_WITHOUT_OLD_SM:
        return (
            f"cuDNN {lib.version} is built for sm_{_OLDEST_SUPPORTED_SM} and later; 9.10 is the last version built for "
            f"sm_{sm}. Some engines still accept graphs, but the library may lack kernels that they need"
        )
    if sm > _OLDEST_SUPPORTED_SM and not control_supported:
        return (
            f"cuDNN {lib.version} is older than sm_{sm}: it has no machine code for it, engines that know their "
            "architectures refuse it, and what is supported nevertheless runs from PTX, which the driver compiles"
        )
    return ""


_NEWER_CUDNN_REMEDY = "use a newer cuDNN, one that knows the architecture"


def replace_cause_if_cudnn_is_older_than_gpu(
    cause: Cause | None, target: Target, *, control_supported: bool
) -> Cause | None:
    """Return as the cause that cuDNN is older than the GPU if that explains it, else `cause`."""
    newer = target.sm > _OLDEST_SUPPORTED_SM and not control_supported
    if not newer or (cause is not None and cause.code != "architecture"):
        return cause
    headline = f"cuDNN {target.library.version} is older than sm_{target.sm}, and refuses the graph there"
    if cause is None:
        return Cause("architecture-newer-than-library", headline, Basis.RULE, "", _NEWER_CUDNN_REMEDY, "not asked")
    return replace(
        cause,
        code="architecture-newer-than-library",
        headline=f"{headline}; {cause.headline.partition(' (cuDNN:')[0]}",  # that is of an engine for another one
        remedy=_NEWER_CUDNN_REMEDY,
        asked="not asked",
    )
