"""A run as a trace that chrome://tracing and ui.perfetto.dev open: a track for each GPU, a slice for each
batch, a counter of waiting requests, a mark for each drop.

Long runs are cut: the trace then begins at the end of the warm-up and holds the first batches from there.
What was left out stands in the metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from astrarium.core.quantities import MICROSECOND, Time
from astrarium.run.timeline import Entry, counter, process, slice_of, thread
from astrarium.run.timeline import timeline as document
from astrarium.serving.autoscale import occupancy
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.record import Ints, ServingRecord

MOST_SLICES = 20_000
_MOST_DROPS = 4_000
_MOST_SAMPLES = 4_000
# process numbers in the trace
_GPUS = 1
_REQUESTS = 2
_FATES = {Fate.PREEMPTED: " (preempted)", Fate.FAILED: " (failed)"}


def timeline(record: ServingRecord, most_slices: int = MOST_SLICES) -> Entry:
    runs = _chosen(record, most_slices)
    begin, end = _span(record, runs, most_slices)
    drops = _dropped(record, begin, end)
    shown = drops[:_MOST_DROPS]
    events = [*_names(record), *_slices(record, runs), *_waiting(record, begin, end), *_drops(record, shown)]
    metadata = {
        "policy": record.policy,
        "batches": len(record.batches.fate),
        "batches_shown": len(runs),
        "drops_in_this_stretch": len(drops),
        "drops_shown": len(shown),
        "note": _note(record, len(runs)),
    }
    return document(events, metadata)


def _chosen(record: ServingRecord, most: int) -> Ints:
    """Return the numbers of all batches if they fit, else the first after the warm-up."""
    ended = record.batches.fate != Fate.RUNNING
    if np.count_nonzero(ended) > most:
        ended &= record.batches.dispatched >= record.warmup
    return np.flatnonzero(ended)[:most]


def _span(record: ServingRecord, runs: Ints, most: int) -> tuple[Time, Time]:
    if len(runs) < most or not len(runs):
        return 0, max(record.duration, int(record.batches.finished[runs].max(initial=0)))
    dispatched = record.batches.dispatched[runs]
    return int(dispatched[0]), int(dispatched[-1])


def _note(record: ServingRecord, shown: int) -> str:
    total = len(record.batches.fate)
    if shown == total:
        return "every batch of the run"
    return f"{shown} of {total} batches, from the end of the warm-up on; batches.npz holds all of them"


def _names(record: ServingRecord) -> Iterator[Entry]:
    for number, name in ((_GPUS, "GPUs"), (_REQUESTS, "Requests")):
        yield process(number, name)
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}}
    for gpu in record.setup.gpus:
        yield from thread(_GPUS, gpu.id, f"GPU {gpu.id} ({gpu.kind})")
    yield from thread(_REQUESTS, 0, "drops")


def _slices(record: ServingRecord, runs: Ints) -> Iterator[Entry]:
    batches = record.batches
    names = [model.name for model in record.setup.models]
    started, finished = occupancy(batches)
    columns = (batches.model, batches.gpu, batches.size, batches.fate, batches.dispatched, started, finished)
    rows = zip(*(column[runs].tolist() for column in columns), _requests_of(record, runs), strict=True)
    for model, gpu, size, fate, dispatched, start, end, requests in rows:
        name = f"{names[model]} ×{size}{_FATES.get(fate, '')}"
        details = {"batch_size": size, "dispatched_us": dispatched / MICROSECOND, "requests": requests}
        yield slice_of(name, _GPUS, gpu, start, end, cat=names[model], args=details)


def _requests_of(record: ServingRecord, runs: Ints) -> list[list[int]]:
    """Return the requests that each batch ended; a preempted batch ended none."""
    if not len(runs):
        return []
    batch = record.requests.batch
    mine = np.flatnonzero((batch >= runs[0]) & (batch <= runs[-1]))
    ordered = mine[np.argsort(batch[mine], kind="stable")]
    edges = np.searchsorted(batch[ordered], np.append(runs, runs[-1] + 1)).tolist()
    numbers = ordered.tolist()
    return [numbers[a:b] for a, b in pairwise(edges)]


def _waiting(record: ServingRecord, begin: Time, end: Time) -> Iterator[Entry]:
    times = np.linspace(begin, end, _MOST_SAMPLES).astype(np.int64)
    counts = waiting_at(record, times)
    changed = np.flatnonzero(np.diff(counts, prepend=-1))
    for at, count in zip(times[changed].tolist(), counts[changed].tolist(), strict=True):
        yield counter("waiting", _REQUESTS, at, {"requests": count})


def _dropped(record: ServingRecord, begin: Time, end: Time) -> Ints:
    requests = record.requests
    inside = (requests.done >= begin) & (requests.done <= end)
    dropped = np.flatnonzero(inside & (requests.outcome == Outcome.DROPPED))
    return dropped[np.argsort(requests.done[dropped], kind="stable")]


def _drops(record: ServingRecord, dropped: Ints) -> Iterator[Entry]:
    requests = record.requests
    models = record.setup.models
    columns = (requests.done, requests.arrival, requests.model, requests.reason)
    rows = zip(dropped.tolist(), *(column[dropped].tolist() for column in columns), strict=True)
    for request, done, arrival, model, reason in rows:
        waited = (done - arrival) / MICROSECOND
        yield {
            "ph": "i",
            "s": "t",
            "name": f"drop: {record.reasons[reason] or 'unstated'}",
            "pid": _REQUESTS,
            "tid": 0,
            "ts": done / MICROSECOND,
            "args": {"request": request, "model": models[model].name, "waited_us": waited},
        }


def waiting_at(record: ServingRecord, times: Ints) -> Ints:
    """How many requests had arrived and were neither dispatched nor ended at each of *times*.

    A request that was preempted counts as waiting until its last batch left.
    """
    requests = record.requests
    dispatched = np.concatenate((record.batches.dispatched, [0]))  # batch -1 finds the last place
    left = np.where(requests.batch >= 0, dispatched[requests.batch], requests.done)
    waiting: Ints = np.searchsorted(requests.arrival, times, "right") - np.searchsorted(
        np.sort(left), times, "right"
    )
    return waiting
