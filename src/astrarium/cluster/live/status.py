"""A live cluster in plain words and numbers, for `cluster status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrarium.cluster.explain import Seat, View, view
from astrarium.cluster.fairness import phase_alone, rho
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.units import FOREVER, Time, to_seconds


def status(now: Time, state: ClusterState, allocator: object, machines: Mapping[int, str]) -> dict[str, Any]:
    try:
        seen = view(now, state, allocator)
    except Exception:  # a stranger's policy that cannot be copied, or does not know: then it tells no line
        seen = view(now, state, None)
    return {
        "now_s": to_seconds(now),
        "gpus": seen.gpus,
        "free": seen.free,
        "machines": [_machine(number, name, state) for number, name in machines.items()],
        "apps": [_app(now, row, seen, state) for row in state.ledger.rows.values()],
    }


def _machine(number: int, name: str, state: ClusterState) -> dict[str, Any]:
    gpus = state.floor.gpus_of.get(number, ())
    names = {gpu: state.apps[state.holder[gpu]].app.name for gpu in gpus if gpu in state.holder}
    return {"machine": number, "name": name, "gpus": list(gpus), "held": names}


def _app(now: Time, row: AppRow, seen: View, state: ClusterState) -> dict[str, Any]:
    seat, end = seen.seats.get(row.app.id), now if row.open else row.ended
    jobs = list(row.jobs.values())
    return {
        "app": row.app.name,
        "outcome": row.outcome.name.lower(),
        "reason": row.reason,
        "arrived_s": to_seconds(row.arrived),
        "waited_s": to_seconds((row.started if row.started >= 0 else end) - row.arrived),
        "took_s": to_seconds(end - row.arrived),
        "gpus": list(seat.holds) if seat else [],
        "until_s": to_seconds(seat.until) if seat and 0 <= seat.until < FOREVER else None,
        "wants": seat.wants if seat else 0,
        "phase": row.phase if row.open else None,
        "jobs_running": seat.running if seat else 0,
        "jobs": len(jobs),
        "done": sum(state.done(now, job) for job in jobs) / sum(job.job.work for job in jobs),
        "gpu_s": to_seconds(state.service(now, row) if row.open else row.service),
        "rho": _rho(now, row, state),
        "why": why(row, seat, seen) if seat else "",
    }


def _rho(now: Time, row: AppRow, state: ClusterState) -> float | None:
    """Of the definition `share`. Of an app that is still there, the least that it can become: if it had all
    that it can use from now on."""
    size = max(1, state.floor.size)
    if not row.open:
        finished = row.outcome.name == "FINISHED"
        return rho(row.ended - row.arrived, row.app, size, row.contention, "share") if finished else None
    later = sum(
        phase_alone(phase, size, lambda job: job.forecast) for phase in row.app.phases[row.phase + 1 :]
    )
    took = now - row.arrived + alone_left(now, row, state, size) + later
    return rho(took, row.app, size, state.contention(now, row), "share")


def alone_left(now: Time, row: AppRow, state: ClusterState, size: int) -> Time:
    """What is left of the present phase, on as many GPUs as it can use."""
    jobs = row.unfinished()
    left = [max(1, job.job.forecast - state.done(now, job)) for job in jobs]
    longest = max((work / min(job.job.most, size) for work, job in zip(left, jobs, strict=True)), default=0)
    together = sum(left) / max(1, min(size, sum(job.job.most for job in jobs)))
    return round(max(longest, together))


def why(row: AppRow, seat: Seat, seen: View) -> str:
    """Why it waits, or that it does not."""
    if not seat.wants:
        return "it has all that it can use"
    place = next((n for n, (app, _) in enumerate(seen.standing or (), 1) if app == row.app.id), None)
    words = next((words for app, words in seen.standing or () if app == row.app.id), "")
    needs = f"it needs {seat.needs} more" if seat.holds else f"it needs {seat.needs}"
    line = f"; number {place} of {len(seen.standing or ())} in line ({words})" if place else ""
    return f"{needs}, {seen.free} of {seen.gpus} GPUs are free{line}"
