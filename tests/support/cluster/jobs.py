"""Live clusters for tests: the arbiter as a process of its own, jobs that tell what came out."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.cluster.live.store import FILE, open_database

LONGEST = 400.0  # seconds: far more than needed, on a machine that is busy with other things


class Arbiter:
    """`astrarium run` in a process of its own; its words are kept in a file."""

    def __init__(self, file: Path, home: Path, *options: str) -> None:
        self.home = home
        self._file = file
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.words = home.parent / "arbiter.txt"

    def start(self) -> None:
        command = [sys.executable, "-m", "astrarium", "run", str(self._file)]
        with self.words.open("ab") as words:
            self.process = subprocess.Popen(
                [*command, "--state", str(self.home), *self._options], stdout=words, stderr=words
            )

    def send(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(LONGEST)

    def kill(self) -> None:
        assert self.send(signal.SIGKILL) == -signal.SIGKILL

    def end(self) -> None:
        assert self.process is not None
        self.process.wait(LONGEST)
        assert self.process.returncode == 0, self.words.read_text()

    def waited(self, until: Callable[[], Any], what: str) -> Any:
        """For as long as the arbiter lives."""
        ends = time.monotonic() + LONGEST
        while time.monotonic() < ends:
            value = until()
            if value:
                return value
            if self.process is not None and self.process.poll() is not None:
                pytest.fail(f"{what}: the arbiter has ended: {self.words.read_text()[-3000:]}")
            time.sleep(0.1)
        pytest.fail(f"{what}: not within {LONGEST} s: {self.words.read_text()[-3000:]}")

    def waited_alone(self, until: Callable[[], Any], what: str) -> Any:
        """While no arbiter runs."""
        self.process = None
        return self.waited(until, what)

    def query(self, text: str) -> list[Any]:
        """What the store says; nothing, as long as there is none."""
        if not (self.home / FILE).exists():
            return []
        db = open_database(self.home / FILE, read_only=True)
        try:
            return db.execute(text).fetchall()
        except sqlite3.OperationalError:  # not yet made
            return []
        finally:
            db.close()


@contextmanager
def arbiter(file: Path, home: Path, *options: str) -> Iterator[Arbiter]:
    """Whatever happens, nothing runs on when the test is over."""
    one = Arbiter(file, home, *options)
    try:
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        end_keepers(home.parent)


def end_keepers(home: Path) -> None:
    """Of this state folder only: each is known by its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"/keeping/__main__.py") for word in words) and any(
            word.startswith(os.fsencode(home) + b"/") for word in words
        ):
            os.kill(int(path.parent.name), signal.SIGKILL)


def results(home: Path) -> dict[tuple[str, int], Any]:
    """By app and job: what its last run said."""
    by_job = {}
    for path in sorted(home.glob("apps/*/job-*/run-*/result.json")):
        app = path.parts[-4].partition("-")[2]
        job = int(path.parts[-3].partition("-")[2])
        by_job[app, job] = json.loads(path.read_text())
    return by_job


def check_accounts(one: Arbiter) -> None:
    """Every app, job, lease and run has ended, in one state; and no two jobs were ever on one GPU."""
    assert {row[0] for row in one.query("SELECT outcome FROM apps")} == {"finished"}
    assert {row[0] for row in one.query("SELECT outcome FROM jobs")} == {"finished"}
    assert not one.query("SELECT * FROM leases WHERE outcome = 'open' OR ended IS NULL")
    assert not one.query("SELECT * FROM runs WHERE outcome = 'open' OR ended IS NULL")
    assert not one.query(
        "SELECT a.gpu FROM leases a JOIN leases b ON a.gpu = b.gpu AND a.id < b.id "
        "WHERE a.since < b.ended AND b.since < a.ended"
    )
    finished = one.query("SELECT app, job, count(*) FROM runs WHERE outcome = 'finished' GROUP BY app, job")
    assert len(finished) == len(one.query("SELECT * FROM jobs"))
    assert {count for _, _, count in finished} == {1}


def cluster_file(tmp_path: Path, script: Path, **changes: Any) -> Path:
    """Write a live cluster of two machines with three apps of a script; *changes* replace top keys."""
    python = sys.executable
    apps: list[dict[str, Any]] = [
        {
            "name": "wide",
            "gpus": 4,
            "length": "5s",
            "processes": "job",
            "command": f"{python} {script} 60 0.05",
        },
        {"name": "twins", "gpus": 2, "jobs": 2, "length": "4s", "command": f"{python} {script} 50 0.05"},
        {"name": "late", "length": "2s", "arrival": "1s", "command": [python, str(script), "30", "0.05"]},
    ]
    live = {"grace": "30s", "least": "500ms", "checkpoints": "500ms", "progress": "500ms", "look": "50ms"}
    raw = {
        "machines": [{"count": 2, "gpus": 2}],
        "apps": apps,
        "policy": {"name": "tiresias", "lease": "2s"},
        "live": live,
        **changes,
    }
    file = tmp_path / "cluster.yaml"
    file.write_bytes(msgspec.yaml.encode(raw))
    return file
