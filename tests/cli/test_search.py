"""Searches, simulated and live: comparisons, seeds, folders, and what mistakes are told."""

from __future__ import annotations

import inspect
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from astrarium.cli.main import BAD_INPUT
from astrarium.cli.search import gpus, settings
from astrarium.tuning.live.local import LocalTrialBackend
from astrarium.tuning.live.ray.backend import RayTrialBackend
from astrarium.tuning.live.run.folder import folder_lock
from astrarium.tuning.policies import searches, tuning_policies
from tests.support.paths import ROOT
from tests.support.scenario_files import load_tuning as load
from tests.support.tuning.trainings import one_fork_server

pytestmark = pytest.mark.long
pytest_plugins = ("tests.support.cli_fixtures",)

BOTH = ("-p", "fifo", "-p", "dynamic-fluid")
EXAMPLES = ROOT / "examples" / "tuning"
TEXT = """\
task: dcgan-cnn
search: {name: successive-halving, candidates: 9, iterations: 9}
gpus: 4
policy: {name: dynamic-fluid, packed: 2}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def simulate(call: Any, file: Path) -> Any:
    return lambda *arguments: call("simulate", str(file), *arguments)


@pytest.fixture
def compare(call: Any, file: Path) -> Any:
    """With FIFO and the file's own policy, unless others are named."""

    def compared(*arguments: str) -> Any:
        named = () if "-p" in arguments else BOTH
        return call("compare", str(file), *named, *arguments)

    return compared


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with one_fork_server():
        yield


def test_a_run_shows_the_best_its_gpus_and_its_candidates(simulate: Any) -> None:
    answer = simulate("--no-folder")
    assert answer.code == 0
    assert answer.lines[0].startswith("best: ")
    assert "learning_rate=" in answer.lines[0]
    assert sum(line.startswith("GPU ") and "█" in line for line in answer.lines) == 4
    assert sum("complete" in line for line in answer.lines) == 1
    assert not list(Path().glob("runs/*"))


def test_a_run_leaves_a_folder(simulate: Any) -> None:
    assert "written to first" in simulate("--out", "first").out
    folder = Path("first")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.txt", "candidates.csv", "curves.csv", "decisions.csv", "places.csv", "plots",
                     "scenario.yaml", "summary.json", "tables.txt", "timeline.json", "trials.csv",
                     "utilization.csv"]  # fmt: skip
    plots = sorted(path.name for path in (folder / "plots").iterdir())
    assert plots == ["best.png", "trials.png", "utilization.png"]
    readme = (folder / "README.txt").read_text()
    assert "astrarium simulate" in readme
    assert all(name in readme for name in names[1:])
    assert "█" in (folder / "tables.txt").read_text()


def test_a_folder_can_be_run_again(simulate: Any, call: Any) -> None:
    first = simulate("-p", "static-fluid:packed=3", "--out", "first", "--json").json
    again = call("simulate", "first/scenario.yaml", "--no-folder", "--json").json
    assert {**first, "folder": None} == again
    kept = json.loads(Path("first/summary.json").read_text())
    assert {**kept, "folder": None} == again


def test_the_same_search_is_compared_with_fifo(compare: Any) -> None:
    answer = compare("--out", "both", "--json").json
    assert list(answer["policies"]) == ["fifo", "dynamic-fluid"]
    fifo, fluid = answer["policies"].values()
    assert fifo["best"]["configuration"] == fluid["best"]["configuration"]
    sooner = answer["sooner"]["dynamic-fluid"]["makespan"]
    assert sooner == [pytest.approx(fifo["makespan_s"] / fluid["makespan_s"])]
    assert sooner[0] > 1
    assert fluid["utilization"] > fifo["utilization"]
    assert Path("both/fifo/candidates.csv").is_file()
    assert "the run of dynamic-fluid" in Path("both/README.txt").read_text()
    shown = compare("--no-folder").out
    assert shown.count("how much of each GPU was held") == 2
    assert "how many times sooner than fifo" in shown


def test_who_is_compared(compare: Any, call: Any, file: Path) -> None:
    named = compare("-p", "static-fluid", "-p", "dynamic-fluid:packed=1", "--no-folder", "--json").json
    assert list(named["policies"]) == ["static-fluid", "dynamic-fluid (packed=1)"]
    everyone = call("compare", str(file), "--no-folder", "--json").json
    assert list(everyone["policies"]) == tuning_policies.names()


def test_the_files_own_settings_are_kept(compare: Any, simulate: Any) -> None:
    own = simulate("--no-folder", "--json").json
    both = compare("--no-folder", "--json").json["policies"]
    assert both["dynamic-fluid"] == {name: own[name] for name in both["dynamic-fluid"]}


def test_several_seeds(compare: Any, simulate: Any) -> None:
    answer = compare("--seeds", "3", "--seed", "5", "--out", "three", "--json").json
    assert list(answer["by_seed"]) == ["5", "6", "7"]
    assert len(answer["sooner"]["dynamic-fluid"]["makespan"]) == 3
    assert Path("three/fifo-seed-6/summary.json").is_file()
    assert "means over 3 seeds" in compare("--seeds", "3", "--no-folder").out
    alone = compare("-p", "dynamic-fluid", "--seeds", "2", "--no-folder")
    assert [line.split()[0] for line in alone.lines if line[:1].isdigit()][-2:] == ["0", "1"]


def test_one_run_as_json_has_candidates_and_a_heat_map(simulate: Any) -> None:
    answer = simulate("--no-folder", "--json").json
    assert (answer["live"], answer["search"], answer["gpus"]) == (False, "successive-halving", 4)
    values = [candidate["value"] for candidate in answer["by_candidate"]]
    assert values == sorted(values, reverse=True)
    assert values[0] == answer["best"]["value"]
    held = [part for parts in answer["heat_map"].values() for part in parts]
    assert sum(held) / len(held) == pytest.approx(answer["utilization"])


def test_same_seed_same_run(simulate: Any) -> None:
    assert simulate("--no-folder", "--json").json == simulate("--no-folder", "--json").json


@pytest.mark.parametrize("search", sorted(set(searches.names()) - {"grid"}))
@pytest.mark.parametrize("policy", tuning_policies.names())
def test_every_search_runs_under_every_policy(simulate: Any, search: str, policy: str) -> None:
    changes = ["-o", f"search={{name: {search}, iterations: 9}}", "-p", policy]
    answer = simulate(*changes, "--no-folder", "--json").json
    assert answer["over"] == "the search is done"
    assert answer["best"]["value"] > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "fluid"], "-p fluid: policy.name: expected a tuning policy"),
        (["-p", "static-fluid:packd=2"], "did you mean 'packed'"),
        (["-o", "search.name=hiperband"], "did you mean 'hyperband'"),
        (["-o", "task=cifar"], "small.yaml: task: expected one of cifar10-alexnet"),
        (["-o", "gpus=0"], "gpus: expected a whole number >= 1"),
        (["-o", "target=1000"], "target: expected a value between 1 and 5.5"),
        (["-o", "search.iterations=2"], "at least eta (3)"),
        (["-o", "sampler={optuna: TPESample}"], "small.yaml: sampler.optuna: expected a sampler of Optuna"),
        (["-o", "train=no.py:build"], "there is no"),
    ],
)
def test_mistakes_are_told_in_a_line(simulate: Any, arguments: list[str], message: str) -> None:
    answer = simulate(*arguments, "--no-folder")
    assert answer.code == BAD_INPUT
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert not answer.out


def test_a_file_that_is_not_there(call: Any) -> None:
    answer = call("simulate", "nowhere.yaml")
    assert answer.code == BAD_INPUT
    assert "nowhere.yaml: expected a scenario file that can be read" in answer.err


def test_a_folder_that_is_taken_is_not_replaced(simulate: Any) -> None:
    assert simulate("--out", "first").code == 0
    answer = simulate("--out", "first")
    assert answer.code == BAD_INPUT
    assert "an empty or new folder" in answer.err
    assert simulate("--out", "first", "--overwrite").code == 0


@pytest.mark.parametrize("name", ["hyperband", "pbt"])
def test_the_examples_run_sooner_with_fluid(call: Any, name: str) -> None:
    answer = call("compare", str(EXAMPLES / f"{name}.yaml"), *BOTH, "--no-folder", "--json").json
    assert answer["sooner"]["dynamic-fluid"]["time_to_target"][0] > 1.1


def test_policies_lists_those_of_tuning_and_searches(call: Any) -> None:
    listed = call("policies", "--json").json["policies"]
    assert list(listed["tuning"]) == tuning_policies.names()
    assert list(listed["search"]) == searches.names()
    assert (
        call("policies", "tuning/fifo", "--json").json["summary"].startswith("Fifo gives each trial one GPU")
    )
    assert "interval" in call("policies", "search/pbt").out
    assert "packed" in call("policies", "dynamic-fluid").out


TRAIN = """\
class Training:
    def __init__(self, values, workers):
        self.values, self.workers, self.count = values, workers, 0

    def step(self):
        self.count += 1
        self.workers.emulate(self.values.get("seconds", 0.02))
        if self.values["rate"] > 0.9:
            raise ValueError("too fast")
        with open(__file__ + ".steps", "a") as file:
            file.write(".")
        return 1 - abs(self.values["rate"] - 0.5) - 1 / (1 + self.count)

    def save(self):
        return self.count

    def load(self, state):
        self.count = state


def build(values, workers):
    return Training(values, workers)
"""
LIVE = """\
train: train.py:build
goal: max
space: {rate: {low: 0, high: 1, points: 5}}
search: {name: successive-halving, candidates: 5, iterations: 9}
sampler: grid
gpus: 2
emulated: {packing: 1.2, scaling: 1.1}
live: {threads: 1, checkpoints: 10s}
task: {iteration: 20ms, start: 0, reach: 1, patience: 2, knobs: {rate: {best: 0.5}}}
"""


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    path = tmp_path / "live.yaml"
    path.write_text(LIVE)
    return path


@pytest.mark.thorough
def test_a_live_run_trains_reports_and_goes_on(call: Any, live: Path) -> None:
    outcome = call("run", str(live), "--out", "first", "--json")
    answer = outcome.json
    assert (answer["live"], answer["over"], answer["gpus"]) == (True, "the search is done", 2)
    assert answer["best"]["configuration"] == {"rate": 0.5}
    assert answer["best"]["value"] == pytest.approx(0.9)  # after 9 iterations, whoever trained them where
    failed = [candidate for candidate in answer["by_candidate"] if candidate["standing"] == "failed"]
    assert [candidate["configuration"]["rate"] for candidate in failed] == [1.0]
    assert "too fast" in failed[0]["reason"]
    assert "live on 2 emulated GPUs" in outcome.err
    assert "candidate 4 failed: ValueError: too fast" in outcome.err
    kept = Path(answer["best"]["checkpoint"])
    assert kept == Path("first/live/dynamic-fluid-0/checkpoints/2/9.pt")
    assert f"its checkpoint: {kept}" in Path("first/tables.txt").read_text()
    assert "1 of 5 candidates failed; the first, candidate 4: ValueError: too fast" in " ".join(
        Path("first/tables.txt").read_text().split()
    )
    assert "trials 0 done" in outcome.err
    assert "best 0.9, candidate 2: rate=0.5" in outcome.err
    assert Path("first/live/dynamic-fluid-0/journal.jsonl").is_file()
    assert Path("first/plots/trials.png").is_file()
    assert "--resume" in Path("first/README.txt").read_text()

    steps = Path("train.py.steps").read_text()
    assert len(steps) >= 4 + 8  # the first rung, and the rest of the best
    taken = call("run", str(live), "--out", "first")
    assert taken.code == BAD_INPUT
    assert "--resume goes on with" in taken.err
    again = call("run", str(live), "--out", "first", "--resume", "--json").json
    assert again["best"] == {**answer["best"], "at_s": again["best"]["at_s"]}
    assert again["remembered"] == again["trials"] == answer["trials"]
    assert again["standings"] == answer["standings"]  # who failed is not tried again
    assert Path("first/live/dynamic-fluid-0/trace.1.jsonl").is_file()
    earlier = json.loads(Path("first/earlier-1/summary.json").read_text())
    assert earlier["makespan_s"] == answer["makespan_s"]
    assert Path("train.py.steps").read_text() == steps  # all of it was in the journal
    shown = call("run", str(live), "--out", "first", "--overwrite").out
    assert "failed: ValueError: too fast" in " ".join(shown.split())
    assert not list(Path("first").glob("earlier-*"))  # they were overwritten


def test_a_search_that_is_running_is_left_alone(call: Any, live: Path) -> None:
    state = live.parent / "running" / "live" / "dynamic-fluid-0"
    over = [state.with_name(name) for name in ("astrarium-0", "fifo-0")]  # of a comparison that is under way
    for folder in over:
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").touch()
    with folder_lock(state):
        for option in ("--resume", "--overwrite"):
            refused = call("run", str(live), "--out", "running", option)
            assert refused.code == BAD_INPUT
            assert "one in which no other search is running" in refused.err
    assert [file.name for file in state.iterdir()] == ["search.lock"]
    assert all((folder / "journal.jsonl").exists() for folder in over)


def test_the_state_of_a_search_is_found_by_the_name_of_its_policy(call: Any, live: Path) -> None:
    live.write_text(LIVE + "policy: {name: static-fluid, packed: 2}\n")
    assert call("run", str(live), "--out", "first", "--json").json["folder"] == "first"
    assert [path.name for path in Path("first/live").iterdir()] == ["static-fluid-0"]  # as 0.1 called it
    answer = call("replay", "first")
    assert (answer.code, answer.out.partition(" in all")[0]) == (0, "first: the same decisions")


def test_a_live_search_is_compared_and_simulated_from_the_same_file(call: Any, live: Path) -> None:
    answer = call("run", str(live), *BOTH, "--no-folder", "--json").json
    assert answer["live"]
    assert [entry["best"]["value"] for entry in answer["policies"].values()] == [pytest.approx(0.9)] * 2
    simulated = call("simulate", str(live), "--no-folder", "--json").json
    assert not simulated["live"]
    assert simulated["best"]["configuration"] == {"rate": 0.5}


def test_a_search_in_which_all_fail_does_not_end_well(call: Any, live: Path) -> None:
    answer = call(
        "run", str(live), "-o", "space={rate: {options: [0.95, 0.96]}}", "-o", "task=null", "--no-folder"
    )
    assert answer.code == 1
    assert "no candidate has a value" in answer.out


@pytest.mark.thorough
def test_an_interrupted_run_goes_on(live: Path, call: Any) -> None:
    text = LIVE.replace("iterations: 9}", "iterations: 45, smallest: 15}").replace("20ms", "50ms")
    live.write_text(text)
    words = [sys.executable, "-m", "astrarium", "run", str(live), "--out", "cut"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:  # ends when it does
            if " best " in line:
                process.send_signal(signal.SIGTERM)  # as Ctrl-C does
                break
        _, rest = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "--out cut --resume" in rest
    assert json.loads(Path("cut/summary.json").read_text())["over"] == "it was interrupted"
    answer = call("run", str(live), "--out", "cut", "--resume", "--json").json
    assert answer["over"] == "the search is done"
    assert answer["best"]["iterations"] == 45


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "--resume: expected --out DIR with it"),
        (["--resume", "--out", "nothing"], "the folder of a live run, to go on with"),
        (["-o", "train=train.py:biuld"], "did you mean 'build'"),
        (["-o", "live.packing=lanes"], "live.packing: expected processes: emulated GPUs have no lanes"),
    ],
)
def test_mistakes_about_live_runs(call: Any, live: Path, arguments: list[str], message: str) -> None:
    answer = call("run", str(live), *arguments)
    assert answer.code == BAD_INPUT
    assert message in answer.err


@pytest.mark.thorough
def test_a_training_that_hangs_fails_alone(call: Any, live: Path) -> None:
    hangs = TRAIN.replace('raise ValueError("too fast")', "__import__('time').sleep(1000)")
    (live.parent / "train.py").write_text(hangs)
    live.write_text(LIVE.replace("live: {", "live: {longest: 10s, "))
    answer = call("run", str(live), "--no-folder", "--json").json
    [failed] = [candidate for candidate in answer["by_candidate"] if candidate["standing"] == "failed"]
    assert failed["configuration"] == {"rate": 1.0}
    assert failed["reason"] == "no iteration ended within 10 s, the longest it may take"
    assert answer["best"]["configuration"] == {"rate": 0.5}


def test_real_gpus_are_all_that_there_are_unless_told(live: Path) -> None:
    assert gpus(load(live)) == 2
    real = live.read_text().replace("gpus: 2\n", "").replace("emulated: {packing: 1.2, scaling: 1.1}\n", "")
    live.write_text(real)
    assert gpus(load(live)) is None
    assert gpus(load(live, ["gpus=3"])) == 3


def test_the_settings_of_a_live_run_reach_its_backend(live: Path) -> None:
    scenario = load(live, ["emulated=null", "live.packing=lanes", "live.patience=5s"])
    reached = settings(scenario)
    assert reached == {"checkpoint_seconds": 10.0, "patience": 5.0, "packing": "lanes", "threads": 1}
    for kind, names in (
        (LocalTrialBackend, reached),
        (RayTrialBackend, reached.keys() | {"address", "gate"}),
    ):
        assert set(names) <= inspect.signature(kind).parameters.keys()


def test_the_live_example_trains_and_can_be_simulated(call: Any) -> None:
    file = str(EXAMPLES / "live.yaml")
    simulated = call("compare", file, *BOTH, "--no-folder", "--json").json
    assert simulated["sooner"]["dynamic-fluid"]["makespan"][0] > 1.3
    small = ["-o", "search.candidates=4", "-o", "search.iterations=4", "-o", "gpus=2"]
    answer = call("run", file, *small, "--no-folder", "--json").json
    assert (answer["live"], answer["over"], answer["standings"].get("failed")) == (
        True,
        "the search is done",
        None,
    )
    assert 0 < answer["best"]["value"] <= 1
    assert answer["best"]["configuration"].keys() == {"rate", "momentum", "channels"}
