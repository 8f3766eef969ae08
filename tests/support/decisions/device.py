"""What policies of one GPU decide: about jobs that take turns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from astrarium import levels
from astrarium.core.engine import Engine
from astrarium.core.trace import Step
from astrarium.device.contract import JobArrived
from astrarium.device.policies import iteration_policies
from astrarium.device.scenario.job_arrivals import arrivals as job_arrivals
from astrarium.device.scenario.read import JobScenario
from astrarium.device.scenario.read import parse as parse_jobs
from astrarium.device.state import DeviceState
from astrarium.device.world import DeviceWorld
from astrarium.run.simulate import simulate
from tests.support.decisions.digests import Case, Runs, decided
from tests.support.decisions.scenarios import EXAMPLES, SEED, one_of


def jobs_example() -> JobScenario:
    case = levels.load(EXAMPLES / "jobs.yaml", SEED)
    assert isinstance(case, JobScenario)
    return case


def drawn_jobs(seed: int) -> JobScenario:
    """Some of Salus's, which are drawn by the package."""
    return parse_jobs(
        {
            "gpu": {"memory": "16GB", "switch": "2ms", "overhead": 0.02, "pause": "5ms", "turn": "20s"},
            "jobs": {"salus": 25, "interval": "60s"},
            "policy": {"name": "fair"},
            "seed": seed,
        }
    )


def random_jobs(seed: int) -> JobScenario:
    """Fifteen, of which now and then one is larger than the GPU."""
    draw = Random(f"jobs {seed}")
    gpu = {
        "memory": "12GB",
        "switch": one_of(draw, "0ms", "3ms"),
        "overhead": one_of(draw, 0.0, 0.05),
        "pause": one_of(draw, "0ms", "7ms"),
        "turn": "0ms",
    }
    jobs = [_job(draw, place) for place in range(15)]
    return parse_jobs({"gpu": gpu, "jobs": jobs, "policy": {"name": "fair"}, "seed": seed})


def _job(draw: Random, place: int) -> dict[str, Any]:
    return {
        "name": f"job{place}",
        "persistent": f"{draw.randint(50, 2000)}MB",
        "ephemeral": f"{draw.randint(200, 10500)}MB",
        "iteration": f"{draw.randint(10, 300)}ms",
        "iterations": draw.randint(5, 40),
        "demand": one_of(draw, 0.3, 0.6, 1.0),
        "arrival": f"{draw.randint(0, 20000)}ms",
        "priority": draw.randint(0, 3),
    }


def jobs(scenario: JobScenario) -> Runs:
    gpu = scenario.gpu
    arrivals = job_arrivals(scenario)
    for name in iteration_policies.names():
        steps: list[Step] = []
        engine = Engine[Any, Any, Any](
            DeviceState(gpu.memory), iteration_policies.get(name)(), record=steps.append
        )
        world = DeviceWorld(gpu.switch, gpu.overhead, gpu.pause)
        simulate(engine, [(at, JobArrived(job)) for at, job in arrivals], world)
        yield name, "python", decided(steps)


def cases() -> Iterator[Case]:
    yield Case("device", "jobs", jobs, jobs_example)
    yield Case("device", "salus", jobs, partial(drawn_jobs, 1))
    for seed in range(1, 13):
        yield Case("device", f"random-{seed}", jobs, partial(random_jobs, seed), seed > 4)
