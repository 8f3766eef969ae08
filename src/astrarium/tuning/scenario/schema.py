"""What a tuning scenario is made of besides its search and its policy: costs, emulated GPUs, a task."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from math import prod
from typing import Annotated, Any, Literal
from warnings import catch_warnings, simplefilter

import msgspec

from astrarium.core.errors import InputError, did_you_mean, one_of
from astrarium.core.optional import from_extra
from astrarium.core.quantities import MILLISECOND, SECOND, Duration, check_above_zero
from astrarium.tuning.live.training.workers import Overhead
from astrarium.tuning.samplers import Goal, GridSampler, RandomSampler, Sampler
from astrarium.tuning.spaces import Choice, Range, Space

# Where a scenario's configurations come from: ours by name, or a sampler of Optuna or of Ray Tune.


Kind = Literal["random", "grid", "optuna", "raytune"]
KINDS = ["random", "grid", "optuna", "raytune"]
_FORM = "random, grid, {optuna: TPESampler} or {raytune: optuna}"
_NAMES = {"optuna": "sampler", "raytune": "searcher"}  # what a library calls it
_WITH_AN_END = {"GridSampler", "BruteForceSampler"}


class SamplerSection(msgspec.Struct, frozen=True):
    """*name* and *settings* are the library's, *seed* the file's unless given."""

    kind: Kind
    name: str = ""
    seed: int | None = None
    settings: dict[str, Any] = {}


def sampler_section(raw: Any, search: str) -> SamplerSection:
    """A grid search takes all that its sampler has: one that never ends would be asked for ever."""
    ends = search == "grid"
    section = SamplerSection("grid" if ends else "random") if raw is None else _read(raw)
    endless = section.kind != "grid" and section.name not in _WITH_AN_END
    if ends and endless:
        expected = "grid: a grid search takes all that the sampler has, and this one has no end"
        raise InputError("sampler", section.name or section.kind, expected)
    return section


def _read(raw: Any) -> SamplerSection:
    if isinstance(raw, str):
        if raw not in ("random", "grid"):
            raise InputError("sampler", raw, f"{_FORM}{_near(raw)}")
        return SamplerSection("random" if raw == "random" else "grid")
    if not isinstance(raw, dict) or len(raw) != 1:
        raise InputError("sampler", raw, _FORM)
    [(kind, inside)] = raw.items()
    if kind not in _NAMES:
        raise InputError(f"sampler.{kind}", inside, one_of(list(_NAMES), kind))
    return _of_library(kind, inside)


def _near(raw: str) -> str:
    """Who writes the name of a library's sampler means {optuna: NAME}."""
    return f"; is it {{optuna: {raw}}}?" if raw.endswith("Sampler") else did_you_mean(KINDS, raw)


def _of_library(kind: Kind, inside: Any) -> SamplerSection:
    what = _NAMES[kind]
    field = f"sampler.{kind}"
    settings = {what: inside} if isinstance(inside, str) else inside
    if not isinstance(settings, dict) or not isinstance(settings.get(what), str):
        raise InputError(field, inside, f"a name, or a mapping with {what}, seed and settings of its own")
    seed = settings.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise InputError(f"{field}.seed", seed, "a whole number >= 0")
    rest = {name: value for name, value in settings.items() if name not in (what, "seed")}
    return SamplerSection(kind, settings[what], seed, rest)


def sampler_of(section: SamplerSection, space: Space, goal: Goal, seed: int) -> Sampler:
    """A new one for each run: it learns."""
    seed = seed if section.seed is None else section.seed
    if section.kind == "random":
        return RandomSampler(space, seed)
    if section.kind == "grid":
        return GridSampler(space)
    return (
        _optuna(section, space, goal, seed) if section.kind == "optuna" else _ray(section, space, goal, seed)
    )


def _optuna(section: SamplerSection, space: Space, goal: Goal, seed: int) -> Sampler:
    from astrarium.tuning.optuna.sampler import OptunaSampler

    with from_extra("tune"):
        import optuna
    names = [name for name in optuna.samplers.__all__ if _is_sampler(getattr(optuna.samplers, name))]
    if section.name not in names:
        raise InputError(
            "sampler.optuna", section.name, f"a sampler of Optuna: {one_of(names, section.name)}"
        )
    kind = getattr(optuna.samplers, section.name)
    choices = section.settings.get("search_space", _choices(section.name, space))
    grid = {"search_space": choices} if section.name == "GridSampler" else {}
    made = _made(kind, {**grid, **section.settings}, seed, "sampler.optuna")
    _quiet_optuna()
    study = optuna.create_study(sampler=made, direction="minimize" if goal == "min" else "maximize")
    return OptunaSampler(study, space, None if choices is None else prod(map(len, choices.values())))


def _quiet_optuna() -> None:
    """A line for each candidate is ours to print."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _choices(sampler: str, space: Space) -> dict[str, Sequence[Any]] | None:
    """What a sampler with an end may choose for each name; None of others. Optuna's end when they are told
    results: a grid search, which asks for all at once, would ask for ever."""
    if sampler not in _WITH_AN_END:
        return None
    if sampler == "BruteForceSampler":
        return {name: _all_of(dimension, f"space.{name}") for name, dimension in space.items()}
    return {name: dimension.grid() for name, dimension in space.items()}


def _all_of(dimension: Range | Choice, field: str) -> Sequence[Any]:
    if isinstance(dimension, Choice):
        return dimension.options
    if not dimension.whole:
        expected = "options, or a range of whole numbers: BruteForceSampler tries all that there are"
        raise InputError(field, f"from {dimension.low:g} to {dimension.high:g}", expected)
    return range(int(dimension.low), int(dimension.high) + 1)


def _is_sampler(kind: Any) -> bool:
    return inspect.isclass(kind) and not inspect.isabstract(kind) and kind.__name__.endswith("Sampler")


def _ray(section: SamplerSection, space: Space, goal: Goal, seed: int) -> Sampler:
    from astrarium.tuning.ray_tune.sampler import RayTuneSampler

    with from_extra("tune"):
        from ray.tune.search import SEARCH_ALG_IMPORT, Searcher
    if section.name not in SEARCH_ALG_IMPORT:
        expected = f"a searcher of Ray Tune: {one_of(list(SEARCH_ALG_IMPORT), section.name)}"
        raise InputError("sampler.raytune", section.name, expected)
    if section.name == "optuna":
        _quiet_optuna()
    load: Any = SEARCH_ALG_IMPORT[section.name]
    kind = load()
    if not issubclass(kind, Searcher):
        expected = "a searcher that is asked for one configuration at a time; `sampler: random` is ours"
        raise InputError("sampler.raytune", section.name, expected)
    return RayTuneSampler(_made(kind, section.settings, seed, "sampler.raytune"), space, goal)


def _made(kind: Any, settings: dict[str, Any], seed: int, field: str) -> Any:
    """Errors of a library's constructor are about what the file says; packages may be missing too."""
    names = inspect.signature(kind).parameters
    name = next((parameter for parameter in ("seed", "random_state_seed") if parameter in names), None)
    try:
        with catch_warnings():
            simplefilter("ignore")  # whoever names a sampler knows that it may be experimental
            return kind(**({name: seed} if name else {}), **settings)
    except (TypeError, ValueError, AssertionError, ImportError) as error:
        raise InputError(field, kind.__name__, f"settings that it takes: {error}") from None


Gpus = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Iterations = Annotated[int, msgspec.Meta(ge=0)]
Threads = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Spread = Annotated[float, msgspec.Meta(ge=0, le=3)]
Noise = Annotated[float, msgspec.Meta(ge=0)]
Patience = Annotated[float, msgspec.Meta(gt=0)]
Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1000)]
Factor = Annotated[float, msgspec.Meta(gt=0, le=1000)]
EngineName = Literal["local", "ray"]


class CostsSection(msgspec.Struct, frozen=True):
    """*starting* a trial, *moving* one to other GPUs, and iterations after which a candidate's are known.
    Only simulations need them: a live run measures its own."""

    starting: Duration = Duration(500 * MILLISECOND)
    moving: Duration = Duration(2 * SECOND)
    profile: Iterations = 1


class LiveSection(msgspec.Struct, frozen=True):
    """How a live run trains; what is not written is up to its engine. *packing*: trials that share a GPU are
    processes, or threads in lanes of one; *gate*: under the kernel gate, where there is one. *checkpoints*
    are so far apart in a trial that goes on; *patience* with a process that gives no sign of life. A trial
    fails whose iteration takes more than *longest*. *threads* of the CPU for each. *address*: of the Ray
    cluster."""

    packing: Literal["processes", "lanes"] | None = None
    gate: bool | None = None
    checkpoints: Duration | None = None
    patience: Duration | None = None
    longest: Duration | None = None
    threads: Threads | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoints", "patience", "longest"):
            if getattr(self, name) is not None:
                check_above_zero(name, getattr(self, name))

    def check(self, engine: EngineName, emulated: bool) -> None:
        if emulated and self.packing == "lanes":
            raise InputError("live.packing", "lanes", "processes: emulated GPUs have no lanes")
        if engine == "local" and self.address is not None:
            raise InputError("live.address", self.address, "engine: ray, which has one")


class KnobEntry(msgspec.Struct, frozen=True):
    """*best* is where on its way from low (0) to high (1) results are best, *weight* how much it matters. At
    its high end an iteration takes *slower* times as long as at its low end."""

    best: Part = 0.5
    weight: Weight = 1.0
    slower: Factor = 1.0


class TaskEntry(msgspec.Struct, frozen=True):
    """A task that is only simulated: how long an iteration takes on a GPU by itself, and how candidates
    learn. Values go from *start* towards *reach*, by e-fold every *patience* iterations."""

    iteration: Duration
    start: float
    reach: float
    patience: Patience
    noise: Noise = 0.0
    spread: Spread = 0.0
    packing: Overhead | None = None
    scaling: Overhead | None = None
    knobs: dict[str, KnobEntry] = {}

    def __post_init__(self) -> None:
        if not self.iteration:
            raise InputError("iteration", "0s", "a duration above 0, such as 2s")
        if self.start == self.reach:
            raise InputError("reach", self.reach, f"another value than start ({self.start:g}): trials learn")

    @property
    def goal(self) -> Goal:
        return "max" if self.reach > self.start else "min"
