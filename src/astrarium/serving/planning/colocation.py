"""iGniter's coefficients of models that share a GPU, fitted to a profile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from astrarium.core.decode import Decoder
from astrarium.core.errors import read_from
from astrarium.placement.igniter.fitting import fit_gpu, fit_models
from astrarium.placement.igniter.model import GpuTraits, ModelTraits
from astrarium.placement.igniter.profile import SOURCE, IgniterProfile, shipped_profile


class Colocation(msgspec.Struct, frozen=True):
    """Coefficients of iGniter's model are fitted for a kind of GPU, and for models on it by name."""

    gpu: GpuTraits
    models: Mapping[str, ModelTraits]


@cache
def v100() -> Colocation:
    """Return iGniter's coefficients from the profile that comes along."""
    return fitted(shipped_profile(), SOURCE)


def fitted(raw: Any, source: str) -> Colocation:
    """Return the coefficients from a profile in the form of `placement/igniter.json`."""
    with read_from(source):
        profile = Decoder().decode_struct(IgniterProfile, raw, "")
        return Colocation(fit_gpu(profile.gpu), fit_models(profile))
