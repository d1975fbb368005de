"""Staging and committing of rows: each batch of a query is in the log exactly once, after any repetition or crash.

A task stages its rows in a file, an *attempt*; no reader sees them. The driver of the query then commits the attempts
that count, with the query's name and the number of the batch:

1. A batch whose number is not above the last complete one is in the log: nothing happens.
2. Every byte of the attempts is verified.
3. The decision is stored durably: which attempts, in which order, over how many partitions.
4. The rows are appended with numbers of an idempotent producer that follow from the decision alone, and flushed.
5. The batch is recorded as complete; the decision and the rows are removed.

A crash before step 3 leaves the log unchanged. After step 3 every repetition gives the same rows the same numbers, so the
log recognises the rows that it has. The commit is completed by the next commit of the query, by `recover` of the next
server, or by a retry of this server, for example after a full disk. If the driver tries the same batch again, perhaps with
its rows in another order, the batch is already complete and nothing happens.

Records of other appends may lie between those of a batch, and a reader may see some rows of a batch before the others.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute as pc

from ..base.ticker import Ticker
from ..engine.append_numbered import append_idempotent
from ..engine.context import StoreContext
from ..engine.ingest import body_of, by_partition, check_records
from ..engine.open_topics import OpenTopic, OpenTopics
from ..errors import (
    ConfigError,
    CorruptionError,
    SchemaMismatch,
    StoreClosed,
    TieredError,
    TopicNotFound,
    rebuild_error,
)
from ..format.block_rows import split_batch
from ..format.producers import PASSING_EPOCH, producer_number
from ..format.schema import SYSTEM_FIELDS, to_batches
from ..warm.open_commits import STAGE_DIRECTORY, decision_producer
from .ledger import Commit, Ledger
from .stage_file import Staged, StageFile, read_stage_file

_log = logging.getLogger("tiered.staging")

ROWS_SECONDS = 24 * 3600.0
"""Rows that are neither committed nor aborted are removed after this time."""
DONE_SECONDS = 90 * 24 * 3600.0
"""The shortest time that the last batch of a query is remembered; for a query with one batch it is `ROWS_SECONDS`."""
RETRY_SECONDS = 300.0
"""The time between two tries to complete a decided commit."""
BATCH_MAX = 1 << 30
_ROWS_MAX = 1 << 32
_SWEEP_SECONDS = 3600.0
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_PARTITION = SYSTEM_FIELDS[1]


class Staging:
    """The stage of one open, writable store. Thread-safe.

    Rows have columns of the topic. They may also have ``timestamp`` (the record timestamp, if the topic has no timestamp
    column) and ``partition`` (the partition of the row; null: the key chooses). Rows without a key and a partition go to
    one partition an attempt, which changes from attempt to attempt.
    """

    def __init__(self, context: StoreContext, topics: OpenTopics) -> None:
        root = context.tiers.locations.root
        if root is None or not context.lifecycle.writes:
            context.lifecycle.check_writable()
            raise ConfigError("rows are staged by the process that writes the store")
        self._context = context
        self._topics = topics
        self._root = root
        self._fs = context.fs
        self._lock = threading.Lock()
        # Weak, because each job has a new name: a lock that no thread holds is dropped.
        self._locks: WeakValueDictionary[Path, threading.Lock] = WeakValueDictionary()
        self._swept_us = 0
        self._retries: Ticker | None = None

    # -- staging -----------------------------------------------------------------------------------

    def stage(self, topic: str, query: str, attempt: str, batches: Iterable[pa.RecordBatch]) -> Staged:
        """Write rows to the stage durably; the log does not have them yet.

        Parameters
        ----------
        attempt
            32 hexadecimal digits, new ones for each attempt of a task.

        Raises
        ------
        TopicNotFound, SchemaMismatch, RecordTooLarge
            The topic cannot take the rows; nothing is staged.
        DiskFull, ConfigError
        """
        _check_attempt(attempt)
        target = self._topics.topic(topic)
        # One schema for all rows, even if a column is added meanwhile.
        schema = target.schema
        ledger = self._ledger(target.meta.topic_id, query)
        self.sweep_if_due()
        file: StageFile | None = None
        try:
            for batch in batches:
                for rows in self._encode(target, schema, batch):
                    if file is None:
                        file = self._create(ledger, attempt, rows.schema)
                    file.write(rows)
            if file is None:
                return Staged(attempt, 0, 0)
            file.finish()
        except BaseException:
            if file is not None:
                file.close()
                self._fs.unlink(file.path)
            raise
        file.close()
        return Staged(attempt, file.rows, file.bytes)

    def _create(self, ledger: Ledger, attempt: str, schema: pa.Schema) -> StageFile:
        # Under the lock, because a sweep on another thread may remove the empty directory.
        with self._lock_of(ledger):
            ledger.make()
            try:
                return StageFile(self._fs, ledger.rows_path(attempt), schema)
            except FileExistsError:
                raise ConfigError(
                    f"attempt {attempt} is staged already; give each attempt a new name"
                ) from None

    def _encode(self, topic: OpenTopic, schema: pa.Schema, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows in the form that a commit appends, so that the log cannot refuse them later."""
        at = batch.schema.get_field_index(_PARTITION.name)
        partitions = None
        if at >= 0:
            partitions = _named_partitions(topic, batch.column(at))
            batch = batch.remove_column(at)
        limit = topic.record_bytes_max
        first = 0
        for body, stamps in to_batches(batch, schema):
            if body.num_rows == 0:
                continue
            check_records(body, limit)
            staged = body_of(body, stamps, topic.meta.timestamp, self._context.clock())
            if partitions is not None:
                part = partitions.slice(first, body.num_rows)
                staged = staged.append_column(_PARTITION, part)
            first += body.num_rows
            # Split like a commit does, to refuse a record that fits into no block.
            yield from split_batch(staged, topic.block_bytes)

    # -- committing --------------------------------------------------------------------------------

    def commit(self, topic: str, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        """Append the rows of attempts durably as one batch of a query; see the module.

        Returns
        -------
        bool
            False if the log has the batch already; the staged rows are removed.

        Raises
        ------
        ConfigError
            Staged rows are missing. Nothing is appended.
        CorruptionError
        TieredError
            An append failed, for example by `DiskFull`, or the disk did. The decision stands: a retry every
            `RETRY_SECONDS`, the next commit of the query or the next start of the server completes it. Do not write the
            rows again under another name.
        """
        if not 0 <= batch < BATCH_MAX:
            raise ConfigError(f"the number of a batch is from 0 to {BATCH_MAX - 1}, not {batch}")
        for item in staged:
            # It becomes the name of a file that is removed later.
            _check_attempt(item.attempt)
        if len({item.attempt for item in staged}) < len(staged):
            raise ConfigError("an attempt is committed twice: its rows would be appended twice")
        if sum(item.rows for item in staged) > _ROWS_MAX:
            # Otherwise their numbers would overlap those of the next batch.
            raise ConfigError(f"a batch has more than {_ROWS_MAX} rows; write it as several")
        target = self._topics.topic(topic)
        ledger = self._ledger(target.meta.topic_id, query)
        with self._lock_of(ledger):
            self._complete(ledger)
            if ledger.last_batch() >= batch:
                ledger.discard([item.attempt for item in staged])
                _log.info("batch %d of %s is in topic %r already", batch, query, topic)
                return False
            present = tuple(item for item in staged if item.rows)
            for item in present:
                self._verify(ledger, item)
            commit = Commit(topic, target.meta.topic_id, query, batch, target.partitions, present)
            ledger.make()
            try:
                ledger.decide(commit)
                self._complete(ledger)
            except (TieredError, OSError) as error:
                if ledger.decided_commit() is None and ledger.last_batch() < batch:
                    raise
                self._retry_later()
                message = (
                    f"{error}; the batch is decided, and the server tries by itself until it is in the log: do not write "
                    "its rows again"
                )
                if isinstance(error, OSError):
                    raise TieredError(message) from error
                raise rebuild_error(type(error), (message,), vars(error)) from error
        return True

    def _verify(self, ledger: Ledger, staged: Staged) -> None:
        try:
            for _ in read_stage_file(ledger.rows_path(staged.attempt), staged):
                pass
        except FileNotFoundError:
            raise ConfigError(
                f"no rows are staged as {staged.attempt}: they were aborted, or not committed within "
                f"{ROWS_SECONDS / 3600:.0f} hours; write them again"
            ) from None

    def abort(self, topic: str, query: str, attempts: Sequence[str]) -> None:
        """Remove staged rows, but not those of a decided commit, which will be in the log."""
        ledger = self._ledger(self._topics.topic(topic).meta.topic_id, query)
        with self._lock_of(ledger):
            commit = ledger.decided_commit()
            decided = () if commit is None else commit.staged
            valid = [name for name in attempts if _ATTEMPT.fullmatch(name)]
            ledger.discard([name for name in valid if name not in {item.attempt for item in decided}])

    def recover(self) -> None:
        """Complete the decided commits of earlier processes, and sweep; retry later those that fail now."""
        for ledger, error in self._complete_all():
            _log.error(
                "a commit under %s waits for the next try: %s", ledger.directory, error, exc_info=error
            )
            self._retry_later()
        self.sweep()

    def retry(self) -> None:
        """Complete the decided commits; raise the error of the first that fails."""
        try:
            self._context.lifecycle.check()
        except (StoreClosed, ReferenceError):  # the store may be gone by now
            if self._retries is not None:
                self._retries.stop()
            return
        failed = self._complete_all()
        if failed:
            ledger, error = failed[0]
            raise TieredError(f"a commit under {ledger.directory} waits for the next try: {error}") from error

    def _retry_later(self) -> None:
        with self._lock:
            if self._retries is None:
                self._retries = Ticker("tiered-stage", RETRY_SECONDS, self.retry)
                self._retries.start()

    def _complete_all(self) -> list[tuple[Ledger, Exception]]:
        """Complete all decided commits; return the ledgers that failed, each with its error."""
        failed: list[tuple[Ledger, Exception]] = []
        for ledger in self._ledgers():
            lock = self._lock_of(ledger)
            # The thread that holds the lock completes this commit.
            if lock.acquire(blocking=False):
                try:
                    self._complete(ledger)
                except (TieredError, OSError) as error:
                    failed.append((ledger, error))
                finally:
                    lock.release()
        return failed

    def sweep_if_due(self) -> None:
        """Sweep if the last sweep was `_SWEEP_SECONDS` ago."""
        now_us = self._context.clock()
        with self._lock:
            due = now_us - self._swept_us >= _SWEEP_SECONDS * 1e6
            if due:
                self._swept_us = now_us
        if due:
            self.sweep()

    def sweep(self) -> None:
        """Remove rows older than `ROWS_SECONDS`, and queries without a batch for `DONE_SECONDS`."""
        now = self._context.clock() / 1e6
        for ledger in self._ledgers():
            lock = self._lock_of(ledger)
            # A busy ledger is left to the next sweep: neither waits for the other.
            if lock.acquire(blocking=False):
                try:
                    ledger.sweep(now - ROWS_SECONDS, now - DONE_SECONDS)
                except (TieredError, OSError) as error:
                    _log.warning("%s is not swept: %s", ledger.directory, error)
                finally:
                    lock.release()

    # -- one query ---------------------------------------------------------------------------------

    def _complete(self, ledger: Ledger) -> None:
        """Complete the decided commit of a ledger, if there is one; some or all of its rows may be in the log."""
        commit = ledger.decided_commit()
        if commit is None:
            return
        producer, pinned = decision_producer(ledger.directory), self._context.pinned_producers
        # Pinned, because a partition that drops the producer would append its rows again.
        pinned.add(producer_number(producer))
        if ledger.last_batch() < commit.batch:
            try:
                topic = self._topics.topic(commit.topic)
                if topic.meta.topic_id != commit.topic_id:
                    raise TopicNotFound(f"topic {commit.topic!r} was deleted and created again")
            except TopicNotFound as error:
                _log.warning("batch %d of %s is dropped: %s", commit.batch, commit.query, error)
                ledger.drop_commit()
                pinned.discard(producer_number(producer))
                return
            self._append(topic, commit, ledger, producer)
        ledger.finish(commit)
        pinned.discard(producer_number(producer))

    def _append(self, topic: OpenTopic, commit: Commit, ledger: Ledger, producer: str) -> None:
        """Append the rows of a commit, each with a number that follows from the commit alone."""
        # A full table of producers drops those with the passing epoch first: their queries have no other batch.
        epoch = PASSING_EPOCH if commit.is_job else 0
        writer = _CommitWriter(topic, producer, epoch, commit.batch * _ROWS_MAX)
        for index, item in enumerate(commit.staged):
            keyless = (commit.batch + index) % commit.partitions
            for batch in read_stage_file(ledger.rows_path(item.attempt), item):
                for partition, rows in _by_partition(topic, batch, commit.partitions, keyless):
                    writer.add(partition, rows)
        writer.finish()
        topic.flush()

    def _ledger(self, topic_id: UUID, query: str) -> Ledger:
        if not query or len(query) > 512:
            raise ConfigError(f"a query is named by 1 to 512 characters, not {query!r}")
        return Ledger.of(self._fs, self._root, topic_id, query)

    def _ledgers(self) -> list[Ledger]:
        directory = self._root / STAGE_DIRECTORY
        if not directory.is_dir():
            return []
        return [Ledger(self._fs, path) for path in sorted(directory.iterdir()) if path.is_dir()]

    def _lock_of(self, ledger: Ledger) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(ledger.directory, threading.Lock())


class _CommitWriter:
    """Appends the rows of a commit in blocks, with numbers by their position in the partition."""

    def __init__(self, topic: OpenTopic, producer: str, epoch: int, first: int) -> None:
        self._topic = topic
        self._producer = producer
        self._epoch = epoch
        self._first = first
        self._rows: dict[int, list[pa.RecordBatch]] = {}
        self._numbers: dict[int, int] = {}

    def add(self, partition: int, rows: pa.RecordBatch) -> None:
        """Take rows for a partition; append them when they fill a block."""
        waiting = self._rows.setdefault(partition, [])
        if waiting and waiting[0].schema != rows.schema:
            # A column was added while the tasks ran.
            self._append(partition)
            waiting = self._rows[partition]
        waiting.append(rows)
        if sum(batch.nbytes for batch in waiting) >= self._topic.block_bytes:
            self._append(partition)

    def finish(self) -> None:
        """Append the rest."""
        for partition in self._rows:
            self._append(partition)

    def _append(self, partition: int) -> None:
        waiting = self._rows[partition]
        if waiting:
            self._rows[partition] = []
            table, number = pa.Table.from_batches(waiting), self._numbers.get(partition, 0)
            # Without a wait in any sync mode: the flush after the last block waits for all of them.
            append_idempotent(
                self._topic, table, partition, self._producer, self._epoch, self._first + number, sync=False
            )
            self._numbers[partition] = number + table.num_rows


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
    topic: OpenTopic, batch: pa.RecordBatch, partitions: int, keyless: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield rows by partition: their own column ``partition``, else by their key, else `keyless`."""
    at = batch.schema.get_field_index(_PARTITION.name)
    if at >= 0:
        named = batch.column(at)
        batch = batch.remove_column(at)
        for partition in sorted(set(pc.unique(named).to_pylist()) - {None}):
            yield partition, batch.filter(pc.equal(named, partition))
        batch = batch.filter(pc.is_null(named))
    if batch.num_rows == 0:
        return
    key = topic.meta.key if topic.typed else "key"
    if key is None or partitions == 1:
        yield keyless, batch
        return
    if batch.schema.get_field_index(key) < 0:
        raise CorruptionError(f"staged rows have no column {key!r}")
    for chosen, rows in by_partition(batch, batch.column(key), partitions):
        yield keyless if chosen is None else chosen, rows
