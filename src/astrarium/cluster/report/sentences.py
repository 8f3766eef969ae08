"""What is said of an app: what it has and why, behind whom it waits, and when it ran in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from astrarium.cluster import explain
from astrarium.cluster.record import ClusterRecord
from astrarium.cluster.report import history
from astrarium.cluster.report.summary import AppSummary
from astrarium.cluster.state import AppRow, Outcome
from astrarium.core.quantities import FOREVER, counted
from astrarium.run.tables import moment, ranges

if TYPE_CHECKING:
    pass


FORESEEN = "simulated: it knows who comes later and how long jobs really take"
_MOST_NAMED = 6


class Case(NamedTuple):
    """An app, its run, and the books at the instant that was asked for, if one was."""

    record: ClusterRecord
    row: AppRow
    summary: AppSummary
    seen: explain.ClusterView | None

    @property
    def names(self) -> dict[int, str]:
        return {row.app.id: row.app.name for row in self.record.rows}


def sentences(case: Case) -> list[str]:
    return [
        case.row.app.name + f", under {case.record.policy}",
        *_whole(case),
        *_moment(case),
        *_future(case),
    ]


def _whole(case: Case) -> Iterator[str]:
    row = case.row
    phases = case.row.app.phases
    jobs = counted(sum(map(len, phases)), "job") + (f" in {len(phases)} phases" if len(phases) > 1 else "")
    work = f"{case.summary.work_gpu_hours:.1f} GPU-hours of work"
    yield f"It arrives at {moment(row.arrived)}, with {jobs} and {work}."
    for wait in history.waits(case.record, row) if case.seen is None else ():
        yield (
            f"It waits from {moment(wait.start)} to {moment(wait.end)}{_meanwhile(wait.others, case.names)}."
        )


def _meanwhile(others: dict[int, int], names: dict[int, str]) -> str:
    if not others:
        return ": nothing was given to anybody meanwhile"
    others_named = [f"{names[app]} ({count})" for app, count in others.items()]
    return f", while GPUs went to {_some(others_named)}"


def _moment(case: Case) -> Iterator[str]:
    seen = case.seen
    row = case.row
    if seen is None:
        return
    at = moment(seen.at)
    if seen.at < row.arrived:
        yield f"At {at} it has not come yet."
    elif history.has_ended(row, seen.at) or row.app.id not in seen.apps:
        yield f"At {at} it has ended."
    else:
        yield from _holding(case, seen, seen.apps[row.app.id])
        yield from _waiting(case, seen, seen.apps[row.app.id])


def _holding(case: Case, seen: explain.ClusterView, seat: explain.AppView) -> Iterator[str]:
    if not seat.holds:
        yield f"At {moment(seen.at)} it holds no GPU. {_free(seen, seat)}"
        return
    phase = f"phase {seat.phase + 1} of {len(case.row.app.phases)}"
    yield (
        f"At {moment(seen.at)} it holds {counted(len(seat.holds), 'GPU')}, in {phase}: "
        f"{seat.running} of {counted(seat.jobs, 'job')} run."
    )
    for decision in history.last_reasons(case.record, case.row.app.id, seen.at):
        leases = f"{decision.leases} leases, " if decision.leases > 1 else ""
        until = "to its end" if decision.until >= FOREVER else f"{leases}until {moment(decision.until)}"
        why = f", because {decision.why}" if decision.why else ""
        machines = ranges({case.record.machines[gpu] for gpu in decision.gpus})
        where = f"GPU {ranges(decision.gpus)} of machine {machines}"
        yield f"  {where}, given at {moment(decision.at)} ({until}){why}."


def _free(seen: explain.ClusterView, seat: explain.AppView) -> str:
    if not seat.needs:
        return "It could use none."
    needs = f"needs {seat.needs} at once" if seat.needs > 1 else "needs one"
    return f"It {needs}; {seen.free} of {seen.gpus} are free."


def _waiting(case: Case, seen: explain.ClusterView, seat: explain.AppView) -> Iterator[str]:
    places = history.queue(seen, case.record)
    apps = [place.app_view.app for place in places]
    if seat.app not in apps:
        yield "It wants no more than it has."
        return
    rank = apps.index(seat.app)
    served = "in the order in which they are served next"
    how = served if seen.standing is None else "as the policy ranks them"
    more = f" {_free(seen, seat)}" if seat.holds else ""
    own = f" ({places[rank].why})" if places[rank].why else ""
    yield f"It wants {counted(seat.wants, 'more GPU' if seat.holds else 'GPU')}.{more}"
    yield f"It is number {rank + 1} of {len(apps)} in line, {how}{own}."
    others = [_has(other) for other in seen.apps.values() if other.holds and other.app != seat.app]
    if others:
        yield f"GPUs are held by {_some(others)}."


def _has(seat: explain.AppView) -> str:
    until = "to its end" if seat.until >= FOREVER else f"the first until {moment(seat.until)}"
    return f"{seat.name} ({len(seat.holds)}, {until})"


def _some(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
    return ", ".join(parts[:_MOST_NAMED]) + more


def _future(case: Case) -> Iterator[str]:
    row = case.row
    seen = case.seen
    if seen is not None and not history.has_ended(row, seen.at) and row.app.id in seen.apps:
        place = next(
            (
                position
                for position in history.queue(seen, case.record)
                if position.app_view.app == row.app.id
            ),
            None,
        )
        if place is not None:
            what = "more" if place.app_view.holds else "GPUs"
            known = seen.expected.get(row.app.id)
            if known is not None:
                when = "at once" if known <= seen.at else f"at about {moment(known)}"
                yield f"From what is known then, it can expect {what} {when}."
            yield f"What comes of it ({FORESEEN}): {_served(place)}."
    if row.outcome is Outcome.FINISHED:
        rho = ", ".join(f"{value:.2f} ({name})" for name, value in case.summary.rho.items())
        took = moment(row.ended - row.arrived)
        yield f"It ends at {moment(row.ended)}, after {took}: rho {rho}."
    else:
        yield f"It does not finish: {row.reason}."


def _served(place: history.QueuedApp) -> str:
    if place.served is None:
        return "it is never given more"
    count = counted(len(place.served.gpus), "GPU")
    why = f", because {place.served.why}" if place.served.why else ""
    return f"at {moment(place.served.at)} it is given {count}{why}"
