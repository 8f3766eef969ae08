"""Texts wait in the native queue, and threads here make tokens of them: all that wait of a model, at once.

Calls that network threads have read come there and go on without Python. Those that Python has read are
tickets, which get their inputs in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.server.contract import Kind, Refused
from astrarium.server.control.calls.admission import overloaded
from astrarium.server.control.calls.tensor_store import TensorStore
from astrarium.server.control.calls.ticket import Ticket
from astrarium.server.control.texts.fitted_tokenizers import FittedTokenizers, Specs
from astrarium.server.control.texts.token_inputs import Numbers
from astrarium.server.control.texts.tokenizer import Text
from astrarium.server.control.texts.tokenizer_threads import cpu_time
from astrarium.serving.live.backends.blame import first_sentence
from astrarium.serving.live.tensors import Tensor, unpack_bytes
from astrarium.serving.scenario.tokenization import Tokenization

if TYPE_CHECKING:
    from astrarium._front import TextBatch
    from astrarium._front import TextQueue as NativeQueue

THREADS = 4  # models whose texts are tokenized at the same time, each by as many cores as there are
NO_MEMORY = "there is no shared memory left for its inputs"
Made = Numbers | Refused
_FAULTS = {Kind.MODEL_FAILED: 0, Kind.BAD_REQUEST: 1, Kind.TOO_LARGE: 2}  # as in native/exchange/ticket.h
Inputs = Sequence[Tensor] | Refused
_Settled = tuple[int, Inputs]  # by number


class TextQueue:
    """A text queue is for all models of a server.

    *needed* is how long a model's call takes once it has its tokens; *when_ready* is called when tickets have
    their inputs, or never will.
    """

    def __init__(
        self,
        native: NativeQueue,
        tensor_store: TensorStore,
        when_ready: Callable[[], None],
        clock: Callable[[], Time],
        needed: Callable[[int], Time],
    ) -> None:
        self._native = native
        self._tensor_store = tensor_store
        self._when_ready = when_ready
        self._clock = clock
        self._needed = needed
        self._tokenizers = FittedTokenizers()
        self._numbers = count()
        self._tickets: dict[int, Ticket] = {}  # that wait
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[Thread] = []

    def add(self, model: int, choice: Tokenization, field: str) -> None:
        """Take texts of a model from now on."""
        self._tokenizers.add(model, choice, field)

    def fit(self, model: int, inputs: Specs) -> None:
        """Load the tokenizer of a model that has one; InputError where it is none for these inputs."""
        self._tokenizers.fit(model, inputs)

    async def renew(self, model: int, inputs: Specs) -> None:
        """Read the tokenizer of a model again, if it has one whose file has changed: it was loaded anew."""
        try:
            tokenizer = await asyncio.to_thread(self._tokenizers.changed, model, inputs)
        except InputError as error:
            raise Refused(Kind.MODEL_FAILED, f"it was loaded, and its tokenizer was not: {error}") from None
        if tokenizer is not None:
            self._tokenizers.renew(model, inputs, tokenizer)

    def tokenizer(self, model: int, inputs: Specs) -> int:
        """Return the number of the tokenizer for a model with these inputs."""
        return self._tokenizers.number(model, inputs)

    def start(self) -> None:
        """Let threads tokenize, where a model has a tokenizer."""
        for number in range(min(THREADS, len(self._tokenizers))):
            thread = Thread(target=self._work, name=f"tokenize_{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    @property
    def threads(self) -> int:
        """Return in how many threads texts are tokenized."""
        return len(self._threads)

    def cpu_time(self) -> Time:
        """Return the CPU time that these threads have had; the library's own are not among them."""
        return sum(cpu_time(thread.native_id) for thread in self._threads if thread.native_id is not None)

    def close(self) -> None:
        """End the texts of network threads; those of tickets end with them, in `OpenCalls`."""
        self._native.close()
        for thread in self._threads:
            thread.join(timeout=1.0)  # a text may take long: its thread ends with the process

    def take(self, ticket: Ticket) -> None:
        """Take a ticket's text; Refused where it would have its tokens too late."""
        now = self._clock()
        needed = self._needed(ticket.model)
        text = _text(ticket)
        if self._native.is_full(ticket.model, sum(map(len, text)), ticket.deadline - now - needed, now):
            waiting = f"{self._native.open(ticket.model)} texts wait for the tokenizer"
            raise overloaded(f"{waiting} of model {ticket.call.model}, more than it can take in time")
        self._loop = asyncio.get_running_loop()
        number = next(self._numbers)
        tokenizer = self.tokenizer(ticket.model, ticket.tensors.inputs)
        if not self._native.put(ticket.model, list(text), tokenizer, now, ticket.deadline, needed, number):
            raise Refused(Kind.UNAVAILABLE, "the server stops")
        ticket.inputs_ready = False
        self._tickets[number] = ticket

    def _work(self) -> None:
        while (batch := self._native.take()) is not None:
            self.tokenize(batch)

    def tokenize(self, batch: TextBatch) -> None:
        """Make tokens of a batch, in any thread; whatever breaks, the batch alone is lost."""
        late, own = batch.late, batch.own()
        try:
            made, inputs = self._made(batch, [place for place, _ in own])
        except InputError as error:  # the model was loaded anew, and takes other inputs now
            made, inputs = _failed(batch, str(error), len(own))
        except BaseException as error:  # what the library panics with is no Exception
            reason = f"its text could not be tokenized: {first_sentence(error)}"
            made, inputs = _failed(batch, reason, len(own))
        batch.give([_as_given(one) for one in made])
        if (own or late) and self._loop is not None:
            settled = [(number, one) for (_, number), one in zip(own, inputs, strict=True)]
            with suppress(RuntimeError):  # the loop has ended, and its tickets with it
                self._loop.call_soon_threadsafe(self._settle, settled, late)

    def _made(self, batch: TextBatch, own: Sequence[int]) -> tuple[Sequence[Made], Sequence[Inputs]]:
        """Return what became of each text, and the inputs of those at *own* places."""
        if not batch.size:
            return [], []
        tokenizer = self._tokenizers.of(batch.tokenizer)
        made = [
            one if isinstance(one, Refused) else tokenizer.inputs.numbers(one)
            for one in tokenizer.encode(batch.texts(tokenizer.most_bytes, tokenizer.from_end))
        ]
        chosen = [made[place] for place in own]
        return made, [one if isinstance(one, Refused) else tokenizer.inputs.tensors(one) for one in chosen]

    def _settle(self, settled: Sequence[_Settled], late: Sequence[int]) -> None:
        """Give tickets their inputs, in the event loop."""
        for number in late:
            ticket = self._tickets.pop(number)
            ticket.expired = ticket.inputs_ready = True
        for number, inputs in settled:
            self._fill_in(self._tickets.pop(number), inputs)
        self._when_ready()

    def _fill_in(self, ticket: Ticket, inputs: Inputs) -> None:
        if isinstance(inputs, Refused):
            ticket.broken = inputs.reason
            ticket.blamed = inputs.kind
        elif not self._tensor_store.take_in(ticket, inputs):
            ticket.broken = NO_MEMORY
            ticket.blamed = Kind.OVERLOADED
        ticket.inputs_ready = True
        self._tensor_store.settle(ticket)  # its call may have ended meanwhile


def _failed(batch: TextBatch, reason: str, own: int) -> tuple[Sequence[Made], Sequence[Inputs]]:
    failed = Refused(Kind.MODEL_FAILED, reason)
    return [failed] * batch.size, [failed] * own


def _text(ticket: Ticket) -> Text:
    """Return the text of a call, or its pair, one from each of its inputs."""
    return tuple(unpack_bytes(tensor.data)[0] for tensor in ticket.call.inputs)


def _as_given(made: Made) -> Numbers | tuple[int, str]:
    return (_FAULTS[made.kind], made.reason) if isinstance(made, Refused) else made
