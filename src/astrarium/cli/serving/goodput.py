"""astrarium goodput FILE"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.cli import output
from astrarium.cli.opening import check_served, opened, tell
from astrarium.cli.options import Json, NoFolder, NoOutcomes, Out, Overrides, Overwrite, Seed, ServingFile
from astrarium.cli.progress import bar, status

if TYPE_CHECKING:
    from astrarium.serving.goodput import Goodput
    from astrarium.serving.scenario import Scenario

Seeds = Annotated[int, typer.Option("--seeds", help="How many seeds to search, from the scenario's own on.")]
Tolerance = Annotated[float, typer.Option("--tolerance", help="Stop when a rate is known to this share.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Seeds searched at the same time.")]


def goodput(
    context: typer.Context,
    file: ServingFile,
    override: Overrides = None,
    seed: Seed = None,
    seeds: Seeds = 3,
    tolerance: Tolerance = 0.002,
    jobs: Jobs = 1,
    json: Json = False,
    out: Out = None,
    overwrite: Overwrite = False,
    no_outcomes: NoOutcomes = False,
    no_folder: NoFolder = False,
) -> None:
    """Find the highest rate that keeps every objective.

    Every model must have 99 % of its requests answered in time. The goodput is the mean over the seeds; the
    run folder, and the rest of --json, show the first seed's run at the rate found for it.
    """
    from astrarium.run.experiment import simulate
    from astrarium.run.report import struct_as_dict
    from astrarium.serving.report.goodput import draw_probes, goodput_table

    check_served(file, "have no goodput")
    level, scenario = opened(file, override, seed)
    at = output.target("goodput", file.stem, out, overwrite, no_folder)
    tell(file, level)
    goodputs = _search(scenario, seeds, tolerance, jobs)
    own = goodputs.per_seed[0]  # the run that is shown keeps what the search found for its seed
    run = simulate(level, scenario.with_rate(own) if own > 0 else scenario, bar=bar)
    title = f"{file.name}: {run.label} at its goodput, {own:,.0f} requests/s"
    table, drawn = (
        goodput_table(run.label, goodputs),
        [lambda plots: draw_probes(goodputs, plots / "goodput.png")],
    )
    promise = {"promised": goodputs.promised, "limit": goodputs.limit}
    results = output.Results([run], title, [table], {**struct_as_dict(goodputs), **promise}, draw=drawn)
    output.finish(context, at, results, json, not no_outcomes)


def _search(scenario: Scenario, seeds: int, tolerance: float, jobs: int) -> Goodput:
    from astrarium.serving.goodput import Probe, search

    with status(f"goodput of {scenario.policy.name}") as say:

        def show(probe: Probe) -> None:
            assert say is not None
            verdict = "enough" if probe.passed else "not enough"
            good = f"{1 - probe.worst_bad:.2%} in time, {verdict}"
            say(f"seed {probe.seed}, {probe.rate:,.0f} requests/s: {good}")

        return search(scenario, seeds, tolerance, show if say else None, jobs)
