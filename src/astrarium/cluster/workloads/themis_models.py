"""The models of Themis (Mahajan et al., NSDI 2020, Table 4) and what being spread costs them.

S is how many times longer an iteration takes on GPUs of several machines than on those of one. It belongs to
the model and the network, so the table is by both; each number names its source:

- gavel: the median over batch sizes and 2, 4 and 8 GPUs, at least 1, of the rates in Gavel's
  `simulation_throughputs.json` (GPUs of one server against GPUs of several);
- table 1: of Themis, 4 P100 on one server against two: VGG16 103.6 and 80.4 images/s, Inception-v3 242, 243;
- sia: DeepSpeech2 in the profiles of Sia, 1.09 on 2 GPUs and 1.22 on 4: their mean. Its machines with a fast
  network showed about 1 for all models;
- like VGG16: assumed, for models with as many parameters in dense layers;
- default: 1.1, the guess of Themis (footnote 3) until a model is profiled.

Across racks nobody measured. Footnote 3 guesses 1.3 where it guesses 1.1 across machines of a rack: a model
that suffers from the one is assumed to suffer from the other 1.3 / 1.1 times as much. Inside a machine, S is
1.
"""

from __future__ import annotations

from typing import Final

import msgspec

from astrarium.core.errors import InputError, one_of

SHARES = {"vision": 0.1, "language": 0.6, "speech": 0.3}
MODELS = {
    "Inception-v3": "vision",
    "AlexNet": "vision",
    "ResNet50": "vision",
    "VGG16": "vision",
    "VGG19": "vision",
    "Bi-Att-Flow": "language",
    "LangModel": "language",
    "GNMT": "language",
    "Transformer": "language",
    "WaveNet": "speech",
    "DeepSpeech": "speech",
}
DEFAULT: Final = 1.1
ACROSS_RACKS: Final = 1.3 / 1.1  # times S across machines
INTENSIVE: Final = 1.15  # from this S on, a model is network-intensive
INSENSITIVE: Final = 1.02  # up to this one, it is compute-intensive


class Slowdown(msgspec.Struct, frozen=True):
    """On GPUs of several machines of a rack, and of several racks."""

    machines: float
    racks: float
    source: str

    def by_spread(self) -> tuple[float, float, float, float]:
        """Inside a slot, over slots of a machine, machines of a rack, and racks."""
        return 1.0, 1.0, self.machines, self.racks


_ANYWHERE = {
    "Inception-v3": (1.0, "table 1"),
    "AlexNet": (1.29, "like VGG16"),
    "VGG16": (1.29, "table 1"),
    "VGG19": (1.29, "like VGG16"),
    "DeepSpeech": (1.155, "sia"),
    **dict.fromkeys(["Bi-Att-Flow", "GNMT", "WaveNet"], (DEFAULT, "default")),
}
_GAVEL = {
    "k80": {"LangModel": 1.198, "Transformer": 1.09, "ResNet50": 1.0},
    "p100": {"LangModel": 1.931, "Transformer": 1.375, "ResNet50": 1.017},
    "v100": {"LangModel": 4.343, "Transformer": 1.86, "ResNet50": 1.062},
}


def _table() -> dict[tuple[str, str], Slowdown]:
    table = {(model, "fast"): _slowdown(1.0, "sia") for model in MODELS}
    for network, measured in _GAVEL.items():
        found = {**_ANYWHERE, **{model: (times, f"gavel {network}") for model, times in measured.items()}}
        table |= {(model, network): _slowdown(*found[model]) for model in MODELS}
    return table


def _slowdown(times: float, source: str) -> Slowdown:
    return Slowdown(times, times * ACROSS_RACKS if times > INSENSITIVE else times, source)


SLOWDOWNS = _table()
NETWORKS = ["k80", "p100", "v100", "fast"]


def slowdown(model: str, network: str) -> Slowdown:
    if model not in MODELS:
        raise InputError("model", model, f"a model of Themis: {one_of(list(MODELS), model)}")
    if network not in NETWORKS:
        raise InputError("network", network, one_of(NETWORKS, network))
    return SLOWDOWNS[model, network]


def network_intensive(network: str) -> list[str]:
    """Models that suffer from being spread."""
    return [model for model in MODELS if slowdown(model, network).machines >= INTENSIVE]


def compute_intensive(network: str) -> list[str]:
    """Models that do not mind. Some are neither."""
    return [model for model in MODELS if slowdown(model, network).machines <= INSENSITIVE]


def pick(models: list[str], category: float, inside: float) -> str:
    """Two numbers in [0, 1) choose: the category by its share among those that have models, then evenly."""
    kinds = [kind for kind in SHARES if any(MODELS[model] == kind for model in models)]
    if not kinds:
        raise InputError("models", models, "at least one model of Themis")
    point = category * sum(SHARES[kind] for kind in kinds)
    for kind in kinds:
        point -= SHARES[kind]
        if point < 0:
            break
    of_kind = [model for model in models if MODELS[model] == kind]
    return of_kind[int(inside * len(of_kind))]
