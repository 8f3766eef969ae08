"""Where theory has an exact answer, the simulator must give it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

import pytest

from astrarium.core.engine import Engine
from astrarium.core.quantities import MICROSECOND, MILLISECOND, SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.run.simulate import simulate
from astrarium.serving.contract import Action, Dispatch, Event, Request, RequestArrived, Setup
from astrarium.serving.ledger import Outcome
from astrarium.serving.policies.window import Deferred
from astrarium.serving.state import Batch, ServingState
from astrarium.serving.world import ServingWorld, TableTruth, Truth
from astrarium.testing.serving.cases import cluster, linear_model

DAY = 86_400 * SECOND


class Fifo:
    """One request at a time, first come first served, to the first idle GPU."""

    def __init__(self) -> None:
        self.queue: deque[int] = deque()

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        self.queue.extend(event.request.id for event in events if isinstance(event, RequestArrived))
        for gpu in state.gpus:
            if gpu.idle and self.queue:
                yield Dispatch(gpu.id, (self.queue.popleft(),))


class DrawnTruth:
    """Every request takes a time of its own."""

    def __init__(self, times: Sequence[Time]) -> None:
        self.times = times

    def execution(self, batch: Batch) -> Time:
        return self.times[batch.requests[0].id]


def poisson(rate: float, requests: int, seed: int) -> list[Time]:
    gaps = stream(seed, "arrivals").exponential(SECOND / rate, requests)
    return [round(time) for time in accumulate(gaps.tolist())]


def mean_time_in_system(setup: Setup, arrivals: list[Time], truth: Truth) -> float:
    """Seconds, over all but the first tenth (the queue starts empty)."""
    state = ServingState(setup)
    events = [(at, RequestArrived(Request(id_, 0, at, at + DAY))) for id_, at in enumerate(arrivals)]
    simulate(Engine(state, Fifo()), events, ServingWorld(setup, truth))
    spent = [done - at for done, at in zip(state.ledger.done, arrivals, strict=True)][len(arrivals) // 10 :]
    return sum(spent) / len(spent) / SECOND


@pytest.mark.parametrize(("utilization", "tolerance"), [(0.3, 0.01), (0.6, 0.02), (0.8, 0.04)])
def test_one_server_with_fixed_times_is_md1(utilization: float, tolerance: float) -> None:
    """Mean time in system = D + lambda D^2 / (2 (1 - lambda D)); 60 000 requests, tolerance as stated."""
    service = 0.4
    rate = utilization / service
    expected = service + rate * service**2 / (2 * (1 - utilization))
    setup = cluster([linear_model(0, round(service * SECOND), DAY, max_batch=1)], gpus=1)
    measured = mean_time_in_system(setup, poisson(rate, 60_000, seed=3), TableTruth.of(setup))
    assert measured == pytest.approx(expected, rel=tolerance)


def test_two_models_apart_and_merged_give_alpaserves_numbers() -> None:
    """0.4 s at 1.5/s is 0.70 s in the system; two stages of 0.2 s at 3/s are 0.55 s (one stage: 0.35 s)."""
    apart = cluster([linear_model(0, round(0.4 * SECOND), DAY, max_batch=1)], gpus=1)
    stage = cluster([linear_model(0, round(0.2 * SECOND), DAY, max_batch=1)], gpus=1)
    first = mean_time_in_system(apart, poisson(1.5, 60_000, seed=1), TableTruth.of(apart))
    second = mean_time_in_system(stage, poisson(3.0, 60_000, seed=1), TableTruth.of(stage))
    assert first == pytest.approx(0.70, rel=0.02)
    assert second + 0.2 == pytest.approx(0.55, rel=0.02)  # in the second stage nobody waits


def test_one_server_with_exponential_times_is_mm1() -> None:
    """Mean time in system = 1 / (mu - lambda), within 4 % over 80 000 requests."""
    rate = 6.0
    mu = 10.0
    requests = 80_000
    setup = cluster([linear_model(0, round(SECOND / mu), DAY, max_batch=1)], gpus=1)
    times = [round(time) for time in stream(5, "service").exponential(SECOND / mu, requests).tolist()]
    measured = mean_time_in_system(setup, poisson(rate, requests, seed=5), DrawnTruth(times))
    assert measured == pytest.approx(1 / (mu - rate), rel=0.04)


def test_many_servers_with_exponential_times_are_mmc() -> None:
    """Erlang C for three servers at 70 % (0.155 s in the system), within 4 % over 80 000 requests."""
    servers = 3
    rate = 21.0
    mu = 10.0
    requests = 80_000
    setup = cluster([linear_model(0, round(SECOND / mu), DAY, max_batch=1)], gpus=servers)
    times = [round(time) for time in stream(7, "service").exponential(SECOND / mu, requests).tolist()]
    measured = mean_time_in_system(setup, poisson(rate, requests, seed=7), DrawnTruth(times))
    assert measured == pytest.approx(1 / mu + erlang_c(servers, rate / mu) / (servers * mu - rate), rel=0.04)


def erlang_c(servers: int, load: float) -> float:
    """The chance to wait."""
    idle = 0.0
    term = 1.0
    for busy in range(servers):
        idle += term
        term *= load / (busy + 1)
    full = term * servers / (servers - load)
    return full / (idle + full)


def uniform_misses(alpha: float, beta: float, slo: int, rate: float, seconds: int, gpus: int = 8) -> int:
    """How many of the requests at a constant gap are not answered in time by deferred batching."""
    model = linear_model(
        round(alpha * MILLISECOND), round(beta * MILLISECOND), slo * MILLISECOND, max_batch=128
    )
    setup = cluster([model], gpus)
    state = ServingState(setup)
    times = [round(number * SECOND / rate) for number in range(round(rate * seconds))]
    events = ((at, RequestArrived(Request(id_, 0, at, at + model.slo))) for id_, at in enumerate(times))
    simulate(
        Engine(state, Deferred(setup, Deferred.Parameters())),
        events,
        ServingWorld(setup, TableTruth.of(setup)),
    )
    return sum(outcome != Outcome.IN_TIME for outcome in state.ledger.outcome)


RESNET50 = (1.053, 5.072, 25)
INCEPTION = (5.090, 18.368, 70)


def staggered_optimum(alpha: float, beta: float, slo: int, gpus: int = 8) -> float:
    """The rate of the largest b with (1 + 1/N) l(b) <= SLO: N b / l(b)."""
    size = max(b for b in range(1, 129) if (1 + 1 / gpus) * (alpha * b + beta) <= slo)
    return gpus * size / (alpha * size + beta) * 1000


@pytest.mark.parametrize(("row", "rate"), [(RESNET50, 5839), (INCEPTION, 1083)])
def test_the_staggered_optimum_by_its_formula(row: tuple[float, float, int], rate: float) -> None:
    assert staggered_optimum(*row) == pytest.approx(rate, abs=1)


@pytest.mark.parametrize(("row", "rate"), [(RESNET50, 5839), (INCEPTION, 1080)])
def test_deferred_batching_serves_uniform_arrivals_at_the_staggered_optimum(
    row: tuple[float, float, int], rate: float
) -> None:
    assert uniform_misses(*row, rate, seconds=6) == 0


@pytest.mark.parametrize(("row", "rate"), [(RESNET50, 5900), (INCEPTION, 1100)])
def test_beyond_the_staggered_optimum_even_uniform_arrivals_miss(
    row: tuple[float, float, int], rate: float
) -> None:
    assert uniform_misses(*row, rate, seconds=6) > 0.01 * rate * 6


def test_the_simulator_counts_in_nanoseconds() -> None:
    """Back to back at a time that is no whole number of microseconds: nobody ever waits."""
    service = 123_457  # ns
    setup = cluster([linear_model(0, service, DAY, max_batch=1)], gpus=1)
    arrivals = [number * service for number in range(5_000)]
    assert mean_time_in_system(setup, arrivals, TableTruth.of(setup)) * SECOND == service
    assert service % MICROSECOND != 0
