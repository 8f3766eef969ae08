"""Plans as commands take them: --plan of `simulate` and `compare`, what is said of plans that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ("tests.support.cli_fixtures",)

SCENARIO = """\
cluster: {gpus: 3, memory: 8GiB}
models:
  bert: {profile: {alpha: 2ms, beta: 4ms}, slo: 50ms, memory: 6GiB}
  vgg: {profile: {alpha: 1ms, beta: 5ms}, slo: 30ms, memory: 3GiB, max_batch: 4}
  alex: {profile: {alpha: 1ms, beta: 1ms}, slo: 20ms, memory: 1GiB}
policy: {name: deferred}
workload: {arrivals: poisson, rate: 300/s, duration: 2s, warmup: 500ms}
seed: 1
"""
PLAN = """\
policy: by hand
replicas:
- {model: bert, gpus: [0], batch: 8}
- {model: vgg, gpus: [1], batch: 4}
- {model: vgg, gpus: [2], batch: 4}
missing: {alex: room for 1GiB}
"""
JOBS = "jobs: [{name: one, workload: salus:resnet50_50, iterations: 5}]\n"
EVERYWHERE = """\
policy: by hand
replicas:
- {model: vgg, gpus: [0], batch: 4}
- {model: alex, gpus: [0], batch: 19}
- {model: vgg, gpus: [1], batch: 4}
- {model: alex, gpus: [1], batch: 19}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path


def test_simulate_runs_a_plan(call: Any, folder: Path) -> None:
    answer = call("simulate", "small.yaml", "--plan", "plan.yaml", "-p", "eager", "--json", "--out", "run")
    assert (answer.code, answer.err.splitlines()[0]) == (0, "small.yaml: requests to models (serving)")
    shown = answer.json
    assert sum(shown["outcomes"].values()) == shown["requests"]
    assert shown["dropped_reasons"]["no replica"] == shown["models"]["alex"]["requests"]
    plan = shown["plan"]
    assert (plan["policy"], plan["replicas"], plan["missing"]) == ("by hand", 3, {"alex": "room for 1GiB"})
    assert [(cell["gpus"], cell["models"], cell["run_by"]) for cell in plan["cells"]] == [
        ([0], {"bert": 8}, "eager"),
        ([1, 2], {"vgg": 4}, "eager"),
    ]
    assert len(plan["gpu_busy"]) == 3
    assert json.loads(Path("run/summary.json").read_text())["plan"] == plan
    assert "the plan that was run" in Path("run/README.txt").read_text()
    assert "vgg 4" in Path("run/tables.txt").read_text()
    again = call("simulate", "run/scenario.yaml", "--plan", "run/plan.yaml", "--json", "--no-folder").json
    for name in ("policy", "seed", "outcomes", "models", "gpus", "plan"):
        assert shown[name] == again[name]


def test_every_model_everywhere_changes_nothing(call: Any, folder: Path) -> None:
    Path("two.yaml").write_text("".join(line for line in SCENARIO.splitlines(True) if "bert" not in line))
    Path("all.yaml").write_text(EVERYWHERE)
    options = ("-o", "cluster.gpus=2", "--json", "--no-folder")
    plain = call("simulate", "two.yaml", *options).json
    planned = call("simulate", "two.yaml", "--plan", "all.yaml", *options).json
    for name in plain.keys() - {"wall_s", "cpu_s"}:
        assert planned[name] == plain[name]


def test_compare_runs_a_plan_with_each_policy(call: Any, folder: Path) -> None:
    answer = call("compare", "small.yaml", "--plan", "plan.yaml", "-p", "deferred", "-p", "eager", "--json",
                "--out", "both")  # fmt: skip
    policies = answer.json["policies"]
    assert list(policies) == ["deferred", "eager"]
    assert (
        policies["deferred"]["models"]["alex"]["attainment"]
        == policies["eager"]["models"]["alex"]["attainment"]
        == 0
    )
    assert policies["deferred"] != policies["eager"]
    assert Path("both/plan.yaml").is_file()


def test_tables_for_people(call: Any, folder: Path) -> None:
    answer = call("simulate", "small.yaml", "--plan", "plan.yaml", "--no-folder")
    rows = {line.split()[0]: line for line in answer.out.splitlines() if line.strip()}
    assert "vgg 4" in rows["1-2"]
    assert "deferred" in rows["1-2"]
    assert "alex: room for 1GiB" in rows["none"]


def test_models_that_do_not_fit_together_are_pointed_to_planning(call: Any, folder: Path) -> None:
    answer = call("simulate", "small.yaml", "--no-folder")
    assert answer.code == 2
    assert "models.vgg.memory" in answer.err
    assert "astrarium plan" in answer.err


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("model: bert", "model: bart", ["replicas[0].model", "'bart'", "did you mean 'bert'"]),
        ("gpus: [2]", "gpus: [3]", ["replicas[2].gpus[0]", "0 to 2", "got 3"]),
        ("batch: 8", "batch: 80", ["replicas[0].batch", "1 to 23", "got 80"]),
        ("gpus: [1]", "gpus: [0]", ["replicas[1]", "at most 2GiB on GPU 0", "3GiB"]),
        ("missing: {alex: room for 1GiB}", "", ["replicas", "a replica of alex"]),
        ("batch: 8}", "batch: 8, shape: op1pp2}", ["replicas[0].shape", "op1pp1"]),
    ],
)
def test_a_plan_for_another_scenario(
    call: Any, folder: Path, before: str, after: str, words: list[str]
) -> None:
    Path("plan.yaml").write_text(PLAN.replace(before, after, 1))
    for verb in ("simulate", "compare"):
        answer = call(verb, "small.yaml", "--plan", "plan.yaml")
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith("error: plan.yaml: ")
        for word in words:
            assert word in answer.err
    assert sorted(path.name for path in folder.iterdir()) == ["plan.yaml", "small.yaml"]


def test_what_does_not_go_together(call: Any, folder: Path) -> None:
    Path("jobs.yaml").write_text(JOBS)
    assert "--plan" in call("simulate", "jobs.yaml", "--plan", "plan.yaml").err
    assert "plan that can be read" in call("simulate", "small.yaml", "--plan", "none.yaml").err
    answer = call("simulate", "small.yaml", "-o", "cluster.memory=99GiB", "--interference", "igniter")
    assert "--interference" in answer.err
    assert "--plan" in answer.err
    bare = "".join(line for line in SCENARIO.replace(", memory: 8GiB", "").splitlines(True))
    Path("small.yaml").write_text(bare)
    assert "cluster.memory" in call("simulate", "small.yaml", "--plan", "plan.yaml").err


def test_shared_gpus_slow_each_other_as_asked(call: Any, folder: Path) -> None:
    Path("plan.yaml").write_text(
        "policy: by hand\nreplicas:\n- {model: vgg, gpus: [0], batch: 4, share: 0.5}\n"
        "- {model: alex, gpus: [0], batch: 4, share: 0.5}\n- {model: bert, gpus: [1], batch: 8}\n"
    )
    Path("slow.yaml").write_text(
        "pairs:\n- {model: vgg, beside: alex, slowdown: 1.9}\n- {model: alex, beside: vgg, slowdown: 1.5}\n"
    )
    options = ("simulate", "small.yaml", "--plan", "plan.yaml", "--json", "--no-folder")
    calm = call(*options).json
    slowed = call(*options, "--interference", "slow.yaml").json
    assert calm["plan"]["cells"][1]["run_by"] == "worker queues"
    assert calm["models"]["vgg"]["attainment"] > slowed["models"]["vgg"]["attainment"]
    assert calm["models"]["bert"] == slowed["models"]["bert"]


NETWORK = ("-o", "network={control: 100us, data: 50us, response: 1ms}")
SIDE_BY_SIDE = """\
policy: by hand
replicas:
- {model: vgg, gpus: [0], batch: 4, share: 0.5}
- {model: alex, gpus: [0], batch: 4, share: 0.5}
- {model: bert, gpus: [1], batch: 8}
"""


def test_stages_tell_where_time_went(call: Any, folder: Path) -> None:
    """bert's cell gathers batches and then sends them; vgg's requests travel to a worker queue one by one."""
    Path("plan.yaml").write_text(SIDE_BY_SIDE)
    answer = call(
        "simulate", "small.yaml", "--plan", "plan.yaml", *NETWORK, "--stages", "--json", "--no-folder"
    ).json
    stages = {(line["model"], line["stage"]): line for line in answer["stages"]}
    for name in ("bert", "vgg", "alex"):
        assert sum(line["part"] for (model, _), line in stages.items() if model == name) == pytest.approx(1)
        assert stages[name, "reply"]["p50_ms"] == stages[name, "reply"]["p99_ms"] == 1
    assert ("vgg", "gather") not in stages
    assert stages["vgg", "transfer"]["p99_ms"] == pytest.approx(0.15)
    assert stages["bert", "transfer"]["p99_ms"] <= 0.1 + 8 * 0.05
    assert stages["bert", "gather"]["p99_ms"] > 0
    shown = call("simulate", "small.yaml", "--plan", "plan.yaml", "--stages", "--no-folder").out
    assert "where time went" in shown
    assert "p95 ms" in shown


def test_the_way_of_the_thesis_is_followed_beside_the_run(call: Any, folder: Path) -> None:
    Path("plan.yaml").write_text(SIDE_BY_SIDE)
    options = ("simulate", "small.yaml", "--plan", "plan.yaml", *NETWORK, "--no-folder")
    plain = call(*options, "--json").json
    answer = call(*options, "--json", "--router-wait", "20ms").json
    assert answer["outcomes"] == plain["outcomes"]  # the run itself is what it was
    lines = {(line["model"], line["stage"]): line for line in answer["router"]["stages"]}
    assert answer["router"]["max_wait"] == "20ms"
    assert all(line["p99_ms"] <= 20 for (_, stage), line in lines.items() if stage == "gather")
    assert lines["bert", "transfer"]["p99_ms"] <= 0.1 + 8 * 0.05
    assert answer["router"]["models"].keys() == plain["models"].keys()
    shown = call(*options, "--router-wait", "20ms").out
    assert "where time went with a router that waits 20ms at most" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["small.yaml", "-o", "cluster.memory=99GiB", "--router-wait", "10ms"], "a --plan beside it"),
        (["small.yaml", "--plan", "plan.yaml", "--router-wait", "10"], "a duration with its unit"),
        (["jobs.yaml", "--stages"], "to be left out for jobs on one GPU"),
    ],
)
def test_stages_that_cannot_be_told(call: Any, folder: Path, arguments: list[str], words: str) -> None:
    Path("jobs.yaml").write_text(JOBS)
    answer = call("simulate", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err


def test_a_plan_is_compared_with_several_seeds(call: Any, folder: Path) -> None:
    answer = call("compare", "small.yaml", "--plan", "plan.yaml", "-p", "eager", "--seeds", "2", "--json",
                "--no-folder")  # fmt: skip
    assert answer.err.splitlines()[0] == "small.yaml: requests to models (serving)"
    assert list(answer.json["policies"]) == ["eager, seed 1", "eager, seed 2"]
