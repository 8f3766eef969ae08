"""Ray Tune's own loop with a policy of ours: what it is told, what it refuses, and one real run."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.tuning.ray_tune.allocation import Allocation, resource_changing
from astrarium.tuning.ray_tune.resources import factory, width_of
from astrarium.tuning.runtime import Width
from tests.support.tuning.ray_cluster import ray_cluster

pytest.importorskip("ray.tune")
from ray.tune import PlacementGroupFactory

pytestmark = pytest.mark.long

FLUID = "dynamic-fluid"
WHOLE = Width(1)
ONE = PlacementGroupFactory([{"CPU": 0.1, "GPU": 1}])


def gpus(width: Width) -> Any:
    return factory(ONE, width)


@dataclass
class FakeTrial:
    trial_id: str
    status: str = "RUNNING"
    done: int = 0
    width: Width = WHOLE
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def placement_group_factory(self) -> Any:
        return gpus(self.width)

    @property
    def last_result(self) -> dict[str, Any]:
        return {"training_iteration": self.done, "time_this_iter_s": 1.0} if self.done else {}


class FakeController:
    """Of so many GPUs; has what an allocation function may ask of Ray Tune's."""

    def __init__(self, trials: list[FakeTrial], gpus: int, cpus: float = 100.0) -> None:
        self._trials = trials
        self._gpus = gpus
        self._cpus = cpus
        self._resource_updater = self
        self.base_trial_resources = ONE

    def get_live_trials(self) -> list[FakeTrial]:
        return self._trials

    def get_num_gpus(self) -> int:
        return self._gpus

    def get_num_cpus(self) -> float:
        return self._cpus

    def asked(self, allocation: Allocation, trial: FakeTrial, took: float = 1.0) -> Width | None:
        """The trial has done one more iteration."""
        trial.done += 1
        result = {"training_iteration": trial.done, "time_this_iter_s": took}
        resources = allocation(self, trial, result, self)
        return None if resources is None else width_of(resources)


def trials(count: int, **settings: Any) -> list[FakeTrial]:
    return [FakeTrial(f"t{number}", **settings) for number in range(count)]


def test_the_last_trial_is_given_all_that_is_free() -> None:
    two = trials(2)
    alone = FakeController(two[:1], 4)
    allocation = Allocation(60, FLUID)
    assert FakeController(two, 2).asked(allocation, two[0]) is None
    assert alone.asked(allocation, two[0]) == 4


def test_nobody_changes_while_a_trial_waits_to_be_started() -> None:
    """Ray Tune starts those first: who is paused would wait for all of them."""
    some = [*trials(1), FakeTrial("late", "PENDING")]
    assert FakeController(some, 4).asked(Allocation(60, FLUID), some[0]) is None


def test_what_others_were_promised_is_not_given_twice() -> None:
    some = trials(2)
    controller = FakeController(some, 4)
    allocation = Allocation(60, FLUID)
    first = controller.asked(allocation, some[0])
    assert first == 2
    some[0].status = "PAUSED"
    second = controller.asked(allocation, some[1])
    assert second == 2
    some[1].status = "PAUSED"
    some[0].status = "RUNNING"
    some[0].width = first
    assert controller.asked(allocation, some[0], 0.5) is None


def test_a_change_must_pay_for_itself() -> None:
    for left, width in ((3, None), (60, Width(4))):
        one = trials(1, done=9)
        allocation = Allocation(10 + left, FLUID, moving=5.0)
        assert FakeController(one, 4).asked(allocation, one[0]) == width


def test_what_changes_cost_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    one = trials(1)
    allocation = Allocation(1000, FLUID)
    controller = FakeController(one, 2)
    width = controller.asked(allocation, one[0])
    assert width == 2
    one[0].width = width
    now[0] = 100.0 + 12 + 0.5
    assert controller.asked(allocation, one[0], took=0.5) is None
    assert allocation.moving == pytest.approx(12.0)


def test_parts_of_gpus_may_each_be_on_a_gpu_of_their_own() -> None:
    """Four halves may hold four GPUs, so that none is sure to be free; where there is one more, it is."""
    some = trials(4, width=Width(1, 2))
    assert [FakeController(some, 4).asked(Allocation(600, FLUID), trial) for trial in some] == [None] * 4
    widths = [FakeController(some, 5).asked(Allocation(600, FLUID), trial) for trial in some]
    assert max(trial for trial in widths if trial is not None) == 2


def test_what_does_not_fit_beside_the_cpus_is_not_asked_for() -> None:
    one = trials(1)
    assert FakeController(one, 4, cpus=0.3).asked(Allocation(60, FLUID), one[0]) is None
    assert FakeController(one, 4, cpus=0.4).asked(Allocation(60, FLUID), one[0]) == 4


def test_iterations_may_depend_on_the_configuration() -> None:
    some = [FakeTrial("short", config={"n": 2}), FakeTrial("long", config={"n": 500})]
    allocation = Allocation(lambda config: config["n"], FLUID)
    controller = FakeController(some, 4)
    assert controller.asked(allocation, some[0]) is None
    assert controller.asked(allocation, some[1]) == 3


def test_a_policy_that_never_moves_anybody_never_does() -> None:
    one = trials(1)
    assert FakeController(one, 4).asked(Allocation(60, "fifo"), one[0]) is None


def test_it_survives_being_saved_by_ray_tune() -> None:
    one = trials(1)
    allocation = Allocation(60, FLUID)
    FakeController(one, 1).asked(allocation, one[0])
    again = pickle.loads(pickle.dumps(allocation))
    assert FakeController(one, 4).asked(again, one[0]) == 4


@pytest.mark.parametrize(("width", "bundles"), [(Width(3), [1, 1, 1]), (Width(1, 3), [0.3333])])
def test_bundles_are_those_of_the_trial(width: Width, bundles: list[float]) -> None:
    base = PlacementGroupFactory([{"CPU": 1}, {"CPU": 2, "GPU": 1}])
    resources = factory(base, width)
    assert [bundle.get("GPU") for bundle in resources.bundles] == [None, *bundles]
    assert {bundle["CPU"] for bundle in resources.bundles[1:]} == {2}
    assert width_of(resources) == width


def test_parts_that_do_not_divide_a_gpu_are_refused() -> None:
    with pytest.raises(InputError, match="one part in so many"):
        width_of(PlacementGroupFactory([{"GPU": 0.6}]))
    with pytest.raises(InputError, match="one part in so many"):
        width_of(PlacementGroupFactory([{"CPU": 1}]))


def test_schedulers_that_would_deadlock_are_refused() -> None:
    from ray.tune import schedulers

    for kind in (schedulers.HyperBandScheduler, schedulers.HyperBandForBOHB):
        with pytest.raises(InputError, match=r"all would wait for ever.*ray_tune\.fit"):
            resource_changing(kind(), 10)
    nested = resource_changing(schedulers.FIFOScheduler(), 10)
    with pytest.raises(InputError, match="FIFOScheduler"):
        resource_changing(nested, 10)
    for allowed in (schedulers.ASHAScheduler, schedulers.PopulationBasedTraining):
        settings: dict[str, Any] = (
            {"hyperparam_mutations": {"x": [1]}} if "Population" in allowed.__name__ else {}
        )
        assert resource_changing(allowed(**settings), 10)


def test_actors_that_are_used_again_are_refused() -> None:
    one = trials(1)
    controller = FakeController(one, 4)
    controller._reuse_actors = True  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="reuse_actors"):
        controller.asked(Allocation(10, FLUID), one[0])


@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [("no-such", {}, "no-such"), (FLUID, {"packed": "many"}, "packed"), (FLUID, {"width": 2}, "width")],
)
def test_a_wrong_policy_is_named_at_once(policy: str, settings: Any, expected: str) -> None:
    with pytest.raises(Exception, match=expected):
        Allocation(10, {"name": policy, **settings})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster([4]) as one:
        yield one


@pytest.mark.thorough  # the guide runs the same loop
def test_in_ray_tunes_own_loop_the_longest_trial_ends_on_more_gpus(cluster: Any, tmp_path: Path) -> None:
    """Three trials are short; what they leave goes to the fourth, which goes on where it was."""
    from ray import tune
    from ray.tune.schedulers import FIFOScheduler

    class Counting(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.count, self.widths = 0, list[float]()

        def step(self) -> dict[str, Any]:
            import time

            time.sleep(0.05)
            self.count += 1
            assert self.trial_resources is not None
            width = self.trial_resources.required_resources["GPU"]
            self.widths += [] if width in self.widths else [width]
            return {"count": self.count, "widths": list(self.widths), "done": self.count == self.config["n"]}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {"count": self.count, "widths": self.widths}

        def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # type: ignore[override]
            self.count = checkpoint["count"]
            self.widths = checkpoint["widths"]

    tuner = tune.Tuner(
        tune.with_resources(Counting, ONE),
        param_space={"n": tune.grid_search([2, 2, 2, 150])},
        tune_config=tune.TuneConfig(
            metric="count", mode="max", reuse_actors=False,
            scheduler=resource_changing(FIFOScheduler(), lambda config: int(config["n"]), moving=0.5),
        ),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    )  # fmt: skip
    grid = tuner.fit()
    results: list[Any] = [grid[number] for number in range(len(grid))]
    assert not [result.error for result in results if result.error]
    [longest] = [result.metrics for result in results if result.config["n"] == 150]
    assert longest["count"] == 150
    assert longest["widths"][0] == 1
    assert max(longest["widths"]) > 1
