"""The ranges of datatypes and of sizes, and whether the limits that somebody states for an input make sense.

Needs no numpy: scenarios are checked where nobody serves them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

from astrarium.core.errors import InputError

Number: TypeAlias = int | float
Values: TypeAlias = tuple[Number, Number]  # the lowest and the highest
Sizes: TypeAlias = tuple[int, int]  # the lowest and the highest
SIZE_FORM = "a size of at least 1, -1 for any, or LOWEST..HIGHEST such as 1..512"
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")

# The numbers that a datatype has; BOOL and BYTES have none.
RANGES: dict[str, Values] = {
    **{f"UINT{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    "FP16": (-65504.0, 65504.0),
    "BF16": (-(2.0 - 2.0**-7) * 2.0**127, (2.0 - 2.0**-7) * 2.0**127),
    "FP32": (-(2.0 - 2.0**-23) * 2.0**127, (2.0 - 2.0**-23) * 2.0**127),
    "FP64": (-sys.float_info.max, sys.float_info.max),
}


def is_real(datatype: str) -> bool:
    """Whether its numbers have fractions, and may be NaN or infinite."""
    return datatype in ("FP16", "BF16", "FP32", "FP64")


def check_limits(datatype: str, values: Sequence[Any] | None, finite: bool) -> None:
    """Refuse limits that an input of *datatype* cannot have."""
    if finite and not is_real(datatype):
        raise InputError("finite", True, f"to be left out: only floating types have NaN, not {datatype}")
    if values is None:
        return
    if datatype not in RANGES:
        raise InputError("values", list(values), f"to be left out: {datatype} has no numbers")
    kinds, words = ((int, float), "numbers") if is_real(datatype) else ((int,), "whole numbers")
    low, high = RANGES[datatype]
    right = len(values) == 2 and all(
        isinstance(value, kinds) and not isinstance(value, bool) for value in values
    )
    if not right or not low <= values[0] <= values[1] <= high:
        expected = f"[LOW, HIGH], two {words} from {low} to {high} ({datatype}), LOW not above HIGH"
        raise InputError("values", list(values), expected)


def sizes_of(size: Any, field: str) -> Sizes | None:
    """Return the range that a dimension of a shape states, or None for -1 and for a size of its own."""
    if isinstance(size, int) and not isinstance(size, bool) and (size == -1 or size >= 1):
        return None
    match = _RANGE.fullmatch(size) if isinstance(size, str) else None
    if match is None:
        raise InputError(field, size, SIZE_FORM)
    low, high = int(match[1]), int(match[2])
    if not 1 <= low < high:
        raise InputError(field, size, f"{SIZE_FORM}: LOWEST at least 1, and below HIGHEST")
    return low, high
