"""What every policy of every level decides, as digests. `recorded.json` holds those that must not change.

Who changes decisions on purpose writes it again, and says in the commit who decides otherwise and why:

    python -m tests.support.decisions > tests/support/decisions/recorded.json

A digest is over every action of a run with its instant, in order; of the native simulators, which keep no
actions, over every batch and every request. It holds values only: names of classes, of timers and of modules,
and words for people, may change as they like.

Runs whose decisions hang on the last bit of a sum are not among them: Python 3.12 adds floats more exactly
than 3.11 does, and `astrarium` for tuning, `optimus` and `slaq` now and then decide otherwise there.
"""

from __future__ import annotations

from tests.support.decisions import cluster, device, placement, serving, tuning
from tests.support.decisions.digests import Case


def cases() -> list[Case]:
    return [case for level in (serving, device, tuning, cluster, placement) for case in level.cases()]
