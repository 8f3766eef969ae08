"""Named random streams: each use of chance has its own, so that adding one disturbs no other."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The generator for one purpose, e.g. stream(1, 'arrivals', 'resnet50')."""
    import numpy as np

    words = [seed, *(zlib.crc32(str(name).encode()) for name in names)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
