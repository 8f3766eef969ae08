"""On a small file system that is full, jobs run on, the arbiter waits, and all ends as with room enough."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.cluster.jobs import Arbiter, arbiter, check_accounts, results

pytestmark = pytest.mark.long

TALKS = """\
import sys, time
from pathlib import Path
from astrarium import cluster_job
total, mark = int(sys.argv[1]), Path(sys.argv[2])
with cluster_job.session() as session:
    values = session.restore() or []
    for step in session.steps(total):
        time.sleep(0.05)
        print("words " * 300, flush=True)
        values.append(step * step)
        if step == total - 1:
            mark.touch()
        session.checkpoint(values)
    session.result({"sum": sum(values), "count": len(values)})
"""
STEPS = 60
WAITS = "the arbiter waits"
GOES_ON = "the arbiter goes on"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB of its own."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place))
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nobody here may mount a small file system: {done.stderr.strip()}")
    yield place
    subprocess.run(("umount", "-l", str(place)), check=True)


def test_all_of_this_without_being_root() -> None:
    """In a namespace of their own, ordinary users may mount as well."""
    own = ("unshare", "--user", "--map-root-user", "--mount")
    if os.geteuid() == 0:
        pytest.skip("root needs no namespace: the tests below mount by themselves")
    if subprocess.run((*own, sys.executable, "-c", ""), capture_output=True).returncode:
        pytest.skip("no root, and no namespaces for users: nobody here may mount a small file system")
    inner = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", __file__)
    done = subprocess.run((*own, *inner), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


def fill(place: Path) -> bool:
    """To the last page; what is given back meanwhile is taken too."""
    with (place / "fill").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return True


def cluster_file(tmp_path: Path, **live: Any) -> Path:
    script = tmp_path / "talks.py"
    script.write_text(TALKS)
    apps = [
        {"name": name, "length": "3s", "command": [sys.executable, str(script), str(STEPS), str(mark)]}
        for name, mark in {"a": tmp_path / "mark-a", "b": tmp_path / "mark-b"}.items()
    ]
    raw = {
        "machines": [{"count": 1, "gpus": 2}], "apps": apps, "policy": {"name": "fifo"},
        "live": {"least": "100ms", "checkpoints": "200ms", "look": "50ms", **live},
    }  # fmt: skip
    file = tmp_path / "cluster.yaml"
    file.write_bytes(msgspec.yaml.encode(raw))
    return file


def started(one: Arbiter, tmp_path: Path) -> None:
    one.words = tmp_path / "arbiter.txt"  # not on the small disk
    one.start()
    one.waited(lambda: len(list(one.home.glob("apps/*/*/*/ready"))) == 2, "both run")


def filled(one: Arbiter, small: Path) -> None:
    """The disk is full, the arbiter has said so, and jobs have come to their ends."""
    one.waited(lambda: fill(small) and WAITS in one.words.read_text(), "it waits")
    marks = [one.words.parent / f"mark-{name}" for name in "ab"]
    one.waited(lambda: fill(small) and all(mark.exists() for mark in marks), "jobs run on")
    time.sleep(1.5)  # enough for a last checkpoint to have failed, and for what would follow from that


def check_all_ended_well(one: Arbiter) -> None:
    check_accounts(one)
    assert one.query("SELECT run, outcome, error FROM runs") == [(1, "finished", "")] * 2
    assert one.query("SELECT outcome FROM leases") == [("returned",)] * 2
    expected = {"sum": sum(n * n for n in range(STEPS)), "count": STEPS}
    assert results(one.home) == {("a", 0): expected, ("b", 0): expected}
    assert not list(one.home.glob("apps/*/*/*/.*"))  # no half of anything


@pytest.mark.thorough
def test_all_goes_on_when_there_is_room_again(small: Path, tmp_path: Path) -> None:
    with arbiter(cluster_file(tmp_path), small / "here.state") as one:
        started(one, tmp_path)
        filled(one, small)
        [warning] = [line for line in one.words.read_text().splitlines() if WAITS in line]
        assert f"{one.home} cannot be written (database or disk is full)" in warning
        assert "MB are free there, about" in warning
        assert GOES_ON not in one.words.read_text()
        (small / "fill").unlink()
        one.end()
        assert GOES_ON in one.words.read_text()
        kinds = one.query("SELECT kind FROM events WHERE kind GLOB 'arbiter_*' ORDER BY id")
        assert [kind.removeprefix("arbiter_") for (kind,) in kinds] == [
            "started",
            "waits",
            "goes_on",
            "ended",
        ]
        check_all_ended_well(one)
        log = next(iter(one.home.glob("apps/0-a/*/*/*/log-0.txt"))).read_text()
        assert "bytes are lost: the disk had no room" in log
        assert "is written: there is room again" in log


@pytest.mark.thorough
@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_arbiter_that_leaves_while_the_disk_is_full(small: Path, tmp_path: Path, ends: int) -> None:
    """Killed or interrupted: it leaves at once, jobs run on, and the next one finds all that happened."""
    with arbiter(cluster_file(tmp_path), small / "here.state") as one:
        started(one, tmp_path)
        filled(one, small)
        assert one.send(ends) in (-signal.SIGKILL, 130)
        (small / "fill").unlink()
        one.waited_alone(lambda: len(list(one.home.glob("orders/*/*/*/*/outcome.json"))) == 2, "jobs end")
        one.start()
        one.end()
        check_all_ended_well(one)


def test_jobs_begin_when_there_is_room_for_them(small: Path, tmp_path: Path) -> None:
    """The disk of jobs is full from the beginning, that of the store is not."""
    file = cluster_file(tmp_path, jobs=str(small / "jobs"))
    fill(small)
    with arbiter(file, tmp_path / "here.state") as one:
        one.start()
        expected = "job 0, run 1 cannot begin yet: [Errno 28] No space left on device"
        one.waited(lambda: one.words.read_text().count(expected) == 2, "it says what it waits for")
        assert one.query("SELECT outcome FROM runs") == [("open",)] * 2
        assert not list(small.glob("jobs/apps/*/*/*/*"))
        (small / "fill").unlink()
        one.end()
        check_accounts(one)
        assert one.query("SELECT run, outcome FROM runs") == [(1, "finished")] * 2
