"""A model's card in the protocol's words: the same structures answer over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import json

from astrarium import __version__
from astrarium.server.contract import ModelCard
from astrarium.server.protocol.wire import (
    DynamicBatching,
    IndexEntry,
    ModelConfig,
    ModelMetadata,
    ModelParameter,
    Parameters,
    QueuePolicy,
    ServerMetadata,
    TensorConfig,
    TensorMetadata,
    TransactionPolicy,
    VersionPolicy,
)
from astrarium.serving.live.tensors import BYTES, TensorSpec

EXTENSIONS = [
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
]


def server_metadata(has_regions: bool) -> ServerMetadata:
    extensions = [*EXTENSIONS, "system_shared_memory"] if has_regions else EXTENSIONS
    return ServerMetadata("astrarium", __version__, extensions)


def model_metadata(card: ModelCard) -> ModelMetadata:
    inputs, outputs = (
        [TensorMetadata(spec.name, spec.datatype, [-1, *spec.shape], _limits(spec)) for spec in specs]
        for specs in (card.inputs, card.outputs)
    )
    return ModelMetadata(card.name, [card.version], card.platform, inputs, outputs)


def model_config(card: ModelCard) -> ModelConfig:
    queue = QueuePolicy(default_timeout_microseconds=card.slo // 1000)
    return ModelConfig(
        card.name,
        card.platform,
        backend=card.platform,
        version_policy=VersionPolicy({"num_versions": 1}),
        max_batch_size=card.max_batch,
        input=[_tensor_config(spec) for spec in card.inputs],
        output=[_tensor_config(spec) for spec in card.outputs],
        dynamic_batching=DynamicBatching(queue, max(card.priorities, default=0)),
        model_transaction_policy=TransactionPolicy(),
        parameters={
            f"{name}:{spec.name}": ModelParameter(json.encode(limit).decode())
            for spec in card.inputs
            for name, limit in _limits(spec).items()
        }
        | {name: ModelParameter(text) for name, text in _padding(card).items()},
    )


def _padding(card: ModelCard) -> dict[str, str]:
    """Return whether padding, or packing, is safe or changes answers, how that showed, and what to do."""
    verdict, reason, advice = card.padding
    name = "packing" if card.packed else "padding"
    to_do = f"model {card.name}: {advice}" if advice else ""
    words = {name: verdict, f"{name}_reason": reason, f"{name}_advice": to_do}
    return {name: text for name, text in words.items() if text}


def _limits(spec: TensorSpec) -> Parameters:
    """Return what an input takes, as the scenario says it."""
    values = {} if spec.values is None else {"values": list(spec.values)}
    finite = {"finite": True} if spec.finite else {}
    return {**values, **finite, **({"shape": _ranged(spec)} if spec.ranges else {})}


def _ranged(spec: TensorSpec) -> list[int | str]:
    ranges = [spec.sizes_of(place) for place in range(len(spec.shape))]
    return [
        size if size >= 0 or one is None else f"{one[0]}..{one[1]}"
        for size, one in zip(spec.shape, ranges, strict=True)
    ]


def _tensor_config(spec: TensorSpec) -> TensorConfig:
    data_type = "TYPE_STRING" if spec.datatype == BYTES else f"TYPE_{spec.datatype}"
    return TensorConfig(spec.name, data_type, list(spec.shape))


def index_entries(cards: Iterable[ModelCard], only_ready: bool) -> list[IndexEntry]:
    return [
        IndexEntry(card.name, card.version, *card.health)
        for card in cards
        if card.health[0] == "READY" or not only_ready
    ]
