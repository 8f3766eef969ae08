"""A request that a model cannot take is refused with the place, the value and what would be right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from astrarium.server.contract import Kind, Refused
from astrarium.server.protocol.checking import (
    CheckedTensor,
    RequestOptions,
    check_load_parameters,
    check_size,
    check_tensor_parameters,
    check_version,
    in_card_order,
    placed_inputs,
    request_options,
    wanted_outputs,
)
from astrarium.serving.live.tensors import Tensor, TensorSpec, pack_bytes
from tests.support.server.fakes import echo_card

LIMIT = 1000
PAIR = echo_card("pair", ("A", "INT32", (3,)), ("B", "FP64", (-1, 2)), max_batch=4)


@dataclass
class Given:
    name: str = "A"
    datatype: str = "INT32"
    shape: list[int] = field(default_factory=lambda: [2, 3])


A = Given()
B = Given("B", "FP64", [2, 5, 2])


def refused(*inputs: Given) -> Refused:
    with pytest.raises(Refused) as caught:
        placed_inputs(PAIR, inputs, LIMIT)
    return caught.value


def test_a_right_request_is_placed_in_the_order_given() -> None:
    placed = placed_inputs(PAIR, [B, A], LIMIT)
    assert [(tensor.spec.name, tensor.shape, tensor.elements) for tensor in placed] == [
        ("B", (2, 5, 2), 20),
        ("A", (2, 3), 6),
    ]


def test_tensors_go_on_in_the_order_of_the_card() -> None:
    tensors = [Tensor("B", "FP64", (1, 0, 2), b""), Tensor("A", "INT32", (1, 3), b"")]
    assert [tensor.name for tensor in in_card_order(PAIR, tensors)] == ["A", "B"]


WRONG: list[tuple[list[Given], str, str]] = [
    ([Given("C"), B], "inputs[0].name", "'C'"),
    ([A], "inputs", "each of A, B exactly once"),
    ([A, A, B], "inputs", "exactly once"),
    ([A, A], "inputs", "exactly once"),
    ([], "inputs", "each of A, B exactly once"),
    ([Given(datatype="INT64"), B], "inputs[0].datatype", "INT32 for A (got 'INT64')"),
    ([Given(datatype="BF16"), B], "inputs[0].datatype", "got 'BF16'"),
    ([Given(shape=[3]), B], "inputs[0].shape", "[rows, 3] for A (got [3])"),
    ([Given(shape=[]), B], "inputs[0].shape", "[rows, 3] for A"),
    ([Given(shape=[2, 4]), B], "inputs[0].shape", "[rows, 3] for A (got [2, 4])"),
    ([Given(shape=[0, 3]), B], "inputs[0].shape", "from 1 to 4 rows"),
    ([Given(shape=[5, 3]), B], "inputs[0].shape", "from 1 to 4 rows"),
    ([Given(shape=[-1, 3]), B], "inputs[0].shape", "[rows, 3]"),
    ([A, Given("B", "FP64", [2, -1, 2])], "inputs[1].shape", "-1 is any size"),
    ([A, Given("B", "FP64", [1, 5, 2])], "inputs[1].shape", "2 rows, as in inputs[0]"),
]


@pytest.mark.parametrize(("inputs", "where", "what"), WRONG)
def test_each_wrong_request_is_refused_with_its_reason(inputs: list[Given], where: str, what: str) -> None:
    refusal = refused(*inputs)
    assert refusal.kind is Kind.BAD_REQUEST
    assert refusal.reason.startswith(f"model pair: {where}: expected ")
    assert what in refusal.reason


@pytest.mark.parametrize("size", [63, 2**31, 2**62, 2**64, 2**200])
def test_a_tensor_beyond_the_limit_is_refused_however_large_the_product(size: int) -> None:
    refusal = refused(A, Given("B", "FP64", [2, size, 2]))
    assert refusal.kind is Kind.TOO_LARGE
    assert f"not {2 * size * 2 * 8}" in refusal.reason


def test_an_empty_dimension_hides_no_large_one() -> None:
    card = echo_card("m", ("X", "INT8", (-1, -1)))
    assert placed_inputs(card, [Given("X", "INT8", [1, 0, 5])], LIMIT)[0].elements == 0
    with pytest.raises(Refused, match="at most 1000 bytes"):
        placed_inputs(card, [Given("X", "INT8", [1, 0, 2**40])], LIMIT)


def placed(datatype: str, shape: tuple[int, ...], elements: int) -> CheckedTensor:
    return CheckedTensor(TensorSpec("X", datatype, shape[1:]), shape, elements, 0)


def test_binary_data_must_have_exactly_the_bytes_of_its_shape() -> None:
    check_size(placed("FP32", (2, 3), 6), bytes(24), "m")
    for wrong in (23, 25, 0):
        with pytest.raises(Refused, match=rf"inputs\[0\].data: expected 24 bytes .*got '{wrong} bytes'"):
            check_size(placed("FP32", (2, 3), 6), bytes(wrong), "m")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (pack_bytes([b"a", b"bcd"])[:-1], "elements that end with the data"),
        (pack_bytes([b"a"]), "2 elements for shape"),
        (pack_bytes([b"a", b"", b"c"]), "2 elements for shape"),
        (b"\xff\xff\xff\xff", "elements that end with the data"),
        (pack_bytes([b"a", b"b"]) + b"\x01", "elements that end with the data"),
        (b"", "2 elements for shape"),
    ],
)
def test_the_lengths_inside_bytes_must_add_up(data: bytes, what: str) -> None:
    check_size(placed("BYTES", (1, 2), 2), pack_bytes([b"a", b"bcd"]), "m")
    with pytest.raises(Refused, match=what):
        check_size(placed("BYTES", (1, 2), 2), data, "m")


def test_outputs_are_all_or_those_asked_for() -> None:
    assert wanted_outputs(PAIR, []) == ["OUT_A", "OUT_B"]
    assert wanted_outputs(PAIR, ["OUT_B"]) == ["OUT_B"]
    with pytest.raises(Refused, match=r"outputs\[1\].name: expected one of OUT_A, OUT_B.*got 'OUT_C'"):
        wanted_outputs(PAIR, ["OUT_A", "OUT_C"])
    with pytest.raises(Refused, match="at most once"):
        wanted_outputs(PAIR, ["OUT_A", "OUT_A"])


def test_parameters_become_nanoseconds_a_priority_and_a_tag() -> None:
    assert request_options({}, "tag", "m") == RequestOptions(None, 0, "tag")
    assert request_options(
        {"timeout": 7, "priority": 3, "application": "a", "other": []}, "tag", "m"
    ) == RequestOptions(7000, 3, "a")


@pytest.mark.parametrize(
    "parameters",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": 1.5},
        {"timeout": "7"},
        {"timeout": True},
        {"timeout": 2**70},
        {"priority": -1},
        {"priority": 2**32},
        {"priority": False},
        {"application": 7},
        {"application": "x" * 257},
        {"sequence_id": 1},
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=r"model m: parameters.*expected"):
        request_options(parameters, "", "m")


def test_classes_are_refused() -> None:
    check_tensor_parameters("outputs[0]", ["binary_data"], "m")
    with pytest.raises(Refused, match=r"outputs\[0\].parameters: expected .*classification"):
        check_tensor_parameters("outputs[0]", ["classification"], "m")


def test_versions_and_loads() -> None:
    check_version(PAIR, "")
    check_version(PAIR, "1")
    with pytest.raises(Refused, match="version: expected 1") as caught:
        check_version(PAIR, "2")
    assert caught.value.kind is Kind.NOT_FOUND
    check_load_parameters(["unload_dependents"], "m")
    for name in ("config", "file:1/model.onnx"):
        with pytest.raises(Refused, match="the scenario describes the model"):
            check_load_parameters([name], "m")
