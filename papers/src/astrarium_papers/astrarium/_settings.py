"""The settings that our own policy was built for, and what the policies beside it reach there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from astrarium.serving.scenario import Scenario
from astrarium_papers.findings import Effort
from astrarium_papers.symphony._settings import INCEPTION_RESNET_V2, RESNET50, goodput, scenario

OURS = "astrarium"
ASTRARIUM: dict[str, Any] = {"name": "astrarium"}
DEFERRED: dict[str, Any] = {"name": "deferred"}
EAGER: dict[str, Any] = {"name": "eager", "gather": "window"}
EAGER_FCFS: dict[str, Any] = {"name": "eager", "gather": "fcfs"}
RIVALS = {"deferred": DEFERRED, "eager": EAGER, "eager, fcfs": EAGER_FCFS}
POLICIES = {OURS: ASTRARIUM, **RIVALS}
COLORS = {OURS: "#000000", "deferred": "#0072B2", "eager": "#009E73", "eager, fcfs": "#8FD3B6"}


class Setting(msgspec.Struct, frozen=True):
    """No network delay and Poisson arrivals, unless `workload` says otherwise."""

    name: str
    models: Any
    gpus: int
    seconds: float = 60  # measured, for each seed
    bar: float = 0  # requests/s to reach; 0: none was set
    workload: dict[str, Any] = {}

    def scenario(self, policy: dict[str, Any], effort: Effort) -> Scenario:
        seconds, warmup = effort.pick((3, 1), (self.seconds, 2))
        return scenario(self.models, self.gpus, policy, seconds, warmup_s=warmup, **self.workload)


def resnet50(gpus: int, bar: float) -> Setting:
    return Setting(f"ResNet50, {gpus} GPU{'s' * (gpus > 1)}", {"ResNet50": RESNET50}, gpus, bar=bar)


ZOO = Setting("A100 zoo, 64 GPUs", "zoo:A100", 64, bar=18_300)
TABLE2_ROWS = (
    resnet50(8, 5500),
    Setting("InceptionResNetV2, 8 GPUs", {"InceptionResNetV2": INCEPTION_RESNET_V2}, 8, 240, 975),
)
FEW_GPUS = (resnet50(1, 405), resnet50(2, 1050), resnet50(4, 2300))
BUILT_FOR = (*TABLE2_ROWS, ZOO, *FEW_GPUS)


def built_for(effort: Effort) -> Sequence[Setting]:
    """Return the settings; the quick form keeps those with few requests."""
    return effort.pick(FEW_GPUS[:1], BUILT_FOR)  # type: ignore[no-any-return]


Goodputs = dict[str, dict[str, dict[str, Any]]]  # by setting and policy: goodput, interval


def goodputs(
    settings: Sequence[Setting],
    policies: Mapping[str, dict[str, Any]],
    effort: Effort,
    seeds: int | None = None,
    tolerance: float | None = None,
) -> Goodputs:
    work = [(setting, policy) for setting in settings for policy in policies]

    def measure(pair: tuple[Setting, str]) -> dict[str, Any]:
        setting, policy = pair
        case = setting.scenario(policies[policy], effort)
        label = f"{setting.name}: {policy}"
        by_setting = goodput(case, effort, label, seeds, tolerance)
        return {"goodput": by_setting.goodput, "interval": list(by_setting.interval)}

    by_setting: Goodputs = {setting.name: {} for setting in settings}
    for (setting, policy), numbers in zip(work, effort.map(measure, work), strict=True):
        by_setting[setting.name][policy] = numbers
    return by_setting


def best_rival(by_policy: Mapping[str, Mapping[str, Any]]) -> str:
    return max(
        (policy for policy in by_policy if policy != OURS), key=lambda policy: by_policy[policy]["goodput"]
    )


def over(by_policy: Mapping[str, Mapping[str, Any]], policy: str) -> float:
    """Return our goodput over that policy's; a policy that serves nothing counts as one request/s."""
    return float(by_policy[OURS]["goodput"] / max(by_policy[policy]["goodput"], 1.0))


def span(bounds: Mapping[str, Any]) -> str:
    low, high = bounds["interval"]
    return f"seeds from {low:,.0f} to {high:,.0f}"
