"""`Topic`: append to and read one topic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from ...engine.records import Appended, OffsetRange, Record
from ...engine.topic_shape import TopicShape
from ...format.record import Headers
from ...format.topic_meta import TopicMeta
from ...reader.query import Offsets
from ...reader.scan import Scan
from ...reader.tiers import Tiers
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
            Where they went. Records of one partition keep their order.

        Raises
        ------
        SchemaMismatch, RecordTooLarge
            A record that does not fit: its value, key, headers, timestamp or partition. Of a list of up to 65,536
            nothing was appended then; longer input is appended that many at a time.
        """

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
    def flush(self) -> None:
        """Return once everything appended before the call is durable; raise what stood in the way.

        In sync mode ``cold``: once it is published.
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

    @abstractmethod
    def offsets(self) -> dict[int, OffsetRange]:
        """Return start and end offset of each partition; what is about to be shown is flushed first."""

    @abstractmethod
    def offset_at(self, timestamp: object, partition: int = 0) -> int:
        """Return the first offset whose timestamp is at or after `timestamp`; the end offset if none is."""

    @abstractmethod
    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Move the start offset up (Kafka's DeleteRecords); the tiering pass removes the files and objects.

        Raises
        ------
        OffsetOutOfRange
            The offset is after the end offset.
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
        """Raise the number of partitions to `total`; keys appended from now on spread over all of them.

        Raises
        ------
        ConfigError, ReadOnly
        """

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}: {self.partitions} partition{'' if self.partitions == 1 else 's'}>"

    # -- for other packages of tiered ------------------------------------------------------------

    @property
    def meta(self) -> TopicMeta:
        """The topic's document, as this process has last seen it."""
        return self.opened.meta

    @property
    @abstractmethod
    def tiers(self) -> Tiers | None:
        """What this process reads the topic's tiers by; None where only a server reaches them."""

    @abstractmethod
    def scan_cut(self, split_bytes: int, **arguments: Any) -> Scan:
        """Return `scan` of the same arguments; where a server plans it, it cuts splits of about `split_bytes`."""

    @abstractmethod
    def lineages(self) -> dict[int, int] | None:
        """Return the epoch of each partition's lineage, as `offsets` has seen it; None where that is not known."""

    @abstractmethod
    def common_end(self, partition: int, epoch: int) -> int:
        """Return the offset below which the log is that of the lineage `epoch`."""
