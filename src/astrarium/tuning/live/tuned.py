"""The result of a search from Python: its best candidate, its candidates and its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.choice import Choice
from astrarium.core.errors import InputError
from astrarium.core.level import Run as CoreRun
from astrarium.run.results import Run
from astrarium.run.rows import Table
from astrarium.tuning.level import LEVEL
from astrarium.tuning.live.backend import Checkpoint
from astrarium.tuning.live.checkpoints import Checkpoints
from astrarium.tuning.live.checkpoints import path as checkpoint_path
from astrarium.tuning.live.run.spec import SearchSpec
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.report.files import CANDIDATES
from astrarium.tuning.report.summary import TuningSummary, metrics_of, summarize
from astrarium.tuning.scenario.read import TuningScenario
from astrarium.tuning.spaces import space_of


@dataclass(frozen=True)
class Best:
    """The best candidate: its *config*, its *value* after so many *iterations*, and its *checkpoint*.

    The checkpoint is a file where a folder was given: `torch.load(file)["state"]` is what the training saved,
    if that is tensors and plain values. Other objects need `weights_only=False`, which runs code of the file.
    It is of the iteration of the best value (*checkpoint_iterations* says of which), unless that was not
    saved: `live={"keep": "last"}`, or saving takes long.
    """

    candidate: int
    config: dict[str, Any]
    value: float
    iterations: int
    checkpoint: Path | None
    checkpoint_iterations: int | None = None


class Tuned(Run):
    """A finished search: its best candidate, its candidates and trials, and what it took of the GPUs.

    It is a `Run` of the level tuning: `curves`, `places`, `decisions` and `utilization` are rows too, and it
    is plotted and saved alike.
    """

    @property
    def best(self) -> Best:
        """The best candidate; a search without any value has none, and says why."""
        best = self.summary.best
        if best is None:
            all_reasons = dict.fromkeys(candidate.reason for candidate in self.summary.by_candidate)
            reasons = [reason for reason in all_reasons if reason and reason != self.over]
            why = f"{self.over} ({'; '.join(reasons[:3])})" if reasons else self.over
            raise InputError("best", None, f"a candidate that has reported a value: {why}")
        file = None if best.checkpoint is None else Path(best.checkpoint)
        values = dict(best.configuration)
        return Best(best.candidate, values, best.value, best.iterations, file, best.checkpoint_iterations)

    @property
    def over(self) -> str:
        """Why the search ended."""
        return str(self.record.over)

    @cached_property
    def candidates(self) -> Table:
        """One row for each candidate, the best first: value, iterations, how it ended, its configuration."""
        candidates = self.summary.by_candidate
        columns = {name: [getattr(candidate, name) for candidate in candidates] for name in CANDIDATES}
        columns["value"] = [nan if value is None else value for value in columns["value"]]
        for name in metrics_of(candidates):
            columns[f"metric.{name}"] = [candidate.metrics.get(name, nan) for candidate in candidates]
        return Table(
            {**columns, **_config([candidate.configuration for candidate in candidates])}, "candidates"
        )

    @cached_property
    def trials(self) -> Table:
        """One row for each trial: when and how long it trained, and its candidate's configuration."""
        of = {candidate.candidate: candidate.configuration for candidate in self.summary.by_candidate}
        rows = self.rows["trials"]
        configs = [of.get(number, {}) for number in rows["candidate"].tolist()]
        return Table({**rows, **_config(configs)}, "trials")

    def __repr__(self) -> str:
        best = f"best {self.summary.best.value:.5g}" if self.summary.best else "no value"
        return f"<search by {self.policy}: {len(self.candidates)} candidates, {best}; {self.over}>"


def finished(record: TuningRecord, spec: SearchSpec, engine: str) -> Tuned:
    """Return a result of what was recorded."""
    summary = summarize(record, spec.goal, spec.target)
    return Tuned(
        CoreRun(
            LEVEL,
            _scenario(record, spec, engine),
            spec.label,
            record,
            with_checkpoint(summary, record, spec.folder),
        )
    )


def _config(configurations: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for configuration in configurations for name in configuration)
    return {f"config.{name}": [configuration.get(name) for configuration in configurations] for name in names}


def with_checkpoint(summary: TuningSummary, record: TuningRecord, folder: Path | None) -> TuningSummary:
    """Return the summary with the file in which the best candidate's best state is kept."""
    if summary.best is None or folder is None:
        return summary
    best = summary.best
    curve = next(one.curve for one in record.candidates if one.number == best.candidate)
    checkpoints = Checkpoints(folder / "checkpoints")
    saved = set(checkpoints.kept(best.candidate))
    scores = [score for score in curve if score.iterations in saved]
    if not scores:
        return summary
    sign = 1 if summary.goal == "min" else -1
    at = min(scores, key=lambda score: sign * score.value).iterations
    file = checkpoint_path(checkpoints.folder, Checkpoint(best.candidate, at))
    kept = msgspec.structs.replace(best, checkpoint=str(file), checkpoint_iterations=at)
    return msgspec.structs.replace(summary, best=kept)


def _scenario(record: TuningRecord, spec: SearchSpec, engine: str) -> TuningScenario:
    """Return what was searched as a scenario, which reports ask."""
    search = _choice(spec.search)
    policy = _choice(spec.policy)
    gpus = max(1, len(record.gpus))
    written = {"goal": spec.goal, "target": spec.target, "gpus": gpus, "seed": spec.seed}
    space = msgspec.to_builtins(space_of(spec.space), enc_hook=repr)
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


def _choice(wanted: Any) -> Choice:
    return wanted if isinstance(wanted, Choice) else Choice(type(wanted).__name__)
