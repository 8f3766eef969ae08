"""astrarium gate VERB: one GPU shared by programs that know nothing of each other."""

from __future__ import annotations

import typer

from astrarium.cli.gate.policy import mps, policies, policy
from astrarium.cli.gate.profile import profile
from astrarium.cli.gate.run import run
from astrarium.cli.gate.top import top

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Share a GPU between programs.")
# The options of the program that follows are its own.
for before_a_command in (run, profile):
    app.command(context_settings={"allow_interspersed_args": False})(before_a_command)
for verb in (top, policy, policies, mps):
    app.command()(verb)
