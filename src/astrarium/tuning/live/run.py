"""This module runs a live search from start to end, with the wall clock and a trial backend, and keeps its
results.

The folder holds `journal.jsonl` (results, which a resumed run finds again), `trace.jsonl` (events and
decisions, for replay) and what the backend keeps.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from time import monotonic_ns
from typing import IO, Any

import msgspec

from astrarium.core.choice import Choice, chosen, parameters_of
from astrarium.core.errors import InputError
from astrarium.core.plain_data import as_plain
from astrarium.core.quantities import check_above_zero, duration_in
from astrarium.core.trace import Step
from astrarium.run.pools import signals_to
from astrarium.tuning.live.backend import EarlierResult, Journal, LiveOptions, TrialBackend
from astrarium.tuning.live.books import LiveTuning, live_tuning
from astrarium.tuning.live.checkpoints import Checkpoints
from astrarium.tuning.live.local import LocalTrialBackend
from astrarium.tuning.live.training import Build, Emulated
from astrarium.tuning.policies import DEFAULT_POLICY, DEFAULT_SEARCH, TuningPolicy, searches, tuning_policies
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.samplers import Goal, Sampler
from astrarium.tuning.scenario.schema import sampler_of, sampler_section
from astrarium.tuning.search.contract import Search
from astrarium.tuning.spaces import Space, space_of

# One search at a time may use a run's folder, and only with the same space, seed and goal: otherwise its
# candidates would differ, and what is kept of the earlier ones would be thrown away without a word.


FILE = "search.json"
LOCK = "search.lock"


@contextmanager
def folder_lock(folder: Path | None) -> Iterator[None]:
    """Hold the lock of a run's folder. The lock goes with its process, however that ends."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        _lock(file, folder)
        yield


def _lock(file: IO[str], folder: Path) -> None:
    """Take the lock, or refuse the folder. On file systems without locks nothing is checked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError("folder", str(folder), "one in which no other search is running") from None
    except OSError:
        return


def check_same_search(folder: Path, told: Mapping[str, Any], again: bool) -> None:
    """Check that a resumed run searches as the first one did. *told* names what defines the candidates: the
    first run writes it down, and those that resume it are held to it."""
    file = folder / FILE
    own = _written(told)
    if not again or not file.exists():
        file.write_text(json.dumps(own, indent=2) + "\n", encoding="utf-8")
        return
    before = _read(file)
    for name in [name for name, value in own.items() if before.get(name, value) != value]:
        expected = f"{json.dumps(before[name])}, as in the run that this one goes on with; or another folder"
        raise InputError(name, told[name], expected, str(file))


def _written(told: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(dict(told), enc_hook=repr))
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError("", None, f"what the first run wrote there: {error}", str(file)) from error
    return found if isinstance(found, dict) else {}


class FileJournal(Journal):
    """A file journal appends results to *path*, a line of JSON each, and knows what the file held: a run that
    was killed goes on with it. A torn last line does not count."""

    def __init__(self, path: Path, checkpoints: Checkpoints) -> None:
        self._path = path
        self._checkpoints = checkpoints
        self._values: dict[int, str] = {}  # by candidate: what was last trained under that number
        self._results: dict[tuple[int, str, int], EarlierResult] = {}
        self._read()

    def began(self, candidate: int, values: Mapping[str, Any]) -> None:
        written = _canonical(values)
        before = self._values.get(candidate)
        if before == written:
            return
        self._checkpoints.clear(candidate)  # they are of an earlier, or an unknown, candidate
        self._add({"candidate": candidate, "values": written})

    def finished(self, candidate: int, values: Mapping[str, Any], total: int, value: float | None) -> None:
        self._add({"candidate": candidate, "values": _canonical(values), "total": total, "value": value})

    def failed(self, candidate: int, values: Mapping[str, Any], total: int, error: str) -> None:
        self._add({"candidate": candidate, "values": _canonical(values), "total": total, "error": error})

    def result(self, candidate: int, values: Mapping[str, Any], total: int) -> EarlierResult | None:
        written = _canonical(values)
        known = self._results.get((candidate, written, total))
        if known is None or self._values.get(candidate) != written:
            return None
        return known if known.error or total in self._checkpoints.kept(candidate) else None

    def kept(self, candidate: int, values: Mapping[str, Any], below: int) -> int:
        if self._values.get(candidate) != _canonical(values):
            return 0
        return max((each for each in self._checkpoints.kept(candidate) if each < below), default=0)

    def tried(self) -> list[dict[str, Any]]:
        """Return the values of candidates in the order of drawing, up to the first that is missing."""
        known = takewhile(self._values.__contains__, count())
        return [json.loads(self._values[candidate]) for candidate in known]

    # helpers

    def _add(self, line: dict[str, Any]) -> None:
        self._take(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _take(self, line: dict[str, Any]) -> None:
        candidate = line["candidate"]
        written = line["values"]
        self._values[candidate] = written
        if "total" in line:
            known = EarlierResult(None, line["error"]) if "error" in line else EarlierResult(line["value"])
            self._results[candidate, written, line["total"]] = known

    def _read(self) -> None:
        if not self._path.exists():
            return
        text = self._path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._path.write_text(whole, encoding="utf-8")
        for number, line in enumerate(whole.splitlines(), 1):
            self._read_line(number, line)

    def _read_line(self, number: int, line: str) -> None:
        try:
            self._take(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            expected = f"a line of a tuning journal: {error!r}"
            raise InputError(f"line {number}", line, expected, str(self._path)) from error


def _canonical(values: Mapping[str, Any]) -> str:
    """Write values so that the same values give the same text."""
    return json.dumps(dict(values), sort_keys=True, default=repr)


JOURNAL = "journal.jsonl"
TRACE = "trace.jsonl"
INTERRUPTED = "it was interrupted"
Look = Callable[[LiveTuning], None]


@dataclass(frozen=True)
class SearchSpec:
    """A search specification says what is to be searched, and how; `astrarium.tune` explains each field."""

    space: Mapping[str, Any]
    search: Choice | Search = Choice(DEFAULT_SEARCH)  # noqa: RUF009 (it is frozen)
    sampler: Sampler | str | Mapping[str, Any] | None = None
    policy: Choice | TuningPolicy = Choice(DEFAULT_POLICY)  # noqa: RUF009
    goal: Goal = "min"
    target: float | None = None
    seed: int = 0
    folder: Path | None = None
    resume: bool = False
    progress: Look | None = None
    options: LiveOptions | None = None

    @property
    def label(self) -> str:
        """The policy as reports show it."""
        return self.policy.label if isinstance(self.policy, Choice) else type(self.policy).__name__


@dataclass(frozen=True)
class _CheckedSearch:
    """A checked search has what its specification names made, and nothing of it started."""

    search: Search
    sampler: Sampler
    policy: TuningPolicy
    space: Space


def options(longest: str | None) -> LiveOptions:
    """Return live options with the limit *longest*, as a file has it under `live`: `90s`; None: no limit."""
    if longest is None:
        return LiveOptions()
    found = duration_in("longest", longest)
    check_above_zero("longest", found)
    return LiveOptions(longest=found)


def run_local(
    build: Build | str,
    spec: SearchSpec,
    gpus: int | Sequence[int] | None = None,
    emulated: Emulated | None = None,
    **backend: Any,
) -> TuningRecord:
    """Run a search on this machine. *backend* holds further settings of `LocalTrialBackend`."""

    def make_backend() -> LocalTrialBackend:
        made = LocalTrialBackend(build, gpus, emulated, folder=spec.folder, seed=spec.seed, **backend)
        with _closed_on_error(made):
            made.warm_up()
        return made

    return run_with(spec, make_backend)


def run_with(spec: SearchSpec, make_backend: Callable[[], TrialBackend]) -> TuningRecord:
    """Run a search on a backend. What the user wrote is checked before anything is started."""
    checked = _checked(spec)
    with _removed_if_unused(spec.folder), folder_lock(spec.folder):
        return _run(spec, checked, make_backend)


@contextmanager
def _removed_if_unused(folder: Path | None) -> Iterator[None]:
    """Remove a folder that was made for a search which never began: its name is free again."""
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


def _run(spec: SearchSpec, checked: _CheckedSearch, make_backend: Callable[[], TrialBackend]) -> TuningRecord:
    journal = _journal(spec)
    with _recorder(spec.folder) as record:
        backend = make_backend()
        with _closed_on_error(backend), _Interrupts() as interrupts:
            live = live_tuning(
                checked.search,
                checked.sampler,
                checked.policy,
                backend,
                spec.goal,
                spec.target,
                checked.space,
                journal=journal,
                options=spec.options,
                record=record,
            )
            _search(live, interrupts, spec.progress or (lambda live: None))
    return live.record(spec.label)


def _search(live: LiveTuning, interrupts: _Interrupts, look: Look) -> None:
    """Run the loop. Once the first trials are under way, an interrupt leaves something to return."""

    def after(live: LiveTuning) -> None:
        interrupts.hold()
        look(live)

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


def bounded_spread(policy: Choice | TuningPolicy, spread: int) -> Choice | TuningPolicy:
    """Bound the GPUs of a trial to *spread*, where the policy has that parameter, for trainings that may
    ignore workers and would do the same on all GPUs."""
    if not isinstance(policy, Choice):
        return policy
    known = "spread" in parameters_of(tuning_policies.get(policy.name)).__struct_fields__
    return Choice(policy.name, {**({"spread": spread} if known else {}), **policy.parameters})


def _checked(spec: SearchSpec) -> _CheckedSearch:
    if spec.goal not in ("min", "max"):
        raise InputError("goal", spec.goal, "min or max")
    space = space_of(spec.space)
    search = spec.search
    policy = spec.policy
    return _CheckedSearch(
        search=chosen(searches, search, field="search") if isinstance(search, Choice) else search,
        sampler=_sampler(spec, space),
        policy=chosen(tuning_policies, policy) if isinstance(policy, Choice) else policy,
        space=space,
    )


def _sampler(spec: SearchSpec, space: Space) -> Sampler:
    """Return the sampler itself, or the one that is written as in a file."""
    if not isinstance(spec.sampler, str | Mapping | None):
        return spec.sampler
    search = spec.search.name if isinstance(spec.search, Choice) else ""
    return sampler_of(sampler_section(as_plain(spec.sampler), search), space, spec.goal, spec.seed)


def _journal(spec: SearchSpec) -> FileJournal | None:
    if spec.folder is None:
        if spec.resume:
            raise InputError("folder", None, "the folder of the run to go on with")
        return None
    path = spec.folder / JOURNAL
    if path.exists() and not spec.resume:
        told = "a folder without an earlier run, or resume=True to go on with that"
        raise InputError("folder", str(spec.folder), told)
    candidates = {"space": space_of(spec.space), "seed": spec.seed, "goal": spec.goal}
    check_same_search(spec.folder, candidates, spec.resume)
    return FileJournal(path, Checkpoints(spec.folder / "checkpoints"))


def tried(spec: SearchSpec) -> list[dict[str, Any]]:
    """Return the values that the resumed run had drawn; empty where none is resumed."""
    if not spec.resume:
        return []
    with folder_lock(spec.folder):
        journal = _journal(spec)
        return [] if journal is None else journal.tried()


@contextmanager
def _recorder(folder: Path | None) -> Iterator[Callable[[Step], None] | None]:
    """Record decisions step by step, so that those of a killed run remain."""
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
    """Rename the trace of the run that this one resumes: trace.1.jsonl is the first."""
    if trace.exists():
        earlier = len(list(trace.parent.glob(f"{trace.stem}.*{trace.suffix}")))
        trace.rename(trace.with_name(f"{trace.stem}.{earlier + 1}{trace.suffix}"))


class _Interrupts(ExitStack):
    """Interrupts (Ctrl-C, or a request to end the job) pass through until they are held. Then the first one
    ends the search, and what it found is returned; the second passes through."""

    asked = held = False

    def hold(self) -> None:
        """Hold interrupts from now on; only the main thread ever hears of them."""
        if not self.held and threading.current_thread() is threading.main_thread():
            self.enter_context(signals_to(self._ask))
        self.held = True

    def why(self) -> str:
        """Return why the search must end; empty where it need not."""
        return INTERRUPTED if self.asked else ""

    def _ask(self, *_: object) -> None:
        self.asked = True
        self.close()
