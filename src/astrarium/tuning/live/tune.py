"""Tuning from Python: one call searches from start to end, and its result shows itself.

Where a name will do an object will, and the other way round: `search=Hyperband(iterations=27)`,
`search="hyperband:iterations=27"` and `search={"name": "hyperband", "iterations": 27}` are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.choice import Choice, as_choice, chosen, made
from astrarium.core.decode import Decoder
from astrarium.core.errors import InputError
from astrarium.core.level import Run as CoreRun
from astrarium.core.plain_data import as_plain
from astrarium.core.quantities import SECOND, check_above_zero, duration_in
from astrarium.core.registry import Registry
from astrarium.run.results import Run, Table
from astrarium.tuning.level import LEVEL
from astrarium.tuning.live.backend import Checkpoint
from astrarium.tuning.live.books import LiveTuning
from astrarium.tuning.live.checkpoints import path as checkpoint_path
from astrarium.tuning.live.messages import Packing
from astrarium.tuning.live.progress import SearchProgress
from astrarium.tuning.live.run import SearchSpec, options, run_local, run_with
from astrarium.tuning.live.training import Build, Emulated
from astrarium.tuning.policies import DEFAULT_POLICY, DEFAULT_SEARCH, TuningPolicy, searches, tuning_policies
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.report.files import CANDIDATES
from astrarium.tuning.report.summary import TuningSummary, summarize
from astrarium.tuning.samplers import Goal, Sampler
from astrarium.tuning.scenario.read import TuningScenario, check_search
from astrarium.tuning.scenario.schema import EngineName, LiveSection
from astrarium.tuning.search.contract import Search

Progress = bool | Callable[[LiveTuning], None]


class Live(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of how trials train, as under `live` in a file; what is not given is up to the engine.

    *packing*: trials that share a GPU are "processes", or threads in "lanes" of one process. *gate*: they
    come under the kernel gate, where there is one. *checkpoints* are so far apart in a trial that goes on.
    *patience*: how long a process may give no sign of life until its trial goes on elsewhere. *threads* of
    the CPU for each process. *slots*: processes that are kept for each GPU. *preload*: modules that trainings
    need, and that take long to import. *memory*: without a folder, checkpoints are kept in memory (local).
    *address* of the Ray cluster, and *cpus* that go with each of its GPUs (ray).
    """

    packing: Packing | None = None
    gate: bool | None = None
    checkpoints: str | None = None
    patience: str | None = None
    threads: int | None = None
    slots: int | None = None
    preload: tuple[str, ...] | None = None
    memory: bool | None = None
    address: str | None = None
    cpus: float | None = None


@dataclass(frozen=True)
class Best:
    """The best candidate: its *config*, its *value* after so many *iterations*, and its *checkpoint*.

    The checkpoint is a file where a folder was given: `torch.load(file)["state"]` is what the training saved,
    if that is tensors and plain values. Other objects need `weights_only=False`, which runs code of the file.
    """

    candidate: int
    config: dict[str, Any]
    value: float
    iterations: int
    checkpoint: Path | None


class Tuned(Run):
    """A finished search: its best candidate, its candidates and trials, and what it took of the GPUs.

    It is a `Run` of the level tuning: `places`, `decisions` and `utilization` are rows too, and it is plotted
    and saved alike.
    """

    @property
    def best(self) -> Best:
        """The best candidate; a search without any value has none, and says why."""
        found = self.summary.best
        if found is None:
            reasons = [each.reason for each in self.summary.by_candidate if each.reason]
            raise InputError(
                "best", None, f"a candidate with a value: {self.over} ({'; '.join(reasons[:3])})"
            )
        file = None if found.checkpoint is None else Path(found.checkpoint)
        return Best(found.candidate, dict(found.configuration), found.value, found.iterations, file)

    @property
    def over(self) -> str:
        """Why the search ended."""
        return str(self.record.over)

    @cached_property
    def candidates(self) -> Table:
        """One row for each candidate, the best first: value, iterations, how it ended, its configuration."""
        found = self.summary.by_candidate
        columns = {name: [getattr(each, name) for each in found] for name in CANDIDATES}
        return Table({**columns, **_config([each.configuration for each in found])}, "candidates")

    @cached_property
    def trials(self) -> Table:
        """One row for each trial: when and how long it trained, and its candidate's configuration."""
        of = {each.candidate: each.configuration for each in self.summary.by_candidate}
        found = self.rows["trials"]
        configs = [of.get(number, {}) for number in found["candidate"].tolist()]
        return Table({**found, **_config(configs)}, "trials")

    def __repr__(self) -> str:
        best = f"best {self.summary.best.value:.5g}" if self.summary.best else "no value"
        return f"<search by {self.policy}: {len(self.candidates)} candidates, {best}; {self.over}>"


def tune(
    objective: Build | str,
    space: Mapping[str, Any],
    search: Any = DEFAULT_SEARCH,
    policy: Any = DEFAULT_POLICY,
    gpus: int | Sequence[int] | None = None,
    *,
    emulated: Emulated | bool = False,
    sampler: Sampler | str | Mapping[str, Any] | None = None,
    goal: Goal = "min",
    target: float | None = None,
    longest: str | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    resume: bool = False,
    engine: EngineName = "local",
    live: Live | Mapping[str, Any] | None = None,
    progress: Progress = True,
) -> Tuned:
    """Tune hyperparameters: candidates of a *space* train on the GPUs there are, packed, spread and moved.

    *objective* makes a `Training` of a candidate's values and its `Workers`; it may be named,
    "file.py:function". *space* has for each name a range (`low`, `high`, `log`, `whole`) or `options`.
    *search* says who trains for how long, *policy* where: names, specs, mappings, or objects such as
    `Hyperband(iterations=27)` and `DynamicFluid(packed=2)` of `astrarium.tuning`. *gpus*: so many, or these;
    all of this machine unless given.

    *emulated*: no GPU is real, and an iteration takes as long as `Workers.emulate` says. *sampler*: "random",
    "grid", `{"optuna": "TPESampler"}` or a sampler itself. *goal* is "min" or "max"; the search ends with a
    candidate as good as *target*. *longest*: how long an iteration may take, with what comes before the
    first, such as "10min"; a trial beyond it fails. *folder* keeps checkpoints and results, and *resume* goes
    on with what is there. *engine* "ray" takes the GPUs of a Ray cluster. *live*: more options, as `Live`.
    *progress*: True tells how it goes on stderr; a function is called with the live search after each step.

    Ctrl-C ends the search, and what it found so far is returned; while processes start, it is a
    KeyboardInterrupt.
    """
    own = {"space": space, "sampler": sampler, "goal": goal, "target": target, "seed": seed, "resume": resume}
    spec = specified(search, policy, longest, folder, progress, **own)
    record = trained(objective, spec, engine, live, gpus, emulated)
    return finished(record, spec, engine)


def specified(
    search: Any, policy: Any, longest: str | None, folder: Path | str | None, progress: Progress, **own: Any
) -> SearchSpec:
    """Return a search specification; every part is checked before anything is started.

    *own* are the fields of a specification that are taken as they are."""
    return SearchSpec(
        search=_search(search),
        policy=_policy(policy),
        folder=None if folder is None else Path(folder),
        progress=SearchProgress().show if progress is True else progress or None,
        options=options(longest),
        **own,
    )


def trained(
    build: Build | str,
    spec: SearchSpec,
    engine: str,
    live: Live | Mapping[str, Any] | None,
    gpus: int | Sequence[int] | None,
    emulated: Emulated | bool,
    **more: Any,
) -> TuningRecord:
    """Run a search on this machine or on a Ray cluster; *more* is what only our own functions hand over."""
    if engine not in ("local", "ray"):
        raise InputError("engine", engine, "local or ray")
    kind = Emulated() if emulated is True else emulated or None
    chosen_options = _live(live)
    settings = {**more, **_settings(chosen_options, engine)}
    LiveSection(packing=chosen_options.packing).check(
        "local" if engine == "local" else "ray", kind is not None
    )
    if engine == "local":
        return run_local(build, spec, gpus, kind, **settings)
    from astrarium.tuning.live.ray.backend import RayTrialBackend

    if gpus is not None and not isinstance(gpus, int):
        raise InputError("gpus", gpus, "how many: a Ray cluster says which")
    given = {"folder": spec.folder, "seed": spec.seed, **settings}
    return run_with(spec, lambda: RayTrialBackend(build, gpus, kind, **given))


def finished(record: TuningRecord, spec: SearchSpec, engine: str) -> Tuned:
    """Return a result of what was recorded."""
    summary = summarize(record, spec.goal, spec.target)
    return Tuned(
        CoreRun(
            LEVEL, _scenario(record, spec, engine), spec.label, record, with_checkpoint(summary, spec.folder)
        )
    )


def _search(given: Any) -> Choice | Search:
    found: Choice | Search = _chosen(given, searches, DEFAULT_SEARCH, "search", "run")
    if isinstance(found, Choice):
        check_search(searches.get(found.name), found.parameters)
    return found


def _policy(given: Any) -> Choice | TuningPolicy:
    found: Choice | TuningPolicy = _chosen(given, tuning_policies, DEFAULT_POLICY, "policy", "decide")
    return found


def _chosen(given: Any, registry: Registry[Any], usual: str, field: str, does: str) -> Any:
    """Return a choice of a registry, checked, or the object that was given or made of a class."""
    found = as_choice(given, registry, usual, field)
    if found is not None:
        chosen(registry, found, field=field)
        return found
    thing = made(given, None, field=field) if isinstance(given, type) else given
    if not callable(getattr(thing, does, None)):
        told = f"a name, name:key=value, a mapping with a name, a class or a {field}"
        raise InputError(field, given, told)
    return thing


def _live(given: Live | Mapping[str, Any] | None) -> Live:
    written = msgspec.to_builtins(given) if isinstance(given, Live) else as_plain(given or {})
    return Decoder().decode_struct(Live, written, "live")


def _settings(live: Live, engine: str) -> dict[str, Any]:
    """Return what a backend takes, where something was given."""
    for name in {"local": ("address", "cpus"), "ray": ("memory",)}[engine]:
        if getattr(live, name) is not None:
            raise InputError(f"live.{name}", getattr(live, name), f"nothing: {engine} has no such option")
    names = {"slots": "most", "checkpoints": "checkpoint_seconds"}
    found = {name: getattr(live, name) for name in live.__struct_fields__}
    found |= {name: _seconds(name, found[name]) for name in ("checkpoints", "patience")}
    return {names.get(name, name): value for name, value in found.items() if value is not None}


def _seconds(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    found = duration_in(f"live.{name}", text)
    check_above_zero(f"live.{name}", found)
    return found / SECOND


def _config(configurations: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for each in configurations for name in each)
    return {f"config.{name}": [each.get(name) for each in configurations] for name in names}


def with_checkpoint(summary: TuningSummary, folder: Path | None) -> TuningSummary:
    """Return the summary with the file in which the best candidate's state is kept."""
    if summary.best is None or folder is None:
        return summary
    best = summary.best
    file = checkpoint_path(folder / "checkpoints", Checkpoint(best.candidate, best.iterations))
    kept = msgspec.structs.replace(best, checkpoint=str(file) if file.is_file() else None)
    return msgspec.structs.replace(summary, best=kept)


def _scenario(record: TuningRecord, spec: SearchSpec, engine: str) -> TuningScenario:
    """Return what was searched as a scenario, which reports ask."""
    search = _choice(spec.search)
    policy = _choice(spec.policy)
    gpus = max(1, len(record.gpus))
    written = {"goal": spec.goal, "target": spec.target, "gpus": gpus, "seed": spec.seed}
    space = msgspec.to_builtins(dict(spec.space), enc_hook=repr)
    return TuningScenario(
        search=search,
        space=dict(spec.space),
        goal=spec.goal,
        target=spec.target,
        gpus=gpus,
        policy=policy,
        seed=spec.seed,
        engine="local" if engine == "local" else "ray",
        raw={"space": space, "search": search.plain(), "policy": policy.plain(), **written},
        source="astrarium.tune",
    )


def _choice(given: Any) -> Choice:
    return given if isinstance(given, Choice) else Choice(type(given).__name__)
