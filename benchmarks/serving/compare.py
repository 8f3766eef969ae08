"""All servers on the same emulated GPU under the same load: goodput, what overload leaves of it, a picture.

One GPU runs one batch at a time in 1.053 b + 5.072 ms; a request is in time if its answer came within 25 ms
of the instant at which it was due. Goodput is the highest rate with 99 % in time. Batching is tuned for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from _outcome import Outcome, Point, bars, draw, table
from _shared import RESULTS, caption, circumstances, keep, parser, say, show
from peers import SERVERS, Ours, Peer, Running, Settings
from search import Plan, Search, goodput, usable

SHARES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)  # of a server's own goodput, for its curve
GUESS = 150.0  # requests/s for a GPU, where a search begins


def main() -> None:
    options = arguments()
    load_before = load_average()
    outcomes: list[Outcome] = []
    absent: dict[str, str] = {}
    for gpus in options.gpus:
        for name in options.servers:
            try:
                outcomes.append(measured(SERVERS[name], gpus, options))
            except (RuntimeError, subprocess.SubprocessError) as error:
                absent[f"{name}, {gpus} GPUs"] = str(error)
                say(f"{name} does not run: {error}")
            facts = circumstances(options.date, load_before) | {"absent": absent}
            write(facts, outcomes, options)  # after each: a long run that is stopped leaves what it has
    table(outcomes)
    show(bars(outcomes))
    print(caption(circumstances(options.date, load_before)))


def arguments() -> argparse.Namespace:
    flags = parser(__doc__)
    flags.add_argument(
        "servers", nargs="*", metavar="SERVER", help=f"of {', '.join(SERVERS)}; all unless given"
    )
    flags.add_argument("--gpus", type=int, nargs="+", default=[1, 2], help="1 2 unless given")
    flags.add_argument("--seconds", type=float, default=8.0, help="of each run, 8 unless given")
    flags.add_argument(
        "--repeats", type=int, default=3, help="of each search for the goodput, 3 unless given"
    )
    flags.add_argument(
        "--settings", type=Path, help="results of an earlier run: take its settings, do not tune"
    )
    flags.add_argument(
        "--shares", type=float, nargs="+", default=SHARES, help="of a server's goodput, for its curve"
    )
    flags.add_argument("--name", default="serving", help="of the files in results/")
    options = flags.parse_args()
    for name in options.servers:
        if name not in SERVERS:
            flags.error(f"there is no server {name!r}; there are {', '.join(SERVERS)}")
    options.servers = options.servers or list(SERVERS)
    options.plan = Plan(seconds=options.seconds, repeats=options.repeats)
    return options


def load_average() -> float:
    return float(Path("/proc/loadavg").read_text(encoding="ascii").split()[0])


def measured(peer: Peer, gpus: int, options: argparse.Namespace) -> Outcome:
    say(f"{peer.name}, {gpus} GPU{'s' * (gpus > 1)} ...")
    settings, guess = chosen(peer, gpus, options)
    with peer.running(gpus, settings) as server:
        return outcome(peer, gpus, settings, server, guess, options)


def chosen(peer: Peer, gpus: int, options: argparse.Namespace) -> tuple[Settings, float]:
    """Return the best settings and a first guess of the goodput with them."""
    if options.settings:
        rows = json.loads(options.settings.read_text(encoding="utf-8"))["servers"]
        known = {row["gpus"]: row for row in rows if row["server"] == peer.name and row["gpus"] <= gpus}
        if known:  # those of fewer GPUs where there are none of so many
            row = known[max(known)]
            guess = row["goodput"]["rates"][0] * gpus / row["gpus"]
            return Settings(**row["settings"]), max(guess, GUESS / 4)
    if len(peer.candidates(gpus)) == 1:
        return peer.candidates(gpus)[0], GUESS * gpus
    return tuned(peer, gpus, options.plan)


def tuned(peer: Peer, gpus: int, plan: Plan) -> tuple[Settings, float]:
    """Coarse, and a race: a later candidate is searched only if it carries more than the best so far."""
    coarse = replace(plan, seconds=max(plan.seconds / 2, 2.0), tolerance=0.05)
    best = peer.candidates(gpus)[0]
    most = 0.0
    for candidate in peer.candidates(gpus):
        with peer.running(gpus, candidate) as server:
            search = Search(server, coarse, seed=99)
            start = most * (1 + coarse.tolerance) or GUESS * gpus
            if not most or search.passes(start):
                rate = search.run(start, 1.4)
                best, most = (candidate, rate) if rate > most else (best, most)
        say(f"  {candidate}: best so far {most:.0f} requests/s with {best}")
    return best, most or GUESS * gpus / 4


def outcome(
    peer: Peer, gpus: int, settings: Settings, server: Running, guess: float, options: argparse.Namespace
) -> Outcome:
    promised = promise(peer, gpus)  # first: it is cheap, and a failure here costs no finished run
    search = goodput(server, guess, options.plan)
    say(f"  goodput {', '.join(f'{rate:.0f}' for rate in search.rates)} requests/s")
    reach = search.median or guess
    runs = [usable(server, share * reach, options.plan, seed=1) for share in options.shares]
    curve = [Point(run.rate / reach, run.rate, run.in_time_rate, run.in_time_share) for run in runs]
    return Outcome(peer.name, gpus, settings, peer.versions(), search.rates, search.unusable, curve, promised)


def promise(peer: Peer, gpus: int) -> float | None:
    """Return what the simulator promises; it knows no server but ours."""
    if not isinstance(peer, Ours):
        return None
    with tempfile.TemporaryDirectory() as folder:
        return peer.promised_goodput(gpus, Path(folder))


def write(facts: dict[str, Any], outcomes: list[Outcome], options: argparse.Namespace) -> None:
    rows = [plain(outcome) for outcome in outcomes]
    path = keep(options.name, {**facts, "plan": asdict(options.plan), "servers": rows})
    if outcomes:
        draw(outcomes, path.with_suffix(".png"))
    say(f"  written to {path.relative_to(RESULTS.parents[1])}")


def plain(outcome: Outcome) -> dict[str, Any]:
    document = asdict(outcome)
    document["goodput"] = {"median": outcome.goodput, "rates": document.pop("rates")}
    document["kept_at_twice"] = outcome.kept
    return document


if __name__ == "__main__":
    main()
