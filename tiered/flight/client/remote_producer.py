"""`RemoteProducer`: a session of an idempotent producer whose topic another process serves."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ...engine.append import prepare_record
from ...engine.ingest import cast_batches, check_records
from ...engine.records import Appended, OffsetRange, merge_ranges
from ...engine.sequence import Sequence
from ...errors import RecordTooLarge, SchemaMismatch
from ...format.block_rows import split_batch
from ...format.record import Headers
from ...format.sizes import bytes_bound
from ...hot.row_buffer import RECORD_OVERHEAD_BYTES
from ...reader.query import check_sync
from ...store.interface.producer import Producer
from ..wire.put_messages import Session
from .appender import BATCH_BYTES_MAX
from .pending_batch import PendingBatch
from .topic_state import TopicState, body_of_rows


class RemoteProducer(Producer):
    """A `Producer` behind a server. Each append waits for the server's answer. Thread-safe."""

    def __init__(
        self,
        topic: TopicState,
        producer_id: str,
        epoch: int,
        next_sequence: int | None,
        partitions: int,
    ) -> None:
        self.id = producer_id
        self.epoch = epoch
        self._topic = topic
        self._partitions = partitions
        self.sequence = Sequence(producer_id, topic.name, next_sequence)
        self._lock = threading.Lock()

    def append(
        self,
        value: Any,
        *,
        sequence: int | None = None,
        key: bytes | str | int | None = None,
        headers: Mapping[str, bytes] | Headers | None = None,
        timestamp: object = None,
        partition: int | None = None,
        sync: bool | None = None,
    ) -> Appended:
        topic = self._topic
        # First: in a forked child a thread of the parent may hold the lock for ever.
        topic.lifecycle.check_writable()
        check_sync(sync)
        record = prepare_record(topic, value, key, headers, timestamp, partition)
        rows = topic.new_buffer()
        rows.add(record.values, record.size if topic.typed else record.size + RECORD_OVERHEAD_BYTES)
        rows.timestamps_us.append(record.timestamp_us)
        batch = PendingBatch.of_rows(record.partition, sync, rows)
        with self._lock:
            number = self.sequence.check(sequence)
            found = self._appended(batch.sealed(), number)[0]
            self.sequence.advance(number, number + 1)
        return Appended(found.partition, found.start)

    def append_batch(
        self,
        data: Any,
        *,
        sequence: int | None = None,
        partition: int | None = None,
        sync: bool | None = None,
    ) -> list[OffsetRange]:
        topic = self._topic
        topic.lifecycle.check_writable()
        check_sync(sync)
        if partition is not None:
            partition = topic.check_partition(partition)
        ranges: list[OffsetRange] = []
        with self._lock:
            begin = number = self.sequence.check(sequence)
            try:
                limit = topic.record_bytes_max
                for batch, timestamps in cast_batches(data, topic.schema, limit):
                    body = body_of_rows(batch, timestamps)
                    # Before the first piece is sent.
                    check_records(body, limit)
                    for piece in split_batch(body, BATCH_BYTES_MAX, bytes_bound):
                        ranges += self._appended(PendingBatch.of_arrow(partition, sync, piece), number)
                        number += piece.num_rows
            except (SchemaMismatch, RecordTooLarge):
                # The caller continues with other data, which must not count as a repeat of the rows that were sent.
                self.sequence.advance(begin, number)
                raise
            # Only at the end: after any other error the same call must get the same numbers.
            self.sequence.advance(begin, number)
        return merge_ranges(ranges)

    def flush(self) -> None:
        self._topic.lifecycle.check()
        self._topic.appender.flush()

    def _appended(self, batch: PendingBatch, number: int) -> list[OffsetRange]:
        batch.number, batch.session = number, Session(self.id, self.epoch, self._partitions)
        self._topic.appender.add_batch(batch)
        return list(batch.ranges())
