"""Bad input: one error that names the file, the field, the value and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from astrarium.core.errors import InputError
from astrarium.serving import scenario
from tests.serving.scenario.test_read import ISSUE, TRACE, load

# override, field, value shown, what would be right
BAD = [
    ("policy.name=defered", "policy.name", "'defered'", "did you mean 'deferred'?"),
    ("policy.name=3", "policy.name", "3", "a name, such as astrarium"),
    ("policy.gathr=fcfs", "policy.gathr", "'fcfs'", "did you mean 'gather'?"),
    ("policy.gather=windw", "policy.gather", "'windw'", "one of window, fcfs; did you mean 'window'?"),
    ("policy={name: timeout, timeout: soon}", "policy.timeout", "'soon'", "a duration with its unit"),
    ("policy={gather: fcfs}", "policy.gather", "'fcfs'", "one of"),
    ("policy=[eager]", "policy", "['eager']", "a name, or a mapping such as {name: astrarium}"),
    ("polcy.name=eager", "polcy", "{'name': 'eager'}", "did you mean 'policy'?"),
    ("workload.rate=-5000/s", "workload.rate", "'-5000/s'", "a rate such as 5000/s or 90/min, not below 0"),
    ("workload.rate=5000", "workload.rate", "5000", "a rate such as 5000/s"),
    ("workload.rate=.nan", "workload.rate", "nan", "a rate such as 5000/s"),
    ("workload.rate=nan/s", "workload.rate", "'nan/s'", "a rate such as 5000/s"),
    ("workload.rate=5000ms", "workload.rate", "'5000ms'", "a rate such as 5000/s"),
    ("workload.rate=0/s", "workload.rate", "'0/s'", "a rate above 0"),
    ("workload.rate=", "workload.rate", "", "poisson arrivals need it"),
    ("workload.rate={resnet5: 3/s}", "workload.rate.resnet5", "'3/s'", "did you mean 'resnet50'?"),
    ("workload.rate={resnet50: -3/s}", "workload.rate.resnet50", "'-3/s'", "not below 0"),
    ("workload.rate={}", "workload.rate.resnet50", "", "a rate for every model"),
    ("workload.arrivals=poison", "workload.arrivals", "'poison'", "did you mean 'poisson'?"),
    ("workload.arrivals=gamma", "workload.shape", "", "gamma arrivals need it"),
    ("workload.shape=0.5", "workload.shape", "0.5", "no such field with poisson arrivals"),
    ("workload.popularity=fair", "workload.popularity", "'fair'", "one of equal"),
    ("workload.popularity={zipf: .nan}", "workload.popularity.zipf", "nan", "a finite number"),
    ("workload.popularity={zipf: -1}", "workload.popularity.zipf", "-1", "a number >= 0"),
    ("workload.warmup=30s", "workload.warmup", "'30s'", "a warm-up shorter than the duration, 30s"),
    ("workload.duration=0s", "workload.duration", "'0ms'", "a duration above 0"),
    ("workload.duration=30", "workload.duration", "30", "a duration with its unit"),
    ("workload.changes=[{at: 0s, rate: 5/s}]", "workload.changes[0].at", "'0ms'", "a moment after 0ms"),
    ("workload.changes=[{at: 1s, rate: x}]", "workload.changes[0].rate", "'x'", "a rate such as 5000/s"),
    ("workload.changes=[{at: 1s}]", "workload.changes[0].rate", "", "this field is required"),
    ("models.resnet50.slo=6ms", "models.resnet50.slo", "'6ms'", "at least 6.125ms, what one request takes"),
    ("models.resnet50.slo=25", "models.resnet50.slo", "25", "a duration with its unit, such as 25ms"),
    ("models.resnet50.slo=25mm", "models.resnet50.slo", "'25mm'", "a duration with its unit, such as 25ms"),
    ("models.resnet50.slo=", "models.resnet50.slo", "", "only zoo profiles bring their own SLO"),
    ("models.resnet50.slow=25ms", "models.resnet50.slow", "'25ms'", "did you mean 'slo'?"),
    ("models.resnet51.slo=25ms", "models.resnet51", "'25ms'", "did you mean 'resnet50'?"),
    ("models.resnet50.copies=0", "models.resnet50.copies", "0", "a whole number >= 1"),
    ("models.resnet50.memory=16", "models.resnet50.memory", "16", "a size with its unit, such as 16GiB"),
    ("models.resnet50.profile=zoo:1080Ti/ResNet51", "models.resnet50.profile", "", "did you mean"),
    ("models.resnet50.profile=zoo:1080/ResNet50", "models.resnet50.profile", "", "did you mean '1080Ti'?"),
    ("models.resnet50.profile=resnet.csv", "models.resnet50.profile", "'resnet.csv'", "zoo:GPU/MODEL"),
    ("models.resnet50.profile={alpha: 1ms}", "models.resnet50.profile.beta", "", "this field is required"),
    ("models.resnet50.profile={tabel: [1ms]}", "models.resnet50.profile.tabel", "", "did you mean 'table'?"),
    ("models.resnet50.profile={table: [5ms, 4ms]}", "models.resnet50.profile.table", "", "never fall"),
    ("models.resnet50.profile={table: {2: 4ms}}", "models.resnet50.profile.table", "", "rise from 1"),
    ("models.resnet50.profile={table: [4ms, 5]}", "models.resnet50.profile.table[1]", "5", "a duration"),
    ("models.resnet50.profile={kinds: {T4: zoo:A100/VGG16}}", "models.resnet50.profile.kinds.gpu", "", "gpu"),
    ("models={}", "models", "nothing", "at least one model"),
    ("models=resnet50", "models", "'resnet50'", "a whole zoo such as zoo:A100"),
    ("models=zoo:A10", "models", "'A10'", "did you mean 'A100'?"),
    ("cluster.gpus=0", "cluster.gpus", "0", "a whole number >= 1"),
    ("cluster.gpus=eight", "cluster.gpus", "'eight'", "a whole number"),
    ("cluster.gpus=2.5", "cluster.gpus", "2.5", "a whole number"),
    ("cluster.gpus=[]", "cluster.gpus", "[]", "at least one group"),
    ("cluster.gpus=[{kind: A100}]", "cluster.gpus[0].count", "", "this field is required"),
    ("cluster.nodes=9", "cluster.nodes", "9", "at most one node for each of the 8 GPUs"),
    ("cluster=8", "cluster", "8", "a mapping with gpus"),
    ("network.control=1", "network.control", "1", "a duration with its unit"),
    ("network.latency=1ms", "network.latency", "'1ms'", "one of control, data, response"),
    ("profiling.share=1.5", "profiling.share", "1.5", "a number <= 1"),
    ("profiling.share=-0.1", "profiling.share", "-0.1", "a number >= 0"),
    ("profiling.share=.nan", "profiling.share", "nan", "a finite number"),
    ("profiling.delay=-1ms", "profiling.delay", "'-1ms'", "not below 0"),
    ("profiling.history=-1", "profiling.history", "-1", "a whole number >= 0"),
    ("profiling.window=1s", "profiling.window", "'1s'", "one of share, delay, history"),
    ("seed=-1", "seed", "-1", "a whole number >= 0"),
    ("seed=one", "seed", "'one'", "a whole number"),
]


@pytest.mark.parametrize(("override", "field", "value", "right"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_fields(tmp_path: Path, override: str, field: str, value: str, right: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, ISSUE, override)
    assert caught.value.field == field
    message = str(caught.value)
    assert right in message
    assert value in message
    assert "scenario.yaml" in message or f"-o {override}" in message


@pytest.mark.parametrize("override", ["policy.name", "=eager", "policy..name=eager", ".=3"])
def test_overrides_of_another_form(tmp_path: Path, override: str) -> None:
    with pytest.raises(InputError, match=r"KEY=VALUE, such as policy.name=eager") as caught:
        load(tmp_path, ISSUE, override)
    assert caught.value.value == override


DYNAMIC = "models.resnet50.profile={dynamic: {applications: {chat: {time: %s}}}}"
TIMES = [
    ("{norml: {mean: 1ms}}", ".norml", "did you mean 'normal'?"),
    ("{normal: {mean: 1}}", ".normal.mean", "a duration with its unit"),
    ("{normal: {mean: -1ms}}", ".normal.mean", "not below 0"),
    ("{normal: {mean: 1ms, std: -1ms}}", ".normal.std", "not below 0"),
    ("{normal: {mean: .nan}}", ".normal.mean", "a duration with its unit"),
    ("{constant: -1ms}", ".constant", "not below 0"),
    ("{constant: 0ms}", ".constant", "a duration above 0"),
    ("{constant: .inf}", ".constant", "a duration with its unit"),
    ("{lognormal: {median: 1ms, sigma: .nan}}", ".lognormal.sigma", "a finite number"),
    ("{lognormal: {median: 1ms, sigma: 21}}", ".lognormal.sigma", "a number <= 20"),
    ("{lognormal: {median: 1ms, sigma: 0}}", ".lognormal.sigma", "a number > 0"),
    ("{lognormal: {median: 0ms, sigma: 1}}", ".lognormal.median", "a duration above 0"),
    ("{modes: []}", ".modes", "at least one mode"),
    ("{modes: [{mean: 1ms, weight: -1}]}", ".modes[0].weight", "a number >= 0"),
    ("{modes: [{mean: 1ms, weight: .nan}]}", ".modes[0].weight", "a finite number"),
    ("{modes: [{mean: 1ms, weight: .inf}]}", ".modes[0].weight", "a finite number"),
    ("{modes: [{mean: 1ms, weight: 1.0e+308}]}", ".modes[0].weight", "a number <= 1"),
    ("{modes: [{mean: -1ms}]}", ".modes[0].mean", "not below 0"),
    ("{modes: [{mean: 1ms, weight: 0}]}", ".modes", "a weight above 0"),
    ("{modes: [{mean: 1ms, weight: 0.5}, {mean: 2ms, weight: 0.9}]}", ".modes", "weights that sum to 1"),
    ("{modes: [{mean: 1ms, weight: 0.3}, {mean: 2ms}]}", ".modes", "weights that sum to 1"),
    ("{histogram: {edges: [1ms, 2ms], counts: [1, 2]}}", ".histogram.counts", "one count between"),
    ("{histogram: {edges: [2ms, 1ms], counts: [1]}}", ".histogram.edges", "edges that rise"),
    ("{histogram: {edges: [1ms, 2ms], counts: [0]}}", ".histogram.counts", "their sum above 0"),
    ("{histogram: {edges: [1ms, 2ms], counts: [.nan]}}", ".histogram.counts[0]", "a finite number"),
    ("{histogram: {edges: [1ms, 2ms], counts: [-1]}}", ".histogram.counts[0]", "a number >= 0"),
    ("{histogram: {edges: [-1ms, 2ms], counts: [1]}}", ".histogram.edges[0]", "not below 0"),
    ("{histogram: {edges: [], counts: []}}", ".histogram.counts", "one count between"),
    ("{samples: none.csv}", ".samples", "a file of measured times; there is none at"),
    ("{samples: []}", ".samples", "at least one measured time"),
    ("{samples: [1ms, -1ms]}", ".samples[1]", "not below 0"),
    ("{samples: [1ms, .nan]}", ".samples[1]", "a duration with its unit"),
    ("10ms", "", "one distribution: constant"),
]


@pytest.mark.parametrize(("time", "place", "right"), TIMES, ids=[time for time, _, _ in TIMES])
def test_bad_distributions(tmp_path: Path, time: str, place: str, right: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, ISSUE, DYNAMIC % time)
    assert caught.value.field == f"models.resnet50.profile.dynamic.applications.chat.time{place}"
    assert right in str(caught.value)


def test_an_unknown_distribution_lists_the_known_ones_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, ISSUE, DYNAMIC % "{gamma: {mean: 1ms}}")
    assert str(caught.value).count("histogram") == 1


def test_another_policy_by_name_alone_gets_the_parameters_of_the_file(tmp_path: Path) -> None:
    own = "policy={name: timeout, timeout: 3ms}"
    with pytest.raises(InputError, match=r"-o 'policy=\{name: eager\}' leaves out the parameters") as caught:
        load(tmp_path, ISSUE, own, "policy.name=eager")
    assert caught.value.field == "policy.timeout"
    with pytest.raises(InputError) as caught:  # a parameter that was asked for beside the name
        load(tmp_path, ISSUE, "policy.name=eager", "policy.timeout=3ms")
    assert "leaves out" not in str(caught.value)


def test_an_estimate_that_misses_the_objective_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 30ms, what one request takes"):
        load(tmp_path, ISSUE, DYNAMIC % "{constant: 30ms}")


def test_bad_samples_name_field_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("1.5\nsoon\n")
    message = r"chat\.time\.samples: expected a number of ms.*, at line 2 of .*bad\.csv \(got 'soon'\)"
    with pytest.raises(InputError, match=message):
        load(tmp_path, ISSUE, DYNAMIC % "{samples: bad.csv}")


@pytest.mark.parametrize("text", ["", "time_ms\n", "\n\n"])
def test_an_empty_file_of_samples_names_the_field(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.csv").write_text(text)
    with pytest.raises(InputError, match=r"chat\.time\.samples: expected at least one measured time"):
        load(tmp_path, ISSUE, DYNAMIC % "{samples: empty.csv}")


@pytest.mark.parametrize("sample", ["nan", "inf", "-2", "1e400"])
def test_a_sample_that_is_no_time_names_the_line(tmp_path: Path, sample: str) -> None:
    (tmp_path / "bad.csv").write_text(f"time_us\n3\n{sample}\n")
    with pytest.raises(InputError, match=r"expected a number of us.*, at line 3 of .*bad\.csv"):
        load(tmp_path, ISSUE, DYNAMIC % "{samples: bad.csv}")


APPLICATIONS = [
    ("{time: {constant: 1ms}, share: 0}", ".share", "a number > 0"),
    ("{time: {constant: 1ms}, share: -1}", ".share", "a number > 0"),
    ("{time: {constant: 1ms}, share: .nan}", ".share", "a finite number"),
    ("{time: {constant: 1ms}, share: .inf}", ".share", "a finite number"),
    ("{time: {constant: 1ms}, changes: {}}", ".changes", "a list"),
    ("{time: {constant: 1ms}, changes: [{at: 0s, time: {constant: 2ms}}]}", ".changes[0].at", "after 0ms"),
    ("{time: {constant: 1ms}, changes: [{at: -1s, time: {constant: 2ms}}]}", ".changes[0].at", "not below 0"),
    ("{time: {constant: 1ms}, changes: [{at: 1s}]}", ".changes[0].time", "this field is required"),
    ("{time: {constant: 1ms}, changes: [{at: 1s, time: {modes: []}}]}", ".changes[0].time.modes", "one mode"),
    ("{share: 1}", ".time", "this field is required"),
]


def test_shares_sum_to_one(tmp_path: Path) -> None:
    applications = "{a: {share: 0.9, time: {constant: 1ms}}, b: {share: 0.5, time: {constant: 1ms}}}"
    with pytest.raises(InputError, match=r"shares that sum to 1, or equal ones") as caught:
        load(tmp_path, ISSUE, f"models.resnet50.profile={{dynamic: {{applications: {applications}}}}}")
    assert caught.value.field == "models.resnet50.profile.dynamic.applications"


@pytest.mark.parametrize(("application", "field", "right"), APPLICATIONS)
def test_bad_applications(tmp_path: Path, application: str, field: str, right: str) -> None:
    with pytest.raises(InputError) as caught:
        load(
            tmp_path, ISSUE, f"models.resnet50.profile={{dynamic: {{applications: {{chat: {application}}}}}}}"
        )
    assert caught.value.field == f"models.resnet50.profile.dynamic.applications.chat{field}"
    assert right in str(caught.value)


def test_changes_of_an_application_stand_in_order(tmp_path: Path) -> None:
    changes = "[{at: 5s, time: {constant: 2ms}}, {at: 5s, time: {constant: 3ms}}]"
    profile = f"{{dynamic: {{applications: {{chat: {{time: {{constant: 1ms}}, changes: {changes}}}}}}}}}"
    with pytest.raises(InputError, match=r"changes\[1\]\.at: expected a moment after 5s"):
        load(tmp_path, ISSUE, f"models.resnet50.profile={profile}")


@pytest.mark.parametrize("number", ["0", "-1", ".nan", ".inf", "1.0e+300"])
def test_a_batch_factor_beyond_reason(tmp_path: Path, number: str) -> None:
    profile = f"{{dynamic: {{applications: {{chat: {{time: {{constant: 1ms}}}}}}, c1: {number}}}}}"
    with pytest.raises(InputError, match=r"profile\.dynamic\.c1: expected a (finite )?number"):
        load(tmp_path, ISSUE, f"models.resnet50.profile={profile}")


BAD_TRACES = [
    ("time_ms,model\n5,resnet50\n4,resnet50\n", "line 3", "times in rising order"),
    ("time_ms,model\n5,resnet50\n\nnan,resnet50\n", "line 4", "a time of at least 0"),
    ("time_ms,model\n-5,resnet50\n", "line 2", "a time of at least 0"),
    ("time_ns,model\n1.5,resnet50\n", "line 2", "a time of at least 0"),
    ("time_ms,model\n5,resnet51\n", "line 2", "did you mean 'resnet50'?"),
    ("time_ms,model\n5\n", "line 2", "2 cells: time_ms,model"),
    ("time_ms,model,application\n5,resnet50,chat\n", "line 2", "no application"),
    ("time,model\n5,resnet50\n", "line 1", "a header such as time_ms,model"),
    ("time_ms,model\n", "", "at least one arrival"),
    ("", "line 1", "a header such as time_ms,model"),
]


@pytest.mark.parametrize(("text", "place", "right"), BAD_TRACES)
def test_bad_traces_name_file_and_line(tmp_path: Path, text: str, place: str, right: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        load(tmp_path, TRACE)
    assert caught.value.source == str(tmp_path / "trace.csv")
    assert caught.value.field == place
    assert right in str(caught.value)


@pytest.mark.parametrize(
    ("text", "field", "right"),
    [
        ('{"arrivals_ms": {"resnet50": [5, 4]}}', "arrivals_ms.resnet50[1]", "times in rising order"),
        ('{"arrivals_ms": {"resnet50": [true]}}', "arrivals_ms.resnet50[0]", "a time of at least 0"),
        ('{"arrivals_ms": {"resnet51": [1]}}', "arrivals_ms.resnet51[0]", "did you mean 'resnet50'?"),
        ('{"arrivals": {}}', "arrivals_ms", "an object"),
        ("{", "line 1", "an object"),
    ],
)
def test_bad_json_traces(tmp_path: Path, text: str, field: str, right: str) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(InputError) as caught:
        load(tmp_path, TRACE, "workload.file=trace.json")
    assert caught.value.field == field
    assert right in str(caught.value)


def test_missing_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"workload.file: expected a trace file; .*\(got 'trace.csv'\)"):
        load(tmp_path, TRACE)


def test_a_trace_has_its_own_rate(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("time_s,model\n1,resnet50\n")
    with pytest.raises(InputError, match="no such field with trace arrivals"):
        load(tmp_path, TRACE, "workload.rate=5/s")
    with pytest.raises(InputError, match="a trace has the rate it has"):
        load(tmp_path, TRACE).with_rate(5)


@pytest.mark.parametrize("total", [0.0, -1.0, float("nan"), float("inf")])
def test_no_such_total(tmp_path: Path, total: float) -> None:
    with pytest.raises(InputError, match="a rate above 0"):
        load(tmp_path, ISSUE).with_rate(total)


BAD_FILES = [
    (ISSUE + "seed: 2\n", "line 8", "a key that stands only once"),
    (ISSUE.replace("slo: 25ms", "slo: 25ms, slo: 26ms"), "line 3", "a key that stands only once"),
    (ISSUE.replace("{gpus: 8}", "{gpus: 8"), "line 2", "YAML"),
    (ISSUE.replace("cluster", "clutser"), "clutser", "did you mean 'cluster'?"),
    (ISSUE.replace("policy: {name: deferred}", "policy: [eager]"), "policy", "a mapping such as"),
    (ISSUE.replace("resnet50:", "50:"), "models.50", "a name that is text"),
    ("", "", "a mapping with cluster, models, workload"),
    ("- 1\n", "", "a mapping with cluster, models, workload"),
]


@pytest.mark.parametrize(("text", "field", "right"), BAD_FILES)
def test_bad_files(tmp_path: Path, text: str, field: str, right: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert caught.value.field == field
    assert right in str(caught.value)
    assert caught.value.source == str(tmp_path / "scenario.yaml")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"none.yaml: expected a scenario file that can be read: No such file"
    ):
        scenario.load(tmp_path / "none.yaml")


def test_the_whole_message(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, ISSUE, "models.resnet50.slo=6ms")
    expected = "at least 6.125ms, what one request takes on a GPU of kind gpu"
    assert (
        str(caught.value) == f"{tmp_path}/scenario.yaml: models.resnet50.slo: expected {expected} (got '6ms')"
    )


def test_copies_may_not_take_anothers_name(tmp_path: Path) -> None:
    twins = "models={a: {profile: zoo:A100/VGG16, copies: 2}, a-1: {profile: zoo:A100/VGG16}}"
    with pytest.raises(InputError, match="a name that no other model or copy has"):
        load(tmp_path, ISSUE, twins)


def test_a_model_larger_than_the_gpu(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"models.resnet50.memory: expected at most 8GiB, .* \(got '9GiB'\)"):
        load(tmp_path, ISSUE, "cluster.memory=8GiB", "models.resnet50.memory=9GiB")


def test_models_that_do_not_fit_on_a_gpu_together(tmp_path: Path) -> None:
    """Every model lives on every GPU: the second one is told what the first leaves."""
    with pytest.raises(InputError, match=r"models.resnet50-1.memory: expected at most 3GiB"):
        load(
            tmp_path, ISSUE, "cluster.memory=8GiB", "models.resnet50.memory=5GiB", "models.resnet50.copies=2"
        )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("workload.rate=1e300/s", "workload.rate: expected at most 1,000,000,000 arrivals"),
        ("workload.duration=1e30s", "workload.duration: expected .* at most 100 days"),
        ("models.resnet50.slo=1e30s", "models.resnet50.slo: expected .* at most 100 days"),
        ("cluster.gpus=1000000000", "cluster.gpus: expected a whole number <= 65536"),
    ],
)
def test_numbers_beyond_reason(tmp_path: Path, override: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        load(tmp_path, ISSUE, override)


def test_yaml_nested_beyond_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1: expected at most 100 lists and mappings in each other"):
        load(tmp_path, "[" * 5000)


def test_a_number_with_an_exponent_is_a_number(tmp_path: Path) -> None:
    assert load(tmp_path, ISSUE, "seed=1e3").seed == 1000
