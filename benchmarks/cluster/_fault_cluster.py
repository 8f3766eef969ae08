"""The cluster of faults.py: its machines, its users, and the faults that happen to it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from _fault_arbiter import TICK, Arbiter
from _fault_laws import FIRST, FaultApp, left_over, outcomes
from _fault_place import GuardedFiles, make_marks, mounted, reachable_python
from _fault_users import IDLE, STRANGER, STRANGERS, USERS, Child, as_user, flood, poll, read_logs, submit

MACHINES = 2
GPUS = 4
FULL_S = 6.0  # how long the disk of jobs is full


class FaultyCluster:
    """One arbiter at a time, the machine that it runs on, and all that is done to both."""

    def __init__(self, place: Path, rng: Random) -> None:
        self.place = place
        self._rng = rng
        self.home = place / "here.state"
        self.token = secrets.token_hex(16)
        self._python = reachable_python(place)
        self.counts = Counter[str]()
        self._small = mounted(place / "small")
        self.jobs = (place / "small" if self._small else self.home) / "jobs"
        self.guarded = GuardedFiles(place, self.token)
        make_marks(place, MACHINES * GPUS)
        self._write_file()
        self.arbiter = Arbiter(place, self.home, self.counts)

    def _write_file(self) -> None:
        teams = {team: [str(user)] for user, team in USERS.items()}
        live = {"look": "100ms", "least": "300ms", "grace": "5s", "checkpoints": "300ms", "retries": 3,
                "jobs": str(self.jobs), "access": {"teams": teams}}  # fmt: skip
        first = {"name": FIRST, "team": "red", "length": "1s", "command": "true", "directory": "/"}
        machines = [{"count": MACHINES, "gpus": GPUS}]
        policy = {"name": "tiresias", "lease": "2s"}
        file = {"machines": machines, "apps": [first], "policy": policy, "live": live}
        (self.place / "live.yaml").write_text(json.dumps(file))

    def clear(self) -> None:
        """End what is left, of our own alone."""
        self.arbiter.clear()
        for process in (*self._keepers(), *left_over()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if self._small:
            subprocess.run(("umount", "-l", str(self.place / "small")), check=True)

    def submitting(self, apps: Sequence[FaultApp], user: int, seconds: float) -> Child:
        mine = [self._body(app) for app in apps if app.user == user]
        return as_user(user, partial(submit, self.home, mine, 0.8 * seconds / len(mine)))

    def _body(self, app: FaultApp) -> dict[str, Any]:
        other = next(str(user) for user in USERS if user != app.user)
        script = str(self.place / "job.py")
        command = [self._python, script, app.kind, str(app.steps), str(self.place), other]
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
            self.arbiter.watch(TICK)
        self._free()

    def _arbiter_dies(self) -> None:
        self.arbiter.die()
        self.counts["arbiters killed"] += 1
        time.sleep(self._rng.uniform(0, 2))
        self.arbiter.start()

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
        if self._small:
            self.counts["times that the disk was full"] += 1
            with suppress(OSError), (self.place / "small" / "fill").open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

    def _free(self) -> None:
        if self._small:
            (self.place / "small" / "fill").unlink(missing_ok=True)

    def rest(self, users: Sequence[Child], apps: Sequence[FaultApp], others: dict[str, Child]) -> None:
        """Wait until all apps have ended; floods go on until the last is submitted."""
        ends = time.monotonic() + 300
        while sum(len(user.results_so_far()) for user in users) < len(apps) and time.monotonic() < ends:
            self.arbiter.watch(0.5)
        for user in users:
            user.end()
        for name, what in (("idle", "idle connections of a user"), ("stranger", "connections of a stranger")):
            self.counts[f"{what} at once"] = max(others[name].end(), default=0)
        while _unended(self.home, apps) and time.monotonic() < ends:
            self.arbiter.watch(0.5)


def _unended(home: Path, apps: Sequence[FaultApp]) -> bool:
    ended = outcomes(home)
    return any(ended.get(app.name) not in ("finished", "failed", "withdrawn") for app in apps)
