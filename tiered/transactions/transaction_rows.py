"""`TransactionRows`: the rows of one transaction in memory, by topic and partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from ..engine.append import MANY_ROWS_MIN, PreparedRecord, prepare_record, prepare_records, shares_of
from ..engine.ingest import (
    add_null_columns,
    body_of,
    by_partition,
    cast_batches,
    check_records,
    key_presence,
    plain_records,
    record_lists,
)
from ..engine.records import Record
from ..engine.topic_shape import TopicShape
from ..errors import RecordTooLarge
from ..format.block import Body
from ..format.block_rows import encode_blocks, split
from ..format.record import partition_of
from ..format.schema import body_schema
from ..format.sizes import bytes_bound
from ..hot.row_blocks import encode_rows
from ..hot.row_buffer import RECORD_OVERHEAD_BYTES, PlainRecords, RecordBuffer, RowBuffer, RowLayout

TRANSACTION_BYTES_MAX = 32 << 20
"""The size limit of the rows of one transaction in memory."""
_CHUNK_ROWS = 1 << 16

_Topic = TypeVar("_Topic", bound=TopicShape)


class EncodedPart(NamedTuple, Generic[_Topic]):
    """The rows of one partition, encoded: what a commit needs of them."""

    topic: _Topic
    partition: int
    schema_id: int
    bodies: list[Body]
    rows: int
    length: int


class TransactionRows(Generic[_Topic]):
    """Rows in the order in which they were added. Not thread-safe.

    Rows without a key and without a partition go to one partition of their topic, which changes from transaction to
    transaction.

    Parameters
    ----------
    bytes_max
        The size limit of all rows in memory.
    """

    def __init__(self, bytes_max: int = TRANSACTION_BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._parts: dict[tuple[str, int], _PartRows[_Topic]] = {}
        self._keyless: dict[str, int] = {}

    def add(
        self, topic: _Topic, value: Any, key: object, headers: object, timestamp: object, partition: int | None
    ) -> None:  # fmt: skip
        """Add one record; the arguments are those of `Topic.append`.

        Raises
        ------
        SchemaMismatch, RecordTooLarge, TopicNotFound
            The transaction is as before.
        """
        self._add([self._share_of(topic, prepare_record(topic, value, key, headers, timestamp, partition))])

    def add_many(self, topic: _Topic, records: Iterable[bytes | Mapping[str, Any] | Record]) -> None:
        """Add records, all or none; see `Topic.append_many`."""
        shares: list[_Share[_Topic]] = []
        size = self.bytes
        for chunk in record_lists(records, _CHUNK_ROWS):
            plain = plain_records(topic, chunk) if len(chunk) >= MANY_ROWS_MIN else None
            if plain is None:
                new = [self._share_of(topic, record) for record in prepare_records(topic, chunk)]
            else:
                keyless = self._keyless_of(topic)
                new = [
                    _Share(topic, keyless if partition is None else partition, share.total_bytes, share)
                    for partition, share in shares_of(topic, plain, keyless)
                ]
            size += sum(share.bytes for share in new)
            self._check_size(size)  # before the next chunk is taken
            shares += new
        self._add(shares)

    def add_batch(self, topic: _Topic, data: Any, partition: int | None) -> None:
        """Add Arrow data, all or none; see `Topic.append_batch`."""
        if partition is not None:
            partition = topic.check_partition(partition)
        shares: list[_Share[_Topic]] = []
        size, now_us = self.bytes, topic.clock()
        for batch, timestamps in cast_batches(data, topic.schema, topic.record_bytes_max):
            if batch.num_rows:
                size += bytes_bound(batch)
                self._check_size(size)
                body = body_of(batch, timestamps, topic.meta.timestamp, now_us)
                check_records(body, topic.record_bytes_max)
                for chosen, rows in self._divided(topic, body, batch, partition):
                    shares.append(_Share(topic, chosen, bytes_bound(rows), rows))
        self._add(shares)

    def _divided(
        self, topic: _Topic, body: pa.RecordBatch, batch: pa.RecordBatch, partition: int | None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        if partition is not None or topic.partitions == 1:
            yield partition or 0, body
            return
        key, keyless = topic.key_column, self._keyless_of(topic)
        column = batch.column(key) if key is not None else None
        if column is None or not key_presence(column)[0]:
            yield keyless, body
            return
        for chosen, rows in by_partition(body, column, topic.partitions, keyless):
            yield keyless if chosen is None else chosen, rows

    def _share_of(self, topic: _Topic, record: PreparedRecord) -> _Share[_Topic]:
        chosen = record.partition
        if chosen is None:
            key = record.partition_key
            chosen = partition_of(key, topic.partitions) if key else self._keyless_of(topic)
        overhead = topic.row_bytes if topic.typed else RECORD_OVERHEAD_BYTES
        return _Share(topic, chosen, record.size + overhead, record)

    def _keyless_of(self, topic: _Topic) -> int:
        chosen = self._keyless.get(topic.name)
        if chosen is None:
            chosen = self._keyless[topic.name] = topic.sticky
            topic.sticky = (chosen + 1) % topic.partitions
        return chosen

    def _add(self, shares: list[_Share[_Topic]]) -> None:
        size = self.bytes + sum(share.bytes for share in shares)
        self._check_size(size)
        for share in shares:
            place = share.topic.name, share.partition
            part = self._parts.get(place)
            if part is None:
                part = self._parts[place] = _PartRows(share.topic, share.partition)
            part.add(share)
        self.bytes = size

    def _check_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise RecordTooLarge(
                f"a transaction holds at most {self._bytes_max} bytes of rows, and this one would have {size}; nothing of "
                "this call was added: commit what it has, and go on in another one"
            )

    @property
    def topics(self) -> list[str]:
        """The names of the topics, in the order of their first rows."""
        return list(dict.fromkeys(topic for topic, _ in self._parts))

    def encode(self) -> list[EncodedPart[_Topic]]:
        """Return the rows of each partition as blocks, in the order of topic id and partition."""
        parts = sorted(self._parts.values(), key=lambda part: (part.topic.meta.topic_id, part.partition))
        return [part.encode() for part in parts]


class _Share(NamedTuple, Generic[_Topic]):
    """Rows of one partition that one call adds."""

    topic: _Topic
    partition: int
    bytes: int
    rows: PreparedRecord | PlainRecords | pa.RecordBatch


class _PartRows(Generic[_Topic]):
    """The rows of one partition: batches, then a buffer of the newest rows."""

    def __init__(self, topic: _Topic, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self._batches: list[pa.RecordBatch] = []
        self._buffer: RecordBuffer | RowBuffer | None = None

    def add(self, share: _Share[_Topic]) -> None:
        # The topic may have more columns than at the last call.
        self.topic, rows = share.topic, share.rows
        if isinstance(rows, pa.RecordBatch):
            self._close_buffer()
            self._batches.append(rows)
            return
        width = len(rows.columns) if isinstance(rows, PlainRecords) else len(rows.values)
        buffer = self._buffer
        if buffer is None or width > buffer.width:
            self._close_buffer()
            buffer = self._buffer = self._new_buffer()
        if isinstance(rows, PlainRecords):
            buffer.add_plain(rows)
            buffer.timestamps_us.extend(rows.timestamps_us(self.topic.clock()))
        else:
            buffer.add(rows.values, rows.size if self.topic.typed else share.bytes)
            buffer.timestamps_us.append(rows.timestamp_us)

    def _new_buffer(self) -> RecordBuffer | RowBuffer:
        return RowBuffer(0, RowLayout.of(self.topic.schema)) if self.topic.typed else RecordBuffer(0)

    def _close_buffer(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            # A buffer has the columns that the topic had when its first row was added.
            schema = pa.schema(list(self.topic.schema)[: buffer.width])
            self._batches.append(buffer.to_batch(body_schema(schema)))

    def encode(self) -> EncodedPart[_Topic]:
        meta = self.topic.meta
        buffer = self._buffer
        if buffer is not None and not self._batches and buffer.width == len(meta.schema):
            blocks = encode_rows(buffer, body_schema(meta.schema), self.topic.block_bytes)
            bodies = [body for body, _ in blocks]
        else:
            self._close_buffer()
            batches = [
                batch if batch.num_columns > len(meta.schema) else add_null_columns(batch, meta.schema)
                for batch in self._batches
            ]
            whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            pieces = split(whole, self.topic.block_bytes)
            bodies = [body for piece in pieces for body in encode_blocks(piece.batch)]
        return EncodedPart(
            self.topic,
            self.partition,
            meta.schema_id,
            bodies,
            sum(body.record_count for body in bodies),
            sum(body.length for body in bodies),
        )
