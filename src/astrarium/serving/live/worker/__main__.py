"""A worker's process: `python -m astrarium.serving.live.worker SOCKET MEMORY SIZE GPU KIND DEVICE`.

The first two are inherited file descriptors. Without the last three it is in reserve (see preparing.py).
"""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from astrarium.core.optional import extension
from astrarium.serving.live.backends.contract import Place
from astrarium.serving.live.backends.precise_wait import fine_timers
from astrarium.serving.live.garbage import GarbageKeeper
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.worker import preparing
from astrarium.serving.live.worker.worker import FrontendGone, Worker

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    connection, memory, size, *place_words = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # not even a hung model outlives us
    fine_timers()
    orders = socket.socket(fileno=int(connection))
    tensors = SharedMemory(int(memory), int(size))
    module = extension("_worker")
    place = Place(int(place_words[0]), *place_words[1:]) if place_words else preparing.place_given(orders)
    preparing.name_process(f"astra-gpu{place.gpu}")
    native = None if module is None else module.BatchLoop(tensors.view, orders.fileno())
    with suppress(FrontendGone):
        Worker(orders, tensors, place, garbage=GarbageKeeper(), native=native).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
