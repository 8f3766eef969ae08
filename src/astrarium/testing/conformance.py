"""A suite that a policy of any level inherits: it checks what must hold everywhere, and levels add the rest.

    class TestMine(DevicePolicyConformance):
        policy = Mine  # a class, or a name that the registry knows

A policy that is made in another way overrides `make`. What not every policy can promise is a class attribute:
set it to what yours does. Hypothesis draws the cases; a test runner is needed only to run the suite.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic
from unittest import SkipTest

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from astrarium.core.choice import made, parameters_of
from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.level import Level
from astrarium.core.policy import Policy, SetTimer
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.core.registry import Registry
from astrarium.core.trace import Step, read_trace, write_trace
from astrarium.run.replay import replay
from astrarium.run.simulate import World
from astrarium.testing.checks import ContractError, ensure, same
from astrarium.testing.imports import IMPURE, breaches, imported_modules
from astrarium.testing.played import (
    Alter,
    AlteredWorld,
    C,
    Ending,
    Played,
    ReadOnly,
    S,
    Timed,
    check_steps,
    play,
    stuttering,
)

BOUNDED = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,  # the same examples on every machine
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
FEW = settings(BOUNDED, max_examples=6)  # for what takes several times as long as a run
LATE = (0, 1, 9 * MILLISECOND, 20 * SECOND)  # how long after the first time news may be heard again


class Conformance:
    """What holds for whatever a registry names: it is pure, and explains its parameters."""

    policy: ClassVar[Any] = None  # a class, or a name that the registry knows; None: `make` is overridden
    parameters: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    pure_module = True  # the file it is written in imports no clock, no chance, no I/O
    describes_parameters = True  # every parameter has a description

    def registry(self) -> Registry[Any]:
        raise NotImplementedError

    def make(self, *told: Any) -> Any:
        """Return a fresh policy; *told* is what its level tells it before the first event."""
        if self.policy is None:
            raise NotImplementedError("say which policy is tested: policy = Mine, or def make(self, ...)")
        return made(self.kind(), self.parameters, *told)

    def sample(self) -> Any:
        """Return a policy to look at."""
        return self.make()

    def kind(self) -> Any:
        """Return the class that is tested."""
        if isinstance(self.policy, str):
            return self.registry().get(self.policy)
        return self.policy or type(self.sample())

    def needs(self, promise: bool, otherwise: str) -> None:
        if not promise:
            raise SkipTest(f"not promised: {otherwise}")

    def test_its_file_imports_no_clock_chance_or_io(self) -> None:
        self.needs(self.pure_module, "its file may import what it likes")
        module = inspect.getmodule(type(self.sample()))
        ensure(module is not None, "the policy belongs to no module")
        imported = imported_modules(inspect.getsource(module), module.__name__.rpartition(".")[0])  # type: ignore[arg-type, union-attr]
        ensure(not breaches(imported, IMPURE), f"a policy may not import {breaches(imported, IMPURE)}")

    def test_wrong_parameters_are_named(self) -> None:
        """A mapping with an unknown key is right for no parameter."""
        fields = msgspec.structs.fields(parameters_of(self.kind()))
        for name in ("no_such_parameter", *(field.name for field in fields)):
            try:
                made(self.kind(), {name: {"no such key": "neither"}})
            except InputError as error:
                ensure(error.field.startswith(f"policy.{name}"), f"{name} is wrong, not {error.field}")
                ensure(bool(error.expected), f"{name}: what would be right?")
            else:
                raise ContractError(f"any value will do for {name}")

    def test_parameters_are_described(self) -> None:
        self.needs(self.describes_parameters, "its parameters have no descriptions")
        for field in msgspec.structs.fields(parameters_of(self.kind())):
            notes = getattr(field.type, "__metadata__", ())
            described = any(isinstance(note, msgspec.Meta) and note.description for note in notes)
            ensure(described, f"what is {field.name}? Annotated[..., msgspec.Meta(description=...)] tells")


class PolicyConformance(Conformance, Generic[C, S]):
    """What holds for every policy that hears events and answers with actions, at any level."""

    level: ClassVar[Level[Any, Any]]
    forgets_nothing = True  # it decides about everything that it can before the run ends
    steps_per_item = 200  # how often it may ask to be woken
    worked_off: ClassVar[tuple[str, ...]] = ()  # parts of the books that the level's own `decider` works off

    def any_case(self) -> st.SearchStrategy[C]:
        """Return a strategy for cases in which everything can end well, or is refused."""
        raise NotImplementedError

    def busy_case(self) -> C:
        """Return a case that is always the same, with more to do than can be done at once."""
        raise NotImplementedError

    def quiet_case(self) -> C:
        """Return a case in which there is nothing to schedule."""
        raise NotImplementedError

    def unknown(self) -> list[Any]:
        """Return late news: events about items, runs and places that nobody knows (any more)."""
        raise NotImplementedError

    def items(self, case: C) -> set[int]:
        """Return the numbers of what is to be scheduled."""
        raise NotImplementedError

    def make_state(self, case: C) -> S:
        raise NotImplementedError

    def make_world(self, case: C) -> World[Any, Any, S]:
        raise NotImplementedError

    def told(self, case: C) -> tuple[Any, ...]:
        """Return what a policy is told when it is made, before its parameters."""
        return ()

    def decider(self, policy: Any) -> Policy[S, Any, Any]:
        """Return what an engine asks, for a policy as it was made."""
        decides: Policy[S, Any, Any] = policy
        return decides

    def endings(self, state: S) -> dict[int, Ending]:
        """Return how every item ended, by its number."""
        rows = state.ledger.rows.items()  # type: ignore[attr-defined]
        return {
            id_: Ending(row.outcome.name, row.ended, row.reason, row.outcome.name == "FINISHED")
            for id_, row in rows
        }

    def forgotten(self, played: Played[C, S]) -> list[int]:
        """Return items that were never decided about, though they could have been."""
        endings = self.endings(played.state).items()
        return [id_ for id_, ending in endings if ending.reason.startswith("the run ended")]

    def undisturbed(self, played: Played[C, S]) -> None:
        """Check what else holds where the world brings no surprises."""

    def registry(self) -> Registry[Any]:
        return self.level.policies

    def sample(self) -> Any:
        return self.make(*self.told(self.busy_case()))

    def fresh(self, case: C) -> Policy[S, Any, Any]:
        return self.decider(self.make(*self.told(case)))

    def play(
        self, case: C, alter: Alter | None = None, also: Iterable[Timed] = (), read_only: bool = False
    ) -> Played[C, S]:
        """Run the case with a fresh policy; *alter* changes the world's news, *also* comes on top."""
        world = self.make_world(case)
        policy = self.fresh(case)
        altered = world if alter is None else AlteredWorld(world, alter)
        decider = ReadOnly(policy, self.worked_off) if read_only else policy
        return play(case, decider, self.make_state(case), altered, also, self.most_steps(case))

    def observe(self, case: C, alter: Alter | None = None, also: Iterable[Timed] = ()) -> Played[C, S]:
        """Run the case and check all that holds for every policy."""
        played = self.play(case, alter, also)
        self.examine(played)
        return played

    def examine(self, played: Played[C, S]) -> None:
        check_steps(played.steps)
        endings = self.endings(played.state)
        same(f"{self.level.item}s in the books", endings.keys(), self.items(played.case))
        odd = {
            id_: end for id_, end in endings.items() if bool(end.reason) == end.good or end.outcome == "OPEN"
        }
        ensure(not odd, f"what ends does so once, with a reason where it ends badly: {odd}")
        forgotten = self.forgotten(played) if self.forgets_nothing else []
        ensure(not forgotten, f"they never ended, although they could: {forgotten}")

    def most_steps(self, case: C) -> int:
        return 1000 + self.steps_per_item * len(self.items(case))

    @BOUNDED
    @given(data=st.data())
    def test_the_same_case_is_decided_the_same(self, data: st.DataObject) -> None:
        case = data.draw(self.any_case())
        same("steps", self.play(case).steps, self.observe(case).steps)

    @BOUNDED
    @given(data=st.data())
    def test_a_recording_replays(self, data: st.DataObject) -> None:
        """Two fresh policies hear it in turn: neither the one before nor the other one disturbs them."""
        played = self.observe(data.draw(self.any_case()))
        self._replayed(played, played.steps, count=2)

    def test_a_recording_replays_from_disk(self) -> None:
        played = self.observe(self.busy_case())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.jsonl"
            write_trace(path, played.steps)
            steps = list(read_trace(path, self.level.events, self.level.actions))
        same("steps read back", steps, played.steps)
        self._replayed(played, steps)

    @FEW
    @given(data=st.data())
    def test_it_reads_the_books_and_does_not_write(self, data: st.DataObject) -> None:
        self.play(data.draw(self.any_case()), read_only=True)

    @BOUNDED
    @given(data=st.data())
    def test_everything_ends_once_and_the_books_hold(self, data: st.DataObject) -> None:
        self.undisturbed(self.observe(data.draw(self.any_case())))

    @BOUNDED
    @given(data=st.data(), late_by=st.sampled_from(LATE))
    def test_stale_news_is_harmless(self, data: st.DataObject, late_by: Time) -> None:
        case = data.draw(self.any_case())
        at = data.draw(st.sampled_from([0, *(at for at, _ in case.events())]))
        self.observe(case, stuttering(late_by), [(at, event) for event in self.unknown()])

    def test_nothing_to_do_nothing_done(self) -> None:
        played = self.observe(self.quiet_case())
        done = [action for action in played.actions if not isinstance(action, SetTimer)]
        ensure(not done, f"no {self.level.item} ever came, and yet: {done}")

    def _replayed(self, played: Played[C, S], steps: Iterable[Step], count: int = 1) -> None:
        case = played.case
        engines: list[Engine[S, Any, Any]] = [
            Engine(self.make_state(case), self.fresh(case)) for _ in range(count)
        ]
        for step in steps:
            for engine in engines:
                difference = replay(engine, [step])
                ensure(difference is None, f"a fresh policy decides otherwise: {difference}")
        for engine in engines:
            engine.close(played.end)
            same("endings", self.endings(engine.state), self.endings(played.state))
