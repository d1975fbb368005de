"""`Topic`: append and read one topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from ..engine import topics
from ..engine.append import append_arrow, append_checked, append_records, checked, make_room
from ..engine.open_topics import OpenTopic
from ..engine.read import offset_ranges, records, refresh, snapshots
from ..engine.records import Appended, OffsetRange, Record, naming_what_stayed
from ..format.record import Headers, check_record_size, header_pairs, key_bytes, partition_of, value_bytes
from ..format.timestamps import plain_int, timestamp_us
from ..hot.partition_writer import FULL
from ..hot.row_buffer import RECORD_OVERHEAD_BYTES
from ..reader.lineages import common_end, lineage_of
from ..reader.query import (
    Offsets,
    check_sync,
    checked_bounds,
    checked_limit,
    chosen_partitions,
    query_of,
)
from ..reader.scan import Scan
from .local_producer import Producer, open_producer

# A named tuple's own constructor is a Python function: this skips it, on the path of every record.
_new = tuple.__new__


class Topic:
    """One topic of an open store; get it from `Store.topic` or `Store.create_topic`. Thread-safe.

    Attributes
    ----------
    name : str
    partitions : int
    schema : pa.Schema
        The topic's own columns; reads add ``topic, partition, offset, timestamp``.
    """

    def __init__(self, store: object, opened: OpenTopic) -> None:
        self.store = store  # which is open for as long as somebody has one of its topics
        self.opened = opened
        # What the path of every record takes, one attribute away.
        self._writers = opened.writers
        self._clock = opened.clock
        self._typed = opened.typed
        self._record_bytes_max = opened.record_bytes_max
        self._waits = opened.waits

    @property
    def name(self) -> str:
        return self.opened.name

    @property
    def partitions(self) -> int:
        return self.opened.partitions

    @property
    def schema(self) -> pa.Schema:
        return self.opened.schema

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
    ) -> Appended:
        """Append one record.

        Parameters
        ----------
        value
            Bytes; in a typed topic a dict of its columns.
        key
            Chooses the partition (``zlib.crc32(key) % partitions``) where none is given. A typed topic takes
            it from its key column.
        timestamp
            Aware datetime, or integer milliseconds since the epoch; default now. Where the topic's timestamp column
            has a value, that is the record timestamp.
        sync
            True waits until the record is durable on this disk, whatever the sync mode; False never waits. By
            default the mode decides: ``always`` waits for the disk, ``cold`` until the record is published.

        Returns
        -------
        Appended
            Its partition and offset, provisional until the record is durable.

        Raises
        ------
        SchemaMismatch, RecordTooLarge, ConfigError
        DiskFull, StoreClosed, ReadOnly, StoreLocked, Fenced, PartitionPoisoned
            In each case but a failed wait, nothing was appended.
        ColdStorageError
            Of mode ``cold``: the record is appended and durable here, and not published yet. Do not append it
            again; `flush` publishes it, and so does the next append or pass.
        """
        if sync is not None:
            check_sync(sync)
        if self._typed:
            appended = append_checked(
                self.opened, checked(self.opened, value, key, headers, timestamp, partition)
            )
        else:
            if value.__class__ is not bytes:
                value = value_bytes(value)
            if key is not None and key.__class__ is not bytes:
                key = key_bytes(key)
            size = RECORD_OVERHEAD_BYTES if value is None else len(value) + RECORD_OVERHEAD_BYTES
            if key:
                size += len(key)
            pairs = None
            if headers is not None:
                pairs, more = header_pairs(headers)
                size += more
            if size > self._record_bytes_max:
                check_record_size(size - RECORD_OVERHEAD_BYTES, self._record_bytes_max)
            when = self._clock() if timestamp is None else timestamp_us(timestamp)
            place = partition
            if place is None:
                place = partition_of(key, self.opened.partitions) if key else self.opened.sticky
            elif place.__class__ is not int:
                place = self.opened.check_partition(place)
            writer = self._writers.get(place) or self.opened.writer(place)
            offset = writer.append_record(key, value, pairs, when, size)
            while offset == FULL:
                writer = make_room(self.opened, writer, sticky=partition is None and not key)
                offset = writer.append_record(key, value, pairs, when, size)
            appended = _new(Appended, (writer.partition, offset))
        if sync if sync is not None else self._waits:
            self.opened.wait_safe(appended[0], appended[1] + 1, sync)
        return appended

    def append_many(self, records: Iterable[bytes | Mapping[str, Any] | Record]) -> list[OffsetRange]:
        """Append many records, a block at a time; several times as fast as `append` in a loop.

        Parameters
        ----------
        records
            Bytes (values), dicts (``value``, ``key``, ``headers``, ``timestamp``, ``partition``; in a typed
            topic the columns), or `Record` values, whose topic, partition and offset are not used.

        Returns
        -------
        list of OffsetRange
            Where they went. Records of one partition keep their order.

        Raises
        ------
        SchemaMismatch, RecordTooLarge
            A record that does not fit: its value, key, headers, timestamp or partition. Of a list of up to 65,536
            nothing was appended then; longer input is appended that many at a time.
        """
        ranges = append_records(self.opened, records)
        if self._waits:
            self._wait_ranges(ranges, None)
        return ranges

    def append_batch(
        self, data: Any, *, partition: int | None = None, sync: bool | None = None
    ) -> list[OffsetRange]:
        """Append Arrow data: the fastest way in.

        Parameters
        ----------
        data
            pyarrow Table or RecordBatch, or any object with ``__arrow_c_stream__`` (pandas, Polars, DuckDB)
            that has columns of the topic. Columns it lacks are null. A column ``timestamp`` gives the record
            timestamps where the topic has no timestamp column, or that is null.
        partition
            Where to append; default by the key column, row by row. Where only some rows have a key, those without one
            go to one partition. Rows of one partition keep their order.
        sync
            As in `append`.

        Returns
        -------
        list of OffsetRange
            Data goes in runs of up to 4 MiB of one partition, each wholly or not at all. Where a call fails after
            some of them, the error names the offsets that were appended.

        Raises
        ------
        SchemaMismatch
            The data does not fit; nothing was appended of a Table, and of anything else nothing of the batch that does not.
        ConfigError
            `sync` is neither True, False nor None; nothing was appended.
        RecordTooLarge, DiskFull, StoreClosed, ReadOnly, StoreLocked, Fenced, PartitionPoisoned
        """
        check_sync(sync)
        ranges = append_arrow(self.opened, data, partition)
        if sync if sync is not None else self._waits:
            self._wait_ranges(ranges, sync)
        return ranges

    def producer(self, producer_id: str) -> Producer:
        """Begin a session of an idempotent producer; records are numbered, and a repeat is not appended again.

        The numbers go on where the last session's ended, also after a restart or a restore. Older sessions
        of the same producer are fenced: their next append raises `Fenced`.

        Parameters
        ----------
        producer_id
            Any text that tells this source of records from others, the same after a restart.

        Raises
        ------
        ConfigError, DiskFull, StoreClosed, ReadOnly, StoreLocked, Fenced, PartitionPoisoned
        """
        return open_producer(self.opened, producer_id)

    def _wait_ranges(self, ranges: list[OffsetRange], sync: bool | None) -> None:
        with naming_what_stayed(ranges):
            for item in ranges:
                self.opened.wait_safe(item.partition, item.end, sync)

    def flush(self) -> None:
        """Return once everything appended before the call is durable; raise what stood in the way.

        In sync mode ``cold``: once it is published.
        """
        self.opened.flush()

    def roll(self) -> None:
        """Seal the active segments that hold records, and begin new ones."""
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
    ) -> Scan:
        """Take a snapshot of the topic, over all tiers, and return it as a `Scan`.

        Parameters
        ----------
        partitions
            Those wanted; default all.
        start_offset, end_offset
            Bounds on offsets, end exclusive: one for all partitions, or a dict by partition.
        start_timestamp, end_timestamp
            Bounds on record timestamps, end exclusive; they filter rows.
        key
            Only records with this key.
        columns
            Names, each once, in the order wanted; default all.
        limit
            At most so many rows.

        Raises
        ------
        OffsetOutOfRange
            The range begins before the start offset.
        TopicNotFound, SchemaMismatch, ConfigError, CorruptionError, ColdStorageError, StoreClosed
        """
        refresh(self.opened)
        limit = checked_limit(limit)
        opened = self.opened
        meta, context = opened.meta, opened.context
        start, end = checked_bounds(meta, start_offset), checked_bounds(meta, end_offset)
        query = query_of(meta, start_timestamp, end_timestamp, key, columns)
        found = snapshots(opened, chosen_partitions(meta, partitions), start, end)
        return Scan(context.tiers, meta, found, query, limit, context.lifecycle.check)

    def read(
        self,
        partition: int | None = None,
        offset: int | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> Iterator[Record]:
        """Yield records of one partition from `offset` on, in order.

        Parameters
        ----------
        partition
            May be left out only where there is one.
        offset
            Default the start offset.
        follow
            Go on for ever, waiting for new durable records; no flush is forced. On a store that was opened by the
            URL of its bucket: one GET every 2 s, and what the bucket fails to answer is asked again.

        Raises
        ------
        OffsetOutOfRange
            The offset is before the start offset or after the end offset; while following, retention was faster.
        StoreClosed
            The store was closed, by another thread too.
        """
        # `records` sees by the objects whether there are new columns.
        partition = plain_int(partition)
        known = type(partition) is not int or partition in range(self.partitions)
        refresh(self.opened, asks_bucket=not known)
        partition, offset = self.opened.check_start(partition, offset)
        return records(self.opened, partition, offset, checked_limit(limit), follow)

    def offsets(self) -> dict[int, OffsetRange]:
        """Return start and end offset of each partition; what is about to be shown is flushed first."""
        refresh(self.opened)
        return offset_ranges(self.opened)

    def lineages(self) -> dict[int, int] | None:
        """Return the epoch of each partition's lineage, as `offsets` has seen it; None where that is not known."""
        tiers, meta = self.opened.context.tiers, self.opened.meta
        return {key: lineage_of(tiers, meta, key) for key in range(self.partitions)}

    def common_end(self, partition: int, epoch: int) -> int:
        """Return the offset below which the log is that of the lineage `epoch`."""
        return common_end(self.opened.context.tiers, self.opened.meta, partition, epoch)

    def offset_at(self, timestamp: object, partition: int = 0) -> int:
        """Return the first offset whose timestamp is at or after `timestamp`; the end offset if none is."""
        scan = self.scan(partition, start_timestamp=timestamp, columns=["offset"], limit=1)
        partition = self.opened.check_partition(partition)
        for batch in scan.to_batches():
            return int(batch.column(0)[0].as_py())
        return scan.offsets[partition][1]

    # -- administration --------------------------------------------------------------------------

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Move the start offset up (Kafka's DeleteRecords); the tiering pass removes the files and objects.

        Raises
        ------
        OffsetOutOfRange
            The offset is after the end offset.
        """
        topics.delete_before(self.opened, plain_int(offset), self.opened.check_partition(partition))

    def add_columns(self, columns: pa.Schema) -> None:
        """Add nullable columns at the end of a typed topic; older records read them as null.

        Raises
        ------
        SchemaMismatch, InvalidName, ReadOnly
        """
        topics.add_columns(self.opened, columns)

    def add_partitions(self, total: int) -> None:
        """Raise the number of partitions to `total`; keys appended from now on spread over all of them.

        Raises
        ------
        ConfigError, ReadOnly
        """
        topics.add_partitions(self.opened, total)

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}: {self.partitions} partition{'' if self.partitions == 1 else 's'}>"
