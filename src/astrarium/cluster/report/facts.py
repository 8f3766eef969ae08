"""What `explain` shows of an app beside sentences: tables for people, the same facts for --json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from astrarium.cluster.record import Decision
from astrarium.cluster.report import history
from astrarium.cluster.report.sentences import Case, sentences
from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.run.tables import as_it_is, moment, plain_table, ranges

if TYPE_CHECKING:
    from rich.table import Table


_MOST_ROWS = 40


def tables(case: Case) -> list[Table]:
    """Return what was decided of an app in its whole life; of an instant, who is before it."""
    if case.seen is None:
        return [story_table(history.story(case.record, case.row.app.id))]
    places = history.queue(case.seen, case.record)
    queued = any(place.app_view.app == case.row.app.id for place in places)
    return [queue_table(places, case.row.app.id)] if queued else []


def queue_table(places: Sequence[history.QueuedApp], app: int) -> Table:
    """Those before it, and itself."""
    apps = [place.app_view.app for place in places]
    shown = places[: apps.index(app) + 1]
    table = plain_table(
        "in line", "holds", "wants", "needs at once", "GPU-hours so far", "is given more at", "why"
    )
    table.columns[-1].justify = "left"
    for rank, place in enumerate(shown, 1):
        seat = place.app_view
        served = place.served
        at = "-" if served is None else moment(served.at)
        counts = map(str, (len(seat.holds), seat.wants, seat.needs))
        cells = (*counts, f"{seat.service / SECOND / 3600:.1f}", at)
        why = place.why or (served.why if served is not None else "")
        table.add_row(as_it_is(f"{rank} {seat.name}"), *cells, as_it_is(why))
    return table


def story_table(decisions: Sequence[Decision]) -> Table:
    table = plain_table("at", "what", "GPUs", "until", "why")
    for column in (*table.columns[1:3], table.columns[-1]):
        column.justify = "left"
    for decision in decisions[:_MOST_ROWS]:
        table.add_row(
            moment(decision.at),
            _what(decision),
            ranges(decision.gpus),
            _until(decision.until),
            as_it_is(decision.why),
        )
    if len(decisions) > _MOST_ROWS:
        table.caption = f"the first {_MOST_ROWS} of {len(decisions)} decisions; --json has all of them"
    return table


def _what(decision: Decision) -> str:
    if decision.until < 0:
        return "taken back"
    return "given" if decision.leases == 1 else f"given, {decision.leases} leases"


def _until(until: Time) -> str:
    return "" if until < 0 else "its end" if until >= FOREVER else moment(until)


def plain(case: Case) -> dict[str, Any]:
    """Return the same facts as the tables hold, as plain data."""
    row = case.row
    seen = case.seen
    facts: dict[str, Any] = {
        "app": row.app.name,
        "policy": case.record.policy,
        "told": sentences(case),
        "ended_s": None if row.ended < 0 else row.ended / SECOND,
        "outcome": row.outcome.name.lower(),
        "rho": case.summary.rho,
        "waits": [
            {
                "from_s": wait.start / SECOND,
                "to_s": wait.end / SECOND,
                "given_to": {case.names[app]: count for app, count in wait.others.items()},
            }
            for wait in history.waits(case.record, row)
        ],
        "decisions": [_plain_decision(decision) for decision in history.story(case.record, row.app.id)],
    }
    if seen is not None:
        seat = seen.apps.get(row.app.id)
        facts |= {"at_s": seen.at / SECOND, "holds": list(seat.holds) if seat else []}
        facts |= {"wants": seat.wants if seat else 0, "free": seen.free, "gpus": seen.gpus}
        known = seen.expected.get(row.app.id)
        facts |= {"expected_s": None if known is None else known / SECOND}
        facts |= {"line": [_plain_place(place) for place in history.queue(seen, case.record)]}
        facts |= {"line_by": "policy" if seen.standing is not None else "served next in the simulation"}
    return facts


def _plain_decision(decision: Decision) -> dict[str, Any]:
    until = None if decision.until < 0 or decision.until >= FOREVER else decision.until / SECOND
    what = "given" if decision.until >= 0 else "taken back"
    facts = {"at_s": decision.at / SECOND, "what": what, "gpus": list(decision.gpus), "until_s": until}
    return {**facts, "leases": decision.leases, "why": decision.why}


def _plain_place(place: history.QueuedApp) -> dict[str, Any]:
    seat = place.app_view
    served = place.served
    facts = {"app": seat.name, "holds": len(seat.holds), "wants": seat.wants, "needs": seat.needs}
    served_at = None if served is None else served.at / SECOND
    return {**facts, "service_s": seat.service / SECOND, "told": place.why, "given_more_s": served_at}
