"""A model's statistics, in the protocol's own words: both protocols answer with these structures."""

from __future__ import annotations

from msgspec import Struct


class Duration(Struct, frozen=True):
    count: int = 0
    ns: int = 0  # that all of them took


class InferStatistics(Struct):
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration = Duration()  # there is no cache
    cache_miss: Duration = Duration()


class BatchStatistics(Struct):
    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class StatisticsOfModel(Struct):
    name: str
    version: str
    last_inference: int  # milliseconds since the epoch, 0 if there was none
    inference_count: int  # items
    execution_count: int  # batches
    inference_stats: InferStatistics
    batch_stats: list[BatchStatistics]
