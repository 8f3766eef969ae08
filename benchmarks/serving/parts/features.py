"""What each feature of an HTTP request costs: CPU time of the server for one, beside the plain request's.

The model takes no time, so what is counted is reading, scheduling, copying and answering. A feature may cost
three times the plain request: `way` says whether network threads read it (short) or Python (long, with the
reason).
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from _shared import caption, circumstances, keep, number, parser, say
from http_features.clients import compare, measure
from http_features.requests import KEY, Feature, features
from http_features.server import Server
from peers.peer import Settings


def main() -> None:
    options = arguments()
    load_before = circumstances(options.date, 0.0)["load_after"]
    chosen = [feature for feature in features() if re.search(options.only, feature.name)]
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(Server(key).running(1, Settings()))
            for name, key in (("open", ""), ("keys", KEY))
        }
        for turn in range(options.repeats + 1):
            say(f"repetition {turn} of {options.repeats}" if turn else "everything is touched once")
            for feature in chosen:
                if turn:
                    compare(feature, running, options.seconds)
                else:
                    measure(feature, running[feature.server], 0.2)
    facts = circumstances(options.date, load_before)
    rows = [row(feature) for feature in chosen]
    keep("features", {**facts, "rows": rows})
    print(table(rows))
    print(caption(facts))


def arguments() -> argparse.Namespace:
    flags = parser(__doc__)
    flags.add_argument("--repeats", type=int, default=3, help="3 unless given")
    flags.add_argument("--seconds", type=float, default=1.0, help="of each feature, 1 unless given")
    flags.add_argument("--only", default="", help="features whose names match this expression")
    return flags.parse_args()


def row(feature: Feature) -> dict[str, Any]:
    return {
        "feature": feature.name,
        "way": statistics.mode(feature.ways),
        "us": statistics.median(feature.costs) * 1e6,
        "beside": "" if feature.plain == feature.name else feature.plain,
        "ratio": statistics.median(feature.ratios),
        "spread": [min(feature.ratios), max(feature.ratios)],
        "bar": feature.bar,
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| feature | way | CPU of one, us | times | spread | beside | met |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        low, high = row["spread"]
        met = "" if row["bar"] is None or not row["beside"] else "yes" if row["ratio"] <= row["bar"] else "NO"
        numbers = f"{number(row['us'])} | {row['ratio']:.2f} | {low:.2f} to {high:.2f}"
        lines.append(f"| {row['feature']} | {row['way']} | {numbers} | {row['beside']} | {met} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
