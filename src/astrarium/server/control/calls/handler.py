"""Calls that Python has read are let in, taken in, answered or refused here, between protocols and policy.

This is the long way: any tensors, any protocol, a coroutine that waits. Calls that network threads have read
never come here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from astrarium.core.quantities import Time
from astrarium.server.contract import InferAnswer, InferCall, Kind, NumberedCard, Refused, Stages
from astrarium.server.control.calls.admission import RETRY_AFTER, admit, overloaded
from astrarium.server.control.calls.objectives import asks_what_was_promised, wanted
from astrarium.server.control.calls.preprocessing import Preprocessor, made_tensor
from astrarium.server.control.calls.refusals import refusal
from astrarium.server.control.calls.rows_apart import answered_by_row
from astrarium.server.control.calls.ticket import Ticket, Waiter
from astrarium.server.control.coordinator import Coordinator
from astrarium.server.control.health.failure_watch import FailureWatch
from astrarium.server.control.repository import Entry, Repository
from astrarium.server.control.texts.text_queue import TextQueue
from astrarium.server.timelines import Timelines
from astrarium.serving.contract import UNSERVED
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.backends import examples
from astrarium.serving.scenario.tokenization import Tokenization

_ANSWERED = (Outcome.IN_TIME, Outcome.LATE)
_DECLINING = (Kind.DEADLINE, Kind.OVERLOADED)  # other refusals are the caller's fault, or known to be ours


class CallHandler:
    """Calls of the long way meet here; *closed* says why none is taken now, and is empty where they are."""

    def __init__(
        self,
        coordinator: Coordinator,
        repository: Repository,
        preprocessor: Preprocessor,
        texts: TextQueue,
        timelines: Timelines,
        clock: Callable[[], Time],
        closed: Callable[[], str],
        failures: FailureWatch | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._repository = repository
        self._preprocessor = preprocessor
        self._texts = texts
        self._timelines = timelines
        self._clock = clock
        self._closed = closed
        self._failures = failures or FailureWatch(coordinator.accounts.models, clock())
        self._open_calls = coordinator.open_calls
        self._tensor_store = coordinator.open_calls.tensor_store

    def cards(self) -> Sequence[NumberedCard]:
        """Return the models' cards; one whose inputs code makes goes the long way, and says so."""
        return [self._card(entry) for entry in self._repository.entries]

    def _card(self, entry: Entry) -> NumberedCard:
        index = entry.plan.index
        if not isinstance(entry.plan.preprocess, Tokenization) or entry.tensors.numbering:
            return NumberedCard(index, entry.card(), "preprocess" if entry.plan.preprocess else "")
        inputs = entry.tensors.inputs
        tokenized = self._texts.tokenizer(index, inputs), inputs
        return NumberedCard(index, entry.card(), tokenized=tokenized)

    async def infer(self, call: InferCall) -> InferAnswer:
        if call.rows > 1 and isinstance(self._repository.find(call.model).plan.preprocess, Tokenization):
            return await answered_by_row(call, self._infer)
        return await self._infer(call)

    async def _infer(self, call: InferCall) -> InferAnswer:
        entry = self._repository.find(call.model)
        ticket = self._admit(call, entry, asyncio.get_running_loop().create_future())
        await self._ended(ticket)
        if ticket.outcome in _ANSWERED:
            return self._answer(ticket)
        self._open_calls.release(ticket)
        raise refusal(ticket)

    async def _ended(self, ticket: Ticket) -> None:
        """Wait for a call's end; a client that goes away cancels this, and the call ends all the same."""
        answer = ticket.answer
        assert isinstance(answer, asyncio.Future)
        try:
            await answer
        except asyncio.CancelledError:
            if not answer.cancelled():  # it had ended already, and nobody will read the answer
                self._open_calls.release(ticket)
            raise

    def _answer(self, ticket: Ticket) -> InferAnswer:
        try:
            outputs = self._tensor_store.outputs(ticket)
        except ValueError as error:
            self._open_calls.release(ticket)
            raise Refused(Kind.MODEL_FAILED, f"model {ticket.call.model}: {error}") from None
        stages = self._note(ticket)
        batch = ticket.batch
        assert batch is not None
        in_time = ticket.outcome is Outcome.IN_TIME
        release = partial(self._open_calls.release, ticket)
        return InferAnswer(outputs, stages, batch.size, batch.gpu, in_time, release)

    def _admit(self, call: InferCall, entry: Entry, answer: Waiter) -> Ticket:
        try:
            return self._admitted(call, entry, answer)
        except Refused as refused:
            self.turned_away(entry, refused)
            if refused.kind in _DECLINING:
                self._decline(call, entry, refused.reason)
            raise

    def _decline(self, call: InferCall, entry: Entry, reason: str) -> None:
        if asks_what_was_promised(call, entry):
            self._coordinator.accounts.models[entry.plan.index].decline(reason)

    def _admitted(self, call: InferCall, entry: Entry, answer: Waiter) -> Ticket:
        closed = self._closed()
        coordinator = self._coordinator
        if closed:
            raise Refused(Kind.UNAVAILABLE, closed)
        index = entry.plan.index
        now = self._clock()
        if entry.failing and not self._failures.lets_through(index, now):
            raise Refused(Kind.UNAVAILABLE, f"model {call.model} is not ready: {entry.failing}", RETRY_AFTER)
        objective, application = wanted(call, entry)
        cost = coordinator.admission.cost(index, _length(call, entry), call.rows)
        admit(coordinator.admission, index, call.model, cost, call.received, objective, now)
        deadline = call.received + objective
        ticket = Ticket(call, index, entry.tensors, application, deadline, answer, cost.weight)
        try:
            self._take_in(ticket, entry)
        except Refused:
            coordinator.admission.ended(index, ticket.weight, ticket.objective)
            raise
        self._failures.let_through(index, now)
        coordinator.accounts.models[index].accepted += 1
        return self._hand_on(ticket)

    def _hand_on(self, ticket: Ticket) -> Ticket:
        ticket.admitted = self._clock()
        self._open_calls.take(ticket)
        return ticket

    async def try_out(self, entry: Entry) -> str:
        """Send a model a made-up call of our own; return why it failed, or nothing if it was answered.

        Refused where nothing was tried: no call can be taken now, or it was dropped for others.
        """
        ticket = self._trial(entry, asyncio.get_running_loop().create_future())
        await self._ended(ticket)
        self._open_calls.release(ticket)
        if ticket.outcome is Outcome.DROPPED:
            raise refusal(ticket)
        return "" if ticket.outcome in _ANSWERED else ticket.reason

    def _trial(self, entry: Entry, answer: Waiter) -> Ticket:
        closed = self._closed()
        coordinator = self._coordinator
        plan = entry.plan
        now = self._clock()
        if closed or entry.state != "READY":
            raise Refused(Kind.UNAVAILABLE, closed or entry.reason)
        chance = np.random.default_rng(0)
        example = {spec.name: examples.tensor(spec, 1, chance) for spec in entry.tensors.inputs}
        inputs = [made_tensor(spec, example, 1) for spec in entry.tensors.inputs]
        call = InferCall(plan.name, inputs, 1, now)
        cost = coordinator.admission.cost(plan.index, _length(call, entry))
        admit(coordinator.admission, plan.index, plan.name, cost, now, plan.slo, now)
        deadline = now + plan.slo
        ticket = Ticket(call, plan.index, entry.tensors, 0, deadline, answer, cost.weight, trial=True)
        if not self._tensor_store.take_in(ticket, inputs):
            coordinator.admission.ended(plan.index, ticket.weight, ticket.objective)
            raise overloaded("the shared memory for tensors is full")
        coordinator.accounts.trials[plan.index].accepted += 1
        return self._hand_on(ticket)

    def turned_away(self, entry: Entry, refused: Refused) -> None:
        self._coordinator.accounts.models[entry.plan.index].refused[refused.kind.name.lower()] += 1

    def _take_in(self, ticket: Ticket, entry: Entry) -> None:
        preprocess = entry.plan.preprocess
        if isinstance(preprocess, Tokenization):
            self._texts.take(ticket)
        elif preprocess is not None:
            self._preprocessor.prepare(ticket, preprocess)
        elif not self._tensor_store.take_in(ticket, ticket.call.inputs):
            self._refuse_for_memory(ticket, self._tensor_store.bytes_of(ticket.call.inputs))

    def _refuse_for_memory(self, ticket: Ticket, inputs: int) -> None:
        needed = self._tensor_store.needed(ticket, inputs)
        most = self._tensor_store.arena.size
        if needed > most:
            reason = f"its tensors and their answer need {needed} bytes of shared memory; there are {most}"
            raise Refused(Kind.TOO_LARGE, f"model {ticket.call.model}: {reason}")
        raise overloaded("the shared memory for tensors is full")

    def ticket_ended(self, ticket: Ticket) -> None:
        """Answer or refuse a call; `OpenCalls` calls this once for each."""
        now = self._clock()
        coordinator = self._coordinator
        if ticket.outcome in _ANSWERED:  # known better than the plan knew it
            ticket.outcome = Outcome.IN_TIME if now <= ticket.deadline else Outcome.LATE
        accounts = (coordinator.accounts.trials if ticket.trial else coordinator.accounts.models)[
            ticket.model
        ]
        accounts.call_ended(ticket.outcome, ticket.cause, now - ticket.call.received)
        if ticket.outcome in _ANSWERED:  # in the same moment: whoever reads the accounts finds as many times
            accounts.answered(_stages(ticket, now), ticket.call.rows)
        if not ticket.trial:
            self._count_for_clients(ticket, now)
        coordinator.admission.ended(ticket.model, ticket.weight, ticket.objective)
        if ticket.answer.done():  # nobody waits for it any more
            self._open_calls.release(ticket)
        else:
            ticket.answer.set_result(None)

    def _count_for_clients(self, ticket: Ticket, now: Time) -> None:
        if ticket.outcome is Outcome.DROPPED and ticket.cause != UNSERVED:
            entry = self._repository.entries[ticket.model]
            self._decline(ticket.call, entry, f"dropped: {ticket.cause}")
        self._coordinator.accounts.recent.add(now, ended=1, good=ticket.outcome is Outcome.IN_TIME)

    def _note(self, ticket: Ticket) -> Stages:
        """Enter an answered call on the timeline, and let margins follow."""
        batch = ticket.batch
        call = ticket.call
        stages = _stages(ticket, self._clock())
        assert batch is not None, "an answered call was in a batch"
        self._coordinator.answered(ticket.model, batch, stages.answered)
        in_time = ticket.outcome is Outcome.IN_TIME
        self._timelines.add(call.model, batch.gpu, batch.tag, batch.size, in_time, stages)
        return stages


def _length(call: InferCall, entry: Entry) -> int:
    """Return how long the rows of a call are; 0 where its inputs are still to be made."""
    if entry.plan.preprocess is not None:
        return 0
    return entry.tensors.length_of([(tensor.shape, len(tensor.data)) for tensor in call.inputs])


def _stages(ticket: Ticket, answered: Time) -> Stages:
    batch = ticket.batch
    assert batch is not None, "an answered call was in a batch"
    moments = batch.dispatched, batch.started, batch.finished, answered
    return Stages(ticket.call.received, ticket.admitted, *moments)
