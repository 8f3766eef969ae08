"""Texts of one model wait in a queue while others are tokenized in a thread, and come next, all at once.

Nobody waits for company, and no text is tokenized that could not be answered in time any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.server.contract import Kind, Refused
from astrarium.server.control.calls.admission import overloaded
from astrarium.server.control.calls.tensor_store import TensorStore
from astrarium.server.control.calls.ticket import Ticket
from astrarium.server.control.texts.token_inputs import TokenInputs, token_inputs
from astrarium.server.control.texts.tokenizer import Text, Tokenizer
from astrarium.serving.live.backends.blame import blamed
from astrarium.serving.live.limits import violation
from astrarium.serving.live.tensors import Tensor, TensorSpec, unpack_bytes
from astrarium.serving.scenario.tokenization import Tokenization

AT_ONCE = 1 << 14  # bytes: some 5 ms of one core, after which those that came meanwhile have their turn
NO_MEMORY = "there is no shared memory left for its inputs"
Made = Sequence[Tensor] | Refused


class _Waiting(NamedTuple):
    ticket: Ticket
    since: Time


class TextQueue:
    """A text queue belongs to one event loop.

    *needed* is how long a model's call takes once it has its tokens; *when_ready* is called when calls have
    their inputs, or never will.
    """

    def __init__(
        self,
        choice: Tokenization,
        field: str,
        tensor_store: TensorStore,
        threads: Executor,
        when_ready: Callable[[], None],
        clock: Callable[[], Time],
        needed: Callable[[int], Time],
    ) -> None:
        self._choice = choice
        self._field = field
        self._tensor_store = tensor_store
        self._threads = threads
        self._when_ready = when_ready
        self._clock = clock
        self._needed = needed
        self._waiting: deque[_Waiting] = deque()
        self._tokenizer: Tokenizer | None = None
        self._specs: tuple[TensorSpec, ...] = ()
        self._working: asyncio.Task[None] | None = None

    def take(self, ticket: Ticket) -> None:
        """Take a call's text; Refused where it would have its tokens too late."""
        now = self._clock()
        self._refuse_late(ticket, now)
        ticket.inputs_ready = False
        self._waiting.append(_Waiting(ticket, now))
        if self._working is None:
            self._working = asyncio.get_running_loop().create_task(self._work())

    def _refuse_late(self, ticket: Ticket, now: Time) -> None:
        """Refuse a call that would wait longer than half of its slack, as the first in the queue has.

        The other half is the GPU's.
        """
        slack = ticket.deadline - now - self._needed(ticket.model)
        if self._waiting and 2 * (now - self._waiting[0].since) > slack:
            waiting = f"{len(self._waiting)} texts wait for the tokenizer"
            raise overloaded(f"{waiting} of model {ticket.call.model}, more than it can take in time")

    async def _work(self) -> None:
        try:
            while batch := self._next_batch():
                loop = asyncio.get_running_loop()
                made = await loop.run_in_executor(self._threads, self._made, batch)
                for ticket, inputs in zip(batch, made, strict=True):
                    self._settle(ticket, inputs)
                self._when_ready()
        finally:
            self._working = None

    def _next_batch(self) -> list[Ticket]:
        """Take what waits, as far as it is for the same inputs: a model can be loaded anew with others."""
        batch: list[Ticket] = []
        size = 0
        self._end_late()
        while self._waiting and size < AT_ONCE:
            ticket = self._waiting[0].ticket
            if batch and ticket.tensors.inputs != batch[0].tensors.inputs:
                break
            batch.append(self._waiting.popleft().ticket)
            size += sum(len(tensor.data) for tensor in ticket.call.inputs)
        return batch

    def _end_late(self) -> None:
        """End the calls that cannot be in time any more, without the cost of tokens."""
        now = self._clock()
        waiting: deque[_Waiting] = deque()
        for one in self._waiting:
            if now + self._needed(one.ticket.model) > one.ticket.deadline:
                one.ticket.expired = one.ticket.inputs_ready = True
            else:
                waiting.append(one)
        if len(waiting) < len(self._waiting):
            self._waiting = waiting
            self._when_ready()

    def _settle(self, ticket: Ticket, inputs: Made) -> None:
        if isinstance(inputs, Refused):
            ticket.broken = inputs.reason
            ticket.blamed = inputs.kind
        elif not self._tensor_store.take_in(ticket, inputs):
            ticket.broken = NO_MEMORY
        ticket.inputs_ready = True
        self._tensor_store.settle(ticket)  # its call may have ended meanwhile

    def _made(self, batch: list[Ticket]) -> list[Made]:
        """Make the inputs of each call, in a thread."""
        try:
            tokenizer = self._fitted(batch[0].tensors.inputs)
            encodings = tokenizer.encode([_text(ticket) for ticket in batch])
            return [_inputs(tokenizer.inputs, encoding) for encoding in encodings]
        except InputError as error:  # the model was loaded anew, and takes other inputs now
            return [Refused(Kind.MODEL_FAILED, str(error))] * len(batch)
        except Exception as error:
            failed = Refused(Kind.MODEL_FAILED, f"its text could not be tokenized: {blamed(error)}")
            return [failed] * len(batch)

    def fit(self, specs: tuple[TensorSpec, ...]) -> None:
        """Load the tokenizer for a model with these inputs; InputError where it is none for them."""
        self._tokenizer = None
        inputs = token_inputs(self._choice, specs, self._field)
        self._tokenizer = Tokenizer(self._choice.tokenizer, inputs, self._field)
        self._tokenizer.encode([(b"warm",)])
        self._specs = specs

    def _fitted(self, specs: tuple[TensorSpec, ...]) -> Tokenizer:
        if self._tokenizer is None or specs != self._specs:
            self.fit(specs)
        assert self._tokenizer is not None
        return self._tokenizer


def _text(ticket: Ticket) -> Text:
    """Return the text of a call, or its pair, one from each of its inputs."""
    return tuple(unpack_bytes(tensor.data)[0] for tensor in ticket.call.inputs)


def _inputs(inputs: TokenInputs, encoding: Any) -> Made:
    if isinstance(encoding, Refused):
        return encoding
    made = inputs.tensors(encoding)
    for (spec, _), tensor in zip(inputs.filled, made, strict=True):
        if wrong := violation(spec, tensor.shape, tensor.data):
            reason = f"its tokenizer made a token that the model does not take: {wrong}"
            return Refused(Kind.MODEL_FAILED, reason)
    return made
