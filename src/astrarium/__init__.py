"""Astrarium schedules deep-learning work on GPUs: one policy, simulated, live and replayed.

    import astrarium

    run = astrarium.simulate("scenario.yaml", policy="eager", seed=3)
    print(run, run.requests["latency_s"].mean())

Importing the package is cheap on purpose: every heavy part loads when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astrarium.api.planning import Goodput, Plan, goodput, plan
    from astrarium.api.runs import Replay, compare, replay, simulate
    from astrarium.api.scenarios import load
    from astrarium.api.serving import Server, ServerError, serve
    from astrarium.core.choice import Choice
    from astrarium.core.errors import AstrariumError, InputError
    from astrarium.core.level import Scenario
    from astrarium.core.policy import Policy
    from astrarium.run.results import Comparison, Run
    from astrarium.run.rows import Table
    from astrarium.tuning.live.training.forms import report, resumed
    from astrarium.tuning.live.tune import tune
    from astrarium.tuning.live.tuned import Tuned

__version__ = "0.2.0"

__all__ = [
    "AstrariumError",
    "Choice",
    "Comparison",
    "Goodput",
    "InputError",
    "Plan",
    "Policy",
    "Replay",
    "Run",
    "Scenario",
    "Server",
    "ServerError",
    "Table",
    "Tuned",
    "__version__",
    "compare",
    "goodput",
    "load",
    "plan",
    "replay",
    "report",
    "resumed",
    "serve",
    "simulate",
    "tune",
]

_HOMES = {
    "api.planning": ("Goodput", "Plan", "goodput", "plan"),
    "api.runs": ("Replay", "compare", "replay", "simulate"),
    "api.scenarios": ("load",),
    "api.serving": ("Server", "ServerError", "serve"),
    "core.choice": ("Choice",),
    "core.errors": ("AstrariumError", "InputError"),
    "core.level": ("Scenario",),
    "core.policy": ("Policy",),
    "run.results": ("Comparison", "Run"),
    "run.rows": ("Table",),
    "tuning.live.training.forms": ("report", "resumed"),
    "tuning.live.tune": ("tune",),
    "tuning.live.tuned": ("Tuned",),
}


if not TYPE_CHECKING:  # type checkers see the imports above, and no other names

    def __getattr__(name: str) -> Any:
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(f"astrarium.{home}"), name)
        raise AttributeError(f"module 'astrarium' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
