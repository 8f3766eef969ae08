"""The model zoo has 35 models on a GTX 1080Ti and 37 on an A100, with their latency objectives.

The numbers are those of Tables 3 and 4 of Chen et al., "Symphony: Optimized DNN Model Serving using
Deferred Batch Scheduling": the latency of a batch of b is alpha b + beta.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.profiles import Linear
from astrarium.core.quantities import Duration, read_duration


class ZooModel(msgspec.Struct, frozen=True):
    gpu: str
    model: str
    alpha: Duration
    beta: Duration
    slo: Duration

    @property
    def profile(self) -> Linear:
        return Linear(self.alpha, self.beta)


def gpus() -> list[str]:
    return list(_zoo())


def models(gpu: str) -> list[str]:
    """Return the models of a kind of GPU in the order of the paper's table."""
    if gpu not in _zoo():
        raise InputError("", gpu, f"a GPU of the zoo: {one_of(gpus(), gpu)}")
    return list(_zoo()[gpu])


def lookup(gpu: str, model: str) -> ZooModel:
    if model not in models(gpu):
        raise InputError("", model, f"a model of the zoo on {gpu}: {one_of(models(gpu), model)}")
    return _zoo()[gpu][model]


@cache
def _zoo() -> dict[str, dict[str, ZooModel]]:
    zoo: dict[str, dict[str, ZooModel]] = {}
    text = files("astrarium.serving").joinpath("zoo.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        alpha, beta, slo = (read_duration(f"{row[name]}ms") for name in ("alpha_ms", "beta_ms", "slo_ms"))
        zoo.setdefault(row["gpu"], {})[row["model"]] = ZooModel(row["gpu"], row["model"], alpha, beta, slo)
    return zoo
