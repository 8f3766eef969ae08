"""What is known of models that share a GPU, read from files: iGniter's profiles, measured slowdowns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from astrarium.core.errors import InputError
from astrarium.scenario.decode import Decoder
from astrarium.scenario.yaml_file import read_yaml
from astrarium.serving.placement.igniter_fit import Profile, fit_gpu, fit_models
from astrarium.serving.placement.igniter_model import GpuTraits, ModelTraits
from astrarium.serving.placement.interference import SlowdownTable
from astrarium.workloads import igniter

S = TypeVar("S", bound=msgspec.Struct)


class Colocation(msgspec.Struct, frozen=True):
    """iGniter's coefficients of a kind of GPU, and of models on it by name."""

    gpu: GpuTraits
    models: Mapping[str, ModelTraits]


@cache
def v100() -> Colocation:
    """From the profile that comes along."""
    return _fitted(igniter.profile(), igniter.SOURCE)


def read_igniter(path: str | Path) -> Colocation:
    """From a profile of your own, YAML or JSON in the form of `workloads/igniter.json`."""
    return _fitted(read_yaml(Path(path)), str(path))


def _fitted(raw: Any, source: str) -> Colocation:
    profile = _decoded(Profile, raw, source)
    try:
        return Colocation(fit_gpu(profile.gpu), fit_models(profile))
    except InputError as error:
        raise error.read_from(source) from None


def read_slowdowns(path: str | Path) -> SlowdownTable:
    """A table of measured slowdowns, YAML or JSON:

    pairs: [{model: alexnet, beside: vgg19, slowdown: 1.3}]
    sums: {of: sm_utilization, points: [{sum: 1.0, slowdown: 1.0}, {sum: 2.0, slowdown: 1.9}]}
    otherwise: 1.1
    """
    return _decoded(SlowdownTable, read_yaml(Path(path)), str(path))


def _decoded(kind: type[S], raw: Any, source: str) -> S:
    try:
        return Decoder().decode_struct(kind, raw, "")
    except InputError as error:  # what a whole file is wrong about has no field above it
        raise InputError(error.field.lstrip("."), error.value, error.expected, source) from None
