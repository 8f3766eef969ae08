"""Timelines, pictures and run folders."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.core.level import Run
from astrarium.run import folder
from astrarium.run.timeline import write_timeline
from astrarium.serving.ledger import Outcome
from astrarium.serving.level import LEVEL
from astrarium.serving.record import Batches, Requests, ServingRecord
from astrarium.serving.report import files
from astrarium.serving.report.curves import batch_size_shares, latency_cdf, losses, rates_over_time
from astrarium.serving.report.summary import summarize
from astrarium.serving.report.tables import model_table, overview_table
from astrarium.serving.report.timeline import timeline, waiting_at
from astrarium.serving.scenario import Scenario, parse
from tests.support.report_runs import by_hand, simulated
from tests.support.work import calls_of


def of_phase(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def test_a_timeline_is_a_chrome_trace(tmp_path: Path) -> None:
    record = simulated("eager", rate=2500.0)
    write_timeline(tmp_path / "timeline.json", timeline(record))
    trace = json.loads((tmp_path / "timeline.json").read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit", "metadata"}
    for event in trace["traceEvents"]:
        assert event["ph"] in "MXCi"
        assert isinstance(event["pid"], int)
        assert event["ph"] == "M" or event["ts"] >= 0
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in of_phase(trace, "M") if "name" in e["args"]}
    assert names[1, None] == "GPUs"
    assert [names[1, gpu] for gpu in range(3)] == ["GPU 0 (gpu)", "GPU 1 (gpu)", "GPU 2 (gpu)"]


def test_every_batch_is_a_slice_with_its_requests() -> None:
    record = simulated("eager", rate=2500.0)
    trace = timeline(record)
    slices = of_phase(trace, "X")
    assert len(slices) == len(record.batches.fate)
    for run, event in enumerate(slices):
        assert event["args"]["requests"] == np.flatnonzero(record.requests.batch == run).tolist()
        assert event["args"]["batch_size"] == len(event["args"]["requests"])
        assert event["name"] == f"model{record.batches.model[run]} ×{record.batches.size[run]}"
        assert event["ts"] * 1000 == pytest.approx(int(record.batches.started[run]))
        assert event["dur"] > 0
    for gpu in range(3):
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == gpu)
        assert all(b <= c + 1e-6 for (_, b), (c, _) in pairwise(mine))


def test_drops_are_marks_and_waiting_is_a_counter() -> None:
    record = simulated("eager", rate=2500.0)
    trace = timeline(record)
    drops = of_phase(trace, "i")
    assert len(drops) == np.count_nonzero(record.requests.outcome == Outcome.DROPPED) > 0
    assert all(drop["name"].startswith("drop: ") and drop["s"] == "t" for drop in drops)
    counters = of_phase(trace, "C")
    assert max(event["args"]["requests"] for event in counters) > 5
    assert counters[-1]["args"]["requests"] == 0  # nothing waits for ever


def test_waiting_at_against_loops() -> None:
    record = simulated("eager", rate=2500.0)
    times = np.linspace(0, record.duration, 50).astype(np.int64)
    requests = record.requests
    dispatched = record.batches.dispatched
    left = [dispatched[b] if b >= 0 else d for b, d in zip(requests.batch, requests.done, strict=True)]
    expected = [sum(a <= t < b for a, b in zip(requests.arrival, left, strict=True)) for t in times]
    assert waiting_at(record, times).tolist() == expected


def test_a_long_timeline_is_cut_and_says_so() -> None:
    record = simulated()
    trace = timeline(record, most_slices=20)
    slices = of_phase(trace, "X")
    assert len(slices) == 20 == trace["metadata"]["batches_shown"]
    assert trace["metadata"]["batches"] == len(record.batches.fate)
    assert "20 of" in trace["metadata"]["note"]
    assert min(event["args"]["dispatched_us"] for event in slices) * 1000 >= record.warmup


def test_lost_batches_say_so_and_do_not_overlap() -> None:
    slices = of_phase(timeline(by_hand()), "X")
    assert [event["name"] for event in slices][1] == "model0 ×1 (preempted)"
    failed = slices[4]
    assert failed["name"] == "model0 ×1 (failed)"
    assert (failed["ts"], failed["dur"]) == (120_000, 10_000)  # from when the batch ahead was gone


def test_latency_curve_ends_at_the_answered_share() -> None:
    record = simulated("eager", rate=2500.0)
    outcomes = summarize(record).outcomes
    for relative in (False, True):
        curve = latency_cdf(record, relative)
        assert curve.y[-1] == pytest.approx(100 * (outcomes.in_time + outcomes.late) / outcomes.total)
        assert (np.diff(curve.y) >= 0).all()
    assert latency_cdf(record, True).x[-1] <= 100.0001  # nobody is late here


def test_shares_and_losses_add_up() -> None:
    record = simulated(slower=1.15, rate=1200.0)
    assert batch_size_shares(record).y.sum() == pytest.approx(100)
    outcomes = summarize(record).outcomes
    assert sum(losses(record).values()) == pytest.approx(
        100 * (outcomes.total - outcomes.in_time) / outcomes.total
    )
    assert losses(record)["late"] > 0


def test_rates_over_time_add_up_to_the_arrivals() -> None:
    record = simulated()
    offered, good = rates_over_time(record)
    width = offered.x[1] - offered.x[0]
    assert offered.y.sum() * width == pytest.approx(len(record.requests.arrival), rel=0.02)
    assert (good.y <= offered.y).all()


RESNET = {"profile": {"alpha": "1ms", "beta": "1ms"}, "slo": "25ms"}
WORKLOAD = {"arrivals": "poisson", "rate": "100/s", "duration": "3s"}
QUICK = parse({"cluster": {"gpus": 1}, "models": {"m": RESNET}, "workload": WORKLOAD})


def finished(record: ServingRecord, label: str = "one") -> Run[Scenario, ServingRecord]:
    """A run of some scenario: reports read the record."""
    return Run(LEVEL, QUICK, label, record, summarize(record))


def write_all(target: Path, record: ServingRecord, overwrite: bool = False) -> None:
    with folder.run_folder(target, overwrite) as draft:
        folder.write_runs(draft, [finished(record)], "title", "astrarium simulate x.yaml")


def test_a_folder_holds_what_its_readme_says(tmp_path: Path) -> None:
    record = simulated()
    write_all(tmp_path / "runs" / "a", record)
    files = sorted(p.name for p in (tmp_path / "runs" / "a").iterdir())
    assert files == sorted({*folder._FILES, *LEVEL.report.FILES, "README.txt"} - {folder.TRACE})
    text = (tmp_path / "runs" / "a" / "README.txt").read_text()
    assert all(name in text for name in files if name != "README.txt")
    assert "astrarium simulate x.yaml" in text
    with np.load(tmp_path / "runs" / "a" / "requests.npz") as saved:
        for name, column in vars(record.requests).items():
            assert (saved[name] == column).all()
        assert saved["reasons"].tolist() == list(record.reasons)
    with np.load(tmp_path / "runs" / "a" / "batches.npz") as saved:
        assert (saved["finished"] == record.batches.finished).all()


@pytest.mark.parametrize(
    "records",
    [
        [simulated("eager", rate=2500.0)],
        [by_hand()],
        [by_hand()] * 5,
        [simulated(idle_model=True), simulated("eager", rate=2500.0, idle_model=True)],
    ],
)
def test_pictures_are_drawn(tmp_path: Path, records: list[ServingRecord]) -> None:
    from matplotlib.image import imread

    runs = [finished(record, f"run {i}") for i, record in enumerate(records)]
    (tmp_path / "plots").mkdir()
    files.draw(runs, tmp_path / "plots", "title")
    names = {"overview.png", "schedule.png"} | ({"scaling.png"} if len(runs) == 1 else set())
    assert {path.name for path in (tmp_path / "plots").iterdir()} == names
    for name in names:
        pixels = imread(tmp_path / "plots" / name)
        assert pixels.shape[1] >= 990
        assert len(Counter(map(tuple, pixels[::4, ::4, :3].reshape(-1, 3).tolist()))) > 20


def write_half(draft: Path) -> None:
    (draft / "half").write_text("x")
    raise RuntimeError


def test_nothing_stays_of_a_folder_that_failed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), folder.run_folder(tmp_path / "a") as draft:
        write_half(draft)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_folder_alone(tmp_path: Path) -> None:
    record = simulated()
    write_all(tmp_path / "a", record)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "a").iterdir()}
    with pytest.raises(RuntimeError), folder.run_folder(tmp_path / "a", overwrite=True):
        raise RuntimeError
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "a").iterdir()} == before
    write_all(tmp_path / "a", record, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_full_folder_is_refused(tmp_path: Path) -> None:
    write_all(tmp_path / "a", by_hand())
    with pytest.raises(InputError, match="--overwrite"):
        folder.check_free(tmp_path / "a", overwrite=False)
    folder.check_free(tmp_path / "a", overwrite=True)
    (tmp_path / "empty").mkdir()
    folder.check_free(tmp_path / "empty", overwrite=False)


def test_overwrite_spares_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="other things"):
        folder.check_free(tmp_path / "home", overwrite=True)
    with pytest.raises(InputError, match="not a file"):
        folder.check_free(tmp_path / "home" / "letter.txt", overwrite=True)


def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can be written"), folder.run_folder(tmp_path / "file" / "a"):
        pass


def test_unused_names(tmp_path: Path) -> None:
    assert folder.unused(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert folder.unused(tmp_path / "a") == tmp_path / "a-3"


@pytest.mark.thorough
def test_a_folder_of_a_million_requests_takes_no_more_steps_than_a_small_one(tmp_path: Path) -> None:
    write_all(tmp_path / "first", tiled(10_000))  # imports what plots need
    small = calls_of(lambda: write_all(tmp_path / "small", tiled(100_000)))
    large = calls_of(lambda: write_all(tmp_path / "large", tiled(1_000_000)))
    assert large - small < 100_000  # one for each request would be 900,000


def tiled(count: int) -> ServingRecord:
    """Return a record of about so many requests."""
    record = simulated(seconds=1.0)
    times = count // len(record.requests.arrival)
    requests = Requests(**{name: np.tile(column, times) for name, column in vars(record.requests).items()})
    batches = Batches(**{name: np.tile(column, times) for name, column in vars(record.batches).items()})
    return replace(record, requests=requests, batches=batches)


def shown(table: Any) -> str:
    from rich.console import Console

    console = Console(width=200, file=StringIO())
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_tables_hold_the_numbers() -> None:
    eager = summarize(simulated("eager", rate=2500.0))
    deferred = summarize(simulated())
    text = shown(overview_table({"first": eager, "second": deferred}))
    assert f"{eager.outcomes.dropped:,}" in text
    assert f"{eager.attainment:.2%}" in text
    assert f"{deferred.gpus.busy_fraction:.1%}" in text
    assert "wasted" not in text  # nobody preempted anything
    assert "wasted" in shown(overview_table({"by hand": summarize(by_hand())}))
    models = shown(model_table(eager))
    assert all(f"{model.p99_ms:,.2f}" in models for model in eager.models.values())
    last = shown(model_table(summarize(simulated(idle_model=True)))).rstrip().split("\n")[-1]
    assert last.split()[0] == "model2"  # without requests, so not the worst


def finish_late(target: Path, **options: Any) -> None:
    """A run during which another takes the folder that it wanted."""
    with folder.run_folder(target, **options) as draft:
        (draft / "a.txt").write_text("late")
        target.mkdir()
        (target / "a.txt").write_text("first")


def test_a_run_never_replaces_another_that_took_its_name(tmp_path: Path) -> None:
    places: list[Path] = []
    finish_late(tmp_path / "proposed", placed=places.append)
    assert places == [tmp_path / "proposed-2"]
    with pytest.raises(InputError, match="--out"):
        finish_late(tmp_path / "asked")
    texts = {path.parent.name: path.read_text() for path in tmp_path.rglob("a.txt")}
    assert texts == {"proposed": "first", "proposed-2": "late", "asked": "first"}
