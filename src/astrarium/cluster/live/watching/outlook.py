"""An app that waits has an outlook: its place in line, its start, and for whom free GPUs are held."""

from __future__ import annotations

from typing import NamedTuple

from astrarium.cluster.explain import AppView, ClusterView
from astrarium.cluster.live.watching.forecast import Forecast
from astrarium.core.quantities import Time, to_seconds


class Outlook(NamedTuple):
    """*place* of *in_line* who want GPUs, as the policy has them, or by when they start. *how* the start is
    known: `simulated` ahead; `not before`, where that was broken off; or from when `leases` end."""

    place: int | None = None
    in_line: int = 0
    start: Time | None = None
    how: str | None = None
    held: str = ""

    @property
    def seconds(self) -> float | None:
        return None if self.start is None else to_seconds(self.start)


def outlook(app_view: AppView | None, overview: ClusterView, ahead: Forecast | None) -> Outlook:
    if app_view is None or not app_view.wants:
        return Outlook()
    line = [app for app, _ in overview.standing] if overview.standing is not None else _by_start(ahead)
    place = line.index(app_view.app) + 1 if app_view.app in line else None
    if app_view.running:
        return Outlook(place, len(line))
    start, how = _start(app_view.app, overview, ahead)
    return Outlook(place, len(line), start, how, _held(app_view, overview, ahead))


def _by_start(ahead: Forecast | None) -> list[int]:
    return sorted(ahead.starts, key=lambda app: ahead.starts[app]) if ahead else []


def _start(app: int, overview: ClusterView, ahead: Forecast | None) -> tuple[Time | None, str | None]:
    if ahead is not None and app in ahead.starts:
        return max(ahead.starts[app], overview.at), "simulated"
    at = overview.expected.get(app)
    if ahead is not None and app in ahead.later and (at is None or at < ahead.until):
        return ahead.until, "not before"
    return (None, None) if at is None else (max(at, overview.at), "leases")


def _held(app_view: AppView, overview: ClusterView, ahead: Forecast | None) -> str:
    """Return for whom GPUs are held that would be enough for this app: for those who are given them next."""
    if ahead is None or overview.free < app_view.needs or app_view.app in ahead.heirs.values():
        return ""
    heirs = [overview.apps[app] for app in dict.fromkeys(ahead.heirs.values()) if app in overview.apps]
    holders = [
        f"{heir.name}, which needs {max(1, heir.needs)}{' together' * (heir.needs > 1)}" for heir in heirs
    ]
    return f", and held for {' and '.join(holders)}" if holders else ""
