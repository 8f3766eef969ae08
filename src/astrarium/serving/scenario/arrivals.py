"""The arrivals of a scenario: generated or read, and for dynamic models each request's true time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from astrarium.core import processes
from astrarium.core.arrivals import Arrivals, Ints
from astrarium.core.distributions import choose
from astrarium.core.errors import InputError, one_of
from astrarium.core.lengths import LengthDistribution
from astrarium.core.processes import Floats, Stretch, Times
from astrarium.core.profiles import Dynamic, profile_by_length
from astrarium.core.random_streams import stream
from astrarium.serving.scenario.lengths import unknown_lengths
from astrarium.serving.scenario.rates import spans
from astrarium.serving.scenario.schema import Model, Scenario
from astrarium.serving.scenario.workload import Workload
from astrarium.serving.traces import Trace, read_trace


def arrivals(scenario: Scenario) -> Arrivals:
    known = _traced(scenario) if scenario.workload.file else _generated(scenario)
    return _complete(scenario, *known)


def arrivals_at(scenario: Scenario, time: Ints, model: Ints) -> Arrivals:
    """Requests are known by this much; chance adds the rest, where models are dynamic."""
    return _complete(scenario, time, model, _unknown_applications(scenario, model), None)


def _complete(
    scenario: Scenario, time: Ints, model: Ints, application: Ints, length: Ints | None
) -> Arrivals:
    work = np.zeros(len(time), np.int64)
    profiled = np.zeros(len(time), np.bool_)
    for index, (name, spec) in enumerate(scenario.models.items()):
        if isinstance(spec.profile, Dynamic):
            mine = np.flatnonzero(model == index)
            _draw_applications(application, mine, spec.profile, scenario.seed, name)
            _draw_work(work, time, application, mine, spec.profile, scenario.seed, name)
            chances = stream(scenario.seed, "profiling", name).random(len(mine))
            profiled[mine] = chances < scenario.profiling.share
    return Arrivals(time, model, application, work, profiled, _lengths(scenario, model, length))


def _lengths(scenario: Scenario, model: Ints, known: Ints | None) -> Ints:
    """Return how long each request is, as the trace or chance has it; 0 where a model has no lengths."""
    lengths = np.zeros(len(model), np.int32)
    for index, (name, spec) in enumerate(scenario.models.items()):
        by_length = profile_by_length(spec.profile)
        if by_length is None:
            continue
        mine = np.flatnonzero(model == index)
        if known is not None:
            lengths[mine] = _checked_lengths(known[mine], by_length.longest, scenario, name)
        else:
            generator = stream(scenario.seed, "lengths", name)
            lengths[mine] = _distribution(scenario, name).sample(generator, len(mine), by_length.longest)
    return lengths


def _distribution(scenario: Scenario, name: str) -> LengthDistribution:
    known = scenario.workload.lengths or {}
    if name not in known:
        raise unknown_lengths([name], scenario.workload)
    found: LengthDistribution = known[name]
    return found


def _checked_lengths(lengths: Ints, longest: int, scenario: Scenario, name: str) -> Ints:
    if len(lengths) and (largest := int(lengths.max())) > longest:
        expected = f"lengths of at most {longest}, the longest that the profile of {name} knows"
        raise InputError("length", largest, expected, str(scenario.workload.file))
    return lengths


def _generated(scenario: Scenario) -> tuple[Ints, Ints, Ints, None]:
    """Return time, model and application; -1 for an application that is still to be drawn, as lengths are."""
    time, model = processes.merged(_streams(scenario))
    return time, model, _unknown_applications(scenario, model), None


def _unknown_applications(scenario: Scenario, model: Ints) -> Ints:
    if not scenario.dynamic:
        return np.zeros(len(model), np.int32)
    unknown = [_place(_applications(spec), "") for spec in scenario.models.values()]
    return np.array(unknown, np.int32)[model]


def _streams(scenario: Scenario) -> list[Times]:
    names = list(scenario.models)
    parts = spans(scenario.workload, list(scenario.models))
    streams = []
    for index, name in enumerate(names):
        stretches = [Stretch(part.start, part.end, part.rates[index]) for part in parts]
        moments = _moments(scenario.workload, scenario.seed, name, processes.total(stretches))
        streams.append(processes.stretched(moments, stretches))
    return streams


def _moments(workload: Workload, seed: int, name: str, expected: float) -> Floats:
    generator = stream(seed, "arrivals", name)
    if workload.arrivals == "gamma":
        assert workload.shape is not None
        return processes.gamma(generator, expected, workload.shape)
    process = processes.uniform if workload.arrivals == "uniform" else processes.poisson
    return process(generator, expected)


def check_trace(trace: Trace, models: Mapping[str, Model]) -> None:
    """Check that every row asks for a model, and an application, that the scenario has."""
    for (model, application), place in trace.kinds.items():
        if model not in models:
            names = one_of(list(models), model)
            raise InputError(place, model, f"a model of the scenario: {names}", trace.path)
        known = _applications(models[model])
        if application and application not in known:
            expected = (
                f"an application of {model}: {one_of(known, application)}" if known else "no application"
            )
            raise InputError(place, application, expected, trace.path)


def _applications(model: Model) -> list[str]:
    return list(model.profile.applications) if isinstance(model.profile, Dynamic) else []


def _traced(scenario: Scenario) -> tuple[Ints, Ints, Ints, Ints | None]:
    """Return the same as `_generated`; a trace may leave applications and lengths to chance."""
    trace = read_trace(str(scenario.workload.file))
    check_trace(trace, scenario.models)
    model = {name: index for index, name in enumerate(scenario.models)}
    numbers = [
        (model[name], _place(_applications(scenario.models[name]), application))
        for name, application in trace.kinds
    ]
    kinds = np.array(numbers, np.int32)[np.frombuffer(trace.kind, np.intc)]
    time = np.frombuffer(trace.time, np.int64)
    kept = np.searchsorted(time, scenario.duration, side="left")
    length = None if trace.length is None else np.frombuffer(trace.length, np.intc)[:kept]
    return time[:kept], kinds[:kept, 0].copy(), kinds[:kept, 1].copy(), length


def _place(applications: Sequence[str], name: str) -> int:
    return applications.index(name) if name else -1 if applications else 0


def _draw_applications(application: Ints, mine: Ints, profile: Dynamic, seed: int, name: str) -> None:
    shares = [part.share for part in profile.applications.values()]
    drawn = choose(stream(seed, "applications", name), shares, len(mine))
    application[mine] = np.where(application[mine] < 0, drawn, application[mine])


def _draw_work(
    work: Ints, time: Ints, application: Ints, mine: Ints, profile: Dynamic, seed: int, name: str
) -> None:
    """A change has a stream of its own: what arrives before it takes what it would take without."""
    for number, (label, part) in enumerate(profile.applications.items()):
        rows = mine[application[mine] == number]
        work[rows] = part.time.sample(stream(seed, "work", name, label), len(rows))
        for place, change in enumerate(part.changes):
            later = rows[time[rows] >= change.at]
            work[later] = change.time.sample(stream(seed, "work", name, label, place), len(later))
