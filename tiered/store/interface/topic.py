"""`Topic`: one topic of an open store."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Literal

import pyarrow as pa

from ...engine.records import Appended, OffsetRange, Record
from ...engine.topic_shape import TopicShape
from ...format.record import Headers
from ...format.topic_meta import TopicMeta
from ...reader.query import Offsets
from ...reader.scan import Scan
from ...reader.tiers import Tiers
from ...table.table_info import TableInfo
from .consumer import Consumer
from .erasure import Erasure
from .producer import Producer


class Topic(ABC):
    """One topic of an open store; get it from `Store.topic` or `Store.create_topic`. Thread-safe.

    Attributes
    ----------
    name : str
    partitions : int
    schema : pa.Schema
        The topic's own columns; reads add ``topic, partition, offset, timestamp``.
    """

    opened: TopicShape

    @property
    def name(self) -> str:
        return self.opened.name

    @property
    def partitions(self) -> int:
        return self.opened.partitions

    @property
    def schema(self) -> pa.Schema:
        return self.opened.schema

    @abstractmethod
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
        """Append one record.

        Parameters
        ----------
        value
            Bytes; in a typed topic a dict of its columns.
        key
            Chooses the partition (``zlib.crc32(key) % partitions``) if `partition` is not given. A typed topic takes
            the key from its key column.
        timestamp
            Aware datetime, or integer milliseconds since the epoch; default now. A value in the topic's timestamp
            column takes precedence.
        sync
            True waits until the record is durable on this disk; False never waits. By default the sync mode decides:
            ``always`` waits for the disk, ``cold`` until the record is published.
        expected_offset
            Append only if the record gets this offset, the end of its partition with all pending records. The check and the
            append are one step: of several callers that expect one offset, one appends. A topic with several partitions
            needs a key or `partition`. The offset is as provisional as any other; with ``sync=True`` it is durable. Over
            Flight the call waits for the answer.

        Returns
        -------
        Appended
            The record's partition and offset; the offset is provisional until the record is durable.

        Raises
        ------
        SchemaMismatch, RecordTooLarge, ConfigError
        Conflict
            The partition does not end at `expected_offset`; the error has its end, and nothing was appended.
        DiskFull, StoreClosed, ReadOnly, StoreLocked, Fenced, PartitionPoisoned
            Nothing was appended, unless only the wait for the disk failed.
        ColdStorageError
            Mode ``cold`` only: the record is durable on this disk and not published yet. Do not append it again;
            `flush`, the next append or the next pass publishes it.
        """

    @abstractmethod
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
            The offsets of the records. Records of one partition keep their order.

        Raises
        ------
        SchemaMismatch, RecordTooLarge
            The value, key, headers, timestamp or partition of a record is wrong. Records are checked and appended 65,536
            at a time: nothing of the 65,536 with the wrong record was appended.
        """

    @abstractmethod
    def append_batch(
        self, data: Any, *, partition: int | None = None, sync: bool | None = None
    ) -> list[OffsetRange]:
        """Append Arrow data: the fastest way to append.

        Parameters
        ----------
        data
            pyarrow Table or RecordBatch, or any object with ``__arrow_c_stream__`` (pandas, Polars, DuckDB) that
            has columns of the topic. Missing columns become null. If the topic has no timestamp column, or its value is
            null, a column ``timestamp`` gives the record timestamp.
        partition
            The partition of all rows. Default: each row's key chooses. Rows without a key go to one partition. Rows of
            one partition keep their order.
        sync
            As in `append`.

        Returns
        -------
        list of OffsetRange
            The offsets of the rows. Data is appended in runs of up to 4 MiB of one partition, each wholly or not at all. If
            the call fails after some runs, the error names the offsets that were appended.

        Raises
        ------
        SchemaMismatch
            The data does not fit the schema. Nothing of a Table was appended, and of other data nothing of the wrong batch.
        ConfigError
            `sync` is neither True, False nor None; nothing was appended.
        RecordTooLarge, DiskFull, StoreClosed, ReadOnly, StoreLocked, Fenced, PartitionPoisoned
        """

    @abstractmethod
    def producer(self, producer_id: str) -> Producer:
        """Begin a session of an idempotent producer: it numbers its records, and the topic drops repeats.

        The numbers continue after those of the last session, also after a restart or a restore. The new session fences
        older ones of the same producer: their next append raises `Fenced`.

        Parameters
        ----------
        producer_id
            Any text that identifies this source of records, the same after a restart.

        Raises
        ------
        ConfigError, DiskFull, StoreClosed, ReadOnly, StoreLocked, Fenced, PartitionPoisoned
        """

    @abstractmethod
    def flush(self) -> None:
        """Return when all records appended before the call are durable; with ``sync="cold"``, when they are published.

        Raises
        ------
        DiskFull, PartitionPoisoned, Fenced, StoreClosed, ColdStorageError
        """

    @abstractmethod
    def publish(self) -> None:
        """Return when all records appended before the call are durable, and in the bucket.

        Passes do this at intervals (``offload.tail_interval``). Through a server, a client that only reads can ask for it, too.

        Raises
        ------
        ConfigError
            The store has no bucket, or the policy of the topic copies nothing to it.
        ReadOnly
            Neither this process nor its server writes the store.
        ColdStorageError
            The records are durable on the writer's disk, and published later.
        DiskFull, PartitionPoisoned, Fenced, StoreClosed, CorruptionError
        """

    @abstractmethod
    def roll(self) -> None:
        """Seal the active segments that hold records, and begin new ones."""

    @abstractmethod
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
        """Take a snapshot of the topic, over all tiers, and return it as a `Scan`.

        Parameters
        ----------
        partitions
            The partitions to read; default all.
        start_offset, end_offset
            Bounds on offsets, end exclusive: one for all partitions, or a dict by partition.
        start_timestamp, end_timestamp
            Bounds on record timestamps, end exclusive; they filter rows.
        key
            Read only records with this key. Of objects with filters on the key column, only the row groups that may have it
            are read; see ``offload.key_filter`` in the policy.
        columns
            The columns of the result in order, each once; default all.
        limit
            The largest number of rows.
        filter
            Conditions on columns, those of the system too: a tuple ``("celsius", ">", 30)``, a list of tuples that
            all hold, or a list of such lists of which one holds, as in pyarrow. The operators are ``==``, ``!=``,
            ``<``, ``<=``, ``>``, ``>=``, ``in`` and ``not in`` (with a list); ``("city", "is null")`` and ``("city",
            "is not null")`` take no value. ``("not", …)``, ``("and", …, …)`` and ``("or", …, …)`` combine filters. Values
            are converted as `append` converts them. Only rows stay for which the filter is true: as in SQL, a
            comparison with null is not, nor is its negation.
        latest
            Keep only the latest row of each key of a partition within the bounds on offsets, without keys whose latest row
            says that they are deleted: its value is null, or it is true in the column ``compact_keys.deleted`` of the
            policy. Rows without a key stay. The other conditions, and the limit, apply to the rows that are left. The call
            reads all keys of the range, whether the topic is compacted or not.

        Raises
        ------
        OffsetOutOfRange
            The range begins before the start offset.
        TopicNotFound, SchemaMismatch, ConfigError, CorruptionError, ColdStorageError, StoreClosed
        """

    @abstractmethod
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
            Optional if the topic has one partition, or with `follow`: then all partitions that the topic has now are followed
            from their start offsets on, and take turns.
        offset
            Default the start offset.
        limit
            The largest number of records.
        follow
            Continue without end and wait for new durable records; no flush is forced. A store that was opened by the
            URL of its bucket sends one GET every 2 s and retries if the bucket does not answer.

        Raises
        ------
        OffsetOutOfRange
            The offset is before the start offset or after the end offset. While following: retention removed records
            before they were read.
        PositionLost
            While following: a restore took the log back to an earlier offset.
        StoreClosed
            The store was closed, possibly by another thread.
        """

    @abstractmethod
    def consumer(
        self,
        name: str,
        *,
        partitions: Iterable[int] | int | None = None,
        start: object = "earliest",
        on_rewind: Literal["error", "earliest", "latest"] = "error",
    ) -> Consumer:
        """Read partitions on and on, from the positions that the consumer of this name stored last.

        A new session owns its partitions: an older session of the consumer raises `Fenced` at its next commit. A store that
        was opened for reading takes no session; its consumer reads, and its `commit` raises `ReadOnly`.

        Parameters
        ----------
        name
            Text of at most 255 bytes that identifies the reader, the same after a restart.
        partitions
            The partitions to read; default all that the topic has now.
        start
            Where a partition without a stored position begins: ``"earliest"``, ``"latest"``, or a timestamp, at the first
            record of that time or later.
        on_rewind
            Where to go on if the log no longer has a position: after retention, a restore to an earlier time, or a topic that
            was deleted and created again. ``"error"`` raises `PositionLost`.

        Raises
        ------
        PositionLost, TopicNotFound, ConfigError
        DiskFull, StoreClosed, StoreLocked, Fenced, PartitionPoisoned, ColdStorageError, ServerUnavailable
        """

    @abstractmethod
    def offsets(self) -> dict[int, OffsetRange]:
        """Return start and end offset of each partition; flush first, so that the offsets are durable."""

    @abstractmethod
    def offset_at(self, timestamp: object, partition: int = 0) -> int:
        """Return the first offset with a timestamp at or after `timestamp`; the end offset if there is none."""

    @abstractmethod
    def table(self) -> TableInfo:
        """Read the newest version of the topic's live table in the bucket, and measure how far it is behind.

        Raises
        ------
        ConfigError
            There is no table, or another program has committed to it.
        TopicNotFound, CorruptionError, ColdStorageError, StoreClosed
        """

    @abstractmethod
    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Move the start offset up to `offset` (Kafka's DeleteRecords); later passes delete the files and objects.

        Raises
        ------
        OffsetOutOfRange
            The offset is after the end offset.
        TieredError
            The disk failed.
        """

    @abstractmethod
    def erase(
        self,
        keys: Iterable[object] | None = None,
        *,
        column: str | None = None,
        values: Iterable[object] | None = None,
        reason: str = "",
    ) -> Erasure:
        """Remove all records with these keys, in all partitions, that were appended before this call, from every tier.

        The request is durable when this returns; passes carry it out. The offsets of other records keep their numbers.

        Parameters
        ----------
        keys
            Values of the key column, as in an append.
        column, values
            Values of another column, in place of `keys`.
        reason
            For the report, which stays for ever: write no personal data.

        Raises
        ------
        ConfigError
            No values or too many, or the store or the topic has no bucket.
        SchemaMismatch
            The topic has no such column, or a value does not fit it.
        ReadOnly, DiskFull, StoreLocked, Fenced, PartitionPoisoned
        """

    @abstractmethod
    def add_columns(self, columns: pa.Schema) -> None:
        """Add nullable columns at the end of a typed topic; older records read them as null.

        Raises
        ------
        SchemaMismatch, InvalidName, ReadOnly
        """

    @abstractmethod
    def add_partitions(self, total: int) -> None:
        """Raise the number of partitions to `total`; the keys of later appends spread over all of them.

        In a topic that was restored, this asks the bucket.

        Raises
        ------
        ConfigError, ReadOnly, TopicNotFound, DiskFull
        Fenced, ColdStorageError
            The topic was restored, and the store was restored elsewhere since, or the bucket does not answer. No partition was
            added.
        """

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}: {self.partitions} partition{'' if self.partitions == 1 else 's'}>"

    # -- for other packages of tiered ------------------------------------------------------------

    @property
    def meta(self) -> TopicMeta:
        """The topic's document, as this process last read it."""
        return self.opened.meta

    @property
    @abstractmethod
    def tiers(self) -> Tiers | None:
        """The access to the topic's files and objects; None if only a server has it."""

    @abstractmethod
    def scan_cut(self, split_bytes: int, **arguments: Any) -> Scan:
        """Return `scan` with the same arguments; a server that plans the scan cuts splits of about `split_bytes`."""

    @abstractmethod
    def durable_offsets(self, partitions: Iterable[int]) -> dict[int, OffsetRange]:
        """Return the ranges of durable records; nothing is flushed."""

    @abstractmethod
    def durable_batches(
        self, partition: int, offset: int, count: int, lineage: int | None = None
    ) -> Generator[pa.RecordBatch, None, int]:
        """Yield the durable records from `offset` on, at most `count`, with the system columns.

        Raises
        ------
        OffsetOutOfRange
            The log begins behind the offset, or is of another lineage than `lineage`.
        """

    @abstractmethod
    def wait_durable(self, ends: Mapping[int, int], seconds: float | None, wake: threading.Event) -> None:
        """Wait until a partition may have durable records from its offset on, or `wake` is set; at most 2 s."""

    @abstractmethod
    def lineages_of(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the epochs of the lineages that partitions have now."""

    @abstractmethod
    def lineages(self) -> dict[int, int] | None:
        """Return the epoch of each partition's lineage, as `offsets` last read it; None if it is unknown."""

    @abstractmethod
    def common_end(self, partition: int, epoch: int) -> int:
        """Return the offset below which the log and the lineage `epoch` have the same records."""
