"""The models of Themis (Mahajan et al., NSDI 2020, Table 4) get slower where their GPUs are apart."""

from __future__ import annotations

from typing import Final

from astrarium.cluster.machines import Spread
from astrarium.core.errors import InputError

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

_ANYWHERE = {  # how many times slower models get on GPUs of several machines, and who says so
    **dict.fromkeys(["Bi-Att-Flow", "GNMT", "WaveNet"], DEFAULT),
    "Inception-v3": 1.0,  # Table 1
    "VGG16": 1.29,  # Table 1; AlexNet and VGG19 are taken to be like it
    **dict.fromkeys(["AlexNet", "VGG19"], 1.29),
    "DeepSpeech": 1.155,  # Sia
}
_BY_NETWORK = {  # medians of what Gavel measured; on a fast network, nothing gets slower (Sia)
    "k80": {"LangModel": 1.198, "Transformer": 1.09, "ResNet50": 1.0},
    "p100": {"LangModel": 1.931, "Transformer": 1.375, "ResNet50": 1.017},
    "v100": {"LangModel": 4.343, "Transformer": 1.86, "ResNet50": 1.062},
    "fast": dict.fromkeys(MODELS, 1.0),
}


def _by_spread(times: float) -> dict[Spread, float]:
    racks = times * ACROSS_RACKS if times > INSENSITIVE else times
    return {Spread.SLOT: 1.0, Spread.MACHINE: 1.0, Spread.RACK: times, Spread.CLUSTER: racks}


SLOWDOWNS = {
    (model, network): _by_spread({**_ANYWHERE, **own}[model])
    for network, own in _BY_NETWORK.items()
    for model in MODELS
}


def network_intensive(network: str) -> list[str]:
    """Return the models that suffer from being spread."""
    return [model for model in MODELS if SLOWDOWNS[model, network][Spread.RACK] >= INTENSIVE]


def compute_intensive(network: str) -> list[str]:
    """Return the models that do not mind being spread. Some are neither."""
    return [model for model in MODELS if SLOWDOWNS[model, network][Spread.RACK] <= INSENSITIVE]


def pick(models: list[str], category: float, inside: float) -> str:
    """Return a model: of two numbers in [0, 1) one picks the category by its share, one a model of it."""
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
