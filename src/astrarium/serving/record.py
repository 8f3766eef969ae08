"""One finished run as columns: every request with its outcome, every batch with its fate.

Written by the Python books and by the native twin alike; all that reports read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from astrarium.core.units import Time
from astrarium.serving.contract import Setup
from astrarium.serving.state import Ledger

Ints = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Requests:
    """`done` is when the client had its answer, or when the request was dropped or failed; `batch` is -1
    for a request that never ran. `outcome` holds `Outcome`, `reason` indexes `reasons`."""

    arrival: Ints
    deadline: Ints
    model: Ints
    application: Ints
    outcome: Ints
    reason: Ints
    done: Ints
    batch: Ints


@dataclass(frozen=True)
class Batches:
    """In the order of dispatch; `fate` holds `Fate`."""

    model: Ints
    gpu: Ints
    size: Ints
    dispatched: Ints
    started: Ints
    finished: Ints
    fate: Ints


@dataclass(frozen=True)
class ServingRecord:
    policy: str
    setup: Setup
    seed: int
    requests: Requests
    batches: Batches
    reasons: Sequence[str]
    warmup: Time  # requests that arrive before are served but not measured
    duration: Time  # arrivals stop here
    wall_s: float = 0.0
    cpu_s: float = 0.0
    engine: str = "python"


def batches_of(ledger: Ledger) -> Batches:
    return Batches(
        model=_column(ledger.batch_model, np.int32),
        gpu=_column(ledger.batch_gpu, np.int32),
        size=_column(ledger.batch_size, np.int32),
        dispatched=_column(ledger.batch_dispatched, np.int64),
        started=_column(ledger.batch_started, np.int64),
        finished=_column(ledger.batch_finished, np.int64),
        fate=_column(ledger.batch_fate, np.int8),
    )


def requests_of(ledger: Ledger, arrival: Ints, deadline: Ints, model: Ints, application: Ints) -> Requests:
    return Requests(
        arrival=arrival,
        deadline=deadline,
        model=model,
        application=application,
        outcome=_column(ledger.outcome, np.int8),
        reason=_column(ledger.reason, np.int32),
        done=_column(ledger.done, np.int64),
        batch=_column(ledger.batch, np.int64),
    )


def _column(values: Any, kind: type[np.signedinteger[Any]]) -> Ints:
    return np.frombuffer(values, dtype=kind) if len(values) else np.empty(0, dtype=kind)
