"""The health of a machine's GPUs: NVML is read every few seconds, and a judge says which of them are sick.

A judge is pure: readings over time go in, and what is wrong comes out. A GPU that was found sick stays so
until it is tried again. NVML may hang when a GPU does not answer; it is read by a thread of its own, and
whoever asks for the health never waits. Without NVML nothing is watched.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from astrarium.cluster.live.backend import MachineStatus, Sickness

HOT = 60.0  # seconds for which a GPU may slow down because of its temperature
EVERY = 2.0  # seconds between readings
HANGS = 30.0  # seconds after which a GPU that is read is taken not to answer

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
            told = f"{reading.temperature} °C for {HOT:.0f} s, and it slows down at {reading.slows_at}"
            yield Sickness(told)


def _reaches(value: int | None, limit: int | None) -> bool:
    return value is not None and limit is not None and value >= limit


class GpuReader(Protocol):
    """Reads the GPUs of this machine, numbered in the order of the PCI bus. Any call may hang."""

    def count(self) -> int: ...
    def read(self, gpu: int) -> GpuReading: ...


class NvmlReader:
    """NVML, by the module `pynvml` of the package nvidia-ml-py. What a GPU does not support is None; an error
    that says nothing about the GPU (a driver that is being exchanged) is raised."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in range(nvml.nvmlDeviceGetCount())]
        self._events = [self._event_set(handle) for handle in self._handles]

    def count(self) -> int:
        return len(self._handles)

    def read(self, gpu: int) -> GpuReading:
        nvml = self._nvml
        try:
            return self._read(self._handles[gpu], self._events[gpu])
        except nvml.NVMLError as error:
            lost = nvml.NVML_ERROR_GPU_IS_LOST
            not_found = nvml.NVML_ERROR_GPU_NOT_FOUND
            if error.value in (lost, not_found, nvml.NVML_ERROR_RESET_REQUIRED):
                return GpuReading(lost=f"NVML: {error}")
            raise

    def _read(self, handle: Any, events: Any) -> GpuReading:
        nvml = self._nvml
        tell = self._tell
        remapped = tell(nvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
        retired = tell(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        errors = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        slows = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        stops = nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
        return GpuReading(
            xids=tuple(self._xids(events)),
            uncorrected=tell(nvml.nvmlDeviceGetTotalEccErrors, handle, *errors),
            pending=bool(remapped[2]) or retired == nvml.NVML_FEATURE_ENABLED,
            exhausted=bool(remapped[3]),
            temperature=tell(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            slows_at=tell(nvml.nvmlDeviceGetTemperatureThreshold, handle, slows),
            stops_at=tell(nvml.nvmlDeviceGetTemperatureThreshold, handle, stops),
            recovery=self._recovery(handle),
        )

    def _recovery(self, handle: Any) -> str:
        nvml = self._nvml
        told = self._tell(nvml.nvmlDeviceGetFieldValues, handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if not told or told[0].nvmlReturn != nvml.NVML_SUCCESS:
            return ""
        action = told[0].value.uiVal
        reset = nvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET, nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET
        known = {**dict.fromkeys(reset, "a reset"), nvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "a reboot"}
        return known.get(action, "")

    def _event_set(self, handle: Any) -> Any:
        """Return a set of events of one GPU: so nobody must ask a GPU that is gone who it is."""
        events = self._tell(self._nvml.nvmlEventSetCreate)
        if events is not None:
            self._tell(
                self._nvml.nvmlDeviceRegisterEvents, handle, self._nvml.nvmlEventTypeXidCriticalError, events
            )
        return events

    def _xids(self, events: Any) -> Iterator[int]:
        while events is not None and (told := self._tell(self._nvml.nvmlEventSetWait_v2, events, 0)):
            yield int(told.eventData)

    def _tell(self, ask: Callable[..., Any], *about: Any) -> Any:
        """Return an answer, or None where there is none."""
        nvml = self._nvml
        nothing = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_TIMEOUT,
                   nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT)  # fmt: skip
        try:
            return ask(*about)
        except nvml.NVMLError as error:
            if error.value in nothing:
                return None
            raise


def nvml_reader() -> GpuReader | None:
    """Return a reader of this machine's GPUs; None where there is no NVML, or it does not work."""
    try:
        nvml = importlib.import_module("pynvml")
        return NvmlReader(nvml)
    except Exception:  # no package, no library, no driver, no permission: all say the same
        return None


class HealthWatch:
    """Reads all GPUs of this machine in a thread of its own, and says which of them are sick. One that could
    never be read is not watched; nor are the others while NVML hangs on one."""

    def __init__(self, reader: Callable[[], GpuReader | None] = nvml_reader, every: float = EVERY) -> None:
        self._judges: list[GpuJudge] = []
        self._reads: tuple[int, float] | None = None  # which GPU, and since when
        self._open = reader
        self._every = every
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True, name="health of GPUs").start()

    def seen(self, machine: MachineStatus, first: int = 0) -> MachineStatus:
        """Return a machine with the health of its GPUs, which begin with number *first* here."""
        hung = self._hung()
        sick = dict[int, Sickness]()
        judges = self._judges[first : first + machine.gpus]
        for number, judge in enumerate(judges):
            if judge.sickness is not None:
                sick[number] = judge.sickness
            elif hung == first + number:
                sick[number] = Sickness(f"NVML has not answered for {HANGS:.0f} s")
        watched = hung is None and sum(judge.heard for judge in judges) == machine.gpus
        return msgspec.structs.replace(machine, sick=sick, watched=watched)

    def retry(self, gpu: int) -> None:
        with self._lock:
            for judge in self._judges[gpu : gpu + 1]:
                judge.retry()

    def _hung(self) -> int | None:
        reads = self._reads
        return reads[0] if reads is not None and time.monotonic() - reads[1] > HANGS else None

    def _watch(self) -> None:
        reader = self._open()
        if reader is None:
            return
        self._judges = [GpuJudge() for _ in range(reader.count())]
        while True:
            for gpu, judge in enumerate(self._judges):
                self._look(reader, gpu, judge)
            threading.Event().wait(self._every)

    def _look(self, reader: GpuReader, gpu: int, judge: GpuJudge) -> None:
        self._reads = gpu, time.monotonic()
        with contextlib.suppress(Exception):  # it says nothing about this GPU: the next reading may
            reading = reader.read(gpu)
            with self._lock:
                judge.hear(time.monotonic(), reading)
        self._reads = None
