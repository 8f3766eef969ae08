"""A search runs from start to end on a trial backend, and its record is returned."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic_ns
from typing import Any

from astrarium.core.errors import InputError
from astrarium.tuning.live.backend import TrialBackend
from astrarium.tuning.live.checkpoints import Checkpoints
from astrarium.tuning.live.local import LocalTrialBackend
from astrarium.tuning.live.loop.live_tuning import LiveTuning, live_tuning
from astrarium.tuning.live.run.folder import check_same_search, folder_lock
from astrarium.tuning.live.run.interrupts import Interrupts
from astrarium.tuning.live.run.journal import FileJournal
from astrarium.tuning.live.run.recording import trace_recorder
from astrarium.tuning.live.run.spec import CheckedSearch, OnStep, SearchSpec, checked_search
from astrarium.tuning.live.training.workers import Build, Emulated
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.spaces import space_of

JOURNAL = "journal.jsonl"


def run_local(
    build: Build | str,
    spec: SearchSpec,
    gpus: int | Sequence[int] | None = None,
    emulated: Emulated | None = None,
    **backend: Any,
) -> TuningRecord:
    """Run a search on this machine. *backend* holds further settings of `LocalTrialBackend`."""

    def make_backend() -> LocalTrialBackend:
        trial_backend = LocalTrialBackend(build, gpus, emulated, **spec.of_backend, **backend)
        with _closed_on_error(trial_backend):
            trial_backend.warm_up()
        return trial_backend

    return run_with(spec, make_backend)


def run_with(spec: SearchSpec, make_backend: Callable[[], TrialBackend]) -> TuningRecord:
    """Run a search on a backend. What the user wrote is checked before anything is started."""
    checked = checked_search(spec)
    with _removed_if_unused(spec.folder), folder_lock(spec.folder):
        return _run(spec, checked, make_backend)


@contextmanager
def _removed_if_unused(folder: Path | None) -> Iterator[None]:
    """Remove a folder that was made for a search which never began: its name is free again."""
    missing = [] if folder is None else [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        if missing and not (missing[0] / JOURNAL).exists():
            shutil.rmtree(missing[0], ignore_errors=True)
            with suppress(OSError):  # others have put something there meanwhile
                for parent in missing[1:]:
                    parent.rmdir()
        raise


def _run(spec: SearchSpec, checked: CheckedSearch, make_backend: Callable[[], TrialBackend]) -> TuningRecord:
    journal = _journal(spec)
    with trace_recorder(spec.folder) as record:
        backend = make_backend()
        with _closed_on_error(backend), Interrupts() as interrupts:
            live = live_tuning(
                checked.search,
                checked.sampler,
                checked.policy,
                backend,
                spec.goal,
                spec.target,
                checked.space,
                journal=journal,
                limits=spec.limits,
                record=record,
            )
            _search(live, interrupts, spec.progress or (lambda live: None))
    return live.record(spec.label)


def _search(live: LiveTuning, interrupts: Interrupts, on_step: OnStep) -> None:
    """Run the loop. Once the first trials are under way, an interrupt leaves something to return."""

    def after(live: LiveTuning) -> None:
        interrupts.hold()
        on_step(live)

    began = monotonic_ns()
    live.run(lambda: monotonic_ns() - began, interrupts.why, after)


@contextmanager
def _closed_on_error(backend: TrialBackend) -> Iterator[None]:
    """Close the backend on an error, until a live run takes care of it."""
    try:
        yield
    except BaseException:
        backend.close()
        raise


def _journal(spec: SearchSpec) -> FileJournal | None:
    if spec.folder is None:
        if spec.resume:
            raise InputError("folder", None, "the folder of the run to go on with")
        return None
    path = spec.folder / JOURNAL
    if path.exists() and not spec.resume:
        expected = "a folder without an earlier run, or resume=True to go on with that"
        raise InputError("folder", str(spec.folder), expected)
    candidates = {"space": space_of(spec.space), "seed": spec.seed, "goal": spec.goal, "metric": spec.metric}
    check_same_search(spec.folder, candidates, spec.resume)
    return FileJournal(path, Checkpoints(spec.folder / "checkpoints"))


def tried(spec: SearchSpec) -> list[dict[str, Any]]:
    """Return the values that the resumed run had drawn; empty where none is resumed."""
    if not spec.resume:
        return []
    with folder_lock(spec.folder):
        journal = _journal(spec)
        return [] if journal is None else journal.tried()
