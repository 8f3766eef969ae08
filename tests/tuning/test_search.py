"""Search algorithms cut into groups: rung sizes, who goes on, and every candidate accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.errors import BrokenBooks, InputError
from astrarium.tuning.contract import GroupArrived, Trial, TrialFailed, TrialFinished, TrialWithdrawn
from astrarium.tuning.policies import searches
from astrarium.tuning.samplers import Configuration, Goal, GridSampler, RandomSampler, Standing
from astrarium.tuning.search.contract import Course, Pool, WantedTrials
from astrarium.tuning.session import Session
from astrarium.tuning.spaces import Choice, Range, space_of
from astrarium.tuning.state import TuningState

SPACE = space_of({"x": {"low": 0, "high": 1}, "layers": {"low": 1, "high": 4, "whole": True}})
RUNGS = ["successive-halving", "hyperband", "sync-bohb", "bohb", "asha"]
ALL = ["grid", "random", "pbt", *RUNGS]


def made(search: str, **parameters: Any) -> Any:
    kind: Any = searches.get(search)
    return kind(msgspec.convert(parameters, kind.Parameters))


class Noted(RandomSampler):
    """Remembers what it was told."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(SPACE, seed)
        self.asked: list[int] = []
        self.reported: list[tuple[int, int, float]] = []
        self.told: list[tuple[int, float | None, Standing]] = []

    def adopt(self, values: Any) -> Configuration:
        configuration = super().adopt(values)
        self.asked.append(configuration.id)
        return configuration

    def report(self, id: int, iterations: int, value: float) -> bool:
        self.reported.append((id, iterations, value))
        return False

    def tell(self, id: int, value: float | None, standing: Standing) -> None:
        self.told.append((id, value, standing))


class Played:
    """A session without GPUs: whoever *picks* says ends next. A value of None: the trial fails."""

    def __init__(
        self,
        search: Any,
        worth: Callable[[Trial], float | None],
        sampler: Any = None,
        pick: Callable[[int], int] = lambda count: 0,
        goal: Goal = "min",
        target: float | None = None,
        kind: type[Session] = Session,
    ) -> None:
        self.sampler = sampler or Noted()
        self.session = kind(search, self.sampler, worth, goal, target, SPACE)
        self.groups: list[list[Trial]] = []
        self.withdrawn: list[int] = []
        self._state = TuningState()
        self._worth = worth
        self.now = 0
        self._apply(self.session.begin())
        while self._state.open:
            self._end(sorted(self._state.open)[pick(len(self._state.open))])

    def _end(self, number: int) -> None:
        self.now += 1
        fails = self._worth(self._state.open[number].trial) is None
        event = TrialFailed(number, 0, "it broke") if fails else TrialFinished(number, 0)
        more = self.session.hear(self.now, [event], self._state)
        self._state.apply(self.now, event)
        self._apply(more)

    def _apply(self, events: Iterable[Any]) -> None:
        for event in events:
            self._state.apply(self.now, event)
            if isinstance(event, GroupArrived):
                self.groups.append(list(event.trials))
            elif isinstance(event, TrialWithdrawn):
                self.withdrawn.append(event.trial)

    @property
    def trials(self) -> list[Trial]:
        return [trial for group in self.groups for trial in group]

    def sizes(self) -> list[tuple[int, int]]:
        """Candidates and their iterations in all, of each group."""
        return [(len(group), group[0].total) for group in self.groups]

    def standings(self) -> Counter[Standing]:
        return Counter(candidate.standing for candidate in self.session.candidates.values())


def by_number(trial: Trial) -> float:
    """Later candidates are better."""
    return -float(trial.candidate)


def test_hyperband_has_the_printed_brackets() -> None:
    played = Played(made("hyperband", iterations=27, eta=3), by_number)
    first = [(27, 1), (9, 3), (3, 9), (1, 27)]
    assert played.sizes() == [*first, (12, 3), (4, 9), (1, 27), (6, 9), (2, 27), (4, 27)]
    assert [group[0].iterations for group in played.groups[:4]] == [1, 2, 6, 18]  # from their checkpoints
    assert [group[0].begins for group in played.groups[:4]] == [0, 1, 3, 9]


@pytest.mark.parametrize("at_once", [2, 3, 9])
@pytest.mark.parametrize("pick", [lambda count: 0, lambda count: count - 1, lambda count: count // 2])
def test_hyperband_with_brackets_at_once_tries_and_promotes_the_same(
    at_once: int, pick: Callable[[int], int]
) -> None:
    """Whoever ends first: brackets share nothing."""

    def worth(trial: Trial) -> float | None:
        return None if trial.candidate % 7 == 3 else float(trial.candidate * 5 % 13)

    usual = Played(made("hyperband"), worth)
    played = Played(made("hyperband", brackets_at_once=at_once), worth, pick=pick)
    assert Counter((trial.candidate, trial.total) for trial in played.trials) == Counter(
        (trial.candidate, trial.total) for trial in usual.trials
    )
    assert played.standings() == usual.standings()
    assert sorted(played.sizes()) == sorted(usual.sizes())


def test_no_more_brackets_are_open_than_were_asked_for() -> None:
    """The first one, whose first trial ends last, stays open all the time."""
    played = Played(made("hyperband", brackets_at_once=2), by_number, pick=lambda count: count - 1)
    assert played.sizes()[:2] == [(27, 1), (12, 3)]
    assert played.sizes()[-3:] == [(9, 3), (3, 9), (1, 27)]
    assert Played(made("hyperband", brackets_at_once=4), by_number).sizes()[:4] == [
        *[(27, 1), (12, 3), (6, 9), (4, 27)]
    ]


def test_brackets_without_candidates_are_passed_over() -> None:
    played = Played(made("hyperband", brackets_at_once=3), by_number, GridSampler(SPACE))
    assert played.session.over == "the search is done"
    assert len(played.session.candidates) == 9


def test_hyperband_draws_before_any_result_and_synchronous_bohb_after_all_so_far() -> None:
    for search, drawn in (("hyperband", 27 + 12 + 6 + 4), ("sync-bohb", 27)):
        sampler = Noted()
        session = Session(made(search), sampler, by_number)
        session.begin()
        assert len(sampler.asked) == drawn


@pytest.mark.parametrize("goal", ["min", "max"])
def test_the_best_are_promoted(goal: Goal) -> None:
    played = Played(made("successive-halving"), by_number, goal=goal)
    assert played.sizes() == [(27, 1), (9, 3), (3, 9), (1, 27)]
    kept = [{trial.candidate for trial in group} for group in played.groups]
    best = range(27) if goal == "max" else range(26, -1, -1)
    assert kept == [set(best[:27]), set(best[:9]), set(best[:3]), set(best[:1])]
    assert played.session.best[-1].candidate == best[0]
    assert played.standings() == {Standing.COMPLETE: 1, Standing.STOPPED: 26}


def test_of_equals_the_first_goes_on() -> None:
    for pick in (lambda count: 0, lambda count: count - 1):
        played = Played(made("successive-halving"), lambda trial: 1.0, pick=pick)
        assert [trial.candidate for trial in played.groups[1]] == list(range(9))


@pytest.mark.parametrize("search", RUNGS)
def test_a_failed_candidate_is_never_promoted(search: str) -> None:
    """Even where nearly all fail, and where a value is no number."""

    def worth(trial: Trial) -> float | None:
        broken = {0: None, 1: float("nan"), 2: float("inf")}
        return broken[trial.candidate % 4] if trial.candidate % 4 in broken else float(trial.candidate)

    played = Played(made(search), worth)
    again = [trial for trial in played.trials if trial.begins]
    assert again
    assert all(trial.candidate % 4 == 3 for trial in again)
    for candidate in played.session.candidates.values():
        assert (candidate.standing is Standing.FAILED) == (candidate.number % 4 != 3)
        assert candidate.reason or candidate.standing is Standing.COMPLETE


@pytest.mark.parametrize("search", ALL)
def test_where_all_fail_the_search_ends(search: str) -> None:
    sampler = GridSampler(SPACE) if search == "grid" else None
    played = Played(made(search), lambda trial: None, sampler)
    assert played.standings().keys() == {Standing.FAILED}
    assert played.session.over == "the search is done"
    assert not played.session.best


def test_grid_and_random_are_one_group() -> None:
    played = Played(made("grid", iterations=5), by_number, GridSampler(SPACE))
    assert played.sizes() == [(3 * 3, 5)]
    assert [candidate.values["layers"] for candidate in played.session.candidates.values()] == [1, 2, 4] * 3
    assert Played(made("random", candidates=11, iterations=4), by_number).sizes() == [(11, 4)]
    assert played.standings() == {Standing.COMPLETE: 9}


@given(
    search=st.sampled_from(ALL),
    order=st.randoms(use_true_random=False),
    values=st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=30),
    goal=st.sampled_from(["min", "max"]),
    target=st.one_of(st.none(), st.integers(0, 5)),
)
@settings(max_examples=150, deadline=None)
def test_everybody_is_accounted_for_once(
    search: str, order: Any, values: list[int | None], goal: Goal, target: int | None
) -> None:
    """Whoever ends first, whatever comes out, wherever it stops."""
    sampler = Noted()
    chosen = made(search) if search != "grid" else made("random")
    played = Played(
        chosen,
        lambda trial: values[(7 * trial.candidate + trial.total) % len(values)],
        sampler,
        lambda count: int(order.random() * count),
        goal,
        target,
    )
    assert Counter(id for id, _, _ in sampler.told) == Counter(sampler.asked)
    assert all(count == 1 for count in Counter(sampler.asked).values())
    assert Standing.OPEN not in played.standings()
    assert len({(id, iterations) for id, iterations, _ in sampler.reported}) == len(sampler.reported)
    for _, value, standing in sampler.told:
        assert value is not None or standing in (Standing.FAILED, Standing.WITHDRAWN)
    assert played.session.over
    assert set(played.withdrawn) <= {trial.id for trial in played.trials}


@given(
    order=st.randoms(use_true_random=False),
    values=st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=40),
    concurrency=st.integers(1, 20),
    eta=st.integers(2, 4),
)
@settings(max_examples=100, deadline=None)
def test_asha_never_promotes_more_than_one_in_eta(
    order: Any, values: list[int | None], concurrency: int, eta: int
) -> None:
    ended: Counter[int] = Counter()
    promoted: Counter[int] = Counter()

    class Watched(Session):
        def hear(self, now: Any, events: Any, state: Any) -> Any:
            for event in events:
                ended[state.open[event.trial].trial.total] += 1
            more = super().hear(now, events, state)
            arrived = [event for event in more if isinstance(event, GroupArrived)]
            for trial in (trial for group in arrived for trial in group.trials):
                promoted[trial.begins] += 1
                assert not trial.begins or promoted[trial.begins] * eta <= ended[trial.begins]
            assert len(self._open) <= concurrency
            return more

    played = Played(
        made("asha", candidates=40, concurrency=concurrency, eta=eta),
        lambda trial: values[(5 * trial.candidate + trial.total) % len(values)],
        pick=lambda count: int(order.random() * count),
        kind=Watched,
    )
    assert len({trial.group for trial in played.trials}) == 1
    assert sum(trial.begins == 0 for trial in played.trials) == 40


def test_asha_promotes_at_once_the_best_of_the_highest_rung() -> None:
    played = Played(made("asha", concurrency=1, candidates=9, iterations=9), by_number)
    assert [(trial.candidate, trial.total) for trial in played.trials] == [
        *[(0, 1), (1, 1), (2, 1), (2, 3), (3, 1), (4, 1), (5, 1), (5, 3), (6, 1), (7, 1), (8, 1)],
        *[(8, 3), (8, 9)],
    ]


def test_bohb_begins_the_next_bracket_while_a_rung_waits() -> None:
    """The first trial of all ends last: the rest of its bracket cannot go on."""
    played = Played(made("bohb", concurrency=4), by_number, pick=lambda count: count - 1)
    firsts = [group[0] for group in played.groups]
    late = next(n for n, trial in enumerate(firsts) if trial.begins == 1)
    assert any(trial.total == 3 and not trial.begins for trial in firsts[:late])
    totals = Counter(trial.total for trial in played.trials)
    assert totals == {1: 27, 3: 9 + 12, 9: 3 + 4 + 6, 27: 1 + 1 + 2 + 4}


def test_pbt_copies_the_best_over_the_worst() -> None:
    played = Played(made("pbt", population=8, iterations=9, interval=3), by_number)
    assert played.sizes() == [(8, 3), (8, 6), (8, 9)]
    copies = [trial for trial in played.groups[1] if trial.source is not None]
    assert [trial.candidate for trial in copies] == [8, 9]
    for trial in copies:
        assert trial.source in (6, 7)  # the two best
        assert (trial.begins, trial.iterations) == (3, 3)
        copied, source = (played.session.candidates[n].values for n in (trial.candidate, trial.source))
        assert copied != source
        assert 0 <= copied["x"] <= 1
        assert copied["x"] in (pytest.approx(source["x"] * 1.2), pytest.approx(source["x"] / 1.2), 1.0)
        assert copied["layers"] in range(1, 5)
    assert {
        n for n, candidate in played.session.candidates.items() if candidate.standing is Standing.STOPPED
    } == {
        *(0, 1),  # the worst of the first interval
        *(2, 3),
    }
    third = {trial.candidate: trial.source for trial in played.groups[2]}
    assert third[8] is None  # it goes on from its own checkpoint


def test_the_search_ends_at_its_target() -> None:
    played = Played(made("random", candidates=5), by_number, target=-2.0)
    assert played.session.over == "the target is reached"
    assert played.withdrawn == [3, 4]
    assert played.standings() == {Standing.COMPLETE: 1, Standing.STOPPED: 2, Standing.WITHDRAWN: 2}
    assert played.session.candidates[2].standing is Standing.COMPLETE


def test_old_news_and_news_of_others_is_ignored() -> None:
    session = Session(made("random", candidates=2), Noted(), by_number)
    state = TuningState()
    for event in session.begin():
        state.apply(0, event)
    assert session.hear(1, [TrialFinished(0, run=5), TrialFinished(9, 0)], state) == []
    twice = [TrialFinished(0, 0), TrialFinished(0, 0)]
    assert session.hear(2, twice, state) == []
    assert len(session.candidates[0].history) == 1
    session.close()
    assert session.candidates[1].standing is Standing.WITHDRAWN
    assert session.candidates[0].standing is Standing.STOPPED


def test_results_of_a_rung_are_told_in_the_order_of_candidates() -> None:
    """So that what a sampler learns does not depend on who was faster."""

    def worth(trial: Trial) -> float | None:
        return None if trial.candidate % 5 == 1 else float(trial.candidate * 7 % 11)

    reports = []
    for pick in (lambda count: 0, lambda count: count - 1, lambda count: count // 2):
        played = Played(made("sync-bohb", iterations=9), worth, pick=pick)
        reports.append((played.sampler.reported, played.sampler.told, played.sizes()))
    assert reports[0] == reports[1] == reports[2]


def test_a_candidate_that_the_samplers_library_stops_goes_no_further() -> None:
    class Strict(Noted):
        def report(self, id: int, iterations: int, value: float) -> bool:
            return id == 26

    played = Played(made("successive-halving"), by_number, Strict())
    assert [trial.candidate for trial in played.groups[1]] == list(range(25, 16, -1))
    assert played.session.candidates[26].standing is Standing.STOPPED


def test_a_search_that_waits_for_nothing_is_found_out() -> None:
    class Idle:
        def run(self, pool: Pool) -> Course:
            yield WantedTrials((), one_by_one=True)

    with pytest.raises(BrokenBooks, match="nothing runs"):
        Session(Idle(), Noted(), by_number).begin()


def test_a_sampler_with_another_goal_is_refused() -> None:
    sampler = Noted()
    sampler.goal = "max"
    with pytest.raises(InputError, match="as the sampler was told"):
        Session(made("random"), sampler, by_number, "min")


@pytest.mark.parametrize("seed", [0, 1])
def test_configurations_depend_on_the_seed_and_nothing_else(seed: int) -> None:
    one = RandomSampler(SPACE, seed)
    two = RandomSampler(SPACE, seed)
    two.adopt({"x": 0.5, "layers": 1})
    assert [one.ask().values for _ in range(5)] == [two.ask().values for _ in range(5)]
    assert one.ask().values != RandomSampler(SPACE, seed + 7).ask().values


@given(st.floats(0, 0.999), st.booleans(), st.booleans())
def test_values_stay_in_their_range(part: float, log: bool, whole: bool) -> None:
    space = Range(2, 50, log=log, whole=whole)
    value = space.at(part)
    assert 2 <= value <= 50
    assert isinstance(value, int) == whole
    assert 0 <= space.part(value) <= 1
    for up in (True, False):
        near = space.near(value, up)
        assert 2 <= near <= 50
        assert near != value or value in (2, 50)


def test_a_choice_has_neighbours() -> None:
    choice = Choice(("a", "b", "c"))
    assert [choice.near("b", up) for up in (False, True)] == ["a", "c"]
    assert choice.near("c", up=True) == "c"
    assert [choice.at(part) for part in (0.0, 0.5, 0.99, 1.0)] == ["a", "b", "c", "c"]


@pytest.mark.parametrize(
    "written",
    [
        {"low": 1},
        {"low": 2, "high": 1},
        {"low": 0, "high": 1, "log": True},
        {"low": 0.5, "high": 2, "whole": True},
        {"low": 0, "high": 1, "points": 0},
        {"low": 0, "high": 1, "steps": 3},
        {"options": []},
        7,
    ],
)
def test_a_space_that_makes_no_sense_is_refused(written: Any) -> None:
    with pytest.raises(InputError, match=r"space\.rate"):
        space_of({"rate": written})
