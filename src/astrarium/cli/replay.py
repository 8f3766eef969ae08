"""astrarium replay PATH"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.options import OnePolicy

if TYPE_CHECKING:
    from astrarium.core.engine import Engine
    from astrarium.core.trace import Step

DIVERGED = 1
Recorded = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="What `serve --record` wrote, or a run folder with a trace (`simulate --trace`, a live search).",
    ),
]


def replay(path: Recorded, policy: OnePolicy = None) -> None:
    """Feed a recorded run, of any level, through a fresh policy: does it decide the same?"""
    from astrarium.core.errors import InputError
    from astrarium.run.replay import replay as feed
    from astrarium.run.waiting import waiting

    if not path.exists():
        raise InputError("PATH", str(path), "a recording or a run folder; there is no such file")
    steps = parts = 0
    for engine, recorded in _folder(path, policy) if path.is_dir() else _served(path, policy):
        counted = _Counted(recorded)
        parts += 1
        with waiting(f"replaying part {parts}"):
            found = feed(engine, counted)
        steps += counted.steps
        if found is not None:
            print(f"{path}: decided otherwise at {found.recorded.now / 1e9:.6f} s of part {parts}")
            print(f"  heard    {found.recorded.events}")
            print(f"  recorded {found.recorded.actions}")
            print(f"  replayed {found.decided}")
            raise typer.Exit(DIVERGED)
    print(f"{path}: the same decisions in all {steps:,} steps of {parts} part(s)")


def _served(file: Path, policy: str | None) -> Iterator[tuple[Engine[Any, Any, Any], Iterable[Step]]]:
    """What a server recorded: a part for each scheduler that it had."""
    import yaml

    from astrarium.cli.opening import variant
    from astrarium.core.engine import Engine
    from astrarium.server.recording import RecordingReader
    from astrarium.serving.level import LEVEL
    from astrarium.serving.scenario import build, parse
    from astrarium.serving.state import ServingState

    recorded = RecordingReader(file)
    scenario = parse(yaml.safe_load(recorded.header.scenario), f"{file} (its scenario)", serving=True)
    if policy is not None:
        scenario = variant(LEVEL, scenario, policy)
    for setup, section in recorded.sections():
        yield Engine(ServingState(setup), build.policy(scenario, setup)), section


def _folder(folder: Path, policy: str | None) -> Iterator[tuple[Engine[Any, Any, Any], Iterable[Step]]]:
    """What a run of any level kept: each trace stands beside its scenario."""
    from astrarium.cli.opening import opened, tell
    from astrarium.core.errors import InputError
    from astrarium.core.trace import read_trace
    from astrarium.run.folder import SCENARIO, TRACE

    traces = sorted(folder.rglob(TRACE))
    if not traces:
        raise InputError(
            "PATH", str(folder), f"a folder with {TRACE}: `astrarium simulate --trace` keeps one"
        )
    for trace in traces:
        scenarios = [
            each / SCENARIO for each in (trace.parent, *trace.parents) if (each / SCENARIO).is_file()
        ]
        if not scenarios:
            raise InputError("PATH", str(trace), f"a trace with {SCENARIO} beside it")
        level, scenario = opened(scenarios[0], None, None, policy)
        tell(scenarios[0], level)
        engine = level.books(scenario, level.policy(scenario))
        yield engine, read_trace(trace, level.events, level.actions)


class _Counted:
    """Passes steps on and counts them."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps, self.steps = steps, 0

    def __iter__(self) -> Iterator[Step]:
        for step in self._steps:
            self.steps += 1
            yield step
