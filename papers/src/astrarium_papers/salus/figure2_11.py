"""Figure 2.11: 42 inference models, three of each of 14 architectures, on as few GPUs as possible.

Requests come seldom, and a model has one at a time: the next comes 10 s after an answer on average. (The
authors' public repository, benchmarks/exps/card270.py, has an interval of 10 without a unit.) Under Salus all
models stay on one GPU and take turns in a single lane. MPS gives each process its own memory: what the model
needs at its peak, and a CUDA context.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from astrarium.core.quantities import SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.core.trace import Step
from astrarium.device import salus
from astrarium.device.contract import IterationFinished, IterationWanted, Job
from astrarium.device.ledger import JobRow
from astrarium.device.level import Arrival
from astrarium.device.world import DeviceWorld
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.salus import _workloads
from astrarium_papers.salus._settings import MEMORY, milliseconds, play

TITLE = "42 inference models on one GPU (Figure 2.11)"
MODELS = tuple(name for name in _workloads.ARCHITECTURES if name != "speech")
INSTANCES = 3
INTERVALS_S = (10.0, 3.0, 1.0, 0.4)
PAPER_GPUS = {"one model a GPU": 42, "MPS": 6, "Salus": 1}
PAPER_ADDED_MS = 5.0  # "less than"
CONTEXT = 300 * _workloads.MB  # of a process, on such a GPU
MPS_CLIENTS = 16  # at most, on such a GPU


def run(effort: Effort) -> Findings:
    requests = effort.pick(30, 300)
    points = effort.map(lambda interval: _point(interval, requests, effort), INTERVALS_S)
    models = _instances()
    data = {
        "points": points,
        "gpus": {
            "one model a GPU": len(models),
            "MPS": gpus_for(models, _as_processes),
            "Salus": gpus_for(models, _in_one_lane),
        },
        "persistent_gb": round(sum(job.persistent for job in _jobs(1)) / 1e9, 2),
    }
    return Findings(_rows(data), _claims(data), data)


def _instances() -> list[salus.SalusWorkload]:
    return [_workloads.inference(model) for model in MODELS for _ in range(INSTANCES)]


def _jobs(requests: int) -> list[Job]:
    return [
        Job(number, instance.name, instance.persistent, instance.ephemeral, instance.iteration, requests)
        for number, instance in enumerate(_instances())
    ]


def _point(interval: float, requests: int, effort: Effort) -> dict[str, Any]:
    effort.say(f"a request every {interval:g} s")
    random = stream(1, "salus", "inference", str(interval))
    jobs = _jobs(requests)
    seen = _Seen()
    arrivals: list[Arrival] = sorted(
        ((round(random.uniform(0, interval) * SECOND), job) for job in jobs), key=lambda arrival: arrival[0]
    )
    world = DeviceWorld(pause=lambda job: round(random.exponential(interval * SECOND)))
    rows = play("fair", arrivals, MEMORY, world, record=seen)
    added = {job.id: mean(seen.latencies[job.id]) - job.iteration for job in jobs}
    return {
        "interval_s": interval,
        "at_once": _all_at_once(rows),
        "busy": round(sum(job.iteration for job in jobs) / (interval * SECOND), 3),
        "alone_ms": _by_model(jobs, lambda job: job.iteration),
        "added_ms": _by_model(jobs, lambda job: added[job.id]),
        "mean_added_ms": milliseconds(mean(added.values())),
    }


class _Seen:
    """The latency of every request: from when it is there to its answer."""

    def __init__(self) -> None:
        self.latencies: dict[int, list[Time]] = {}
        self._since: dict[int, Time] = {}

    def __call__(self, step: Step) -> None:
        for event in step.events:
            if isinstance(event, IterationFinished):
                self.latencies.setdefault(event.job, []).append(step.now - self._since[event.job])
        for event in step.events:
            if isinstance(event, IterationWanted):
                self._since[event.job] = step.now


def _all_at_once(rows: list[JobRow]) -> bool:
    """Return whether no job waited for a place on the GPU."""
    return all(row.admitted == row.arrived for row in rows)


def _by_model(jobs: list[Job], value: Callable[[Job], float]) -> dict[str, float]:
    return {
        model: milliseconds(mean(value(job) for job in jobs if job.name == f"{model}_eval"))
        for model in MODELS
    }


def gpus_for(models: list[salus.SalusWorkload], fit: Callable[[list[salus.SalusWorkload]], bool]) -> int:
    """Place the largest first, each on the first GPU where it fits beside those that are there."""
    gpus: list[list[salus.SalusWorkload]] = []
    for model in sorted(models, key=lambda candidate: candidate.peak, reverse=True):
        roomy = [gpu for gpu in gpus if fit([*gpu, model])]
        if roomy:
            roomy[0].append(model)
        else:
            gpus.append([model])
    return len(gpus)


def _as_processes(models: list[salus.SalusWorkload]) -> bool:
    return len(models) <= MPS_CLIENTS and sum(model.peak + CONTEXT for model in models) <= MEMORY


def _in_one_lane(models: list[salus.SalusWorkload]) -> bool:
    """Return whether the safety condition holds."""
    return sum(model.persistent for model in models) + max(model.ephemeral for model in models) <= MEMORY


def _rows(data: dict[str, Any]) -> list[Row]:
    why = {
        "one model a GPU": "by definition",
        "Salus": "a model is taken to need its parameters, and 0.1 GB in a request: our assumptions, not "
        "printed numbers",
        "MPS": "a process is taken to need its parameters, 0.1 GB and a context of 0.3 GB; TensorFlow's also "
        "keep workspaces, which are not printed, and went 7 to a GPU",
    }
    rows = [
        Row(f"GPUs needed: {how}", gpus, PAPER_GPUS[how], note=why[how], given=how == "one model a GPU")
        for how, gpus in data["gpus"].items()
    ]
    for point in data["points"]:
        first = point is data["points"][0]
        note = f"the GPU is busy {point['busy']:.0%} of the time"
        paper = (0.0, PAPER_ADDED_MS) if first else None
        what = f"mean latency added by sharing, a request every {point['interval_s']:g} s"
        rows.append(Row(what, point["mean_added_ms"], paper, "ms", note=note))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    added = data["points"][0]["mean_added_ms"]
    return [
        Claim(
            "all 42 models stay on one GPU",
            data["gpus"]["Salus"] == 1 and all(point["at_once"] for point in data["points"]),
            f"none waits for a place: {data['persistent_gb']} GB stay, and one lane, by our assumptions on "
            "memory",
        ),
        Claim(
            "the latency added is below 5 ms on average",
            added < PAPER_ADDED_MS,
            f"{added:.2f} ms of waiting for others; the system's own cost is measured on a GPU",
        ),
        Claim(
            "separate processes need more GPUs",
            data["gpus"]["MPS"] > data["gpus"]["Salus"],
            f"{data['gpus']['MPS']}, each process with its own context and memory, by our assumptions",
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (latency, gpus) = axes_row(2, width=5.5)
    point = data["points"][0]
    names = list(point["alone_ms"])
    latency.bar(names, list(point["alone_ms"].values()), label="alone")
    latency.bar(
        names, list(point["added_ms"].values()), bottom=list(point["alone_ms"].values()), label="added"
    )
    latency.tick_params(axis="x", rotation=70, labelsize=7)
    latency.set(ylabel="latency (ms)", title=f"a request every {point['interval_s']:g} s for each model")
    latency.legend(fontsize=8)
    places = range(len(data["gpus"]))
    gpus.bar([place - 0.2 for place in places], [PAPER_GPUS[how] for how in data["gpus"]], 0.4, label="paper")
    gpus.bar([place + 0.2 for place in places], list(data["gpus"].values()), 0.4, label="ours")
    gpus.set_xticks(list(places), list(data["gpus"]))
    gpus.set(ylabel="GPUs for 42 models")
    gpus.legend(fontsize=8)
    save(figure, path)
