"""The arena is shared memory for tensors: one anonymous file that the frontend divides and workers map.

Nothing has a name, so nothing is left behind after a crash; only the frontend allocates, natively
(native/exchange/arena.h), so a worker that dies takes no block with it.
"""

from __future__ import annotations

import mmap
import os
import weakref


class SharedMemory:
    """Shared memory is the file mapped into this process."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        fd = os.memfd_create("astrarium-tensors", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)  # pages come into being when they are first written
        memory = cls(fd, size)
        weakref.finalize(memory, os.close, fd)  # who has mapped it keeps it; the number is for others
        return memory
