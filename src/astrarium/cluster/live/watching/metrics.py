"""Metrics show a live cluster to Prometheus. Most are read from the store when it asks, in a thread that the
arbiter does not wait for, and so go on where they were when an arbiter is followed by another."""

from __future__ import annotations

import socket
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import accumulate
from pathlib import Path
from socketserver import ThreadingMixIn
from sqlite3 import Connection
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from msgspec import json
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from astrarium.cluster.live.store import FILE, open_database
from astrarium.cluster.live.watching.history import last_instant
from astrarium.cluster.live.watching.hooks import KEY, progress_of
from astrarium.cluster.live.wire.channel import end
from astrarium.cluster.live.wire.connections import Pool, Slot
from astrarium.core.quantities import SECOND, Time

NAME = "astrarium_cluster"
WAITS = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0)
TIMES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
Labelled = Mapping[Any, float]  # by the values of labels


DURATIONS = {
    "step": ("step_duration_seconds", "How long the arbiter took to look, decide and give orders."),
    "write": ("store_write_duration_seconds", "How long it took to write a step to the store."),
}


class BucketCounts:
    """How many values there were up to each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        return list(zip([*map(str, self._bounds), "+Inf"], accumulate(self._counts), strict=True))


class Metrics(Collector):
    """Most metrics are read from the store when scraped; what only the process knows, it observes."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.registry = CollectorRegistry()
        self._took = {what: BucketCounts(TIMES) for what in DURATIONS}
        self._waits = 0.0
        self.registry.register(self)

    def observe(self, what: str, took: Time) -> None:
        if what == "wait":
            self._waits = took / SECOND
        else:
            self._took[what].add(took / SECOND)

    def serve(self, host: str, port: int) -> Any:
        """Answer Prometheus in a thread; return the server, which has `shutdown`."""
        kind = _ServerOfSix if ":" in host else _Server
        server = make_server(host, port, make_wsgi_app(self.registry), kind, handler_class=_Handler)
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return server

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not read a store that is still empty."""
        return ()

    def collect(self) -> Iterator[Metric]:
        with closing(open_database(self._home / FILE, read_only=True)) as db:
            db.execute("BEGIN")  # all are of the same instant
            yield from _gpus(db)
            yield from _apps(db)
            yield from _leases(db)
            yield from _hooks(db)
        waits = "For how long the arbiter has been waiting for its disk; 0 while it need not."
        yield _gauge("arbiter_waiting_seconds", waits, [], {(): self._waits})
        for what, (name, help_text) in DURATIONS.items():
            yield _histogram(name, help_text, [], {(): self._took[what]})


class _Handler(WSGIRequestHandler):
    timeout = 5.0  # seconds without a byte

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: Prometheus asks often."""


class _Server(ThreadingMixIn, WSGIServer):
    """A server for whoever reaches its port: of those who ask at a time, when they are many, the oldest from
    the address with most of them gives way."""

    daemon_threads = True
    MOST = 16

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._pool = Pool("metrics", self.MOST, yields=True)
        self._slots = dict[Any, Slot]()
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._slots[request] = self._pool.enter(str(client_address[0]), partial(end, request))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        if (slot := self._slots.pop(request, None)) is not None:
            slot.leave()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of somebody who has left, or had to."""


class _ServerOfSix(_Server):
    address_family = socket.AF_INET6


def _gauge(name: str, help_text: str, labels: list[str], values: Labelled) -> Metric:
    metric = GaugeMetricFamily(f"{NAME}_{name}", help_text, labels=labels)
    for label, value in sorted(values.items()):
        metric.add_metric(label, value)
    return metric


def _counter(name: str, help_text: str, labels: list[str], values: Labelled) -> Metric:
    metric = CounterMetricFamily(f"{NAME}_{name}", help_text, labels=labels)
    for label, value in sorted(values.items()):
        metric.add_metric(label, value)
    return metric


def _histogram(name: str, help_text: str, labels: list[str], values: Mapping[Any, BucketCounts]) -> Metric:
    metric = HistogramMetricFamily(f"{NAME}_{name}", help_text, labels=labels)
    for label, counts in sorted(values.items()):
        metric.add_metric(label, counts.buckets(), counts.sum)
    return metric


def _counts(db: Connection, query: str, always: Iterable[str] = ()) -> Labelled:
    """Return what a query counts, by its first columns; a rate needs a zero to start from (*always*)."""
    counts = {tuple(str(label or "") for label in row[:-1]): row[-1] for row in db.execute(query)}
    return {**{(label,): 0 for label in always}, **counts}


def _gpus(db: Connection) -> Iterator[Metric]:
    newest = """SELECT name, kind, gpus FROM events WHERE id IN
                (SELECT max(id) FROM events WHERE kind IN ('machine_joined', 'machine_lost') GROUP BY name)"""
    rows = db.execute(newest)
    machines = {name: (kind == "machine_joined", json.decode(gpus)) for name, kind, gpus in rows}
    leased = {gpu for (gpu,) in db.execute("SELECT gpu FROM leases WHERE outcome = 'open'")}
    there = {gpu for up, gpus in machines.values() if up for gpu in gpus}
    lost = sum(len(gpus) for up, gpus in machines.values() if not up)
    out = _out_of_use(db) & there - leased
    by_state = {"free": there - leased - out, "leased": leased, "out": out}
    counts = {(state,): len(gpus) for state, gpus in by_state.items()}
    help_text = "GPUs by state; out: of use; lost: of machines that were there."
    yield _gauge("gpus", help_text, ["state"], {**counts, ("lost",): lost})
    ups = {(name,): float(up) for name, (up, _) in machines.items()}
    yield _gauge("machine_up", "Whether a machine that was ever there is.", ["machine"], ups)
    row = db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    yield _gauge("arbiter_epoch", "How many arbiters there have been.", [], {(): row[0] if row else 0})


def _out_of_use(db: Connection) -> set[int]:
    newest = """SELECT kind, gpus FROM events WHERE id IN
                (SELECT max(id) FROM events WHERE kind IN ('gpu_failed', 'gpu_repaired') GROUP BY gpus)"""
    return {gpu for kind, gpus in db.execute(newest) if kind == "gpu_failed" for gpu in json.decode(gpus)}


def _apps(db: Connection) -> Iterator[Metric]:
    query = """SELECT CASE WHEN outcome != 'open' THEN outcome WHEN running THEN 'running' ELSE 'waiting' END
               AS state, team, count(*) FROM apps LEFT JOIN (SELECT app, count(*) AS running FROM jobs
               WHERE outcome = 'running' GROUP BY app) ON app = id GROUP BY 1, 2"""
    yield _gauge("apps", "Apps by state and team.", ["state", "team"], _counts(db, query))
    yield _waits(db)
    preempted = """SELECT cause, team, count(*) FROM events WHERE kind = 'preempted' GROUP BY 1, 2"""
    help_text = "How often apps lost all of their GPUs, by cause and team."
    yield _counter("preemptions", help_text, ["cause", "team"], _counts(db, preempted))
    refused = {(): db.execute("SELECT count(*) FROM events WHERE kind = 'refused'").fetchone()[0]}
    yield _counter("submissions_refused", "Messages that the arbiter refused.", [], refused)


def _waits(db: Connection) -> Metric:
    """Return how long apps waited from their submission to their first GPUs, by team."""
    query = """SELECT coalesce(team, ''), min(since) - submitted FROM apps JOIN leases ON app = apps.id
               GROUP BY apps.id"""
    waits: dict[tuple[str, ...], BucketCounts] = {}
    for team, waited in db.execute(query):
        waits.setdefault((team,), BucketCounts(WAITS)).add(waited / SECOND)
    help_text = "How long apps waited from their submission to their first GPUs."
    return _histogram("wait_seconds", help_text, ["team"], waits)


def _leases(db: Connection) -> Iterator[Metric]:
    granted, renewed = db.execute("SELECT count(*), coalesce(sum(renewed), 0) FROM leases").fetchone()
    yield _counter("leases_granted", "Leases of one GPU each.", [], {(): granted})
    yield _counter("leases_renewed", "Renewals of leases.", [], {(): renewed})
    query = "SELECT outcome, count(*) FROM {} WHERE outcome != 'open' GROUP BY 1"
    ended = _counts(db, query.format("leases"), ("expired", "revoked", "lost", "returned"))
    yield _counter("leases_ended", "Leases that have ended, by how.", ["outcome"], ended)
    runs = _counts(db, query.format("runs"), ("finished", "stopped", "failed", "lost"))
    yield _counter("runs", "Runs of jobs that have ended, by how.", ["outcome"], runs)
    yield from _gpu_time(db)


def _gpu_time(db: Connection) -> Iterator[Metric]:
    """Yield sums that SQLite adds up: there may be very many rows."""
    now = last_instant(db)
    of_team = "JOIN apps ON apps.id = app GROUP BY 1"
    until = f"max(0, coalesce({{0}}.ended, {now}) - {{0}}.{{1}})"
    leased = f"SELECT team, sum({until.format('leases', 'since')}) / 1e9 FROM leases {of_team}"
    yield _counter("gpu_seconds", "GPU time leased, by team.", ["team"], _counts(db, leased))
    took = f"coalesce({until.format('runs', 'began')}, 0) * json_array_length(gpus)"
    busy = f"SELECT team, sum({took}) / 1e9 FROM runs {of_team}"
    help_text = "GPU time in which a process was up, by team; also while it left after its lease."
    yield _counter("busy_gpu_seconds", help_text, ["team"], _counts(db, busy))


def _hooks(db: Connection) -> Iterator[Metric]:
    row = db.execute("SELECT value FROM meta WHERE key = ?", (KEY,)).fetchone()
    outcomes = ("delivered", "failed", "dropped")
    counts = {
        (hook.name, outcome): getattr(hook, outcome)
        for hook in progress_of(row and row[0]).values()
        for outcome in outcomes
    }
    yield _counter("hook_events", "Events for hooks, by what became of them.", ["hook", "outcome"], counts)
