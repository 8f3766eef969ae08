"""Plans are read and written as files, and scenarios are turned into placement problems.

    policy: alpaserve
    replicas:
    - {model: bert, gpus: [0, 1], shape: op1pp2, batch: 4, why: group 0}
    missing: {vgg: a GPU with 12GiB or more}
    attainment: 0.97

YAML and JSON are the same to read; the ending of the name says which is written.
"""

from __future__ import annotations

import math
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.decode import Decoder
from astrarium.core.errors import InputError, read_from
from astrarium.core.plain_data import read_yaml
from astrarium.core.quantities import SECOND
from astrarium.core.random_streams import stream
from astrarium.placement.plan import Plan
from astrarium.placement.plan_file import PlanEntry, read, written
from astrarium.placement.problem import (
    ALONE,
    Form,
    PlacedModel,
    PlacementGpu,
    PlacementRequests,
    Problem,
    Shape,
    parse_shape,
)
from astrarium.serving.contract import ModelSpec
from astrarium.serving.planning.mean_times import mean_times
from astrarium.serving.scenario import build
from astrarium.serving.scenario.cluster import Cluster
from astrarium.serving.scenario.plain import plain_value
from astrarium.serving.scenario.rates import spans
from astrarium.serving.scenario.schema import Model, Parallel, Scenario

ENDINGS = (".yaml", ".yml", ".json")


def problem(scenario: Scenario, planning: bool = True) -> Problem:
    """Return a scenario's placement problem.

    The requests to plan with are drawn like those of the scenario, from another seed. A trace cannot be drawn
    again: there are none then, only rates. Where nobody is *planning*, there are none either.
    """
    setup = build.setup(scenario, placed=True)
    gpus = tuple(PlacementGpu(gpu.id, gpu.memory, gpu.node, gpu.kind) for gpu in setup.gpus)
    _check_gpu_memory(scenario.cluster)
    _check_model_memory(scenario)
    known = zip(setup.models, _rates(scenario), strict=True)
    models = tuple(_placed(scenario, spec, rate) for spec, rate in known)
    return Problem(models, gpus, _requests(scenario) if planning else PlacementRequests())


def save(path: str | Path, plan: Plan, problem: Problem) -> None:
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise InputError("", path.name, f"a name for the plan that ends in {', '.join(ENDINGS)}")
    text = to_json(plan, problem) if path.suffix == ".json" else to_yaml(plan, problem)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("", None, f"a file that can be written: {error.strerror}", str(path)) from None


def load(path: str | Path, problem: Problem) -> Plan:
    """Read a plan, checked against the scenario that it is used with."""
    return parse(read_yaml(Path(path), "a plan"), problem, str(path))


def parse(raw: Any, problem: Problem, source: str = "") -> Plan:
    with read_from(source):
        return read(Decoder().decode_struct(PlanEntry, raw, ""), problem)


def plain(plan: Plan, problem: Problem) -> dict[str, Any]:
    """Return a plan as data that JSON and YAML know; defaults are left out."""
    fields: dict[str, Any] = plain_value(PlanEntry, written(plan, problem))
    return fields


def to_yaml(plan: Plan, problem: Problem) -> str:
    import yaml

    # lists and mappings of plain values on one line each
    text = yaml.safe_dump(
        plain(plan, problem), sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    )
    return str(text)


def to_json(plan: Plan, problem: Problem) -> str:
    return msgspec.json.format(msgspec.json.encode(plain(plan, problem)), indent=2).decode() + "\n"


def _placed(scenario: Scenario, spec: ModelSpec, rate: float) -> PlacedModel:
    """Return a model to place, with batches that keep the SLO on the slowest kind of GPU."""
    model = scenario.models[spec.name]
    alone = Form(ALONE, (mean_times(scenario, spec),), (model.memory,))
    return PlacedModel(spec.index, spec.name, spec.slo, rate, {ALONE: alone, **_parallel(model)})


def _parallel(model: Model) -> dict[Shape, Form]:
    """Return a model's parallel forms, with batches that keep the SLO in all stages together."""
    forms = {parse_shape(name, ""): part for name, part in model.parallel.items()}
    spread = {shape: _spread_form(shape, part, model) for shape, part in forms.items()}
    return {shape: form for shape, form in spread.items() if form.max_batch}


def _spread_form(shape: Shape, part: Parallel, model: Model) -> Form:
    times = islice(part.profile.batch_times(), model.max_batch)
    fitting = tuple(takewhile(lambda time: time * shape.stages <= model.slo, times))
    return Form(shape, ((0, *fitting),) * shape.stages, (part.memory,) * shape.stages)


def _check_gpu_memory(cluster: Cluster) -> None:
    for place, group in enumerate(cluster.groups):
        if not group.memory:
            field = "cluster.memory" if isinstance(cluster.gpus, int) else f"cluster.gpus[{place}].memory"
            raise InputError(field, None, "a value such as 16GiB: planning asks what fits on a GPU")


def _check_model_memory(scenario: Scenario) -> None:
    for name, model in scenario.models.items():
        if not model.memory:
            expected = "a value such as 200MiB: planning asks what the model occupies on a GPU"
            raise InputError(f"models.{name}.memory", None, expected)


def _rates(scenario: Scenario) -> list[float]:
    """Return each model's requests a second, as a mean over the duration."""
    duration = scenario.duration
    if scenario.workload.file is not None:
        known = build.arrivals(scenario).model.tolist()
        return [known.count(index) * SECOND / duration for index in range(len(scenario.models))]
    parts = spans(scenario.workload, list(scenario.models))
    if len(parts) == 1:
        return list(parts[0].rates)
    return [
        math.fsum(part.rates[index] * (part.end - part.start) for part in parts) / duration
        for index in range(len(scenario.models))
    ]


def _requests(scenario: Scenario) -> PlacementRequests:
    if scenario.workload.file is not None:
        return PlacementRequests()
    other = int(stream(scenario.seed, "planning").integers(2**31))
    drawn = build.arrivals(scenario.with_seed(other))
    return PlacementRequests.of(drawn.time, drawn.model)
