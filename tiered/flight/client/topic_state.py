"""`TopicState`: the shape of a served topic as a client knows it, with its connection and its appender."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from ...engine.lifecycle import Lifecycle
from ...engine.topic_shape import TopicShape
from ...format.schema import TIMESTAMP
from ...format.timestamps import plain_int
from ...format.topic_meta import TopicMeta
from ...hot.row_buffer import RecordBuffer, RowBuffer, RowLayout
from ...settings.sections import StoreSettings
from .appender import Appender
from .connection import Connection


class TopicState(TopicShape):
    """The shape of a topic behind a server, its connection and its appender. Thread-safe.

    Attributes
    ----------
    lifecycle
        The state of the connected store.
    lock
        Held while the shape changes.
    """

    def __init__(
        self,
        meta: TopicMeta,
        options: StoreSettings,
        clock: Callable[[], int],
        connection: Connection,
        lifecycle: Lifecycle,
    ) -> None:
        super().__init__(meta, options, clock)
        self.connection = connection
        self.lifecycle = lifecycle
        self.lock = threading.RLock()
        self.appender = Appender(
            connection, lambda: self.meta, self.refresh, self.new_buffer, self.waits, self.block_bytes
        )

    def set_meta(self, meta: TopicMeta) -> None:
        super().set_meta(meta)
        self._layout = RowLayout.of(meta.schema)

    def new_buffer(self) -> RecordBuffer | RowBuffer:
        """Return an empty buffer for records of the topic."""
        return RowBuffer(0, self._layout) if self.typed else RecordBuffer(0)

    def refresh(self) -> None:
        """Load the topic's document from the server."""
        self.take_over(describe(self.connection, self.name))

    def take_over(self, meta: TopicMeta) -> None:
        """Use a document of the server, unless it is that of another topic with the same name."""
        with self.lock:
            if meta.topic_id == self.meta.topic_id and meta != self.meta:
                self.set_meta(meta)

    def grow(self, found: Mapping[str, Any]) -> None:
        """Refresh if an answer shows that the topic has more columns or partitions."""
        if found["partitions"] > self.partitions or found["schema_id"] > self.meta.schema_id:
            self.refresh()

    def check_partition(self, partition: int) -> int:
        partition = plain_int(partition)
        if type(partition) is int and partition >= self.partitions:
            self.refresh()  # others may have added it
        return super().check_partition(partition)


def describe(connection: Connection, name: str) -> TopicMeta:
    """Return the document of a topic as the server has it.

    Raises
    ------
    TopicNotFound, ServerUnavailable, CorruptionError
    """
    found = connection.action("describe_topic", {"topic": name})
    return TopicMeta.from_json(found["topic"], where="the server's answer")


def body_of_rows(batch: pa.RecordBatch, timestamps: pa.Array | None) -> pa.RecordBatch:
    """Put the record timestamps in front of a batch. The server's clock replaces those that are null."""
    stamps = pa.nulls(batch.num_rows, TIMESTAMP) if timestamps is None else timestamps
    schema = pa.schema([pa.field("timestamp", TIMESTAMP), *batch.schema])
    return pa.RecordBatch.from_arrays([stamps, *batch.columns], schema=schema)
