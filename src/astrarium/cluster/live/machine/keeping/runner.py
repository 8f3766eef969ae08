"""The runner starts the processes of one part of a run, as the owner of the job, and tells its keeper.

It is a fork of the keeper that has become the owner: whatever a job puts into its folder, or does to this
process, it does with the rights that it has anyway. What it tells is a claim of the job's, and bounded.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from .claim_reader import ClaimReader
from .claims import LAST_WORDS, MESSAGE
from .grace import Grace
from .job_files import GPUS, JobFolder, clear_earlier
from .job_logs import JobLog, LogPump
from .pauses import SELDOM, TICK
from .privileges import die_with_parent
from .records import NO_MEMORY, passes

PATIENCE = 2.0  # that the rest of a gang has to leave by itself when one of it has failed
# the exit codes that a shell gives to commands that it cannot start
NOT_STARTED = 126
NOT_FOUND = 127
VISIBLE = "CUDA_VISIBLE_DEVICES"
PASSED_ON = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH")  # of our environment, to jobs of another user


class Runner:
    """The processes of a part, until all of them have ended. *order* is the keeper's."""

    def __init__(self, order: dict[str, Any], keeper: socket.socket) -> None:
        self._order = order
        self._grace = Grace(float(order["grace"]))
        self._keeper = keeper
        self._children: list[subprocess.Popen[bytes]] = []
        self._pump = LogPump()
        self._asked_at: float | None = None
        self._failed_at: float | None = None
        # which failed first, and the code of one that was not started
        self._first = 0
        self._unstarted = 0
        self._passed_on = False  # the wish to stop
        self._told: dict[str, Any] = {}
        self._gpus: dict[str, Any] | None = None  # of which an elastic job is still to be told

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGURG):
            signal.signal(number, lambda *_: None)  # whoever sends them means the keeper, or the job
        folder = self._opened()
        claims = ClaimReader(folder) if folder is not None else None
        if folder is not None and claims is not None:
            self._start(folder)
            self._pump.start()
            while self._lives():
                self._keeper_says(TICK)
                self._hand_on(folder)
                self._tell(claims.look())
            self._kill()
            self._pump.finish()
        self._end(claims)

    def _keeper_says(self, seconds: float) -> None:
        """Hear the keeper for so long at most. Without one there is no job either."""
        if not select.select([self._keeper], [], [], seconds)[0]:
            return
        message = self._keeper.recv(MESSAGE)
        if not message:
            self._kill()
            os._exit(1)
        wishes = json.loads(message)
        if wishes.get("stop"):
            self._asked_at = self._asked_at or time.monotonic()
        self._gpus = wishes.get("gpus", self._gpus)

    def _hand_on(self, folder: JobFolder) -> None:
        """Tell an elastic job its GPUs, as soon as there is room for that."""
        if self._gpus is not None:
            with contextlib.suppress(OSError):
                folder.write(GPUS, json.dumps(self._gpus).encode())
                self._gpus = None

    def _tell(self, what: dict[str, Any]) -> None:
        if what != self._told:
            self._told = what
            self._keeper.send(json.dumps(what).encode())

    def _end(self, claims: ClaimReader | None) -> None:
        """Tell how all has ended, after the last words of the processes, once there is room for them."""
        while not self._flushed():
            self._keeper_says(SELDOM)
        codes = [child.returncode for child in self._children]
        if self._unstarted:
            self._first = len(codes)
            codes.append(self._unstarted)
        logs = list(self._pump.logs.values())
        last = logs[self._first].last_words() if self._first < len(logs) else ""
        last_claims = claims.look(last=True) if claims is not None else {}
        ending = {**last_claims, "codes": codes, "first": self._first, "words": last}
        self._keeper.send(json.dumps(ending).encode())

    def _flushed(self) -> bool:
        """Return whether logs need not be waited for: all is written, or never will be, since a job has put
        something else in the place of its log."""
        try:
            self._pump.flush()
        except OSError as error:
            return not passes(error)
        return True

    def _opened(self) -> JobFolder | None:
        """Return the folder of the run, as soon as there is room for it; None: asked to stop before."""
        top, *names = self._order["folder"]
        while self._asked_at is None:
            try:
                folder = JobFolder.open(Path(top), *names, make=True)
                folder.inner(self._order["logs"], make=True).close()
                self._clear(top, names)
                return folder
            except OSError as error:
                if not passes(error):
                    self._refuse(error)
                self._tell({"trouble": str(error)[:LAST_WORDS]})
            self._keeper_says(SELDOM)
        return None

    def _refuse(self, error: OSError) -> NoReturn:
        """Leave without having started anything."""
        self._keeper.send(json.dumps({"codes": [NOT_STARTED], "words": str(error)[:LAST_WORDS]}).encode())
        os._exit(0)

    def _clear(self, top: str, names: list[str]) -> None:
        """Clear away the checkpoints of earlier runs, which this one does not need."""
        if self._order["place"] == 0:
            with JobFolder.open(Path(top), *names[:-1]) as job:
                clear_earlier(job, self._order["run"], self._order["resumed_run"])

    def _start(self, folder: JobFolder) -> None:
        logs = folder.inner(self._order["logs"])
        for process in self._order["processes"]:
            log = self._pump.open(logs, process["log"])
            try:
                child = self._child(process["env"], log)
            except (OSError, ValueError) as error:  # not there, no folder, a name that no variable can have
                self._unstarted, words = self._why(error, process["env"])
                log.add(f"{words}\n".encode())
                child = None
            os.close(log.sink)
            if child is None:
                self._kill()
                break
            self._children.append(child)

    def _why(self, error: OSError | ValueError, env: dict[str, str]) -> tuple[int, str]:
        """Return the exit code of a process that could not be started, and why. A program that is nowhere is
        not found, also where PATH has folders that the owner may not look into."""
        name = self._order["command"][0]
        path = self._environment(env).get("PATH")
        hidden = isinstance(error, PermissionError) and "/" not in name and error.filename == name
        if hidden and shutil.which(name, path=path) is None:
            return NOT_FOUND, f"there is no program {name!r} in {path} that this user may run"
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED, str(error)

    def _child(self, env: dict[str, str], log: JobLog) -> subprocess.Popen[bytes] | None:
        """Start a process, as soon as there is memory for one more. None: asked to stop before."""
        while self._asked_at is None:
            try:
                return subprocess.Popen(
                    self._order["command"], cwd=self._order["directory"] or None, env=self._environment(env),
                    stdin=subprocess.DEVNULL, stdout=log.sink, stderr=subprocess.STDOUT,
                    start_new_session=True, umask=self._order["umask"],
                    preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGKILL),
                )  # fmt: skip
            except (OSError, MemoryError) as error:
                if isinstance(error, OSError) and error.errno not in NO_MEMORY:
                    raise
            self._keeper_says(SELDOM)
        return None

    def _environment(self, ours: dict[str, str]) -> dict[str, str]:
        """Return the environment of a process. Where another scheduler has chosen the GPUs, ours are counted
        among those. Jobs of another user are not handed ours."""
        account = self._order["account"]
        visible = os.environ.get(VISIBLE, "")
        ours_alone = "user" not in account
        around = {name: value for name, value in os.environ.items() if ours_alone or name in PASSED_ON}
        env = {**around, **account.get("env", {}), **ours}
        if self._order["site"] and visible:
            env[VISIBLE] = ",".join(visible.split(",")[int(place)] for place in ours[VISIBLE].split(","))
        return env

    def _lives(self) -> bool:
        codes = [child.poll() for child in self._children]
        now = time.monotonic()
        bad = [place for place, code in enumerate(codes) if code not in (None, 0)]
        if self._failed_at is None and bad and not self._passed_on:  # who was asked to leave has the time
            self._failed_at = now
            self._first = bad[0]
        if all(code is not None for code in codes):
            return False
        self._pass_on()
        if self._late(self._grace.job) or (self._failed_at is not None and now > self._failed_at + PATIENCE):
            self._kill()
        return True

    def _pass_on(self) -> None:
        """Pass a wish to stop on once the job is up and can answer: every run gets somewhere."""
        if (
            self._asked_at is not None
            and not self._passed_on
            and (self._ready() or self._late(self._grace.start))
        ):
            self._passed_on = True
            for child in self._children:
                if child.poll() is None:
                    child.send_signal(signal.SIGTERM)

    def _ready(self) -> bool:
        """Return whether the job is up, and has run for as long as every run may."""
        if not self._order["ready"]:
            return True
        up = self._told.get("ready")
        return up is not None and time.time() >= up + float(self._order["least"])

    def _late(self, seconds: float) -> bool:
        """Return whether it is so long ago that the job was asked to leave."""
        return self._asked_at is not None and time.monotonic() > self._asked_at + seconds

    def _kill(self) -> None:
        """End the processes, and what they have left behind, such as the program in a shell."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
