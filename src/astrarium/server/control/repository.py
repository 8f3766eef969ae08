"""The repository knows the served models: which are loaded, their tensors, and who waits for a change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from astrarium.core.errors import one_of
from astrarium.core.quantities import FOREVER, Time
from astrarium.server.contract import Kind, ModelCard, ModelState, Refused
from astrarium.server.control.calls.ticket import Tensors
from astrarium.server.control.plan import ModelPlan
from astrarium.server.control.workers.fleet import Fleet
from astrarium.serving.live.fills import sent
from astrarium.serving.live.messages import (
    ModelComplete,
    ModelLoaded,
    ModelNews,
    ModelRefused,
    ModelUnloaded,
)
from astrarium.serving.live.tensors import TensorSpec

log = logging.getLogger(__name__)


@dataclass
class Entry:
    plan: ModelPlan
    state: ModelState = "UNAVAILABLE"
    reason: str = "it was not loaded"
    tensors: Tensors = field(default_factory=lambda: Tensors((), ()))
    failure: str = ""  # of the last load
    lead: tuple[Time, Time] = 0, 0  # how long inputs take to reach a GPU: of one item, and of each more
    padding: tuple[str, str, str] = "", "", ""  # is it safe or does it change answers, why, and what to do
    apart: str = ""  # why it is in processes of its own; empty: it is not
    refusing: str = ""  # why it is said to refuse everybody, although it is ready; it goes on taking calls
    failing: str = ""  # why it is said to fail every call, although it is loaded: it takes one now and then
    holders: set[int] = field(default_factory=set)  # workers that have it, perhaps an older one
    unanswered: set[int] = field(default_factory=set)  # workers that have not answered a load or unload yet
    whole_at: dict[int, Time] = field(default_factory=dict)  # by worker: from when on it is there entirely
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    logged: set[str] = field(default_factory=set)  # what its backend found out, as far as it is in the log
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one load or unload at a time
    _card: ModelCard | None = None
    _card_of: tuple[object, ...] = ()

    def card(self) -> ModelCard:
        """Return the model's card, kept while nothing changes: every call asks for it."""
        now = self.state, self.reason, self.tensors, self.padding, self.refusing, self.failing
        if self._card is None or self._card_of != now:
            self._card = self._made_card()
            self._card_of = now
        return self._card

    def whole(self, moment: Time) -> bool:
        """Whether all of the model was on every GPU then: before, batches may take longer than they will."""
        return moment >= max(self.whole_at.values(), default=0)

    def _made_card(self) -> ModelCard:
        plan = self.plan
        return ModelCard(
            name=plan.name,
            platform=plan.backend,
            inputs=plan.accepts or self.tensors.inputs,
            outputs=self.tensors.outputs,
            max_batch=plan.max_batch,
            slo=plan.slo,
            state=self.state,
            reason=self.reason,
            refusing=self.refusing,
            failing=self.failing,
            applications=plan.applications,
            priorities=plan.priorities,
            padding=self.padding,
            sizes=plan.sizes,
            packed=plan.packed,
        )


def unknown_lengths(plan: ModelPlan, inputs: Sequence[TensorSpec]) -> list[str]:
    """Return what to write so that requests to a model with an open input are served by their lengths.

    An emulated model takes what its profile says, and times by application are not by length too.
    """
    unknown = [spec for spec in inputs if None in map(spec.sizes_of, spec.open_dimensions)]
    if plan.by_length or plan.applications or plan.backend == "emulated" or not unknown:
        return []
    names = f"input{'s' * (len(unknown) > 1)} {', '.join(spec.name for spec in unknown)}"
    graphs = " and run without CUDA graphs" if plan.backend == "torch" else ""
    return [
        f"{names} may have any length, so requests are planned as if all were alike{graphs}: say the range "
        f"that it takes, such as `shape: [{_with_ranges(unknown[0])}]`, then `astrarium profile FILE --write`"
    ]


def _with_ranges(spec: TensorSpec) -> str:
    """Return a shape as it may stand in a scenario, with a range for every open dimension."""
    sizes = map(spec.sizes_of, range(len(spec.shape)))
    ranges = [one or (1, 512) for one in sizes]
    return ", ".join(str(low) if low == high else f'"{low}..{high}"' for low, high in ranges)


class Repository:
    def __init__(self, plans: tuple[ModelPlan, ...], fleet: Fleet) -> None:
        self._fleet = fleet
        self.changed: Callable[[], None] = lambda: (
            None
        )  # called when a model's state has, without being asked to
        self.entries = [Entry(plan) for plan in plans]
        self._by_name = {entry.plan.name: entry for entry in self.entries}
        for entry in self.entries:
            files = next(iter(entry.plan.files.values()))
            entry.tensors = Tensors(sent(files.inputs), files.outputs, files.sizes)

    @property
    def lead(self) -> tuple[Time, Time]:
        """Return the longest that inputs of any model take to reach a GPU: of one item, and of each more."""
        return max(one.lead[0] for one in self.entries), max(one.lead[1] for one in self.entries)

    def find(self, name: str) -> Entry:
        entry = self._by_name.get(name)
        if entry is None:
            known = one_of(list(self._by_name), name)
            raise Refused(Kind.NOT_FOUND, f"there is no model {name!r}: expected {known}")
        return entry

    def card(self, name: str) -> ModelCard:
        return self.find(name).card()

    def start(self) -> None:
        """Note the models that the scenario wants from the start; workers load them when they come up."""
        for entry in self.entries:
            if entry.plan.loaded:
                entry.state = "LOADING"
                entry.reason = "its workers are starting"
                self._fleet.models[entry.plan.index] = entry.plan.files

    async def load(self, entry: Entry) -> None:
        """Load a model, also where it is loaded: workers go on with the old one until the new is there."""
        entry.failure = ""
        self._fleet.forgive_loads(entry.plan.index)
        if entry.state != "READY":
            entry.state = "LOADING"
            entry.reason = "it is being loaded"
        await self._answers(entry, lambda: self._fleet.load(entry.plan.index, entry.plan.files))
        if entry.failure:
            raise Refused(Kind.MODEL_FAILED, f"model {entry.plan.name} cannot be loaded: {entry.failure}")

    async def unload(self, entry: Entry) -> None:
        await self._answers(entry, lambda: self._fleet.unload(entry.plan.index))
        entry.state = "UNAVAILABLE"
        entry.reason = "it was unloaded"

    def heard(self, worker: int, news: ModelNews) -> None:
        entry = self.entries[news.model]
        before = entry.state
        match news:
            case ModelComplete(_, at):
                entry.whole_at[worker] = at
                return  # nobody waits for that
            case ModelLoaded(_, inputs, outputs, lead):
                entry.holders.add(worker)
                entry.whole_at[worker] = FOREVER if news.partial else 0
                entry.lead = lead
                entry.tensors = Tensors(inputs, outputs, entry.plan.sizes)
                entry.padding = news.padding, news.padding_reason, news.padding_advice
                self._tell(entry, news)
                if entry.state in ("LOADING", "READY"):
                    entry.state = "READY"
                    entry.reason = ""
            case ModelRefused(_, error):
                entry.failure = f"worker {worker}: {error}"
                if worker not in entry.holders:  # else the one that was there goes on
                    entry.state = "UNAVAILABLE"
                    entry.reason = entry.failure
                    log.warning("model %s is not ready: %s", entry.plan.name, entry.reason)
            case ModelUnloaded():
                entry.holders.discard(worker)
                entry.whole_at.pop(worker, None)
        self._answered(entry, worker)
        if entry.state != before:
            self.changed()

    @staticmethod
    def _tell(entry: Entry, news: ModelLoaded) -> None:
        """Log what a backend found out, once: every GPU's worker says the same, after every start."""
        notes = (*news.notes, *unknown_lengths(entry.plan, news.inputs))
        for level, texts in ((logging.INFO, notes), (logging.WARNING, news.warnings)):
            for text in texts:
                if text not in entry.logged:
                    log.log(level, "model %s: %s", entry.plan.name, text)
                    entry.logged.add(text)

    def lost(self, worker: int, reason: str) -> None:
        """Forget what a lost worker had loaded; it will load its models when it is back."""
        for entry in self.entries:
            entry.holders.discard(worker)
            entry.whole_at.pop(worker, None)
            if worker in entry.unanswered:
                entry.failure = f"worker {worker} {reason} meanwhile"
            self._answered(entry, worker)
            if entry.apart and entry.state == "READY" and not entry.holders:
                entry.state = "LOADING"
                entry.reason = f"its worker {reason}, and starts again"
                self.changed()

    async def _answers(self, entry: Entry, ask: Callable[[], None]) -> None:
        entry.unanswered = set(self._fleet.holders(entry.plan.index))
        entry.changed.clear()
        ask()
        if entry.unanswered:
            await entry.changed.wait()

    def _answered(self, entry: Entry, worker: int) -> None:
        entry.unanswered.discard(worker)
        if not entry.unanswered:
            entry.changed.set()
