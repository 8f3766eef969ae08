"""The agent of one machine starts and stops parts of runs, each in a folder, each with a keeper.

All that an agent knows stands in the folders, so that another one can take over: an order, an outcome once it
has ended, and a lock that is held as long as its keeper lives. What cannot be done for want of room on the
disk, or of memory, is done at one of the next looks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from astrarium.cluster.live.backend import Ending, Order, RunKey
from astrarium.cluster.live.machine.as_owner import KEEPING
from astrarium.cluster.live.machine.folders import JobClaims, app_name, part_folder, read_claims, read_file
from astrarium.cluster.live.machine.keeping.records import (
    ALIVE,
    CLOSED,
    LAUNCHED,
    ORDER,
    OUTCOME,
    RESIZE,
    RESIZED,
    STOP,
    mark,
    passes,
    private_folder,
    write_whole,
)
from astrarium.cluster.live.machine.outcome import Outcome, ending
from astrarium.cluster.live.machine.owners import account, app_folder
from astrarium.cluster.live.machine.parts import (
    PartOrder,
    PartStatus,
    Resized,
    how_far,
    left_behind,
    lock_files,
    written_order,
)


class MachineAgent:
    """The agent of a machine; *with_agent*, jobs end with it, else another agent finds them."""

    def __init__(self, home: str, machine: str, with_agent: bool = False) -> None:
        self._home = Path(home)
        self._machine = machine
        self._with_agent = with_agent
        self._parts: dict[RunKey, tuple[PartOrder, Path]] = {}
        self._keepers: dict[RunKey, subprocess.Popen[bytes]] = {}
        self._undone: dict[tuple[str, RunKey], Callable[[], None]] = {}  # for want of room, as in _short
        # given up before there was any
        self._unstarted = set[RunKey]()
        self._short = ""
        if not with_agent:  # it takes over the parts that an agent before it has left
            mine = [left for left in left_behind(self._home) if left[0].part.machine == machine]
            self._parts = {part.order.key: (part, folder) for part, folder in mine}

    def start(self, part: PartOrder) -> None:
        key = part.order.key
        if key not in self._parts:
            folder = part_folder(self._home, part.order, part.place)
            self._carry_out("start", key, partial(self._launch, part, folder))
            self._parts[key] = part, folder

    def stop(self, key: RunKey) -> None:
        if self._undone.pop(("start", key), None) is not None:
            self._unstarted.add(key)
        elif key in self._parts and key not in self._unstarted:
            self._carry_out("stop", key, partial(mark, self._parts[key][1] / STOP))

    def resize(self, key: RunKey, order: Order) -> None:
        """Have a part go on as the run of this order: its keeper sees to it."""
        part, folder = self._parts[key]
        gpus = order.parts[part.place].gpus
        wish = {"run": order.key.run, "gpus": order.gpus, "devices": gpus, "locks": self._locks(part, gpus)}
        if (read_file(folder / RESIZE, Resized) or Resized()).run != order.key.run:
            write = partial(write_whole, folder / RESIZE, wish)
            self._carry_out("resize", key, write)

    def forget(self, key: RunKey) -> None:
        if key in self._parts:
            self._carry_out("forget", key, partial(self._close, key))

    def look(self) -> dict[RunKey, PartStatus]:
        for (verb, key), deed in list(self._undone.items()):
            self._carry_out(verb, key, deed)
        return {key: self._status(part, folder) for key, (part, folder) in self._parts.items()}

    def _carry_out(self, verb: str, key: RunKey, deed: Callable[[], None]) -> None:
        """Do what was ordered; where there is no room or memory for it, try again at the next look."""
        self._undone.pop((verb, key), None)
        try:
            deed()
        except (OSError, MemoryError) as error:
            if not passes(error):
                raise
            self._undone[verb, key], self._short = deed, str(error) or "no memory"

    def _close(self, key: RunKey) -> None:
        if key not in self._unstarted:
            mark(self._parts[key][1] / CLOSED)
        del self._parts[key]
        self._unstarted.discard(key)
        keeper = self._keepers.pop(key, None)
        if keeper is not None:
            keeper.wait()

    def _launch(self, part: PartOrder, folder: Path) -> None:
        if (folder / LAUNCHED).exists():
            return  # an agent before us has started it
        try:
            private_folder(folder)
            order = part.order
            owner = account(part.order.task)
            if "unknown" not in owner:  # else the keeper says so
                app_folder(self._home, app_name(order.key.app, order.app), owner)
            self._start_keeper(part, folder, owner)
        except (OSError, MemoryError):
            shutil.rmtree(folder, ignore_errors=True)  # what is half made would be taken for a lost run
            raise

    def _start_keeper(self, part: PartOrder, folder: Path, owner: dict[str, Any]) -> None:
        """Start a keeper with a lock that is held already: nobody sees it started and not alive."""
        alive = os.open(folder / ALIVE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(alive, fcntl.LOCK_EX)
            locks = self._locks(part, part.part.gpus)
            written = written_order(self._home, part, locks, owner, with_agent=self._with_agent)
            write_whole(folder / ORDER, written)
            words = os.open(folder / LAUNCHED, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                self._keepers[part.order.key] = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(KEEPING), "keep", str(folder)],
                    stdin=subprocess.PIPE if self._with_agent else subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    pass_fds=[alive],
                    start_new_session=True,
                )
            finally:
                os.close(words)
        finally:
            os.close(alive)

    def _locks(self, part: PartOrder, gpus: tuple[int, ...]) -> list[str]:
        place = self._machine.rpartition(".")[0] or self._machine  # the same for whoever is agent here next
        return lock_files(self._home, part, [f"gpu-{place}-{gpu}" for gpu in gpus])

    def _status(self, part: PartOrder, folder: Path) -> PartStatus:
        key = part.order.key
        waits = self._short if ("start", part.order.key) in self._undone else ""
        if waits or key in self._unstarted:
            ended: Ending = "" if waits else "unstarted"
            return PartStatus(part.order, part.place, ended, part.kept, part.kept, waits)
        try:
            ended, error = self._ending(
                key, folder
            )  # before what it told: of one that has ended, that is all
            claims = read_claims(folder)
            resized = read_file(folder / RESIZED, Resized) or Resized()
        except OSError:  # what cannot be read now is not taken for lost
            claims = JobClaims()
            ended = ""
            error = ""
            resized = Resized()
        progress, kept = how_far(claims, part.kept)
        return PartStatus(part.order, part.place, ended, progress, kept, error, resized, claims.trouble)

    def _ending(self, key: RunKey, folder: Path) -> tuple[Ending, str]:
        keeper = self._keepers.get(key)
        alive = _held(folder / ALIVE) if keeper is None else keeper.poll() is None
        outcome = read_file(folder / OUTCOME, Outcome)
        return ("", "") if outcome is None and alive else ending(outcome)


def _held(path: Path) -> bool:
    """Return whether somebody holds the lock of this file."""
    try:
        file = path.open()
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
