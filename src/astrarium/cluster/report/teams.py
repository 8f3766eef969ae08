"""What each team had of a cluster: GPU time of its own, borrowed and lent, and how its apps fared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from astrarium.cluster.record import ClusterRecord
from astrarium.cluster.report.summary import DEFINITIONS, HOUR, AppSummary, TeamSummary
from astrarium.cluster.teams import Team
from astrarium.core.quantities import Time
from astrarium.run.tables import as_it_is, plain_table

if TYPE_CHECKING:
    from rich.table import Table


class LoanedTime(msgspec.Struct):
    """GPU time that a team had from others, and that others had from it, in nanoseconds."""

    borrowed: float = 0.0
    lent: float = 0.0


def summarize_teams(
    record: ClusterRecord, teams: Mapping[str, Team], apps: Sequence[AppSummary]
) -> list[TeamSummary]:
    shares = {team: LoanedTime() for team in teams}
    for held, size, took in _spans(record, teams):
        _add(shares, teams, held, size, took)
    return [_summary(team, rule, shares[team], apps) for team, rule in teams.items()]


def _summary(team: str, rule: Team, share: LoanedTime, apps: Sequence[AppSummary]) -> TeamSummary:
    own = [app for app in apps if app.team == team]
    waited = [app.waited_s for app in own if app.waited_s is not None]
    return TeamSummary(
        team=team,
        apps=len(own),
        finished=sum(app.outcome == "finished" for app in own),
        guaranteed=rule.guaranteed,
        gpu_hours=sum(app.gpu_hours for app in own),
        borrowed_gpu_hours=share.borrowed / HOUR,
        lent_gpu_hours=share.lent / HOUR,
        rho=max((app.rho[DEFINITIONS[0]] for app in own if app.rho), default=None),
        waited_s=sum(waited) / len(waited) if waited else None,
        never_served=len(own) - len(waited),
    )


def _spans(record: ClusterRecord, teams: Mapping[str, Team]) -> Iterator[tuple[dict[str, int], int, Time]]:
    """Yield how many GPUs each team held, how many there were, and for how long."""
    of = {row.app.id: row.app.team for row in record.rows}
    steps = [(lease.start, of[lease.app], 1) for lease in record.held]
    steps += [(lease.end, of[lease.app], -1) for lease in record.held]
    steps += [(level.at, "", level.gpus) for level in record.levels]
    held = dict.fromkeys(teams, 0)
    size = 0
    for (at, team, more), (until, _, _) in pairwise(sorted([*steps, (record.end, "", 0)])):
        if team in held:
            held[team] += more
        elif not team:
            size = more
        if until > at:
            yield held, size, until - at


def _add(
    shares: Mapping[str, LoanedTime],
    teams: Mapping[str, Team],
    held: Mapping[str, int],
    size: int,
    took: Time,
) -> None:
    """Add a time in which nothing changed. Who borrows has what is guaranteed to nobody first."""
    more = {team: held[team] - rule.guaranteed for team, rule in teams.items()}
    borrowed = sum(max(0, count) for count in more.values())
    idle = sum(max(0, -count) for count in more.values())
    lent = max(0, borrowed - max(0, size - sum(rule.guaranteed for rule in teams.values())))
    for team, count in more.items():
        shares[team].borrowed += max(0, count) * took
        shares[team].lent += max(0, -count) / idle * min(lent, idle) * took if idle else 0.0


def teams_table(teams: Sequence[TeamSummary]) -> Table:
    names = ("team", "finished", "guaranteed", "GPU-hours", "borrowed", "lent", f"rho {DEFINITIONS[0]}")
    table = plain_table(*names, "wait min")
    for team in teams:
        hours = (team.gpu_hours, team.borrowed_gpu_hours, team.lent_gpu_hours)
        rho = "-" if team.rho is None else f"{team.rho:.2f}"
        waited = "-" if team.waited_s is None else f"{team.waited_s / 60:,.1f}"
        cells = (f"{team.finished}/{team.apps}", str(team.guaranteed), *(f"{value:,.1f}" for value in hours))
        table.add_row(as_it_is(team.team), *cells, rho, waited)
    explained = "GPU-hours: of its apps, borrowed ones included; rho: of the app that fared worst; wait: mean"
    table.caption = as_it_is(explained)
    return table
