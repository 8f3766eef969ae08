"""A batch in a worker goes from its order, through its turn on the GPU, to its replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from astrarium.core.quantities import Time
from astrarium.serving.live.backends import contract
from astrarium.serving.live.backends.contract import Batch, LoadedModel
from astrarium.serving.live.messages import RunBatch, Shapes
from astrarium.serving.live.tensors import Array
from astrarium.serving.live.worker.inputs import gathered
from astrarium.serving.live.worker.packing import together
from astrarium.serving.live.worker.padding import LaunchedParts, Padding, Part, joined, kept
from astrarium.serving.live.worker.replies import write_replies

Clock = Callable[[], Time]


@dataclass(eq=False)
class ServedModel:
    """A served model is loaded; what it offers is looked up once, not for every batch."""

    model: LoadedModel
    padding: Padding
    launch: Callable[[Batch, Time], contract.Launched] | None = None
    in_flight: int = 0  # batches that it takes at once; 0: any
    staging: Callable[[int], Mapping[str, Array]] | None = None
    counts: contract.CountsBesideGraphs | None = None  # the model, if it counts
    beside_graphs_before: int = 0  # that it had counted when it was loaded

    @classmethod
    def of(cls, model: LoadedModel, padding: Padding | None = None) -> ServedModel:
        counts = model if isinstance(model, contract.CountsBesideGraphs) else None
        return cls(
            model,
            padding or together(model.inputs, model),
            model.launch if isinstance(model, contract.Launching) else None,
            model.in_flight if isinstance(model, contract.Pipelined) else 0,
            model.staging if isinstance(model, contract.Staging) else None,
            counts,
            counts.beside_graphs if counts is not None else 0,
        )

    def keep_apart(self) -> None:
        """Run only items of exactly equal shape together from now on."""
        self.padding = replace(self.padding, allowed=False)

    @property
    def beside_graphs(self) -> int:
        return self.counts.beside_graphs if self.counts is not None else 0


class BatchTurn:
    """A batch has its turn on the GPU; *served* is the model that was there when the order was received."""

    def __init__(self, order: RunBatch, received: Time, served: ServedModel | None, view: memoryview) -> None:
        self.order = order
        self.received = received
        self.served = served
        self._view = view
        self.not_before = max(received, order.start)
        self._launch = served.launch if served is not None else None
        self.in_flight = served.in_flight if served is not None else 0
        self._launched: contract.Launched | None = None
        self.parts = 1  # that the batch is run in, once that is known
        self._error: Exception | None = None

    @property
    def launches(self) -> bool:
        """Whether the batch can be launched: its GPU works on its own then."""
        return self._launch is not None

    @property
    def awaits_start(self) -> bool:
        """Whether the host waits for the batch's start: its GPU would begin at once."""
        return not self.launched and (self._launch is None or self.in_flight > 0)

    @property
    def launched(self) -> bool:
        """Whether the batch was launched, or that was tried."""
        return self._launched is not None or self._error is not None

    @property
    def is_launching(self) -> bool:
        """Whether parts of the batch are still to be launched, in its turn: no other may go between them."""
        return isinstance(self._launched, LaunchedParts) and not self._launched.whole

    @property
    def with_gpu(self) -> int:
        """Return how many batches the GPU was given for this one: its parts count one by one."""
        return self._launched.in_flight if isinstance(self._launched, LaunchedParts) else int(self.launched)

    def launch(self) -> None:
        """Launch the batch, before its turn or when that has come.

        What goes wrong is told at its turn: news keep the order of the orders.
        """
        assert self._launch is not None, "its model needs the host"
        try:
            parts = self._parts(self._loaded())
            if len(parts) == 1:
                self._launched = self._launch(parts[0].batch, self.not_before)
            else:
                self._launched = LaunchedParts(parts, self._launch, self.not_before, self.in_flight)
        except Exception as error:
            self._error = error

    def take(self, free: Time, clock: Clock) -> tuple[Time, contract.Ran]:
        """Run the batch, or wait until it has run; return when it started, and what ran.

        *free* is when the batch before left the GPU.
        """
        if self._error is not None:
            raise self._error
        if self._launched is None:
            return self._run(self._loaded(), clock)
        ran = self._waited(self._launched, free)
        return ran.began, ran

    def _waited(self, launched: contract.Launched, free: Time) -> contract.Ran:
        """Wait for a batch; where padding remains in its answers, it fails, and none is padded after it."""
        try:
            return launched.wait(free)
        except contract.PaddingRemains:
            self._loaded().keep_apart()
            raise

    def reply(self, result: contract.Result) -> list[Shapes] | None:
        """Write the replies; return their shapes where the model's own do not say them all."""
        return write_replies(self._view, self._loaded().model.outputs, self.order.members, result.outputs)

    def _run(self, served: ServedModel, clock: Clock) -> tuple[Time, contract.Ran]:
        started = clock()
        parts = self._parts(served)
        began = clock()
        try:
            result = _result(served, parts)
        except contract.PaddingRemains:
            served.keep_apart()
            result = _result(served, self._parts(served))
        return started, contract.Ran(result, began, clock())

    def _parts(self, served: ServedModel) -> list[Part]:
        order = self.order
        staged = served.staging(order.size) if served.staging else {}
        whole = gathered(self._view, served.padding.sent, order.members, order.shapes, staged)
        parts = served.padding.parts(whole)
        self.parts = len(parts)
        return parts

    def _loaded(self) -> ServedModel:
        if self.served is None:
            raise LookupError(f"model {self.order.model} is not loaded on this GPU")
        return self.served


def _result(served: ServedModel, parts: Sequence[Part]) -> contract.Result:
    if len(parts) == 1:
        return served.model.run(parts[0].batch)
    return joined(parts, [kept(served.model.run(part.batch)) for part in parts])
