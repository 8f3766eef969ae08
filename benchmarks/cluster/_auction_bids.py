"""Bids that agents of `themis` make: apps of its workloads on its cluster of 256 GPUs, of which they hold
some here and there, so that places beside those are named."""

from __future__ import annotations

from random import Random

import msgspec

from astrarium.cluster.agents.agent import AppAgent
from astrarium.cluster.arrange import arrangements
from astrarium.cluster.auction.bids import Bid
from astrarium.cluster.auction.goods import FreeMachine, free_machines
from astrarium.cluster.contract import App, AppArrived, Grant, MachineJoined
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import ClusterState
from astrarium.cluster.workloads.themis import successive_halving, sweeps
from astrarium.cluster.workloads.themis.clusters import MACHINES
from astrarium.cluster.workloads.themis.models import SLOWDOWNS
from astrarium.core.quantities import SECOND, Time

BIDDERS = 17
LEASE: Time = 600 * SECOND


def agents(workload: int, held: int, seed: int) -> tuple[list[FreeMachine], list[Bid]]:
    rng = Random(seed)
    state = cluster()
    now = BIDDERS * LEASE
    drawn = list(sweeps.parametric(seed + 1))
    drawn = list(successive_halving.halving(tuple(drawn), seed + 1)) if workload == 2 else drawn
    for number, drawn_app in enumerate(rng.sample(drawn, BIDDERS)):
        app = msgspec.structs.replace(msgspec.convert(drawn_app, App, from_attributes=True), id=number)
        state.apply(number * LEASE, AppArrived(app))
    for gpu in rng.sample(sorted(state.free), held):
        state.commit(now, Grant(rng.randrange(BIDDERS), (gpu,), now + LEASE))
    for action in arrangements(state):
        state.commit(now, action)
    goods = free_machines(state.floor, state.free)
    rows = state.apps.values()
    return goods, [AppAgent(row.app).bid(now + LEASE // 2, row, state, goods) for row in rows]


def cluster() -> ClusterState:
    known = {key: dict(slowdown) for key, slowdown in SLOWDOWNS.items()}
    state = ClusterState(Slowdowns(known))
    for machine in MACHINES["themis-simulator"]:
        state.apply(0, MachineJoined(machine))
    return state
