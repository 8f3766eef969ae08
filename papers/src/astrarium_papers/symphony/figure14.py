"""Figure 14: goodput against the network latency that the scheduler must allow for.

The paper's scheduler reckons with a high percentile of the latency: an order that must be sent so much
before the batch may start. We model it as the control delay and give it the value itself, without
variance: that bound is what the decision pays for. The profile is not printed ("similar batching
profiles"); we take Table 2's ResNet50.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from astrarium.core.profiles import Linear
from astrarium.core.quantities import MICROSECOND, MILLISECOND
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._settings import RESNET50, SYMPHONY, goodput, scenario

TITLE = "Goodput by network latency, RDMA and TCP (Figure 14)"
GPUS = 32
MODELS = 20
SLOS_MS = (20, 25, 50, 100)
RDMA_TAIL_US = 33
TCP_MEDIAN_US = 3034
TCP_TAIL_US = 12 * TCP_MEDIAN_US
RDMA_US = [0, 10, 20, RDMA_TAIL_US, 50]
TCP_US = [0, 1000, 2000, TCP_MEDIAN_US, 4500, 6000, 8000, 10_000, 12_000, 14_000, 18_000, 24_000, 30_000]
MARGINAL = 3.0  # percent
PAPER_LOSS = 70.0


def run(effort: Effort) -> Findings:
    left = effort.pick([0, RDMA_TAIL_US], RDMA_US)
    right = effort.pick([0, TCP_MEDIAN_US, 12_000, TCP_TAIL_US], [*TCP_US, TCP_TAIL_US])
    slos = effort.pick([20, 100], list(SLOS_MS))
    latencies = sorted({*left, *right})
    goodputs = {slo: [_goodput(slo, latency, effort) for latency in latencies] for slo in slos}
    data = {
        "slo_ms": slos,
        "rdma": _part(latencies, goodputs, left),
        "tcp": _part(latencies, goodputs, right),
    }
    return Findings(_rows(data), _claims(data), data)


def _goodput(slo_ms: int, latency_us: int, effort: Effort) -> float:
    """Return the goodput; 0 where not even a lone request could be answered in time."""
    model = {"profile": RESNET50["profile"], "slo": f"{slo_ms}ms", "copies": MODELS}
    network = {"control": f"{latency_us}us"}
    case = scenario({"model": model}, GPUS, SYMPHONY, effort.pick(2, 10), network=network)
    profile = case.models["model-0"].profile
    assert isinstance(profile, Linear)
    if latency_us * MICROSECOND + profile.alpha + profile.beta > slo_ms * MILLISECOND:
        return 0.0
    return goodput(case, effort, f"SLO {slo_ms} ms, latency {latency_us} us", effort.pick(1, 2)).goodput


def _part(all_us: list[int], goodputs: dict[int, list[float]], us: list[int]) -> dict[str, Any]:
    places = [all_us.index(latency) for latency in us]
    return {"us": us, "goodput": [[curve[place] for place in places] for curve in goodputs.values()]}


def _losses(curve: list[float]) -> list[float]:
    """Return losses in percent of the goodput without any latency."""
    return [100 * (1 - goodput / curve[0]) for goodput in curve]


def _rows(data: dict[str, Any]) -> list[Row]:
    rdma = data["rdma"]
    tcp = data["tcp"]
    tightest = data["slo_ms"][0]
    loosest = data["slo_ms"][-1]
    largest = max(max(_losses(curve)) for curve in tcp["goodput"])
    crossing = _crossing(tcp["us"], _losses(tcp["goodput"][0]), PAPER_LOSS)
    note = (
        f"the range of the paper's axis is not in its text: an SLO of {tightest} ms loses 70 % at a latency "
        f"of {crossing / 1000:.1f} ms; {_lost(data)}"
    )
    rows = [Row("largest loss in the TCP range", largest, PAPER_LOSS, "%", 0.05, note)]
    for slo, place in ((tightest, 0), (loosest, -1)):
        at_tail = _losses(rdma["goodput"][place])[rdma["us"].index(RDMA_TAIL_US)]
        at_median = _losses(tcp["goodput"][place])[tcp["us"].index(TCP_MEDIAN_US)]
        rows.append(Row(f"SLO {slo} ms: loss at RDMA's tail, {RDMA_TAIL_US} us", at_tail, unit="%"))
        rows.append(Row(f"SLO {slo} ms: loss at TCP's median, {TCP_MEDIAN_US} us", at_median, unit="%"))
    return rows


def _lost(data: dict[str, Any]) -> str:
    pairs = zip(data["slo_ms"], data["tcp"]["goodput"], strict=True)
    slos = " and ".join(f"{slo} ms" for slo, curve in pairs if curve[-1] == 0)
    return f"at {TCP_TAIL_US / 1000:.1f} ms, TCP's tail, SLOs of {slos or 'no length'} cannot be kept at all"


def _crossing(us: list[int], losses: list[float], level: float) -> float:
    """Return the latency at which the loss reaches *level*, between two measured ones; the last if it never
    does."""
    for place in range(1, len(us)):
        before = losses[place - 1]
        after = losses[place]
        if after >= level:
            return us[place - 1] + (us[place] - us[place - 1]) * (level - before) / (after - before)
    return us[-1]


def _claims(data: dict[str, Any]) -> list[Claim]:
    rdma = [max(_losses(curve)) for curve in data["rdma"]["goodput"]]
    tcp = [_losses(curve) for curve in data["tcp"]["goodput"]]
    mean = [sum(losses) / len(losses) for losses in tcp]
    ordered = all(tight >= loose for tight, loose in itertools.pairwise(mean))
    listed = ", ".join(f"{slo} ms: {loss:.0f} %" for slo, loss in zip(data["slo_ms"], mean, strict=True))
    return [
        Claim(
            "within the RDMA range latency reduces goodput only marginally",
            max(rdma) <= MARGINAL,
            f"by at most {max(rdma):.1f} %",
        ),
        Claim(
            "within the TCP range latency hurts significantly, by up to 70 % or more",
            max(max(losses) for losses in tcp) >= PAPER_LOSS,
            _lost(data),
        ),
        Claim("the tighter the SLO, the more latency hurts", ordered, f"mean loss over the range: {listed}"),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2)
    parts = (("rdma", 1, "latency (us), RDMA range"), ("tcp", 1000, "latency (ms), TCP range"))
    for axis, (part, unit, label) in zip(axes, parts, strict=True):
        us = [latency / unit for latency in data[part]["us"]]
        for slo, curve in zip(data["slo_ms"], data[part]["goodput"], strict=True):
            axis.plot(us, [rate / 1000 for rate in curve], marker="o", markersize=4, label=f"SLO {slo} ms")
        axis.set(xlabel=label, ylabel="goodput (thousand requests/s)", ylim=(0, None))
        axis.set_title(f"{MODELS} models on {GPUS} GPUs")
    axes[0].legend()  # the curves of the other part leave no room for one
    save(figure, path)
