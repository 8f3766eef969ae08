"""Cards and statistics in the protocol's words: the same structures answer over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterable

from astrarium import __version__
from astrarium.server.contract import ModelCard, ModelStatistics, Tally
from astrarium.server.wire import (
    BatchStatistics,
    Duration,
    DynamicBatching,
    IndexEntry,
    InferStatistics,
    ModelConfig,
    ModelMetadata,
    QueuePolicy,
    ServerMetadata,
    StatisticsAnswer,
    StatisticsOfModel,
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


def server_metadata() -> ServerMetadata:
    return ServerMetadata("astrarium", __version__, EXTENSIONS)


def model_metadata(card: ModelCard) -> ModelMetadata:
    inputs, outputs = (
        [TensorMetadata(spec.name, spec.datatype, [-1, *spec.shape]) for spec in specs]
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
    )


def _tensor_config(spec: TensorSpec) -> TensorConfig:
    data_type = "TYPE_STRING" if spec.datatype == BYTES else f"TYPE_{spec.datatype}"
    return TensorConfig(spec.name, data_type, list(spec.shape))


def statistics_answer(statistics: Iterable[ModelStatistics]) -> StatisticsAnswer:
    return StatisticsAnswer([_statistics(one) for one in statistics])


def _statistics(one: ModelStatistics) -> StatisticsOfModel:
    return StatisticsOfModel(
        one.name,
        one.version,
        one.last_inference_ms,
        one.inferences,
        one.executions,
        _infer_statistics(one),
        [_batch_statistics(size, tally) for size, tally in sorted(one.batches.items())],
    )


def _infer_statistics(one: ModelStatistics) -> InferStatistics:
    return InferStatistics(
        _duration(one.success),
        _duration(one.fail),
        _duration(one.queue),
        _duration(one.compute_input),
        _duration(one.compute_infer),
        _duration(one.compute_output),
    )


def _batch_statistics(size: int, tally: Tally) -> BatchStatistics:
    moved = Duration(tally.count, 0)  # not told apart by batch size
    return BatchStatistics(size, moved, _duration(tally), moved)


def _duration(tally: Tally) -> Duration:
    return Duration(tally.count, tally.ns)


def index_entries(cards: Iterable[ModelCard], only_ready: bool) -> list[IndexEntry]:
    return [
        IndexEntry(card.name, card.version, *card.health)
        for card in cards
        if card.health[0] == "READY" or not only_ready
    ]
