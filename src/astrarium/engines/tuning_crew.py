"""Trials as processes of this machine, on its GPUs or on emulated ones.

with LocalCrew(build, gpus=4, emulated=Emulated(packing=1.2)) as crew:
    crew.start(work)
    news = crew.hear(1.0)
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from astrarium.core.errors import InputError
from astrarium.engines.tuning_builds import packed
from astrarium.engines.tuning_devices import environment, found_gpus
from astrarium.engines.tuning_gangs import TICK, Note
from astrarium.engines.tuning_home import Home, HousedCrew
from astrarium.engines.tuning_meeting import Meeting
from astrarium.engines.tuning_nursery import PRELOAD, Nursery
from astrarium.engines.tuning_orders import Packing, Setup
from astrarium.engines.tuning_slots import LOADING, Gpu, LocalSlots
from astrarium.engines.tuning_training import Build, Emulated
from astrarium.engines.waiting import waiting
from astrarium.tuning.crew import News, Work

LOOPBACK = "127.0.0.1"
MEMORY = Path("/dev/shm")  # a folder that is in memory, on Linux
LANES = "pack"  # the iteration policy by which trials share a process


class LocalCrew(HousedCrew):
    """*gpus*: so many, or these; all of this machine unless given. *folder* keeps checkpoints, under
    `checkpoints`, and `logs` of what trainings print; without one they are kept while the crew is there, in
    *memory* if asked.

    *packing*: trials that share a GPU are "processes", each with its share of the memory, or threads of one
    process that take turns in "lanes". *gate*: slots come under the kernel gate, and MPS, where there is one.
    *most* slots are kept for each GPU. *patience*: seconds of silence after which a process is given up.
    *preload*: modules that trainings need, and that take long to import. *noted* is told what trainings note.
    """

    def __init__(
        self,
        build: Build | str,
        gpus: int | Sequence[int] | None = None,
        emulated: Emulated | None = None,
        folder: Path | str | None = None,
        memory: bool = False,
        packing: Packing = "processes",
        gate: bool = True,
        checkpoint_seconds: float = 30.0,
        patience: float = 30.0,
        most: int = 4,
        threads: int = 1,
        seed: int = 0,
        ground: str = "",
        preload: Sequence[str] = (),
        noted: Note | None = None,
    ) -> None:
        if find_spec("torch") is None:
            raise InputError("", None, "the package torch: pip install 'astrarium[torch]'")
        for missing in [name for name in preload if find_spec(name.partition(".")[0]) is None]:
            raise InputError("preload", missing, "a module that can be imported")
        if packing not in ("processes", "lanes"):
            raise InputError("packing", packing, "processes or lanes")
        found, parcel = found_gpus(gpus, emulated), packed(build)
        home = Home(Path(folder) if folder is not None else _temporary(memory), parcel, folder is None)
        setup = Setup(
            device="cpu" if emulated is not None else "cuda:0",
            build=home.build,
            emulated=emulated,
            seed=seed,
            threads=threads,
            beat=max(0.05, min(1.0, patience / 4)),
            lanes=LANES if packing == "lanes" else "",
            ground=ground,
            log=home.log("slot"),
        )
        environments = {gpu: environment(gpu, setup, gate) for gpu in found}
        with ExitStack() as undo:  # an interrupt leaves nothing behind
            undo.callback(home.close)
            nurseries = _nurseries(environments, (*PRELOAD, *preload), home.litter, undo)
            gpus_made = {gpu: Gpu(nurseries[gpu], setup) for gpu in found}
            self._local = LocalSlots(gpus_made, most, patience, packing == "lanes")
            meeting = Meeting(lambda: LOOPBACK, nurseries[found[0]])
            if len(found) > 1:
                meeting.begin()  # while the slots come up
            super().__init__(self._local, home, meeting, checkpoint_seconds)
            undo.pop_all()
        self.noted = noted or self.noted

    def warm_up(self, seconds: float = LOADING) -> None:
        """Wait until all slots that were started are ready for work, or for so long."""
        until = monotonic() + seconds
        with waiting(f"starting {self._local.count} processes, which import torch and the training"):
            while not self._local.warm and monotonic() < until:
                for heard in self._local.hear(TICK):
                    self._heard(heard)

    def withdraw(self, gpu: int) -> None:
        """It is wanted for something else: what runs there is lost."""
        self._local.withdraw(gpu)

    def start(self, work: Work) -> None:
        if self._closed:
            raise RuntimeError("the crew was closed: make another")
        super().start(work)

    def hear(self, seconds: float) -> list[News]:
        """A GPU that was given up does not come back: without any, nobody need wait."""
        news = super().hear(seconds if self._local.gpus() else 0.0)
        if not news and not self._closed and not self._local.gpus():
            why = self._local.given_up or "they were all withdrawn"
            raise InputError("gpus", None, f"one at least on which processes come up ({why})")
        return news

    def pids(self) -> list[int]:
        """Of the slots that are up."""
        return self._local.pids()


def _nurseries(
    environments: Mapping[int, Mapping[str, str]], preload: Sequence[str], litter: str, undo: ExitStack
) -> dict[int, Nursery]:
    """GPUs whose slots have the same environment share one."""
    made: dict[tuple[tuple[str, str], ...], Nursery] = {}
    for variables in environments.values():
        key = tuple(sorted(variables.items()))
        if key not in made:
            made[key] = Nursery(variables, preload, litter)
            undo.callback(made[key].close)
    return {gpu: made[tuple(sorted(variables.items()))] for gpu, variables in environments.items()}


def _temporary(memory: bool) -> Path:
    where = str(MEMORY) if memory and MEMORY.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="astrarium-tune-", dir=where))
