"""Typed structures are the JSON of the Open Inference Protocol; the OpenAPI description is made of them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from astrarium.server.contract import HeldInput
from astrarium.server.statistics import StatisticsOfModel

Parameters = dict[str, Any]


class InputTensor(Struct):
    """One input. Its elements stand in `data`, or after the JSON as `binary_data_size` bytes."""

    name: str
    shape: list[int]
    datatype: str
    data: Raw | UnsetType = UNSET
    parameters: Parameters = {}


class WantedOutput(Struct):
    """An output that the client asks for; `binary_data` says in which form."""

    name: str
    parameters: Parameters = {}


class InferRequest(Struct):
    inputs: list[InputTensor]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[WantedOutput] = []


class OutputTensor(Struct, omit_defaults=True):
    """One output: flat `data` (null stands for a number that JSON cannot write), or binary after the JSON."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | Raw | UnsetType = UNSET
    parameters: Parameters | UnsetType = UNSET


class InferResponse(Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str = ""


class ErrorAnswer(Struct):
    error: str


class Live(Struct):
    live: bool


class Ready(Struct):
    ready: bool


class ServerMetadata(Struct):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Struct, omit_defaults=True):
    """The first dimension is the batch; -1 is any size.

    `parameters` of an input say which numbers it takes: `values` from the first to the second, or `finite`.
    """

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters = {}


class ModelMetadata(Struct):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelParameter(Struct):
    string_value: str


class TensorConfig(Struct):
    """The dimensions of one item, without the batch."""

    name: str
    data_type: str
    dims: list[int]


class VersionPolicy(Struct):
    latest: dict[str, int]


class QueuePolicy(Struct):
    default_timeout_microseconds: int
    allow_timeout_override: bool = True


class DynamicBatching(Struct):
    default_queue_policy: QueuePolicy
    priority_levels: int = 0


class TransactionPolicy(Struct):
    decoupled: bool = False


class ModelConfig(Struct):
    name: str
    platform: str
    backend: str
    version_policy: VersionPolicy
    max_batch_size: int
    input: list[TensorConfig]
    output: list[TensorConfig]
    dynamic_batching: DynamicBatching
    model_transaction_policy: TransactionPolicy
    # The limits of inputs, in JSON: `values:NAME`, `finite:NAME`, `shape:NAME`; `padding` (or `packing`),
    # its reason and what to do.
    parameters: dict[str, ModelParameter] = {}


class StatisticsAnswer(Struct):
    model_stats: list[StatisticsOfModel]


class IndexRequest(Struct):
    """`ready: true` leaves out the models that are not."""

    ready: bool = False


class IndexEntry(Struct):
    name: str
    version: str
    state: str
    reason: str


class ChangeRequest(Struct):
    """The body of load and unload."""

    parameters: Parameters = {}


class RegionForm(Struct):
    """A region to register: so many bytes of the shared memory object *key*, from the offset on."""

    key: str
    byte_size: int
    offset: int = 0


class RegionEntry(Struct):
    """A region of shared memory that this client has registered."""

    name: str
    key: str
    offset: int
    byte_size: int


class Quarantine(Struct):
    """The inputs of a model that are refused, since each of them has broken a worker."""

    inputs: list[HeldInput]


class Released(Struct):
    released: int


class Pointers(Struct):
    """Where to look next."""

    about: str
    links: dict[str, str]


Last = Annotated[int, Meta(ge=1, le=100_000)]
