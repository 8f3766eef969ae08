"""The scheduler on several cores: model threads and one rank thread that only exchange messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

native = pytest.importorskip("astrarium._native")

MS = 1_000_000
IN_TIME, DROPPED = 1, 3
EXPIRED = native.reasons().index("expired")
RESNET = (1_053_000, 5_072_000, 25 * MS)
SMALL = (200_000, 3_000_000, 12 * MS)
NO_DELAYS, DELAYS = (0, 0, 0), (100_000, 20_000, 500_000)


def table(alpha: int, beta: int, slo: int) -> list[int]:
    return [0, *(alpha * size + beta for size in range(1, 1 + (slo - beta) // alpha)), 1 << 60]


class Case:
    """Poisson arrivals, models equally popular."""

    def __init__(self, profiles: list[tuple[int, int, int]], gpus: int, rate: float, **options: Any) -> None:
        random = np.random.default_rng(options.get("seed", 1))
        count = options.get("requests", 6_000)
        self.gpus, self.profiles = gpus, profiles
        self.network = options.get("network", NO_DELAYS)
        self.tables = [table(*profile) for profile in profiles]
        self.time = np.cumsum(random.exponential(1e9 / rate, count)).astype(np.int64)
        self.model = random.integers(0, len(profiles), count).astype(np.int32)
        self.deadline = self.time + np.array([slo for _, _, slo in profiles])[self.model]
        models = [native.Model(slo, row) for (_, _, slo), row in zip(profiles, self.tables, strict=True)]
        self.setup = native.Setup(models, gpus, native.Network(*self.network), 0)

    def schedule(
        self, threads: int = 2, quantum: int = 50_000, lead: int = 3, **options: Any
    ) -> dict[str, Any]:
        columns = (self.time, self.deadline, self.model)
        fcfs = options.pop("fcfs", False)
        found: dict[str, Any] = native.schedule_multicore(
            self.setup, fcfs, *columns, threads, quantum, lead, **options
        )
        return found

    def simulate(self) -> dict[str, Any]:
        """The same on the one-threaded scheduler with its simulated GPUs."""
        count = len(self.profiles)
        truth = native.Truth([0] * self.gpus, [self.tables], [0] * count, [0] * count, [0.0] * count)
        deferred = native.Parameters("deferred", {"fcfs": 0}, {}, {})
        columns = (self.time, self.deadline, self.model, np.zeros(0, np.int64))
        found: dict[str, Any] = native.simulate_serving(self.setup, truth, deferred, *columns, 0, [])
        return found


CASES = {
    "one model": Case([RESNET], 8, 4800),
    "many models": Case([RESNET, SMALL] * 20, 64, 40_000),
    "more models than work": Case([SMALL] * 300, 100, 30_000),
    "overload": Case([RESNET] * 4 + [SMALL] * 4, 8, 12_000),
    "delays": Case([RESNET, SMALL] * 4, 16, 9_000, network=DELAYS),
    "bursts": Case([RESNET, SMALL] * 4, 16, 9_000, seed=7),
}
_bursts = CASES["bursts"]
_bursts.deadline -= _bursts.time % (5 * MS)
_bursts.time -= _bursts.time % (5 * MS)


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def run(case: Case) -> dict[str, Any]:
    return case.schedule(threads=min(2, len(case.profiles)))


def test_every_request_is_dispatched_or_dropped_once(case: Case, run: dict[str, Any]) -> None:
    dispatched, dropped = run["outcome"] == IN_TIME, run["outcome"] == DROPPED
    assert np.all(dispatched ^ dropped)
    assert np.all(run["batch"][dropped] == -1)
    assert np.all(run["reason"][dropped] > 0)
    batch = run["batch"][dispatched]
    sizes = np.bincount(batch, minlength=len(run["batch_size"]))
    np.testing.assert_array_equal(sizes, run["batch_size"])
    np.testing.assert_array_equal(case.model[dispatched], run["batch_model"][batch])
    assert sizes.sum() + dropped.sum() == len(case.time)
    assert dispatched.sum() > len(case.time) / 3


def test_no_gpu_runs_two_batches_at_once(case: Case, run: dict[str, Any]) -> None:
    order = np.lexsort((run["batch_started"], run["batch_gpu"]))
    gpu, started, finished = (run[f"batch_{name}"][order] for name in ("gpu", "started", "finished"))
    same = gpu[1:] == gpu[:-1]
    assert np.all(started[1:][same] >= finished[:-1][same])
    assert np.all((gpu >= 0) & (gpu < case.gpus))


def test_batches_take_what_the_profile_says(case: Case, run: dict[str, Any]) -> None:
    sizes, models = run["batch_size"], run["batch_model"]
    latency = [case.tables[model][size] for model, size in zip(models, sizes, strict=True)]
    np.testing.assert_array_equal(run["batch_finished"] - run["batch_started"], latency)
    control, data, _ = case.network
    assert np.all(run["batch_started"] >= run["batch_dispatched"] + control + data * sizes)


def test_deadlines_are_kept_and_no_request_runs_before_it_arrives(case: Case, run: dict[str, Any]) -> None:
    dispatched = run["batch"] >= 0
    batch = run["batch"][dispatched]
    answered = run["batch_finished"][batch] + case.network[2]
    np.testing.assert_array_equal(run["done"][dispatched], answered)
    assert np.all(answered <= case.deadline[dispatched])
    assert np.all(run["batch_dispatched"][batch] >= case.time[dispatched])


def test_expired_requests_were_past_saving(case: Case, run: dict[str, Any]) -> None:
    expired = run["reason"] == EXPIRED
    alone = np.array([row[1] for row in case.tables])[case.model[expired]] + sum(case.network)
    assert np.all(run["done"][expired] + alone > case.deadline[expired])


@pytest.mark.parametrize("threads", [1, 3, 5, 8])
def test_the_number_of_threads_changes_nothing(threads: int) -> None:
    case = CASES["many models"]
    assert_same_decisions(case.schedule(threads=threads), case.schedule(threads=2, alone=True))


@pytest.mark.thorough
def test_pinned_threads_decide_the_same() -> None:
    case = CASES["many models"]
    assert_same_decisions(case.schedule(threads=3, pin=True), case.schedule(threads=3))


def test_repeated_runs_agree(case: Case, run: dict[str, Any]) -> None:
    threads = min(2, len(case.profiles))
    assert_same_decisions(run, case.schedule(threads=threads, alone=True))
    for _ in range(3):
        assert_same_decisions(run, case.schedule(threads=threads))


def assert_same_decisions(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name in ("outcome", "reason", "done"):
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    names = ("gpu", "started", "finished", "dispatched", "model", "size")
    for name, ours, theirs in zip(names, in_order(one, names), in_order(other, names), strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def in_order(run: dict[str, Any], names: tuple[str, ...]) -> list[Any]:
    """Batches are numbered thread by thread: compare them GPU by GPU."""
    order = np.lexsort((run["batch_started"], run["batch_gpu"]))
    return [run[f"batch_{name}"][order] for name in names]


@pytest.mark.parametrize(("name", "slack"), [("many models", 0.002), ("overload", 0.05), ("delays", 0.01)])
def test_as_few_bad_requests_as_one_thread_with_a_short_window(name: str, slack: float) -> None:
    case = CASES[name]
    bad = np.mean(case.schedule(quantum=10_000, lead=2)["outcome"] != IN_TIME)
    assert bad <= np.mean(case.simulate()["outcome"] != IN_TIME) + slack


@pytest.mark.parametrize(("quantum", "lead"), [(1_000, 1), (50_000, 1), (400_000, 2), (30_000_000, 2)])
def test_any_window_keeps_the_promises(quantum: int, lead: int) -> None:
    case = Case([SMALL] * 6, 10, 10_000, requests=2_000)
    run = case.schedule(threads=3, quantum=quantum, lead=lead, fcfs=True)
    assert np.isin(run["outcome"], (IN_TIME, DROPPED)).all()
    test_no_gpu_runs_two_batches_at_once(case, run)
    test_deadlines_are_kept_and_no_request_runs_before_it_arrives(case, run)


def test_nothing_to_do() -> None:
    run = Case([SMALL], 1, 100, requests=0).schedule(threads=1)
    assert len(run["outcome"]) == len(run["batch_size"]) == 0


def test_a_lone_request_waits_for_its_window_and_is_served() -> None:
    case = Case([RESNET], 1, 100, requests=1)
    run = case.schedule(threads=1)
    assert run["outcome"].tolist() == [IN_TIME]
    opens = case.deadline[0] - case.tables[0][2]
    assert opens <= run["batch_started"][0] <= case.deadline[0] - case.tables[0][1]


def test_times_are_told_for_every_thread() -> None:
    run = CASES["many models"].schedule(threads=3)
    assert len(run["cpu_ns"]) == 4
    assert run["wall_ns"] > 0
    assert min(run["cpu_ns"]) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 3}, "model_threads 3: must be from 1 to the 2 models"),
        ({"threads": 0}, "model_threads 0"),
        ({"threads": -1}, "model_threads -1"),
        ({"quantum": 0}, "quantum"),
        ({"lead": 0}, "lead"),
    ],
)
def test_bad_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case([RESNET, SMALL], 2, 100, requests=10).schedule(**options)


def test_bad_arrivals_are_refused() -> None:
    case = Case([RESNET, SMALL], 2, 100, requests=10)
    case.model[4] = 2
    with pytest.raises(ValueError, match="request 4: model 2: must be from 0 to 1"):
        case.schedule()
    case.model[4] = 1
    case.time[6] = case.time[5] - 1
    with pytest.raises(ValueError, match="request 6: times must be sorted"):
        case.schedule()
    case.time[6] = case.time[5]
    case.deadline = case.deadline[:-1]
    with pytest.raises(ValueError, match="same length"):
        case.schedule()


def test_a_quantum_too_short_to_count_is_refused() -> None:
    case = Case([RESNET, SMALL], 2, 1, requests=10)
    with pytest.raises(ValueError, match="quantum 1 ns is too short"):
        case.schedule(quantum=1)


def test_no_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="gpus must be at least 1"):
        Case([RESNET, SMALL], 0, 100, requests=10).schedule()
