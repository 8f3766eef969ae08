"""Known measurements of models beside their scenario: how they slow each other, what they use of a GPU.

Measurements come by name: `resnet50`, and its copies `resnet50-0`, `resnet50-1`, are the `resnet50` that was
measured. On GPUs of kind V100 the package's own measurements tell what a model uses of the SMs, and how one
of AlpaServe's models runs over several GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from astrarium.core.decode import Decoder, read_yaml
from astrarium.core.errors import InputError, one_of
from astrarium.placement import alpaserve, igniter
from astrarium.placement import v100 as table
from astrarium.placement.igniter import GpuTraits, IgniterProfile, ModelTraits, fit_gpu, fit_models
from astrarium.placement.interference import (
    IgniterInterference,
    Interference,
    MeasuredInterference,
    SlowdownTable,
)
from astrarium.placement.problem import ALONE, Form, PlacedModel, Problem, Shape
from astrarium.placement.v100 import placed_model as measured_model

# What is known of models that share a GPU, read from files: iGniter's profiles, measured slowdowns.


S = TypeVar("S", bound=msgspec.Struct)


class Colocation(msgspec.Struct, frozen=True):
    """Colocation is iGniter's coefficients of a kind of GPU, and of models on it by name."""

    gpu: GpuTraits
    models: Mapping[str, ModelTraits]


@cache
def v100() -> Colocation:
    """Return iGniter's coefficients from the profile that comes along."""
    return _fitted(igniter.profile(), igniter.SOURCE)


def read_igniter(path: str | Path) -> Colocation:
    """Read a profile of your own, YAML or JSON in the form of `placement/igniter.json`."""
    return _fitted(read_yaml(Path(path)), str(path))


def _fitted(raw: Any, source: str) -> Colocation:
    profile = _decoded(IgniterProfile, raw, source)
    try:
        return Colocation(fit_gpu(profile.gpu), fit_models(profile))
    except InputError as error:
        raise error.read_from(source) from None


def read_slowdowns(path: str | Path) -> SlowdownTable:
    """Read a table of measured slowdowns, YAML or JSON:

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


T = TypeVar("T")
Known = Callable[[Problem], Problem]
Slowing = Callable[[Problem], Interference]

NAMES = ["none", "igniter"]
_COPY = re.compile(r"-\d+\Z")


def interference_named(name: str) -> tuple[Known, Slowing | None]:
    """Return the interference named 'none', 'igniter' (the V100's profile that comes along), or in a file.

    A file is a profile in iGniter's form, or a table of measured slowdowns.
    """
    if name == "none":
        return measured_on_v100s, None
    if name == "igniter":
        return _by_igniter(v100(), name)
    if not Path(name).is_file():
        expected = f"{one_of(NAMES, name)}, or a file with measured slowdowns"
        raise InputError("--interference", name, expected)
    raw = read_yaml(Path(name))
    if isinstance(raw, dict) and "gpu" in raw:
        return _by_igniter(read_igniter(name), name)
    slowdowns = read_slowdowns(name)
    return measured_on_v100s, lambda problem: MeasuredInterference(problem, slowdowns)


def _by_igniter(profile: Colocation, name: str) -> tuple[Known, Slowing]:
    def known(problem: Problem) -> Problem:
        traits = [named(profile.models, model.name) for model in problem.models]
        if all(found is None for found in traits):
            names = ", ".join(profile.models)
            raise InputError("--interference", name, f"models by the names that it knows: {names}")
        models = zip(problem.models, traits, strict=True)
        return msgspec.structs.replace(
            problem,
            models=tuple(msgspec.structs.replace(model, igniter=found) for model, found in models),
            gpus=tuple(msgspec.structs.replace(gpu, igniter=profile.gpu) for gpu in problem.gpus),
        )

    return lambda problem: known(measured_on_v100s(problem)), IgniterInterference


def measured_on_v100s(problem: Problem) -> Problem:
    """Add what the package knows of models on a V100, if all GPUs are of that kind."""
    if any(gpu.kind.lower() != "v100" for gpu in problem.gpus):
        return problem
    models = tuple(_with_forms(_with_demands(model)) for model in problem.models)
    return msgspec.structs.replace(problem, models=models)


def _with_demands(model: PlacedModel) -> PlacedModel:
    name = named({each: each for each in table.models()}, model.name)
    if name is None:
        return model
    return msgspec.structs.replace(model, demands=measured_model(0, name, 0.0, 0).demands)


def _with_forms(model: PlacedModel) -> PlacedModel:
    """Add forms over several GPUs, in proportion to what the scenario says of one."""
    name = named({each: each for each in alpaserve.names()}, model.name)
    alone = alpaserve.alone(name) if name is not None else None
    if name is None or alone is None or model.alone is None:
        return model
    size = model.alone.weights[0] / alone.weights[0]
    slower = [time / alone.times[0] for time in model.alone.stage_times[0]]
    forms = {ALONE: model.alone}
    for one in alpaserve.measured(name):
        shape = Shape(one.stages, one.operators)
        times = tuple(tuple(round(time * factor) for factor in slower) for time in one.times)
        forms.setdefault(shape, Form(shape, times, tuple(round(part * size) for part in one.weights)))
    return msgspec.structs.replace(model, forms=forms)


def named(things: Mapping[str, T], name: str) -> T | None:
    """Find something by name, in small or large letters, or by the name of which it is a copy."""
    known = {each.lower(): thing for each, thing in things.items()}
    return known.get(name.lower()) or known.get(_COPY.sub("", name.lower()))
