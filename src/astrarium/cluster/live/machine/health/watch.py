"""The health of a machine's GPUs is watched by a thread of its own, which has them read every few seconds.

NVML may hang when a GPU does not answer: whoever asks for the health never waits. Without NVML nothing is
watched.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import msgspec

from astrarium.cluster.live.backend import MachineStatus, Sickness
from astrarium.cluster.live.machine.health.judge import GpuJudge
from astrarium.cluster.live.machine.health.nvml import GpuReader, nvml_reader

EVERY = 2.0  # seconds between readings
HANGS = 30.0  # seconds after which a GPU that is read is taken not to answer


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
