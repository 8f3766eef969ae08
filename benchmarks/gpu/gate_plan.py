"""Which pairs are measured under which policies, in which order, and with which arrivals."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from pair import Spec

# The pairs of each experiment: the program and the models of high priority, and those of best effort.
INFERENCE = "resnet50:4,resnet101:4,mobilenet_v2:4,bert_base:2,transformer:4"
TRAINING = "resnet50:32,resnet101:64,bert_base:8,mobilenet_v2:64"
EXPERIMENTS = {
    "inference-training": ("serve", INFERENCE, "train", TRAINING),
    "inference-inference": ("serve", INFERENCE, "infer", "resnet50:4,resnet101:4,mobilenet_v2:4,bert_base:2"),
    "training-training": ("train", TRAINING, "train", TRAINING),
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
    """`model:batch,model:batch`"""
    found = []
    for word in text.split(","):
        model, _, batch = word.strip().partition(":")
        if not model or not batch.isdigit():
            raise ValueError(f"clients: expected model:batch,model:batch (got {word!r})")
        found.append(Spec(kind, model, int(batch), tuple(options)))
    return found


def loads(specs: Sequence[Spec], arrivals: Sequence[str], busy: Sequence[float]) -> list[Load]:
    if specs[0].kind != "serve":
        return [Load(spec, "closed", 1.0) for spec in specs]
    return [Load(*parts) for parts in product(specs, arrivals, busy)]


def cells(of: Sequence[Load], be: Sequence[Spec], policies: Sequence[Policy], seed: int) -> list[Cell]:
    """Pairs in random order, so that no drift of the machine favours one; the policies of a pair together."""
    pairs = list(product(of, be))
    Random(seed).shuffle(pairs)
    return [Cell(load, other, policy) for load, other in pairs for policy in policies]
