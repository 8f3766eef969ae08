"""A trial finds out whether padding changes a model's answers, before any client's call is padded.

Made-up items are run alone and padded among longer ones. Answers may differ by rounding: a GPU adds up in
another order where a batch has another shape. So each item is also run among others of its own length, which
shows how far this model's rounding goes without any padding.

Items of a model that takes them packed are tried the same way, alone and packed with others: one that mixes
up what lies side by side is found. What it makes of others of an item's length may then be wrong, too, so its
rounding is that of the item among copies of itself. Whole numbers and texts must be the same: a sum over all
copies would pass for rounding that changes all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from astrarium.serving.live.backends import contract, examples
from astrarium.serving.live.backends.blame import blamed
from astrarium.serving.live.backends.contract import LoadedModel, ModelFailed
from astrarium.serving.live.ranges import is_real
from astrarium.serving.live.tensors import Array, TensorSpec
from astrarium.serving.live.worker import trial_items
from astrarium.serving.live.worker.deviations import (
    ROUNDING,
    Flips,
    Positions,
    allowed,
    deviation,
    has_positions,
    share_unbounded,
)
from astrarium.serving.live.worker.inputs import UnequalItems
from astrarium.serving.live.worker.packing import together
from astrarium.serving.live.worker.padding import Padding
from astrarium.serving.live.worker.trial_items import Item, Numbers

Answer = Mapping[str, Array]  # of one item
_DRAWS = 4  # of models that answer with classes or texts: a class hides most of what changes behind it


class Verdict(NamedTuple):
    """`padding` is empty where a model has no open dimension; the reason is of what changes."""

    padding: Literal["", "safe", "changes"] = ""
    reason: str = ""


def warnings(verdict: Verdict, padding: Padding) -> list[str]:
    """Return what to tell people whose model is slower than it could be."""
    if verdict.padding != "changes":
        return []
    consequence = "padding changes its answers, so only requests of equal lengths run together"
    if padding.is_packed:
        consequence = "in company its answers change, so requests run one by one"
    return [f"{consequence}: {verdict.reason}; {advice(verdict, padding)}"]


def advice(verdict: Verdict, padding: Padding) -> str:
    """Return what would let unequal items run together; it is empty where they do."""
    if verdict.padding != "changes":
        return ""
    if padding.is_packed:
        return "a packed model must keep items apart, at the offsets (or by the lengths) that it is given"
    kinds = {spec.fill.kind for spec in padding.inputs if spec.fill is not None}
    missing = [f"`{kind}: NAME`" for kind in ("mask", "lengths") if kind not in kinds]
    if not missing:
        return "its answers must not depend on what mask and lengths say is padding"
    return f"an input that the server fills ({' or '.join(missing)}) can tell it what padding is"


def graph_warnings(verdict: Verdict, in_graphs: Verdict) -> list[str]:
    """Return what to tell people whose packed model cannot run in graphs."""
    if in_graphs == verdict:
        return []
    return [
        f"runs without CUDA graphs, in which items that are nobody's are behind a batch: {in_graphs.reason}"
    ]


class _Changes(Exception):
    """Answers change by padding, or may: the text says how that shows."""


def tried(model: LoadedModel, padding: Padding, largest: int, careful: bool) -> Verdict:
    """Return whether answers change where items are padded in batches of up to *largest*.

    A *careful* trial makes up no numbers that might break a GPU.
    """
    if not padding.axes:
        return Verdict()
    if isinstance(model, contract.IgnoresPadding) and model.ignores_padding:
        return Verdict("safe")
    buckets = padding.buckets if len(padding.axes) == 1 else ()  # else items would run apart
    names = {spec.name for spec in padding.sent}
    specs = [spec for spec in examples.inputs_of(model) if spec.name in names]
    longest = trial_items.longest_lengths(specs, model.outputs, padding.buckets)
    trial = _Trial(model, replace(padding, allowed=True, buckets=buckets), max(2, largest), longest)
    try:
        trial.run_all(list(trial_items.numbers(specs, careful)))
    except _Changes as change:
        return Verdict("changes", str(change))
    return Verdict("safe")


def tried_in_graphs(model: LoadedModel, padding: Padding, verdict: Verdict, largest: int) -> Verdict:
    """Return what a trial of a model says whose batches in graphs have items behind them that are nobody's.

    For other models it is their *verdict*, and so it is where they run their items one by one.
    """
    if verdict.padding != "safe" or not isinstance(model, contract.PackedInGraphs) or not model.packed_shapes:
        return verdict
    return tried(model, together(padding.inputs, model), largest, careful=True)


@dataclass
class _Variety:
    """Which outputs depend on the input, as far as their answers are equally long."""

    first: dict[str, Array] = field(default_factory=dict)
    found: set[str] = field(default_factory=set)

    def note(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            for name, array in answer.items():
                flat = array.ravel()
                if name not in self.found and _differ(self.first.setdefault(name, flat), flat):
                    self.found.add(name)

    def check(self, outputs: Sequence[TensorSpec]) -> None:
        """Check that any output varies, and each of those whose changes may be hidden."""
        if not self.found:
            raise _Changes("it answers all that was tried alike, which shows nothing")
        for spec in outputs:
            if spec.name not in self.found and not is_real(spec.datatype):
                raise _Changes(f"output {spec.name} is the same in all that was tried, which shows nothing")


def _differ(one: Array, other: Array) -> bool:
    size = min(one.size, other.size)
    return (
        one[:size].tobytes() != other[:size].tobytes()
        if one.dtype != object
        else list(one[:size]) != list(other[:size])
    )


@dataclass
class _Noise:
    """How far answers are apart that were batched with others of their length, of one run, by output."""

    shares: dict[str, float]
    positions: dict[str, Positions]


@dataclass(frozen=True)
class _Trial:
    model: LoadedModel
    padding: Padding
    largest: int
    longest: Sequence[int] | None
    variety: _Variety = field(default_factory=_Variety)
    flips: dict[str, Flips] = field(default_factory=lambda: defaultdict(Flips))

    def run_all(self, kinds: Sequence[Numbers]) -> None:
        """Run items of all these numbers, for some models several times over."""
        shows_all = all(is_real(spec.datatype) for spec in self.model.outputs)
        for draw in range(1 if shows_all else _DRAWS):
            plain, *others = [one._replace(long=one.long and draw == 0) for one in kinds]
            unbounded = self._run_plain(plain, draw)
            for chosen in others:
                self._run_if_taken(chosen, draw, unbounded)
            self._check_flips(surely=True)
        self._check_flips(surely=False)
        self.variety.check(self.model.outputs)

    def _run_plain(self, chosen: Numbers, draw: int) -> float:
        """Run items that every model takes; return the share of their answers that is infinite or NaN."""
        items = self._items(chosen, draw)
        alone = [self._alone(item) for item in items]
        self._check_repeated(items, alone)
        self._run(chosen, items, alone)
        return self._unbounded(alone)

    def _run_if_taken(self, chosen: Numbers, draw: int, unbounded: float) -> None:
        """Do the same with other numbers, if the model takes those: wide ones may be too much for sums."""
        items = self._items(chosen, draw)
        try:
            alone = [self._alone(item) for item in items]
        except _Changes:
            return
        if not chosen.wide or self._unbounded(alone) <= unbounded:
            self._run(chosen, items, alone)

    def _items(self, chosen: Numbers, draw: int) -> list[Item]:
        chance = np.random.default_rng(draw)
        return list(trial_items.items(chosen, self.padding.axes, self.longest, chance))

    def _unbounded(self, answers: Sequence[Answer]) -> float:
        real = [spec for spec in self.model.outputs if is_real(spec.datatype)]
        return max((share_unbounded(answer[spec.name]) for spec in real for answer in answers), default=0.0)

    def _run(self, chosen: Numbers, items: Sequence[Item], alone: Sequence[Answer]) -> None:
        """Run items in company, and note what the model answers to single ones."""
        self._check_lengths(items, alone)
        noise = self._noise(chosen, items, alone)
        for places in self._companies(len(items), self._short(chosen, items)):
            self._check_padded([items[one] for one in places], [alone[one] for one in places], noise)
        self.variety.note(alone)

    def _short(self, chosen: Numbers, items: Sequence[Item]) -> int:
        """Return how many items there are before the longest one, of which a large batch takes long."""
        return len(items) - (chosen.long and self.longest is not None)

    def _companies(self, count: int, short: int) -> Iterator[list[int]]:
        """Yield which items run together: each among longer ones, in batches of several sizes."""
        for place in range(short):
            order = [place, *(other for other in reversed(range(short)) if other != place)]
            yield order[: max(2, min(self.largest, 2 + place))]
        if count > short:
            yield from ([place, short] for place in sorted({0, short // 2}))

    def _alone(self, item: Item) -> Answer:
        try:
            return self._answers([item], replace(self.padding, allowed=False))[0]
        except Exception as error:
            raise _Changes(f"it failed on an input of {self._length([item])}: {_said(error)}") from error

    def _answers(self, items: Sequence[Item], padding: Padding) -> list[Answer]:
        (part,) = padding.parts(_unequal(items))
        outputs = self.model.run(part.batch).outputs
        columns = {name: [np.array(item) for item in answers] for name, answers in outputs.items()}
        return [{name: column[place] for name, column in columns.items()} for place in range(len(items))]

    def _check_repeated(self, items: Sequence[Item], alone: Sequence[Answer]) -> None:
        for item, answer in zip(items, alone, strict=True):
            for spec, share in self._deviations(answer, self._alone(item)):
                if share > ROUNDING.get(spec.datatype, 0):
                    raise _Changes(f"it answers the same request in different ways (output {spec.name})")

    def _check_lengths(self, items: Sequence[Item], alone: Sequence[Answer]) -> None:
        """Check that open outputs are as long as the first open input: else nobody can cut padding off."""
        source = self.padding.axes[0][0][0]
        for spec in self.model.outputs:
            for item, answer in zip(items, alone, strict=True):
                own = item[source].shape
                for place in spec.open_dimensions:
                    if place >= len(own) or answer[spec.name].shape[place] != own[place]:
                        raise _Changes(f"output {spec.name} is not as long as input {source}")

    def _noise(self, chosen: Numbers, items: Sequence[Item], alone: Sequence[Answer]) -> _Noise:
        noise = _Noise({spec.name: 0.0 for spec in self.model.outputs}, self._positions(alone))
        chance = np.random.default_rng(1)
        for place, (item, answer) in enumerate(zip(items, alone, strict=True)):
            others = min(self.largest, 2 + place) - 1 if place < self._short(chosen, items) else 1
            among = [item, *(self._like(item, chosen, chance) for _ in range(others))]
            self._note_noise(noise, answer, self._among_equal(among))
        return noise

    def _positions(self, alone: Sequence[Answer]) -> dict[str, Positions]:
        return {
            spec.name: Positions(spec.datatype, [answer[spec.name] for answer in alone])
            for spec in self.model.outputs
            if has_positions(spec)
        }

    def _among_equal(self, items: Sequence[Item]) -> Answer:
        try:
            return self._answers(items, self.padding.unpadded)[0]
        except Exception as error:
            raise _Changes(f"it failed on a batch of equal lengths: {_said(error)}") from error

    def _note_noise(self, noise: _Noise, answer: Answer, together: Answer) -> None:
        for spec, share in self._deviations(answer, together):
            if is_real(spec.datatype):
                noise.shares[spec.name] = max(noise.shares[spec.name], share)
            else:
                self.flips[spec.name].equal.append(0.0 if self.padding.is_packed else min(1.0, share))
            if spec.name in noise.positions:
                noise.positions[spec.name].note(answer[spec.name], together[spec.name])

    def _like(self, item: Item, chosen: Numbers, chance: np.random.Generator) -> Item:
        """Return an item of the same length that a model may be given beside it."""
        return item if self.padding.is_packed else trial_items.like(item, chosen, chance)

    def _check_padded(self, items: Sequence[Item], alone: Sequence[Answer], noise: _Noise) -> None:
        try:
            padded = self._answers(items, self.padding)
        except Exception as error:
            kind = "packed" if self.padding.is_packed else "padded"
            raise _Changes(f"it failed on a {kind} batch: {_said(error)}") from error
        for item, answer, other in zip(items, alone, padded, strict=True):
            for spec, share in self._deviations(answer, other):
                shown = self._shown(spec.name, item, items, share if is_real(spec.datatype) else inf)
                if not is_real(spec.datatype) and share <= 1:
                    self.flips[spec.name].note_padded(share, shown)
                elif share > allowed(spec, noise.shares[spec.name]):
                    raise _Changes(shown)
                elif spec.name in noise.positions:
                    self._check_positions(spec.name, noise, (answer, other), item, items)

    def _check_positions(
        self, name: str, noise: _Noise, answers: tuple[Answer, Answer], item: Item, items: Sequence[Item]
    ) -> None:
        changed = noise.positions[name].changed(answers[0][name], answers[1][name])
        if changed is not None:
            raise _Changes(self._shown(f"{name}[..., {changed.position}]", item, items, changed.share))

    def _check_flips(self, surely: bool) -> None:
        for flips in self.flips.values():
            if flips.are_more(surely):
                raise _Changes(flips.first)

    def _shown(self, output: str, item: Item, items: Sequence[Item], share: float) -> str:
        by = f" by {share:.2g} of its magnitude" if share < inf else ""
        padded = f"padded to {self._length(items)}"
        how = "packed with others" if self.padding.is_packed else padded
        return f"output {output} of an input of {self._length([item])} changes{by} when {how}"

    def _length(self, items: Sequence[Item]) -> str:
        axes = [axis[0] for axis in self.padding.axes]
        sizes = [max(item[name].shape[place] for item in items) for name, place in axes]
        return f"length {sizes[0]}" if len(sizes) == 1 else f"size {' x '.join(map(str, sizes))}"

    def _deviations(self, one: Answer, other: Answer) -> Iterator[tuple[TensorSpec, float]]:
        for spec in self.model.outputs:
            yield spec, deviation(spec.datatype, one[spec.name], other[spec.name])


def _unequal(items: Sequence[Item]) -> UnequalItems:
    return UnequalItems(len(items), {name: [item[name] for item in items] for name in items[0]})


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, ModelFailed) else blamed(error)
