"""Tuning scenarios: what a file may say, and what each mistake is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from astrarium.core.errors import InputError
from astrarium.core.plain_data import parse_yaml
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.run.experiment import simulate
from astrarium.tuning.level import LEVEL
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.scenario.read import TuningScenario, parse
from astrarium.tuning.scenario.sampler import sampler_of
from astrarium.tuning.scenario.tasks import TASKS
from astrarium.tuning.spaces import Choice, Range
from tests.support.scenario_files import load_tuning as load

KNOWN: dict[str, Any] = {"task": "dcgan-cnn", "search": {"name": "hyperband", "iterations": 9}, "gpus": 2}
OWN: dict[str, Any] = {
    "task": {"iteration": "2s", "start": 1.0, "reach": 0.1, "patience": 3, "knobs": {"rate": {"best": 0.3}}},
    "space": {"rate": {"low": 0.001, "high": 1, "log": True}, "kind": {"options": ["gru", "lstm"]}},
    "search": "successive-halving",
}
TRAIN = "import torch\n\ndef build(values, workers):\n    return None\n"


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """A file that only runs live."""
    (tmp_path / "train.py").write_text(TRAIN)
    path = tmp_path / "live.yaml"
    path.write_text(yaml.safe_dump({"train": "train.py:build", "goal": "max", "space": OWN["space"]}))
    return path


def run_scenario(scenario: TuningScenario) -> TuningRecord:
    record: TuningRecord = simulate(LEVEL, scenario).record
    return record


def error_of(raw: Any) -> InputError:
    with pytest.raises(InputError) as raised:
        parse(raw)
    return raised.value


def changed(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**base, **changes}


def test_a_known_task_says_most_of_it() -> None:
    scenario = parse({"task": "cifar10-alexnet"})
    assert (scenario.search.name, scenario.policy.name) == ("successive-halving", "dynamic-fluid")
    assert scenario.gpus == 8
    assert (scenario.goal, scenario.target, scenario.good) == ("max", None, 90.0)
    assert list(scenario.space) == list(TASKS["cifar10-alexnet"].knobs)
    assert scenario.costs.moving == 2 * SECOND


def test_a_task_may_be_written_in_the_file() -> None:
    scenario = parse(changed(OWN, costs={"starting": "100ms", "moving": 0, "profile": 2}))
    assert scenario.task is not None
    assert (scenario.goal, scenario.good, scenario.task.iteration) == ("min", None, 2 * SECOND)
    assert (scenario.task.knobs["rate"].best, scenario.task.knobs["kind"].weight) == (0.3, 0.0)
    assert scenario.space == {"rate": Range(0.001, 1, log=True), "kind": Choice(("gru", "lstm"))}
    assert scenario.costs.starting == 100 * MILLISECOND
    record = run_scenario(scenario)
    assert record.over == "the search is done"
    assert record.best[-1].value < 0.5


def test_a_space_may_be_a_part_of_the_tasks() -> None:
    space = {"learning_rate": {"options": [1e-4, 1e-3]}, "momentum": {"low": 0.5, "high": 0.6}}
    record = run_scenario(parse(changed(KNOWN, space=space)))
    values = [candidate.values for candidate in record.candidates]
    assert {candidate["learning_rate"] for candidate in values} == {1e-4, 1e-3}
    assert all(0.5 <= candidate["momentum"] <= 0.6 for candidate in values)


def test_a_target_ends_the_search() -> None:
    whole = run_scenario(parse(KNOWN))
    ended = run_scenario(parse(changed(KNOWN, target=3.0)))
    assert ended.over == "the target is reached"
    assert ended.end < whole.end
    assert ended.best[-1].value >= 3.0


def test_numbers_with_exponents_need_no_point(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    text = "task: dcgan-cnn\nspace: {learning_rate: {low: 1e-4, high: 1e-3}, momentum: {low: .2, high: .3}}\n"
    path.write_text(text)
    assert load(path).space["learning_rate"] == Range(1e-4, 1e-3)


def test_a_scenario_can_be_written_and_read_again(live: Path) -> None:
    for scenario in (parse(OWN), parse(KNOWN).with_policy("fifo").with_seed(4), load(live)):
        again = parse(yaml.safe_load(scenario.to_yaml()), Path(scenario.source))
        assert again == scenario


def test_a_live_file_names_its_function_in_full(live: Path) -> None:
    scenario = load(live)
    assert scenario.train == f"{live.parent.resolve() / 'train.py'}:build"
    assert (scenario.task, scenario.goal, scenario.engine) == (None, "max", "local")
    with pytest.raises(InputError, match="a task beside train"):
        run_scenario(scenario)


def test_a_live_file_may_have_a_task_too(live: Path) -> None:
    raw = {**OWN, "train": "train.py:build", "emulated": {"packing": 1.3, "scaling": 1.2}}
    scenario = parse(raw, live)
    assert scenario.task is not None
    assert (scenario.task.packing, scenario.task.scaling) == (1.3, 1.2)  # one truth for both
    assert run_scenario(scenario).over == "the search is done"


@pytest.mark.parametrize(
    ("raw", "field", "expected"),
    [
        ([], "", "a mapping with a task or a train function"),
        ({"apps": []}, "", "a task or a train function"),
        ({"gpus": 2}, "task", "train: file.py:function"),
        (changed(KNOWN, gpu=2), "gpu", "did you mean 'gpus'"),
        (changed(KNOWN, task="cifar10-alexnt"), "task", "did you mean 'cifar10-alexnet'"),
        (changed(KNOWN, task=3), "task", "one of cifar10-alexnet"),
        (changed(KNOWN, search="hyperbnd"), "search.name", "did you mean 'hyperband'"),
        (changed(KNOWN, search={"name": "pbt", "populaton": 3}), "search.populaton", "did you mean"),
        (changed(KNOWN, search={"name": "hyperband", "eta": 1}), "search.eta", "a whole number >= 2"),
        (changed(KNOWN, search={"name": "hyperband", "iterations": 2}), "search.iterations", "at least eta"),
        (
            changed(KNOWN, search={"name": "asha", "iterations": 9, "smallest": 4}),
            "search.smallest",
            "at most 3",
        ),
        (
            changed(KNOWN, search={"name": "pbt", "iterations": 9, "interval": 9}),
            "search.interval",
            "less than",
        ),
        (
            changed(KNOWN, search={"name": "random", "candidates": 10**9}),
            "search.candidates",
            "at most 100,000",
        ),
        (changed(KNOWN, search=["hyperband"]), "search", "a name, or a mapping"),
        (changed(KNOWN, policy="fluid"), "policy.name", "dynamic-fluid, fifo, static-fluid"),
        (changed(KNOWN, policy="dynamic-fluit"), "policy.name", "did you mean 'dynamic-fluid'"),
        (changed(KNOWN, policy={"name": "fifo", "packed": 2}), "policy.packed", "no fields here"),
        (
            changed(KNOWN, policy={"name": "static-fluid", "packed": 0}),
            "policy.packed",
            "a whole number >= 1",
        ),
        (changed(KNOWN, gpus=0), "gpus", "a whole number >= 1"),
        (changed(KNOWN, seed=-1), "seed", "a whole number >= 0"),
        (changed(KNOWN, goal="large"), "goal", "one of min, max"),
        (changed(KNOWN, goal="min"), "goal", "max: values of the task go from 1 to 5.5"),
        (changed(KNOWN, target=6), "target", "between 1 and 5.5"),
        (changed(OWN, target=2), "target", "goal: min"),
        (changed(KNOWN, target="good"), "target", "a number"),
        (changed(KNOWN, costs={"moving": 2}), "costs.moving", "a duration with its unit"),
        (changed(KNOWN, emulated={"packing": 1.2}), "emulated", "a train function with it"),
        (changed(KNOWN, engine="ray"), "engine", "a train function with it"),
        (changed(KNOWN, live={"threads": 2}), "live", "a train function with it"),
        (changed(KNOWN, sampler="TPESampler"), "sampler", "is it {optuna: TPESampler}?"),
        (changed(KNOWN, sampler="rand"), "sampler", "did you mean 'random'"),
        (changed(KNOWN, sampler={"optun": "TPESampler"}), "sampler.optun", "did you mean 'optuna'"),
        (changed(KNOWN, sampler={"optuna": {"seed": 1}}), "sampler.optuna", "a mapping with sampler"),
        (
            changed(KNOWN, sampler={"optuna": {"sampler": "TPESampler", "seed": -1}}),
            "sampler.optuna.seed",
            ">= 0",
        ),
        (changed(KNOWN, search="grid", sampler="random"), "sampler", "has no end"),
        (changed(KNOWN, search="grid", sampler={"optuna": "TPESampler"}), "sampler", "has no end"),
        (
            changed(KNOWN, space={"learning_rate": {"low": 1e-4, "high": 1e-3}}),
            "space.momentum",
            "the task has it",
        ),
        (
            changed(KNOWN, space={"rate": {"low": 0, "high": 1}, "momentum": {"low": 0.2, "high": 0.3}}),
            "space.rate",
            "one of learning_rate",
        ),
        (
            changed(
                KNOWN,
                space={"learning_rate": {"low": 0.1, "high": 1}, "momentum": {"low": 0.2, "high": 0.3}},
            ),
            "space.learning_rate",
            "what the task knows: from 1e-05 to 0.01",
        ),
        ({"task": "cifar10-alexnet", "space": {"x": None}}, "space.x", "a range"),
        (changed(KNOWN, space=[]), "space", "a mapping such as"),
        (changed(OWN, space=None), "space", "has no space yet"),
        (changed(OWN, space={"rate": {"low": 2, "high": 1}}), "space.rate", "low not more than high"),
        (changed(OWN, search="grid", space=None), "space", "has no space yet"),
        (
            changed(OWN, search="grid", space={"rate": {"low": 0, "high": 1, "points": 200_000}}),
            "space",
            "a grid of at most 100,000 combinations (this one has 200,000)",
        ),
        (changed(OWN, task={**OWN["task"], "reach": 1.0}), "task.reach", "another value than start"),
        (changed(OWN, task={**OWN["task"], "iteration": "0s"}), "task.iteration", "a duration above 0"),
        (changed(OWN, task={**OWN["task"], "knobs": {"rat": {}}}), "task.knobs.rat", "did you mean 'rate'"),
        (changed(OWN, task={**OWN["task"], "packing": 0.5}), "task.packing", ">= 1"),
        (changed(OWN, train="train"), "train", "file.py:function or module:function"),
        (changed(OWN, train="nowhere.py:build"), "train", "there is no"),
    ],
)
def test_mistakes_are_told(raw: Any, field: str, expected: str) -> None:
    error = error_of(raw)
    assert error.field == field
    assert expected in error.expected


@pytest.mark.parametrize(
    ("override", "field", "expected"),
    [
        ("train=train.py:biuld", "train", "did you mean 'build'"),
        ("train=empty.py:build", "train", "there is none"),
        ("train=obj.py:objective", "train", "astrarium.tuning.optuna.optimize(study, objective)"),
        ("train=broken.py:build", "train", "a Python file that can be read"),
        ("goal=null", "goal", "min or max"),
        ("space=null", "space", "what may be chosen"),
        ("engine=cloud", "engine", "one of local, ray"),
        ("emulated.packing=0.9", "emulated.packing", ">= 1"),
        ("live.packing=lane", "live.packing", "did you mean 'lanes'"),
        ("live.address=auto", "live.address", "engine: ray"),
        ("live.patience=0", "live.patience", "a duration above 0"),
        ("emulated.speed=2", "emulated.speed", "one of packing, scaling"),
    ],
)
def test_mistakes_of_live_files_are_told(live: Path, override: str, field: str, expected: str) -> None:
    (live.parent / "empty.py").write_text("1\n")
    (live.parent / "obj.py").write_text("def objective(trial):\n    return trial.suggest_float('x', 0, 1)\n")
    (live.parent / "broken.py").write_text("def build(:\n")
    with pytest.raises(InputError) as raised:
        load(live, [override])
    assert (raised.value.field, raised.value.source) == (field, str(live))
    assert expected in raised.value.expected


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml: expected a scenario file that can be read"):
        load("nowhere.yaml")


def test_a_policy_that_is_chosen_later_is_checked_too() -> None:
    with pytest.raises(InputError, match=r"policy\.name.*did you mean 'fifo'"):
        parse(KNOWN).with_policy("fifi")


def sampled(scenario: TuningScenario, count: int = 4) -> list[Any]:
    sampler = sampler_of(scenario.sampler, scenario.space, scenario.goal, scenario.seed)
    configurations = [sampler.ask() for _ in range(count)]
    return [None if configuration is None else configuration.values for configuration in configurations]


@pytest.mark.parametrize(
    "sampler",
    [
        "random",
        {"optuna": "TPESampler"},
        {"optuna": {"sampler": "TPESampler", "n_startup_trials": 2}},
        {"optuna": "GridSampler"},
        {"raytune": "optuna"},
    ],
)
def test_a_sampler_is_its_own_with_every_seed(sampler: Any) -> None:
    scenario = parse(changed(KNOWN, sampler=sampler))
    first = sampled(scenario)
    assert all(set(values) == {"learning_rate", "momentum"} for values in first)
    assert sampled(scenario) == first
    assert sampled(scenario.with_seed(5)) != first


def test_a_samplers_own_seed_comes_first() -> None:
    own = parse(changed(KNOWN, sampler={"optuna": {"sampler": "TPESampler", "seed": 5}}))
    files = parse(changed(KNOWN, sampler={"optuna": "TPESampler"}, seed=5))
    assert sampled(own) == sampled(files) == sampled(own.with_seed(7))


def test_a_grid_search_takes_a_grid_unless_told() -> None:
    scenario = parse(changed(OWN, search={"name": "grid", "iterations": 2}))
    assert scenario.sampler.kind == "grid"
    assert len(run_scenario(scenario).candidates) == 6  # 3 points x 2 options


def test_options_are_numbers_where_they_look_like_some() -> None:
    """YAML 1.1 takes 1e-3 for text."""
    written = parse_yaml("{rate: {options: [1e-3, 1.5E+2, 2]}, kind: {options: [gru, '16', 1e]}}", "")
    space = parse(changed(OWN, space=written)).space
    assert space["rate"].options == (0.001, 150.0, 2)
    assert space["kind"].options == ("gru", "16", "1e")


@pytest.mark.parametrize("sampler", ["GridSampler", "BruteForceSampler"])
def test_a_grid_of_optunas_ends(sampler: str) -> None:
    """It is asked for all before it is told anything."""
    space = {"rate": {"options": [0.1, 0.2, 0.3]}, "layers": {"low": 1, "high": 3, "whole": True}}
    search = {"name": "grid", "iterations": 2}
    raw = changed(
        OWN, search=search, space=space, sampler={"optuna": sampler}, task={**OWN["task"], "knobs": {}}
    )
    record = run_scenario(parse(raw))
    combinations = [(candidate.values["rate"], candidate.values["layers"]) for candidate in record.candidates]
    assert sorted(combinations) == [(rate, layers) for rate in (0.1, 0.2, 0.3) for layers in (1, 2, 3)]


def test_optuna_draws_a_whole_search() -> None:
    search = {"name": "sync-bohb", "iterations": 9}
    record = run_scenario(parse(changed(KNOWN, search=search, sampler={"optuna": "TPESampler"})))
    assert len(record.candidates) == 17  # 9 + 5 + 3
    assert record.over == "the search is done"


@pytest.mark.parametrize(
    ("sampler", "field", "expected"),
    [
        ({"optuna": "TPEsampler"}, "sampler.optuna", "did you mean 'TPESampler'"),
        ({"optuna": {"sampler": "TPESampler", "n_start": 1}}, "sampler.optuna", "n_start"),
        ({"optuna": "BruteForceSampler"}, "space.learning_rate", "a range of whole numbers"),
        ({"raytune": "optun"}, "sampler.raytune", "did you mean 'optuna'"),
        ({"raytune": "random"}, "sampler.raytune", "`sampler: random` is ours"),
    ],
)
def test_mistakes_about_a_librarys_sampler(sampler: Any, field: str, expected: str) -> None:
    scenario = parse(changed(KNOWN, sampler=sampler))
    with pytest.raises(InputError) as raised:
        sampled(scenario)
    assert raised.value.field == field
    assert expected in raised.value.expected
