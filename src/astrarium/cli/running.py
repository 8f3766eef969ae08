"""A simulated run with a progress bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astrarium.cli.progress import bar

if TYPE_CHECKING:
    from astrarium.scenario import Scenario
    from astrarium.serving.record import ServingRecord


def run_with_progress(scenario: Scenario, engine: str, label: str = "") -> ServingRecord:
    from typing import cast

    from astrarium.experiments.run import EngineName, run

    with bar(label or scenario.policy.name, scenario.workload.duration or 0) as progress:
        return run(scenario, cast(EngineName, engine), progress)
