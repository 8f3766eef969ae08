"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioFile = Annotated[Path, typer.Argument(metavar="FILE", help="A scenario file (YAML), of any level.")]
ServingFile = Annotated[Path, typer.Argument(metavar="FILE", help="A scenario file (YAML) with models.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-o", "--override", metavar="KEY=VALUE", help="Override a field: -o workload.rate=4000/s."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Instead of the file's seed.")]
EngineOption = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="auto, python (the reference) or native (its twin).")
]
OnePolicy = Annotated[
    str | None, typer.Option("-p", "--policy", metavar="POLICY", help="Instead of the file's policy.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="The run folder; runs/<date>-<verb>-<name> unless given."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run folder that is there.")]
NoOutcomes = Annotated[
    bool, typer.Option("--no-outcomes", help="Leave the rows of single items out of the folder.")
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="PLAN",
        help="A plan file, as `astrarium plan` writes it: models live only where it says. GPUs with the same "
        "models form a cell, which the policy runs with its part of the requests.",
    ),
]
NoFolder = Annotated[bool, typer.Option("--no-folder", help="Write no run folder.")]
