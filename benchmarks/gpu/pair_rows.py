"""What sharing cost: a row for each pair and policy, tables of rows, and the means of each policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

Outcome = dict[str, Any]  # what a client said of a window

PAIR = ("policy", "high priority", "arrivals", "busy", "best effort")
HEADER = (*PAIR, "p99 ms", "alone", "ratio", "BE it/s", "BE alone", "share", "left", "over")
SUMMARY = ("pair", "policy", "pairs", "HP cost", "largest", "p50", "BE share", "left", "over", "sum")


@dataclass(frozen=True)
class Row:
    """Both clients of a pair, each alone and beside the other, with the same arrivals in both."""

    kinds: str
    policy: str
    hp: str
    arrivals: str
    busy: float  # as asked for; what the arrivals made of it is in the outcomes
    be: str
    hp_alone: Outcome
    hp_shared: Outcome
    be_alone: Outcome
    be_shared: Outcome

    @property
    def key(self) -> tuple[str, str, str, str, float, str]:
        return (self.kinds, self.policy, self.hp, self.arrivals, self.busy, self.be)

    @property
    def serves(self) -> bool:
        """Whether the high-priority client is judged by latency; else by its iterations."""
        return self.hp_alone["kind"] == "serve"

    @property
    def hp_cost(self) -> float:
        """How many times worse off the high-priority client is than alone: in its p99, or in its pace."""
        if self.serves:
            return self.hp_shared["p99_ms"] / self.hp_alone["p99_ms"]
        return self.hp_alone["per_second"] / self.hp_shared["per_second"]

    @property
    def median_ratio(self) -> float:
        return self.hp_shared["p50_ms"] / self.hp_alone["p50_ms"]

    @property
    def be_share(self) -> float:
        return self.be_shared["per_second"] / self.be_alone["per_second"]

    @property
    def asked(self) -> float:
        """The part of the time that the requests of the window would take, one after the other, alone."""
        alone = self.hp_alone
        return (alone["count"] + alone["unserved"]) * alone["service_ms"] / 1000 / alone["seconds"]

    @property
    def left(self) -> float:
        """What perfect time-sharing would leave to best effort."""
        return max(0.0, 1 - self.asked) if self.serves else max(0.0, 1 - 1 / self.hp_cost)

    @property
    def total(self) -> float:
        """Both shares of the GPU: above one, sharing did more work than taking turns would."""
        return (self.asked if self.serves else 1 / self.hp_cost) + self.be_share


def append(path: Path, row: Row) -> None:
    """At once, so that a run that is cut short keeps what it has."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read(path: Path) -> list[Row]:
    """All whole lines; the last one may have been cut."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(Row(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return rows


def settled(rows: Sequence[Row]) -> list[Row]:
    """What clients did alone was measured now and then, and varies. Best effort is held against its best, a
    high-priority client against the mean."""
    by_be: dict[Any, list[Outcome]] = {}
    by_load: dict[Any, list[Outcome]] = {}
    for row in rows:
        by_be.setdefault((row.kinds, row.be), []).append(row.be_alone)
        by_load.setdefault((row.kinds, row.hp, row.arrivals, row.busy), []).append(row.hp_alone)
    best = {key: max(found, key=lambda outcome: outcome["per_second"]) for key, found in by_be.items()}
    usual = {key: averaged(distinct(found)) for key, found in by_load.items()}
    loads = [(row.kinds, row.hp, row.arrivals, row.busy) for row in rows]
    return [
        replace(row, be_alone=best[row.kinds, row.be], hp_alone=usual[load])
        for row, load in zip(rows, loads, strict=True)
    ]


def distinct(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Several rows may hold the same measurement."""
    return [outcome for index, outcome in enumerate(outcomes) if outcome not in outcomes[:index]]


def averaged(outcomes: Sequence[Outcome]) -> Outcome:
    times = [name for name in outcomes[0] if name.endswith("_ms") or name == "per_second"]
    return {**outcomes[0], **{name: fmean(outcome[name] for outcome in outcomes) for name in times}}


def table(rows: Sequence[Row]) -> str:
    return aligned(HEADER, [cells(row) for row in rows])


def cells(row: Row) -> tuple[str, ...]:
    of = "p99_ms" if row.serves else "mean_ms"
    hp = (f"{row.hp_shared[of]:.2f}", f"{row.hp_alone[of]:.2f}", f"{row.hp_cost:.2f}")
    be = (f"{row.be_shared['per_second']:.1f}", f"{row.be_alone['per_second']:.1f}")
    shares = (f"{row.be_share:.2f}", f"{row.left:.2f}", f"{row.be_share - row.left:+.2f}")
    return (row.policy, row.hp, row.arrivals, f"{row.busy:.0%}", row.be, *hp, *be, *shares)


def summary(rows: Sequence[Row]) -> str:
    """One line for each kind of pair and policy, the cheapest for the high-priority client first."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.kinds, row.policy), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], mean(item[1], lambda row: row.hp_cost)))
    return aligned(SUMMARY, [(*names, *summed(members)) for names, members in ordered])


def summed(rows: Sequence[Row]) -> tuple[str, ...]:
    numbers = (
        mean(rows, lambda row: row.hp_cost),
        max(row.hp_cost for row in rows),
        mean(rows, lambda row: row.median_ratio),
        mean(rows, lambda row: row.be_share),
        mean(rows, lambda row: row.left),
    )
    over = mean(rows, lambda row: row.be_share - row.left)
    total = mean(rows, lambda row: row.total)
    return (str(len(rows)), *(f"{x:.3f}" for x in numbers), f"{over:+.3f}", f"{total:.3f}")


def mean(rows: Sequence[Row], of: Callable[[Row], float]) -> float:
    return fmean(map(of, rows))


def aligned(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """As Markdown, which is a table on a terminal too."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    bordered = [header, ["-" * width for width in widths], *lines]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in bordered)
