"""The Ray backend runs trials on the GPUs of a Ray cluster, each of which has an agent for the whole search.

A trial that changes its place needs no new process, and nothing of Ray but a call to stop it and one to start
it. All machines must see the folder of checkpoints under the same path. Gangs meet in a store on the machine
that runs the search.

The slots have one placement group with a bundle for each GPU, and an agent in each bundle. GPUs have the
numbers of their bundles. A slot is a number that the driver gives to an agent, which has a process for it.
Ray needs about a quarter of a minute to notice that a machine is gone: an agent that has not answered for
longer than our patience is taken to be gone with all that it ran. Another takes its place as soon as Ray has
placed its bundle again.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra
from astrarium.run.waiting import waiting
from astrarium.tuning.live.fork_server import PRELOAD, Rendezvous
from astrarium.tuning.live.gangs import SearchFolder, SlotBackend
from astrarium.tuning.live.messages import Gone, Order, Packing
from astrarium.tuning.live.ray.agent import AgentAnswer, AgentSettings, SlotAgent
from astrarium.tuning.live.slots import SlotMessage
from astrarium.tuning.live.training import Build, Emulated, packed

# in the environment of an app of a cluster
GROUP = "ASTRARIUM_PLACEMENT_GROUP"
NAMESPACE = "RAY_NAMESPACE"
PLACING = 60.0  # seconds for the placement group


class AgentPlacement(NamedTuple):
    """Agents have a placement *group* of Ray, with *bundles* that have a GPU; if *ours*, it is removed."""

    group: Any
    bundles: list[int]
    ours: bool


def connect(address: str | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """Connect to the cluster that is named, here or in the environment; else to one on this machine."""
    ray = the_ray()
    if ray.is_initialized():
        return
    where = address or environment.get("RAY_ADDRESS") or "auto"
    options = {"namespace": environment.get(NAMESPACE), "log_to_driver": False}
    try:
        ray.init(address=where, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError) as error:
        told = f"a Ray cluster that is running ({str(error).splitlines()[0]})"
        raise InputError("address", where, told) from None


def agent_placement(
    gpus: int | None = None, cpus: float = 0.0, environment: Mapping[str, str] = os.environ
) -> AgentPlacement:
    """Place agents on so many GPUs, each with *cpus* beside it; all that the cluster has unless given. An app
    of a cluster of ours has a placement group already, which its environment names."""
    name = environment.get(GROUP)
    found = _given(name) if name else _new(gpus, cpus)
    if name and gpus is not None:
        if gpus > len(found.bundles):
            raise InputError("gpus", gpus, f"at most {len(found.bundles)}, as the placement group {name} has")
        found = found._replace(bundles=found.bundles[:gpus])
    return found


def _given(name: str) -> AgentPlacement:
    util = the_ray().util
    try:
        group = util.get_placement_group(name)
    except ValueError as error:
        raise InputError(GROUP, name, f"a placement group that is there ({error})") from None
    bundles = [number for number, bundle in enumerate(group.bundle_specs) if bundle.get("GPU", 0) >= 1]
    if not bundles:
        raise InputError(GROUP, name, "a placement group with bundles that have a GPU")
    return AgentPlacement(group, bundles, ours=False)


def _new(gpus: int | None, cpus: float) -> AgentPlacement:
    ray = the_ray()
    there = int(ray.cluster_resources().get("GPU", 0))
    count = there if gpus is None else gpus
    if not 1 <= count <= there:
        raise InputError("gpus", gpus, f"1 to {there}, as many as the Ray cluster has")
    bundle = {"GPU": 1.0, **({"CPU": cpus} if cpus else {})}
    group = ray.util.placement_group([bundle] * count, strategy="PACK")
    try:
        placed = group.wait(PLACING)
    except BaseException:  # an interrupt: nobody else would remove it
        ray.util.remove_placement_group(group)
        raise
    if not placed:
        ray.util.remove_placement_group(group)
        free = int(ray.available_resources().get("GPU", 0))
        raise InputError("gpus", count, f"GPUs that are free on the Ray cluster; {free} are")
    return AgentPlacement(group, list(range(count)), ours=True)


def the_ray() -> Any:
    with from_extra("ray"):
        import ray
    return ray


FIRST_ANSWER = 120.0  # seconds that an agent may take to come up
NOBODY = 0.1
AGAIN = 2.0  # seconds before another agent is tried where one has failed


class _AgentHandle:
    """The handle is what the driver knows of an agent."""

    def __init__(self, actor: Any, seconds: float) -> None:
        self.actor = actor
        self.pending: Any = actor.hear.remote(seconds)
        self.heard = monotonic()
        self.up = False


class RaySlots:
    """Slots on a Ray cluster live in agents. *patience*: seconds after which a silent agent is gone."""

    def __init__(
        self, agent_placement: AgentPlacement, settings: AgentSettings, patience: float = 3.0
    ) -> None:
        self._ray = the_ray()
        self._placement = agent_placement
        self._settings = settings
        self._patience = patience
        self._agents: dict[int, _AgentHandle] = {}
        self._retry: dict[int, float] = {}  # by GPU: when another agent is tried
        self._leases: dict[int, int] = {}  # their GPUs
        self._gone: list[SlotMessage] = []
        self._next = 0
        try:
            for gpu, _ in enumerate(agent_placement.bundles):
                self._start_agent(gpu)
            self._wait_for_agents()
        except BaseException:  # an interrupt among them
            self.close()
            raise

    def gpus(self) -> tuple[int, ...]:
        return tuple(gpu for gpu in sorted(self._agents) if self._agents[gpu].up)

    def take(self, gpu: int) -> int:
        self._next += 1
        self._leases[self._next] = gpu
        return self._next

    def give_back(self, slot: int) -> None:
        self._order("give_back", slot)
        self._leases.pop(slot, None)

    def send(self, slot: int, order: Order) -> None:
        self._order("send", slot, order)

    def kill(self, slot: int) -> None:
        self._order("kill", slot)
        self._leases.pop(slot, None)

    def hear(self, seconds: float) -> list[SlotMessage]:
        asked = {agent.pending: gpu for gpu, agent in self._agents.items()}
        if not self._gone:
            self._wait(list(asked), seconds)
        ready, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0) if asked else ([], [])
        for answer in ready:
            self._gone += self._heard(asked[answer])
        self._find_silent()
        self._restart_agents()
        heard = self._gone
        self._gone = []
        return heard

    def close(self) -> None:
        for agent in self._agents.values():
            self._ray.kill(agent.actor)
        self._agents.clear()
        if self._placement.ours:
            self._ray.util.remove_placement_group(self._placement.group)

    # agents

    def _start_agent(self, gpu: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = PlacementGroupSchedulingStrategy(self._placement.group, self._placement.bundles[gpu])
        actor = self._ray.remote(concurrency_groups={"orders": 1, "news": 1})(_with_groups(self._ray))
        made = actor.options(num_gpus=1, num_cpus=0, max_restarts=0, scheduling_strategy=where)
        self._agents[gpu] = _AgentHandle(made.remote(self._own_settings(gpu)), self._patience / 3)

    def _own_settings(self, gpu: int) -> AgentSettings:
        setup = self._settings.setup
        log = f"{setup.log}-{gpu}" if setup.log else ""
        return self._settings._replace(setup=msgspec.structs.replace(setup, log=log))

    def _wait_for_agents(self) -> None:
        """Wait until all agents are up, if they come in time; those that do not may come later."""
        ends = monotonic() + FIRST_ANSWER
        while len(self.gpus()) < len(self._placement.bundles) and monotonic() < ends:
            self._gone += self.hear(0.5)
        if not self.gpus():
            raise InputError("gpus", len(self._placement.bundles), "GPUs on which Ray can start processes")

    def _heard(self, gpu: int) -> Iterator[SlotMessage]:
        agent = self._agents[gpu]
        try:
            answer: AgentAnswer = self._ray.get(agent.pending)
        except self._ray.exceptions.RayError:
            self._lose(gpu, "its agent is gone")
            return
        agent.heard = monotonic()
        agent.up = True
        if not answer.usable:
            self._lose(gpu, "no process can be started on its GPU")
        else:
            agent.pending = agent.actor.hear.remote(self._patience / 3)
        for lease, said in answer.heard:
            if lease in self._leases:
                yield SlotMessage(lease, said)
                if isinstance(said, Gone):
                    del self._leases[lease]

    def _wait(self, asked: list[Any], seconds: float) -> None:
        """Wait for the first answer; where no agent is there to answer, others may be started later."""
        if asked:
            self._ray.wait(asked, timeout=seconds)
        else:
            sleep(min(seconds, NOBODY))

    def _find_silent(self) -> None:
        now = monotonic()
        for gpu, agent in list(self._agents.items()):
            if agent.up and now - agent.heard > self._patience:
                self._lose(gpu, f"its agent gave no sign of life for {self._patience:g} s")

    def _lose(self, gpu: int, why: str) -> None:
        """Give an agent up. It may be cut off and alive: if the kill reaches it, its slots end too."""
        self._ray.kill(self._agents.pop(gpu).actor)
        self._retry[gpu] = monotonic() + AGAIN
        for lease in [lease for lease, of in self._leases.items() if of == gpu]:
            del self._leases[lease]
            self._gone.append(SlotMessage(lease, Gone(why)))

    def _restart_agents(self) -> None:
        """Start an agent again, which waits until Ray can place its bundle."""
        now = monotonic()
        for gpu in [gpu for gpu, at in self._retry.items() if at <= now]:
            del self._retry[gpu]
            self._start_agent(gpu)

    def _order(self, verb: str, lease: int, order: Order | None = None) -> None:
        agent = self._agents.get(self._leases.get(lease, -1))
        if agent is not None:
            agent.actor.order.remote(verb, lease, order)


def _with_groups(ray: Any) -> type[SlotAgent]:
    """Return the class of the actor, in which orders and questions each have a thread."""

    class RaySlotAgent(SlotAgent):
        @ray.method(concurrency_group="orders")  # type: ignore[untyped-decorator]
        def order(self, verb: str, lease: int, order: Order | None = None) -> None:
            super().order(verb, lease, order)

        @ray.method(concurrency_group="news")  # type: ignore[untyped-decorator]
        def hear(self, seconds: float) -> AgentAnswer:
            return super().hear(seconds)

    return RaySlotAgent


BEAT = 1.0  # seconds between signs of life of a slot
SLOT_PATIENCE = 30.0  # of its agent with a silent slot


class RayTrialBackend(SlotBackend):
    """A Ray backend trains on a Ray cluster. *gpus*: so many; all that the cluster has unless given, or those
    of the placement group that the environment names. *folder* keeps checkpoints, under `checkpoints`, and
    `logs`; it may be left out where all machines of the cluster are this one. *address*: of the cluster,
    where the environment does not say.

    *cpus* go with each GPU. *patience*: seconds of silence after which an agent is gone. *most* slots are
    kept for each GPU. *preload*: modules that trainings need, and that take long to import. *gate*: slots
    come under the kernel gate of their GPU, where there is one. *packing* as that of a `LocalTrialBackend`.
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
    ) -> None:
        parcel = packed(build)
        with waiting("connecting to the Ray cluster"):
            connect(address)
        hosts = _hosts()
        search_folder = SearchFolder(
            Path(folder) if folder is not None else _temporary(hosts), parcel, folder is None
        )
        own = {"seed": seed, "threads": threads, "beat": BEAT}
        setup = search_folder.slot_setup("gpu", emulated, packing, **own)
        settings = AgentSettings(
            setup, most, SLOT_PATIENCE, max(30.0, 10 * patience), bool(setup.lanes), gate, len(hosts) == 1,
            preload=(*PRELOAD, *preload), searched=tuple(map(os.path.abspath, sys.path)),
        )  # fmt: skip
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
