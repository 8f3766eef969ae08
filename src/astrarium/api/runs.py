"""Simulating, comparing and replaying from Python, for scenarios of any level."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec

from astrarium.api.scenarios import Decider, Source, as_scenario, decider
from astrarium.api.shown import Shown, Table
from astrarium.core.errors import InputError
from astrarium.core.level import Run as CoreRun
from astrarium.core.level import Scenario, Watching
from astrarium.core.trace import Step, read_trace, write_trace
from astrarium.core.units import Time
from astrarium.levels import level_of
from astrarium.run.experiment import Bar, EngineName
from astrarium.run.experiment import simulate as run_one
from astrarium.run.replay import Divergence
from astrarium.run.replay import replay as feed

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

Progress = bool | Callable[[float], None]
TRACE = "trace.jsonl"
NOTES = {TRACE: "what was heard and decided, step by step: astrarium.replay takes this folder"}


class Run(Shown):
    """A run is finished: its numbers, its rows, its tables and its pictures.

    Each kind of rows is an attribute, as a `Table`: `requests` and `batches` of a serving run, `jobs` and
    `turns` of one GPU, `trials`, `places`, `decisions` and `utilization` of a search, `apps`, `leases` and
    `decisions` of a cluster. In a notebook, and printed, a run shows the tables of the command line.
    """

    def __init__(self, run: CoreRun[Any, Any], trace: Sequence[Step] | None = None) -> None:
        self._run, self._trace = run, trace

    @property
    def level(self) -> str:
        """The level's name: serving, device, tuning or cluster."""
        return self._run.level.name

    @property
    def scenario(self) -> Scenario:
        """The scenario as it was run."""
        found: Scenario = self._run.scenario
        return found

    @property
    def policy(self) -> str:
        """The policy's name, with parameters if any."""
        return self._run.label

    @property
    def seed(self) -> int:
        """The seed that the run was made with."""
        return self._run.seed

    @property
    def summary(self) -> Any:
        """The numbers of the run: a struct of its level, such as `summary.attainment`."""
        return self._run.summary

    @property
    def record(self) -> Any:
        """All that was recorded of the run, as its level keeps it."""
        return self._run.record

    @cached_property
    def rows(self) -> dict[str, Table]:
        """Every kind of rows by its name."""
        found = self._run.level.report.rows(self._run.record)
        return {name: Table(columns, name) for name, columns in found.items()}

    @property
    def trace(self) -> Sequence[Step]:
        """What the policy heard and decided, step by step; the run was made with `trace=True`."""
        if self._trace is None:
            raise InputError("trace", False, "simulate(..., trace=True): this run kept no steps")
        return self._trace

    def plot(self, path: str | Path) -> Path:
        """Draw the run: its main picture as a .png file, or all of them into a folder."""
        return _plot([self._run], Path(path))

    def save(self, folder: str | Path, overwrite: bool = False, outcomes: bool = True) -> Path:
        """Write the run folder that the command line would write: numbers, rows, timeline and pictures.

        *overwrite* replaces a run folder that is there; without *outcomes*, no row is written for each
        request, job, trial or app.
        """
        return _save([self._run], folder, overwrite, outcomes, self._trace)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain data: what `--json` prints."""
        return self._run.level.report.shown([self._run])

    def __getattr__(self, name: str) -> Table:
        if name.startswith("_") or name not in (rows := self.rows):
            kinds = "" if name.startswith("_") else f"; rows of a {self.level} run: {', '.join(rows)}"
            raise AttributeError(f"a run has no {name!r}{kinds}")
        return rows[name]

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self.rows]

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(table):,} {name}" for name, table in self.rows.items())
        return f"<run of {self.policy}, {self.level}, seed {self.seed}: {counts}>"

    def _tables(self) -> list[Any]:
        return self._run.level.report.tables([self._run])


class Comparison(Shown, Sequence[Run]):
    """A comparison is a sequence of runs of the same scenario, by several policies or with several seeds."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._all = list(runs)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> list[Run]: ...
    def __getitem__(self, place: int | slice) -> Run | list[Run]:
        return self._all[place]

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def summary(self) -> Table:
        """One row for each run: its policy, its seed, and every number of its summary."""
        found = [{"policy": run.policy, "seed": run.seed, **_numbers(run.summary)} for run in self]
        names = list(dict.fromkeys(name for row in found for name in row))
        return Table({name: [row.get(name) for row in found] for name in names}, "runs")

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each run. Needs pandas: pip install 'astrarium[pandas]'."""
        return self.summary.to_pandas()

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain data: what `--json` prints."""
        return self[0]._run.level.report.shown(self._runs)

    def plot(self, path: str | Path) -> Path:
        """Draw the runs side by side: the main picture as a .png file, or all of them into a folder."""
        return _plot(self._runs, Path(path))

    def save(self, folder: str | Path, overwrite: bool = False, outcomes: bool = True) -> Path:
        """Write the run folder that `astrarium compare` would write, with a folder for each run."""
        return _save(self._runs, folder, overwrite, outcomes)

    def __repr__(self) -> str:
        return f"<comparison of {', '.join(dict.fromkeys(run.policy for run in self))}: {len(self)} runs>"

    @property
    def _runs(self) -> list[CoreRun[Any, Any]]:
        return [run._run for run in self]

    def _tables(self) -> list[Any]:
        return self[0]._run.level.report.tables(self._runs)


def simulate(
    scenario: Source,
    policy: Any = None,
    seed: int | None = None,
    engine: EngineName = "auto",
    trace: bool = False,
    progress: Progress = True,
) -> Run:
    """Simulate a scenario of any level: a file, plain data, or what `load` returned.

    *policy* decides in place of the scenario's own: a name, `"timeout:timeout=10%"`, a mapping with a name, a
    class (made as its level makes policies) or an object that decides; an object remembers, so give each run
    a fresh one. *engine* is "python" for the reference, "native" for its twin in C++, which decides the same.
    With *trace* the run keeps every step for `replay`. *progress*: True tells on stderr what takes longer
    than two seconds; a function is called with the part that is done, from 0 to 1.
    """
    found = as_scenario(scenario)
    if seed is not None:
        found = found.with_seed(_checked_seed(seed))
    return _simulated(decider(level_of(found), found, policy), engine, trace, progress)


def compare(
    scenario: Source,
    policies: Iterable[Any] = (),
    seeds: int | Sequence[int] = 1,
    engine: EngineName = "auto",
    progress: Progress = True,
) -> Comparison:
    """Simulate a scenario by several policies, on the same arrivals: all policies of its level unless given.

    Each of *policies* may be all that `simulate` takes. *seeds*: so many, from the scenario's own on; or
    these. Every policy is checked before the first run begins.
    """
    found = as_scenario(scenario)
    level = level_of(found)
    given = list(policies) or level.policies.names()
    numbers = _seeds(found.seed, seeds)
    _check_fresh(given, len(numbers))
    for each in given:
        decider(level, found, each)
    return Comparison(
        [
            _simulated(decider(level, found.with_seed(number), each), engine, False, progress)
            for number in numbers
            for each in given
        ]
    )


class Replay:
    """A replay says whether a fresh policy decided as was recorded, in how many *steps*.

    *divergence* is the first step at which it decided otherwise, with what it heard (`recorded.events`), what
    was recorded (`recorded.actions`) and what it *decided*; None where there is none.
    """

    def __init__(self, steps: int, divergence: Divergence | None) -> None:
        self.steps, self.divergence = steps, divergence

    @property
    def same(self) -> bool:
        """Whether every decision was the recorded one."""
        return self.divergence is None

    def __bool__(self) -> bool:
        return self.same

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        if self.divergence is None:
            return f"the same decisions in all {self.steps:,} steps"
        recorded, decided = self.divergence
        return (
            f"decided otherwise at {recorded.now / 1e9:.6f} s, in step {self.steps:,}\n"
            f"  heard    {recorded.events}\n  recorded {recorded.actions}\n  replayed {decided}"
        )


def replay(source: str | Path | Run, policy: Any = None) -> Replay:
    """Feed what was recorded through a fresh policy: does it decide the same?

    *source* is a run that was simulated with `trace=True`, its saved folder, or what `astrarium serve
    --record` wrote. *policy* is the recorded one unless given: all that `simulate` takes.
    """
    if isinstance(source, Run):
        return _replayed(source.scenario, policy, source.trace)
    path = Path(source)
    if path.is_dir():
        scenario = as_scenario(path / "scenario.yaml")
        level = level_of(scenario)
        if not (path / TRACE).is_file():
            raise InputError("source", str(path), f"a folder of a run with a trace: it has no {TRACE}")
        return _replayed(scenario, policy, read_trace(path / TRACE, level.events, level.actions))
    if not path.is_file():
        raise InputError("source", str(path), "a recording; there is no such file")
    return _replay_recording(path, policy)


def _simulated(who: Decider, engine: EngineName, trace: bool, progress: Progress) -> Run:
    steps: list[Step] | None = [] if trace else None
    watching = Watching() if steps is None else Watching(trace=steps.append)
    level = level_of(who.scenario)
    return Run(run_one(level, who.scenario, who.policy, who.label, engine, _bar(progress), watching), steps)


def _bar(progress: Progress) -> Bar | None:
    """Return what shows progress, as `run.experiment` asks for it."""
    from astrarium.run.waiting import waiting

    if progress is False:
        return None

    @contextmanager
    def told(title: str, length: Time) -> Iterator[Callable[[Time], None] | None]:
        if progress is True:
            with waiting(title):
                yield None
        else:
            yield lambda now: progress(min(1.0, now / max(1, length)))

    def bar(title: str, length: Time) -> AbstractContextManager[Callable[[Time], None] | None]:
        return told(title, length)

    return bar


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError("seed", seed, "a whole number >= 0")
    return seed


def _seeds(first: int, seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int) and seeds < 1:
        raise InputError("seeds", seeds, "1 or more, or a list of seeds")
    found = range(first, first + seeds) if isinstance(seeds, int) else seeds
    return [_checked_seed(seed) for seed in found]


def _check_fresh(policies: Sequence[Any], seeds: int) -> None:
    """Refuse an object that would be used for several runs: it remembers the first."""
    for each in policies if seeds > 1 else ():
        if callable(getattr(each, "decide", None)) and not isinstance(each, type):
            told = "a class or a name where there are several seeds: an object remembers its first run"
            raise InputError("policies", type(each).__name__, told)


def _numbers(summary: Any) -> dict[str, Any]:
    """Return what of a summary fits in a cell; what is inside it by dotted names."""
    found: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(summary).items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": each for key, each in value.items() if _is_cell(each)}
        elif _is_cell(value) and name != "policy":
            found[name] = value
    return found


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _plot(runs: Sequence[CoreRun[Any, Any]], path: Path) -> Path:
    report = runs[0].level.report
    title = report.title(runs[0])
    if path.suffix == "":
        path.mkdir(parents=True, exist_ok=True)
        report.draw(runs, path, title)
        return path
    if path.suffix != ".png":
        raise InputError("path", str(path), "a name that ends in .png, or a folder for all pictures")
    with tempfile.TemporaryDirectory() as drawn:
        report.draw(runs, Path(drawn), title)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(Path(drawn) / report.picture), path)
    return path


def _save(
    runs: Sequence[CoreRun[Any, Any]],
    folder: str | Path,
    overwrite: bool,
    outcomes: bool,
    trace: Sequence[Step] | None = None,
) -> Path:
    from astrarium.run.folder import run_folder, write_runs

    try:
        with run_folder(Path(folder), overwrite) as draft:
            if trace is not None:
                write_trace(draft / TRACE, trace)
            write_runs(draft, runs, runs[0].level.report.title(runs[0]), _command(runs), outcomes, NOTES)
    except InputError as error:
        raise _in_python(error) from None
    return Path(folder)


def _in_python(error: InputError) -> InputError:
    """Return an error about `--out` in the words of who called a function."""
    field = "folder" if error.field == "--out" else error.field
    expected = error.expected.replace("add --overwrite", "overwrite=True")
    return InputError(field, error.value, expected, error.source)


def _command(runs: Sequence[CoreRun[Any, Any]]) -> str:
    """Return how to make a folder again; in Python, where a policy is a class that no file can name."""
    if len(runs) > 1:
        names = ", ".join(dict.fromkeys(run.label for run in runs))
        return f"astrarium.compare(scenario, [{names}], seeds={sorted({run.seed for run in runs})})"
    name = runs[0].scenario.policy.name
    if name in runs[0].level.policies.names():
        return "astrarium simulate scenario.yaml"
    return f'astrarium.simulate("scenario.yaml", policy={name})'


def _replayed(scenario: Scenario, policy: Any, steps: Iterable[Step]) -> Replay:
    level = level_of(scenario)
    who = decider(level, scenario, policy)
    fresh = level.policy(who.scenario) if who.policy is None else who.policy
    return _fed(level.books(who.scenario, fresh), steps)


def _fed(engine: Any, steps: Iterable[Step]) -> Replay:
    counted = _Counted(steps)
    divergence = feed(engine, counted)
    return Replay(counted.count, divergence)


def _replay_recording(path: Path, policy: Any) -> Replay:
    """Replay what a server recorded: each scheduler that was at work had a setup of its own."""
    import yaml

    from astrarium.core.choice import made
    from astrarium.core.engine import Engine
    from astrarium.server.recording import Recorded
    from astrarium.serving.scenario import build, parse
    from astrarium.serving.state import ServingState

    recorded = Recorded(path)
    scenario = parse(yaml.safe_load(recorded.header.scenario), f"{path} (its scenario)", serving=True)
    steps = 0
    for setup, section in recorded.sections():
        who = decider(level_of(scenario), scenario, policy)
        if who.policy is None:
            fresh: Any = build.policy(who.scenario, setup)  # type: ignore[arg-type]
        else:
            fresh = made(policy, None, setup) if isinstance(policy, type) else policy
        found = _fed(Engine(ServingState(setup), fresh), section)
        steps += found.steps
        if not found.same:
            return Replay(steps, found.divergence)
    return Replay(steps, None)


class _Counted:
    """Steps that are counted as they pass."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps, self.count = steps, 0

    def __iter__(self) -> Iterator[Step]:
        for step in self._steps:
            self.count += 1
            yield step
