"""``cudnn.datatypes``: conversion of torch's data types to cudnn-frontend's."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from .enums import data_type, to_data_type

__all__ = ["is_torch_available", "torch_to_cudnn_data_type"]


def is_torch_available() -> bool:
    """Return whether torch can be imported."""
    return find_spec("torch") is not None


def torch_to_cudnn_data_type(torch_data_type: Any) -> data_type | None:
    """Return the data type of a torch dtype, None if cuDNN has none for it."""
    try:
        found = to_data_type(torch_data_type)
    except TypeError:
        return None
    return None if found == data_type.NOT_SET else found


_torch_to_cudnn_data_type = torch_to_cudnn_data_type  # programs use this name, too
