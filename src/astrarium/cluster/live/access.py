"""Who may do what on a live cluster: operators all, others what concerns the apps of their teams.

Whom a message comes from is known by the kernel on the machine of the arbiter, and by a key over a network.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from astrarium.core.errors import AstrariumError, InputError, one_of

Past = Literal["events", "history", "accounting"]
Action = Literal["submit", "withdraw", "logs", "status", "operate"] | Past


class PermissionDenied(AstrariumError):
    """Somebody asked for what only others may do."""


class AccessSection(msgspec.Struct, frozen=True):
    """Operators, and the users of each team; `@name` stands for all of a Unix group. *status*: whether
    everybody sees all apps, or those of the own teams."""

    operators: tuple[str, ...] = ()
    teams: dict[str, tuple[str, ...]] = {}
    status: Literal["all", "team"] = "all"


class Identity(NamedTuple):
    """A user, with the Unix groups that the user is in on the machine of the arbiter."""

    user: str
    groups: frozenset[str] = frozenset()

    def among(self, names: tuple[str, ...]) -> bool:
        return self.user in names or any(f"@{group}" in names for group in self.groups)


def teams_of(access: AccessSection, who: Identity) -> list[str]:
    return [team for team, users in access.teams.items() if who.among(users)]


def allowed(access: AccessSection, who: Identity, action: Action, team: str) -> None:
    """Raise PermissionDenied unless somebody may do this with an app of a team."""
    if who.among(access.operators) or (action == "status" and access.status == "all"):
        return
    mine = teams_of(access, who)
    if action != "operate" and team in mine:
        return
    may = f"is in {', '.join(mine)}" if mine else "is in no team"
    about = f"for the team {team!r}" if team else "for an app of no team"
    needs = "an operator" if action == "operate" else f"an operator or a user of it: {who.user} {may}"
    raise PermissionDenied(f"{action} {'' if action == 'operate' else f'{about} '}needs {needs}")


def sees(access: AccessSection, who: Identity, team: str) -> bool:
    """Return whether somebody may know of the apps of a team."""
    return access.status == "all" or who.among(access.operators) or team in teams_of(access, who)


def chosen_team(access: AccessSection, who: Identity, named: str) -> str:
    """Return the team of an app that is submitted: the only team of its user, where none is named."""
    mine = teams_of(access, who)
    seen = [team for team in access.teams if sees(access, who, team)]
    if named and named not in seen:
        raise InputError("team", named, one_of(seen, named) if seen else f"none: {who.user} is in no team")
    if named or who.among(access.operators):
        return named
    if len(mine) > 1:
        raise InputError("team", None, f"one of {', '.join(mine)}: {who.user} is in several")
    return mine[0] if mine else ""
