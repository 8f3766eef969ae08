"""What knowing the size of a request is worth over knowing its distribution, on Orloj's workloads.

All cases have the load of the chapter's (`_settings`), and the SLOs are its multiples of the P99. Beside the
chapter's own workloads there are some of our making, two groups of requests as its language models have them,
whose times are spread farther and farther.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from astrarium.core.arrivals import Arrivals
from astrarium.serving.record import ServingRecord
from astrarium.serving.scenario import Scenario, build
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.orloj._finish import in_time, scenario
from astrarium_papers.orloj._knowing import (
    dynamic,
    given_length,
    of_application,
    of_model,
    of_size,
    spreads,
)
from astrarium_papers.orloj._settings import SYSTEMS, System
from astrarium_papers.orloj._tables import MULTIPLES, TABLE_4_1, Workload
from astrarium_papers.orloj._workloads import Case, modes, real

TITLE = "What knowing the size is worth over knowing the distribution"
MODES = (1, 2, 4, 8)
P99S = (1.5, 2.0, 3.0, 5.0)  # of the cases of our making, over their mean
MEAN_MS = 100.0
SHARES = (0.25, 0.5, 0.75, 1.0)  # of what a time has of its own, explained by the length
FAR = 0.3  # the spread within an application from which on the size is said to matter
WORTH = 0.02  # a smaller gain is none
REQUESTS = 1000  # measured, in each run
SEEDS = (1, 2, 3)

OURS = "Astrarium"
NOTHING, APPLICATION, SIZE = "nothing", "the application", "the size"

Tell = Callable[[Scenario, Arrivals], ServingRecord]


class Entry(NamedTuple):
    """A policy, and what it is told of each request."""

    system: System
    tell: Tell


def explained(share: float) -> str:
    """Return what is known where a length explains a share of the time beside the application."""
    return f"{share:.0%} by length"


def named(policy: str, known: str) -> str:
    return f"{policy}: {known}"


def _told_more_and_more(policy: str, shares: tuple[float, ...]) -> dict[str, Entry]:
    system = SYSTEMS[policy]
    tellings: dict[str, Tell] = {
        NOTHING: of_model,
        APPLICATION: of_application,
        **{explained(share): partial(given_length, share=share) for share in shares},
    }
    return {named(policy, known): Entry(system, tell) for known, tell in tellings.items()}


# Two buckets: with more, the batches of these policies are too small on nearly all workloads.
SIZED: dict[str, System] = {
    OURS: SYSTEMS[OURS],
    "Orloj": System({**SYSTEMS["Orloj"].policy, "batches": "alike", "buckets": 2}),
    "Clockwork": System({"name": "clockwork", "batches": "alike", "buckets": 2}),
    "eager": System({"name": "eager", "batches": "alike", "buckets": 2}),
    "turbo": System({"name": "turbo"}),
}
APART = "Astrarium, a queue for each"  # part of the lengths: what grouping them brings
ENTRIES: dict[str, Entry] = {
    **_told_more_and_more("Orloj", (0.5, 1.0)),
    **_told_more_and_more(OURS, SHARES),
    named(APART, explained(1.0)): Entry(
        System({**SYSTEMS[OURS].policy, "lines": "application"}), partial(given_length, share=1.0)
    ),
    **{named(policy, SIZE): Entry(system, of_size) for policy, system in SIZED.items()},
}


def cases(effort: Effort) -> list[Case]:
    made = [
        Workload(f"spread-{p99:g}", "chatbot", "Two groups", f"P99 {p99:g} x mean", MEAN_MS, p99 * MEAN_MS)
        for p99 in P99S
    ]
    full = [*map(real, TABLE_4_1), *map(modes, MODES), *map(real, made)]
    return [full[0], full[5]] if effort.quick else full


def run(effort: Effort) -> Findings:
    chosen = cases(effort)
    multiples = effort.pick([1.5, 3.0], list(MULTIPLES))
    work = [(case, name) for case in chosen for name in ENTRIES]
    rates = effort.map(lambda pair: _curve(*pair, multiples, effort), work)
    by_case: dict[str, Any] = {case.name: _described(case) for case in chosen}
    for (case, name), curve in zip(work, rates, strict=True):
        by_case[case.name]["rates"][name] = curve
    data = {"multiples": multiples, "cases": by_case}
    return Findings(rows(data), claims(data), data)


def _described(case: Case) -> dict[str, Any]:
    overall, within = spreads(dynamic(scenario(case, 2.0, SYSTEMS[OURS], 1)))
    return {"title": case.title, "spread": overall, "within": within, "rates": {}}


def _curve(case: Case, name: str, multiples: list[float], effort: Effort) -> list[float]:
    effort.say(f"{case.title}: {name}")
    system, tell = ENTRIES[name]
    count = effort.pick(200, REQUESTS)
    settings = [scenario(case, multiple, system, count) for multiple in multiples]
    seeds = effort.pick(SEEDS[:1], SEEDS)
    return [mean(_finish_rate(setting.with_seed(seed), tell) for seed in seeds) for setting in settings]


def _finish_rate(setting: Scenario, tell: Tell) -> float:
    return in_time(tell(setting, build.arrivals(setting)))


def rows(data: Mapping[str, Any]) -> list[Row]:
    """Return what our policy gains or loses by knowing more, or less, than the application."""
    return [
        Row(
            f"{case['title']}: {known}, over {APPLICATION}",
            gain(case, known),
            unit="finish rate",
            note=_points(data, case["rates"][named(OURS, known)]),
        )
        for case in data["cases"].values()
        for known in (NOTHING, explained(0.5), explained(1.0), SIZE)
    ]


def _points(data: Mapping[str, Any], curve: list[float]) -> str:
    points = zip(data["multiples"], curve, strict=True)
    return ", ".join(f"{rate:.3f} at {multiple:g} x P99" for multiple, rate in points)


def gain(case: Mapping[str, Any], known: str) -> float:
    """Return what our policy gains over knowing the application: the mean over the SLOs."""
    more, less = (mean(map(float, case["rates"][named(OURS, what)])) for what in (known, APPLICATION))
    return more - less


def claims(data: Mapping[str, Any]) -> list[Claim]:
    everything = explained(1.0)
    return [
        _least(data, "a length that explains all loses nothing against the distribution", everything),
        _least(data, "a length that explains half loses nothing against the distribution", explained(0.5)),
        _least(data, f"our queues by length lose nothing against the distribution: {SIZE}", SIZE),
        _matters(data, everything),
    ]


def _least(data: Mapping[str, Any], words: str, known: str) -> Claim:
    gains = {case["title"]: gain(case, known) for case in data["cases"].values()}
    worst = min(gains, key=lambda title: gains[title])
    note = f"least gain {gains[worst]:+.3f} ({worst}), mean {mean(gains.values()):+.3f}"
    return Claim(words, gains[worst] >= -WORTH / 2, note)


def _matters(data: Mapping[str, Any], known: str) -> Claim:
    """Return the claim that the spread within applications says whether the size is worth knowing."""
    by_case = data["cases"].values()
    near = [gain(case, known) for case in by_case if case["within"] < FAR]
    far = [gain(case, known) for case in by_case if case["within"] >= FAR]
    return Claim(
        "the size is worth more than the distribution by application where times within one are spread, and "
        "nowhere else",
        max(near, default=0.0) < WORTH <= min(far, default=WORTH),
        f"gain by standard deviation over mean within an application: {_range(near)} under {FAR:g}, "
        f"{_range(far)} from there on",
    )


def _range(gains: list[float]) -> str:
    return f"{min(gains):+.3f} to {max(gains):+.3f}" if gains else "no case"


def draw(data: dict[str, Any], path: Path) -> None:
    """Draw finish rates at the tightest SLO as more is known, and those of sizes as lengths."""
    from astrarium_papers.drawing import SYSTEM_COLORS, axes_grid, save

    figure, axes = axes_grid(len(data["cases"]), columns=6)
    for axis, case in zip(axes, data["cases"].values(), strict=True):
        rates = {name: curve[0] for name, curve in case["rates"].items()}
        for policy, shares in (("Orloj", (0.5, 1.0)), (OURS, SHARES)):
            color = SYSTEM_COLORS[policy]
            known = {-0.25: NOTHING, 0.0: APPLICATION, **{share: explained(share) for share in shares}}
            curve = [rates[named(policy, what)] for what in known.values()]
            axis.plot(list(known), curve, marker="o", markersize=3, color=color, label=policy)
            axis.axhline(rates[named(policy, SIZE)], color=color, ls=":", lw=1)
        axis.set_xticks([-0.25, 0, 0.5, 1], ["none", "app", ".5", "1"])
        axis.set_title(f"{case['title']}\nwithin an application {case['within']:.2f}", fontsize=8)
    axes[0].set_ylabel(f"finish rate, {data['multiples'][0]:g} x P99")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncol=2, fontsize=8)
    save(figure, path, top=1 - 0.35 / figure.get_figheight())
