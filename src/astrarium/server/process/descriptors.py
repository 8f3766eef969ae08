"""Descriptors: each connection takes one, and so does nearly everything else that a server does."""

from __future__ import annotations

import logging
import resource

from astrarium.core.errors import InputError

_MOST = 1 << 20  # where the hard limit is without end: more clients than that are not for one process
_KEPT = 32  # for workers that start again and files that are written; no client gets these
# what a server itself has open: 32 with 2 workers and 1 thread
_OWN = 20
_BY_WORKER = 4
_BY_THREAD = 8
log = logging.getLogger(__name__)


def limit_of_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else _MOST


def most_descriptors() -> int:
    """Return the descriptor from which on a connection is turned away.

    A new one gets the smallest that is free. Twin of `most_descriptors` in native/common/descriptors.h.
    """
    limit = limit_of_descriptors()
    return limit - min(_KEPT, limit // 8)


def raise_limit() -> None:
    """Raise the limit of descriptors as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check_descriptors(workers: int, threads: int, calls: int) -> None:
    """Refuse a limit with which no client could be served; warn of one below the calls that may be open."""
    own = _OWN + _BY_WORKER * workers + _BY_THREAD * threads
    limit = limit_of_descriptors()
    clients = most_descriptors() - own
    if clients < 1:
        expected = f"at least {own * 8 // 7 + 2} for {workers} workers and {threads} network threads"
        raise InputError("ulimit -n", limit, f"{expected}, and one more for each client")
    if clients < calls:
        log.warning(
            "ulimit -n is %d: about %d clients can be connected, and server.queue lets %d calls be open; "
            "raise it to %d or more",
            limit,
            clients,
            calls,
            own + calls + _KEPT,
        )
