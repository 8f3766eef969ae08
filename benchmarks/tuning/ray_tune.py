"""Synchronous successive halving, live: Fluid against Ray Tune's own scheduler, on emulated GPUs.

27 configurations, 1 to 27 iterations, one in three goes on: for Ray Tune that is its HyperBandScheduler with
the one bracket that begins with one iteration. The same configurations train from the same seeds, for real
but small; an iteration then waits until it has taken as long as it would on a GPU, by Equation 3.2 of the
Fluid dissertation with the overheads of a task (1.34 for one more trial on a GPU, 1.35 for one more GPU). Ray
Tune gives each trial a GPU, and uses its actors again, which is the quickest that it can do.

`fifo` is what our own engine does with one trial on one GPU: what it is faster than Ray Tune by is overhead
of Ray Tune, and only the rest is due to Fluid. *Search* is from the start of the first iteration to the end
of the last; *in all* is from the call to its return, with agents and processes that are started.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from astrarium.tuning.scenario.tasks import TASKS

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1])]

from _measure import Row, main  # noqa: E402

GPUS = 4
BAR = 1.3
RUNGS = (1, 3, 9, 27)
TASK = TASKS["cifar10-alexnet"]
SPACE = {"rate": {"low": 0.0005, "high": 0.1, "log": True}, "width": {"low": 8, "high": 56, "whole": True}}


class Iteration(NamedTuple):
    number: int  # of its candidate's
    began: float
    ended: float


class Run(NamedTuple):
    """*worth* of the winner; *between* rungs, seconds in which nobody trained."""

    worth: float
    in_all: float
    search: float
    between: list[float]


def timed(search: Callable[[str], float]) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder, "iterations"))
        began = monotonic()
        worth = search(log)
        in_all = monotonic() - began
        rows = [row.split() for row in Path(log).read_text().splitlines()]
    seen = [Iteration(int(number), float(start), float(end)) for number, start, end in rows]
    spent = max(iteration.ended for iteration in seen) - min(iteration.began for iteration in seen)
    return Run(worth, in_all, spent, between(seen))


def between(seen: Sequence[Iteration]) -> list[float]:
    """Return the seconds from the end of each rung to the first iteration of the next."""
    ends = [max(iteration.ended for iteration in seen if iteration.number == rung) for rung in RUNGS[:-1]]
    starts = [
        min(iteration.began for iteration in seen if iteration.number == rung + 1) for rung in RUNGS[:-1]
    ]
    return [start - end for start, end in zip(starts, ends, strict=True)]


def ours(policy: str, log: str) -> float:
    from _training import SEED, build

    from astrarium.core.choice import Choice
    from astrarium.tuning import Emulated, SuccessiveHalving
    from astrarium.tuning.live.ray.backend import RayTrialBackend
    from astrarium.tuning.live.run.search import run_with
    from astrarium.tuning.live.run.spec import SearchSpec

    search = SuccessiveHalving(candidates=RUNGS[-1], iterations=RUNGS[-1], eta=3)
    spec = SearchSpec({**SPACE, "log": {"options": [log]}}, search, policy=Choice(policy), seed=SEED)
    emulated = Emulated(TASK.packing, TASK.scaling)
    record = run_with(spec, lambda: RayTrialBackend(build, GPUS, emulated, patience=30.0))
    return record.best[-1].value


def ray_tune(log: str) -> float:
    from _training import trainable
    from ray import tune

    numbers = tune.grid_search(list(range(RUNGS[-1])))
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            tune.with_resources(trainable(), {"CPU": 0.1, "GPU": 1}),
            param_space={"number": numbers, "all": configurations(), "log": log},
            tune_config=tune.TuneConfig(
                metric="loss", mode="min", reuse_actors=True,
                scheduler=one_bracket(),
            ),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )  # fmt: skip
        results = tuner.fit()
        check(sorted(result.metrics["training_iteration"] for result in results if result.metrics))
        return float(results.get_best_result("loss", "min", "all").metrics["loss"])


def one_bracket() -> Any:
    """Ray Tune's own begins with the bracket in which all trials have all iterations."""
    from ray.tune.schedulers import HyperBandScheduler

    class OneBracket(HyperBandScheduler):  # type: ignore[misc]
        def _create_bracket(self, s: int) -> Any:
            return super()._create_bracket(self._s_max_1 - 1)

    return OneBracket(max_t=RUNGS[-1], reduction_factor=3)


def check(iterations: Sequence[int]) -> None:
    """Ray Tune did successive halving, and nothing else."""
    wanted = sorted([1] * 18 + [3] * 6 + [9] * 2 + [27])
    if list(iterations) != wanted:
        raise SystemExit(f"Ray Tune's trials trained for {iterations} iterations, not {wanted}")


def configurations() -> list[dict[str, Any]]:
    from _training import SEED

    from astrarium.tuning.samplers import RandomSampler
    from astrarium.tuning.spaces import space_of

    sampler = RandomSampler(space_of({**SPACE, "log": {"options": [""]}}), SEED)
    return [sampler.ask().values for _ in range(RUNGS[-1])]


@contextmanager
def cluster() -> Iterator[None]:
    """Hand out a Ray cluster of one machine, with GPUs that are not there."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray then stays on the loopback device
    os.environ["RAY_AIR_NEW_OUTPUT"] = os.environ["RAY_DEDUP_LOGS"] = "0"
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(RUNGS[-1])  # a bracket waits for none that comes later
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    import ray

    ray.init(num_cpus=4, num_gpus=GPUS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


WAYS: dict[str, Callable[[str], float]] = {
    "Ray Tune": ray_tune,
    "fifo": lambda log: ours("fifo", log),
    "Fluid": lambda log: ours("dynamic-fluid", log),
}


def measure(repeats: int) -> list[Row]:
    runs: dict[str, list[Run]] = {name: [] for name in WAYS}
    with cluster():
        for _ in range(repeats):
            for name, way in WAYS.items():
                runs[name].append(timed(way))
                print(f"{name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    same = {round(run.worth, 9) for of_one in runs.values() for run in of_one}
    if len(same) != 1:
        raise SystemExit(f"the winners are worth {same}: they should be the same one")
    return [*times(runs), *ratios(runs), *costs(runs)]


def times(runs: dict[str, list[Run]]) -> list[Row]:
    return [
        Row(f"successive halving, {name}: {what}", "s", [getattr(run, field) for run in of_one])
        for name, of_one in runs.items()
        for what, field in (("search", "search"), ("in all", "in_all"))
    ]


def ratios(runs: dict[str, list[Run]]) -> list[Row]:
    def over(slower: str, faster: str, field: str) -> list[float]:
        pairs = zip(runs[slower], runs[faster], strict=True)
        return [getattr(slow, field) / getattr(fast, field) for slow, fast in pairs]

    return [
        Row("successive halving, Ray Tune over Fluid: search", "x", over("Ray Tune", "Fluid", "search"), BAR),
        Row("successive halving, Ray Tune over Fluid: in all", "x", over("Ray Tune", "Fluid", "in_all"), BAR),
        Row("of which Fluid (fifo over Fluid): search", "x", over("fifo", "Fluid", "search")),
        Row("of which overhead (Ray Tune over fifo): search", "x", over("Ray Tune", "fifo", "search")),
    ]


def costs(runs: dict[str, list[Run]]) -> list[Row]:
    return [
        Row(f"successive halving, {name}: from rung to rung", "ms",
            [1000 * gap for run in of_one for gap in run.between])
        for name, of_one in runs.items()
    ]  # fmt: skip


if __name__ == "__main__":
    main(measure, repeats=2)
