"""The Ray backend runs trials on the GPUs of a Ray cluster, each of which has an agent for the whole search.

A trial that changes its place needs no new process, and nothing of Ray but a call to stop it and one to start
it. All machines must see the folder of checkpoints under the same path. Gangs meet in a store on the machine
that runs the search.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from astrarium.core.errors import InputError
from astrarium.run.waiting import waiting
from astrarium.tuning.live.ray.agent import AgentSettings
from astrarium.tuning.live.ray.cluster import agent_placement, connect, the_ray
from astrarium.tuning.live.ray.slots import RaySlots
from astrarium.tuning.live.slots.backend import SlotBackend
from astrarium.tuning.live.slots.fork_server import PRELOAD
from astrarium.tuning.live.slots.messages import Keep, Packing
from astrarium.tuning.live.slots.rendezvous import Rendezvous
from astrarium.tuning.live.slots.search_folder import SearchFolder
from astrarium.tuning.live.training.packing import packed
from astrarium.tuning.live.training.workers import Build, Emulated
from astrarium.tuning.samplers import Goal

BEAT = 1.0  # seconds between signs of life of a slot
SLOT_PATIENCE = 30.0  # of its agent with a silent slot


class RayTrialBackend(SlotBackend):
    """A Ray backend trains on a Ray cluster. *gpus*: so many; all that the cluster has unless given, or those
    of the placement group that the environment names. *folder* keeps checkpoints, under `checkpoints`, and
    `logs`; it may be left out where all machines of the cluster are this one. *address*: of the cluster,
    where the environment does not say.

    *cpus* go with each GPU. *patience*: seconds of silence after which an agent is gone. *most* slots are
    kept for each GPU. *preload*: modules that trainings need, and that take long to import. *gate*: slots
    come under the kernel gate of their GPU, where there is one. *packing*, *goal*, *target*, *metric*
    and *keep* as those of a `LocalTrialBackend`.
    """

    def __init__(
        self,
        build: Build | str,
        gpus: int | None = None,
        emulated: Emulated | None = None,
        folder: Path | str | None = None,
        address: str | None = None,
        cpus: float = 0.0,
        checkpoint_seconds: float = 30.0,
        patience: float = 3.0,
        most: int = 4,
        threads: int = 1,
        seed: int = 0,
        preload: Sequence[str] = (),
        gate: bool = True,
        packing: Packing = "processes",
        goal: Goal = "min",
        target: float | None = None,
        metric: str = "",
        keep: Keep = "best",
    ) -> None:
        packed_build = packed(build)
        with waiting("connecting to the Ray cluster"):
            connect(address)
        hosts = _hosts()
        search_folder = SearchFolder(
            Path(folder) if folder is not None else _temporary(hosts), packed_build, folder is None
        )
        own = {
            "seed": seed,
            "threads": threads,
            "beat": BEAT,
            "goal": goal,
            "target": target,
            "metric": metric,
            "keep": keep,
        }
        setup = search_folder.slot_setup("gpu", emulated, packing, **own)
        settings = AgentSettings(
            setup=setup,
            most=most,
            patience=SLOT_PATIENCE,
            unasked=max(30.0, 10 * patience),
            shared=bool(setup.lanes),
            gate=gate,
            alone=len(hosts) == 1,
            preload=(*PRELOAD, *preload),
            searched=tuple(map(os.path.abspath, sys.path)),
        )
        with waiting("starting agents on the Ray cluster"), ExitStack() as undo:
            undo.callback(search_folder.close)
            there = agent_placement(gpus, cpus)
            rendezvous = Rendezvous(lambda: str(the_ray().util.get_node_ip_address()))
            undo.callback(rendezvous.close)
            if len(there.bundles) > 1:
                rendezvous.begin()  # while the agents come up
            slots = RaySlots(there, settings, patience)
            super().__init__(slots, search_folder, rendezvous, checkpoint_seconds)
            undo.pop_all()


def _hosts() -> list[str]:
    return sorted({str(node["NodeManagerHostname"]) for node in the_ray().nodes() if node["Alive"]})


def _temporary(hosts: Sequence[str]) -> Path:
    if len(hosts) > 1:
        raise InputError("folder", None, f"one that all of {', '.join(hosts)} see under the same path")
    return Path(tempfile.mkdtemp(prefix="astrarium-tune-"))
