"""The slot backend trains runs on gangs of slots, whose members may be lost, whoever starts the processes."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Self

from astrarium.run.unpickling import make_own
from astrarium.tuning.live.backend import Ending, GpusSeen, Iterated, News, RunEnded, Work
from astrarium.tuning.live.checkpoints import Checkpoints
from astrarium.tuning.live.fork_server import Rendezvous
from astrarium.tuning.live.messages import Begin, Gone, Leave, MemberEnded, Noted, Packing, Saved, SlotSetup
from astrarium.tuning.live.slots import SlotMessage, Slots
from astrarium.tuning.live.training import Emulated

GRACE = 2.0  # seconds for members of a gang that is over; then they are killed
TICK = 0.25
LANES = "pack"  # the iteration policy by which trials share a process

Note = Callable[[int, str, str], object]  # candidate, name, and value as JSON


@dataclass
class _Gang:
    """A gang is the slots that train one run together."""

    work: Work
    slots: list[int]  # by rank
    saved: int  # iterations of the newest checkpoint
    ends: dict[int, MemberEnded | None] = field(default_factory=dict)  # by rank; None: the member is gone
    why: str = ""  # the first that went
    dropped: bool = False
    killed: set[int] = field(default_factory=set)  # ranks, by us
    deadline: float | None = None


class SearchFolder:
    """The folder of a search holds the *parcel* that trainings are built from, `checkpoints`, and `logs`. A
    *temporary* one has no logs, and is removed when it is closed."""

    def __init__(self, folder: Path, parcel: bytes, temporary: bool) -> None:
        self.folder = folder.absolute()
        self._temporary = temporary
        for name in ("checkpoints", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.build = str(self.folder / "build.pkl")
        Path(self.build).write_bytes(parcel)
        make_own(Path(self.build))

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def litter(self) -> str:
        """Return the folder that the fork server has to remove if this process cannot; empty if none."""
        return str(self.folder) if self._temporary else ""

    def log(self, name: str) -> str:
        return "" if self._temporary else str(self.folder / "logs" / name)

    def slot_setup(self, log: str, emulated: Emulated | None, packing: Packing, **more: Any) -> SlotSetup:
        """Return the setup of slots that train what is in this folder. *more* is what else it has."""
        device = "cpu" if emulated is not None else "cuda:0"
        lanes = LANES if packing == "lanes" else ""
        return SlotSetup(device, self.build, emulated, lanes=lanes, log=self.log(log), **more)

    def close(self) -> None:
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


class SlotBackend:
    """A slot backend runs each order on a gang of slots. The members of a gang meet at the address of the
    *rendezvous*, which is asked for the first gang. A run saves a checkpoint every so many seconds. A backend
    is closed with the program."""

    def __init__(
        self,
        slots: Slots,
        search_folder: SearchFolder,
        rendezvous: Rendezvous,
        checkpoint_seconds: float = 30.0,
    ) -> None:
        self.slots = slots
        self.folder = search_folder.checkpoints
        self.noted: Note = lambda candidate, name, value: None
        self._search_folder = search_folder
        self._rendezvous = rendezvous
        self._every = checkpoint_seconds
        self._checkpoints = Checkpoints(self.folder)
        self._gangs: dict[tuple[int, int], _Gang] = {}
        self._gangs_started = 0
        self._gpus = slots.gpus()
        self._news: list[News] = [GpusSeen(self._gpus)]
        self._closed = False
        self._owner = os.getpid()
        atexit.register(self.close)

    # orders

    def start(self, work: Work) -> None:
        saved = work.start.iterations if work.start is not None else 0
        gang = self._gangs[work.trial, work.run] = _Gang(work, [], saved)
        there = self.slots.gpus()
        if not all(gpu in there for gpu in work.place.gpus):
            gang.why = "its GPU is gone"
            self._over(gang)
            return
        gang.slots = [self.slots.take(gpu) for gpu in work.place.gpus]
        size = len(gang.slots)
        store = self._rendezvous() if size > 1 else None
        self._gangs_started += 1
        name = f"{work.trial}.{work.run}.{self._gangs_started}"  # no gang has met under that name before
        for rank, slot in enumerate(gang.slots):
            self.slots.send(slot, Begin(work, str(self.folder), self._every, rank, size, store, name))

    def stop(self, trial: int, run: int) -> None:
        gang = self._gangs.get((trial, run))
        if gang is not None:
            self.slots.send(gang.slots[0], Leave(trial, run))

    def drop(self, trial: int, run: int) -> None:
        gang = self._gangs.get((trial, run))
        if gang is not None:
            gang.dropped = True
            self._end_soon(gang)
            for slot in gang.slots:
                self.slots.send(slot, Leave(trial, run, drop=True))

    # news

    def hear(self, seconds: float) -> list[News]:
        until = monotonic() + seconds
        while True:
            left = 0.0 if self._news else max(0.0, min(TICK, until - monotonic()))
            for heard in self.slots.hear(left):
                self._heard(heard)
            self._kill_the_late(monotonic())
            self._see_gpus()
            if self._news or monotonic() >= until:
                break
        news = self._news
        self._news = []
        return news

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner:  # a forked copy of this object ends nothing
            return
        self._closed = True
        atexit.unregister(self.close)
        self._gangs.clear()
        self.slots.close()
        self._rendezvous.close()
        self._search_folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _heard(self, heard: SlotMessage) -> None:
        slot, said = heard
        if isinstance(said, Gone):
            self._lost(slot, said.why)
        elif isinstance(said, Iterated | Saved | Noted | MemberEnded):
            gang = self._gangs.get((said.trial, said.run))
            if gang is not None:
                self._told(gang, slot, said)

    def _told(self, gang: _Gang, slot: int, said: Iterated | Saved | Noted | MemberEnded) -> None:
        if isinstance(said, Iterated):
            self._news.append(said)
        elif isinstance(said, Noted):
            self.noted(gang.work.candidate, said.name, said.value)
        elif isinstance(said, Saved):
            self._wrote(gang, said.iterations)
        else:
            self._dismiss(gang, slot, said)
            self._member_over(gang, said.rank, said)

    def _dismiss(self, gang: _Gang, slot: int, said: MemberEnded) -> None:
        """Give a slot back, or kill it: a process whose gang broke apart may hang when it leaves the gang."""
        if len(gang.slots) > 1 and (said.ending == "failed" or gang.dropped):
            self.slots.kill(slot)
        else:
            self.slots.give_back(slot)

    def _lost(self, slot: int, why: str) -> None:
        for gang in [gang for gang in self._gangs.values() if slot in gang.slots]:
            rank = gang.slots.index(slot)
            if rank not in gang.ends:
                gang.why = gang.why or why
                self._member_over(gang, rank, None)

    # how gangs end

    def _member_over(self, gang: _Gang, rank: int, ended: MemberEnded | None) -> None:
        gang.ends[rank] = ended
        if len(gang.ends) == len(gang.slots):
            self._over(gang)
        elif ended is None or ended.ending == "failed" or rank == 0:
            self._end_soon(gang)

    def _end_soon(self, gang: _Gang) -> None:
        gang.deadline = gang.deadline or monotonic() + GRACE

    def _kill_the_late(self, now: float) -> None:
        """Kill members that may wait for ever, for one that is gone or in an incomplete collective."""
        late = [gang for gang in self._gangs.values() if gang.deadline is not None and now >= gang.deadline]
        for gang in late:
            for rank in set(range(len(gang.slots))) - gang.ends.keys():
                self._kill(gang, rank)

    def _kill(self, gang: _Gang, rank: int) -> None:
        """Kill a member's process, and with it the runs that share the process."""
        slot = gang.slots[rank]
        gang.killed.add(rank)
        self.slots.kill(slot)
        self._member_over(gang, rank, None)
        self._lost(slot, "its process was ended with that of another run")

    def _over(self, gang: _Gang) -> None:
        """Report the end of a run: lost, if a member went by itself; a member's own error comes before those
        that follow from it."""
        del self._gangs[gang.work.trial, gang.work.run]
        ended = [end for end in gang.ends.values() if end is not None]
        leader = gang.ends.get(0)
        if leader is not None and leader.ending in ("finished", "left") and not gang.dropped:
            self._wrote(gang, leader.iterations)
        ending, error = _ending(gang, ended)
        value = leader.value if leader is not None else None
        self._news.append(RunEnded(gang.work.trial, gang.work.run, ending, gang.saved, value, error))

    def _wrote(self, gang: _Gang, iterations: int) -> None:
        gang.saved = iterations
        self._checkpoints.wrote(gang.work.candidate, iterations, keep=iterations == gang.work.total)

    def _see_gpus(self) -> None:
        there = self.slots.gpus()
        if there != self._gpus:
            self._gpus = there
            self._news.append(GpusSeen(there))


def _ending(gang: _Gang, ended: list[MemberEnded]) -> tuple[Ending, str]:
    failed = sorted((end for end in ended if end.ending == "failed"), key=lambda end: end.trouble)
    died = [rank for rank, end in gang.ends.items() if end is None and rank not in gang.killed]
    if gang.dropped:
        return "left", ""
    if failed and not failed[0].trouble:
        return "failed", failed[0].error
    if died or failed or not ended:
        return "lost", gang.why or (failed[0].error if failed else "")
    if any(end.ending == "finished" for end in ended):
        return "finished", ""
    return ("left", "") if gang.ends.get(0) is not None else ("lost", gang.why)
