"""What policies decide on scenarios of the papers, as digests; `tests/support/decisions` says what those are.

Who changes decisions on purpose writes them again:

    python -m papers.tests.decisions > papers/tests/decisions/recorded.json
"""

from __future__ import annotations

from papers.tests.decisions import gate, placement
from tests.support.decisions.digests import Case


def cases() -> list[Case]:
    return [*gate.cases(), *placement.cases()]
