"""A file of any level is opened here: which level it is of, and the policies that a verb names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from astrarium.cli.progress import bar
from astrarium.core.errors import InputError
from astrarium.core.level import Level
from astrarium.run.experiment import Bar


def opened(
    file: Path, override: Sequence[str] | None, seed: int | None, policy: str | None = None
) -> tuple[Level[Any, Any], Any]:
    """Return the level that a file is of, and its scenario, with the policy that was named instead."""
    from astrarium.levels import level_of, load

    scenario: Any = load(file, given(override, seed))
    level = level_of(scenario)
    if policy is not None:
        [scenario] = variants(level, scenario, [policy]).values()
    return level, scenario


def told_bar(file: Path, level: Level[Any, Any]) -> Bar:
    """Return progress bars, of which the first says what kind of file is being run."""
    lines = iter([f"{file.name}: {level.subject} ({level.name})"])

    def shown(title: str, length: int) -> AbstractContextManager[Callable[[int], None] | None]:
        for line in lines:
            print(line, file=sys.stderr, flush=True)
        return bar(title, length)

    return shown


@contextmanager
def read_from(file: Path) -> Iterator[None]:
    """Name the file in errors about what it says, which may show only when it is run."""
    try:
        yield
    except InputError as error:
        raise error if error.field.startswith("-") else error.read_from(str(file)) from None


def given(override: Sequence[str] | None, seed: int | None) -> list[str]:
    return [*(override or []), *([] if seed is None else [f"seed={seed}"])]


def variants(level: Level[Any, Any], scenario: Any, specs: Sequence[str]) -> dict[str, Any]:
    """Return a scenario for each policy that `-p` names, all of them checked; `all` stands for every one."""
    from astrarium.core.choice import parse_choice
    from astrarium.run.experiment import variants as made

    names = [name for spec in specs for name in (level.policies.names() if spec == "all" else [spec])]
    found: dict[str, Any] = {}
    for spec in names:
        try:
            found |= made(level, scenario, [parse_choice(spec)])
        except InputError as error:
            raise error.read_from(f"-p {spec}") from None
    return found


def refuse(level: Level[Any, Any], of: str, options: Mapping[str, Any]) -> None:
    """Refuse options that only files of another level have a use for."""
    for name, value in options.items():
        if level.name != of and value not in (None, False, "none"):
            shown = None if value is True else str(value)
            raise InputError(name, shown, f"no such option for {level.subject}: it is for the {of} level")
