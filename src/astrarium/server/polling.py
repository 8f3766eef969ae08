"""Waiting in an event loop for what nobody announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from astrarium.core.quantities import SECOND, Time

POLL = 0.01  # seconds


async def until(holds: Callable[[], bool], clock: Callable[[], Time], seconds: float | None = None) -> bool:
    """Wait until something holds, for at most so many *seconds*; return whether it does."""
    end = None if seconds is None else clock() + seconds * SECOND
    while not holds():
        if end is not None and clock() > end:
            return False
        await asyncio.sleep(POLL)
    return True
