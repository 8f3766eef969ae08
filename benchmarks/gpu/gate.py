"""The gate on one GPU: high-priority clients beside best-effort ones, policy by policy, against each alone.

    python benchmarks/gpu/gate.py --trace apollo_trace.json --policies astrarium orion --out gate.jsonl
    python benchmarks/gpu/gate.py --ungated --hp resnet50:4 --be bert_base:8 --arrivals poisson
    python benchmarks/gpu/gate.py --experiment training-training --policies astrarium --out gate.jsonl

All clients are started once and idle between their windows: a pair costs little more than its seconds.
Rows are appended to --out as they come, and pairs that it already has are skipped: what was cut short goes
on. With --ungated nothing is preloaded: time-slicing as the driver does it, or MPS if its daemon runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import gated
from pair import (
    Client,
    ClientFailed,
    Outcome,
    Row,
    Spec,
    append,
    read,
    running,
    settled,
    summary,
    table,
    window,
)

from astrarium.core.errors import AstrariumError

# The pairs of each experiment: the program and the models of high priority, and those of best effort.
INFERENCE = "resnet50:4,resnet101:4,mobilenet_v2:4,bert_base:2,transformer:4"
TRAINING = "resnet50:32,resnet101:64,bert_base:8,mobilenet_v2:64"
BESIDE = "resnet50:4,resnet101:4,mobilenet_v2:4,bert_base:2"


class Experiment(NamedTuple):
    hp_kind: str
    hp_models: str
    be_kind: str
    be_models: str


EXPERIMENTS = {
    "inference-training": Experiment("serve", INFERENCE, "train", TRAINING),
    "inference-inference": Experiment("serve", INFERENCE, "infer", BESIDE),
    "training-training": Experiment("train", TRAINING, "train", TRAINING),
}


@dataclass(frozen=True)
class Policy:
    """A policy of the gate with its settings, written `name` or `name:knob=1,other=0.5`."""

    label: str
    name: str
    knobs: dict[str, float]

    @classmethod
    def read(cls, text: str) -> Policy:
        name, _, settings = text.partition(":")
        pairs = [setting.partition("=") for setting in settings.split(",") if setting]
        try:
            knobs = {knob: float(value) for knob, _, value in pairs}
        except ValueError:
            raise ValueError(f"policy {text}: expected name or name:knob=number,...") from None
        return cls(text, name, knobs)


@dataclass(frozen=True)
class Load:
    """A high-priority client and what it is asked to do. Training is always busy and has no arrivals."""

    hp: Spec
    arrivals: str
    busy: float

    def seed(self, base: int) -> int:
        """The same requests alone and beside every other client, under every policy."""
        return zlib.crc32(f"{base} {self.hp.name} {self.arrivals} {self.busy}".encode())


@dataclass(frozen=True)
class Cell:
    load: Load
    be: Spec
    policy: Policy

    @property
    def key(self) -> tuple[str, str, str, str, float, str]:
        load = self.load
        kinds = f"{load.hp.kind} beside {self.be.kind}"
        return (kinds, self.policy.label, load.hp.name, load.arrivals, load.busy, self.be.name)


def read_specs(kind: str, text: str, options: Sequence[str] = ()) -> list[Spec]:
    """Read `model:batch,model:batch`."""
    specs = []
    for word in text.split(","):
        model, _, batch = word.strip().partition(":")
        if not model or not batch.isdigit():
            raise ValueError(f"clients: expected model:batch,model:batch (got {word!r})")
        specs.append(Spec(kind, model, int(batch), tuple(options)))
    return specs


def loads(specs: Sequence[Spec], arrivals: Sequence[str], busy: Sequence[float]) -> list[Load]:
    if specs[0].kind != "serve":
        return [Load(spec, "closed", 1.0) for spec in specs]
    return [Load(*parts) for parts in product(specs, arrivals, busy)]


def cells(of: Sequence[Load], be: Sequence[Spec], policies: Sequence[Policy], seed: int) -> list[Cell]:
    """Return pairs in random order, so that no drift of the machine favours one; the policies of a pair
    together."""
    pairs = list(product(of, be))
    Random(seed).shuffle(pairs)
    return [Cell(load, other, policy) for load, other in pairs for policy in policies]


NEUTRAL = Policy("streams", "streams", {})  # admits all: for clients that are alone
LEAD_S = 0.1  # best effort is at work before the first request comes, and after the last has gone
AGAIN = 25  # pairs after which a client is measured alone once more
AROUND = f"lead={LEAD_S} tail={LEAD_S}"


class Bench:
    """Running clients, and what they did alone: measured at the first need, on the same processes."""

    def __init__(self, hp: dict[Spec, Client], be: dict[Spec, Client], options: Any) -> None:
        self._hp = hp
        self._be = be
        self._options = options
        self._service_ms: dict[Spec, float] = {}
        self._alone: dict[Any, tuple[int, Outcome]] = {}  # and how many pairs had been measured by then
        self._measured = 0

    def measure(self, cell: Cell) -> Row:
        hp = self._hp[cell.load.hp]
        be = self._be[cell.be]
        order = self._order(cell.load)
        hp_alone = self._once(cell.load, hp, order)
        be_alone = self._once(cell.be, be, AROUND)
        self._policy(cell.policy)
        shared = window({hp: order, be: AROUND}, self._options.seconds, LEAD_S)
        self._measured += 1
        return Row(*cell.key, hp_alone, shared[hp], be_alone, shared[be])

    def _once(self, key: Load | Spec, client: Client, order: str) -> Outcome:
        """Measure a client alone, now and then anew: the machine is not the same all the time."""
        when, outcome = self._alone.get(key, (-AGAIN, {}))
        if self._measured - when >= AGAIN:
            self._policy(NEUTRAL)
            outcome = window({client: order}, self._options.seconds, LEAD_S)[client]
            self._alone[key] = (self._measured, outcome)
        return outcome

    def _order(self, load: Load) -> str:
        if load.hp.kind != "serve":
            return AROUND
        rate = load.busy * 1000 / self._service(load.hp)
        return f"rate={rate:.3f} arrivals={load.arrivals} seed={load.seed(self._options.seed)}"

    def _service(self, spec: Spec) -> float:
        """Measure it now, while nobody else works: at the start all clients were warming up at once."""
        if spec not in self._service_ms:
            self._policy(NEUTRAL)
            self._hp[spec].order("calibrate")
            self._service_ms[spec] = self._hp[spec].outcome()["service_ms"]
        return self._service_ms[spec]

    def _policy(self, policy: Policy) -> None:
        if not self._options.ungated:
            gated.set_policy(self._options.board, policy.name, **policy.knobs)


def parser() -> argparse.ArgumentParser:
    chosen = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen.add_argument("--experiment", choices=EXPERIMENTS, default="inference-training")
    chosen.add_argument("--hp", default="", help="model:batch,... of high priority")
    chosen.add_argument("--be", default="", help="model:batch,... of best effort")
    chosen.add_argument("--arrivals", default="poisson,apollo", help="poisson, uniform, apollo (--trace)")
    chosen.add_argument("--busy", default="0.25,0.5", help="of the time, if the server were alone")
    chosen.add_argument("--policies", nargs="+", help="name or name:knob=1,knob=2")
    chosen.add_argument("--seconds", type=float, default=2.0, help="of a window")
    chosen.add_argument("--seed", type=int, default=0)
    chosen.add_argument("--budget", type=float, default=540.0, help="seconds after which no pair is begun")
    chosen.add_argument("--trace", default="", help="file of arrival times for apollo")
    chosen.add_argument("--priority", type=int, default=0, help="of the streams of high-priority servers")
    chosen.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    chosen.add_argument("--ungated", action="store_true", help="without the gate")
    chosen.add_argument("--board", default=f"bench-{os.getpid()}", help="name of the gate's shared state")
    chosen.add_argument("--out", type=Path, default=Path("gate.jsonl"))
    return chosen


class Work(NamedTuple):
    """What is left to measure, and the clients of high priority and of best effort that it needs."""

    hp: list[Spec]
    be: list[Spec]
    cells: list[Cell]


def planned(options: Any) -> Work:
    experiment = EXPERIMENTS[options.experiment]
    if experiment.hp_kind == "serve" and "apollo" in options.arrivals and not options.trace:
        raise ValueError("arrivals: apollo needs --trace FILE (or choose --arrivals poisson)")
    hp_options = client_options(experiment.hp_kind, options)
    hp = read_specs(experiment.hp_kind, options.hp or experiment.hp_models, hp_options)
    be = read_specs(experiment.be_kind, options.be or experiment.be_models, ["--device", options.device])
    names = options.policies or ["plain" if options.ungated else "astrarium"]
    of = loads(hp, options.arrivals.split(","), [float(share) for share in options.busy.split(",")])
    all_cells = cells(of, be, [Policy.read(name) for name in names], options.seed)
    done = {row.key for row in read(options.out)}
    left = [cell for cell in all_cells if cell.key not in done]
    return Work(used(hp, [cell.load.hp for cell in left]), used(be, [cell.be for cell in left]), left)


def used(specs: Sequence[Spec], needed: Sequence[Spec]) -> list[Spec]:
    return [spec for spec in specs if spec in needed]


def client_options(kind: str, options: Any) -> list[str]:
    of_all = ["--device", options.device, "--priority", str(options.priority)]
    if kind == "serve" and options.trace:
        return [*of_all, "--trace", str(Path(options.trace).resolve())]
    return of_all


def placed(specs: Sequence[Spec], role: str, options: Any) -> list[Spec]:
    """Return the same clients, under the gate if there is one."""
    if options.ungated:
        return list(specs)
    return [replace(spec, environment=gated.environment(role, options.board)) for spec in specs]


def run(options: Any) -> None:
    work = planned(options)
    if not work.cells:
        return
    until = time.monotonic() + options.budget
    started = [*placed(work.hp, "latency", options), *placed(work.be, "best-effort", options)]
    say(f"{len(work.cells)} windows; starting {len(started)} clients")
    with running(started) as clients:
        say(f"ready, {sum(client.facts['memory_gib'] for client in clients):.1f} GiB reserved")
        hp_clients = dict(zip(work.hp, clients[: len(work.hp)], strict=True))
        be_clients = dict(zip(work.be, clients[len(work.hp) :], strict=True))
        measure_all(Bench(hp_clients, be_clients, options), work.cells, options.out, until)


def measure_all(bench: Bench, left: Sequence[Cell], out: Path, until: float) -> None:
    for number, cell in enumerate(left):
        if time.monotonic() >= until:
            say(f"the budget is spent: {len(left) - number} windows are left")
            return
        row = bench.measure(cell)
        append(out, row)
        what = " ".join(map(str, row.key))
        say(f"{number + 1}/{len(left)} {what}: {row.hp_cost:.2f} {row.be_share:.2f}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    failed = False
    try:
        run(options)
    except (ClientFailed, ValueError, AstrariumError) as problem:
        failed = True
        say(f"gate.py: {problem}")
    rows = settled(read(options.out))  # what was measured counts, however the run ended
    if rows:
        print(table(rows), summary(rows), sep="\n\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
