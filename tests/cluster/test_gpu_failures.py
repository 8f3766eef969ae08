"""GPUs that fail and are repaired, one by one, in the books and in the simulator."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium.cluster import contract
from astrarium.cluster.contract import (
    App,
    AppArrived,
    GpuFailed,
    GpuRepaired,
    Job,
    MachineJoined,
    MachineLost,
    single,
)
from astrarium.cluster.level import run
from astrarium.cluster.machines import Machine
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.scenario.read import parse
from astrarium.cluster.state import ClusterState, Failure, Outcome
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND

HOUR = 3600 * SECOND


def books() -> ClusterState:
    state = ClusterState()
    for machine in (Machine(0, 4), Machine(1, 4)):
        state.apply(0, MachineJoined(machine))
    state.apply(0, AppArrived(single(0, "a", HOUR, 2)))
    return state


def test_a_gpu_that_fails_takes_only_itself_out() -> None:
    state = books()
    state.commit(0, contract.Grant(0, (1, 2), HOUR))
    state.apply(5, GpuFailed(2, "Xid 79"))
    state.validate()
    assert (state.floor.size, state.floor.gpus_of[0]) == (7, (0, 1, 3))
    assert state.failed == {2: Failure("Xid 79", 5)}
    assert state.apps[0].leases == {1: HOUR}
    assert 2 not in state.free
    state.apply(9, GpuFailed(2, "again"))  # it is known
    assert state.failed == {2: Failure("Xid 79", 5)}
    state.apply(10, GpuRepaired(2))
    state.apply(10, GpuRepaired(2))
    state.validate()
    assert (state.floor.size, state.floor.gpus_of[0], state.failed) == (8, (0, 1, 2, 3), {})
    assert 2 in state.free


def test_a_machine_that_dies_takes_its_broken_gpus_along() -> None:
    state = books()
    state.apply(1, GpuFailed(5))
    state.apply(2, MachineLost(1))
    state.apply(3, GpuRepaired(5))
    state.validate()
    assert (state.floor.size, state.failed) == (4, {})
    assert not state.floor.has(5)


def taken_back(name: str, machines: list[int], gangs: list[int], lost: int) -> set[int]:
    """Return what a policy takes from an app whose gangs fill the machines, when one of these is lost."""
    state = ClusterState()
    base = 0
    for number, gpus in enumerate(machines):
        state.apply(0, MachineJoined(Machine(number, gpus)))
    jobs = tuple(Job(number, HOUR * gpus, gpus, gpus) for number, gpus in enumerate(gangs))
    state.apply(0, AppArrived(App(0, "a", (jobs,))))
    state.commit(0, contract.Grant(0, tuple(range(sum(gangs))), HOUR))
    for number, gpus in enumerate(gangs):
        state.commit(0, contract.Run(0, number, tuple(range(base, base + gpus))))
        base += gpus
    state.apply(SECOND, MachineLost(lost))
    factory: Any = cluster_policies.get(name)
    taken: set[int] = set()
    for action in factory(factory.Parameters()).decide(SECOND, [MachineLost(lost)], state):
        if isinstance(action, contract.Grant | contract.Revoke):
            state.commit(SECOND, action)
            change = set(action.gpus)
            taken = taken | change if isinstance(action, contract.Revoke) else taken - change
    return taken


@pytest.mark.parametrize("name", cluster_policies.names())
def test_a_gang_that_runs_on_keeps_its_gpus_when_another_is_broken(name: str) -> None:
    """The rest of the broken gang goes back, although its GPUs have the larger numbers."""
    assert taken_back(name, machines=[4, 2, 2], gangs=[4, 4], lost=2) <= {4, 5}


@pytest.mark.parametrize("name", cluster_policies.names())
def test_a_gang_that_runs_on_makes_no_room_for_a_job_of_its_app_that_waits(name: str) -> None:
    assert taken_back(name, machines=[1, 4], gangs=[1, 4], lost=0) == set()


def scenario(changes: list[dict[str, Any]], **more: Any) -> Any:
    raw = {
        "machines": [{"count": 2, "gpus": 2}],
        "apps": [{"name": "a", "gpus": 2, "length": "2h"}],
        "policy": "fifo",
        "costs": {"checkpoints": "10min"},
        "slowdowns": {"others": {"machine": 1, "rack": 1, "cluster": 1}},
        "changes": changes,
        **more,
    }
    return parse(raw)


def test_what_ran_on_a_gpu_that_fails_goes_on_elsewhere_from_its_checkpoint() -> None:
    record = run(scenario([{"at": "65min", "fail": {"machine": 0, "gpu": 1}}]))
    [row] = record.rows
    assert row.outcome is Outcome.FINISHED
    assert row.ended == 2 * HOUR + 5 * 60 * SECOND  # five minutes were in no checkpoint
    assert [run.gpus for run in record.ran] == [(0, 1), (2, 3)]
    [lost] = [decision for decision in record.decisions if decision.until < 0 and 1 in decision.gpus]
    assert lost.why == "GPU 1 is out of use: it broke"


def test_who_waits_for_a_gpu_that_is_repaired() -> None:
    apps = [{"name": "a", "gpus": 4, "length": "2h"}]
    fail = {"machine": 1, "gpu": 0}
    repair = {"machine": 1, "gpu": 0}
    record = run(scenario([{"at": "1h", "fail": fail}, {"at": "3h", "repair": repair}], apps=apps))
    assert record.rows[0].ended == 4 * HOUR
    assert [level.gpus for level in record.levels if level.gpus != 4][:1] == [3]


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ([{"at": "1h", "fail": {"machine": 7, "gpu": 0}}], "changes[0].fail.machine", "0 to 1"),
        ([{"at": "1h", "fail": {"machine": 0, "gpu": 2}}], "changes[0].fail.gpu", "works then: 0, 1"),
        ([{"at": "1h", "repair": {"machine": 0, "gpu": 1}}], "changes[0].repair.gpu", "there is none"),
        ([{"at": "1h", "fail": {"machine": 0, "gpu": 1}, "lose": 0}], "changes[0].lose", "one of"),
    ],
)
def test_wrong_changes_are_named(changes: list[dict[str, Any]], field: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        run(scenario(changes))
    assert caught.value.field == field
    assert expected in caught.value.expected
