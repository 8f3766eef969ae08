"""Optuna meets our searches here: its samplers draw for us, its objectives train with us.

from astrarium.tuning.optuna import iterations, optimize

result = optimize(study, objective, gpus=2)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astrarium.tuning.optuna.objective import iterations
    from astrarium.tuning.optuna.study import optimize

__all__ = ["iterations", "optimize"]


_HOMES = {"iterations": "objective", "optimize": "study"}


if not TYPE_CHECKING:  # type checkers see the imports above, and no other names

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
