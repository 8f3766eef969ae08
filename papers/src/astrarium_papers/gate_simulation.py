"""One GPU shared by clients under a policy of the gate, in simulation: how long requests take, and how much
gets done besides, both against alone. The policy is the code that the preloaded library runs
(native/gate)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from astrarium.core.errors import InputError, one_of
from astrarium.core.optional import extension
from astrarium.core.processes import Floats, Times
from astrarium.core.quantities import MICROSECOND, MILLISECOND, SECOND, Time
from astrarium.gate.kernel_profiles import KINDS
from astrarium_papers.kernels.trace import KernelTrace

EAGER_GAP: Time = 5 * MICROSECOND


class Party(msgspec.Struct, frozen=True):
    """A client: its kernels, and when requests come (None: one after another, as in training). A launch costs
    its CPU `gap`; `between` passes on the GPU from one of its kernels to the next."""

    name: str
    trace: KernelTrace
    latency: bool
    arrivals: Times | None = None
    gap: Time = EAGER_GAP
    graph: bool = False
    synchronize: bool = True
    between: Time = 0


class Sharing(msgspec.Struct, frozen=True):
    """How the GPU is shared. `knobs` are set over the policy's defaults; `search_limit` > 0 lets Orion search
    its SM threshold for requests that may get longer by that share; `model` are numbers of the simulated
    GPU."""

    policy: str
    knobs: Mapping[str, float] = {}
    priority: bool = False
    one_interpreter: bool = False
    learn: bool = True
    search_limit: float = 0.0
    model: Mapping[str, float] = {}


class Outcome(msgspec.Struct, frozen=True):
    """What one client has had: latencies in ms from arrival (or launch, in a closed loop), `service_ms` from
    the first launch, `rate` in requests a second, parts of one counted; `held` are launches that had to wait,
    by reason."""

    name: str
    latency_ms: Floats
    service_ms: Floats
    rate: float
    held: dict[str, int]
    held_s: float
    launches: int

    def percentile(self, percent: float) -> float:
        """Return the percentile of latency; not a number where no request has ended."""
        return float(np.percentile(self.latency_ms, percent)) if len(self.latency_ms) else float("nan")


class Run(msgspec.Struct, frozen=True):
    clients: list[Outcome]
    usage: dict[str, float]  # means over the run: sms, compute, memory


def share(parties: Sequence[Party], sharing: Sharing, duration: Time, warmup: Time = 0) -> Run:
    """Simulate clients that share a GPU; requests that arrive in the warm-up are not counted."""
    gate = _gate()
    knobs = _knobs(gate, sharing, parties[0].trace.sms)
    columns = gate.simulate(
        knobs,
        [_client(gate, party) for party in parties],
        until=duration,
        priority=sharing.priority,
        one_interpreter=sharing.one_interpreter,
        learn=sharing.learn,
        search_limit=sharing.search_limit,
        **sharing.model,
    )
    outcomes = [
        _outcome(party, client, duration, warmup)
        for party, client in zip(parties, columns["clients"], strict=True)
    ]
    return Run(outcomes, dict(columns["usage"]))


def alone(
    party: Party, duration: Time, warmup: Time = 0, model: Mapping[str, float] | None = None
) -> Outcome:
    return share([party], Sharing("streams", model=model or {}), duration, warmup).clients[0]


def profiled(sharing: Sharing, latency: Outcome) -> Sharing:
    """Return the sharing, told how long a request of the latency client takes alone."""
    known = int(np.median(latency.service_ms) * MILLISECOND)
    return msgspec.structs.replace(sharing, knobs={"latency": known, **sharing.knobs})


def _gate() -> Any:
    module = extension("_gate")
    if module is None:
        raise InputError("", None, "the compiled module astrarium._gate: install the package to build it")
    return module


def _knobs(gate: Any, sharing: Sharing, sms: int) -> Any:
    if sharing.policy not in gate.policy_names():
        raise InputError("policy", sharing.policy, one_of(gate.policy_names(), sharing.policy))
    knobs = gate.defaults(sharing.policy, sms)
    for name, value in sharing.knobs.items():
        if not hasattr(knobs, name):
            raise InputError("knobs", name, "a knob of the gate")
        setattr(knobs, name, value)
    return knobs


def _client(gate: Any, party: Party) -> Any:
    trace = party.trace
    kernels = [trace.kernels[index] for index in trace.launches]
    uses = [trace.use(index) for index in trace.launches]
    return gate.Client(
        party.latency,
        np.array([kernel.duration for kernel in kernels], np.int64),
        np.array([kernel.sms for kernel in kernels], np.int32),
        np.array([KINDS.index(kernel.kind) for kernel in kernels], np.int32),
        np.array([use.compute for use in uses]),
        np.array([use.memory for use in uses]),
        np.array([phase != "forward" for phase in trace.phases], np.int32),
        arrivals=None if party.arrivals is None else party.arrivals.tolist(),
        gap=party.gap,
        graph=party.graph,
        synchronize=party.synchronize,
        between=party.between,
    )


def _outcome(party: Party, client: dict[str, Any], duration: Time, warmup: Time) -> Outcome:
    counted = client["arrival"] >= warmup
    latency = (client["end"] - client["arrival"])[counted] / MILLISECOND
    service = (client["end"] - client["begin"])[counted] / MILLISECOND
    rate = client["kernels"] / len(party.trace.launches) / (duration / SECOND)
    held = dict(client["held"])
    return Outcome(party.name, latency, service, rate, held, client["held_ns"] / SECOND, client["launches"])
