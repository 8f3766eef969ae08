"""The keeper holds the processes of one part of a run: `python keeper.py FOLDER`.

It is a small process of its own, so that a job outlives an arbiter that is killed, and never its machine: it
starts what the order in the folder says, passes a wish to stop (a file of that name) on to it, ends it when
the time for that is over, and leaves an outcome behind. It imports nothing of ours: it is up at once.

It holds a lock for each GPU and for its part of the job while anything runs: whatever else goes wrong, two
jobs never share a GPU, and a job never runs twice at once.

Processes write into pipes, and the keeper writes what comes out of them to the logs: a disk that is full
costs output, and never a job. What must be written, the outcome, waits until there is room.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

ORDER, OUTCOME, ALIVE, STOP = "order.json", "outcome.json", "alive", "stop"
BEGUN, CLOSED = "begun", "closed"
VISIBLE = "CUDA_VISIBLE_DEVICES"
RESIZE, RESIZED = "resize.json", "resized.json"  # a wish for other GPUs, and that it was met
GPUS, USED = "gpus.json", "gpus-used.json"  # what an elastic job is told, and what it says
TICK, SELDOM = 0.05, 1.0  # seconds between looks, and between tries of what fails for want of room
PATIENCE = 2.0  # that the rest of a gang has to leave by itself when one of it has failed
NOT_STARTED, NOT_FOUND = 126, 127  # the exit codes that a shell gives to commands that it cannot start
PASSED_ON = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH")  # of our environment, to jobs of another user
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_EARLIER_VICTIM = 200  # thousandths of all memory, far more than a keeper or an arbiter has (oom_score_adj)
_PIPE, _HELD_BACK = 1 << 18, 1 << 16  # bytes that a pipe holds, and that are kept where there is no room

NO_MEMORY = {errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE}
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}


def passes(error: BaseException) -> bool:
    """Return whether what failed may work later: when there is room on the disk, or memory."""
    known = isinstance(error, OSError) and error.errno in NO_MEMORY | NO_ROOM
    return known or isinstance(error, MemoryError)


def write_whole(path: Path, content: object) -> None:
    """Write a file so that whoever reads it finds all of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(content), encoding="utf-8")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


class JobLog:
    """The log of one process, which writes into a pipe. What finds no room is held back, the newest of it,
    and written when there is some, after a line that says how much is lost."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, -1
        self._held, self._lost = bytearray(), 0
        self.source, self.sink = os.pipe()
        with contextlib.suppress(OSError):  # one user may have only so much of it
            fcntl.fcntl(self.sink, fcntl.F_SETPIPE_SZ, _PIPE)
        self.add(b"")

    def add(self, words: bytes) -> None:
        self._held += words
        try:
            self.flush()
        except OSError:
            over = max(0, len(self._held) - _HELD_BACK)
            del self._held[:over]
            self._lost += over

    def flush(self) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        if self._lost:
            os.write(self._file, f"\n[{self._lost} bytes are lost: the disk had no room]\n".encode())
            self._lost = 0
        while self._held:
            del self._held[: os.write(self._file, self._held)]


class LogPump(threading.Thread):
    """A thread of the keeper that takes what processes write to their logs. It is one of its own since a slow
    disk must not keep the keeper from ending a job in time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.logs: dict[int, JobLog] = {}  # by the end of the pipe that is read
        self._over, self._poll, self._open = threading.Event(), select.poll(), 0

    def open(self, path: Path) -> JobLog:
        log = JobLog(path)
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

    def _taken(self, patience: float) -> int:
        """Take what is there, and return how much the one who wrote most has written."""
        ready, most = {number for number, _ in self._poll.poll(patience * 1000)}, 0
        for number, log in self.logs.items():
            words = os.read(number, _PIPE) if number in ready else b""
            if number in ready and not words:
                self._poll.unregister(number)
                self._open -= 1
            log.add(words)
            most = max(most, len(words))
        return most


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
        self._pump, self._killed_before = LogPump(), _killed_for_memory()
        self.locks: dict[str, Any] = {}  # open files, by path
        self.run = 0  # the later run that the job was last told to be
        self.met = 0  # the one that it has become
        self.told_at = 0.0

    def keep(self) -> None:
        """Keep the processes until all have ended."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the arbiter's: it asks us
        if self.order.get("site"):
            for number in (signal.SIGTERM, signal.SIGURG):  # of which the second ends no job that hears it
                signal.signal(number, self._ask)
            if not self._claim():
                return
        given_up = self.order.get("site") and (self.folder / STOP).exists()
        began = not given_up and self._locked()
        if began:
            self._start()
            self._pump.start()
        while self._lives():
            time.sleep(TICK)
        self._sweep()
        if began:
            self._pump.finish()
        codes = [child.returncode for child in self.children]
        if self.unstarted:
            self.first = len(codes)
            codes.append(self.unstarted)
        killed = _killed_for_memory() - self._killed_before
        self._leave({"codes": codes, "asked": self.asked_at is not None, "first": self.first, "oom": killed})

    def _leave(self, outcome: dict[str, Any]) -> None:
        """Leave the outcome behind, after the last words of the processes; wait until there is room for both:
        without them, the job would be taken for one whose keeper was killed."""
        while True:
            try:
                for log in self._pump.logs.values():
                    log.flush()
                return write_whole(self.folder / OUTCOME, outcome)
            except FileNotFoundError:  # the folder is gone, and with it whoever would read it
                return None
            except (OSError, MemoryError):
                if self._abandoned():
                    return None
                time.sleep(SELDOM)

    def _claim(self) -> bool:
        """Return whether this keeper is the first; another scheduler may have been handed a run twice."""
        while True:
            try:
                (self.folder / BEGUN).mkdir()
                return not (self.folder / CLOSED).exists()
            except OSError as error:
                if not passes(error):
                    return False
            time.sleep(SELDOM)

    def _ask(self, *_: object) -> None:
        self.asked_at = self.asked_at or time.monotonic()

    def _listen(self) -> None:
        """Pass a wish to stop on once the job is up and can answer: every run gets somewhere."""
        if self.asked_at is None and os.path.exists(self.folder / STOP):  # noqa: PTH110 (no error, whatever)
            self._ask()
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
        except OSError:
            return False
        return time.time() >= up + float(self.order["least"])

    def _late(self, part: float) -> bool:
        """Return whether so much of the time that the job has for leaving is over."""
        return self.asked_at is not None and time.monotonic() > self.asked_at + part * self.order["grace"]

    def _locked(self) -> bool:
        """Take the locks; return whether the job was not asked to stop before they were free."""
        for path in self.order["locks"]:
            while not self._take(path):
                self._listen()
                if self.asked_at is not None or self._abandoned():
                    return False
                time.sleep(TICK)
        return True

    def _take(self, path: str) -> bool:
        """Return whether a lock is ours now."""
        if path not in self.locks and (file := _locked_file(path)) is not None:
            self.locks[path] = file
        return path in self.locks

    def _resize(self) -> None:
        """Pass a wish for other GPUs on when all of their locks are held. Those that are given up are free
        when the job has said what it uses; one that says nothing, in the time for leaving, is to leave."""
        wish, run = _read(self.folder / RESIZE), Path(self.order["run_folder"])
        if wish is None or wish["run"] <= self.met or not all(self._take(path) for path in wish["locks"]):
            return
        if self.run != wish["run"]:
            self.run, self.told_at = wish["run"], time.monotonic()
            write_whole(run / GPUS, {"run": wish["run"], "devices": wish["devices"]})
        used = _read(run / USED)
        if used is not None and used["run"] == wish["run"]:
            for path in self.locks.keys() - wish["locks"]:
                self.locks.pop(path).close()
            self.met = wish["run"]
            write_whole(self.folder / RESIZED, {"run": wish["run"], "gpus": wish["gpus"]})
        elif self.asked_at is None and time.monotonic() > self.told_at + self._patience():
            self.asked_at = time.monotonic()

    def _patience(self) -> float:
        """Return how long the job may take to hear of other GPUs: twice the time, while it is starting."""
        return float(self.order["grace"]) * (1 if Path(self.order["ready"]).exists() else 2)

    def _start(self) -> None:
        for process in self.order["processes"]:
            log = self._pump.open(self.folder / process["log"])
            try:
                child = self._child(process["env"], log)
            except (OSError, ValueError) as error:  # not there, no folder, a name that no variable can have
                log.add(f"{error}\n".encode())
                self.unstarted = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
                child = None
            os.close(log.sink)
            if child is None:
                self._kill()
                break
            self.children.append(child)

    def _child(self, env: dict[str, str], log: JobLog) -> subprocess.Popen[bytes] | None:
        """Start a process, as soon as there is memory for one more. None: asked to stop before."""
        score, account = _oom_score() + _EARLIER_VICTIM, self.order.get("account", {})
        if "unknown" in account:
            raise ValueError(f"there is no user {account['unknown']} on this machine")
        user = {name: value for name, value in account.items() if name != "env"}
        while self.asked_at is None and not self._abandoned():
            try:
                child: subprocess.Popen[bytes] = subprocess.Popen(
                    self.order["command"], cwd=self.order["directory"] or None, env=self._environment(env),
                    stdin=subprocess.DEVNULL, stdout=log.sink, stderr=subprocess.STDOUT,
                    start_new_session=True, preexec_fn=partial(_prepare, os.getpid(), score), **user,
                )  # fmt: skip
                _set_oom_score(child.pid, score)  # who has become another user may not do it alone
                return child
            except (OSError, MemoryError) as error:
                if isinstance(error, OSError) and error.errno not in NO_MEMORY:
                    raise
            time.sleep(SELDOM)
            self._listen()
        return None

    def _environment(self, ours: dict[str, str]) -> dict[str, str]:
        """Return the environment of a process. Where another scheduler has chosen the GPUs, ours are counted
        among those. Jobs of another user are not handed ours."""
        own, given = self.order.get("account", {}).get("env", {}), os.environ.get(VISIBLE, "")
        around = {name: value for name, value in os.environ.items() if not own or name in PASSED_ON}
        env = {**around, **own, **ours}
        if self.order.get("site") and given:
            env[VISIBLE] = ",".join(given.split(",")[int(place)] for place in ours[VISIBLE].split(","))
        return env

    def _lives(self) -> bool:
        codes, now = [child.poll() for child in self.children], time.monotonic()
        bad = [place for place, code in enumerate(codes) if code not in (None, 0)]
        if self.failed_at is None and bad and not self.told:  # who was asked to leave has the time for it
            self.failed_at, self.first = now, bad[0]
        if all(code is not None for code in codes):
            return False
        self._listen()
        self._resize()
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


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _locked_file(path: str) -> Any | None:
    """Return a file that only we hold; None while another does, or while it cannot be made."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")  # noqa: SIM115 (held to the end)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return file


def _prepare(parent: int, oom_score: int) -> None:
    """Make a child die with this process, and before it where memory is full; it runs in the child, and the
    parent may have died before."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _set_oom_score(os.getpid(), oom_score)


def _set_oom_score(process: int, score: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{process}/oom_score_adj").write_text(str(min(1000, score)))


def _oom_score() -> int:
    try:
        return int(Path("/proc/self/oom_score_adj").read_text())
    except OSError:
        return 0


def _killed_for_memory() -> int:
    """Return how many processes of this machine the kernel has killed so far, since memory was full."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


if __name__ == "__main__":
    Keeper(Path(sys.argv[1])).keep()
