"""The command line as a person or a script meets it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import astrarium
from astrarium.core.choice import Choice, parse_choice
from astrarium.core.errors import InputError
from astrarium.run import folder

pytest_plugins = ("tests.support.cli_fixtures",)

SCENARIO = """\
cluster: {gpus: 4}
models:
  resnet50: {profile: {alpha: 1.053ms, beta: 5.072ms}, slo: 25ms}
  other: {profile: {alpha: 2ms, beta: 6ms}, slo: 40ms}
policy: {name: deferred}
workload: {arrivals: poisson, rate: 1200/s, duration: 2s, warmup: 500ms}
seed: 1
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario in an otherwise empty working folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return path


def test_help_is_light() -> None:
    heavy = ["numpy", "yaml", "matplotlib", "rich.progress", "rich.console", "msgspec", "scipy"]
    code = f"import sys; import astrarium.cli.main; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_help_loads_little_more_than_the_library_that_prints_it() -> None:
    """`benchmarks/startup.py` says what it costs."""
    shown = "from contextlib import suppress\nwith suppress(SystemExit): main(['--help'])"
    library = modules_of("import typer.main")
    assert modules_of(f"from astrarium.cli.main import main\n{shown}") < 1.5 * library


def modules_of(code: str) -> int:
    counted = f"import sys\n{code}\nprint(len(sys.modules), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", counted], check=True, capture_output=True, text=True)
    return int(run.stderr)


def test_version_and_verbs(call: Any) -> None:
    assert call("--version").out == f"astrarium {astrarium.__version__}\n"
    shown = call("--help").out
    for verb in (
        "simulate",
        "compare",
        "explain",
        "run",
        "goodput",
        "plan",
        "reproduce",
        "policies",
        "zoo",
    ):
        assert f"\n  {verb} " in shown
        assert "--json" in call(verb, "--help").out


def test_simulate_prints_one_object(call: Any, scenario: Path) -> None:
    answer = call("simulate", str(scenario), "--json", "--out", "run")
    assert answer.code == 0
    shown = answer.json
    assert (shown["policy"], shown["seed"], shown["folder"]) == ("deferred", 1, "run")
    assert shown["offered_rate"] == pytest.approx(1200, rel=0.1)
    assert sum(shown["outcomes"].values()) == shown["requests"]
    assert list(shown["models"]) == ["resnet50", "other"]
    saved = json.loads(Path("run/summary.json").read_text())
    assert saved == {name: value for name, value in shown.items() if name != "folder"}
    assert {path.name for path in Path("run").iterdir()} == {
        "README.txt", "batches.npz", "plots", "requests.npz", "scenario.yaml", "summary.json", "tables.txt",
        "timeline.json",
    }  # fmt: skip
    assert f"astrarium simulate {scenario} --json --out run" in Path("run/README.txt").read_text()


def test_the_scenario_of_the_folder_makes_the_same_run(call: Any, scenario: Path) -> None:
    first = call(
        "simulate", "small.yaml", "-o", "policy.name=eager", "--seed", "5", "--json", "--out", "a"
    ).json
    again = call("simulate", "a/scenario.yaml", "--json", "--no-folder").json
    for name in ("policy", "seed", "outcomes", "models", "gpus"):
        assert first[name] == again[name]
    assert first["policy"] == "eager"
    assert again["folder"] is None


def test_the_default_folder_is_named_by_date_and_verb(call: Any, scenario: Path) -> None:
    for number in (1, 2):
        answer = call("simulate", "small.yaml", "--no-outcomes")
        assert "deferred" in answer.out
        assert len(list(Path("runs").glob("*-simulate-small*"))) == number
    for run_folder in Path("runs").iterdir():
        assert not (run_folder / "requests.npz").exists()
        assert (run_folder / "batches.npz").exists()


def test_compare_uses_the_same_arrivals(call: Any, scenario: Path) -> None:
    policies = "-p", "deferred", "-p", "timeout:timeout=10%,gather=fcfs"
    answer = call("compare", "small.yaml", *policies, "--json", "--out", "both")
    shown = answer.json["policies"]
    assert list(shown) == ["deferred", "timeout (timeout=10%,gather=fcfs)"]
    assert len({entry["requests"] for entry in shown.values()}) == 1
    assert (Path("both") / "deferred" / "timeline.json").is_file()
    assert (Path("both") / "timeout-timeout=10%-gather=fcfs" / "requests.npz").is_file()
    assert (Path("both") / "plots" / "overview.png").is_file()


def test_compare_takes_every_policy_unless_told(call: Any, scenario: Path) -> None:
    from astrarium.serving.policies import serving_policies

    answer = call("compare", "small.yaml", "-o", "workload.duration=1s", "--json", "--no-folder")
    assert list(answer.json["policies"]) == serving_policies.names()
    assert not Path("runs").exists()


def test_compare_keeps_the_parameters_of_the_file(call: Any, scenario: Path) -> None:
    arguments = ("small.yaml", "-o", "policy={name: timeout, timeout: 1ms}", "--json", "--no-folder")
    own = call("compare", *arguments, "-p", "timeout").json["policies"]["timeout"]
    named = call("compare", *arguments, "-p", "timeout:timeout=1ms").json["policies"]["timeout (timeout=1ms)"]
    other = call("compare", *arguments, "-p", "timeout:timeout=50%").json["policies"]["timeout (timeout=50%)"]
    assert own["gpus"] == named["gpus"] != other["gpus"]


def test_goodput_adds_its_names(call: Any, scenario: Path) -> None:
    answer = call("goodput", "small.yaml", "-o", "workload.duration=1s", "--seeds", "2", "--tolerance", "0.1",
                "--json", "--out", "good")  # fmt: skip
    shown = answer.json
    low, high = shown["interval"]
    assert 0 < low <= shown["goodput"] <= high
    assert shown["seeds"] == [1, 2]
    assert shown["offered_rate"] == pytest.approx(shown["goodput"], rel=0.15)
    assert {"attainment", "models", "gpus"} <= shown.keys()
    assert (shown["promised"], shown["limit"]) == (shown["goodput"], "GPUs")
    assert Path("good/plots/goodput.png").is_file()


def test_goodput_promises_no_more_than_the_path_carries(call: Any, scenario: Path) -> None:
    times = ["-o", "models.resnet50.path_time=200ms", "-o", "models.other.path_time=200ms"]
    options = ["-o", "workload.duration=1s", *times, "--seeds", "1", "--json", "--no-folder"]
    shown = call("goodput", "small.yaml", *options).json
    assert shown["goodput"] > 5
    assert (shown["promised"], shown["limit"]) == (5, "path")


def test_tables_for_people(call: Any, scenario: Path) -> None:
    answer = call("simulate", "small.yaml", "--out", "run")
    assert "resnet50" in answer.out
    assert "p99 ms" in answer.out
    assert "written to run" in answer.out
    assert answer.out.startswith(Path("run/tables.txt").read_text()[:200])


WRONG = {
    "unknown policy": (["-o", "policy.name=defered"], ["small.yaml", "policy.name", "defered", "deferred"]),
    "wrong unit": (["-o", "workload.rate=4000"], ["workload.rate", "4000", "/s"]),
    "negative rate": (["-o", "workload.rate=-1/s"], ["workload.rate", "-1/s"]),
    "not a number": (["-o", "workload.rate=nan/s"], ["workload.rate", "nan"]),
    "unknown field": (["-o", "workload.speed=3"], ["workload", "speed"]),
    "impossible SLO": (["-o", "models.resnet50.slo=1ms"], ["resnet50", "1ms"]),
    "no such engine": (["--engine", "steam"], ["engine", "steam", "native"]),
    "bad seed": (["--seed", "-3"], ["seed", "-3"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_one_line_and_leaves_nothing(call: Any, scenario: Path, name: str) -> None:
    arguments, parts = WRONG[name]
    answer = call("simulate", "small.yaml", *arguments, "--out", "run")
    for part in parts:
        assert part in answer.error
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


def test_other_errors_are_one_line_too(call: Any, scenario: Path) -> None:
    for arguments, part in (
        (["simulate", "nowhere.yaml"], "nowhere.yaml"),
        (["compare", "small.yaml", "-p", "defered"], "did you mean 'deferred'"),
        (["compare", "small.yaml", "-p", "timeout:timeout"], "timeout:timeout=10%"),
        (["compare", "small.yaml", "-p", "timeout:timeout=5"], "5"),
        (["compare", "small.yaml", "-p", "eager:speed=5"], "speed"),
        (["policies", "defered"], "did you mean 'deferred'"),
        (["zoo", "--gpu", "a100"], "A100"),
        (["reproduce", "symphony/table99"], "symphony/table2"),
        (["goodput", "small.yaml", "--seeds", "0"], "seeds"),
        (["simulate", "small.yaml", "--out", "small.yaml"], "--out"),
    ):
        assert part in call(*arguments).error
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


def test_a_folder_that_is_there_is_refused_before_the_run(
    call: Any, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("simulate", "small.yaml", "--out", "run")
    with monkeypatch.context() as stopped:
        stopped.setattr("astrarium.cli.simulate._simulated", lambda *_: pytest.fail("it ran"))
        answer = call("simulate", "small.yaml", "-o", "workload.duration=1h", "--out", "run")
    assert answer.code == 2
    assert "--overwrite" in answer.err
    assert (
        call("simulate", "small.yaml", "--seed", "9", "--out", "run", "--overwrite", "--json").json["seed"]
        == 9
    )
    assert "seed: 9" in Path("run/scenario.yaml").read_text()


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (SystemExit(143), 143)])
def test_an_interrupt_leaves_nothing(
    call: Any, scenario: Path, monkeypatch: pytest.MonkeyPatch, raised: Any, code: int
) -> None:

    def interrupted(*_: object) -> None:
        raise raised

    monkeypatch.setattr(folder, "write_readme", interrupted)
    answer = call("simulate", "small.yaml", "--out", "run")
    assert (answer.code, answer.out) == (code, "")
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


def test_policies(call: Any) -> None:
    listed = call("policies", "--json").json["policies"]["serving"]
    assert {"deferred", "eager", "timeout"} <= listed.keys()
    assert all(entry["summary"] and entry["about"] for entry in listed.values())
    timeout = call("policies", "timeout", "--json").json
    assert timeout["parameters"]["timeout"]["default"] == "12.5%"
    assert "oldest request" in timeout["parameters"]["timeout"]["description"]
    assert timeout["parameters"]["gather"]["type"].split(" | ") == ["window", "fcfs"]
    shown = call("policies", "deferred").out
    assert "Symphony" in shown
    assert "gather" in shown
    assert re.search(r"patience +float or none +none ", call("policies", "astrarium").out)
    assert re.search(r"batch_sizes +list of int +none ", call("policies", "orloj").out)


def test_zoo(call: Any) -> None:
    everything = call("zoo", "--json").json["gpus"]
    assert {gpu: len(models) for gpu, models in everything.items()} == {"1080Ti": 35, "A100": 37}
    only = call("zoo", "--gpu", "1080Ti", "--json").json["gpus"]
    assert only == {"1080Ti": everything["1080Ti"]}
    assert only["1080Ti"]["ResNet50"]["profile"] == "zoo:1080Ti/ResNet50"
    assert "zoo:A100/ResNet50" in call("zoo").out


def test_reproduce_alone_lists(call: Any) -> None:
    listed = call("reproduce", "--json").json["reproductions"]
    assert "symphony/table2" in [entry["name"] for entry in listed]
    assert all(entry["title"] for entry in listed)
    assert "symphony/table2" in call("reproduce").out


def test_policy_specifications() -> None:
    assert parse_choice("eager") == Choice("eager")
    assert parse_choice("nexus:frontends=8,epoch=10s") == Choice("nexus", {"frontends": 8, "epoch": "10s"})
    for wrong in ("", ":a=1", "eager:a", "eager:=1"):
        with pytest.raises(InputError, match="-p"):
            parse_choice(wrong)
