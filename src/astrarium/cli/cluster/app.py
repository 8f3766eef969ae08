"""astrarium cluster VERB: apps that come to a cluster while it runs."""

from __future__ import annotations

import typer

from astrarium.cli.cluster.status import status
from astrarium.cli.cluster.submit import submit, withdraw

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Talk to a cluster that `astrarium run` has started."
)
for verb in (submit, withdraw, status):
    app.command()(verb)
