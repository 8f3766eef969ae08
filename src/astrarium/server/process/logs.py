"""Logs for people (text) or for machines (one JSON object to a line), on stderr."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import Any

import msgspec

# What every record has; anything else was given as `extra` and belongs to the message.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{key: value for key, value in record.__dict__.items() if key not in _STANDARD},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class ThrottledWarnings:
    """Throttled warnings are those that clients can cause at will: of every *seconds* a few are written.

    The rest is counted, and the count is written with the next line, or inside an event loop once *seconds*
    are over.
    """

    def __init__(
        self,
        log: logging.Logger,
        seconds: float = 10.0,
        clock: Callable[[], float] = monotonic,
        burst: int = 1,
    ) -> None:
        self._log = log
        self._seconds = seconds
        self._clock = clock
        self._burst = burst
        # when the next few may be written
        self._next = -inf
        self._written = 0
        self._left_out = 0

    def warning(self, text: str, *arguments: object) -> None:
        if self._clock() >= self._next:
            self._next = self._clock() + self._seconds
            self._written = 0
        if self._written == self._burst:
            self._leave_out()
            return
        self._written += 1
        more = f" ({self._left_out} more since the last such line)" if self._left_out else ""
        self._left_out = 0
        self._log.warning(text + "%s", *arguments, more)

    def _leave_out(self) -> None:
        self._left_out += 1
        if self._left_out == 1:
            with suppress(RuntimeError):  # no event loop runs: the next line says it
                asyncio.get_running_loop().call_later(self._next - self._clock(), self._tell_count)

    def _tell_count(self) -> None:
        if self._left_out:
            self._log.warning("%d more such lines were left out", self._left_out)
            self._left_out = 0


def start_logging(form: str, level: str = "info") -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it tells of its own start and end
