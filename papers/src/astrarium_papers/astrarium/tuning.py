"""Our own tuning policy beside `fifo` and `dynamic-fluid`, and Hyperband with two brackets at a time.

Tasks and budgets are those of `fluid/figure3_7`; ASHA and BOHB have as many trials at a time as there are
GPUs. The policy was made on seeds 0 to 5: those here had no part in that.
"""

from __future__ import annotations

from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

from astrarium.tuning.scenario.tasks import TASKS, Task
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.fluid._runs import ALONE, DYNAMIC, SHORT, searched, seconds, to_target

TITLE = "Searches under our own tuning policy, on 4, 8 and 16 GPUs"
OURS = "astrarium"
POLICIES = (ALONE, DYNAMIC, OURS)
COLORS = {ALONE: "#D55E00", DYNAMIC: "#0072B2", OURS: "#009E73"}
SEARCHES = ("hyperband", "bohb", "asha", "pbt")
GPUS = (4, 8, 16)
FIRST_SEED = 201
BESIDE = 2  # brackets
CALLED = {"end": "makespan", "target": "time to target"}
WORSE = 0.97  # of the rival's speed: less is clearly worse


def run(effort: Effort) -> Findings:
    data: dict[str, Any] = {"cases": [], "beside": []}
    for search in effort.pick(("asha", "pbt"), SEARCHES):
        for gpus in effort.pick((8,), GPUS):
            effort.say(f"{search}, {gpus} GPUs")
            data["cases"] += [_case(task, search, gpus, {}, effort) for task in TASKS.values()]
    for task in TASKS.values():
        effort.say(f"hyperband with {BESIDE} brackets at a time, {SHORT[task.name]}")
        data["beside"].append(_case(task, "hyperband", 8, {"brackets_at_once": 1}, effort))
        data["beside"].append(_case(task, "hyperband", 8, {"brackets_at_once": BESIDE}, effort))
    return Findings(_rows(data), _claims(data), data)


def _settings(search: str, gpus: int, effort: Effort) -> dict[str, Any]:
    iterations = {"iterations": effort.pick(27, 81)}
    more: dict[str, dict[str, Any]] = {
        "bohb": {"concurrency": gpus},
        "asha": {"candidates": effort.pick(81, 243), "concurrency": gpus},
        "pbt": {"population": 8, "interval": 3},
    }
    return iterations | more.get(search, {})


def _case(task: Task, search: str, gpus: int, more: dict[str, Any], effort: Effort) -> dict[str, Any]:
    settings = _settings(search, gpus, effort) | more
    seeds = range(FIRST_SEED, FIRST_SEED + effort.pick(2, 4))
    numbers: dict[str, Any] = {}
    for policy in POLICIES:
        records = [searched(task, search, policy, seed, settings, gpus) for seed in seeds]
        numbers[policy] = {
            "end": [seconds(record) for record in records],
            "target": [to_target(task, record) for record in records],
        }
    return {"task": SHORT[task.name], "search": search, "gpus": gpus, "more": more, "found": numbers}


def speedup(cases: list[dict[str, Any]], what: str, rival: str, policy: str = OURS) -> float:
    """Return the speedup over a rival: the geometric mean over cases, each that of its mean times."""
    ratios = [mean(case["found"][rival][what]) / mean(case["found"][policy][what]) for case in cases]
    return exp(mean(log(ratio) for ratio in ratios))


def _called(case: dict[str, Any]) -> str:
    brackets = case["more"].get("brackets_at_once", 0)
    beside = f", {brackets} bracket{'s' if brackets > 1 else ''} at a time" if brackets else ""
    return f"{case['search']}, {case['task']}, {case['gpus']} GPUs{beside}"


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for case in data["cases"] + data["beside"]:
        times = {
            policy: {what: mean(seconds) for what, seconds in times_of_one.items()}
            for policy, times_of_one in case["found"].items()
        }
        by_policy = "; ".join(
            f"{name} {times_of_one['end']:.0f} s, {times_of_one['target']:.0f} s"
            for name, times_of_one in times.items()
        )
        target = speedup([case], "target", DYNAMIC)
        note = f"to the target {target:.3f}x. Makespan, time to target: {by_policy}"
        what = f"{_called(case)}: makespan, speed-up over {DYNAMIC}"
        rows.append(Row(what, speedup([case], "end", DYNAMIC), unit="x", note=note))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    cases = data["cases"]
    claims = [_faster(cases, rival, what) for rival in (DYNAMIC, ALONE) for what in ("end", "target")]
    claims += [_never_worse(cases, what) for what in CALLED]
    return [*claims, _side_by_side(data["beside"])]


def _never_worse(cases: list[dict[str, Any]], what: str) -> Claim:
    ratios = {_called(case): speedup([case], what, DYNAMIC) for case in cases}
    least = min(ratios, key=lambda name: ratios[name])
    slower = [f"{name} {ratio:.3f}x" for name, ratio in ratios.items() if ratio < WORSE]
    return Claim(
        f"in no case a {CALLED[what]} clearly longer than {DYNAMIC}'s (under {WORSE} of its speed)",
        not slower,
        "; ".join(slower) or f"the least is {ratios[least]:.3f}x: {least}",
    )


def _faster(cases: list[dict[str, Any]], rival: str, what: str) -> Claim:
    ratio = speedup(cases, what, rival)
    by_search = {case["search"]: speedup(_of(cases, case["search"]), what, rival) for case in cases}
    note = ", ".join(f"{search} {gain:.3f}x" for search, gain in by_search.items())
    return Claim(f"a shorter {CALLED[what]} than {rival} on the mean", ratio > 1, f"{ratio:.3f}x: {note}")


def _of(cases: list[dict[str, Any]], search: str) -> list[dict[str, Any]]:
    return [case for case in cases if case["search"] == search]


def _side_by_side(cases: list[dict[str, Any]]) -> Claim:
    """Return the claim that two brackets at a time gain under each policy, with the same candidates."""
    alone = cases[::2]
    beside = cases[1::2]
    gains, targets = (
        {
            policy: exp(
                mean(
                    log(_mean(a, policy, what) / _mean(b, policy, what))
                    for a, b in zip(alone, beside, strict=True)
                )
            )
            for policy in POLICIES
        }
        for what in ("end", "target")
    )
    note = ", ".join(
        f"{policy} {gain:.2f}x (to target {targets[policy]:.2f}x)" for policy, gain in gains.items()
    )
    return Claim(
        f"{BESIDE} brackets at a time shorten Hyperband under every policy", min(gains.values()) > 1, note
    )


def _mean(case: dict[str, Any], policy: str, what: str) -> float:
    return float(mean(case["found"][policy][what]))


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    searches = list(dict.fromkeys(case["search"] for case in data["cases"]))
    figure, axes = axes_row(2, 5)
    for axis, (what, title) in zip(axes, CALLED.items(), strict=True):
        for place, policy in enumerate(POLICIES):
            gains = [speedup(_of(data["cases"], search), what, ALONE, policy) for search in searches]
            at = [number + 0.27 * (place - 1) for number in range(len(searches))]
            axis.bar(at, gains, 0.25, color=COLORS[policy], label=policy)
        axis.set_xticks(range(len(searches)), searches)
        axis.set(ylabel=f"speed-up over {ALONE}", title=title)
    axes[0].legend(fontsize=8)
    save(figure, path)
