"""Objects of POSIX shared memory, as clients make them, which are gone after the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

SHARED_MEMORY = Path("/dev/shm")
_numbers = count()


@dataclass
class SharedObject:
    path: Path

    @property
    def key(self) -> str:
        return f"/{self.path.name}"

    def floats(self, offset: int = 0) -> list[float]:
        array: npt.NDArray[np.float32] = np.frombuffer(self.path.read_bytes()[offset:], np.float32)
        return [float(value) for value in array]

    def shorten(self, size: int) -> None:
        os.truncate(self.path, size)


@contextmanager
def shared_object(content: bytes, mode: int = 0o600) -> Iterator[SharedObject]:
    path = SHARED_MEMORY / f"test-regions-{os.getpid()}-{next(_numbers)}"
    path.write_bytes(content)
    path.chmod(mode)
    try:
        yield SharedObject(path)
    finally:
        path.unlink(missing_ok=True)


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()
