"""Attacks on the keepers, errands and folders of a shared cluster; most of them have once succeeded.

Users are bare numbers, as in test_attacks; root is needed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from astrarium.cluster.live.backend import JobCommand, Order, RunKey, RunPart
from astrarium.cluster.live.machine import as_owner
from astrarium.cluster.live.machine.as_owner import Errand
from astrarium.cluster.live.machine.folders import newest_checkpoint
from astrarium.cluster.live.machine.owners import NO_GROUP, account, check_above
from astrarium.core.errors import InputError
from tests.support.cluster import attacks
from tests.support.cluster.attacks import machines
from tests.support.cluster.backend import order, seen
from tests.support.cluster.hosts import on, two_hosts, waited
from tests.support.cluster.jobs import end_keepers
from tests.support.cluster.users import needs_root

pytestmark = needs_root
pytest_plugins = ("tests.support.cluster.fixtures",)


MALLORY = 62000 + os.getpid() % 3000  # of this process alone: no other test's processes are ended, or counted


@pytest.fixture
def home(open_path: Path) -> Iterator[Path]:
    yield open_path / "here.state"
    end_keepers(open_path / "here.state")
    while processes := of_mallory():
        for process in processes:
            os.kill(process, signal.SIGKILL)


def of_mallory() -> list[int]:
    """Return the processes that Mallory has on this machine."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.stat().st_uid == MALLORY and b") Z " not in path.read_bytes():
                processes.append(int(path.parent.name))
        except OSError:
            continue
    return processes


evil = partial(attacks.evil, user=MALLORY)
finished = partial(attacks.finished, user=MALLORY)
HIDE = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        (at / 'hidden').touch()
        time.sleep(60)
        os._exit(0)
    os._exit(0)
while not (at / 'hidden').exists(): time.sleep(0.01)
"""
HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    "claims",
    [f'{{"progress": {HUGE}}}', f'{{"kept": -{HUGE}}}', f'{{"trouble": [{HUGE}]}}', '{"progress": NaN}'],
)
def test_what_a_job_says_ends_no_keeper(home: Path, claims: str) -> None:
    code = f"{HIDE}\n(at / 'progress.json').write_text({claims!r}); time.sleep(2)"
    finished(home, code)
    assert of_mallory() == []


HOP = """

def hop():
    while True:
        if os.fork(): os._exit(0)
        os.setsid()
for _ in range(%d):
    if os.fork() == 0: hop()
(at / 'hopping').touch()
time.sleep(600)
"""


BOMB = """
import resource
resource.setrlimit(resource.RLIMIT_NPROC, (50, 50))
(at / 'hopping').touch()
while True:
    try: os.fork() or os.setsid()
    except OSError: pass
"""


@pytest.mark.parametrize("code", [HOP % 1, HOP % 40, BOMB], ids=["one", "forty", "bomb"])
def test_who_hops_from_process_to_process_is_caught(home: Path, code: str) -> None:
    one = machines(home)
    one._grace = 1.0
    one.start(order(1, evil(code, on_stop="restart")))
    seen(one, 1, lambda run: (home / "apps/0-app/job-0/run-1/hopping").exists())
    time.sleep(0.5)
    one.stop(RunKey(0, 0, 1))
    assert seen(one, 1).ended == "stopped"
    assert of_mallory() == []


TRACER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
while True:
    for name in filter(str.isdecimal, os.listdir('/proc')):
        try: mine = b'prey' in open(f'/proc/{name}/cmdline', 'rb').read() and int(name) != os.getpid()
        except OSError: continue
        if mine: libc.ptrace(0x4206, int(name), 0, 0)  # PTRACE_SEIZE
    time.sleep(0.01)
"""


@pytest.mark.thorough
def test_who_traces_the_dead_keeps_no_gpu(home: Path) -> None:
    """A process that another one of its owner's traces cannot be reaped by its parent: the keeper once waited
    for it for ever, before all others."""
    one = machines(home)
    one.start(order(1, evil("prey = 1; (at / 'up').touch(); time.sleep(600)", on_stop="restart")))
    seen(one, 1, lambda run: (home / "apps/0-app/job-0/run-1/up").exists())
    words = ["/usr/bin/env", "python3", "-c", TRACER]
    tracer = subprocess.Popen(words, cwd="/", user=MALLORY, group=NO_GROUP, extra_groups=[])
    try:
        [prey] = [
            process
            for process in of_mallory()
            if b"prey = 1" in Path(f"/proc/{process}/cmdline").read_bytes()
        ]
        waited(lambda: f"TracerPid:\t{tracer.pid}" in Path(f"/proc/{prey}/status").read_text())
        one.stop(RunKey(0, 0, 1))
        assert seen(one, 1).ended == "stopped"
        assert Path(f"/proc/{prey}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    finally:
        tracer.kill()
        tracer.wait()


def test_an_errand_that_is_halted_again_and_again_is_left(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(home, "(at / 'part-0/log-0.txt').write_bytes(b'x' * (64 << 20))")
    monkeypatch.setattr(as_owner, "SILENCE", 0.5)
    monkeypatch.setattr(as_owner, "SLOWEST", 1 << 40)
    with Errand("read", home / "apps/0-app", [], str(1 << 30), stdin=True) as errand:
        errand.write(json.dumps({"job-0/run-1/part-0/log-0.txt": 0}).encode())
        errand.close_input()
        with pytest.raises(OSError, match="an errand for a job did not go on"):
            _read_while_it_is_halted(errand)


def _read_while_it_is_halted(errand: Errand) -> None:
    while errand.read(1 << 16):
        errand._process.send_signal(signal.SIGSTOP)
        threading.Timer(0.1, errand._process.send_signal, [signal.SIGCONT]).start()


def test_a_user_has_a_part_of_all_processes(home: Path) -> None:
    """One user's processes once were all that the machine could have."""
    one = finished(home, "import resource; print(*resource.getrlimit(resource.RLIMIT_NPROC))")
    [log] = (home / "apps/0-app").rglob("log-0.txt")
    soft, hard = map(int, log.read_text().split())
    assert one.look().runs[RunKey(0, 0, 1)].ended == "finished"
    assert soft == hard <= int(Path("/proc/sys/kernel/pid_max").read_text()) // 4


def test_words_of_a_job_are_one_line_that_can_be_read_again(home: Path) -> None:
    """A half of a character in its trouble once made a run lost, which no limit of retries counts."""
    claims = json.dumps({"trouble": "\ud800 no\nroom\x1b[2J"})
    code = f"(at / 'progress.json').write_text({claims!r}); (at / 'up').touch(); time.sleep(1); sys.exit(3)"
    one = machines(home)
    one.start(order(1, evil(code)))
    assert seen(one, 1, lambda run: bool(run.trouble or run.ended)).trouble == "  no room [2J"
    assert seen(one, 1).ended == "failed"


def test_a_job_with_very_many_runs_is_started_as_fast_as_one_with_few(home: Path) -> None:
    one = finished(home, "(at / 'checkpoint').write_text('mine')")
    assert newest_checkpoint(home, order(5000, evil("pass"))).run == 1
    one.start(order(5000, evil("pass")))
    assert seen(one, 5000).ended == "finished"
    runs: list[Path] = []
    sys.addaudithook(lambda event, arguments: runs.append(arguments[0]) if event == "open" else None)
    newest = newest_checkpoint(home, order(5001, evil("pass")))
    assert (newest.run, newest.checkpoint) == (1, str(home / "apps/0-app/job-0/run-1/checkpoint"))
    assert len(runs) < 10


@pytest.mark.parametrize("mode", [0o700, 0o1777])
def test_a_folder_that_somebody_else_has_made_is_not_ours(open_path: Path, mode: int) -> None:
    """Where everybody may make a folder, as in /tmp, it may be there before its agent or arbiter is."""
    (open_path / "tmp").mkdir()
    (open_path / "tmp").chmod(0o1777)
    there = open_path / "tmp" / "agent"
    there.mkdir()
    there.chmod(mode)
    if mode == 0o700:
        os.chown(there, MALLORY, -1)
    with pytest.raises(InputError, match="--folder: expected a folder below"):
        check_above("--folder", there)
    check_above("--folder", open_path / "tmp" / "another")


def test_a_number_is_written_in_our_digits() -> None:
    for owner in ("\u0666\u0661\u0660\u0667\u0667", str((1 << 32) - 1)):
        assert "unknown" in account(JobCommand(("true",), owner=owner)), owner


HALT = """
import signal
(at / 'up').touch()
while True:
    for number in filter(str.isdecimal, os.listdir('/proc')):
        try:
            words = open(f'/proc/{number}/cmdline').read().split(chr(0))
            if 'clear' in words and TOP in words:
                os.kill(int(number), signal.SIGSTOP)
                (at / 'halted').touch()
        except OSError: pass
    time.sleep(0.001)
"""
WRITE = "(at / 'checkpoint').write_text(os.environ['ASTRARIUM_RUN'])"
# drafts of a checkpoint: an errand that clears them away is there for as long as it takes to be seen
LITTER = "[(at / f'.checkpoint.{number}').touch() for number in range(50_000)]"


def clearing(top: Path) -> list[Path]:
    """The processes of errands that clear files away below *top*."""
    processes = []
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = words.read_bytes().split(b"\0")
            processes += [words.parent] if b"clear" in arguments and bytes(top) in arguments else []
    return processes


def test_an_errand_that_is_halted_keeps_no_other_app_waiting(open_path: Path) -> None:
    """A checkpoint on the left machine is to be cleared away, and its owner does not let it be."""
    with two_hosts(open_path) as (office, left, right):
        for run, machine, code in ((1, "left.1", f"{WRITE}; {LITTER}"), (2, "right.1", WRITE)):
            office.started(on(run, evil(code), machine))
            assert office.seen(run).ended == "finished"
            office.forget(run)
        [top] = left.folder.glob("*/apps/0-app")
        office.started(alone(1, "right.1", evil(f"TOP = {str(top)!r}\n{HALT}")))
        waited(lambda: right.files("run-1/up"))
        office.started(on(3, evil("time.sleep(60)"), "right.1"))  # what lies on the left is old now
        waited(lambda: (office.backend.look(), right.files("run-1/halted"))[1])
        other = alone(2, "left.1", JobCommand(("true",), owner="61078", directory="/"))
        office.started(other)
        waited(lambda: office.backend.look().runs[other.key].ended == "finished")
        assert clearing(top), "the errand has not been given up"


def alone(app: int, machine: str, task: JobCommand) -> Order:
    """The first run of another app, on the second GPU of a machine."""
    return Order(RunKey(app, 0, 1), "other", (app + 1,), (RunPart(machine, (1,)),), task)


PACK = """
os.truncate(os.open(at / 'checkpoint', os.O_RDWR | os.O_CREAT), 1 << 33)
"""


def test_no_archiver_outlives_its_errand(home: Path) -> None:
    finished(home, PACK)
    with Errand("pack", home / "apps/0-app", ["job-0", "run-1"]) as errand:
        assert errand.line()
        assert errand.read(1 << 16)
        os.kill(errand._process.pid, signal.SIGSTOP)  # its owner may do that, and not trace it
        assert of_mallory() == []  # it has no other process, which could be taken over
    assert errand._process.returncode == -signal.SIGKILL


LOOK = """
import ctypes
found = []
parent = os.getppid()
for name in ('environ', 'mem', 'maps', 'fd/0', 'fd/2', 'cwd/x', 'root'):
    try: open(f'/proc/{parent}/{name}', 'rb').read(1); found.append(name)
    except OSError: pass
try: found += os.listdir(f'/proc/{parent}/fd')
except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, parent, 0, 0) == 0: found.append('ptrace')
pidfd = os.pidfd_open(parent)
for number in range(12):
    if libc.syscall(438, pidfd, number, 0) >= 0: found.append(f'descriptor {number}')
mine = {int(name) for name in os.listdir('/proc/self/fd')}
found += [name for name in os.environ if 'SECRET' in name]
(at / 'told').write_text(json.dumps([found, os.getuid(), os.getgroups(), os.readlink('/proc/self/fd/0')]))
"""


def test_a_job_sees_nothing_of_its_runner(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of root")
    finished(home, LOOK)
    report = json.loads((home / "apps/0-app/job-0/run-1/told").read_text())
    assert report == [[], MALLORY, [], "/dev/null"]
