"""Writes that fail for want of room or memory, one by one: what must be written waits, the rest goes on."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socketpair
from typing import Any

import pytest

from astrarium.cluster.live.backend import JobCommand, RunKey, RunStatus
from astrarium.cluster.live.disk_wait import DiskWait
from astrarium.cluster.live.machine import agent as agent_module
from astrarium.cluster.live.machine import checkpoint_file
from astrarium.cluster.live.machine import session as session_module
from astrarium.cluster.live.machine.folders import read_file
from astrarium.cluster.live.machine.keeping import job_logs, records
from astrarium.cluster.live.machine.keeping import keeper as keeper_module
from astrarium.cluster.live.machine.keeping.job_files import JobFolder
from astrarium.cluster.live.machine.keeping.job_logs import JobLog
from astrarium.cluster.live.machine.keeping.keeper import Keeper
from astrarium.cluster.live.machine.keeping.pauses import SELDOM
from astrarium.cluster.live.machine.keeping.runner import Runner
from astrarium.cluster.live.machine.outcome import Outcome, ending
from astrarium.cluster.live.machine.session import STOPPED, Session
from astrarium.cluster.live.slowdowns import FixedSlowdowns
from astrarium.cluster.policies import Arbiter, cluster_policies
from astrarium.cluster.state import ClusterState
from astrarium.core.choice import Choice, chosen
from astrarium.core.engine import Engine
from astrarium.core.quantities import SECOND
from astrarium.run.replay import replay
from tests.support.cluster.backend import backend, order, result, seen, words
from tests.support.cluster.virtual_cluster import VirtualCluster

pytest_plugins = ("tests.support.cluster.fixtures",)

KEY = RunKey(0, 0, 1)
ORDER = {
    "command": ["true"], "directory": "", "with_agent": False, "ready": False, "grace": 30, "least": 0,
    "account": {}, "umask": 0o022, "site": False, "place": 0, "run": 1, "resumed_run": 0, "logs": "part-0",
    "processes": [{"env": {}, "log": "log-0.txt"}], "locks": [],
}  # fmt: skip


def failing(times: int, error: BaseException, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that fails so often, and then does what the real one does."""
    left = [error] * times

    def tried(*given: Any, **named: Any) -> Any:
        if left:
            raise left.pop()
        return real(*given, **named)

    return tried


def full(number: int = errno.ENOSPC) -> OSError:
    return OSError(number, os.strerror(number))


# the log of a job


def test_words_that_find_no_room_are_counted_and_the_last_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = JobLog(JobFolder.open(tmp_path), "log.txt")
    real = os.write
    log.add(b"first\n")
    monkeypatch.setattr(os, "write", failing(1000, full(), real))
    for number in range(1000):
        log.add(f"{number:099}\n".encode())
    monkeypatch.setattr(os, "write", real)
    log.add(b"last\n")
    lost = 1000 * 100 - job_logs._HELD_BACK
    before, note, after = (
        (tmp_path / "log.txt").read_text().partition(f"\n[{lost} bytes are lost: the disk had no room]\n")
    )
    assert note
    assert before == "first\n"
    assert after.endswith(f"{999:099}\nlast\n")
    assert len(after) == job_logs._HELD_BACK + len("last\n")


def test_a_log_that_cannot_be_made_is_made_later(tmp_path: Path) -> None:
    (tmp_path / "log.txt").mkdir()
    log = JobLog(JobFolder.open(tmp_path), "log.txt")
    log.add(b"words\n")
    (tmp_path / "log.txt").rmdir()
    log.flush()
    assert (tmp_path / "log.txt").read_text() == "words\n"
    assert log.last_words() == "words"


# the outcome


def keeper(folder: Path) -> Keeper:
    (folder / "order.json").write_text(json.dumps(ORDER))
    return Keeper(folder)


def test_an_outcome_is_written_as_soon_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(keeper_module, "write_whole", failing(5, full(errno.EROFS), records.write_whole))
    keeper(tmp_path)._leave({"codes": [0]})
    assert len(pauses) == 5
    assert json.loads((tmp_path / "outcome.json").read_text()) == {"codes": [0]}


def test_a_keeper_whose_folder_is_gone_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "part-0"
    folder.mkdir()
    one = keeper(folder)
    (folder / "order.json").unlink()
    folder.rmdir()
    one._leave({"codes": [0]})
    assert not folder.exists()


def test_a_process_is_started_when_there_is_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, its = socketpair(AF_UNIX, SOCK_SEQPACKET)
    one = Runner(ORDER, its)
    pauses = list[float]()
    monkeypatch.setattr(one, "_keeper_says", pauses.append)
    monkeypatch.setattr(subprocess, "Popen", failing(3, full(errno.EAGAIN), subprocess.Popen))
    child = one._child({}, one._pump.open(JobFolder.open(tmp_path), "log.txt"))
    assert pauses == [SELDOM] * 3
    assert child is not None
    assert child.wait() == 0


@pytest.mark.parametrize("stopped", [False, True])
def test_a_runner_is_started_when_there_is_memory_for_it_and_it_is_still_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    order = {**ORDER, "folder": [str(tmp_path), "job-0", "run-1"]}
    (tmp_path / "order.json").write_text(json.dumps(order))
    one = Keeper(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: (tmp_path / "stop").touch() if stopped else None)
    monkeypatch.setattr(one, "_fork", failing(3, full(errno.EAGAIN), lambda: None))
    assert one._start() is not stopped
    outcome = one._outcome()
    assert (outcome["codes"], outcome["asked"]) == ([], stopped)


def test_a_process_for_which_there_is_no_memory_is_not_started_after_a_wish_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, its = socketpair(AF_UNIX, SOCK_SEQPACKET)
    order = {**ORDER, "folder": [str(tmp_path), "job-0", "run-1"]}
    ours.send(b'{"stop": true}')
    monkeypatch.setattr(subprocess, "Popen", failing(99, MemoryError(), subprocess.Popen))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    Runner(order, its).run()
    (tmp_path / "order.json").write_text(json.dumps(ORDER))
    one = Keeper(tmp_path)
    one._ask()
    ours.setblocking(False)
    one.told.hear(ours)
    one._leave(one._outcome())
    assert one.told.codes == []
    assert ending(read_file(tmp_path / "outcome.json", Outcome)) == ("stopped", "")


# the agent


@pytest.mark.parametrize("error", [full(), full(errno.ENOMEM), full(errno.EAGAIN), MemoryError()])
def test_what_could_not_be_started_is_started_at_a_later_look(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    one = backend(home)
    monkeypatch.setattr(subprocess, "Popen", failing(2, error, subprocess.Popen))
    one.start(order(1, JobCommand(words(script))))
    assert not list(home.glob("orders/*/*/*/part-*"))  # nothing half made
    assert one.look().runs[KEY] == RunStatus((0,), error=str(error) or "no memory")
    assert seen(one, 1).ended == "finished"
    assert result(home)["count"] == 20


def test_what_cannot_be_started_for_another_reason_is_told(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", failing(1, full(errno.EACCES), subprocess.Popen))
    with pytest.raises(PermissionError):
        backend(home).start(order(1, JobCommand(words(script))))


def test_a_run_that_is_given_up_before_there_is_room_was_not_started(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = backend(home)
    monkeypatch.setattr(subprocess, "Popen", failing(1, full(), subprocess.Popen))
    one.start(order(1, JobCommand(words(script))))
    one.stop(KEY)
    assert one.look().runs[KEY] == RunStatus((0,), "unstarted")
    one.forget(KEY)
    assert not one.look().runs
    assert not backend(home).look().runs


def test_an_arbiter_that_was_killed_between_a_folder_and_its_keeper(home: Path, script: Path) -> None:
    """Nothing was started yet: the next one starts it, and nothing is lost."""
    one = backend(home)
    task = JobCommand(words(script))
    (home / "orders" / "0-app" / "job-0" / "run-1" / "part-0").mkdir(parents=True)
    assert not one.look().runs
    one.start(order(1, task))
    assert seen(one, 1).ended == "finished"


def test_a_wish_that_cannot_be_written_reaches_the_job_later(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = backend(home)
    one.start(order(1, JobCommand(words(script, 5000, 0.02))))
    seen(one, 1, lambda run: run.progress > 0)
    monkeypatch.setattr(agent_module, "mark", failing(2, full(), records.mark))
    one.stop(KEY)
    assert seen(one, 1).ended == "stopped"
    monkeypatch.setattr(agent_module, "mark", failing(2, full(), records.mark))
    for _ in range(3):  # as a cluster does at every step, until it is no longer shown
        one.forget(KEY)
        assert backend(home).look().runs.keys() == one.look().runs.keys()
    one.forget(KEY)
    assert not one.look().runs
    assert not backend(home).look().runs


def test_an_outcome_that_cannot_be_read_now_is_not_taken_for_lost(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = backend(home)
    one.start(order(1, JobCommand(words(script))))
    seen(one, 1)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", failing(99, full(errno.EMFILE), Path.read_bytes))
        assert one.look().runs[KEY].ended == ""
    assert one.look().runs[KEY].ended == "finished"


# memory


@pytest.mark.parametrize(
    ("code", "oom", "told"),
    [
        (-9, 0, "killed by SIGKILL (out of memory?)"),
        (-9, 2, "killed by SIGKILL (out of memory: the kernel killed 2 here meanwhile)"),
        (137, 1, "exit code 137 (out of memory: the kernel killed 1 here meanwhile)"),
        (-15, 1, "killed by SIGTERM"),
        (1, 1, "exit code 1"),
    ],
)
def test_a_job_that_the_kernel_killed_is_told_as_such(code: int, oom: int, told: str) -> None:
    assert ending(Outcome([code], False, 0, oom)) == ("failed", told)


def test_jobs_go_first_where_memory_is_full(home: Path) -> None:
    one = backend(home)
    one.start(order(1, JobCommand(("cat", "/proc/self/oom_score_adj"))))
    seen(one, 1)
    [log] = home.glob("apps/*/*/*/*/log-0.txt")
    ours = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(log.read_text()) == min(1000, ours + 200)


def test_of_a_gang_that_was_asked_to_leave_all_have_the_time(home: Path, tmp_path: Path) -> None:
    """The last one is not ended because the others were faster."""
    code = (
        "import os, signal, sys, time; rank = os.environ['RANK']\n"
        "def leave(*_):\n"
        "    time.sleep(4 if rank == '0' else 0); open('left-' + rank, 'w').close(); os._exit(75)\n"
        "signal.signal(signal.SIGTERM, leave); open('up-' + rank, 'w').close(); time.sleep(300)\n"
    )
    task = JobCommand((sys.executable, "-c", code), "restart", "gpu", directory=str(tmp_path))
    one = backend(home)
    one.start(order(1, task, (0, 1)))
    seen(one, 1, lambda run: len(list(tmp_path.glob("up-*"))) == 2)
    one.stop(KEY)
    assert seen(one, 1).ended == "stopped"
    assert len(list(tmp_path.glob("left-*"))) == 2


# the session


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A session in a folder of its own, in virtual time, with a grace of 20 s."""
    monkeypatch.setenv("ASTRARIUM_FOLDER", str(tmp_path / "kept"))
    monkeypatch.setenv("ASTRARIUM_GRACE", "20")
    one = Clock()
    monkeypatch.setattr(session_module, "time", one)
    return one


def test_a_checkpoint_without_room_leaves_the_one_before_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Session(every=10)
    real = checkpoint_file._dump
    for step in one.steps(100):
        clock.now += 1
        broken = 20 <= step < 75
        monkeypatch.setattr(checkpoint_file, "_dump", failing(1, full(), real) if broken else real)
        one.checkpoint(step)
        if step == 70:
            assert Session().restore() == 10
            told = json.loads((one.folder / "progress.json").read_text())
            assert told["kept"] == 0.11
            assert told["progress"] > 0.6
    assert Session().restore() == 99
    assert sorted(path.name for path in one.folder.iterdir()) == ["checkpoint", "progress.json", "ready"]
    first, second = capsys.readouterr().err.splitlines()
    assert "checkpoint cannot be written: [Errno 28] No space left on device; it needs more than the" in first
    assert first.endswith("the job goes on, with 11 of 100 steps kept")
    assert second.endswith("checkpoint is written: there is room again")


def test_progress_that_cannot_be_told_troubles_no_job(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "write_whole", failing(3, full(), records.write_whole))
    monkeypatch.setattr(Path, "touch", failing(2, full(), Path.touch))
    one = Session(every=1000)
    for _ in one.steps(10):
        clock.now += 1
    assert json.loads((one.folder / "progress.json").read_text())["progress"] == 1.0
    assert (one.folder / "ready").exists()


@pytest.mark.parametrize("shared", [True, False])
def test_each_machine_of_a_gang_hears_that_the_job_is_up(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Also one that shares no folder with the first, and is full at first."""
    monkeypatch.setenv("RANK", "1")
    one = Session()
    if shared:
        (one.folder / "part-0").mkdir()
    monkeypatch.setattr(Path, "touch", failing(2, full(), Path.touch))
    for _ in one.steps(10):
        clock.now += 1
    assert (one.folder / "ready").exists() == (not shared)
    assert not (one.folder / "progress.json").exists()


def test_the_last_checkpoint_and_the_result_wait_for_room(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Session(every=1000)
    monkeypatch.setattr(checkpoint_file, "_dump", failing(500, full(errno.EDQUOT), checkpoint_file._dump))
    for step in one.steps(3):
        one.checkpoint(step)
    monkeypatch.setattr(session_module, "write_whole", failing(500, full(), records.write_whole))
    one.result({"steps": 3})
    assert clock.now >= 1000 + 2 * 500 * SELDOM
    assert Session().restore() == 2
    assert json.loads((one.folder / "result.json").read_text()) == {"steps": 3}


@pytest.mark.parametrize("at", ["a step", "the last checkpoint", "the result"])
def test_who_is_asked_to_stop_leaves_without_room_before_it_is_ended(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """With the checkpoint before, early enough to leave by itself."""
    one = Session(every=1)
    total = 10
    real = checkpoint_file._dump, records.write_whole
    asked_at = {"a step": 5, "the last checkpoint": total - 1}.get(at)

    def job() -> None:
        for step in one.steps(total):
            clock.now += 2
            if step == asked_at:
                one.ask()
                monkeypatch.setattr(checkpoint_file, "_dump", failing(99, full(), real[0]))
            one.checkpoint(step)
        one.ask()
        monkeypatch.setattr(session_module, "write_whole", failing(99, full(), real[1]))
        one.result(7)

    with pytest.raises(SystemExit) as left:
        job()
    assert left.value.code == STOPPED
    kept = total - 1 if asked_at is None else asked_at - 1
    assert Session().restore() == kept
    assert clock.now <= 1000 + 2 * (asked_at or total) + 2 + 20 / 2


def test_a_state_that_cannot_be_pickled_is_no_full_disk(clock: Clock) -> None:
    one = Session(every=0)
    with pytest.raises((TypeError, AttributeError)):
        one.write(1, lambda: 0)
    assert list(one.folder.iterdir()) == []


def test_pytorch_does_not_hide_a_full_disk(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    assert torch.__name__ in sys.modules
    with open("/dev/full", "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        checkpoint_file._dump({"done": 1, "state": torch.zeros(1000)}, file)


# the store and the arbiter


def no_room(code: int = sqlite3.SQLITE_FULL) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = code
    return error


def check_ended_well(cluster: VirtualCluster, policy: str = "tiresias") -> None:
    assert set(cluster.outcomes().values()) == {"finished"}
    for table in ("leases", "runs"):
        assert cluster.count(table, "outcome = 'open' OR ended IS NULL") == 0
    assert cluster.count("runs", "outcome IN ('lost', 'failed')") == 0
    started = cluster.backend.started
    assert cluster.count("runs", "outcome != 'unstarted'") == len(started) == len(set(started))
    parameters = {"fifo": {}, "max-min": {"round": "5s"}}.get(policy, {"lease": "5s"})
    fresh = Engine(
        ClusterState(FixedSlowdowns()), Arbiter(chosen(cluster_policies, Choice(policy, parameters)))
    )
    assert replay(fresh, cluster.arbiter.store.steps()) is None


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "themis", "max-min", "astrarium"])
def test_a_step_that_finds_no_room_is_written_later_and_nothing_is_ordered_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Every third step fails some times over, after the rows of it were written, and at the commit."""
    cluster = VirtualCluster(tmp_path, policy)
    for number in range(4):
        cluster.submit(f"app {number}", 1 + number % 3)
    cluster.submit("huge", 9)
    store = cluster.arbiter.store
    writes = 0
    failures = 0
    real = store._rows.write

    def sometimes(*given: Any) -> None:
        nonlocal writes
        writes += 1
        real(*given)
        if writes % 3:
            raise no_room()

    monkeypatch.setattr(store._rows, "write", sometimes)
    for _ in range(1500):
        cluster.clock.pass_seconds(0.5)
        before = (
            list(cluster.backend.started),
            {key: run.leaves_at for key, run in cluster.backend.runs.items()},
        )
        try:
            cluster.arbiter.turn()
        except sqlite3.OperationalError:
            failures += 1
            assert store.behind
            assert not cluster.arbiter.idle
            assert before == (
                cluster.backend.started, {key: run.leaves_at for key, run in cluster.backend.runs.items()}
            )  # fmt: skip
        if cluster.arbiter.idle:
            break
    assert failures > 10
    check_ended_well(cluster, policy)
    [answer] = cluster.rows("SELECT answer FROM inbox WHERE answer LIKE 'refused%'")
    assert answer["answer"] == "refused: gpus: expected at most 4 (got 9)"


def test_a_store_that_is_really_full(tmp_path: Path) -> None:
    """SQLite says so by itself: its file may not grow. It is left as it is, and goes on when it may."""
    cluster = VirtualCluster(tmp_path)
    cluster.submit("a", 2)
    cluster.go(2)
    store = cluster.arbiter.store
    [pages] = cluster.arbiter.store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    store.answer_later(cluster.submit("huge", 9), "x" * 10**6)
    for _ in range(3):
        cluster.clock.pass_seconds(0.5)
        with pytest.raises(sqlite3.OperationalError, match="full") as found:
            cluster.arbiter.turn()
        assert found.value.sqlite_errorcode == sqlite3.SQLITE_FULL
        assert store.behind
    store._db.execute(f"PRAGMA max_page_count = {pages + 1000}")
    cluster.go(60)
    assert not store.behind
    check_ended_well(cluster)


def test_an_arbiter_that_dies_with_a_step_that_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = VirtualCluster(tmp_path)
    for number in range(3):
        cluster.submit(f"app {number}", 2)
    cluster.go(7)
    monkeypatch.setattr(cluster.arbiter.store._rows, "write", failing(99, no_room(), lambda *_: None))
    steps = cluster.count("steps")
    with pytest.raises(sqlite3.OperationalError):
        cluster.go(20)
    cluster.clock.pass_seconds(30)
    assert cluster.count("steps") == steps
    cluster.die_and_come_back()
    cluster.go(300)
    assert set(cluster.outcomes().values()) == {"finished"}
    assert cluster.count("runs", "outcome = 'open'") == cluster.count("leases", "outcome = 'open'") == 0


def test_a_slow_disk_makes_nobody_dead_and_no_lease_end_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write takes longer than a lease."""
    cluster = VirtualCluster(tmp_path)
    for number in range(3):
        cluster.submit(f"app {number}", 2)
    real = cluster.arbiter.store.write

    def slowly(*given: Any) -> None:
        cluster.clock.pass_seconds(7)
        real(*given)

    monkeypatch.setattr(cluster.arbiter.store, "write", slowly)
    cluster.go(300)
    check_ended_well(cluster)
    assert cluster.count("leases", "outcome = 'lost'") == 0
    assert cluster.count("decisions", "what = 'lost'") == 0


def test_closing_without_room_leaves_the_status_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = VirtualCluster(tmp_path)
    cluster.submit("a")
    cluster.go(2)
    monkeypatch.setattr(cluster.arbiter.store, "_put", failing(9, no_room(), lambda *_: None))
    cluster.arbiter.close()
    assert '"arbiter":true' in cluster.rows("SELECT value FROM meta WHERE key = 'status'")[0]["value"]


# what the operator hears


@pytest.fixture
def disk_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[DiskWait, Clock]:
    clock = Clock()
    monkeypatch.setattr("astrarium.cluster.live.disk_wait.time", clock)
    return DiskWait(tmp_path, VirtualCluster(tmp_path).arbiter, lambda what, took: None), clock


def tried(wait: DiskWait, *errors: Exception) -> None:
    for error in errors:
        with wait.waited_for():
            raise error


READ_ONLY = no_room(sqlite3.SQLITE_READONLY | 3 << 8)


@pytest.mark.parametrize("error", [no_room(), READ_ONLY, no_room(sqlite3.SQLITE_BUSY), full(errno.EMFILE)])
def test_the_operator_hears_what_is_needed_now_and_then_and_when_it_goes_on(
    disk_wait: tuple[DiskWait, Clock], capsys: pytest.CaptureFixture[str], tmp_path: Path, error: Exception
) -> None:
    one, clock = disk_wait
    tried(one, error)
    assert not one.missing
    tried(one, *[error] * 20)
    assert one.missing
    [told] = capsys.readouterr().err.splitlines()
    assert told.startswith(f"the arbiter waits: {tmp_path} cannot be written ({error}); ")
    assert re.search(r"MB are free there, about 0\.\d\d MB are needed", told)
    clock.now += DiskWait.SAY
    tried(one, *[error] * 20)
    assert len(capsys.readouterr().err.splitlines()) == 1
    with one.waited_for():
        pass
    assert not one.missing
    assert capsys.readouterr().err == f"{tmp_path} can be written again: the arbiter goes on\n"


def test_a_slow_turn_is_told_and_a_broken_store_is_not_waited_for(
    disk_wait: tuple[DiskWait, Clock], capsys: pytest.CaptureFixture[str]
) -> None:
    one, clock = disk_wait
    for _ in range(3):
        with one.waited_for():
            clock.now += 9
    assert capsys.readouterr().err.count("a turn took 9 s: the disk of") == 1
    for error in (no_room(sqlite3.SQLITE_CORRUPT), full(errno.ENOENT), no_room(sqlite3.SQLITE_ERROR)):
        with pytest.raises(type(error)):
            tried(one, error)


def test_that_it_waits_is_an_event_when_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = VirtualCluster(tmp_path)
    waits = list[float]()
    one = DiskWait(tmp_path, cluster.arbiter, lambda what, took: waits.append(took / SECOND))
    real = cluster.arbiter.store.tell
    tell = failing(4, no_room(), cluster.arbiter.store.tell)
    monkeypatch.setattr(cluster.arbiter.store, "tell", tell)
    began = cluster.arbiter.now()
    for _ in range(4):
        tried(one, no_room())
        cluster.clock.pass_seconds(1)
    assert waits == [0, 1, 2]
    assert not cluster.count("events", "kind = 'arbiter_waits'")
    for _ in range(3):
        with one.waited_for():
            pass
    monkeypatch.setattr(cluster.arbiter.store, "tell", real)
    found = cluster.rows("SELECT at, kind, name, reason FROM events WHERE kind != 'arbiter_started'")
    assert [(each["at"] - began, each["kind"], each["name"]) for each in found] == [
        (1 * SECOND, "arbiter_waits", "arbiter 1"),
        (4 * SECOND, "arbiter_goes_on", "arbiter 1"),
    ]
    assert found[0]["reason"].startswith(f"{tmp_path} cannot be written (")
    assert found[0]["reason"].endswith("MB are needed")
    assert (found[1]["reason"], waits[-1]) == ("it has waited 3 s", 0)
    cluster.die_and_come_back()
    [begins] = cluster.rows("SELECT reason FROM events ORDER BY id DESC LIMIT 1")
    assert "the one before left without a word" in begins["reason"]
