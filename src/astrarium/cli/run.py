"""astrarium run FILE"""

from __future__ import annotations

from typing import Annotated

import typer

from astrarium.cli.cluster.state import State
from astrarium.cli.opening import opened, refuse, tell, variants
from astrarium.cli.options import Json, NoFolder, Out, Overrides, Overwrite, ScenarioFile, Seed
from astrarium.cli.simulate import Seeds
from astrarium.core.errors import InputError

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--policy",
        metavar="POLICY",
        help="Instead of the file's policy. Repeat it to run a search with several, one after another.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the search whose folder --out names.")]
Stay = Annotated[
    bool, typer.Option("--stay", help="Wait for apps that are submitted later, when all others have ended.")
]
MetricsAt = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Answer Prometheus there; on this machine alone unless HOST is given.",
    ),
]
ELSEWHERE = {
    "serving": "requests to models are answered by `astrarium serve`",
    "device": "jobs on one GPU run in your own program (docs/device/lanes.md)",
}


def run(
    context: typer.Context,
    file: ScenarioFile,
    policy: Policies = None,
    override: Overrides = None,
    seed: Seed = None,
    seeds: Seeds = 1,
    out: Out = None,
    overwrite: Overwrite = False,
    no_folder: NoFolder = False,
    resume: Resume = False,
    state: State = None,
    stay: Stay = False,
    metrics: MetricsAt = None,
    json: Json = False,
) -> None:
    """Run a file live: the trials of a search, or the apps of a cluster.

    Ctrl-C has them write checkpoints, and says how to go on. `astrarium serve` is the same for models.
    """

    level, scenario = opened(file, override, seed)
    if level.name in ELSEWHERE:
        expected = f"a file with trials of a search, or with apps on a cluster: {ELSEWHERE[level.name]}"
        raise InputError("FILE", str(file), expected)
    refuse(level, "cluster", {"--state": state, "--stay": stay, "--metrics": metrics})
    more = {"--resume": resume, "--no-folder": no_folder, "--overwrite": overwrite, "--out": out}
    refuse(level, "tuning", {**more, "--seeds": seeds > 1})
    chosen = variants(level, scenario, policy) if policy else {scenario.policy.name: scenario}
    tell(file, level)
    if level.name == "tuning":
        from astrarium.cli.search import Wanted, search

        search(context, level, chosen, Wanted(file, seeds, out, overwrite, no_folder, resume), json)
        return
    from astrarium.cli.cluster.live import arbitrate

    if len(chosen) > 1:
        raise InputError("-p", ", ".join(chosen), "one policy: a cluster has one at a time")
    [scenario] = chosen.values()
    arbitrate(context, file, scenario, state, stay, json, metrics)
