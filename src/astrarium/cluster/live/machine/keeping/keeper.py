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
from pathlib import Path
from typing import Any

from .claims import Heard
from .descendants import MOST_AT_ONCE, end_descendants, only_dead_are_left
from .grace import Grace
from .pauses import SELDOM, TICK
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
from .runner import NOT_STARTED, Runner

HURRY = 1.0  # seconds for which a keeper goes before all others, to end what is left of its job
LOOKS = 64  # at what is left of a job, one after another, before a pause
WRITE = 0.2  # seconds between two times that what a job told is written
_EARLIER_VICTIM = 200  # thousandths of all memory, far more than a keeper or an arbiter has (oom_score_adj)


class Keeper:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order: dict[str, Any] = json.loads((folder / ORDER).read_text(encoding="utf-8"))
        self._grace = Grace(float(self.order["grace"]))
        self.asked_at: float | None = None
        self.heard = Heard()
        self.locks: dict[str, int] = {}  # descriptors, by path
        self._runner = 0
        self._socket = socket.socket()
        self._code: int | None = None  # of the runner
        self._killed_before = _killed_for_memory()
        self._stop_passed = False
        self._written = dict[str, Any]()
        self._written_at = 0.0
        self._wished = 0  # the later run that the job was last told to be
        self._met = 0  # and the one that it is
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
        heard = self.heard
        killed = _killed_for_memory() - self._killed_before
        codes = heard.codes if heard.codes is not None else [] if self._code is None else [self._code]
        ending = {"codes": codes, "first": heard.first, "words": heard.words, "oom": killed}
        return {**ending, "asked": self.asked_at is not None, "told": heard.claims}

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

    def _start(self) -> bool:
        """Start the runner, as soon as there is memory for it; return whether it was not too late."""
        if "unknown" in self.order["account"]:
            self.heard.codes = [NOT_STARTED]
            self.heard.words = f"there is no user {self.order['account']['unknown']} on this machine"
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
        while self._reaped() and not only_dead_are_left():
            for _ in range(LOOKS):
                end_descendants()
                self._reaped()
            if time.monotonic() > ends:  # something cannot be ended, such as a process that waits for a disk
                _hurry(False)
                time.sleep(TICK)
            time.sleep(TICK / 5)
        _hurry(False)

    def _reaped(self) -> bool:
        """Take the codes of children that have ended, of very many some at a time; return whether others
        are left."""
        for _ in range(MOST_AT_ONCE):
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if process == 0:
                return True
            if process == self._runner:
                self._code = os.waitstatus_to_exitcode(status)
        return True

    def _lives(self) -> bool:
        self._reaped()
        self.heard.hear(self._socket)
        self._write_down()
        if self._code is not None:
            return False
        self._listen()
        if self.asked_at is not None and not self._stop_passed:
            self._stop_passed = self._say({"stop": True})
        self._resize()
        return not (self._late() or self._abandoned())

    def _late(self) -> bool:
        return self.asked_at is not None and time.monotonic() > self.asked_at + self._grace.keeper

    def _say(self, what: dict[str, Any]) -> bool:
        try:
            self._socket.send(json.dumps(what).encode())
        except OSError:  # it does not listen, or is gone
            return False
        return True

    def _write_down(self) -> None:
        """Write what the job has told, now and then; what finds no room is written later."""
        claims = self.heard.claims
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
        if self.heard.claims["used"] == wish["run"]:
            with contextlib.suppress(OSError, MemoryError):  # what finds no room is written later
                write_whole(self.folder / RESIZED, {"run": wish["run"], "gpus": wish["gpus"]})
                for path in self.locks.keys() - wish["locks"]:
                    os.close(self.locks.pop(path))
                self._met = wish["run"]
        elif self.asked_at is None and time.monotonic() > self._wished_at + self._grace.resize(
            self.heard.claims["ready"]
        ):
            self._ask()

    def _abandoned(self) -> bool:
        """Return whether the agent that started this keeper is gone, and with it the machine."""
        if not self.order["with_agent"]:
            return False
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        return bool(ready) and not os.read(0, 1)


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


def _killed_for_memory() -> int:
    """Return how many processes of this machine the kernel has killed so far, since memory was full."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
