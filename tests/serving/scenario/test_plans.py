"""Plans go through files and come back the same; what does not go with a scenario is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND
from astrarium.placement.plan import Plan, Replica, check
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.problem import ALONE, Problem, Shape
from astrarium.serving.planning import plans
from astrarium.serving.scenario import build, load, parse
from astrarium.serving.scenario.schema import plain_scenario
from tests.support.pipelines import PIPELINE, halved

GIB = 2**30
BY_KIND = {"A100": {"alpha": "1ms", "beta": "4ms"}, "T4": {"alpha": "2ms", "beta": "4ms"}}
GROUPS = [
    {"kind": "A100", "count": 2, "memory": "10GiB"},
    {"kind": "T4", "count": 1, "memory": "8GiB", "nodes": 1},
]
SCENARIO: dict[str, Any] = {
    "cluster": {"gpus": GROUPS},
    "models": {
        "bert": {
            "profile": {"kinds": BY_KIND},
            "slo": "20ms",
            "memory": "6GiB",
        },
        "vgg": {"profile": {"alpha": "1ms", "beta": "5ms"}, "slo": "30ms", "memory": "3GiB", "max_batch": 4},
    },
    "workload": {"arrivals": "poisson", "rate": {"bert": "20/s", "vgg": "30/s"}, "duration": "10s"},
    "seed": 3,
}


@pytest.fixture
def problem() -> Problem:
    return halved(plans.problem(parse(SCENARIO, planning=True)))


PLAN = Plan(
    "by hand",
    (
        Replica(0, (0, 2), PIPELINE, batch=4, why="in halves: “small”"),
        Replica(0, (1,), batch=8, share=0.75),
        Replica(1, (1,), share=0.25),
    ),
    attainment=0.98,
)


def changed(**changes: Any) -> dict[str, Any]:
    return {**SCENARIO, **changes}


def test_a_scenario_becomes_a_problem(problem: Problem) -> None:
    assert [(gpu.id, gpu.memory, gpu.node, gpu.kind) for gpu in problem.gpus] == [
        (0, 10 * GIB, 0, "A100"),
        (1, 10 * GIB, 0, "A100"),
        (2, 8 * GIB, 1, "T4"),
    ]
    bert, vgg = problem.models
    assert (bert.name, bert.rate, bert.slo) == ("bert", 20.0, 20 * MILLISECOND)
    # the slower kind: 2 b + 4 ms, up to the 20 ms that it has
    expected = [2 * size * MILLISECOND + 4 * MILLISECOND for size in range(1, 9)]
    assert bert.forms[ALONE].stage_times == ((0, *expected),)
    assert bert.forms[ALONE].weights == (6 * GIB,)
    assert bert.forms[PIPELINE].weights == (3 * GIB, 3 * GIB)
    assert vgg.forms[ALONE].max_batch == 4


def test_requests_to_plan_with_are_alike_but_not_the_same(problem: Problem) -> None:
    real = build.arrivals(parse(SCENARIO, planning=True))
    assert len(problem.requests.times) == pytest.approx(500, rel=0.25)
    assert problem.requests.times != tuple(real.time.tolist())
    assert problem.requests == plans.problem(parse(SCENARIO, planning=True)).requests


def test_rates_are_means_over_the_duration() -> None:
    workload = {**SCENARIO["workload"], "changes": [{"at": "5s", "rate": {"bert": "60/s"}}]}
    plan = plans.problem(parse(changed(workload=workload), planning=True))
    assert [model.rate for model in plan.models] == [40.0, 30.0]


def test_a_trace_is_counted_and_not_planned_with(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("time_s,model\n0,bert\n1,vgg\n2,vgg\n3,vgg\n")
    workload = {"arrivals": "trace", "file": "trace.csv", "duration": "4s"}
    plan = plans.problem(parse(changed(workload=workload), base=tmp_path, planning=True))
    assert [model.rate for model in plan.models] == [0.25, 0.75]
    assert plan.requests.times == ()


def test_models_that_do_not_fit_together_can_be_planned() -> None:
    tight = changed(cluster={"gpus": 2, "kind": "A100", "memory": "8GiB"})
    with pytest.raises(InputError, match="every model lives on every GPU"):
        parse(tight)
    tight_problem = plans.problem(parse(tight, planning=True))
    factory: Any = placement_policies.get("selective-replication")
    plan = factory(factory.Parameters()).place(tight_problem, Search())
    check(plan, tight_problem)
    assert not plan.missing
    assert plans.parse(plans.plain(plan, tight_problem), tight_problem) == plan


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"cluster": {"gpus": 2, "kind": "A100"}}, "cluster.memory"),
        (
            {
                "cluster": {
                    "gpus": [{"kind": "A100", "count": 1, "memory": "8GiB"}, {"kind": "T4", "count": 1}]
                }
            },
            "cluster.gpus[1].memory",
        ),
        (
            {"models": {**SCENARIO["models"], "vgg": {"profile": "zoo:A100/VGG16"}}},
            "models.vgg.memory",
        ),
    ],
)
def test_what_planning_needs_to_know_is_named(part: dict[str, Any], field: str) -> None:
    scenario = parse(changed(**part), planning=True)
    with pytest.raises(InputError) as caught:
        plans.problem(scenario)
    assert caught.value.field == field
    assert "a value such as" in caught.value.expected


def test_a_scenario_that_is_only_served_cannot_be_planned() -> None:
    only_served = {name: part for name, part in SCENARIO.items() if name != "workload"}
    with pytest.raises(InputError, match="workload"):
        plans.problem(parse(only_served, serving=True, planning=True))


@pytest.mark.parametrize("name", ["plan.yaml", "plan.yml", "plan.json"])
def test_a_plan_comes_back_from_its_file(name: str, tmp_path: Path, problem: Problem) -> None:
    plans.save(tmp_path / name, PLAN, problem)
    assert plans.load(tmp_path / name, problem) == PLAN


def test_files_speak_of_names_and_shapes(problem: Problem) -> None:
    first = yaml.safe_load(plans.to_yaml(PLAN, problem))["replicas"][0]
    assert first == {
        "model": "bert",
        "gpus": [0, 2],
        "shape": "op1pp2",
        "batch": 4,
        "why": "in halves: “small”",
    }
    assert json.loads(plans.to_json(PLAN, problem))["replicas"][2] == {
        "model": "vgg",
        "gpus": [1],
        "share": 0.25,
    }


def test_what_is_missing_comes_back_too(problem: Problem) -> None:
    plan = Plan("by hand", (Replica(1, (0,)),), {0: "a larger GPU"})
    assert plans.plain(plan, problem)["missing"] == {"bert": "a larger GPU"}
    assert plans.parse(plans.plain(plan, problem), problem) == plan


def test_a_plan_goes_by_names_not_by_numbers(problem: Problem) -> None:
    """The same plan, used with a scenario that lists its models the other way round."""
    turned = changed(models=dict(reversed(SCENARIO["models"].items())))
    other = halved(plans.problem(parse(turned, planning=True)))
    plan = plans.parse(plans.plain(PLAN, problem), other)
    assert [replica.model for replica in plan.replicas] == [1, 1, 0]


RIGHT: dict[str, Any] = {
    "policy": "by hand",
    "replicas": [{"model": "bert", "gpus": [0]}, {"model": "vgg", "gpus": [1, 2], "shape": "op1pp2"}],
}


def edited(place: int, **changes: Any) -> dict[str, Any]:
    replicas = [dict(replica) for replica in RIGHT["replicas"]]
    replicas[place].update(changes)
    return {**RIGHT, "replicas": replicas}


HALF = {"model": "vgg", "gpus": [0], "share": 0.5}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    (edited(0, model="brt"), "replicas[0].model", "did you mean 'bert'?"),
    (edited(0, gpus=[7]), "replicas[0].gpus[0]", "a GPU of the cluster: 0 to 2"),
    (edited(0, gpus=[0, 1]), "replicas[0].gpus", "1 GPUs, as op1pp1 says"),
    (edited(1, gpus=[1, 1]), "replicas[1].gpus[1]", "another GPU"),
    (edited(0, gpus="0"), "replicas[0].gpus", "a list"),
    (edited(1, shape="pp2"), "replicas[1].shape", "such as op2pp4"),
    (edited(1, shape="op2pp1"), "replicas[1].shape", "op1pp1, op1pp2"),
    (edited(0, batch=0), "replicas[0].batch", "1 to 8"),
    (edited(0, batch=9), "replicas[0].batch", "1 to 8"),
    (edited(0, batch="many"), "replicas[0].batch", "a whole number"),
    (edited(0, share=0), "replicas[0].share", "above 0"),
    (edited(0, share=1.5), "replicas[0].share", "up to 1"),
    (edited(0, stages=2), "replicas[0].stages", "one of model, gpus"),
    ({"policy": "x", "replicas": RIGHT["replicas"][:1]}, "replicas", "a replica of vgg, or an entry"),
    ({**RIGHT, "missing": {"vgg": "room"}}, "missing.vgg", "it has a replica"),
    ({**RIGHT, "missing": {"vggg": "room"}}, "missing.vggg", "did you mean 'vgg'?"),
    ({**RIGHT, "attainment": 1.2}, "attainment", "from 0 to 1"),
    ({"policy": "x"}, "replicas", "required"),
    (
        {**RIGHT, "replicas": [*RIGHT["replicas"], {"model": "bert", "gpus": [0]}]},
        "replicas[2]",
        "at most 4GiB on GPU 0",
    ),
    (
        {**RIGHT, "replicas": [*edited(0, share=0.6)["replicas"], HALF]},
        "replicas[2].share",
        "the 0.6 that others have of GPU 0",
    ),
]


def test_the_right_one_is_right(problem: Problem) -> None:
    check(plans.parse(RIGHT, problem), problem)


@pytest.mark.parametrize(("raw", "field", "expected"), WRONG)
def test_what_does_not_go_with_the_scenario_is_named(
    raw: dict[str, Any], field: str, expected: str, problem: Problem, tmp_path: Path
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(InputError) as caught:
        plans.load(path, problem)
    assert (caught.value.field, caught.value.source) == (field, str(path))
    assert expected in caught.value.expected


def test_files_that_cannot_be_used_are_named(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml.*a plan that can be read"):
        plans.load(tmp_path / "none.yaml", problem)
    (tmp_path / "latin.yaml").write_bytes(b"policy: caf\xe9")
    with pytest.raises(InputError, match="UTF-8"):
        plans.load(tmp_path / "latin.yaml", problem)
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(InputError, match="a mapping with policy, replicas"):
        plans.load(tmp_path / "list.yaml", problem)
    with pytest.raises(InputError, match=r"ends in \.yaml"):
        plans.save(tmp_path / "plan.txt", PLAN, problem)
    with pytest.raises(InputError, match="a file that can be written"):
        plans.save(tmp_path / "no" / "plan.yaml", PLAN, problem)


def test_a_scenario_file_can_be_read_for_planning(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(changed(cluster={"gpus": 2, "kind": "A100", "memory": "7GiB"})))
    assert len(plans.problem(load(path, planning=True)).models) == 2


def test_every_plan_field_is_written() -> None:
    """A field that is added to a replica must not be lost on the way."""
    from astrarium.placement.plan_file import PlanEntry, ReplicaEntry

    for inside, outside in ((Replica, ReplicaEntry), (Plan, PlanEntry)):
        names = [{info.name for info in msgspec.structs.fields(kind)} for kind in (inside, outside)]
        assert names[0] == names[1]


PARALLEL = {
    "op1pp2": {"profile": {"alpha": "1ms", "beta": "4ms"}, "memory": "3GiB"},
    "op2pp1": {"profile": {"table": ["4ms", "5ms", "25ms"]}, "memory": "3GiB"},
    "op1pp4": {"profile": {"table": ["6ms"]}, "memory": "2GiB"},
}


def with_parallel(parallel: Any) -> dict[str, Any]:
    models = {**SCENARIO["models"], "bert": {**SCENARIO["models"]["bert"], "parallel": parallel}}
    return {**SCENARIO, "models": models}


def test_a_model_says_itself_how_it_can_be_spread() -> None:
    """As far as batches keep the SLO of 20 ms: 4 stages of 6 ms never do."""
    scenario = parse(with_parallel(PARALLEL), planning=True)
    forms = plans.problem(scenario).models[0].forms
    wide = Shape(stages=1, operators=2)
    assert forms.keys() == {ALONE, PIPELINE, wide}
    assert (forms[PIPELINE].max_batch, forms[PIPELINE].latency(6)) == (6, 2 * 10 * MILLISECOND)
    assert (forms[wide].max_batch, forms[wide].weights) == (2, (3 * GIB,))
    assert parse(plain_scenario(scenario), planning=True) == scenario


@pytest.mark.parametrize(
    ("shape", "part", "message"),
    [
        ("two", {"profile": {"table": ["4ms"]}, "memory": "1GiB"}, r"parallel\.two: expected a shape"),
        ("op1pp1", {"profile": {"table": ["4ms"]}, "memory": "1GiB"}, "several GPUs, such as op1pp2"),
        ("op1pp2", {"profile": {"table": ["4ms"]}, "memory": "0GiB"}, r"op1pp2\.memory"),
        ("op1pp2", {"profile": {"table": ["4ms"]}}, "memory"),
        ("op1pp2", {"profile": {"kinds": BY_KIND}, "memory": "1GiB"}, "zoo, linear or a table"),
    ],
)
def test_what_is_wrong_about_a_spread_is_named(shape: str, part: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(with_parallel({shape: part}), planning=True)
