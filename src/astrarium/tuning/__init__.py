"""Trials of a search share GPUs: small ones are packed on fractions of one, long ones spread over several.

What a search from Python needs stands here (`astrarium.tune`, `tuning.optuna`, `tuning.ray_tune`): what a
training is made of, options, and every search and policy, to be configured by keywords:

    from astrarium.tuning import DynamicFluid, Hyperband

    astrarium.tune(build, space, search=Hyperband(iterations=81), policy=DynamicFluid(packed=2))
"""

from importlib import import_module
from re import sub
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astrarium.core.choice import Registered
    from astrarium.tuning.live.live_options import Live
    from astrarium.tuning.live.training.workers import Build, Emulated, Training, Workers
    from astrarium.tuning.live.training.workers import current_workers as workers
    from astrarium.tuning.live.tune import tune
    from astrarium.tuning.live.tuned import Best, Tuned
    from astrarium.tuning.optuna.objective import iterations

    Asha: Registered
    Astrarium: Registered
    Bohb: Registered
    DynamicFluid: Registered
    Fifo: Registered
    Grid: Registered
    Hyperband: Registered
    Pbt: Registered
    Random: Registered
    StaticFluid: Registered
    SuccessiveHalving: Registered
    SyncBohb: Registered

__all__ = [
    "Asha",
    "Astrarium",
    "Best",
    "Bohb",
    "Build",
    "DynamicFluid",
    "Emulated",
    "Fifo",
    "Grid",
    "Hyperband",
    "Live",
    "Pbt",
    "Random",
    "StaticFluid",
    "SuccessiveHalving",
    "SyncBohb",
    "Training",
    "Tuned",
    "Workers",
    "iterations",
    "tune",
    "workers",
]

_HOMES = {
    "live.training.workers": ("Build", "Emulated", "Training", "Workers"),
    "live.live_options": ("Live",),
    "live.tune": ("tune",),
    "live.tuned": ("Best", "Tuned"),
    "optuna.objective": ("iterations",),
}


if not TYPE_CHECKING:  # type checkers see the imports above, and no other names

    def __getattr__(name: str) -> Any:
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(f"{__name__}.{home}"), name)
        if name == "workers":
            return import_module(f"{__name__}.live.training.workers").current_workers
        if name in __all__:
            return _registered(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _registered(name: str) -> Any:
    """Return the search or the policy of a class name: SyncBohb is registered as sync-bohb."""
    from astrarium.core.choice import Registered
    from astrarium.tuning.policies import searches, tuning_policies

    written = sub("(?<!^)(?=[A-Z])", "-", name).lower()
    registry: Any = searches if written in searches.names() else tuning_policies
    return Registered(registry, written)
