"""Items of unequal shape run together only where that is allowed; the model is told what is padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.serving.live.backends.answers import result
from astrarium.serving.live.backends.contract import Batch, Ran, Result
from astrarium.serving.live.fills import complete, marked
from astrarium.serving.live.tensors import Array, TensorSpec
from astrarium.serving.live.worker.inputs import UnequalItems
from astrarium.serving.live.worker.padding import LaunchedParts, Padding, Part, joined

X = TensorSpec("X", "FP32", (-1,))
TYPES = TensorSpec("TYPES", "INT8", (-1,))
IMAGE = TensorSpec("IMAGE", "FP32", (-1, 2, -1))
LENGTHS = TensorSpec("LENGTHS", "INT32", (1,))
MASK = TensorSpec("MASK", "BF16", (-1,))


def items_of(*lengths: int) -> UnequalItems:
    arrays = [np.arange(1, length + 1, dtype=np.float32) for length in lengths]
    return UnequalItems(len(lengths), {"X": arrays}, list(range(len(lengths))))


def test_without_leave_only_equal_items_run_together() -> None:
    parts = Padding((X,)).parts(items_of(2, 3, 2, 1))
    assert [list(part.places) for part in parts] == [[0, 2], [1], [3]]
    assert [part.batch.inputs["X"].tolist() for part in parts] == [[[1, 2], [1, 2]], [[1, 2, 3]], [[1]]]
    assert [list(part.batch.applications) for part in parts] == [[0, 2], [1], [3]]
    assert not any(part.batch.own_shapes for part in parts)


def test_with_leave_items_are_padded_to_the_longest() -> None:
    (part,) = Padding((X,), allowed=True).parts(items_of(2, 3))
    assert part.batch.inputs["X"].tolist() == [[1, 2, 0], [1, 2, 3]]
    assert part.batch.own_shapes == {"X": [(2,), (3,)]}


def test_what_no_trial_has_tried_is_never_padded() -> None:
    """An empty item, and one whose inputs disagree about how long it is."""
    empty = items_of(2, 0, 3)
    assert [list(part.places) for part in Padding((X,), allowed=True).parts(empty)] == [[0, 2], [1]]
    types = [np.zeros(length, np.int8) for length in (2, 5, 3)]
    uneven = UnequalItems(3, {"X": items_of(2, 3, 3).arrays["X"], "TYPES": types})
    parts = Padding((X, TYPES), allowed=True).parts(uneven)
    assert [list(part.places) for part in parts] == [[0, 2], [1]]


@pytest.mark.parametrize(("lengths", "padded"), [((2, 3), 4), ((4, 4), 4), ((5, 1), 8), ((9, 2), 9)])
def test_batches_are_padded_to_the_next_bucket(lengths: tuple[int, ...], padded: int) -> None:
    padding = Padding(marked((X, LENGTHS), "LENGTHS", ""), True, ((4, 8),))
    (part,) = padding.parts(items_of(*lengths))
    assert part.batch.inputs["X"].shape == (2, padded)
    assert part.batch.inputs["LENGTHS"].tolist() == [[length] for length in lengths]
    doubled = TensorSpec("Y", "FP32", (-1,))
    cut = result({"Y": 2 * part.batch.inputs["X"]}, [doubled], part.batch).outputs["Y"]
    assert [len(item) for item in cut] == list(lengths)


def test_equal_items_are_padded_to_a_bucket_too() -> None:
    alike = Batch(2, {"X": np.ones((2, 3), np.float32)}, [0, 0])
    (part,) = Padding((X,), True, ((4, 8),)).parts(alike)
    assert part.batch.inputs["X"].tolist() == [[1, 1, 1, 0]] * 2
    (exact,) = Padding((X,), False, ((4, 8),)).parts(alike)
    assert exact.batch is alike


def test_an_item_alone_is_told_its_length_and_a_mask_of_ones() -> None:
    specs = marked((X, LENGTHS, MASK), "LENGTHS", "MASK")
    (part,) = Padding(specs).parts(Batch(1, {"X": np.ones((1, 3), np.float32)}))
    assert part.batch.inputs["LENGTHS"].tolist() == [[3]]
    assert part.batch.inputs["MASK"].view("<u2").tolist() == [[0x3F80] * 3]  # one, as BF16 has it


def test_rows_that_nobody_sent_are_as_long_as_the_others_were_padded_to() -> None:
    padding = Padding(marked((X, LENGTHS, MASK), "LENGTHS", "MASK"), allowed=True)
    (part,) = padding.parts(items_of(1, 3))
    whole = padding.with_rows(part.batch, 4)
    assert whole.inputs["X"].tolist() == [[1, 0, 0], [1, 2, 3], [0, 0, 0], [0, 0, 0]]
    assert whole.inputs["LENGTHS"].tolist() == [[1], [3], [3], [3]]
    assert (whole.inputs["MASK"].view("<u2") > 0).sum(axis=1).tolist() == [1, 3, 3, 3]


def test_a_mask_lies_over_two_axes_and_lengths_say_both() -> None:
    mask = TensorSpec("MASK", "UINT8", (-1, 1, -1))
    specs = marked((IMAGE, mask, TensorSpec("SIZE", "INT64", (2,))), "SIZE", "MASK")
    images = [np.ones((1, 2, 3), np.float32), np.ones((2, 2, 1), np.float32)]
    (part,) = Padding(specs, allowed=True).parts(UnequalItems(2, {"IMAGE": images}))
    assert part.batch.inputs["IMAGE"].shape == (2, 2, 2, 3)
    assert part.batch.inputs["SIZE"].tolist() == [[1, 3], [2, 1]]
    assert part.batch.inputs["MASK"].tolist() == [[[[1, 1, 1]], [[0, 0, 0]]], [[[1, 0, 0]], [[1, 0, 0]]]]


def images_of(*sizes: tuple[int, int]) -> UnequalItems:
    images = [np.full((high, 2, wide), 1, np.float32) for high, wide in sizes]
    return UnequalItems(len(sizes), {"IMAGE": images}, list(range(len(sizes))))


def test_images_run_with_those_of_their_buckets() -> None:
    padding = Padding((IMAGE,), True, ((4, 8), (4, 16)))
    parts = padding.parts(images_of((3, 4), (8, 4), (5, 1), (4, 2), (3, 16), (9, 4)))
    assert [(list(part.places), part.batch.inputs["IMAGE"].shape[1:]) for part in parts] == [
        ([0, 3], (4, 2, 4)),
        ([1, 2], (8, 2, 4)),
        ([4], (4, 2, 16)),
        ([5], (9, 2, 4)),
    ]
    assert parts[0].batch.own_shapes == {"IMAGE": [(3, 2, 4), (4, 2, 2)]}
    assert parts[0].batch.inputs["IMAGE"].sum() == 2 * (3 * 4 + 4 * 2)


def test_images_that_padding_changes_run_with_equal_ones_only() -> None:
    parts = Padding((IMAGE,), False, ((4, 8), (4, 16))).parts(images_of((3, 4), (4, 3), (3, 4)))
    assert [(list(part.places), part.batch.inputs["IMAGE"].shape[1:]) for part in parts] == [
        ([0, 2], (3, 2, 4)),
        ([1], (4, 2, 3)),
    ]


def test_padding_is_a_number_that_the_input_takes() -> None:
    limited = TensorSpec("X", "FP32", (-1,), values=(5.0, 9.0))
    (part,) = Padding((limited,), allowed=True).parts(items_of(1, 2))
    assert part.batch.inputs["X"].tolist() == [[1, 5], [1, 2]]


@pytest.mark.parametrize(
    ("specs", "lengths", "mask", "complaint"),
    [
        ((X, LENGTHS), "LENGTH", "", "lengths: expected the name of an input"),
        ((X, LENGTHS), "LENGTHS", "LENGTHS", "mask: expected another input than that of `lengths`"),
        ((TensorSpec("X", "FP32", (3,)), LENGTHS), "LENGTHS", "", "no other input has an open dimension"),
        ((X, TensorSpec("L", "FP32", (1,))), "L", "", "a whole type that holds lengths up to 2147483647"),
        ((X, TensorSpec("L", "INT16", (1,))), "L", "", "a whole type that holds lengths"),
        ((X, TensorSpec("L", "INT64", (2,))), "L", "", r"the shape \[\] or \[1\]"),
        ((IMAGE, TensorSpec("L", "INT64", (1,))), "L", "", r"the shape \[2\]: a length for each axis"),
        ((X, TensorSpec("M", "BYTES", (-1,))), "", "M", "a type of numbers, or BOOL"),
        ((X, TensorSpec("M", "BOOL", (4,))), "", "M", r"the open dimensions of X, such as \[-1\]"),
        (
            (X, TensorSpec("Q", "FP32", (-1,), ranges=((1, 8),)), TensorSpec("M", "BOOL", (-1, -1))),
            "",
            "M",
            "open dimensions that a mask can be laid over, not dimension 0 of X and dimension 0 of Q",
        ),
    ],
)
def test_what_cannot_be_filled_is_refused(
    specs: tuple[TensorSpec, ...], lengths: str, mask: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        marked(specs, lengths, mask)


def test_a_narrow_type_does_where_a_range_is_stated() -> None:
    ranged = TensorSpec("X", "FP32", (-1,), ranges=((1, 200),))
    specs = marked((ranged, TensorSpec("L", "UINT8", ())), "L", "")
    arrays = complete(specs, {"X": np.ones((2, 200), np.float32)})
    assert (str(arrays["L"].dtype), arrays["L"].tolist()) == ("uint8", [200, 200])


def part_of(places: Sequence[int]) -> Part:
    return Part(places, Batch(len(places), {"X": np.array(places, np.float32)}))


def test_answers_are_put_together_in_the_order_of_the_items() -> None:
    parts = [part_of([0, 3]), part_of([2]), part_of([1])]
    stacked = joined(parts, [Result({"Y": 10 * part.batch.inputs["X"]}, part.places) for part in parts])
    assert isinstance(stacked.outputs["Y"], np.ndarray)
    assert (stacked.outputs["Y"].tolist(), list(stacked.own_times)) == ([0, 10, 20, 30], [0, 1, 2, 3])
    uneven: list[Array] = [np.zeros((2, 2)), np.zeros((1, 5)), np.zeros((1, 1))]
    items = joined(parts, [Result({"Y": array}) for array in uneven]).outputs["Y"]
    assert [len(item) for item in items] == [2, 1, 5, 2]


class Gpu:
    """It runs what was launched one after the other, and has two places for answers, which it uses again."""

    def __init__(self) -> None:
        self.now = 0
        self.flying = 0
        self.most = 0
        self.places = [np.zeros(1, np.float32), np.zeros(1, np.float32)]
        self.count = 0

    def launch(self, batch: Batch, not_before: int) -> Any:
        place = self.places[self.count % 2]
        self.count += 1
        self.flying += 1
        self.most = max(self.most, self.flying)
        gpu = self

        class Flight:
            def wait(self, free: int) -> Ran:
                gpu.flying -= 1
                gpu.now = max(gpu.now, free, not_before) + 10
                place[:] = batch.inputs["X"]
                return Ran(Result({"Y": place[: batch.size]}), gpu.now - 10, gpu.now)

        return Flight()


@pytest.mark.parametrize("at_once", [1, 2])
def test_parts_follow_each_other_on_the_gpu(at_once: int) -> None:
    gpu = Gpu()
    launched = LaunchedParts([part_of([place]) for place in (2, 0, 1, 3)], gpu.launch, 100, at_once)
    assert (gpu.count, launched.in_flight, launched.whole) == (1, 1, False)
    ran = launched.wait(105)
    assert (ran.began, ran.ended) == (105, 145)
    assert np.asarray(ran.result.outputs["Y"]).tolist() == [0, 1, 2, 3]
    assert (gpu.most, launched.in_flight, launched.whole) == (at_once, 0, True)
