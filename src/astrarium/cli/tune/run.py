"""Tuning runs, simulated or live, one after another, each with what its report needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from astrarium.cli.output import file_name
from astrarium.cli.progress import status
from astrarium.core.errors import InputError
from astrarium.core.units import SECOND, Time
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.report.summary import CandidateSummary, TuningSummary, summarize, summarize_candidates
from astrarium.tuning.scenario.read import TuningScenario

CHECKPOINTS = "checkpoints"  # in the folder of a live run
LIVE_STATE, INTERRUPTED = "live", "it was interrupted"  # the latter is what a live run says


class TuneRun(NamedTuple):
    label: str
    seed: int
    live: bool
    scenario: TuningScenario
    record: TuningRecord
    summary: TuningSummary
    candidates: list[CandidateSummary]

    @property
    def interrupted(self) -> bool:
        return self.live and self.record.over == INTERRUPTED


class LivePlace(NamedTuple):
    """The run folder, which keeps checkpoints while trials train; None: they are lost with the run."""

    folder: Path | None
    resume: bool

    def state(self, label: str, seed: int) -> Path | None:
        return None if self.folder is None else self.folder / LIVE_STATE / f"{file_name(label)}-{seed}"


def run_all(variants: Mapping[str, TuningScenario], seeds: int, place: LivePlace | None) -> list[TuneRun]:
    """Each policy with each seed; *place* where they are live."""
    wanted = [(label, each, each.seed + more) for label, each in variants.items() for more in range(seeds)]
    found: list[TuneRun] = []
    for label, scenario, seed in wanted:
        found.append(_one(label, scenario.with_seed(seed), place))
        if found[-1].interrupted:
            break
    return found


def _one(label: str, scenario: TuningScenario, place: LivePlace | None) -> TuneRun:
    try:
        record = _simulated(label, scenario) if place is None else _live(label, scenario, place)
    except InputError as error:
        raise error.read_from(scenario.source) from None
    summary = summarize(record, scenario.goal, scenario.good)
    state = None if place is None else place.state(label, scenario.seed)
    return TuneRun(
        label,
        scenario.seed,
        place is not None,
        scenario,
        record,
        summary if state is None else _with_checkpoint(summary, state),
        summarize_candidates(record, scenario.goal),
    )


def _with_checkpoint(summary: TuningSummary, state: Path) -> TuningSummary:
    """Where what the best has learnt is kept."""
    from astrarium.tuning.live.backend import Checkpoint
    from astrarium.tuning.live.checkpoints import path

    if summary.best is None:
        return summary
    file = path(state / CHECKPOINTS, Checkpoint(summary.best.candidate, summary.best.iterations))
    best = msgspec.structs.replace(summary.best, checkpoint=str(file) if file.is_file() else None)
    return msgspec.structs.replace(summary, best=best)


def _simulated(label: str, scenario: TuningScenario) -> TuningRecord:
    from astrarium.tuning.level import run_scenario

    with status(f"simulating {label}, seed {scenario.seed}") as say:

        def progress(now: Time) -> None:
            if say is not None:
                say(f"{now / SECOND:,.0f} s simulated")

        return run_scenario(scenario, progress)


def _live(label: str, scenario: TuningScenario, place: LivePlace) -> TuningRecord:
    from astrarium.cli.tune.live import Progress, gpus, run_live

    state = place.state(label, scenario.seed)
    where = f"; checkpoints in {state}" if state is not None else ""
    count = gpus(scenario) or "all"
    kind = "GPUs" if scenario.emulated is None else "emulated GPUs"
    print(f"{label}, seed {scenario.seed}: live on {count} {kind}{where}", file=sys.stderr, flush=True)
    resume = place.resume and state is not None and state.is_dir()  # of several runs, some had not begun
    with Progress(label) as progress:
        return run_live(scenario, state, resume, progress.show)
