"""What must hold when the cluster of faults.py has come to rest: by its store, its folders, and its jobs."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from _fault_users import STRANGER, USERS

from astrarium.cluster.live.store import FILE, open_database

ATTACKS = (
    "links", "pipes", "sparse", "folders", "forged", "locks", "daemons", "runner", "claims", "words",
    "elsewhere", "sockets",
)  # fmt: skip
FIRST = "first"  # the app of the arbiter's file
GUARDED = ("canary", "precious")  # names of files
LARGE = 1 << 26  # bytes of files that nobody has filled
Seen = dict[str, tuple[int, ...]]


class FaultApp(NamedTuple):
    """An app that a user submits, and what its job does in so many steps."""

    name: str
    user: int
    kind: str
    steps: int
    gpus: int

    @property
    def honest(self) -> bool:
        return self.kind == "honest"


def query(home: Path, text: str) -> list[Any]:
    with closing(open_database(home / FILE, read_only=True)) as db:
        return db.execute(text).fetchall()


def outcomes(home: Path) -> dict[str, str]:
    return dict(query(home, "SELECT name, outcome FROM apps"))


TWICE = """SELECT a.gpu FROM leases a JOIN leases b ON a.gpu = b.gpu AND a.id < b.id
           WHERE a.since < b.ended AND b.since < a.ended"""
OPEN = "SELECT 1 FROM {} WHERE outcome = 'open' OR ended IS NULL"
FINISHED = """SELECT name, count(*) FROM runs JOIN apps ON runs.app = apps.id
              WHERE runs.outcome = 'finished' GROUP BY name, job"""


def in_the_store(home: Path, apps: Sequence[FaultApp]) -> Iterator[tuple[str, int]]:
    """Yield laws, and how often each is broken."""
    ended = outcomes(home)
    finished = dict(query(home, FINISHED))
    honest = [ended.get(app.name) for app in apps if app.honest]
    yield "honest apps that did not finish", sum(outcome != "finished" for outcome in honest)
    yield "apps in no final state", sum(ended.get(app.name) not in ("finished", "failed") for app in apps)
    yield "apps that nobody submitted", len(ended.keys() - {FIRST, *(app.name for app in apps)})
    forged = [ended.get(app.name) for app in apps if app.kind == "forged"]
    yield "forged outcomes that were believed", sum(outcome != "failed" for outcome in forged)
    wrong = sum(finished.get(name, 0) != (outcome == "finished") for name, outcome in ended.items())
    yield "apps with a finished run too many or too few", wrong
    yield (
        "leases and runs left open",
        sum(len(query(home, OPEN.format(table))) for table in ("leases", "runs")),
    )
    yield "GPUs leased twice at a time", len(query(home, TWICE))


def state(folder: Path) -> Seen:
    """Return when everything in a folder was read and changed, and how large it is."""
    states = {}
    for path in (folder, *folder.rglob("*")):
        seen = path.lstat()
        times = () if path.is_dir() else (seen.st_atime_ns,)  # this is how folders are looked at
        states[str(path)] = (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, *times)
    return states


def in_the_folders(place: Path, jobs: Path, token: bytes) -> Iterator[tuple[str, int]]:
    """Yield laws of the files of a cluster, in whose place the token is written in guarded files alone."""
    every = [Path(top, name) for top, _, names in os.walk(place) for name in names]
    plain = [path for path in every if path.name not in GUARDED and _plain(path)]
    yield "files with words of a guarded file", sum(token in path.read_bytes() for path in plain)
    orders = (jobs / "orders").rglob("*")
    users = (jobs / "apps").iterdir()
    yield "files of users among the orders", sum(path.lstat().st_uid != 0 for path in orders)
    yield "files of others in folders of users", sum(_foreign(folder) for folder in users)
    words = jobs.glob("orders/*/*/*/*/keeper.txt")
    yield "errors of keepers", sum(bool(path.read_text()) for path in words)


def results(jobs: Path, apps: Sequence[FaultApp]) -> Iterator[tuple[str, int]]:
    wrong = sum(_result(jobs, app) != expected(app) for app in apps if app.honest)
    yield "wrong results of honest jobs", wrong


def _plain(path: Path) -> bool:
    seen = path.lstat()
    return stat.S_ISREG(seen.st_mode) and seen.st_size < LARGE


def _foreign(app: Path) -> int:
    owner = app.stat().st_uid
    return sum(path.lstat().st_uid != owner for path in app.rglob("*"))


def expected(app: FaultApp) -> Any:
    return {"sum": sum(step * step for step in range(app.steps))}


def _result(jobs: Path, app: FaultApp) -> Any:
    """Return the result of the last run that has one."""
    results = list(jobs.glob(f"apps/*-{app.name}/job-0/run-*/result.json"))
    last = max(results, key=lambda path: int(path.parent.name.partition("-")[2]), default=None)
    return json.loads(last.read_text()) if last is not None else None


def by_the_jobs(place: Path) -> Iterator[tuple[str, int]]:
    for name, what in (("met", "jobs that met another on a GPU"), ("could", "forbidden things that worked")):
        yield what, sum(len(noted(place, user, name)) for user in USERS)


def noted(place: Path, user: int, name: str) -> list[str]:
    path = place / f"seen-{user}" / name
    return path.read_text().splitlines() if path.exists() else []


def left_over() -> dict[int, str]:
    """Return processes of the users, and their command lines."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ids = next(line for line in (path / "status").read_text().splitlines() if line.startswith("Uid:"))
            if int(ids.split()[1]) in (*USERS, STRANGER):
                processes[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ").strip()
        except OSError:
            continue
    return processes
