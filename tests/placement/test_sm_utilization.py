"""SM utilization by hand: each of the four bounds, and averages over kernels that overlap or pause."""

from __future__ import annotations

import pytest

from astrarium.core.errors import InputError
from astrarium_papers.elvinger._sm_utilization import (
    KIB,
    V100,
    Busy,
    Launch,
    block_bounds,
    blocks_per_sm,
    highest_share,
    sm_utilization,
    sms_needed,
    weighted_share,
)


@pytest.mark.parametrize(
    ("launch", "bound", "blocks"),
    [
        (Launch((1, 1, 1), (16, 16, 2), registers_per_thread=16), "threads", 4),  # 2048 / 512
        (Launch((1, 1, 1), (256, 1, 1), registers_per_thread=64), "registers", 4),  # 65536 / 16384
        (Launch((1, 1, 1), (64, 1, 1), 16, 24 * KIB, 8 * KIB), "shared memory", 3),  # 96 / 32
        (Launch((1, 1, 1), (32, 1, 1), registers_per_thread=16), "blocks", 32),
    ],
)
def test_each_limit_of_an_sm_can_be_the_tightest(launch: Launch, bound: str, blocks: int) -> None:
    bounds = block_bounds(launch, V100)
    assert bounds[bound] == blocks == blocks_per_sm(launch, V100)
    assert all(other >= blocks for other in bounds.values())


def test_bounds_round_down_and_sms_round_up() -> None:
    launch = Launch((10, 5, 1), (700, 1, 1), registers_per_thread=32)
    assert block_bounds(launch, V100)["threads"] == 2  # 2048 / 700 = 2.9
    assert block_bounds(launch, V100)["registers"] == 2  # 65536 / 22400 = 2.9
    assert sms_needed(launch, V100) == 25
    assert sms_needed(Launch((17, 3, 1), (700, 1, 1)), V100) == 26  # 51 blocks, two on each


def test_the_example_of_two_kernels_side_by_side() -> None:
    """50 and 20 of 80 SMs fit together, 50 and 40 do not."""
    fifty, twenty, forty = (
        sm_utilization(Launch((count, 1, 1), (1024, 1, 1), 64), V100) for count in (50, 20, 40)
    )
    assert (fifty, twenty, forty) == (0.625, 0.25, 0.5)
    assert fifty + twenty <= 1 < fifty + forty


def test_more_blocks_than_the_gpu_holds_come_in_rounds() -> None:
    launch = Launch((10_000, 1, 1), (1024, 1, 1))
    assert sms_needed(launch, V100) == 5_000
    assert sm_utilization(launch, V100) == 1.0


def test_shared_memory_is_static_and_dynamic_together() -> None:
    split = Launch((8, 1, 1), (32, 1, 1), 16, 20 * KIB, 12 * KIB)
    assert blocks_per_sm(split, V100) == blocks_per_sm(Launch((8, 1, 1), (32, 1, 1), 16, 32 * KIB), V100) == 3


@pytest.mark.parametrize(
    ("launch", "named"),
    [
        (Launch((1, 1, 1), (32, 1, 1), 16, 97 * KIB), "shared memory"),
        (Launch((1, 1, 1), (1024, 1, 1), 65), "registers"),
        (Launch((1, 1, 1), (2049, 1, 1)), "threads"),
    ],
)
def test_a_block_that_no_sm_holds_is_refused(launch: Launch, named: str) -> None:
    with pytest.raises(InputError, match=f"within the {named} of one SM"):
        sm_utilization(launch, V100)


def test_an_empty_grid_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        sm_utilization(Launch((0, 1, 1), (32, 1, 1)), V100)


def test_the_weighted_share_counts_every_stretch_with_its_length() -> None:
    kernels = [Busy(0, 10, 0.9), Busy(10, 40, 0.1)]
    assert weighted_share(kernels) == pytest.approx((10 * 0.9 + 30 * 0.1) / 40)
    assert highest_share(kernels) == 0.9


def test_pauses_count_as_time_without_use() -> None:
    assert weighted_share([Busy(0, 10, 0.8), Busy(30, 40, 0.8)]) == pytest.approx(0.4)


def test_kernels_that_overlap_add_up() -> None:
    kernels = [Busy(0, 20, 0.3), Busy(10, 30, 0.4)]
    assert highest_share(kernels) == pytest.approx(0.7)
    assert weighted_share(kernels) == pytest.approx((0.3 + 0.7 + 0.4) / 3)


def test_kernels_that_only_touch_do_not_overlap() -> None:
    assert highest_share([Busy(0, 10, 0.6), Busy(10, 20, 0.6)]) == 0.6


def test_no_gpu_is_more_than_full() -> None:
    kernels = [Busy(0, 10, 0.8), Busy(0, 10, 0.8)]
    assert highest_share(kernels) == weighted_share(kernels) == 1.0


def test_nothing_uses_nothing() -> None:
    assert highest_share([]) == weighted_share([]) == 0.0


def test_a_kernel_does_not_end_before_it_starts() -> None:
    with pytest.raises(InputError, match="after the start"):
        weighted_share([Busy(10, 5, 0.5)])
