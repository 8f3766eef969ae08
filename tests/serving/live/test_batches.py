"""Batches in shared memory: gathered and answered item by item, the same natively and in Python."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.layout import aligned, fixed_bytes, tensors_at, whole_shapes
from astrarium.serving.live.messages import (
    BatchMember,
    RunBatch,
    Shapes,
    decode_order,
    encode,
    packed,
    unpacked,
)
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.tensors import TensorSpec, to_array, to_bytes
from astrarium.serving.live.worker import items
from astrarium.serving.live.worker.inputs import UnequalItems, gathered
from astrarium.serving.live.worker.items import gather_one_by_one, scatter_one_by_one
from astrarium.serving.live.worker.padding import Padding
from astrarium.serving.live.worker.replies import write_replies

_tensors: Any = import_module("astrarium._tensors")


@pytest.fixture(params=["native", "python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways hold the same promises."""
    natively = _tensors if request.param == "native" else None
    monkeypatch.setattr(items, "extension", lambda name: natively)


class Written(NamedTuple):
    """Calls in shared memory: their members one by one, and shapes where the model leaves some open."""

    members: list[BatchMember]
    shapes: list[Shapes | None] | None

    @property
    def packed(self) -> bytes:
        return packed(self.members)


def batch_of(memory: SharedMemory, specs: Sequence[TensorSpec], calls: Any, staging: Any = None) -> Batch:
    members = written(memory, specs, calls)
    batch = gathered(memory.view, specs, members.packed, members.shapes, staging or {})
    assert isinstance(batch, Batch)
    return batch


def written(memory: SharedMemory, specs: Sequence[TensorSpec], calls: list[list[np.ndarray]]) -> Written:
    """Calls one after the other; a member for each of their rows, with 4 KiB to answer in."""
    members = []
    every = list[Shapes | None]()
    at = 0
    reply = 1 << 15
    for arrays in calls:
        shapes = [(array.shape, len(to_bytes(array))) for array in arrays]
        block = at
        rows = len(arrays[0])
        for array in arrays:
            data = to_bytes(array)
            memory.view[at : at + len(data)] = data
            at += aligned(len(data))
        for row in range(rows):
            members.append(BatchMember(block, rows, row, reply, 4096))
            every.append(shapes)
            reply += 4096
    return Written(members, every if fixed_bytes(specs) is None else None)


def test_rows_of_several_calls_become_one_batch_in_order() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("a", "FP32", (2,)), TensorSpec("b", "INT64", (1,))]
    first = [np.array([[1, 2], [3, 4]], np.float32), np.array([[10], [20]])]
    second = [np.array([[5, 6]], np.float32), np.array([[30]])]
    batch = batch_of(memory, specs, [first, second])
    assert batch.size == 3
    assert batch.inputs["a"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch.inputs["b"].tolist() == [[10], [20], [30]]


def test_one_call_alone_is_read_without_a_copy() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("a", "FP32", (2,))]
    array = batch_of(memory, specs, [[np.array([[1, 2], [3, 4]], np.float32)]]).inputs["a"]
    assert np.shares_memory(array, np.frombuffer(memory.view, np.uint8))


@pytest.mark.parametrize("shape", [(2,), (-1,)])
def test_nobody_can_write_into_what_a_client_sent(shape: tuple[int, ...]) -> None:
    """The same block is run again where a batch was stopped, or its worker lost."""
    memory = SharedMemory.create(1 << 17)
    calls = [[np.array([[1, 2], [3, 4]], np.float32)]]
    array = batch_of(memory, [TensorSpec("a", "FP32", shape)], calls).inputs["a"]
    with pytest.raises(ValueError, match="read-only"):
        array /= 255


def test_what_a_client_sent_can_be_answered_as_it_is() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("a", "FP32", (2,))]
    members = written(memory, specs, [[np.array([[1, 2], [3, 4]], np.float32)]])
    batch = gathered(memory.view, specs, members.packed, members.shapes)
    assert isinstance(batch, Batch)
    write_replies(memory.view, specs, members.packed, batch.inputs)
    replies = [np.frombuffer(memory.view, np.float32, 2, member.reply) for member in members.members]
    assert [reply.tolist() for reply in replies] == [[1, 2], [3, 4]]


def test_nobody_can_write_into_an_item_of_unequal_shape() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("a", "FP32", (-1,))]
    members = written(memory, specs, [[np.ones((1, 3), np.float32)], [np.ones((1, 2), np.float32)]])
    items = gathered(memory.view, specs, members.packed, members.shapes)
    assert isinstance(items, UnequalItems)
    parts = Padding(tuple(specs)).parts(items)
    assert [part.batch.inputs["a"].shape for part in parts] == [(1, 3), (1, 2)]
    assert not any(part.batch.inputs["a"].flags.writeable for part in parts)


@pytest.mark.parametrize("shape", [(2,), (-1,)])
def test_calls_of_one_row_and_one_shape_are_joined(shape: tuple[int, ...]) -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("a", "FP32", shape), TensorSpec("b", "INT64", (1,))]
    calls = [[np.array([[i, i + 1]], np.float32), np.array([[10 * i]])] for i in range(3)]
    batch = batch_of(memory, specs, calls)
    assert batch.inputs["a"].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert batch.inputs["b"].tolist() == [[0], [10], [20]]
    assert not batch.own_shapes
    batch.inputs["a"][:] = 7  # the model's own: some work in place
    assert batch_of(memory, specs, calls).inputs["a"].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_texts_are_never_joined_as_bytes() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("t", "BYTES", (1,))]
    calls = [[np.array([[word]], object)] for word in (b"one", b"two")]
    batch = batch_of(memory, specs, calls)
    assert batch.inputs["t"].tolist() == [[b"one"], [b"two"]]


def test_unequal_items_are_left_as_they_are() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("a", "FP32", (-1,)), TensorSpec("b", "INT8", ())]
    calls: list[list[np.ndarray]] = [
        [np.array([[1.0, 2.0, 3.0]], np.float32), np.array([5], np.int8)],
        [np.array([[4.0], [6.0]], np.float32), np.array([7, 8], np.int8)],
    ]
    members = written(memory, specs, calls)
    items = gathered(memory.view, specs, members.packed, members.shapes)
    assert isinstance(items, UnequalItems)
    assert [item.tolist() for item in items.arrays["a"]] == [[1, 2, 3], [4], [6]]
    assert [(item.shape, item.tolist()) for item in items.arrays["b"]] == [((), 5), ((), 7), ((), 8)]


def test_answers_land_in_their_members_rooms() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("y", "FP32", (2,)), TensorSpec("name", "BYTES", (1,))]
    members = written(memory, [TensorSpec("x", "FP32", (1,))], [[np.zeros((2, 1), np.float32)]])
    outputs = {"y": np.array([[1, 2], [3, 4]], np.float32), "name": np.array([[b"one"], [b"two"]], object)}
    shapes = write_replies(memory.view, specs, members.packed, outputs)
    assert shapes is not None
    y, name = tensors_at(memory.view, members.members[1].reply, specs, shapes[1])
    assert to_array(y).tolist() == [[3, 4]]
    assert to_array(name).tolist() == [[b"two"]]


def test_stacked_answers_are_cut_and_laid_side_by_side() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("y", "FP32", (-1,)), TensorSpec("z", "INT64", ())]
    members = written(memory, [TensorSpec("x", "FP32", (1,))], [[np.zeros((2, 1), np.float32)]])
    outputs = {"y": np.array([[1, 3], [2, 4]], np.float32).T, "z": np.array([5, 6])}  # not contiguous
    shapes = write_replies(memory.view, specs, members.packed, outputs)
    assert shapes == [[((1, 2), 8), ((1,), 8)]] * 2
    for row, member in enumerate(members.members):
        y, z = tensors_at(memory.view, member.reply, specs, shapes[row])
        assert to_array(y).tolist() == [outputs["y"][row].tolist()]
        assert to_array(z).tolist() == [5 + row]


def test_nothing_is_told_of_shapes_that_were_known() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = [TensorSpec("y", "FP32", (2,))]
    members = written(memory, [TensorSpec("x", "FP32", (1,))], [[np.zeros((1, 1), np.float32)]])
    assert write_replies(memory.view, specs, members.packed, {"y": np.ones((1, 2), np.float32)}) is None
    (y,) = tensors_at(memory.view, members.members[0].reply, specs, whole_shapes(specs, 1))
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
        write_replies(memory.view, [TensorSpec("y", "FP32", (2,))], members.packed, outputs)


@pytest.mark.parametrize("answer", [[np.ones(3, np.float32)], np.ones((1, 3), np.float32)])
def test_an_answer_larger_than_its_room_is_refused_before_it_is_written(answer: Any) -> None:
    memory = SharedMemory.create(1 << 17)
    member = BatchMember(0, 1, 0, 1 << 15, 8)
    with pytest.raises(ValueError, match="more than the 8 bytes"):
        write_replies(memory.view, [TensorSpec("y", "FP32", (-1,))], packed([member]), {"y": answer})
    assert not any(memory.view[1 << 15 : (1 << 15) + 64])


def test_a_batch_is_gathered_where_its_model_wants_it() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = (TensorSpec("a", "INT32", (2,)), TensorSpec("b", "FP32", (1,)))
    calls = [[np.array([[n, n + 1]], np.int32), np.array([[n]], np.float32)] for n in range(3)]
    staged = np.zeros((3, 2), np.int32)
    batch = batch_of(memory, specs, calls, {"a": staged})
    assert batch.inputs["a"] is staged
    assert staged.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert batch.inputs["b"].tolist() == [[0], [1], [2]]
    alone = np.zeros((1, 2), np.int32)
    assert batch_of(memory, specs, calls[1:2], {"a": alone}).inputs["a"] is alone
    assert alone.tolist() == [[1, 2]]
    other = batch_of(memory, specs, calls, {"a": np.zeros((4, 2), np.int32)})  # not of this size
    assert other.inputs["a"].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_rows_of_calls_are_gathered_where_their_model_wants_them() -> None:
    memory = SharedMemory.create(1 << 17)
    specs = (TensorSpec("a", "INT32", (2,)), TensorSpec("b", "INT8", ()))
    calls = [
        [np.arange(6, dtype=np.int32).reshape(3, 2), np.array([1, 2, 3], np.int8)],
        [np.array([[7, 8]], np.int32), np.array([4], np.int8)],
    ]
    staging: dict[str, Any] = {"a": np.zeros((4, 2), np.int32), "b": np.zeros(4, np.int8)}
    batch_of(memory, specs, calls, staging)
    assert staging["a"].tolist() == [[0, 1], [2, 3], [4, 5], [7, 8]]
    assert staging["b"].tolist() == [1, 2, 3, 4]


def test_applications_travel_with_the_members() -> None:
    memory = SharedMemory.create(1 << 12)
    specs = [TensorSpec("a", "INT8", ())]
    members = packed([BatchMember(64 * n, 1, 0, 0, 0, application=7 * n) for n in range(3)])
    assert gathered(memory.view, specs, members).applications == [0, 7, 14]


MEMORY = 1 << 12
FAR = st.sampled_from([-(1 << 63), -1, MEMORY, (1 << 63) - 1])
PLACE = st.integers(0, MEMORY // 2) | FAR
MEMBER = st.builds(
    BatchMember,
    PLACE,
    st.integers(1, 3) | FAR,
    st.integers(0, 2) | FAR,
    PLACE,
    st.integers(0, 600) | FAR,
    st.just(0),
)
FITS = st.builds(
    BatchMember,
    st.integers(0, 512),
    st.just(3),
    st.integers(0, 2),
    st.integers(0, 3000),
    st.just(700),
    st.just(0),
)
MEMBERS = st.lists(FITS, min_size=1, max_size=5) | st.lists(MEMBER, min_size=1, max_size=3)
SIZES = st.lists(st.integers(0, 130), min_size=1, max_size=3)


def outcome(copy: Any, members: Sequence[BatchMember], sizes: list[int]) -> tuple[str, bytes, list[bytes]]:
    """Return the error, if any, and every byte of memory and arrays afterwards."""
    view = memoryview(bytearray(np.random.default_rng(1).bytes(MEMORY)))
    arrays = [np.full(len(members) * size, place, np.uint8) for place, size in enumerate(sizes)]
    error = ""
    try:
        copy(view, packed(members), sizes, arrays)
    except ValueError as caught:
        error = str(caught)
    return error, bytes(view), [array.tobytes() for array in arrays]


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(MEMBERS, SIZES)
def test_native_code_copies_and_refuses_what_python_does(
    members: list[BatchMember], sizes: list[int]
) -> None:
    pairs = (_tensors.gather, gather_one_by_one), (_tensors.scatter, scatter_one_by_one)
    for native, reference in pairs:
        assert outcome(native, members, sizes) == outcome(reference, members, sizes)


@pytest.mark.parametrize(
    ("member", "complaint"),
    [
        (BatchMember(MEMORY, 1, 0, 0, 64), "member 0: row 0 of the block at 4096 lies outside of the 4096"),
        (BatchMember(0, 2, 2, 0, 64), "member 0: there is no row 2 in a block of 2"),
    ],
)
def test_an_item_that_is_not_in_the_memory_is_refused(member: BatchMember, complaint: str) -> None:
    view = memoryview(bytearray(MEMORY))
    with pytest.raises(ValueError, match=complaint):
        items.gather_items(view, packed([member]), [8], [np.zeros(8, np.uint8)])


def test_a_reply_room_outside_of_the_memory_is_refused() -> None:
    room = BatchMember(0, 1, 0, MEMORY - 32, 64)
    with pytest.raises(
        ValueError, match="member 0: the 64 bytes for a reply at 4064 lie outside of the 4096"
    ):
        items.scatter_items(memoryview(bytearray(MEMORY)), packed([room]), [8], [np.zeros(8, np.uint8)])


def test_members_that_are_cut_short_are_refused() -> None:
    with pytest.raises(ValueError, match="members: expected rows of 48 bytes, got 47 bytes"):
        items.gather_items(memoryview(bytearray(64)), bytes(47), [8], [np.zeros(8, np.uint8)])


def test_members_survive_packing() -> None:
    members = [BatchMember(1, 2, 3, 4, 5, 6), BatchMember(-1, 1 << 40, 0, (1 << 63) - 1, 0)]
    assert unpacked(packed(members)) == members
    assert len(packed(members)) == 2 * 48


def test_an_order_to_run_a_batch_is_what_native_code_writes() -> None:
    members = packed([BatchMember(64, 1, 0, 128, 64)])
    shapes: list[Shapes | None] = [[((1, 3), 12)]]
    plain = ["RunBatch", 7, 2, members, 5, [[[[1, 3], 12]]]]
    assert msgspec.msgpack.decode(encode(RunBatch(7, 2, members, 5, shapes))) == plain
    assert msgspec.msgpack.decode(encode(RunBatch(7, 2, members)))[4:] == [0, None]
    assert decode_order(memoryview(msgspec.msgpack.encode(plain))) == RunBatch(7, 2, members, 5, shapes)
