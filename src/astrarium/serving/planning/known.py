"""Known measurements of models beside their scenario: how they slow each other, what they use of a GPU.

Measurements come by name: `resnet50`, and its copies `resnet50-0`, `resnet50-1`, are the `resnet50` that was
measured. On GPUs of kind V100 the package's own measurements tell what a model uses of the SMs, and how one
of AlpaServe's models runs over several GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from astrarium.core.decode import Decoder
from astrarium.core.errors import InputError, one_of, read_from
from astrarium.core.plain_data import read_yaml
from astrarium.placement.interference import (
    IgniterInterference,
    Interference,
    MeasuredInterference,
    SlowdownTable,
)
from astrarium.placement.measured import alpaserve_forms, v100_demands
from astrarium.placement.problem import ALONE, Form, PlacedModel, Problem
from astrarium.serving.planning.colocation import Colocation, fitted, v100

T = TypeVar("T")
Known = Callable[[Problem], Problem]
Slowing = Callable[[Problem], Interference]

NAMES = ["none", "igniter"]
_COPY = re.compile(r"-\d+\Z")


def interference_named(name: str) -> tuple[Known, Slowing | None]:
    """Return the interference named 'none', 'igniter' (the V100's profile that comes along), or in a file.

    A file, YAML or JSON, is a profile in iGniter's form, or a table of measured slowdowns:

    pairs: [{model: alexnet, beside: vgg19, slowdown: 1.3}]
    sums: {of: sm_utilization, points: [{sum: 1.0, slowdown: 1.0}, {sum: 2.0, slowdown: 1.9}]}
    otherwise: 1.1
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
        return _by_igniter(fitted(raw, name), name)
    with read_from(name):
        slowdowns = Decoder().decode_struct(SlowdownTable, raw, "")
    return measured_on_v100s, lambda problem: MeasuredInterference(problem, slowdowns)


def _by_igniter(profile: Colocation, name: str) -> tuple[Known, Slowing]:
    def known(problem: Problem) -> Problem:
        traits = [named(profile.models, model.name) for model in problem.models]
        if all(one is None for one in traits):
            names = ", ".join(profile.models)
            raise InputError("--interference", name, f"models by the names that it knows: {names}")
        models = zip(problem.models, traits, strict=True)
        return msgspec.structs.replace(
            problem,
            models=tuple(msgspec.structs.replace(model, igniter=one) for model, one in models),
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
    demands = named(v100_demands(), model.name)
    return model if demands is None else msgspec.structs.replace(model, demands=demands)


def _with_forms(model: PlacedModel) -> PlacedModel:
    """Add forms over several GPUs, in proportion to what the scenario says of one."""
    measured = named(alpaserve_forms(), model.name) or {}
    alone = measured.get(ALONE)
    if alone is None or model.alone is None:
        return model
    size = model.alone.weights[0] / alone.weights[0]
    slower = [time / alone.latency(1) for time in model.alone.stage_times[0]]
    forms = {ALONE: model.alone}
    for shape, one in measured.items():
        times = tuple(tuple(round(time * factor) for factor in slower) for _, time in one.stage_times)
        forms.setdefault(shape, Form(shape, times, tuple(round(part * size) for part in one.weights)))
    return msgspec.structs.replace(model, forms=forms)


def named(things: Mapping[str, T], name: str) -> T | None:
    """Find something by name, in small or large letters, or by the name of which it is a copy."""
    known = {full_name.lower(): thing for full_name, thing in things.items()}
    return known.get(name.lower()) or known.get(_COPY.sub("", name.lower()))
