"""What Ctrl-C (SIGINT) and SIGTERM mean to a server, whatever it is doing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from astrarium.run.pools import signals_to


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Let a signal end the block, also where it does not await.

    It is raised as KeyboardInterrupt, or as SystemExit where it was SIGTERM.
    """
    main = asyncio.current_task()
    loop = asyncio.get_running_loop()
    assert main is not None
    signals: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if asyncio.current_task() is main:
            raise _ending(number)
        loop.call_soon_threadsafe(main.cancel)

    with signals_to(end):
        try:
            yield
        except asyncio.CancelledError:
            if not signals:
                raise
            raise _ending(signals[0]) from None


async def told_to_stop() -> None:
    """Wait until a signal comes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with signals_to(lambda number, frame: loop.call_soon_threadsafe(stop.set)):
        await stop.wait()


def _ending(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
