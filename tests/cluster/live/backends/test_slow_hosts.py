"""Hosts with sick GPUs and slow disks: they are told, and neither silent nor lost."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.backend import RunKey, Sickness
from astrarium.cluster.live.backends.hosts import agent as host_agent
from astrarium.cluster.live.backends.hosts import handle
from astrarium.cluster.live.machine import disk_thread
from astrarium.cluster.live.machine.agent import MachineAgent
from astrarium.cluster.live.machine.disk_thread import DiskThread
from astrarium.cluster.live.machine.health.nvml import NvmlReader
from astrarium.cluster.live.machine.health.watch import HealthWatch
from tests.support.cluster.fake_nvml import FakeNvml
from tests.support.cluster.hosts import two_hosts, waited


def test_a_sick_gpu_of_a_host_is_told_and_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml(2)
    watch = HealthWatch(lambda: NvmlReader(nvml), every=0.01)
    monkeypatch.setattr(host_agent, "HealthWatch", lambda: watch)
    with two_hosts(tmp_path) as (office, _, _):
        waited(lambda: office.backend.look().machines["left.1"].watched)
        nvml.xids[1].append(95)
        sick = {1: Sickness("Xid 95: uncontained memory error")}
        waited(lambda: office.backend.look().machines["left.1"].sick == sick)
        office.backend.retry("left.1", 1)
        waited(lambda: not office.backend.look().machines["left.1"].sick)
        assert office.backend.look().machines["left.1"].gpus == 2


def _heard_after(host: handle.HostHandle, moment: float) -> bool:
    return host.heard_at > moment


def test_a_host_whose_disk_is_slow_is_not_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports what it saw last, takes orders, and carries each out once when the disk answers."""
    disk = threading.Event()
    waits = threading.Event()
    stopped = list[RunKey]()
    look = MachineAgent.look

    def slow(agent: MachineAgent) -> Any:
        waits.set()
        return look(agent) if disk.wait(60) else {}

    monkeypatch.setattr(disk_thread, "SOON", 0.01)
    monkeypatch.setattr(MachineAgent, "stop", lambda self, key: stopped.append(key))
    with two_hosts(tmp_path) as (office, left, _):
        left.leave()
        monkeypatch.setattr(MachineAgent, "look", slow)
        assert waits.wait(60)
        handle = office.backend._agents["right.1"]
        for run in (1, 2, 2):
            handle.stop(RunKey(0, 0, run))
        for heard in (handle.heard_at for _ in range(5)):
            waited(partial(_heard_after, handle, heard))
        assert ([number for number, _ in handle._orders], stopped) == ([1, 2], [])
        disk.set()
        waited(lambda: not handle._orders)
        assert stopped == [RunKey(0, 0, 1), RunKey(0, 0, 2)]


def test_orders_that_a_slow_disk_holds_up_are_dropped_with_their_connection() -> None:
    """They are given again with the next one; the machine may have another number then."""
    disk = threading.Event()
    waits = threading.Event()
    done = list[int]()
    one = DiskThread(lambda: None)

    def slow() -> None:
        waits.set()
        disk.wait(60)
        done.append(1)

    one.order(1, slow)
    one.order(2, lambda: done.append(2))
    assert waits.wait(60)
    one.close()
    disk.set()
    one._thread.shutdown()
    assert done == [1]
