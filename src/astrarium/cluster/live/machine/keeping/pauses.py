"""How long a keeper and its runner pause between looks, and between tries of what fails for want of room."""

from __future__ import annotations

TICK = 0.05  # seconds between looks
SELDOM = 1.0  # seconds between tries of what fails for want of room
