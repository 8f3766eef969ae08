"""The local backend runs trials as processes of this machine, on its GPUs or on emulated ones.

with LocalTrialBackend(build, gpus=4, emulated=Emulated(packing=1.2)) as backend:
    backend.start(work)
    news = backend.hear(1.0)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from astrarium.core.errors import InputError
from astrarium.gate.driver import count_gpus
from astrarium.run.leased import LeasedGpus
from astrarium.run.waiting import waiting
from astrarium.tuning.live.backend import News, Work
from astrarium.tuning.live.slots.backend import TICK, Note, SlotBackend
from astrarium.tuning.live.slots.environment import environment
from astrarium.tuning.live.slots.fork_server import PRELOAD, ForkServer
from astrarium.tuning.live.slots.messages import Keep, Packing
from astrarium.tuning.live.slots.pool import LOADING, LocalSlots, SlotTemplate
from astrarium.tuning.live.slots.rendezvous import Rendezvous
from astrarium.tuning.live.slots.search_folder import SearchFolder
from astrarium.tuning.live.training.packing import packed
from astrarium.tuning.live.training.workers import Build, Emulated
from astrarium.tuning.samplers import Goal


def chosen_gpus(gpus: int | Sequence[int] | None, emulated: Emulated | None) -> tuple[int, ...]:
    """Return the numbers of the GPUs to use: so many, these, or all that there are."""
    if isinstance(gpus, int) and gpus < 1:
        raise InputError("gpus", gpus, "1 or more")
    if emulated is not None:
        if gpus is None:
            raise InputError("gpus", None, "how many GPUs are emulated")
        return tuple(range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    there = count_gpus()
    wanted = tuple(range(there if gpus is None else gpus)) if not isinstance(gpus, Sequence) else tuple(gpus)
    missing = [gpu for gpu in wanted if gpu not in range(there)]
    if missing or not wanted:
        raise InputError("gpus", gpus, f"GPUs of this machine, which has {there}; others can be emulated")
    return wanted


LOOPBACK = "127.0.0.1"
MEMORY = Path("/dev/shm")  # a folder that is in memory, on Linux


class LocalTrialBackend(SlotBackend):
    """A local backend trains on GPUs of this machine. *gpus*: so many, or these; all unless given. *folder*
    keeps checkpoints, under `checkpoints`, and `logs` of what trainings print; without one they are kept
    until the backend is closed, in *memory* if asked.

    *packing*: trials that share a GPU are "processes", each with its share of the memory, or threads of one
    process that take turns in "lanes" (of *lane_backend*, "module:class", where it is not the GPU). *gate*:
    slots come under the kernel gate, and MPS, where there is one. *most* slots are kept for each GPU.
    *patience*: seconds of silence after which a process is given up. *preload*: modules that trainings need,
    and that take long to import. *noted* is told what trainings note. *keep*: beside its newest checkpoint,
    each candidate has its best, by *goal* and *target*, or only the "last". *metric*: the name of
    the value, where trainings report several numbers.
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
        lane_backend: str = "",
        preload: Sequence[str] = (),
        noted: Note | None = None,
        goal: Goal = "min",
        target: float | None = None,
        metric: str = "",
        keep: Keep = "best",
    ) -> None:
        _check_installed(preload)
        self._leased = LeasedGpus(Path(os.environ.get("ASTRARIUM_FOLDER", ".")))
        numbers = chosen_gpus(gpus, emulated)
        packed_build = packed(build)
        search_folder = SearchFolder(
            Path(folder) if folder is not None else _temporary(memory), packed_build, folder is None
        )
        beat = max(0.05, min(1.0, patience / 4))
        own = {"seed": seed, "threads": threads, "beat": beat, "lane_backend": lane_backend}
        own |= {"goal": goal, "target": target, "metric": metric, "keep": keep}
        setup = search_folder.slot_setup("slot", emulated, packing, **own)
        environments = {gpu: environment(gpu, setup, gate) for gpu in numbers}
        with ExitStack() as undo:  # an interrupt leaves nothing behind
            undo.callback(search_folder.close)
            fork_servers = _fork_servers(
                environments, (*PRELOAD, *preload), search_folder.temporary_folder, undo
            )
            templates = {gpu: SlotTemplate(fork_servers[gpu], setup) for gpu in numbers}
            first = self._leased.devices if self._leased.elastic else None
            self._local = LocalSlots(templates, most, patience, packing == "lanes", first)
            rendezvous = Rendezvous(lambda: LOOPBACK, fork_servers[numbers[0]])
            if len(numbers) > 1:
                rendezvous.begin()  # while the slots come up
            super().__init__(self._local, search_folder, rendezvous, checkpoint_seconds)
            undo.pop_all()
        self.noted = noted or self.noted

    def warm_up(self, seconds: float = LOADING) -> None:
        """Wait until all slots that were started are ready for work, at most so many seconds."""
        until = monotonic() + seconds
        with waiting(f"starting {self._local.count} processes, which import torch and the training"):
            while not self._local.warm and monotonic() < until:
                for message in self._local.hear(TICK):
                    self._receive(message)

    def withdraw(self, gpu: int) -> None:
        """Give up a GPU, which is wanted for something else: runs on it are lost."""
        self._local.withdraw(gpu)

    def _follow(self, leased: tuple[int, ...]) -> None:
        """Use the GPUs that a cluster leases to this search: runs on others go on elsewhere."""
        for gpu in self._local.gpus():
            if gpu not in leased:
                self._local.withdraw(gpu)
        for gpu in leased:
            self._local.restore(gpu)
        self._leased.use()

    def start(self, work: Work) -> None:
        if self._closed:
            raise RuntimeError("the backend was closed: make another")
        super().start(work)

    def hear(self, seconds: float) -> list[News]:
        """Return news. A GPU that was given up does not come back: without any, nobody need wait."""
        if self._leased.changed():
            self._follow(self._leased.devices)
        news = super().hear(seconds if self._local.gpus() else 0.0)
        if not news and not self._closed and not self._local.gpus():
            why = self._local.given_up or "they were all withdrawn"
            raise InputError("gpus", None, f"one at least on which processes come up ({why})")
        return news


def _check_installed(preload: Sequence[str]) -> None:
    if find_spec("torch") is None:
        raise InputError("", None, "the package torch: pip install 'astrarium[torch]'")
    for missing in [name for name in preload if find_spec(name.partition(".")[0]) is None]:
        raise InputError("preload", missing, "a module that can be imported")


def _fork_servers(
    environments: Mapping[int, Mapping[str, str]],
    preload: Sequence[str],
    temporary_folder: str,
    undo: ExitStack,
) -> dict[int, ForkServer]:
    """Start fork servers; GPUs whose slots have the same environment share one."""
    servers: dict[tuple[tuple[str, str], ...], ForkServer] = {}
    for variables in environments.values():
        key = tuple(sorted(variables.items()))
        if key not in servers:
            servers[key] = ForkServer(variables, preload, temporary_folder)
            undo.callback(servers[key].close)
    return {gpu: servers[tuple(sorted(variables.items()))] for gpu, variables in environments.items()}


def _temporary(memory: bool) -> Path:
    where = str(MEMORY) if memory and MEMORY.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="astrarium-tune-", dir=where))
