"""This package handles the kernel gate from outside: where it is, how a program comes under it, and what its
board shows.

The gate itself is a preloaded C library (native/gate). Nothing here is needed while a program runs; only
`marked`, `request_end` and `phase_end` are for programs that want to say more than their launches do.
"""

from __future__ import annotations

from astrarium.gate.marking import marked, phase_end, request_end

__all__ = ["marked", "phase_end", "request_end"]
