"""What only a live cluster needs: the commands of apps, and the section `live`.

The same file is simulated: there, a command is not looked at.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from astrarium.cluster.live.backend import OnStop, Processes, Task
from astrarium.cluster.scenario.schema import AppEntry
from astrarium.core.decode import Decoder, check_keys
from astrarium.core.errors import InputError
from astrarium.core.quantities import Duration, write_duration
from astrarium.core.units import MILLISECOND, SECOND

Retries = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class LiveSection(msgspec.Struct, frozen=True):
    """*state*: the folder of the store; *jobs*: that of all jobs, which every machine must see."""

    backend: Literal["local", "ray"] = "local"
    state: str | None = None
    jobs: str | None = None
    address: str | None = None
    grace: Duration = Duration(30 * SECOND)
    least: Duration = Duration(5 * SECOND)
    patience: Duration = Duration(10 * SECOND)
    progress: Duration = Duration(5 * SECOND)
    checkpoints: Duration = Duration(60 * SECOND)
    look: Duration = Duration(200 * MILLISECOND)
    retries: Retries = 2

    def __post_init__(self) -> None:
        if self.backend == "local" and self.address is not None:
            raise InputError("address", self.address, "backend: ray, which has one")
        for name in ("grace", "patience", "look"):
            if getattr(self, name) <= 0:
                raise InputError(name, "0s", "a duration above 0")
        if self.least * 2 > self.grace:
            raise InputError("least", write_duration(self.least), "at most half of grace: it is a part of it")


class TaskEntry(msgspec.Struct, frozen=True):
    """As in `Task`; the command as one line, or as a list of words."""

    command: str | tuple[str, ...]
    on_stop: OnStop = "checkpoint"
    processes: Processes = "machine"
    env: dict[str, str] = {}
    directory: str | None = None

    def __post_init__(self) -> None:
        self.words()
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                told = "a name without =, and a value, neither with a zero byte"
                raise InputError("env", f"{name}={value}", told)

    def words(self) -> tuple[str, ...]:
        try:
            words = self.command if isinstance(self.command, tuple) else tuple(shlex.split(self.command))
        except ValueError as error:
            raise InputError("command", self.command, f"a command line: {error}") from None
        if not words or not words[0] or any("\0" in word for word in words):
            raise InputError("command", self.command, "a command, such as python train.py")
        return words

    def task(self, home: Path) -> Task:
        """*home*: what a folder is relative to."""
        directory = str((home / (self.directory or ".")).resolve())
        return Task(self.words(), self.on_stop, self.processes, self.env, directory)


LIVE_FIELDS = tuple(field.name for field in msgspec.structs.fields(TaskEntry))


def simulated(raw: Any, field: str) -> Any:
    """An app without what only a live cluster needs. A wrong name is told with all that are right."""
    if not isinstance(raw, dict):
        return raw
    check_keys(raw, [*(each.name for each in msgspec.structs.fields(AppEntry)), *LIVE_FIELDS], field)
    return {name: value for name, value in raw.items() if name not in LIVE_FIELDS}


def task_entry(raw: Any, field: str) -> TaskEntry | None:
    """None where it has no command."""
    found = {name: raw[name] for name in LIVE_FIELDS if name in raw} if isinstance(raw, dict) else {}
    if not found:
        return None
    read: TaskEntry = Decoder().decode(TaskEntry, found, field)
    return read
