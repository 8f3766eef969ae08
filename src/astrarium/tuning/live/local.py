"""The local backend runs trials as processes of this machine, on its GPUs or on emulated ones.

with LocalTrialBackend(build, gpus=4, emulated=Emulated(packing=1.2)) as backend:
    backend.start(work)
    news = backend.hear(1.0)
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
from astrarium.tuning.live.fork_server import PRELOAD, ForkServer, Rendezvous
from astrarium.tuning.live.gangs import TICK, Note, SlotBackend
from astrarium.tuning.live.messages import Packing, SlotSetup
from astrarium.tuning.live.slots import LOADING, LocalSlots, Slots, SlotTemplate
from astrarium.tuning.live.training import Build, Emulated, packed


class SearchFolder:
    """The folder of a search holds the *parcel* that trainings are built from, `checkpoints`, and `logs`. A
    *temporary* one has no logs, and is removed when it is closed."""

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
        """Return the folder that the fork server has to remove if this process cannot; empty if none."""
        return str(self.folder) if self._temporary else ""

    def log(self, name: str) -> str:
        return "" if self._temporary else str(self.folder / "logs" / name)

    def close(self) -> None:
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


class FolderBackend(SlotBackend):
    """A folder backend has a folder and a rendezvous for gangs, and is closed with the program."""

    def __init__(
        self, slots: Slots, search_folder: SearchFolder, rendezvous: Rendezvous, checkpoint_seconds: float
    ) -> None:
        super().__init__(slots, search_folder.checkpoints, rendezvous, checkpoint_seconds)
        self._search_folder, self._rendezvous = search_folder, rendezvous
        self._closed, self._owner = False, os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner:  # a forked copy of this object ends nothing
            return
        self._closed = True
        atexit.unregister(self.close)
        super().close()
        self._rendezvous.close()
        self._search_folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# Each slot sees one GPU of this machine, or an emulated one.


CLIENT = "astrarium tune"  # as which slots are on the gate's board


def found_gpus(gpus: int | Sequence[int] | None, emulated: Emulated | None) -> tuple[int, ...]:
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


def environment(
    gpu: int, setup: SlotSetup, gate: bool, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of the slots on a GPU, which see no other GPU."""
    own = {"GLOO_SOCKET_IFNAME": "lo", **environ}
    if not setup.device.startswith("cuda"):
        return {**own, VISIBLE: "", "OMP_NUM_THREADS": str(setup.threads)}
    visible = {**own, VISIBLE: chosen_gpu(gpu, environ)}
    return (under_gate(gpu, own) or visible) if gate else visible


def under_gate(gpu: int, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the environment that `astrarium gate run --class best-effort` would give, with MPS where there
    is any; None where there is no gate."""
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


class LocalTrialBackend(FolderBackend):
    """A local backend trains on GPUs of this machine. *gpus*: so many, or these; all unless given. *folder*
    keeps checkpoints, under `checkpoints`, and `logs` of what trainings print; without one they are kept
    until the backend is closed, in *memory* if asked.

    *packing*: trials that share a GPU are "processes", each with its share of the memory, or threads of one
    process that take turns in "lanes" (of *lane_backend*, "module:class", where it is not the GPU). *gate*:
    slots come under the kernel gate, and MPS, where there is one. *most* slots are kept for each GPU.
    *patience*: seconds of silence after which a process is given up. *preload*: modules that trainings need,
    and that take long to import. *noted* is told what trainings note.
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
    ) -> None:
        if find_spec("torch") is None:
            raise InputError("", None, "the package torch: pip install 'astrarium[torch]'")
        for missing in [name for name in preload if find_spec(name.partition(".")[0]) is None]:
            raise InputError("preload", missing, "a module that can be imported")
        if packing not in ("processes", "lanes"):
            raise InputError("packing", packing, "processes or lanes")
        found, parcel = found_gpus(gpus, emulated), packed(build)
        search_folder = SearchFolder(
            Path(folder) if folder is not None else _temporary(memory), parcel, folder is None
        )
        setup = SlotSetup(
            device="cpu" if emulated is not None else "cuda:0",
            build=search_folder.build,
            emulated=emulated,
            seed=seed,
            threads=threads,
            beat=max(0.05, min(1.0, patience / 4)),
            lanes=LANES if packing == "lanes" else "",
            lane_backend=lane_backend,
            log=search_folder.log("slot"),
        )
        environments = {gpu: environment(gpu, setup, gate) for gpu in found}
        with ExitStack() as undo:  # an interrupt leaves nothing behind
            undo.callback(search_folder.close)
            fork_servers = _fork_servers(environments, (*PRELOAD, *preload), search_folder.litter, undo)
            gpus_made = {gpu: SlotTemplate(fork_servers[gpu], setup) for gpu in found}
            self._local = LocalSlots(gpus_made, most, patience, packing == "lanes")
            rendezvous = Rendezvous(lambda: LOOPBACK, fork_servers[found[0]])
            if len(found) > 1:
                rendezvous.begin()  # while the slots come up
            super().__init__(self._local, search_folder, rendezvous, checkpoint_seconds)
            undo.pop_all()
        self.noted = noted or self.noted

    def warm_up(self, seconds: float = LOADING) -> None:
        """Wait until all slots that were started are ready for work, at most so many seconds."""
        until = monotonic() + seconds
        with waiting(f"starting {self._local.count} processes, which import torch and the training"):
            while not self._local.warm and monotonic() < until:
                for heard in self._local.hear(TICK):
                    self._heard(heard)

    def withdraw(self, gpu: int) -> None:
        """Give up a GPU, which is wanted for something else: runs on it are lost."""
        self._local.withdraw(gpu)

    def start(self, work: Work) -> None:
        if self._closed:
            raise RuntimeError("the backend was closed: make another")
        super().start(work)

    def hear(self, seconds: float) -> list[News]:
        """Return news. A GPU that was given up does not come back: without any, nobody need wait."""
        news = super().hear(seconds if self._local.gpus() else 0.0)
        if not news and not self._closed and not self._local.gpus():
            why = self._local.given_up or "they were all withdrawn"
            raise InputError("gpus", None, f"one at least on which processes come up ({why})")
        return news

    def pids(self) -> list[int]:
        """Return the process ids of the slots that are up."""
        return self._local.pids()


def _fork_servers(
    environments: Mapping[int, Mapping[str, str]], preload: Sequence[str], litter: str, undo: ExitStack
) -> dict[int, ForkServer]:
    """Start fork servers; GPUs whose slots have the same environment share one."""
    made: dict[tuple[tuple[str, str], ...], ForkServer] = {}
    for variables in environments.values():
        key = tuple(sorted(variables.items()))
        if key not in made:
            made[key] = ForkServer(variables, preload, litter)
            undo.callback(made[key].close)
    return {gpu: made[tuple(sorted(variables.items()))] for gpu, variables in environments.items()}


def _temporary(memory: bool) -> Path:
    where = str(MEMORY) if memory and MEMORY.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="astrarium-tune-", dir=where))
