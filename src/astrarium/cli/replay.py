"""astrarium replay FILE"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from astrarium.core.trace import Step

DIVERGED = 1
RecordingFile = Annotated[Path, typer.Argument(metavar="FILE", help="What `serve --record` wrote.")]


def replay(file: RecordingFile) -> None:
    """Feed a recording of `serve` through a fresh policy: does it decide the same?"""
    import yaml

    from astrarium.core.engine import Engine
    from astrarium.core.errors import InputError
    from astrarium.run.replay import replay as feed
    from astrarium.run.waiting import waiting
    from astrarium.server.recording import RecordingReader
    from astrarium.serving.scenario import build, parse
    from astrarium.serving.state import ServingState

    if not file.is_file():
        raise InputError("FILE", str(file), "a recording; there is no such file")
    recorded = RecordingReader(file)
    scenario = parse(yaml.safe_load(recorded.header.scenario), f"{file} (its scenario)", serving=True)
    steps = sections = 0
    for setup, section in recorded.sections():
        counted = _Counted(section)
        sections += 1
        with waiting(f"replaying scheduler {sections}"):
            found = feed(Engine(ServingState(setup), build.policy(scenario, setup)), counted)
        steps += counted.steps
        if found is not None:
            print(f"{file}: decided otherwise at {found.recorded.now / 1e9:.6f} s of scheduler {sections}")
            print(f"  heard    {found.recorded.events}")
            print(f"  recorded {found.recorded.actions}")
            print(f"  replayed {found.decided}")
            raise typer.Exit(DIVERGED)
    print(f"{file}: the same decisions in all {steps:,} steps of {sections} scheduler(s)")


class _Counted:
    """Passes steps on and counts them."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps, self.steps = steps, 0

    def __iter__(self) -> Iterator[Step]:
        for step in self._steps:
            self.steps += 1
            yield step
