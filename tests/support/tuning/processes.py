"""The processes of a local backend."""

from __future__ import annotations

from astrarium.tuning.live.local import LocalTrialBackend


def pids_of(backend: LocalTrialBackend) -> list[int]:
    """The process ids of the slots that are up."""
    return [slot.pid for slot in backend._local._slots.values() if slot.pid]
