"""A scenario's search, live: on the GPUs of this machine, on emulated ones, or on a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from astrarium.core.units import SECOND
from astrarium.tuning.live.memory import LiveOptions
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.report.tables import LINE, configuration, last_line
from astrarium.tuning.samplers import Standing
from astrarium.tuning.scenario.read import TuningScenario
from astrarium.tuning.scenario.samplers import sampler_of
from astrarium.tuning.session import Session
from astrarium.tuning.state import Outcome, TuningState

# How a live search is doing: one line that changes where somebody watches, a line now and then where not.


SELDOM = 10.0  # seconds between lines of a log
MOST_FAILURES = 5  # that are told one by one


class Live(Protocol):
    """What a run shows of itself."""

    session: Session
    state: TuningState


class Progress:
    """*show* is called with the live run after each of its steps. Better ones are told at once."""

    def __init__(self, label: str) -> None:
        self._label, self._due = label, 0.0
        self._began: float | None = None  # when the first step was over: processes take a while to come up
        self._told = self._failed = 0  # best ones, and failed ones, so far
        self._console: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        if self._console is not None:
            self._console.stop()

    def show(self, live: Live) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = now
            self._begin()
        seconds = now - self._began
        self._tell_failures(live, seconds)
        for best in live.session.best[self._told :]:
            values = live.session.candidates[best.candidate].configuration.values
            self._say(
                f"{seconds:8.1f}s  best {best.value:.5g}, candidate {best.candidate}: {configuration(values)}"
            )
        self._told = len(live.session.best)
        if self._console is not None:
            self._console.update(f"{self._label}: {seconds:.0f} s, {line(live)}")
        elif seconds >= self._due:
            self._due = seconds + SELDOM
            self._say(f"{seconds:8.1f}s  {line(live)}")

    def _begin(self) -> None:
        """Not before there is something to show: the start tells of itself."""
        if sys.stderr.isatty():
            from rich.console import Console

            self._console = Console(stderr=True).status(self._label)
            self._console.start()

    def _tell_failures(self, live: Live, seconds: float) -> None:
        """The first few: whoever watches may want to stop, and mend something."""
        failed = [each for each in live.session.candidates.values() if each.standing is Standing.FAILED]
        for each in failed[self._failed : MOST_FAILURES]:
            self._say(f"{seconds:8.1f}s  candidate {each.number} failed: {last_line(each.reason, LINE)}")
        self._failed = len(failed)

    def _say(self, text: str) -> None:
        if self._console is not None:
            self._console.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)


def line(live: Live) -> str:
    """Trials done, running and waiting; iterations; GPUs that are held; the best so far."""
    state, session = live.state, live.session
    rows = list(state.ledger.rows.values())
    done = sum(row.outcome is not Outcome.OPEN for row in rows)
    busy = sum((1 - state.strips.room(gpu) for gpu in state.strips.holders), start=0)
    iterations = sum(row.done for row in rows)
    best = f"best {session.best[-1].value:.5g}" if session.best else "no value yet"
    return (
        f"trials {done} done, {len(state.running())} running, {len(state.waiting())} waiting; "
        f"{iterations} iterations; {float(busy):.3g} of {state.gpus} GPUs held; {best}"
    )


def run_live(
    scenario: TuningScenario, folder: Path | None, resume: bool, progress: Callable[[Any], None]
) -> TuningRecord:
    """*folder* keeps checkpoints and results, and *resume* goes on with what is there."""
    from astrarium.tuning.live.run import SearchSpec, run_local, run_with
    from astrarium.tuning.live.training import Emulated

    assert scenario.train is not None
    build: str = scenario.train
    spec = SearchSpec(
        space=scenario.space,
        search=scenario.search,
        search_settings=scenario.search_settings,
        sampler=sampler_of(scenario.sampler, scenario.space, scenario.goal, scenario.seed),
        policy=scenario.policy,
        policy_settings=scenario.policy_settings,
        goal=scenario.goal,
        target=scenario.target,
        seed=scenario.seed,
        folder=folder,
        resume=resume,
        progress=progress,
        options=LiveOptions()
        if scenario.live.longest is None
        else LiveOptions(longest=scenario.live.longest),
    )
    said = scenario.emulated
    emulated = None if said is None else Emulated(packing=said.packing, scaling=said.scaling)
    if scenario.engine == "local":
        return run_local(build, spec, gpus(scenario), emulated, **settings(scenario))
    from astrarium.tuning.live.ray.backend import RayBackend

    given = {"folder": folder, "seed": scenario.seed, **settings(scenario)}
    return run_with(spec, lambda: RayBackend(build, gpus(scenario), emulated, **given))


def gpus(scenario: TuningScenario) -> int | None:
    """None: all that are there. What a simulation takes unless told is a guess about other machines."""
    told = scenario.raw.get("gpus") is not None or scenario.emulated is not None
    return scenario.gpus if told else None


def settings(scenario: TuningScenario) -> dict[str, Any]:
    """Of the backend: those that the file has."""
    live = scenario.live
    times = {"checkpoint_seconds": live.checkpoints, "patience": live.patience}
    others = {name: getattr(live, name) for name in ("packing", "gate", "threads", "address")}
    found = {name: None if value is None else value / SECOND for name, value in times.items()}
    return {name: value for name, value in {**found, **others}.items() if value is not None}
