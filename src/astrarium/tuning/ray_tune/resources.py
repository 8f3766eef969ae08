"""How wide a trial is, in the resources that Ray Tune asks of Ray."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from astrarium.core.errors import InputError
from astrarium.tuning.runtime import Width

if TYPE_CHECKING:
    from ray.tune.execution.placement_groups import PlacementGroupFactory


FINEST = 10_000  # Ray counts GPUs in so many parts
MOST_PARTS = 64


def factory(base: PlacementGroupFactory, width: Width) -> PlacementGroupFactory:
    """Return *base* at another width: its GPU bundle once for each GPU, or once with a part of one."""
    from ray.tune.execution.placement_groups import PlacementGroupFactory

    model = next(bundle for bundle in base.bundles if bundle.get("GPU"))
    others = [dict(bundle) for bundle in base.bundles if not bundle.get("GPU")]
    share = 1 if width >= 1 else FINEST // width.denominator / FINEST
    return PlacementGroupFactory([*others, *({**model, "GPU": share} for _ in range(max(1, int(width))))])


def width_of(resources: PlacementGroupFactory) -> Width:
    gpus = float(resources.required_resources.get("GPU", 0))
    width = Fraction(gpus).limit_denominator(MOST_PARTS)
    if width <= 0 or (width.numerator > 1 and width.denominator > 1):
        raise InputError(
            "resources", dict(resources.required_resources), "GPUs, or one part in so many of one"
        )
    return width
