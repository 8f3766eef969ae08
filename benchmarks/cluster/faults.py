"""A live cluster of two users on which everything goes wrong, and what must hold all the same.

Jobs of two users run as their owners on one cluster, while the arbiter and keepers are killed, every fifth
job attacks, the disk of jobs is full for a while, and connections flood the arbiter. What is broken is told,
and is the exit code. It must be root, and needs a Python of the system that everybody can run.

python benchmarks/cluster/faults.py --quick
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from _fault_cluster import FaultyCluster
from _fault_laws import ATTACKS, FaultApp
from _fault_place import cluster_place
from _fault_rows import broken, counted
from _fault_users import USERS, LogsRead, Poll

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what all benchmarks share

from _measure import Row, number


def main() -> int:
    options = _arguments()
    if os.geteuid() != 0:
        sys.exit("faults.py runs jobs as other users: it must be root")
    with cluster_place() as place:
        cluster = FaultyCluster(place, Random(options.seed))
        apps = drawn(options.apps, options.every, Random(options.seed))
        try:
            rows = played(cluster, apps, options)
        finally:
            cluster.clear()
    print(table(rows))
    return int(any(row.met is False for row in rows))


def table(rows: Sequence[Row]) -> str:
    rows_of_cells = [("what", "seen", "must be"), ("---",) * 3]
    for row in rows:
        law = "" if row.bar is None else f"{number(row.bar)}{'' if row.met else ' (BROKEN)'}"
        rows_of_cells.append((row.what, f"{number(row.median)} {row.unit}".strip(), law))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows_of_cells)


def drawn(count: int, every: int, rng: Random) -> list[FaultApp]:
    """Return apps of both users in turns: short ones of one or two GPUs. One of *every* so many attacks."""
    apps = []
    for index in range(count):
        kind = ATTACKS[index // every % len(ATTACKS)] if index % every == 0 else "honest"
        user = list(USERS)[(index // every + index) % len(USERS)]
        apps.append(FaultApp(f"app-{index}", user, kind, rng.randrange(10, 80), rng.choice((1, 1, 1, 2))))
    return apps


def played(cluster: FaultyCluster, apps: Sequence[FaultApp], options: argparse.Namespace) -> list[Row]:
    began = time.monotonic()
    cluster.arbiter.start()
    users = [cluster.submitting(apps, user, options.seconds) for user in USERS]
    others = cluster.others()
    cluster.suffer(options.seconds)
    cluster.rest(users, apps, others)
    polls = [Poll(*poll) for poll in others["poll"].end()]
    logs = [LogsRead(*log) for user in USERS for log in cluster.logs(apps, user).results()]
    cluster.arbiter.leave()
    rows = list(broken(cluster, apps, logs))
    return [*rows, *counted(cluster, apps, polls, time.monotonic() - began)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="24 apps in less than a minute")
    parser.add_argument("--apps", type=int)
    parser.add_argument("--every", type=int, help="of so many apps, one attacks")
    parser.add_argument("--seconds", type=float, help="for how long faults happen")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.apps = options.apps or (24 if options.quick else 200)
    options.every = options.every or (2 if options.quick else 5)
    options.seconds = options.seconds or (20.0 if options.quick else 150.0)
    return options


if __name__ == "__main__":
    sys.exit(main())
