"""The same examples on every run, as `tests` has them, and none that fails because the machine is busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
