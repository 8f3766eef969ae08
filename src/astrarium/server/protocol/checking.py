"""Checks tell whether a model can take a request, before a byte of its tensors is allocated or read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

from astrarium.core.errors import InputError, one_of
from astrarium.core.optional import extension
from astrarium.core.quantities import FOREVER, MICROSECOND, Time
from astrarium.server.contract import Kind, ModelCard, Refused
from astrarium.serving.live.limits import violation
from astrarium.serving.live.packing import unlike
from astrarium.serving.live.tensors import BYTES, DATATYPES, Tensor, TensorSpec

LARGEST_PRIORITY = 2**32 - 1
LARGEST_TIMEOUT = FOREVER // MICROSECOND
LONGEST_TAG = 256
MOST_TEXTS = 1_000_000  # elements of one BYTES tensor: a worker makes objects of them in some 30 ms
_SHOWN = 16  # names or sizes in a refusal
_LENGTH_BYTES = 4  # in front of each element of BYTES
_ELEMENT_BYTES = {name: dtype.itemsize for name, dtype in DATATYPES.items()} | {BYTES: _LENGTH_BYTES}


def bad(field: str, value: object, expected: str, model: str = "") -> Refused:
    """Return a refusal that names the place, the value and what would be right."""
    source = f"model {model}" if model else ""
    return Refused(Kind.BAD_REQUEST, str(InputError(field, value, expected, source)))


class Described(Protocol):
    """A described tensor is one as a client announces it, over either protocol."""

    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> str: ...
    @property
    def shape(self) -> Sequence[int]: ...


class CheckedTensor(NamedTuple):
    """A checked tensor was announced by a client, and is one that the model takes."""

    spec: TensorSpec
    shape: tuple[int, ...]
    elements: int
    at: int  # which of the request's inputs

    @property
    def field(self) -> str:
        return f"inputs[{self.at}]"


def placed_inputs(card: ModelCard, announced: Sequence[Described], limit: int) -> list[CheckedTensor]:
    """Return the inputs as *announced*, each with what the card says of it; *limit* is in bytes, for each."""
    if card.state != "READY":  # of a model that is not loaded nobody knows the inputs
        raise Refused(Kind.UNAVAILABLE, f"model {card.name} is not ready: {card.reason}")
    specs = {spec.name: spec for spec in card.inputs}
    if len(announced) > len(specs):  # first: a client may send any number of them
        raise _wrong_names(card, announced)
    placed = [_placed(card, specs, tensor, at, limit) for at, tensor in enumerate(announced)]
    if len({tensor.spec.name for tensor in placed}) != len(specs):
        raise _wrong_names(card, announced)
    _check_same_rows(card, placed)
    _check_same_lengths(card, placed)
    return placed


def _placed(
    card: ModelCard, specs: dict[str, TensorSpec], announced: Described, at: int, limit: int
) -> CheckedTensor:
    spec = specs.get(announced.name)
    if spec is None:
        raise bad(f"inputs[{at}].name", announced.name, one_of(list(specs), announced.name), card.name)
    if announced.datatype != spec.datatype:
        raise bad(f"inputs[{at}].datatype", announced.datatype, f"{spec.datatype} for {spec.name}", card.name)
    shape = tuple(announced.shape)
    _check_shape(card, spec, shape, f"inputs[{at}].shape")
    elements = prod(shape)
    # A dimension of 0 leaves nothing to hold, but the others must still be sizes that an array can have.
    size = (elements or prod(max(dimension, 1) for dimension in shape)) * _ELEMENT_BYTES[spec.datatype]
    if size > limit:
        expected = f"a tensor of at most {limit} bytes, not {size}"
        raise Refused(Kind.TOO_LARGE, bad(f"inputs[{at}].shape", list(shape), expected, card.name).reason)
    if spec.datatype == BYTES and elements > MOST_TEXTS:
        expected = f"at most {MOST_TEXTS} elements of {BYTES}"
        raise Refused(Kind.TOO_LARGE, bad(f"inputs[{at}].shape", list(shape), expected, card.name).reason)
    return CheckedTensor(spec, shape, elements, at)


def _check_shape(card: ModelCard, spec: TensorSpec, shape: tuple[int, ...], field: str) -> None:
    item = shape[1:]
    if not shape or (item != spec.shape and not spec.admits(item)) or min(shape) < 0:
        wanted = ", ".join(map(str, ("rows", *spec.shape)))
        any_size = ", where -1 is any size" if -1 in spec.shape else ""
        beyond = spec.beyond_range(item) if len(item) == len(spec.shape) else None
        if beyond is not None and min(shape) >= 0:
            low, high = spec.sizes_of(beyond) or (0, 0)
            expected = f"from {low} to {high} for {spec.name}"
            raise bad(f"{field}[{beyond + 1}]", shape[beyond + 1], expected, card.name)
        raise bad(field, list(shape[:_SHOWN]), f"[{wanted}] for {spec.name}{any_size}", card.name)
    if not 1 <= shape[0] <= card.max_batch:
        raise bad(field, list(shape), f"from 1 to {card.max_batch} rows (the first dimension)", card.name)


def _wrong_names(card: ModelCard, announced: Sequence[Described]) -> Refused:
    wanted = ", ".join(spec.name for spec in card.inputs)
    names = [tensor.name for tensor in announced[:_SHOWN]]
    return bad("inputs", names, f"each of {wanted or 'no inputs at all'} exactly once", card.name)


def _check_same_rows(card: ModelCard, placed: list[CheckedTensor]) -> None:
    for other in placed[1:]:
        if other.shape[0] != placed[0].shape[0]:
            expected = f"{placed[0].shape[0]} rows, as in {placed[0].field}"
            raise bad(f"{other.field}.shape", list(other.shape), expected, card.name)


def _check_same_lengths(card: ModelCard, placed: list[CheckedTensor]) -> None:
    """Check that inputs that are packed are equally long: the model is told offsets once, for all of them."""
    if places := unlike([tensor.spec for tensor in placed], [tensor.shape for tensor in placed]):
        first, other = (placed[place] for place in places)
        expected = f"{first.shape[1]}, as {first.spec.name} has in {first.field}"
        raise bad(f"{other.field}.shape[1]", other.shape[1], expected, card.name)


def in_card_order(card: ModelCard, tensors: list[Tensor]) -> list[Tensor]:
    if len(tensors) < 2:
        return tensors
    order = {spec.name: at for at, spec in enumerate(card.inputs)}
    return sorted(tensors, key=lambda tensor: order[tensor.name])


def bytes_of(placed: CheckedTensor) -> int | None:
    """Return the bytes of a tensor, or None where those of its elements vary."""
    if placed.spec.datatype == BYTES:
        return None
    return placed.elements * _ELEMENT_BYTES[placed.spec.datatype]


def check_size(placed: CheckedTensor, data: bytes | memoryview, model: str) -> None:
    """Refuse binary *data* that is not exactly what the announced tensor needs."""
    size = bytes_of(placed)
    if size is None:
        check_elements(placed, data, model)
    elif len(data) != size:
        expected = f"{size} bytes for {placed.spec.datatype} {list(placed.shape)}"
        raise bad(f"{placed.field}.data", f"{len(data)} bytes", expected, model)


def check_elements(placed: CheckedTensor, data: bytes | memoryview, model: str) -> None:
    """Refuse binary BYTES *data* whose lengths do not add up, without copying an element."""
    end = len(data)
    elements, end_of_elements = bytes_elements(data, placed.elements)
    if elements > placed.elements and end_of_elements <= end:
        expected = f"{placed.elements} elements for shape {list(placed.shape)}"
        raise bad(f"{placed.field}.data", "more elements", expected, model)
    if end_of_elements != end:
        expected = f"elements that end with the data, after {end} bytes"
        raise bad(
            f"{placed.field}.data",
            f"element {max(elements - 1, 0)} ends after {end_of_elements}",
            expected,
            model,
        )
    if elements != placed.elements:
        expected = f"{placed.elements} elements for shape {list(placed.shape)}"
        raise bad(f"{placed.field}.data", f"{elements} elements", expected, model)


def check_values(placed: CheckedTensor, data: bytes | memoryview, model: str) -> None:
    """Refuse a tensor that breaks the limits of its input, naming the first element that does."""
    wrong = violation(placed.spec, placed.shape, data)
    if wrong is not None:
        raise bad(*wrong, model)


def bytes_elements(data: bytes | memoryview, most: int) -> tuple[int, int]:
    """Return how many elements BYTES *data* holds (at most one more than *most*), and where they end."""
    native = extension("_tensors")
    if native is not None:
        counted: tuple[int, int] = native.bytes_elements(data, most)
        return counted
    elements = 0
    at = 0
    while at + _LENGTH_BYTES <= len(data) and elements <= most:
        at += _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
        elements += 1
    return elements, at


def wanted_outputs(card: ModelCard, names: Sequence[str]) -> list[str]:
    """Return the outputs to answer with: those asked for, in that order, or all."""
    known = [spec.name for spec in card.outputs]
    if len(names) > len(known):
        raise bad("outputs", list(names[:_SHOWN]), "each output at most once", card.name)
    for at, name in enumerate(names):
        if name not in known:
            raise bad(f"outputs[{at}].name", name, one_of(known, name), card.name)
    if len(set(names)) != len(names):
        raise bad("outputs", list(names[:_SHOWN]), "each output at most once", card.name)
    return list(names) or known


def check_tensor_parameters(field: str, names: Iterable[str], model: str) -> None:
    """Refuse parameters that would change the meaning of a tensor and are not offered here."""
    for name in names:
        if name == "classification":
            raise bad(f"{field}.parameters", name, "no classification: sort the output yourself", model)


class RequestOptions(NamedTuple):
    """Request options are what a request's parameters ask for."""

    timeout: Time | None = None
    priority: int = 0
    application: str = ""


def request_options(parameters: Mapping[str, Any], application: str, model: str) -> RequestOptions:
    """Return a request's options; *application* is a header's tag, unless a parameter gives another."""
    for name in parameters:
        if name.startswith("sequence_"):
            raise bad("parameters", name, "requests that stand alone: sequences are not served", model)
    timeout = _whole(parameters, "timeout", 1, LARGEST_TIMEOUT, model)
    priority = _whole(parameters, "priority", 0, LARGEST_PRIORITY, model)
    tag = parameters.get("application", application)
    if not isinstance(tag, str) or len(tag) > LONGEST_TAG:
        raise bad("parameters.application", tag, f"a string of at most {LONGEST_TAG} characters", model)
    return RequestOptions(None if timeout is None else timeout * MICROSECOND, priority or 0, tag)


def _whole(parameters: Mapping[str, Any], name: str, low: int, high: int, model: str) -> int | None:
    value = parameters.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        unit = " (microseconds)" if name == "timeout" else ""
        raise bad(f"parameters.{name}", value, f"a whole number from {low} to {high}{unit}", model)
    return value


def check_version(card: ModelCard, version: str) -> None:
    if version not in ("", card.version):
        raise Refused(
            Kind.NOT_FOUND,
            str(InputError("version", version, f"{card.version}, the only one", f"model {card.name}")),
        )


def check_load_parameters(names: Iterable[str], model: str) -> None:
    """Refuse parameters of a load: a model is loaded as the scenario describes it."""
    for name in names:
        if name == "config" or name.startswith("file:"):
            raise bad("parameters", name, "no config or files: the scenario describes the model", model)
