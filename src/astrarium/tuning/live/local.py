"""Trials as processes of this machine, on its GPUs or on emulated ones.

with LocalCrew(build, gpus=4, emulated=Emulated(packing=1.2)) as crew:
    crew.start(work)
    news = crew.hear(1.0)
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from astrarium.core.errors import InputError
from astrarium.gate.driver import VISIBLE, NoGpu, chosen_gpu, count_gpus
from astrarium.run.waiting import waiting
from astrarium.tuning.live.backend import News, Work
from astrarium.tuning.live.fork_server import PRELOAD, Nursery
from astrarium.tuning.live.gangs import TICK, Note, SlotCrew
from astrarium.tuning.live.meeting import Meeting
from astrarium.tuning.live.messages import Packing, Setup
from astrarium.tuning.live.slots import LOADING, Gpu, LocalSlots, Slots
from astrarium.tuning.live.training import Build, Emulated, packed

# A crew at home: it has a folder, a place where gangs meet, and is ended with the program.


class Home:
    """A folder with the *parcel* that trainings are built from, `checkpoints`, and `logs`. One that is
    *temporary* has no logs, and goes when it is closed."""

    def __init__(self, folder: Path, parcel: bytes, temporary: bool) -> None:
        self.folder, self._temporary = folder.absolute(), temporary
        for name in ("checkpoints", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.build = str(self.folder / "build.pkl")
        Path(self.build).write_bytes(parcel)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def litter(self) -> str:
        """What somebody else has to remove if we cannot any more."""
        return str(self.folder) if self._temporary else ""

    def log(self, name: str) -> str:
        return "" if self._temporary else str(self.folder / "logs" / name)

    def close(self) -> None:
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


class HousedCrew(SlotCrew):
    def __init__(self, slots: Slots, home: Home, meeting: Meeting, checkpoint_seconds: float) -> None:
        super().__init__(slots, home.checkpoints, meeting, checkpoint_seconds)
        self._home, self._meeting = home, meeting
        self._closed, self._owner = False, os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner:  # a copy of it that was forked ends nobody
            return
        self._closed = True
        atexit.unregister(self.close)
        super().close()
        self._meeting.close()
        self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# The GPUs of this machine, or emulated ones, as the slots on them see them.


CLIENT = "astrarium tune"  # as which slots are on the gate's board


def found_gpus(gpus: int | Sequence[int] | None, emulated: Emulated | None) -> tuple[int, ...]:
    """So many, these, or all that there are."""
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


def environment(
    gpu: int, setup: Setup, gate: bool, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Of the slots on a GPU, each of which sees no other."""
    own = {"GLOO_SOCKET_IFNAME": "lo", **environ}
    if not setup.device.startswith("cuda"):
        return {**own, VISIBLE: "", "OMP_NUM_THREADS": str(setup.threads)}
    visible = {**own, VISIBLE: chosen_gpu(gpu, environ)}
    return (under_gate(gpu, own) or visible) if gate else visible


def under_gate(gpu: int, environ: Mapping[str, str]) -> dict[str, str] | None:
    """As `astrarium gate run --class best-effort` would start them, with MPS where there is any; None where
    there is no gate."""
    from astrarium.gate.board import board_path
    from astrarium.gate.launch import Client, shared

    try:
        chosen = chosen_gpu(gpu, environ)
        return shared(
            Client(CLIENT, chosen, "best-effort", board_path(chosen)), {}, "may", environ
        ).environment
    except (NoGpu, InputError):
        return None


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
