"""Usher and its kind by weighted occupancy: the thesis's placements, and what holds for any problem."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from papers.tests.elvinger.thesis_cases import (
    MIXED,
    VISION,
    batches,
    goodput,
    mixed,
    problems,
    stands,
    use,
    vision,
)
from tests.support.placement.plans import planned

from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND
from astrarium.placement.plan import check
from astrarium.placement.policies import Search
from astrarium.placement.policies._requirements import BatchOption, ModelNeeds, all_needs
from astrarium.placement.policies.usher import (
    ReplicaChoice,
    Usher,
    distance,
    make_groups,
    placing_order,
    surplus,
)
from astrarium.placement.problem import ALONE, Form, PlacedModel, Problem
from astrarium_papers.elvinger import _v100 as v100

METRICS = {"usher": "occupancy", "wao-usher": "weighted_occupancy"}
KINDS = pytest.mark.parametrize("policy", sorted(METRICS))


# The thesis's placements. Models come in the order in which it lists them, which decides between matchings
# that are equally good; of the places where this is not enough, the tests say what was assumed.


def test_six_gpus_serve_the_vision_models_with_one_replica_each_and_two_of_efficientnet() -> None:
    """Figure 6.5a: EfficientNet-B7 twice at 8, ResNet50 at 4, nobody shares a GPU."""
    problem = vision(6)
    plan = planned("usher", problem)
    sizes = batches(plan, problem)
    assert sizes["efficientnet_b7"] == [8, 8]
    assert sizes["resnet50"] == [4]
    assert {name: len(of_model) for name, of_model in sizes.items()} == dict.fromkeys(VISION, 1) | {
        "efficientnet_b7": 2
    }
    assert all(len(there) == 1 for there in stands(plan, problem))
    assert plan.attainment == 1.0


def test_the_same_six_gpus_on_an_open_cluster_of_eight() -> None:
    """6.2.1: Usher needs six GPUs for the whole load."""
    plan = planned("usher", vision(8), cluster="open")
    assert plan.gpus() == set(range(6))
    assert plan.attainment == 1.0


@pytest.mark.parametrize(("gpus", "sizes"), [(2, None), (3, [16]), (4, [8, 8])])
def test_efficientnet_from_two_to_four_gpus(gpus: int, sizes: list[int] | None) -> None:
    """Observation 1 of 6.2.1: on three GPUs one replica at 16 that falls short, on four two at 8."""
    problem = vision(gpus)
    assert batches(planned("usher", problem), problem).get("efficientnet_b7") == sizes


def test_the_third_gpu_brings_344_requests_a_second() -> None:
    served = [goodput(planned("usher", vision(gpus)), vision(gpus)) for gpus in (2, 3, 4)]
    assert served == pytest.approx([1000, 1344.1, 1500], abs=0.01)


def test_three_replicas_of_gpt2_come_first_on_five_gpus() -> None:
    """Figure 6.12: gpt2 on GPUs 0 to 2, and bert is left out."""
    problem = mixed(5)
    plan = planned("usher", problem)
    assert [[name for name, _ in there] for there in stands(plan, problem)[:3]] == [["gpt2"]] * 3
    assert "bert" not in batches(plan, problem)
    assert plan.missing[MIXED.index("bert")].startswith("room for 3 more")


def test_order_within_a_group_keeps_t5_before_smaller_models() -> None:
    """Figure 5.5: 800 requests a second, three replicas of t5 at 8 and ResNet50 at 32."""
    problem = v100.problem(("alexnet", "gpt2", "resnet50", "t5"), 400, 200 * MILLISECOND, 4)
    plan = planned("usher", problem)
    assert stands(plan, problem) == [[("t5", 8)]] * 3 + [[("resnet50", 32)]]
    assert goodput(plan, problem) == pytest.approx(800)


def test_order_across_groups_leaves_a_whole_group_out() -> None:
    """Figures 5.6 and 5.9: the first group fills four GPUs; 793.57 requests a second."""
    names = ("resnet50", "vgg19", "mobilenet_v2", "gpt2", "bert")
    problem = v100.problem(names, 400, 300 * MILLISECOND, 4)
    plan = planned("usher", problem)
    assert {name: len(sizes) for name, sizes in batches(plan, problem).items()} == {"resnet50": 1, "bert": 3}
    assert goodput(plan, problem) == pytest.approx(793.57, abs=0.01)


def test_a_replication_factor_beyond_the_cluster_leaves_a_gpu_idle() -> None:
    """Figure 5.7: bert would take five of the four GPUs, so that the fourth stays empty."""
    problem = v100.problem(("alexnet", "resnet50", "mobilenet_v2", "bert"), 500, 200 * MILLISECOND, 4)
    plan = planned("usher", problem)
    assert len(plan.gpus()) == 3
    assert plan.missing == {3: "5 GPUs for its whole load, where 4 are there"}


@pytest.mark.parametrize("gpus", [4, 5, 6])
def test_wao_usher_uses_three_gpus_however_many_there_are(gpus: int) -> None:
    """Observation 2 of 6.2.1: the placement of every cluster of more than three GPUs is the same."""
    plan = planned("wao-usher", vision(gpus))
    assert plan.gpus() == {0, 1, 2}
    assert plan.replicas == planned("wao-usher", vision(4)).replicas


def test_wao_usher_puts_three_models_on_the_first_gpu() -> None:
    """Figure 6.3. Assumed: its groups, which are one of three matchings that are equally good."""
    problem = vision(4)
    groups = (("alexnet", "resnet50", "vgg19"), ("densenet121", "efficientnet_b7"))
    surpluses = [surplus(needs) for needs in all_needs(problem, "weighted_occupancy")]
    as_ours = make_groups(surpluses, 4)
    theirs = [tuple(VISION.index(name) for name in group) for group in groups]
    assert as_ours != theirs
    assert _paired_weight(surpluses, ((0, 4), (1, 2))) == min(
        _paired_weight(surpluses, pairs) for pairs in _all_pairings(5)
    )
    plan = planned("wao-usher", problem, groups=groups)
    assert stands(plan, problem)[0] == [("alexnet", 4), ("resnet50", 4), ("vgg19", 16)]
    assert next(r.share for r in plan.of_model(3)) == pytest.approx(0.1755)
    assert plan.gpus() == {0, 1, 2}


@pytest.mark.parametrize("gpus", range(3, 9))
def test_wao_usher_believes_that_three_gpus_serve_language_models_too(gpus: int) -> None:
    """Figure 6.11a: bert at 4 and gpt2 together on each of three GPUs."""
    problem = mixed(gpus)
    there = stands(planned("wao-usher", problem), problem)
    assert all({"bert", "gpt2"} <= {name for name, _ in gpu} for gpu in there[:3])
    assert all(("bert", 4) in gpu for gpu in there[:3])
    assert not any(there[3:])


def _all_pairings(count: int) -> set[tuple[tuple[int, int], ...]]:
    """Two pairs of five models."""
    pairs = [(first, second) for first in range(count) for second in range(first + 1, count)]
    return {(left, right) for left in pairs for right in pairs if left < right and not set(left) & set(right)}


def _paired_weight(surpluses: list[int], pairs: tuple[tuple[int, int], ...]) -> int:
    return sum(distance(pair, surpluses) for pair in pairs)


def test_groups_balance_compute_and_memory() -> None:
    assert make_groups([50, 40, -40, -50], largest=2) == [(0, 3), (1, 2)]


def test_groups_take_as_many_rounds_as_their_size_allows() -> None:
    assert [len(group) for group in make_groups([1] * 8, largest=4)] == [4, 4]
    assert [len(group) for group in make_groups([1] * 5, largest=4)] == [3, 2]
    assert [len(group) for group in make_groups([1] * 3, largest=1)] == [1, 1, 1]


def test_heavy_models_take_turns_and_neutral_ones_come_last() -> None:
    shares = {"c": (60, 10), "C": (80, 10), "m": (10, 50), "M": (10, 70), "n": (90, 85)}
    chosen = {name: _choice(name, compute, memory) for name, (compute, memory) in shares.items()}
    assert [choice.needs.model.name for choice in placing_order(list(chosen.values()))] == list("MCmcn")


def _choice(name: str, compute: int, memory: int) -> ReplicaChoice:
    model = PlacedModel(0, name, 1, 1, {ALONE: Form(ALONE, ((0, 1),), (1,))})
    return ReplicaChoice(ModelNeeds(model, (), ()), BatchOption(1, 1, compute * 100, memory, memory * 100), 1)


def test_the_first_group_is_placed_first() -> None:
    names = [["vgg19"], ["alexnet", "densenet121", "efficientnet_b7", "resnet50"]]
    problem = vision(1)
    assert stands(planned("usher", problem, groups=names), problem) == [[("vgg19", 16)]]
    others = planned("usher", problem, groups=names[::-1])
    assert "vgg19" not in batches(others, problem)


def test_groups_must_name_every_model_once() -> None:
    with pytest.raises(InputError, match="every model once"):
        planned("usher", vision(2), groups=[["alexnet", "resnet50"]])


def test_a_search_that_is_ended_answers_with_the_best_so_far() -> None:
    class Hurried(Search):
        def goes_on(self) -> bool:
            return False

    hurried = Hurried()
    problem = vision(6)
    plan = Usher(Usher.Parameters()).place(problem, hurried)
    check(plan, problem)
    assert hurried.count == 2  # once for each group
    assert plan.replicas == planned("usher", problem, tried=1).replicas
    assert goodput(plan, problem) < goodput(planned("usher", problem), problem)


def test_an_open_cluster_says_how_many_gpus_a_model_lacks() -> None:
    plan = planned("usher", vision(4), cluster="open")
    assert plan.missing == {
        VISION.index("resnet50"): "5 GPUs in all, where 4 are there",
        VISION.index("alexnet"): "6 GPUs in all, where 4 are there",
    }


@KINDS
@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_plans_keep_what_they_promise(policy: str, problem: Problem) -> None:
    for cluster in ("fixed", "open"):
        plan = planned(policy, problem, cluster=cluster)
        for gpu in problem.gpus:
            there = list(plan.on_gpu(gpu.id))
            assert use(plan, problem, gpu.id, METRICS[policy]) <= 1 + 1e-9
            assert sum(replica.share for replica in there) <= 1 + 1e-9
            assert len({replica.model for replica in there}) == len(there)
        for model in problem.models:
            sizes = {replica.batch for replica in plan.of_model(model.index)}
            assert len(sizes) <= 1
            assert model.alone is not None
            assert all(model.alone.latency(size) <= model.slo for size in sizes)
        asked = sum(model.rate for model in problem.models)
        assert plan.attainment == pytest.approx(goodput(plan, problem) / asked)


@KINDS
@given(problem=problems())
@settings(max_examples=30, deadline=None)
def test_an_open_cluster_serves_a_model_wholly_or_not_at_all(policy: str, problem: Problem) -> None:
    plan = planned(policy, problem, cluster="open")
    for model in problem.models:
        assert model.alone is not None
        served = sum(
            replica.batch * 1e9 / model.alone.interval(replica.batch)
            for replica in plan.of_model(model.index)
        )
        assert served == 0 or served >= model.rate - 1e-3
        assert (served == 0) == (model.index in plan.missing)


@KINDS
@given(problem=problems())
@settings(max_examples=20, deadline=None)
def test_the_same_problem_has_the_same_plan(policy: str, problem: Problem) -> None:
    again = msgspec.structs.replace(problem)
    assert planned(policy, problem) == planned(policy, again)


@pytest.mark.parametrize("policy", ["usher", "wao-usher", "ao-milp", "wsm-milp"])
def test_what_cannot_be_placed_is_told_with_what_it_would_take(policy: str) -> None:
    fast = v100.placed_model(0, "resnet50", 100, 5 * MILLISECOND)
    unknown = msgspec.structs.replace(v100.placed_model(1, "alexnet", 100, 200 * MILLISECOND), demands={})
    spread = msgspec.structs.replace(v100.placed_model(2, "vgg19", 100, 200 * MILLISECOND), forms={})
    large = v100.placed_model(3, "bloom_560", 10, 400 * MILLISECOND)
    (gpu,) = v100.v100s(1)
    small = msgspec.structs.replace(gpu, memory=10**9)
    plan = planned(policy, Problem((fast, unknown, spread, large), (small,)))
    assert not plan.replicas
    assert plan.missing[0] == "an SLO of 6.8 ms or more, not 5 ms"
    assert plan.missing[1].startswith("a profile")
    assert plan.missing[2].startswith("a form for one GPU")
    assert plan.missing[3] == "a GPU with 3.20 GiB or more"


@pytest.mark.parametrize("policy", ["usher", "wao-usher", "ao-milp", "wsm-milp"])
def test_without_gpus_or_models_there_is_still_an_answer(policy: str) -> None:
    nowhere = planned(policy, Problem(vision(1).models, ()))
    assert set(nowhere.missing.values()) == {"at least one GPU"}
    nobody = planned(policy, Problem((), v100.v100s(2)))
    assert (nobody.replicas, nobody.missing, nobody.attainment) == ((), {}, None)
