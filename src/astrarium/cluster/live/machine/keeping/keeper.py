"""The keeper holds a part of a run: it starts its runner as the owner of the job, and ends what must end.

It is a small process of its own, so that a job outlives an arbiter that is killed, and never its machine. It
starts what the order in its folder says, passes a wish to stop (a file of that name) on, ends the job when
the time for that is over, and leaves an outcome behind. It may be root, and opens nothing that a job can
write: what is known of the job is what the runner tells, over a socket that only the two have.

It holds a lock for each GPU and for its part of the job while anything runs: whatever else goes wrong, two
jobs never share a GPU, and a job never runs twice at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .claims import checked_number, checked_part, checked_words
from .privileges import adopt_orphans, become, bound_processes, die_with_parent
from .records import (
    BEGUN,
    CLOSED,
    NO_MEMORY,
    ORDER,
    OUTCOME,
    RESIZE,
    RESIZED,
    STOP,
    TOLD,
    locked_file,
    passes,
    read_whole,
    write_whole,
)
from .runner import MESSAGE, NOT_STARTED, SELDOM, TICK, Runner

SLACK = 2.0  # seconds after which the keeper ends what the runner should have ended
HURRY = 1.0  # seconds for which a keeper goes before all others, to end what is left of its job
WRITE = 0.2  # seconds between two times that what a job told is written
AT_ONCE = 64  # messages of the runner that are heard at one look
_MOST = 400  # processes that are ended, or reaped, at one look; those are held by descriptors
_EARLIER_VICTIM = 200  # thousandths of all memory, far more than a keeper or an arbiter has (oom_score_adj)


class Keeper:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order: dict[str, Any] = json.loads((folder / ORDER).read_text(encoding="utf-8"))
        self.asked_at: float | None = None
        self.told = Heard()
        self.locks: dict[str, int] = {}  # descriptors, by path
        self._runner = 0
        self._socket = socket.socket()
        self._code: int | None = None  # of the runner
        self._killed_before = _killed_for_memory()
        self._stop_told = False
        self._written = dict[str, Any]()
        self._written_at = 0.0
        self._wished = self._met = (
            0  # later runs: the one that the job was last told to be, and the one it is
        )
        self._wished_at = 0.0

    def keep(self) -> None:
        """Keep the processes until all have ended."""
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is the arbiter's: it asks us
        adopt_orphans()
        if self.order["site"]:
            for number in (signal.SIGTERM, signal.SIGURG):  # of which the second ends no job that hears it
                signal.signal(number, self._ask)
            if not self._claim():
                return
        given_up = self.order["site"] and (self.folder / STOP).exists()
        try:
            if not given_up and self._locked() and self._start():
                while self._lives():
                    select.select([self._socket], [], [], TICK)
        finally:  # whatever went wrong here: who is not ended now has a GPU without a lease
            self._end_all()
        self._leave(self._outcome())

    def _outcome(self) -> dict[str, Any]:
        told = self.told
        killed = _killed_for_memory() - self._killed_before
        codes = told.codes if told.codes is not None else [] if self._code is None else [self._code]
        ending = {"codes": codes, "first": told.first, "words": told.words, "oom": killed}
        return {**ending, "asked": self.asked_at is not None, "told": told.claims}

    def _leave(self, outcome: dict[str, Any]) -> None:
        """Leave the outcome behind; wait until there is room for it: without one, the job would be taken for
        one whose keeper was killed."""
        while True:
            try:
                return write_whole(self.folder / OUTCOME, outcome, lasting=True)
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
                (self.folder / BEGUN).mkdir(mode=0o700)
                return not (self.folder / CLOSED).exists()
            except OSError as error:
                if not passes(error):
                    return False
            time.sleep(SELDOM)

    def _ask(self, *_: object) -> None:
        self.asked_at = self.asked_at or time.monotonic()

    def _listen(self) -> None:
        if self.asked_at is None and os.path.exists(self.folder / STOP):  # noqa: PTH110 (no error, whatever)
            self._ask()

    # locks

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
        if path not in self.locks and (held := locked_file(Path(path))) is not None:
            self.locks[path] = held
        return path in self.locks

    # the runner: all that is done as root for a job stands here

    def _start(self) -> bool:
        """Start the runner, as soon as there is memory for it; return whether it was not too late."""
        if "unknown" in self.order["account"]:
            self.told.codes = [NOT_STARTED]
            self.told.words = f"there is no user {self.order['account']['unknown']} on this machine"
            return False
        while self.asked_at is None and not self._abandoned():
            try:
                self._fork()
                return True
            except OSError as error:
                if error.errno not in NO_MEMORY:
                    raise
            time.sleep(SELDOM)
            self._listen()
        return False

    def _fork(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        keeper = os.getpid()
        self._runner = os.fork()
        if self._runner == 0:
            _become_runner(self.order, its, keeper)
        its.close()
        ours.setblocking(False)
        self._socket = ours

    def _end_all(self) -> None:
        """End all that the job has started, wherever it has hidden: its GPUs are free when nothing is left.
        Those whose parents have ended are children of ours. Who hops from process to process lives for a
        moment only: there are many looks at a time, and each ends what it finds at once. Whoever is dead and
        cannot be reaped, since another process of its owner's traces it, is left to that one."""
        ends = time.monotonic() + HURRY
        _hurry(True)
        while self._reaped() and not all(_is_dead(child) for child in _own_children()):
            for _ in range(AT_ONCE):
                _end_descendants()
                self._reaped()
            if time.monotonic() > ends:  # something cannot be ended, such as a process that waits for a disk
                _hurry(False)
                time.sleep(TICK)
            time.sleep(TICK / 5)
        _hurry(False)

    def _reaped(self) -> bool:
        """Take the codes of children that have ended, of very many some at a time; return whether others
        are left."""
        for _ in range(_MOST):
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if process == 0:
                return True
            if process == self._runner:
                self._code = os.waitstatus_to_exitcode(status)
        return True

    # what happens meanwhile

    def _lives(self) -> bool:
        self._reaped()
        self.told.hear(self._socket)
        self._write_down()
        if self._code is not None:
            return False
        self._listen()
        if self.asked_at is not None and not self._stop_told:
            self._stop_told = self._say({"stop": True})
        self._resize()
        return not (self._late() or self._abandoned())

    def _late(self) -> bool:
        grace = float(self.order["grace"]) + SLACK
        return self.asked_at is not None and time.monotonic() > self.asked_at + grace

    def _say(self, what: dict[str, Any]) -> bool:
        try:
            self._socket.send(json.dumps(what).encode())
        except OSError:  # it does not listen, or is gone
            return False
        return True

    def _write_down(self) -> None:
        """Write what the job has told, now and then; what finds no room is written later."""
        claims = self.told.claims
        now = time.monotonic()
        if claims != self._written and now - self._written_at > WRITE:
            self._written_at = now
            with contextlib.suppress(OSError, MemoryError):
                lasting = claims.get("stamp") != self._written.get("stamp")
                write_whole(self.folder / TOLD, claims, lasting)
                self._written = claims

    def _resize(self) -> None:
        """Pass a wish for other GPUs on when all of their locks are held. Those that are given up are free
        when the job has said what it uses; one that says nothing, in the time for leaving, is to leave."""
        wish = read_whole(self.folder / RESIZE)
        if wish is None or wish["run"] <= self._met or not all(self._take(path) for path in wish["locks"]):
            return
        if self._wished != wish["run"]:
            self._wished_at = time.monotonic()
            if self._say({"gpus": {"run": wish["run"], "devices": wish["devices"]}}):
                self._wished = wish["run"]
        if self.told.claims["used"] == wish["run"]:
            with contextlib.suppress(OSError, MemoryError):  # what finds no room is written later
                write_whole(self.folder / RESIZED, {"run": wish["run"], "gpus": wish["gpus"]})
                for path in self.locks.keys() - wish["locks"]:
                    os.close(self.locks.pop(path))
                self._met = wish["run"]
        elif self.asked_at is None and time.monotonic() > self._wished_at + self._patience():
            self._ask()

    def _patience(self) -> float:
        """Return how long the job may take to hear of other GPUs: twice the time, while it is starting."""
        return float(self.order["grace"]) * (1 if self.told.claims["ready"] else 2)

    def _abandoned(self) -> bool:
        """Return whether the agent that started this keeper is gone, and with it the machine."""
        if not self.order["with_agent"]:
            return False
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        return bool(ready) and not os.read(0, 1)


class Heard:
    """What a job has told through its runner. Nothing of it is believed to be of the right kind."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = _checked({})
        self.codes: list[int] | None = None  # once all has ended
        self.first = 0
        self.words = ""

    def hear(self, runner: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                message = runner.recv(MESSAGE)
            except OSError:
                return
            if not message:
                return
            with contextlib.suppress(ValueError, RecursionError):
                self.take(json.loads(message))

    def take(self, message: Any) -> None:
        if not isinstance(message, dict):
            return
        self.claims = _checked(message)
        codes = message.get("codes")
        if isinstance(codes, list) and all(type(each) is int and abs(each) < 256 for each in codes):
            first = message.get("first")
            self.codes, self.words = codes, checked_words(message.get("words"))
            self.first = first if type(first) is int and 0 <= first < max(1, len(codes)) else 0


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    """Return the claims of a message; what is not of its kind is left out."""
    stamp = message.get("stamp")
    whole = isinstance(stamp, list) and len(stamp) == 2 and None not in map(checked_number, stamp)
    return {
        "progress": checked_part(message.get("progress")),
        "kept": checked_part(message.get("kept")),
        "trouble": checked_words(message.get("trouble")),
        "used": checked_number(message.get("used")) or 0,
        "ready": bool(message.get("ready")),
        "stamp": stamp if whole else None,
    }


def _become_runner(order: dict[str, Any], keeper: socket.socket, parent: int) -> None:
    """Be the runner from now on, and nothing else: as the owner, with the socket of the keeper alone."""
    code = 1
    try:
        _keep_open(keeper.fileno())
        os.setsid()
        _go_first(_EARLIER_VICTIM)
        bound_processes(order["account"])
        become(order["account"])
        die_with_parent(parent, signal.SIGKILL)
        Runner(order, keeper).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _keep_open(kept: int) -> None:
    """Close all descriptors but one and the standard ones: the locks of GPUs are the keeper's."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _go_first(more: int) -> None:
    """Have the kernel end this process, and what it starts, before others where memory is full."""
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        path.write_text(str(min(1000, int(path.read_text()) + more)))


def _hurry(really: bool) -> None:
    """Have the kernel let this process go before those that it ends, however many they are; or no longer."""
    with contextlib.suppress(OSError):  # it is not root, or may not even so
        kind, priority = (os.SCHED_RR, 1) if really else (os.SCHED_OTHER, 0)
        os.sched_setscheduler(0, kind, os.sched_param(priority))


def _own_children() -> list[int]:
    with contextlib.ExitStack() as held:
        return _children(os.getpid(), _held(os.getpid(), held))


def _is_dead(process: int) -> bool:
    """Return whether a child of ours runs no longer, in none of its threads; nobody has reaped it yet."""
    try:
        tasks = [Path("/proc", str(process), "task", name) for name in os.listdir(f"/proc/{process}/task")]
        states = [(task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] for task in tasks]
    except OSError:  # it is ending just now
        return False
    return all(state in "ZX" for state in states)


def _end_descendants() -> None:
    """End the processes below this one, those nearest to it first; of very many, some at a time.

    The number of a process may be another's by the time that it is ended. So each is held by its folder in
    /proc, which stays that of one process, and counts only if it is still a child of its parent then.
    """
    with contextlib.ExitStack() as held:
        found = [(os.getpid(), _held(os.getpid(), held))]
        for process, folder in found:
            some = _children(process, folder)[: _MOST - len(found)]
            children = [(child, _held(child, held)) for child in some]
            still = set(_children(process, folder))
            found += [each for each in children if each[0] in still]
            if process != os.getpid():
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(folder, signal.SIGKILL)


def _held(process: int, held: contextlib.ExitStack) -> int:
    """Return the folder of a process in /proc, held open; none, -1, of one that is gone."""
    try:
        folder = os.open(f"/proc/{process}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    held.callback(os.close, folder)
    return folder


def _children(process: int, folder: int) -> list[int]:
    """Return the children of a process, as the kernel tells."""
    try:
        file = os.open(f"task/{process}/children", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:  # it is gone, or a kernel that does not tell
        return [child for child, parent in _parents() if parent == process] if process == os.getpid() else []
    except OSError:
        return []
    with open(file, "rb", buffering=0) as told, contextlib.suppress(OSError):
        return [int(each) for each in told.read().split()]
    return []


def _parents() -> Iterator[tuple[int, int]]:
    """Yield every process with its parent."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            told = Path("/proc", name, "stat").read_text(errors="replace")
            yield int(name), int(told.rpartition(")")[2].split()[1])


def _killed_for_memory() -> int:
    """Return how many processes of this machine the kernel has killed so far, since memory was full."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
