"""Shared memory: blocks that never overlap, tensors that come out as they went in."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.optional import extension
from astrarium.serving.live.layout import ALIGNMENT, block_bytes, fixed_bytes, whole_shapes
from astrarium.serving.live.shared_memory import SharedMemory
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

SMALLEST = 256  # kSmallest in native/exchange/arena.h
SIZE = 64 * SMALLEST


def arena_of(size: int) -> Any:
    front: Any = extension("_front")
    return front.Arena(size)


@given(st.lists(st.one_of(st.integers(1, SIZE), st.none()), max_size=80), st.randoms(use_true_random=False))
def test_blocks_never_overlap_and_all_of_it_can_be_had_again(
    wishes: list[int | None], chance: object
) -> None:
    arena = arena_of(SIZE)
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
    arena = arena_of(SIZE)
    assert arena.take(SIZE + 1) is None
    assert [arena.take(SIZE // 2) for _ in range(3)].count(None) == 1
    with pytest.raises(ValueError, match="at least 256 bytes"):
        arena_of(SMALLEST - 1)


def test_a_block_given_back_twice_is_our_fault() -> None:
    arena = arena_of(SIZE)
    offset = arena.take(1)
    assert offset is not None
    arena.give_back(offset)
    with pytest.raises(IndexError):
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


def test_tensors_of_a_block_are_aligned() -> None:
    specs = [TensorSpec("a", "UINT8", (3,)), TensorSpec("b", "FP64", (1,))]
    shapes = whole_shapes(specs, 1)
    assert block_bytes(shapes) == 2 * ALIGNMENT
    assert fixed_bytes(specs) == 2 * ALIGNMENT


def test_a_memory_that_is_gone_leaves_no_descriptor() -> None:
    descriptor = SharedMemory.create(1 << 16).fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
