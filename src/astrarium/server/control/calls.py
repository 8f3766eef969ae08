"""Calls are let in, taken in, answered or refused here, between the protocols and the policy.

Calls come in two ways. `infer` is the long one: any tensors, any protocol, a coroutine that waits. `take` is
the short one, for requests that native code has read: nobody waits in Python, and the answers of a batch are
sent in one go as soon as its worker is done, before the books and the policy hear of it; by the early reply
thread, where there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from astrarium.core.errors import one_of
from astrarium.core.quantities import rounded_duration
from astrarium.core.units import FOREVER, MICROSECOND, MILLISECOND, Time
from astrarium.server.contract import (
    Deliver,
    Delivery,
    ExpressClient,
    Full,
    InferAnswer,
    InferCall,
    Kind,
    ModelCard,
    PackedCall,
    Refused,
    Stages,
)
from astrarium.server.control.bounds import alone
from astrarium.server.control.control_room import Control
from astrarium.server.control.desk import Desk
from astrarium.server.control.repository import Entry, Repository
from astrarium.server.control.tickets import InFlightBatch, TensorStore, Ticket, Waiter
from astrarium.server.timelines import Timelines
from astrarium.serving.contract import EXPIRED, UNSERVED, ModelSpec, Setup
from astrarium.serving.live.backends.contract import blamed
from astrarium.serving.live.backends.references import loaded
from astrarium.serving.live.tensors import Tensor, TensorSpec, datatype_of, to_array, to_bytes
from astrarium.serving.live.workers import EarlyReplies
from astrarium.serving.state import Outcome

# Preprocessing makes a model's inputs in the frontend, while the request already waits its turn.


THREADS = 4
Hook = Callable[..., Mapping[str, Any]]


class Preprocessor:
    """The preprocessor runs hooks in threads, and calls *made* when inputs are made."""

    def __init__(self, tensor_store: TensorStore, made: Callable[[], None]) -> None:
        self._tensor_store, self._made = tensor_store, made
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="preprocess")
        self._hooks: dict[str, Hook] = {}
        self._running: set[asyncio.Task[None]] = set()

    def hook(self, reference: str, field: str) -> None:
        """Load a hook now, so that a mistake shows before the first request."""
        self._hooks[reference] = loaded(reference, Path(), field)

    def prepare(self, ticket: Ticket, reference: str) -> None:
        ticket.inputs_ready = False
        task = asyncio.get_running_loop().create_task(self._prepare(ticket, reference))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _prepare(self, ticket: Ticket, reference: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            made = await loop.run_in_executor(self._threads, self._made_inputs, ticket, reference)
            if not self._tensor_store.take_in(ticket, made):
                ticket.broken = "there is no shared memory left for its inputs"
        except Exception as error:
            ticket.broken = f"its preprocessing failed: {blamed(error)}"
        ticket.inputs_ready = True
        self._tensor_store.settle(ticket)  # its call may have ended meanwhile
        self._made()

    def _made_inputs(self, ticket: Ticket, reference: str) -> list[Tensor]:
        """Make the inputs, all of it in the thread: texts become objects and bytes again one by one."""
        given = {tensor.name: to_array(tensor) for tensor in ticket.call.inputs}
        answer = self._hooks[reference](**given)
        return [_tensor(spec, answer, ticket.call.rows) for spec in ticket.tensors.inputs]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _tensor(spec: TensorSpec, answer: Mapping[str, Any], rows: int) -> Tensor:
    if spec.name not in answer:
        raise ValueError(f"it made no {spec.name}, which the model needs; it made {', '.join(answer)}")
    array = answer[spec.name]
    if array.shape[:1] != (rows,) or not spec.admits(array.shape[1:]):
        raise ValueError(f"{spec.name}: expected shape {(rows, *spec.shape)}, got {array.shape}")
    if datatype_of(array) != spec.datatype:
        raise ValueError(f"{spec.name}: expected {spec.datatype}, got {datatype_of(array)}")
    return Tensor(spec.name, spec.datatype, array.shape, to_bytes(array))


STRETCH = 100 * MILLISECOND  # long enough for some batches to end
SHARE = 0.5  # of the objective that calls may queue for then: a longer queue answers nobody more, only later
RECOVERY = 1.5  # by which a limit is forgotten after each stretch in which calls did not queue up


class OpenCallLimit:
    """This limit says how many calls of a model on *gpus* GPUs can be open and still be in time.

    It follows the rate at which the model's calls are answered.
    """

    def __init__(self, spec: ModelSpec, gpus: int, now: Time) -> None:
        self._promised = gpus / best if (best := best_time(spec)) else float("inf")
        self._queued = 2 * spec.max_batch * gpus  # so many open calls keep every GPU busy
        self._rate = self._promised  # answers per nanosecond
        self._began, self._answers, self._always_queued = now, 0, False

    def answered(self) -> None:
        self._answers += 1

    def too_many(self, calls: int, objective: Time, now: Time) -> bool:
        """Whether so many open calls are too many for a further one to be answered within *objective*."""
        if calls <= self._queued:
            self._always_queued = False
        if now - self._began >= STRETCH:
            self._next_stretch(now)
        return calls > self._rate * objective

    def _next_stretch(self, now: Time) -> None:
        if self._always_queued:
            self._rate = min(self._promised, SHARE * self._answers / (now - self._began))
        else:
            self._rate = min(self._promised, RECOVERY * self._rate)
        self._began, self._answers, self._always_queued = now, 0, True


def best_time(spec: ModelSpec) -> float:
    """Return the least GPU time of a request: its share of the best batch; 0 where times vary."""
    if spec.dynamic is not None:
        return 0.0
    return min(spec.latency[size] / size for size in range(1, spec.max_batch + 1))


class Admission(NamedTuple):
    """A call that is let in has a deadline, and an application."""

    deadline: Time
    application: int


def let_in(call: InferCall, entry: Entry, setup: Setup, now: Time) -> Admission:
    """Admit a call; it is refused if the model is not ready or not even an idle GPU would be in time."""
    if entry.state != "READY":
        raise Refused(Kind.UNAVAILABLE, f"model {call.model} is not ready: {entry.reason}")
    objective = min(_objective(call, entry), FOREVER if call.patience is None else call.patience)
    deadline = call.received + objective
    needed = alone(setup.models[entry.plan.index], setup.network)
    if now + needed > deadline:
        asked, takes, passed = map(rounded_duration, (objective, needed, now - call.received))
        raise Refused(
            Kind.DEADLINE,
            f"model {call.model} cannot answer within {asked}: one request alone takes {takes}, "
            f"and {passed} had passed",
        )
    return Admission(deadline, _application(call, entry))


def asks_what_was_promised(call: InferCall, entry: Entry) -> bool:
    """Whether a call allows the model its objective, so that a refusal is not the call's own fault."""
    slo, timeout, patience = entry.plan.slo, call.timeout, call.patience
    return (timeout is None or timeout >= slo) and (patience is None or patience >= slo)


def _objective(call: InferCall, entry: Entry) -> Time:
    """Return the call's own timeout, or that of its priority, or the model's objective."""
    if call.timeout is not None:
        return call.timeout
    priorities = entry.plan.priorities
    if not call.priority or not priorities:
        return entry.plan.slo
    if call.priority not in priorities:
        known = one_of([str(level) for level in priorities])
        raise Refused(Kind.BAD_REQUEST, f"priority: expected {known} (got {call.priority})")
    return priorities[call.priority]


def _application(call: InferCall, entry: Entry) -> int:
    """Return the number of the call's application; for models without applications any tag will do."""
    known = entry.plan.applications
    if not known or not call.application:
        return 0
    if call.application not in known:
        expected = one_of(list(known), call.application)
        raise Refused(Kind.BAD_REQUEST, f"application: expected {expected} (got {call.application!r})")
    return known.index(call.application)


RETRY_AFTER = 1.0
# What the early reply thread is told: a call of one row, its client's line, its room and the room's size,
# and its place in the batch.
EarlyReply = tuple[PackedCall, object, int, int, int]
_OVERLOADED = Kind.OVERLOADED.name.lower()
_ANSWERED = (Outcome.IN_TIME, Outcome.LATE)
_DECLINING = (Kind.DEADLINE, Kind.OVERLOADED)  # other refusals are the caller's fault, or known to be ours


class Calls:
    """Calls of both ways meet here; *closed* says why none is taken now, and is empty where they are."""

    def __init__(
        self,
        control: Control,
        repository: Repository,
        preprocessor: Preprocessor,
        timelines: Timelines,
        clock: Callable[[], Time],
        closed: Callable[[], str],
        early_replies: EarlyReplies | None = None,
    ) -> None:
        self._early_replies = early_replies
        self._control, self._repository, self._preprocessor = control, repository, preprocessor
        self._timelines, self._clock, self._closed = timelines, clock, closed
        self._desk: Desk = control.desk
        self._tensor_store: TensorStore = control.desk.tensor_store
        self.memory = self._tensor_store.memory.view
        self.deliver: Deliver = _nowhere
        self.full: Full = _nothing
        self._is_full: set[int] = set()
        self._set_open_limits(control.setup, 0, clock())
        self.taken = self.answered_early = 0  # calls that came the short way, and those answered early
        control.answer_sender = self

    def cards(self) -> Sequence[tuple[int, ModelCard, str]]:
        """Return the models' cards; a model with preprocessing goes the long way, and says so."""
        entries = self._repository.entries
        return [(one.plan.index, one.card(), "preprocess" if one.plan.preprocess else "") for one in entries]

    def card(self, model: int) -> ModelCard:
        return self._repository.entries[model].card()

    def needed(self, model: int) -> Time:
        setup = self._control.setup
        return alone(setup.models[model], setup.network)

    def planned(self) -> Setup:
        return self._control.setup

    def hopeless(self, model: int) -> None:
        books = self._control.books[model]
        books.refused[_OVERLOADED] += 1
        books.decline("it is overloaded")

    # the long way

    async def infer(self, call: InferCall) -> InferAnswer:
        entry = self._repository.find(call.model)
        ticket = self._admit(call, entry, asyncio.get_running_loop().create_future())
        await self._ended(ticket)
        if ticket.outcome in _ANSWERED:
            return self._answer(ticket)
        self._desk.release(ticket)
        raise refusal(ticket)

    async def _ended(self, ticket: Ticket) -> None:
        """Wait for a call's end; a client that goes away cancels this, and the call ends all the same."""
        answer = ticket.answer
        assert isinstance(answer, asyncio.Future)
        try:
            await answer
        except asyncio.CancelledError:
            if not answer.cancelled():  # it had ended already, and nobody will read the answer
                self._desk.release(ticket)
            raise

    def _answer(self, ticket: Ticket) -> InferAnswer:
        try:
            outputs = self._tensor_store.outputs(ticket)
        except ValueError as error:
            self._desk.release(ticket)
            raise Refused(Kind.MODEL_FAILED, f"model {ticket.call.model}: {error}") from None
        ticket.answered = self._clock()
        stages, flight = self._note(ticket), ticket.flight
        assert flight is not None
        in_time = ticket.outcome is Outcome.IN_TIME
        release = partial(self._desk.release, ticket)
        return InferAnswer(outputs, stages, len(flight.requests), flight.gpu, in_time, release)

    # the short way

    def take(self, client: ExpressClient, received: Time) -> None:
        packed = client.packed
        entry = self._repository.entries[packed.model]
        timeout = packed.timeout_us * MICROSECOND or None
        name = entry.plan.name
        call = InferCall(name, (), packed.rows, received, timeout, packed.priority, packed.application)
        self._admit(call, entry, _NOBODY, client)
        self.taken += 1

    def keep_pace(self, now: Time) -> None:
        self._control.keep_pace(now)

    def sending(self, flight: InFlightBatch) -> None:
        """Leave plain calls to the early reply thread, unless their batch may still be stopped."""
        if self._early_replies is not None and not flight.scheduler.preempts:
            replies = [_reply(ticket, member) for member, ticket in _plain(flight)]
            if replies:
                self._early_replies.expect(flight.tag, replies)

    def returned(self, flight: InFlightBatch, answer: bool) -> None:
        if self._early_replies is not None:
            at, places, unsent = self._early_replies.collect(flight.tag)
            if at:
                plain = _plain(flight)
                self._were_sent({place: plain[place][1] for place in places}, at, dict(unsent))
        if answer:
            ready = [ticket for ticket, _ in flight.rows if _is_ready(ticket)]
            if ready:
                self._deliver(ready)

    def _were_sent(self, tickets: dict[int, Ticket], at: Time, unsent: dict[int, bytes]) -> None:
        self.answered_early += len(tickets)
        for place, ticket in tickets.items():
            ticket.answered = at
            assert ticket.client is not None
            ticket.client.sent(unsent.get(place, b""))

    def _deliver(self, tickets: list[Ticket]) -> None:
        now = self._clock()
        for ticket in tickets:
            ticket.answered = now
        self.deliver([_delivery(ticket) for ticket in tickets])

    def _express_ended(self, ticket: Ticket, client: ExpressClient) -> None:
        if ticket.outcome not in _ANSWERED:
            if not ticket.answered:  # else its client has heard already
                client.turn_down(refusal(ticket))
        elif not ticket.answered and not _alike(ticket):
            client.turn_down(Refused(Kind.MODEL_FAILED, _UNEQUAL.format(ticket.call.model)))
        else:
            if not ticket.answered:
                self._deliver([ticket])
            self._note(ticket)
        self._desk.release(ticket)

    # both

    def _admit(
        self, call: InferCall, entry: Entry, answer: Waiter, client: ExpressClient | None = None
    ) -> Ticket:
        try:
            return self._admitted(call, entry, answer, client)
        except Refused as refused:
            self.turned_away(entry, refused)
            if refused.kind in _DECLINING:
                self._decline(call, entry, refused.reason)
            raise

    def _decline(self, call: InferCall, entry: Entry, reason: str) -> None:
        if asks_what_was_promised(call, entry):
            self._control.books[entry.plan.index].decline(reason)

    def _admitted(
        self, call: InferCall, entry: Entry, answer: Waiter, client: ExpressClient | None
    ) -> Ticket:
        closed, control, desk = self._closed(), self._control, self._desk
        if closed:
            raise Refused(Kind.UNAVAILABLE, closed)
        admission = let_in(call, entry, control.setup, self._clock())
        if desk.open >= control.plan.queue:
            raise _overloaded(f"{desk.open} calls are open already, the most that may be")
        index = entry.plan.index
        self._check_backlog(entry, admission.deadline - call.received)
        ticket = Ticket(call, index, entry.tensors, admission.application, admission.deadline, answer, client)
        ticket.packed = client.packed if client is not None else None
        self._take_in(ticket, entry)
        ticket.admitted = self._clock()
        control.books[index].accepted += 1
        for request in desk.open_parts(ticket):
            control.arrive(request, ticket)
        return ticket

    def _check_backlog(self, entry: Entry, objective: Time) -> None:
        """Refuse what could not be in time even if its GPUs had nothing else and the best batches to do."""
        ahead = self._too_many(entry.plan.index, objective)
        if not ahead:
            return
        if objective >= entry.plan.slo:  # the next ones need not even be taken
            self._is_full.add(entry.plan.index)
            self.full(entry.plan.index, ahead)
        told = f"model {entry.plan.name} has {ahead} calls open"
        raise _overloaded(f"{told}, more than can be answered in {objective / MILLISECOND:g} ms")

    def _too_many(self, model: int, objective: Time) -> int:
        """Return how many calls of the model are open if a further one could not be in time; else 0."""
        now, setup, gpus = self._clock(), self._control.setup, len(self._control.present)
        if self._limits_of[0] is not setup or self._limits_of[1] != gpus:
            self._set_open_limits(setup, gpus, now)
        ahead = self._control.books[model].open
        return ahead if self._open_limits[model].too_many(ahead, objective, now) else 0

    def _set_open_limits(self, setup: Setup, gpus: int, now: Time) -> None:
        self._open_limits, self._limits_of = (
            [OpenCallLimit(spec, gpus, now) for spec in setup.models],
            (setup, gpus),
        )

    def _look_whether_still_full(self, model: int) -> None:
        if not self._too_many(model, self._repository.entries[model].plan.slo):
            self._is_full.discard(model)
            self.full(model, 0)

    def turned_away(self, entry: Entry, refused: Refused) -> None:
        self._control.books[entry.plan.index].refused[refused.kind.name.lower()] += 1

    def _take_in(self, ticket: Ticket, entry: Entry) -> None:
        packed = ticket.packed
        if packed is not None:
            if not self._tensor_store.take_packed(ticket, packed):
                self._refuse_for_memory(ticket, packed.block_bytes)
        elif entry.plan.preprocess is not None:
            self._preprocessor.prepare(ticket, entry.plan.preprocess)
        elif not self._tensor_store.take_in(ticket, ticket.call.inputs):
            self._refuse_for_memory(ticket, self._tensor_store.bytes_of(ticket.call.inputs))

    def _refuse_for_memory(self, ticket: Ticket, inputs: int) -> None:
        needed, most = self._tensor_store.needed(ticket, inputs), self._tensor_store.arena.size
        if needed > most:
            reason = f"its tensors and their answer need {needed} bytes of shared memory; there are {most}"
            raise Refused(Kind.TOO_LARGE, f"model {ticket.call.model}: {reason}")
        raise _overloaded("the shared memory for tensors is full")

    def ticket_ended(self, ticket: Ticket) -> None:
        """Answer or refuse a call; the desk calls this when its last part has ended."""
        now, control = ticket.answered or self._clock(), self._control
        if ticket.outcome in _ANSWERED:  # known better than the plan knew it
            ticket.outcome = Outcome.IN_TIME if now <= ticket.deadline else Outcome.LATE
            self._open_limits[ticket.model].answered()
        control.books[ticket.model].call_ended(ticket.outcome, ticket.cause, now - ticket.call.received)
        if ticket.outcome is Outcome.DROPPED and ticket.cause != UNSERVED:
            entry = self._repository.entries[ticket.model]
            self._decline(ticket.call, entry, f"dropped: {ticket.cause}")
        control.recent.add(now, ended=1, good=ticket.outcome is Outcome.IN_TIME)
        if ticket.model in self._is_full:
            self._look_whether_still_full(ticket.model)
        if ticket.client is not None:
            self._express_ended(ticket, ticket.client)
        elif ticket.answer.done():  # nobody waits for it any more
            self._desk.release(ticket)
        else:
            ticket.answer.set_result(None)

    def _note(self, ticket: Ticket) -> Stages:
        """Enter an answered call in the books and on the timeline."""
        flight, call = ticket.flight, ticket.call
        assert flight is not None, "an answered call was in a batch"
        done = flight.done
        assert done is not None, "an answered call's batch ended well"
        moments = flight.dispatched, done.started, done.finished, ticket.answered
        stages = Stages(call.received, ticket.admitted, *moments)
        self._control.books[ticket.model].answered(stages, call.rows)
        self._control.margins.answered(flight, stages.answered)
        in_time = ticket.outcome is Outcome.IN_TIME
        self._timelines.add(call.model, flight.gpu, flight.tag, len(flight.requests), in_time, stages)
        return stages


class _Nobody:
    """Nobody waits for a packed call here: its client is told in another way."""

    def done(self) -> bool:
        return True

    def set_result(self, result: None, /) -> None:
        raise AssertionError("nobody waits here")


_NOBODY = _Nobody()
_UNEQUAL = "model {}: the rows of one call have answers of unequal shapes"


def _nowhere(deliveries: Sequence[Delivery]) -> None:
    raise AssertionError(f"{len(deliveries)} packed calls, and no protocol that they came from")


def _nothing(model: int, open_calls: int) -> None:
    """Tell nobody that a model has too many open calls: no protocol reads calls in native code."""


def _plain(flight: InFlightBatch) -> list[tuple[int, Ticket]]:
    """Return the packed calls of one row, with their places in the batch."""
    return [(member, ticket) for member, (ticket, _) in enumerate(flight.rows) if _is_packed(ticket)]


def _is_packed(ticket: Ticket) -> bool:
    return ticket.client is not None and ticket.call.rows == 1


def _is_ready(ticket: Ticket) -> bool:
    """Whether the batch that has just ended is all that its client waits for."""
    return _is_packed(ticket) and ticket.open_parts == 1 and not ticket.answered


def _reply(ticket: Ticket, member: int) -> EarlyReply:
    assert ticket.client is not None
    assert ticket.packed is not None
    return ticket.packed, ticket.client.line, ticket.replies, ticket.room, member


def _delivery(ticket: Ticket) -> Delivery:
    assert ticket.client is not None
    assert ticket.packed is not None
    return Delivery(ticket.client, ticket.packed, ticket.replies, ticket.room, ticket.reply_shapes[0])


def _alike(ticket: Ticket) -> bool:
    return all(shapes == ticket.reply_shapes[0] for shapes in ticket.reply_shapes)


def _overloaded(reason: str) -> Refused:
    return Refused(Kind.OVERLOADED, f"overloaded: {reason}", RETRY_AFTER)


def refusal(ticket: Ticket) -> Refused:
    """Return what the client of a call without an answer is told."""
    name = ticket.call.model
    if ticket.outcome is Outcome.FAILED:
        return Refused(Kind.MODEL_FAILED, f"model {name} failed: {ticket.reason}")
    if ticket.cause == EXPIRED:
        return Refused(Kind.DEADLINE, f"model {name}: the deadline can no longer be met")
    if ticket.cause == UNSERVED:
        return Refused(Kind.UNAVAILABLE, f"model {name}: the server stopped before it came to this call")
    return _overloaded(f"model {name} dropped the call so that others are in time ({ticket.cause})")
