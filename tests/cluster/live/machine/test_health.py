"""The health of GPUs: the judge in virtual time, NVML that is not there, and what a live cluster does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from astrarium.cluster.live.backend import MachineStatus, Sickness
from astrarium.cluster.live.machine.health import watch as watch_module
from astrarium.cluster.live.machine.health.judge import GpuJudge, GpuReading
from astrarium.cluster.live.machine.health.nvml import NvmlReader
from astrarium.cluster.live.machine.health.watch import HealthWatch
from tests.support.cluster.fake_nvml import FakeNvml, NvmlError

WARM = GpuReading(temperature=60, slows_at=87, stops_at=92, uncorrected=0)


def waited(until: Callable[[], Any], what: str) -> None:
    ends = time.monotonic() + 60
    while not until():
        assert time.monotonic() < ends, f"{what}: not within a minute"
        time.sleep(0.01)


def judged(*readings: tuple[float, dict[str, Any]]) -> Sickness | None:
    judge = GpuJudge()
    judge.hear(0, WARM)
    for at, changes in readings:
        judge.hear(at, WARM._replace(**changes))
    return judge.sickness


@pytest.mark.parametrize(
    ("changes", "why", "lost"),
    [
        ({"lost": "NVML: GPU is lost"}, "NVML: GPU is lost", True),
        ({"xids": (13, 79)}, "Xid 79: it has fallen off the bus", True),
        ({"xids": (95,)}, "Xid 95: uncontained memory error", False),
        ({"uncorrected": 2}, "2 uncorrectable memory errors", False),
        ({"pending": True}, "broken memory, to be remapped at the next reset", False),
        ({"exhausted": True}, "broken memory that cannot be remapped", False),
        ({"temperature": 92}, "92 °C, and it stops at 92", False),
        ({"recovery": "a reset"}, "the driver asks for a reset", False),
    ],
)
def test_what_makes_a_gpu_sick(changes: dict[str, Any], why: str, lost: bool) -> None:
    assert judged((2, changes)) == Sickness(why, lost)
    assert judged((2, changes), (4, {})) == Sickness(why, lost)  # it stays so


@pytest.mark.parametrize("xid", [8, 13, 31, 32, 43, 45, 63, 68, 69, 94, 154])
def test_what_an_application_does_condemns_no_gpu(xid: int) -> None:
    assert judged((2, {"xids": (xid,)})) is None


def test_heat_is_borne_for_a_while() -> None:
    hot = {"temperature": 88}
    assert judged((2, hot), (61, hot)) is None
    assert judged((2, hot), (40, {}), (50, hot), (90, hot)) is None  # it cooled down in between
    assert judged((2, hot), (62, hot)) == Sickness("88 °C for 60 s, and it slows down at 87")


def test_a_gpu_that_does_not_tell_is_not_sick() -> None:
    judge = GpuJudge()
    judge.hear(0, GpuReading())
    judge.hear(99, GpuReading())
    assert judge.sickness is None


def test_errors_from_before_do_not_count() -> None:
    judge = GpuJudge()
    judge.hear(0, WARM._replace(uncorrected=7))
    assert judge.sickness is None
    judge.hear(2, WARM._replace(uncorrected=8))
    assert judge.sickness == Sickness("1 uncorrectable memory errors")
    judge.retry()
    assert judge.sickness is not None  # until the next reading
    judge.hear(4, WARM._replace(uncorrected=8))
    assert judge.sickness is None


def test_who_is_tried_again_and_is_still_gone() -> None:
    judge = GpuJudge()
    judge.hear(0, GpuReading(lost="NVML: GPU is lost"))
    judge.retry()
    judge.hear(2, GpuReading(lost="NVML: GPU is lost"))
    assert judge.sickness == Sickness("NVML: GPU is lost", lost=True)
    judge.hear(4, GpuReading())
    assert judge.sickness is None  # as soon as it is well
    judge.hear(6, GpuReading(lost="NVML: GPU is lost"))
    judge.hear(8, GpuReading())
    assert judge.sickness is not None  # and only once


def test_nvml_is_read() -> None:
    nvml = FakeNvml()
    reader = NvmlReader(nvml)
    nvml.xids[1] += [31, 79]
    assert reader.count() == 2
    healthy = GpuReading("", (), 0, False, False, 50, 87, 92, "")
    assert (reader.read(0), reader.read(1)) == (healthy, healthy._replace(xids=(31, 79)))
    assert reader.read(1) == healthy
    nvml.recovery = 2
    assert reader.read(0).recovery == "a reboot"
    nvml.broken[1] = 15
    assert reader.read(1) == GpuReading(lost="NVML: GPU is lost")
    nvml.broken[1] = 999
    with pytest.raises(NvmlError):
        reader.read(1)


def test_a_watch_finds_the_sick_and_tries_them_again() -> None:
    nvml = FakeNvml(4)
    watch = HealthWatch(lambda: NvmlReader(nvml), every=0.01)
    machine = MachineStatus(2)
    waited(lambda: watch.seen(machine).watched, "it reads")
    nvml.xids[3].append(79)
    waited(lambda: watch.seen(machine, 2).sick, "it is found")
    assert watch.seen(machine, 2).sick == {1: Sickness("Xid 79: it has fallen off the bus", lost=True)}
    assert watch.seen(machine).sick == {}
    assert not watch.seen(MachineStatus(3), 2).watched  # a GPU that was never seen
    watch.retry(3)
    waited(lambda: not watch.seen(machine, 2).sick, "it is well")


def test_a_gpu_that_does_not_answer_is_sick_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "HANGS", 0.1)
    answer = threading.Event()

    class Hangs:
        def count(self) -> int:
            return 2

        def read(self, gpu: int) -> GpuReading:
            if gpu == 1:
                answer.wait(60)
            return WARM

    watch = HealthWatch(Hangs, every=0.01)
    machine = MachineStatus(2)
    waited(lambda: watch.seen(machine).sick, "it hangs")
    assert watch.seen(machine) == MachineStatus(2, sick={1: Sickness("NVML has not answered for 0 s")})
    answer.set()
    waited(lambda: watch.seen(machine) == MachineStatus(2, watched=True), "it answers")


def test_without_nvml_nothing_is_watched() -> None:
    watch = HealthWatch(lambda: None)
    assert watch.seen(MachineStatus(2)) == MachineStatus(2)
