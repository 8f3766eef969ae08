"""Metrics show the server's accounts to Prometheus when it asks, so that counting costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from astrarium.core.quantities import SECOND, Time
from astrarium.server.control.accounts.accounts import Accounts
from astrarium.server.control.accounts.causes import (
    INPUTS,
    MODEL_ERROR,
    POLICY_ERROR,
    QUARANTINED,
    WORKER_LOST,
)
from astrarium.server.control.accounts.histogram import PrometheusHistogram
from astrarium.server.control.accounts.last_minute import LastMinute
from astrarium.server.control.accounts.model_accounts import OUTCOMES
from astrarium.serving.autoscale import advise
from astrarium.serving.contract import EXPIRED, SACRIFICED, UNSERVED

# A rate needs a zero to start from.
_ALWAYS_SHOWN = {
    ("in_time", ""),
    ("late", ""),
    *(("dropped", reason) for reason in (EXPIRED, SACRIFICED, UNSERVED)),
    *(("failed", reason) for reason in (WORKER_LOST, MODEL_ERROR, POLICY_ERROR, QUARANTINED, INPUTS)),
}


class Sources(Protocol):
    """Sources are where numbers come from that the accounts do not have."""

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return other values of now: name to explanation and value."""

    def counters(self) -> dict[str, tuple[str, float]]:
        """Return values that only grow: name to explanation and value."""

    def counters_by(self) -> dict[str, tuple[str, str, Mapping[str, float]]]:
        """Return values that only grow, by a label: name to explanation, label and values."""

    def facts(self) -> dict[str, tuple[str, Mapping[str, str]]]:
        """Return what holds as long as the server runs: name to explanation and labels."""


class Metrics(Collector):
    def __init__(self, accounts: Accounts, sources: Sources, clock: Callable[[], Time]) -> None:
        self._accounts = accounts
        self._sources = sources
        self._clock = clock
        self._started = clock()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not read accounts that are still empty."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._calls()
        yield from self._times()
        yield from self._gpus()
        yield from self._advice()
        for name, (explanation, value) in self._sources.gauges().items():
            yield GaugeMetricFamily(f"astrarium_{name}", explanation, value)
        for name, (explanation, value) in self._sources.counters().items():
            yield CounterMetricFamily(f"astrarium_{name}", explanation, value)
        for name, (explanation, label, counts) in self._sources.counters_by().items():
            family = CounterMetricFamily(f"astrarium_{name}", explanation, labels=[label])
            for kind, number in sorted(counts.items()):
                family.add_metric([kind], number)
            yield family
        for name, (explanation, labels) in self._sources.facts().items():
            fact = GaugeMetricFamily(f"astrarium_{name}", explanation, labels=list(labels))
            fact.add_metric(list(labels.values()), 1)
            yield fact

    def _calls(self) -> Iterator[Metric]:
        accepted = CounterMetricFamily("astrarium_accepted", "Calls let in.", labels=["model"])
        ended = CounterMetricFamily(
            "astrarium_ended", "Accepted calls by how they ended.", labels=["model", "outcome", "reason"]
        )
        refused = CounterMetricFamily(
            "astrarium_refused", "Calls turned away at the door.", labels=["model", "reason"]
        )
        retried = CounterMetricFamily("astrarium_retried", "Requests tried again.", labels=["model"])
        split = CounterMetricFamily(
            "astrarium_split_batches",
            "Batches run in parts of equal shape, since padding changes the model's answers.",
            labels=["model"],
        )
        beside = CounterMetricFamily(
            "astrarium_batches_beside_graphs",
            "Batches, or parts of one, that none of the model's CUDA graphs could run.",
            labels=["model"],
        )
        refusing = GaugeMetricFamily(
            "astrarium_refuses_all", "1 while the model turns away all calls.", labels=["model"]
        )
        failing = GaugeMetricFamily(
            "astrarium_fails_all", "1 while the model fails every call.", labels=["model"]
        )
        trials = CounterMetricFamily(
            "astrarium_trials",
            "Calls that the server made up for a failing model.",
            labels=["model", "outcome"],
        )
        still = GaugeMetricFamily("astrarium_open", "Accepted calls that have not ended.", labels=["model"])
        for accounts in self._accounts.models:
            accepted.add_metric([accounts.name], accounts.accepted)
            retried.add_metric([accounts.name], accounts.retried)
            split.add_metric([accounts.name], accounts.split)
            beside.add_metric([accounts.name], accounts.beside_graphs)
            still.add_metric([accounts.name], accounts.open)
            refusing.add_metric([accounts.name], bool(accounts.refusing))
            failing.add_metric([accounts.name], bool(accounts.failing))
            for outcome, reason in sorted(_ALWAYS_SHOWN | accounts.ended.keys()):
                ended.add_metric([accounts.name, outcome, reason], accounts.ended[outcome, reason])
            for kind, number in accounts.refused.items():
                refused.add_metric([accounts.name, kind], number)
        for accounts in self._accounts.trials:
            for outcome in OUTCOMES.values():
                count = sum(number for key, number in accounts.ended.items() if key[0] == outcome)
                trials.add_metric([accounts.name, outcome], count)
        yield from (accepted, ended, refused, retried, split, beside, still, refusing, failing, trials)

    def _times(self) -> Iterator[Metric]:
        shown = (
            ("latency", "From the receipt of an answered call to its answer."),
            ("queueing", "From the receipt of an answered call to the start of its batch."),
            ("execution", "Of a batch on its GPU."),
        )
        for name, explanation in shown:
            family = HistogramMetricFamily(f"astrarium_{name}_seconds", explanation, labels=["model"])
            for accounts in self._accounts.models:
                _add(family, accounts.name, getattr(accounts, name))
            yield family
        sizes = HistogramMetricFamily("astrarium_batch_size", "Requests in a batch.", labels=["model"])
        for accounts in self._accounts.models:
            _add(sizes, accounts.name, accounts.batch_size)
        yield sizes
        yield from self._lengths()

    def _lengths(self) -> Iterator[Metric]:
        """Yield how much of the work of models with lengths was padding."""
        came = CounterMetricFamily(
            "astrarium_request_length",
            "Lengths of the requests in batches that ran.",
            labels=["model"],
        )
        computed = CounterMetricFamily(
            "astrarium_computed_length", "The same with what they were padded to.", labels=["model"]
        )
        for accounts in self._accounts.models:
            if accounts.computed:
                came.add_metric([accounts.name], accounts.length)
                computed.add_metric([accounts.name], accounts.computed)
        yield from (came, computed)

    def _gpus(self) -> Iterator[Metric]:
        busy = CounterMetricFamily("astrarium_gpu_busy_seconds", "Time spent on batches.", labels=["gpu"])
        for gpu, spent in enumerate(self._accounts.gpu_busy):
            busy.add_metric([str(gpu)], spent / SECOND)
        yield busy

    def _advice(self) -> Iterator[Metric]:
        now = self._clock()
        recent = self._accounts.recent.totals(now)
        gpus = len(self._accounts.gpu_busy)
        span = min(now - self._started, LastMinute.SECONDS * SECOND) or 1
        idle = min(1.0, max(0.0, 1 - recent.busy / (span * gpus)))
        bad = 1 - recent.good / recent.ended if recent.ended else 0.0
        advice = advise(gpus, bad, idle)
        values = (
            ("bad_fraction", "Calls of the last minute not answered in time.", advice.bad_rate),
            ("gpu_busy_fraction", "Over all GPUs in the last minute.", 1 - idle),
            ("gpus_to_add", "Advice: GPUs that the load of the last minute lacks.", advice.allocate),
            ("gpus_to_release", "Advice: GPUs that the load of the last minute leaves idle.", advice.release),
        )
        for name, explanation, value in values:
            yield GaugeMetricFamily(f"astrarium_{name}", explanation, value)


def _add(family: HistogramMetricFamily, model: str, histogram: PrometheusHistogram) -> None:
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
    family.add_metric([model], buckets, histogram.sum)
