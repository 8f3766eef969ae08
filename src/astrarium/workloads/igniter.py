"""iGniter's profile of four models on a V100: AlexNet, ResNet50, VGG19 and SSD.

As measured by Xu et al. and published in their repository icloud-ecnu/igniter; the file says in which units.
`scenario.colocation` makes coefficients of it.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

SOURCE = "igniter.json"


def profile() -> Any:
    """Plain data: what it means is for those who fit it."""
    return json.loads(files("astrarium.workloads").joinpath(SOURCE).read_text(encoding="utf-8"))
