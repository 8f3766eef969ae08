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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Literal, NamedTuple

import numpy as np

from astrarium.serving.live import fills, limits
from astrarium.serving.live.backends import contract, examples
from astrarium.serving.live.backends.blame import blamed
from astrarium.serving.live.backends.contract import LoadedModel, ModelFailed
from astrarium.serving.live.ranges import RANGES, is_real
from astrarium.serving.live.tensors import BF16, DATATYPES, Array, TensorSpec
from astrarium.serving.live.worker.inputs import UnequalItems
from astrarium.serving.live.worker.padding import Padding

Answer = Mapping[str, Array]  # of one item
Item = Mapping[str, Array]
# How much longer than the shortest: small ones, since this is part of every load. Where no range says that a
# model takes longer ones, they must not reach the end of a table of positions: on a GPU that would break it.
_STEPS = 0, 2, 7, 64
_HARMLESS = 8
# Rounding leaves half of the digits, also through many layers; what padding does is of the order of the part
# of an item that is padding.
_ROUNDING = {"FP16": sqrt(2**-10), BF16: sqrt(2**-7), "FP32": sqrt(2**-23), "FP64": sqrt(2**-52)}
# Of models that answer with classes or texts only: a class hides most of what changes behind it.
_DRAWS = 4
# Numbers that stay the same beside much smaller ones that do not are constants, such as -1e9 for a class
# that may not be: changes are seen beside so many times the largest number that changes.
_FAR = 8
_NOISE = 4  # times what equal lengths have shown: a few items have not shown all of it


class Verdict(NamedTuple):
    """`padding` is empty where a model has no open dimension; the reason is of what changes."""

    padding: Literal["", "safe", "changes"] = ""
    reason: str = ""


def warnings(verdict: Verdict, padding: Padding) -> list[str]:
    """Return what to tell people whose model is slower than it could be."""
    if verdict.padding != "changes":
        return []
    kinds = {spec.fill.kind for spec in padding.inputs if spec.fill is not None}
    missing = [f"`{kind}: NAME`" for kind in ("mask", "lengths") if kind not in kinds]
    advice = f"; an input that the server fills ({' or '.join(missing)}) can tell it what padding is"
    together = "only requests of equal lengths run together"
    if padding.is_packed:
        return [f"in company its answers change, so requests run one by one: {verdict.reason}; {_KEPT_APART}"]
    return [f"padding changes its answers, so {together}: {verdict.reason}{advice if missing else ''}"]


_KEPT_APART = "a packed model must keep items apart, at the offsets (or by the lengths) that it is given"


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
    trial = _Trial(model, replace(padding, allowed=True, buckets=buckets), max(2, largest))
    names = {spec.name for spec in padding.sent}
    specs = [spec for spec in examples.inputs_of(model) if spec.name in names]
    shows_all = any(is_real(spec.datatype) for spec in model.outputs)
    try:
        answers = [
            answer
            for draw in range(1 if shows_all else _DRAWS)
            for answer in _answers_to_all(trial, specs, careful, draw)
        ]
    except _Changes as change:
        return Verdict("changes", str(change))
    if not _vary(answers):
        return Verdict("changes", "it answers all that was tried alike, which shows nothing")
    return Verdict("safe")


def _answers_to_all(trial: _Trial, specs: Sequence[TensorSpec], careful: bool, draw: int) -> Iterator[Answer]:
    """Run the trial with numbers of several sizes, and yield what the model answered to single items."""
    yield from trial.run(specs, draw)
    for low, high in ((-3, -1), (1, 3)):  # zeros behind such numbers are the largest, or the smallest
        yield from trial.run_again([_limited(spec, low, high, careful) for spec in specs], draw)


def _vary(answers: Sequence[Answer]) -> bool:
    """Whether any output depends on the input, as far as its answers are equally long."""
    first, *others = answers
    return any(_differ(first[name].ravel(), other[name].ravel()) for other in others for name in first)


def _differ(one: Array, other: Array) -> bool:
    size = min(one.size, other.size)
    return (
        one[:size].tobytes() != other[:size].tobytes()
        if one.dtype != object
        else list(one[:size]) != list(other[:size])
    )


@dataclass(frozen=True)
class _Trial:
    model: LoadedModel
    padding: Padding
    largest: int

    def run(self, specs: Sequence[TensorSpec], draw: int) -> list[Answer]:
        """Return the answers to single items; raise _Changes where they change."""
        items = list(_items(specs, self.padding.axes, draw))
        alone = [self._alone(item) for item in items]
        self._check_repeated(items, alone)
        self._check_lengths(items, alone)
        noise = self._noise(specs, items, alone)
        for place in range(len(items)):
            # Each among longer ones, in batches of several sizes.
            order = [place, *(other for other in reversed(range(len(items))) if other != place)]
            places = order[: max(2, min(self.largest, 2 + place))]
            self._check_padded([items[one] for one in places], [alone[one] for one in places], noise)
        return alone

    def run_again(self, specs: Sequence[TensorSpec], draw: int) -> list[Answer]:
        """Do the same with other numbers, if the model takes those."""
        try:
            for item in _items(specs, self.padding.axes, draw):
                self._alone(item)
        except _Changes:
            return []
        return self.run(specs, draw)

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
                if share > _ROUNDING.get(spec.datatype, 0):
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

    def _noise(
        self, specs: Sequence[TensorSpec], items: Sequence[Item], alone: Sequence[Answer]
    ) -> dict[str, float]:
        """Return by output how far answers are apart that were batched with others of their length."""
        noise: dict[str, float] = {}
        chance = np.random.default_rng(1)
        for place, (item, answer) in enumerate(zip(items, alone, strict=True)):
            others = min(self.largest, 2 + place) - 1
            among = [item, *(self._like(item, specs, chance) for _ in range(others))]
            try:
                together = self._answers(among, replace(self.padding, allowed=self.padding.is_packed))[0]
            except Exception as error:
                raise _Changes(f"it failed on a batch of equal lengths: {_said(error)}") from error
            for spec, share in self._deviations(answer, together):
                counts = is_real(spec.datatype) or not self.padding.is_packed
                noise[spec.name] = max(noise.get(spec.name, 0.0), share if counts else 0.0)
        return noise

    def _like(self, item: Item, specs: Sequence[TensorSpec], chance: np.random.Generator) -> Item:
        """Return an item of the same length that a model may be given beside it."""
        if self.padding.is_packed:
            return item
        return {spec.name: _one(spec, chance) for spec in _sized(specs, item)}

    def _check_padded(
        self, items: Sequence[Item], alone: Sequence[Answer], noise: Mapping[str, float]
    ) -> None:
        try:
            padded = self._answers(items, self.padding)
        except Exception as error:
            kind = "packed" if self.padding.is_packed else "padded"
            raise _Changes(f"it failed on a {kind} batch: {_said(error)}") from error
        for item, answer, other in zip(items, alone, padded, strict=True):
            for spec, share in self._deviations(answer, other):
                if share > _allowed(spec, noise[spec.name]):
                    raise _Changes(self._shown(spec, item, items, share))

    def _shown(self, spec: TensorSpec, item: Item, items: Sequence[Item], share: float) -> str:
        by = f" by {share:.2g} of its magnitude" if spec.datatype in _ROUNDING and share < inf else ""
        padded = f"padded to {self._length(items)}"
        how = "packed with others" if self.padding.is_packed else padded
        return f"output {spec.name} of an input of {self._length([item])} changes{by} when {how}"

    def _length(self, items: Sequence[Item]) -> str:
        axes = [axis[0] for axis in self.padding.axes]
        sizes = [max(item[name].shape[place] for item in items) for name, place in axes]
        return f"length {sizes[0]}" if len(sizes) == 1 else f"size {' x '.join(map(str, sizes))}"

    def _deviations(self, one: Answer, other: Answer) -> Iterator[tuple[TensorSpec, float]]:
        for spec in self.model.outputs:
            yield spec, deviation(spec.datatype, one[spec.name], other[spec.name])


def deviation(datatype: str, one: Array, other: Array) -> float:
    """Return how far two answers to the same item are apart.

    For numbers with fractions it is the largest difference as a share of the largest number in *one* that is
    no constant; for whole numbers and texts the share of elements that differ.
    """
    if one.shape != other.shape:
        return inf
    if not one.size:
        return 0.0
    if not is_real(datatype):
        return float(np.mean(one != other))
    first, second = _numbers(one), _numbers(other)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    if same.all():
        return 0.0
    apart = np.abs(first[~same] - second[~same]).max()
    changing = np.maximum(np.abs(first), np.abs(second))[~same].max()
    scale = min(np.abs(first[np.isfinite(first)]).max(initial=0.0), _FAR * changing)
    return float(apart / scale) if np.isfinite(apart) and np.isfinite(scale) and scale > 0 else inf


def _allowed(spec: TensorSpec, noise: float) -> float:
    """Return how far apart answers may be; *noise* counts up to what the coarsest of all types leaves."""
    if spec.datatype not in _ROUNDING:
        return noise
    return max(_ROUNDING[spec.datatype], min(_NOISE * noise, _ROUNDING[BF16]))


def _numbers(array: Array) -> Array:
    is_bf16 = array.dtype == DATATYPES[BF16]
    return limits.numbers(BF16, array.tobytes()).astype(np.float64) if is_bf16 else array.astype(np.float64)


def _limited(spec: TensorSpec, low: int, high: int, careful: bool) -> TensorSpec:
    """Return an input that takes numbers from *low* to *high*, where it takes any of them.

    A *careful* trial has no whole numbers but 0 and 1 where nothing says that the input takes others.
    """
    if spec.datatype not in RANGES:
        return spec
    least, most = spec.values or RANGES[spec.datatype]
    if careful and spec.values is None and not is_real(spec.datatype):
        least, most = 0, 1
    values = max(low, least), min(high, most)
    return replace(spec, values=values) if values[0] <= values[1] else spec


def _items(specs: Sequence[TensorSpec], axes: Sequence[Sequence[fills.Axis]], draw: int) -> Iterator[Item]:
    """Yield made-up items of different lengths, from short to long along the first axis."""
    chance = np.random.default_rng(draw)
    sent = fills.sent(specs)
    known = {spec.name: spec for spec in sent}
    lengths = [_lengths(known[axis[0][0]], axis[0][1]) for axis in axes]
    for place in range(max(map(len, lengths))):
        # On further axes others are the longest.
        own = [one[(place + number) % len(one)] for number, one in enumerate(lengths)]
        yield {spec.name: _one(spec, chance) for spec in fills.sized(sent, own)}


def _lengths(spec: TensorSpec, dimension: int) -> list[int]:
    low, high = spec.sizes_of(dimension) or (1, _HARMLESS)
    return sorted({min(low + step, high) for step in _STEPS})


def _sized(specs: Sequence[TensorSpec], item: Item) -> list[TensorSpec]:
    """Return the inputs that clients send, with the shapes that they have in an item."""
    return [replace(spec, shape=item[spec.name].shape) for spec in fills.sent(specs)]


def _one(spec: TensorSpec, chance: np.random.Generator) -> Array:
    return examples.tensor(spec, 1, chance)[0, ...]


def _unequal(items: Sequence[Item]) -> UnequalItems:
    return UnequalItems(len(items), {name: [item[name] for item in items] for name in items[0]})


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, ModelFailed) else blamed(error)
