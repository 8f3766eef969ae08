"""Writes that fail for want of space or memory, and what waits for it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from typing import Any


def failing(times: int, error: BaseException, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that fails so often, and then does what the real one does."""
    left = [error] * times

    def flaky(*arguments: Any, **named: Any) -> Any:
        if left:
            raise left.pop()
        return real(*arguments, **named)

    return flaky


def os_error(number: int = errno.ENOSPC) -> OSError:
    return OSError(number, os.strerror(number))


class Clock:
    """In the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


def database_full(code: int = sqlite3.SQLITE_FULL) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = code
    return error
