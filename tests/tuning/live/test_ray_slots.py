"""Agents as their driver knows them, and the agent itself, without Ray and in virtual time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from astrarium.core.errors import InputError
from astrarium.tuning.live.ray import agent as tuning_ray_agent
from astrarium.tuning.live.ray import slots as ray_slots
from astrarium.tuning.live.ray.agent import AgentAnswer, AgentSettings, SlotAgent
from astrarium.tuning.live.ray.cluster import AgentPlacement
from astrarium.tuning.live.ray.slots import AGAIN, RaySlots
from astrarium.tuning.live.slots.messages import Beat, Gone, Leave, MemberEnded, SlotSetup
from astrarium.tuning.live.slots.pool import SlotMessage

PATIENCE = 3.0
LEAVE = Leave(0, 1)


class RayError(Exception):
    pass


class FakeCall:
    """What a call to an actor gives; *answer* comes, or does not."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments
        self.answer: AgentAnswer | None = None

    def of(self, *messages: SlotMessage, usable: bool = True) -> None:
        self.answer = AgentAnswer(list(messages), usable)


class FakeActor:
    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.killed = False
        self.asked: list[FakeCall] = []
        self.ordered: list[tuple[Any, ...]] = []
        self.hear = SimpleNamespace(remote=self._asked)
        self.order = SimpleNamespace(remote=lambda *order: self.ordered.append(order))

    def _asked(self, *arguments: Any) -> FakeCall:
        self.asked.append(FakeCall(arguments))
        return self.asked[-1]


class FakeRay:
    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        self.actors: list[FakeActor] = []
        self.now = 0.0
        self.at_first: Callable[[FakeCall], None] = lambda call: call.of()
        self.removed: list[Any] = []
        self.util = SimpleNamespace(remove_placement_group=self.removed.append)

    def method(self, **_: Any) -> Any:
        return lambda function: function

    def remote(self, **_: Any) -> Any:
        return lambda kind: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._made))

    def _made(self, settings: AgentSettings) -> FakeActor:
        self.actors.append(FakeActor(settings))
        return self.actors[-1]

    def wait(self, calls: list[FakeCall], num_returns: int = 1, timeout: float = 0) -> Any:
        for call in calls:
            if call.answer is None and call is self._first(call):
                self.at_first(call)
        if not any(call.answer for call in calls):
            self.now += timeout
        return [call for call in calls if call.answer is not None], []

    def _first(self, call: FakeCall) -> FakeCall | None:
        return next((actor.asked[0] for actor in self.actors if actor.asked[0] is call), None)

    def get(self, call: FakeCall) -> Any:
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def kill(self, actor: FakeActor) -> None:
        actor.killed = True


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_slots, "the_ray", lambda: fake)
    monkeypatch.setattr(ray_slots, "monotonic", lambda: fake.now)
    return fake


def slots(count: int = 2, ours: bool = True) -> RaySlots:
    return RaySlots(
        AgentPlacement(None, list(range(count)), ours), AgentSettings(SlotSetup(log="logs")), PATIENCE
    )


def test_orders_go_to_the_agent_of_the_gpu(ray: FakeRay) -> None:
    mine = slots()
    first = mine.take(1)
    second = mine.take(1)
    mine.send(first, LEAVE)
    mine.kill(second)
    mine.give_back(first)
    assert ray.actors[0].ordered == []
    assert ray.actors[1].ordered == [
        ("send", first, LEAVE),
        ("kill", second, None),
        ("give_back", first, None),
    ]
    mine.send(first, LEAVE)  # of a run that has ended
    assert len(ray.actors[1].ordered) == 3


def test_each_agent_writes_its_own_log(ray: FakeRay) -> None:
    slots()
    assert [actor.settings.setup.log for actor in ray.actors] == ["logs-0", "logs-1"]


def test_a_silent_agent_is_gone_with_what_it_ran_and_another_comes(ray: FakeRay) -> None:
    mine = slots()
    lease = mine.take(0)
    other = mine.take(1)
    silent, busy = ray.actors
    ray.now = PATIENCE * 0.9
    busy.asked[-1].of()
    assert mine.hear(0) == []
    ray.now = PATIENCE * 1.1
    assert mine.hear(0) == [SlotMessage(lease, Gone("its agent gave no sign of life for 3 s"))]
    assert silent.killed
    assert mine.gpus() == (1,)
    silent.asked[-1].of(SlotMessage(lease, MemberEnded(0, 1, 0, "finished", 9)))
    busy.asked[-1].of()
    assert mine.hear(0) == []  # what it says late is heard by nobody
    ray.now += AGAIN
    busy.asked[-1].of()
    mine.hear(0)
    busy.asked[-1].of()
    mine.hear(0)
    assert mine.gpus() == (0, 1)
    assert len(ray.actors) == 3
    mine.send(mine.take(0), LEAVE)
    assert ray.actors[2].ordered
    assert not busy.killed
    assert other == 2


def test_an_agent_that_died_is_gone_at_once(ray: FakeRay) -> None:
    mine = slots()
    lease = mine.take(0)
    ray.actors[0].asked[-1].answer = RayError()  # type: ignore[assignment]
    assert [message for _, message in mine.hear(0)] == [Gone("its agent is gone")]
    mine.send(lease, LEAVE)
    assert not ray.actors[0].ordered


def test_an_agent_that_can_start_nothing_is_of_no_use(ray: FakeRay) -> None:
    mine = slots(1)
    lease = mine.take(0)
    ray.actors[0].asked[-1].of(SlotMessage(lease, Gone("x")), usable=False)
    assert [slot for slot, _ in mine.hear(0)] == [lease]
    assert mine.gpus() == ()


def test_a_lease_that_was_given_back_is_not_heard_of(ray: FakeRay) -> None:
    mine = slots(1)
    lease = mine.take(0)
    mine.give_back(lease)
    ray.actors[0].asked[-1].of(SlotMessage(lease, Gone("x")))
    assert mine.hear(0) == []


def test_no_agent_in_time_is_an_error_that_leaves_nothing(ray: FakeRay) -> None:
    ray.at_first = lambda call: None
    with pytest.raises(InputError, match="GPUs on which Ray can start"):
        slots()
    assert all(actor.killed for actor in ray.actors)
    assert ray.removed


def test_a_placement_group_that_is_not_ours_stays(ray: FakeRay) -> None:
    mine = slots(ours=False)
    mine.close()
    assert all(actor.killed for actor in ray.actors)
    assert not ray.removed


class FakeSlots:
    """One GPU; hears what a test puts in, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.there: tuple[int, ...] = (0,)
        self.said: list[SlotMessage] = []
        self.closed = threading.Event()
        self._bell = threading.Event()

    def gpus(self) -> tuple[int, ...]:
        return self.there

    def take(self, gpu: int) -> int:
        self.told.append(("take", gpu))
        return 10 + len(self.told)

    def send(self, slot: int, order: Any) -> None:
        self.told.append(("send", slot, order))

    def give_back(self, slot: int) -> None:
        self.told.append(("give_back", slot))

    def kill(self, slot: int) -> None:
        self.told.append(("kill", slot))

    def ring(self) -> None:
        self._bell.set()

    def says(self, *messages: SlotMessage) -> None:
        self.said += messages
        self._bell.set()

    def hear(self, seconds: float) -> list[SlotMessage]:
        self._bell.wait(min(seconds, 0.01))
        self._bell.clear()
        messages = self.said
        self.said = []
        return messages

    def close(self) -> None:
        self.closed.set()


def waited(until: Callable[[], Any]) -> Any:
    ends = time.monotonic() + 30
    while not (value := until()):
        assert time.monotonic() < ends
        time.sleep(0.005)
    return value


def agent(under: FakeSlots, unasked: float = 1000.0) -> SlotAgent:
    return SlotAgent(AgentSettings(SlotSetup(), unasked=unasked), under)  # type: ignore[arg-type]


def test_a_slot_is_taken_with_the_first_order_and_kept_for_the_next() -> None:
    under = FakeSlots()
    one = agent(under)
    one.order("send", 7, LEAVE)
    one.order("send", 7, LEAVE)
    one.order("give_back", 7)
    one.order("give_back", 7)
    waited(lambda: len(under.told) == 4)
    assert under.told == [("take", 0), ("send", 11, LEAVE), ("send", 11, LEAVE), ("give_back", 11)]
    one.close()
    assert under.closed.wait(30)


def test_what_slots_say_is_told_by_lease_and_beats_are_not() -> None:
    under = FakeSlots()
    one = agent(under)
    one.order("send", 7, LEAVE)
    waited(lambda: len(under.told) == 2)
    under.says(SlotMessage(11, Beat()), SlotMessage(99, Gone("another's")), SlotMessage(11, Gone("dead")))
    messages = waited(lambda: one.hear(0.01).messages)
    assert messages == [SlotMessage(7, Gone("dead"))]
    one.order("kill", 7)  # of a slot that is gone
    one.order("send", 8, LEAVE)
    waited(lambda: len(under.told) == 4)
    assert ("kill", 11) not in under.told
    one.close()


def test_where_no_process_can_be_started_a_run_is_gone() -> None:
    under = FakeSlots()
    under.there = ()
    one = agent(under)
    one.order("send", 7, LEAVE)
    answer = waited(lambda: (reply := one.hear(0.01)).messages and reply)
    assert [type(message) for _, message in answer.messages] == [Gone]
    assert not answer.usable
    one.close()


def test_what_nobody_asks_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(tuning_ray_agent, "monotonic", lambda: now[0])
    under = FakeSlots()
    one = agent(under, unasked=30.0)
    one.order("send", 7, LEAVE)
    waited(lambda: len(under.told) == 2)
    now[0] = 31.0
    assert waited(lambda: under.told[2:]) == [("kill", 11)]
    assert waited(lambda: one.hear(0.01).messages) == [SlotMessage(7, Gone("nobody asked for it any more"))]
    one.close()
