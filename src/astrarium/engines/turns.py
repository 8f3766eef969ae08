"""A batch in a worker: from its order, through its turn on the GPU, to its replies.

What the host has to do before a batch (gather its inputs, launch it) it does ahead where the model allows,
while the GPU is busy with another; the replies are written while the GPU is busy with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from astrarium.core.units import Time
from astrarium.engines.backends.contract import Batch, Launched, LoadedModel, Ran, Result
from astrarium.engines.gather import gathered
from astrarium.engines.orders import RunBatch, Shapes
from astrarium.engines.replies import rehearse, write_replies
from astrarium.engines.tensors import Array

Clock = Callable[[], Time]


class Spent(NamedTuple):
    """A turn that is over: when it started, and what ran."""

    started: Time
    ran: Ran


class Turn:
    """*model* is the one that was loaded when the order was received."""

    def __init__(self, order: RunBatch, received: Time, model: LoadedModel | None, view: memoryview) -> None:
        self.order, self.received, self.model, self._view = order, received, model, view
        self.not_before = max(received, order.start)
        self._launch: Callable[[Batch, Time], Launched] | None = getattr(model, "launch", None)
        self._launched: Launched | None = None
        self._error: Exception | None = None

    @property
    def launches(self) -> bool:
        """Whether the GPU starts it by itself, so that the host need not wait for its start."""
        return self._launch is not None

    @property
    def launched(self) -> bool:
        """Whether that was done, or tried."""
        return self._launched is not None or self._error is not None

    def launch(self) -> None:
        """Before its turn, or when that has come. What goes wrong is told then: news keep the order of the
        orders."""
        assert self._launch is not None, "its model needs the host"
        try:
            self._launched = self._launch(self._batch(self._loaded()), self.not_before)
        except Exception as error:
            self._error = error

    def take(self, free: Time, clock: Clock) -> Spent:
        """Run it, or wait until it has run where it was launched. *free* is when the batch before left the
        GPU."""
        if self._error is not None:
            raise self._error
        if self._launched is None:
            return self._run(self._loaded(), clock)
        ran = self._launched.wait(free)
        return Spent(ran.began, ran)

    def reply(self, result: Result) -> list[Shapes] | None:
        """The shapes that were written, where the model's own do not say it all."""
        return write_replies(self._view, self._loaded().outputs, self.order.members, result.outputs)

    def nearly_over(self) -> None:
        """Its end is known to be near: be quick when it comes."""
        if self.model is not None and self.order.members:
            rehearse(self.model.outputs)

    def _run(self, model: LoadedModel, clock: Clock) -> Spent:
        started = clock()
        batch = self._batch(model)
        began = clock()
        result = model.run(batch)
        return Spent(started, Ran(result, began, clock()))

    def _batch(self, model: LoadedModel) -> Batch:
        members = self.order.members
        staging: Callable[[int], Mapping[str, Array]] | None = getattr(model, "staging", None)
        return gathered(self._view, model.inputs, members, staging(len(members)) if staging else {})

    def _loaded(self) -> LoadedModel:
        if self.model is None:
            raise LookupError(f"model {self.order.model} is not loaded on this GPU")
        return self.model
