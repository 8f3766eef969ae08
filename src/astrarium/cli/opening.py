"""A file of any level is opened here: which level it is of, and the policies that a verb names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from astrarium.cli.progress import bar
from astrarium.core.errors import InputError, read_from

if TYPE_CHECKING:
    from astrarium.core.level import Level
    from astrarium.run.experiment import Bar


class Asked(NamedTuple):
    """A file to run, with what the command line changes in it, and the engine that is wanted."""

    file: Path
    override: list[str] | None
    seed: int | None
    engine: str


def opened(
    file: Path, override: Sequence[str] | None, seed: int | None, policy: str | None = None
) -> tuple[Level[Any, Any], Any]:
    """Return the level that a file is of, and its scenario, with the policy that was named instead."""
    from astrarium.levels import level_of, load

    scenario: Any = load(file, given(override, seed))
    level = level_of(scenario)
    if policy is not None:
        scenario = variant(level, scenario, policy)
    return level, scenario


def tell(file: Path, level: Level[Any, Any]) -> None:
    """Say which level a file is of."""
    print(f"{file.name}: {level.subject} ({level.name})", file=sys.stderr, flush=True)


def told_bar(file: Path, level: Level[Any, Any]) -> Bar:
    """Return progress bars, of which the first says what kind of file is being run."""
    levels = iter([level])

    def shown(title: str, length: int) -> AbstractContextManager[Callable[[int], None] | None]:
        for first in levels:
            tell(file, first)
        return bar(title, length)

    return shown


def given(override: Sequence[str] | None, seed: int | None) -> list[str]:
    return [*(override or []), *([] if seed is None else [f"seed={seed}"])]


def variants(level: Level[Any, Any], scenario: Any, specs: Sequence[str]) -> dict[str, Any]:
    """Return a scenario for each policy that `-p` names, all of them checked; `all` stands for every one."""
    names = [name for spec in specs for name in (level.policies.names() if spec == "all" else [spec])]
    scenarios: dict[str, Any] = {}
    for spec in names:
        scenarios |= _checked(level, scenario, spec)
    return scenarios


def variant(level: Level[Any, Any], scenario: Any, spec: str) -> Any:
    """Return the scenario with the one policy that `-p` names."""
    [changed] = _checked(level, scenario, spec).values()
    return changed


def _checked(level: Level[Any, Any], scenario: Any, spec: str) -> dict[str, Any]:
    from astrarium.core.choice import parse_choice
    from astrarium.run.experiment import variants as made

    with read_from(f"-p {spec}"):
        return made(level, scenario, [parse_choice(spec)])


def seeded(chosen: Mapping[str, Any], seeds: int) -> Iterator[tuple[str, Any]]:
    """Yield each scenario with as many seeds, from its own on."""
    for more in range(seeds):
        for label, scenario in chosen.items():
            yield label, scenario.with_seed(scenario.seed + more) if more else scenario


def check_served(file: Path, instead: str) -> None:
    """Refuse a file of another level than serving, and say what its own verbs are."""
    from astrarium.core.plain_data import read_yaml
    from astrarium.levels import level, name_of

    name = name_of(read_yaml(file))
    if name not in (None, "serving"):
        raise InputError("FILE", str(file), f"requests to models: {level(str(name)).subject} {instead}")


@contextmanager
def engine_option() -> Iterator[None]:
    """Show errors about the engine as errors about the option that it was chosen with."""
    try:
        yield
    except InputError as error:
        field = "--engine" if error.field == "engine" else error.field
        raise InputError(field, error.value, error.expected, error.source) from None


def refuse(level: Level[Any, Any], of: str, options: Mapping[str, Any]) -> None:
    """Refuse options that only files of another level have a use for."""
    for name, value in options.items():
        if level.name != of and value not in (None, False, "none"):
            shown = None if value is True else str(value)
            raise InputError(name, shown, f"to be left out for {level.subject}: it is for the {of} level")
