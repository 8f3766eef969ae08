"""Files of the cluster level: runs, comparisons, explanations, and the folder that is left behind."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.policies import cluster_policies
from astrarium.run.plots import color_of

pytest_plugins = ("tests.support.cli_fixtures",)

TEXT = """\
machines: [{count: 2, gpus: 4, racks: 2}]
apps:
  - {name: wide, gpus: 8, length: 1h}
  - {name: "[odd] $name$", length: 10min, count: 2, every: 5min, arrival: 5min, team: red}
policy: {name: tiresias, lease: 20min}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_run_leaves_a_folder(call: Any, file: Path) -> None:
    shown = call("simulate", str(file), "--out", "first").out
    assert "tiresias" in shown
    assert "[odd] $name$-1" in shown
    folder = Path("first")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.txt", "apps.csv", "decisions.csv", "leases.csv", "plots", "scenario.yaml",
                     "summary.json", "tables.txt", "timeline.json"]  # fmt: skip
    assert sorted(path.name for path in (folder / "plots").iterdir()) == ["fairness.png", "holders.png"]
    assert [row["app"] for row in rows(folder / "apps.csv")] == ["wide", "[odd] $name$-0", "[odd] $name$-1"]
    hours = sum(float(row["end_s"]) - float(row["start_s"]) for row in rows(folder / "leases.csv")) / 3600
    assert hours == pytest.approx(json.loads((folder / "summary.json").read_text())["gpu_hours"])
    assert {row["what"] for row in rows(folder / "decisions.csv")} >= {"granted"}
    assert "traceEvents" in json.loads((folder / "timeline.json").read_text())
    readme = (folder / "README.txt").read_text()
    assert "astrarium simulate" in readme
    assert all(name in readme for name in names[1:])


def test_a_folder_can_be_run_again(call: Any, file: Path) -> None:
    first = call("simulate", str(file), "-p", "srtf:lease=5min", "--out", "first", "--json").json
    again = call("simulate", "first/scenario.yaml", "--no-folder", "--json").json
    assert {**first, "folder": None} == again


def test_several_policies_are_run_side_by_side(call: Any, file: Path) -> None:
    specs = ["-p", "fifo", "-p", "tiresias:lease=5min", "-p", "tiresias"]
    answer = call("compare", str(file), *specs, "--out", "both", "--json").json["policies"]
    assert list(answer) == ["fifo", "tiresias (lease=5min)", "tiresias"]
    own = call("simulate", str(file), "--no-folder", "--json").json
    assert answer["tiresias"] == {name: own[name] for name in answer["tiresias"]}  # the file's own parameters
    assert answer["tiresias (lease=5min)"]["waited_s"] != answer["tiresias"]["waited_s"]
    assert (Path("both") / "fifo" / "apps.csv").is_file()
    assert "the run of fifo" in (Path("both") / "README.txt").read_text()


@pytest.mark.usefixtures("drawn")
def test_a_picture_of_all_policies_has_names_and_colors_for_all_apps(call: Any, file: Path) -> None:
    """Panels stand side by side: the picture is no strip that nobody can read."""
    from matplotlib.colors import to_hex
    from matplotlib.image import imread

    file.write_text(TEXT.replace("count: 2, every: 5min", "count: 13, every: 5min"))
    call("compare", str(file), "-p", "all", "--out", "all")
    picture = imread("all/plots/holders.png")
    height, width = picture.shape[:2]
    assert 0.5 < width / height < 2
    legend = {to_hex(tuple(pixel)) for pixel in picture[-70:].reshape(-1, 4).tolist()}  # below the panels
    assert legend >= {color_of(app).lower() for app in range(14)}
    assert len({color_of(app) for app in range(14)}) == 14


def test_every_policy_runs_every_app(call: Any, file: Path) -> None:
    answer = call("compare", str(file), "-p", "all", "--no-folder", "--json").json["policies"]
    assert list(answer) == cluster_policies.names()
    assert all(entry["outcomes"] == {"finished": 3} for entry in answer.values())


def test_an_app_learns_why_it_waits_behind_whom_and_until_when(call: Any, file: Path) -> None:
    file.write_text(TEXT.replace("tiresias, lease: 20min", "fifo"))
    shown = call("explain", str(file), "[odd] $name$-1", "--at", "20min").out
    assert "At 20min it holds no GPU. It needs one; 0 of 8 are free." in shown
    assert "It is number 2 of 2 in line" in shown
    assert "GPUs are held by wide (8, to its end)." in shown
    assert "simulated: it knows who comes later" in shown
    assert "at 78min it is given 1 GPU" in shown
    answer = call("explain", str(file), "[odd] $name$-1", "--at", "20min", "--json").json
    assert [app["app"] for app in answer["line"]] == ["[odd] $name$-0", "[odd] $name$-1"]
    assert answer["line"][1]["given_more_s"] == 78 * 60


def test_an_app_learns_why_it_has_what_it_has(call: Any, file: Path) -> None:
    answer = call("explain", str(file), "wide", "--at", "10min", "--json").json
    [first, *_] = answer["decisions"]
    assert answer["holds"] == list(range(8))
    assert first["why"]
    assert any(first["why"] in line for line in answer["told"])


def test_the_whole_life_of_an_app(call: Any, file: Path) -> None:
    shown = call("explain", str(file), "wide").out
    assert "It waits from 20min to" in shown
    assert "while GPUs went to [odd] $name$-0 (1), [odd] $name$-1 (1)" in shown
    assert "rho" in shown


@pytest.mark.parametrize(("at", "message"), [("0s", "has not come yet"), ("90h", "it has ended")])
def test_before_and_after_its_life(call: Any, file: Path, at: str, message: str) -> None:
    assert message in call("explain", str(file), "[odd] $name$-1", "--at", at).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "small.yaml", "-p", "tiresia"], "-p tiresia: policy.name: expected a cluster policy"),
        (
            ["simulate", "small.yaml", "-p", "fifo:lease=1h"],
            "-p fifo:lease=1h: policy.lease: expected no fields",
        ),
        (["simulate", "small.yaml", "-o", "apps[0].gpus=9"], "small.yaml: apps[0].gpus: expected at most 8"),
        (["simulate", "none.yaml"], "none.yaml: expected a scenario file that can be read"),
        (["simulate", "small.yaml", "--seed", "-1"], "small.yaml: seed: expected a whole number >= 0"),
        (["explain", "small.yaml", "wild"], "ITEM: expected an app of the file: wide"),
        (["explain", "small.yaml", "wide", "--at", "9"], "--at: expected a duration with its unit"),
    ],
)
def test_what_is_wrong_is_one_line(call: Any, file: Path, arguments: list[str], message: str) -> None:
    assert message in call(*arguments).error


def test_cluster_policies_are_listed_and_described(call: Any) -> None:
    listed = call("policies", "--json").json["policies"]["cluster"]
    assert list(listed) == cluster_policies.names()
    assert all(described["summary"].endswith(".") for described in listed.values())
    assert call("policies", "tiresias", "--json").json["parameters"]["lease"]["default"] == "600s"
    assert call("policies", "cluster/fifo", "--json").json["about"] == listed["fifo"]["about"]
