"""Requests of unequal length: what a batch of them consists of, and what it really takes."""

from __future__ import annotations

import msgspec
import pytest

from astrarium.core.errors import InvalidAction
from astrarium.core.quantities import FOREVER
from astrarium.serving.contract import Dispatch, Lengths, RequestArrived, Together
from astrarium.serving.state import Batch, ServingState
from astrarium.serving.world import LengthTruth, TableTruth
from tests.serving.scenario.texts import model_with_lengths, profile, requests_of, setup_with_lengths
from tests.support.rival_runs import ms


def lengths(together: Together = "padded") -> Lengths:
    known = model_with_lengths(together=together).lengths
    assert known is not None
    return known


def test_a_length_falls_in_the_first_bucket_that_is_long_enough() -> None:
    assert [lengths().bucket_of(length) for length in (1, 16, 17, 64, 65, 256, 999)] == [0, 0, 1, 1, 2, 2, 2]


def test_the_largest_batch_of_a_bucket() -> None:
    two = Lengths((16, 64), ((0, 1, 2, 3, FOREVER), (0, 4, 5, FOREVER)))
    assert [two.max_batch(bucket) for bucket in (0, 1)] == [3, 2]


@pytest.mark.parametrize(
    ("together", "runs"),
    [
        ("padded", [(5, 1)]),
        ("bucket", [(3, 0), (2, 1)]),
        ("length", [(1, 0), (2, 0), (2, 1)]),
    ],
)
def test_a_batch_consists_of_runs(together: Together, runs: list[tuple[int, int]]) -> None:
    batch = requests_of(setup_with_lengths(), [(0, 64), (1, 10), (2, 12), (3, 64), (4, 12)])
    assert lengths(together).runs(batch) == runs


@pytest.mark.parametrize(("together", "takes"), [("padded", 26), ("bucket", 7 + 20), ("length", 5 + 6 + 20)])
def test_a_model_says_what_a_batch_takes_by_who_is_in_it(together: Together, takes: int) -> None:
    tables = (0, 5, 6, 7, 8, FOREVER), (0, 20, 22, 24, 26, FOREVER)
    known = Lengths((16, 64), tables, together)
    plain = msgspec.structs.replace(model_with_lengths(), latency=tables[-1], lengths=None)
    requests = requests_of(setup_with_lengths(longest=(16, 64)), [(0, 10), (1, 12), (2, 12), (3, 60)])
    assert plain.takes(requests) == 26
    assert msgspec.structs.replace(plain, lengths=known).takes(requests) == takes


def test_what_fits_depends_on_the_longest() -> None:
    short, long = ((0, *[1] * 8, FOREVER), (0, 2, 2, FOREVER))
    setup = setup_with_lengths()
    model = model_with_lengths()
    known = Lengths((16, 64), (short, long))
    requests = requests_of(setup, [(0, 10), (1, 10), (2, 60)])
    for together, fits in (("padded", False), ("bucket", True)):
        spec = msgspec.structs.replace(
            model, latency=long, lengths=msgspec.structs.replace(known, together=together)
        )
        assert spec.can_run(requests) is fits
        assert spec.can_run(requests[:2])


def test_the_books_refuse_a_batch_that_cannot_run() -> None:
    setup = setup_with_lengths(sizes=2)
    requests = requests_of(setup, [(0, 10), (0, 10), (0, 60)])

    def sent(*batch: int) -> int:
        state = ServingState(setup)
        for request in requests:
            state.apply(0, RequestArrived(request))
        state.commit(0, Dispatch(0, batch))
        return len(state.gpus[0].batches)

    assert sent(0, 2) == 1
    with pytest.raises(InvalidAction, match="m0 runs fewer of these lengths at once"):
        sent(0, 1, 2)


TRUTH = {16: {1: 1.0, 4: 2.0}, 32: {1: 3.0, 4: 4.0}}
BATCH = [(0, 10), (1, 12), (2, 12), (3, 24)]


@pytest.mark.parametrize(
    ("rounded", "together", "runs", "takes"),
    [
        (True, "padded", [(4, 32)], 4),
        (True, "bucket", [(3, 16), (1, 32)], 5 / 3 + 3),
        (True, "length", [(1, 16), (2, 16), (1, 32)], 1 + 4 / 3 + 3),
        (False, "padded", [(4, 24)], 3),
        (False, "length", [(1, 10), (2, 12), (1, 24)], 1 + 4 / 3 + 2),
    ],
)
def test_a_batch_takes_what_its_runs_take(
    rounded: bool, together: Together, runs: list[tuple[int, int]], takes: float
) -> None:
    known = profile(TRUTH, rounded, together)
    requests = list(requests_of(setup_with_lengths(), BATCH))
    assert known.runs([request.length for request in requests]) == runs
    truth = LengthTruth({0: [known]}, TableTruth.of(setup_with_lengths()))
    assert truth.execution(Batch(0, 0, 0, requests, 0)) == pytest.approx(ms(takes), abs=2)


def test_every_gpu_has_its_own_profile_and_other_models_their_tables() -> None:
    slow = profile({16: {1: 8.0}})
    fast = profile({16: {1: 1.0}})
    setup = setup_with_lengths(gpus=2)
    truth = LengthTruth({0: [slow, fast]}, TableTruth.of(setup))
    [request] = requests_of(setup, [(0, 16)])
    assert [truth.execution(Batch(0, 0, gpu, [request], 0)) for gpu in (0, 1)] == [ms(8), ms(1)]
    other = LengthTruth({}, TableTruth.of(setup))
    assert other.execution(Batch(0, 0, 0, [request], 0)) == setup.models[0].latency[1]
