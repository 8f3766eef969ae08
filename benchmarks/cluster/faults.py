"""A live cluster of two users on which everything goes wrong, and what must hold all the same.

Jobs of two users run as their owners on one cluster, while the arbiter and keepers are killed, every fifth
job attacks, the disk of jobs is full for a while, and connections flood the arbiter. What is broken is told,
and is the exit code. It must be root, and needs a Python of the system that everybody can run.

python benchmarks/cluster/faults.py --quick
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from _fault_laws import (
    ATTACKS,
    FIRST,
    FaultApp,
    by_the_jobs,
    in_the_folders,
    in_the_store,
    left_over,
    noted,
    outcomes,
    query,
    results,
    state,
)
from _fault_users import IDLE, STRANGER, STRANGERS, USERS, Child, as_user, flood, poll, read_logs, submit

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what all benchmarks share

from _measure import ROOT, Row, number
from astrarium.cluster.live.machine.owners import NO_GROUP

MACHINES = 2
GPUS = 4
SMALL_MB = 48  # the disk of jobs
FULL_S = 6.0  # how long it is full
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
TICK = 0.1  # seconds
ORPHANS = "daemons whose keeper was killed, and which are left"


def main() -> int:
    options = _arguments()
    if os.geteuid() != 0:
        sys.exit("faults.py runs jobs as other users: it must be root")
    with cluster_place() as place:
        cluster = FaultyCluster(place, Random(options.seed))
        apps = drawn(options.apps, options.every, Random(options.seed))
        try:
            rows = played(cluster, apps, options)
        finally:
            cluster.clear()
    print(table(rows))
    return int(any(row.met is False for row in rows))


def table(rows: Sequence[Row]) -> str:
    rows_of_cells = [("what", "seen", "must be"), ("---",) * 3]
    for row in rows:
        law = "" if row.bar is None else f"{number(row.bar)}{'' if row.met else ' (BROKEN)'}"
        rows_of_cells.append((row.what, f"{number(row.median)} {row.unit}".strip(), law))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows_of_cells)


def drawn(count: int, every: int, rng: Random) -> list[FaultApp]:
    """Return apps of both users in turns: short ones of one or two GPUs. One of *every* so many attacks."""
    apps = []
    for index in range(count):
        kind = ATTACKS[index // every % len(ATTACKS)] if index % every == 0 else "honest"
        user = list(USERS)[(index // every + index) % len(USERS)]
        apps.append(FaultApp(f"app-{index}", user, kind, rng.randrange(10, 80), rng.choice((1, 1, 1, 2))))
    return apps


def played(cluster: FaultyCluster, apps: Sequence[FaultApp], options: argparse.Namespace) -> list[Row]:
    began = time.monotonic()
    cluster.start()
    users = [cluster.submitting(apps, user, options.seconds) for user in USERS]
    others = cluster.others()
    cluster.suffer(options.seconds)
    cluster.rest(users, apps, others)
    asked = others["poll"].end()
    logs = [cluster.logs(apps, user).told() for user in USERS]
    cluster.leave()
    rows = list(cluster.broken(apps, [log for of_user in logs for log in of_user]))
    return [*rows, *cluster.counted(apps, asked, time.monotonic() - began)]


class FaultyCluster:
    """One arbiter at a time, the machine that it runs on, and all that is done to both."""

    def __init__(self, place: Path, rng: Random) -> None:
        self.place = place
        self._rng = rng
        self.home = place / "here.state"
        self.token = secrets.token_hex(16)
        self._words = place / "arbiter.txt"
        self.python = reachable_python(place)
        self.counts = Counter[str]()
        self.peak_kib = self.descriptors = 0
        self.small = mounted(place / "small")
        self.jobs = (place / "small" if self.small else self.home) / "jobs"
        self._before = self._prepared()
        self._arbiter: subprocess.Popen[bytes] | None = None

    def _prepared(self) -> dict[str, Any]:
        """Make what must not be touched, and what jobs write for us; return how the first looks."""
        (self.place / "canary").write_text(self.token)
        (self.place / "canary").chmod(0o600)
        for user in USERS:
            for kind in ("home", "seen"):
                (self.place / f"{kind}-{user}").mkdir(mode=0o700)
                os.chown(self.place / f"{kind}-{user}", user, -1)
            (self.place / f"home-{user}" / "precious").write_text(self.token)
            (self.place / f"home-{user}" / "precious").chmod(0o600)
        (self.place / "marks").mkdir()
        for gpu in range(MACHINES * GPUS):
            (self.place / "marks" / f"gpu-{gpu}").touch()
            (self.place / "marks" / f"gpu-{gpu}").chmod(0o666)
        self._write_file()
        return self._guarded()

    def _guarded(self) -> dict[str, Any]:
        """Return when each thing that nobody may touch was last read and changed."""
        places = ("canary", *(f"home-{user}" for user in USERS))
        return {name: seen for place in places for name, seen in state(self.place / place).items()}

    def _write_file(self) -> None:
        teams = {team: [str(user)] for user, team in USERS.items()}
        live = {"look": "100ms", "least": "300ms", "grace": "5s", "checkpoints": "300ms", "retries": 3,
                "jobs": str(self.jobs), "access": {"teams": teams}}  # fmt: skip
        first = {"name": FIRST, "team": "red", "length": "1s", "command": "true", "directory": "/"}
        machines = [{"count": MACHINES, "gpus": GPUS}]
        policy = {"name": "tiresias", "lease": "2s"}
        file = {"machines": machines, "apps": [first], "policy": policy, "live": live}
        (self.place / "live.yaml").write_text(json.dumps(file))

    # the arbiter

    def start(self) -> None:
        command = [sys.executable, "-m", "astrarium", "run", "live.yaml", "--state", str(self.home), "--stay"]
        with self._words.open("ab") as words:
            self._arbiter = subprocess.Popen(command, cwd=self.place, stdout=words, stderr=words)
        (self.place / "arbiter.pid").write_text(str(self._arbiter.pid))
        self.counts["starts of the arbiter"] += 1

    def look(self) -> None:
        """Start an arbiter that has ended by itself again; note how large it is."""
        assert self._arbiter is not None
        if self._arbiter.poll() is not None:
            self.counts["arbiters that ended by themselves"] += 1
            self.start()
        with suppress(OSError, StopIteration):
            folder = Path("/proc", str(self._arbiter.pid))
            lines = (folder / "status").read_text().splitlines()
            peak = next(line for line in lines if line.startswith("VmHWM:"))
            self.peak_kib = max(self.peak_kib, int(peak.split()[1]))
            self.descriptors = max(self.descriptors, len(list((folder / "fd").iterdir())))

    def wait(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.look()
            time.sleep(TICK)

    def leave(self) -> None:
        """End the arbiter as somebody does who presses Ctrl-C."""
        assert self._arbiter is not None
        self._arbiter.send_signal(signal.SIGINT)
        self._arbiter.wait(60)

    def clear(self) -> None:
        """End what is left, of our own alone."""
        if self._arbiter is not None and self._arbiter.poll() is None:
            self._arbiter.kill()
            self._arbiter.wait()
        for process in (*self._keepers(), *left_over()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if self.small:
            subprocess.run(("umount", "-l", str(self.place / "small")), check=True)

    # users

    def submitting(self, apps: Sequence[FaultApp], user: int, seconds: float) -> Child:
        mine = [self._body(app) for app in apps if app.user == user]
        return as_user(user, partial(submit, self.home, mine, 0.8 * seconds / len(mine)))

    def _body(self, app: FaultApp) -> dict[str, Any]:
        other = next(str(user) for user in USERS if user != app.user)
        script = str(self.place / "job.py")
        command = [self.python, script, app.kind, str(app.steps), str(self.place), other]
        env = {"PYTHONPATH": str(self.place / "package")}
        return {"name": app.name, "gpus": app.gpus, "length": "1s", "processes": "job", "command": command,
                "directory": "/", "env": env}  # fmt: skip

    def others(self) -> dict[str, Child]:
        """Start who asks for the status, and those who connect for nothing."""
        first, second = USERS
        return {
            "poll": as_user(second, partial(poll, self.home)),
            "idle": as_user(first, partial(flood, self.home, IDLE, b"")),
            "stranger": as_user(STRANGER, partial(flood, self.home, STRANGERS, b"\xff" * 100)),
        }

    def logs(self, apps: Sequence[FaultApp], user: int) -> Child:
        mine = [app.name for app in apps if app.user == user]
        other = next(app.name for app in apps if app.user != user)
        return as_user(user, partial(read_logs, self.home, mine, other, self.token.encode()))

    # faults

    def suffer(self, seconds: float) -> None:
        """Have faults happen for so long."""
        began = time.monotonic()
        rng = self._rng
        due = {"arbiter": 4.0, "keeper": 2.0, "fill": 0.3 * seconds, "free": 0.3 * seconds + FULL_S}
        again = {"arbiter": (4.0, 10.0), "keeper": (0.3, 1.5), "fill": (0.35 * seconds,) * 2}
        again["free"] = again["fill"]
        deeds = {
            "arbiter": self._arbiter_dies,
            "keeper": self._keeper_dies,
            "fill": self._fill,
            "free": self._free,
        }
        while (now := time.monotonic() - began) < seconds:
            for fault in [fault for fault, at in due.items() if at < now]:
                deeds[fault]()
                due[fault] = now + rng.uniform(*again[fault])
            self.wait(TICK)
        self._free()

    def _arbiter_dies(self) -> None:
        assert self._arbiter is not None
        self._arbiter.kill()
        self._arbiter.wait()
        self.counts["arbiters killed"] += 1
        time.sleep(self._rng.uniform(0, 2))
        self.start()

    def _keeper_dies(self) -> None:
        keepers = self._keepers()
        if keepers:
            with suppress(ProcessLookupError):
                os.kill(self._rng.choice(keepers), signal.SIGKILL)
                self.counts["keepers killed"] += 1

    def _keepers(self) -> list[int]:
        """Return keepers of this cluster; runners look the same, and are the users'."""
        keepers = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if b"keep" in words and os.fsencode(self.jobs) in words[-2]:
                    keepers.append(int(path.name))
        users = left_over()
        return [process for process in keepers if process not in users]

    def _fill(self) -> None:
        if self.small:
            self.counts["times that the disk was full"] += 1
            with suppress(OSError), (self.place / "small" / "fill").open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

    def _free(self) -> None:
        if self.small:
            (self.place / "small" / "fill").unlink(missing_ok=True)

    # the end

    def rest(self, users: Sequence[Child], apps: Sequence[FaultApp], others: dict[str, Child]) -> None:
        """Wait until all apps have ended; floods go on until the last is submitted."""
        ends = time.monotonic() + 300
        while sum(len(user.told_so_far()) for user in users) < len(apps) and time.monotonic() < ends:
            self.wait(0.5)
        for user in users:
            user.end()
        for name, what in (("idle", "idle connections of a user"), ("stranger", "connections of a stranger")):
            self.counts[f"{what} at once"] = max(others[name].end(), default=0)
        while _unended(self.home, apps) and time.monotonic() < ends:
            self.wait(0.5)

    def broken(self, apps: Sequence[FaultApp], logs: Sequence[Any]) -> Iterator[Row]:
        """Yield a row for each law: how often it is broken, which must be never."""
        left = self._left()
        counts = [*in_the_store(self.home, apps), *by_the_jobs(self.place)]
        counts.append(("guarded files that were read or changed", self._touched()))
        counts += [*in_the_folders(self.place, self.jobs, self.token.encode()), *results(self.jobs, apps)]
        counts.append(("logs shown with words of a guarded file", sum(log[1] for log in logs)))
        counts.append(("users who read logs of others", len(USERS) - sum(log[2] for log in logs)))
        counts.append(("processes that outlived their job", len(left) - self.counts[ORPHANS]))
        died = "arbiters that ended by themselves"
        words = self._words.read_text()
        counts += [(died, self.counts.pop(died, 0)), ("errors of the arbiter", words.count("Traceback"))]
        self.counts["MB of logs read"] = round(sum(log[0] for log in logs) / 1e6)
        return (Row(what, "", [float(count)], 0.0, less_is_better=True) for what, count in counts)

    def _touched(self) -> int:
        now = self._guarded()
        return sum(now.get(name) != seen for name, seen in self._before.items()) + len(
            now.keys() - self._before
        )

    def _left(self) -> dict[int, str]:
        """Return processes that are left, and count those of jobs whose keepers were killed."""
        time.sleep(1)
        left = left_over()
        lost = query(self.home, "SELECT name FROM runs JOIN apps ON app = id WHERE runs.outcome = 'lost'")
        numbers = {name.rpartition("-")[2] for (name,) in lost}
        self.counts[ORPHANS] = sum(command.rpartition(".")[2] in numbers for command in left.values())
        return left

    def counted(self, apps: Sequence[FaultApp], asked: Sequence[Any], seconds: float) -> Iterator[Row]:
        """Yield what was measured, and shows that something has happened."""
        ended = outcomes(self.home)
        runs = query(self.home, "SELECT outcome, count(*) FROM runs GROUP BY outcome")
        yield Row("apps submitted", "", [float(len(apps))])
        attackers = [app.name for app in apps if not app.honest]
        yield Row("attackers among them", "", [float(len(attackers))])
        for outcome in ("finished", "failed"):
            yield Row(f"attackers {outcome}", "", [float(sum(ended[name] == outcome for name in attackers))])
        for outcome, count in runs:
            yield Row(f"runs {outcome}", "", [float(count)])
        for what, count in self.counts.items():
            yield Row(what, "", [float(count)])
        ran = [line.split()[-1] for user in USERS for line in noted(self.place, user, "ran")]
        yield Row("times that a job held a GPU", "", [float(len(ran))])
        yield Row("GPUs that were held", "", [float(len(set(ran)))])
        yield from answers(asked)
        yield Row("memory of the arbiter at most", "MiB", [self.peak_kib / 1024])
        yield Row("descriptors of the arbiter at most", "", [float(self.descriptors)])
        yield Row("all of it", "s", [seconds])


def answers(asked: Sequence[Any]) -> Iterator[Row]:
    """Yield how long answers to `status` took, and the longest time without one."""
    ends = [at + took for at, took in asked]
    waits = [took for _, took in asked]
    yield Row("answers to status", "", [float(len(asked))])
    yield Row("an answer: median", "ms", [1000 * statistics.median(waits)])
    yield Row("an answer at most", "s", [max(waits)])
    gaps = (after - before for before, after in pairwise(ends))
    yield Row("longest without one, restarts included", "s", [max(gaps)])


def _unended(home: Path, apps: Sequence[FaultApp]) -> bool:
    ended = outcomes(home)
    return any(ended.get(app.name) not in ("finished", "failed", "withdrawn") for app in apps)


@contextmanager
def cluster_place() -> Iterator[Path]:
    """Hand out a folder that everybody can pass, with a copy of the package that everybody can read."""
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        place.chmod(0o755)
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "src" / "astrarium", place / "package" / "astrarium", ignore=ignored)
        shutil.copy(Path(__file__).with_name("_fault_job.py"), place / "job.py")
        subprocess.run(("chmod", "-R", "a+rX", str(place)), check=True)
        yield place


def reachable_python(place: Path) -> str:
    """Return a Python that users can run, and that can run their jobs."""
    words = ("-c", "import astrarium.cluster_job")
    for python in (sys.executable, *PYTHONS):
        with suppress(OSError):
            done = subprocess.run(
                (python, *words), user=next(iter(USERS)), group=NO_GROUP, extra_groups=[], cwd="/",
                env={"PYTHONPATH": str(place / "package")}, capture_output=True,
            )  # fmt: skip
            if done.returncode == 0:
                return python
    sys.exit(f"users need a Python of 3.11 or newer that they can reach: none of {', '.join(PYTHONS)} is one")


def mounted(folder: Path) -> bool:
    """Return whether a small file system could be made; without one, no disk is full."""
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={SMALL_MB}m,mode=755", "tmpfs", str(folder))
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        print(f"nobody here may mount a small file system, and no disk is full: {done.stderr.strip()}")
    return done.returncode == 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="24 apps in less than a minute")
    parser.add_argument("--apps", type=int)
    parser.add_argument("--every", type=int, help="of so many apps, one attacks")
    parser.add_argument("--seconds", type=float, help="for how long faults happen")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.apps = options.apps or (24 if options.quick else 200)
    options.every = options.every or (2 if options.quick else 5)
    options.seconds = options.seconds or (20.0 if options.quick else 150.0)
    return options


if __name__ == "__main__":
    sys.exit(main())
