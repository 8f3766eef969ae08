"""Hooks tell others what happens on a live cluster: a command is run, or a URL is called, for each event.

Every hook has a thread that reads events from the store, behind its own cursor: events that are written are
its queue. The arbiter keeps the cursor from time to time, so that after a death events are delivered again
rather than not at all; each has an id by which receivers know it. The arbiter never waits for a hook.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from astrarium.cluster.live.store import FILE, Store, open_database, rows
from astrarium.cluster.live.watching.events import ClusterEvent
from astrarium.cluster.live.watching.history import moment
from astrarium.core.quantities import FOREVER, SECOND, Time

KINDS: dict[str, tuple[str, ...]] = {  # the events that each word of `on` stands for
    "submit": ("submitted",),
    "start": ("started",),
    "resume": ("resumed",),
    "preempt": ("preempted",),
    "end": ("finished", "failed", "withdrawn"),
    "fail": ("failed",),
    "machine": ("machine_joined", "machine_lost"),
    "gpu": ("gpu_failed", "gpu_repaired"),
    "trouble": ("trouble",),
    "wait": ("arbiter_waits", "arbiter_goes_on"),
}
MOST_PENDING = 1000  # events for one hook: of more, the oldest are dropped
LOOK = 0.3  # seconds between looks for new events
FLUSH = 10.0  # seconds that deliveries have when the arbiter leaves
KEY = "hooks"  # where the store keeps how far they are


class Hook(NamedTuple):
    """A *command*, run in a *directory*, or a *url*. *timeout* of one try in seconds, *retries* after it."""

    name: str
    on: tuple[str, ...]
    command: tuple[str, ...] = ()
    url: str = ""
    directory: str = "."
    timeout: float = 10.0
    retries: int = 3

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind for word in self.on for kind in KINDS[word]))

    @property
    def id(self) -> str:
        """Return what it is known by over the lives of arbiters; the URL may hold a secret."""
        return hashlib.sha256(repr((self.command, self.url, self.on)).encode()).hexdigest()[:16]


def named(place: int, command: Sequence[str], url: str) -> str:
    """Return how a hook is called where people see it, without what a URL may hide."""
    return f"{place} {urlsplit(url).hostname if url else Path(command[0]).name}"


class HookProgress(msgspec.Struct):
    """How far a hook is: all events up to the *cursor* were delivered, given up (*failed*) or *dropped*."""

    name: str = ""
    cursor: int = 0
    delivered: int = 0
    failed: int = 0
    dropped: int = 0
    error: str = ""


def progress_of(text: str | None) -> dict[str, HookProgress]:
    return msgspec.json.decode(text, type=dict[str, HookProgress]) if text else {}


class DeliveryFailed(Exception):
    """A try to deliver an event has failed."""


def run_command(hook: Hook, event: Mapping[str, Any]) -> None:
    """Run the command of a hook with an event as JSON on its standard input."""
    variables = {"EVENT": "event", "EVENT_ID": "id", "APP": "name", "TEAM": "team", "REASON": "reason"}
    env = {**os.environ, **{f"ASTRARIUM_{name}": str(event[field]) for name, field in variables.items()}}
    try:
        with tempfile.TemporaryFile() as errors:  # no pipe, which others could hold open after its end
            child = subprocess.Popen(
                hook.command, cwd=hook.directory, env=env, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
            _waited(hook, child, msgspec.json.encode(event) + b"\n")
            if child.returncode:
                errors.seek(0)
                last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
                raise DeliveryFailed(", ".join([f"exit code {child.returncode}", *last]))
    except OSError as error:
        raise DeliveryFailed(str(error)) from error


def _waited(hook: Hook, child: subprocess.Popen[bytes], body: bytes) -> None:
    with child:
        try:
            child.communicate(body, hook.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise DeliveryFailed(f"it took longer than {hook.timeout:g} s") from None


def call_url(hook: Hook, event: Mapping[str, Any]) -> None:
    """Post an event as JSON to the URL of a hook."""
    headers = {"Content-Type": "application/json", "X-Astrarium-Event-Id": str(event["id"])}
    request = urllib.request.Request(hook.url, msgspec.json.encode(event), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=hook.timeout) as answer:
            answer.read(1)
    except (OSError, HTTPException) as error:
        raise DeliveryFailed(str(error)) from error


class HookThread:
    """It delivers events to one hook, in order, so that a slow one holds up no other. *origin* names the
    cluster in the ids of events."""

    def __init__(self, hook: Hook, home: Path, progress: HookProgress, origin: int, pause: float) -> None:
        self.hook = hook
        self.progress = progress
        self._pause = pause
        self.news: deque[tuple[str, str]] = deque(maxlen=100)  # what is to be said of it, if anybody can
        self._home = home
        self._origin = origin
        self._closing = Event()
        self._given_up = Event()
        self._thread = Thread(target=self._run, daemon=True, name=f"hook {hook.name}")
        self._thread.start()

    def close(self, until: float) -> bool:
        """Deliver what is there until then; return whether all was."""
        self._closing.set()
        self._thread.join(max(0.0, until - time.monotonic()))
        self._given_up.set()
        return not self._thread.is_alive()

    def _run(self) -> None:
        with closing(open_database(self._home / FILE, read_only=True)) as db:
            while not self._given_up.is_set():
                last = self._closing.is_set()  # before the look: what was written until then is delivered
                try:
                    pending = self._pending(db)
                except sqlite3.Error as error:  # of the disk: the next look may find it well again
                    pending = []
                    self.progress.error = str(error)
                if not self._deliver_all(pending) and (last or self._given_up.wait(LOOK)):
                    return

    def _pending(self, db: Any) -> list[dict[str, Any]]:
        marks = ", ".join("?" * len(self.hook.kinds))
        query = f"SELECT * FROM events WHERE id > ? AND kind IN ({marks}) ORDER BY id"
        pending = rows(db, query, self.progress.cursor, *self.hook.kinds)
        dropped = pending[:-MOST_PENDING]
        if dropped:
            self.progress.dropped += len(dropped)
            self.progress.cursor = dropped[-1]["id"]
            self.news.append(
                ("hook_dropped", f"{len(dropped)} events: more than {MOST_PENDING} were waiting")
            )
        return pending[-MOST_PENDING:]

    def _deliver_all(self, events: Sequence[dict[str, Any]]) -> bool:
        for event in events:
            if self._given_up.is_set():
                break
            self._deliver(event)
        return bool(events)

    def _deliver(self, event: dict[str, Any]) -> None:
        """Try until it is delivered, or has failed too often; then go on with the next."""
        body = payload(event, self._origin)
        progress = self.progress
        for wait in (*(self._pause * 2**n for n in range(self.hook.retries)), None):
            try:
                (call_url if self.hook.url else run_command)(self.hook, body)
            except DeliveryFailed as error:
                progress.error = str(error)
                if wait is None:
                    progress.failed += 1
                    self.news.append(("hook_failed", f"event {body['event']} of {body['name']}: {error}"))
                elif self._given_up.wait(wait):
                    return  # the next arbiter delivers it
            else:
                progress.delivered += 1
                break
        progress.cursor = event["id"]


def payload(event: Mapping[str, Any], origin: int) -> dict[str, Any]:
    """Return what receivers get. The same event has the same id, however often it comes."""
    reason = f": {event['reason']}" if event["reason"] else ""
    return {
        "id": f"{origin:x}-{event['id']}",
        "event": event["kind"],
        "time": moment(event["wall"]).isoformat(),
        **{field: event[field] for field in ("name", "team", "reason", "cause")},
        "gpus": msgspec.json.decode(event["gpus"]),
        "text": f"{event['name']} {event['kind']}{reason}",
    }


class Hooks:
    """All hooks of an arbiter, which keeps how far they are and says what went wrong."""

    def __init__(self, home: Path, store: Store, hooks: Sequence[Hook], pause: float = 1.0) -> None:
        before = progress_of(store.get(KEY))
        newest = store.newest_event()
        origin = int(store.get("origin"))
        self.threads = [
            HookThread(hook, home, before.get(hook.id) or HookProgress(cursor=newest), origin, pause)
            for hook in hooks
        ]
        for thread in self.threads:
            thread.progress.name = thread.hook.name
        self._store = store
        self._kept = b""
        self._kept_at = -FOREVER
        self.keep(-SECOND)  # a hook that is new is so once

    def keep(self, now: Time) -> None:
        """Write how far they are, no more often than once a second, and tell what went wrong."""
        progress = msgspec.json.encode({thread.hook.id: thread.progress for thread in self.threads})
        if progress != self._kept and now - self._kept_at >= SECOND:
            self._kept = progress
            self._kept_at = now
            self._store.put(KEY, progress.decode())
        for thread in self.threads:
            while thread.news:
                kind, reason = thread.news.popleft()
                self._store.tell(ClusterEvent(now, kind, f"hook {thread.hook.name}", reason=reason))

    def close(self, now: Callable[[], Time]) -> int:
        """Give deliveries a last moment; return how many hooks leave some to the next arbiter."""
        until = time.monotonic() + FLUSH
        left = sum(not thread.close(until) for thread in self.threads)
        self._kept_at = -FOREVER
        self.keep(now())
        return left
