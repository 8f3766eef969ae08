"""The command line: `astrarium VERB`."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
from importlib.util import find_spec
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from astrarium.cli.cluster import gpu
from astrarium.cli.cluster.agent import agent
from astrarium.cli.cluster.past import accounting, events, history
from astrarium.cli.cluster.status import logs, status
from astrarium.cli.cluster.submit import submit, withdraw
from astrarium.cli.explain import explain
from astrarium.cli.gate import mps, policy, top
from astrarium.cli.gate import profile as gate_profile
from astrarium.cli.gate import run as gate_run
from astrarium.cli.policies import policies
from astrarium.cli.run import run
from astrarium.cli.serving.goodput import goodput
from astrarium.cli.serving.plan import plan
from astrarium.cli.serving.profile.command import profile
from astrarium.cli.serving.serve import serve
from astrarium.cli.serving.zoo import zoo
from astrarium.cli.simulate import compare, replay, simulate
from astrarium.core.errors import AstrariumError

BAD_INPUT = 2
INTERRUPTED = 130
TERMINATED = 143


class Verbs(TyperGroup):
    """Errors that we raise on purpose end as one line, never as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except AstrariumError as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            raise SystemExit(BAD_INPUT) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            _leave_threads_behind(INTERRUPTED)
            raise SystemExit(INTERRUPTED) from None


def _leave_threads_behind(code: int) -> None:
    """Python waits at its end for threads that work, which may take minutes: nobody wants their results."""
    pools = sys.modules.get("astrarium.run.pools")
    if pools is not None and pools.left_behind():
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# Plain help: rich markup would be imported before the first letter is printed.
app = typer.Typer(
    cls=Verbs,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
verb: Any
for verb in (simulate, compare, explain, replay, run, serve, goodput, plan, profile, policies, zoo):
    app.command()(verb)
cluster = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Talk to a cluster that `astrarium run` has started."
)
for verb in (submit, withdraw, status, logs, events, history, accounting, agent):
    cluster.command()(verb)
cluster_gpu = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Take GPUs out of use, and use them again."
)
for verb in (gpu.drain, gpu.retry):
    cluster_gpu.command()(verb)
cluster.add_typer(cluster_gpu, name="gpu")
app.add_typer(cluster, name="cluster")
gate = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Share a GPU between programs.")
for verb in (gate_run.run, gate_profile.profile):  # the options of the program that follows are its own
    gate.command(context_settings={"allow_interspersed_args": False})(verb)
for verb in (top.top, policy.policy, policy.policies, mps.mps):
    gate.command()(verb)
app.add_typer(gate, name="gate")
if find_spec("astrarium_papers"):  # the papers' tables and figures are a package of their own
    app.command()(importlib.import_module("astrarium_papers.command").reproduce)


def _version(wanted: bool) -> None:
    if wanted:
        from astrarium import __version__

        print(f"astrarium {__version__}")
        raise typer.Exit


@app.callback()
def astrarium(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Schedules deep-learning work on GPUs: the same policy simulated, live and replayed."""


def main(arguments: list[str] | None = None) -> None:
    signal.signal(signal.SIGTERM, _terminate)
    app(args=arguments, obj=arguments, prog_name="astrarium")


def _terminate(number: int, frame: FrameType | None) -> None:
    """Leave as on an error, so that half a folder is cleared away."""
    raise SystemExit(TERMINATED)
