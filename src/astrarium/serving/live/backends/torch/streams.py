"""Streams and events of a GPU: in what order it works, and when it did what by the host's clock."""

from __future__ import annotations

from functools import cache
from typing import Any

from astrarium.core.quantities import Time

_DRIVER = "libcuda.so.1"
_DRIFT = 10_000  # the clocks of a GPU and of its host differ by less than one part in this


class Streams:
    """The streams of a GPU are the same for all models: their batches are computed one by one.

    PyTorch has 32 streams of each priority, which it hands out again and again: with the other priority, none
    of these is ever one that a model is captured in.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self.copy_in, self.compute, self.copy_out = (torch.cuda.Stream(device, priority=-1) for _ in range(3))
        self._native: Any = None

    def native(self, module: Any) -> Any:
        """Return the same streams for native code."""
        if self._native is None:
            streams = self.copy_in, self.compute, self.copy_out
            self._native = module.GpuStreams(_DRIVER, *(stream.cuda_stream for stream in streams))
        return self._native


@cache
def streams_of(torch: Any, device: Any) -> Streams:
    return Streams(torch, device)


class GpuClock:
    """A GPU's clock tells on the host's clock when events happened.

    An event has happened when the host sees so, or a little before; and as long after the one seen before as
    the GPU says. The earlier of both is closer: the host may have been busy when the event happened.
    """

    def __init__(self) -> None:
        self._last: Any = None
        self._at = 0

    def when(self, event: Any, seen: Time) -> Time:
        """Return when an event happened that the host has *seen* now; they are seen in their order."""
        at = seen
        if self._last is not None:
            since = elapsed(self._last, event)
            at = min(seen, self._at + since + since // _DRIFT)
        self._last = event
        self._at = at
        return at


def elapsed(first: Any, second: Any) -> Time:
    """Return the nanoseconds between two events that have happened."""
    milliseconds: float = first.elapsed_time(second)
    return round(milliseconds * 1e6)
