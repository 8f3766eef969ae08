"""How many calls of a model may be open: clients in virtual time, through the scheduler that serves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

import pytest

import astrarium._simulator as _simulator
import astrarium._testing as _testing
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.serving.scenario import build, parse
from astrarium.serving.twin.native import native_setup

WAY = MILLISECOND // 10  # from a client to the server, and back
DELAYS = 0.2  # milliseconds of the network between scheduler and GPU, and of the answer


@dataclass(frozen=True, kw_only=True)
class Served:
    """A model with an objective in milliseconds."""

    max_batch: int
    slo: float
    gpus: int = 1
    lengths: tuple[int, ...] = ()  # of calls, one after the other

    def profile(self) -> dict[str, Any]:
        raise NotImplementedError

    def busy(self, requests: float) -> float:
        """Return how many milliseconds one GPU takes for so many requests."""
        raise NotImplementedError

    def cycle(self, clients: int) -> float:
        """Return how long it takes to answer each of so many clients once, in milliseconds."""
        return self.busy(math.ceil(clients / self.gpus)) + DELAYS + WAY / MILLISECOND

    @property
    def capacity(self) -> float:
        """Return how many requests a second the GPUs can answer, in the best batches."""
        many = 10_000 * self.max_batch
        return 1000 * self.gpus * many / self.busy(many)

    def serve(self, phases: Sequence[tuple[float, int, float]], slower: float = 1.0) -> list[Outcome]:
        """Serve clients: until how many seconds, how many in closed loops, how many calls a second beside."""
        scenario = parse(
            {
                "cluster": {"gpus": self.gpus},
                "network": {"control": f"{DELAYS / 2}ms", "response": f"{DELAYS / 2}ms"},
                "models": {
                    "m": {
                        "profile": self.profile(),
                        "slo": f"{self.slo}ms",
                        "max_batch": self.max_batch,
                    }
                },
                "policy": {"name": "astrarium"},
                "workload": self._workload(),
            }
        )
        setup = build.setup(scenario)
        policy: Any = build.policy(scenario, setup)
        parameters = _simulator.Parameters(policy.native, *policy.native_parameters())
        until = [(round(end * SECOND), clients, rate) for end, clients, rate in phases]
        outcomes = _testing.serve_clients(
            native_setup(_simulator, setup), parameters, until, WAY, slower, self.lengths
        )
        return [Outcome(*outcome) for outcome in outcomes]

    def _workload(self) -> dict[str, Any]:
        lengths = {"lengths": {"constant": self.lengths[0]}} if self.lengths else {}
        return {"arrivals": "poisson", "rate": "1/s", "duration": "1s", **lengths}


@dataclass(frozen=True, kw_only=True)
class Alike(Served):
    """Batches of k take alpha k + beta milliseconds."""

    alpha: float
    beta: float

    def profile(self) -> dict[str, Any]:
        return {"alpha": f"{self.alpha}ms", "beta": f"{self.beta}ms"}

    def busy(self, requests: float) -> float:
        full, rest = divmod(requests, self.max_batch)
        return full * self._takes(self.max_batch) + (self._takes(rest) if rest else 0)

    def _takes(self, size: float) -> float:
        return self.alpha * size + self.beta


@dataclass(frozen=True, kw_only=True)
class Texts(Served):
    """Batches take *times* milliseconds by the length that all are padded to: alone, and the largest."""

    times: Mapping[int, tuple[float, float]]

    def profile(self) -> dict[str, Any]:
        lengths = {
            length: {1: f"{alone}ms", self.max_batch: f"{largest}ms"}
            for length, (alone, largest) in self.times.items()
        }
        return {"lengths": lengths, "rounded": True}

    def busy(self, requests: float) -> float:
        """Return the time of batches of like lengths."""
        counts = Counter(next(length for length in self.times if one <= length) for one in self.lengths)
        return sum(self._takes(length, requests * n / len(self.lengths)) for length, n in counts.items())

    def _takes(self, length: int, requests: float) -> float:
        alone, largest = self.times[length]
        full, rest = divmod(math.ceil(requests), self.max_batch)
        part = alone + (largest - alone) * (rest - 1) / (self.max_batch - 1) if rest else 0
        return full * largest + part


def shuffled(weights: Mapping[int, int]) -> tuple[int, ...]:
    lengths = [length for length, weight in weights.items() for _ in range(weight)]
    Random(1).shuffle(lengths)
    return tuple(lengths)


class Outcome(NamedTuple):
    """What became of the calls of a phase."""

    in_time: int
    late: int
    dropped: int
    refused: int


LENGTHS = {16: 8, 24: 10, 32: 12, 48: 12, 64: 12, 96: 12, 128: 12, 192: 10, 256: 6, 384: 4, 512: 2}
TIMES = {16: (0.49, 0.83), 64: (0.5, 1.9), 128: (0.52, 3.4), 256: (0.56, 6.6), 512: (0.62, 12.9)}
TEXTS = Texts(times=TIMES, max_batch=64, slo=50, lengths=shuffled(LENGTHS))
VISION = Alike(alpha=0.0935, beta=1.0, max_batch=64, slo=50)
MODELS = {
    "vision": VISION,
    "vision, two GPUs": Alike(alpha=0.0935, beta=1.0, max_batch=64, slo=50, gpus=2),
    "vision, tight": Alike(alpha=0.0935, beta=1.0, max_batch=64, slo=25),
    "vision, loose": Alike(alpha=0.0935, beta=1.0, max_batch=64, slo=100),
    "light": Alike(alpha=0.05, beta=0.3, max_batch=32, slo=50),
    "heavy": Alike(alpha=0.5, beta=4.0, max_batch=16, slo=50),
    "batches bring nothing": Alike(alpha=1.0, beta=0.0, max_batch=4, slo=50),
    "batches longer than a stretch": Alike(alpha=5.0, beta=120.0, max_batch=16, slo=1000),
    "texts": TEXTS,
    "texts, two GPUs": replace(TEXTS, gpus=2),
    "texts, mostly the longest": replace(TEXTS, lengths=shuffled({16: 1, 512: 9})),
    "texts, mostly the shortest": replace(TEXTS, lengths=shuffled({16: 99, 512: 1})),
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


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not model.lengths])
@pytest.mark.parametrize("times", [2, 3])
def test_in_overload_what_the_gpus_can_answer_is_kept(name: str, times: float) -> None:
    """The objective's worth of calls that are open at the end of the measured time have not been answered."""
    model = MODELS[name]
    seconds = 40 * model.slo / 1000
    _, outcome = model.serve([(seconds, 0, times * model.capacity), (2 * seconds, 0, times * model.capacity)])
    assert outcome.in_time >= (0.98 - 1 / 40) * model.capacity * seconds
    assert outcome.late + outcome.dropped <= 0.05 * outcome.in_time


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.lengths])
@pytest.mark.parametrize("times", [2, 3])
def test_in_overload_texts_are_answered_in_batches_of_like_lengths(name: str, times: float) -> None:
    """What GPUs can answer is counted in full batches of one length each, which nobody waits for."""
    model = MODELS[name]
    seconds = 40 * model.slo / 1000
    _, outcome = model.serve([(seconds, 0, times * model.capacity), (2 * seconds, 0, times * model.capacity)])
    assert outcome.in_time >= 0.87 * model.capacity * seconds
    assert outcome.late == 0


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
