"""`Topic`: append and read one topic."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .errors import ColdStorageError, ConfigError, OffsetOutOfRange, SchemaMismatch, TopicNotFound
from .format.block import split_batch
from .format.schema import RECORD_SCHEMA, normalize_schema, nulls, to_batches
from .hot.buffer import RECORD_OVERHEAD_BYTES
from .hot.partition_writer import FULL, PartitionWriter, SchemaGrew, check_record_size
from .hot.rows import RowChecker
from .ingest import (
    Headers,
    body_of,
    body_pieces,
    by_partition,
    chunked,
    header_pairs,
    key_bytes,
    largest_record,
    partition_of,
    timestamp_us,
    value_bytes,
    values_batch,
)
from .reader.read import read_splits
from .reader.rows import Query, coalesce, limited
from .reader.scan import Scan
from .reader.snapshot import PartitionSnapshot, snapshot_partition
from .records import Appended, OffsetRange, Record, records_of
from .warm.catalog import TopicMeta

if TYPE_CHECKING:
    from .store import Store

log = logging.getLogger("tiered.topic")

Offsets = int | Mapping[int, int] | None
_MANY_ROWS_MAX = 1 << 16
_MANY_ROWS_MIN = 256
_BLOCKS_AT_ONCE = 16
_FOLLOW_SECONDS = 0.1
# Each look at a bucket is a GET; a head changes no more often than tails are shipped.
_FOLLOW_BUCKET_SECONDS = 2.0
_FOLLOW_FAILED_SECONDS_MAX = 60.0
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

    def __init__(self, store: Store, meta: TopicMeta) -> None:
        self._store = store
        self._clock = store._clock
        self._lock = threading.RLock()
        self._writers: dict[int, PartitionWriter] = {}
        self._sticky = 0
        options = store._settings.store
        self._record_bytes_max = options.max_record_bytes
        self._block_bytes = options.block_bytes
        self._waits = options.sync in ("always", "cold")
        self._publishes = options.sync == "cold"
        self._use(meta)

    def _use(self, meta: TopicMeta) -> None:
        self._meta = meta
        self.name = meta.name
        self.partitions = meta.partitions
        self.schema = meta.schema
        self._typed = not meta.schema.equals(RECORD_SCHEMA)
        self._check_row = RowChecker(meta.schema) if self._typed else None

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
            Aware datetime, or integer milliseconds since the epoch; default now.
        sync
            True waits until the record is durable on this disk, whatever the sync mode; False never waits. By
            default the mode decides: ``always`` waits for the disk, ``cold`` until the record is published.

        Returns
        -------
        Appended
            Its partition and offset, provisional until the record is durable.

        Raises
        ------
        SchemaMismatch, RecordTooLarge, DiskFull, StoreClosed, ReadOnly, StoreLocked, Fenced, PartitionPoisoned
            In each case but a failed wait, nothing was appended.
        ColdStorageError
            Of mode ``cold``: the record is appended and durable here, and not published yet. Do not append it
            again; `flush` publishes it, and so does the next append or pass.
        """
        if self._typed:
            appended = self._append_row(value, key, headers, timestamp, partition)
        else:
            if value.__class__ is not bytes:
                value = value_bytes(value)
            if key is not None and key.__class__ is not bytes:
                key = key_bytes(key)
            size = len(value or b"") + RECORD_OVERHEAD_BYTES
            if key:
                size += len(key)
            pairs = None
            if headers:
                pairs, more = header_pairs(headers)
                size += more
            if size > self._record_bytes_max:
                check_record_size(size - RECORD_OVERHEAD_BYTES, self._record_bytes_max)
            when = self._clock() if timestamp is None else timestamp_us(timestamp)
            place = partition
            if place is None:
                place = partition_of(key, self.partitions) if key else self._sticky
            elif place.__class__ is not int:
                self._check_partition(place)
            writer = self._writers.get(place) or self._open_writer(place)
            offset = writer.append_record(key, value, pairs, when, size)
            while offset == FULL:
                writer = self._make_room(writer, sticky=partition is None and not key)
                offset = writer.append_record(key, value, pairs, when, size)
            appended = _new(Appended, (writer.partition, offset))
        if sync if sync is not None else self._waits:
            self._wait_safe(appended[0], appended[1] + 1, sync)
        return appended

    def _append_row(
        self, value: Any, key: object, headers: object, timestamp: object, partition: int | None
    ) -> Appended:
        assert self._check_row is not None
        if headers:
            raise SchemaMismatch(f"topic {self.name!r} is typed: it has columns, no headers")
        values, size = self._check_row(value)
        check_record_size(size, self._record_bytes_max)
        stamp = self._meta.timestamp
        when = None if stamp is None else values[self.schema.get_field_index(stamp)]
        if timestamp is not None or when is None:
            when = self._clock() if timestamp is None else timestamp_us(timestamp)
        if key is None and self._meta.key is not None:
            key = value.get(self._meta.key)
        placing = key_bytes(key)
        place = partition
        if place is None:
            place = partition_of(placing, self.partitions) if placing else self._sticky
        else:
            self._check_partition(place)
        writer = self._writer(place)
        while True:
            try:
                offset = writer.append_row(values, when, size)
            except SchemaGrew:
                writer.change_schema(self._meta)
                continue
            if offset != FULL:
                return Appended(writer.partition, offset)
            writer = self._make_room(writer, sticky=partition is None and not placing)

    def _make_room(self, writer: PartitionWriter, *, sticky: bool) -> PartitionWriter:
        """Write a full block; return the writer that takes the next record."""
        writer.make_room()
        if sticky and self.partitions > 1:
            self._sticky = (writer.partition + 1) % self.partitions
            return self._writer(self._sticky)
        return writer

    def _wait_safe(self, partition: int, end: int, sync: bool | None) -> None:
        """Wait until everything before `end` is durable here, or, if the mode says so, published."""
        writer = self._writers[partition]
        if sync is None and self._publishes:
            self._store._publisher.wait(self._meta, partition, writer, end)
        else:
            writer.sync_to(end)

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
            A record that does not fit. Of a list of up to 65,536 nothing was appended then; longer input is
            appended that many at a time.
        """
        ranges: list[OffsetRange] = []
        for chunk in chunked(records, _MANY_ROWS_MAX):
            if not self._typed and set(map(type, chunk)) == {bytes} and len(chunk) >= _MANY_ROWS_MIN:
                if max(map(len, chunk)) > self._record_bytes_max:
                    check_record_size(max(map(len, chunk)), self._record_bytes_max)
                for piece in _by_bytes(chunk):
                    ranges += self._append_columns(values_batch(piece, self.schema), None, None)
            else:
                # All are looked at before the first is appended.
                checked = [self._checked(record) for record in chunk]
                for value, arguments in checked:
                    partition, offset = self.append(value, **arguments, sync=False)
                    ranges.append(OffsetRange(partition, offset, offset + 1))
        merged = _merged(ranges)
        if self._waits:
            self._wait_ranges(merged, None)
        return merged

    def _checked(self, record: Any) -> tuple[Any, dict[str, Any]]:
        """Return a record as the arguments of `append`, which will take them."""
        if isinstance(record, Record):
            arguments = {"key": record.key, "headers": record.headers, "timestamp": record.timestamp}
            value = record.value
        elif isinstance(record, Mapping) and not self._typed:
            arguments = dict(record)
            value = arguments.pop("value", None)
            unknown = arguments.keys() - {"key", "headers", "timestamp", "partition"}
            if unknown:
                raise SchemaMismatch(
                    f"a record has value, key, headers, timestamp, partition; not {min(unknown)!r}"
                )
        else:
            arguments, value = {}, record
        if arguments.get("partition") is not None:
            self._check_partition(arguments["partition"])
        if arguments.get("timestamp") is not None:
            timestamp_us(arguments["timestamp"])
        if self._check_row is not None:
            check_record_size(self._check_row(value)[1], self._record_bytes_max)
            return value, arguments
        value, key = value_bytes(value), key_bytes(arguments.get("key"))
        pairs, size = header_pairs(arguments["headers"]) if arguments.get("headers") else ((), 0)
        check_record_size(len(value or b"") + len(key or b"") + size, self._record_bytes_max)
        return value, {**arguments, "key": key, "headers": pairs}

    def append_batch(
        self, data: Any, *, partition: int | None = None, sync: bool | None = None
    ) -> list[OffsetRange]:
        """Append Arrow data: the fastest way in.

        Parameters
        ----------
        data
            pyarrow Table or RecordBatch, or any object with ``__arrow_c_stream__`` (pandas, Polars, DuckDB)
            that has columns of the topic. Columns it lacks are null. Without a timestamp column of the
            topic's own, a column ``timestamp`` gives the record timestamps.
        partition
            Where to append; default by the key column, row by row.

        Returns
        -------
        list of OffsetRange
            Each block is appended wholly or not at all; a call as a whole is not atomic.

        Raises
        ------
        SchemaMismatch
            The data does not fit; nothing was appended of the batch that does not.
        RecordTooLarge, DiskFull, StoreClosed, ReadOnly, StoreLocked, Fenced, PartitionPoisoned
        """
        ranges: list[OffsetRange] = []
        for batch, timestamps in to_batches(data, self.schema):
            if batch.num_rows:
                ranges += self._append_columns(batch, timestamps, partition)
        merged = _merged(ranges)
        if sync if sync is not None else self._waits:
            self._wait_ranges(merged, sync)
        return merged

    def _append_columns(
        self, batch: pa.RecordBatch, timestamps: pa.Array | None, partition: int | None
    ) -> list[OffsetRange]:
        now_us = self._clock()
        if partition is not None or self.partitions == 1:
            pieces = body_pieces(batch, timestamps, self._meta.timestamp, now_us, self._block_bytes)
            return self._append_pieces(pieces, partition or 0)
        body = body_of(batch, timestamps, self._meta.timestamp, now_us)
        key = self._meta.key if self._typed else "key"
        column = batch.column(key) if key is not None else None
        if column is None or column.null_count == len(column):
            return self._append_sticky(body)
        ranges = []
        for place, rows in by_partition(body, column, self.partitions):
            if place is None:
                ranges += self._append_sticky(rows)
            else:
                ranges += self._append_pieces(split_batch(rows, self._block_bytes), place)
        return ranges

    def _append_sticky(self, body: pa.RecordBatch) -> list[OffsetRange]:
        ranges = []
        for piece in split_batch(body, self._block_bytes):
            partition = self._sticky
            ranges += self._append_pieces([piece], partition)
            self._sticky = (partition + 1) % self.partitions
        return ranges

    def _append_pieces(self, pieces: Sequence[pa.RecordBatch], partition: int) -> list[OffsetRange]:
        writer = self._writers.get(partition) or self._open_writer(partition)
        check_record_size(largest_record(pieces, self._record_bytes_max), self._record_bytes_max)
        ranges: list[OffsetRange] = []
        # A few blocks at a time, so that other threads can append to the partition in between.
        for first in range(0, len(pieces), _BLOCKS_AT_ONCE):
            group = pieces[first : first + _BLOCKS_AT_ONCE]
            try:
                start, end = writer.append_batches(group, group[0].num_columns)
            except SchemaGrew:
                writer.change_schema(self._meta)
                grown = [_widened(piece, writer.meta.schema) for piece in pieces[first:]]
                return ranges + self._append_pieces(grown, partition)
            ranges.append(OffsetRange(partition, start, end))
        return _merged(ranges)

    def _wait_ranges(self, ranges: list[OffsetRange], sync: bool | None) -> None:
        for item in ranges:
            self._wait_safe(item.partition, item.end, sync)

    def flush(self) -> None:
        """Return once everything appended before the call is durable; raise what stood in the way.

        In sync mode ``cold``: once it is published.
        """
        self._store._check()
        ends = {partition: writer.end_offset for partition, writer in list(self._writers.items())}
        # All of them first: what is durable here must not wait for a bucket.
        for partition, end in ends.items():
            self._writers[partition].sync_to(end)
        if self._publishes:
            for partition, end in ends.items():
                self._wait_safe(partition, end, None)

    def roll(self) -> None:
        """Seal the active segments that hold records, and begin new ones."""
        self._store._check_writable()
        for partition in range(self.partitions):
            self._writer(partition).roll()

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
            Names, in the order wanted; default all.
        limit
            At most so many rows.

        Raises
        ------
        OffsetOutOfRange
            The range begins before the start offset.
        TopicNotFound, SchemaMismatch, ConfigError, CorruptionError, ColdStorageError, StoreClosed
        """
        self._store._check()
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ConfigError(f"limit is a number of rows, not {limit!r}")
        self._check_bounds(start_offset)
        self._check_bounds(end_offset)
        query = self._query(start_timestamp, end_timestamp, key, columns)
        snapshots = tuple(
            snapshot_partition(
                self._store._access,
                self._meta,
                partition,
                view=self._view(partition),
                start_offset=_bound(start_offset, partition),
                end_offset=_bound(end_offset, partition),
            )
            for partition in self._chosen(partitions)
        )
        return Scan(self._store._access, self._meta, snapshots, query, limit, self._store._check)

    def _query(self, start: object, end: object, key: object, columns: Iterable[str] | None) -> Query:
        key_column = None
        if key is not None:
            key_column = self._meta.key if self._typed else "key"
            if key_column is None:
                raise ConfigError(f"topic {self.name!r} has no key column to look for key={key!r}")
            key = _as_key(key, self.schema.field(key_column).type)
        if isinstance(columns, str):
            raise ConfigError(f"columns is a list of names; write columns=[{columns!r}]")
        names = None if columns is None else tuple(columns) if isinstance(columns, Iterable) else (columns,)
        if names is not None and not all(isinstance(name, str) for name in names):
            raise ConfigError(f"columns is a list of names, not {columns!r}")
        return Query(
            columns=names,
            start_timestamp_us=None if start is None else timestamp_us(start),
            end_timestamp_us=None if end is None else timestamp_us(end),
            key=key,
            key_column=key_column,
        )

    def _chosen(self, partitions: Iterable[int] | int | None) -> list[int]:
        if partitions is None:
            return list(range(self.partitions))
        if not isinstance(partitions, (int, Iterable)):
            raise ConfigError(f"partitions is a partition or a list of them, not {partitions!r}")
        wanted = [partitions] if isinstance(partitions, int) else list(dict.fromkeys(partitions))
        for partition in wanted:
            self._check_partition(partition)
        return wanted

    def _check_bounds(self, offsets: Offsets) -> None:
        by_partition = offsets if isinstance(offsets, Mapping) else {}
        for partition in by_partition:
            if type(partition) is not int or not 0 <= partition < self.partitions:
                raise ConfigError(
                    f"an offset is given for {partition!r}, which is no partition of {self.name!r}"
                )
        for offset in by_partition.values() if isinstance(offsets, Mapping) else [offsets]:
            if offset is not None and type(offset) is not int:
                raise ConfigError(f"an offset is an int, or a dict of int by partition, not {offset!r}")

    def _check_partition(self, partition: int) -> None:
        if type(partition) is not int or not 0 <= partition < self.partitions:
            raise TopicNotFound(
                f"topic {self.name!r} has partitions 0 to {self.partitions - 1}, not {partition!r}"
            )

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
        self._store._check()
        if partition is None:
            if self.partitions != 1:
                raise ConfigError(
                    f"topic {self.name!r} has {self.partitions} partitions: say which one to read"
                )
            partition = 0
        self._check_partition(partition)
        self._check_bounds(offset)
        return self._records(partition, offset, limit, follow)

    def _records(
        self, partition: int, offset: int | None, limit: int | None, follow: bool
    ) -> Iterator[Record]:
        left, failures = limit, 0
        while left is None or left > 0:
            # The end of a short read of known offsets bounds what is decoded.
            end = offset + left if offset is not None and left is not None else None
            try:
                snapshot = self._snapshot_from(partition, offset, end, follow)
                rows = self._rows(snapshot, eager=left is None or end is not None)
                for batch in coalesce(limited(rows, left)):
                    yield from records_of(
                        batch, self.name, partition, typed=self._typed, key_column=self._meta.key
                    )
                    left = None if left is None else left - batch.num_rows
                    offset, failures = batch.column("offset")[-1].as_py() + 1, 0
            except ColdStorageError as error:
                self._store._check()
                if not follow or not error.retryable:
                    raise
                failures += 1
                log.warning("following %s/%d from offset %s: %s", self.name, partition, offset, error)
                self._store._pause(min(_FOLLOW_FAILED_SECONDS_MAX, 2.0**failures))
                self._store._check()
                continue
            offset = snapshot.end_offset if end is None else min(end, snapshot.end_offset)
            if not follow:
                return
            self._wait_for(partition, offset)

    def _snapshot_from(
        self, partition: int, offset: int | None, end: int | None, follow: bool
    ) -> PartitionSnapshot:
        # A writer in this process says what is durable; what follows it must not force a flush.
        view = self._durable_view(partition) if follow else self._view(partition)
        snapshot = snapshot_partition(
            self._store._access, self._meta, partition, view=view, start_offset=offset, end_offset=end
        )
        if offset is not None and offset > snapshot.end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} of topic {self.name!r} partition {partition} is not there yet; the log has "
                f"{snapshot.start_offset} to {snapshot.end_offset}",
                start=snapshot.start_offset,
                end=snapshot.end_offset,
            )
        return snapshot

    def _rows(self, snapshot: PartitionSnapshot, *, eager: bool) -> Iterator[pa.RecordBatch]:
        """Yield what `records_of` takes."""
        query = Query(columns=("offset", "timestamp", *self.schema.names))
        store = self._store
        yield from read_splits(
            store._access, self._meta, snapshot.splits, query, check=store._check, eager=eager
        )

    def _wait_for(self, partition: int, offset: int) -> None:
        self._store._check()
        writer = self._writers.get(partition)
        if writer is None:
            local = self._store._access.places.root is not None
            self._store._pause(_FOLLOW_SECONDS if local else _FOLLOW_BUCKET_SECONDS)
            self._store._check()
        else:
            writer.wait_beyond(offset, _FOLLOW_SECONDS)

    def offsets(self) -> dict[int, OffsetRange]:
        """Return start and end offset of each partition; what is about to be shown is flushed first."""
        self._store._check()
        found = {}
        for partition in range(self.partitions):
            snapshot = snapshot_partition(
                self._store._access, self._meta, partition, view=self._view(partition), end_offset=0
            )
            found[partition] = OffsetRange(partition, snapshot.start_offset, snapshot.end_offset)
        return found

    def offset_at(self, timestamp: object, partition: int = 0) -> int:
        """Return the first offset whose timestamp is at or after `timestamp`; the end offset if none is."""
        self._check_partition(partition)
        scan = self.scan(partition, start_timestamp=timestamp, columns=["offset"], limit=1)
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
        self._check_partition(partition)
        writer = self._writer(partition)
        writer.flush()
        if not isinstance(offset, int) or not 0 <= offset <= writer.durable_offset:
            raise OffsetOutOfRange(
                f"cannot delete before offset {offset} of topic {self.name!r} partition {partition}; the log has "
                f"{writer.start_offset} to {writer.durable_offset}",
                start=writer.start_offset,
                end=writer.durable_offset,
            )
        writer.set_start_offset(offset)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add nullable columns at the end of a typed topic; older records read them as null.

        Raises
        ------
        SchemaMismatch, InvalidName, ReadOnly
        """
        self._store._check_writable()
        if not self._typed:
            raise SchemaMismatch(f"topic {self.name!r} has the record schema, which does not grow")
        with self._lock:
            meta = self._meta.with_columns(normalize_schema(columns))
            self._store._catalog.write_topic(meta)
            try:
                for writer in self._writers.values():
                    writer.change_schema(meta)
            finally:
                # The schema has grown; a writer that found no room grows with its next record.
                self._use(meta)

    def add_partitions(self, total: int) -> None:
        """Raise the number of partitions to `total`; keys appended from now on spread over all of them.

        Raises
        ------
        ConfigError, ReadOnly
        """
        self._store._check_writable()
        with self._lock:
            meta = self._store._with_partitions(self._meta, total)
            self._store._catalog.write_topic(meta)
            self._use(meta)

    # -- writers ---------------------------------------------------------------------------------

    def _writer(self, partition: int) -> PartitionWriter:
        return self._writers.get(partition) or self._open_writer(partition)

    def _open_writer(self, partition: int) -> PartitionWriter:
        self._check_partition(partition)
        with self._lock:
            writer = self._writers.get(partition)
            if writer is None:
                writer = self._writers[partition] = self._store._open_writer(self._meta, partition)
            return writer

    def _view(self, partition: int) -> Any:
        writer = self._writers.get(partition)
        return None if writer is None else writer.view()

    def _durable_view(self, partition: int) -> Any:
        writer = self._writers.get(partition)
        return None if writer is None else writer.view(flush=False)

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}: {self.partitions} partitions>"


def _widened(body: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a body batch with nulls in the columns that `schema` gained since it was made."""
    gained = list(schema)[body.num_columns - 1 :]
    columns = [*body.columns, *(nulls(body.num_rows, field.type) for field in gained)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([body.schema.field(0), *schema]))


def _bound(offsets: Offsets, partition: int) -> int | None:
    return offsets.get(partition) if isinstance(offsets, Mapping) else offsets


def _as_key(key: Any, kind: pa.DataType) -> Any:
    """Return a key as its column stores it."""
    if pa.types.is_binary(kind):
        return key_bytes(key)
    if pa.types.is_string(kind) and isinstance(key, bytes):
        return key.decode("utf-8", "replace")
    try:
        found = pa.scalar(key, kind).as_py()
    except (pa.ArrowException, TypeError, ValueError):
        found = None
    if found != key:
        raise SchemaMismatch(f"key {key!r} does not fit the key column's type {kind}")
    return found


def _by_bytes(values: list[bytes], bytes_max: int = 32 << 20) -> Iterator[list[bytes]]:
    """Cut a list so that no piece has much more than `bytes_max`."""
    if sum(map(len, values)) <= bytes_max:
        yield values
        return
    piece: list[bytes] = []
    size = 0
    for value in values:
        piece.append(value)
        size += len(value)
        if size >= bytes_max:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _merged(ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Join ranges of one partition that lie end to end, in order of first appearance."""
    merged: list[OffsetRange] = []
    last: dict[int, int] = {}
    for item in ranges:
        place = last.get(item.partition)
        if place is not None and merged[place].end == item.start:
            merged[place] = merged[place]._replace(end=item.end)
        else:
            last[item.partition] = len(merged)
            merged.append(item)
    return merged
