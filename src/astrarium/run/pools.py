"""Several pieces of work at a time, which an interrupt ends at once; and who hears of interrupts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType

PIECE = "piece of work"  # the names of threads begin so


@contextmanager
def processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """For work in Python. An error in the block, or an interrupt, ends the processes."""
    pool = ProcessPoolExecutor(jobs, initializer=_leave_interrupts_to_the_parent)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def threads(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """For work that lets go of the interpreter. A thread cannot be ended: after an error in the block, or an
    interrupt, nobody waits for those that are in the middle of something."""
    pool = ThreadPoolExecutor(jobs, thread_name_prefix=PIECE)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def left_behind() -> bool:
    """Whether Python would wait for threads of a block that broke off."""
    return any(thread.name.startswith(PIECE) for thread in threading.enumerate())


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches every process of a terminal, and each would print a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


Handler = Callable[[int, FrameType | None], object]


@contextmanager
def signals_to(handler: Handler) -> Iterator[None]:
    """Inside the block, a handler hears of Ctrl-C and of SIGTERM, unless code outside of Python does."""
    ours = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not None]
    before = {number: signal.signal(number, handler) for number in ours}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
