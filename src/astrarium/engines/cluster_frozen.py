"""A policy with all that it remembers, as bytes.

What it remembers may point into the books: to rows of apps, to the machines. Those are named, not copied, so
that a policy which is thawed beside the same books points into them again.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from astrarium.cluster.ledger import AppRow
from astrarium.cluster.state import ClusterState

Name = tuple[Any, ...]


class _Freezer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, state: ClusterState) -> None:
        super().__init__(file)
        self._names: dict[int, Name] = {id(state): ("state",)}
        for name, value in vars(state).items():
            if isinstance(value, dict | set | list) or hasattr(value, "__dict__"):
                self._names[id(value)] = ("part", name)
        for app, row in state.apps.items():
            self._names[id(row.jobs)], self._names[id(row.leases)] = ("jobs", app), ("leases", app)
            self._names.update({id(job): ("job", app, number) for number, job in row.jobs.items()})
        self._rows = state.ledger.rows

    def persistent_id(self, found: Any) -> Name | None:
        if isinstance(found, AppRow):
            app = found.app.id
            return ("row", app) if self._rows.get(app) is found else None
        return self._names.get(id(found))


class _Thawer(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, state: ClusterState) -> None:
        super().__init__(file)
        self._state = state

    def persistent_load(self, name: Name) -> Any:
        kind, *rest = name
        if kind == "state":
            return self._state
        if kind == "part":
            return getattr(self._state, rest[0])
        row = self._state.ledger.rows[rest[0]]
        if kind == "row":
            return row
        return row.jobs[rest[1]] if kind == "job" else getattr(row, kind)


def frozen(policy: object, state: ClusterState) -> bytes | None:
    """None where a stranger's policy holds what cannot be kept."""
    file = io.BytesIO()
    try:
        _Freezer(file, state).dump(policy)
    except Exception:
        return None
    return file.getvalue()


def thawed(found: bytes | None, state: ClusterState) -> Any:
    """None where there is nothing, or it is of another version and cannot be read."""
    if found is None:
        return None
    try:
        return _Thawer(io.BytesIO(found), state).load()
    except Exception:
        return None
