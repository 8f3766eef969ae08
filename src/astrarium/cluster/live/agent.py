"""The agent of one machine starts and stops parts of runs, each in a folder, each with a keeper.

All that an agent knows stands in the folders, so that another one can take over: an order, an outcome once it
has ended, and a lock that is held as long as its keeper lives.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from astrarium.cluster.live import keeper as keeper_script
from astrarium.cluster.live.backend import Ending, Order, RunKey, RunPart
from astrarium.cluster.live.owners import account, hand_over
from astrarium.cluster.live.session import READY, STOPPED, part_folder, read_file, read_progress, run_folder

LAST_WORDS = 300
LOG_END = 1 << 16  # bytes


class Outcome(msgspec.Struct, frozen=True):
    """What a keeper has left behind: the exit codes of its processes, and which of them failed *first*."""

    codes: list[int]
    asked: bool
    first: int


def ending(outcome: Outcome | None, folder: Path) -> tuple[Ending, str]:
    """Return how a part of a run has ended, from what its keeper has left behind, and with which error."""
    if outcome is None:
        return "lost", "its keeper was killed"
    codes = outcome.codes
    if codes and all(code == 0 for code in codes):
        return "finished", ""
    if outcome.asked or not codes or all(code in (0, STOPPED) for code in codes):
        return "stopped", ""
    code, words = codes[outcome.first], _last_words(folder, outcome.first)
    ended: Ending = "not found" if code == keeper_script.NOT_FOUND else "failed"
    return ended, f"{_exit(code)}{f', {words}' if words else ''}"


def _exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _last_words(folder: Path, place: int) -> str:
    """Return the last line that the process wrote; of a long log, only the end is read."""
    logs = sorted(folder.glob("log-*.txt"), key=lambda path: int(path.stem.partition("-")[2]))
    if place >= len(logs):
        return ""
    with logs[place].open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_END))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:LAST_WORDS] if lines else ""


CLOSED = "closed"


class PartOrder(msgspec.Struct, frozen=True):
    """Part number *place* of an order, on this machine. *resume*: a checkpoint, if any, that holds *kept* of
    the work; *device_base*: the number of this machine's GPU 0 as CUDA counts them here."""

    order: Order
    place: int
    resume: str = ""
    kept: float = 0.0
    address: str = "127.0.0.1"
    port: int = 0
    grace: float = 30.0
    least: float = 0.0
    device_base: int = 0
    extra: dict[str, str] = {}

    @property
    def part(self) -> RunPart:
        return self.order.parts[self.place]


class PartStatus(msgspec.Struct, frozen=True):
    """How far a part of a run is, and how it has ended."""

    order: Order
    place: int
    ended: Ending = ""
    progress: float = 0.0
    kept: float = 0.0
    error: str = ""


class MachineAgent:
    """The agent of a machine; *with_agent*, jobs end with it, else another agent finds them."""

    def __init__(self, home: str, machine: str, with_agent: bool = False) -> None:
        self._home, self._machine, self._with_agent = Path(home), machine, with_agent
        self._parts: dict[RunKey, tuple[PartOrder, Path]] = {}
        self._keepers: dict[RunKey, subprocess.Popen[bytes]] = {}
        if not with_agent:  # it takes over the parts that an agent before it has left
            mine = [each for each in left_behind(self._home) if each[0].part.machine == machine]
            self._parts = {part.order.key: (part, folder) for part, folder in mine}

    def start(self, part: PartOrder) -> None:
        key = part.order.key
        folder = part_folder(self._home, part.order, part.place)
        if key in self._parts:
            return
        started = folder.exists()  # by an agent before us
        folder.mkdir(parents=True, exist_ok=True)
        hand_over(self._home, folder.parent, account(part.order.task))
        self._parts[key] = part, folder
        if not started:
            self._launch(part, folder)

    def stop(self, key: RunKey) -> None:
        if key in self._parts:
            (self._parts[key][1] / keeper_script.STOP).touch()

    def forget(self, key: RunKey) -> None:
        if key in self._parts:
            (self._parts.pop(key)[1] / CLOSED).touch()
        keeper = self._keepers.pop(key, None)
        if keeper is not None:
            keeper.wait()

    def look(self) -> dict[RunKey, PartStatus]:
        return {key: self._status(part, folder) for key, (part, folder) in self._parts.items()}

    def _launch(self, part: PartOrder, folder: Path) -> None:
        """Start a keeper with a lock that is held already: nobody sees it started and not alive."""
        alive = os.open(folder / keeper_script.ALIVE, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(alive, fcntl.LOCK_EX)
            keeper_script.write_whole(folder / keeper_script.ORDER, self._written(part))
            with (folder / "keeper.txt").open("wb") as words:
                self._keepers[part.order.key] = subprocess.Popen(
                    [sys.executable, "-I", "-S", keeper_script.__file__, str(folder)],
                    stdin=subprocess.PIPE if self._with_agent else subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    pass_fds=[alive],
                    start_new_session=True,
                )
        finally:
            os.close(alive)

    def _written(self, part: PartOrder) -> dict[str, Any]:
        task, key = part.order.task, part.order.key
        place = self._machine.rpartition(".")[0] or self._machine  # the same for whoever is agent here next
        locks = [f"gpu-{place}-{gpu}" for gpu in part.part.gpus]
        locks.append(f"job-{key.app}-{key.job}-{part.place}")
        return {
            "part": msgspec.to_builtins(part),
            "command": list(task.command),
            "directory": task.directory,
            "account": account(task),
            "grace": part.grace,
            "least": part.least,
            "ready": str(run_folder(self._home, part.order) / READY) if task.on_stop == "checkpoint" else "",
            "with_agent": self._with_agent,
            "locks": [str(self._home / "locks" / name.replace("/", "_")) for name in locks],
            "processes": list(_processes(self._home, part)),
        }

    def _status(self, part: PartOrder, folder: Path) -> PartStatus:
        progress, kept = _progress(run_folder(self._home, part.order), part)
        keeper = self._keepers.get(part.order.key)
        alive = _held(folder / keeper_script.ALIVE) if keeper is None else keeper.poll() is None
        outcome = read_file(folder / keeper_script.OUTCOME, Outcome)
        if outcome is None and alive:
            return PartStatus(part.order, part.place, "", progress, kept)
        ended, error = ending(outcome, folder)
        return PartStatus(part.order, part.place, ended, progress, kept, error)


class _Written(msgspec.Struct):
    part: PartOrder


def left_behind(home: Path) -> Iterator[tuple[PartOrder, Path]]:
    """Yield parts of runs whose end is in no books yet."""
    for path in home.glob(f"apps/*/*/*/part-*/{keeper_script.ORDER}"):
        found = None if (path.parent / CLOSED).exists() else read_file(path, _Written)
        if found is not None:
            yield found.part, path.parent


def _processes(home: Path, part: PartOrder) -> Iterator[dict[str, Any]]:
    """Yield the processes of a part. Ranks are counted over all parts, in their order."""
    order, here = part.order, part.part
    each_gpu = order.task.processes == "gpu"
    counts = [len(one.gpus) if each_gpu else 1 for one in order.active]
    groups = [(gpu,) for gpu in here.gpus] if each_gpu else [here.gpus]
    for local, gpus in enumerate(groups):
        rank = sum(counts[: part.place]) + local
        ranks = {"RANK": rank, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": len(groups)}
        gang = {"WORLD_SIZE": sum(counts), "MASTER_ADDR": part.address, "MASTER_PORT": part.port}
        ours = {
            "CUDA_VISIBLE_DEVICES": ",".join(str(part.device_base + gpu) for gpu in gpus),
            "ASTRARIUM_APP": order.app,
            "ASTRARIUM_JOB": order.key.job,
            "ASTRARIUM_RUN": order.key.run,
            "ASTRARIUM_PHASE": order.phase,
            "ASTRARIUM_GPUS": len(order.gpus),
            "ASTRARIUM_FOLDER": run_folder(home, order),
            "ASTRARIUM_RESUME": part.resume,
        }
        values = {name: str(value) for name, value in {**ranks, **gang, **ours}.items()}
        yield {"env": {**order.task.env, **part.extra, **values}, "log": f"log-{rank}.txt"}


def _progress(folder: Path, part: PartOrder) -> tuple[float, float]:
    told = read_progress(folder)
    kept = max(part.kept, told.kept)
    return max(kept, told.progress), kept


def _held(path: Path) -> bool:
    """Return whether somebody holds the lock of this file."""
    try:
        file = path.open("r+")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
