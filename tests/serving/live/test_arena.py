"""Shared memory: blocks that never overlap, tensors that come out as they went in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.serving.live import batches
from astrarium.serving.live.arena import (
    ALIGNMENT,
    SMALLEST,
    Arena,
    SharedMemory,
    aligned,
    block_bytes,
    fixed_bytes,
    tensors_at,
    whole_shapes,
)
from astrarium.serving.live.batches import gathered, write_replies
from astrarium.serving.live.messages import BatchMember
from astrarium.serving.live.tensors import (
    DATATYPES,
    Tensor,
    TensorSpec,
    datatype_of,
    pack_bytes,
    to_array,
    to_bytes,
    unpack_bytes,
)

SIZE = 64 * SMALLEST


@given(st.lists(st.one_of(st.integers(1, SIZE), st.none()), max_size=80), st.randoms(use_true_random=False))
def test_blocks_never_overlap_and_all_of_it_can_be_had_again(
    wishes: list[int | None], chance: object
) -> None:
    arena = Arena(SIZE)
    taken: dict[int, int] = {}
    for wish in wishes:
        if wish is None and taken:
            arena.give_back(offset := chance.choice(sorted(taken)))  # type: ignore[attr-defined]
            del taken[offset]
        elif wish is not None and (offset := arena.take(wish)) is not None:
            taken[offset] = wish
        edges = sorted((offset, offset + size) for offset, size in taken.items())
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(edges))
        assert all(begin >= 0 and end <= SIZE for begin, end in edges)
    for offset in list(taken):
        arena.give_back(offset)
    assert arena.used == 0
    assert arena.take(SIZE) == 0


def test_a_full_arena_says_so_and_a_tiny_one_is_refused() -> None:
    arena = Arena(SIZE)
    assert arena.take(SIZE + 1) is None
    assert [arena.take(SIZE // 2) for _ in range(3)].count(None) == 1
    with pytest.raises(InputError, match="at least 256 bytes"):
        Arena(SMALLEST - 1)


def test_a_block_given_back_twice_is_our_fault() -> None:
    arena = Arena(SIZE)
    offset = arena.take(1)
    assert offset is not None
    arena.give_back(offset)
    with pytest.raises(KeyError):
        arena.give_back(offset)


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_bytes_elements_survive_packing(elements: list[bytes]) -> None:
    assert unpack_bytes(pack_bytes(elements)) == elements


def test_bytes_elements_that_reach_past_the_end_are_refused() -> None:
    with pytest.raises(ValueError, match="past the end"):
        unpack_bytes((9).to_bytes(4, "little") + b"short")


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
def test_every_datatype_survives_the_binary_layout(datatype: str) -> None:
    values = [b"a", b"", b"bc"] if datatype == "BYTES" else [0, 1, 1]
    array = np.array(values, DATATYPES[datatype]).reshape(3, 1)
    again = to_array(Tensor("x", datatype_of(array), array.shape, to_bytes(array)))
    assert again.shape == (3, 1)
    assert again.tolist() == array.tolist()


def written(
    memory: SharedMemory, specs: Sequence[TensorSpec], calls: list[list[np.ndarray]]
) -> list[BatchMember]:
    """Calls one after the other; a member for each of their rows, with 4 KiB to answer in."""
    members, at, reply = [], 0, 1 << 15
    for arrays in calls:
        shapes = [(array.shape, len(to_bytes(array))) for array in arrays]
        block, rows = at, len(arrays[0])
        for array in arrays:
            data = to_bytes(array)
            memory.view[at : at + len(data)] = data
            at += aligned(len(data))
        open_sizes = fixed_bytes(specs) is None
        for row in range(rows):
            members.append(BatchMember(block, rows, row, reply, 4096, 0, shapes if open_sizes else None))
            reply += 4096
    return members


def test_rows_of_several_calls_become_one_batch_in_order() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("a", "FP32", (2,)), TensorSpec("b", "INT64", (1,))]
    first = [np.array([[1, 2], [3, 4]], np.float32), np.array([[10], [20]])]
    second = [np.array([[5, 6]], np.float32), np.array([[30]])]
    batch = gathered(memory.view, specs, written(memory, specs, [first, second]))
    assert batch.size == 3
    assert batch.inputs["a"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch.inputs["b"].tolist() == [[10], [20], [30]]


def test_one_call_alone_is_read_without_a_copy() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("a", "FP32", (2,))]
    members = written(memory, specs, [[np.array([[1, 2], [3, 4]], np.float32)]])
    array = gathered(memory.view, specs, members).inputs["a"]
    assert np.shares_memory(array, np.frombuffer(memory.view, np.uint8))


@pytest.mark.parametrize("shape", [(2,), (-1,)])
def test_calls_of_one_row_and_one_shape_are_joined(shape: tuple[int, ...]) -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("a", "FP32", shape), TensorSpec("b", "INT64", (1,))]
    calls = [[np.array([[i, i + 1]], np.float32), np.array([[10 * i]])] for i in range(3)]
    members = written(memory, specs, calls)
    batch = gathered(memory.view, specs, members)
    assert batch.inputs["a"].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert batch.inputs["b"].tolist() == [[0], [10], [20]]
    assert not batch.own_shapes
    batch.inputs["a"][:] = 7  # the model's own: some work in place
    assert gathered(memory.view, specs, members).inputs["a"].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_texts_are_never_joined_as_bytes() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("t", "BYTES", (1,))]
    calls = [[np.array([[word]], object)] for word in (b"one", b"two")]
    batch = gathered(memory.view, specs, written(memory, specs, calls))
    assert batch.inputs["t"].tolist() == [[b"one"], [b"two"]]


def test_unequal_items_are_padded_and_remember_their_shapes() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("a", "FP32", (-1,))]
    calls = [[np.array([[1.0, 2.0, 3.0]], np.float32)], [np.array([[4.0]], np.float32)]]
    batch = gathered(memory.view, specs, written(memory, specs, calls))
    assert batch.inputs["a"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert batch.own_shapes == {"a": [(3,), (1,)]}


def test_answers_land_in_their_members_rooms() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("y", "FP32", (2,)), TensorSpec("name", "BYTES", (1,))]
    members = written(memory, [TensorSpec("x", "FP32", (1,))], [[np.zeros((2, 1), np.float32)]])
    outputs = {"y": np.array([[1, 2], [3, 4]], np.float32), "name": np.array([[b"one"], [b"two"]], object)}
    shapes = write_replies(memory.view, specs, members, outputs)
    assert shapes is not None
    y, name = tensors_at(memory.view, members[1].reply, specs, shapes[1])
    assert to_array(y).tolist() == [[3, 4]]
    assert to_array(name).tolist() == [[b"two"]]


def test_stacked_answers_are_cut_and_laid_side_by_side() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("y", "FP32", (-1,)), TensorSpec("z", "INT64", ())]
    members = written(memory, [TensorSpec("x", "FP32", (1,))], [[np.zeros((2, 1), np.float32)]])
    given = {"y": np.array([[1, 3], [2, 4]], np.float32).T, "z": np.array([5, 6])}  # not contiguous
    shapes = write_replies(memory.view, specs, members, given)
    assert shapes == [[((1, 2), 8), ((1,), 8)]] * 2
    for row, member in enumerate(members):
        y, z = tensors_at(memory.view, member.reply, specs, shapes[row])
        assert to_array(y).tolist() == [given["y"][row].tolist()]
        assert to_array(z).tolist() == [5 + row]


@pytest.mark.parametrize(
    ("kind", "shape", "times"),
    [("FP32", (4,), 1), ("FP32", (-1,), 1), ("BYTES", (2,), 1), ("FP32", (3, 224, 224), 0)],
)
def test_a_rehearsal_answers_nobody_and_is_left_out_where_it_would_take_long(
    kind: str, shape: tuple[int, ...], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[Any] = []
    monkeypatch.setattr(batches, "write_replies", lambda *given: wrote.append(write_replies(*given)))
    batches.rehearse((TensorSpec("y", kind, shape),))
    assert len(wrote) == times


def test_nothing_is_told_of_shapes_that_were_known() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("y", "FP32", (2,))]
    members = written(memory, [TensorSpec("x", "FP32", (1,))], [[np.zeros((1, 1), np.float32)]])
    assert write_replies(memory.view, specs, members, {"y": np.ones((1, 2), np.float32)}) is None
    (y,) = tensors_at(memory.view, members[0].reply, specs, whole_shapes(specs, 1))
    assert to_array(y).tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("outputs", "complaint"),
    [
        ({}, "gave no output y"),
        ({"y": np.ones((2, 2), np.float32)}, "expected 1 items"),
        ({"y": np.ones((1, 3), np.float32)}, r"expected items of shape \(2,\), got \(3,\)"),
        ({"y": np.ones((1, 2))}, "expected FP32, got FP64"),
    ],
)
def test_a_model_that_answers_otherwise_than_promised_is_told_so(
    outputs: dict[str, np.ndarray], complaint: str
) -> None:
    memory = SharedMemory.create(1 << 17)
    members = written(memory, [TensorSpec("x", "FP32", (1,))], [[np.zeros((1, 1), np.float32)]])
    with pytest.raises(ValueError, match=complaint):
        write_replies(memory.view, [TensorSpec("y", "FP32", (2,))], members, outputs)


@pytest.mark.parametrize("answer", [[np.ones(3, np.float32)], np.ones((1, 3), np.float32)])
def test_an_answer_larger_than_its_room_is_refused_before_it_is_written(answer: Any) -> None:
    memory = SharedMemory.create(1 << 17)
    member = BatchMember(0, 1, 0, 1 << 15, 8)
    with pytest.raises(ValueError, match="more than the 8 bytes"):
        write_replies(memory.view, [TensorSpec("y", "FP32", (-1,))], [member], {"y": answer})
    assert not any(memory.view[1 << 15 : (1 << 15) + 64])


def test_tensors_of_a_block_are_aligned() -> None:
    specs = [TensorSpec("a", "UINT8", (3,)), TensorSpec("b", "FP64", (1,))]
    shapes = whole_shapes(specs, 1)
    assert block_bytes(shapes) == 2 * ALIGNMENT
    assert fixed_bytes(specs) == 2 * ALIGNMENT


def test_a_batch_is_gathered_where_its_model_wants_it() -> None:
    memory, specs = (
        SharedMemory.create(1 << 17),
        (TensorSpec("a", "INT32", (2,)), TensorSpec("b", "FP32", (1,))),
    )
    calls = [[np.array([[n, n + 1]], np.int32), np.array([[n]], np.float32)] for n in range(3)]
    members = written(memory, specs, calls)
    staged = np.zeros((3, 2), np.int32)
    batch = gathered(memory.view, specs, members, {"a": staged})
    assert batch.inputs["a"] is staged
    assert staged.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert batch.inputs["b"].tolist() == [[0], [1], [2]]
    alone = np.zeros((1, 2), np.int32)
    assert gathered(memory.view, specs, members[1:2], {"a": alone}).inputs["a"] is alone
    assert alone.tolist() == [[1, 2]]
    other = gathered(memory.view, specs, members, {"a": np.zeros((4, 2), np.int32)})  # not of this size
    assert other.inputs["a"].tolist() == [[0, 1], [1, 2], [2, 3]]
