"""Small finished runs for the tests of reports: simulated ones, and one made by hand with every fate."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from astrarium.core.arrivals import Arrivals, Ints
from astrarium.core.choice import parameters_of
from astrarium.core.engine import Engine
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.run.simulate import simulate
from astrarium.serving.contract import (
    GpuLeft,
    GpuSpec,
    ModelSpec,
    Network,
    Request,
    RequestArrived,
    Setup,
    latency_table,
)
from astrarium.serving.ledger import Fate, Ledger, Outcome
from astrarium.serving.policies import serving_policies
from astrarium.serving.record import ServingRecord, batches_of, requests_of
from astrarium.serving.state import ServingState
from astrarium.serving.world import ServingWorld, TableTruth

SLOS = (25 * MILLISECOND, 40 * MILLISECOND)


def setup(gpus: int = 3, response: Time = 0, idle_model: bool = False) -> Setup:
    lines = ((1.0, 5.0), (2.0, 6.0), (1.0, 1.0))[: 3 if idle_model else 2]
    models = []
    for index, (alpha, beta) in enumerate(lines):
        times = [round((alpha * size + beta) * MILLISECOND) for size in range(1, 18)]
        models.append(ModelSpec(index, f"model{index}", (*SLOS, SLOS[0])[index], latency_table(times)))
    return Setup(tuple(models), tuple(GpuSpec(i) for i in range(gpus)), Network(response=response))


def simulated(
    policy: str = "deferred",
    rate: float = 900.0,
    seconds: float = 2.0,
    slower: float = 1.0,
    gpu_leaves: Time | None = None,
    idle_model: bool = False,
    parameters: dict[str, Any] | None = None,
) -> ServingRecord:
    """*slower* than estimated makes late answers; a GPU that leaves makes failed ones."""
    setting = setup(idle_model=idle_model)
    factory = serving_policies.get(policy)
    chance = stream(7, "test")
    duration = round(seconds * SECOND)
    times = np.cumsum(chance.exponential(SECOND / rate, round(rate * seconds * 1.5))).astype(np.int64)
    times = times[times < duration]
    model = chance.integers(0, 2, len(times)).astype(np.int32)
    deadline = times + np.array(SLOS)[model]
    rows = zip(times.tolist(), model.tolist(), deadline.tolist(), strict=True)
    events: list[tuple[Time, Any]] = [
        (at, RequestArrived(Request(id_, which, at, due))) for id_, (at, which, due) in enumerate(rows)
    ]
    if gpu_leaves is not None:
        events = sorted([*events, (gpu_leaves, GpuLeft(0))], key=lambda pair: pair[0])
    state = ServingState(setting)
    truth = TableTruth([0] * 3, [[[round(t * slower) for t in m.latency[:-1]] for m in setting.models]])
    decider = factory(setting, msgspec.convert(parameters or {}, parameters_of(factory)))
    simulate(Engine(state, decider, validate=True), events, ServingWorld(setting, truth))
    return ServingRecord(
        policy=policy,
        setup=setting,
        seed=7,
        requests=requests_of(state.ledger, arrivals_at(times, model), deadline),
        batches=batches_of(state.ledger),
        reasons=tuple(state.ledger.reasons),
        warmup=duration // 4,
        duration=duration,
        wall_s=0.5,
    )


def arrivals_at(time: Ints, model: Ints) -> Arrivals:
    """Return arrivals of requests that are all alike."""
    none = np.zeros(len(time), np.int32)
    return Arrivals(time, model, none, np.zeros(len(time), np.int64), np.zeros(len(time), np.bool_), none)


def by_hand() -> ServingRecord:
    """Two GPUs over 100 ms, measured from 20 ms on; each preemption costs 5 ms.

    GPU 0: a batch from 10 to 30 (answers requests 0 and 1), one preempted at 50 after it began at 40, one
    from 55 to 75 (request 2 in time). GPU 1: a batch from 80 to 120 (request 3, late), and one behind it
    that fails at 130 (request 4). Request 5 is dropped.
    """
    ms = MILLISECOND
    ledger = Ledger()
    for request in range(6):
        ledger.open_request(request)
    for gpu, size, dispatched, fate, started, finished in (
        (0, 2, 10, Fate.FINISHED, 10, 30),
        (0, 1, 40, Fate.PREEMPTED, 40, 50),
        (0, 1, 50, Fate.FINISHED, 55, 75),
        (1, 1, 80, Fate.FINISHED, 80, 120),
        (1, 1, 81, Fate.FAILED, 0, 130),
    ):
        run = ledger.open_batch(0, gpu, size, dispatched * ms)
        ledger.end_batch(run, fate, started * ms, finished * ms)
    for request, outcome, reason, done, batch in (
        (0, Outcome.IN_TIME, "", 30, 0),
        (1, Outcome.IN_TIME, "", 30, 0),
        (2, Outcome.IN_TIME, "", 75, 2),
        (3, Outcome.LATE, "", 120, 3),
        (4, Outcome.FAILED, "GPU 1 left", 130, 4),
        (5, Outcome.DROPPED, "expired", 95, -1),
    ):
        ledger.end_request(request, outcome, reason, done * ms, batch)
    arrival = np.array([5, 20, 38, 70, 80, 90], np.int64) * ms
    model = ModelSpec(0, "model0", 40 * ms, latency_table([20 * ms, 20 * ms]))
    return ServingRecord(
        policy="by hand",
        setup=Setup((model,), (GpuSpec(0), GpuSpec(1)), preemption_cost=5 * ms),
        seed=0,
        requests=requests_of(ledger, arrivals_at(arrival, np.zeros(6, np.int32)), arrival + 40 * ms),
        batches=batches_of(ledger),
        reasons=tuple(ledger.reasons),
        warmup=20 * ms,
        duration=100 * ms,
    )
