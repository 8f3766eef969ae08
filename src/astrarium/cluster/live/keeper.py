"""The keeper holds the processes of one part of a run: `python keeper.py FOLDER`.

It is a small process of its own, so that a job outlives an arbiter that is killed, and never its machine: it
starts what the order in the folder says, passes a wish to stop (a file of that name) on to it, ends it when
the time for that is over, and leaves an outcome behind. It imports nothing of ours: it is up at once.

It holds a lock for each GPU and for its part of the job while anything runs: whatever else goes wrong, two
jobs never share a GPU, and a job never runs twice at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

ORDER, OUTCOME, ALIVE, STOP = "order.json", "outcome.json", "alive", "stop"
TICK = 0.05  # seconds between looks
PATIENCE = 2.0  # that the rest of a gang has to leave by itself when one of it has failed
NOT_STARTED, NOT_FOUND = 126, 127  # the exit codes that a shell gives to commands that it cannot start
PASSED_ON = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH")  # of our environment, to jobs of another user
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def write_whole(path: Path, content: object) -> None:
    """Write a file so that whoever reads it finds all of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(path)


class Keeper:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order: dict[str, Any] = json.loads((folder / ORDER).read_text(encoding="utf-8"))
        self.asked_at: float | None = None
        self.failed_at: float | None = None
        self.first = 0  # of its processes: the one that failed first
        self.unstarted = 0  # the exit code of a process that could not be started
        self.told = False
        self.children: list[subprocess.Popen[bytes]] = []
        self._logs: list[Any] = []

    def keep(self) -> None:
        """Keep the processes until all have ended."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the arbiter's: it asks us
        locks = self._locked()
        if locks is not None:
            self._start()
        while self._lives():
            time.sleep(TICK)
        self._sweep()
        codes = [child.returncode for child in self.children]
        if self.unstarted:
            self.first = len(codes)
            codes.append(self.unstarted)
        outcome = {"codes": codes, "asked": self.asked_at is not None, "first": self.first}
        write_whole(self.folder / OUTCOME, outcome)

    def _listen(self) -> None:
        """Pass a wish to stop on once the job is up and can answer: every run gets somewhere."""
        if self.asked_at is None and (self.folder / STOP).exists():
            self.asked_at = time.monotonic()
        if self.asked_at is not None and not self.told and (self._ready() or self._late(0.5)):
            self.told = True
            for child in self.children:
                if child.poll() is None:
                    child.send_signal(signal.SIGTERM)

    def _ready(self) -> bool:
        """Return whether the job is up, and has run for as long as every run may."""
        if not self.order["ready"]:
            return True
        try:
            up: float = Path(self.order["ready"]).stat().st_mtime
        except FileNotFoundError:
            return False
        return time.time() >= up + float(self.order["least"])

    def _late(self, part: float) -> bool:
        """Return whether so much of the time that the job has for leaving is over."""
        return self.asked_at is not None and time.monotonic() > self.asked_at + part * self.order["grace"]

    def _locked(self) -> list[Any] | None:
        """Take the locks. None: the job was asked to stop before they were free."""
        held = []
        for path in self.order["locks"]:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "w")  # noqa: SIM115 (held to the end)
            while not _try(file):
                self._listen()
                if self.asked_at is not None or self._abandoned():
                    return None
                time.sleep(TICK)
            held.append(file)
        return held

    def _start(self) -> None:
        dies_with_us, account = partial(_die_with_parent, os.getpid()), dict(self.order.get("account", {}))
        own = account.pop("env", {})
        around = {name: value for name, value in os.environ.items() if not own or name in PASSED_ON}
        for process in self.order["processes"]:
            log = open(self.folder / process["log"], "ab")  # noqa: SIM115
            self._logs.append(log)
            try:
                if "unknown" in account:
                    raise ValueError(f"there is no user {account['unknown']} on this machine")
                child: Any = subprocess.Popen(
                    self.order["command"], cwd=self.order["directory"] or None,
                    env={**around, **own, **process["env"]}, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=dies_with_us, **account,
                )  # fmt: skip
            except (OSError, ValueError) as error:  # not there, no folder, a name that no variable can have
                log.write(f"{error}\n".encode())
                log.flush()
                self.unstarted = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
                self._kill()
                break
            self.children.append(child)

    def _lives(self) -> bool:
        codes, now = [child.poll() for child in self.children], time.monotonic()
        bad = [place for place, code in enumerate(codes) if code not in (None, 0)]
        if self.failed_at is None and bad:
            self.failed_at, self.first = now, bad[0]
        if all(code is not None for code in codes):
            return False
        self._listen()
        broken = self.failed_at is not None and now > self.failed_at + PATIENCE
        if self._late(1.0) or broken or self._abandoned():
            self._kill()
        return True

    def _abandoned(self) -> bool:
        """Return whether the agent that started this keeper is gone, and with it the machine."""
        if not self.order["with_agent"]:
            return False
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        return bool(ready) and not os.read(0, 1)

    def _kill(self) -> None:
        for child in self.children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)

    def _sweep(self) -> None:
        """Kill what the processes have left behind, such as the program in a shell, so that GPUs are free."""
        for child in self.children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def _try(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _die_with_parent(parent: int) -> None:
    """Make a child die with this process; it runs in the child, and the parent may have died before."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    Keeper(Path(sys.argv[1])).keep()
