"""What is claimed of our own policy, in its quick forms, and the page that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from papers.tests.reproductions import QUICK, checked, listed, measured_once
from tests.support.paths import ROOT

from astrarium_papers.astrarium import (
    _length_cases,
    _lines,
    _page,
    ablation,
    figure7,
    goodput,
    heldout,
    latency,
    lengths,
    overload,
)
from astrarium_papers.astrarium._in_time import in_time
from astrarium_papers.astrarium._settings import ASTRARIUM, FEW_GPUS, OURS, POLICIES, built_for
from astrarium_papers.findings import Effort
from astrarium_papers.markdown import PLACE
from astrarium_papers.symphony.figure7 import Setting, every_setting, sample

NAMES = ("ablation", "goodput", "heldout", "latency", "lengths", "overload", "figure7")
PAGE = ROOT / "docs" / "astrarium.md"
reproduced = measured_once("astrarium")


def decoded(name: str) -> dict[str, Any]:
    """The data as a run folder has it."""
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(reproduced(name).findings.data))
    return data


def test_they_are_listed() -> None:
    others = {"sharing", "tuning"}  # are about other levels, and have tests of their own
    assert [name for name in listed("astrarium") if name not in others] == list(NAMES)


TestReproductions = checked(reproduced, NAMES)


def goodputs(**rates: float) -> dict[str, Any]:
    return {policy: {"goodput": rates.get(policy, 1.0), "interval": [0.0, 0.0]} for policy in POLICIES}


def test_the_bars_are_measured_on_the_settings_they_were_set_for() -> None:
    bars = {setting.name: (setting.gpus, setting.bar) for setting in built_for(Effort())}
    assert bars == {
        "ResNet50, 8 GPUs": (8, 5500),
        "InceptionResNetV2, 8 GPUs": (8, 975),
        "A100 zoo, 64 GPUs": (64, 18_300),
        "ResNet50, 1 GPU": (1, 405),
        "ResNet50, 2 GPUs": (2, 1050),
        "ResNet50, 4 GPUs": (4, 2300),
    }
    assert all(setting.seconds >= 40 for setting in built_for(Effort()))


def test_on_one_gpu_ours_is_near_eager_and_above_deferral() -> None:
    (by_policy,) = reproduced("goodput").findings.data.values()
    assert by_policy[OURS]["goodput"] >= 0.97 * max(numbers["goodput"] for numbers in by_policy.values())


@pytest.mark.parametrize(("rate", "holds"), [(405.0, True), (404.0, False)])
def test_a_bar_is_met_or_not(rate: float, holds: bool) -> None:
    claim = goodput._claim(FEW_GPUS[0], {FEW_GPUS[0].name: goodputs(astrarium=rate, deferred=202.5)})
    assert claim.holds is holds
    assert ("2.000 x deferred" in claim.note) is holds


def test_at_light_load_answers_come_as_soon_as_from_eager() -> None:
    findings = reproduced("latency").findings
    (shares,) = findings.data.values()
    assert list(shares) == ["0.1", "0.25", "0.5"]
    assert latency.ratio(shares["0.1"], "mean") == pytest.approx(1, abs=0.02)
    assert latency.ratio(shares["0.1"], "mean", latency.FEW_GPUS) > 1.5
    assert findings.claims[0].holds


def test_latency_is_measured_wherever_goodput_is() -> None:
    assert latency.settings(Effort()) == [*built_for(Effort()), *heldout.SETTINGS]


@pytest.mark.parametrize(("mean", "holds"), [(13.0, True), (13.1, False)])
def test_the_slowest_setting_is_held_against_the_bar(mean: float, holds: bool) -> None:
    slow = {"astrarium": {"mean": mean}, "eager": {"mean": 10.0}}
    quick = {"astrarium": {"mean": 5.0}, "eager": {"mean": 10.0}}
    claim = latency.claim({"a": {"0.1": quick, "0.5": slow}})
    assert claim.holds is holds
    assert claim.note.endswith("a at 0.5")


def test_what_is_in_time_never_exceeds_what_is_offered() -> None:
    for numbers in reproduced("overload").findings.data.values():
        for policy in numbers["policies"].values():
            assert 0.5 < policy["share"] < 1
            assert policy["worst"] <= policy["share"] + 1e-12
            assert policy["rate"] < numbers["offered"] * 1.1


def test_all_are_in_time_when_little_comes() -> None:
    case = FEW_GPUS[0].scenario(ASTRARIUM, QUICK).with_rate(40)
    served = in_time(case, QUICK)
    assert (served.share, served.worst) == (1, 1)
    assert served.rate == pytest.approx(40, rel=0.4)


def test_fewer_in_time_than_deferred_is_told() -> None:
    policies = {OURS: {"rate": 99.0, "worst": 0.5}, "deferred": {"rate": 100.0, "worst": 0.4}}
    rates, worst = overload._claims({"somewhere": {"policies": policies}})
    assert (rates.holds, worst.holds) == (False, True)
    assert rates.note == "somewhere: 0.990 x deferred's"


# the settings of Figure 7


def test_the_fresh_sample_has_nothing_of_the_first() -> None:
    drawn, fresh = figure7.samples(Effort()).values()
    assert drawn == sample(120)
    assert len(fresh) > 55
    assert not set(fresh) & set(drawn)
    assert set(fresh) < set(every_setting())


def test_an_slo_shorter_than_a_request_is_skipped() -> None:
    assert figure7.measure(Setting("DenseNet121", 8, 1.0, 10, 1.0), QUICK) is None


def test_a_low_ratio_is_settled_by_more_seeds() -> None:
    cases = [
        {"name": "a", "place": 0, "ratio": 1.02, "again": None},
        {"name": "b", "place": 1, "ratio": 0.97, "again": 0.995},
    ]
    assert figure7._claim("made", cases).holds
    rows = {row.what: row for row in figure7._rows(figure7.DRAWN, cases, 3)}
    assert rows["Figure 7's sample: least"].ours == 0.97
    assert rows["Figure 7's sample: least, settled"].ours == 0.995
    assert rows["Figure 7's sample: settings under 0.99"].note == "b: 0.970, settled 0.995"
    assert rows["Figure 7's sample, the others: mean"].ours == 0.97
    cases[1]["again"] = 0.98
    claim = figure7._claim("made", cases)
    assert not claim.holds
    assert "under: b" in claim.note


def test_a_day_swings_around_its_mean() -> None:
    (setting,) = [candidate for candidate in heldout.SETTINGS if candidate.name.endswith("a day")]
    case = setting.scenario(ASTRARIUM, Effort())
    assert case.total_rate == pytest.approx(1000)
    rates = cast(list[float], [change.rate for change in case.workload.changes])
    assert min(rates) == pytest.approx(700, abs=10)
    assert max(rates) == pytest.approx(1300, abs=10)
    assert case.workload.changes[-1].at < case.duration


def test_held_back_settings_are_others_than_those_with_a_bar() -> None:
    names = [setting.name for setting in heldout.SETTINGS]
    assert len(set(names)) == len(names)
    assert not set(names) & {setting.name for setting in built_for(Effort())}


def test_being_behind_fcfs_only_is_told_apart() -> None:
    measured = goodputs(astrarium=100, deferred=100, eager=90)
    measured["eager, fcfs"]["goodput"] = 110
    usual, best = heldout._claims({"somewhere": measured})
    assert (usual.holds, best.holds) == (True, False)


def test_every_variant_is_measured_everywhere() -> None:
    data = reproduced("ablation").findings.data
    assert all(list(by_variant) == list(ablation.VARIANTS) for by_variant in data["goodput"].values())
    assert list(data["in_time"]) == list(ablation.VARIANTS)
    full = ablation.columns(Effort())
    assert len(full) == 7
    assert all(make(ASTRARIUM).policy.name == "astrarium" for make in full.values())


def test_a_part_that_costs_is_told() -> None:
    assert ablation._claim({"here": {"full": 100.0, "patience 0": 100.9}}).holds
    claim = ablation._claim({"here": {"full": 100.0, "patience 0": 102.0, "patience 1": 90.0}})
    assert (claim.holds, claim.note) == (False, "here: patience 0 +2.0%")


def test_mixing_short_with_long_requests_costs() -> None:
    (curves,) = reproduced("ablation").findings.data["lines"].values()
    tightest, tight, _ = zip(curves["grouped"], curves["model"], strict=True)  # few requests: all at 3 x P99
    assert tightest[0] > 1.1 * tightest[1]
    assert tight[0] > 1.02 * tight[1]


def test_worse_lines_are_told() -> None:
    better = {"grouped": [0.9], "application": [0.95], "model": [0.5], "orloj": [0.7]}
    assert not _lines.claim({"made": better}).holds
    assert _lines.claim({"made": {**better, "grouped": [0.945]}}).holds


def test_the_page_has_a_place_for_every_table() -> None:
    assert sorted(name for _, name, _ in PLACE.findall(PAGE.read_text())) == sorted(_page.TABLES)


def test_filling_the_page_replaces_tables_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- table: goodput -->\nold\n<!-- end -->\n<!-- table: heldout -->\nkept\n<!-- end -->\n"
    )
    reproduction = {
        "name": "astrarium/goodput",
        "data": {FEW_GPUS[0].name: goodputs(astrarium=410, deferred=400)},
    }
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode({"reproductions": [reproduction]}))
    _page.write(tmp_path, page)
    text = page.read_text()
    assert "| ResNet50, 1 GPU | 405 | **410** | 400 | 1 | 1 |" in text
    assert "old" not in text
    assert text.startswith("before\n<!-- table: goodput -->\n| requests/s | bar |")
    assert text.endswith("<!-- end -->\n<!-- table: heldout -->\nkept\n<!-- end -->\n")


@pytest.mark.parametrize("name", sorted(_page.TABLES))
def test_every_table_is_made_from_data(name: str) -> None:
    source, make = _page.TABLES[name]
    lines = make(decoded(source)).splitlines()
    assert len(lines) >= 3
    assert len({line.count("|") for line in lines}) == 1


def test_cases_with_lengths_are_all_different_and_always_the_same() -> None:
    drawn = _length_cases.cases()
    assert len({case.name for case in drawn}) == len(drawn) == _length_cases.COUNT
    assert drawn == _length_cases.cases()
    for part in ("bursts", "poisson", "tail 1.2", "8 modes", "flat to 128", "2 x longest", "8 GPUs"):
        assert any(part in case.name for case in drawn), part


def test_a_batch_of_a_case_costs_its_launch_up_to_so_many_tokens() -> None:
    surface = _length_cases.surface_of(512)
    assert surface[16][32] == surface[512][1] == _length_cases.LAUNCH_US
    assert surface[512][2] == pytest.approx(_length_cases.LAUNCH_US + 512 / _length_cases.TOKENS_PER_US)


def test_ours_over_a_rival_that_serves_nothing() -> None:
    assert lengths.over({OURS: 50.0, "eager": 0.0}, "eager") == 50
    assert lengths.over({OURS: 50.0, "eager": 100.0}, "eager") == 0.5
