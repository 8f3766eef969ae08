"""A scenario's configurations come from a sampler of ours by name, or from one of Optuna or of Ray Tune."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from math import prod
from typing import Any, Literal
from warnings import catch_warnings, simplefilter

import msgspec

from astrarium.core.errors import InputError, did_you_mean, one_of
from astrarium.core.optional import from_extra
from astrarium.tuning.samplers import Goal, GridSampler, RandomSampler, Sampler
from astrarium.tuning.spaces import Choice, Range, Space

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
    """Read a sampler. A grid search takes all that its sampler has: one without an end is refused."""
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
    """Return a hint: whoever writes the name of a library's sampler means {optuna: NAME}."""
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
    """Return a new sampler, for one run: it learns."""
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
    sampler = _made(kind, {**grid, **section.settings}, seed, "sampler.optuna")
    _quiet_optuna()
    study = optuna.create_study(sampler=sampler, direction="minimize" if goal == "min" else "maximize")
    return OptunaSampler(study, space, None if choices is None else prod(map(len, choices.values())))


def _quiet_optuna() -> None:
    """Silence Optuna, which would print a line for each candidate, as we do."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _choices(sampler: str, space: Space) -> dict[str, Sequence[Any]] | None:
    """Return what a sampler with an end may choose for each name; None of others. Optuna's end when they are
    told results: a grid search, which asks for all at once, would ask for ever."""
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
    """Make a library's sampler. An error of its constructor is about what the file says."""
    names = inspect.signature(kind).parameters
    name = next((parameter for parameter in ("seed", "random_state_seed") if parameter in names), None)
    try:
        with catch_warnings():
            simplefilter("ignore")  # whoever names a sampler knows that it may be experimental
            return kind(**({name: seed} if name else {}), **settings)
    except (TypeError, ValueError, AssertionError, ImportError) as error:
        raise InputError(field, kind.__name__, f"settings that it takes: {error}") from None
