"""Section 6.2.3: what bids, auctions and other allocations cost.

Offers are parts of the testbed and of the simulator's cluster, drawn at random; bidders are apps of workload
2 that hold nothing yet. One auction is all of its programs: with all bidders, and without each winner.
Times are CPU times of this machine. The paper used Gurobi; ours is HiGHS and a search of our own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from astrarium.cluster.agents.agent import AppAgent
from astrarium.cluster.auction.bids import Bid
from astrarium.cluster.auction.goods import free_machines
from astrarium.cluster.auction.partial_allocation import auction
from astrarium.cluster.contract import AppArrived, MachineJoined
from astrarium.cluster.scenario.build import slowdowns
from astrarium.cluster.state import ClusterState
from astrarium.core.random_streams import stream
from astrarium_papers.findings import Effort, Findings, Row
from astrarium_papers.themis._runs import CLUSTERS, STARTUP, built, scenario
from astrarium_papers.themis._workloads import Drawing, drawn

TITLE = "What bids, auctions and changes cost (section 6.2.3)"
# Milliseconds: the median, and the 95th percentile
BIDS = (29.0, 334.0)
AUCTION = (354.0, 1398.0)
CHANGE_S = (35.0, 50.0)
OFFERS = {"testbed": (4, 8, 16, 32, 64), "simulator": (16, 32, 64, 128, 256)}
BIDDERS = (2, 4, 8, 17)
CLOCK = "by this machine's clock"


class Took(NamedTuple):
    """The milliseconds of each bid, and of the auction."""

    bids: list[float]
    auction: float


def run(effort: Effort) -> Findings:
    repeats = effort.pick(1, 4)
    data: dict[str, Any] = {}
    for where, offers in OFFERS.items():
        state = with_apps(where, max(BIDDERS))
        rounds = []
        for offer in effort.pick(offers[:2], offers):
            for bidders in effort.pick(BIDDERS[:2], BIDDERS):
                effort.say(f"{where}: {offer} GPUs, {bidders} bidders")
                rounds += [one_round(state, offer, bidders, seed) for seed in range(repeats)]
        data[where] = {
            "bids": [ms for timing in rounds for ms in timing.bids],
            "auctions": [timing.auction for timing in rounds],
        }
    return Findings(_rows(data), data=data)


def with_apps(where: str, count: int) -> ClusterState:
    """Return a cluster to which so many apps have come; none has a GPU."""
    believed = slowdowns(scenario("themis", {}), believed=True)
    state = ClusterState(believed)
    apps = drawn(Drawing(workload=2), sum(machine.gpus for machine in CLUSTERS[where]))
    for _, event in built(apps[:count], where).arrivals:
        assert isinstance(event, AppArrived | MachineJoined)
        state.apply(0, event)
    return state


def one_round(state: ClusterState, offer: int, bidders: int, seed: int) -> Took:
    random = stream(seed, "themis", "overheads", offer, bidders)
    gpus = random.permutation(sorted(state.free))[:offer].tolist()
    goods = free_machines(state.floor, frozenset(gpus))
    apps = random.permutation(sorted(state.apps))[:bidders].tolist()
    bids = list[Bid]()
    took = list[float]()
    for app in apps:
        row = state.apps[app]
        began = time.process_time_ns()
        bids.append(AppAgent(row.app, "share").bid(0, row, state, goods))
        took.append((time.process_time_ns() - began) / 1e6)
    began = time.process_time_ns()
    auction(goods, bids)
    return Took(took, (time.process_time_ns() - began) / 1e6)


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for where, numbers in data.items():
        for what, name, paper in (("one app's bid", "bids", BIDS), ("one auction", "auctions", AUCTION)):
            for share, called, most in ((50, "median", paper[0]), (95, "95th percentile", paper[1])):
                ours = float(np.percentile(numbers[name], share))
                note = f"{CLOCK}; {len(numbers[name])} of them; less is as good"
                rows.append(Row(f"{where}: {what}, {called}", ours, (0.0, most), "ms", 0.0, note))
    note = f"measured on their testbed; every run here begins with {STARTUP}, 5 s of which are its checkpoint"
    rows.append(Row("another allocation, median", CHANGE_S[0], CHANGE_S[0], "s", note=note, given=True))
    return rows


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2, 4.5)
    for axis, name, paper in zip(axes, ("bids", "auctions"), (BIDS, AUCTION), strict=True):
        for where, numbers in data.items():
            ordered: Sequence[float] = sorted(numbers[name])
            shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
            axis.step(ordered, shares, where="post", label=where)
        axis.plot(paper, (0.5, 0.95), "kx", label="paper")
        axis.set(xlabel=f"CPU of {name} (ms)", xscale="log", ylabel="share")
    axes[0].legend(fontsize=8)
    save(figure, path)
