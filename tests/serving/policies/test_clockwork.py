"""Clockwork: timelines, one candidate for every batch size, the earliest latest moment first."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.serving.contract import (
    EXPIRED,
    SACRIFICED,
    BatchPreempted,
    Dispatch,
    Drop,
    GpuJoined,
    GpuLeft,
    Network,
    Preempt,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.policies.clockwork import ModelCandidates
from astrarium.testing.serving.cases import cluster, linear_model
from tests.support.rival_runs import MS, SteppedPolicy, bad_rate, inception_resnet, ms, resnet50, simulated

MODEL = linear_model(1 * MS, 5 * MS, 25 * MS, max_batch=20)  # with the buffer, D = arrival + 20 ms


def stepped(gpus: int = 1, **parameters: Any) -> SteppedPolicy:
    return SteppedPolicy("clockwork", cluster([MODEL], gpus), **parameters)


def full_gpu() -> SteppedPolicy:
    """One GPU whose timeline ends at 12 ms, seen from 1 ms: more than 10 ms ahead."""
    at = stepped()
    assert at.arrive(0, 0) == [Dispatch(0, (0,), 0)]
    assert at.arrive(1, 1) == [Dispatch(0, (1,), ms(6))]
    return at


def test_a_request_leaves_at_once_even_behind_a_running_batch() -> None:
    full_gpu()


def test_nothing_is_queued_further_ahead_than_asked() -> None:
    at = full_gpu()
    assert at.arrive(1.5, 2) == []
    assert at.timers["timeline"] == ms(12 - 10)
    assert at.wake("timeline") == [Dispatch(0, (2,), ms(12))]


def test_what_has_pooled_leaves_as_the_largest_batch_that_can_be_filled() -> None:
    at = full_gpu()
    at.arrive(1.5, 2, 3)
    assert at.wake("timeline") == [Dispatch(0, (2, 3), ms(12))]


def test_without_looking_ahead_the_gpu_must_be_idle() -> None:
    at = stepped(ahead="0ms")
    at.arrive(0, 0)
    assert at.arrive(1, 1) == []
    assert at.finish(6, 0) == [Dispatch(0, (1,), ms(6))]


def test_older_requests_are_sacrificed_to_a_larger_batch() -> None:
    # Starting at 12 ms: request 2 must end by 19.5 ms and fits in a batch of two, not of three (20 ms).
    at = full_gpu()
    at.hear(1.5, *at.requests(1.5, [2], slo=23), *at.requests(1.5, [3, 4, 5]))
    assert at.wake("timeline") == [Drop(2, SACRIFICED), Dispatch(0, (3, 4, 5), ms(12))]


def test_a_size_that_cannot_be_filled_ends_the_climb() -> None:
    # Three can be filled only by giving up request 2, but then only two are left.
    at = full_gpu()
    at.hear(1.5, *at.requests(1.5, [2], slo=23), *at.requests(1.5, [3, 4]))
    assert at.wake("timeline") == [Dispatch(0, (2, 3), ms(12))]


def test_powers_of_two_are_the_only_sizes_where_asked() -> None:
    at = stepped(ahead="0ms", sizes="powers_of_two")
    at.arrive(0, 0)
    at.arrive(0.1, 1, 2, 3)
    assert at.finish(6, 0) == [Dispatch(0, (1, 2), ms(6))]


def test_a_request_that_the_timeline_has_passed_by_has_expired() -> None:
    at = full_gpu()
    at.arrive(1.5, 2, slo=22.4)  # D = 18.9 ms: running alone from 12 to 18 ms it is in time
    at.arrive(1.6, 3, slo=21.3)  # D = 17.9 ms: it is not
    assert at.wake("timeline") == [Drop(3, EXPIRED), Dispatch(0, (2,), ms(12))]


def test_a_deadline_met_to_the_nanosecond_is_met() -> None:
    at = full_gpu()
    at.arrive(1.5, 2, slo=21.5)  # D = 18 ms = 12 + l(1)
    assert at.wake("timeline") == [Dispatch(0, (2,), ms(12))]


def test_the_model_that_must_start_soonest_goes_first() -> None:
    urgent = linear_model(1 * MS, 5 * MS, 40 * MS, max_batch=20)
    large = linear_model(1 * MS, 15 * MS, 45 * MS, max_batch=20)  # latest moment: 40 - 16 < 35 - 6
    at = SteppedPolicy("clockwork", cluster([urgent, large], 1), ahead="0ms")
    at.arrive(0, 0)
    at.hear(0, *at.requests(0, [1]), *at.requests(0, [2], model=1))
    assert at.finish(6, 0) == [Dispatch(0, (2,), ms(6))]


def test_any_size_makes_a_model_urgent() -> None:
    # Two of the first model could start until 35 - 7 ms, one of the second until 35.1 - 7 = 28.1 ms.
    first = linear_model(1 * MS, 5 * MS, 40 * MS, max_batch=20)
    second = linear_model(1 * MS, 6 * MS, ms(40.1), max_batch=20)
    at = SteppedPolicy("clockwork", cluster([first, second], 1), ahead="0ms")
    at.arrive(0, 0)
    at.hear(0, *at.requests(0, [1, 2]), *at.requests(0, [3], model=1))
    assert at.finish(6, 0) == [Dispatch(0, (1, 2), ms(6))]


def test_the_gpu_that_is_free_first_is_taken_and_then_the_smallest_id() -> None:
    at = stepped(gpus=3)
    assert at.arrive(0, 0) == [Dispatch(0, (0,), 0)]
    assert at.arrive(1, 1) == [Dispatch(1, (1,), ms(1))]
    assert at.finish(6, 0) == []
    assert at.arrive(6.5, 2) == [Dispatch(0, (2,), ms(6.5))]


def test_a_batch_that_ends_early_leaves_the_gpu_free() -> None:
    at = stepped(ahead="0ms")
    at.arrive(0, 0)
    at.arrive(1, 1)
    assert at.finish(3, 0) == [Dispatch(0, (1,), ms(3))]


def test_a_batch_that_ends_late_lengthens_the_timeline() -> None:
    at = full_gpu()
    assert at.finish(8, 0) == []
    assert at.arrive(8.5, 2) == [Dispatch(0, (2,), ms(8 + 6))]


def test_a_gpu_that_overruns_is_given_nothing_until_it_is_heard_of() -> None:
    at = stepped(gpus=1, ahead="0ms")
    at.arrive(0, 0)
    assert at.arrive(6.5, 1) == []
    assert at.finish(7, 0) == [Dispatch(0, (1,), ms(7))]


def test_a_batch_behind_an_overrun_runs_unless_it_has_a_window() -> None:
    patient = full_gpu()
    strict = stepped(window="2ms")
    strict.arrive(0, 0)
    strict.arrive(1, 1)  # planned for 6 ms
    assert patient.finish(8.1, 0) == []
    assert strict.finish(8.1, 0) == [Preempt(0), Drop(1, SACRIFICED)]


def test_a_batch_that_begins_within_its_window_runs() -> None:
    at = stepped(window="2ms")
    at.arrive(0, 0)
    at.arrive(1, 1)
    assert at.finish(8, 0) == []
    assert at.state.gpus[0].batches[0].requests[0].id == 1


def test_after_a_refusal_the_next_batch_runs_so_that_every_other_one_fails() -> None:
    at = stepped(window="2ms")
    at.arrive(0, 0)
    at.arrive(1, 1)
    at.arrive(1.5, 2)
    refused = at.state.gpus[0].batches[1].run
    assert at.finish(10, 0) == [Preempt(0), Drop(1, SACRIFICED)]
    assert at.hear(10, BatchPreempted(0, refused, ms(10), ms(10))) == [Dispatch(0, (2,), ms(10))]


def test_a_batch_sent_to_an_idle_gpu_has_no_window_to_miss() -> None:
    at = stepped(window="0ms")
    at.arrive(0, 0)
    assert at.finish(9, 0) == []
    assert at.arrive(20, 1) == [Dispatch(0, (1,), ms(20))]


def test_without_gpus_requests_wait_for_one_until_it_is_too_late() -> None:
    at = stepped()
    at.hear(0, GpuLeft(0))
    assert at.arrive(1, 0) == []
    assert at.hear(3, GpuJoined(0)) == [Dispatch(0, (0,), ms(3))]
    at.hear(4, GpuLeft(0))
    assert at.arrive(5, 1) == []
    assert at.wake("hopeless") == [Drop(1, EXPIRED)]
    assert at.timers["hopeless"] == ms(5 + 20 - 6) + 1


def test_network_delays_are_part_of_the_timeline() -> None:
    setup = cluster([MODEL], 1, Network(ms(1), ms(0.5), ms(2)))
    at = SteppedPolicy("clockwork", setup, ahead="0ms", buffer="0ms")
    assert at.arrive(0, 0) == [Dispatch(0, (0,), ms(1.5))]
    at.arrive(1, 1, 2)
    assert at.finish(7.5, 0) == [Dispatch(0, (1, 2), ms(9.5))]
    late = SteppedPolicy("clockwork", setup, ahead="0ms", buffer="0ms")
    assert late.arrive(0, 0, slo=9.4) == [Drop(0, EXPIRED)]  # 1.5 to get there, 6 to run, 2 to answer
    assert late.arrive(0, 1, slo=9.5) == [Dispatch(0, (1,), ms(1.5))]


def test_an_arrival_costs_one_look_at_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[ModelCandidates] = []
    look = ModelCandidates.look

    def counted(self: ModelCandidates, *when: Any) -> Any:
        looks.append(self)
        return look(self, *when)

    monkeypatch.setattr(ModelCandidates, "look", counted)
    models = [linear_model(1 * MS, 5 * MS, 25 * MS, max_batch=8, name=f"m{n}") for n in range(30)]
    state = simulated("clockwork", cluster(models, 16), rate=2000, seconds=2)
    assert len(looks) < 1.5 * len(state.ledger.outcome)


@pytest.mark.parametrize("field", ["ahead", "buffer", "window"])
def test_a_duration_without_its_unit_is_refused(field: str) -> None:
    wrong: dict[str, Any] = {field: "10"}
    with pytest.raises(InputError, match=field):
        stepped(**wrong)


def test_goodput_is_that_of_batches_of_one() -> None:
    """Symphony's paper: 1358 (ResNet50) and 458 (InceptionResNetV2) requests/s on 8 GPUs."""
    assert bad_rate("clockwork", resnet50(), 1250, 10) <= 0.01
    assert bad_rate("clockwork", resnet50(), 1500, 10) > 0.01
    assert bad_rate("clockwork", inception_resnet(), 400, 25) <= 0.01
    assert bad_rate("clockwork", inception_resnet(), 530, 25) > 0.01


def test_without_looking_ahead_and_buffer_batches_form() -> None:
    at = simulated("clockwork", cluster([resnet50()], 8), 3200, 5, ahead="0ms", buffer="0ms")
    missed = sum(outcome != Outcome.IN_TIME for outcome in at.ledger.outcome)
    assert missed <= 0.01 * len(at.ledger.outcome)
