"""`astrarium plan` as a person or a script meets it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from astrarium.cli.main import INTERRUPTED
from astrarium.serving.planned import judge as judging
from astrarium.serving.planning import plans
from astrarium.serving.scenario import load
from tests.support.paths import ROOT

pytest_plugins = ("tests.support.cli_fixtures",)

SCENARIO = """\
cluster: {gpus: 3, kind: T4, memory: 8GiB}
models:
  quick: {profile: {table: [10ms]}, slo: 25ms, memory: 3GiB}
  slow: {profile: {table: [20ms]}, slo: 50ms, memory: 6GiB}
workload: {arrivals: uniform, rate: {quick: 50/s, slow: 40/s}, duration: 4s}
seed: 1
"""
QUICK = ("--policy", "selective-replication", "--no-growth")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    (tmp_path / "there.yaml").write_text("mine\n")
    return path


def test_the_answer_in_words_and_tables(call: Any, file: Path) -> None:
    answer = call("plan", "small.yaml", "--policy", "selective-replication")
    assert answer.code == 0, answer.err
    goal = "enough for every model to have 99 % of its requests in time, and fewer cannot carry the load"
    assert answer.lines[0] == f"selective-replication: 2 GPUs are {goal}"
    assert answer.lines[1] == "the scenario's cluster has 3 GPUs: 1 of them would stay free"
    assert any(line.startswith("what breaks first: the plan carries ") for line in answer.lines)
    assert any(line.startswith("slow 50 40.0 1 100.00% 100.00% 100.00%") for line in answer.lines)
    assert any("3.00 GiB of 8.00 GiB" in line and "quick" in line for line in answer.lines)


def test_a_saved_plan_is_read_back_and_runs(call: Any, file: Path) -> None:
    for name in ("plan.yaml", "plan.json"):
        shown = call("plan", "small.yaml", *QUICK, "--out", name, "--json").json
        problem = plans.problem(load(file, planning=True))
        assert plans.plain(plans.load(name, problem), problem) == shown["plan"]
        assert (shown["gpus"], shown["fewest"], shown["met"], shown["out"]) == (2, 2, True, name)
    answer = call("simulate", "small.yaml", "--plan", "plan.yaml", "--no-folder", "--json").json
    assert answer["attainment"] == 1


def test_a_cluster_that_is_too_small_is_told_how_many_it_takes(call: Any, file: Path) -> None:
    answer = call("plan", "small.yaml", *QUICK, "-o", "cluster.gpus=1", "--out", "plan.yaml")
    expected = "the scenario's cluster has 1 GPU: the plan asks for 1 more like it (-o cluster.gpus=2)"
    assert expected in answer.lines
    again = call(
        "simulate", "small.yaml", "-o", "cluster.gpus=2", "--plan", "plan.yaml", "--no-folder", "--json"
    )
    assert again.json["attainment"] == 1


def test_a_given_number_of_gpus_and_what_is_missing(call: Any, file: Path) -> None:
    answer = call("plan", "small.yaml", *QUICK, "--gpus", "1")
    assert any(
        line.endswith("of all requests are in time on 1 GPU; below 99 %: slow") for line in answer.lines
    )
    assert any(line.startswith("slow has no replica. It would take: ") for line in answer.lines)
    shown = call("plan", "small.yaml", *QUICK, "--gpus", "1", "--json").json
    assert (shown["met"], shown["fewest"], list(shown["plan"]["missing"])) == (False, None, ["slow"])


def test_a_model_nobody_asks_for_is_said_to_be_one(call: Any, file: Path) -> None:
    answer = call("plan", "small.yaml", "--policy", "planner", "-o", "workload.rate.quick=0/s")
    assert any(line.startswith("quick 25 0.0 none nobody asks") for line in answer.lines)
    assert "quick has no replica. Nobody asks for it." in answer.lines


def test_a_model_without_a_replica_breaks_at_any_load(call: Any, file: Path) -> None:
    answer = call("plan", "small.yaml", "--policy", "selective-replication", "--gpus", "1", "--no-each")
    assert "what breaks first: slow, at any load: without a replica nobody answers" in answer.lines


def test_policies_side_by_side(call: Any, file: Path) -> None:
    rivals = "alpaserve:runtime={dispatch: queue, fixed_overhead: 0},round-robin:stages=1,operators=1"
    answer = call("plan", "small.yaml", *QUICK, "--gpus", "1", "--against", rivals)
    header = "policy in time, on 1 GPU lowest highest worst model fewest GPUs"
    rows = answer.lines[answer.lines.index(header) + 2 :]
    rows_of_policies = [row.rsplit(" ", 1) for row in rows[:3]]
    assert [re.split(r" [\d.]+%", row)[0] for row, _ in rows_of_policies] == [
        "selective-replication",
        "alpaserve (runtime={dispatch: queue, fixed_overhead: 0})",
        "round-robin (stages=1,operators=1)",
    ]
    assert [fewest for _, fewest in rows_of_policies] == ["2", "2", "2"]
    assert any("places no slow. slow would take: " in row for row in rows)


@pytest.mark.parametrize(("left", "judged"), [(0, False), (3, True)])
def test_an_interrupt_shows_and_writes_the_best_so_far(
    call: Any, file: Path, monkeypatch: pytest.MonkeyPatch, left: int, judged: bool
) -> None:
    calls = [0]
    real = judging.PlanJudge

    def make(*arguments: Any) -> Any:
        judge = real(*arguments)

        def interrupted(*options: Any) -> Any:
            calls[0] += 1
            if calls[0] > left:
                raise KeyboardInterrupt
            return judge(*options)

        return interrupted

    monkeypatch.setattr(judging, "PlanJudge", make)
    answer = call("plan", "small.yaml", "--policy", "selective-replication", "--out", "best.yaml")
    assert (answer.code, answer.err) == (INTERRUPTED, "interrupted\n")
    assert answer.lines[0] == "selective-replication: interrupted; this is the best plan so far, for 2 GPUs"
    assert any("not judged" in line for line in answer.lines) is not judged
    problem = plans.load("best.yaml", plans.problem(load(file, planning=True)))
    assert problem.replicas


def test_pictures_are_drawn(call: Any, file: Path) -> None:
    assert call("plan", "small.yaml", *QUICK, "--plot", "placed.png").code == 0
    assert Path("placed.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "field", "expected"),
    [
        (["--policy", "planer"], "--policy", "did you mean 'planner'?"),
        (["--against", "alpaserve,ushr"], "--against", "did you mean 'usher'?"),
        (["--against", "alpaserve,"], "--against", "such as alpaserve,usher"),
        (["-p", "stages"], "-p", "KEY=VALUE"),
        (["-p", "steps=2"], "-p steps", "one of"),
        (["--target", "101%"], "--target", "such as 99% or 0.99"),
        (["--target", "most"], "--target", "such as 99% or 0.99"),
        (["--gpus", "0"], "--gpus", "1 to"),
        (["--seeds", "0"], "--seeds", "at least one"),
        (["--out", "plan.txt"], "--out", ".yaml, .yml, .json"),
        (["--out", "there.yaml"], "--out", "--overwrite"),
        (["--out", "small.yaml", "--overwrite"], "--out", "this is the scenario"),
        (["--plot", "no/placed.png"], "--plot", "a folder that is there"),
        (["--interference", "much"], "--interference", "one of none, igniter"),
        (["-o", "cluster={gpus: 2}"], "small.yaml: cluster.memory", "a value such as 16GiB"),
        (["-o", "models.slow.memory=9GiB"], "small.yaml: models.slow.memory", "at most 8GiB"),
    ],
)
def test_what_is_wrong_is_named(
    call: Any, file: Path, arguments: list[str], field: str, expected: str
) -> None:
    answer = call("plan", "small.yaml", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert f"error: {field}: expected" in answer.err.replace("planner: -p", "-p")
    assert expected in answer.err


def test_placement_policies_are_listed_and_described(call: Any) -> None:
    listed = call("policies").out
    assert "planner (default)" in listed
    assert "placement policy (astrarium plan)" in listed
    answer = call("policies", "--json").json["policies"]["placement"]
    assert {"alpaserve", "igniter", "planner", "usher"} <= answer.keys()
    described = call("policies", "usher", "--json").json
    assert described["parameters"]["cluster"]["default"] == "fixed"
    assert "a policy of any level" in call("policies", "ushr").err


def test_the_example_is_a_scenario_for_planning() -> None:
    example = ROOT / "examples" / "planning" / "plan.yaml"
    assert len(plans.problem(load(example, planning=True)).models) == len(
        yaml.safe_load(example.read_text())["models"]
    )
