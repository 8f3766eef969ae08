"""Simulating, comparing and replaying from Python, for scenarios of any level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.api.scenarios import Source, as_scenario, decider, load
from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.level import Level, Scenario, Watching
from astrarium.core.plain_data import read_yaml
from astrarium.core.quantities import Time
from astrarium.core.trace import Step, read_trace
from astrarium.levels import level_of, named_by
from astrarium.run.experiment import Bar, EngineName
from astrarium.run.experiment import simulate as run_one
from astrarium.run.folder import SCENARIO, TRACE
from astrarium.run.replay import Divergence
from astrarium.run.replay import replay as feed
from astrarium.run.results import Comparison, Run
from astrarium.run.waiting import waiting

if TYPE_CHECKING:
    from astrarium.server.recording import RecordingReader

Progress = bool | Callable[[float], None]


def simulate(
    scenario: Source,
    policy: Any = None,
    seed: int | None = None,
    engine: EngineName = "auto",
    trace: bool = False,
    progress: Progress = True,
) -> Run:
    """Simulate a scenario of any level: a file, plain data, or what `load` returned.

    *policy* decides in place of the scenario's own: a name, `"timeout:timeout=10%"`, a mapping with a name, a
    class (made as its level makes policies) or an object that decides; an object remembers, so give each run
    a fresh one. *engine* is "python" for the reference, "native" for its twin in C++, which decides the same.
    With *trace* the run keeps every step for `replay`. *progress*: True tells on stderr what takes longer
    than two seconds; a function is called with the part that is done, from 0 to 1.
    """
    loaded = as_scenario(scenario)
    if seed is not None:
        loaded = loaded.with_seed(_checked_seed(seed))
    return _simulated(loaded, policy, engine, trace, progress)


def compare(
    scenario: Source,
    policies: Iterable[Any] = (),
    seeds: int | Sequence[int] = 1,
    engine: EngineName = "auto",
    progress: Progress = True,
) -> Comparison:
    """Simulate a scenario by several policies, on the same arrivals: all policies of its level unless given.

    Each of *policies* may be all that `simulate` takes. *seeds*: so many, from the scenario's own on; or
    these. Every policy is checked before the first run begins.
    """
    loaded = as_scenario(scenario)
    level = level_of(loaded)
    compared = list(policies) or level.policies.names()
    numbers = _seeds(loaded.seed, seeds)
    _check_fresh(compared, len(numbers))
    _check_labels([decider(level, loaded, policy).label for policy in compared])
    return Comparison(
        [
            _simulated(loaded.with_seed(number), policy, engine, False, progress)
            for number in numbers
            for policy in compared
        ]
    )


class Replay:
    """A replay says whether a fresh policy decided as was recorded, in how many *steps*.

    *divergence* is the first step at which it decided otherwise, with what it heard (`recorded.events`), what
    was recorded (`recorded.actions`) and what it *decided*; None where there is none. *cut*: the recording
    ends without its last line, because its server was killed or could not write any more.
    """

    def __init__(self, steps: int, divergence: Divergence | None, parts: int = 1, cut: bool = False) -> None:
        self.steps = steps
        self.divergence = divergence
        self.parts = parts
        self.cut = cut

    @property
    def same(self) -> bool:
        """Whether every decision was the recorded one."""
        return self.divergence is None

    def __bool__(self) -> bool:
        return self.same

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        if self.divergence is None:
            return f"the same decisions in all {self.steps:,} steps"
        recorded, decided = self.divergence
        return (
            f"decided otherwise at {recorded.now / 1e9:.6f} s, in step {self.steps:,} (part {self.parts})\n"
            f"  heard    {recorded.events}\n  recorded {recorded.actions}\n  replayed {decided}"
        )


def replay(source: str | Path | Run, policy: Any = None) -> Replay:
    """Feed what was recorded through a fresh policy: does it decide the same?

    *source* is a run that was simulated with `trace=True`, its saved folder, or what `astrarium serve
    --record` wrote. *policy* is the recorded one unless given: all that `simulate` takes.
    """
    if isinstance(source, Run):
        return _replayed([_part(source.scenario, _fresh(source, policy), source.trace)])
    return replay_file(Path(source), policy)


def replay_file(
    path: Path, policy: Any, tell: Callable[[Path, Level[Any, Any]], None] | None = None
) -> Replay:
    """Replay a recording or a run folder; *tell* hears of each scenario file and its level."""
    from astrarium.server.recording import RecordingReader

    if not path.exists():
        raise InputError("source", str(path), "a recording or a run folder; there is no such file")
    if path.is_dir():
        return _replayed(_folder_parts(path, policy, tell))
    recorded = RecordingReader(path)
    replayed = _replayed(_served_parts(recorded, path, policy))
    replayed.cut = replayed.same and recorded.cut  # where it diverges, the rest is not read
    return replayed


def _simulated(scenario: Scenario, policy: Any, engine: EngineName, trace: bool, progress: Progress) -> Run:
    level = level_of(scenario)
    who = decider(level, scenario, policy)
    steps: list[Step] | None = [] if trace else None
    watching = Watching() if steps is None else Watching(trace=steps.append)
    run = run_one(level, who.scenario, who.policy, who.label, engine, _bar(progress), watching)
    return Run(run, steps, None if who.policy is None else policy)


def _bar(progress: Progress) -> Bar | None:
    """Return what shows progress, as `run.experiment` asks for it."""
    if progress is False:
        return None

    @contextmanager
    def shown(title: str, length: Time) -> Iterator[Callable[[Time], None] | None]:
        if progress is True:
            with waiting(title):
                yield None
        else:
            yield lambda now: progress(min(1.0, now / max(1, length)))

    return shown


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError("seed", seed, "a whole number >= 0")
    return seed


def _seeds(first: int, seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int) and seeds < 1:
        raise InputError("seeds", seeds, "1 or more, or a list of seeds")
    numbers = range(first, first + seeds) if isinstance(seeds, int) else seeds
    return [_checked_seed(seed) for seed in numbers]


def _check_labels(labels: Sequence[str]) -> None:
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(
                "policies", label, "policies that differ in name or parameters: it stands there twice"
            )


def _check_fresh(policies: Sequence[Any], seeds: int) -> None:
    """Refuse an object that would be used for several runs: it remembers the first."""
    for policy in policies if seeds > 1 else ():
        if callable(getattr(policy, "decide", None)) and not isinstance(policy, type):
            expected = "a class or a name where there are several seeds: an object remembers its first run"
            raise InputError("policies", type(policy).__name__, expected)


def _fresh(run: Run, policy: Any) -> Any:
    """Return what makes the policy of a run anew."""
    own = run._decider
    if policy is None and own is not None and not isinstance(own, type):
        raise InputError("policy", None, f"a fresh {run.policy}: that of the run remembers what it heard")
    return own if policy is None else policy


# A part of a recording is fresh books with a policy, and the steps that are fed into them.
Part = tuple[Engine[Any, Any, Any], Iterable[Step]]


def _replayed(parts: Iterable[Part]) -> Replay:
    steps = number = 0

    def counted(recorded: Iterable[Step]) -> Iterator[Step]:
        nonlocal steps
        for step in recorded:
            steps += 1
            yield step

    for number, (engine, recorded) in enumerate(parts, 1):
        with waiting(f"replaying part {number}"):
            divergence = feed(engine, counted(recorded))
        if divergence is not None:
            return Replay(steps, divergence, number)
    return Replay(steps, None, number)


def _part(scenario: Scenario, policy: Any, steps: Iterable[Step]) -> Part:
    level = level_of(scenario)
    who = decider(level, scenario, policy)
    fresh = level.policy(who.scenario) if who.policy is None else who.policy
    return level.books(who.scenario, fresh), steps


def _folder_parts(
    folder: Path, policy: Any, tell: Callable[[Path, Level[Any, Any]], None] | None
) -> Iterator[Part]:
    """Yield every trace of a run folder; each belongs to the scenario beside it, or above it."""
    traces = sorted(folder.rglob(TRACE))
    if not traces:
        expected = (
            f"a folder with {TRACE}: `astrarium simulate --trace` keeps one, or simulate(..., trace=True)"
        )
        raise InputError("source", str(folder), expected)
    for trace in traces:
        file, scenario = _scenario_of(trace, policy)
        level = level_of(scenario)
        if tell is not None:
            tell(file, level)
        yield _part(scenario, policy, read_trace(trace, level.events, level.actions))


def _scenario_of(trace: Path, policy: Any) -> tuple[Path, Scenario]:
    """Return the scenario of a trace; a policy that is given stands in for one that no file can name."""
    file = next((folder / SCENARIO for folder in trace.parents if (folder / SCENARIO).is_file()), None)
    if file is None:
        raise InputError("source", str(trace), f"a trace with {SCENARIO} beside it")
    usual = named_by(read_yaml(file), str(file)).default
    return file, load(file, {} if policy is None else {"policy": usual})


def _served_parts(recorded: RecordingReader, path: Path, policy: Any) -> Iterator[Part]:
    """Yield what a server recorded: each scheduler that was at work had a setup of its own."""
    from astrarium.core.choice import made
    from astrarium.core.plain_data import parse_yaml
    from astrarium.serving.scenario import build, parse
    from astrarium.serving.state import ServingState

    source = f"{path} (its scenario)"
    scenario = parse(parse_yaml(recorded.header.scenario, source), source, serving=True)
    for setup, section in recorded.sections():
        who = decider(level_of(scenario), scenario, policy)
        if who.policy is None:
            fresh: Any = build.policy(who.scenario, setup)  # type: ignore[arg-type]
        else:
            fresh = made(policy, None, setup) if isinstance(policy, type) else policy
        yield Engine(ServingState(setup), fresh), section
