"""Name all data types that a refused tensor may have, as one that helps is not the only one that is needed."""

from __future__ import annotations

import dataclasses
import re

from ...generated.enums import DataType
from ...graph.data_types import get_data_type_word
from ...graph.replace import replace_tensors
from ..verdict import Basis, Cause
from .case import RefusalCase

__all__ = ["NEEDED_TYPE_PATTERN", "name_other_supported_types"]

#: The beginning of the headline of a measured cause in a data type.
NEEDED_TYPE_PATTERN = re.compile(
    r"(?P<names>[^;]+?) (?:has|have) data type (?P<old>[^;]+?), (?P<new>[^ ;]+) is needed(?=;|$| \()"
)
_WIDEST_FIRST = (DataType.FLOAT, DataType.BFLOAT16, DataType.HALF)


def name_other_supported_types(case: RefusalCase, cause: Cause) -> Cause:
    """Add the other types with which cuDNN supports the graph to a measured cause "x has data type A, B is needed".

    float32 becomes the first remedy where it helps: a change to float16 may overflow.
    """
    found = (
        NEEDED_TYPE_PATTERN.match(cause.headline)
        if cause.basis is Basis.MEASURED and cause.code == "data-type"
        else None
    )
    if found is None or not case.measure:
        return cause
    tensors = [tensor for tensor in case.graph.tensors if tensor.name in found["names"].split(", ")]
    old = {tensor.data_type for tensor in tensors}
    if len(tensors) != len(found["names"].split(", ")) or len(old) != 1:
        return cause
    others = []
    for kind in _WIDEST_FIRST:
        if kind in old or get_data_type_word(kind) == found["new"]:
            continue
        changed = replace_tensors(
            case.graph, {tensor.uid: dataclasses.replace(tensor, data_type=kind) for tensor in tensors}
        )
        others += [kind] if case.passes_support_check(changed) else []
    if not others:
        return cause
    needed = " or ".join([found["new"], *map(get_data_type_word, others)])
    headline = cause.headline.replace(f"{found['new']} is needed", f"{needed} is needed", 1)
    remedy = cause.remedy.replace(", as the others", "")
    if DataType.FLOAT in others:
        title = f"{found['names']}: {get_data_type_word(old.pop())} -> float32 (changes numerics)"
        remedy = f"{title}; or {remedy}" if remedy else title
    return dataclasses.replace(cause, headline=headline, remedy=remedy)
