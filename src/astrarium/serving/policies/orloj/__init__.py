"""Orloj serves requests that take unequal times by what choosing each of them now is expected to gain.

Yu's dissertation, chapter 4 (Orloj). Execution times are distributions, learnt from finished requests
that were measured alone (`_times`). Every request has a score that changes with time (`score`), and stands
in a queue for each batch size that can still save it (`batch_queues`). When a GPU is idle, the batch size
whose queue has the earliest deadline goes, among those whose queue can fill it, on a tie the larger; the
requests of the highest scores form the batch. What no batch size can save is dropped.

The paper's text says that the earliest deadline decides; Algorithm 4.1, as printed, goes through deadlines in
descending order, which comes to the largest batch that can be filled: that is `order: latest`. The one saves
the most urgent request of all, at the price of small batches under load; the other keeps up with the load.

Settled by us: network delays shorten what is left until the deadline; with several models the most urgent
batch of all goes first; every idle GPU, in order of id, gets a batch as long as somebody waits; distributions
are made anew at most once in `refresh`, and all points with them; a static model, or one of which too little
is known, takes what its table says. The mixture weighs applications by how often they were asked for since
the last but one `window` began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND, Duration, Time, write_duration
from astrarium.serving import contract
from astrarium.serving.contract import Action, Event, Request, Setup
from astrarium.serving.policies import LengthsAside, NativeParameters, serving_policies
from astrarium.serving.policies._min_tree import MinTree
from astrarium.serving.policies._times import LearntTimes
from astrarium.serving.policies.orloj.batch_queues import BatchQueues, Clock, ScoreQueue, SizeChoice
from astrarium.serving.policies.orloj.hull import HullQueue
from astrarium.serving.policies.orloj.score import ScoreTable
from astrarium.serving.state import ServingState


@serving_policies.register("orloj")
class Orloj:
    """Serve by a score that weighs each request's distribution of times against its deadline."""

    native = "orloj"
    live_twin = "drop"
    listens_to_profiler = True
    queue: Callable[[], ScoreQueue] = HullQueue
    farthest = 250.0  # what b t may grow to before its base is moved up: exp of it is a finite number

    class Parameters(LengthsAside, frozen=True):
        b: Annotated[
            float, msgspec.Meta(ge=1e-9, le=10, description="rate of the anticipated delay, per millisecond")
        ] = 1e-4
        batch_sizes: Annotated[
            tuple[Annotated[int, msgspec.Meta(ge=1)], ...],
            msgspec.Meta(description="the batch sizes to choose from; none: powers of two"),
        ] = ()
        bins: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="of a histogram of single times")] = 32
        window: Annotated[Duration, msgspec.Meta(description="how long a measured time is remembered")] = (
            Duration(60 * SECOND)
        )
        refresh: Annotated[
            Duration, msgspec.Meta(description="how long distributions stand before they are made anew")
        ] = Duration(SECOND)
        members: Annotated[
            Literal["mixture", "own"],
            msgspec.Meta(
                description="who is expected in a batch: draws of the model's mixture of applications, or "
                "the request itself among such draws"
            ),
        ] = "mixture"
        order: Annotated[
            Literal["earliest", "latest"],
            msgspec.Meta(
                description="which batch size goes: the one whose queue has the earliest deadline, as the "
                "paper's text says, or the latest, as its Algorithm 4.1 is printed"
            ),
        ] = "earliest"

        def __post_init__(self) -> None:
            sizes = self.batch_sizes
            if sizes and (sizes[0] != 1 or list(sizes) != sorted(set(sizes))):
                raise InputError("batch_sizes", sizes, "sizes that rise from 1")
            if self.window < 1:
                raise InputError("window", write_duration(self.window), "a duration above 0")

    def __init__(self, setup: Setup, parameters: Parameters) -> None:
        self.setup = setup
        self.parameters = parameters
        self._rate = parameters.b / MILLISECOND
        self._base: Time = 0
        self._waiting = 0
        self._timer = FOREVER
        learning = (parameters.bins, parameters.window, parameters.refresh)
        self._times = [LearntTimes(model, *learning) for model in setup.models]
        self._queues = [
            BatchQueues(self._sizes(model.max_batch), setup.network, self.queue, parameters.order == "latest")
            for model in setup.models
        ]
        self._drops = MinTree(len(setup.models))  # the next moment at which each model drops a request
        for model in range(len(setup.models)):
            self._learn(model)

    def native_parameters(self) -> NativeParameters:
        parameters = self.parameters
        integers = {
            "bins": parameters.bins,
            "window": parameters.window,
            "refresh": parameters.refresh,
            "own": int(parameters.members == "own"),
            "latest": int(parameters.order == "latest"),
        }
        reals = {"rate": self._rate, "farthest": self.farthest}
        return NativeParameters(integers, reals, {"batch_sizes": list(parameters.batch_sizes)})

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        if not self._waiting:
            self._base = now
        self._hear(now, events)
        self._rebase(now)
        yield from self._drop(now)
        for gpu in state.gpus:
            if not self._waiting:
                break
            if gpu.idle:
                yield contract.Dispatch(gpu.id, self._batch(now))
        if self._drops.least != self._timer:
            self._timer = self._drops.least
            yield SetTimer(self._timer, "drop")

    def _hear(self, now: Time, events: Sequence[Event]) -> None:
        touched = set()
        for event in events:
            if isinstance(event, contract.RequestArrived):
                self._push(now, event.request)
                touched.add(event.request.model)
            elif isinstance(event, contract.RequestProfiled):
                self._times[event.model].measured(now, event.application, event.time)
                touched.add(event.model)
        for model in sorted(touched):
            if self._times[model].refreshed(now):
                self._learn(model)
            self._drops.set(model, self._queues[model].next_drop())

    def _push(self, now: Time, request: Request) -> None:
        self._times[request.model].arrived(now, request.application)
        kind = request.application if self.parameters.members == "own" else 0
        self._queues[request.model].push(request, kind)
        self._waiting += 1

    def _learn(self, model: int) -> None:
        """Make the tables of scores from what is known of the model."""
        times = self._times[model]
        queues = self._queues[model]
        own = range(times.applications) if self.parameters.members == "own" else (None,)
        queues.learn(
            [[ScoreTable(times.batch(size, kind), self._rate) for kind in own] for size in queues.sizes]
        )

    def _rebase(self, now: Time) -> None:
        if self._rate * (now - self._base) > self.farthest:
            self._base = now
            for queues in self._queues:
                queues.forget()

    def _drop(self, now: Time) -> Iterator[Action]:
        while self._drops.least <= now:
            model = self._drops.argmin()
            for request in self._queues[model].drop(now):
                self._waiting -= 1
                yield contract.Drop(request, contract.EXPIRED)
            self._drops.set(model, self._queues[model].next_drop())

    def _batch(self, now: Time) -> tuple[int, ...]:
        model, choice = self._most_urgent(now)
        batch = self._queues[model].pop(Clock(now, self._base, self._rate), choice)
        self._waiting -= len(batch)
        self._drops.set(model, self._queues[model].next_drop())
        return batch

    def _most_urgent(self, now: Time) -> tuple[int, SizeChoice]:
        """Return the model whose batch goes first, and its batch size.

        There is always one: requests wait, and each of them could at least be served alone.
        """
        choices = ((queues.choose(now), model) for model, queues in enumerate(self._queues) if len(queues))
        possible = [(choice, model) for choice, model in choices if choice is not None]
        choice, model = min(possible, key=lambda pair: (pair[0][:2], pair[1]))
        return model, choice

    def _sizes(self, largest: int) -> list[int]:
        if self.parameters.batch_sizes:
            return [size for size in self.parameters.batch_sizes if size <= largest]
        return [1 << power for power in range(largest.bit_length())]
