"""Scenario files about apps on a cluster: read, refused with the reason, built, simulated, recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.contract import AppArrived, MachineJoined, MachineLost
from astrarium.cluster.explain import view
from astrarium.cluster.level import run
from astrarium.cluster.machines import Spread
from astrarium.cluster.record import ClusterRecord
from astrarium.cluster.report.history import queue, served_next, story, waits
from astrarium.cluster.report.summary import summarize, summarize_apps
from astrarium.cluster.report.timeline import cluster_timeline
from astrarium.cluster.scenario.build import build, slowdowns
from astrarium.cluster.scenario.read import ClusterScenario, parse
from astrarium.cluster.state import ClusterState, Outcome
from astrarium.core.errors import InputError
from astrarium.core.plain_data import parse_yaml
from astrarium.core.quantities import SECOND
from tests.support.paths import ROOT
from tests.support.scenario_files import load_cluster as load

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
EXAMPLE = ROOT / "examples" / "cluster" / "cluster.yaml"
TEXT = """\
machines: [{count: 2, gpus: 4, racks: 2}]
apps:
  - {name: wide, gpus: 8, length: 1h}
  - {name: tiny, length: 10min, count: 2, every: 5min, arrival: 5min}
policy: {name: fifo}
"""


def scenario(text: str = TEXT, **sections: Any) -> ClusterScenario:
    return parse({**parse_yaml(text, ""), **sections})


def test_machines_and_apps_are_numbered_in_order() -> None:
    built = build(scenario(changes=[{"at": "1h", "lose": 1}, {"at": "2h", "join": {"gpus": 2, "rack": 7}}]))
    joined = [event.machine for _, event in built.arrivals if isinstance(event, MachineJoined)]
    assert [(machine.id, machine.gpus, machine.rack) for machine in joined] == [
        (0, 4, 0),
        (1, 4, 1),
        (2, 2, 7),
    ]
    assert [at for at, event in built.arrivals if isinstance(event, MachineLost)] == [HOUR]
    arrived = [
        (at, event.app.id, event.app.name) for at, event in built.arrivals if isinstance(event, AppArrived)
    ]
    assert arrived == [(0, 0, "wide"), (5 * MINUTE, 1, "tiny-0"), (10 * MINUTE, 2, "tiny-1")]
    assert built.largest == 8


def test_a_length_is_on_all_gpus_that_a_job_needs() -> None:
    apps = [{"name": "a", "gpus": 2, "most": 4, "length": "1h"}]
    [job] = build(scenario(apps=apps)).apps["a"].phases[0]
    assert (job.work, job.least, job.most) == (2 * HOUR, 2, 4)


def test_halving_spends_its_budget_in_equal_phases() -> None:
    apps = [{"name": "a", "kind": "halving", "jobs": 8, "budget": "8h", "most": 4}]
    app = build(scenario(apps=apps)).apps["a"]
    assert [len(phase) for phase in app.phases] == [8, 4, 2, 1]
    assert [phase[0].most for phase in app.phases] == [1, 2, 4, 4]
    assert sum(job.work for phase in app.phases for job in phase) == pytest.approx(8 * HOUR, rel=1e-9)
    parts = [sum(job.work for job in phase) / HOUR for phase in app.phases]
    assert parts == pytest.approx([2.0] * 4, rel=0.1)


def test_jobs_of_a_curve_differ_and_their_owner_says_something_else() -> None:
    apps = [{"name": "a", "kind": "curve", "jobs": 50, "length": "1h", "expected": "2h", "spread": 0.5}]
    jobs = build(scenario(apps=apps)).apps["a"].phases[0]
    assert {job.forecast for job in jobs} == {2 * HOUR}
    assert min(job.work for job in jobs) < 0.7 * HOUR
    assert max(job.work for job in jobs) > 1.3 * HOUR
    assert all(0.5 * HOUR <= job.work <= 1.5 * HOUR for job in jobs)
    again = build(scenario(apps=apps)).apps["a"].phases[0]
    other = build(scenario(apps=apps, seed=2)).apps["a"].phases[0]
    assert jobs == again != other


def test_phases_can_be_written_out() -> None:
    phases = [[{"length": "1h", "count": 3}], [{"length": "30min", "gpus": 2, "most": 4, "model": "VGG16"}]]
    app = build(scenario(apps=[{"name": "a", "model": "GNMT", "phases": phases}])).apps["a"]
    assert [[job.model for job in phase] for phase in app.phases] == [["GNMT"] * 3, ["VGG16"]]
    assert (app.phases[1][0].id, app.phases[1][0].work) == (3, HOUR)


@pytest.mark.parametrize("workload", [1, 2])
def test_apps_are_drawn_as_those_of_themis(workload: int) -> None:
    drawn = scenario(machines="themis-testbed", apps={"themis": workload, "count": 10, "gpu_hours": 50})
    apps = build(drawn).apps
    assert len(apps) == 10
    assert sum(app.work for app in apps.values()) / HOUR == pytest.approx(50, rel=0.01)
    assert any(app.kind == ("curve" if workload == 1 else "halving") for app in apps.values())


def test_apps_come_from_a_trace_beside_the_file(tmp_path: Path) -> None:
    rows = ["job_id,num_gpu,submit_time,iterations,model_name,duration"]
    rows += ["1,2,0,5,vgg,60", "2,16,10,5,vgg,60", "3,1,20,5,vgg,60"]
    (tmp_path / "jobs.csv").write_text("\n".join(rows))
    file = tmp_path / "cluster.yaml"
    file.write_text("machines: [{gpus: 4}]\napps: {trace: jobs.csv, format: tiresias, largest: 4, work: 2}\n")
    loaded = load(file)
    assert [(app.name, app.work) for app in build(loaded).apps.values()] == [
        ("job 1", 240 * SECOND),
        ("job 3", 120 * SECOND),
    ]
    assert build(load(_written(tmp_path, loaded))).apps == build(loaded).apps  # from another folder
    with pytest.raises(InputError, match=r"cluster.yaml: apps: expected at most 4 GPUs .*16 for job 2"):
        build(load(file, ["apps.largest=16"]))


def _written(folder: Path, loaded: ClusterScenario) -> Path:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "again.yaml").write_text(loaded.to_yaml())
    return folder / "elsewhere" / "again.yaml"


def test_slowdowns_are_told_or_learnt() -> None:
    section = {"table": "themis", "models": [{"model": "mine", "network": "k80", "rack": 2, "cluster": 3}]}
    known = slowdowns(scenario(slowdowns=section), believed=True)
    assert known.of("VGG16", "k80", Spread.RACK) == 1.29
    assert known.of("mine", "k80", Spread.CLUSTER) == 3
    assert known.of("mine", "other", Spread.CLUSTER) == 1.3
    untold = scenario(slowdowns={**section, "told": False})
    assert slowdowns(untold, believed=True).of("VGG16", "k80", Spread.RACK) == 1.1
    assert slowdowns(untold).of("VGG16", "k80", Spread.RACK) == 1.29


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("machines: null", "machines: expected a list such as"),
        ("machines: themis-testbet", "did you mean 'themis-testbed'?"),
        ("machines: [{gpus: 0}]", "machines[0].gpus: expected a whole number >= 1 (got 0)"),
        ("machines: [{gpus: 4, slots: 2}]", "machines[0].slots: expected one of gpus, count"),
        ("machines: [{gpus: 4, slot: 3}]", "machines[0].slot: expected a part of 4 GPUs"),
        ("machines: [{gpus: 4, rack: 1, racks: 2}]", "machines[0].racks: expected either rack"),
        ("apps: []", "apps: expected a list of apps"),
        ("apps: {count: 3}", "apps: expected a list of apps, {themis: 1, ...}"),
        ("apps: {themis: 3}", "apps.themis: expected a whole number <= 2 (got 3)"),
        ("apps: {trace: x.csv, format: filly}", "apps.format: expected one of philly"),
        ("apps: {trace: none.csv, format: philly}", "a trace file that can be read"),
        ("apps: [{length: 1h}]", "apps[0].name: expected a value"),
        ("apps: [{name: ' ', length: 1h}]", "apps[0].name: expected text that could name a file"),
        (
            "apps: [{name: a/../../b, length: 1h}]",
            "without / and line breaks, and not . or .. (got 'a/../../b')",
        ),
        ("apps: [{name: .., length: 1h}]", "apps[0].name: expected text that could name a file"),
        ('apps: [{name: "a\\nb", length: 1h}]', "apps[0].name: expected text that could name a file"),
        ("apps: [{name: a}]", "apps[0].length: expected how long a job takes on its GPUs"),
        ("apps: [{name: a, length: 1}]", "apps[0].length: expected a duration with its unit"),
        ("apps: [{name: a, length: 0s}]", "apps[0].length: expected a duration above 0"),
        ("apps: [{name: a, length: 1h, gpus: 9}]", "apps[0].gpus: expected at most 8 GPUs"),
        ("apps: [{name: a, length: 1h, gpus: 3, most: 2}]", "apps[0].most: expected at least 3"),
        ("apps: [{name: a, length: 1h, every: 1s}]", "apps[0].every: expected a count"),
        (
            "apps: [{name: a, length: 1h}, {name: a, length: 1h}]",
            "apps[1].name: expected a name that no other app has",
        ),
        ("apps: [{name: a, kind: halving, jobs: 6, budget: 1h}]", "apps[0].jobs: expected 2, 4, 8"),
        ("apps: [{name: a, kind: halving, jobs: 4}]", "apps[0].budget: expected GPU time"),
        ("apps: [{name: a, length: 1h, budget: 2h}]", "apps[0].budget: expected kind: halving"),
        ("apps: [{name: a, length: 1h, expected: 2h}]", "apps[0].expected: expected kind: curve"),
        ("apps: [{name: a, phases: [[]]}]", "apps[0].phases: expected at least one phase"),
        ("apps: [{name: a, gpus: 2, phases: [[{length: 1h}]]}]", "apps[0].gpus: expected nothing here"),
        ("apps: [{name: a, phases: [[{length: 1h, gpus: 99}]]}]", "apps[0].phases: expected at most 8"),
        ("policy: [themis]", "policy: expected a name, or a mapping such as {name: themis}"),
        ("policy: {name: themes}", "did you mean 'themis'?"),
        ("policy: {name: tiresias, leash: 1h}", "policy.leash: expected one of lease"),
        ("policy: {name: tiresias, lease: 0s}", "policy.lease: expected a duration above 0"),
        ("slowdowns: {others: {rack: 0.5}}", "slowdowns.others.rack: expected a number >= 1"),
        ("costs: {start: 1s}", "costs.start: expected one of startup, checkpoints"),
        ("changes: [{at: 1h}]", "changes[0].lose: expected one of: the number of a machine"),
        ("changes: [{at: 1h, lose: 2}]", "changes[0].lose: expected the number of a machine"),
        ("changes: [{at: 1h, lose: 1}, {at: 2h, lose: 1}]", "changes[1].lose: expected the number"),
        ("changes: [{at: 2h, lose: 1}, {at: 1h, lose: 0}]", "changes[1].at: expected moments in order"),
        ("seed: -1", "seed: expected a whole number >= 0"),
        ("machine: []", "machine: expected one of machines, apps"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_right(written: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        build(scenario(**parse_yaml(written, "")))
    assert expected in str(error.value)


def test_a_run_says_who_held_what_when() -> None:
    record = run(scenario(slowdowns={"others": {"cluster": 2}}))
    wide, tiny, late = record.rows
    assert (wide.ended, tiny.ended, late.ended) == (2 * HOUR, 130 * MINUTE, 130 * MINUTE)
    assert sorted(span.gpu for span in record.held if span.app == 0) == list(range(8))
    assert {(span.start, span.end) for span in record.held if span.app == 0} == {(0, 2 * HOUR)}
    assert [(app.app, app.score) for app in record.ran] == [(0, 0.5), (1, 1.0), (2, 1.0)]
    assert [level.busy for level in record.levels] == [8, 8, 8, 2, 0]
    assert [level.waiting for level in record.levels] == [0, 1, 2, 0, 0]


def test_time_is_conserved() -> None:
    """What was held is what apps were charged for, and what levels add up to."""
    record = run(load(EXAMPLE, ["policy={name: tiresias, lease: 10min}"]))
    held: dict[int, int] = {}
    for span in record.held:
        held[span.app] = held.get(span.app, 0) + span.end - span.start
    assert held == {row.app.id: row.service for row in record.rows}
    ends = [*(level.at for level in record.levels[1:]), record.end]
    areas = [(level, end - level.at) for level, end in zip(record.levels, ends, strict=True)]
    assert sum(level.leased * time for level, time in areas) == sum(held.values())
    ran = sum(len(run.gpus) * (run.end - run.start) for run in record.ran)
    assert sum(level.busy * time for level, time in areas) == ran


def test_a_gpu_has_one_holder_at_a_time() -> None:
    record = run(load(EXAMPLE, ["policy={name: gandiva}"]))
    last: dict[int, int] = {}
    for span in record.held:
        assert span.start >= last.get(span.gpu, 0)
        last[span.gpu] = span.end
    dead = [span for span in record.held if record.machines[span.gpu] == 3]
    assert dead
    lost = [decision for decision in record.decisions if decision.why == "machine 3 died"]
    assert {run.at for run in lost} == {2 * HOUR}
    assert {gpu for run in lost for gpu in run.gpus} == {run.gpu for run in dead if run.end == 2 * HOUR}
    assert max(span.end for span in dead) == 2 * HOUR


def test_numbers_of_a_run() -> None:
    record = run(scenario())
    summary = summarize(record)
    apps = summarize_apps(record)
    assert (summary.apps, summary.outcomes, summary.gpus) == (3, {"finished": 3}, 8)
    assert summary.makespan_s == pytest.approx(78 * 60 + 600)  # two racks: 1.3 times as long
    assert summary.busy == pytest.approx((8 * 78 + 2 * 10) / (8 * 88))
    assert apps[0].rho["share"] == pytest.approx(78 / (60 * record.rows[0].contention.apps))
    assert apps[1].waited_s == 73 * 60
    assert summary.rho["share"].worst == max(app.rho["share"] for app in apps)


def test_the_size_of_the_cluster_is_its_mean_over_an_apps_life() -> None:
    """From 4 GPUs to 12 in the middle: 8 on the mean, half of which is the share of either app."""
    apps = [{"name": f"app {place}", "jobs": 2, "length": "1h"} for place in range(2)]
    changes = [{"at": "30min", "join": {"gpus": 8}}]
    record = run(scenario(machines=[{"gpus": 4}], apps=apps, changes=changes))
    assert [app.rho["share"] for app in summarize_apps(record)] == pytest.approx([1.0, 1.0])
    assert summarize(record).busy == pytest.approx(4 / 8)


def test_who_cannot_run_any_more_is_told_so() -> None:
    record = run(scenario(changes=[{"at": "10min", "lose": 1}]))
    assert record.rows[0].outcome is Outcome.WITHDRAWN
    [app, *_] = summarize_apps(record)
    assert (app.outcome, app.reason, app.rho) == ("withdrawn", "the run ended before the app did", {})


def test_policies_are_compared_on_the_same_apps() -> None:
    base = load(EXAMPLE)
    records = {name: run(base.with_policy(name)) for name in ("fifo", "tiresias")}
    assert [record.policy for record in records.values()] == ["fifo", "tiresias"]
    first, second = ([(row.app, row.arrived) for row in record.rows] for record in records.values())
    assert first == second


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (run(load(EXAMPLE, ["policy={name: srtf}"])) for _ in range(2))
    assert (first.held, first.decisions) == (second.held, second.decisions)


def test_the_timeline_has_a_track_for_each_gpu_and_is_cut_when_long() -> None:
    record = run(scenario())
    whole = cluster_timeline(record)
    cut = cluster_timeline(record, most=2)
    names = [event["args"]["name"] for event in whole["traceEvents"] if event["name"] == "thread_name"]
    assert names == [f"GPU {gpu}" for gpu in range(8)]
    slices = [event for event in whole["traceEvents"] if event["ph"] == "X" and event["name"] == "wide"]
    assert {(slice_["ts"], slice_["dur"]) for slice_ in slices} == {(0.0, 78 * 60e6)}
    assert cut["metadata"]["leases_shown"] == 2


def looked(at: int, **sections: Any) -> tuple[ClusterRecord, Any]:
    views: list[Any] = []
    record = run(scenario(**sections), look=(at, lambda *seen: views.append(view(*seen))))
    assert len(views) == 1
    return record, views[0]


def test_the_books_can_be_looked_into_without_changing_the_run() -> None:
    record, seen = looked(20 * MINUTE)
    plain = run(scenario())
    assert (record.held, record.decisions, record.levels) == (plain.held, plain.decisions, plain.levels)
    assert (seen.gpus, seen.free) == (8, 0)
    assert {seat.name: len(seat.holds) for seat in seen.apps.values()} == {
        "wide": 8,
        "tiny-0": 0,
        "tiny-1": 0,
    }
    assert seen.apps[0].service == 8 * 20 * MINUTE
    assert (seen.apps[1].wants, seen.apps[1].needs) == (1, 1)


class Telling:
    """Forgets whom it has told of."""

    def __init__(self) -> None:
        self.untold = [2, 1]

    def standing(self, now: int, state: ClusterState) -> list[tuple[int, str]]:
        return [(self.untold.pop(0), "as it likes") for _ in range(2)]


def test_a_policy_that_tells_is_asked_for_the_line_and_not_changed() -> None:
    policy = Telling()
    views = list[Any]()
    look = (20 * MINUTE, lambda now, state, _: views.append(view(now, state, policy)))
    record = run(scenario(), look=look)
    assert policy.untold == [2, 1]
    assert [(place.app_view.name, place.why) for place in queue(views[0], record)] == [
        ("tiny-1", "as it likes"),
        ("tiny-0", "as it likes"),
    ]
    silent = views[0]._replace(standing=None)
    assert [place.app_view.name for place in queue(silent, record)] == ["tiny-0", "tiny-1"]


def test_a_look_after_the_end_sees_nobody() -> None:
    assert looked(100 * HOUR)[1].apps == {}


def test_who_waits_learns_when_it_is_served() -> None:
    record, seen = looked(20 * MINUTE)
    later = served_next(record, seen.at)
    assert {app: decision.at for app, decision in later.items()} == {1: 78 * MINUTE, 2: 78 * MINUTE}
    [wait] = waits(record, record.rows[1])
    assert (wait.start, wait.end, wait.others) == (5 * MINUTE, 78 * MINUTE, {})


def test_leases_that_are_renewed_are_one_decision() -> None:
    apps = [{"name": "a", "length": "45min", "gpus": 2}]
    record = run(scenario(apps=apps, policy={"name": "tiresias", "lease": "10min"}))
    decisions = story(record, 0)
    assert len(decisions) == len({decision.why for decision in decisions}) < 5
    assert sum(decision.leases for decision in decisions) == 5
    assert (decisions[-1].until, decisions[-1].gpus) == (50 * MINUTE, (0, 1))
    [held, _] = record.held
    assert (held.start, held.end) == (0, 45 * MINUTE)
