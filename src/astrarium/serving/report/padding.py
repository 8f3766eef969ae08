"""What part of the work was padding: a run computes its length, rounded up or not, for all of its members."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from astrarium.core.size_grid import SizeGrid
from astrarium.serving.contract import Lengths, ModelSpec
from astrarium.serving.ledger import Fate
from astrarium.serving.record import Ints, ServingRecord


class Work(NamedTuple):
    """Of the requests that ran: the sum of their lengths, and of the lengths that were computed for them."""

    asked: int = 0
    computed: int = 0

    @property
    def padding(self) -> float | None:
        return 1 - self.asked / self.computed if self.computed else None

    def plus(self, other: Work) -> Work:
        return Work(self.asked + other.asked, self.computed + other.computed)


def work(record: ServingRecord, measured: Ints) -> list[Work]:
    """Return the work of every model, in batches that answered a measured request; none without lengths.

    Items of several open dimensions are as long as they have elements along these.
    """
    batches = record.batches
    requests = record.requests
    counts = np.zeros(len(batches.fate) + 1, bool)  # the last one is that of batch -1
    counts[requests.batch[measured]] = True
    counts[:-1] &= batches.fate == Fate.FINISHED
    counts[-1] = False
    ran = np.flatnonzero(counts[requests.batch])
    model = requests.model[ran]
    return [work_of(record, ran[model == spec.index], spec) for spec in record.setup.models]


def work_of(record: ServingRecord, ran: Ints, spec: ModelSpec) -> Work:
    """Return the work of requests to one model that ran."""
    return Work() if spec.lengths is None else _work(record, ran, spec, spec.lengths)


def extents(record: ServingRecord) -> Ints:
    """Return how long each request is: by its elements, where its length is the number of a shape."""
    extent: Ints = record.requests.length.astype(np.int64)
    for spec in record.setup.models:
        if (grid := record.grids.get(spec.name)) is not None:
            mine = record.requests.model == spec.index
            extent[mine] = elements(extent[mine], grid)
    return extent


def elements(numbers: Ints, grid: SizeGrid) -> Ints:
    """Return how many elements the shapes with these numbers have."""
    distinct, places = np.unique(numbers, return_inverse=True)
    counts: Ints = np.array([prod(grid.shape(number)) for number in distinct.tolist()], np.int64)[places]
    return counts


def _work(record: ServingRecord, ran: Ints, spec: ModelSpec, lengths: Lengths) -> Work:
    length = record.requests.length[ran].astype(np.int64)
    bucket = np.searchsorted(lengths.longest, length)
    alike = {"padded": np.zeros_like(length), "bucket": bucket, "length": length}[lengths.together]
    own = extents(record)[ran]
    grid = record.grids.get(spec.name)
    longest_of = lengths.longest if grid is None else [prod(size) for size in grid.sizes]
    most = np.array(longest_of)[bucket] if spec.name in record.rounded else own
    runs = np.stack([record.requests.batch[ran], alike])
    _, run, sizes = np.unique(runs, axis=1, return_inverse=True, return_counts=True)
    longest = np.zeros(len(sizes), np.int64)
    np.maximum.at(longest, run.ravel(), most)
    return Work(int(own.sum()), int((sizes * longest).sum()))
