"""Scenario files about jobs on one GPU: read, refused with the reason, simulated, compared, written."""

from __future__ import annotations

import csv
import json
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from astrarium.cli.main import BAD_INPUT, main
from astrarium.core.choice import Choice
from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.device import report, salus
from astrarium.device.level import LEVEL, longest
from astrarium.device.record import DeviceRecord, Span
from astrarium.device.scenario import job_arrivals
from astrarium.device.scenario.read import JobScenario, parse
from astrarium.device.scenario.schema import Mix
from astrarium.levels import load
from astrarium.run.experiment import simulate

TEXT = """\
gpu: {memory: 10GB, switch: 2ms}
jobs:
  - {name: big, persistent: 1GB, ephemeral: 6GB, iteration: 100ms, iterations: 100}
  - {name: tiny, persistent: 100MB, ephemeral: 1GB, iteration: 50ms, length: 1s, arrival: 1s, count: 2,
     every: 500ms, demand: 0.5, priority: 3}
policy: {name: fifo}
"""
SERVING = """\
cluster: {gpus: 2}
models: {m: {profile: {alpha: 1ms, beta: 5ms}, slo: 50ms}}
workload: {arrivals: poisson, rate: 100/s, duration: 1s}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "jobs.yaml"
    path.write_text(TEXT)
    return path


def scenario(file: Path, *overrides: str) -> JobScenario:
    loaded = load(file, overrides)
    assert isinstance(loaded, JobScenario)
    return loaded


def test_jobs_are_numbered_in_the_order_of_arrival(file: Path) -> None:
    arrivals = job_arrivals.arrivals(scenario(file, "jobs[0].arrival=1200ms"))
    assert [(at / SECOND, job.id, job.name) for at, job in arrivals] == [
        (1.0, 0, "tiny-0"), (1.2, 1, "big"), (1.5, 2, "tiny-1")]  # fmt: skip
    tiny = arrivals[0][1]
    assert (tiny.persistent, tiny.ephemeral, tiny.demand, tiny.priority) == (10**8, 10**9, 0.5, 3)
    assert (tiny.iteration, tiny.iterations) == (50 * MILLISECOND, 20)


def test_a_workload_of_salus_brings_its_numbers(file: Path) -> None:
    jobs = "jobs=[{name: one, workload: 'salus:resnet50_50', iterations: 7}]"
    [(_, job)] = job_arrivals.arrivals(scenario(file, jobs))
    known = salus.lookup("resnet50_50")
    assert (job.name, job.iterations, job.iteration) == ("one", 7, known.iteration)
    assert (job.persistent, job.ephemeral, job.demand) == (known.persistent, known.ephemeral, known.demand)


def test_a_mix_is_drawn_from_the_seed(file: Path) -> None:
    overrides = ("jobs={salus: 30, interval: 10s}", "gpu.turn=5s")
    drawn = scenario(file, *overrides)
    assert drawn.jobs == Mix(30, 10 * SECOND)  # type: ignore[arg-type]
    jobs = job_arrivals.arrivals(drawn)
    assert len(jobs) == 30
    assert jobs == job_arrivals.arrivals(scenario(file, *overrides))
    assert jobs != job_arrivals.arrivals(scenario(file, *overrides, "seed=2"))
    assert all(job.iteration >= 4 * SECOND for _, job in jobs)


def test_what_is_left_out_has_a_default() -> None:
    parsed = parse({"jobs": {"salus": 3}})
    assert (parsed.policy.name, parsed.seed, parsed.gpu.memory) == ("fair", 0, salus.GPU_MEMORY)


def test_it_is_written_as_it_was_run(file: Path, tmp_path: Path) -> None:
    changed = scenario(file, "gpu.switch=5ms").with_policy("pack")
    (tmp_path / "again.yaml").write_text(changed.to_yaml())
    again = scenario(tmp_path / "again.yaml")
    assert (again.gpu, again.jobs, again.policy) == (changed.gpu, changed.jobs, Choice("pack"))


BAD = [
    ("gpu.memory=16", "gpu.memory", "16", "a size with its unit"),
    ("gpu.memory=0", "gpu.memory", "0", "more than nothing"),
    ("gpu.memroy=16GB", "gpu.memroy", "'16GB'", "did you mean 'memory'?"),
    ("gpu.overhead=-1", "gpu.overhead", "-1", "a number >= 0"),
    ("gpu=3", "gpu", "3", "a mapping with memory"),
    ("jobs=", "jobs", "", "a list of jobs, or a mix"),
    ("jobs=[]", "jobs", "[]", "a list of jobs, or a mix such as {salus: 100}"),
    ("jobs={salus: 0}", "jobs.salus", "0", "a whole number >= 1"),
    ("jobs={salsu: 9}", "jobs.salsu", "9", "did you mean 'salus'?"),
    ("jobs={salus: 9, interval: 0s}", "jobs.interval", "'0s'", "above 0"),
    ("jobs[0].iterations=0", "jobs[0].iterations", "0", "a whole number >= 1"),
    ("jobs[0].length=5s", "jobs[0].iterations", "100", "either iterations or a length"),
    ("jobs[1].length=0s", "jobs[1].length", "'0s'", "a duration above 0"),
    ("jobs[0].iteration=0ms", "jobs[0].iteration", "'0s'", "a duration above 0"),
    ("jobs[0].persistent=", "jobs[0].persistent", "", "a value, or a workload such as salus:resnet50_50"),
    ("jobs[0].workload=resnet50", "jobs[0].workload", "'resnet50'", "salus:NAME"),
    ("jobs[0].workload=salus:resnet50_51", "jobs[0].workload", "'salus:resnet50_51'", "did you mean"),
    ("jobs[0].workload=salus:resnet50_50", "jobs[0].persistent", "", "nothing here: salus:resnet50_50"),
    ("jobs[0].demand=1.5", "jobs[0].demand", "1.5", "a number <= 1"),
    ("jobs[1].name=big", "jobs[1].name", "'big'", "a name that no other job has"),
    ("jobs[0].name=tiny-1", "jobs[1].name", "'tiny-1'", "a name that no other job has"),
    ("jobs[0].name=''", "jobs[0].name", "''", "a name"),
    ("jobs[0].every=5s", "jobs[0].every", "", "a count of several jobs with it"),
    ("gpu=false", "gpu", "False", "a mapping with memory"),
    ("gpu=[]", "gpu", "[]", "a mapping with memory"),
    ("policy.name=best", "policy.name", "'best'", "a policy for iterations: one of fair"),
    ("jobs[1].count=0", "jobs[1].count", "0", "a whole number >= 1"),
    ("policy=[srtf]", "policy", "['srtf']", "a name, or a mapping such as {name: fair}"),
    ("policy.name=strf", "policy.name", "'strf'", "did you mean 'srtf'?"),
    ("policy.quantum=3", "policy.quantum", "3", "no fields here"),
    ("cluster={gpus: 3}", "cluster", "", "one of gpu, jobs, policy, seed"),
    ("seed=-1", "seed", "-1", "a whole number >= 0"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "field", "value", "right"), BAD)
def test_bad_input_is_named(file: Path, override: str, field: str, value: str, right: str) -> None:
    with pytest.raises(InputError) as error:
        scenario(file, override)
    text = str(error.value)
    assert text.startswith(f"{file}: {field}: expected ")
    assert right in text
    assert not value or f"(got {value}" in text


def test_a_file_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(InputError, match="a mapping with gpu and jobs"):
        parse([1, 2])


TOO_MUCH = [
    (["jobs[0].iterations=1000000000000000000000000000000"], "jobs[0].iterations", "a longer gpu.turn (such"),
    (["jobs[1].iteration=1ns", "jobs[1].length=100h"], "jobs[1].length", "at most 20,000,000 turns"),
    (["jobs={salus: 100000}"], "jobs.salus", "at most 20,000,000 turns"),
    (["jobs[1].count=2000", "jobs[1].every=2400h"], "jobs[1].every", "arrivals within 18 years"),
    (["jobs={salus: 1000, interval: 2400h}", "gpu.turn=1min"], "jobs.interval", "arrivals within 18 years"),
    (["jobs[0].iteration=2400h"], "jobs[0].iterations", "less than 18 years together"),
    (["gpu.pause=2400h"], "jobs[0].iterations", "pauses and switches included"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "field", "expected"), TOO_MUCH)
def test_what_nobody_can_wait_for_is_said_at_once(
    file: Path, overrides: list[str], field: str, expected: str
) -> None:
    with pytest.raises(InputError) as error:
        job_arrivals.arrivals(scenario(file, *overrides))
    assert str(error.value).startswith(f"{field}: expected ")
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("iteration", "iterations", "turn", "becomes"),
    [
        (SECOND, 15, 10 * SECOND, (7.5, 2)),
        (SECOND, 3, 10 * SECOND, (3.0, 1)),
        (SECOND, 15, SECOND, (1.0, 15)),
        (20 * SECOND, 15, 10 * SECOND, (20.0, 15)),
    ],
)
def test_longer_turns_are_as_much_work(
    iteration: int, iterations: int, turn: int, becomes: tuple[float, int]
) -> None:
    length, turns = job_arrivals.divided(iteration, iterations, turn)
    assert (length / SECOND, turns) == becomes
    assert length * turns == iteration * iterations


def run(scenario: JobScenario) -> DeviceRecord:
    record: DeviceRecord = simulate(LEVEL, scenario).record
    return record


def test_the_worlds_costs_are_those_of_the_file(file: Path) -> None:
    by_policy = {name: run(scenario(file).with_policy(name)) for name in ("fifo", "fair")}
    fifo, fair = (report.summarize(record) for record in by_policy.values())
    assert fifo.makespan_s == pytest.approx(12.0)
    assert fair.makespan_s == pytest.approx(12.0 + 0.002 * fair.switches)
    assert fair.switches > 10


def test_overhead_and_pause_lengthen_iterations(file: Path) -> None:
    record = run(scenario(file, "gpu.overhead=0.1", "gpu.pause=10ms"))
    assert report.summarize(record).makespan_s == pytest.approx(1.1 * 12.0 + 0.01 * (99 + 19 + 19))


def test_spans_tell_who_had_the_gpu_when(file: Path) -> None:
    fifo = run(scenario(file)).spans
    assert [(span.job, span.start / SECOND, span.end / SECOND) for span in fifo] == [
        (0, 0.0, 10.0), (1, 10.0, 11.0), (2, 11.0, 12.0)]  # fmt: skip
    pack = run(scenario(file).with_policy("pack")).spans
    assert len({span.lane for span in pack}) == 3
    srtf = run(scenario(file).with_policy("srtf"))
    assert [span.job for span in srtf.spans] == [0, 1, 2, 0]
    assert all(a.end <= b.start for a, b in zip(srtf.spans, srtf.spans[1:], strict=False))
    assert sum(span.end - span.start for span in srtf.spans) == sum(row.service for row in srtf.rows)


def test_progress_is_measured_by_the_jobs_one_after_another(file: Path) -> None:
    seen: list[int] = []
    simulate(LEVEL, scenario(file), bar=lambda title, length: nullcontext(seen.append))
    assert max(seen) == longest(job_arrivals.arrivals(scenario(file))) == 12 * SECOND


def test_lanes_at_once_are_those_that_overlap() -> None:
    spans = [Span(0, 0, 0, 10), Span(1, 1, 5, 10), Span(2, 2, 10, 20), Span(3, 3, 12, 13)]
    assert report.summarize(DeviceRecord("pack", 1, [], spans)).lanes == 2


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # leave pytest's own handlers alone

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ending:
            main(list(arguments))
        return int(ending.value.code or 0), *capsys.readouterr()

    return run


def test_simulate_takes_a_policy_and_leaves_a_folder(call: Any, file: Path) -> None:
    code, out, _ = call("simulate", "jobs.yaml", "--policy", "srtf", "--json", "--out", "run")
    content = json.loads(out)
    assert (code, content["policy"], content["jobs"], content["outcomes"]) == (0, "srtf", 3, {"finished": 3})
    names = {path.name for path in Path("run").iterdir()}
    assert names == {
        "README.txt",
        "summary.json",
        "scenario.yaml",
        "tables.txt",
        "plots",
        "jobs.csv",
        "timeline.json",
    }
    assert "jobs.csv" in Path("run/README.txt").read_text()
    assert Path("run/plots/turns.png").read_bytes().startswith(b"\x89PNG")
    with Path("run/jobs.csv").open() as rows:
        listed = list(csv.DictReader(rows))
    assert [row["name"] for row in listed] == ["big", "tiny-0", "tiny-1"]
    assert [row["outcome"] for row in listed] == ["finished"] * 3
    assert float(listed[1]["ended_s"]) - float(listed[1]["arrived_s"]) < 1.2


def test_a_folders_scenario_runs_again(call: Any, file: Path) -> None:
    first = json.loads(call("simulate", "jobs.yaml", "-p", "pack", "--json", "--out", "run")[1])
    again = json.loads(call("simulate", "run/scenario.yaml", "--json", "--no-folder")[1])
    assert {**first, "folder": None} == again


def test_compare_takes_every_policy_unless_told(call: Any, file: Path) -> None:
    content = json.loads(call("compare", "jobs.yaml", "--json", "--no-folder")[1])
    assert list(content["policies"]) == ["fair", "fifo", "pack", "priority", "srtf"]


def test_compare_sets_policies_side_by_side(call: Any, file: Path) -> None:
    code, out, _ = call("compare", "jobs.yaml", "-p", "fifo", "-p", "srtf", "--out", "both", "--no-outcomes")
    assert code == 0
    assert "mean queueing" in out
    assert [line.split()[0] for line in out.splitlines() if " 3/3 " in line] == ["fifo", "srtf"]
    assert {path.name for path in Path("both/srtf").iterdir()} == {
        "summary.json",
        "scenario.yaml",
        "timeline.json",
    }
    assert Path("both/plots/turns.png").is_file()


def test_jobs_that_do_not_fit_are_told(call: Any, file: Path) -> None:
    _, out, _ = call("simulate", "jobs.yaml", "-o", "gpu.memory=5GB", "--no-folder")
    assert "refused: it needs 7000000000 bytes, and the GPU has 5000000000" in out
    assert "2/3" in out


def test_not_one_job_may_fit(call: Any, file: Path) -> None:
    code, out, _ = call("simulate", "jobs.yaml", "-o", "gpu.memory=1MB", "--out", "none")
    assert code == 0
    assert "0/3" in out


def test_what_people_call_their_jobs_is_shown_as_it_is(call: Any, file: Path) -> None:
    for name in ("[/b]", "[red]x", "$a", r"$\frac$"):
        code, out, _ = call(
            "simulate", "jobs.yaml", "-o", f"jobs[0].name='{name}'", "--out", "odd", "--overwrite"
        )
        assert code == 0
        assert name in out
        assert name in Path("odd/tables.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["simulate", "jobs.yaml", "-p", "strf"], "did you mean 'srtf'"),
        (["compare", "jobs.yaml", "-p", "srtf", "-p", "strf"], "-p strf"),
        (["simulate", "jobs.yaml", "--engine", "native"], "no native twin"),
        (["simulate", "jobs.yaml", "--seed", "-3"], "seed"),
        (["simulate", "nowhere.yaml"], "nowhere.yaml"),
        (["simulate", "jobs.yaml", "-o", "jobs[0].iterations=100000000"], "jobs.yaml: jobs[0].iterations:"),
        (["goodput", "jobs.yaml"], "FILE: expected requests to models: jobs on one GPU have no goodput"),
    ],
)
def test_what_is_wrong_is_one_line(call: Any, file: Path, arguments: list[str], expected: str) -> None:
    code, out, err = call(*arguments, "--no-folder")
    assert (code, out) == (BAD_INPUT, "")
    assert expected in err
    assert err.count("\n") == 1


def test_simulate_takes_a_policy_for_serving_too(call: Any, tmp_path: Path, file: Path) -> None:
    (tmp_path / "serving.yaml").write_text(SERVING)
    _, out, _ = call("simulate", "serving.yaml", "-p", "timeout:timeout=10%", "--json", "--no-folder")
    assert json.loads(out)["policy"] == "timeout"
    code, _, err = call("simulate", "serving.yaml", "-p", "timout", "--no-folder")
    assert code == BAD_INPUT
    assert "did you mean 'timeout'" in err
