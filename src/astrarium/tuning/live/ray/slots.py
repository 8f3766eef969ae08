"""Slots on a Ray cluster have one placement group with a bundle for each GPU, and an agent in each bundle.

GPUs have the numbers of their bundles. A slot is a number that the driver gives to an agent, which has a
process for it. Ray needs about a quarter of a minute to notice that a machine is gone: an agent that has not
answered for longer than our patience is taken to be gone with all that it ran. Another takes its place as
soon as Ray has placed its bundle again.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import msgspec

from astrarium.core.errors import InputError
from astrarium.tuning.live.ray.agent import AgentAnswer, AgentSettings, SlotAgent, Verb
from astrarium.tuning.live.ray.cluster import AgentPlacement, the_ray
from astrarium.tuning.live.slots.messages import Gone, Order
from astrarium.tuning.live.slots.pool import SlotMessage

FIRST_ANSWER = 120.0  # seconds that an agent may take to come up
NOBODY = 0.1
AGAIN = 2.0  # seconds before another agent is tried where one has failed


class _AgentHandle:
    """The driver makes a handle when it starts an agent, and drops it with the agent."""

    def __init__(self, actor: Any, seconds: float) -> None:
        self.actor = actor
        self.pending: Any = actor.hear.remote(seconds)
        self.last_answer = monotonic()
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
        self._messages: list[SlotMessage] = []
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
        gpu_of = {agent.pending: gpu for gpu, agent in self._agents.items()}
        if not self._messages:
            self._wait(list(gpu_of), seconds)
        ready, _ = self._ray.wait(list(gpu_of), num_returns=len(gpu_of), timeout=0) if gpu_of else ([], [])
        for answer in ready:
            self._messages += self._answer_of(gpu_of[answer])
        self._lose_silent()
        self._restart_agents()
        messages = self._messages
        self._messages = []
        return messages

    def close(self) -> None:
        for agent in self._agents.values():
            self._ray.kill(agent.actor)
        self._agents.clear()
        if self._placement.ours:
            self._ray.util.remove_placement_group(self._placement.group)

    def _start_agent(self, gpu: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = PlacementGroupSchedulingStrategy(self._placement.group, self._placement.bundles[gpu])
        actor = self._ray.remote(concurrency_groups={"orders": 1, "news": 1})(_with_groups(self._ray))
        placed_actor = actor.options(num_gpus=1, num_cpus=0, max_restarts=0, scheduling_strategy=where)
        self._agents[gpu] = _AgentHandle(placed_actor.remote(self._own_settings(gpu)), self._patience / 3)

    def _own_settings(self, gpu: int) -> AgentSettings:
        setup = self._settings.setup
        log = f"{setup.log}-{gpu}" if setup.log else ""
        return self._settings._replace(setup=msgspec.structs.replace(setup, log=log))

    def _wait_for_agents(self) -> None:
        """Wait until all agents are up, if they come in time; those that do not may come later."""
        ends = monotonic() + FIRST_ANSWER
        while len(self.gpus()) < len(self._placement.bundles) and monotonic() < ends:
            self._messages += self.hear(0.5)
        if not self.gpus():
            raise InputError("gpus", len(self._placement.bundles), "GPUs on which Ray can start processes")

    def _answer_of(self, gpu: int) -> Iterator[SlotMessage]:
        agent = self._agents[gpu]
        try:
            answer: AgentAnswer = self._ray.get(agent.pending)
        except self._ray.exceptions.RayError:
            self._lose(gpu, "its agent is gone")
            return
        agent.last_answer = monotonic()
        agent.up = True
        if not answer.usable:
            self._lose(gpu, "no process can be started on its GPU")
        else:
            agent.pending = agent.actor.hear.remote(self._patience / 3)
        for lease, message in answer.messages:
            if lease in self._leases:
                yield SlotMessage(lease, message)
                if isinstance(message, Gone):
                    del self._leases[lease]

    def _wait(self, answers: list[Any], seconds: float) -> None:
        """Wait for the first answer; where no agent is there to answer, others may be started later."""
        if answers:
            self._ray.wait(answers, timeout=seconds)
        else:
            sleep(min(seconds, NOBODY))

    def _lose_silent(self) -> None:
        now = monotonic()
        for gpu, agent in list(self._agents.items()):
            if agent.up and now - agent.last_answer > self._patience:
                self._lose(gpu, f"its agent gave no sign of life for {self._patience:g} s")

    def _lose(self, gpu: int, why: str) -> None:
        """Give an agent up. It may be cut off and alive: if the kill reaches it, its slots end too."""
        self._ray.kill(self._agents.pop(gpu).actor)
        self._retry[gpu] = monotonic() + AGAIN
        for lease in [lease for lease, of in self._leases.items() if of == gpu]:
            del self._leases[lease]
            self._messages.append(SlotMessage(lease, Gone(why)))

    def _restart_agents(self) -> None:
        """Start an agent again, which waits until Ray can place its bundle."""
        now = monotonic()
        for gpu in [gpu for gpu, at in self._retry.items() if at <= now]:
            del self._retry[gpu]
            self._start_agent(gpu)

    def _order(self, verb: Verb, lease: int, order: Order | None = None) -> None:
        agent = self._agents.get(self._leases.get(lease, -1))
        if agent is not None:
            agent.actor.order.remote(verb, lease, order)


def _with_groups(ray: Any) -> type[SlotAgent]:
    """Return the class of the actor, in which orders and questions each have a thread."""

    class RaySlotAgent(SlotAgent):
        @ray.method(concurrency_group="orders")  # type: ignore[untyped-decorator]
        def order(self, verb: Verb, lease: int, order: Order | None = None) -> None:
            super().order(verb, lease, order)

        @ray.method(concurrency_group="news")  # type: ignore[untyped-decorator]
        def hear(self, seconds: float) -> AgentAnswer:
            return super().hear(seconds)

    return RaySlotAgent
