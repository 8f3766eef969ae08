"""A total rate is shared among models here, in the order in which they are listed."""

from __future__ import annotations

import math


def equal(models: int) -> list[float]:
    return [1 / models] * models


def zipf(models: int, exponent: float) -> list[float]:
    """The i-th model gets a share in proportion to 1 / i^exponent."""
    weights = [rank**-exponent for rank in range(1, models + 1)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
