"""From the teams and reservations of a file to the rules by which they share the cluster."""

from __future__ import annotations

from collections.abc import Iterable

from astrarium.cluster.contract import App
from astrarium.cluster.policies import Allocator
from astrarium.cluster.scenario import schema
from astrarium.cluster.scenario.build import Built
from astrarium.cluster.scenario.calendar import Calendar, instant
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.teams import DAY, HOUR, Reservation, Rules
from astrarium.cluster.teams.sharing import TeamSharing
from astrarium.core.errors import InputError, one_of, read_from
from astrarium.core.quantities import Duration, write_duration

FEW = 60  # weeks, or other times that a reservation comes again, in which it is looked at


def shared(fresh: Allocator, rules: Rules | None) -> Allocator:
    """Return a policy under rules; the policy itself where there are none."""
    return fresh if rules is None else TeamSharing(fresh, rules)


def simulated_rules(scenario: ClusterScenario, built: Built) -> Rules | None:
    """Return the rules of a file for a simulation, with every app checked."""
    rules = team_rules(scenario, built.largest)
    entries = scenario.apps if isinstance(scenario.apps, tuple) else ()
    fields = {name: f"apps[{place}]" for place, entry in enumerate(entries) for name in entry.names}
    with read_from(scenario.source):
        for name, app in built.apps.items() if rules is not None else ():
            check_member(rules, app, fields.get(name, "apps"))
    return rules


def team_rules(
    scenario: ClusterScenario, largest: int | None, calendar: Calendar | None = None
) -> Rules | None:
    """Return the rules of a file; None where it has none. *largest*: the GPUs that there are, if known."""
    section = scenario.sharing
    listed = scenario.apps if isinstance(scenario.apps, tuple) else ()
    asked = section is not None or scenario.teams or scenario.reservations
    if not asked and not any(entry.shares for entry in listed):
        return None
    section = section or schema.SharingSection()
    if calendar is None and section.starts is not None and section.starts.date is not None:
        calendar = Calendar.simulated(section.starts.date)
    with read_from(scenario.source):
        reservations = _reservations(scenario, calendar)
        rules = Rules(scenario.teams, reservations, section.half_life, section.turn)
        if largest is not None:
            _check_sizes(rules, largest)
    return rules


def _reservations(scenario: ClusterScenario, calendar: Calendar | None) -> tuple[Reservation, ...]:
    reservations = []
    for place, entry in enumerate(scenario.reservations):
        field = f"reservations[{place}]"
        if entry.team not in scenario.teams:
            raise InputError(f"{field}.team", entry.team, _one_of_teams(scenario.teams, entry.team))
        start, end = (
            instant(moment, calendar, f"{field}.{name}")
            for name, moment in (("start", entry.start), ("end", entry.end))
        )
        weekly = entry.start.day >= 0
        every = entry.every or (Duration(7 * DAY) if weekly else Duration(0))
        if weekly and entry.end.day >= 0 and end <= start:
            end += every
        if end <= start:
            raise InputError(f"{field}.end", entry.end.text, f"a time after start, {entry.start.text}")
        if every and end - start > every:
            expected = f"at least as long as it lasts, {write_duration(end - start)}"
            raise InputError(f"{field}.every", write_duration(every), expected)
        reservations.append(Reservation(entry.team, entry.gpus, start, end, every))
    return tuple(reservations)


def _check_sizes(rules: Rules, largest: int) -> None:
    """Refuse promises that cannot all be kept at once."""
    total = sum(team.guaranteed for team in rules.teams.values())
    if total > largest:
        names = " + ".join(f"{team.guaranteed} of {name}" for name, team in rules.teams.items())
        last = next(name for name in reversed(rules.teams) if rules.teams[name].guaranteed)
        expected = f"at most {largest} GPUs for all teams, as the cluster has; they are {names}"
        raise InputError(f"teams.{last}.guaranteed", rules.teams[last].guaranteed, expected)
    for place, reservation in enumerate(rules.reservations):
        for again in range(FEW if reservation.every else 1):
            reserved = sum(rules.reserved(reservation.start + again * reservation.every).values())
            if reserved + total > largest:
                others = reserved - reservation.gpus
                expected = f"at most {largest - total - others}: the cluster has {largest} GPUs"
                more = f", {total} are guaranteed and {others} reserved at the same time"
                raise InputError(f"reservations[{place}].gpus", reservation.gpus, expected + more)


def check_member(rules: Rules | None, app: App, field: str) -> None:
    """Refuse an app that its team could never run, or that no team has."""
    if rules is None:
        for name in ("priority", "min_run", "max_run"):
            if getattr(app, name):
                expected = "nothing here: the cluster's file has no teams (or `sharing: {}`, for one team)"
                raise InputError(f"{field}.{name}", getattr(app, name), expected)
        return
    if rules.teams and app.team not in rules.teams:
        raise InputError(f"{field}.team", app.team, _one_of_teams(rules.teams, app.team))
    team = rules.team_of(app)
    rule = rules.rule(rules.team_of(app))
    needed = max(job.least for phase in app.phases for job in phase)
    most = rule.guaranteed + sum(
        reservation.gpus for reservation in rules.reservations if reservation.team == team
    )
    if not rule.borrow and needed > most:
        expected = f"at most {most} for a job, which {team} has without borrowing (borrow: true)"
        raise InputError(f"{field}.gpus", needed, expected)
    budget = rule.budget
    if budget is not None and budget.hard and needed * rules.turn > budget.limit:
        expected = f"at least {needed * rules.turn / HOUR:.3g}: {app.name} needs {needed} GPUs for a turn"
        raise InputError(f"teams.{team}.budget.gpu_hours", budget.gpu_hours, expected)


def _one_of_teams(teams: Iterable[str], team: str) -> str:
    return f"a team of the file: {one_of(list(teams), team)}"
