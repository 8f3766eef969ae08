"""A search on a real Ray of two machines with two GPUs each, which are not there; one machine is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.tuning import SuccessiveHalving
from astrarium.tuning.live.backend import GpusSeen, News, RunEnded, Work  # noqa: E402
from astrarium.tuning.runtime import Place
from astrarium.tuning.samplers import Standing
from astrarium.tuning.state import Outcome
from tests.support.tuning.ray_cluster import ray_cluster
from tests.support.tuning.ray_training import build

pytestmark = [pytest.mark.long, pytest.mark.thorough]
ray: Any = pytest.importorskip("ray")
pytest.importorskip("torch")

from astrarium.core.random_streams import stream  # noqa: E402
from astrarium.tuning.live.random_states import seed_all  # noqa: E402
from astrarium.tuning.live.ray.backend import RayTrialBackend  # noqa: E402
from astrarium.tuning.live.ray.cluster import GROUP, agent_placement  # noqa: E402
from astrarium.tuning.live.run.search import run_with  # noqa: E402
from astrarium.tuning.live.run.spec import SearchSpec  # noqa: E402
from astrarium.tuning.live.training.workers import Emulated, Workers  # noqa: E402

LONGEST = 120.0
GPUS = Emulated(packing=1.1, scaling=1.1)
SPACE = {"rate": {"low": 0.001, "high": 0.1, "log": True}}
PATIENCE = 10.0  # other tests may have the processors


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster([2, 2]) as one:
        yield one


def heard(backend: RayTrialBackend, until: Callable[[News], bool]) -> News:
    ends = time.monotonic() + LONGEST
    while time.monotonic() < ends:
        for news in backend.hear(1.0):
            if until(news):
                return news
    raise AssertionError("it did not come in time")


def seen(*gpus: int) -> Callable[[News], bool]:
    return lambda news: isinstance(news, GpusSeen) and news.gpus == gpus


def test_the_placement_group_of_an_app_is_used_and_left_alone(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An agent that is lost meanwhile is missed, and another comes."""
    group = ray.util.placement_group([{"CPU": 1}, {"GPU": 1}, {"GPU": 1}], name="app-1")
    assert group.wait(LONGEST)
    monkeypatch.setenv(GROUP, "app-1")
    with RayTrialBackend(build, emulated=GPUS, folder=tmp_path, patience=PATIENCE) as backend:
        assert heard(backend, seen(0, 1))
        backend.start(Work(0, 1, 0, {"rate": 0.01, "seconds": 0.0}, Place((0, 1)), 2))
        ended = heard(backend, lambda news: isinstance(news, RunEnded))
        assert isinstance(ended, RunEnded)
        assert (ended.ending, ended.iterations) == ("finished", 2)
        slots: Any = backend.slots
        ray.kill(slots._agents[0].actor)
        assert heard(backend, seen(1))
        assert heard(backend, seen(0, 1))
    assert list(tmp_path.glob("logs/gpu-0*"))
    state = ray.util.placement_group_table(group)["state"]
    assert state == "CREATED"
    ray.util.remove_placement_group(group)


def test_what_is_not_there_is_named(cluster: Any) -> None:
    with pytest.raises(InputError, match="1 to 4, as many as the Ray cluster has"):
        agent_placement(5, environment={})
    with pytest.raises(InputError, match="no-such"):
        agent_placement(environment={GROUP: "no-such"})


class Killed:
    """Ends a machine as soon as a trial of the second rung or later is under way on it."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.done = False

    def __call__(self, live: Any) -> None:
        rows = [row for row in live.state.running() if row.trial.begins and row.done]
        if rows and not self.done:
            self.done = True
            self._cluster.remove_node(self._machine(rows[0].place.gpus[0]), allow_graceful=False)

    def _machine(self, gpu: int) -> Any:
        tables = ray.util.placement_group_table().values()
        ours = next(table for table in tables if table["state"] == "CREATED")
        number = ours["bundles_to_node_id"][gpu]
        return next(machine for machine in self._cluster.machines if machine.node_id == number)


def unbroken(number: int, values: dict[str, Any], iterations: int) -> float:
    """What a candidate is worth that trains by itself, in one go."""
    own = int(stream(0, "training", number).integers(2**31))
    seed_all(own)
    training = build({**values, "seconds": 0.0}, Workers(seed=own))
    return [training.step() for _ in range(iterations)][-1]


def test_a_machine_is_lost_and_nothing_of_the_search(cluster: Any, tmp_path: Path) -> None:
    killed = Killed(cluster)
    halving = SuccessiveHalving(candidates=9, iterations=27)
    spec = SearchSpec(SPACE, halving, progress=killed, folder=tmp_path / "run")
    record = run_with(
        spec,
        lambda: RayTrialBackend(
            build, emulated=GPUS, folder=spec.folder, patience=PATIENCE, checkpoint_seconds=0.3
        ),
    )
    assert killed.done
    assert record.over == "the search is done"
    sizes = {len(level.shares) for level in record.levels}  # its GPUs may be missed one after the other
    assert {2, 4} <= sizes <= {2, 3, 4}
    assert all(row.outcome is Outcome.FINISHED for row in record.rows)
    standings = sorted((candidate.standing.name, candidate.done) for candidate in record.candidates)
    assert standings == [("COMPLETE", 27), *[("STOPPED", 1)] * 6, *[("STOPPED", 3)] * 2]
    for candidate in record.candidates:
        assert candidate.standing is not Standing.OPEN
        alone = unbroken(candidate.number, candidate.values, candidate.done)
        assert candidate.value == pytest.approx(alone, rel=1e-9)
