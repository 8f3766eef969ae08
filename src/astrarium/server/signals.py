"""What Ctrl-C (SIGINT) and SIGTERM mean to a server, whatever it is doing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_Handler = Callable[[int, FrameType | None], object]


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Meanwhile a signal ends the block, also where it does not await: as KeyboardInterrupt, or as SystemExit
    where it was SIGTERM."""
    main, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert main is not None
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if asyncio.current_task() is main:
            raise _ending(number)
        loop.call_soon_threadsafe(main.cancel)

    with _handled_by(end):
        try:
            yield
        except asyncio.CancelledError:
            if not told:
                raise
            raise _ending(told[0]) from None


async def told_to_stop() -> None:
    """Until a signal comes."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    with _handled_by(lambda number, frame: loop.call_soon_threadsafe(stop.set)):
        await stop.wait()


@contextmanager
def _handled_by(handler: _Handler) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _ending(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
