"""Network threads read plain calls without Python; here they are told which models they may read calls of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING

from astrarium.core.quantities import MILLISECOND, Time
from astrarium.server.contract import ModelCard, NativeFront, NumberedCard
from astrarium.serving.live import limits
from astrarium.serving.live.numbering import numbering
from astrarium.serving.live.tensors import TensorSpec

if TYPE_CHECKING:
    from astrarium._front import Grpc, Limits, Network, Numbered, Spec

HIGH_WATER = 64 * 1024  # bytes written before we ask whether the client takes them, as asyncio has it
_ANY = 0, (1 << 63) - 1  # of sizes
LOOK_AGAIN = 50 * MILLISECOND  # how often a request that went the long way makes us look for changed models


def why_long(card: ModelCard) -> str:
    """Return why no request of the model can go the short way now; empty where they can."""
    if card.state != "READY" or card.failing:
        return "not_ready"
    if sum(spec.packed for spec in card.inputs) > 1:
        return "packed"  # whether several inputs are equally long is checked there
    names = [card.name, *(spec.name for spec in (*card.inputs, *card.outputs))]
    return "" if card.outputs and all(name.isascii() and name.isprintable() for name in names) else "names"


class NativeThreads:
    """Native threads of one protocol know the models as they were when somebody last looked."""

    def __init__(self, native: Network | Grpc, front: NativeFront) -> None:
        self._native = native
        self._front = front
        self._cards: dict[int, NumberedCard] = {}  # as the threads know them
        self._looked: Time = 0
        self._turned_away = 0

    def look(self) -> None:
        """Tell the threads which models are ready now; to be called when models were loaded or unloaded."""
        self._looked = monotonic_ns()
        for model in self._front.cards():
            if not _is_known(self._cards.get(model.index), model):
                self._cards[model.index] = model
                self._learn(model, model.why_long or why_long(model.card))

    def look_again(self) -> None:
        """Look, unless that was a moment ago; to be called when a request went the long way."""
        if monotonic_ns() - self._looked > LOOK_AGAIN:
            self.look()

    def turned_away(self) -> int:
        """Return for how many connections there was no descriptor since somebody last asked."""
        before = self._turned_away
        self._turned_away = self._native.turned_away()
        return self._turned_away - before

    def cpu_time(self) -> Time:
        """Return the CPU time that the threads have had."""
        return sum(self._native.cpu_ns())

    def settle(self) -> None:
        """Wait until all threads know what they were told: some microseconds."""
        self._native.synchronize()

    def left(self) -> Mapping[str, int]:
        """Return how many connections were closed because of what their clients did, by reason."""
        return {}

    def kept(self) -> int:
        """Return the bytes that clients make us keep, tensors of accepted calls aside."""
        return self._native.held()

    def _learn(self, model: NumberedCard, why: str) -> None:
        card = model.card
        if why:
            self._native.withhold(card.name, why)
            return
        self._native.serve(
            model.index,
            card.name,
            card.version,
            native_specs(card.inputs),
            native_specs(card.outputs),
            card.max_batch,
            card.slo,
            dict(card.priorities),
            list(card.applications),
            _numbered(card),
            _tokenized(model),
        )

    def always_long(self) -> dict[str, str]:
        """Return the models of which no request can go the short way, with the reason."""
        models = self._front.cards()
        reasons = {model.card.name: model.why_long or why_long(model.card) for model in models}
        return {name: why for name, why in reasons.items() if why}


def _is_known(known: NumberedCard | None, model: NumberedCard) -> bool:
    return known is not None and known.card is model.card and known.tokenized == model.tokenized


def _tokenized(model: NumberedCard) -> tuple[int, list[Spec]] | None:
    if model.tokenized is None:
        return None
    number, inputs = model.tokenized
    return number, native_specs(inputs)


def _numbered(card: ModelCard) -> Numbered | None:
    """Return what threads are told of a model whose shapes have numbers.

    That is along which dimension of which input each axis lies, its buckets, and where cells begin.
    """
    known = numbering(card.inputs, card.sizes)
    if known is None:
        return None
    axes = zip(known.axes, known.grid.axes, strict=True)
    return [(*place, list(buckets)) for place, buckets in axes], known.grid.before()


def native_specs(specs: Iterable[TensorSpec]) -> list[Spec]:
    """Return tensors as native threads are told of them."""
    return [_native_spec(spec) for spec in specs]


def _native_spec(spec: TensorSpec) -> Spec:
    """Return a tensor; the lowest and the highest size of each dimension where any has a range."""
    plain = spec.name, spec.datatype, list(spec.shape), _limits(spec)
    if not spec.ranges:
        return plain
    return (*plain, [spec.sizes_of(place) or _ANY for place in range(len(spec.shape))])


def _limits(spec: TensorSpec) -> Limits | None:
    return (*limits.native_bounds(spec), limits.expected(spec)) if spec.is_limited else None
