"""The conformance suite of the serving level, which any policy inherits:

    class TestMine(ServingPolicyConformance):
        policy = Mine

Every run has its books validated after each step and is then audited from its trace. What not every
scheduler can promise is a class attribute: set it to what yours does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.run.simulate import World
from astrarium.serving import contract
from astrarium.serving.contract import GpuJoined, GpuLeft, Request
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.level import LEVEL
from astrarium.serving.state import ServingState
from astrarium.serving.world import ServingWorld
from astrarium.testing.checks import ensure, same
from astrarium.testing.conformance import BOUNDED, PolicyConformance
from astrarium.testing.played import UNKNOWN, Ending, Timed
from astrarium.testing.serving.audit import Sent, audit
from astrarium.testing.serving.cases import (
    Case,
    Run,
    cluster,
    crowd,
    requests_at,
    roomy,
    with_truth,
)
from astrarium.testing.serving.outcomes import all_in_time, batches, endings, first_batch, members, outcomes
from astrarium.testing.serving.strategies import WITH_LENGTHS, cases, gpu_changes, networks

SHIFT: Time = 600 * SECOND  # a multiple of every bin, cycle or epoch a policy is likely to count time in


class ServingPolicyConformance(PolicyConformance[Case, ServingState]):
    level = LEVEL
    drops_hopeless = True  # under exact estimates it would rather drop a request than answer it late
    answers_lone_requests = True  # a request with nobody else around is answered in time
    knows_lengths = True  # it plans with all runs of a batch of unequal lengths, also where these run apart
    relabels = True  # the order in which models are listed does not matter (but for ties)
    shifts = True  # it does not matter when the day starts
    scales = False  # it holds no duration of its own: twice as slow a world gets the same decisions
    settles: Time = 0  # how long it may take to notice that a GPU has joined or left

    def any_case(self) -> st.SearchStrategy[Case]:
        return cases()

    def busy_case(self) -> Case:
        return crowd(3, 2, 90)

    def quiet_case(self) -> Case:
        return Case(crowd(2, 2, 0).setup, (), ((0, GpuLeft(0)), (MILLISECOND, GpuJoined(0))))

    def unknown(self) -> list[Any]:
        return [
            contract.BatchFinished(0, UNKNOWN, 0),
            contract.BatchFailed(0, UNKNOWN, "out of memory"),
            contract.BatchPreempted(0, UNKNOWN, 0, 0),
        ]

    def items(self, case: Case) -> set[int]:
        return {request.id for request in case.requests}

    def make_state(self, case: Case) -> ServingState:
        return ServingState(case.setup)

    def make_world(self, case: Case) -> World[contract.Action, contract.Event, ServingState]:
        return ServingWorld(case.setup, case.exact)

    def told(self, case: Case) -> tuple[Any, ...]:
        return (case.setup,)

    def endings(self, state: ServingState) -> dict[int, Ending]:
        ledger = state.ledger
        good = (Outcome.IN_TIME, Outcome.LATE)
        rows = enumerate(zip(ledger.outcome, ledger.done, ledger.reason, strict=True))
        return {
            id_: Ending(Outcome(outcome).name, at, ledger.reasons[reason], outcome in good)
            for id_, (outcome, at, reason) in rows
        }

    def forgotten(self, played: Run) -> list[int]:
        """Nobody can be served where no GPU is left."""
        ledger = played.state.ledger
        served = any(gpu.present for gpu in played.state.gpus)
        if not served or contract.UNSERVED not in ledger.reasons:
            return []
        code = ledger.reasons.index(contract.UNSERVED)
        return [request for request, reason in enumerate(ledger.reason) if reason == code]

    def examine(self, played: Run) -> None:
        super().examine(played)
        sent = audit(played).sent
        if played.case.truth is None and self._keeps_deadlines(played.case, sent):
            late = [r for r, outcome in enumerate(played.state.ledger.outcome) if outcome == Outcome.LATE]
            ensure(not late, f"requests {late} were answered late, although every estimate was exact")

    def _keeps_deadlines(self, case: Case, sent: Iterable[Sent]) -> bool:
        """Whether nothing is to be late, as no batch takes longer than the policy can know."""
        if self.knows_lengths:
            return self.drops_hopeless
        batches = [(case.setup.models[batch.requests[0].model], batch.requests) for batch in sent]
        known = all(model.takes(members) <= model.latency[len(members)] for model, members in batches)
        return self.drops_hopeless and known

    @BOUNDED
    @given(case=cases(delays=networks()))
    def test_network_delays_are_allowed_for(self, case: Case) -> None:
        self.observe(case)

    @BOUNDED
    @given(case=cases(own_deadlines=True))
    def test_deadlines_may_come_out_of_order(self, case: Case) -> None:
        self.observe(case)

    @BOUNDED
    @given(case=cases(lengths=WITH_LENGTHS, together=("bucket", "length")))
    def test_a_batch_of_unequal_lengths_may_be_several_runs(self, case: Case) -> None:
        self.observe(case)

    @BOUNDED
    @given(case=cases(max_models=7, min_models=3, max_gpus=2))
    def test_more_models_than_gpus(self, case: Case) -> None:
        self.observe(case)

    @BOUNDED
    @given(case=cases(max_gpus=1))
    def test_one_gpu(self, case: Case) -> None:
        self.observe(case)

    @BOUNDED
    @given(case=cases(), percents=st.lists(st.integers(30, 250), min_size=1, max_size=5))
    def test_estimates_may_be_wrong(self, case: Case, percents: list[int]) -> None:
        self.observe(with_truth(case, percents))

    @BOUNDED
    @given(case=cases(), percents=st.lists(st.integers(30, 100), min_size=1, max_size=5))
    def test_faster_than_estimated_is_never_late(self, case: Case, percents: list[int]) -> None:
        run = self.observe(with_truth(case, percents))
        if self._keeps_deadlines(case, audit(run).sent):
            ensure(Outcome.LATE not in run.state.ledger.outcome, "late, although every batch was early")

    @BOUNDED
    @given(data=st.data())
    def test_relabelling_models_changes_nothing(self, data: st.DataObject) -> None:
        self.needs(self.relabels, "the order of its models matters")
        case = data.draw(cases(min_models=2))
        order = data.draw(st.permutations(range(len(case.setup.models))))
        before = self.observe(case)
        after = self.observe(case.relabelled(order))
        same("outcomes", endings(after), endings(before))
        same("batches", batches(after), batches(before))

    @BOUNDED
    @given(case=cases())
    def test_shifting_time_shifts_the_decisions(self, case: Case) -> None:
        self.needs(self.shifts, "it matters when its day starts")
        before = self.observe(case)
        after = self.observe(case.delayed(SHIFT))
        same("outcomes", endings(after, SHIFT), endings(before))
        same("batches", batches(after, SHIFT), batches(before))

    @BOUNDED
    @given(case=cases())
    def test_slow_motion_gets_the_same_decisions(self, case: Case) -> None:
        self.needs(self.scales, "it holds durations of its own")
        before = self.observe(case)
        after = self.observe(case.stretched(3))
        same("outcomes", outcomes(after), outcomes(before))
        same("batches", members(after), members(before))

    @BOUNDED
    @given(case=cases(), every=st.integers(1, 4))
    def test_a_failing_batch_fails_its_requests_only(self, case: Case, every: int) -> None:
        def sabotage(now: Time, at: Time, event: contract.Event) -> Iterable[Timed]:
            if isinstance(event, contract.BatchFinished) and event.run % every == 0:
                yield at, contract.BatchFailed(event.gpu, event.run, "out of memory")
            else:
                yield at, event

        run = self.observe(case, sabotage)
        same("fate of batch 0", list(run.state.ledger.batch_fate)[:1].count(Fate.FINISHED), 0)

    def test_a_gpu_that_leaves_fails_its_batch_with_a_reason(self) -> None:
        case = crowd(2, 1, 30)
        gpu, middle, members = first_batch(self.observe(case))
        gone = Case(case.setup, case.requests, ((middle, GpuLeft(gpu)),))
        ledger = self.observe(gone).state.ledger
        ensure(
            all(ledger.outcome[request] == Outcome.FAILED for request in members),
            f"requests {members} were on GPU {gpu} when it left, and did not fail",
        )

    @BOUNDED
    @given(case=cases(), data=st.data())
    def test_gpus_come_and_go(self, case: Case, data: st.DataObject) -> None:
        drawn = data.draw(gpu_changes(case))
        self.observe(Case(case.setup, case.requests, drawn))

    def test_what_waits_when_a_gpu_leaves_is_not_forgotten(self) -> None:
        setup = cluster([roomy(0), roomy(1)], gpus=2)
        burst = requests_at(setup, [(MILLISECOND, number % 2) for number in range(40)])
        for gpu in (0, 1):
            run = self.observe(Case(setup, burst, ((2 * MILLISECOND, GpuLeft(gpu)),)))
            ensure(Outcome.IN_TIME in run.state.ledger.outcome, "the GPU that stayed answered nothing")

    def test_a_gpu_that_joins_is_used(self) -> None:
        self.needs(self.answers_lone_requests, "it may leave a lone request unanswered")
        setup = cluster([roomy(0)], gpus=2)
        apart = 4 * setup.models[0].slo
        back = 2 * apart
        requests = requests_at(setup, [(apart, 0), (back + self.settles + 1, 0), (back + apart, 0)])
        swap = ((0, GpuLeft(1)), (back, GpuJoined(1)), (back, GpuLeft(0)))
        run = self.observe(Case(setup, requests, swap))
        all_in_time(run)
        same("GPUs used", [gpu for gpu, *_ in batches(run)], [0, 1, 1])

    def test_a_gpu_that_comes_back_is_free(self) -> None:
        self.needs(self.answers_lone_requests, "it may leave a lone request unanswered")
        setup = cluster([roomy(0)], gpus=1)
        first = Case(setup, requests_at(setup, [(MILLISECOND, 0)]))
        _, middle, _ = first_batch(self.observe(first))
        again = requests_at(setup, [(MILLISECOND, 0), (middle + self.settles + 2, 0)])
        run = self.observe(Case(setup, again, ((middle, GpuLeft(0)), (middle + 1, GpuJoined(0)))))
        same("outcomes", list(run.state.ledger.outcome), [Outcome.FAILED, Outcome.IN_TIME])

    def test_without_any_gpu_requests_still_end(self) -> None:
        case = crowd(2, 2, 20)
        nobody = Case(case.setup, case.requests, ((0, GpuLeft(0)), (0, GpuLeft(1))))
        outcomes = set(self.observe(nobody).state.ledger.outcome)
        same("outcomes", outcomes, {int(Outcome.DROPPED)})

    @BOUNDED
    @given(setup_case=cases(), size=st.integers(1, 80))
    def test_a_burst_at_one_instant(self, setup_case: Case, size: int) -> None:
        setup = setup_case.setup
        arrivals = [(MILLISECOND, number % len(setup.models)) for number in range(size)]
        self.observe(Case(setup, requests_at(setup, arrivals)))

    def test_a_lone_request_is_answered_in_time(self) -> None:
        self.needs(self.answers_lone_requests, "it may leave a lone request unanswered")
        setup = cluster([roomy(index) for index in range(5)], gpus=2)
        apart = 3 * max(model.slo for model in setup.models)
        arrivals = [(number * apart, number % 5) for number in range(15)]
        all_in_time(self.observe(Case(setup, requests_at(setup, arrivals))))

    def test_light_load_of_one_model_is_answered_in_time(self) -> None:
        self.needs(self.answers_lone_requests, "it may leave a lone request unanswered")
        setup = cluster([roomy(0)], gpus=2)
        gap = 2 * setup.models[0].latency[1]
        all_in_time(self.observe(Case(setup, requests_at(setup, [(n * gap, 0) for n in range(60)]))))

    def test_a_hopeless_request_disturbs_nobody(self) -> None:
        self.needs(self.drops_hopeless and self.answers_lone_requests, "it may answer late")
        setup = cluster([roomy(0)], gpus=1)
        apart = 3 * setup.models[0].slo
        alone = setup.models[0].latency[1]
        pairs = [(n * apart, n * apart + setup.models[0].slo, n * apart + alone - 1) for n in range(8)]
        requests = [
            Request(2 * n + order, 0, at, deadline)
            for n, (at, *deadlines) in enumerate(pairs)
            for order, deadline in enumerate(deadlines)
        ]
        ledger = self.observe(Case(setup, tuple(requests))).state.ledger
        same("outcomes", list(ledger.outcome), [Outcome.IN_TIME, Outcome.DROPPED] * 8)
