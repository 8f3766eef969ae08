"""A judge says what is wrong with a GPU: readings over time go in, and its sickness comes out.

It is pure. A GPU that was found sick stays so until it is tried again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from astrarium.cluster.live.backend import Sickness

HOT = 60.0  # seconds for which a GPU may slow down because of its temperature

# Xids for which NVIDIA's catalog has something done with the GPU or its machine: a reset (RESET_GPU), a
# restart (RESTART_BM), a look at its power (CHECK_MECHANICALS), or a procedure for memory and NVLink errors
# that begins with one. For the others it has the application restarted (13, 31), or nothing done (43, 63).
# Source: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, for A100 and newer.
CONDEMNING = {
    46: "it stopped processing",
    48: "uncorrectable memory error",
    54: "its auxiliary power is not connected",
    62: "its microcontroller has halted",
    64: "a row of its memory could not be remapped",
    74: "NVLink error",
    79: "it has fallen off the bus",
    95: "uncontained memory error",
    109: "a context switch timed out",
    110: "security fault",
    119: "its system processor does not answer",
    120: "its system processor has failed",
    136: "a link could not be trained",
    140: "uncorrectable memory error",
    143: "it could not be initialized",
    **dict.fromkeys(range(144, 151), "NVLink error"),
    155: "NVLink error",
    156: "a part of it was retired",
    158: "fatal timeout",
    167: "fatal timeout of PCIe",
    169: "its security processor has halted",
    171: "uncorrectable memory error",
    172: "uncorrectable memory error",
}
OFF_THE_BUS = 79


class GpuReading(NamedTuple):
    """What NVML says of a GPU; *xids*: since the reading before. None: this GPU does not tell. *lost*: why it
    cannot be reached; *recovery*: what the driver wants to have done with it, if anything."""

    lost: str = ""
    xids: tuple[int, ...] = ()
    uncorrected: int | None = None  # memory errors since the driver was loaded
    pending: bool = False  # a part of its memory is to be replaced at the next reset
    exhausted: bool = False  # a part of its memory is broken, and cannot be replaced
    temperature: int | None = None
    slows_at: int | None = None
    stops_at: int | None = None
    recovery: str = ""


class GpuJudge:
    """Says what is wrong with one GPU, from readings over time. Errors that were there at the first reading
    may be old; only those that come later count."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.sickness: Sickness | None = None
        self._errors: int | None = None  # that were there at the first reading
        self._hot_since: float | None = None
        self._anew = False
        self.heard = False  # of a reading

    def retry(self) -> None:
        """Forget what was with the next reading, and judge by that alone; so again until one is good."""
        self._anew = True

    def hear(self, now: float, reading: GpuReading) -> None:
        anew = self._anew
        if anew:
            self._forget()
        self.heard = True
        if self._errors is None:
            self._errors = reading.uncorrected
        hot = _reaches(reading.temperature, reading.slows_at)
        self._hot_since = (now if self._hot_since is None else self._hot_since) if hot else None
        self.sickness = self.sickness or next(self._complaints(now, reading), None)
        self._anew = anew and self.sickness is not None

    def _complaints(self, now: float, reading: GpuReading) -> Iterator[Sickness]:
        if reading.lost:
            yield Sickness(reading.lost, lost=True)
        for xid in reading.xids:
            if xid in CONDEMNING:
                yield Sickness(f"Xid {xid}: {CONDEMNING[xid]}", lost=xid == OFF_THE_BUS)
        if reading.recovery:
            yield Sickness(f"the driver asks for {reading.recovery}")
        if reading.exhausted:
            yield Sickness("broken memory that cannot be remapped")
        if reading.pending:
            yield Sickness("broken memory, to be remapped at the next reset")
        if reading.uncorrected is not None and reading.uncorrected > (self._errors or 0):
            yield Sickness(f"{reading.uncorrected - (self._errors or 0)} uncorrectable memory errors")
        if _reaches(reading.temperature, reading.stops_at):
            yield Sickness(f"{reading.temperature} °C, and it stops at {reading.stops_at}")
        if self._hot_since is not None and now - self._hot_since >= HOT:
            heat = f"{reading.temperature} °C for {HOT:.0f} s, and it slows down at {reading.slows_at}"
            yield Sickness(heat)


def _reaches(value: int | None, limit: int | None) -> bool:
    return value is not None and limit is not None and value >= limit
