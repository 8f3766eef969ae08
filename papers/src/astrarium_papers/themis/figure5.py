"""Figure 5 (section 3.1): what becomes of two apps of four GPUs where nobody asks what they prefer.

Instance 1: two apps that train VGG16, two machines of 4. Instance 2: one app does not mind (Inception-v3),
one does (VGG16); one machine of 4 and two of 2. What the paper draws for DRF is one of the allocations that
DRF allows. Its rho follow from S; ours are simulated, of one job each that takes an hour alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.cluster import level
from astrarium.cluster.machines import Spread
from astrarium.cluster.report.summary import summarize_apps
from astrarium.cluster.scenario.read import parse
from astrarium.cluster.workloads.themis.models import SLOWDOWNS
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Two apps that care, or not, about where they run (Figure 5)"
INSTANCES = {
    "instance 1": ((4, 4), ("VGG16", "VGG16")),
    "instance 2": ((4, 2, 2), ("Inception-v3", "VGG16")),
}
APART = SLOWDOWNS["VGG16", "p100"][Spread.RACK]  # Table 1: 103.6 / 80.4


def run(effort: Effort) -> Findings:
    data = {name: {policy: _rhos(name, policy) for policy in ("themis", "drf")} for name in INSTANCES}
    return Findings(_rows(data), _claims(data), data)


def _rhos(instance: str, policy: str) -> list[float]:
    machines, models = INSTANCES[instance]
    apps = [
        {"name": f"A{number}", "gpus": 4, "length": "1h", "model": model}
        for number, model in enumerate(models, 1)
    ]
    scenario = parse(
        {
            "machines": [{"gpus": gpus, "network": "p100"} for gpus in machines],
            "apps": apps,
            "slowdowns": {"table": "themis"},
            "policy": {"name": policy},
        }
    )
    return [app.rho["share"] for app in summarize_apps(level.run(scenario))]


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for instance, policies in data.items():
        for policy, rhos in policies.items():
            paper = 1.0 if policy == "themis" else None
            what = f"{instance}, {policy}: rho of A"
            rows += [Row(f"{what}{number}", rho, paper) for number, rho in enumerate(rhos, 1)]
    note = "Table 1; what an allocation over two machines costs VGG16"
    rows.append(Row("rho of VGG16 as the paper draws DRF", APART, 103.6 / 80.4, note=note, given=True))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    first = data["instance 1"]
    second = data["instance 2"]
    return [
        Claim("instance 1: Themis gives each app a machine of its own", max(first["themis"]) < 1.01),
        Claim(
            "instance 2: Themis gives the machine of 4 to the app that cares", max(second["themis"]) < 1.01
        ),
        Claim(
            "instance 2: with DRF the app that cares is spread",
            second["drf"][1] > 1.01,
            "our DRF gives each the closest GPUs that are free: whoever comes first has the machine of 4",
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data), 4.0)
    for axis, (instance, policies) in zip(axes, data.items(), strict=True):
        for place, (policy, rhos) in enumerate(policies.items()):
            axis.bar([number + 0.4 * place for number in range(len(rhos))], rhos, 0.4, label=policy)
        axis.axhline(1, color="black", linewidth=1)
        axis.set_xticks([number + 0.2 for number in range(2)], ["A1", "A2"])
        axis.set(title=instance, ylabel="rho")
    axes[0].legend()
    save(figure, path)
