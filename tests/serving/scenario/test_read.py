"""Scenario files: what they may say, and what comes of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from astrarium.core.profiles import Dynamic, Linear
from astrarium.core.quantities import FOREVER, SECOND, Duration, Rate
from astrarium.core.quantities import MILLISECOND as MS
from astrarium.serving import scenario
from astrarium.serving.contract import Network, Request
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.state import Batch
from astrarium.serving.world import TableTruth
from tests.support.paths import ROOT

EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.yaml") if path.stem != "jobs")

ISSUE = """\
cluster: {gpus: 8}
models:
  resnet50: {profile: {alpha: 1.053ms, beta: 5.072ms}, slo: 25ms}   # or profile: zoo:1080Ti/ResNet50
policy: {name: deferred}
workload: {arrivals: poisson, rate: 5000/s, duration: 30s, warmup: 2s}
network: {control: 0ms, data: 0ms}
seed: 1
"""

EVERYTHING = """\
cluster: {gpus: [{kind: A100, count: 3, memory: 80GiB, nodes: 2}, {kind: T4, count: 1}]}
models:
  linear: {profile: zoo:A100/ResNet50, copies: 2, memory: 1.5GiB, max_batch: 7}
  listed: {profile: {table: [4.1ms, 5ms]}, slo: 20ms}
  mapped: {profile: {table: {1: 4ms, 8: 9ms}}, slo: 20ms}
  mixed: {profile: {kinds: {A100: zoo:A100/VGG16, T4: {alpha: 3ms, beta: 7.000001ms}}}, slo: 50ms}
  dynamic:
    slo: 1s
    profile:
      dynamic:
        c0: 1ms
        c1: 0.25
        estimate: mean
        applications:
          a: {share: 0.4, time: {normal: {mean: 10ms, std: 2ms}}}
          b: {share: 0.1, time: {lognormal: {median: 10ms, sigma: 0.5}}}
          c: {share: 0.1, time: {modes: [{weight: 0.5, mean: 3ms}, {weight: 0.5, mean: 9ms, std: 1ms}]}}
          d: {share: 0.1, time: {histogram: {edges: [1ms, 2ms, 4ms], counts: [1, 2]}}}
          e: {share: 0.1, time: {samples: [3ms, 1ms]}}
          f: {share: 0.1, time: {samples: times.csv}}
          g: {share: 0.1, time: {constant: 2ms}}
policy: {name: timeout, timeout: 5ms, gather: fcfs}
workload:
  arrivals: gamma
  shape: 0.3
  rate: 700/s
  popularity: {zipf: 0.9}
  changes: [{at: 2s, rate: 10.5/s}, {at: 3s, rate: {mixed: 4/s}}]
  duration: 5s
network: {control: 25us, data: 75us, response: 1ms}
preemption: {cost: 3ms}
"""


def load(tmp_path: Path, text: str, *overrides: str) -> Scenario:
    (tmp_path / "times.csv").write_text("time_us\n1000\n3000\n2ms\n")
    file = tmp_path / "scenario.yaml"
    file.write_text(text)
    return scenario.load(file, overrides)


def test_the_file_of_the_issue(tmp_path: Path) -> None:
    served = load(tmp_path, ISSUE)
    setup = build.setup(served)
    assert len(setup.gpus) == 8
    assert setup.network == Network(0, 0, 0)
    (model,) = setup.models
    assert (model.name, model.slo, model.max_batch) == ("resnet50", 25 * MS, 18)
    assert model.latency[:2] == (0, 6_125_000)
    assert model.latency[-1] == FOREVER
    assert (served.duration, served.workload.warmup, served.seed) == (30 * SECOND, 2 * SECOND, 1)
    assert served.total_rate == 5000
    assert len(build.arrivals(served)) == pytest.approx(150_000, rel=0.02)
    assert type(build.policy(served, setup)).__name__ == "Deferred"


def test_its_other_profile(tmp_path: Path) -> None:
    served = load(tmp_path, ISSUE, "models.resnet50.profile=zoo:1080Ti/ResNet50")
    assert served.models["resnet50"].profile == Linear(Duration(2_050_000), Duration(5_378_000))


@pytest.mark.parametrize("text", [ISSUE, EVERYTHING], ids=["issue", "everything"])
def test_what_is_written_loads_back_equal(tmp_path: Path, text: str) -> None:
    served = load(tmp_path, text)
    elsewhere = tmp_path / "elsewhere" / "resolved.yaml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(served.to_yaml())
    again = scenario.load(elsewhere)
    assert again == served
    assert build.setup(again) == build.setup(served)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load_run_and_round_trip(path: Path) -> None:
    planned = path.stem == "plan"  # its models do not fit on one GPU all together
    served = scenario.load(path, planning=planned)
    setup = build.setup(served, placed=planned)
    arrivals = build.arrivals(served)
    assert len(arrivals) == pytest.approx(served.total_rate * served.duration / SECOND, rel=0.1)
    assert build.truth(served, setup, arrivals)
    assert build.policy(served, setup)
    assert scenario.parse(yaml.safe_load(served.to_yaml()), planning=planned) == served


def test_there_are_examples() -> None:
    named = {"quickstart", "zoo", "bursty", "dynamic", "trace", "cold_start", "drift"}
    assert {path.stem for path in EXAMPLES} >= named


def test_gpus_are_numbered_in_order(tmp_path: Path) -> None:
    gpus = build.setup(load(tmp_path, EVERYTHING)).gpus
    assert [(gpu.id, gpu.kind, gpu.node) for gpu in gpus] == [
        (0, "A100", 0),
        (1, "A100", 0),
        (2, "A100", 1),
        (3, "T4", 2),
    ]
    assert gpus[0].memory == 80 * 2**30


def test_the_short_form_of_a_cluster(tmp_path: Path) -> None:
    served = load(tmp_path, ISSUE, "cluster={gpus: 4, kind: A100, memory: 40GiB, nodes: 2}")
    gpus = build.setup(served).gpus
    assert [(gpu.kind, gpu.memory, gpu.node) for gpu in gpus] == [
        ("A100", 40 * 2**30, node) for node in (0, 0, 1, 1)
    ]


def test_zoo_and_copies(tmp_path: Path) -> None:
    assert len(load(tmp_path, ISSUE, "models=zoo:A100").models) == 37
    served = load(tmp_path, EVERYTHING)
    assert list(served.models)[:2] == ["linear-0", "linear-1"]
    assert served.models["linear-0"].slo == 20 * MS  # the zoo's
    assert build.setup(served).models[0].max_batch == 7


def test_tables_are_cut_at_the_objective(tmp_path: Path) -> None:
    setup = build.setup(load(tmp_path, EVERYTHING, "models.mapped.slo=6ms"))
    named = {model.name: model for model in setup.models}
    assert named["mapped"].latency == (0, 4 * MS, 4 * MS + 5 * MS // 7, 4 * MS + 10 * MS // 7, FOREVER)
    assert named["listed"].latency == (0, 4_100_000, 5 * MS, FOREVER)


def test_policies_see_the_slowest_kind_and_the_world_each_its_own(tmp_path: Path) -> None:
    served = load(tmp_path, EVERYTHING)
    setup = build.setup(served)
    mixed = next(model for model in setup.models if model.name == "mixed")
    assert mixed.latency[1] == 10_000_001
    kind_of_gpu, tables = build.truth_tables(served, setup)
    assert kind_of_gpu == [0, 0, 0, 1]
    assert tables[0][mixed.index][1] < tables[1][mixed.index][1] == mixed.latency[1]
    for kind in tables:
        assert [len(table) for table in kind] == [len(model.latency) for model in setup.models]


def test_static_models_get_a_table_of_the_truth(tmp_path: Path) -> None:
    served = load(tmp_path, ISSUE)
    setup = build.setup(served)
    truth = build.truth(served, setup, build.arrivals(served))
    assert isinstance(truth, TableTruth)
    assert truth.execution(Batch(0, 0, 7, [Request(0, 0, 0, 0)] * 2, 0)) == 7_178_000


def test_dynamic_batches_last_as_long_as_their_longest_request(tmp_path: Path) -> None:
    served = load(tmp_path, EVERYTHING)
    setup = build.setup(served)
    arrivals = build.arrivals(served)
    index = list(served.models).index("dynamic")
    assert (arrivals.work[arrivals.model == index] > 0).all()
    assert not arrivals.work[arrivals.model != index].any()
    ids = np.flatnonzero(arrivals.model == index)[:3].tolist()
    batch = Batch(0, index, 0, [Request(id_, index, 0, 0) for id_ in ids], 0)
    longest = max(int(arrivals.work[id_]) for id_ in ids)
    assert build.truth(served, setup, arrivals).execution(batch) == MS + round(0.25 * 3 * longest)


def test_applications_come_in_their_shares(tmp_path: Path) -> None:
    served = load(tmp_path, EVERYTHING, "workload.rate=20000/s", "workload.changes=[]")
    arrivals = build.arrivals(served)
    index = list(served.models).index("dynamic")
    counts = np.bincount(arrivals.application[arrivals.model == index])
    assert counts / counts.sum() == pytest.approx(np.array([0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]), abs=0.02)
    constant = arrivals.work[(arrivals.model == index) & (arrivals.application == 6)]
    assert (constant == 2 * MS).all()


def test_estimates_grow_with_the_batch(tmp_path: Path) -> None:
    served = load(tmp_path, EVERYTHING)
    assert isinstance(served.models["dynamic"].profile, Dynamic)
    latency = build.setup(served).models[-1].latency
    assert len(latency) > 10
    assert all(low <= high for low, high in pairwise(latency))


def test_with_policy_seed_and_rate(tmp_path: Path) -> None:
    served = load(tmp_path, ISSUE)
    assert served.with_policy("timeout", timeout="5ms").policy.parameters == {"timeout": "5ms"}
    assert served.with_seed(9).seed == 9
    assert served.with_rate(4321.5).workload.rate == 4321.5
    assert served.policy.name == "deferred"


def test_with_rate_scales_every_rate(tmp_path: Path) -> None:
    by_name = "workload.rate={a: 10/s, b: 30/s}"
    models = "models={a: {profile: zoo:A100/VGG16}, b: {profile: zoo:A100/VGG16}}"
    changes = "workload.changes=[{at: 15s, rate: 120/s}]"
    served = load(tmp_path, ISSUE, by_name, models, changes)
    assert served.total_rate == 80
    twice = served.with_rate(160)
    assert twice.total_rate == pytest.approx(160)
    assert twice.workload.rate == {"a": 20.0, "b": 60.0}
    assert twice.workload.changes[0].rate == 240.0


OVERRIDES: list[tuple[str, Any]] = [
    ("policy.name=eager", lambda s: s.policy.name == "eager"),
    ("workload.rate=4000/s", lambda s: s.total_rate == 4000),
    ("models.resnet50.slo=30ms", lambda s: s.models["resnet50"].slo == 30 * MS),
    ("seed=7", lambda s: s.seed == 7),
    ("network.response=2ms", lambda s: s.network.response == 2 * MS),
    ("preemption.cost=1ms", lambda s: s.preemption.cost == MS),
    ("workload.popularity.zipf=0.9", lambda s: s.workload.popularity.zipf == 0.9),
    ("policy={name: timeout, timeout: 3ms}", lambda s: s.policy.parameters == {"timeout": "3ms"}),
    ("cluster.gpus=[{count: 2}, {count: 3, kind: T4}]", lambda s: s.cluster.size == 5),
]


@pytest.mark.parametrize(("override", "holds"), OVERRIDES, ids=[text for text, _ in OVERRIDES])
def test_overrides(tmp_path: Path, override: str, holds: Any) -> None:
    assert holds(load(tmp_path, ISSUE, override))


def test_overrides_reach_into_lists_zoos_and_dotted_names(tmp_path: Path) -> None:
    served = load(tmp_path, EVERYTHING, "workload.changes[0].rate=20/s", "cluster.gpus.1.count=4")
    assert served.workload.changes[0].rate == Rate(20)
    assert served.cluster.size == 7
    served = load(tmp_path, ISSUE, "models=zoo:A100", "models.ResNet50.slo=40ms")
    assert (len(served.models), served.models["ResNet50"].slo) == (37, 40 * MS)
    dotted = ISSUE.replace("resnet50:", "v1.5:")
    assert load(tmp_path, dotted, "models.v1.5.slo=40ms").models["v1.5"].slo == 40 * MS


TRACE = ISSUE.replace("poisson, rate: 5000/s, duration: 30s, warmup: 2s", "trace, file: trace.csv")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trace.csv", "time_ms,model\n1.5,resnet50\n\n1.5,resnet50\n40,resnet50\n"),
        ("trace.csv", "time_ns,model\n1500000,resnet50\n1500000,resnet50\n40000000,resnet50\n"),
        (
            "trace.csv",
            "\ufefftime_s,model\n0.0015,resnet50\n0.0015,resnet50\n0.04,resnet50\n",
        ),  # a spreadsheet's
        ("trace.json", '{"source": "x", "arrivals_ms": {"resnet50": [1.5, 1.5, 40]}}'),
    ],
)
def test_traces(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    served = load(tmp_path, TRACE, f"workload.file={name}")
    assert served.duration == 40 * MS + 1  # arrivals stop before it: the last one counts
    assert served.total_rate == pytest.approx(75)
    arrivals = build.arrivals(served)
    assert arrivals.time.tolist() == [1_500_000, 1_500_000, 40 * MS]
    shorter = load(tmp_path, TRACE, f"workload.file={name}", "workload.duration=30ms")
    assert len(build.arrivals(shorter)) == 2


def test_a_trace_may_name_applications_or_leave_them_to_chance(tmp_path: Path) -> None:
    rows = "".join(f"{number},dynamic,{'c' if number % 2 else ''}\n" for number in range(200))
    (tmp_path / "trace.csv").write_text("time_ms,model,application\n" + rows)
    served = load(tmp_path, EVERYTHING, "workload={arrivals: trace, file: trace.csv}")
    arrivals = build.arrivals(served)
    assert (arrivals.application[1::2] == 2).all()
    assert len(set(arrivals.application[::2].tolist())) > 3
    assert (arrivals.work > 0).all()


def test_importing_the_scenario_leaves_numpy_alone() -> None:
    import subprocess
    import sys

    code = (
        "import sys, astrarium.serving.scenario as s; s.load(sys.argv[1]); assert 'numpy' not in sys.modules"
    )
    quickstart = next(path for path in EXAMPLES if path.stem == "quickstart")
    subprocess.run([sys.executable, "-c", code, str(quickstart)], check=True)
