"""A search, live, from start to end: the wall clock, a crew, and what is kept of it.

In the folder: `journal.jsonl` (results, which a resumed run finds again), `trace.jsonl` (what was heard and
decided, for replay) and what the crew keeps.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from types import FrameType
from typing import Any

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import check_above_zero, read_duration
from astrarium.core.trace import Step
from astrarium.engines.tuning_again import alone_in, go_on_as
from astrarium.engines.tuning_crew import LocalCrew
from astrarium.engines.tuning_journal import CheckpointFolder, FileJournal
from astrarium.engines.tuning_training import Build, Emulated
from astrarium.tuning.crew import Crew
from astrarium.tuning.live import LiveTuning, live_tuning
from astrarium.tuning.live_memory import Options
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.registry import made, searches, tuning_policies
from astrarium.tuning.samplers import Goal, GridSampler, RandomSampler, Sampler
from astrarium.tuning.spaces import Space, space_of

JOURNAL, TRACE = "journal.jsonl", "trace.jsonl"
INTERRUPTED = "it was interrupted"
Settings = Mapping[str, Any]
Look = Callable[[LiveTuning], None]
_Parts = tuple[Any, Any, Any, Goal, float | None, Space]


@dataclass(frozen=True)
class Wish:
    """What is to be searched, and how; `tune.run` says what each means."""

    space: Mapping[str, Any]
    search: str = "successive-halving"
    search_settings: Settings | None = None
    sampler: Sampler | str | None = None
    policy: str = "dynamic-fluid"
    policy_settings: Settings | None = None
    goal: Goal = "min"
    target: float | None = None
    seed: int = 0
    folder: Path | None = None
    resume: bool = False
    progress: Look | None = None
    options: Options | None = None


def options(longest: str | None) -> Options:
    """*longest* as a file has it under `live`: `90s`; None: no limit."""
    if longest is None:
        return Options()
    try:
        found = read_duration(longest)
    except ValueError as error:
        raise InputError("longest", longest, str(error)) from None
    check_above_zero("longest", found)
    return Options(longest=found)


def run_local(
    build: Build | str,
    wish: Wish,
    gpus: int | Sequence[int] | None = None,
    emulated: Emulated | None = None,
    **crew: Any,
) -> TuningRecord:
    """On this machine. *crew*: more settings of `LocalCrew`."""

    def make_crew() -> LocalCrew:
        made = LocalCrew(build, gpus, emulated, folder=wish.folder, seed=wish.seed, **crew)
        with _closed_on_error(made):
            made.warm_up()
        return made

    return run_with(wish, make_crew)


def run_with(wish: Wish, make_crew: Callable[[], Crew]) -> TuningRecord:
    """What a person wrote is checked before anything is started."""
    parts = _parts(wish)
    with _unless_for_nothing(wish.folder), alone_in(wish.folder):
        return _run(wish, parts, make_crew)


@contextmanager
def _unless_for_nothing(folder: Path | None) -> Iterator[None]:
    """A folder that was made for a search which never began goes again: its name is free, as before."""
    missing = [] if folder is None else [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        yield
    except BaseException:
        if missing and not (missing[0] / JOURNAL).exists():
            shutil.rmtree(missing[0], ignore_errors=True)
            with suppress(OSError):  # others have put something there meanwhile
                for each in missing[1:]:
                    each.rmdir()
        raise


def _run(wish: Wish, parts: _Parts, make_crew: Callable[[], Crew]) -> TuningRecord:
    journal = _journal(wish)
    with _recorder(wish.folder) as record:
        crew = make_crew()
        with _closed_on_error(crew), _interrupts() as interrupts:
            live = live_tuning(*parts[:3], crew, *parts[3:], journal=journal, options=wish.options,
                               record=record)  # fmt: skip
            _search(live, interrupts, wish.progress or _nobody_looks)
    return live.record(wish.policy)


def _search(live: LiveTuning, interrupts: _Interrupts, look: Look) -> None:
    """Once the first trials are under way, an interrupt leaves something to return."""

    def after(live: LiveTuning) -> None:
        interrupts.hold()
        look(live)

    began = monotonic_ns()
    live.run(lambda: monotonic_ns() - began, interrupts.why, after)


@contextmanager
def _closed_on_error(crew: Crew) -> Iterator[None]:
    """Until a live run takes care of it."""
    try:
        yield
    except BaseException:
        crew.close()
        raise


def bounded(policy: str, settings: Settings | None, spread: int) -> dict[str, Any]:
    """For trainings that may know nothing of workers, and would do the same on all GPUs: a trial has *spread*
    of them at most, where the policy can be told."""
    kind: Any = tuning_policies.get(policy)
    known = "spread" in kind.Parameters.__struct_fields__
    return {**({"spread": spread} if known else {}), **(settings or {})}


def _parts(wish: Wish) -> _Parts:
    if wish.goal not in ("min", "max"):
        raise InputError("goal", wish.goal, "min or max")
    space = space_of(wish.space)
    search = made(searches.get(wish.search), wish.search_settings, "search_settings")
    policy = made(tuning_policies.get(wish.policy), wish.policy_settings, "policy_settings")
    return search, _sampler(wish, space), policy, wish.goal, wish.target, space


def _sampler(wish: Wish, space: Space) -> Sampler:
    """A grid search takes all that its sampler has, which must end."""
    chosen = wish.sampler
    if chosen is None:
        chosen = "grid" if wish.search == "grid" else "random"
    if chosen == "random":
        return RandomSampler(space, wish.seed)
    if chosen == "grid":
        return GridSampler(space)
    if isinstance(chosen, str):
        raise InputError("sampler", chosen, "random, grid, or a sampler itself")
    return chosen


def _journal(wish: Wish) -> FileJournal | None:
    if wish.folder is None:
        if wish.resume:
            raise InputError("folder", None, "the folder of the run to go on with")
        return None
    path = wish.folder / JOURNAL
    if path.exists() and not wish.resume:
        told = "a folder without an earlier run, or resume=True to go on with that"
        raise InputError("folder", str(wish.folder), told)
    candidates = {"space": space_of(wish.space), "seed": wish.seed, "goal": wish.goal}
    go_on_as(wish.folder, candidates, wish.resume)
    return FileJournal(path, CheckpointFolder(wish.folder / "checkpoints"))


def tried(wish: Wish) -> list[dict[str, Any]]:
    """What the run that this one goes on with had drawn."""
    if not wish.resume:
        return []
    with alone_in(wish.folder):
        journal = _journal(wish)
        return [] if journal is None else journal.tried()


@contextmanager
def _recorder(folder: Path | None) -> Iterator[Callable[[Step], None] | None]:
    """Step by step: what a run that was killed had decided is there."""
    if folder is None:
        yield None
        return
    _put_aside(folder / TRACE)
    with (folder / TRACE).open("wb") as file:

        def record(step: Step) -> None:
            file.write(msgspec.json.encode(step) + b"\n")
            file.flush()

        yield record


def _put_aside(trace: Path) -> None:
    """That of the run which this one goes on with: trace.1.jsonl is the first."""
    if trace.exists():
        earlier = len(list(trace.parent.glob(f"{trace.stem}.*{trace.suffix}")))
        trace.rename(trace.with_name(f"{trace.stem}.{earlier + 1}{trace.suffix}"))


class _Interrupts:
    """Interrupts (Ctrl-C, or what ends a job) come through until they are held. Then the first one ends the
    search, and what it found is returned; the second comes through."""

    def __init__(self) -> None:
        self._asked = self._held = False
        ours = threading.current_thread() is threading.main_thread()
        found = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM) if ours}
        self._before = {one: handler for one, handler in found.items() if handler is not None}  # of Python

    def hold(self) -> None:
        if not self._held:
            self._held = True
            for one in self._before:
                signal.signal(one, self._ask)

    def why(self) -> str:
        """Why the search must end; empty where it need not."""
        return INTERRUPTED if self._asked else ""

    def set_back(self) -> None:
        for one, handler in self._before.items() if self._held else ():
            signal.signal(one, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self.set_back()


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    made = _Interrupts()
    try:
        yield made
    finally:
        made.set_back()


def _nobody_looks(live: LiveTuning) -> None:
    """No progress was asked for."""
