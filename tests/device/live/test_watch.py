"""What lies in a lane between iterations: leaks are told from what is always there, and have an owner."""

from __future__ import annotations

from functools import partial

import pytest

from astrarium.device.live.backend import Excess
from astrarium.device.live.torch_lane_watch import LEAK, RARELY, SEGMENT, LaneWatch, rounded
from astrarium.device.live.torch_pool_view import PoolBlock, PoolView, viewed

SIZE = 8 * SEGMENT
GRADIENTS = PoolBlock(100, SEGMENT)


def looked(
    watch: LaneWatch, job: int, *blocks: PoolBlock, turns: int = 1, reserved: int = SIZE
) -> Excess | None:
    for _ in range(turns):
        watch.due(job, lambda: 1)
    return watch.seen(job, SIZE, PoolView(reserved, list(blocks)))


def test_what_is_there_after_the_first_turn_was_measured() -> None:
    watch = LaneWatch()
    assert looked(watch, 0, GRADIENTS) is None
    assert looked(watch, 0, GRADIENTS, turns=5) is None


def test_a_block_more_with_each_turn_is_a_leak_however_small() -> None:
    watch = LaneWatch()
    looked(watch, 0, GRADIENTS)
    losses = [PoolBlock(200 + turn, 512, "train.py:7") for turn in range(4)]
    excess = looked(watch, 0, GRADIENTS, *losses, turns=4)
    assert excess == Excess(SEGMENT, SIZE - SEGMENT - 4 * 512, 5, ("train.py:7",), leaks=True)


def test_a_block_more_now_and_then_is_none() -> None:
    watch = LaneWatch()
    looked(watch, 0, GRADIENTS)
    assert looked(watch, 0, GRADIENTS, PoolBlock(200, 512), turns=4) is None


def test_a_good_deal_more_that_grows_is_a_leak_and_what_stays_the_same_is_only_charged() -> None:
    watch = LaneWatch()
    looked(watch, 0, GRADIENTS)
    average = PoolBlock(200, 3 * LEAK, "ema.py:3")
    first, second = (looked(watch, 0, GRADIENTS, average, turns=9) for _ in range(2))
    assert first is not None
    assert (first.leaks, first.held, first.where) == (True, rounded(3 * LEAK), ("ema.py:3",))
    assert second is not None
    assert (second.leaks, second.held) == (False, rounded(3 * LEAK))


def test_blocks_belong_to_the_job_after_whose_turn_they_were_seen() -> None:
    watch = LaneWatch()
    others = PoolBlock(300, 4 * SEGMENT)
    looked(watch, 0, GRADIENTS)
    assert looked(watch, 1, GRADIENTS, others) is None
    assert looked(watch, 0, GRADIENTS, others, turns=3) is None
    excess = looked(watch, 1, GRADIENTS, others, PoolBlock(500, SEGMENT), turns=3)
    assert excess is not None
    assert (excess.held, excess.blocks) == (SEGMENT, 2)


def test_a_lane_that_took_more_of_the_device_is_told_without_what_is_held_of_it() -> None:
    watch = LaneWatch()
    assert looked(watch, 0, GRADIENTS, reserved=SIZE + SEGMENT) is None
    excess = looked(watch, 0, GRADIENTS, reserved=SIZE + 3 * SEGMENT)
    assert excess is not None
    assert (excess.lane, excess.held, excess.leaks) == (SIZE + 2 * SEGMENT, 0, False)


def test_what_is_held_of_a_pool_that_was_given_up_stays_charged() -> None:
    watch = LaneWatch()
    looked(watch, 0, GRADIENTS)
    looked(watch, 0, GRADIENTS, PoolBlock(200, 2 * SEGMENT), turns=2)
    fresh = watch.renewed()
    assert looked(fresh, 0, GRADIENTS) == Excess(2 * SEGMENT, SIZE - SEGMENT, 1)


def test_looking_is_rare_but_for_the_first_turns() -> None:
    watch = LaneWatch()
    due = [turn for turn in range(1, 600) if watch.due(0, lambda: 7)]
    assert due == [1, 2, 4, 16, 64, RARELY, 2 * RARELY]


def test_gradients_at_addresses_that_were_a_neighbours_are_no_leak() -> None:
    """Each lets its own go while the other runs."""
    watch = LaneWatch()
    mine, others = ([PoolBlock(100 * job + at, SEGMENT) for at in range(8)] for job in (1, 2))
    looked(watch, 0, *mine)
    watch.began(1, PoolView(SIZE, []))
    assert looked(watch, 1, *mine) is None
    for turns in (1, 2, 12):
        assert looked(watch, 0, *mine, *others[:4], turns=turns) is None
        assert looked(watch, 1, *others, *mine[:4], turns=turns) is None


def test_what_leaks_beside_neighbours_is_still_found() -> None:
    watch = LaneWatch()
    others = PoolBlock(300, SEGMENT)
    looked(watch, 0, GRADIENTS)
    looked(watch, 1, others)
    losses = [PoolBlock(1000 + turn, 512) for turn in range(20)]
    excess = looked(watch, 0, GRADIENTS, others, *losses, turns=15)
    assert excess is not None
    assert excess.leaks


def test_it_is_due_when_the_device_was_asked_for_memory() -> None:
    watch = LaneWatch()
    allocations = [7, 7, 7, 7, 8, 8, 8]
    due = [watch.due(0, lambda count=count: count) for count in allocations]  # type: ignore[misc]
    assert due == [True, True, False, True, True, False, False]


@pytest.mark.parametrize(("shared", "when"), [(True, range(17, 60)), (False, [24, 32, 40, 48, 56])])
def test_a_job_by_itself_is_asked_about_that_only_now_and_then(shared: bool, when: list[int]) -> None:
    watch = LaneWatch()
    questions = list[int]()

    def answer(turn: int) -> int:
        questions.append(turn)
        return 7

    for turn in range(1, 60):
        watch.due(0, partial(answer, turn), shared)
    assert questions == [*range(1, 17), *when]


@pytest.mark.parametrize(
    ("files", "where"),
    [
        (["/lib/torch/nn/modules/linear.py", "/home/me/train.py", "/home/me/main.py"], "/home/me/train.py:2"),
        (["??", "/aten/Linear.cpp", "/lib/torch/x.py"], ""),
    ],
)
def test_a_snapshot_is_read_as_pytorch_writes_it(files: list[str], where: str) -> None:
    frames = [{"filename": name, "line": line, "name": "f"} for line, name in enumerate(files, 1)]
    blocks = [
        {"address": 1, "size": 512, "state": "active_allocated", "frames": frames},
        {"address": 2, "size": 1024, "state": "inactive", "frames": []},
        {"address": 3, "size": 2048, "state": "active_pending_free"},
    ]
    segments = [{"total_size": SEGMENT, "blocks": blocks}, {"total_size": SEGMENT, "blocks": []}]
    assert viewed(segments) == PoolView(2 * SEGMENT, [PoolBlock(1, 512, where)])
