"""An app that is submitted to a live cluster is described as in a scenario file, and has a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astrarium.cluster.contract import (
    App,
)
from astrarium.cluster.live import limits
from astrarium.cluster.live.backend import JobCommand
from astrarium.cluster.scenario import schema, tasks
from astrarium.cluster.scenario.arrivals import copies
from astrarium.core.decode import Decoder
from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER


def live_apps(raw: Any, largest: int, home: Path, field: str = "app") -> Sequence[tuple[App, JobCommand]]:
    """Read an app as written, and its command. It comes when it is submitted, whatever its arrival says."""
    limits.check_size(raw, field)
    task, entry = _live_entry(raw, field)
    try:
        command = task.task(home)
        apps = [(app, command) for _, app in copies(entry, 0, 1, largest)]
    except InputError as error:
        raise InputError(error.field.replace("apps[0]", field), error.value, error.expected) from None
    _check_work([app for app, _ in apps], field)
    return apps


def _live_entry(raw: Any, field: str) -> tuple[tasks.TaskEntry, schema.AppEntry]:
    task = tasks.task_entry(raw, field)
    if task is None:
        raise InputError(f"{field}.command", None, "a command: live, an app is what it runs")
    entry: schema.AppEntry = Decoder().decode(schema.AppEntry, tasks.simulated(raw, field), field)
    if entry.kind == "halving":
        expected = "jobs or curve: live, only the app itself knows who is in its next phase"
        raise InputError(f"{field}.kind", entry.kind, expected)
    if entry.jobs_in_all > limits.MOST_JOBS:
        expected = f"at most {limits.MOST_JOBS} jobs, those of all copies together"
        raise InputError(f"{field}.jobs", entry.jobs_in_all, expected)
    return task, entry


def _check_work(apps: Sequence[App], field: str) -> None:
    """Refuse jobs whose GPU time no book could hold."""
    for app in apps:
        for job in (job for phase in app.phases for job in phase):
            if max(job.work, job.forecast) >= FOREVER:
                expected = "a length that takes less than 36 years of GPU time on the GPUs of the job"
                raise InputError(f"{field}.length", None, expected)
