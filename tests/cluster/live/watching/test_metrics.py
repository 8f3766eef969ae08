"""Metrics as Prometheus reads them, compared with the store; and the page that lists them."""

from __future__ import annotations

import re
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from astrarium.cluster.live.backend import Sickness
from astrarium.cluster.live.store import FILE, open_database
from astrarium.cluster.live.watching.history import last_instant
from astrarium.cluster.live.watching.hooks import Hook, Hooks
from astrarium.cluster.live.watching.metrics import Metrics
from astrarium.core.quantities import SECOND
from tests.support.cluster.virtual_cluster import VirtualCluster
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "cluster" / "seeing.md"


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Metrics:
    monkeypatch.setenv("no_proxy", "*")
    return Metrics(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, metrics: Metrics) -> VirtualCluster:
    return VirtualCluster(tmp_path, observe=metrics.observe)


@pytest.fixture
def address(metrics: Metrics) -> Iterator[str]:
    server = metrics.serve("127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()


def scraped(address: str) -> dict[str, Metric]:
    with urllib.request.urlopen(address, timeout=60) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(families: dict[str, Metric], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    samples = families[f"astrarium_cluster_{name}"].samples
    wanted = [sample for sample in samples if not sample.name.endswith(("_bucket", "_sum", "_created"))]
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in wanted}


def lived(cluster: VirtualCluster) -> None:
    cluster.backend.breaks = {2}
    for name, gpus, team in (("a", 4, "red"), ("b", 2, "blue"), ("bad", 1, "")):
        cluster.submit(name, gpus, team=team)
    cluster.submit("huge", 9)
    cluster.go(8)
    cluster.backend.lose("right")
    cluster.go(8)


def test_what_is_scraped_is_what_the_store_says(cluster: VirtualCluster, address: str) -> None:
    lived(cluster)
    families = scraped(address)
    state = cluster.arbiter.state
    assert values(families, "gpus", "state") == {
        ("free",): len(state.free), ("leased",): len(state.holder), ("out",): 0, ("lost",): 2
    }  # fmt: skip
    assert values(families, "machine_up", "machine") == {("left",): 1, ("right",): 0}
    open_leases = cluster.count("leases", "outcome = 'open'")
    assert values(families, "leases_granted")[()] == cluster.count("leases")
    assert sum(values(families, "leases_ended", "outcome").values()) == cluster.count("leases") - open_leases
    for outcome in ("expired", "lost", "revoked", "returned"):
        assert values(families, "leases_ended", "outcome")[outcome,] == cluster.count(
            "leases", f"outcome='{outcome}'"
        )
    assert values(families, "runs", "outcome")["failed",] == cluster.count("runs", "outcome = 'failed'") == 3
    assert sum(values(families, "apps", "state", "team").values()) == cluster.count("apps") == 3
    assert values(families, "apps", "state", "team")["failed", ""] == 1
    preempted = values(families, "preemptions", "cause", "team")
    assert sum(preempted.values()) == cluster.count("events", "kind = 'preempted'") > 0
    assert values(families, "submissions_refused")[()] == 1
    assert values(families, "arbiter_epoch")[()] == 1
    now = last_instant(open_database(cluster.home / FILE, read_only=True))
    for team in ("red", "blue"):
        of_team = f"app IN (SELECT id FROM apps WHERE team = '{team}')"
        [row] = cluster.rows(
            f"SELECT sum(coalesce(ended, {now}) - since) AS total FROM leases WHERE {of_team}"
        )
        assert values(families, "gpu_seconds", "team")[team,] == pytest.approx(row["total"] / SECOND)
    started = cluster.rows("SELECT count(DISTINCT app) AS n FROM leases")[0]["n"]
    assert sum(values(families, "wait_seconds", "team").values()) == started
    assert values(families, "store_write_duration_seconds")[()] == cluster.count("steps")


def test_gpus_that_are_out_of_use_are_not_free(cluster: VirtualCluster, address: str) -> None:
    cluster.go(1)
    cluster.backend.sicken("right", gpu0=Sickness("hot"))
    cluster.go(1)
    assert values(scraped(address), "gpus", "state") == {
        ("free",): 3, ("leased",): 0, ("out",): 1, ("lost",): 0
    }  # fmt: skip
    cluster.backend.sicken("right")
    cluster.submit("", kind="retry", machine="right", gpu=0)
    cluster.go(1)
    assert values(scraped(address), "gpus", "state")["free",] == 4


def test_counters_never_fall_and_outlive_an_arbiter(cluster: VirtualCluster, address: str) -> None:
    before: dict[tuple[str, ...], float] = {}
    for turn in range(12):
        cluster.submit(f"app {turn}", 1 + turn % 4, team=("red", "blue")[turn % 2])
        cluster.go(5)
        if turn % 4 == 3:
            cluster.die_and_come_back()
        now = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in scraped(address).values()
            if family.type == "counter"
            for sample in family.samples
        }
        assert all(now[key] >= value for key, value in before.items())
        before = now
    assert any(name == "astrarium_cluster_gpu_seconds_total" for name, *_ in before)


def test_names_follow_the_rules_and_are_in_the_page(cluster: VirtualCluster, address: str) -> None:
    hooks = Hooks(cluster.home, cluster.arbiter.store, [Hook("0", ("end",), ("true",))])
    lived(cluster)
    hooks.close(cluster.arbiter.now)
    families = scraped(address)
    listed = set(re.findall(r"^\| `(astrarium_cluster_\w+)", PAGE.read_text(), re.MULTILINE))
    shown = {name + ("_total" if family.type == "counter" else "") for name, family in families.items()}
    assert listed == shown
    for name, family in families.items():
        assert family.documentation.endswith(".")
        assert re.fullmatch(r"astrarium_cluster_[a-z_]+", name)
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_info"))
    assert values(families, "hook_events", "hook", "outcome")["0", "delivered"] == cluster.count(
        "events", "kind IN ('finished', 'failed', 'withdrawn')"
    )


def test_how_long_the_arbiter_has_been_waiting_is_told(
    metrics: Metrics, cluster: VirtualCluster, address: str
) -> None:
    for seconds in (3, 0):
        metrics.observe("wait", seconds * SECOND)
        assert values(scraped(address), "arbiter_waiting_seconds") == {(): seconds}
    assert cluster.arbiter.epoch == 1


def test_idle_connections_give_way_to_who_asks(cluster: VirtualCluster, address: str) -> None:
    place = urllib.parse.urlsplit(address)
    before = threading.active_count()
    idle = [socket.create_connection((str(place.hostname), place.port or 0), timeout=60) for _ in range(100)]
    assert scraped(address)
    assert threading.active_count() <= before + 20
    assert idle[0].recv(1) == b""
    for connection in idle:
        connection.close()
