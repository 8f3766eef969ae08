"""One set of verbs for files of every level: what they run, what they say of a file, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ("tests.support.cli_fixtures",)

FILES = {
    "serving": """\
cluster: {gpus: 2}
models: {resnet50: {profile: {alpha: 1ms, beta: 5ms}, slo: 25ms}}
workload: {arrivals: poisson, rate: 400/s, duration: 500ms}
policy: deferred
""",
    "device": """\
gpu: {memory: 16GB}
jobs:
  - {name: long, workload: salus:resnet50_50, iterations: 30}
  - {name: short, workload: salus:resnet50_50, iterations: 5, arrival: 3s}
policy: fair
""",
    "tuning": """\
task: dcgan-cnn
search: {name: successive-halving, candidates: 9, iterations: 9}
gpus: 4
policy: dynamic-fluid
""",
    "cluster": """\
machines: [{count: 2, gpus: 4}]
apps:
  - {name: wide, gpus: 8, length: 1h}
  - {name: small, length: 10min, arrival: 5min}
policy: tiresias
""",
}
SUBJECTS = {
    "serving": "requests to models",
    "device": "jobs on one GPU",
    "tuning": "trials of a search",
    "cluster": "apps on a cluster",
}
OTHERS = {"serving": "eager", "device": "fifo", "tuning": "fifo", "cluster": "fifo"}
COMMON = {"README.txt", "plots", "scenario.yaml", "summary.json", "tables.txt", "timeline.json"}
LEVELS = list(FILES)

every_level = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of each level, in an otherwise empty working folder."""
    monkeypatch.chdir(tmp_path)
    for level, text in FILES.items():
        Path(f"{level}.yaml").write_text(text)


def said_of(level: str) -> str:
    return f"{level}.yaml: {SUBJECTS[level]} ({level})"


def own_policy(level: str) -> str:
    return FILES[level].split("policy: ")[1].strip()


@every_level
def test_simulate_says_the_level_and_leaves_the_same_folder(call: Any, level: str) -> None:
    answer = call("simulate", f"{level}.yaml", "--json", "--out", "run")
    assert answer.err.splitlines()[0] == said_of(level)
    assert (answer.json["level"], answer.json["folder"]) == (level, "run")
    assert {path.name for path in Path("run").iterdir()} >= COMMON
    assert json.loads(Path("run/summary.json").read_text())["level"] == level
    assert json.loads(Path("run/timeline.json").read_text())["traceEvents"]
    assert f"astrarium simulate {level}.yaml" in Path("run/README.txt").read_text()
    again = call("simulate", "run/scenario.yaml", "--json", "--no-folder").json
    assert without_times(again) == without_times(answer.json)


def without_times(shown: dict[str, Any]) -> dict[str, Any]:
    """All but where the folder is, and what the simulator took on this machine."""
    return {name: value for name, value in shown.items() if name not in ("folder", "wall_s", "cpu_s")}


@every_level
def test_one_policy_instead_of_the_files(call: Any, level: str) -> None:
    shown = call("simulate", f"{level}.yaml", "-p", OTHERS[level], "--no-folder").out
    assert OTHERS[level] in shown
    assert own_policy(level) not in shown
    assert "error: -p all: policy.name: expected a" in call("simulate", f"{level}.yaml", "-p", "all").error


@every_level
def test_compare_says_the_level_and_names_policies(call: Any, level: str) -> None:
    answer = call("compare", f"{level}.yaml", "-p", own_policy(level), "-p", OTHERS[level], "--json",
                "--out", "both")  # fmt: skip
    assert answer.err.splitlines()[0] == said_of(level)
    assert sum(line == said_of(level) for line in answer.err.splitlines()) == 1
    assert answer.json["level"] == level
    assert list(answer.json["policies"]) == [own_policy(level), OTHERS[level]]
    assert {path.name for path in Path("both", OTHERS[level]).iterdir()} >= {"scenario.yaml", "summary.json"}
    alone = call("compare", f"{level}.yaml", "-p", OTHERS[level], "--json", "--no-folder").json
    assert list(alone["policies"]) == [OTHERS[level]]


@every_level
def test_compare_with_several_seeds(call: Any, level: str) -> None:
    words = ["compare", f"{level}.yaml", "-p", OTHERS[level], "--seeds", "2", "--seed", "3"]
    assert call(*words, "--out", "seeds").code == 0
    assert {path.name for path in Path("seeds").iterdir() if path.is_dir()} == {
        "plots", f"{OTHERS[level]}-seed-3", f"{OTHERS[level]}-seed-4"
    }  # fmt: skip


EXPLAINED = {
    "serving": ("3", "request 3 to resnet50, under deferred", "It arrives at"),
    "device": ("short", "short, under fair", "It arrives at 3s."),
    "tuning": ("0", "trial 0 of candidate 0, under dynamic-fluid", "It ends at"),
    "cluster": ("small", "small, under tiresias", "It arrives at 5min"),
}


@every_level
def test_explain_tells_what_became_of_one(call: Any, level: str) -> None:
    item, first, part = EXPLAINED[level]
    answer = call("explain", f"{level}.yaml", item)
    assert answer.err.splitlines() == [said_of(level)]
    assert answer.out.splitlines()[0] == first
    assert part in answer.out
    shown = call("explain", f"{level}.yaml", item, "-p", OTHERS[level], "--json").json
    assert shown["level"] == level
    assert any(part in line for line in shown["told"])
    assert f"under {OTHERS[level]}" in " ".join(shown["told"])


UNKNOWN = {
    "serving": ("9999", "the number of a request, from 0 to"),
    "device": ("shrt", "did you mean 'short'"),
    "tuning": ("x", "a trial of the run: 0, 1, 2"),
    "cluster": ("smal", "did you mean 'small'"),
}


@every_level
def test_explain_names_what_there_is(call: Any, level: str) -> None:
    item, part = UNKNOWN[level]
    error = call("explain", f"{level}.yaml", item).error
    assert "ITEM: expected" in error
    assert part in error


@every_level
def test_a_trace_is_replayed_and_another_policy_decides_otherwise(call: Any, level: str) -> None:
    assert call("simulate", f"{level}.yaml", "--trace", "--out", "run").code == 0
    steps = len(Path("run/trace.jsonl").read_text().splitlines())
    same = call("replay", "run")
    assert same.err.splitlines() == [f"scenario.yaml: {SUBJECTS[level]} ({level})"]
    assert same.out == f"run: the same decisions in all {steps:,} steps of 1 part(s)\n"
    other = call("replay", "run", "-p", OTHERS[level])
    assert other.code == 1
    assert other.lines[0].startswith("run: decided otherwise at ")
    assert [line.split()[0] for line in other.lines[1:]] == ["heard", "recorded", "replayed"]


def test_what_cannot_be_replayed(call: Any) -> None:
    assert "there is no such file" in call("replay", "nowhere").error
    call("simulate", "device.yaml", "--out", "run")
    assert "`astrarium simulate --trace` keeps one" in call("replay", "run").error
    Path("alone").mkdir()
    Path("alone/trace.jsonl").touch()
    assert "a trace with scenario.yaml beside it" in call("replay", "alone").error
    assert "-p eagr: policy.name: expected a" in traced(call, "-p", "eagr").error


def traced(call: Any, *options: str) -> Any:
    call("simulate", "serving.yaml", "--trace", "--out", "traced")
    return call("replay", "traced", *options)


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("serving", "requests to models are answered by `astrarium serve`"),
        ("device", "jobs on one GPU run in your own program (docs/device/lanes.md)"),
        (
            "tuning",
            "train: expected a train function: this file has a task alone, which `astrarium simulate`",
        ),
        ("cluster", "apps[0].command: expected a command"),
    ],
)
def test_run_says_what_a_file_lacks_or_where_it_belongs(call: Any, level: str, message: str) -> None:
    assert message in call("run", f"{level}.yaml").error
    assert sorted(path.name for path in Path().iterdir()) == sorted(f"{level}.yaml" for level in LEVELS)


@pytest.mark.parametrize(
    ("words", "option", "level"),
    [
        (["simulate", "device.yaml", "--stages"], "--stages", "serving"),
        (["simulate", "tuning.yaml", "--plan", "x.yaml"], "--plan", "serving"),
        (["compare", "cluster.yaml", "--interference", "igniter"], "--interference", "serving"),
        (["explain", "serving.yaml", "3", "--at", "5s"], "--at", "cluster"),
        (["run", "tuning.yaml", "--state", "x"], "--state", "cluster"),
        (["run", "tuning.yaml", "--stay"], "--stay", "cluster"),
        (["run", "cluster.yaml", "--resume"], "--resume", "tuning"),
        (["run", "cluster.yaml", "--seeds", "2"], "--seeds", "tuning"),
        (["run", "cluster.yaml", "--out", "x"], "--out", "tuning"),
    ],
)
def test_options_of_other_levels_are_refused(call: Any, words: list[str], option: str, level: str) -> None:
    own = SUBJECTS[words[1].removesuffix(".yaml")]
    error = call(*words).error
    assert f"{option}: expected to be left out for {own}: it is for the {level} level" in error


@pytest.mark.parametrize("level", LEVELS[1:])
def test_verbs_of_serving_say_so(call: Any, level: str) -> None:
    wanted = f"FILE: expected requests to models: {SUBJECTS[level]}"
    assert f"{wanted} have no goodput" in call("goodput", f"{level}.yaml").error
    assert f"{wanted} are not placed" in call("plan", f"{level}.yaml").error
    assert f"{wanted} are not served" in call("serve", f"{level}.yaml").error
    native = call("simulate", f"{level}.yaml", "--engine", "native").error
    assert f"--engine: expected auto or python: {SUBJECTS[level]} have no native twin" in native


def test_a_plan_keeps_no_trace(call: Any) -> None:
    error = call("simulate", "serving.yaml", "--plan", "x.yaml", "--trace").error
    assert "--trace: expected no --plan beside it" in error


def test_a_file_of_no_level_is_told_what_there_is(call: Any) -> None:
    Path("odd.yaml").write_text("gpus: 3\n")
    error = call("simulate", "odd.yaml").error
    assert "odd.yaml" in error
    assert all(part in error for part in ("requests to serve", "jobs on one GPU", "trials of a", "apps on a"))


@every_level
def test_a_policy_is_a_name_or_a_mapping_everywhere(call: Any, level: str) -> None:
    words = ["simulate", f"{level}.yaml", "--no-folder", "--json"]
    bare = call(*words, "-o", f"policy={OTHERS[level]}").json
    assert without_times(bare) == without_times(call(*words, "-p", OTHERS[level]).json)
    mapping = call(*words, "-o", f"policy={{name: {OTHERS[level]}}}").json
    assert without_times(bare) == without_times(mapping)
    wrong = call(*words, "-o", "policy=3").error
    assert f"{level}.yaml: policy: expected a name, or a mapping such as {{name:" in wrong
    assert "policy.name: expected a" in call(*words, "-o", "policy=nobody").error
    assert "policy.speed: expected" in call(*words, "-o", f"policy={{name: {OTHERS[level]}, speed: 3}}").error


def test_a_name_that_several_levels_have(call: Any) -> None:
    listed = call("policies", "--json").json["policies"]
    assert list(listed) == ["serving", "device", "tuning", "cluster", "placement", "search", "gate"]
    for level in LEVELS[1:]:
        shown = call("policies", f"{level}/fifo", "--json").json
        assert (shown["name"], shown["of"], shown["summary"]) == (
            "fifo", level, listed[level]["fifo"]["summary"]
        )  # fmt: skip
    assert "did you mean 'fifo'" in call("policies", "cluster/fifi").error
