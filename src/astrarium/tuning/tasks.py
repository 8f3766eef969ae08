"""Three tasks to tune, after Table 3.3 of the dissertation of Yu: CIFAR-10, a word language model, a DCGAN.

The table has their models, how many hyperparameters are tuned, and the target. Everything else is ours, made
up so that a run takes as long as those of Table 3.2 and has the properties that the text speaks of:

- an iteration takes longer for larger models and smaller batches, and varies for reasons unknown;
- alone, a trial uses some 60 % of a GPU, so that packed ones do about 1.7 times as much at best;
- CIFAR-10 and DCGAN gain little from more than a few GPUs each, the language model from more (Figure 3.13);
- values come closer to what a configuration can reach with every iteration, by e-fold every `patience` of
  them, and are noisy. The best of some hundred random configurations reaches the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any, Literal

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.streams import stream
from astrarium.core.units import MILLISECOND, Time


class Knob(msgspec.Struct, frozen=True):
    """A hyperparameter that matters.

    *best* is where on its way from low (0) to high (1) results are best, *weight* how much it matters. At its
    high end an iteration takes *slower* times as long as at its low end.
    """

    space: dict[str, Any]
    best: float
    weight: float = 1.0
    slower: float = 1.0


class Task(msgspec.Struct, frozen=True):
    """*iteration* on one GPU with all knobs in the middle; *spread* is the standard deviation of its
    logarithm among candidates. *start*, *reach*: values before training, and what the best reaches."""

    name: str
    goal: Literal["min", "max"]
    target: float
    knobs: dict[str, Knob]
    iteration: Time
    spread: float
    packing: float
    scaling: float
    start: float
    reach: float
    patience: float
    noise: float

    @property
    def space(self) -> dict[str, dict[str, Any]]:
        return {name: knob.space for name, knob in self.knobs.items()}

    def iteration_time(self, parts: Mapping[str, float], seed: int, candidate: int) -> Time:
        """*parts*: how far each knob is on its way."""
        factor = exp(self.spread * float(stream(seed, self.name, "iteration", candidate).standard_normal()))
        for name, knob in self.knobs.items():
            factor *= knob.slower ** (parts[name] - 0.5)
        return max(1, round(self.iteration * factor))

    def value(self, parts: Mapping[str, float], iterations: int, seed: int, candidate: int) -> float:
        """After so many iterations in all; a copy is worth what its values are, whoever began it."""
        gap = sum(knob.weight * (parts[name] - knob.best) ** 2 for name, knob in self.knobs.items())
        reach = self.start + (self.reach - self.start) * exp(-gap)
        chance = stream(seed, self.name, "value", candidate, iterations).standard_normal()
        return reach + (self.start - reach) * exp(-iterations / self.patience) + self.noise * float(chance)


def _range(low: float, high: float, log: bool = False, whole: bool = False) -> dict[str, Any]:
    return {"low": low, "high": high, "log": log, "whole": whole}


_CIFAR = Task(
    name="cifar10-alexnet",
    goal="max",
    target=90.0,
    knobs={
        "learning_rate": Knob(_range(1e-4, 1.0, log=True), 0.6, 2.0),
        "momentum": Knob(_range(0.5, 0.99), 0.8, 0.15),
        "weight_decay": Knob(_range(1e-6, 1e-2, log=True), 0.6, 0.2),
        "batch": Knob({"options": [32, 64, 128, 256]}, 0.4, 0.1, slower=0.6),
        "layers": Knob(_range(2, 6, whole=True), 0.7, 0.2, slower=1.8),
        "channels": Knob(_range(32, 256, log=True, whole=True), 0.7, 0.2, slower=1.8),
        "kernel": Knob({"options": [3, 5, 7]}, 0.3, 0.05, slower=1.2),
    },
    iteration=12_500 * MILLISECOND,
    spread=0.15,
    packing=1.34,
    scaling=1.35,
    start=10.0,
    reach=95.5,
    patience=6.0,
    noise=0.3,
)

_WLM = Task(
    name="wlm-rnn",
    goal="min",
    target=140.0,
    knobs={
        "learning_rate": Knob(_range(0.1, 40.0, log=True), 0.7, 0.8),
        "dropout": Knob(_range(0.0, 0.8), 0.4, 0.15),
        "clip": Knob(_range(0.05, 1.0, log=True), 0.5, 0.06),
        "batch": Knob({"options": [10, 20, 40, 80]}, 0.3, 0.06, slower=0.5),
        "steps": Knob(_range(10, 70, whole=True), 0.5, 0.06),
        "weight_decay": Knob(_range(1e-8, 1e-4, log=True), 0.4, 0.06),
        "model": Knob({"options": ["rnn", "gru", "lstm"]}, 1.0, 0.1, slower=1.6),
        "embedding": Knob(_range(100, 800, log=True, whole=True), 0.7, 0.08, slower=1.4),
        "hidden": Knob(_range(100, 800, log=True, whole=True), 0.7, 0.08, slower=1.8),
        "layers": Knob(_range(1, 3, whole=True), 0.5, 0.06, slower=1.6),
    },
    iteration=20_000 * MILLISECOND,
    spread=0.15,
    packing=1.4,
    scaling=1.12,
    start=700.0,
    reach=90.0,
    patience=5.0,
    noise=1.5,
)

_DCGAN = Task(
    name="dcgan-cnn",
    goal="max",
    target=5.2,
    knobs={
        "learning_rate": Knob(_range(1e-5, 1e-2, log=True), 0.5, 2.5),
        "momentum": Knob(_range(0.1, 0.95), 0.5, 0.6),
    },
    iteration=8_000 * MILLISECOND,
    spread=0.1,
    packing=1.28,
    scaling=1.35,
    start=1.0,
    reach=5.5,
    patience=8.0,
    noise=0.03,
)

TASKS = {task.name: task for task in (_CIFAR, _WLM, _DCGAN)}


def task(name: str) -> Task:
    if name not in TASKS:
        raise InputError("task", name, one_of(list(TASKS), name))
    return TASKS[name]
