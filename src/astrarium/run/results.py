"""Results of runs show themselves: tables of columns, as text and as HTML, saved and drawn."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.level import Run as CoreRun
from astrarium.core.level import Scenario
from astrarium.core.optional import from_extra
from astrarium.core.trace import Step, write_trace
from astrarium.run.folder import TRACE, run_folder, write_runs

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

WIDTH = 160  # characters: a notebook scrolls, and a file has no width of its own
# rows of a long table that are shown
FIRST = 10
LAST = 5
LONGEST = 40  # characters of a cell
_PRE = "<pre style='line-height:1.25;white-space:pre;overflow-x:auto;font-family:monospace'>{code}</pre>"


class Table(dict[str, Any]):
    """A table holds rows of a run as columns by name: NumPy arrays, which `table["latency_s"]` returns.

    `len(table)` is the number of rows. Other libraries take it as the dictionary of columns that it is:
    `pandas.DataFrame(table)`, `polars.DataFrame(table)`.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]], name: str = "rows") -> None:
        super().__init__({key: _column(values) for key, values in columns.items()})
        self.name = name

    def __len__(self) -> int:
        return max((len(values) for values in self.values()), default=0)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns as lists of plain Python values."""
        return {name: values.tolist() for name, values in self.items()}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame. Needs pandas: pip install 'astrarium[pandas]'."""
        with from_extra("pandas"):
            import pandas
        return pandas.DataFrame(dict(self))

    def __str__(self) -> str:
        return text([self._shown()])

    def __repr__(self) -> str:
        return f"<{len(self):,} {self.name}: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        return html([self._shown()])

    def _shown(self) -> Any:
        from astrarium.run.report import as_it_is, plain_table

        places = _places(len(self))
        table = plain_table("", *self)
        for place in places:
            cells = ["..." if place is None else _told(values[place]) for values in self.values()]
            table.add_row("" if place is None else f"{place:,}", *map(as_it_is, cells))
        table.caption = f"{len(self):,} {self.name}" if None in places else None
        return table


class Shown:
    """A shown result has tables, which it prints as text, and as HTML where a notebook asks."""

    def _tables(self) -> list[Any]:
        raise NotImplementedError

    def __str__(self) -> str:
        return text(self._tables())

    def _repr_html_(self) -> str:
        return html(self._tables())


def text(tables: Iterable[Any]) -> str:
    """Return what a terminal shows of tables and lines."""
    return str(_printed(tables).export_text()).rstrip() + "\n"


def html(tables: Iterable[Any]) -> str:
    """Return the same for a notebook."""
    return str(_printed(tables).export_html(inline_styles=True, code_format=_PRE))


def _printed(tables: Iterable[Any]) -> Any:
    from rich.console import Console

    console = Console(record=True, file=StringIO(), width=WIDTH, force_jupyter=False)
    for table in tables:
        console.print(table, soft_wrap=isinstance(table, str) or getattr(table, "no_wrap", None) is True)
    return console


def _places(rows: int) -> list[int | None]:
    """Return which rows are shown; None stands for those in between."""
    if rows <= FIRST + LAST:
        return list(range(rows))
    return [*range(FIRST), None, *range(rows - LAST, rows)]


def _told(value: Any) -> str:
    """Return a cell as text, cut where it is long: `table["why"]` has all of it."""
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return str(value) if len(str(value)) <= LONGEST else str(value)[: LONGEST - 3] + "..."


def _column(values: Sequence[Any]) -> Any:
    """Return an array; an empty cell between numbers is nan, as in pandas."""
    if isinstance(values, np.ndarray):
        return values
    known = [value for value in values if value is not None and value != ""]
    kinds = {type(value) for value in known}
    if kinds and (kinds <= {int, float} or kinds == {bool}) and len(known) == len(values):
        return np.array(known)
    if kinds and kinds <= {int, float}:
        return np.array([np.nan if value is None or value == "" else value for value in values])
    return np.array(["" if value is None else value for value in values], dtype=object)


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
