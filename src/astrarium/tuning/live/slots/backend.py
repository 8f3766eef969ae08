"""The slot backend trains runs on gangs of slots, whose members may be lost, whoever starts the processes."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from time import monotonic
from typing import Self

from astrarium.tuning.live.backend import GpusSeen, Iterated, News, Work
from astrarium.tuning.live.checkpoints import Checkpoints
from astrarium.tuning.live.slots.gang import Gang
from astrarium.tuning.live.slots.messages import Begin, Gone, Leave, MemberEnded, Noted, Saved
from astrarium.tuning.live.slots.pool import SlotMessage, Slots
from astrarium.tuning.live.slots.rendezvous import Rendezvous
from astrarium.tuning.live.slots.search_folder import SearchFolder

GRACE = 2.0  # seconds for members of a gang that is over; then they are killed
TICK = 0.25
Note = Callable[[int, str, str], object]  # candidate, name, and value as JSON


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
        self._gangs: dict[tuple[int, int], Gang] = {}
        self._gangs_started = 0
        self._gpus = slots.gpus()
        self._news: list[News] = [GpusSeen(self._gpus)]
        self._closed = False
        self._owner = os.getpid()
        atexit.register(self.close)

    def start(self, work: Work) -> None:
        saved = work.start.iterations if work.start is not None else 0
        gang = self._gangs[work.trial, work.run] = Gang(work, [], saved)
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

    def hear(self, seconds: float) -> list[News]:
        until = monotonic() + seconds
        while True:
            left = 0.0 if self._news else max(0.0, min(TICK, until - monotonic()))
            for message in self.slots.hear(left):
                self._receive(message)
            self._kill_the_late(monotonic())
            self._look_at_gpus()
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

    def _receive(self, received: SlotMessage) -> None:
        slot, message = received
        if isinstance(message, Gone):
            self._lost(slot, message.why)
        elif isinstance(message, Iterated | Saved | Noted | MemberEnded):
            gang = self._gangs.get((message.trial, message.run))
            if gang is not None:
                self._receive_of_gang(gang, slot, message)

    def _receive_of_gang(
        self, gang: Gang, slot: int, message: Iterated | Saved | Noted | MemberEnded
    ) -> None:
        if isinstance(message, Iterated):
            self._news.append(message)
        elif isinstance(message, Noted):
            self.noted(gang.work.candidate, message.name, message.value)
        elif isinstance(message, Saved):
            self._wrote(gang, message.iterations, message.best)
        else:
            self._release(gang, slot, message)
            self._member_over(gang, message.rank, message)

    def _release(self, gang: Gang, slot: int, end: MemberEnded) -> None:
        """Give a slot back, or kill it: a process whose gang broke apart may hang when it leaves the gang."""
        if len(gang.slots) > 1 and (end.ending == "failed" or gang.dropped):
            self.slots.kill(slot)
        else:
            self.slots.give_back(slot)

    def _lost(self, slot: int, why: str) -> None:
        for gang in [gang for gang in self._gangs.values() if slot in gang.slots]:
            rank = gang.slots.index(slot)
            if rank not in gang.ends:
                gang.why = gang.why or why
                self._member_over(gang, rank, None)

    def _member_over(self, gang: Gang, rank: int, ended: MemberEnded | None) -> None:
        gang.ends[rank] = ended
        if len(gang.ends) == len(gang.slots):
            self._over(gang)
        elif ended is None or ended.ending == "failed" or rank == 0:
            self._end_soon(gang)

    def _end_soon(self, gang: Gang) -> None:
        gang.deadline = gang.deadline or monotonic() + GRACE

    def _kill_the_late(self, now: float) -> None:
        """Kill members that may wait for ever, for one that is gone or in an incomplete collective."""
        late = [gang for gang in self._gangs.values() if gang.deadline is not None and now >= gang.deadline]
        for gang in late:
            for rank in set(range(len(gang.slots))) - gang.ends.keys():
                self._kill(gang, rank)

    def _kill(self, gang: Gang, rank: int) -> None:
        """Kill a member's process, and with it the runs that share the process."""
        slot = gang.slots[rank]
        gang.killed.add(rank)
        self.slots.kill(slot)
        self._member_over(gang, rank, None)
        self._lost(slot, "its process was ended with that of another run")

    def _over(self, gang: Gang) -> None:
        """Report the end of a run, all of whose members are gone."""
        del self._gangs[gang.work.trial, gang.work.run]
        leader = gang.ends.get(0)
        if leader is not None and leader.ending in ("finished", "left") and not gang.dropped:
            self._wrote(gang, leader.iterations)
        self._news.append(gang.run_ended())

    def _wrote(self, gang: Gang, iterations: int, best: bool = False) -> None:
        gang.saved = iterations
        self._checkpoints.wrote(gang.work.candidate, iterations, iterations == gang.work.total, best)

    def _look_at_gpus(self) -> None:
        there = self.slots.gpus()
        if there != self._gpus:
            self._gpus = there
            self._news.append(GpusSeen(there))
