"""Synchronous BOHB: the rungs of Hyperband, and a sampler that learns between them.

A bracket's candidates are drawn when all results before it are told. What BOHB models (Falkner et al., ICML
2018) is up to the sampler.
"""

from __future__ import annotations

from astrarium.tuning.registry import searches
from astrarium.tuning.search._brackets import brackets
from astrarium.tuning.search._rungs import halved
from astrarium.tuning.search.hyperband import Hyperband
from astrarium.tuning.searching import Course, Pool, drawn


@searches.register("sync-bohb")
class SyncBohb(Hyperband):
    def run(self, pool: Pool) -> Course:
        chosen = self.parameters
        for count, rungs in brackets(chosen.iterations, chosen.eta) * chosen.passes:
            yield from halved(pool, drawn(pool, count), rungs, chosen.eta)
