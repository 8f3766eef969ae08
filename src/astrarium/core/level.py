"""A level is a value: what it is about, how its scenarios become runs, and what finished runs are worth.

Whatever works on any level (simulate, compare, replay, run folders, the command line, the Python API, the
conformance suites) is written once, and asks a `Level` for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

from astrarium.core.choice import Choice, chosen
from astrarium.core.engine import Engine
from astrarium.core.quantities import Time
from astrarium.core.registry import Registry
from astrarium.core.trace import Step


@runtime_checkable
class Scenario(Protocol):
    """What every level's scenario has, whatever else its file may say."""

    level: ClassVar[str]

    @property
    def policy(self) -> Choice: ...
    @property
    def seed(self) -> int: ...
    def with_policy(self, name: str, **parameters: Any) -> Self: ...
    def with_seed(self, seed: int) -> Self: ...
    def to_yaml(self) -> str: ...


S = TypeVar("S", bound=Scenario)
R = TypeVar("R")


@dataclass
class Simulation(Generic[R]):
    """A scenario that is ready to run: books and policy, what arrives, and the world that they meet.

    `record` makes a record of the closed books, given the last instant. `length` is about when the last event
    comes: progress is measured by it.
    """

    engine: Engine[Any, Any, Any]
    arrivals: Iterable[tuple[Time, Any]]
    world: Any
    record: Callable[[Time], R]
    length: Time = 0


@dataclass(frozen=True)
class Watching:
    """What a run is asked to do beside running: tell every step, and check its books after each."""

    trace: Callable[[Step], None] | None = None
    validate: bool = False

    def after(self, hear: Callable[[Step], None]) -> Callable[[Step], None]:
        """Return what hears every step: *hear*, and then whoever asked for the trace."""
        if (trace := self.trace) is None:
            return hear

        def both(step: Step) -> None:
            hear(step)
            trace(step)

        return both


@dataclass(frozen=True)
class Run(Generic[S, R]):
    """A finished run of any level; tables, pictures and folders are made of it."""

    level: Level[S, R]
    scenario: S
    label: str
    record: R
    summary: Any

    @property
    def seed(self) -> int:
        return self.scenario.seed


Runs = Sequence[Run[S, R]]


def named(runs: Runs[S, R]) -> dict[str, Run[S, R]]:
    """Return runs by names that tell them apart: the policy, with the seed where there are several."""
    seeds = len({run.seed for run in runs}) > 1
    return {f"{run.label}, seed {run.seed}" if seeds else run.label: run for run in runs}


Columns = Mapping[str, Mapping[str, Sequence[Any]]]


class Report(Protocol[S, R]):
    """How finished runs are shown, of one run in depth, of several side by side: a module of each level."""

    FILES: dict[str, str]  # what each of its own files is

    def tables(self, runs: Runs[S, R]) -> list[Any]: ...
    def shown(self, runs: Runs[S, R]) -> dict[str, Any]:
        """Return what --json prints."""

    def write(self, run: Run[S, R], folder: Path, outcomes: bool) -> None:
        """Write the level's own files; *outcomes*: a row for each item too."""

    def draw(self, runs: Runs[S, R], plots: Path, title: str) -> None: ...
    def rows(self, record: R) -> Columns:
        """Return every kind of thing that a run has rows of, as columns."""

    def explain(self, run: Run[S, R], item: str) -> list[str]:
        """Say what became of one item, and why, in sentences."""


@dataclass(frozen=True)
class Level(Generic[S, R]):
    """What one level is, as far as anybody outside of it needs to know."""

    name: str
    subject: str  # what its files are about
    item: str  # what is scheduled: a request, a job, a trial, an app
    scenario: type[S]
    events: Any  # types: what a policy hears, and what it may ask for
    actions: Any
    policies: Registry[Any]
    default: str  # the policy unless a file names one
    parse: Callable[[Any, Path], S]  # plain data, and the file that it came from
    prepare: Callable[[S, Any, Watching], Simulation[R]]  # with a fresh policy
    summarize: Callable[[S, R], Any]
    report: Report[S, R]
    picture: str  # which of the report's pictures tells most
    title: Callable[[Run[S, R]], str] = lambda run: run.label
    # sections whose entries -o may only change, not add
    named: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    # what a policy's class is made with, before its parameters
    policy_arguments: Callable[[S], tuple[Any, ...]] = lambda scenario: ()
    # how a choice becomes a policy, given those, where there is more to it than its class
    policy_made: Callable[..., Any] | None = None
    twin: Callable[[S, Any, Callable[[Time], None] | None], R | None] | None = None
    length: Callable[[S], Time] = lambda scenario: 0  # the progress of the twin is measured by it
    # unless the engine of its simulation will do
    replayed: Callable[[S, Any], Engine[Any, Any, Any]] | None = None

    def books(self, scenario: S, policy: Any) -> Engine[Any, Any, Any]:
        """Return fresh books with a policy, to feed a recording into."""
        if self.replayed is not None:
            return self.replayed(scenario, policy)
        return self.prepare(scenario, policy, Watching()).engine

    def policy(self, scenario: S) -> Any:
        """Make a fresh policy for one run: a policy remembers."""
        arguments = self.policy_arguments(scenario)
        if self.policy_made is not None:
            return self.policy_made(scenario.policy, *arguments)
        return chosen(self.policies, scenario.policy, *arguments)
