"""The tables of docs/astrarium.md, from the run folder that the reproductions left.

    astrarium reproduce astrarium/goodput astrarium/overload ... --out runs/astrarium
    python -m astrarium_papers.astrarium._page runs/astrarium docs/astrarium.md

Each table stands between `<!-- table: NAME -->` and `<!-- end -->`, and is written anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from astrarium_papers.astrarium import _lines, ablation, figure7, latency, overload
from astrarium_papers.astrarium._settings import BUILT_FOR, OURS, POLICIES
from astrarium_papers.markdown import fill as filled
from astrarium_papers.markdown import table

Data = Mapping[str, Any]


def fill(page: str, results: Mapping[str, Data]) -> str:
    """Fill the tables of a page. *results* are the data of reproductions by name, such as `goodput`; tables
    without any stay."""
    tables = {name: make(results[source]) for name, (source, make) in TABLES.items() if source in results}
    return filled(page, tables)


def _goodput(data: Data) -> str:
    bars = {setting.name: f"{setting.bar:,.0f}" for setting in BUILT_FOR}
    rows = [(setting, bars[setting], *_goodputs(by_policy)) for setting, by_policy in data.items()]
    return table(("requests/s", "bar", *POLICIES), rows)


def _heldout(data: Data) -> str:
    return table(
        ("requests/s", *POLICIES), [(setting, *_goodputs(by_policy)) for setting, by_policy in data.items()]
    )


def _goodputs(by_policy: Mapping[str, Any]) -> list[str]:
    """The largest stands out."""
    shown = {policy: f"{numbers['goodput']:,.0f}" for policy, numbers in by_policy.items()}
    best = max(by_policy, key=lambda policy: float(by_policy[policy]["goodput"]))
    return [f"**{text}**" if policy == best else text for policy, text in shown.items()]


def _overload(data: Data) -> str:
    rows = [
        (
            setting,
            f"{numbers['offered']:,.0f}",
            *(_overloaded(numbers["policies"][name]) for name in overload.POLICIES),
        )
        for setting, numbers in data.items()
    ]
    return table(("requests/s in time", "offered", *overload.POLICIES), rows)


def _overloaded(numbers: Mapping[str, float]) -> str:
    return f"{numbers['rate']:,.0f} (worst model {numbers['worst']:.0%})"


def _latency(data: Data) -> str:
    header = ("mean (median) over eager's", *(f"at {share:g} of goodput" for share in latency.SHARES))
    return table(
        (*header, f"{latency.FEW_GPUS}, at {latency.SHARES[0]:g}"),
        [
            (
                setting,
                *map(_over_eager, shares.values()),
                _over_eager(next(iter(shares.values())), latency.FEW_GPUS),
            )
            for setting, shares in data.items()
        ],
    )


def _over_eager(latencies: latency.Latencies, policy: str = OURS) -> str:
    mean, median = (latency.ratio(latencies, what, policy) for what in ("mean", "median"))
    return f"{mean:.2f} ({median:.2f})"


def _figure7(data: Data) -> str:
    header = (
        "settings",
        "measured",
        "mean",
        "least",
        "low ones with three seeds: least",
        "under 0.99",
        "ahead",
    )
    return table(header, [(name, *_sampled(cases)) for name, cases in data.items()])


def _sampled(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    ratios = [case["ratio"] for case in cases]
    settled = [figure7.settled(dict(case)) for case in cases]
    under = sum(ratio < figure7.LOW for ratio in settled)
    ahead = sum(ratio > 1 for ratio in ratios)
    return [
        str(len(cases)),
        *(f"{value:.3f}" for value in (mean(ratios), min(ratios), min(settled))),
        str(under),
        str(ahead),
    ]


def _ablation(data: Data) -> str:
    columns = data["goodput"]
    header = ("requests/s", *columns, f"the zoo, {ablation.OVERLOADED}")
    rows = [
        (
            variant,
            *(f"{goodputs[variant]:,.0f}" for goodputs in columns.values()),
            f"{data['in_time'][variant]:.1%}",
        )
        for variant in data["in_time"]
    ]
    return table(header, rows)


def _line_table(data: Data) -> str:
    header = ("finish rate at 1.5, 2 and 3 x P99", *(_lines.called(name) for name in _lines.systems()))
    rows = [
        (title, *(" ".join(f"{rate:.2f}" for rate in rates) for rates in by_workload.values()))
        for title, by_workload in data["lines"].items()
    ]
    return table(header, rows)


TABLES: dict[str, tuple[str, Callable[[Data], str]]] = {
    "goodput": ("goodput", _goodput),
    "latency": ("latency", _latency),
    "overload": ("overload", _overload),
    "figure7": ("figure7", _figure7),
    "heldout": ("heldout", _heldout),
    "ablation": ("ablation", _ablation),
    "lines": ("ablation", _line_table),
}


def write(folder: Path, page: Path) -> None:
    summary = msgspec.json.decode((folder / "summary.json").read_bytes())
    results = {
        reproduction["name"].removeprefix("astrarium/"): reproduction["data"]
        for reproduction in summary["reproductions"]
    }
    page.write_text(fill(page.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
