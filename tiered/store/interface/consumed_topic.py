"""`ConsumedTopic`: what a consumer needs of a topic."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping
from typing import Protocol

import pyarrow as pa

from ...engine.records import OffsetRange
from ...engine.topic_shape import TopicShape
from ...format.topic_meta import TopicMeta


class ConsumedTopic(Protocol):
    """What a consumer needs of a topic; see `Topic`."""

    @property
    def opened(self) -> TopicShape: ...
    @property
    def name(self) -> str: ...
    @property
    def meta(self) -> TopicMeta: ...
    @property
    def schema(self) -> pa.Schema: ...
    def durable_offsets(self, partitions: Iterable[int]) -> dict[int, OffsetRange]: ...
    def durable_batches(
        self, partition: int, offset: int, count: int, lineage: int | None = None
    ) -> Generator[pa.RecordBatch, None, int]: ...
    def wait_durable(self, ends: Mapping[int, int], seconds: float | None, wake: threading.Event) -> None: ...
    def offset_at(self, timestamp: object, partition: int = 0) -> int: ...
    def lineages_of(self, partitions: Iterable[int]) -> dict[int, int]: ...
    def common_end(self, partition: int, epoch: int) -> int: ...
