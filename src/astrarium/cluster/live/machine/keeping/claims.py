"""What a job claims is checked twice: by the runner, which reads it, and by the keeper, which hears it.

A claim may be any JSON. Numbers that are no numbers, or too large for one, are left out, and words are plain
text of a bounded length: they are shown on terminals of others.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
from typing import Any

LAST_WORDS = 300  # characters
MESSAGE = 1 << 14  # bytes of one message between runner and keeper
AT_ONCE = 64  # messages of the runner that are heard at one look
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
    return "".join(character if character.isprintable() else " " for character in beginning)


class Heard:
    """What a job has told through its runner. Nothing of it is believed to be of the right kind."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = _checked({})
        self.codes: list[int] | None = None  # once all has ended
        self.first = 0
        self.words = ""

    def hear(self, runner: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                message = runner.recv(MESSAGE)
            except OSError:
                return
            if not message:
                return
            with contextlib.suppress(ValueError, RecursionError):
                self.take(json.loads(message))

    def take(self, message: Any) -> None:
        if not isinstance(message, dict):
            return
        self.claims = _checked(message)
        codes = message.get("codes")
        if isinstance(codes, list) and all(type(code) is int and abs(code) < 256 for code in codes):
            first = message.get("first")
            self.words = checked_words(message.get("words"))
            self.codes = codes
            self.first = first if type(first) is int and 0 <= first < max(1, len(codes)) else 0


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    """Return the claims of a message; what is not of its kind is left out."""
    stamp = message.get("stamp")
    whole = isinstance(stamp, list) and len(stamp) == 2 and None not in map(checked_number, stamp)
    return {
        "progress": checked_part(message.get("progress")),
        "kept": checked_part(message.get("kept")),
        "trouble": checked_words(message.get("trouble")),
        "used": checked_number(message.get("used")) or 0,
        "ready": bool(message.get("ready")),
        "stamp": stamp if whole else None,
    }
