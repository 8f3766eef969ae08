"""The runner starts the processes of one part of a run, as the owner of the job, and tells its keeper.

It is a fork of the keeper that has become the owner: whatever a job puts into its folder, or does to this
process, it does with the rights that it has anyway. What it tells is a claim of the job's, and bounded.

Processes write into pipes, and the runner writes what comes out of them to the logs: a disk that is full
costs output, and never a job.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from .claims import LAST_WORDS, checked_number, checked_part, checked_words
from .job_files import GPUS, PROGRESS, READY, USED, JobFolder, Stamp, clear_earlier
from .privileges import die_with_parent
from .records import NO_MEMORY, passes

# seconds between looks, and between tries of what fails for want of room
TICK = 0.05
SELDOM = 1.0
LOOK = 0.25  # seconds between looks at a checkpoint
PATIENCE = 2.0  # that the rest of a gang has to leave by itself when one of it has failed
# the exit codes that a shell gives to commands that it cannot start
NOT_STARTED = 126
NOT_FOUND = 127
VISIBLE = "CUDA_VISIBLE_DEVICES"
PASSED_ON = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH")  # of our environment, to jobs of another user
# bytes
LITTLE = 1 << 20
FULL = "the disk has no room for its checkpoints"
MESSAGE = 1 << 14  # bytes of one message between runner and keeper
# bytes that a pipe holds, and that are kept where there is no room
_PIPE = 1 << 18
_HELD_BACK = 1 << 16


class JobLog:
    """The log of one process, which writes into a pipe. What finds no room is held back, the newest of it,
    and written when there is some, after a line that says how much is lost."""

    def __init__(self, folder: JobFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._file = -1
        self._held = bytearray()
        self._lost = 0
        self._end = b""
        self.source, self.sink = os.pipe()
        with contextlib.suppress(OSError):  # one user may have only so much of it
            fcntl.fcntl(self.sink, fcntl.F_SETPIPE_SZ, _PIPE)
        self.add(b"")

    def add(self, words: bytes) -> None:
        self._held += words
        self._end = (self._end + words)[-_HELD_BACK:]
        try:
            self.flush()
        except OSError:
            over = max(0, len(self._held) - _HELD_BACK)
            del self._held[:over]
            self._lost += over

    def flush(self) -> None:
        if self._file < 0:
            self._file = self._folder.file(self._name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if self._lost:
            os.write(self._file, f"\n[{self._lost} bytes are lost: the disk had no room]\n".encode())
            self._lost = 0
        while self._held:
            del self._held[: os.write(self._file, self._held)]

    def last_words(self) -> str:
        """Return the last line that was written."""
        lines = self._end.decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:LAST_WORDS] if lines else ""


class LogPump(threading.Thread):
    """A thread of the runner that takes what processes write to their logs. It is one of its own since a slow
    disk must not keep a wish to stop from a job."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.logs: dict[int, JobLog] = {}  # by the end of the pipe that is read
        self._over = threading.Event()
        self._poll = select.poll()
        self._open = 0

    def open(self, folder: JobFolder, name: str) -> JobLog:
        log = JobLog(folder, name)
        self.logs[log.source] = log
        self._poll.register(log.source, select.POLLIN)
        self._open += 1
        return log

    def run(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            with contextlib.suppress(MemoryError):
                taken = self._taken(SELDOM / 4 if self._open else 0)
                pause = 0 if taken > _PIPE // 2 else TICK / 10 if self._open else TICK  # lines come together
        self._taken(0)

    def finish(self) -> None:
        """Take what is left; processes that have ended can have left no more than a pipe holds."""
        self._over.set()
        self.join()

    def flush(self) -> None:
        for log in self.logs.values():
            log.flush()

    def _taken(self, patience: float) -> int:
        """Take what is there, and return how much the one who wrote most has written."""
        ready = {number for number, _ in self._poll.poll(patience * 1000)}
        most = 0
        for number, log in self.logs.items():
            words = os.read(number, _PIPE) if number in ready else b""
            if number in ready and not words:
                self._poll.unregister(number)
                self._open -= 1
            log.add(words)
            most = max(most, len(words))
        return most


class Claims:
    """What a job tells by the files of its folder: how far it is, and how far its checkpoint (*stamp*), since
    when it is up, as which run it uses its GPUs, and what troubles it."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._looked_at = float("-inf")
        self._read = dict[str, Any]()
        self._stamp: Stamp | None = None
        self._full = ""

    def look(self, last: bool = False) -> dict[str, Any]:
        progress = self._json(PROGRESS)
        used = self._json(USED)
        ready = self._folder.seen(READY)
        if last or time.monotonic() - self._looked_at > LOOK:
            self._looked_at, self._stamp = time.monotonic(), self._folder.stamp()
            self._full = FULL if self._folder.free() < LITTLE else ""
        return {
            "progress": checked_part(progress.get("progress")),
            "kept": checked_part(progress.get("kept")),
            "trouble": checked_words(progress.get("trouble")) or self._full,
            "used": checked_number(used.get("run")) or 0,
            "ready": ready.st_mtime if ready is not None else None,
            "stamp": self._stamp,
        }

    def _json(self, name: str) -> dict[str, Any]:
        """Return what a small file of JSON holds, which is read when it has changed."""
        seen = self._folder.seen(name)
        mark = (seen.st_ino, seen.st_mtime_ns, seen.st_size) if seen is not None else None
        if self._read.get(name, (None, {}))[0] != mark:
            self._read[name] = mark, _decoded(self._folder.read(name))
        found: dict[str, Any] = self._read.get(name, (None, {}))[1]
        return found


def _decoded(content: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class Runner:
    """The processes of a part, until all of them have ended. *order* is the keeper's."""

    def __init__(self, order: dict[str, Any], keeper: socket.socket) -> None:
        self._order = order
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
        claims = Claims(folder) if folder is not None else None
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

    # what the keeper says

    def _keeper_says(self, seconds: float) -> None:
        """Hear the keeper for so long at most. Without one there is no job either."""
        if not select.select([self._keeper], [], [], seconds)[0]:
            return
        message = self._keeper.recv(MESSAGE)
        if not message:
            self._kill()
            os._exit(1)
        said = json.loads(message)
        if said.get("stop"):
            self._asked_at = self._asked_at or time.monotonic()
        self._gpus = said.get("gpus", self._gpus)

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

    def _end(self, claims: Claims | None) -> None:
        """Tell how all has ended, after the last words of the processes, once there is room for them."""
        while not self._flushed():
            self._keeper_says(SELDOM)
        codes = [child.returncode for child in self._children]
        if self._unstarted:
            self._first = len(codes)
            codes.append(self._unstarted)
        logs = list(self._pump.logs.values())
        last = logs[self._first].last_words() if self._first < len(logs) else ""
        told = claims.look(last=True) if claims is not None else {}
        ending = {**told, "codes": codes, "first": self._first, "words": last}
        self._keeper.send(json.dumps(ending).encode())

    def _flushed(self) -> bool:
        """Return whether logs need not be waited for: all is written, or never will be, since a job has put
        something else in the place of its log."""
        try:
            self._pump.flush()
        except OSError as error:
            return not passes(error)
        return True

    # processes

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
        given = os.environ.get(VISIBLE, "")
        ours_alone = "user" not in account
        around = {name: value for name, value in os.environ.items() if ours_alone or name in PASSED_ON}
        env = {**around, **account.get("env", {}), **ours}
        if self._order["site"] and given:
            env[VISIBLE] = ",".join(given.split(",")[int(place)] for place in ours[VISIBLE].split(","))
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
        if self._late(1.0) or (self._failed_at is not None and now > self._failed_at + PATIENCE):
            self._kill()
        return True

    def _pass_on(self) -> None:
        """Pass a wish to stop on once the job is up and can answer: every run gets somewhere."""
        if self._asked_at is not None and not self._passed_on and (self._ready() or self._late(0.5)):
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

    def _late(self, part: float) -> bool:
        """Return whether so much of the time that the job has for leaving is over."""
        return self._asked_at is not None and time.monotonic() > self._asked_at + part * self._order["grace"]

    def _kill(self) -> None:
        """End the processes, and what they have left behind, such as the program in a shell."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
