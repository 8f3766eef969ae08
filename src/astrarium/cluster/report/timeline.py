"""Who held what when, as a trace that chrome://tracing and ui.perfetto.dev open: a process for each machine,
a track for each GPU, a slice for each time that an app held it, and counters of how full the cluster was.

Long runs are cut: the trace then holds their beginning. What was left out stands in the metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from astrarium.cluster.machines import Machine
from astrarium.cluster.record import ClusterRecord, Ran
from astrarium.core.units import MICROSECOND, Time

MOST_SLICES = 40_000
_COUNTERS = 1_000_000  # a process number that no machine has

Entry = dict[str, Any]


def write_cluster_timeline(record: ClusterRecord, machines: Mapping[int, Machine], path: Path) -> None:
    path.write_bytes(msgspec.json.encode(cluster_timeline(record, machines)))


def cluster_timeline(
    record: ClusterRecord, machines: Mapping[int, Machine], most: int = MOST_SLICES
) -> Entry:
    held = record.held[:most]
    end = record.end if len(held) == len(record.held) else held[-1].start
    events = [*_names(record, machines), *_slices(record, most), *_runs(record, end), *_counters(record, end)]
    metadata = {
        "policy": record.policy,
        "leases": len(record.held),
        "leases_shown": len(held),
        "note": "every lease of the run"
        if len(held) == len(record.held)
        else f"the first {len(held)} of {len(record.held)} leases; leases.csv holds all of them",
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "metadata": metadata}


def _names(record: ClusterRecord, machines: Mapping[int, Machine]) -> Iterator[Entry]:
    for machine in machines.values():
        name = f"machine {machine.id} (rack {machine.rack})"
        yield {"ph": "M", "name": "process_name", "pid": machine.id + 1, "args": {"name": name}}
    yield {"ph": "M", "name": "process_name", "pid": _COUNTERS, "args": {"name": "cluster"}}
    for gpu, machine_id in record.machines.items():
        thread = {"ph": "M", "pid": machine_id + 1, "tid": gpu}
        yield {**thread, "name": "thread_name", "args": {"name": f"GPU {gpu}"}}
        yield {**thread, "name": "thread_sort_index", "args": {"sort_index": gpu}}


def _slices(record: ClusterRecord, most: int) -> Iterator[Entry]:
    """A lease; what ran there stands inside it."""
    rows = {row.app.id: row.app for row in record.rows}
    for each in record.held[:most]:
        app = rows[each.app]
        yield {
            **_slice(app.name, record.machines[each.gpu], each.gpu, each.start, each.end),
            "cat": app.team or app.name,
            "args": {"app": app.name, "team": app.team},
        }


def _runs(record: ClusterRecord, end: Time) -> Iterator[Entry]:
    for run in record.ran:
        if run.start <= end:
            for gpu in run.gpus:
                shown = _slice(_told(run), record.machines[gpu], gpu, run.start, run.end)
                yield {**shown, "cat": "run", "args": {"gpus": list(run.gpus), "placement_score": run.score}}


def _told(run: Ran) -> str:
    return f"job {run.job} on {len(run.gpus)}"


def _slice(name: str, machine: int, gpu: int, start: Time, end: Time) -> Entry:
    times = {"ts": start / MICROSECOND, "dur": (end - start) / MICROSECOND}
    return {"ph": "X", "name": name, "pid": machine + 1, "tid": gpu, **times}


def _counters(record: ClusterRecord, end: Time) -> Iterator[Entry]:
    for level in record.levels:
        if level.at <= end:
            at = {"ph": "C", "pid": _COUNTERS, "ts": level.at / MICROSECOND}
            used = {
                "busy": level.busy,
                "idle lease": level.leased - level.busy,
                "free": level.gpus - level.leased,
            }
            yield {**at, "name": "GPUs", "args": used}
            apps = {"waiting": level.waiting, "served": level.apps - level.waiting}
            yield {**at, "name": "apps", "args": apps}
