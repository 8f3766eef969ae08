"""What `simulate` and `compare` do with a scenario whose subject is jobs on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

if TYPE_CHECKING:
    from astrarium.device.record import DeviceRecord
    from astrarium.device.report import JobsSummary
    from astrarium.device.scenario import JobScenario

    Runs = dict[str, tuple[JobScenario, DeviceRecord, JobsSummary]]  # by policy


class Wishes(NamedTuple):
    """The options that both verbs share."""

    file: Path
    overrides: list[str] | None
    seed: int | None
    engine: str
    json: bool
    out: Path | None
    overwrite: bool
    no_outcomes: bool
    no_folder: bool


def simulate_jobs(context: typer.Context, wishes: Wishes, policy: str | None) -> None:
    from astrarium.cli import output
    from astrarium.device.report import jobs_table, overview_table

    scenario = _loaded(wishes)
    if policy is not None:
        scenario = _with_policy(scenario, policy)
    at = output.target("simulate", wishes.file.stem, wishes.out, wishes.overwrite, wishes.no_folder)
    runs = _run(wishes.file, [scenario])
    [(_, record, summary)] = runs.values()
    tables = [overview_table({scenario.policy: summary}), jobs_table(record)]
    shown = output.plain(summary)
    if at.path is not None:
        with at.draft() as draft:
            _write_run(draft, scenario, record, wishes)
            _write_rest(draft, runs, shown, tables, output.command_line(context), {})
    output.emit(wishes.json, shown, tables, at.path)


def compare_jobs(context: typer.Context, wishes: Wishes, policies: list[str]) -> None:
    from astrarium.cli import output
    from astrarium.device.policies import iteration_policies
    from astrarium.device.report import overview_table

    scenario = _loaded(wishes)
    scenarios = [_with_policy(scenario, name) for name in policies or iteration_policies.names()]
    at = output.target("compare", wishes.file.stem, wishes.out, wishes.overwrite, wishes.no_folder)
    runs = _run(wishes.file, scenarios)
    result = {"policies": {name: output.plain(summary) for name, (_, _, summary) in runs.items()}}
    table = overview_table({name: summary for name, (_, _, summary) in runs.items()})
    if at.path is not None:
        with at.draft() as draft:
            notes = {name: f"the run of {name}: summary, scenario, jobs" for name in runs}
            for name, (each, record, summary) in runs.items():
                _write_one_of_several(draft / output.file_name(name), each, record, summary, wishes)
            _write_rest(draft, runs, result, [table], output.command_line(context), notes)
    output.emit(wishes.json, result, [table], at.path)


def _loaded(wishes: Wishes) -> JobScenario:
    from astrarium.core.errors import InputError
    from astrarium.device.scenario import load

    if wishes.engine not in ("auto", "python"):
        raise InputError("--engine", wishes.engine, "auto or python: jobs on one GPU have no native twin")
    seed = [] if wishes.seed is None else [f"seed={wishes.seed}"]
    return load(wishes.file, [*(wishes.overrides or []), *seed])


def _with_policy(scenario: JobScenario, name: str) -> JobScenario:
    from astrarium.core.errors import InputError

    try:
        return scenario.with_policy(name)
    except InputError as error:
        raise InputError("", name, error.expected, f"-p {name}") from None


def _run(file: Path, scenarios: list[JobScenario]) -> Runs:
    """Each policy once, with a progress bar."""
    from astrarium.cli.progress import bar
    from astrarium.core.errors import InputError
    from astrarium.device.level import longest, run
    from astrarium.device.report import summarize
    from astrarium.device.scenario import arrivals

    try:
        total, runs = longest(arrivals(scenarios[0])), {}
    except InputError as error:
        raise error.read_from(str(file)) from None
    for scenario in scenarios:
        with bar(f"simulating {scenario.policy}", total) as progress:
            record = run(scenario, progress)
        runs[scenario.policy] = (scenario, record, summarize(record))
    return runs


def _write_run(folder: Path, scenario: JobScenario, record: DeviceRecord, wishes: Wishes) -> None:
    from astrarium.device.report import JOBS_FILE, write_jobs

    folder.mkdir(exist_ok=True)
    (folder / "scenario.yaml").write_text(scenario.to_yaml(), encoding="utf-8")
    if not wishes.no_outcomes:
        write_jobs(record, folder / JOBS_FILE)


def _write_one_of_several(
    folder: Path, scenario: JobScenario, record: DeviceRecord, summary: JobsSummary, wishes: Wishes
) -> None:
    from astrarium.run.folder import write_summary

    _write_run(folder, scenario, record, wishes)
    write_summary(folder, summary)


def _write_rest(
    draft: Path, runs: Runs, shown: object, tables: Sequence[object], command: str, notes: dict[str, str]
) -> None:
    from astrarium.device.report import FILES, draw_turns
    from astrarium.run import folder

    folder.write_summary(draft, shown)
    folder.write_tables(draft, tables)
    (draft / "plots").mkdir()
    draw_turns([(name, record) for name, (_, record, _) in runs.items()], draft / "plots" / "turns.png")
    folder.write_readme(draft, command, {**FILES, **notes})
