"""The parts of a live cluster are put together here, from what its file says: backend, arbiter, listeners."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from astrarium.cluster.live.access import AccessSection
from astrarium.cluster.live.arbiter import ArbiterProcess, ArbiterSetup
from astrarium.cluster.live.backend import OpenBackend
from astrarium.cluster.live.backends.hosts.backend import AgentsBackend
from astrarium.cluster.live.backends.hosts.messages import AGENT
from astrarium.cluster.live.backends.local import LocalBackend
from astrarium.cluster.live.backends.site import SiteOptions
from astrarium.cluster.live.machine.folders import APPS
from astrarium.cluster.live.machine.keeping.records import private_folder
from astrarium.cluster.live.machine.owners import ROOT, check_above
from astrarium.cluster.live.service.identities import read_keys, user_name
from astrarium.cluster.live.service.service import Service
from astrarium.cluster.live.service.unix_socket import unix_listener
from astrarium.cluster.live.settings import hooks_of, machines_of, origin_of, settings
from astrarium.cluster.live.store import FILE
from astrarium.cluster.live.watching.forecast import ForecastProcess
from astrarium.cluster.live.watching.hooks import Hook
from astrarium.cluster.live.wire.channel import Channel
from astrarium.cluster.live.wire.connections import Connections, Pool, fitting, raised_descriptors
from astrarium.cluster.live.wire.handshake import read_place
from astrarium.cluster.live.wire.keys import read_key
from astrarium.cluster.live.wire.listener import Admission, Listener, tcp_listener
from astrarium.cluster.live.wire.tls import server_tls
from astrarium.cluster.scenario.live import Address
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.core.errors import InputError, read_from
from astrarium.core.optional import from_extra
from astrarium.core.quantities import Time
from astrarium.run.waiting import waiting


class LivePlan(NamedTuple):
    """All that is known of a live cluster before anything of it is made. *metrics*: where they are served."""

    scenario: ClusterScenario
    home: Path
    setting: ArbiterSetup
    hooks: Sequence[Hook]
    metrics: Address | None = None

    @property
    def jobs(self) -> Path:
        return Path(self.scenario.live.jobs or self.home).resolve()


class RunningCluster(NamedTuple):
    """A cluster that runs, and who is told how long something took."""

    arbiter: ArbiterProcess
    observe: Callable[[str, Time], None]


def planned(scenario: ClusterScenario, home: Path, metrics: Address | None) -> LivePlan:
    """Return the plan of a cluster; what its file says wrongly is refused before anything is made."""
    return LivePlan(scenario, home, settings(scenario, origin_of(home)), hooks_of(scenario), metrics)


@contextmanager
def running(plan: LivePlan) -> Iterator[RunningCluster]:
    """Have a cluster run for the time of the block. Who is interrupted before it begins leaves all as it is:
    agents that have not answered may have jobs to keep."""
    scenario = plan.scenario
    home = plan.home
    live = plan.scenario.live
    access = _with_us(scenario)
    foresight = ForecastProcess()
    setting = plan.setting._replace(foresight=foresight)
    with ExitStack() as leaving:
        _close_folders(home, plan.jobs, access is not None, live.backend == "local")
        with waiting(f"looking for the machines ({live.backend})"):
            if plan.metrics is not None:
                setting = setting._replace(observe=leaving.enter_context(_measured(home, *plan.metrics)))
            backend = backend_of(scenario, plan.jobs)  # before our signals: Ray sets its own
            service = Service(home, access, backend.bring_logs)
            connections = Connections(fitting(raised_descriptors()), service.is_operator)
            if live.listen is not None:
                leaving.callback(listening(scenario, backend, service, connections).close)
            arbiter = ArbiterProcess(home, setting, backend)
        leaving.callback(backend.close)
        leaving.callback(arbiter.close)
        admission = Admission(connections.of, service.refuse, connections.limits.strangers)
        leaving.callback(unix_listener(home, service.serve, access is not None, admission).close)
        arbiter.store.put("jobs", live.jobs and str(plan.jobs))  # where logs are
        leaving.callback(foresight.close)
        yield RunningCluster(arbiter, setting.observe)


def backend_of(scenario: ClusterScenario, home: Path) -> OpenBackend:
    live = scenario.live
    env = {"ASTRARIUM_CHECKPOINTS": str(live.checkpoints / 1e9)}
    grace = live.grace / 1e9
    least = live.least / 1e9
    if live.backend == "ray":
        from astrarium.cluster.live.backends.ray import RayBackend

        return RayBackend(home, live.address or "auto", grace, least, live.patience / 1e9, env)
    if live.backend == "agents":
        copies = live.copies is not False
        return AgentsBackend(home, grace, least, live.patience / 1e9, env, copies, live.look / 1e9)
    site = SiteOptions(grace=grace, least=least, patience=live.patience / 1e9, env=env)
    if live.backend == "kubernetes" and live.kubernetes is not None:
        from astrarium.cluster.live.backends.kubernetes.backend import KubernetesBackend

        return KubernetesBackend(home, live.kubernetes, live.address or "", **site)
    if live.backend == "slurm":
        from astrarium.cluster.live.backends.slurm import SlurmBackend

        return SlurmBackend(home, live.partition or "", live.account or "", live.options or (), **site)
    return LocalBackend(home, machines_of(scenario), grace, least, env)


def listening(
    scenario: ClusterScenario, backend: OpenBackend, service: Service, connections: Connections
) -> Listener:
    """Hear agents and users who connect; files that the scenario names are looked for beside it."""
    live = scenario.live
    beside = Path(scenario.source).parent
    with read_from(scenario.source):
        keys = dict(read_keys("live.keys", str(beside / live.keys))) if live.keys else {}
        if isinstance(backend, AgentsBackend):
            keys[AGENT] = read_key("live.key", beside / str(live.key))
        tls = server_tls(str(beside / live.tls.certificate), str(beside / live.tls.key)) if live.tls else None
        where = read_place("live.listen", str(live.listen))

    def serve(channel: Channel, name: str) -> None:
        if name == AGENT and isinstance(backend, AgentsBackend):
            backend.serve(channel)
        else:
            service.serve(channel, name)

    def pool(name: str) -> Pool:
        return connections.agents if name == AGENT else connections.of(name)

    admission = Admission(pool, service.refuse, connections.limits.strangers)
    with read_from(scenario.source):
        return tcp_listener(where, keys.get, serve, tls, admission=admission)


@contextmanager
def _measured(home: Path, host: str, port: int) -> Iterator[Callable[[str, int], None]]:
    """Serve metrics for the time of the block; what the arbiter takes is told to what this yields."""
    with from_extra("serve"):
        from astrarium.cluster.live.watching.metrics import Metrics
    metrics = Metrics(home)
    try:
        server = metrics.serve(host, port)
    except OSError as error:
        raise InputError(
            "--metrics", f"{host}:{port}", f"an address that is free: {error.strerror}"
        ) from None
    print(f"metrics at http://{host}:{server.server_port}/metrics", file=sys.stderr, flush=True)
    try:
        yield metrics.observe
    finally:
        server.shutdown()
        server.server_close()


def _with_us(scenario: ClusterScenario) -> AccessSection | None:
    """The user of the arbiter can do all anyway, and so can root."""
    access = scenario.live.access
    backend = scenario.live.backend
    if access is None:
        return None
    if backend == "slurm" and os.geteuid() == 0:
        expected = "an arbiter that is not root beside access: apps of all users would run as root on Slurm"
        raise InputError("live.backend", backend, expected, scenario.source)
    return msgspec.structs.replace(access, operators=(*access.operators, "root", user_name(os.geteuid())))


def _close_folders(home: Path, jobs: Path, shared: bool, local: bool) -> None:
    """Make the folders of a cluster for our user alone. Where it is *shared*, others reach the socket, and
    those whose apps run here (*local*) as theirs the folders of these."""
    owners = shared and local and os.geteuid() == ROOT
    for folder in (home, jobs, jobs / APPS):
        if shared:
            check_above("live.state" if folder == home else "live.jobs", folder)
        seen = stat.S_IMODE(private_folder(folder).stat().st_mode) & ~0o007
        with suppress(PermissionError):  # it is another's, who may share it with us
            folder.chmod(seen | (0o011 if owners or (shared and folder == home) else 0))
    for path in home.glob(f"{FILE}*"):
        path.chmod(0o600)
