"""The claims of a job are checked twice: by the runner, which reads them, and by the keeper.

A claim may be any JSON. Numbers that are no numbers, or too large for one, are left out, and words are plain
text of a bounded length: they are shown on terminals of others.
"""

from __future__ import annotations

import math
from typing import Any

LAST_WORDS = 300  # characters
_LARGEST = 1 << 63


def checked_part(value: Any) -> float:
    """Return a part of the work, from 0 to 1; 0 for what is none."""
    known = type(value) is int or (type(value) is float and math.isfinite(value))
    return float(min(1, max(0, value))) if known else 0.0


def checked_number(value: Any) -> int | None:
    """Return a number that others can store; None for what is none."""
    return value if type(value) is int and 0 <= value < _LARGEST else None


def checked_words(value: Any, most: int = LAST_WORDS) -> str:
    """Return the beginning of a text, without what would steer a terminal, or is no text at all."""
    beginning = value[:most] if isinstance(value, str) else ""
    return "".join(each if each.isprintable() else " " for each in beginning)
