"""What recorded scenarios share.

All is said that has a default, the seed too: a changed default is no changed decision.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
SEED = ["seed=1"]


def one_of(draw: Random, *values: Any) -> Any:
    return values[draw.randrange(len(values))]
