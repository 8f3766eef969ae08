"""Runs from Python: policies by name, class or object, rows as columns, what results show and save."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astrarium
from astrarium import levels
from astrarium.core.choice import Choice
from astrarium.device.contract import Job
from astrarium.device.policies.turns import Srtf
from astrarium.run.experiment import simulate as run_one
from astrarium.serving.contract import Action, Dispatch, Event, Setup
from astrarium.serving.policies.window import Eager
from astrarium.serving.state import ServingState
from astrarium.tuning.policies.fifo import Fifo
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
SERVING: dict[str, Any] = {
    "cluster": {"gpus": 1},
    "models": {"echo": {"profile": {"alpha": "1ms", "beta": "5ms"}, "slo": "25ms"}},
    "workload": {"arrivals": "poisson", "rate": "150/s", "duration": "1s"},
    "seed": 1,
}
DEVICE: dict[str, Any] = {
    "gpu": {"memory": "16GB", "switch": "1ms"},
    "jobs": [
        {"name": "long", "workload": "salus:inception4_50", "length": "20s"},
        {"name": "short", "workload": "salus:resnet50_25", "length": "2s", "arrival": "1s", "count": 3},
    ],
}
TUNING: dict[str, Any] = {"task": "wlm-rnn", "search": {"name": "random", "candidates": 5}, "gpus": 2}
CLUSTER = EXAMPLES / "cluster" / "cluster.yaml"
LEVELS: dict[str, Any] = {"serving": SERVING, "device": DEVICE, "tuning": TUNING, "cluster": CLUSTER}
ROWS = {
    "serving": ["requests", "batches"],
    "device": ["jobs", "turns"],
    "tuning": ["trials", "curves", "places", "decisions", "utilization"],
    "cluster": ["apps", "leases", "decisions"],
}


class Mine:
    """Sends each request alone, as soon as a GPU is idle."""

    def __init__(self, setup: Setup, parameters: object) -> None:
        self.heard = 0

    def decide(self, now: int, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        self.heard += len(events)
        for gpu in state.gpus:
            if gpu.idle and state.waiting:
                yield Dispatch(gpu.id, (next(iter(state.waiting)),))


def made() -> Mine:
    [setup] = levels.level("serving").policy_arguments(astrarium.load(SERVING))
    return Mine(setup, None)


class LongestFirst(Srtf):
    """Lets the longest job go first: a class that no registry knows."""

    def rank(self, job: Job, *more: Any) -> tuple[float, ...]:
        return tuple(-part for part in super().rank(job, *more))


@pytest.mark.parametrize("name", LEVELS)
def test_a_run_of_any_level_has_its_numbers_rows_and_tables(name: str) -> None:
    run = astrarium.simulate(LEVELS[name])
    level = levels.level(name)
    core = run_one(level, run.scenario)
    assert (run.level, run.policy, run.seed) == (name, run.scenario.policy.label, run.scenario.seed)
    assert run.to_dict().keys() == level.report.shown([core]).keys()
    assert list(run.rows) == ROWS[name]
    assert set(ROWS[name]) <= set(dir(run))
    first = getattr(run, ROWS[name][0])
    assert len(first) == len(next(iter(first.values()))) > 0
    assert run.policy in str(run)
    assert run._repr_html_().startswith("<pre")
    assert f"{len(first):,} {ROWS[name][0]}" in repr(run)
    with pytest.raises(AttributeError, match=f"no 'row'; rows of a {name} run: {ROWS[name][0]}"):
        run.row  # noqa: B018


@pytest.mark.parametrize(
    "policy",
    ["timeout:timeout=10%", {"name": "timeout", "timeout": "10%"}, Choice("timeout", {"timeout": "10%"})],
)
def test_a_policy_may_be_written_in_many_ways(policy: Any) -> None:
    run = astrarium.simulate(SERVING, policy)
    assert run.policy == "timeout (timeout=10%)"
    expected = astrarium.simulate({**SERVING, "policy": {"name": "timeout", "timeout": "10%"}})
    assert run.summary.attainment == expected.summary.attainment


def test_classes_and_objects_decide() -> None:
    by_class = astrarium.simulate(SERVING, Mine)
    mine = made()
    by_object = astrarium.simulate(SERVING, mine)
    assert mine.heard > 0
    assert by_class.policy == by_object.policy == by_class.summary.policy == "Mine"
    assert set(by_class.batches["size"]) == {1}
    assert (by_class.requests["done_s"] == by_object.requests["done_s"]).all()
    assert astrarium.simulate(SERVING, Eager).policy == "eager"  # a registered class is its name
    assert astrarium.simulate(TUNING, Fifo).policy == "fifo"
    assert astrarium.simulate(DEVICE, LongestFirst).policy == "LongestFirst"


class NoPolicy:
    pass


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("eagre", "policy.name: expected a serving policy: .*did you mean 'eager'"),
        ("timeout:timeuot=3", "policy.timeuot"),
        ("timeout:3", "policy: expected a policy, with parameters"),
        (NoPolicy, r"policy: expected a class made with \(setup, parameters\)"),
        (NoPolicy(), "policy: expected a name, name:key=value"),
        (3, "policy: expected a name, name:key=value"),
    ],
)
def test_a_wrong_policy_is_named_before_anything_runs(policy: Any, message: str) -> None:
    with pytest.raises(astrarium.InputError, match=message):
        astrarium.simulate(SERVING, policy)
    with pytest.raises(astrarium.InputError, match=message):
        astrarium.compare(SERVING, ["eager", policy])


def test_seeds_engines_and_progress_are_asked_for() -> None:
    parts: list[float] = []
    run = astrarium.simulate(SERVING, seed=5, engine="python", progress=parts.append)
    assert run.seed == run.scenario.seed == 5
    assert parts
    assert parts == sorted(parts)
    assert 0 <= parts[0] <= parts[-1] <= 1
    for wrong in ({"seed": -1}, {"seed": 1.5}, {"engine": "fast"}, {"engine": "native", "policy": Mine}):
        with pytest.raises(astrarium.InputError, match=next(iter(wrong))):
            astrarium.simulate(SERVING, **wrong)


def test_a_table_is_columns_for_every_library() -> None:
    run = astrarium.simulate(DEVICE)
    jobs = run.jobs
    assert set(jobs) == set(jobs.to_dict())
    assert jobs["arrived_s"].dtype == float
    assert len(jobs) == len(jobs.to_dict()["job"]) == 4
    assert f"{len(jobs)} jobs" in repr(jobs)
    assert jobs["name"][0] in str(jobs)
    assert "<pre" in jobs._repr_html_()
    long = astrarium.Table({"n": range(100), "gap": [1.5, ""] * 50, "why": ["x" * 99] * 100}, "numbers")
    assert "100 numbers" in str(long)
    assert "..." in str(long)
    assert np.isnan(long["gap"][1])
    assert len(str(long).splitlines()) < 30


def test_a_table_becomes_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    requests = astrarium.simulate(SERVING).requests
    frame = requests.to_pandas()
    assert frame.shape == (len(requests), len(requests.keys()))
    assert frame.equals(pandas.DataFrame(requests))
    comparison = astrarium.compare(SERVING, ["eager", Mine]).to_pandas()
    assert list(comparison["policy"]) == ["eager", "Mine"]


def test_without_pandas_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(astrarium.InputError, match=r"pip install 'astrarium\[pandas\]'"):
        astrarium.Table({"n": [1]}).to_pandas()


@pytest.mark.parametrize("name", ["device", "tuning"])
def test_a_comparison_has_a_row_for_each_policy_and_seed(name: str) -> None:
    comparison = astrarium.compare(LEVELS[name], seeds=[2, 3])
    names = levels.level(name).policies.names()
    assert [(run.policy, run.seed) for run in comparison] == [
        (name, seed) for seed in (2, 3) for name in names
    ]
    assert len(comparison) == len(comparison.summary) == 2 * len(names)
    assert comparison.summary["policy"].tolist() == [run.policy for run in comparison]
    assert comparison.summary["makespan_s"].dtype == float
    assert all(name in str(comparison) for name in names)
    assert comparison[:1] == [comparison[0]]


def test_no_policy_is_compared_with_itself() -> None:
    with pytest.raises(astrarium.InputError, match="it stands there twice"):
        astrarium.compare(SERVING, ["eager", Eager])


def test_an_object_is_not_used_for_two_runs() -> None:
    with pytest.raises(astrarium.InputError, match="remembers its first run"):
        astrarium.compare(SERVING, [made()], seeds=2)


def test_a_run_is_saved_drawn_and_replayed_from_its_folder(tmp_path: Path) -> None:
    run = astrarium.simulate(DEVICE, LongestFirst, trace=True)
    folder = run.save(tmp_path / "mine")
    assert {"README.txt", "jobs.csv", "plots", "scenario.yaml", "summary.json", "tables.txt"} <= {
        path.name for path in folder.iterdir()
    }
    assert json.loads((folder / "summary.json").read_text())["policy"] == "LongestFirst"
    assert "policy=LongestFirst" in (folder / "README.txt").read_text()
    with pytest.raises(
        astrarium.InputError, match=r"^folder: expected an empty or new folder \(or overwrite=True\)"
    ):
        run.save(folder)
    assert astrarium.replay(folder, policy=LongestFirst).same
    picture = run.plot(tmp_path / "pictures" / "turns.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(astrarium.InputError, match=r"path: expected a name that ends in \.png"):
        run.plot(tmp_path / "turns.gif")


def test_several_runs_have_a_folder_each(tmp_path: Path) -> None:
    folder = astrarium.compare(DEVICE, ["fifo", LongestFirst]).save(tmp_path / "both", outcomes=False)
    names = {path.name for path in folder.iterdir()}
    assert names == {"README.txt", "LongestFirst", "fifo", "plots", "summary.json", "tables.txt"}
    assert not (folder / "fifo" / "jobs.csv").exists()
    assert list(json.loads((folder / "summary.json").read_text())["policies"]) == ["fifo", "LongestFirst"]


@pytest.mark.parametrize("name", LEVELS)
def test_a_run_of_any_level_is_replayed(name: str) -> None:
    run = astrarium.simulate(LEVELS[name], trace=True)
    replay = astrarium.replay(run)
    assert replay.same
    assert replay
    assert replay.steps == len(run.trace) > 0
    assert str(replay) == f"the same decisions in all {replay.steps:,} steps"


def test_another_policy_decides_otherwise_and_that_is_shown() -> None:
    run = astrarium.simulate(SERVING, Mine, trace=True)
    assert astrarium.replay(run).same  # a fresh one of its class
    replay = astrarium.replay(run, "astrarium")
    assert not replay
    assert replay.divergence is not None
    assert "recorded" in str(replay)
    with pytest.raises(astrarium.InputError, match="trace=True"):
        astrarium.replay(astrarium.simulate(SERVING))
    with pytest.raises(astrarium.InputError, match="there is no such file"):
        astrarium.replay("nowhere.jsonl")
