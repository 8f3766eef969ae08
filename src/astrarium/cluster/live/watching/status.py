"""The status of a live cluster, in plain words and numbers: who holds what, and why others wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrarium.cluster.explain import AppView, ClusterView, view
from astrarium.cluster.fairness import PhaseWork, forecast, rho
from astrarium.cluster.live.cluster import LiveCluster
from astrarium.cluster.live.watching.forecast import Forecast
from astrarium.cluster.live.watching.outlook import Outlook, outlook
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import FOREVER, Time, to_seconds


def status(
    now: Time,
    state: ClusterState,
    allocator: object,
    machines: Mapping[int, str],
    ahead: Forecast | None = None,
) -> dict[str, Any]:
    """Return a live cluster in plain words and numbers, for `cluster status`."""
    try:
        overview = view(now, state, allocator)
    except Exception:  # a stranger's policy that cannot be copied, or does not know: then it tells no line
        overview = view(now, state, None)
    return {
        "now_s": to_seconds(now),
        "gpus": overview.gpus,
        "free": overview.free,
        "machines": [_machine(number, name, state) for number, name in machines.items()],
        "forecast_s": to_seconds(ahead.made) if ahead else None,
        "apps": [_app(now, row, overview, state, ahead) for row in state.ledger.rows.values()],
    }


def health(state: ClusterState, live: LiveCluster) -> dict[str, Any]:
    """Return the GPUs that are out of use, and the machines where nobody watches."""
    failed = [
        {"gpu": gpu, "machine": live.memory.machines.get(machine, ""), "number": number, "why": failure.why,
         "since_s": to_seconds(failure.since), "retrying": gpu in live.memory.retrying}
        for gpu, failure in sorted(state.failed.items())
        for machine, number in (state.floor.place(gpu),)
    ]  # fmt: skip
    return {"failed": failed, "unwatched": live.unwatched}


def learnt(state: ClusterState) -> list[dict[str, Any]]:
    """Return what being apart is known to cost."""
    return [
        {"model": model, "network": network, "spread": spread.name.lower(), "slowdown": slowdown}
        for (model, network), table in sorted(state.slowdowns.known.items())
        for spread, slowdown in sorted(table.items())
    ]


def _machine(number: int, name: str, state: ClusterState) -> dict[str, Any]:
    gpus = state.floor.gpus_of.get(number, ())
    names = {gpu: state.apps[state.holder[gpu]].app.name for gpu in gpus if gpu in state.holder}
    return {"machine": number, "name": name, "gpus": list(gpus), "held": names}


def _app(
    now: Time, row: AppRow, overview: ClusterView, state: ClusterState, ahead: Forecast | None
) -> dict[str, Any]:
    app_view = overview.apps.get(row.app.id)
    end = now if row.open else row.ended
    jobs = list(row.jobs.values())
    prospect = outlook(app_view, overview, ahead)
    return {
        "app": row.app.name,
        "team": row.app.team,
        "outcome": row.outcome.name.lower(),
        "reason": row.reason,
        "arrived_s": to_seconds(row.arrived),
        "waited_s": to_seconds((row.started if row.started >= 0 else end) - row.arrived),
        "took_s": to_seconds(end - row.arrived),
        "gpus": list(app_view.holds) if app_view else [],
        "until_s": to_seconds(app_view.until) if app_view and 0 <= app_view.until < FOREVER else None,
        "wants": app_view.wants if app_view else 0,
        "phase": row.phase if row.open else None,
        "jobs_running": app_view.running if app_view else 0,
        "jobs": len(jobs),
        "done": sum(state.done(now, job) for job in jobs) / sum(job.job.work for job in jobs),
        "gpu_s": to_seconds(state.service(now, row) if row.open else row.service),
        "rho": _rho(now, row, state),
        "starts_s": prospect.seconds,
        "starts_how": prospect.how,
        "place": prospect.place,
        "why": why(row, app_view, overview, prospect) if app_view else "",
    }


def _rho(now: Time, row: AppRow, state: ClusterState) -> float | None:
    """Return rho of an app by the definition `share`. Of an app that is still there, it is the least that it
    can become: if it had all that it can use from now on."""
    size = max(1, state.floor.size)
    if not row.open:
        finished = row.outcome.name == "FINISHED"
        return rho(row.ended - row.arrived, row.app, size, row.contention, "share") if finished else None
    left = {job.job.id: max(1, job.job.forecast - state.done(now, job)) for job in row.unfinished()}
    present = PhaseWork([job.job for job in row.unfinished()], lambda job: left[job.id]).alone(size)
    later = sum(PhaseWork(phase, forecast).alone(size) for phase in row.app.phases[row.phase + 1 :])
    took = now - row.arrived + round(present + later)
    return rho(took, row.app, size, state.contention(now, row), "share")


def why(row: AppRow, app_view: AppView, overview: ClusterView, prospect: Outlook) -> str:
    """Return why an app waits, or that it does not."""
    if not app_view.wants:
        return "it has all that it can use"
    words = next((words for app, words in overview.standing or () if app == row.app.id), "by its start")
    more = " more" if app_view.holds else ""
    together = " together" if app_view.needs > 1 else ""
    place = prospect.place or 0
    length = prospect.in_line
    line = f"; number {place} of {length} in line ({words})" if place else ""
    free = f"{overview.free} of {overview.gpus} are free{prospect.held}"
    return f"it needs {app_view.needs}{more}{together}, {free}{line}"
