"""Figure 13: one inference client with priority and four others. The paper's GPU is an A100; rows named
V100-like have generated workloads as an A100 would run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.quantities import SECOND, Time
from astrarium.gate.kernel_profiles import KernelProfile, KernelUse
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.gate_simulation import Party, alone, profiled, share
from astrarium_papers.kernels.trace import KernelTrace
from astrarium_papers.orion._inference import EAGER_WHY, REEF_WHY, on_v100
from astrarium_papers.orion._pair_summary import over_ideal, p99_bars, per_system
from astrarium_papers.orion._settings import CHOSEN, COLORS, MODELS, SYSTEMS, Kernels

TITLE = "Five inference clients: p99 of the one with priority (Figure 13)"
SECONDS = 30
CLIENTS = ("MPS", "REEF", "Orion", "Astrarium")
WHY = {"MPS": EAGER_WHY, "REEF": REEF_WHY}
ONE_INTERPRETER = "its five clients share one interpreter, which launches for one at a time"
# Data sheets: SMs, fp32 arithmetic and memory bandwidth of an A100-40GB over those of a V100-16GB.
V100_SMS = 80
A100_SMS = 108
A100_COMPUTE = 19.5 / 15.7
A100_MEMORY = 1555 / 900


def run(effort: Effort) -> Findings:
    data = _measured(CHOSEN, effort)
    rows = [*_rows(data), *on_v100(lambda kernels: _rows(_measured(kernels, effort)))]
    return Findings(rows, _claims(data), data)


def _measured(kernels: Kernels, effort: Effort) -> dict[str, Any]:
    models = kernels.known(effort.pick(("resnet50", "bert"), MODELS), "inference")
    duration = round(kernels.seconds(effort.pick(5, SECONDS)) * SECOND)
    cases = [(model, system) for model in models for system in CLIENTS]
    outcomes = effort.map(lambda case: _one(kernels, *case, duration, effort), cases)
    data: dict[str, Any] = {}
    for (model, system), numbers in zip(cases, outcomes, strict=True):
        data.setdefault(model, {})[system] = {"four others": numbers}
    return data


def on_a100(trace: KernelTrace) -> KernelTrace:
    """A kernel that fills a V100 fills an A100 and gets faster by what it is bound by; smaller ones do so in
    proportion to the SMs that they fill, since one SM is hardly faster than before. Recordings stay as they
    are."""
    if trace.sms != V100_SMS:
        return trace
    kernels = tuple(
        _on_a100(kernel, trace.sms, trace.use(place)) for place, kernel in enumerate(trace.kernels)
    )
    return msgspec.structs.replace(trace, device="A100-like", sms=A100_SMS, kernels=kernels)


def _on_a100(kernel: KernelProfile, sms: int, use: KernelUse) -> KernelProfile:
    most = {"compute": A100_COMPUTE, "memory": A100_MEMORY}.get(kernel.kind, 1.0)
    faster = 1 + (most - 1) * min(1.0, kernel.sms / sms)
    return msgspec.structs.replace(
        kernel,
        duration=round(kernel.duration / faster),
        sms=A100_SMS if kernel.sms >= sms else kernel.sms,
        use=KernelUse(
            min(1.0, use.compute * faster / A100_COMPUTE), min(1.0, use.memory * faster / A100_MEMORY)
        ),
    )


def _party(kernels: Kernels, model: str, latency: bool, duration: Time) -> Party:
    arrive = kernels.poisson_beside_inference if latency else kernels.best_effort_poisson
    party = kernels.inference(model, arrive(model, duration), latency)
    return msgspec.structs.replace(party, trace=on_a100(party.trace))


def _one(kernels: Kernels, model: str, system: str, duration: Time, effort: Effort) -> dict[str, float]:
    effort.say(f"{system}: {model} and four others")
    first = _party(kernels, model, True, duration)
    names = [other for other in kernels.known(MODELS, "inference") if other != model]
    others = [_party(kernels, other, False, duration) for other in names]
    ideal = alone(first, duration)
    outcomes = share([first, *others], profiled(SYSTEMS[system], ideal), duration).clients
    arrived = sum(len(party.arrivals) for party in others if party.arrivals is not None)
    served = sum(client.rate for client in outcomes[1:]) * duration / SECOND
    return {
        "p99": outcomes[0].percentile(99),
        "p99_alone": ideal.percentile(99),
        "best_effort": served / arrived,
    }


def _rows(data: dict[str, Any]) -> list[Row]:
    paper: dict[str, float | tuple[float, float]] = {"MPS": 2.2, "REEF": 1.21, "Orion": (1.0, 1.09)}
    rows = []
    for system in CLIENTS:
        ratio = over_ideal(data, system)
        why = WHY.get(system, "")
        rows.append(Row(f"{system}: p99 over ideal, mean", ratio, paper.get(system), "x", 0.15, why))
    for system in CLIENTS:
        served = sum(systems[system]["four others"]["best_effort"] for systems in data.values()) / len(data)
        note = ONE_INTERPRETER if SYSTEMS[system].one_interpreter else ""
        rows.append(Row(f"{system}: best-effort requests served, of those that came", served, note=note))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    ratios = {system: over_ideal(data, system) for system in CLIENTS}
    note = per_system(data, CLIENTS)
    worst = max(
        n["four others"]["p99"] / n["four others"]["p99_alone"] for n in (d["Orion"] for d in data.values())
    )
    return [
        Claim(
            "MPS, then REEF, then Orion: the finer the control, the lower the tail",
            ratios["MPS"] > ratios["REEF"] > 0.99 * ratios["Orion"],
            f"1 % counts as equal; {note}",
        ),
        Claim("Orion keeps every workload within 9 % of ideal", worst <= 1.09, f"at most {worst:.2f}x"),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(1, width=7)
    p99_bars(data, axes[0], COLORS)
    save(figure, path)
