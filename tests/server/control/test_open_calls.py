"""How many calls of a model may be open: clients in virtual time, through the scheduler that serves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

import astrarium._simulator as _simulator
import astrarium._testing as _testing
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.serving.scenario import build, parse
from astrarium.serving.twin.native import native_setup

WAY = MILLISECOND // 10  # from a client to the server, and back
DELAYS = 0.2  # milliseconds of the network between scheduler and GPU, and of the answer


@dataclass(frozen=True)
class Served:
    """A model with an objective in milliseconds; batches of k take alpha k + beta milliseconds."""

    alpha: float
    beta: float
    max_batch: int
    slo: float
    gpus: int = 1

    def takes(self, size: int) -> float:
        return self.alpha * size + self.beta

    def cycle(self, clients: int) -> float:
        """Return how long it takes to answer each of so many clients once, in milliseconds."""
        full, rest = divmod(math.ceil(clients / self.gpus), self.max_batch)
        batches = full * self.takes(self.max_batch) + (self.takes(rest) if rest else 0)
        return batches + DELAYS + WAY / MILLISECOND

    @property
    def capacity(self) -> float:
        """Return how many requests a second the GPUs can answer, in the best batches."""
        return 1000 * self.gpus * self.max_batch / self.takes(self.max_batch)

    def serve(self, phases: Sequence[tuple[float, int, float]], slower: float = 1.0) -> list[Outcome]:
        """Serve clients: until how many seconds, how many in closed loops, how many calls a second beside."""
        scenario = parse(
            {
                "cluster": {"gpus": self.gpus},
                "network": {"control": f"{DELAYS / 2}ms", "response": f"{DELAYS / 2}ms"},
                "models": {
                    "m": {
                        "profile": {"alpha": f"{self.alpha}ms", "beta": f"{self.beta}ms"},
                        "slo": f"{self.slo}ms",
                        "max_batch": self.max_batch,
                    }
                },
                "policy": {"name": "astrarium"},
                "workload": {"arrivals": "poisson", "rate": "1/s", "duration": "1s"},
            }
        )
        setup = build.setup(scenario)
        policy: Any = build.policy(scenario, setup)
        parameters = _simulator.Parameters(policy.native, *policy.native_parameters())
        until = [(round(end * SECOND), clients, rate) for end, clients, rate in phases]
        outcomes = _testing.serve_clients(native_setup(_simulator, setup), parameters, until, WAY, slower)
        return [Outcome(*outcome) for outcome in outcomes]


class Outcome(NamedTuple):
    """What became of the calls of a phase."""

    in_time: int
    late: int
    dropped: int
    refused: int


VISION = Served(alpha=0.0935, beta=1.0, max_batch=64, slo=50)
MODELS = {
    "vision": VISION,
    "vision, two GPUs": Served(alpha=0.0935, beta=1.0, max_batch=64, slo=50, gpus=2),
    "vision, tight": Served(alpha=0.0935, beta=1.0, max_batch=64, slo=25),
    "vision, loose": Served(alpha=0.0935, beta=1.0, max_batch=64, slo=100),
    "light": Served(alpha=0.05, beta=0.3, max_batch=32, slo=50),
    "heavy": Served(alpha=0.5, beta=4.0, max_batch=16, slo=50),
    "batches bring nothing": Served(alpha=1.0, beta=0.0, max_batch=4, slo=50),
    "batches longer than a stretch": Served(alpha=5.0, beta=120.0, max_batch=16, slo=1000),
}
CLIENTS = (1, 2, 3, 8, 16, 17, 32, 33, 64, 65, 100, 128, 129, 200, 256, 300, 400, 512, 700, 1024)
by_model = pytest.mark.parametrize("name", MODELS)


def fitting(model: Served, slower: float = 1.0) -> list[int]:
    """Return the numbers of clients whose cycle fits into 0.8 of the objective."""
    return [clients for clients in CLIENTS if slower * model.cycle(clients) <= 0.8 * model.slo]


@by_model
def test_a_closed_loop_that_fits_sees_no_refusal(name: str) -> None:
    model = MODELS[name]
    for clients in fitting(model):
        (outcome,) = model.serve([(1.0, clients, 0.0)])
        assert outcome == (outcome.in_time, 0, 0, 0), clients
        assert outcome.in_time >= clients


@by_model
def test_no_refusal_after_idleness_after_a_step_and_after_overload(name: str) -> None:
    model = MODELS[name]
    most = fitting(model)[-1]
    phases = [
        (1, 1, 0),
        (2, most, 0),
        (3, 0, 0),
        (4, most, 0),
        (5, 0, 3 * model.capacity),
        (7, 0, 0),
        (8, most, 0),
    ]
    outcomes = model.serve(phases)
    assert [
        outcome.refused + outcome.dropped + outcome.late for outcome in outcomes if outcome is not outcomes[4]
    ] == [0] * 6
    assert outcomes[4].refused > outcomes[4].in_time


@by_model
@pytest.mark.parametrize("times", [2, 3])
def test_in_overload_what_the_gpus_can_answer_is_kept(name: str, times: float) -> None:
    """The objective's worth of calls that are open at the end of the measured time have not been answered."""
    model = MODELS[name]
    seconds = 40 * model.slo / 1000
    _, outcome = model.serve([(seconds, 0, times * model.capacity), (2 * seconds, 0, times * model.capacity)])
    assert outcome.in_time >= (0.98 - 1 / 40) * model.capacity * seconds
    assert outcome.late + outcome.dropped <= 0.05 * outcome.in_time


def test_a_gpu_that_is_slower_than_its_profile_is_measured() -> None:
    """The limit follows what is really answered, in closed loops and in overload."""
    capacity = VISION.capacity / 1.5
    for clients in fitting(VISION, slower=1.5):
        (outcome,) = VISION.serve([(1.0, clients, 0.0)], slower=1.5)
        assert outcome.refused == 0, clients
    _, outcome = VISION.serve([(2, 0, 2 * capacity), (4, 0, 2 * capacity)], slower=1.5)
    assert outcome.in_time >= 0.93 * capacity * 2


def test_a_gpu_that_is_faster_than_its_profile_is_believed_after_one_stretch() -> None:
    clients = fitting(VISION, slower=0.7)[-1]
    first, then = VISION.serve([(0.5, clients, 0.0), (2.0, clients, 0.0)], slower=0.7)
    assert first.in_time > 0
    assert then == (then.in_time, 0, 0, 0)
