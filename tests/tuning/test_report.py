"""Reports of tuning runs: numbers, tables, heat maps, rows and pictures, of runs made by hand."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from astrarium.core.level import Run
from astrarium.core.quantities import SECOND
from astrarium.testing.tuning_runs import run
from astrarium.tuning.contract import Trial
from astrarium.tuning.level import LEVEL
from astrarium.tuning.record import Level, Stay, TuningRecord
from astrarium.tuning.report.files import FILES, write
from astrarium.tuning.report.heat_map import blocks, fitting, heat_map
from astrarium.tuning.report.plots import boxes, draw_best, draw_heat, draw_trials
from astrarium.tuning.report.summary import summarize, summarize_candidates
from astrarium.tuning.report.tables import (
    best_line,
    candidates_table,
    failures_line,
    overview_table,
    ratio_told,
    ratios,
    remembered_line,
)
from astrarium.tuning.runtime import Place
from astrarium.tuning.samplers import Configuration, Goal, Standing
from astrarium.tuning.scenario.read import TuningScenario, parse
from astrarium.tuning.scenario.tasks import TASKS
from astrarium.tuning.search.contract import Candidate, CandidateScore
from astrarium.tuning.session import Best
from astrarium.tuning.state import Outcome, TrialRow


def finished(record: TuningRecord, goal: Goal) -> Run[TuningScenario, TuningRecord]:
    """A run of some scenario: reports read the record."""
    scenario = parse({"task": "cifar10-alexnet"})
    return Run(LEVEL, scenario, "mine", record, summarize(record, goal, None))


def candidate(number: int, values: list[float], standing: Standing = Standing.STOPPED) -> Candidate:
    history = [CandidateScore(10 * (at + 1) * SECOND, at + 1, value) for at, value in enumerate(values)]
    configuration = Configuration(number, {"rate": 0.1 * number, "kind": "[b]odd[/b]"})
    return Candidate(number, configuration, None, len(values), history, list(history), standing)


def row(trial: int, candidate: int, gpu_time: float, moves: int = 0) -> TrialRow:
    return TrialRow(
        Trial(trial, 0, candidate, 2), 0, 0, 20 * SECOND, Outcome.FINISHED, gpu_time=gpu_time, moves=moves
    )


@pytest.fixture
def record() -> TuningRecord:
    """Two GPUs for 20 s: half of one to the middle, all of both after that, by hand."""
    candidates = [candidate(0, [3.0, 2.5]), candidate(1, [2.0, 4.0], Standing.COMPLETE), candidate(2, [])]
    return TuningRecord(
        "mine",
        20 * SECOND,
        [Level(0, {0: 0.5, 1: 0.0}), Level(10 * SECOND, {0: 1.0, 1: 1.0})],
        [Best(10 * SECOND, 0, 3.0, 1), Best(20 * SECOND, 1, 4.0, 2)],
        candidates,
        [row(0, 0, 5 * SECOND), row(1, 1, 15 * SECOND, 1), row(2, 1, 16 * SECOND, 1)],
        "the search is done",
        [
            Stay(0, Place((0,), 2), 0, 10 * SECOND),
            Stay(1, Place((0, 1)), 10 * SECOND, 20 * SECOND),
        ],
    )


def test_a_summary_adds_up(record: TuningRecord) -> None:
    summary = summarize(record, "max", 3.0)
    assert (summary.makespan_s, summary.time_to_target_s, summary.moves) == (20.0, 10.0, 2)
    assert summary.utilization == pytest.approx((0.25 + 1.0) / 2)
    assert summary.gpu_hours == pytest.approx(36 / 3600)
    assert summary.standings == {"complete": 1, "stopped": 2}
    assert summary.best is not None
    assert (summary.best.candidate, summary.best.value, summary.best.iterations) == (1, 4.0, 2)
    assert summarize(record, "max", 5.0).time_to_target_s is None
    assert summarize(record, "max", None).target is None


def test_candidates_stand_in_the_order_of_their_best(record: TuningRecord) -> None:
    large = summarize_candidates(record, "max")
    assert [(row.candidate, row.value) for row in large] == [(1, 4.0), (0, 3.0), (2, None)]
    assert [(row.gpu_s, row.moves) for row in large] == [(31.0, 2), (5.0, 0), (0.0, 0)]
    assert [row.candidate for row in summarize_candidates(record, "min")] == [1, 0, 2]  # 2.0, 2.5


def test_a_heat_map_has_a_block_for_each_window(record: TuningRecord) -> None:
    title, first, second, axis, _ = [line.plain for line in heat_map("mine", record, width=4)]
    assert title.startswith("mine: ")
    assert "(62% in all)" in title
    assert first.split("│")[1] == "▄▄██"
    assert second.split("│")[1] == "  ██"
    assert [first.split()[-1], second.split()[-1]] == ["75%", "50%"]
    assert axis.split() == ["0", "20", "s"]


def test_heat_maps_side_by_side_share_an_axis(record: TuningRecord) -> None:
    _, first, _, axis, _ = [line.plain for line in heat_map("mine", record, 40 * SECOND, width=4)]
    assert first.split("│")[1] == "▄█  "
    assert first.split()[-1] == "75%"  # of its own time
    assert axis.split() == ["0", "40", "s"]


def test_only_what_is_empty_looks_empty_and_only_what_is_full_looks_full() -> None:
    assert blocks([0.0, 0.001, 0.5, 0.999, 1.0]) == " ▁▄▇█"


def test_very_many_gpus_are_not_all_shown() -> None:
    many = TuningRecord("mine", SECOND, [Level(0, dict.fromkeys(range(100), 1.0))], [], [], [], "")
    lines = [line.plain for line in heat_map("mine", many)]
    assert len(lines) == 68
    assert "(36 more)" in lines[-3]


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_a_heat_map_fits_its_terminal(record: TuningRecord, columns: int) -> None:
    many = TuningRecord("mine", SECOND, [Level(0, dict.fromkeys(range(12), 1.0))], [], [], [], "")
    for one in (record, many):
        width = fitting(columns, one.gpus)
        lines = [line.plain for line in heat_map("", one, width=width)]
        assert max(map(len, lines[1:])) <= columns
        assert width == 72 or max(map(len, lines[1:])) == columns


def shown(table: Any, width: int = 200) -> str:
    from rich.console import Console

    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_what_people_call_their_values_is_no_markup(record: TuningRecord) -> None:
    assert "kind=[b]odd[/b]" in shown(candidates_table(summarize_candidates(record, "max")))
    assert "kind=[b]odd[/b]" in best_line(summarize(record, "max", None)).plain


def test_nothing_found_is_said() -> None:
    nothing = TuningRecord("mine", 0, [Level(0, {0: 0.0})], [], [candidate(0, [])], [], "all failed")
    summary = summarize(nothing, "min", 1.0)
    assert best_line(summary).plain == "no candidate has a value: all failed"
    assert "-" in shown(overview_table({"mine": [summary]}))


def test_a_run_that_ended_before_it_had_begun_has_a_report(tmp_path: Path) -> None:
    nothing = TuningRecord("mine", 0, [], [], [], [], "it was interrupted")
    summary = summarize(nothing, "min", None)
    assert (summary.utilization, summary.trials, summary.best) == (0.0, 0, None)
    assert len(heat_map("mine", nothing)) == 3
    assert "mine" in shown(overview_table({"fifo": [summary], "mine": [summary]}))
    write(finished(nothing, "min"), tmp_path, True)
    drawn = [finished(nothing, "min")]
    for draw, name in ((draw_heat, "heat"), (draw_trials, "trials"), (draw_best, "best")):
        draw(drawn, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").is_file()


def test_failures_are_told_though_they_are_last() -> None:
    candidates = [candidate(number, [1.0 * number]) for number in range(30)]
    broken = [candidate(number, [], Standing.FAILED) for number in (41, 40)]
    for failed in broken:
        failed.reason = f"Traceback ...\nValueError: {'no ' * 30}{failed.number}"
    record = TuningRecord("mine", SECOND, [Level(0, {0: 1.0})], [], [*candidates, *broken], [], "")
    line = failures_line(summarize_candidates(record, "max"))
    assert line is not None
    assert line.plain.startswith("2 of 32 candidates failed; the first, candidate 40: ValueError: no")
    assert line.plain.endswith("no 40")
    assert "32 (2 failed)" in shown(overview_table({"mine": [summarize(record, "max", None)]}))
    assert failures_line(summarize_candidates(TuningRecord("", 0, [], [], candidates, [], ""), "max")) is None


def test_the_first_numbers_stay_whole_in_a_narrow_terminal(record: TuningRecord) -> None:
    summary = summarize(record, "max", 3.5)
    text = shown(overview_table({"mine": [summary], "another-policy": [summary]}), 60)
    assert all(word in text for word in ("another-policy", "20.0", "1.00"))


def test_a_run_that_went_on_says_whose_times_are_shown(record: TuningRecord) -> None:
    assert remembered_line([summarize(record, "max", None)]) is None
    record.remembered = 2
    line = remembered_line([summarize(record, "max", None)])
    assert line is not None
    assert "2 of mine; times and GPUs below are of this run" in line.plain


def test_a_policy_that_was_interrupted_has_fewer_seeds(record: TuningRecord) -> None:
    summary = summarize(record, "max", None)
    assert ratios([summary], [summary, summary], "makespan_s") == [1.0]
    assert "mine" in shown(overview_table({"fifo": [summary, summary], "mine": [summary]}))


def test_ratios_are_taken_seed_by_seed() -> None:
    runs = {
        policy: [
            summarize(run(TASKS["dcgan-cnn"], "random", policy, 2, seed, SMALL), "max", 9.0)
            for seed in (0, 1)
        ]
        for policy in ("fifo", "dynamic-fluid")
    }
    fifo, fluid = runs.values()
    by_seed = ratios(fluid, fifo, "makespan_s")
    assert by_seed == [a.makespan_s / b.makespan_s for a, b in zip(fifo, fluid, strict=True)]
    assert min(by_seed) > 1
    assert ratios(fluid, fifo, "time_to_target_s") == []  # nobody reached it
    assert ratio_told([]) == "-"
    assert ratio_told([1.0, 2.0]) == "1.50 (1.00..2.00)"
    assert ratio_told(by_seed) in shown(overview_table(runs))


SMALL = {"candidates": 6, "iterations": 4}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_say_what_the_record_says(tmp_path: Path) -> None:
    record = run(TASKS["dcgan-cnn"], "successive-halving", "dynamic-fluid", 4, 0, {"candidates": 9})
    write(finished(record, "max"), tmp_path, True)
    assert {path.name for path in tmp_path.iterdir()} == FILES.keys()
    held = sum(
        len(row["gpus"].split()) * float(row["share"]) * (float(row["end_s"]) - float(row["start_s"]))
        for row in rows(tmp_path / "places.csv")
    )
    assert held == pytest.approx(record.utilization() * 4 * record.end / SECOND, rel=0.05)
    levels = [float(row["held"]) for row in rows(tmp_path / "utilization.csv")]
    assert sum(levels) / len(levels) == pytest.approx(record.utilization())
    best = rows(tmp_path / "candidates.csv")[0]
    assert float(best["value"]) == record.best[-1].value
    assert float(best["configuration.momentum"]) > 0
    decisions = rows(tmp_path / "decisions.csv")
    assert len(decisions) == len(record.decisions) > 0
    assert {row["what"] for row in decisions} == {"put"}
    assert all(row["why"] for row in decisions)
    assert len(rows(tmp_path / "trials.csv")) == len(record.rows)


@pytest.mark.parametrize("policy", ["fifo", "static-fluid", "dynamic-fluid"])
def test_stays_cover_what_trials_trained(policy: str) -> None:
    record = run(TASKS["wlm-rnn"], "hyperband", policy, 4, 2, {"iterations": 9})
    for row in record.rows:
        mine = sorted((stay for stay in record.stays if stay.trial == row.trial.id), key=lambda s: s.start)
        assert mine[0].start == row.started
        assert mine[-1].end == row.ended
        assert len(mine) == row.moves + 1
        assert all(before.end == after.start for before, after in pairwise(mine))


def test_boxes_of_one_gpu_do_not_overlap() -> None:
    record = run(TASKS["wlm-rnn"], "random", "static-fluid", 2, 0, {"candidates": 9, "iterations": 3})
    drawn = boxes(record)
    assert any(box.high - box.low < 1 for box in drawn)
    for place, box in enumerate(drawn):
        for other in drawn[place + 1 :]:
            apart = other.start >= box.end or box.start >= other.end
            beside = other.low >= box.high - 1e-9 or box.low >= other.high - 1e-9
            assert box.gpu != other.gpu or apart or beside


def test_pictures_are_drawn(record: TuningRecord, tmp_path: Path) -> None:
    summary = summarize(record, "max", 3.0)
    drawn = [replace(finished(record, "max"), label="mine $x$", summary=summary)]
    for name, draw in (("heat", draw_heat), ("best", draw_best), ("trials", draw_trials)):
        path = tmp_path / f"{name}.png"
        draw([*drawn, *drawn], path)
        assert path.read_bytes().startswith(b"\x89PNG")
