"""One finished run as columns: every request with its outcome, every batch with its fate.

Written by the Python books and by the native twin alike; all that reports read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from astrarium.core.arrivals import Arrivals
from astrarium.core.profiles import BySize, Profile, profile_by_length
from astrarium.core.quantities import Time
from astrarium.core.size_grid import SizeGrid
from astrarium.serving.contract import Setup
from astrarium.serving.ledger import Ledger

if TYPE_CHECKING:
    from astrarium.serving.scenario.schema import Scenario

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
    length: Ints  # of models that have lengths; 0 otherwise


@dataclass(frozen=True)
class Batches:
    """Batches are in the order of dispatch; `fate` holds `Fate`."""

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
    rounded: frozenset[str] = frozenset()  # models whose runs are as long as the longest of a bucket
    grids: Mapping[str, SizeGrid] = field(default_factory=dict)  # of models whose lengths number shapes


BATCHES: dict[str, type[np.signedinteger[Any]]] = {
    "model": np.int32,
    "gpu": np.int32,
    "size": np.int32,
    "dispatched": np.int64,
    "started": np.int64,
    "finished": np.int64,
    "fate": np.int8,
}


def recorded(
    scenario: Scenario,
    setup: Setup,
    requests: Requests,
    batches: Batches,
    reasons: Sequence[str],
    engine: str,
) -> ServingRecord:
    """Return the record of a scenario's run."""
    return ServingRecord(
        policy=scenario.policy.name,
        setup=setup,
        seed=scenario.seed,
        requests=requests,
        batches=batches,
        reasons=tuple(reasons),
        warmup=scenario.workload.warmup,
        duration=scenario.duration,
        engine=engine,
        rounded=frozenset(name for name, model in scenario.models.items() if _is_rounded(model.profile)),
        grids=_grids(scenario),
    )


def _is_rounded(profile: Profile) -> bool:
    by_length = profile_by_length(profile)
    return by_length is not None and by_length.rounded


def _grids(scenario: Scenario) -> dict[str, SizeGrid]:
    profiles = {name: profile_by_length(model.profile) for name, model in scenario.models.items()}
    return {name: known.grid for name, known in profiles.items() if isinstance(known, BySize)}


def batches_of(ledger: Ledger) -> Batches:
    columns = {name: _column(getattr(ledger, f"batch_{name}"), kind) for name, kind in BATCHES.items()}
    return Batches(**columns)


def requests_of(ledger: Ledger, arrivals: Arrivals, deadline: Ints) -> Requests:
    return Requests(
        arrival=arrivals.time,
        deadline=deadline,
        model=arrivals.model,
        application=arrivals.application,
        length=arrivals.length,
        outcome=_column(ledger.outcome, np.int8),
        reason=_column(ledger.reason, np.int32),
        done=_column(ledger.done, np.int64),
        batch=_column(ledger.batch, np.int64),
    )


def _column(values: Any, kind: type[np.signedinteger[Any]]) -> Ints:
    return np.frombuffer(values, dtype=kind) if len(values) else np.empty(0, dtype=kind)
