"""Ray Tune meets our searches here: its searchers, trainables, spaces and resource allocation.

from astrarium.tuning.ray_tune import fit, resource_changing

result = fit(MyTrainable, {"rate": tune.loguniform(0.001, 1)}, metric="loss", gpus=2)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astrarium.tuning.ray_tune.allocation import Allocation, resource_changing
    from astrarium.tuning.ray_tune.fitting import fit

__all__ = ["Allocation", "fit", "resource_changing"]

_HOMES = {"Allocation": "allocation", "fit": "fitting", "resource_changing": "allocation"}


if not TYPE_CHECKING:  # type checkers see the imports above, and no other names

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
