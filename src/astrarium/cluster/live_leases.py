"""When leases end on a live cluster: GPUs that nobody had left yet are not counted against who waited."""

from __future__ import annotations

from collections.abc import Iterator

from astrarium.cluster.events import LeaseExpired
from astrarium.cluster.ledger import AppRow
from astrarium.cluster.live_memory import Memory
from astrarium.cluster.seen import RunKey
from astrarium.cluster.state import ClusterState
from astrarium.core.units import FOREVER, Time


def expired(now: Time, state: ClusterState, memory: Memory, handover: Time) -> Iterator[LeaseExpired]:
    for app, row in state.apps.items():
        if all(until > now for until in row.leases.values()):
            continue
        extra = _waited(now, row, memory, handover)
        over = [gpu for gpu, until in row.leases.items() if until + extra.get(gpu, 0) <= now]
        for until in sorted({row.leases[gpu] for gpu in over}):
            yield LeaseExpired(app, tuple(gpu for gpu in over if row.leases[gpu] == until), until)


def _waited(now: Time, row: AppRow, memory: Memory, handover: Time) -> dict[int, Time]:
    """By GPU: for how long the app could not use it, since somebody else had not left yet. A lease that
    has ended in spite of that makes up for it only once."""
    extra: dict[int, Time] = {}
    for number, job in row.jobs.items():
        key = RunKey(row.app.id, number, job.run)
        since = memory.ordered.get(key)
        waited = min(memory.late.get(key, 0) if since is None else now - since, handover)
        if any(row.leases.get(gpu, FOREVER) + waited <= now for gpu in job.gpus):
            memory.late.pop(key, None)
        extra.update(dict.fromkeys(job.gpus, waited))
    return extra
