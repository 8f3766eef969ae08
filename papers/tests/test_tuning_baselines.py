"""The asynchronous baseline: a new trial whenever a GPU is idle."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.tuning.live_search import Play, all_ended_well

from astrarium.core.choice import made
from astrarium.testing.tuning_runs import costs_of, run
from astrarium.tuning.policies import searches, tuning_policies
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.scenario.tasks import TASKS
from astrarium_papers.fluid._baselines import ASYNCHRONOUS, ONE_TRIAL_ONE_GPU

TASK = TASKS["cifar10-alexnet"]
SETTINGS: dict[str, dict[str, Any]] = {
    "asha": {"candidates": 60, "iterations": 9},
    "bohb": {"iterations": 9, "passes": 3},
}


def at_once(record: TuningRecord) -> int:
    """Trials that were open at the same time, at most."""
    return max(
        sum(other.arrived <= row.arrived < other.ended for other in record.rows) for row in record.rows
    )


@pytest.mark.parametrize("search", SETTINGS)
@pytest.mark.parametrize("gpus", [2, 5, 16])
def test_as_many_trials_are_open_as_there_are_gpus(search: str, gpus: int) -> None:
    settings = {**SETTINGS[search], **ASYNCHRONOUS.search}
    record = run(TASK, search, ASYNCHRONOUS.policy, gpus, 1, settings, costs=costs_of(0, 0))
    assert at_once(record) == gpus
    fresh = max(row.arrived for row in record.rows if not row.trial.begins)
    assert record.utilization(fresh) == pytest.approx(1.0, abs=0.01)


def test_more_gpus_than_trials_at_a_time_are_idle() -> None:
    """What the number of GPUs is not known to."""
    fixed, following = (
        run(TASK, "asha", "fifo", 16, 1, {**SETTINGS["asha"], "concurrency": many}) for many in (8, 0)
    )
    assert fixed.utilization() < 0.5 < following.utilization()
    assert following.end < fixed.end


def test_gpus_that_come_are_used_from_the_next_result_on() -> None:
    played = Play("asha", "fifo", gpus=2, settings={"concurrency": 0})
    played.backend.at(5, lambda: played.backend.change(range(6)))
    played.go()
    all_ended_well(played)
    assert at_once(played.live.record("fifo")) == 6


@pytest.mark.parametrize("baseline", [ASYNCHRONOUS, ONE_TRIAL_ONE_GPU])
def test_baselines_name_what_exists(baseline: Any) -> None:
    assert made(tuning_policies.get(baseline.policy), {}, field="policy")
    assert made(searches.get("asha"), baseline.search, field="search").parameters.concurrency in (0, 8)
