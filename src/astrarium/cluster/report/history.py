"""The history of a run says when an app waited, what it was given and why, and who was served next."""

from __future__ import annotations

from typing import NamedTuple

from astrarium.cluster.explain import AppView, ClusterView
from astrarium.cluster.record import ClusterRecord, Decision
from astrarium.cluster.state import AppRow, Outcome
from astrarium.core.quantities import FOREVER, Time


class Wait(NamedTuple):
    """A time in which an app that was there held nothing, and who was given how many GPUs meanwhile."""

    start: Time
    end: Time
    others: dict[int, int]


def waits(record: ClusterRecord, row: AppRow) -> list[Wait]:
    spans = sorted((held.start, held.end) for held in record.held if held.app == row.app.id)
    gaps = list[tuple[Time, Time]]()
    since = row.arrived
    for start, end in spans:
        if start > since:
            gaps.append((since, start))
        since = max(since, end)
    end = row.ended if row.ended >= 0 else record.end
    if end > since:
        gaps.append((since, end))
    return [Wait(start, end, _given(record, start, end)) for start, end in gaps]


def _given(record: ClusterRecord, start: Time, end: Time) -> dict[int, int]:
    """Return the GPUs that each app was given in a time, most first; renewed leases do not count."""
    counts: dict[int, int] = {}
    for held in record.held:
        if start <= held.start < end:
            counts[held.app] = counts.get(held.app, 0) + 1
    return dict(sorted(counts.items(), key=lambda one: -one[1]))


def story(record: ClusterRecord, app: int) -> list[Decision]:
    return [decision for decision in record.decisions if decision.app == app]


def served_next(record: ClusterRecord, at: Time) -> dict[int, Decision]:
    """Return the first grant of GPUs that each app did not hold, after an instant."""
    held: dict[int, set[int]] = {}
    for lease in record.held:
        if lease.start <= at < lease.end:
            held.setdefault(lease.app, set()).add(lease.gpu)
    first: dict[int, Decision] = {}
    for decision in record.decisions:
        later = decision.at > at and decision.until >= 0 and decision.app not in first
        if later and not set(decision.gpus) <= held.get(decision.app, set()):
            first[decision.app] = decision
    return first


class QueuedApp(NamedTuple):
    """An app that wanted GPUs at an instant; *why* it was not served yet, and when it was *served* more."""

    app_view: AppView
    why: str
    served: Decision | None


def queue(seen: ClusterView, record: ClusterRecord) -> list[QueuedApp]:
    """Return those who wanted GPUs, first in line first."""
    later = served_next(record, seen.at)
    if seen.standing is not None:
        standing = [(app, words) for app, words in seen.standing if app in seen.apps]
        return [QueuedApp(seen.apps[app], words, later.get(app)) for app, words in standing]
    wanting = [app_view for app_view in seen.apps.values() if app_view.wants]
    wanting.sort(key=lambda app_view: later[app_view.app].at if app_view.app in later else FOREVER)
    return [QueuedApp(app_view, "", later.get(app_view.app)) for app_view in wanting]


def last_reasons(record: ClusterRecord, app: int, at: Time) -> list[Decision]:
    """Return the decisions by which an app came to hold what it held at an instant."""
    gpus = {held.gpu for held in record.held if held.app == app and held.start <= at < held.end}
    reasons: list[Decision] = []
    for decision in reversed(story(record, app)):
        mine = gpus & set(decision.gpus) if decision.at <= at < decision.until else set()
        if mine:
            reasons.append(decision._replace(gpus=tuple(sorted(mine))))
            gpus -= mine
    return reasons[::-1]


def has_ended(row: AppRow, at: Time) -> bool:
    return row.outcome is not Outcome.OPEN and 0 <= row.ended <= at
