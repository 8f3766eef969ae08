"""An app of a scenario file may say what it runs on a live cluster: a command, and how that is stopped."""

from __future__ import annotations

import shlex
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from astrarium.cluster.live import limits
from astrarium.cluster.live.backend import JobCommand, OnStop, Processes
from astrarium.cluster.scenario.schema import AppEntry
from astrarium.core.decode import Decoder, check_keys
from astrarium.core.errors import InputError


class TaskEntry(msgspec.Struct, frozen=True):
    """The keys of an app that become its `JobCommand`; the command as one line, or as a list of words."""

    command: str | tuple[str, ...]
    on_stop: OnStop = "checkpoint"
    processes: Processes = "machine"
    env: dict[str, str] = {}
    directory: str | None = None
    elastic: bool = False

    def __post_init__(self) -> None:
        self._check_sizes()
        self.words()
        if self.elastic and (self.on_stop != "checkpoint" or self.processes == "gpu"):
            expected = (
                "false: a job whose GPUs may change has on_stop: checkpoint, and processes: job or machine"
            )
            raise InputError("elastic", True, expected)
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                expected = "a name without =, and a value, neither with a zero byte"
                raise InputError("env", f"{name}={value}", expected)

    def _check_sizes(self) -> None:
        command = self.command if isinstance(self.command, str) else "".join(self.command)
        env = "".join(f"{name}{value}" for name, value in self.env.items())
        for field, text, most in (
            ("command", command, limits.LONGEST_COMMAND),
            ("env", env, limits.LARGEST_ENV),
            ("directory", self.directory or "", limits.LONGEST_PATH),
        ):
            if len(text.encode("utf-8", "replace")) > most:
                raise InputError(field, text, f"at most {most} bytes")
        if "\0" in (self.directory or ""):
            raise InputError("directory", self.directory, "a path without a zero byte")

    def words(self) -> tuple[str, ...]:
        return command_words(self.command)

    def task(self, home: Path) -> JobCommand:
        """*home*: what a folder is relative to. No link is followed here: that is for the user who runs it,
        who may not be allowed to know where one leads."""
        directory = str((home / (self.directory or ".")).absolute())
        return JobCommand(self.words(), self.on_stop, self.processes, self.env, directory, self.elastic)


@lru_cache(maxsize=16)
def _split(line: str) -> tuple[str, ...]:
    return tuple(shlex.split(line))


def command_words(command: str | tuple[str, ...]) -> tuple[str, ...]:
    try:
        words = command if isinstance(command, tuple) else _split(command)
    except ValueError as error:
        raise InputError("command", command, f"a command line: {error}") from None
    if not words or not words[0] or any("\0" in word for word in words):
        raise InputError("command", command, "a command, such as python train.py")
    return words


LIVE_FIELDS = tuple(field.name for field in msgspec.structs.fields(TaskEntry))


def simulated(raw: Any, field: str) -> Any:
    """An app without what only a live cluster needs. A wrong name is told with all that are right."""
    if not isinstance(raw, dict):
        return raw
    check_keys(raw, [*(known.name for known in msgspec.structs.fields(AppEntry)), *LIVE_FIELDS], field)
    return {name: value for name, value in raw.items() if name not in LIVE_FIELDS}


def task_entry(raw: Any, field: str) -> TaskEntry | None:
    """Read the keys of an app that say what it runs; None where there are none."""
    written = {name: raw[name] for name in LIVE_FIELDS if name in raw} if isinstance(raw, dict) else {}
    if not written:
        return None
    read: TaskEntry = Decoder().decode(TaskEntry, written, field)
    return read
