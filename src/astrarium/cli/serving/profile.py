"""astrarium profile MODEL"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.options import Json

if TYPE_CHECKING:
    from astrarium.cli.serving.measured_profile import Target
    from astrarium.serving.live.backends.contract import LoadedModel
    from astrarium.serving.live.tensors import TensorSpec


QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}

What = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A scenario, or a .onnx, .pt2 or .pt file, or file.py:function."),
]
Which = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Which model of the scenario.")]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="Instead of what the file's ending says.")
]
Option = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of the backend.")
]
Input = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME:TYPE:SHAPE", help="An input's size: IMAGE:FP32:3,224,224."),
]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="cpu, cuda:0, or auto: a GPU for PyTorch if any.")
]
MaxBatch = Annotated[
    int | None, typer.Option("--max-batch", min=1, help="The largest batch; the scenario's, else 64.")
]
Slo = Annotated[
    str | None,
    typer.Option("--slo", metavar="TIME", help="Stop at batches that take longer; the scenario's."),
]
Repeats = Annotated[int, typer.Option("--repeats", min=5, max=100_000, help="Runs of each size that count.")]
WarmUp = Annotated[int, typer.Option("--warm-up", min=0, max=10_000, help="Runs before that do not.")]
Quantile = Annotated[
    str, typer.Option("--quantile", metavar="NAME", help="What the profile holds: p50, p90, p95, p99, max.")
]
Slack = Annotated[float, typer.Option("--slack", min=0, max=100, help="Share to add to every time: 0.1.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the profile (YAML) there.")]
Write = Annotated[bool, typer.Option("--write", help="Put the profile into the scenario file.")]


def profile(
    model: What,
    name: Which = None,
    backend: Backend = None,
    option: Option = None,
    input_: Input = None,
    device: Device = "auto",
    max_batch: MaxBatch = None,
    slo: Slo = None,
    repeats: Repeats = 50,
    warm_up: WarmUp = 5,
    quantile: Quantile = "p95",
    slack: Slack = 0.0,
    out: Out = None,
    write: Write = False,
    json: Json = False,
) -> None:
    """Measure how long a model's batches take on this machine, and write its profile.

    Python models that carry `applications` are measured by application.
    """

    from astrarium.cli.output import emit
    from astrarium.cli.serving.measured_profile import (
        Wanted,
        by_application,
        by_size,
        check,
        find,
        show,
        tensor_of,
        write_profile,
    )
    from astrarium.run.waiting import waiting
    from astrarium.serving.live.profiling import Care

    chance = _chance(quantile)
    specs = [tensor_of(text) for text in input_ or []]
    target = find(model, name, backend, specs, _options(option))
    largest, limit = max_batch or target.largest, _limit(slo, target)
    check(target, out, write)
    with waiting(f"loading {target.name}"):
        loaded = _load(target, device, largest)
    wanted = Wanted(target.name, largest, limit, chance, slack)
    try:
        if getattr(loaded, "applications", None):
            found, table = by_application(loaded, Care(warm_up, repeats), wanted)
        else:
            found, table = by_size(loaded, _shaped(loaded, specs), Care(warm_up, repeats), wanted)
    finally:
        loaded.close()
    told = f"{quantile} of {repeats} runs" if "table" in found else f"{repeats} requests of each application"
    places = write_profile(target, found, f"{target.files.backend} model {target.name}: {told}", out, write)
    emit(json, {"model": target.name, "profile": found, "written": places}, [table], None)
    if not json:
        show(found, places)


def _chance(quantile: str) -> float:
    from astrarium.core.errors import InputError, one_of

    if quantile not in QUANTILES:
        raise InputError("--quantile", quantile, one_of(list(QUANTILES), quantile))
    return QUANTILES[quantile]


def _options(texts: list[str] | None) -> dict[str, Any]:
    from astrarium.core.decode import parse_yaml
    from astrarium.core.errors import InputError

    found = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError("--option", text, "KEY=VALUE, such as threads=2")
        found[key] = parse_yaml(value, f"--option {text}")
    return found


def _limit(slo: str | None, target: Target) -> int | None:
    from astrarium.core.errors import InputError
    from astrarium.core.quantities import read_duration

    if slo is None:
        return target.slo
    try:
        return read_duration(slo)
    except ValueError as error:
        raise InputError("--slo", slo, str(error)) from None


def _load(target: Target, device: str, largest: int) -> LoadedModel:
    from dataclasses import replace

    from astrarium.core.errors import InputError
    from astrarium.serving.live.backends import backends, placed
    from astrarium.serving.live.backends.contract import Place

    files = replace(target.files, max_batch=largest)
    place = Place(device=_device(device, files.backend))
    try:
        return backends.get(files.backend)(files, place)
    except InputError as error:
        raise (placed(error, target.name, files.backend) if target.scenario else error.at("MODEL")) from None


def _device(wanted: str, backend: str) -> str:
    from astrarium.core.errors import InputError
    from astrarium.serving.live.backends.contract import package

    if wanted == "auto":
        return "cuda:0" if backend == "torch" and package("torch", "torch").cuda.is_available() else "cpu"
    number = wanted.removeprefix("cuda:")
    if wanted != "cpu" and (number == wanted or not number.isdigit()):
        raise InputError("--device", wanted, "cpu, auto, or a GPU such as cuda:0")
    return wanted


def _shaped(loaded: LoadedModel, given: list[TensorSpec]) -> list[TensorSpec]:
    """The model's inputs, with the sizes that were given on the command line."""
    from astrarium.core.errors import InputError, one_of

    known = {spec.name: spec for spec in loaded.inputs}
    for spec in given:
        if spec.name not in known:
            raise InputError("--input", spec.name, one_of(list(known), spec.name))
        if spec.datatype != known[spec.name].datatype or not known[spec.name].admits(spec.shape):
            expected = f"{known[spec.name].datatype} with the shape {list(known[spec.name].shape)}"
            raise InputError("--input", f"{spec.datatype} {list(spec.shape)}", expected)
    chosen = {**known, **{spec.name: spec for spec in given}}
    if not chosen:
        raise InputError("--input", None, "the inputs: this model cannot tell them")
    return list(chosen.values())
