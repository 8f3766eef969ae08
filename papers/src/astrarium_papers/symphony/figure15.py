"""Figure 15: a changing workload on 512 GPUs: GPUs used, advice to the autoscaler, bad rate.

The paper's rates come from 150 hours of videos that are not public, and its 24 models are not named. Ours
are 24 of the 35 models of Table 3 (every kind of batching, SLOs from 20 to 378 ms) with rates made up of
a slow swing that all share and one of each model's own, so that the load passes the cluster's capacity
once and stays below it for the rest.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from astrarium.core.quantities import SECOND
from astrarium.core.random_streams import stream
from astrarium.serving import zoo
from astrarium.serving.autoscale import AdviceOverTime, advice_over_time
from astrarium.serving.contract import ModelSpec
from astrarium.serving.ledger import Outcome
from astrarium.serving.level import run as simulate
from astrarium.serving.record import ServingRecord
from astrarium.serving.scenario import Scenario, build, parse
from astrarium.serving.scenario.rates import spans
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._settings import SYMPHONY

TITLE = "A changing workload on 512 GPUs (Figure 15)"
MODELS = 24
STEP_S = 2  # rates change this often
WINDOW_S = 2  # what the autoscaler looks back over
UNDER = 0.85  # a load, as a share of the GPUs, that is surely below capacity
OVER = 1.05  # one that is surely above


def run(effort: Effort) -> Findings:
    gpus = effort.pick(64, 512)
    seconds = effort.pick(40, 120)
    case = _scenario(gpus, seconds)
    effort.say(f"{case.total_rate:.0f} requests/s for {seconds} s on {gpus} GPUs")
    record = simulate(case)
    advice = advice_over_time(record, WINDOW_S * SECOND, SECOND)
    data = _data(case, record, advice)
    return Findings(_rows(data), _claims(data), data)


def _scenario(gpus: int, seconds: int) -> Scenario:
    names = _spread(zoo.models("1080Ti"), MODELS)
    models = {name: {"profile": f"zoo:1080Ti/{name}"} for name in names}
    raw: dict[str, Any] = {
        "cluster": {"gpus": gpus},
        "models": models,
        "policy": SYMPHONY,
        "workload": {"arrivals": "poisson", "rate": "1000/s", "duration": f"{seconds}s"},
        "seed": 1,
    }
    full = {model.name: _full_rate(model, gpus / MODELS) for model in build.setup(parse(raw)).models}
    levels = _levels(len(names), seconds)
    steps = [
        {name: f"{rate * level}/s" for (name, rate), level in zip(full.items(), row, strict=True)}
        for row in levels
    ]
    raw["workload"]["rate"] = steps[0]
    raw["workload"]["changes"] = [
        {"at": f"{STEP_S * place}s", "rate": rates} for place, rates in enumerate(steps) if place
    ]
    return parse(raw)


def _spread(names: list[str], count: int) -> list[str]:
    """Return *count* of these items, evenly from the first to the last."""
    return [names[round(place * (len(names) - 1) / (count - 1))] for place in range(count)]


def _full_rate(model: ModelSpec, gpus: float) -> float:
    """Return the requests per second that keep *gpus* busy with staggered batches, (1 + 1/n) l(b) <= SLO."""
    size = max(1, model.largest_batch_within(int(model.slo / (1 + 1 / gpus))))
    return gpus * size / model.latency[size] * SECOND


def _levels(models: int, seconds: int) -> list[list[float]]:
    """Return load over time as a share of the cluster: a shared swing times each model's own."""
    draw = stream(1, "figure15")
    phases = draw.random(models)
    periods = 0.3 + 0.5 * draw.random(models)
    rows = []
    for place in range(math.ceil(seconds / STEP_S)):
        now = STEP_S * place / seconds
        shared = 0.72 - 0.42 * math.cos(2 * math.pi * now) + 0.1 * math.sin(6 * math.pi * now)
        own = 1 + 0.5 * np.sin(2 * np.pi * (now / periods + phases))
        rows.append((shared * own / np.mean(own)).tolist())
    return rows


def _data(case: Scenario, record: ServingRecord, advice: AdviceOverTime) -> dict[str, Any]:
    seconds = case.duration // SECOND
    offered, good = _per_second(record, seconds)
    return {
        "models": list(case.models),
        "gpus": len(record.setup.gpus),
        "second": (advice.time // SECOND).tolist(),
        "offered": offered.tolist(),
        "good": good.tolist(),
        "load": _load(case, record, seconds),
        "used": advice.used.tolist(),
        "busy": (len(record.setup.gpus) * (1 - advice.idle_fraction)).tolist(),
        "advice": (advice.allocate - advice.release).tolist(),
        "bad_rate": advice.bad_rate.tolist(),
    }


def _per_second(record: ServingRecord, seconds: int) -> tuple[Any, Any]:
    """Return requests, and those answered in time, by model and second of arrival."""
    requests = record.requests
    models = len(record.setup.models)
    place = requests.model * seconds + np.minimum(requests.arrival // SECOND, seconds - 1)
    offered = np.bincount(place, minlength=models * seconds)
    good = np.bincount(place[requests.outcome == Outcome.IN_TIME], minlength=models * seconds)
    return offered.reshape(models, seconds), good.reshape(models, seconds)


def _load(case: Scenario, record: ServingRecord, seconds: int) -> list[float]:
    """Return, for each second, the share of the cluster that staggered batches of the offered rates would
    need."""
    models = record.setup.models
    gpus = len(record.setup.gpus)
    full = [_full_rate(model, gpus / len(models)) for model in models]
    loads = [0.0] * seconds
    for part in spans(case.workload, list(case.models)):
        load = sum(rate / most for rate, most in zip(part.rates, full, strict=True)) / len(models)
        for second in range(part.start // SECOND, part.end // SECOND):
            loads[second] = load
    return loads


def _rows(data: dict[str, Any]) -> list[Row]:
    """The paper prints no number of this figure's results."""
    under = _steady(data, -math.inf, UNDER)
    over = _steady(data, OVER, math.inf)
    return [
        Row("GPUs used, least", min(data["used"]), note=f"of {data['gpus']}, at {_at_least(data):.0%} load"),
        Row("GPUs used, most", max(data["used"])),
        Row("bad rate, mean while underloaded", 100 * _mean(data["bad_rate"], under), unit="%"),
        Row("bad rate, worst second while underloaded", 100 * _worst(data["bad_rate"], under), unit="%"),
        Row("bad rate, mean while overloaded", 100 * _mean(data["bad_rate"], over), unit="%"),
        Row(
            "bad rate that the excess load explains, mean while overloaded",
            100 * _mean([1 - 1 / load for load in data["load"]], over),
            unit="%",
            note="1 - 1/load, with load 1 where staggered batches would keep every GPU busy; that counts GPU "
            "time, the bad rate counts requests, and the busiest models, which batch well, lose least",
        ),
    ]


def _claims(data: dict[str, Any]) -> list[Claim]:
    under = _steady(data, -math.inf, UNDER)
    over = _steady(data, OVER, math.inf)
    needed = [data["gpus"] * load for load in _over_window(data["load"])]
    follows = _correlation([needed[place] for place in under], [data["used"][place] for place in under])
    extra = _mean(data["used"], under) - _mean(needed, under)
    bad = _worst(data["bad_rate"], under)
    give_back = sum(data["advice"][second] < 0 for second in under)
    ask = sum(data["advice"][second] > 0 for second in over)
    return [
        Claim(
            "usage is consolidated: the number of GPUs used follows the load",
            follows > 0.9,
            f"correlation {follows:.2f} while underloaded; on average {extra:.0f} GPUs more are touched than "
            "staggered batches would keep busy",
        ),
        Claim(
            "the bad rate is low while the cluster is not overloaded",
            bad < 0.01,
            f"at most {100 * bad:.2f} % in any {WINDOW_S} s",
        ),
        Claim(
            "the advice is to remove GPUs while underloaded",
            give_back == len(under) > 0,
            f"in {give_back} of {len(under)} seconds",
        ),
        Claim(
            "the advice is to add GPUs while overloaded",
            ask == len(over) > 0,
            f"in {ask} of {len(over)} seconds",
        ),
    ]


def _steady(data: dict[str, Any], low: float, high: float) -> list[int]:
    """Return places whose whole window had a load between *low* and *high*."""
    loads = data["load"]
    return [
        place
        for place in range(WINDOW_S, len(loads))
        if all(low < load < high for load in loads[place - WINDOW_S : place + 1])
    ]


def _over_window(loads: list[float]) -> list[float]:
    """Return the mean of each second and those before it that the autoscaler's window holds."""
    parts = [loads[max(0, place + 1 - WINDOW_S) : place + 1] for place in range(len(loads))]
    return [sum(part) / len(part) for part in parts]


def _at_least(data: dict[str, Any]) -> float:
    return float(data["load"][data["used"].index(min(data["used"]))])


def _mean(values: list[float], places: list[int]) -> float:
    return sum(values[place] for place in places) / max(1, len(places))


def _worst(values: list[float], places: list[int]) -> float:
    return max((values[place] for place in places), default=0.0)


def _correlation(first: list[float], second: list[float]) -> float:
    return float(np.corrcoef(first, second)[0, 1])


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_column, save

    figure, (rates, gpus, advice, bad) = axes_column(4)
    _draw_rates(rates, data)
    gpus.plot(data["second"], data["used"], label="used at all")
    gpus.plot(data["second"], data["busy"], label="busy on average")
    gpus.axhline(data["gpus"], color="black", linewidth=1, linestyle="--")
    gpus.set(ylabel="GPUs", ylim=(0, data["gpus"] * 1.1))
    gpus.legend(loc="lower center")
    up = [max(0.0, value) for value in data["advice"]]
    down = [min(0.0, value) for value in data["advice"]]
    advice.fill_between(data["second"], up, step="pre", color="tab:red", label="add")
    advice.fill_between(data["second"], down, step="pre", color="tab:green", label="remove")
    advice.set_ylabel("advice (GPUs)")
    advice.legend(loc="lower center")
    bad.plot(data["second"], [100 * rate for rate in data["bad_rate"]], color="tab:red")
    bad.set(ylabel="bad rate (%)", xlabel="time (s)", ylim=(0, None))
    save(figure, path)


def _draw_rates(axis: Any, data: dict[str, Any]) -> None:
    """Draw good requests of every model in color, the rest of every model in gray on top."""
    from matplotlib import colormaps

    good = np.array(data["good"])
    offered = np.array(data["offered"])
    count = len(good)
    colors = [colormaps["turbo"](place / count) for place in range(count)]
    grays = [str(0.45 + 0.4 * place / count) for place in range(count)]
    layers = np.concatenate([good, offered - good]) / 1000
    axis.stackplot(data["second"], layers, colors=colors + grays, step="pre", linewidth=0)
    axis.set(ylabel="thousand requests/s", title=f"{count} models on {data['gpus']} GPUs; gray: unsatisfied")
