"""Shares and batch sizes worth trying for a model."""

from __future__ import annotations

from astrarium.core.quantities import SECOND
from astrarium.placement.policies.planner.options import BUSY, ModelOptions
from tests.support.placement.igniter_cases import NOTES, problem_of


def test_a_share_carries_its_part_of_the_load_with_room_for_queues() -> None:
    problem = problem_of(NOTES, gpus=1)
    options = ModelOptions(problem)
    for place, model in enumerate(problem.models):
        for part in options.parts(place, 0):
            took = options.time(place, 0, part.batch, part.share)
            assert 2 * took <= model.slo
            assert part.rate * took / SECOND <= BUSY * part.batch
            assert (
                options.time(place, 0, part.batch, round(part.share - 0.05, 9)) > took or part.share <= 0.05
            )


def test_waiting_for_batches_leaves_room_for_smaller_ones_only() -> None:
    """Where a batch may wait to fill, it must be small enough to do so in time."""
    problem = problem_of([("resnet50", 40, 100)], gpus=1)
    at_once, patient = (ModelOptions(problem, wait).parts(0, 0)[0] for wait in (0, None))
    assert (patient.batch - 1) / 100 * SECOND < problem.models[0].slo
    assert patient.share >= at_once.share
