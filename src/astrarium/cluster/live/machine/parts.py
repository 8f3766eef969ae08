"""A part of a run is what one machine has of it: its order, as a keeper reads that, and how far it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from astrarium.cluster.live.backend import Ending, Order, RunPart
from astrarium.cluster.live.machine.folders import (
    APPS,
    LOCKS,
    ORDERS,
    JobClaims,
    job_name,
    read_file,
    run_folder,
)
from astrarium.cluster.live.machine.keeping.grace import GRACE
from astrarium.cluster.live.machine.keeping.records import CLOSED, LAUNCHED, ORDER


class PartOrder(msgspec.Struct, frozen=True):
    """Part number *place* of an order, on this machine. *resume*: a checkpoint, if any, that *resumed_run* of
    the job has written, with *kept* of the work; *device_base*: the number of this machine's GPU 0 as CUDA
    counts them here."""

    order: Order
    place: int
    resume: str = ""
    kept: float = 0.0
    address: str = "127.0.0.1"
    port: int = 0
    grace: float = GRACE
    least: float = 0.0
    device_base: int = 0
    extra: dict[str, str] = {}
    visible: int = 0  # GPUs of this machine that an elastic job sees: all of them
    resumed_run: int = 0

    @property
    def part(self) -> RunPart:
        return self.order.parts[self.place]


class Resized(msgspec.Struct, frozen=True):
    """The later run as which a part goes on, and its GPUs as the cluster counts them."""

    run: int = 0
    gpus: tuple[int, ...] = ()


class PartStatus(msgspec.Struct, frozen=True):
    """How far a part of a run is, and how it has ended; *error* of one that has not: why it cannot begin."""

    order: Order
    place: int
    ended: Ending = ""
    progress: float = 0.0
    kept: float = 0.0
    error: str = ""
    resized: Resized = Resized()
    trouble: str = ""  # of one that goes on


def lock_files(home: Path, part: PartOrder, names: Iterable[str]) -> list[str]:
    """Return the files of the locks of these names, and of that of the job."""
    key = part.order.key
    names = [*names, f"job-{key.app}-{key.job}-{part.place}"]
    return [str(home / LOCKS / name.replace("/", "_")) for name in names]


def written_order(
    home: Path,
    part: PartOrder,
    locks: list[str],
    owner: dict[str, Any],
    site: bool = False,
    with_agent: bool = False,
) -> dict[str, Any]:
    """Return what a keeper reads: *locks* to hold; *owner*: the account of the job; *site*: another scheduler
    starts the keeper, and has chosen the GPUs; *with_agent*: the job ends when the agent does."""
    task = part.order.task
    key = part.order.key
    app, _, job = job_name(part.order).partition("/")
    return {
        "part": msgspec.to_builtins(part),
        "command": list(task.command),
        "directory": task.directory,
        "grace": part.grace,
        "least": part.least,
        "ready": task.on_stop == "checkpoint",  # it says when it is up
        "with_agent": with_agent,
        "site": site,
        "locks": locks,
        "account": owner,
        "umask": _umask() if "user" not in owner else 0o022,
        "folder": [str(home / APPS / app), job, f"run-{key.run}"],
        "logs": f"part-{part.place}",
        "place": part.place,
        "run": key.run,
        "resumed_run": part.resumed_run,
        "processes": list(_processes(home, part)),
    }


def _umask() -> int:
    """Return with which mask our processes make files."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Umask:")).split()[1], 8)


class _Written(msgspec.Struct):
    part: PartOrder


def left_behind(home: Path, sign: str = LAUNCHED) -> Iterator[tuple[PartOrder, Path]]:
    """Yield parts of runs whose end is in no books yet; *sign*: the file that a part has once it counts."""
    for path in home.glob(f"{ORDERS}/*/*/*/part-*/{ORDER}"):
        there = (path.parent / sign).exists() and not (path.parent / CLOSED).exists()
        written = read_file(path, _Written) if there else None
        if written is not None:
            yield written.part, path.parent


def _processes(home: Path, part: PartOrder) -> Iterator[dict[str, Any]]:
    """Yield the processes of a part. Ranks are counted over all parts, in their order."""
    order = part.order
    here = part.part
    each_gpu = order.task.processes == "gpu"
    counts = [len(one.gpus) if each_gpu else 1 for one in order.active]
    groups = [(gpu,) for gpu in here.gpus] if each_gpu else [here.gpus]
    for local, gpus in enumerate(groups):
        rank = sum(counts[: part.place]) + local
        ranks = {"RANK": rank, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": len(groups)}
        gang = {"WORLD_SIZE": sum(counts), "MASTER_ADDR": part.address, "MASTER_PORT": part.port}
        seen = range(part.visible) if part.visible else gpus
        ours = {
            "CUDA_VISIBLE_DEVICES": ",".join(str(part.device_base + gpu) for gpu in seen),
            "ASTRARIUM_ELASTIC": "1" if part.visible else "",
            "ASTRARIUM_DEVICES": ",".join(str(tuple(seen).index(gpu)) for gpu in gpus),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML counts: who is sick there must be the same here
            "ASTRARIUM_APP": order.app,
            "ASTRARIUM_JOB": order.key.job,
            "ASTRARIUM_RUN": order.key.run,
            "ASTRARIUM_PHASE": order.phase,
            "ASTRARIUM_GPUS": len(order.gpus),
            "ASTRARIUM_GRACE": part.grace,
            "ASTRARIUM_FOLDER": run_folder(home, order),
            "ASTRARIUM_RESUME": part.resume,
        }
        values = {name: str(value) for name, value in {**ranks, **gang, **ours}.items()}
        yield {"env": {**order.task.env, **part.extra, **values}, "log": f"log-{rank}.txt"}


def how_far(claims: JobClaims, kept: float) -> tuple[float, float]:
    """Return how far a run is, and how far its checkpoint; it began with *kept* of its work."""
    kept = max(kept, claims.kept)
    return max(kept, claims.progress), kept
