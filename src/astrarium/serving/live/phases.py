"""Phases are named parts of a start, with the time that each took: so that people see where a start goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic_ns

from astrarium.core.quantities import Time, rounded_duration


class Phases(dict[str, Time]):
    """A phase that comes several times is added up; phases keep the order in which they first came."""

    def __init__(self, clock: Callable[[], Time] = monotonic_ns) -> None:
        super().__init__()
        self._clock = clock

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self[name] = self.get(name, 0) + self._clock() - began


def phases_text(phases: Mapping[str, Time]) -> str:
    """Return phases in words, as a log has them."""
    return ", ".join(f"{name} {rounded_duration(took)}" for name, took in phases.items())
