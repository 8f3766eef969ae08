"""Machines that share no folder with the arbiter: checkpoints travel, machines are cut off and come back."""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astrarium.cluster.live.backend import Fenced, JobCommand, RunKey, RunStatus, Sickness
from astrarium.cluster.live.backends.hosts import agent as host_agent
from astrarium.cluster.live.backends.hosts import backend, checkpoints, copies, handle, machine_checkpoints
from astrarium.cluster.live.machine import disk_thread
from astrarium.cluster.live.machine.agent import MachineAgent
from astrarium.cluster.live.machine.disk_thread import DiskThread
from astrarium.cluster.live.machine.health.nvml import NvmlReader
from astrarium.cluster.live.machine.health.watch import HealthWatch
from astrarium.cluster.live.wire.channel import WireError
from tests.support.cluster.backend import words
from tests.support.cluster.fake_nvml import FakeNvml
from tests.support.cluster.hosts import AgentThread, Office, on, two_hosts, waited

pytest_plugins = ("tests.support.cluster.fixtures",)


def total(count: int) -> dict[str, int]:
    return {"sum": sum(n * n for n in range(count)), "count": count}


def result(host: AgentThread) -> Any:
    [path] = host.files("run-*/result.json")
    return json.loads(path.read_text())


def stopped_at(office: Office, run: int, progress: float = 0.1) -> RunStatus:
    office.seen(run, lambda seen: seen.progress > progress)
    office.backend.stop(RunKey(0, 0, run))
    return office.seen(run)


@pytest.mark.parametrize("copied", [True, False])
def test_a_checkpoint_follows_its_job(tmp_path: Path, script: Path, copied: bool) -> None:
    task = JobCommand(words(script, 40, 0.05))
    with two_hosts(tmp_path, copies=copied) as (office, left, right):
        office.started(on(1, task, "left.1"))
        first = stopped_at(office, 1)
        assert first.ended == "stopped"
        office.forget(1)
        office.started(on(2, task, "right.1"))
        assert office.seen(2, lambda seen: seen.kept >= first.kept).kept >= first.kept
        assert office.seen(2).ended == "finished"
        assert result(right) == total(40)
        assert not left.files("run-*/result.json")


def test_nothing_is_copied_for_a_job_that_stays_if_that_is_not_wanted(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 30, 0.03))
    with two_hosts(tmp_path, copies=False) as (office, left, _):
        office.started(on(1, task, "left.1"))
        first = stopped_at(office, 1)
        office.forget(1)
        office.started(on(2, task, "left.1"))
        assert office.seen(2, lambda seen: seen.kept >= first.kept).kept >= first.kept
        assert office.seen(2).ended == "finished"
        assert result(left) == total(30)
        assert not list((tmp_path / "arbiter").glob("**/*.tar"))


def test_a_gang_is_given_its_checkpoint_on_every_machine(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 40, 0.05))
    with two_hosts(tmp_path) as (office, left, right):
        office.started(on(1, task, "left.1"))
        first = stopped_at(office, 1)
        office.started(on(2, task, "right.1", "left.1"))
        assert office.seen(2).ended == "finished"
        assert first.kept > 0
        assert right.files("run-1/brought.json", "orders")
        [log] = left.files("run-2/part-1/log-1.txt")
        assert log.exists()
        [order] = left.files("run-2/part-1/order.json", "orders")
        env = json.loads(order.read_text())["processes"][0]["env"]
        assert (env["WORLD_SIZE"], env["RANK"], env["MASTER_ADDR"]) == ("2", "1", "127.0.0.1")
        assert env["ASTRARIUM_RESUME"] == str(left.files("run-1/checkpoint")[0])


def test_a_gang_on_two_machines_hears_that_it_should_stop(tmp_path: Path, script: Path) -> None:
    """Long before half of its grace is over: it is up on both."""
    task = JobCommand(words(script, 5000, 0.02))
    with two_hosts(tmp_path, grace=600.0) as (office, _, _):
        office.started(on(1, task, "left.1", "right.1"))
        assert stopped_at(office, 1, 0.001).ended == "stopped"


def test_a_folder_travels_too(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; at = pathlib.Path(os.environ['ASTRARIUM_FOLDER'], 'checkpoint');"
        "given = os.environ['ASTRARIUM_RESUME'];"
        "given and sys.exit(pathlib.Path(given, 'deep', 'two').read_text() != 'b' * 3_000_000);"
        "(at / 'deep').mkdir(parents=True); (at / 'one').write_text('a');"
        "(at / 'deep' / 'two').write_text('b' * 3_000_000); sys.exit(75)"
    )
    task = JobCommand((sys.executable, "-c", code))
    with two_hosts(tmp_path) as (office, _, right):
        office.started(on(1, task, "left.1"))
        assert office.seen(1).ended == "stopped"
        office.started(on(2, task, "right.1"))
        assert office.seen(2).ended == "finished"
        assert {path.name for path in right.files("run-1/checkpoint/*")} == {"one", "deep"}


def test_old_checkpoints_are_cleared_everywhere(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 60, 0.03))
    with two_hosts(tmp_path) as (office, left, right):
        for run, machine in ((1, "left.1"), (2, "right.1"), (3, "left.1")):
            office.started(on(run, task, machine))
            assert stopped_at(office, run, run * 0.2).ended == "stopped"
            office.forget(run)
        office.started(on(4, task, "left.1"))
        assert office.seen(4).ended == "finished"
        waited(lambda: office.backend.look() and not right.files("run-*/checkpoint"))
        assert {path.parent.name for path in left.files("run-*/checkpoint")} <= {"run-3", "run-4"}
        assert len(list((tmp_path / "arbiter").glob("**/*.tar"))) == 1


# machines that are lost


def copied(office: Office) -> float:
    office.backend.look()
    copy = office.backend._store.newest("0-app/job-0")
    return copy.kept if copy else 0.0


def test_a_job_goes_on_from_the_copy_when_its_machine_is_lost(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 100, 0.05), env={"ASTRARIUM_CHECKPOINTS": "0.2"})
    with two_hosts(tmp_path) as (office, left, right):
        office.started(on(1, task, "left.1"))
        waited(lambda: copied(office) > 0.1)
        office.lose(left, "left.1")
        lost = office.seen(1)
        assert (lost.ended, lost.error) == ("lost", "its machine is gone")
        assert lost.kept == copied(office) > 0.1
        assert office.backend.look().machines.keys() == {"right.1"}
        office.forget(1)
        office.started(on(2, task, "right.1"))
        assert office.seen(2, lambda seen: seen.kept > 0).kept >= lost.kept
        waited(lambda: not alive(left) or left.files("run-1/result.json"))
        left.start()  # the cable is back
        office.machines(["left.2", "right.1"])
        assert RunKey(0, 0, 1) not in office.backend.look().runs
        waited(lambda: not alive(left))
        assert office.seen(2).ended == "finished"
        assert result(right) == total(100)


def alive(host: AgentThread) -> list[Path]:
    orders = host.files("run-*/part-*/order.json", "orders")
    return [path for path in orders if not path.with_name("outcome.json").exists()]


def test_a_run_that_was_given_up_is_stopped_and_never_looked_at(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 3000, 0.02), env={"ASTRARIUM_CHECKPOINTS": "0.1"})
    with two_hosts(tmp_path) as (office, left, _):
        office.started(on(1, task, "left.1"))
        waited(lambda: copied(office) > 0)
        office.lose(left, "left.1")
        office.seen(1)
        office.forget(1)
        office.started(on(2, task, "right.1"))
        given = office.backend._store._begun["0-app/job-0"].given
        assert given is not None
        left.start()
        office.machines(["left.2", "right.1"])
        waited(lambda: office.backend.look() and not alive(left))
        assert any("run 1 is stopped: it was given up" in each for each in left.words)
        newest = office.backend._newest("0-app/job-0")
        assert newest is not None
        assert newest.run == 2 or newest.name == given.name
        assert office.backend.look().runs.keys() == {RunKey(0, 0, 2)}


def test_without_a_copy_a_job_begins_anew_unless_its_machine_comes_back(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 40, 0.05))
    with two_hosts(tmp_path, copies=False) as (office, left, right):
        office.started(on(1, task, "left.1"))
        first = stopped_at(office, 1)
        office.lose(left, "left.1")
        assert office.backend.kept(on(1, task, "left.1")) == 0
        left.start()
        office.machines(["left.2", "right.1"])
        assert office.backend.kept(on(1, task, "left.1")) == first.kept
        office.lose(left, "left.2")
        office.started(on(2, task, "right.1"))
        assert office.seen(2).ended == "finished"
        assert result(right) == total(40)
        assert right.files("run-1/*") == []


def test_a_machine_that_is_away_for_a_moment_is_not_lost(tmp_path: Path, script: Path) -> None:
    """Its agent is another one then, and finds the job."""
    task = JobCommand(words(script, 60, 0.05))
    with two_hosts(tmp_path) as (office, left, _):
        office.started(on(1, task, "left.1"))
        office.seen(1, lambda seen: seen.progress > 0.1)
        left.leave()
        left.start()
        assert office.seen(1).ended == "finished"
        assert office.backend.look().machines.keys() == {"left.1", "right.1"}
        assert result(left) == total(60)


def test_jobs_that_end_with_their_agent_are_lost_with_it(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 5000, 0.02))
    with two_hosts(tmp_path) as (office, _left, _):
        other = AgentThread(tmp_path / "other", office.port, "other", with_agent=True)
        office.machines(["left.1", "other.1", "right.1"])
        office.started(on(1, task, "other.1"))
        office.seen(1, lambda seen: seen.progress > 0)
        other.leave()
        waited(lambda: not alive(other))
        other.start()
        assert office.seen(1).ended == "lost"
        office.machines(["left.1", "other.2", "right.1"])
        other.leave()


# arbiters that come after each other


def test_the_next_arbiter_finds_what_runs_and_what_has_ended(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 60, 0.05))
    with two_hosts(tmp_path) as (office, _, right):
        office.started(on(1, task, "left.1"))
        first = stopped_at(office, 1)
        office.forget(1)
        office.started(on(2, task, "right.1"))
        office.seen(2, lambda seen: seen.progress > first.progress)
        office.again()
        runs = office.backend.look().runs
        assert runs.keys() == {RunKey(0, 0, 2)}
        assert runs[RunKey(0, 0, 2)].kept >= first.kept
        assert office.backend.look().machines.keys() == {"left.1", "right.1"}
        assert office.seen(2).ended == "finished"
        assert result(right) == total(60)


def test_a_machine_that_does_not_come_back_to_the_next_arbiter_is_lost(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 5000, 0.02), env={"ASTRARIUM_CHECKPOINTS": "0.1"})
    with two_hosts(tmp_path) as (office, left, _):
        office.started(on(1, task, "left.1"))
        waited(lambda: copied(office) > 0)
        left.leave()
        office.options["patience"] = 3.0
        office.again()
        lost = office.backend.look().runs[RunKey(0, 0, 1)]
        assert (lost.ended, lost.kept) == ("lost", copied(office))
        assert lost.kept > 0


@pytest.mark.thorough
def test_an_agent_refuses_an_arbiter_that_was_superseded(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (office, left, _):
        office.again()
        office.machines(["left.1", "right.1"])
        office.epoch = 0
        office.again()

        def refused() -> bool:
            try:
                office.backend.look()
            except Fenced as error:
                return str(error) == "arbiter 1 was superseded by arbiter 2"
            return False

        waited(refused)
        assert "arbiter 1 was superseded by arbiter 2; trying again" in left.words


def test_a_fresh_state_folder_is_another_cluster(tmp_path: Path, script: Path) -> None:
    """Its apps may have the names of others that were here: their files are elsewhere."""
    task = JobCommand(words(script, 20, 0.01))
    with two_hosts(tmp_path) as (office, left, _):
        office.started(on(1, task, "left.1"))
        assert office.seen(1).ended == "finished"
        office.listener.close()
        office._home = tmp_path / "another"
        office.again()
        office.machines(["left.1", "right.1"])
        office.started(on(1, JobCommand(words(script, 30, 0.01)), "left.1"))
        assert office.seen(1).ended == "finished"
        assert sorted(json.loads(path.read_text())["count"] for path in left.files("run-1/result.json")) == [
            20,
            30,
        ]


def test_two_machines_with_one_name_are_told_apart(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (office, _, _):
        twin = AgentThread(tmp_path / "twin", office.port, "left")
        waited(lambda: any("another machine here has the name left" in each for each in twin.words))
        assert office.backend.look().machines.keys() == {"left.1", "right.1"}
        twin.leave()


def test_a_machine_that_comes_back_with_other_gpus_is_another_one(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (office, left, _):
        left.leave()
        other = AgentThread(tmp_path / "left", office.port, "left", gpus=3)
        office.machines(["left.2", "right.1"])
        assert office.backend.look().machines["left.2"].gpus == 3
        other.leave()


# what goes wrong on the way


def test_a_slow_copy_holds_up_nobody(tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = JobCommand(words(script, 40, 0.05))
    go = threading.Event()
    at_once = checkpoints.receive_pieces

    def slowly(channel: Any, write: Any) -> None:
        go.wait(60)
        at_once(channel, write)

    for module in (copies, machine_checkpoints):
        monkeypatch.setattr(module, "receive_pieces", slowly)
    with two_hosts(tmp_path) as (office, _, _right):
        office.started(on(1, task, "left.1"))
        first = stopped_at(office, 1)
        later = on(2, task, "right.1")
        other = later.__class__(RunKey(1, 0, 1), "other", (1,), later.parts, task)
        office.backend.start(later)
        office.started(other)  # on the same machine, meanwhile
        waited(lambda: office.backend.look().runs[other.key].ended == "finished")
        office.backend.start(later)
        assert later.key not in office.backend.look().runs
        go.set()
        office.started(later)
        assert office.seen(2).ended == "finished"
        assert first.kept > 0


def test_a_checkpoint_that_is_cut_off_is_sent_again(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never taken for a whole one, here nor there."""
    at_once = checkpoints.send_pieces
    broken = list[str]()

    def broken_twice(channel: Any, read: Any, *rest: Any) -> None:
        if len(broken) < 2:
            broken.append("once more")
            channel.send_bytes(read(10))
            raise WireError("the cable broke")
        at_once(channel, read, *rest)

    for module in (machine_checkpoints, backend):
        monkeypatch.setattr(module, "send_pieces", broken_twice)
    monkeypatch.setattr(handle, "ASK_AGAIN", 0.2)
    task = JobCommand(words(script, 30, 0.03))
    with two_hosts(tmp_path) as (office, _, right):
        office.started(on(1, task, "left.1"))
        first = stopped_at(office, 1)
        office.started(on(2, task, "right.1"))
        assert len(broken) == 2
        assert office.seen(2, lambda seen: seen.kept >= first.kept).kept > 0
        assert office.seen(2).ended == "finished"
        assert result(right) == total(30)


def test_a_checkpoint_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    import socket

    from astrarium.cluster.live.wire.channel import Channel

    left, right = socket.socketpair()
    with Channel(left) as one, Channel(right) as other:
        for body in (b"some", b"", b"x" * 32):
            one.send_bytes(body)
        with pytest.raises(WireError, match="wrong checksum"):
            checkpoints.receive_pieces(other, lambda piece: None)


def test_a_machine_without_room_for_a_checkpoint_fails_the_run(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 40, 0.03))
    with two_hosts(tmp_path) as (office, _, right):
        office.started(on(1, task, "left.1"))
        first = stopped_at(office, 1)
        [home] = [path for path in right.folder.iterdir() if path.is_dir() and path.name != "locks"]
        (home / "apps").write_text("this is not a folder")
        office.started(on(2, task, "right.1"))
        failed = office.seen(2)
        assert failed.ended == "failed"
        assert failed.kept == first.kept
        assert "its checkpoint could not be brought to right.1: [Errno 20] Not a directory" in failed.error
        office.forget(2)


def test_a_machine_that_cannot_start_a_run_fails_it(tmp_path: Path, script: Path) -> None:
    with two_hosts(tmp_path) as (office, _, right):
        waited(lambda: [path for path in right.folder.iterdir() if path.name not in ("locks", "agent.lock")])
        [home] = [path for path in right.folder.iterdir() if path.is_dir() and path.name != "locks"]
        (home / "apps").write_text("this is not a folder")
        office.started(on(1, JobCommand(words(script)), "right.1"))
        failed = office.seen(1)
        assert failed.ended == "failed"
        assert "it could not be started: [Errno 20] Not a directory" in failed.error
        office.forget(1)


def test_logs_are_brought_when_somebody_wants_them(tmp_path: Path) -> None:
    code = "import time; print('first', flush=True); time.sleep(1); print('last' * 1_000_000)"
    with two_hosts(tmp_path) as (office, _, _):
        office.started(on(1, JobCommand((sys.executable, "-c", code)), "left.1"))
        path = tmp_path / "arbiter/copies/0-app/job-0/run-1/part-0/log-0.txt"

        def brought() -> str:
            office.backend.bring_logs("0-app", 60)
            return path.read_text() if path.exists() else ""

        waited(lambda: brought().startswith("first\n"))
        assert office.seen(1).ended == "finished"
        assert brought() == "first\n" + "last" * 1_000_000 + "\n"
        assert brought() == "first\n" + "last" * 1_000_000 + "\n"


def test_logs_of_an_app_are_bounded_where_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse log costs its job nothing, and once filled the disk of the arbiter."""
    monkeypatch.setattr(backend, "LONGEST_LOG", 3 << 20)
    code = "import os; log = os.environ['ASTRARIUM_FOLDER'] + '/part-0/log-0.txt'; os.truncate(log, 1 << 29)"
    with two_hosts(tmp_path) as (office, _, _):
        office.started(on(1, JobCommand((sys.executable, "-c", code)), "left.1"))
        assert office.seen(1).ended == "finished"
        path = tmp_path / "arbiter/copies/0-app/job-0/run-1/part-0/log-0.txt"
        for _ in range(3):
            office.backend.bring_logs("0-app", 60)
            assert path.stat().st_size == 3 << 20


def test_a_checkpoint_that_finds_no_room_is_not_asked_for_again_and_again(tmp_path: Path) -> None:
    """A sparse checkpoint of terabytes once had the arbiter write its disk full, over and over."""
    store = copies.CopyStore(tmp_path)
    one = checkpoints.Checkpoint("0-app/job-0", 1, checkpoints.Stamp(1, 1 << 50))
    channel: Any = SimpleNamespace(receive_bytes=lambda: pytest.fail("nothing of it is taken"))
    with pytest.raises(OSError, match=f"a checkpoint of {1 << 50} bytes, and room for"):
        store.receive(channel, one)
    assert store.waits(one)
    assert not store.waits(checkpoints.Checkpoint("1-other/job-0", 1, checkpoints.Stamp(1, 10)))


def test_a_checkpoint_is_no_larger_than_it_was_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "OVERHEAD", 1000)
    store = copies.CopyStore(tmp_path)
    one = checkpoints.Checkpoint("0-app/job-0", 1, checkpoints.Stamp(1, 10))
    channel: Any = SimpleNamespace(receive_bytes=lambda: b"x" * 100)
    with pytest.raises(OSError, match="more than 1020 bytes: it is larger than it was said to be"):
        store.receive(channel, one)
    assert not list(tmp_path.glob("copies/*/*/*/*"))


def test_logs_leave_room_for_the_arbiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "LEAST_ROOM", 1 << 62)
    whole = SimpleNamespace(f_bavail=1, f_blocks=1 << 40, f_frsize=4096)
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: whole)
    with (tmp_path / "log").open("wb") as file, pytest.raises(OSError, match="no room for more"):
        copies.write_within(file, b"x")
    assert (tmp_path / "log").stat().st_size == 0


@pytest.mark.parametrize(("job", "run"), [("0-a/../b", 1), ("/etc", 1), ("0-a/job-0", 0), ("0-a", 1)])
def test_only_folders_of_jobs_can_be_named(job: str, run: int) -> None:
    with pytest.raises(ValueError, match="a job's folder and run"):
        checkpoints.Checkpoint(job, run, checkpoints.Stamp(1, 1))


# GPUs that are sick, and disks that are slow


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
