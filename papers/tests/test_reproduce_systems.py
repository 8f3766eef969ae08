"""The quick forms of the reproductions that compare whole systems, and the page that lists them all."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from astrarium.cli.main import main
from astrarium.serving import zoo
from astrarium.serving.scenario import build
from astrarium_papers import registry
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.markdown import page
from astrarium_papers.registry import Reproduction
from astrarium_papers.symphony import figure1, figure2, figure9, figure10, figure11, figure12, table2
from astrarium_papers.symphony._settings import SYSTEMS, TABLE2, scenario

QUICK = Effort(quick=True)
MODULES = {
    "table2": table2, "figure1": figure1, "figure2": figure2, "figure9": figure9, "figure10": figure10,
    "figure11": figure11, "figure12": figure12,
}  # fmt: skip


@pytest.fixture(scope="module")
def all_findings() -> dict[str, Findings]:
    """Each quick form once."""
    return {name: module.run(QUICK) for name, module in MODULES.items()}


@pytest.mark.parametrize("name", MODULES)
def test_every_row_is_a_number_and_the_figure_is_drawn(
    all_findings: dict[str, Findings], name: str, tmp_path: Path
) -> None:
    findings = all_findings[name]
    assert findings.rows
    assert all(math.isfinite(row.ours) and row.what for row in findings.rows)
    assert len({row.what for row in findings.rows}) == len(findings.rows)
    assert f"symphony/{name}" in registry.names()
    MODULES[name].draw(findings.data, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_table2_analysis_is_exact_and_no_system_beats_the_staggered_bound(
    all_findings: dict[str, Findings],
) -> None:
    rows = {row.what: row for row in all_findings["table2"].rows}
    analysed = [row for what, row in rows.items() if "coordinated" in what or "staggered" in what]
    assert len(analysed) == 8
    assert all(row.verdict == "agrees" for row in analysed)
    for model in TABLE2:
        bound = rows[f"{model}, staggered: throughput"].ours
        measured = {system: rows[f"{model}: {system}"].ours for system in SYSTEMS}
        assert max(measured.values()) == measured["Symphony"] < bound
        assert measured["Clockwork"] == min(measured.values()) > 0


def test_batches_fit_the_objective_and_symphony_has_the_largest(all_findings: dict[str, Findings]) -> None:
    assert all(claim.holds for claim in all_findings["figure1"].claims)
    for name, systems in all_findings["figure1"].data.items():
        setting = scenario({name: TABLE2[name]}, 8, SYSTEMS["Symphony"], 1)
        largest = build.setup(setting).models[0].max_batch
        for batches in systems.values():
            assert 1 <= batches["sizes"][0] <= batches["median_over_batches"] <= batches["median"]
            assert batches["sizes"][-1] <= largest
            assert batches["shares"] == sorted(batches["shares"])
            assert batches["shares"][-1] == pytest.approx(1)


def test_waits_leave_time_to_run(all_findings: dict[str, Findings]) -> None:
    alone = {"ResNet50": 6.125, "InceptionResNetV2": 23.458}
    for name, systems in all_findings["figure12"].data.items():
        for numbers in systems.values():
            waits = numbers["percentiles_ms"]
            assert waits == sorted(waits)
            assert (
                0 <= waits[0] <= numbers["mean_ms"] <= waits[-1] <= figure12.SLO_MS[name] - alone[name] + 1e-6
            )
        assert systems["Symphony"]["mean_ms"] < systems["Nexus"]["mean_ms"]


def test_load_curves_stay_within_the_hardware(all_findings: dict[str, Findings]) -> None:
    data = all_findings["figure2"].data
    capacity = figure2.GPUS / 1.053e-3  # without the fixed cost of a batch
    for curve in data["systems"].values():
        assert all(0 < busy <= 1 for busy in curve["busy"])
        assert max(curve["in_time"]) < capacity
        for rate, in_time in zip(data["rates"], curve["in_time"], strict=True):
            assert in_time <= 1.1 * rate
    low = {system: curve["busy"][0] for system, curve in data["systems"].items()}
    assert low["Symphony"] < 0.5 * min(busy for system, busy in low.items() if system != "Symphony")


def test_zoos_are_split_by_what_batching_gains() -> None:
    for gpu in figure9.ZOOS:
        strong = figure9.members(gpu, "Strong")
        weak = figure9.members(gpu, "Weak")
        assert sorted(strong + weak) == sorted(figure9.members(gpu, "Mixed")) == sorted(zoo.models(gpu))
        assert {"DenseNet121", "VGG19"} <= set(strong)
        assert {"BERT", "EfficientNetB5"} <= set(weak)


def test_zoo_goodputs_are_those_of_the_hardware(all_findings: dict[str, Findings]) -> None:
    sets = all_findings["figure9"].data["A100"]
    for rates in sets.values():
        assert all(rate > 0 for rate in rates.values())
        assert rates["Symphony"] > 0.7 * max(rates.values())
    assert sets["Strong"]["Symphony"] > 1.5 * max(
        rate for system, rate in sets["Strong"].items() if system != "Symphony"
    )


def test_fewest_looks_from_above() -> None:
    assert figure10.fewest(lambda gpus: gpus >= 37, 160) == 37
    assert figure10.fewest(lambda gpus: gpus >= 1, 5) == 1
    assert figure10.fewest(lambda gpus: False, 8) is None
    # 41 would do, but 50 (one step down from 60) does not
    assert figure10.fewest(lambda gpus: gpus > 52 or 30 < gpus < 45, 160) == 53


def test_gpus_needed_are_not_fewer_than_the_work(all_findings: dict[str, Findings]) -> None:
    for workload in (figure10.ONE, figure10.MIXED):
        needed = all_findings["figure10"].data[workload]
        assert 1 <= needed["Symphony"] <= needed["Clockwork"]


def test_looser_objectives_give_more_goodput(all_findings: dict[str, Findings]) -> None:
    for systems in all_findings["figure11"].data["settings"].values():
        for tight, loose in systems.values():
            assert 0 < tight < loose < 4 / 1.053e-3


def test_the_first_look_at_the_policies_may_come_from_threads() -> None:
    """In a fresh process: nothing has imported the policies yet when the jobs start."""
    code = (
        "from astrarium_papers import registry\n"
        "from astrarium_papers.findings import Effort\n"
        "print(len(registry.run('symphony/figure12', Effort(quick=True, jobs=4)).rows))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("10\n", "")


def _made(rows: list[Row], claims: list[Claim]) -> Reproduction:
    return Reproduction("symphony/none", "Made up", "astrarium", Findings(rows, claims), None)


def test_page_lists_rows_and_claims() -> None:
    rows = [
        Row("goodput | one", 5337.6, 5264, "r/s", note="near"),
        Row("gain", 1.5, (2.0, 2.4), "x"),
        Row("drawn", 3),
    ]
    text = page([_made(rows, [Claim("it is flat", False, "it is not")])], "astrarium reproduce all")
    assert "    astrarium reproduce all\n" in text
    assert "| `symphony/none` | Made up | 1 of 2 | 0 of 1 |" in text
    assert "| goodput \\| one (r/s) | 5,264 | 5,338 | 1.01 | 5 % | agrees | near |" in text
    assert "| gain (x) | 2 to 2.4 | 1.5 | 0.75 | 5 % | lower |  |" in text
    assert "| drawn |  | 3 |  |  | no number |  |" in text
    assert "| it is flat | does not hold | it is not |" in text


def _call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # leave pytest's own handlers alone
    with pytest.raises(SystemExit) as ending:
        main(["reproduce", "symphony/table2", "--no-folder", *arguments])
    return int(ending.value.code or 0)


def test_page_is_written_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reproduction = _made([Row("goodput", 1, 1)], [])
    monkeypatch.setattr(registry, "run", lambda name, effort: reproduction)
    file = tmp_path / "page.md"
    assert _call(monkeypatch, "--markdown", str(file)) == 0
    assert file.read_text() == page(
        [reproduction], f"astrarium reproduce symphony/table2 --no-folder --markdown {file}"
    )


def test_page_without_a_folder_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "run", lambda *_: pytest.fail("it ran"))
    assert _call(monkeypatch, "--markdown", str(tmp_path / "missing" / "page.md")) == 2
    assert "--markdown" in capsys.readouterr().err
