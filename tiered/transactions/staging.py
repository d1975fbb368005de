"""`Staging`: each batch of a query of Spark is in the log exactly once, after any repetition or crash.

A task stages its rows as an *attempt*: records of the transaction log that no reader sees. The driver of the query then commits
the attempts that count, with the query's name and the number of the batch:

1. A batch whose number is not above the last one of the query is in the log: nothing happens.
2. Every row of the attempts is read and verified.
3. One record decides, as that of any transaction: it names the records of the rows, and gives the rows their offsets.
4. The rows go from the transaction log to their partitions.

A crash before step 3 leaves nothing. After it, the next opening of the store appends what is missing.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute as pc

from ..base.units import format_size
from ..engine.context import StoreContext
from ..engine.ingest import body_of, by_partition, check_records
from ..engine.open_topics import OpenTopic, OpenTopics
from ..errors import ConfigError, DiskFull, SchemaMismatch, TopicNotFound
from ..format.block_rows import encode_blocks, split_batch
from ..format.schema import SYSTEM_FIELDS, to_batches
from ..format.sizes import bytes_bound
from ..format.topic_meta import TopicMeta
from ..warm import old_stage
from .batches import BATCH_MAX
from .commits import Commits
from .decision import Decision
from .parts import Part, block_data
from .positions import check_not_own
from .staged_appends import rows_in
from .staged_log import StagedLog
from .staged_rows import Batch, Staged, query_key
from .transaction_rows import EncodedPart

_log = logging.getLogger("tiered.topic")

RECORD_BYTES = 8 << 20
"""About the bytes of rows in one record of the transaction log."""
_SWEEP_SECONDS = 3600.0
_ROOM_BYTES = 16 << 20
"""What a commit takes of the disk besides the rows."""
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_TOPIC, _PARTITION = "topic", SYSTEM_FIELDS[1]


class Staging:
    """The staged rows of one open, writable store. Thread-safe.

    Rows have columns of the topic. They may also have ``timestamp`` (the record timestamp, if the topic has no timestamp
    column) and ``partition`` (the partition of the row; null: the key chooses). Rows without a key and a partition go to
    one partition an attempt, which changes from attempt to attempt.

    If no topic is given, the column ``topic`` names that of each row, and all are topics of records.
    """

    def __init__(self, context: StoreContext, topics: OpenTopics, commits: Commits) -> None:
        self._context = context
        self._topics = topics
        self._commits = commits
        self._log = commits.log.staged
        self._lock = threading.Lock()
        # Weak, because each job has a new name: a lock that no thread holds is dropped.
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._swept_us = 0

    def recover(self) -> None:
        """Import the last batches of queries from the files of an early build.

        Raises
        ------
        UnsupportedFormat
            That build has to complete a batch first.
        CorruptionError, DiskFull
        """
        self._context.lifecycle.check_writable()
        root = self._context.tiers.locations.root
        if root is None or not (root / old_stage.STAGE_DIRECTORY).is_dir():
            return
        found = old_stage.done_batches(root)
        self._log.import_batches([(query_key(item.topic_id, item.query), *item[2:]) for item in found])
        old_stage.remove(self._context.fs, root)

    # -- staging -----------------------------------------------------------------------------------

    def stage(self, topic: str | None, query: str, attempt: str, batches: Iterable[pa.RecordBatch]) -> Staged:
        """Write rows to the transaction log durably; no topic has them yet.

        Parameters
        ----------
        attempt
            32 hexadecimal digits, new ones for each attempt of a task.

        Raises
        ------
        TopicNotFound, SchemaMismatch, RecordTooLarge
            A topic cannot take the rows; nothing is staged that could be committed.
        DiskFull, PartitionPoisoned, StoreClosed, ConfigError, ReadOnly
        """
        _check_attempt(attempt)
        writer = _AttemptWriter(self._log, self._key(topic, query), attempt)
        self._sweep_if_due()
        try:
            for batch in batches:
                for target, rows in [(self._named(topic), batch)] if topic else self._by_topic(batch):
                    self._encode(target, rows, writer)
            staged = writer.finish()
        except BaseException:
            writer.drop()
            raise
        return staged

    def _named(self, name: str) -> OpenTopic:
        check_not_own(name)
        return self._topics.topic(name)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[OpenTopic, pa.RecordBatch]]:
        """Yield the rows of each topic that the column `topic` names.

        Raises
        ------
        SchemaMismatch, TopicNotFound, ReadOnly
        """
        at = batch.schema.get_field_index(_TOPIC)
        if at < 0:
            raise SchemaMismatch("rows for several topics have a column topic, which names the topic of each")
        names = batch.column(at)
        try:
            names = names.cast(pa.string())
        except pa.ArrowException as error:
            raise SchemaMismatch(f"column 'topic' holds no names ({error})") from None
        if names.null_count:
            raise SchemaMismatch("a row has no topic: its column topic is null")
        rest = batch.remove_column(at)
        for name in pc.unique(names).to_pylist():
            target = self._named(name)
            if target.typed:
                raise SchemaMismatch(
                    f"topic {name!r} is typed, and rows for several topics are records: write it by the option topic"
                )
            yield target, rest.filter(pc.equal(names, name))

    def _encode(self, topic: OpenTopic, batch: pa.RecordBatch, writer: _AttemptWriter) -> None:
        """Give the writer rows in the form of the log, so that no partition can refuse them later."""
        at = batch.schema.get_field_index(_PARTITION.name)
        partitions = None
        if at >= 0:
            partitions = _named_partitions(topic, batch.column(at))
            batch = batch.remove_column(at)
        first, meta = 0, topic.meta
        for body, stamps in to_batches(batch, meta.schema):
            check_records(body, topic.record_bytes_max)
            rows = body_of(body, stamps, meta.timestamp, self._context.clock())
            named = None if partitions is None else partitions.slice(first, body.num_rows)
            first += body.num_rows
            for partition, part in _by_partition(meta, rows, named):
                chosen = writer.keyless_of(topic) if partition is None else partition
                for piece in split_batch(part, RECORD_BYTES):
                    writer.add(meta, chosen, piece)

    # -- committing --------------------------------------------------------------------------------

    def commit(self, topic: str | None, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        """Commit the rows of attempts durably as one batch of a query; see the module.

        Returns
        -------
        bool
            False if the log has the batch already; the staged rows are forgotten.

        Raises
        ------
        ConfigError
            Staged rows are missing. Nothing is committed.
        CorruptionError, TopicNotFound, DiskFull
            Nothing is committed.
        PartitionPoisoned, ColdStorageError
            See `Commits.commit`. Committing the batch again is safe in any case.
        """
        if not 0 <= batch < BATCH_MAX:
            raise ConfigError(f"the number of a batch is from 0 to {BATCH_MAX - 1}, not {batch}")
        for item in staged:
            _check_attempt(item.attempt)
        if len({item.attempt for item in staged}) < len(staged):
            raise ConfigError("an attempt is committed twice: its rows would be appended twice")
        decided = Batch(self._key(topic, query), batch, tuple(staged))
        with self._lock_of(decided.query):
            if self._log.has_batch(decided.query, batch):
                self._log.drop(decided.query)
                _log.info("batch %d of %s is in the log already", batch, query)
                return False
            parts = self._parts(decided)
            self._verify(decided, parts)
            self._check_room(sum(part.length for part in parts))
            self._commits.commit(Decision(None, "", (), batch=decided), parts)
        return True

    def _parts(self, batch: Batch) -> list[EncodedPart[OpenTopic]]:
        parts = []
        for (topic_id, partition), rows in sorted(self._log.places(batch).items()):
            topic = self._topics.topic(rows.topic)
            if topic.meta.topic_id != topic_id:
                raise TopicNotFound(
                    f"topic {rows.topic!r} was deleted since rows were staged for it, and is another now"
                )
            parts.append(EncodedPart(topic, partition, topic.meta.schema_id, [], rows.rows, rows.bytes))
        return parts

    def _verify(self, batch: Batch, parts: Sequence[EncodedPart[OpenTopic]]) -> None:
        """Read every staged row: a decided batch has to be readable."""
        metas = {(part.topic.meta.topic_id, part.partition): part.topic.meta for part in parts}
        for record_parts, data in self._log.records(batch):
            for _ in rows_in(record_parts, data, metas):
                pass

    def _check_room(self, length: int) -> None:
        root = self._context.tiers.locations.root
        assert root is not None
        free = self._context.host.disk_usage(root).free
        if free < length + _ROOM_BYTES:
            raise DiskFull(
                f"the batch has {format_size(length)} of rows, and the disk {format_size(free)} free; nothing was committed"
            )

    def abort(self, topic: str | None, query: str, attempts: Sequence[str]) -> None:
        """Forget staged rows, but not those of a decided batch, which are in the topics."""
        self._log.drop(self._key(topic, query), attempts)

    # -- one query ---------------------------------------------------------------------------------

    def _key(self, topic: str | None, query: str) -> str:
        if not query or len(query) > 512:
            raise ConfigError(f"a query is named by 1 to 512 characters, not {query!r}")
        return query_key(self._named(topic).meta.topic_id if topic else None, query)

    def _lock_of(self, key: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(key, threading.Lock())

    def _sweep_if_due(self) -> None:
        """Forget old staged rows, once in `_SWEEP_SECONDS`."""
        now_us = self._context.clock()
        with self._lock:
            due = now_us - self._swept_us >= _SWEEP_SECONDS * 1e6
            if due:
                self._swept_us = now_us
        if due:
            self._log.forget()


class _AttemptWriter:
    """Appends the rows of one attempt to the transaction log, in records of about `RECORD_BYTES`."""

    def __init__(self, log: StagedLog, query: str, attempt: str) -> None:
        self._log = log
        self._query = query
        self._attempt = attempt
        self._waiting: dict[tuple[str, UUID, int, int], list[pa.RecordBatch]] = {}
        self._bytes = 0
        self._keyless: dict[UUID, int] = {}
        self._records = self._rows = self._written = self._end = 0

    def keyless_of(self, topic: OpenTopic) -> int:
        """Return the partition of the attempt's rows without a key."""
        chosen = self._keyless.get(topic.meta.topic_id)
        if chosen is None:
            chosen = self._keyless[topic.meta.topic_id] = topic.sticky
            topic.sticky = (chosen + 1) % topic.partitions
        return chosen

    def add(self, meta: TopicMeta, partition: int, rows: pa.RecordBatch) -> None:
        """Take rows of a partition; append them when they fill a record."""
        place = meta.name, meta.topic_id, partition, meta.schema_id
        self._waiting.setdefault(place, []).append(rows)
        self._bytes += bytes_bound(rows)
        if self._bytes >= RECORD_BYTES:
            self._append()

    def _append(self) -> None:
        parts, data = self._encoded()
        self._end = self._log.append(self._query, self._attempt, self._records, parts, data)
        self._records += 1
        self._rows += sum(part.rows for part in parts)
        self._written += sum(part.bytes for part in parts)

    def _encoded(self) -> tuple[list[Part], list[bytes]]:
        """Encode and release the waiting rows: an attempt that waits for the log holds one copy of its rows."""
        parts, data = [], []
        self._bytes = 0
        while self._waiting:
            name, topic_id, partition, schema_id = place = next(iter(self._waiting))
            batches = self._waiting.pop(place)
            rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            blocks = [block_data(body) for body in encode_blocks(rows)]
            size = sum(map(len, blocks))
            parts.append(Part(name, topic_id, partition, schema_id, 0, 0, rows.num_rows, len(blocks), size))
            data += blocks
        return parts, data

    def finish(self) -> Staged:
        """Append the rest, and make all of it durable."""
        if self._waiting:
            self._append()
        if self._end:
            self._log.sync(self._end)
        return Staged(self._attempt, self._rows, self._written)

    def drop(self) -> None:
        """Forget the rows."""
        if self._end:
            self._log.drop(self._query, [self._attempt])


def _check_attempt(attempt: str) -> None:
    if not _ATTEMPT.fullmatch(attempt):
        raise ConfigError(f"an attempt is named by 32 hexadecimal digits, not {attempt!r}")


def _named_partitions(topic: OpenTopic, column: pa.Array) -> pa.Array:
    """Return the partitions in the column ``partition`` of staged rows.

    Raises
    ------
    SchemaMismatch, TopicNotFound
    """
    try:
        partitions = column.cast(_PARTITION.type)
    except pa.ArrowException as error:
        raise SchemaMismatch(f"column 'partition' holds no partitions ({error})") from None
    bounds: Mapping[str, Any] = pc.min_max(partitions).as_py()
    for partition in (bounds["min"], bounds["max"]):
        if partition is not None:
            topic.check_partition(partition)
    return partitions


def _by_partition(
    meta: TopicMeta, rows: pa.RecordBatch, named: pa.Array | None
) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Yield rows by partition: the named one, else that of their key; None for rows with neither."""
    if named is not None:
        for partition in sorted(set(pc.unique(named).to_pylist()) - {None}):
            yield partition, rows.filter(pc.equal(named, partition))
        rows = rows.filter(pc.is_null(named))
    if rows.num_rows == 0:
        return
    key = meta.key if meta.typed else "key"
    if meta.partitions == 1 or key is None:
        yield None, rows
        return
    yield from by_partition(rows, rows.column(key), meta.partitions)
