"""The timeline of a run has a process for each machine and a track for each GPU.

A slice is a time that an app held the GPU; counters tell how full the cluster was. Of a long run the timeline
holds the beginning; its metadata says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from astrarium.cluster.record import ClusterRecord
from astrarium.core.quantities import Time
from astrarium.run.timeline import Entry, counter, process, slice_of, thread, timeline

if TYPE_CHECKING:
    pass


MOST_SLICES = 40_000
_COUNTERS = 1_000_000  # a process number that no machine has


def cluster_timeline(record: ClusterRecord, most: int = MOST_SLICES) -> Entry:
    held = record.held[:most]
    end = record.end if len(held) == len(record.held) else held[-1].start
    events = [*_names(record), *_slices(record, most), *_runs(record, end), *_counters(record, end)]
    metadata = {
        "policy": record.policy,
        "leases": len(record.held),
        "leases_shown": len(held),
        "note": "every lease of the run"
        if len(held) == len(record.held)
        else f"the first {len(held)} of {len(record.held)} leases; leases.csv holds all of them",
    }
    return timeline(events, metadata)


def _names(record: ClusterRecord) -> Iterator[Entry]:
    for machine, rack in record.racks.items():
        yield process(machine + 1, f"machine {machine} (rack {rack})")
    yield process(_COUNTERS, "cluster")
    for gpu, machine in record.machines.items():
        yield from thread(machine + 1, gpu, f"GPU {gpu}")


def _slices(record: ClusterRecord, most: int) -> Iterator[Entry]:
    """Yield each lease, with what ran there inside it."""
    rows = {row.app.id: row.app for row in record.rows}
    for lease in record.held[:most]:
        app = rows[lease.app]
        yield {
            **slice_of(app.name, record.machines[lease.gpu] + 1, lease.gpu, lease.start, lease.end),
            "cat": app.team or app.name,
            "args": {"app": app.name, "team": app.team},
        }


def _runs(record: ClusterRecord, end: Time) -> Iterator[Entry]:
    for run in record.ran:
        if run.start <= end:
            for gpu in run.gpus:
                label = f"job {run.job} on {len(run.gpus)}"
                shown = slice_of(label, record.machines[gpu] + 1, gpu, run.start, run.end)
                yield {**shown, "cat": "run", "args": {"gpus": list(run.gpus), "placement_score": run.score}}


def _counters(record: ClusterRecord, end: Time) -> Iterator[Entry]:
    for level in record.levels:
        if level.at <= end:
            idle = level.leased - level.busy
            free = level.gpus - level.leased
            used = {"busy": level.busy, "idle lease": idle, "free": free}
            yield counter("GPUs", _COUNTERS, level.at, used)
            apps = {"waiting": level.waiting, "served": level.apps - level.waiting}
            yield counter("apps", _COUNTERS, level.at, apps)
