"""Finished runs and comparisons of them, as Python code has them: numbers, rows, pictures and folders."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.level import Run as CoreRun
from astrarium.core.level import Scenario
from astrarium.core.trace import Step, write_trace
from astrarium.run.folder import TRACE, run_folder, write_runs

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
from astrarium.run.rows import Table
from astrarium.run.shown import Shown


class Run(Shown):
    """A run is finished: its numbers, its rows, its tables and its pictures.

    Each kind of rows is an attribute, as a `Table`: `requests` and `batches` of a serving run, `jobs` and
    `turns` of one GPU, `trials`, `places`, `decisions` and `utilization` of a search, `apps`, `leases` and
    `decisions` of a cluster. In a notebook, and printed, a run shows the tables of the command line.
    """

    def __init__(
        self, run: CoreRun[Any, Any], trace: Sequence[Step] | None = None, decider: Any = None
    ) -> None:
        self._run = run
        self._trace = trace
        self._decider = decider  # the policy that was handed over, where no registry could make it

    @property
    def level(self) -> str:
        """The level's name: serving, device, tuning or cluster."""
        return self._run.level.name

    @property
    def scenario(self) -> Scenario:
        """The scenario as it was run."""
        scenario: Scenario = self._run.scenario
        return scenario

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
        rows = self._run.level.report.rows(self._run.record)
        return {name: Table(columns, name) for name, columns in rows.items()}

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
        rows = [{"policy": run.policy, "seed": run.seed, **_numbers(run.summary)} for run in self]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return Table({name: [row.get(name) for row in rows] for name in names}, "runs")

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


def _numbers(summary: Any) -> dict[str, Any]:
    """Return what of a summary fits in a cell; what is inside it by dotted names."""
    numbers: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(summary).items():
        if isinstance(value, dict):
            numbers |= {f"{name}.{key}": inner for key, inner in value.items() if _is_cell(inner)}
        elif _is_cell(value) and name != "policy":
            numbers[name] = value
    return numbers


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _plot(runs: Sequence[CoreRun[Any, Any]], path: Path) -> Path:
    report = runs[0].level.report
    title = runs[0].level.title(runs[0])
    if path.suffix == "":
        path.mkdir(parents=True, exist_ok=True)
        report.draw(runs, path, title)
        return path
    if path.suffix != ".png":
        raise InputError("path", str(path), "a name that ends in .png, or a folder for all pictures")
    with tempfile.TemporaryDirectory() as drawn:
        report.draw(runs, Path(drawn), title)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(Path(drawn) / runs[0].level.picture), path)
    return path


def _save(
    runs: Sequence[CoreRun[Any, Any]],
    folder: str | Path,
    overwrite: bool,
    outcomes: bool,
    trace: Sequence[Step] | None = None,
) -> Path:
    try:
        with run_folder(Path(folder), overwrite) as draft:
            if trace is not None:
                write_trace(draft / TRACE, trace)
            write_runs(draft, runs, runs[0].level.title(runs[0]), _command(runs), outcomes)
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
