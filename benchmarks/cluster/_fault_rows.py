"""What the cluster of faults.py shows at its end: how often each law was broken, and what happened."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from _fault_arbiter import ENDED
from _fault_cluster import FaultyCluster
from _fault_laws import (
    FaultApp,
    by_the_jobs,
    in_the_folders,
    in_the_store,
    left_over,
    noted,
    outcomes,
    query,
    results,
)
from _fault_users import USERS, LogsRead, Poll

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what all benchmarks share

from _measure import Row

ORPHANS = "daemons whose keeper was killed, and which are left"


def broken(cluster: FaultyCluster, apps: Sequence[FaultApp], logs: Sequence[LogsRead]) -> Iterator[Row]:
    """Yield a row for each law: how often it is broken, which must be never."""
    left, orphans = _left(cluster)
    counts = [*in_the_store(cluster.home, apps), *by_the_jobs(cluster.place)]
    counts.append(("guarded files that were read or changed", cluster.guarded.touched()))
    counts += in_the_folders(cluster.place, cluster.jobs, cluster.token.encode())
    counts += results(cluster.jobs, apps)
    counts.append(("logs shown with words of a guarded file", sum(log.leaked for log in logs)))
    counts.append(("users who read logs of others", len(USERS) - sum(log.refused for log in logs)))
    counts.append(("processes that outlived their job", left - orphans))
    counts.append((ENDED, cluster.counts.pop(ENDED, 0)))
    counts.append(("errors of the arbiter", cluster.arbiter.errors))
    cluster.counts[ORPHANS] = orphans
    cluster.counts["MB of logs read"] = round(sum(log.size for log in logs) / 1e6)
    return (Row(what, "", [float(count)], 0.0, less_is_better=True) for what, count in counts)


def _left(cluster: FaultyCluster) -> tuple[int, int]:
    """Return how many processes are left, and how many of them are of jobs whose keepers were killed."""
    time.sleep(1)
    left = left_over()
    lost = query(cluster.home, "SELECT name FROM runs JOIN apps ON app = id WHERE runs.outcome = 'lost'")
    numbers = {name.rpartition("-")[2] for (name,) in lost}
    return len(left), sum(command.rpartition(".")[2] in numbers for command in left.values())


def counted(
    cluster: FaultyCluster, apps: Sequence[FaultApp], polls: Sequence[Poll], seconds: float
) -> Iterator[Row]:
    """Yield what was measured, and shows that something has happened."""
    ended = outcomes(cluster.home)
    runs = query(cluster.home, "SELECT outcome, count(*) FROM runs GROUP BY outcome")
    yield Row("apps submitted", "", [float(len(apps))])
    attackers = [app.name for app in apps if not app.honest]
    yield Row("attackers among them", "", [float(len(attackers))])
    for outcome in ("finished", "failed"):
        yield Row(f"attackers {outcome}", "", [float(sum(ended[name] == outcome for name in attackers))])
    for outcome, count in runs:
        yield Row(f"runs {outcome}", "", [float(count)])
    for what, count in cluster.counts.items():
        yield Row(what, "", [float(count)])
    ran = [line.split()[-1] for user in USERS for line in noted(cluster.place, user, "ran")]
    yield Row("times that a job held a GPU", "", [float(len(ran))])
    yield Row("GPUs that were held", "", [float(len(set(ran)))])
    yield from answers(polls)
    yield Row("memory of the arbiter at most", "MiB", [cluster.arbiter.peak_kib / 1024])
    yield Row("descriptors of the arbiter at most", "", [float(cluster.arbiter.descriptors)])
    yield Row("all of it", "s", [seconds])


def answers(polls: Sequence[Poll]) -> Iterator[Row]:
    """Yield how long answers to `status` took, and the longest time without one."""
    ends = [poll.at + poll.took for poll in polls]
    waits = [poll.took for poll in polls]
    yield Row("answers to status", "", [float(len(polls))])
    yield Row("an answer: median", "ms", [1000 * statistics.median(waits)])
    yield Row("an answer at most", "s", [max(waits)])
    gaps = (after - before for before, after in pairwise(ends))
    yield Row("longest without one, restarts included", "s", [max(gaps)])
