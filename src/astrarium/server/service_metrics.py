"""What metrics show of a service beside its accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from astrarium.core.quantities import SECOND
from astrarium.server.client_errors import ClientErrors
from astrarium.server.control.calls.tensor_store import TensorStore
from astrarium.server.control.coordinator import Coordinator
from astrarium.server.control.plan import ServingPlan
from astrarium.server.control.replanning import Replanner
from astrarium.server.control.repository import Repository
from astrarium.server.control.workers.fleet import Fleet
from astrarium.server.path_meter import PathMeter
from astrarium.server.protocol.networks import Networks
from astrarium.server.recording import Recording
from astrarium.serving.live.garbage import GarbageKeeper
from astrarium.serving.live.workers import Workers


@dataclass(frozen=True)
class ServiceMetrics:
    """Every value is read from the part of the service that has it when somebody asks."""

    plan: ServingPlan
    coordinator: Coordinator
    repository: Repository
    replanner: Replanner
    fleet: Fleet
    workers: Workers
    tensor_store: TensorStore
    networks: Networks
    path: PathMeter
    garbage: GarbageKeeper
    client_errors: ClientErrors
    long_way: Mapping[str, int]  # calls that did not go the short way, by reason
    recording: Recording | None

    def gauges(self) -> dict[str, tuple[str, float]]:
        arena = self.tensor_store.arena
        quarantined = len(self.coordinator.quarantined())
        apart = sum(bool(entry.apart) for entry in self.repository.entries)
        recorded = self.recording is not None and self.recording.goes_on
        regions, region_bytes = self.networks.regions()
        kept = "Memory for what clients have begun, or do not take, beside the tensors of accepted calls."
        return {
            "recording": ("1 while what the policy hears and decides is written down.", recorded),
            "workers": ("Workers that can run batches.", len(self.coordinator.present)),
            "quarantined_inputs": ("Inputs that are refused: they broke a worker.", quarantined),
            "models_apart": ("Models in processes of their own: they broke workers.", apart),
            "reserve": ("Processes that are ready to become a worker at once.", self.workers.in_reserve()),
            "unaccounted": ("Calls that the accounts have lost: always 0.", self.coordinator.unaccounted()),
            "policy_thinking_seconds": (
                "For how long a policy in Python has been deciding just now.",
                self.coordinator.thinking_for() / SECOND,
            ),
            "waiting_requests": ("Requests that wait for a batch.", self.coordinator.waiting),
            "shared_memory_bytes": ("Shared memory in use for tensors.", arena.used),
            "shared_memory_limit_bytes": ("Shared memory for tensors.", arena.size),
            "regions": ("Regions of shared memory that clients have registered.", regions),
            "region_bytes": ("Bytes of these regions.", region_bytes),
            "kept_bytes": (kept, self.networks.kept_bytes()),
            "path_carries": (
                "Calls a second that the path carries, by the last minute's best busy second; 0: unknown.",
                self.path.carries,
            ),
        }

    def counters(self) -> dict[str, tuple[str, float]]:
        express = self.networks.accepted(len(self.plan.models))
        lost = self.recording.lost if self.recording is not None else 0
        return {
            "recording_lost_steps": ("Steps that could not be written down.", lost),
            "worker_restarts": ("Workers that died and were started again.", self.fleet.restarts),
            "policy_errors": ("Times that the policy failed.", self.coordinator.policy_errors),
            "express_calls": ("Accepted calls that came the short way.", express),
            "connections_turned_away": (
                "Connections for which there was no descriptor: raise ulimit -n.",
                self.client_errors.turned_away,
            ),
            "plan_revisions": ("Times that batches or delays had drifted.", self.replanner.revisions),
        }

    def counters_by(self) -> dict[str, tuple[str, str, Mapping[str, float]]]:
        bad = "What came over HTTP and was no request, by the status that it was answered with."
        left = "Connections over gRPC that were closed because of what their clients did, by reason."
        long_way = "Calls that went the long way, which costs about ten times as much, by reason."
        use = self.path.use()
        path = {
            "network": use.network / SECOND,
            "scheduler": use.scheduler / SECOND,
            "python": use.python / SECOND,
            "tokenizers": (use.tokenizers + use.library) / SECOND,
        }
        return {
            "path_seconds": ("CPU time of the threads that have to do with calls, by part.", "part", path),
            "long_way": (long_way, "reason", self.long_way),
            "bad_requests": (bad, "status", self.client_errors.bad_requests),
            "connections_left": (left, "reason", self.networks.left()),
            "collections": ("Garbage collections of the frontend.", "moment", self.garbage.collections),
        }

    def facts(self) -> dict[str, tuple[str, Mapping[str, str]]]:
        uvicorn = self.plan.uvicorn
        python = self.plan.python_policy
        path = {
            "network": "uvicorn" if uvicorn else "native",
            "policy": "python" if python else "native",
            "reason": python or uvicorn,
        }
        return {"path": ("Who reads calls and who decides on them, and why Python does.", path)}
