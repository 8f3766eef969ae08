"""astrarium profile MODEL"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.cli.options import Json
from astrarium.cli.output import emit
from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import duration_in, write_duration
from astrarium.run.waiting import waiting

if TYPE_CHECKING:
    pass

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
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="FILE", help="Measure with these inputs (numpy.savez), not made-up ones."),
]
Buckets = Annotated[
    int | None,
    typer.Option("--buckets", min=1, max=64, help="With --data: so many lengths at most, padded least."),
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
PathToo = Annotated[
    bool, typer.Option("--path/--no-path", help="With --write: measure what a call takes of the path, too.")
]


def profile(
    model: What,
    name: Which = None,
    backend: Backend = None,
    option: Option = None,
    input_: Input = None,
    data: Data = None,
    buckets: Buckets = None,
    device: Device = "auto",
    max_batch: MaxBatch = None,
    slo: Slo = None,
    repeats: Repeats = 50,
    warm_up: WarmUp = 5,
    quantile: Quantile = "p95",
    slack: Slack = 0.0,
    out: Out = None,
    write: Write = False,
    path: PathToo = True,
    json: Json = False,
) -> None:
    """Measure how long a model's batches take on this machine, and write its profile.

    Python models that carry `applications` are measured by application. What a call takes of the path, the
    threads that read and answer it, is measured in a server of its own on this machine.
    """
    from astrarium.cli.serving.profile import by_length, destination, measuring, path_time
    from astrarium.cli.serving.profile.grid import grid_of
    from astrarium.cli.serving.profile.target import find, load_model, shaped, tensor_of
    from astrarium.core.overrides import pairs
    from astrarium.serving.live.backends.contract import Varied
    from astrarium.serving.live.profiling import Care

    chance = _chance(quantile)
    specs = [tensor_of(text) for text in input_ or []]
    options = pairs(option or [], "--option", "KEY=VALUE, such as threads=2")
    target = find(model, name, backend, specs, options)
    largest = max_batch or target.largest
    limit = target.slo if slo is None else duration_in("--slo", slo)
    destination.check(target, out, write)
    wanted = measuring.Wanted(target.name, largest, limit, chance, slack, data, buckets)
    grid = grid_of(target.files.inputs, wanted)
    with waiting(f"loading {target.name}"):
        loaded = load_model(target, device, largest, grid.axes[0] if len(grid.axes) == 1 else ())
    care = Care(warm_up, repeats)
    try:
        inputs = shaped(loaded, specs, target.files)
        by_length.check_buckets(inputs, wanted)
        if isinstance(loaded, Varied) and loaded.applications:
            profiled, times, found = measuring.by_application(loaded, loaded.applications, care, wanted)
        elif by_length.is_open(inputs):
            profiled, times, found = by_length.by_length(loaded, inputs, care, wanted)
        else:
            profiled, times, found = measuring.by_size(loaded, inputs, care, wanted)
        longest = [axis[-1] for axis in grid.axes]
        taken = path_time.sampled(loaded, inputs, longest, data) if write and path else None
    finally:
        loaded.close()
    took = None if taken is None else path_time.measured(target, taken)
    runs = f"{quantile} of {repeats} runs"
    basis = f"{repeats} requests of each application" if "dynamic" in profiled else runs
    about = f"{target.files.backend} model {target.name}: {basis}"
    places = destination.write_profile(target, profiled, took, about, out, write)
    facts = {"model": target.name, "profile": profiled, "written": places, **found}
    if took is not None:
        facts["path_time"] = write_duration(took)
    emit(json, facts, [times], None)
    if not json:
        destination.show(profiled, took, places)


def _chance(quantile: str) -> float:
    if quantile not in QUANTILES:
        raise InputError("--quantile", quantile, one_of(list(QUANTILES), quantile))
    return QUANTILES[quantile]
