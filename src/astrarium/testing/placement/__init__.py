"""The conformance suite of placement policies, which any policy inherits:

    class TestMine(PlacementPolicyConformance):
        policy = Mine

Problems come with forms for one and for two GPUs, and with what models use of a GPU. A policy that needs more
says so with an InputError, and overrides `adapted`, which puts it there. What not every policy can promise
is a class attribute: set it to what yours does.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.errors import BrokenBooks, InputError
from astrarium.core.quantities import GIB, MICROSECOND, MILLISECOND, to_ms
from astrarium.core.registry import Registry
from astrarium.placement.gpu_share import share_factor
from astrarium.placement.plan import ROUNDING, Plan, Replica, check
from astrarium.placement.plan_file import PlanEntry, read, written
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.problem import ALONE, Problem
from astrarium.testing.checks import ContractError, ensure, same
from astrarium.testing.conformance import BOUNDED, Conformance
from astrarium.testing.placement.problems import SPREAD, gpus, model, problems


class Watched(Search):
    """Keeps what a search reports, and ends it after *most* looks."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.plans: list[Plan] = []
        self._most = most
        self._asked = 0

    def improved(self, plan: Plan) -> None:
        self.plans.append(plan)

    def goes_on(self) -> bool:
        self._asked += 1
        return self._most is None or self._asked <= self._most


class PlacementPolicyConformance(Conformance):
    describes_parameters = False  # many of ours are explained where they are used, all together
    places_lone_models = True  # a small model with little load is placed on an empty GPU
    chooses_shapes = True  # it runs models in whatever shape they have, not in one that it was told
    spreads = False  # a model that fits on no single GPU is placed on two
    works_around_the_impossible = True  # a model that cannot be placed does not keep others from being placed

    def registry(self) -> Registry[Any]:
        return placement_policies

    def adapted(self, problem: Problem) -> Problem:
        """The problem with all that the policy needs to know of models and GPUs."""
        return problem

    def observe(self, problem: Problem, ends_after: int | None = None) -> Plan:
        """Ask a fresh policy and check all that holds for every plan, and for those found on the way."""
        search = Watched(ends_after)
        plan: Plan = self.make().place(problem, search)
        for candidate in [*search.plans, plan]:
            examine(candidate, problem)
        return plan

    @BOUNDED
    @given(problem=problems())
    def test_plans_are_possible_and_complete(self, problem: Problem) -> None:
        self.observe(self.adapted(problem))

    @BOUNDED
    @given(problem=problems(max_gpus=1))
    def test_one_gpu(self, problem: Problem) -> None:
        self.observe(self.adapted(problem))

    @BOUNDED
    @given(problem=problems(), looks=st.integers(0, 12))
    def test_a_search_that_is_ended_early_still_answers(self, problem: Problem, looks: int) -> None:
        self.observe(self.adapted(problem), looks)

    @BOUNDED
    @given(problem=problems())
    def test_plans_survive_their_file_form(self, problem: Problem) -> None:
        problem = self.adapted(problem)
        plan = self.observe(problem)
        text = msgspec.json.encode(written(plan, problem))
        same("plan read back", read(msgspec.json.decode(text, type=PlanEntry), problem), plan)

    @BOUNDED
    @given(problem=problems())
    def test_the_same_problem_gets_the_same_plan(self, problem: Problem) -> None:
        problem = self.adapted(problem)
        before = copy.deepcopy(problem)
        policy = self.make()
        first, again = (policy.place(problem, Watched()) for _ in range(2))
        same("plan of the same policy", again, first)
        same("plan of a fresh policy", self.make().place(problem, Watched()), first)
        same("problem afterwards", problem, before)

    def test_a_lone_small_model_is_placed(self) -> None:
        self.needs(self.places_lone_models, "it may leave a lone model out")
        plan = self.observe(self.adapted(Problem((model(0),), gpus(1))))
        ensure(bool(plan.replicas), f"one small model, one empty GPU, and no replica: {plan.missing}")

    def test_models_that_fit_together_are_all_placed(self) -> None:
        self.needs(self.places_lone_models, "it may leave models out")
        easy = tuple(model(index, rate=1.0, weights=GIB // 2, use=0.1) for index in range(3))
        same("missing", self.observe(self.adapted(Problem(easy, gpus(3)))).missing, {})

    def test_a_model_larger_than_a_gpu_is_spread(self) -> None:
        self.needs(self.spreads, "it places models on single GPUs")
        large = model(0, weights=24 * GIB, shapes=SPREAD)
        plan = self.observe(self.adapted(Problem((large,), gpus(2))))
        same("GPUs", plan.gpus(), {0, 1})

    def test_a_model_without_enough_memory_is_missing(self) -> None:
        huge = model(0, weights=90 * GIB)
        self._leaves_out(self.adapted(Problem((huge, model(1)), gpus(2))))

    def test_a_model_without_enough_time_is_missing(self) -> None:
        hasty = model(0, slo=50 * MICROSECOND)
        self._leaves_out(self.adapted(Problem((hasty, model(1)), gpus(2))))

    def test_without_any_gpu_it_says_what_is_missing(self) -> None:
        problem = self.adapted(Problem((model(0), model(1)), ()))
        try:
            plan = self.observe(problem)
        except InputError as error:
            ensure(bool(error.expected), "refused without a word")
            return
        same("models missing", sorted(plan.missing), [0, 1])

    def test_too_little_memory_for_all_leaves_some_out(self) -> None:
        full = tuple(model(index, weights=10 * GIB, shapes=(ALONE,)) for index in range(4))
        plan = self.observe(self.adapted(Problem(full, gpus(2))))
        ensure(len(plan.missing) >= 2, f"two GPUs hold one such model each, and yet: {plan.replicas}")
        if self.places_lone_models and self.chooses_shapes:
            same("models placed", len({replica.model for replica in plan.replicas}), 2)

    @BOUNDED
    @given(problem=problems())
    def test_what_it_would_have_to_know_is_said(self, problem: Problem) -> None:
        """Models of which only times and sizes are known: a plan, or an error with what is lacking."""
        bare = tuple(msgspec.structs.replace(model, demands={}) for model in problem.models)
        try:
            self.observe(Problem(bare, problem.gpus))
        except InputError as error:
            ensure(bool(error.field and error.expected), f"says neither where nor what: {error}")

    def _leaves_out(self, problem: Problem) -> None:
        """Model 0 is impossible and model 1 is easy."""
        plan = self.observe(problem)
        ensure(0 in plan.missing, "a model that cannot be served was placed")
        if self.places_lone_models and self.works_around_the_impossible:
            ensure(1 not in plan.missing, f"left out because of another: {plan.missing.get(1)}")


def examine(plan: Plan, problem: Problem) -> None:
    """All that holds for every plan; ContractError says what does not."""
    try:
        check(plan, problem)
    except BrokenBooks as error:
        raise ContractError(f"{error}\nin {plan}\nfor {problem}") from error
    ensure(all(plan.missing.values()), f"missing without a word: {plan.missing}")
    for replica in plan.replicas:
        _examine_time(replica, problem)


def _examine_time(replica: Replica, problem: Problem) -> None:
    """Its largest batch, on its share, alone."""
    served = next(model for model in problem.models if model.index == replica.model)
    gpu = problem.gpu(replica.gpus[0])
    time = served.forms[replica.shape].latency(replica.batch)
    if replica.shape == ALONE:
        time = round(time * share_factor(served, gpu, replica.batch, replica.share))
    ensure(
        time <= served.slo + MILLISECOND * ROUNDING,
        f"alone, a batch of {replica.batch} takes {to_ms(time):g} of {to_ms(served.slo):g} ms: {replica}",
    )
