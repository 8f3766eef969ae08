"""Where things of the repository are, for tests anywhere in it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
