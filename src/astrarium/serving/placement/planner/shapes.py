"""Changes of shape: a site's GPUs in another shape, cut into two sites, or joined with another site's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from astrarium.serving.placement.planner.draft import Draft, Member, Room, Site, placed_models
from astrarium.serving.placement.planner.options import Options
from astrarium.serving.placement.problem import Shape


class Reshaping:
    """Models stay where they are as far as they can run there and fit, those that lose most first."""

    def __init__(self, options: Options) -> None:
        self._options, self._room = options, Room(options.problem)
        self._shapes = {shape for model in options.problem.models for shape in model.forms}

    def __call__(self, draft: Draft, needy: Iterable[int]) -> Iterator[Draft]:
        order = {model: place for place, model in enumerate(needy)}
        homeless = order.keys() - placed_models(draft)
        for number, site in enumerate(draft):
            rest = draft[:number] + draft[number + 1 :]
            for sites in (*self._otherwise(site, order), *self._cut(site, order)):
                yield (*rest, *sites)
            for other in self._partners(draft, number):
                apart = draft[:number] + draft[number + 1 : other] + draft[other + 1 :]
                for joined in self._joined(site, draft[other], homeless, order):
                    yield (*apart, joined)

    def _partners(self, draft: Draft, number: int) -> Iterator[int]:
        """Sites further on that one may be joined with: of every memory the first, since its models come
        along."""
        known: set[object] = set()
        for other in range(number + 1, len(draft)):
            if self._alike(draft[number], draft[other]):
                memory = tuple(self._options.problem.gpus[gpu].memory for gpu in draft[other].gpus)
                if memory not in known:
                    known.add(memory)
                    yield other

    def _otherwise(self, site: Site, order: dict[int, int]) -> Iterator[tuple[Site, ...]]:
        for shape in sorted(self._shapes):
            if shape.gpus == site.shape.gpus and shape != site.shape:
                yield (self._filled(Site(site.gpus, shape), _models(site), order),)

    def _cut(self, site: Site, order: dict[int, int]) -> Iterator[tuple[Site, ...]]:
        half = len(site.gpus) // 2
        for shape in sorted(self._shapes):
            if half and shape.gpus * 2 == site.shape.gpus:
                parts = (Site(site.gpus[:half], shape), Site(site.gpus[half:], shape))
                yield tuple(self._filled(part, _models(site), order) for part in parts)

    def _alike(self, site: Site, other: Site) -> bool:
        gpus = [self._options.problem.gpus[gpu] for gpu in (*site.gpus, *other.gpus)]
        return site.shape == other.shape and len({gpu.node for gpu in gpus}) == 1

    def _joined(
        self, site: Site, other: Site, homeless: Collection[int], order: dict[int, int]
    ) -> Iterator[Site]:
        """*homeless* models may find a place there that no smaller site has."""
        for shape in sorted(self._shapes):
            if shape.gpus == 2 * site.shape.gpus:
                both = Site((*site.gpus, *other.gpus), shape)
                yield self._filled(both, _models(site) | _models(other) | set(homeless), order)

    def _filled(self, site: Site, models: set[int], order: dict[int, int]) -> Site:
        for model in sorted(models, key=lambda model: (order.get(model, len(order)), model)):
            if self._options.usable(model, site.shape):
                more = site.with_member(Member(model, self._batch(model, site.shape)))
                site = more if self._room.holds(more) else site
        return site

    def _batch(self, model: int, shape: Shape) -> int:
        return self._options.roomy(model, shape)


def _models(site: Site) -> set[int]:
    return {member.model for member in site.members}
