"""How few GPUs are enough and what breaks first; the requests, clusters and interrupts of planning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from astrarium.core.choice import Choice
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.policies import Judge
from astrarium.placement.problem import ALONE, PlacementRequests, Problem, Shape
from astrarium.serving.planning import plans
from astrarium.serving.planning.answer import Question, answered
from astrarium.serving.planning.clusters import fewest_possible, sized
from astrarium.serving.planning.gpu_use import uses
from astrarium.serving.planning.growth import growth, narrowed, reason
from astrarium.serving.planning.known import interference_named, measured_on_v100s
from astrarium.serving.planning.load import PlanningLoad, grown, with_rates
from astrarium.serving.planning.picture import draw_placement
from astrarium.serving.planning.search import (
    Attempt,
    Planning,
    PlanningGoals,
    PlanningWatch,
    placement_policy,
)
from astrarium.serving.planning.sentences import path_line
from astrarium.serving.scenario import Scenario, parse
from tests.support.pipelines import PIPELINE, halved

REPLICATION = Choice("selective-replication")


def scenario(**changes: Any) -> Scenario:
    """One model of 10 ms, one request at a time, that asks every 1/350 s: 3.5 GPUs are always busy."""
    raw = {
        "cluster": {"gpus": 2, "memory": "8GiB"},
        "models": {"only": {"profile": {"table": ["10ms"]}, "slo": "25ms", "memory": "3GiB"}},
        "workload": {"arrivals": "uniform", "rate": "350/s", "duration": "4s"},
        "seed": 5,
    }
    return parse({**raw, **changes}, planning=True)


TWO: dict[str, Any] = {
    "models": {
        "quick": {"profile": {"table": ["10ms"]}, "slo": "25ms", "memory": "3GiB"},
        "slow": {"profile": {"table": ["20ms"]}, "slo": "50ms", "memory": "6GiB"},
    },
    "workload": {"arrivals": "uniform", "rate": {"quick": "50/s", "slow": "40/s"}, "duration": "4s"},
}


def enough_with(count: int) -> Callable[..., Judge]:
    """A judge that is pleased with so many GPUs or more, whatever stands on them."""

    def make(scenario: Scenario, problem: Problem, *_: Any) -> Judge:
        share = min(1.0, len(problem.gpus) / count)
        return lambda plan, requests: [share] * len(problem.models)

    return make


@pytest.mark.parametrize(
    ("path_time", "carried", "said"),
    [
        ("10ms", 100, "one server carries 100 of these 350 requests/s: divide the models among 4 servers"),
        ("2.778ms", 360, "before that breaks the path of calls: one server's carries 1.03 times the load"),
        ("1ms", 1000, ""),
    ],
)
def test_a_plan_tells_what_the_path_of_calls_carries(path_time: str, carried: float, said: str) -> None:
    only = {"profile": {"table": ["10ms"]}, "slo": "25ms", "memory": "3GiB", "path_time": path_time}
    planned = scenario(models={"only": only})
    answer = answered(planned, REPLICATION, PlanningGoals(), Question(each=False))
    assert answer.path == pytest.approx(carried / 350, rel=0.01)
    assert path_line(answer).endswith(said)
    assert bool(path_line(answer)) == bool(said)


def test_a_plan_without_the_path_of_calls_says_so() -> None:
    answer = answered(scenario(), REPLICATION, PlanningGoals(), Question(each=False))
    assert answer.path is None
    assert path_line(answer).startswith("the path of calls is not counted: `astrarium profile")


def test_the_fewest_gpus_are_those_of_the_arithmetic() -> None:
    answer = answered(scenario(), REPLICATION, PlanningGoals(), Question(each=False))
    assert answer.chosen is not None
    assert answer.chosen is answer.fewest
    assert (answer.chosen.gpus, answer.chosen.met) == (4, True)
    busy = [use.busy for use in uses(answer.chosen.plan, answer.chosen.problem)]
    assert busy == pytest.approx([3.5 / 4] * 4, rel=0.01)
    growth_of_load = answer.growth
    assert growth_of_load is not None
    assert growth_of_load.breaks is not None
    assert growth_of_load.carries <= 1.2  # 400/s are all that four can do, and one in a hundred may be late
    assert growth_of_load.breaks > 4 / 3.5
    assert (growth_of_load.first, "even if every batch were full" in growth_of_load.why) == (0, True)


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 13, 16])
def test_the_search_finds_the_smallest_size_that_is_enough(needed: int) -> None:
    easy = scenario(workload={"arrivals": "uniform", "rate": "10/s", "duration": "1s"})
    watch = PlanningWatch()
    planning = Planning(easy, REPLICATION, PlanningGoals(make_judge=enough_with(needed)), watch)
    fewest = planning.fewest()
    assert fewest is not None
    assert fewest.gpus == needed
    tried = [attempt.gpus for attempt in watch.attempts]
    assert needed == 1 or needed - 1 in tried
    assert len(tried) == len(set(tried)) <= 9
    assert watch.best is fewest


def test_where_no_number_is_enough_the_search_ends() -> None:
    easy = scenario(workload={"arrivals": "uniform", "rate": "10/s", "duration": "1s"})
    capped = Planning(easy, REPLICATION, PlanningGoals(most=8, make_judge=enough_with(9)), PlanningWatch())
    assert capped.fewest() is None

    def never(*_: Any) -> Judge:
        return lambda plan, requests: [0.5]

    watch = PlanningWatch()
    assert Planning(easy, REPLICATION, PlanningGoals(make_judge=never), watch).fewest() is None
    assert [attempt.gpus for attempt in watch.attempts] == [1, 2, 4]  # twice as many twice: no better


def test_fewer_than_memory_and_time_allow_are_not_even_tried() -> None:
    problem = plans.problem(scenario())
    assert fewest_possible(problem, 1.0) == 4
    assert fewest_possible(problem, 0.5) == 2
    assert fewest_possible(plans.problem(scenario(**TWO)), 0.99) == 2  # 9 GiB on GPUs of 8


MIXED = {  # B is twice as fast as A, and the only one that is large enough for both models
    "cluster": {
        "gpus": [{"kind": "A", "count": 2, "memory": "8GiB"}, {"kind": "B", "count": 2, "memory": "16GiB"}]
    },
    "models": {
        "quick": {
            "profile": {"kinds": {"A": {"table": ["10ms"]}, "B": {"table": ["5ms"]}}},
            "slo": "50ms",
            "memory": "3GiB",
        },
        "slow": {
            "profile": {"kinds": {"A": {"table": ["20ms"]}, "B": {"table": ["10ms"]}}},
            "slo": "100ms",
            "memory": "10GiB",
        },
    },
}


@pytest.mark.parametrize(("slow", "gpus", "busy"), [(30, [2], 0.55), (120, [2, 3], 1.45)])
def test_of_unequal_gpus_those_are_taken_that_do(slow: int, gpus: list[int], busy: float) -> None:
    """At 5 and 10 ms on a B, 50/s and 30/s keep 0.55 of one busy, 50/s and 120/s 1.45."""
    workload = {"arrivals": "poisson", "rate": {"quick": "50/s", "slow": f"{slow}/s"}, "duration": "10s"}
    fewest = Planning(
        scenario(**MIXED, workload=workload), Choice("planner"), PlanningGoals(), PlanningWatch()
    ).fewest()
    assert fewest is not None
    assert [gpu.id for gpu in fewest.problem.gpus] == gpus
    assert sum(use.busy for use in fewest.uses) == pytest.approx(busy, rel=0.01)


def test_an_objective_longer_than_the_run_does_not_hide_an_overload() -> None:
    patient = {"only": {"profile": {"table": ["10ms"]}, "slo": "1000s", "memory": "3GiB"}}
    answer = answered(scenario(models=patient), REPLICATION, PlanningGoals(), Question(each=False))
    assert answer.chosen is not None
    assert answer.chosen.gpus == 4
    assert answer.growth is not None
    assert answer.growth.breaks == pytest.approx(4 / 3.5 / 0.99, rel=0.03)
    short = Planning(scenario(models=patient), REPLICATION, PlanningGoals(), PlanningWatch()).attempt(3)
    assert short.judged is not None
    assert not short.judged.below(0.99)  # nobody is late while the run lasts
    assert (short.short, short.met) == ([0], False)


def test_a_model_that_is_seldom_asked_for_is_worth_more_gpus() -> None:
    """Of all requests it is one in a thousand; two doublings help it and hardly anybody else."""
    rare = {**TWO, "workload": {**TWO["workload"], "rate": {"quick": "50/s", "slow": "0.05/s"}}}

    def make(scenario: Scenario, problem: Problem, *_: Any) -> Judge:
        return lambda plan, requests: [1.0, min(1.0, len(problem.gpus) / 16)]

    fewest = Planning(scenario(**rare), REPLICATION, PlanningGoals(make_judge=make), PlanningWatch()).fewest()
    assert fewest is not None
    assert fewest.gpus == 16


def test_no_more_gpus_are_used_than_may_be_tried() -> None:
    answer = answered(scenario(**TWO), REPLICATION, PlanningGoals(most=1), Question(grow=False))
    assert answer.chosen is not None
    assert (answer.fewest, answer.chosen.gpus) == (None, 1)


def test_a_model_that_fits_on_no_gpu_is_named() -> None:
    large = {"only": {"profile": {"table": ["10ms"]}, "slo": "25ms", "memory": "9GiB"}}
    with pytest.raises(InputError) as caught:
        answered(scenario(models=large), REPLICATION, PlanningGoals(), Question())
    assert (caught.value.field, caught.value.value) == ("models.only.memory", "9GiB")


def test_a_larger_cluster_repeats_its_machines() -> None:
    groups = [
        {"kind": "A", "count": 4, "memory": "8GiB", "nodes": 2},
        {"kind": "B", "count": 1, "memory": "9GiB"},
    ]
    mixed = scenario(cluster={"gpus": groups})
    larger = sized(mixed, 9).cluster
    assert [(group.kind, group.count, group.nodes) for group in larger.groups[2:]] == [
        ("A", 2, 1),
        ("A", 2, 1),
    ]
    assert sized(mixed, 3) is mixed
    assert [gpu.node for gpu in plans.problem(sized(mixed, 9)).gpus] == [0, 0, 1, 1, 2, 3, 3, 4, 4]
    assert sized(scenario(), 5).cluster.gpus == 5


def test_plans_are_judged_on_requests_that_nobody_planned_with() -> None:
    load = PlanningLoad(
        scenario(workload={"arrivals": "poisson", "rate": "100/s", "duration": "4s"}), seeds=3
    )
    draws = [load.posed(plans.problem(load.scenario)).requests, *load.fresh()]
    assert len(set(draws)) == 4
    assert draws[1:] == load.fresh()


def test_a_model_can_grow_alone_and_keeps_its_changes() -> None:
    changing = {**TWO["workload"], "changes": [{"at": "2s", "rate": {"slow": "10/s"}}]}
    before = scenario(**{**TWO, "workload": changing})
    [requests] = PlanningLoad(grown(before, [2, 1]), seeds=1).fresh()
    [same] = PlanningLoad(before, seeds=1).fresh()
    assert requests.models.count(0) == pytest.approx(2 * same.models.count(0), abs=1)
    assert [at for at, model in zip(requests.times, requests.models, strict=True) if model == 1] == [
        at for at, model in zip(same.times, same.models, strict=True) if model == 1
    ]


@pytest.fixture
def traced(tmp_path: Path) -> Scenario:
    """Calm in its first half, three times as much in its second."""
    rows = [(at, "quick") for at in range(0, 2000, 20)] + [(at, "quick") for at in range(2000, 4000, 7)]
    rows += [(at, "slow") for at in range(1, 4000, 100)]
    text = "".join(f"{at},{model}\n" for at, model in sorted(rows))
    (tmp_path / "trace.csv").write_text("time_ms,model\n" + text)
    workload = {"arrivals": "trace", "file": "trace.csv", "duration": "4s"}
    raw = {"cluster": {"gpus": 2, "memory": "8GiB"}, "models": TWO["models"], "workload": workload}
    return parse(raw, base=tmp_path, planning=True)


def test_a_trace_is_planned_from_its_history_and_judged_by_what_came_after(traced: Scenario) -> None:
    load = PlanningLoad(traced, seeds=3)
    posed = load.posed(plans.problem(traced))
    assert [model.rate for model in posed.models] == [50, 10]
    assert max(posed.requests.times) < 2 * SECOND
    draws = load.fresh()
    assert len(draws) == 3
    assert sum(len(draw.times) for draw in draws) == 286 + 20
    assert all(max(draw.times) < SECOND for draw in draws)


def test_reasons_are_told_for_the_load_that_judged(traced: Scenario) -> None:
    """quick asks 50 times a second at first, then every 7 ms."""
    load = PlanningLoad(traced)
    posed = load.posed(plans.problem(traced))
    assert [model.rate for model in load.judging(posed, [1, 2]).models] == pytest.approx([143, 20])


def test_a_trace_grows_by_running_faster_again_and_again(traced: Scenario) -> None:
    [before] = PlanningLoad(traced, seeds=1).fresh()
    [after] = PlanningLoad(traced, seeds=1).fresh([2.5, 1])
    assert after.models.count(0) == pytest.approx(2.5 * before.models.count(0), rel=0.02)
    assert after.models.count(1) == before.models.count(1)
    assert after.times == tuple(sorted(after.times))
    assert after.times[-1] < 2 * SECOND


@pytest.mark.parametrize("limit", [0.2, 0.5, 0.9, 1.0, 1.3, 2.0, 7.9])
def test_a_factor_is_narrowed_down(limit: float) -> None:
    good, bad = narrowed(lambda factor: factor <= limit)
    assert bad is not None
    assert good <= limit < bad <= good * 1.02 + 1e-9


def test_a_factor_has_ends() -> None:
    assert narrowed(lambda factor: True) == (8.0, None)
    assert narrowed(lambda factor: False) == (0.0, 0.125)


def test_one_model_may_grow_more_than_all() -> None:
    planning = Planning(scenario(**TWO), REPLICATION, PlanningGoals(), PlanningWatch())
    attempt = planning.attempt(2)
    together, quick, slow = (growth(planning, attempt, model) for model in (None, 0, 1))
    assert together.carries <= min(quick.carries, slow.carries)
    assert (quick.first, slow.first) == (0, 1)


def test_the_router_divides_a_grown_load_anew() -> None:
    rates_seen: list[list[float]] = []

    def make(scenario: Scenario, problem: Problem, *_: Any) -> Judge:
        rates_seen.append([model.rate for model in problem.models])
        return lambda plan, requests: [1.0 for _ in problem.models]

    planning = Planning(scenario(**TWO), REPLICATION, PlanningGoals(make_judge=make), PlanningWatch())
    growth(planning, planning.attempt(2), 0)
    assert rates_seen[1:3] == [[50, 40], [100, 40]]


def test_a_model_without_a_replica_breaks_first_and_says_what_it_takes() -> None:
    planning = Planning(scenario(**TWO), REPLICATION, PlanningGoals(), PlanningWatch())
    attempt = planning.attempt(1)
    assert len(attempt.plan.missing) == 1
    growth_of_load = growth(planning, attempt)
    assert (growth_of_load.carries, growth_of_load.first) == (0.0, next(iter(attempt.plan.missing)))
    assert growth_of_load.why.startswith("it has no replica: ")


def interrupted_after(judgements: int) -> Callable[..., Judge]:
    left = [judgements]

    def make(scenario: Scenario, problem: Problem, *_: Any) -> Judge:
        def judge(plan: Plan, requests: PlacementRequests) -> Sequence[float]:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return enough_with(5)(scenario, problem)(plan, requests)

        return judge

    return make


EASY = {"workload": {"arrivals": "uniform", "rate": "10/s", "duration": "1s"}}


@pytest.mark.parametrize(
    ("judgements", "gpus", "judged"),
    [
        (0, 1, False),  # a plan that nobody has judged yet
        (3, 1, True),  # 1, 2, 4, 8: the last is the first that is enough
        (9, 4, True),
        (12, 8, True),
        (15, 6, True),
    ],
)
def test_an_interrupt_keeps_the_best_so_far(judgements: int, gpus: int, judged: bool) -> None:
    goals = PlanningGoals(make_judge=interrupted_after(judgements))
    answer = answered(scenario(**EASY), REPLICATION, goals, Question())
    assert answer.interrupted
    assert answer.fewest is None
    assert answer.chosen is not None
    assert (answer.chosen.gpus, answer.chosen.judged is not None) == (gpus, judged)
    assert answer.chosen.plan.replicas


def test_an_interrupt_after_the_answer_keeps_the_answer() -> None:
    goals = PlanningGoals(make_judge=interrupted_after(18))  # 1, 2, 4, 8, 6, 5: each three times
    answer = answered(scenario(**EASY), REPLICATION, goals, Question())
    assert answer.interrupted
    assert answer.growth is None
    assert answer.chosen is not None
    assert answer.chosen is answer.fewest
    assert answer.chosen.gpus == 5


def test_rivals_stand_on_as_many_gpus_and_the_same_requests() -> None:
    judged: list[PlacementRequests] = []

    def make(scenario: Scenario, problem: Problem, *_: Any) -> Judge:
        def judge(plan: Plan, requests: PlacementRequests) -> Sequence[float]:
            judged.append(requests)
            return enough_with(3)(scenario, problem)(plan, requests)

        return judge

    question = Question(gpus=2, rivals=(Choice("round-robin", {"stages": 1}),), grow=False)
    answer = answered(scenario(**EASY), REPLICATION, PlanningGoals(make_judge=make), question)
    [rival] = answer.rivals
    assert (rival.same.gpus, rival.same.plan.policy, rival.choice.label) == (
        2,
        "round-robin",
        "round-robin (stages=1)",
    )
    assert answer.chosen is not None
    assert not answer.chosen.met
    assert [fewest.gpus for fewest in (answer.fewest, rival.fewest) if fewest is not None] == [3, 3]
    assert len(set(judged)) == 3


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: placement_policy(Choice("planer")), "--policy"),
        (lambda: placement_policy(Choice("alpaserve", {"beem": 2})), "-p beem"),
        (lambda: PlanningGoals(target=1.5), "--target"),
        (lambda: PlanningGoals(most=0), "--most"),
        (lambda: Question(gpus=0), "--gpus"),
        (lambda: PlanningLoad(scenario(), 0), "--seeds"),
        (lambda: interference_named("ignitor"), "--interference"),
    ],
)
def test_what_cannot_be_planned_is_named(make: Callable[[], object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.field == field


def vision(kind: str = "V100") -> Problem:
    model = {"profile": {"table": ["10ms"]}, "slo": "25ms", "memory": "3GiB"}
    models = {"resnet50": {**model, "copies": 2}, "AlexNet": model, "mine": model}
    return plans.problem(scenario(models=models, cluster={"gpus": 2, "memory": "16GiB", "kind": kind}))


def test_what_was_measured_comes_by_name() -> None:
    known = measured_on_v100s(vision())
    assert [bool(model.demands) for model in known.models] == [True, True, True, False]
    assert measured_on_v100s(vision("A100")) == vision("A100")
    igniter, slowing = interference_named("igniter")
    problem = igniter(vision("A100"))
    assert [model.igniter is not None for model in problem.models] == [True, True, True, False]
    assert slowing is not None
    with pytest.raises(InputError, match="alexnet, resnet50, vgg19, ssd"):
        igniter(plans.problem(scenario()))


def test_forms_over_several_gpus_come_by_name_in_proportion() -> None:
    """The scenario's model is half as fast and twice as large as AlpaServe's."""
    slow = {"profile": {"table": ["302.1826ms"]}, "slo": "2s", "memory": f"{2 * 2838835200}B", "copies": 2}
    cluster = {"gpus": 2, "memory": "16GiB", "kind": "V100"}
    known = measured_on_v100s(plans.problem(scenario(models={"bert-1.3b": slow}, cluster=cluster)))
    for model in known.models:
        halves = model.forms[Shape(stages=2)]
        assert [times[1] for times in halves.stage_times] == pytest.approx([2 * 75_070_900, 2 * 77_310_800])
        assert halves.weights == (2 * 1420419072, 2 * 1418416128)


def test_waiting_is_explained_by_the_batch_and_by_those_who_take_turns() -> None:
    problem = plans.problem(scenario(**TWO, cluster={"gpus": 1, "memory": "10GiB"}))
    plan = Plan("by hand", (Replica(0, (0,)), Replica(1, (0,))))

    def told_at(factor: float) -> str:
        load = with_rates(problem, [model.rate * factor for model in problem.models])
        return reason(Attempt(1, load, plan, None, 0.99), load.models[0])

    message = told_at(0.1)
    assert message.startswith(
        "GPU 0 would be 13% busy: requests wait too long. A batch of 1 takes 10.0 ms of "
    )
    assert message.endswith("; slow by turns with it takes up to 20.0 ms")
    assert "130% busy even if" in told_at(1.0)


def test_measured_slowdowns_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text("pairs: [{model: mine, beside: AlexNet, slowdown: 1.5}]\notherwise: 1.0\n")
    known, slowing = interference_named(str(path))
    assert slowing is not None
    assert known(vision()).models[0].demands
    halves = Plan("by hand", (Replica(2, (0,), share=0.5), Replica(3, (0,), share=0.5)), {0: "", 1: ""})
    problem = known(vision())
    from astrarium.placement.interference import Tenant

    tenants = [Tenant(replica.model, replica.batch, replica.share) for replica in halves.replicas]
    assert slowing(problem).slowdowns(problem.gpus[0], tenants) == (1.0, 1.5)


def test_a_picture_of_turns_shares_and_pipelines(tmp_path: Path) -> None:
    problem = halved(plans.problem(scenario(**TWO, cluster={"gpus": 5, "memory": "10GiB"})))
    replicas = (
        Replica(0, (0,)), Replica(1, (0,)), Replica(0, (1,), share=0.25), Replica(1, (1,), share=0.5),
        Replica(1, (2, 3), PIPELINE), Replica(0, (2, 3), PIPELINE),
    )  # fmt: skip
    report = uses(Plan("by hand", replicas), problem)
    assert [len(use.replicas) for use in report] == [2, 2, 2, 2, 0]
    assert [use.divided for use in report] == [False, True, False, False, False]
    assert report[4].busy == 0
    assert report[2].busy == pytest.approx(report[3].busy)
    rates = {0: 0.0, 1: 0.0}
    for use in report:  # what each replica works, turned back into requests, is all that comes
        for use_of_replica in use.replicas:
            alone = 10e-3 if use_of_replica.replica.model == 0 else 20e-3
            seconds = alone / use_of_replica.replica.share if use_of_replica.replica.shape == ALONE else alone
            rates[use_of_replica.replica.model] += use_of_replica.busy / seconds
    assert rates == {0: pytest.approx(50, rel=0.01), 1: pytest.approx(40, rel=0.01)}
    draw_placement(report, ["quick", "slow"], tmp_path / "placement.png", "by hand")
    assert (tmp_path / "placement.png").stat().st_size > 5000
