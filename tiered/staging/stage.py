"""Stage rows, then commit them: each batch of a query is in the log exactly once, whatever is repeated or killed.

A task stages its rows in a file of its own, an *attempt*; nobody sees them. Whoever runs the query then commits the
attempts that count, under the query's name and the number of the batch:

1. a batch whose number is not above the last one done is there already: nothing happens;
2. every byte of the attempts is verified;
3. the decision is written down, durably: which attempts, in which order, over how many partitions;
4. the rows are appended under numbers of an idempotent producer that follow from the decision alone, and flushed;
5. the batch is written down as done, the decision and the rows are removed.

A crash before 3 leaves the log as it was. After 3 the same rows get the same numbers at every repetition, so what had
been appended is recognised: the next commit of the query completes it, or `recover` of the next server; and where this one
lives on, as with a disk that was full, it tries again by itself. Another try of the same batch, whose rows may come in
another order, is then no more than a repetition that finds it done.

Records of other appends may lie between those of a batch, and a reader may see some of a batch before the others.
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
    rebuilt,
)
from ..format.block_rows import split_batch
from ..format.producers import PASSING_EPOCH, producer_number
from ..format.schema import SYSTEM_FIELDS, to_batches
from ..warm.open_commits import STAGE_DIRECTORY, decision_producer
from .ledger import Commit, Ledger
from .stage_file import Staged, StageFile, read_stage_file

_log = logging.getLogger("tiered.staging")

ROWS_SECONDS = 24 * 3600.0
"""Rows that nobody committed or aborted are removed after this time."""
DONE_SECONDS = 90 * 24 * 3600.0
"""How long the last batch of a query is remembered at least; that of one that has no other, for `ROWS_SECONDS`."""
RETRY_SECONDS = 300.0
"""How often a commit is tried again that was decided and could not be completed."""
BATCH_MAX = 1 << 30
_ROWS_MAX = 1 << 32
_SWEEP_SECONDS = 3600.0
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_PARTITION = SYSTEM_FIELDS[1]


class Staging:
    """The stage of one open, writable store. Thread-safe.

    Rows have the topic's columns, or some of them, and may have ``timestamp`` (of the record, where the topic has no
    timestamp column of its own) and ``partition`` (where to append; null: by the key, as `Topic.append` does). Rows
    without either go to one partition an attempt, another one for the next.
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
        # Each job has a name of its own: what nobody holds is forgotten.
        self._locks: WeakValueDictionary[Path, threading.Lock] = WeakValueDictionary()
        self._swept_us = 0
        self._retries: Ticker | None = None

    # -- staging -----------------------------------------------------------------------------------

    def stage(self, topic: str, query: str, attempt: str, batches: Iterable[pa.RecordBatch]) -> Staged:
        """Write rows to the stage, durably; nothing of them is in the log yet.

        Parameters
        ----------
        attempt
            32 hexadecimal digits, new ones for each attempt of a task.

        Raises
        ------
        TopicNotFound, SchemaMismatch, RecordTooLarge
            The rows could not be appended later; nothing is staged.
        DiskFull, ConfigError
        """
        _check_attempt(attempt)
        found = self._topics.topic(topic)
        # One for all rows, also where the topic grows by a column meanwhile.
        schema = found.schema
        ledger = self._ledger(found.meta.topic_id, query)
        self.sweep_if_due()
        file: StageFile | None = None
        try:
            for batch in batches:
                for checked in self._checked(found, schema, batch):
                    if file is None:
                        file = self._create(ledger, attempt, checked.schema)
                    file.write(checked)
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
        # Under the lock, for a sweep beside may remove the empty directory.
        with self._lock_of(ledger):
            ledger.make()
            try:
                return StageFile(self._fs, ledger.rows_path(attempt), schema)
            except FileExistsError:
                raise ConfigError(
                    f"attempt {attempt} is staged already; each has a name of its own"
                ) from None

    def _checked(
        self, topic: OpenTopic, schema: pa.Schema, batch: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as they will be appended, so that a commit meets nothing that the log refuses."""
        at = batch.schema.get_field_index(_PARTITION.name)
        places = None
        if at >= 0:
            places = _partitions(topic, batch.column(at))
            batch = batch.remove_column(at)
        limit = topic.record_bytes_max
        first = 0
        for body, stamps in to_batches(batch, schema):
            if body.num_rows == 0:
                continue
            check_records(body, limit)
            staged = body_of(body, stamps, topic.meta.timestamp, self._context.clock())
            if places is not None:
                part = places.slice(first, body.num_rows)
                staged = staged.append_column(_PARTITION, part)
            first += body.num_rows
            # As a commit does; here a record that fits no block is refused.
            yield from split_batch(staged, topic.block_bytes)

    # -- committing --------------------------------------------------------------------------------

    def commit(self, topic: str, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        """Put the rows of attempts into the log, durably, as one batch of a query; see the module.

        Returns
        -------
        bool
            False where the batch was there already; what is staged is let go then.

        Raises
        ------
        ConfigError
            Rows that are to be committed are not there, or no longer. Nothing is appended.
        CorruptionError
        TieredError
            Of the appends, such as `DiskFull`, or the disk's own: the decision stands, and is completed by a try every
            `RETRY_SECONDS`, the next commit of the query or the next start of the server. Do not write the rows again under another name.
        """
        if not 0 <= batch < BATCH_MAX:
            raise ConfigError(f"the number of a batch is from 0 to {BATCH_MAX - 1}, not {batch}")
        for item in staged:
            # It becomes the name of a file that is removed in the end.
            _check_attempt(item.attempt)
        if len({item.attempt for item in staged}) < len(staged):
            raise ConfigError("an attempt is committed twice: its rows would be appended twice")
        if sum(item.rows for item in staged) > _ROWS_MAX:
            # Their numbers would be those of the next batch.
            raise ConfigError(f"a batch has more than {_ROWS_MAX} rows; write it as several")
        found = self._topics.topic(topic)
        ledger = self._ledger(found.meta.topic_id, query)
        with self._lock_of(ledger):
            self._complete(ledger)
            if ledger.done() >= batch:
                ledger.discard([item.attempt for item in staged])
                _log.info("batch %d of %s is in topic %r already", batch, query, topic)
                return False
            present = tuple(item for item in staged if item.rows)
            for item in present:
                self._verify(ledger, item)
            commit = Commit(topic, found.meta.topic_id, query, batch, found.partitions, present)
            ledger.make()
            try:
                ledger.decide(commit)
                self._complete(ledger)
            except (TieredError, OSError) as error:
                if ledger.under_way() is None and ledger.done() < batch:
                    raise
                self._retry_later()
                message = (
                    f"{error}; the batch is decided, and the server tries by itself until it is in the log: do not write "
                    "its rows again"
                )
                if isinstance(error, OSError):
                    raise TieredError(message) from error
                raise rebuilt(type(error), (message,), vars(error)) from error
        return True

    def _verify(self, ledger: Ledger, staged: Staged) -> None:
        try:
            for _ in read_stage_file(ledger.rows_path(staged.attempt), staged):
                pass
        except FileNotFoundError:
            raise ConfigError(
                f"no rows are staged as {staged.attempt}: they were aborted, or nobody came back for them within "
                f"{ROWS_SECONDS / 3600:.0f} hours; write them again"
            ) from None

    def abort(self, topic: str, query: str, attempts: Sequence[str]) -> None:
        """Let staged rows go. What a commit has decided on stays, and so will be in the log."""
        ledger = self._ledger(self._topics.topic(topic).meta.topic_id, query)
        with self._lock_of(ledger):
            decided = ledger.under_way()
            kept = () if decided is None else decided.staged
            named = [attempt for attempt in attempts if _ATTEMPT.fullmatch(attempt)]
            ledger.discard([attempt for attempt in named if attempt not in {item.attempt for item in kept}])

    def recover(self) -> None:
        """Complete what an earlier process decided on, and sweep; what cannot be completed now is tried again later."""
        for ledger, error in self._complete_all():
            _log.error(
                "a commit under %s waits for the next try: %s", ledger.directory, error, exc_info=error
            )
            self._retry_later()
        self.sweep()

    def retry(self) -> None:
        """Complete what was decided on; raise what still stands in the way of one of them."""
        try:
            self._context.lifecycle.check()
        except (StoreClosed, ReferenceError):  # and by now perhaps let go
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
        """Complete what can be; return what failed, and why."""
        failed: list[tuple[Ledger, Exception]] = []
        for ledger in self._ledgers():
            lock = self._lock_of(ledger)
            # Who holds it completes it.
            if lock.acquire(blocking=False):
                try:
                    self._complete(ledger)
                except (TieredError, OSError) as error:
                    failed.append((ledger, error))
                finally:
                    lock.release()
        return failed

    def sweep_if_due(self) -> None:
        """Sweep where that is some time ago."""
        now_us = self._context.clock()
        with self._lock:
            due = now_us - self._swept_us >= _SWEEP_SECONDS * 1e6
            if due:
                self._swept_us = now_us
        if due:
            self.sweep()

    def sweep(self) -> None:
        """Remove rows that nobody came back for in `ROWS_SECONDS`, and queries unheard of for `DONE_SECONDS`."""
        now = self._context.clock() / 1e6
        for ledger in self._ledgers():
            lock = self._lock_of(ledger)
            # It is done again in a while; nobody's rows are to wait for it, nor it for a commit that is under way.
            if lock.acquire(blocking=False):
                try:
                    ledger.sweep(now - ROWS_SECONDS, now - DONE_SECONDS)
                except (TieredError, OSError) as error:
                    _log.warning("%s is not swept: %s", ledger.directory, error)
                finally:
                    lock.release()

    # -- one query ---------------------------------------------------------------------------------

    def _complete(self, ledger: Ledger) -> None:
        """Carry out what was decided, if there is anything; it may have been carried out in part, or wholly."""
        commit = ledger.under_way()
        if commit is None:
            return
        producer, pinned = decision_producer(ledger.directory), self._context.pinned_producers
        # A partition that forgot it meanwhile would append its rows once more.
        pinned.add(producer_number(producer))
        if ledger.done() < commit.batch:
            try:
                topic = self._topics.topic(commit.topic)
                if topic.meta.topic_id != commit.topic_id:
                    raise TopicNotFound(f"topic {commit.topic!r} is another one now")
            except TopicNotFound as gone:
                _log.warning("batch %d of %s is dropped: %s", commit.batch, commit.query, gone)
                ledger.forget()
                pinned.discard(producer_number(producer))
                return
            self._append(topic, commit, ledger, producer)
        ledger.finish(commit)
        pinned.discard(producer_number(producer))

    def _append(self, topic: OpenTopic, commit: Commit, ledger: Ledger, producer: str) -> None:
        """Append the rows of a commit, each under a number that follows from the commit alone."""
        # In the log, those who come again are remembered before those who do not.
        epoch = PASSING_EPOCH if commit.once else 0
        pending = _Pending(topic, producer, epoch, commit.batch * _ROWS_MAX)
        for place, item in enumerate(commit.staged):
            keyless = (commit.batch + place) % commit.partitions
            for batch in read_stage_file(ledger.rows_path(item.attempt), item):
                for partition, rows in _spread(topic, batch, commit.partitions, keyless):
                    pending.add(partition, rows)
        pending.finish()
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


class _Pending:
    """Rows of a commit on their way into the log: gathered to blocks, numbered by their place in the partition."""

    def __init__(self, topic: OpenTopic, producer: str, epoch: int, first: int) -> None:
        self._topic = topic
        self._producer = producer
        self._epoch = epoch
        self._first = first
        self._rows: dict[int, list[pa.RecordBatch]] = {}
        self._numbers: dict[int, int] = {}

    def add(self, partition: int, rows: pa.RecordBatch) -> None:
        """Take rows for a partition; append what is enough for a block."""
        waiting = self._rows.setdefault(partition, [])
        if waiting and waiting[0].schema != rows.schema:
            # The topic grew by a column while the tasks ran.
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
            # Whatever the sync mode: the flush after the last block waits for all of them.
            append_idempotent(
                self._topic, table, partition, self._producer, self._epoch, self._first + number, sync=False
            )
            self._numbers[partition] = number + table.num_rows


def _check_attempt(attempt: str) -> None:
    if not _ATTEMPT.fullmatch(attempt):
        raise ConfigError(f"an attempt is named by 32 hexadecimal digits, not {attempt!r}")


def _partitions(topic: OpenTopic, column: pa.Array) -> pa.Array:
    """Return the partitions that rows name.

    Raises
    ------
    SchemaMismatch, TopicNotFound
    """
    try:
        found = column.cast(_PARTITION.type)
    except pa.ArrowException as error:
        raise SchemaMismatch(f"column 'partition' holds no partitions ({error})") from None
    bounds: Mapping[str, Any] = pc.min_max(found).as_py()
    for wanted in (bounds["min"], bounds["max"]):
        if wanted is not None:
            topic.check_partition(wanted)
    return found


def _spread(
    topic: OpenTopic, batch: pa.RecordBatch, partitions: int, keyless: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield rows by partition: the one they name, else that of their key, else `keyless`."""
    at = batch.schema.get_field_index(_PARTITION.name)
    if at >= 0:
        places = batch.column(at)
        batch = batch.remove_column(at)
        for place in sorted(set(pc.unique(places).to_pylist()) - {None}):
            yield place, batch.filter(pc.equal(places, place))
        batch = batch.filter(pc.is_null(places))
    if batch.num_rows == 0:
        return
    key = topic.meta.key if topic.typed else "key"
    if key is None or partitions == 1:
        yield keyless, batch
        return
    if batch.schema.get_field_index(key) < 0:
        raise CorruptionError(f"staged rows have no column {key!r}")
    for placed, rows in by_partition(batch, batch.column(key), partitions):
        yield keyless if placed is None else placed, rows
