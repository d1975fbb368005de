"""`LocalTopic`: a topic of a store that this process opened itself."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal, NoReturn

import pyarrow as pa

from ..engine import durable_reads, topics
from ..engine.append import append_arrow, append_prepared, append_records, make_room, prepare_record
from ..engine.append_conditional import append_conditional
from ..engine.erase import erase
from ..engine.host import wall_clock_us
from ..engine.open_topics import OpenTopic
from ..engine.point_read import read_local
from ..engine.read import offset_ranges, records, refresh, snapshots
from ..engine.records import Appended, OffsetRange, Record, report_appended
from ..errors import ConfigError
from ..format.latest import tombstones_of
from ..format.predicate import conjunction
from ..format.record import Headers, check_record_size, header_pairs, key_bytes, partition_of, value_bytes
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.timestamps import plain_int, timestamp_us
from ..hot.accelerator import PlainAppend, accelerator
from ..hot.pending_rows import FULL
from ..hot.row_buffer import RECORD_OVERHEAD_BYTES
from ..reader.latest import key_column_of, latest_rows
from ..reader.lineages import common_end, lineage_of
from ..reader.query import (
    Offsets,
    check_sync,
    plain_bounds,
    plain_limit,
    query_of,
    select_partitions,
)
from ..reader.scan import Scan
from ..reader.tiers import Tiers
from ..table.table_info import TableInfo
from ..transactions.positions import own_topic
from ..transactions.topic_positions import TopicPositions
from ..transactions.transaction_log import TransactionLog
from .interface.consumer import Consumer
from .interface.erasure import Erasure
from .interface.follow import follow_partition, follow_partitions
from .interface.producer import Producer
from .interface.topic import Topic
from .local_erasure import GivesUp, erasure_of
from .local_producer import open_producer
from .topic_table import topic_table

# The constructor of a named tuple is a Python function; this skips it on the path of every record.
_new = tuple.__new__
_PUBLISHED_AT_ONCE = 16


class LocalTopic(Topic):
    """A `Topic` that this process appends to and reads without a server.

    Attributes
    ----------
    opened : OpenTopic
        The engine's state of the topic.
    store
        The store; this reference keeps it open as long as the topic is in use.
    """

    opened: OpenTopic

    def __init__(self, store: GivesUp, opened: OpenTopic, transactions: TransactionLog) -> None:
        self.store = store
        self.opened = opened
        self._transactions = transactions
        # The path of every record reads these.
        self._writers = opened.writers
        self._clock = opened.clock
        self._typed = opened.typed
        self._record_bytes_max = opened.record_bytes_max
        self._waits = opened.waits

    @property
    def tiers(self) -> Tiers:
        return self.opened.context.tiers

    # -- appending -------------------------------------------------------------------------------

    def append(
        self,
        value: Any,
        *,
        key: bytes | str | int | None = None,
        headers: Mapping[str, bytes] | Headers | None = None,
        timestamp: object = None,
        partition: int | None = None,
        sync: bool | None = None,
        expected_offset: int | None = None,
    ) -> Appended:
        if sync is not None:
            check_sync(sync)
        if expected_offset is not None:
            record = prepare_record(self.opened, value, key, headers, timestamp, partition)
            appended = append_conditional(self.opened, record, expected_offset)
        elif self._typed:
            appended = append_prepared(
                self.opened, prepare_record(self.opened, value, key, headers, timestamp, partition)
            )
        else:
            if value.__class__ is not bytes:
                value = value_bytes(value)
            size = RECORD_OVERHEAD_BYTES if value is None else len(value) + RECORD_OVERHEAD_BYTES
            if key is not None:
                if key.__class__ is not bytes:
                    key = key_bytes(key)
                size += len(key)  # type: ignore[arg-type]
            pairs = None
            if headers is not None:
                pairs, more = header_pairs(headers)
                size += more
            if size > self._record_bytes_max:
                check_record_size(size - RECORD_OVERHEAD_BYTES, self._record_bytes_max)
            when = self._clock() if timestamp is None else timestamp_us(timestamp)
            chosen = partition
            if chosen is None:
                chosen = partition_of(key, self.opened.partitions) if key else self.opened.sticky
            elif chosen.__class__ is not int:
                chosen = self.opened.check_partition(chosen)
            writer = self._writers.get(chosen) or self.opened.writer(chosen)
            offset = writer.append_record(key, value, pairs, when, size)
            while offset == FULL:
                writer = make_room(self.opened, writer, sticky=partition is None and not key)
                offset = writer.append_record(key, value, pairs, when, size)
            appended = _new(Appended, (writer.partition, offset))
        if sync if sync is not None else self._waits:
            self.opened.wait_safe(appended[0], appended[1] + 1, sync)
        return appended

    def append_many(self, records: Iterable[bytes | Mapping[str, Any] | Record]) -> list[OffsetRange]:
        ranges = append_records(self.opened, records)
        if self._waits:
            self._wait_for_ranges(ranges, None)
        return ranges

    def append_batch(
        self, data: Any, *, partition: int | None = None, sync: bool | None = None
    ) -> list[OffsetRange]:
        check_sync(sync)
        ranges = append_arrow(self.opened, data, partition)
        if sync if sync is not None else self._waits:
            self._wait_for_ranges(ranges, sync)
        return ranges

    def producer(self, producer_id: str) -> Producer:
        return open_producer(self.opened, producer_id)

    def _wait_for_ranges(self, ranges: list[OffsetRange], sync: bool | None) -> None:
        with report_appended(ranges):
            for item in ranges:
                self.opened.wait_safe(item.partition, item.end, sync)

    def flush(self) -> None:
        self.opened.flush()

    def publish(self) -> None:
        context = self.opened.context
        context.lifecycle.check_writable()
        if not context.tiers.has_cold:
            raise ConfigError(f"the store {context.url} has no bucket to publish to")
        if context.settings.policy_for(self.name).offload.after is None:
            raise ConfigError(
                f'the policy of topic {self.name} has offload = "off", so nothing of it is published'
            )
        writers = [self.opened.writer(partition) for partition in range(self.partitions)]
        ends = [writer.end_offset for writer in writers]
        self.opened.flush()

        def publish(partition: int) -> None:
            context.publisher.wait(self.meta, partition, writers[partition], ends[partition])

        with ThreadPoolExecutor(_PUBLISHED_AT_ONCE, thread_name_prefix="tiered-publish") as threads:
            list(threads.map(publish, range(len(writers))))

    def roll(self) -> None:
        self.opened.context.lifecycle.check_writable()
        for partition in range(self.partitions):
            self.opened.writer(partition).roll()

    # -- reading ---------------------------------------------------------------------------------

    def scan(
        self,
        partitions: Iterable[int] | int | None = None,
        start_offset: Offsets = None,
        end_offset: Offsets = None,
        start_timestamp: object = None,
        end_timestamp: object = None,
        key: object = None,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        filter: object = None,  # noqa: A002
        latest: bool = False,
    ) -> Scan:
        refresh(self.opened)
        limit = plain_limit(limit)
        opened = self.opened
        meta, context = opened.meta, opened.context
        start, end = plain_bounds(meta, start_offset), plain_bounds(meta, end_offset)
        query = query_of(meta, start_timestamp, end_timestamp, key, columns, filter)
        parts = snapshots(opened, select_partitions(meta, partitions), start, end)
        if latest:
            keys = query_of(meta, None, None, key, [key_column_of(meta), "offset"])
            tombstone = tombstones_of(meta, context.settings.policy_for(self.name).compact_keys.deleted)
            only = latest_rows(
                Scan(context.tiers, meta, parts, keys, None, context.lifecycle.check), tombstone
            )
            query = replace(query, filter=conjunction([only, query.filter]))
        return Scan(context.tiers, meta, parts, query, limit, context.lifecycle.check)

    def scan_cut(self, split_bytes: int, **arguments: Any) -> Scan:  # noqa: ARG002 — `Scan` cuts splits of files itself
        return self.scan(**arguments)

    def read(
        self,
        partition: int | None = None,
        offset: int | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> Iterator[Record]:
        if type(offset) is int and type(limit) is int and not follow:
            chosen = 0 if partition is None and self.partitions == 1 else partition
            rows = read_local(self.opened, chosen, offset, limit) if type(chosen) is int else None
            if rows is not None:
                return rows
        # `records` notices new columns by the objects; only an unknown partition needs a request here.
        partition = plain_int(partition)
        known = type(partition) is not int or partition in range(self.partitions)
        refresh(self.opened, asks_bucket=not known)
        if follow and partition is None and offset is None and self.partitions > 1:
            return follow_partitions(self, plain_limit(limit))
        chosen, offset = self.opened.check_start(partition, offset)
        if not follow:
            return records(self.opened, chosen, offset, plain_limit(limit))

        def of_lineage(at: int | None, left: int | None, lineage: int) -> Iterator[Record]:
            return records(self.opened, chosen, at, left, follow=True, lineage=lineage)

        return follow_partition(self, chosen, offset, plain_limit(limit), of_lineage)

    def consumer(
        self,
        name: str,
        *,
        partitions: Iterable[int] | int | None = None,
        start: object = "earliest",
        on_rewind: Literal["error", "earliest", "latest"] = "error",
    ) -> Consumer:
        refresh(self.opened)
        return Consumer(
            self, TopicPositions(self._transactions, self.meta), name, partitions, start, on_rewind
        )

    def offsets(self) -> dict[int, OffsetRange]:
        refresh(self.opened)
        return offset_ranges(self.opened)

    def durable_offsets(self, partitions: Iterable[int]) -> dict[int, OffsetRange]:
        return durable_reads.durable_offsets(self.opened, partitions)

    def durable_batches(
        self, partition: int, offset: int, count: int, lineage: int | None = None
    ) -> Generator[pa.RecordBatch, None, int]:
        return durable_reads.durable_batches(self.opened, partition, offset, count, lineage)

    def wait_durable(self, ends: Mapping[int, int], seconds: float | None, wake: threading.Event) -> None:
        durable_reads.wait_durable(self.opened, ends, seconds, wake)

    def lineages_of(self, partitions: Iterable[int]) -> dict[int, int]:
        tiers, meta = self.opened.context.tiers, self.opened.meta
        return {key: lineage_of(tiers, meta, key) for key in partitions}

    def lineages(self) -> dict[int, int] | None:
        return self.lineages_of(range(self.partitions))

    def common_end(self, partition: int, epoch: int) -> int:
        return common_end(self.opened.context.tiers, self.opened.meta, partition, epoch)

    def offset_at(self, timestamp: object, partition: int = 0) -> int:
        scan = self.scan(partition, start_timestamp=timestamp, columns=["offset"], limit=1)
        partition = self.opened.check_partition(partition)
        for batch in scan.to_batches():
            return int(batch.column(0)[0].as_py())
        return scan.offsets[partition][1]

    # -- administration --------------------------------------------------------------------------

    def table(self) -> TableInfo:
        self.opened.context.lifecycle.check()
        rule = self.opened.context.settings.policy_for(self.name).table
        return topic_table(self, configured=rule.every is not None, now_us=self._clock())

    def delete_before(self, offset: int, partition: int = 0) -> None:
        topics.delete_before(self.opened, plain_int(offset), self.opened.check_partition(partition))

    def erase(
        self,
        keys: Iterable[object] | None = None,
        *,
        column: str | None = None,
        values: Iterable[object] | None = None,
        reason: str = "",
    ) -> Erasure:
        if (keys is None) == (values is None) or (keys is not None and column is not None):
            raise ConfigError("an erasure takes keys, or a column and its values: erase(column=…, values=…)")
        given = keys if values is None else values
        assert given is not None
        entry = erase(self.opened, column, given, reason, rows_end=self._transactions.rows_end)
        context = self.opened.context
        context.commits.shorten_log(entry.log_end)
        return erasure_of(self.store, context, entry)

    def add_columns(self, columns: pa.Schema) -> None:
        topics.add_columns(self.opened, columns)

    def add_partitions(self, total: int) -> None:
        topics.add_partitions(self.opened, total)


class AcceleratedTopic(PlainAppend, LocalTopic):
    """A `LocalTopic` with plain appends in C; other appends use the method of `LocalTopic`."""

    _append = LocalTopic.append

    def __init__(self, store: GivesUp, opened: OpenTopic, transactions: TransactionLog) -> None:
        super().__init__(store, opened, transactions)
        self.plain_clock = None if opened.clock is wall_clock_us else opened.clock
        self.answer = Appended
        self.overhead_bytes = RECORD_OVERHEAD_BYTES
        self.plain = not (opened.typed or opened.waits)


class TransactionTopic(LocalTopic):
    """The transaction log, for reading: each change by a user is refused."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise own_topic(self.name)

    append = append_many = append_batch = producer = _refuse
    delete_before = erase = add_columns = add_partitions = _refuse


def local_topic(store: GivesUp, opened: OpenTopic, transactions: TransactionLog) -> LocalTopic:
    """Return the topic; an `AcceleratedTopic` if the extension is installed."""
    if opened.name == TRANSACTIONS_TOPIC:
        return TransactionTopic(store, opened, transactions)
    kind = LocalTopic if accelerator is None else AcceleratedTopic
    return kind(store, opened, transactions)
