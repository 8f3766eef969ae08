"""What policies of the gate decide, seen in the simulation of a GPU that papers' tables come from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import numpy as np
from tests.support.decisions.digests import Case, Rows, Runs, rounded
from tests.support.decisions.scenarios import one_of

from astrarium import _gate
from astrarium.core.quantities import MICROSECOND, MILLISECOND, SECOND, Time
from astrarium.gate.kernel_profiles import KernelProfile
from astrarium_papers.gate_simulation import Party, Sharing, share
from astrarium_papers.kernels.trace import KernelTrace

OTHER_KERNELS = {
    "orion:search": Sharing("orion", search_limit=0.2),
    "astrarium:taught": Sharing("astrarium", learn=False, knobs={"latency": 3_000_000}),
    "streams:priority": Sharing("streams", priority=True, one_interpreter=True),
}


def cases() -> Iterator[Case]:
    for seed in range(1, 13):
        yield Case("device", f"kernels-{seed}", kernels, partial(random_parties, seed))


def random_parties(seed: int) -> list[Party]:
    """A client with requests, and others that train as fast as they may."""
    draw = Random(f"kernels {seed}")
    arrivals = np.cumsum([draw.randint(1, 8) * MILLISECOND for _ in range(40)])
    asked = Party("asked", _kernels(draw, 30, 60), True, arrivals, graph=seed % 2 == 0)
    trained = [Party(f"trained{n}", _kernels(draw, 60, 400), False) for n in range(1 + seed % 2)]
    return [asked, *trained]


def _kernels(draw: Random, count: int, longest: int) -> KernelTrace:
    """*longest* is in microseconds. The last fifth is the update."""
    kernels = tuple(
        KernelProfile(
            f"kernel{place}",
            draw.randint(3, longest) * MICROSECOND,
            draw.randint(1, 80),
            one_of(draw, "compute", "memory", "unknown", "copy"),
        )
        for place in range(count)
    )
    phases = tuple("forward" if 5 * place < 4 * count else "update" for place in range(count))
    return KernelTrace("a GPU", 80, kernels, tuple(range(count)), phases)


def kernels(parties: list[Party]) -> Runs:
    """What the gate decides is seen by when requests end, and by what had to wait for which reason."""
    sharings = {name: Sharing(name) for name in _gate.policy_names()}
    for label, sharing in {**sharings, **OTHER_KERNELS}.items():
        yield label, "native", gated(parties, sharing)


def gated(parties: list[Party], sharing: Sharing, duration: Time = SECOND // 4) -> Rows:
    rows: Rows = []
    for number, client in enumerate(share(parties, sharing, duration).clients):
        ends = zip(client.latency_ms, client.service_ms, strict=True)
        rows += [["request", number, rounded(latency), rounded(service)] for latency, service in ends]
        rows.append(["client", number, client.launches, rounded(client.held_s), sorted(client.held.items())])
    return rows
