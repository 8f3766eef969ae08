"""What `astrarium run` does with a file of apps: an arbiter runs them on real machines."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from astrarium.cli.cluster.state import disk_errors
from astrarium.cli.cluster.status import overview
from astrarium.cli.output import command_line, emit
from astrarium.cluster.live.arbiter import ArbiterProcess
from astrarium.cluster.live.arbiter_loop import ArbiterLoop
from astrarium.cluster.live.composition import planned, running
from astrarium.cluster.live.machine.owners import impassable
from astrarium.cluster.live.service.identities import user_name
from astrarium.cluster.scenario.live import Address, read_address
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.core.errors import InputError
from astrarium.run.pools import signals_to


def arbitrate(
    context: typer.Context,
    file: Path,
    scenario: ClusterScenario,
    state: Path | None,
    stay: bool,
    json: bool,
    metrics: str | None = None,
) -> None:
    """Run the apps of a file on real machines. Ctrl-C has them write checkpoints; run it again to go on."""
    home = (state or Path(scenario.live.state or file.with_suffix(".state").name)).resolve()
    where = _metrics_address(scenario, metrics)
    with disk_errors(home):
        plan = planned(scenario, home, where)
        with running(plan) as cluster:
            arbiter = cluster.arbiter
            loop = ArbiterLoop(home, arbiter, cluster.observe, plan.hooks, scenario.live.look / 1e9)
            ended_before = {row.app.name for row in arbiter.state.ledger.rows.values() if not row.open}
            with signals_to(loop.ask_to_drain):
                _announce(scenario, home, arbiter)
                loop.run(stay)
                status = arbiter.status(alive=False)
    emit(json, status, overview(status), None)
    if loop.draining:
        print(f"drained; `{command_line(context)}` goes on", file=sys.stderr)
    elif any(app["outcome"] == "failed" and app["app"] not in ended_before for app in status["apps"]):
        raise typer.Exit(1)


def _metrics_address(scenario: ClusterScenario, option: str | None) -> Address | None:
    if option is None:
        return scenario.live.metrics
    try:
        return read_address(option)
    except ValueError as error:
        raise InputError("--metrics", option, str(error)) from None


def _announce(scenario: ClusterScenario, home: Path, arbiter: ArbiterProcess) -> None:
    how = "begins" if arbiter.epoch == 1 else f"goes on (arbiter {arbiter.epoch})"
    machines = f"{scenario.policy.label} on {scenario.live.backend} machines"
    print(f"{machines} {how}; state in {home}", file=sys.stderr)
    if scenario.live.access is not None and scenario.live.backend == "kubernetes":
        print("apps of all users run as the user of their image", file=sys.stderr)
    elif scenario.live.access is not None and os.geteuid() != 0:
        reason = "only an arbiter that is root runs apps as their owners"
        print(f"apps of all users run as {user_name(os.geteuid())}: {reason}", file=sys.stderr)
    elif scenario.live.access is not None and (wall := impassable(home)) is not None:
        print(f"no other user can reach {home}: they may not pass {wall}", file=sys.stderr)
    if arbiter.known_before:
        names = ", ".join(arbiter.known_before)
        print(f"here before, and taken as they were then: {names}", file=sys.stderr)
    print("Ctrl-C has all jobs write a checkpoint and leaves", file=sys.stderr, flush=True)
