"""What a live trial reports counts at once: for the best, the target, the journal and the library's study."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import optuna
import pytest

from astrarium.core.quantities import SECOND
from astrarium.tuning.live.backend import Checkpoint
from astrarium.tuning.live.checkpoints import Checkpoints
from astrarium.tuning.live.loop.limits import LiveLimits
from astrarium.tuning.live.loop.reports import Reported
from astrarium.tuning.live.progress import SearchProgress
from astrarium.tuning.live.run.journal import FileJournal
from astrarium.tuning.live.view import status
from astrarium.tuning.optuna import sampler as optuna_sampler
from astrarium.tuning.optuna.sampler import OptunaSampler
from astrarium.tuning.report import files as report
from astrarium.tuning.report.summary import summarize
from astrarium.tuning.samplers import Standing
from astrarium.tuning.spaces import Range
from tests.support.tuning.live_search import TASK, Play

LONG = {"candidates": 4, "iterations": 60}  # one rung of 60 iterations


def after(iterations: int, play: Play) -> Play:
    """Play until the first candidate has reported so many iterations."""
    return play.go(lambda: play.live.session.candidates[0].trained >= iterations)


def falling_to(lowest: int) -> Callable[[int, int], float]:
    """Return values that fall until so many iterations, and rise afterwards."""
    return lambda candidate, iterations: 1.0 + candidate + abs(iterations - lowest)


def test_there_is_a_best_before_the_first_trial_has_ended() -> None:
    play = after(40, Play("random", settings=LONG))
    assert not any(candidate.history for candidate in play.live.session.candidates.values())
    best = play.live.session.best[-1]
    assert f"best {best.value:.5g}" in status(play.live)
    summary = summarize(play.live.record("fifo"), TASK.goal, None)
    assert summary.best is not None
    assert {one.candidate: one.iterations for one in summary.by_candidate}[0] >= 40


def test_a_target_that_is_reached_on_the_way_ends_the_search() -> None:
    play = Play("random", settings=LONG, target=5.0, goal="min", worth=falling_to(2)).go()
    session = play.live.session
    assert session.over == "the target is reached"
    assert max(candidate.trained for candidate in session.candidates.values()) < 10
    assert session.candidates[session.best[-1].candidate].standing is Standing.COMPLETE
    assert not play.live.state.open


def test_the_best_is_the_best_that_was_ever_reported() -> None:
    play = Play("random", settings={"candidates": 2, "iterations": 30}, goal="min", worth=falling_to(10)).go()
    best = play.live.session.best[-1]
    assert (best.candidate, best.iterations, best.value) == (0, 10, 1.0)
    summary = summarize(play.live.record("fifo"), "min", None)
    assert summary.best is not None
    assert (summary.best.value, summary.best.iterations) == (1.0, 10)
    assert summary.by_candidate[0].iterations == 30


def test_a_stopped_search_leaves_checkpoints_from_which_the_next_goes_on(tmp_path: Path) -> None:
    kept: set[Checkpoint] = set()
    limits = LiveLimits(patience=SECOND)
    checkpoints = KeptCheckpoints(tmp_path, kept)
    journal = FileJournal(tmp_path / "journal.jsonl", checkpoints)
    first = Play("random", settings=LONG, kept=kept, checkpoints=1000, journal=journal, limits=limits)
    after(40, first)
    reported = [(score.iterations, score.value) for score in first.live.session.candidates[0].curve]
    assert not kept
    first.live.run(first.clock, stop=lambda: "it was interrupted")
    assert first.backend.closed
    assert {checkpoint.iterations >= 40 for checkpoint in kept if checkpoint.candidate == 0} == {True}

    again = Play(
        "random",
        settings=LONG,
        kept=kept,
        checkpoints=1000,
        journal=FileJournal(tmp_path / "journal.jsonl", checkpoints),
        limits=limits,
    )
    again.go()
    assert again.backend.started[0].start is not None
    assert again.backend.started[0].start.iterations >= 40
    curve = [(score.iterations, score.value) for score in again.live.session.candidates[0].curve]
    assert curve[: len(reported)] == reported
    assert [iterations for iterations, _ in curve] == list(range(1, 61))
    assert again.endings() == Play("random", settings=LONG).go().endings()


class KeptCheckpoints(Checkpoints):
    """The checkpoints of a backend that is not there."""

    def __init__(self, folder: Path, kept: set[Checkpoint]) -> None:
        super().__init__(folder)
        self._all = kept

    def kept(self, candidate: int) -> list[int]:
        return sorted(one.iterations for one in self._all if one.candidate == candidate)


def test_a_failure_is_told_when_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    play = Play("random", settings=LONG)
    play.backend.failing = lambda candidate, iterations: (
        "it broke" if (candidate, iterations) == (1, 3) else ""
    )
    play.go(lambda: 1 in play.live.session.failed)
    SearchProgress().show(play.live)
    assert "candidate 1 failed: it broke" in capsys.readouterr().err
    summary = summarize(play.live.record("fifo"), TASK.goal, None)
    assert {one.candidate: one.iterations for one in summary.by_candidate}[1] == 2


def test_values_that_are_no_numbers_are_passed_over_on_the_way() -> None:
    play = Play(
        "random",
        settings={"candidates": 1, "iterations": 5},
        worth=lambda candidate, iterations: nan if iterations == 2 else 10.0 - iterations,
    ).go()
    [candidate] = play.live.session.candidates.values()
    assert [score.iterations for score in candidate.curve] == [1, 3, 4, 5]
    assert candidate.standing is Standing.COMPLETE


def test_a_sampler_hears_every_value_once() -> None:
    play = Play("successive-halving", settings={"candidates": 3, "iterations": 9})
    heard: list[tuple[int, int]] = []
    sampler: Any = play.live.session.pool._sampler
    sampler.observe = lambda id, iterations, value: heard.append((id, iterations))
    sampler.report = lambda id, iterations, value: heard.append((id, iterations))
    play.go()
    expected = [
        (number, score.iterations)
        for number, candidate in play.live.session.candidates.items()
        for score in candidate.curve
    ]
    assert sorted(heard) == expected
    assert len(heard) > len(play.live.session.candidates)


def test_other_numbers_are_kept_and_shown(tmp_path: Path) -> None:
    """They are in the journal, so that a search that goes on has them too."""
    journal = FileJournal(tmp_path / "journal.jsonl", Checkpoints(tmp_path))
    play = Play("random", settings={"candidates": 2, "iterations": 3}, journal=journal)
    play.backend.metrics = lambda candidate, iterations: {"accuracy": candidate + iterations / 10}
    play.go()
    record = play.live.record("fifo")
    best = summarize(record, TASK.goal, None).by_candidate[0]
    curve = {score.value: score for score in record.candidates[best.candidate].curve}
    assert best.metrics == curve[best.value or 0.0].metrics != {}
    rows = report.rows(record)["curves"]
    assert list(rows["metric.accuracy"]) == [0.1, 0.2, 0.3, 1.1, 1.2, 1.3]
    again = FileJournal(tmp_path / "journal.jsonl", Checkpoints(tmp_path))
    values = record.candidates[1].values
    assert [one.metrics for one in again.curve(1, values, 2)] == [{"accuracy": 1.1}, {"accuracy": 1.2}]


def test_a_search_goes_on_from_what_was_heard(tmp_path: Path) -> None:
    """A process that was killed may have saved more than it was heard to be worth."""
    checkpoints = KeptCheckpoints(tmp_path, {Checkpoint(0, at) for at in (10, 60, 66, 70)})
    journal = FileJournal(tmp_path / "journal.jsonl", checkpoints)
    values = {"rate": 0.1}
    journal.began(0, values)
    assert journal.kept(0, values, 100) == 70  # of an earlier version, which wrote no values on the way
    journal.reported(0, values, Reported(65, 1.0))
    assert journal.kept(0, values, 100) == 60
    assert journal.kept(0, values, 60) == 10


def test_studies_hear_of_values_within_limits_and_prune_at_the_ends_of_rungs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = optuna.create_study(pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1))
    asked: list[int] = []
    sampler = OptunaSampler(study, {"rate": Range(0.0, 1.0)}, pruning=True)
    one = sampler.ask()
    assert one is not None

    def should_prune(trial: optuna.Trial) -> bool:
        asked.append(1)
        return False

    monkeypatch.setattr(optuna.Trial, "should_prune", should_prune)
    sampler.observe(one.id, 1, 3.0)
    monkeypatch.setattr(optuna_sampler, "REPORTING_SECONDS", -1000.0)
    sampler.observe(one.id, 2, 2.0)
    assert not asked
    assert not sampler.report(one.id, 3, 1.0)
    assert asked == [1]
    assert study.trials[0].intermediate_values == {1: 3.0, 3: 1.0}
