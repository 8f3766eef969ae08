"""What is still answered in time when more comes than any policy here can serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from astrarium_papers.astrarium._in_time import OVERLOAD, in_time, overloads
from astrarium_papers.astrarium._settings import ASTRARIUM, COLORS, DEFERRED, EAGER, OURS, Setting, built_for
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = f"Requests in time at {OVERLOAD} times what deferred serves"
POLICIES = {OURS: ASTRARIUM, "deferred": DEFERRED, "eager": EAGER}


def run(effort: Effort) -> Findings:
    settings = list(built_for(effort))
    rates = overloads(settings, effort)
    work = [(setting, policy) for setting in settings for policy in POLICIES]

    def measure(pair: tuple[Setting, str]) -> dict[str, float]:
        setting, policy = pair
        effort.say(f"{setting.name}: {policy}")
        case = setting.scenario(POLICIES[policy], effort).with_rate(rates[setting.name])
        return msgspec.structs.asdict(in_time(case, effort))

    data: dict[str, Any] = {
        setting.name: {"offered": rates[setting.name], "policies": {}} for setting in settings
    }
    for (setting, policy), numbers in zip(work, effort.map(measure, work), strict=True):
        data[setting.name]["policies"][policy] = numbers
    return Findings(_rows(data), _claims(data), data)


def _rows(data: dict[str, Any]) -> list[Row]:
    return [
        Row(
            f"{setting}: {policy}",
            result["rate"],
            unit="r/s in time",
            note=f"{result['share']:.1%} of {numbers['offered']:,.0f} requests/s; "
            f"worst model {result['worst']:.1%}",
        )
        for setting, numbers in data.items()
        for policy, result in numbers["policies"].items()
    ]


def _claims(data: dict[str, Any]) -> list[Claim]:
    rates, worsts = (
        {setting: _over_deferred(numbers, what) for setting, numbers in data.items()}
        for what in ("rate", "worst")
    )
    return [
        Claim("not fewer requests in time than deferred", min(rates.values()) >= 1, _listed(rates)),
        Claim(
            "the worst model does not fare worse than deferred's", min(worsts.values()) >= 1, _listed(worsts)
        ),
    ]


def _over_deferred(numbers: dict[str, Any], what: str) -> float:
    policies = numbers["policies"]
    return float(policies[OURS][what] / max(policies["deferred"][what], 1e-9))


def _listed(ratios: dict[str, float]) -> str:
    return "; ".join(f"{setting}: {ratio:.3f} x deferred's" for setting, ratio in ratios.items())


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2, 7)
    titles = {"share": "all requests", "worst": "the worst model's"}
    for axis, (what, title) in zip(axes, titles.items(), strict=True):
        for place, policy in enumerate(POLICIES):
            at = [group + (place - 1) * 0.26 for group in range(len(data))]
            shares = [100 * numbers["policies"][policy][what] for numbers in data.values()]
            axis.bar(at, shares, 0.25, label=policy, color=COLORS[policy])
        axis.set_xticks(range(len(data)), [name.replace(", ", "\n") for name in data], fontsize=7)
        axis.set(title=f"in time, % of {title}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncol=3, fontsize=8)
    save(figure, path, top=0.94)
