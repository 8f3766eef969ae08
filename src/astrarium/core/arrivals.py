"""Arrivals are what a workload comes down to: columns, sorted by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Arrivals:
    """`work` is the true execution time of each request run alone (dynamic models; 0 otherwise): the
    simulated world's secret. A policy is shown it of `profiled` requests only, after they have finished."""

    time: Ints  # int64 nanoseconds, sorted
    model: Ints  # int32 index into the setup's models
    application: Ints  # int32 index into the model's applications
    work: Ints  # int64 nanoseconds
    profiled: Bools
    length: Ints  # int32, of models that have lengths; 0 otherwise

    def __len__(self) -> int:
        return len(self.time)
