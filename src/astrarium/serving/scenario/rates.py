"""Each model's rate over time, from a total and its popularity or from rates by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import (
    SECOND,
    Rate,
    Time,
    write_rate,
)
from astrarium.serving.scenario.plain import plain_value
from astrarium.serving.scenario.workload import Rates, Workload, Zipf

MOST_ARRIVALS = 1_000_000_000


class Span(NamedTuple):
    """A span has rates, in the order of the models, from one moment until the next."""

    start: Time
    end: Time
    rates: tuple[float, ...]


def spans(workload: Workload, names: Sequence[str]) -> list[Span]:
    assert workload.rate is not None, "a trace has no rates"
    assert workload.duration is not None
    rates = _initial(workload.rate, workload, names)
    shares = _shares(rates, zipf(len(names), 0))
    schedule: list[tuple[Time, tuple[float, ...]]] = [(0, rates)]
    for change in (change for change in workload.changes if change.at < workload.duration):
        rates = _changed(change.rate, rates, shares, names)
        shares = _shares(rates, shares)
        schedule.append((change.at, rates))
    schedule.append((workload.duration, ()))
    return [Span(start, end, rates) for (start, rates), (end, _) in pairwise(schedule)]


def mean_total(workload: Workload, names: Sequence[str]) -> float:
    parts = spans(workload, names)
    if len(parts) == 1 and not isinstance(workload.rate, dict):
        return workload.rate or 0.0  # exactly as written, not the sum of its shares
    served = math.fsum(math.fsum(part.rates) * (part.end - part.start) for part in parts)
    return served / (workload.duration or 1)


def scaled(workload: Workload, total: float, present: float) -> Workload:
    def grown(rates: Rates) -> Rates:
        if isinstance(rates, dict):
            return {name: Rate(_times(rate, total, present)) for name, rate in rates.items()}
        return Rate(_times(rates, total, present))

    changes = tuple(msgspec.structs.replace(change, rate=grown(change.rate)) for change in workload.changes)
    return msgspec.structs.replace(workload, rate=grown(workload.rate or Rate(0)), changes=changes)


def check_rates(workload: Workload, names: Sequence[str]) -> None:
    """Check that every name is a model's, every model has a rate, and something arrives."""
    fields: list[tuple[str, Rates | None]] = [("workload.rate", workload.rate)]
    fields += [
        (f"workload.changes[{place}].rate", change.rate) for place, change in enumerate(workload.changes)
    ]
    for field, rates in fields:
        _check_names(field, rates if isinstance(rates, dict) else {}, names)
    missing = [name for name in names if isinstance(workload.rate, dict) and name not in workload.rate]
    if missing:
        raise InputError(f"workload.rate.{missing[0]}", None, "a rate for every model (0/s for none)")
    total = mean_total(workload, names)
    if total <= 0:
        raise InputError("workload.rate", plain_value(Rates, workload.rate), "a rate above 0")
    if total * (workload.duration or 0) > MOST_ARRIVALS * SECOND:
        expected = f"at most {MOST_ARRIVALS:,} arrivals in the duration: a lower rate, or a shorter run"
        raise InputError("workload.rate", plain_value(Rates, workload.rate), expected)


def _check_names(field: str, rates: dict[str, Rate], names: Sequence[str]) -> None:
    for name, rate in rates.items():
        if name not in names:
            expected = f"a model: {one_of(list(names), name)}"
            raise InputError(f"{field}.{name}", write_rate(rate), expected)


def _initial(rates: Rates, workload: Workload, names: Sequence[str]) -> tuple[float, ...]:
    if isinstance(rates, dict):
        return tuple(rates[name] for name in names)
    exponent = workload.popularity.zipf if isinstance(workload.popularity, Zipf) else 0
    return tuple(rates * share for share in zipf(len(names), exponent))


def zipf(models: int, exponent: float) -> list[float]:
    """Return shares: the i-th model's is in proportion to 1 / i^exponent, and 0 makes all equal."""
    weights = [rank**-exponent for rank in range(1, models + 1)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _changed(
    rates: Rates, present: tuple[float, ...], shares: Sequence[float], names: Sequence[str]
) -> tuple[float, ...]:
    if isinstance(rates, dict):
        return tuple(rates.get(name, rate) for name, rate in zip(names, present, strict=True))
    return tuple(rates * share for share in shares)


def _shares(rates: Sequence[float], last: Sequence[float]) -> list[float]:
    """Return the mix of models; while nothing arrives, the last one is remembered."""
    total = math.fsum(rates)
    return [rate / total for rate in rates] if total > 0 else list(last)


def _times(rate: float, total: float, present: float) -> float:
    return total if rate == present else rate * total / present
