"""Reports speak of lengths: how long requests are, and how much of the work was padding."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from rich.table import Table

from astrarium.core.level import Run
from astrarium.run.folder import write_runs
from astrarium.serving.contract import Event, Request, RequestArrived
from astrarium.serving.goodput import capacity, search
from astrarium.serving.level import LEVEL, run
from astrarium.serving.record import ServingRecord
from astrarium.serving.report.files import explain, rows, tables
from astrarium.serving.report.summary import summarize
from astrarium.serving.report.tables import overview_table
from astrarium.serving.scenario import Scenario, build, parse
from tests.serving.scenario.texts import texts
from tests.support.report_runs import by_hand

ROUNDED_TO = (16, 64, 256)


def busy(policy: str = "eager", **profile: Any) -> Scenario:
    lengths = {"samples": [5, 16, 30, 60, 200]}
    workload = {"rate": "4000/s", "duration": "400ms", "warmup": "100ms", "lengths": lengths}
    return texts(workload=workload, policy={"name": policy}, profile=profile)


def shown(scenario: Scenario) -> Run[Scenario, ServingRecord]:
    record = run(scenario, "python")
    return Run(LEVEL, scenario, scenario.policy.label, record, summarize(record))


def rounded_up(length: int) -> int:
    return next(longest for longest in ROUNDED_TO if longest >= length)


def slowly(record: ServingRecord, rounded: bool, together: str) -> float:
    """Return the share of padding by plain loops."""
    of = record.requests
    asked = computed = 0
    for batch in np.unique(of.batch[(of.arrival >= record.warmup) & (of.batch >= 0)]).tolist():
        runs: dict[int, list[int]] = {}
        for length in of.length[of.batch == batch].tolist():
            kind = {"padded": 0, "bucket": rounded_up(length), "length": length}[together]
            runs.setdefault(kind, []).append(length)
        for members in runs.values():
            asked += sum(members)
            longest = rounded_up(max(members)) if rounded else max(members)
            computed += longest * len(members)
    return 1 - asked / computed


@pytest.mark.parametrize(
    ("rounded", "together"),
    [(True, "padded"), (False, "padded"), (True, "bucket"), (True, "length"), (False, "length")],
)
def test_padding_is_what_was_computed_and_not_asked_for(rounded: bool, together: str) -> None:
    record = run(busy(rounded=rounded, together=together), "python")
    summary = summarize(record)
    expected = slowly(record, rounded, together)
    assert summary.padding == summary.models["encoder"].padding == pytest.approx(expected)
    assert (expected == 0) is (not rounded and together == "length")


def test_the_mean_length_is_that_of_the_measured_requests() -> None:
    record = run(busy(), "python")
    lengths = record.requests.length[record.requests.arrival >= record.warmup]
    assert summarize(record).models["encoder"].mean_length == pytest.approx(lengths.mean())


def test_without_lengths_nothing_is_said_of_them() -> None:
    summary = summarize(by_hand())
    assert summary.padding is None
    assert summary.models["model0"].mean_length is None
    assert summary.models["model0"].padding is None


def test_batches_of_like_lengths_pad_less() -> None:
    mixed, alike = (
        summarize(run(busy().with_policy("eager", batches=batches))) for batches in ("mixed", "alike")
    )
    assert mixed.padding is not None
    assert alike.padding is not None
    assert alike.padding < 0.6 * mixed.padding


def test_requests_have_a_column_of_lengths() -> None:
    scenario = busy()
    record = run(scenario, "python")
    assert record.requests.length.tolist() == build.arrivals(scenario).length.tolist()
    assert list(rows(record)["requests"]["length"]) == record.requests.length.tolist()


def test_tables_have_columns_where_there_are_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    overview, models = tables([shown(busy())])
    assert "padding" in [column.header for column in overview.columns]
    assert [column.header for column in models.columns][-2:] == ["mean length", "padding"]


def cells(table: Table) -> dict[str, list[str]]:
    return {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}


def overview(*scenarios: Scenario) -> dict[str, list[str]]:
    """The cells of the overview, by column."""
    table, *_ = tables([shown(scenario) for scenario in scenarios])
    return cells(table)


def test_no_padding_is_said_as_it_is_of_each_model() -> None:
    """A reader who sees no column would think that nothing is known of it."""
    unpadded = busy(rounded=False, together="length")
    assert overview(unpadded)["padding"] == ["0.0%"]
    assert overview(unpadded, busy("timeout", rounded=False, together="length"))["padding"] == ["0.0%"] * 2


def test_where_nothing_ran_nothing_is_known_of_padding() -> None:
    nothing_ran = msgspec.structs.replace(shown(busy()).summary, padding=None)
    assert cells(overview_table({"eager": nothing_ran}))["padding"] == ["-"]


def test_losses_that_nobody_had_have_no_column() -> None:
    columns = overview(texts(workload={"rate": "10/s"}))
    assert not {"late", "dropped", "failed", "wasted"} & columns.keys()
    assert "in time/s" in columns


def test_a_request_is_explained_with_its_length_and_the_padding_of_its_batch() -> None:
    finished = shown(busy())
    of = finished.record.requests
    request = int(np.flatnonzero(of.length == 30)[0])
    members = of.length[of.batch == of.batch[request]].tolist()
    explained = explain(finished, str(request))
    assert f"Its length is 30; the longest in its batch has {max(members)}." in explained
    padding = 1 - sum(members) / (rounded_up(max(members)) * len(members))
    assert f"{padding:.1%} of what the batch computes is padding." in explained


def test_a_request_without_a_length_is_explained_without_padding() -> None:
    models = {"m": {"profile": {"alpha": "1ms", "beta": "1ms"}, "slo": "20ms"}}
    workload = {"arrivals": "poisson", "rate": "100/s", "duration": "1s"}
    alike = parse({"cluster": {"gpus": 1}, "models": models, "policy": "eager", "workload": workload})
    assert not [sentence for sentence in explain(shown(alike), "0") if "padding" in sentence]


def test_the_files_of_a_run_have_lengths(tmp_path: Any) -> None:
    finished = shown(busy())
    write_runs(tmp_path, [finished], "lengths", "astrarium simulate")
    with np.load(tmp_path / "requests.npz") as columns:
        assert columns["length"].tolist() == finished.record.requests.length.tolist()
    assert msgspec.json.decode((tmp_path / "summary.json").read_bytes())["padding"] > 0


def test_capacity_counts_the_lengths_that_come() -> None:
    """Batches of 16 take 1.5, 4 and 16 ms by length; of nine requests five are short and one is long."""
    scenario = texts(workload={"duration": "20s"})
    per_request_ms = (5 * 1.5 + 3 * 4 + 16) / 9 / 16
    assert capacity(scenario, build.setup(scenario)) == pytest.approx(2 * 1000 / per_request_ms, rel=0.02)


def test_goodput_is_searched_with_lengths() -> None:
    scenario = texts(workload={"duration": "500ms"})
    found = search(scenario, seeds=1, tolerance=0.05)
    padded = search(scenario.with_policy("eager"), seeds=1, tolerance=0.05)
    assert 0.5 * found.capacity < found.goodput < 1.1 * found.capacity
    assert found.goodput > 1.5 * padded.goodput


def test_a_recording_from_before_lengths_is_read() -> None:
    old = b'{"type":"RequestArrived","request":{"id":3,"model":0,"arrival":5,"deadline":9,"application":0}}'
    assert msgspec.json.decode(old, type=Event) == RequestArrived(Request(3, 0, 5, 9))
