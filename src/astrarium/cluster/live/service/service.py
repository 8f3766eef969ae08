"""The arbiter answers those who submit, withdraw and look: over a socket in its state folder, or a network.

Messages are left in the store, as by somebody who may write the folder; here it is known whom they are from,
and whether that user may do it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from astrarium.cluster.live import limits
from astrarium.cluster.live.access import (
    AccessSection,
    Action,
    Identity,
    Past,
    allowed,
    chosen_team,
    sees,
    teams_of,
)
from astrarium.cluster.live.backends.hosts.messages import LogPiece
from astrarium.cluster.live.limits import check_size
from astrarium.cluster.live.service.client import Answer, AppQuestion, Ask, GpuQuestion, LogsQuestion
from astrarium.cluster.live.service.hidden_names import HiddenNames
from astrarium.cluster.live.service.identities import identity
from astrarium.cluster.live.service.state_folder import StateFolder, check_app
from astrarium.cluster.live.watching.history import PastQuery
from astrarium.cluster.live.wire.channel import Channel, WireError
from astrarium.cluster.live.wire.connections import IDLE
from astrarium.core.decode import Decoder
from astrarium.core.errors import AstrariumError, InputError

LONGEST_WAIT = 600.0  # seconds that an answer of the arbiter is waited for


Q = TypeVar("Q", bound=msgspec.Struct)


def _read(kind: type[Q], ask: Ask) -> Q:
    body = ask.logs() if kind is LogsQuestion else ask.plain()
    return Decoder().decode_struct(kind, body, ask.kind)


class Service:
    """It answers users over a socket or the network, as far as they may know. Without *access* whoever
    reaches its socket may do all. *bring_logs* brings the logs of an app, by its folder, from where it runs.
    """

    def __init__(
        self,
        home: Path,
        access: AccessSection | None = None,
        bring_logs: Callable[[str, float], None] = lambda app, seconds: None,
    ) -> None:
        self._home = home
        self._access = access
        self._bring_logs = bring_logs
        self._turns = limits.Turns(1)
        self._log_turns = limits.Turns(limits.MOST_LOGS_AT_ONCE)
        self._hourly = limits.Hourly("bytes of messages", limits.MOST_HOURLY)

    def is_operator(self, name: str) -> bool:
        """Return whether somebody may do all, and has a reserved place."""
        return self._access is None or identity(name).among(self._access.operators)

    def serve(self, channel: Channel, name: str) -> None:
        who = identity(name)
        while True:
            channel.deadline = time.monotonic() + IDLE
            ask: Ask = channel.receive(Ask, limits.LARGEST_QUESTION)
            try:
                self._answer(channel, who, ask)
            except WireError:
                raise
            except Exception as error:  # whatever was asked, others and the next question are answered
                reason = str(error) if isinstance(error, AstrariumError | OSError | sqlite3.Error) else ""
                channel.send(Answer((reason or type(error).__name__)[: limits.LONGEST_ANSWER]))

    def refuse(self, channel: Channel, why: str) -> None:
        """Answer whatever somebody asks first with an error."""
        channel.receive(Ask, limits.LARGEST_QUESTION)
        channel.send(Answer(why))

    def _answer(self, channel: Channel, who: Identity, ask: Ask) -> None:
        folder = StateFolder(self._home, who.user, channel.gone)
        match ask.kind:
            case "app" | "withdraw" | "drain" | "retry":
                with self._turns.of(who.user):
                    message = self._left(folder, who, ask)
                channel.send(Answer(body=folder.answer(message, _wait(ask))))
            case "logs":
                with self._log_turns.of(who.user):
                    wanted = _read(LogsQuestion, ask)
                    app = self._known_app(folder, who, "logs", wanted.app)
                    self._send_logs(channel, folder, app, wanted.have)
            case _:
                with self._turns.of(who.user):
                    channel.send(Answer(body=self._lookup(folder, who, ask)))

    def _lookup(self, folder: StateFolder, who: Identity, ask: Ask) -> Any:
        """Return what somebody wants to know."""
        match ask.kind:
            case "status":
                return self._seen(folder, who)
            case "story":
                app = self._known_app(folder, who, "status", _read(AppQuestion, ask).app)
                return self._story(folder, who, app)
            case "events" | "history" | "accounting":
                return self._past(folder, who, ask.kind, ask.plain())
        known = "app, withdraw, drain, retry, status, story, events, history, accounting or logs"
        raise InputError("kind", ask.kind, known)

    def _left(self, folder: StateFolder, who: Identity, ask: Ask) -> int:
        """Leave a message for the arbiter; its disk keeps what comes of it, so nobody leaves very many."""
        body = self._message(folder, who, ask)
        if not self.is_operator(who.user):
            self._hourly.take(who.user, len(ask.body) + limits.OVERHEAD)
        return folder.leave(ask.kind, body)

    def _message(self, folder: StateFolder, who: Identity, ask: Ask) -> dict[str, Any]:
        """Return what is left for the arbiter, if somebody may ask for it."""
        if ask.kind == "app":
            return self._submitted(who, ask.plain())
        if ask.kind == "withdraw":
            return {"app": self._known_app(folder, who, "withdraw", _read(AppQuestion, ask).app)}
        if self._access is not None:
            allowed(self._access, who, "operate", "")
        body: dict[str, Any] = msgspec.to_builtins(_read(GpuQuestion, ask))
        return body

    def _submitted(self, who: Identity, body: dict[str, Any]) -> dict[str, Any]:
        check_size(body, "app")
        if self._access is None:
            return body
        team = body.get("team") or ""
        if not isinstance(team, str):
            raise InputError("team", team, "text")
        team = chosen_team(self._access, who, team)
        allowed(self._access, who, "submit", team)
        return {**body, "team": team}

    def _known_app(self, folder: StateFolder, who: Identity, action: Action, app: str) -> str:
        """Return the name of an app, if somebody may do this with it. Of an app that one may not see nobody
        can tell whether it exists."""
        teams = folder.teams()
        visible = self._names(folder, who)
        check_app("APP", app, [name for name in teams if name in visible])
        if self._access is not None:
            allowed(self._access, who, action, teams[app])
        return app

    def _seen(self, folder: StateFolder, who: Identity) -> dict[str, Any]:
        """Return the status, with the apps that somebody may see; hooks are for operators."""
        seen = folder.status()
        access = self._access
        if access is None or who.among(access.operators):
            return seen
        seen["hooks"] = []
        if access.status == "all":
            return seen
        mine = teams_of(access, who)
        status = seen["status"]
        shown = [app for app in status["apps"] if app["team"] in mine]
        names = {app["app"] for app in shown}
        hiding = self._hiding(folder, who)
        for machine in status["machines"]:
            held = machine["held"].items()
            machine["held"] = {gpu: name if name in names else "another team" for gpu, name in held}
        for app in shown:
            app["why"] = hiding.hidden(app["why"])
        return {**seen, "status": {**status, "apps": shown}}

    def _past(self, folder: StateFolder, who: Identity, kind: Past, body: dict[str, Any]) -> list[Any]:
        """Return the past of the teams of somebody; operators see all."""
        query = Decoder().decode(PastQuery, body, kind)
        access = self._access
        if access is None or who.among(access.operators):
            return folder.past(kind, query)
        teams = query.teams or tuple(teams_of(access, who))
        for team in teams or ("",):
            allowed(access, who, kind, team)
        rows = folder.past(kind, msgspec.structs.replace(query, teams=teams))
        if kind == "events" and access.status == "team":
            hiding = self._hiding(folder, who)
            for row in rows:
                row["reason"] = hiding.hidden(row["reason"])
        return rows

    def _story(self, folder: StateFolder, who: Identity, app: str) -> dict[str, Any]:
        story = folder.story(app)
        hiding = self._hiding(folder, who)
        for decision in story["decisions"]:
            decision["why"] = hiding.hidden(decision["why"] or "")
        return story

    def _hiding(self, folder: StateFolder, who: Identity) -> HiddenNames:
        """Return what takes the names out of reasons that somebody may not see: of apps of others, if the
        status is each team's own."""
        return HiddenNames(folder.teams().keys() - self._names(folder, who))

    def _names(self, folder: StateFolder, who: Identity) -> set[str]:
        """Return the names of the apps that somebody may see."""
        access = self._access
        return {n for n, team in folder.teams().items() if access is None or sees(access, who, team)}

    def _send_logs(self, channel: Channel, folder: StateFolder, app: str, have: Mapping[str, int]) -> None:
        name, _, ended = folder.app_folder(app)
        self._bring_logs(name, 10.0)
        head, pieces = folder.logs(app, have)
        channel.send(Answer(body=(ended, head.several)))
        for piece in pieces:
            channel.send(piece)
        channel.send(LogPiece())


def _wait(ask: Ask) -> float:
    return max(0.0, min(LONGEST_WAIT, ask.wait))  # in this order it is 0 for what is no number
