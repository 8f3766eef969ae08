"""Themis's figures in their quick form, and what they are made of."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from papers.tests.reproductions import parameters
from tests.support.cluster.workload_facts import facts, task
from tests.support.paths import ROOT

from astrarium.cluster.contract import App, AppArrived, Job, MachineJoined
from astrarium.cluster.fairness import rho
from astrarium.cluster.machines import Machine
from astrarium.cluster.report.summary import DEFINITIONS
from astrarium.cluster.state import ClusterState, Contention
from astrarium.cluster.workloads.apps import HOUR
from astrarium.cluster.workloads.themis import sweeps
from astrarium.cluster.workloads.traces import read_trace
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from astrarium_papers import registry
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.markdown import page
from astrarium_papers.merging import main, merged
from astrarium_papers.registry import Reproduction
from astrarium_papers.shockwave import reference
from astrarium_papers.themis import authors, figure5, figure18, table5
from astrarium_papers.themis._runs import RIVALS, THEMIS, Task, jain, measure, over
from astrarium_papers.themis._testbed.fairness import ratios, tasks
from astrarium_papers.themis._workloads import (
    TESTBED,
    TESTBED_HOURS,
    TESTBED_LOAD,
    Drawing,
    drawn,
    on_testbed,
)
from astrarium_papers.themis.authors import setting
from astrarium_papers.themis.authors.loss_seeds import loss_seeds
from astrarium_papers.themis.authors.rivals import IterationLeases, OneByOne, attained
from astrarium_papers.themis.authors.setting import MINUTE

pytest.importorskip("scipy")
QUICK = Effort(quick=True)
FIGURES = ["figure5", *(f"figure{number}" for number in range(9, 20))]
NAMES = ["table3", "table5", "overheads", "authors", *FIGURES]
PARAMETERS = parameters(NAMES, "figure14", "figure15", "figure18", "figure19")
DATA = ROOT.parent / "shared" / "data" / "cluster"


def test_they_are_listed() -> None:
    listed = [name for name in registry.names() if name.startswith("themis/")]
    assert sorted(listed) == sorted(f"themis/{name}" for name in NAMES)


def test_a_cause_can_be_switched_and_others_are_refused_by_name() -> None:
    registry.check_settings(["themis/figure10"], {"startup": "0s", "network": "v100"})
    with pytest.raises(InputError, match="a setting of themis/figure5, which has: none"):
        registry.check_settings(["themis/figure10", "themis/figure5"], {"startup": "0s"})
    with pytest.raises(InputError, match="network: expected one of k80, p100, v100, fast"):
        registry.run("themis/figure11", Effort(quick=True, settings={"network": "v10"}))
    with_starts = registry.run("themis/figure11", QUICK)
    without = registry.run("themis/figure11", Effort(quick=True, settings={"startup": "0s"}))
    assert without.command.endswith("--quick --set startup=0s")
    assert without.rows[0].ours < with_starts.rows[0].ours  # GPU time under Themis


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_quick_form_runs_and_is_drawn(name: str, tmp_path: Path) -> None:
    done = registry.run(f"themis/{name}", QUICK)
    done.figure(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert done.rows
    assert all(row.note for row in done.rows if row.verdict in ("higher", "lower"))
    assert f"themis/{name}" in page([done], "astrarium reproduce")


@pytest.mark.parametrize("as_drawn", [False, True])
def test_apps_are_as_small_as_in_the_paper(as_drawn: bool) -> None:
    apps = drawn(Drawing(workload=2, as_drawn=as_drawn), 64)
    assert len(apps) == sweeps.APPS
    assert sum(app.work for app in apps) / HOUR == pytest.approx(1000, rel=0.02)
    assert [app.arrival for app in apps] == sorted(app.arrival for app in apps)
    assert (min(app.work for app in apps) < 60 * SECOND) == as_drawn


def test_on_the_testbed_tasks_are_those_of_table_5() -> None:
    """Before scaling: a tenth of the trace's jobs make the GPU-hours of Figure 11 by themselves."""
    workloads = [sweeps.parametric(seed, sizes=TESTBED) for seed in range(1, 13)]
    assert median(facts(apps).gpu_hours for apps in workloads) == pytest.approx(TESTBED_HOURS, rel=0.05)
    short, usual, long = np.quantile(
        [task(job) for apps in workloads for app in apps for job in app.jobs], (0.1, 0.5, 0.9)
    )
    assert short / HOUR < 83 / 2 / 60 * 1.1 < usual / HOUR < 580 / 4 / 60 < 1.1 * long / HOUR
    assert all(len(app.jobs) <= 10 for apps in workloads for app in apps)


@pytest.mark.parametrize("workload", [1, 2])
def test_workloads_of_the_testbed_have_its_size(workload: int) -> None:
    apps = on_testbed(workload)
    assert facts(apps).gpu_hours == pytest.approx(1000, rel=1e-6)
    assert facts(apps).load == pytest.approx(TESTBED_LOAD, rel=1e-6)
    kinds = [app.kind for app in apps]
    assert kinds.count("jobs") == 8
    assert set(kinds) == {"jobs", "curve" if workload == 1 else "halving"}
    assert facts(on_testbed(workload, apps=17)).gpu_hours == pytest.approx(200, rel=1e-6)
    with pytest.raises(InputError, match="workload: expected 1"):
        on_testbed(3)


def test_on_a_larger_cluster_they_come_as_much_faster() -> None:
    small = drawn(Drawing(), 64)
    large = drawn(Drawing(), 256)
    assert small[-1].arrival == pytest.approx(4 * large[-1].arrival, rel=1e-6)
    assert [app.work for app in small] == [app.work for app in large]


def test_themis_bids_by_the_definition_that_it_is_measured_by() -> None:
    asked = tasks(Drawing())
    assert asked[THEMIS, "equation-1"].parameters == (("definition", "equation-1"),)
    assert asked[THEMIS, "demand"].parameters == (("definition", "demand"),)
    assert all(asked[name, "share"] == asked[name, "equation-1"] for name in RIVALS)


def test_table_5_can_be_by_demand_and_not_where_n_counts_apps() -> None:
    """The short app of Table 5 as fast as it can be, among 20 apps that want twice the 64 GPUs."""
    facts = table5.KINDS["short"]
    crowd = Contention(apps=20.0, gpus=128.0)
    job = Job(0, facts.gpu_minutes * table5.MINUTE, 1, facts.gpus)
    app = App(0, "short", ((job,),))
    took = facts.gpu_minutes * table5.MINUTE // facts.gpus
    rhos = {name: rho(took, app, 64, crowd, name) for name in DEFINITIONS}
    assert rhos == pytest.approx({"share": 1.0, "equation-1": 0.05, "demand": 0.5})
    data: dict[str, Any] = {name: {"short": {THEMIS: [1.2], "Tiresias": [1.9]}} for name in rhos}
    papers = {row.what.split(":")[0]: row.paper for row in table5._rows(data) if THEMIS in row.what}
    assert papers == {"share": 1.2, "equation-1": None, "demand": 1.2}


def test_ratios_are_taken_seed_by_seed() -> None:
    rho = {THEMIS: {"share": [[1.0, 2.0], [4.0]]}, "SRSF": {"share": [[6.0], [4.0, 8.0]]}}
    assert ratios({"rho": rho}, "SRSF", "share") == over([3.0, 2.0])


def test_jain_is_one_for_equals_and_less_for_others() -> None:
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_a_run_is_the_same_each_time() -> None:
    task = Task(Drawing(workload=2, apps=3), "tiresias")
    assert measure(task) == measure(task)


def test_pairs_come_while_others_do() -> None:
    apps = table5.with_pairs(drawn(Drawing(apps=4), 64))
    assert len(apps) == 4 + 2 * table5.PAIRS
    assert apps[-1].name.startswith("app")
    long = next(app for app in apps if app.name == "long 0")
    assert (long.work / (60 * SECOND), long.jobs[0].most) == (580, 4)


@pytest.mark.parametrize(
    ("liar", "expected"),
    [
        ([2.0, 1.9, 2.1, 2.2], 10.0),
        ([2.0, 2.1, 2.0, 2.3], 34.0),
        ([2.0, 2.1, 2.1, 2.1], 0.0),
        ([2.0, 2.0, 2.0, 2.0], None),
    ],
)
def test_the_tipping_point_is_the_last_lie_that_costs_nothing(
    liar: list[float], expected: float | None
) -> None:
    assert figure18.tipping([0, 10, 34, 100], liar) == expected


def test_a_lie_of_nothing_is_none() -> None:
    mine, others = figure18.completion(figure18.Lie("wide", "overstates", 0, 3))
    assert mine == pytest.approx(others, rel=0.2)


@pytest.mark.parametrize("instance", figure5.INSTANCES)
def test_in_figure_5_each_has_what_it_cares_for(instance: str) -> None:
    assert figure5._rhos(instance, "themis") == pytest.approx([1.0, 1.0])


# the setting of the authors' simulator


def test_a_drawn_workload_has_the_facts_of_theirs() -> None:
    jobs = setting.drawn(3)
    assert len(jobs) == 113
    assert {job.most for job in jobs} == {2, 4}
    assert {job.start // setting.MINUTE for job in jobs} == set(setting.STARTS)
    assert sum(job.work for job in jobs) / HOUR == pytest.approx(561, rel=0.15)
    assert {job.speeds for job in setting.drawn(3, network=0.0)} == {setting.SPEEDS["light"]}


def test_halving_stops_the_shortest_of_a_group_first() -> None:
    """Five jobs: rungs are half of the longest apart (log2 of 5 is 2). Two stop at the first, one of the
    other three at the second, one of the last two at the third; nobody does more than it has."""
    base = setting.SpreadJob(0, 0, 2, (1.0, 1.0, 1.0), float(setting.MINUTE), 1)
    jobs = [base._replace(work=minutes * setting.MINUTE) for minutes in (100, 80, 70, 20, 90)]
    done = [job.work // setting.MINUTE for job in setting.halved(jobs)]
    assert done == [100, 80, 50, 20, 90]
    alone = [job._replace(group=number) for number, job in enumerate(jobs)]
    assert setting.halved(alone) == alone


def test_halving_explains_how_much_work_their_runs_did() -> None:
    """GPU-hours times placement score are 561.3 in all recorded runs; serial times sum up to 719.3 hours."""
    files = sorted((DATA / "themis").glob("online_*network.csv"))
    if not files:
        pytest.skip("their workloads are not at hand")
    for path in files:
        assert sum(job.work for job in setting.read(path, halve=False)) / HOUR == pytest.approx(
            719.3, abs=0.1
        )
        assert sum(job.work for job in setting.read(path)) / HOUR == pytest.approx(561.34, abs=0.05)


def test_factors_of_a_loss_are_those_that_java_draws() -> None:
    """The first numbers of java.util.Random with the seeds 0 and 42, as anybody's Java prints them."""
    assert setting.loss_curve(0, 10)[:2] == (0.730967787376657, 0.24053641567148587)
    assert setting.loss_curve(42, 10)[:2] == (0.7275636800328681, 0.6832234717598454)
    curve = setting.loss_curve(0, 10)
    assert curve.loss(0) - curve.loss(10) == pytest.approx(1.0, abs=1e-3)  # from 1 to 0, but for a constant


def test_every_job_of_theirs_has_a_seed() -> None:
    assert {name: len(loss_seeds(name)) for name in authors.WORKLOADS} == dict.fromkeys(
        authors.WORKLOADS, 113
    )
    assert loss_seeds("comparison")[1] == 45
    assert loss_seeds("tiny") == {}


def test_gpus_are_given_back_with_the_last_iteration_that_ends_in_time() -> None:
    """Iterations of 9 minutes on one GPU, 3 on three: two fit into a lease of 20, or six."""
    state = ClusterState()
    state.apply(0, MachineJoined(Machine(0, 4)))
    state.apply(0, AppArrived(App(0, "app", ((Job(0, 900 * MINUTE, 1, 3, iterations=100),),))))
    leases = IterationLeases()
    row = state.apps[0]

    def given(now: int, *more: int) -> list[tuple[tuple[int, ...], float]]:
        grants = list(leases.grants(now * MINUTE, row, more, state))
        for grant in grants:
            state.commit(now * MINUTE, grant)
        return [(grant.gpus, grant.until / MINUTE) for grant in grants]

    assert given(0, 0) == [((0,), 18)]
    # at 9 the second iteration begins, with three GPUs: they end at 12, 15, 18; then the first has no time
    # for another, and one on two GPUs ends at 22.5, in time
    assert given(5, 1, 2) == [((0,), 18), ((1, 2), 25)]


def test_gpus_go_together_where_one_alone_would_take_too_long() -> None:
    """At 18 the first GPU goes. With the other, which it has until 23, an iteration would end at 27."""
    state = ClusterState()
    state.apply(0, MachineJoined(Machine(0, 2)))
    state.apply(0, AppArrived(App(0, "app", ((Job(0, 900 * MINUTE, 1, 2, iterations=100),),))))
    leases = IterationLeases()
    row = state.apps[0]
    for grant in leases.grants(0, row, (0,), state):
        state.commit(0, grant)
    later = list(leases.grants(3 * MINUTE, row, (1,), state))
    assert [(grant.gpus, grant.until / MINUTE) for grant in later] == [((0, 1), 18)]


def test_blind_rivals_deal_gpus_one_by_one_to_who_has_had_least() -> None:
    """Two jobs of up to 2 GPUs take turns, so that both lie on both machines; one alone does not."""
    job = setting.SpreadJob(0, 40 * setting.MINUTE, 2, (1.0, 0.5, 0.5), setting.ITERATION, 1)
    machines = [Machine(number, 2) for number in range(2)]
    two, alone = (
        setting.outcome([job] * count, lambda jobs: OneByOne(attained), machines) for count in (2, 1)
    )
    assert (two.score, alone.score) == (0.5, 1.0)
    assert two.gpu_hours * two.score == pytest.approx(80 / 60)


def test_the_runs_of_their_simulator_are_read_and_set_beside_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    header = "job,group,start_min,serial_min,iterations,most_gpus,speed_across_slots,speed_across_machines"
    (tmp_path / "online_tiny.csv").write_text(
        f"{header},speed_across_racks,loss\n1,1,20,100.0,5000,4,1,0.7,0.5,sublinear\n"
    )
    theirs = {"rho_b_max": 1.0, "mean_jct_min": 20.0, "gpu_hours": 1.3, "placement_score": 1.0}
    recorded = {f"online_workload_tiny|64|20|{name}": theirs for name in authors.THEIRS}
    (tmp_path / "reference.json").write_text(json.dumps(recorded))
    monkeypatch.setenv(authors.FOLDER, str(tmp_path))
    monkeypatch.setattr(authors, "WORKLOADS", ("tiny",))
    rows = {row.what: row for row in registry.run("themis/authors", Effort()).rows}
    mean_row = rows["tiny, Tiresias: mean completion"]
    assert mean_row.paper == 20.0
    # blind: it is dealt the first GPUs, a machine of 4, or two of 2 where the small come first
    assert mean_row.ours == pytest.approx(100 / 4)
    assert mean_row.note.startswith("25 to 35.71; ")
    assert rows["tiny, Themis: largest rho"].verdict == "agrees"
    assert rows["tiny, astrarium: largest rho"].paper is None


def test_without_their_runs_the_setting_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(authors.FOLDER, str(tmp_path))
    assert "reference.json is not at hand" in registry.run("themis/authors", Effort()).skipped


def test_without_the_trace_it_is_skipped_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(reference.FOLDER, str(tmp_path))
    done = registry.run("shockwave/reference", QUICK)
    done.figure(tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()
    assert done.rows == []
    shown = page([done], "astrarium reproduce")
    assert "Skipped: shockwave_120jobs_32gpus.csv is not at hand" in shown
    assert "| skipped |" in shown
    assert done.shown()["skipped"] == done.skipped


def test_recorded_runs_are_met_within_their_tolerances(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not (DATA / reference.TRACE).exists():
        pytest.skip("the recorded runs are not here")
    monkeypatch.setenv(reference.FOLDER, str(DATA))
    done = registry.run("shockwave/reference", QUICK)
    done.figure(tmp_path / "figure.png")
    verdicts = {row.what: row.verdict for row in done.rows if "rho" not in row.what}
    assert set(verdicts.values()) == {"agrees"}, verdicts
    assert len(verdicts) == 4


HEADER = "job,arrival_s,num_gpus,model,batch_size,mode,total_steps,num_epochs,exclusive_runtime_s"


def test_what_owners_expect_is_read_where_the_trace_has_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{HEADER},nominal_duration_s\n0,0,2,LM,10,gns,100,5,100,150\n")
    assert read_trace(trace, "shockwave")[0].expected == 150 * SECOND
    trace.write_text(f"{HEADER}\n0,0,2,LM,10,gns,100,5,100\n")
    assert read_trace(trace, "shockwave")[0].expected is None


def made(name: str, ours: float) -> Reproduction:
    findings = Findings([Row("a number", ours, 2.0)], [Claim("a claim", True)])
    return Reproduction(name, f"Title of {name}", "", findings, None)


def test_a_page_is_made_again_in_part(tmp_path: Path) -> None:
    names = ["salus/figure2_8", "symphony/figure2", "themis/figure9"]
    all_of: Any = {name: made(name, 1.0) for name in names}
    whole = tmp_path / "whole.md"
    again = tmp_path / "again.md"
    whole.write_text(page(list(all_of.values()), "astrarium reproduce all"))
    changed = made("symphony/figure2", 2.0)
    new = made("symphony/figure10", 3.0)
    again.write_text(page([new, changed], "astrarium reproduce symphony/figure10"))
    main(str(whole), str(again))
    expected = [all_of["salus/figure2_8"], changed, new, all_of["themis/figure9"]]
    assert whole.read_text() == page(expected, "astrarium reproduce all")


def test_a_page_merged_with_itself_stays_as_it_is() -> None:
    text = (ROOT / "docs" / "reproductions.md").read_text()
    assert merged(text, text) == text
