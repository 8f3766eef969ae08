"""What really happens on the simulated GPUs, where a model's execution times are distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from astrarium.core.profiles import Dynamic
from astrarium.core.units import Time
from astrarium.serving.model import TableTruth
from astrarium.serving.state import Batch


class DynamicTruth:
    """*work* holds every request's own time, by its id; models without a dynamic profile follow *tables*."""

    def __init__(self, work: Sequence[Time], profiles: Mapping[int, Dynamic], tables: TableTruth) -> None:
        self._work, self._profiles, self._tables = work, profiles, tables

    def execution(self, batch: Batch) -> Time:
        profile = self._profiles.get(batch.model)
        if profile is None:
            return self._tables.execution(batch)
        longest = max(self._work[request.id] for request in batch.requests)
        return profile.batch_time(len(batch.requests), longest)
