"""Conditions of cuDNN's source, as its reasons quote them, in plain English."""

from __future__ import annotations

import re
from functools import cache

__all__ = ["CONDITION_PATTERN", "CONDITION_REWRITES", "INTERNAL_CALL_PATTERN", "describe_condition"]

# Words of one operand are joined by ~ until the end. A term, an operand of %, and what the name of a tensor ends in.
_T = r"([\w~.]+(?:\[\w+\][\w.]*)?)"
_V = r"([\w~.:]+(?:\([^()]*\)|\[[^\]\[]*\][\w~]*)?)"
_TENSOR = r"(?:Desc(?:riptor)?(?:Ptr)?|Port|_?[Tt]ensor)"
_OWNERS = {
    "forward~convolution": r"cfo",
    "backward~data~convolution": r"cdo",
    "backward~filter~convolution": r"cwo",
    "convolution": r"conv(?:_?[oO]p)?|cDesc",
    "resampling": r"resample|rfo",
    "matmul": r"mmo",
    "pointwise~operation": r"pointwise_?(?:op|node)_?",
    "attention": r"sdpa_fwd_node",
    "attention~backward~pass": r"sdpa_bwd_node",
    "norm": r"norm_?op",
    "random~numbers": r"rng_node",
}

#: Regular expressions with their replacements, in this order, valid in Python and in JavaScript.
CONDITION_REWRITES = (
    (r"\s+", " "),
    (r"->", "."),
    (r"\bthis\.|\bstd::|\(\*this\)\.|(?<=[(, ])[&*](?=[A-Za-z_])|\.kern_type\b|\.api_type\b", ""),
    (r"\b(?:static_cast<[^<>]*>|u?int\d+_t|size_t)\(([\w.\[\]]*(?:\(\))?)\)", r"\1"),
    (r"\b_(?=[a-z])", ""),
    *((rf"\b(?:{names})\.(?=get|has|is)", rf"the~{owner}.") for owner, names in _OWNERS.items()),
    # tensors
    (rf"\b([\w~]+)\.get([A-Za-z]\w*?){_TENSOR}\(\)", r"\2~of~\1"),
    (r"\bport\.tensor\b", "the~tensor"),
    (rf"(?:\b[\w~]+\.)*\b([A-Za-z]\w*?){_TENSOR}(?:\.tensor)?\b(?=\.(?:get|is|has)|[),])", r"\1"),
    (r"\bget(\w+?)Desc\(\)(?=\.get)", r"\1"),
    # their attributes
    (rf"{_T}\.getDataType\(\)", r"data~type~of~\1"),
    (rf"{_T}\.getNbDims\(\)", r"number~of~dims~of~\1"),
    (rf"{_T}\.getDims?A?\(\)\[([^\]\[]+)\]", r"dim~[\2]~of~\1"),
    (rf"{_T}\.getStrides?A?\(\)\[([^\]\[]+)\]", r"stride~[\2]~of~\1"),
    (r"\b(\w+?)_?[dD]ims?A?_?\[([^\]\[]+)\]", r"dim~[\2]~of~\1"),
    (r"\b(\w+?)_?[sS]trides?A?_?\[([^\]\[]+)\]", r"stride~[\2]~of~\1"),
    (r"\bdim(?:s|A)\[([^\]\[]+)\]", r"dim~[\1]"),
    (r"\bstride(?:s|A)\[([^\]\[]+)\]", r"stride~[\1]"),
    (rf"{_T}\.getVectCount\(\)", r"elements~per~vector~of~\1"),
    (rf"{_T}\.getNumElementsWithStride\(\)", r"number~of~elements~of~\1~with~strides"),
    (r"\bopSet\.getOpCount\(\)", "number~of~operations"),
    (rf"!{_T}\.isFinalized\(\)", r"\1~is~not~set"),
    (rf"{_T}\.isFinalized\(\)", r"\1~is~set"),
    (rf"!{_T}\.isSimilarTo\({_T}\)", r"\1~differs~from~\2"),
    (rf"!{_T}\.hasSameShape\({_T}\)", r"\1~has~other~dims~than~\2"),
    (rf"{_T}\.hasSameShape\({_T}\)", r"\1~has~the~dims~of~\2"),
    (r"\bhas(\w+?)Desc\(\) != has(\w+?)Desc\(\)", r"only~one~of~\1~and~\2~is~given"),
    (rf"!{_T}\.has(\w+?){_TENSOR}?\(\)", r"\1~has~no~\2"),
    (rf"{_T}\.has(\w+?){_TENSOR}?\(\)", r"\1~has~\2"),
    (rf"!has(\w+?){_TENSOR}?\(\)", r"\1~is~missing"),
    (rf"\bhas(\w+?){_TENSOR}?\(\)", r"\1~is~given"),
    (rf"!{_T}\.get([A-Z]\w*)\(\)\.is(\w+)\(\)", r"\2~of~\1~is~not~\3"),
    (rf"!{_T}\.(?:getI|i)s_?(\w+)\(\)", r"\1~is~not~\2"),
    (rf"{_T}\.(?:getI|i)s_?(\w+)\(\)", r"\1~is~\2"),
    (r"!(is\w+)\(\)", r"\1~is~false"),
    (rf"{_T}\.size\(\)", r"size~of~\1"),
    (rf"!{_T}\.empty\(\)", r"\1~is~not~empty"),
    (rf"{_T}\.empty\(\)", r"\1~is~empty"),
    (rf"{_T}\.get([A-Z]\w*)\(\)", r"\2~of~\1"),
    (r"\bget([A-Z]\w*)\(\)", r"\1"),
    # names
    (r"\boperation(?= [=!]= CUDNN_POINTWISE_)", "pointwise~mode"),
    (r"\b(CUDNN_POINTWISE_\w+ [=!]= )operation\b", r"\1pointwise~mode"),
    (r"\bCUDNN_(?:DTYPE|DATA|POINTWISE|TENSOR_REORDERING|REDUCE_TENSOR)_(?=[A-Z\d])", ""),
    (r"\b(?:DeviceProp(?:~of~\w+)?\.)?deviceVer\b", "deviceVer~(900~is~sm_90)"),
    (r"\bd_qk\b", "head~dim~of~Q/K"),
    (r"\bd_v\b", "head~dim~of~V"),
    (r"\bs_(q|kv)\b", r"sequence~length~of~\1"),
    (r"\bh_(q|k|v|kv)\b", r"heads~of~\1"),
    (r"\bnb_?Dims\b", "number~of~dims"),
    (r"\b(d?[A-Za-z])Type\b", r"data~type~of~\1"),
    (r"\b(input|weight|output)DataType\b", r"data~type~of~\1"),
    (r"\bdataType\b", "data~type"),
    (r"\bcompute_?[tT]ype\b", "compute~type"),
    # comparisons
    (rf"\b0 (==|!=) {_V} % {_V}", r"\2 % \3 \1 0"),
    (rf"(^|\(|&& |\|\| )(-?\d+|true|false|[A-Z][A-Z\d]*_\w+) (==|!=) {_V}(?![\w(.])", r"\1\4 \3 \2"),
    (r"!\(([^()&|]*) == ([^()&|]*)\)", r"\1 != \2"),
    (r"!\((-?[\d.]+) <= ([^&|]+) && \2 < ([^&|()]+)\)", r"\2 is not at least \1 and below \3"),
    (r"!\((\d+) <= ([^&|]+)\)$", r"\2 < \1"),
    (r"!\(([^()&|]*) > ([^()&|]*)\)", r"\1 <= \2"),
    (r"!\(([^()&|]*) < ([^()&|]*)\)", r"\1 >= \2"),
    (rf"{_V} % {_V} (?:!=|>) 0\b", r"\1 is not a multiple of \2"),
    (rf"{_V} % {_V} == 0\b", r"\1 is a multiple of \2"),
    (r"~is~(\w+) == false\b", r"~is~not~\1"),
    (r" == (?:nullptr|NULL)\b", " is missing"),
    (r" != (?:nullptr|NULL)\b", " is given"),
    (r"!([A-Za-z_][\w.]*)(?![\w(.~:[])", r"\1 is false"),
    (r" ?== ?", " is "),
    (r" ?!= ?", " is not "),
    (r" ?<= ?", " is at most "),
    (r" ?>= ?", " is at least "),
    (r" < ", " is less than "),
    (r" > ", " is more than "),
    (r" ?&& ?", " and "),
    (r" ?\|\| ?", " or "),
    (r"!", "not "),
    (r"~", " "),
)

#: A condition in C++, not a sentence.
CONDITION_PATTERN = r"^(?!.*[A-Za-z]{2,} [A-Za-z]{2,})(?:!|.*(?:[=!<>]=|&&|\|\|| [<>%] |\b(?:is|has|getIs)[A-Z]\w*\())"

_ARGUMENTS = r"\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"
#: A reason ``STATUS: text`` that is a call in cuDNN with its result, not a condition on its arguments.
INTERNAL_CALL_PATTERN = (
    r"^\w*: (?!.*(?:is_valid_spatial_dim|\b(?:has|getIs|is(?!Supported\b))[A-Z]\w*\(\)$|\.empty\(\)$|_exceed))"
    rf"(?:\w+ = )?(?:const_cast<[^()]*>\(\w+\)->)?(?:\w+(?:\.|->|::))*\w+{_ARGUMENTS}$"
)


@cache
def _compile_rewrites() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), replacement) for pattern, replacement in CONDITION_REWRITES]


def describe_condition(text: str) -> str:
    """Return the condition of a reason in plain English, with unknown names as they are; empty without a condition.

    The condition is what follows `` at: ``, or the whole text. cuDNN refuses where it holds.
    """
    condition = " ".join(re.split(r"\sat: ", text, maxsplit=1)[-1].split())
    if not re.search(CONDITION_PATTERN, condition) or re.search(INTERNAL_CALL_PATTERN, f": {condition}"):
        return ""
    for pattern, replacement in _compile_rewrites():
        condition = pattern.sub(replacement, condition)
    return condition
