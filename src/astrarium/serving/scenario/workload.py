"""The `workload` section: how requests arrive."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import (
    Duration,
    Rate,
    check_order,
    write_duration,
)

NOTHING = Duration(0)

Rates = Rate | dict[str, Rate]  # the total, or one for each model


class Zipf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    zipf: Annotated[float, msgspec.Meta(ge=0)]


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From *at* on, if the run lasts that long. A total keeps the mix of models; a mapping changes the
    models it names."""

    at: Duration
    rate: Rates


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    arrivals: Literal["poisson", "gamma", "uniform", "trace"]
    rate: Rates | None = None
    popularity: Literal["equal"] | Zipf | None = None
    changes: tuple[Change, ...] = ()
    shape: Annotated[float, msgspec.Meta(ge=0.001)] | None = None
    file: str | None = None
    duration: Duration | None = None
    warmup: Duration = NOTHING
    lengths: Any = None  # of requests, read by hand: by model, of those that have lengths

    def __post_init__(self) -> None:
        needed, useless = _FIELDS[self.arrivals]
        for name in needed:
            if getattr(self, name) is None:
                raise InputError(name, None, f"a value: {self.arrivals} arrivals need it")
        for name in useless:
            if getattr(self, name):
                raise InputError(name, getattr(self, name), f"no such field with {self.arrivals} arrivals")
        if self.popularity is not None and isinstance(self.rate, dict):
            raise InputError("popularity", self.popularity, "no such field with a rate for each model")
        self._check_times()

    def _check_times(self) -> None:
        if self.duration is None:
            return
        if self.duration < 1:
            raise InputError("duration", write_duration(self.duration), "a duration above 0")
        if self.warmup >= self.duration:
            expected = f"a warm-up shorter than the duration, {write_duration(self.duration)}"
            raise InputError("warmup", write_duration(self.warmup), expected)
        check_order([change.at for change in self.changes])


_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "poisson": (("rate", "duration"), ("shape", "file")),
    "uniform": (("rate", "duration"), ("shape", "file")),
    "gamma": (("rate", "duration", "shape"), ("file",)),
    "trace": (("file",), ("rate", "popularity", "changes", "shape")),
}


NO_WORKLOAD = Workload("uniform", rate=Rate(0), duration=Duration(1))  # of a scenario that is only served
