"""What is known of a request changes what a policy is told, and never what comes or how long it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from papers.tests.reproductions import QUICK, checked, measured_once
from tests.support.paths import ROOT

from astrarium.core.profiles import ByLength
from astrarium.core.quantities import MICROSECOND
from astrarium.core.random_streams import stream
from astrarium.serving.record import ServingRecord
from astrarium.serving.scenario import Scenario, build
from astrarium_papers.findings import Effort
from astrarium_papers.markdown import PLACE
from astrarium_papers.orloj import _knowing, _page, size
from astrarium_papers.orloj._finish import scenario
from astrarium_papers.orloj._settings import MAX_BATCH, SYSTEMS
from astrarium_papers.orloj._tables import TABLE_4_1
from astrarium_papers.orloj._workloads import real

PAGE = ROOT / "docs" / "sizes.md"
BY_CASE = {workload.case: real(workload) for workload in TABLE_4_1}
reproduced = measured_once("orloj")
TestReproductions = checked(reproduced, ["size"])


def made(case: str, requests: int = 300) -> Scenario:
    return scenario(BY_CASE[case], 1.5, SYSTEMS["Astrarium"], requests)


def test_every_telling_has_the_same_arrivals_and_deadlines() -> None:
    setting = made("gpt-cornell")
    arrivals = build.arrivals(setting)
    for entry in size.ENTRIES.values():
        requests = entry.tell(setting, arrivals).requests
        assert (requests.arrival == arrivals.time).all()
        assert (requests.deadline - requests.arrival == requests.deadline[0] - requests.arrival[0]).all()


def batch_times(record: ServingRecord) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return what batches took beyond c0 + c1 k of their longest request."""
    setting = made("gpt-cornell")
    profile = _knowing.dynamic(setting)
    work = build.arrivals(setting).work
    beyond = []
    for batch, took in enumerate(record.batches.finished - record.batches.started):
        members = record.requests.batch == batch
        beyond.append(took - profile.batch_time(int(members.sum()), int(work[members].max())))
    return np.array(beyond)


def test_batches_take_their_true_time_whatever_was_told() -> None:
    setting = made("gpt-cornell")
    arrivals = build.arrivals(setting)
    assert (batch_times(_knowing.given_length(setting, arrivals, 0.5)) == 0).all()
    sized = batch_times(_knowing.of_size(setting, arrivals))
    assert len(sized) > 10
    assert ((sized >= -2) & (sized <= 2 * MICROSECOND * MAX_BATCH)).all()  # lengths are whole microseconds


def test_a_profile_of_sizes_has_the_batch_times_of_the_dynamic_one() -> None:
    profile = _knowing.dynamic(made("gpt-cornell"))
    surface = _knowing.surface(profile, np.array([20_000, 61_234, 250_000]), MAX_BATCH)
    assert isinstance(surface, ByLength)
    assert (min(surface.lengths), surface.longest) == (20_000, 250_000)
    for count in (1, 5, 16):
        expected = profile.batch_time(count, 61_234 * MICROSECOND)
        assert surface.times(61_234)[count - 1] == pytest.approx(expected, abs=3)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_length_explains_the_share_of_the_variance_that_it_is_said_to(share: float) -> None:
    (time, *_) = (part.time for part in _knowing.dynamic(made("gpt-cornell")).applications.values())
    times = time.sample(stream(1, "test"), 8000)
    parts = _knowing.part_of(time, times, share, stream(2, "test"))
    scores = _knowing.scores(time, times)
    means = np.array([scores[parts == part].mean() for part in range(_knowing.PARTS)])
    assert np.bincount(parts).min() > 800
    assert means[parts].var() / scores.var() == pytest.approx(share, abs=0.06)  # parts are no more exact


def test_without_a_share_an_application_is_divided_at_random() -> None:
    setting = made("rdinet-cifar", 1000)
    arrivals = build.arrivals(setting)
    told = _knowing.given_length(setting, arrivals, 0.0)
    parts = told.requests.application
    assert ((parts // _knowing.PARTS) == arrivals.application).all()
    assert len(set(parts.tolist())) == 2 * _knowing.PARTS


def test_spreads_are_those_of_all_times_and_within_an_application() -> None:
    overall, within = _knowing.spreads(_knowing.dynamic(made("rdinet-cifar")))
    assert within == pytest.approx(0.05, abs=0.002)  # of a cluster
    assert overall > 1


def test_knowing_the_application_pays_where_one_takes_ten_times_as_long() -> None:
    rates = reproduced("size").findings.data["cases"]["rdinet-cifar"]["rates"]
    assert rates["Astrarium: the application"][0] > rates["Astrarium: nothing"][0] + 0.15
    assert rates["Astrarium: the size"][0] > rates["Astrarium: nothing"][0] + 0.15


def test_all_workloads_of_the_chapter_are_measured() -> None:
    names = [case.name for case in size.cases(Effort())]
    assert set(BY_CASE) < set(names)
    assert len(set(names)) == len(names) == len(TABLE_4_1) + len(size.MODES) + len(size.P99S)
    assert len(size.cases(QUICK)) == 2


def known(within: float, **gains: float) -> dict[str, Any]:
    """A case whose rates are 0.5, and as much more for what our policy knows."""
    told = {"half": size.explained(0.5), "all": size.explained(1.0), "size": size.SIZE}
    rates = {name: [0.5] for name in size.ENTRIES}
    for name, more in gains.items():
        rates[size.named(size.OURS, told[name])] = [0.5 + more]
    return {"title": f"made {within}", "spread": 1.0, "within": within, "rates": rates}


def test_what_is_lost_by_knowing_more_is_told() -> None:
    data = {"multiples": [1.5], "cases": {"a": known(0.1, all=0.1, half=-0.005, size=-0.1)}}
    everything, half, lengths, _ = size.claims(data)
    assert (everything.holds, half.holds, lengths.holds) == (True, True, False)
    assert lengths.note == "least gain -0.100 (made 0.1), mean -0.100"


@pytest.mark.parametrize(("near", "far", "holds"), [(0.0, 0.1, True), (0.1, 0.1, False), (0.0, 0.0, False)])
def test_the_size_matters_where_times_are_spread(near: float, far: float, holds: bool) -> None:
    data = {"multiples": [1.5], "cases": {"a": known(0.1, all=near), "b": known(0.8, all=far)}}
    assert size.claims(data)[-1].holds is holds


def test_the_page_has_a_place_for_every_table() -> None:
    assert sorted(name for _, name, _ in PLACE.findall(PAGE.read_text())) == sorted(_page.TABLES)


def test_the_page_is_filled_from_a_run_folder(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: shares -->\nold\n<!-- end -->\nafter\n")
    reproduction = {"name": "orloj/size", "data": reproduced("size").findings.data}
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode({"reproductions": [reproduction]}))
    _page.write(tmp_path, page)
    text = page.read_text()
    assert "old" not in text
    assert "| RDI-Nets/CIFAR | " in text
    assert text.startswith("before\n<!-- table: shares -->\n| Astrarium, at 1.5 x P99 | the application |")


@pytest.mark.parametrize("name", sorted(_page.TABLES))
def test_every_table_is_made_from_data(name: str) -> None:
    lines = _page.TABLES[name](reproduced("size").findings.data).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
