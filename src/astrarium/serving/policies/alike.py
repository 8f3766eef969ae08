"""A policy that knows nothing of lengths can batch like lengths: each bucket looks like a model of its own.

Without this, what it plans with are the times of the longest requests, and its batches are padded to the
longest of whoever waits first. With it, nothing of the policy changes, only what it is told: a model with
lengths is divided into one model for each bucket, or for some neighbours among them, each with its own table,
and a request names the one that its length falls in. The GPUs, the books and what really happens stay as they
are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from astrarium.core.quantities import Time
from astrarium.serving.contract import (
    Action,
    Event,
    Lengths,
    ModelSpec,
    Request,
    RequestArrived,
    RequestProfiled,
    Setup,
)
from astrarium.serving.policies import ServingPolicy, listens_to_profiler
from astrarium.serving.state import Batch, Gpu, ServingState


class Division:
    """A division says which models a policy is shown: `setup`, and which of them a request is for.

    `models` holds, for each of those, the true model. Of a model with lengths there are as many as it has
    buckets, or *most* if that is fewer; then each stands for as many neighbouring buckets as the others do.
    `places` says, by true model and bucket, which of them it is.
    """

    def __init__(self, setup: Setup, most: int | None = None) -> None:
        shown: list[ModelSpec] = []
        self.models: list[int] = []
        self.places: list[list[int]] = []
        for model in setup.models:
            groups = _groups(model.lengths, most)
            self.places.append([len(shown) + place for place, group in enumerate(groups) for _ in group])
            shown += [_part(model, len(shown) + place, group) for place, group in enumerate(groups)]
            self.models += [model.index] * len(groups)
        self.setup = msgspec.structs.replace(setup, models=tuple(shown))

    def shown_model(self, model: int, bucket: int) -> int:
        return self.places[model][bucket]

    def first_of(self, model: int) -> int:
        """Return the first of the models that stand for a model."""
        return self.places[model][0]

    def shown(self, request: Request) -> Request:
        place = self.shown_model(request.model, request.bucket)
        return msgspec.structs.replace(request, model=place, bucket=0)


def _groups(lengths: Lengths | None, most: int | None) -> list[range]:
    """Return the buckets of each model that is shown, in order."""
    buckets = 1 if lengths is None else len(lengths.longest)
    parts = min(buckets, most or buckets)
    edges = [part * buckets // parts for part in range(parts + 1)]
    return [range(low, high) for low, high in pairwise(edges)]


def _part(model: ModelSpec, index: int, group: range) -> ModelSpec:
    """Return a model whose requests are all planned as the longest of a group of buckets."""
    if model.lengths is None:
        return msgspec.structs.replace(model, index=index)
    longest = model.lengths.longest[group[-1]]
    table = model.lengths.latency[group[-1]]
    one_bucket = Lengths((longest,), (table,), model.lengths.together)
    name = f"{model.name}[{longest}]"
    return msgspec.structs.replace(model, index=index, name=name, latency=table, lengths=one_bucket)


class _Gpu:
    """A GPU as the policy sees it: its batches are of the models that are shown."""

    def __init__(self, gpu: Gpu, division: Division) -> None:
        self._gpu = gpu
        self._division = division
        self.id = gpu.id

    @property
    def present(self) -> bool:
        return self._gpu.present

    @property
    def idle(self) -> bool:
        return self._gpu.idle

    @property
    def recovering(self) -> int:
        return self._gpu.recovering

    @property
    def since(self) -> Time:
        return self._gpu.since

    @property
    def batches(self) -> deque[Batch]:
        return deque(map(self._shown, self._gpu.batches))

    def _shown(self, batch: Batch) -> Batch:
        requests = [self._division.shown(request) for request in batch.requests]
        return Batch(batch.run, requests[0].model, batch.gpu, requests, batch.start)


class _Books:
    """The books as the policy reads them."""

    def __init__(self, state: ServingState, division: Division) -> None:
        self._state = state
        self._division = division
        self.setup = division.setup
        self.gpus = [_Gpu(gpu, division) for gpu in state.gpus]
        self.ledger = state.ledger

    @property
    def waiting(self) -> dict[int, Request]:
        return {id_: self._division.shown(request) for id_, request in self._state.waiting.items()}


class AlikePolicy:
    """A policy decides for a setup whose models are divided by length, and others need not know."""

    def __init__(self, policy: ServingPolicy, division: Division) -> None:
        self.policy = policy
        self.division = division
        self.listens_to_profiler = listens_to_profiler(policy)
        self._books: _Books | None = None
        self._of: ServingState | None = None

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterable[Action]:
        if self._of is not state:
            self._of = state
            self._books = _Books(state, self.division)
        return self.policy.decide(now, [self._shown_event(event) for event in events], self._books)  # type: ignore[arg-type]

    def _shown_event(self, event: Event) -> Event:
        if type(event) is RequestArrived:
            return RequestArrived(self.division.shown(event.request))
        if type(event) is RequestProfiled:
            return msgspec.structs.replace(event, model=self.division.first_of(event.model))
        return event
