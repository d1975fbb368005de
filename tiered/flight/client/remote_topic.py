"""`RemoteTopic`: a topic of a store that another process serves; each call goes over the network."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Literal, Never

import pyarrow as pa

from ...engine.append import prepare_record
from ...engine.read import records_in
from ...engine.records import Appended, OffsetRange, Record
from ...engine.topics import deletion_beyond_log
from ...errors import ReadOnly, SchemaMismatch, TieredError
from ...format.latest import tombstones_of
from ...format.predicate import columns_of
from ...format.record import Headers, check_record_size, key_bytes, partition_of
from ...format.schema import row_schema
from ...format.timestamps import plain_int, timestamp_us
from ...format.topic_meta import TopicMeta
from ...hot.row_buffer import RECORD_OVERHEAD_BYTES
from ...reader.latest import key_column_of, latest_rows
from ...reader.query import (
    Offsets,
    bound,
    check_sync,
    clamp_to_int64,
    plain_bounds,
    plain_limit,
    query_of,
    select_partitions,
)
from ...reader.rows import coalesce
from ...store.interface.consumer import Consumer
from ...store.interface.follow import follow_partition, follow_partitions
from ...store.interface.topic import Topic
from ...table.table_info import TableInfo
from ..wire.messages import ScanCommand, Ticket
from ..wire.topic_ref import topic_ref
from ..wire.values import encode_schema
from .follow import check_there, followed
from .follow import wait as wait_for_records
from .pending_batch import pending_append
from .remote_append import append_batch, append_conditional, append_many, append_record
from .remote_positions import RemotePositions
from .remote_producer import RemoteProducer
from .remote_scan import RemoteScan, Restriction
from .topic_state import TopicState

# The longest wait for records in one call; a closed consumer notices after it.
_LISTEN_SECONDS = 1.0


class RemoteTopic(Topic):
    """A topic behind a server; get it from the `Store` that ``tiered.open("grpc://…")`` returns. Thread-safe.

    An append that does not wait (sync mode ``interval`` or ``never``) returns before the server has answered. Reading
    ``offset`` of its result waits for the answer. An error is raised there, or else by the next `flush` or close.
    """

    opened: TopicState

    def __init__(self, store: object, state: TopicState) -> None:
        self.store = store  # a topic keeps its store open
        self.opened = state
        self.lifecycle = state.lifecycle
        self.connection = state.connection
        self.appender = state.appender
        self._seen_lineages: dict[int, int] | None = None

    @property
    def tiers(self) -> None:
        return None

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
        opened = self.opened
        if self.lifecycle.fault is not None or not self.lifecycle.writes:
            self.lifecycle.check_writable()
        if sync is not None:
            check_sync(sync)
        if expected_offset is not None:
            record = prepare_record(opened, value, key, headers, timestamp, partition)
            return append_conditional(opened, record, expected_offset, sync)
        if opened.typed or value.__class__ is not bytes or headers is not None or timestamp is not None:
            batch, row = append_record(
                opened, prepare_record(opened, value, key, headers, timestamp, partition), sync
            )
        else:
            if key is not None and key.__class__ is not bytes:
                key = key_bytes(key)
            size = len(value) + RECORD_OVERHEAD_BYTES
            if key:
                size += len(key)
            if size > opened.record_bytes_max:
                check_record_size(size - RECORD_OVERHEAD_BYTES, opened.record_bytes_max)
            chosen = partition
            if chosen is None:
                chosen = partition_of(key, opened.partitions) if key else opened.sticky
            elif chosen.__class__ is not int or not 0 <= chosen < opened.partitions:
                chosen = opened.check_partition(chosen)
            batch, row = self.appender.add(chosen, (key, value, None), opened.clock(), size, sync)
            if size > opened.block_bytes and partition is None and not key:
                opened.sticky = (chosen + 1) % opened.partitions
        if sync if sync is not None else opened.waits:
            assert batch.partition is not None
            return Appended(batch.partition, batch.offset_of(row))
        return pending_append(batch, row)

    def append_many(self, records: Iterable[bytes | Mapping[str, Any] | Record]) -> list[OffsetRange]:
        self.lifecycle.check_writable()
        return append_many(self.opened, records)

    def append_batch(
        self, data: Any, *, partition: int | None = None, sync: bool | None = None
    ) -> list[OffsetRange]:
        self.lifecycle.check_writable()
        return append_batch(self.opened, data, partition, sync)

    def producer(self, producer_id: str) -> RemoteProducer:
        self.lifecycle.check_writable()
        values = {**topic_ref(self.opened.meta), "id": producer_id}
        answer = self.connection.action("producer", values, seconds=None)
        return RemoteProducer(
            self.opened,
            producer_id,
            answer["epoch"],
            answer["next_sequence"],
            answer.get("partitions", self.partitions),
        )

    def flush(self) -> None:
        self.lifecycle.check()
        if self.lifecycle.writes:
            self.appender.flush()

    def publish(self) -> None:
        self.flush()
        self.connection.action("publish", topic_ref(self.opened.meta), seconds=None)

    def roll(self) -> None:
        self.lifecycle.check_writable()
        self.appender.drain()
        self.connection.action("roll", topic_ref(self.opened.meta), seconds=None)

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
    ) -> RemoteScan:
        if latest:
            conditions = (start_timestamp, end_timestamp, key)
            return self._latest(partitions, start_offset, end_offset, conditions, columns, limit, filter)
        return self._plan(
            partitions, start_offset, end_offset, start_timestamp, end_timestamp, key, columns, limit, filter
        )

    def _latest(
        self,
        partitions: Any,
        start_offset: Offsets,
        end_offset: Offsets,
        conditions: tuple[object, object, object],
        columns: Any,
        limit: int | None,
        filter: object,  # noqa: A002
    ) -> RemoteScan:
        """Find the latest rows here, and drop the others as they arrive: no condition that a server knows describes them."""
        meta, limit = self.opened.meta, plain_limit(limit)
        keys = self._plan(
            partitions, start_offset, end_offset, key=conditions[2], columns=[key_column_of(meta), "offset"]
        )
        tombstone = tombstones_of(meta, None)
        only = latest_rows(keys, tombstone)
        # `keys.offsets` are the ends of the log, and a row without a key is bounded by nothing else.
        first, last = plain_bounds(meta, start_offset), plain_bounds(meta, end_offset)
        starts, ends = {}, {}
        for partition, (start, end) in keys.offsets.items():
            low, high = bound(first, partition), bound(last, partition)
            starts[partition] = start if low is None else low
            ends[partition] = end if high is None else min(high, end)
        names = query_of(meta, None, None, None, columns).columns
        used = [name for name in columns_of(only) if name != "partition"]
        fetched = None if names is None else list(dict.fromkeys((*names, *used)))
        return self._plan(
            list(keys.offsets), starts, ends, *conditions, columns=fetched, filter=filter,
            restriction=Restriction(only, names, limit),
        )  # fmt: skip

    def scan_cut(self, split_bytes: int, **arguments: Any) -> RemoteScan:
        return self._plan(split_bytes=split_bytes, **arguments)

    def _plan(
        self,
        partitions: Any = None,
        start_offset: Offsets = None,
        end_offset: Offsets = None,
        start_timestamp: object = None,
        end_timestamp: object = None,
        key: object = None,
        columns: Any = None,
        limit: int | None = None,
        filter: object = None,  # noqa: A002
        *,
        split_bytes: int | None = None,
        restriction: Restriction | None = None,
    ) -> RemoteScan:
        self.lifecycle.check()
        limit = plain_limit(limit)
        partitions = plain_int(partitions)
        if type(partitions) is int:
            self.opened.check_partition(partitions)
        start, end = (
            plain_bounds(self.opened.meta, start_offset),
            plain_bounds(self.opened.meta, end_offset),
        )
        query = query_of(self.opened.meta, start_timestamp, end_timestamp, key, columns, filter)
        chosen = None if partitions is None else tuple(select_partitions(self.opened.meta, partitions))
        self.appender.drain()
        command = ScanCommand(
            self.name, chosen, start, end, query.start_timestamp_us, query.end_timestamp_us,
            query.key, query.columns, limit, split_bytes, self.opened.meta.topic_id, query.filter,
        )  # fmt: skip
        scan = RemoteScan(self.connection, command, self.lifecycle.check, restriction)
        self.opened.take_over(scan.plan.meta)
        return scan

    def read(
        self,
        partition: int | None = None,
        offset: int | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> Iterator[Record]:
        self.lifecycle.check()
        limit = plain_limit(limit)
        if follow and partition is None and offset is None and self.partitions > 1:
            return follow_partitions(self, limit)
        chosen, offset = self.opened.check_start(plain_int(partition), offset)
        if not follow:
            return self._records(chosen, offset, limit)

        def of_lineage(at: int | None, left: int | None, lineage: int) -> Iterator[Record]:
            return followed(self.opened, chosen, at, left, lineage)

        return follow_partition(self, chosen, offset, limit, of_lineage)

    def _records(self, partition: int, offset: int | None, limit: int | None) -> Iterator[Record]:
        if limit == 0:
            return
        log = self.offsets()[partition]
        check_there(self.opened, log, offset)
        columns = ["offset", "timestamp", *self.schema.names]
        while True:
            end = offset + limit if offset is not None and limit is not None else None
            scan = self.scan(partition, offset, end, columns=columns, limit=limit)
            for batch in scan.to_batches():
                yield from records_in(batch, self.opened, partition)
                limit = None if limit is None else limit - batch.num_rows
            if not limit or end is None or end >= log.end:
                return
            offset = end  # some of the records before it are erased

    def consumer(
        self,
        name: str,
        *,
        partitions: Iterable[int] | int | None = None,
        start: object = "earliest",
        on_rewind: Literal["error", "earliest", "latest"] = "error",
    ) -> Consumer:
        positions = RemotePositions(self.connection, self.opened.meta)
        return Consumer(self, positions, name, partitions, start, on_rewind)

    def durable_offsets(self, partitions: Iterable[int]) -> dict[int, OffsetRange]:
        found = {
            partition: wait_for_records(self.opened, partition, 0, seconds=0.0) for partition in partitions
        }
        return {key: OffsetRange(key, item["start"], item["end"]) for key, item in found.items()}

    def durable_batches(
        self, partition: int, offset: int, count: int, lineage: int | None = None
    ) -> Generator[pa.RecordBatch, None, int]:
        log = wait_for_records(self.opened, partition, offset, seconds=0.0, lineage=lineage)
        check_there(self.opened, OffsetRange(partition, log["start"], log["end"]), offset)
        if log["end"] > offset:
            columns = tuple(row_schema(self.schema, None).names)
            end = min(int(log["end"]), offset + count)
            ticket = Ticket(
                self.name, self.opened.meta.topic_id, partition, offset, end, columns, lineage=lineage
            )
            yield from coalesce(self.connection.rows(ticket.encode()))
            return end
        return offset

    def wait_durable(self, ends: Mapping[int, int], seconds: float | None, wake: threading.Event) -> None:
        if not wake.is_set():
            limit = _LISTEN_SECONDS if seconds is None else min(seconds, _LISTEN_SECONDS)
            offsets = {str(partition): end for partition, end in ends.items()}
            values = {**topic_ref(self.opened.meta), "offsets": offsets, "seconds": limit}
            self.connection.action("wait_any", values)
        self.lifecycle.check()

    def lineages_of(self, partitions: Iterable[int]) -> dict[int, int]:
        found = self.connection.action("lineages", topic_ref(self.opened.meta), seconds=None)
        return {partition: int(found["lineages"][str(partition)]) for partition in partitions}

    def offsets(self) -> dict[int, OffsetRange]:
        self.lifecycle.check()
        self.appender.drain()
        answer = self.connection.action("offsets", topic_ref(self.opened.meta), seconds=None)
        self.opened.grow(answer)
        # A server of an earlier release does not name them.
        epochs = answer.get("lineages", {})
        self._seen_lineages = {int(key): int(epoch) for key, epoch in epochs.items()} or None
        return {int(key): OffsetRange(int(key), *ends) for key, ends in answer["offsets"].items()}

    def lineages(self) -> dict[int, int] | None:
        return self._seen_lineages

    def common_end(self, partition: int, epoch: int) -> int:
        values = {**topic_ref(self.opened.meta), "partition": partition, "lineage": epoch}
        return int(self.connection.action("common_end", values, seconds=None)["offset"])

    def offset_at(self, timestamp: object, partition: int = 0) -> int:
        partition = self.opened.check_partition(partition)
        self.lifecycle.check()
        self.appender.drain()
        values = {
            **topic_ref(self.opened.meta),
            "timestamp_us": timestamp_us(timestamp),
            "partition": partition,
        }
        return int(self.connection.action("offset_at", values, seconds=None)["offset"])

    def table(self) -> TableInfo:
        self.lifecycle.check()
        return TableInfo.from_json(self.connection.action("table", topic_ref(self.opened.meta), seconds=None))

    # -- administration --------------------------------------------------------------------------

    def delete_before(self, offset: int, partition: int = 0) -> None:
        partition, offset = self.opened.check_partition(partition), plain_int(offset)
        self.lifecycle.check_writable()
        if type(offset) is not int or clamp_to_int64(offset) != offset:
            # A message holds 64 bits only.
            found = self.offsets()[partition]
            raise deletion_beyond_log(self.name, partition, offset, found.start, found.end)
        self.appender.drain()
        values = {**topic_ref(self.opened.meta), "offset": offset, "partition": partition}
        self.connection.action("delete_before", values, seconds=None)

    def erase(
        self,
        keys: Iterable[object] | None = None,  # noqa: ARG002
        *,
        column: str | None = None,  # noqa: ARG002
        values: Iterable[object] | None = None,  # noqa: ARG002
        reason: str = "",  # noqa: ARG002
    ) -> Never:
        self.lifecycle.check()
        raise ReadOnly("an erasure is called where the store lies, not through its server")

    def add_columns(self, columns: pa.Schema) -> None:
        self.lifecycle.check_writable()
        if not isinstance(columns, pa.Schema):
            raise SchemaMismatch(f"columns are given as a pyarrow.Schema, not {type(columns).__name__}")
        self._change("add_columns", {"schema": encode_schema(columns)})

    def add_partitions(self, total: int) -> None:
        self.lifecycle.check_writable()
        self._change("add_partitions", {"total": total})

    def _change(self, action: str, values: dict[str, Any]) -> None:
        self.appender.drain()
        answer = self.connection.action(
            action, {**topic_ref(self.opened.meta), **values}, seconds=None, retry=False
        )
        with self.opened.lock:
            self.opened.set_meta(TopicMeta.from_json(answer["topic"], where="the server's answer"))

    def finish(self) -> None:
        """Flush if anything may not be durable, and raise the errors that no call has raised."""
        if self.appender.unsettled:
            self.appender.flush()
        self.appender.raise_failed()

    def close(self) -> TieredError | None:
        """Finish, and end the appender; return the error."""
        failed: TieredError | None = None
        try:
            self.finish()
        except TieredError as error:
            failed = error
        self.appender.close()
        return failed
