"""Public traces of clusters: how they are read, and what the papers about them say."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from astrarium.cluster.machines import Spread
from astrarium.cluster.workloads.apps import HOUR, single_apps
from astrarium.cluster.workloads.themis import models, sweeps
from astrarium.cluster.workloads.traces import TraceJob
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from tests.support.cluster.public_traces import read_philly, read_shockwave, read_tiresias, recorded
from tests.support.cluster.workload_facts import model_of, task


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def written(text: str) -> Path:
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return path

    return written


PHILLY = "vc,job,arrival_s,num_gpus,duration_s\n"
SHOCKWAVE = "job,arrival_s,num_gpus,model,batch_size,mode,total_steps,num_epochs,exclusive_runtime_s\n"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration\n"


def test_each_format_is_read(write: Callable[[str], Path]) -> None:
    assert read_philly(write(PHILLY + "a,0,0,2,1500\n")) == [TraceJob("a/0", 0, 2, 1500 * SECOND, "a")]
    assert read_shockwave(write(SHOCKWAVE + "3,7,4,LM,10,gns,900,5,12.5\n")) == [
        TraceJob("job 3", 7 * SECOND, 4, 12_500_000_000, model="LM", iterations=5)
    ]
    assert read_tiresias(write(TIRESIAS + "1,8,30,133,vgg11,147\n")) == [
        TraceJob("job 1", 30 * SECOND, 8, 147 * SECOND, model="vgg11", iterations=133)
    ]


def test_columns_may_stand_in_any_order_among_others(write: Callable[[str], Path]) -> None:
    rows = read_philly(
        write("status,duration_s,num_gpus,arrival_s,job,vc\nPass,9,1,2,0,a\n\nPass,9,1,3,1,a\n")
    )
    assert rows == [
        TraceJob(f"a/{job}", arrival * SECOND, 1, 9 * SECOND, "a") for job, arrival in ((0, 2), (1, 3))
    ]


def test_virtual_clusters_have_clocks_of_their_own(write: Callable[[str], Path]) -> None:
    rows = read_philly(write(PHILLY + "a,0,50,1,9\nb,0,0,1,9\na,1,60,1,9\n"))
    assert [app.name for app in single_apps(rows)] == ["b/0", "a/0", "a/1"]


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (read_philly, "", "line 1: expected a header with vc,job"),
        (read_philly, "vc,job,arrival_s,num_gpus\n", "missing: duration_s"),
        (read_philly, PHILLY, "expected at least one row"),
        (read_philly, PHILLY + "a,0,0,1\n", "line 2: expected 5 cells"),
        (read_philly, PHILLY + ",0,0,1,9\n", "line 2, vc: expected a name"),
        (read_philly, PHILLY + "a,0,0,0,9\n", "line 2, num_gpus: expected a whole number of at least 1"),
        (read_philly, PHILLY + "a,0,0,1.5,9\n", "num_gpus: expected a whole number"),
        (read_philly, PHILLY + "a,0,-1,1,9\n", "line 2, arrival_s: expected seconds, at least 0"),
        (read_philly, PHILLY + "a,0,nan,1,9\n", "arrival_s: expected seconds"),
        (read_philly, PHILLY + "a,0,0,1,0\n", "duration_s: expected seconds above 0"),
        (read_philly, PHILLY + "a,0,0,1,1e99\n", "at most 3650 days"),
        (read_philly, PHILLY + "a,0,5,1,9\nb,0,9,1,9\na,1,4,1,9\n", "line 4: expected times in rising order"),
        (read_shockwave, SHOCKWAVE + "0,0,1,LM,10,gnss,9,5,12\n", "did you mean 'gns'"),
        (read_shockwave, SHOCKWAVE + "0,9,1,LM,1,gns,9,5,1\n1,8,1,LM,1,gns,9,5,1\n", "rising order"),
        (read_tiresias, TIRESIAS + "0,1,x,606,vgg19,164\n", "line 2, submit_time: expected seconds"),
    ],
)
def test_errors_name_line_and_column(
    read: Callable[[Path], list[Any]], text: str, expected: str, write: Callable[[str], Path]
) -> None:
    path = write(text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_philly(tmp_path / "binary.csv")
    with pytest.raises(InputError, match="No such file"):
        read_philly(tmp_path / "absent.csv")


def test_a_recorded_job_is_an_app_whose_gang_is_whole() -> None:
    job = TraceJob("job 3", 7 * SECOND, 4, 10 * SECOND, model="LM", iterations=5)
    (app,) = single_apps([job])
    assert (app.arrival, app.work, model_of(app)) == (7 * SECOND, 40 * SECOND, "LM")
    (drawn,) = app.jobs
    assert (drawn.least, drawn.most, task(drawn), drawn.iterations) == (4, 4, 10 * SECOND, 5)


def test_philly_is_as_described() -> None:
    jobs = read_philly(recorded("philly_vc_jobs.csv"))
    durations = [job.duration // SECOND for job in jobs]
    assert len(jobs) == 15_264
    assert len({job.team for job in jobs}) == 15
    sizes = Counter(job.gpus for job in jobs)
    assert [sizes[gpus] for gpus in (1, 2, 4, 8)] == [10_480, 463, 2_044, 1_916]
    assert sum(sizes.values()) - sum(sizes[gpus] for gpus in (1, 2, 4, 8)) == 361
    assert max(sizes) == 64
    assert median(durations) == 16_727
    assert sum(durations) / len(durations) == pytest.approx(133_241, abs=1)
    assert min(durations) == 1_200
    assert max(durations) == pytest.approx(60 * 86_400, rel=0.01)
    assert sum(job.duration * job.gpus for job in jobs) / HOUR == pytest.approx(1.74e6, rel=0.005)
    example = next(job for job in jobs if job.name == "ee9e8c/539")
    assert (example.gpus, example.duration) == (8, (74 + 193_182) * SECOND)


def test_shockwave_is_as_described() -> None:
    jobs = read_shockwave(recorded("shockwave_120jobs_32gpus.csv"))
    reference = json.loads(recorded("reference_120jobs_32gpus.json").read_text())
    hours = {run["gpu_hours"] for name, run in reference.items() if name.startswith("shockwave_120")}
    assert len(jobs) == 120
    assert [sum(job.duration * job.gpus for job in jobs) / HOUR] == pytest.approx(list(hours), abs=0.01)
    assert max(job.duration for job in jobs) == pytest.approx(17_235 * SECOND, abs=SECOND)
    assert jobs[-1].arrival == 5_011 * SECOND


def test_tiresias_is_as_described() -> None:
    jobs = read_tiresias(recorded("tiresias_60_job.csv"))
    assert len(jobs) == 60
    assert max(job.duration * job.gpus for job in jobs) == 2_440 * SECOND


@pytest.mark.parametrize("network", ["k80", "p100", "v100"])
@pytest.mark.parametrize(
    ("model", "as_named"), [("LangModel", "LM"), ("Transformer", "Transformer"), ("ResNet50", "ResNet-50")]
)
def test_slowdowns_of_gavel_are_medians_of_what_it_measured(network: str, model: str, as_named: str) -> None:
    with recorded("gavel_consolidation_slowdown.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 165
    names = ("steps_per_s_consolidated", "steps_per_s_unconsolidated")
    rates = [
        [float(row[name]) for name in names]
        for row in rows
        if (row["gpu_type"], row["model"]) == (network, as_named)
    ]
    slowdowns = [max(1.0, together / spread) for together, spread in rates]  # less than 1 is noise
    assert models.SLOWDOWNS[model, network][Spread.RACK] == pytest.approx(median(slowdowns), abs=0.001)


def test_every_model_has_a_slowdown_on_every_network() -> None:
    networks = ("k80", "p100", "v100", "fast")
    assert set(models.SLOWDOWNS) == {(model, network) for model in models.MODELS for network in networks}
    for entry in models.SLOWDOWNS.values():
        assert list(entry) == list(Spread)
        assert list(entry.values()) == sorted(entry.values())
        assert entry[Spread.SLOT] == 1
    assert models.SLOWDOWNS["VGG16", "k80"][Spread.RACK] == pytest.approx(103.6 / 80.4, abs=0.002)
    assert list(models.SLOWDOWNS["GNMT", "k80"].values()) == pytest.approx([1, 1, 1.1, 1.3])


def test_shares_and_networks_are_checked() -> None:
    with pytest.raises(InputError, match="models are network-intensive"):
        sweeps.parametric(network_share=0.5, network="fast")
    with pytest.raises(InputError, match="from 0 to 1"):
        sweeps.parametric(network_share=40)
