"""Two ways to try a serving policy: event by event, and on Poisson arrivals. Shared by the rivals' tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from astrarium.core.choice import parameters_of
from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.run.simulate import simulate
from astrarium.serving.contract import Action, BatchFinished, Event, ModelSpec, Request, RequestArrived, Setup
from astrarium.serving.ledger import Outcome
from astrarium.serving.policies import serving_policies
from astrarium.serving.state import ServingState
from astrarium.serving.world import ServingWorld, TableTruth
from astrarium.testing.serving.cases import cluster, linear_model

MS = MILLISECOND


def ms(value: float) -> Time:
    return round(value * MS)


def resnet50() -> ModelSpec:
    """Symphony's Table 2, as are the goodputs that the tests compare with."""
    return linear_model(1_053_000, 5_072_000, 25 * MS, max_batch=18, name="resnet50")


def inception_resnet() -> ModelSpec:
    return linear_model(5_090_000, 18_368_000, 70 * MS, max_batch=10, name="inception_resnet")


class SteppedPolicy:
    """A policy with its books, stepped by hand: events go in, and its actions other than timers come out."""

    def __init__(self, name: str, setup: Setup, **parameters: Any) -> None:
        factory = serving_policies.get(name)
        self.setup = setup
        self.state = ServingState(setup)
        self.policy: Any = factory(setup, parameters_of(factory)(**parameters))
        self.engine: Engine[Any, Any, Any] = Engine(self.state, self.policy, validate=True)
        self.timers: dict[str, Time] = {}

    def hear(self, at: float, *events: Event) -> list[Action]:
        actions = self.engine.step(ms(at), events)
        self.timers.update({action.name: action.at for action in actions if isinstance(action, SetTimer)})
        return [action for action in actions if not isinstance(action, SetTimer)]

    def arrive(self, at: float, *requests: int, model: int = 0, slo: float | None = None) -> list[Action]:
        return self.hear(at, *self.requests(at, requests, model, slo))

    def requests(
        self, at: float, ids: Iterable[int], model: int = 0, slo: float | None = None
    ) -> list[Event]:
        allowed = self.setup.models[model].slo if slo is None else ms(slo)
        return [RequestArrived(Request(id_, model, ms(at), ms(at) + allowed)) for id_ in ids]

    def finish(self, at: float, gpu: int, started: float = 0) -> list[Action]:
        """The batch that the GPU runs has ended."""
        return self.hear(at, BatchFinished(gpu, self.state.gpus[gpu].batches[0].run, ms(started)))

    def wake(self, name: str) -> list[Action]:
        return self.hear(self.timers[name] / MS, TimerFired(name))


def simulated(
    name: str, setup: Setup, rate: float, seconds: float, seed: int = 1, **parameters: Any
) -> ServingState:
    """Poisson arrivals, all models alike; the books at the end."""
    factory = serving_policies.get(name)
    chance = stream(seed, "arrivals")
    number = int(rate * seconds)
    times = np.cumsum(chance.exponential(SECOND / rate, number)).astype(np.int64).tolist()
    models = chance.integers(len(setup.models), size=number).tolist()
    arrivals = (
        (at, RequestArrived(Request(id_, model, at, at + setup.models[model].slo)))
        for id_, (at, model) in enumerate(zip(times, models, strict=True))
    )
    state = ServingState(setup)
    engine: Engine[Any, Any, Any] = Engine(state, factory(setup, parameters_of(factory)(**parameters)))
    simulate(engine, arrivals, ServingWorld(setup, TableTruth.of(setup)))
    return state


def bad_rate(
    name: str, model: ModelSpec, rate: float, seconds: float, gpus: int = 8, **parameters: Any
) -> float:
    """The share of requests not answered in time, less the first fifth."""
    ledger = simulated(name, cluster([model], gpus), rate, seconds, **parameters).ledger
    outcomes = np.frombuffer(ledger.outcome, np.int8)
    return float((outcomes[len(outcomes) // 5 :] != Outcome.IN_TIME).mean())
