"""Synchronous BOHB: the rungs of Hyperband, and a sampler that learns between them.

A bracket's candidates are drawn when all results before it are told. What BOHB models (Falkner et al., ICML
2018) is up to the sampler.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.tuning.registry import searches
from astrarium.tuning.search._brackets import brackets
from astrarium.tuning.search._rungs import Count, Eta, Iterations, halved
from astrarium.tuning.searching import Course, Pool, drawn


@searches.register("sync-bohb")
class SyncBohb:
    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        iterations: Iterations = 27
        eta: Eta = 3
        passes: Annotated[Count, msgspec.Meta(description="times that all brackets are run")] = 1

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def run(self, pool: Pool) -> Course:
        chosen = self.parameters
        for count, rungs in brackets(chosen.iterations, chosen.eta) * chosen.passes:
            yield from halved(pool, drawn(pool, count), rungs, chosen.eta)
