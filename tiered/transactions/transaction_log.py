"""`TransactionLog`: positions and sessions of consumers, and decided transactions, durable in a topic of the store.

Every change is one record of the topic `__transactions`, which has one partition. The first use replays the topic from its
start offset. The process that writes the store applies its own records as it appends them; another process reads what
was appended since.

The topic stays small: after some thousands of records, the writer rolls its segment, appends the whole table again, makes
it durable, and moves the start offset to it, or to the first transaction that may not be durable in its partitions. With
transactions it moves the start offset one renewal later. A crash between these steps repeats them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from ..base.combiner import Combiner
from ..engine.append import PreparedRecord, append_prepared, prepare_record
from ..engine.context import Place, StoreContext
from ..engine.open_topics import OpenTopic, OpenTopics
from ..engine.read import offset_ranges, refresh
from ..engine.topics import add_columns, delete_before, remove_deleted_segments
from ..errors import (
    ConfigError,
    CorruptionError,
    Fenced,
    OffsetOutOfRange,
    ServerUnavailable,
    StoreClosed,
    TieredError,
    TopicNotFound,
)
from ..format.block_rows import encode_blocks
from ..format.document import TRANSACTIONS_FEATURE
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.timestamps import to_datetime
from ..format.topic_meta import TopicMeta
from ..warm.catalog import TransactionsCut
from .decided import Decided, DecidedTable
from .decision import Decision, Moves, Placed, Verdict, fenced, moved_positions
from .log_records import body_of_records, read_records
from .outcomes import Outcomes, Ranges, ranges_of
from .parts import PARTS_COLUMNS, TRANSACTIONS_PRODUCER, Part, parts_in
from .positions import (
    APPLIED,
    BEGIN,
    OUTCOMES,
    REMOVED,
    SESSION,
    TRANSACTION,
    TRANSACTIONS_SCHEMA,
    Position,
    PositionTable,
    check_consumer_name,
    commit_row,
    record,
)

_log = logging.getLogger("tiered.topic")

_REPLAYS_MAX = 10
RENEW_RECORDS_MIN = 1 << 12
"""The least number of records after which the table is appended again; with many positions it is four times as many."""
CLOSE_RECORDS_MAX = 1 << 8
"""The number of records that a clean close leaves for the next opening to read."""


RENEW_BYTES_MIN = 256 << 20
"""The least bytes of rows of transactions after which the table is appended again."""


class LogPoint(NamedTuple):
    """A place in the transaction log, and the parts of the transactions before it that may not be durable."""

    end: int
    open: list[Sequence[Part]]


class TransactionLog:
    """The transaction log of one open store. Thread-safe.

    Parameters
    ----------
    create
        Creates the topic of the log if it is not there, and returns it.
    """

    def __init__(self, context: StoreContext, topics: OpenTopics, create: Callable[[], OpenTopic]) -> None:
        self._context = context
        self._topics = topics
        self._create = create
        self._lock = threading.RLock()
        self._commits = Combiner(self._lock)
        self._table = PositionTable()
        self._decided = DecidedTable()
        self._outcomes = Outcomes()
        self._holds_transactions = False
        self._topic: OpenTopic | None = None
        self._end = 0
        self._records = 0
        self._renewed = 0
        self._offsets_moved = False
        self._cuts: tuple[TransactionsCut, ...] = ()

    # -- reading ---------------------------------------------------------------------------------

    def positions(self, consumer: str, topic: str) -> dict[int, Position]:
        """Return the positions of a consumer in a topic, by partition; none of a consumer that never committed."""
        with self._lock:
            return self._current().of(consumer, topic)

    def all_positions(self, *, durable: bool = False) -> list[Position]:
        """Return all positions, by consumer, topic and partition.

        Parameters
        ----------
        durable
            Return only once no power cut can take them back. What another process wrote is synced by its read (promise P2).
        """
        with self._lock:
            positions, topic, end = self._current().sorted(), self._topic, self._end
        if durable and topic is not None and self._context.lifecycle.writes:
            topic.writer(0).sync_to(end)
        return positions

    def _current(self) -> PositionTable:
        """Return the table with every record that the log has now. The caller holds the lock."""
        self._context.lifecycle.check()
        topic = self._open()
        if topic is not None and (self._topic is not topic or not self._context.lifecycle.writes):
            self._replay(topic)
        return self._table

    def _open(self) -> OpenTopic | None:
        try:
            topic = self._topics.topic(TRANSACTIONS_TOPIC)
        except TopicNotFound:
            return None
        if (
            topic.schema.names[: len(TRANSACTIONS_SCHEMA.names)] != TRANSACTIONS_SCHEMA.names
            or topic.partitions != 1
        ):
            raise ConfigError(
                f"topic {TRANSACTIONS_TOPIC!r} is not a transaction log of this store; consumers need that name"
            )
        return topic

    def _replay(self, topic: OpenTopic) -> None:
        for attempt in range(1, _REPLAYS_MAX + 1):
            try:
                self._replay_once(topic)
                return
            except OffsetOutOfRange:  # its writer shortened the log meanwhile
                if attempt == _REPLAYS_MAX:
                    raise

    def _replay_once(self, topic: OpenTopic) -> None:
        """Apply what the log has beyond the last replay; from its start if that is later, or if the topic is another."""
        refresh(topic)
        log = offset_ranges(topic)[0]
        if self._topic is None or self._topic.meta.topic_id != topic.meta.topic_id or self._end < log.start:
            self._table, self._decided, self._outcomes = PositionTable(), DecidedTable(), Outcomes(log.start)
            self._end, self._records = log.start, 0
        names = ["timestamp", *(name for name in topic.schema.names if name != "data")]
        for offset, row in read_records(topic, names, self._end, log.end):
            cuts = [cut for cut in self._cuts if offset < cut.end_offset]
            if cuts:
                # The log is written anew without these, for readers in other processes and in the bucket.
                self._offsets_moved = True
                if row["timestamp"] > to_datetime(min(cut.at_us for cut in cuts)):
                    continue
            try:
                self._apply(offset, row)
            except (TypeError, ValueError, KeyError) as error:
                raise CorruptionError(
                    f"a record of the transaction log is none: {error}",
                    where=f"topic {topic.name!r}",
                    offsets=(offset, offset + 1),
                ) from None
        self._topic, self._end = topic, log.end

    def _apply(self, offset: int, row: Mapping[str, Any]) -> None:
        """Take over the record at an offset."""
        self._table.apply(row)
        self._decided.apply(offset, row)
        if row["kind"] == OUTCOMES:
            self._outcomes.apply_note(row["note"])
        elif row["kind"] == TRANSACTION and row["session"]:
            self._outcomes.add(row["session"], offset, tuple(parts_in(row["parts"])))
        if row["kind"] in (BEGIN, TRANSACTION) and row["id"]:
            self._decided.use(row["id"], row["session"])
        self._records += 1

    # -- changing --------------------------------------------------------------------------------

    def begin_session(
        self, consumer: str, meta: TopicMeta, partitions: Iterable[int], note: str | None = None
    ) -> tuple[str, dict[int, Position]]:
        """Make a new session the owner of a consumer's partitions; return it, and the positions. It is durable.

        Parameters
        ----------
        note
            What people see of the owner; by default host and process.

        Raises
        ------
        ConfigError, ReadOnly, StoreClosed, DiskFull, PartitionPoisoned, Fenced
        """
        check_consumer_name(consumer)
        session = uuid4().hex
        note = note or f"{socket.gethostname()}, process {os.getpid()}"
        with self._lock:
            topic = self._writable()
            known = self._table.of(consumer, meta.name)
            owned = [
                known.get(partition)
                or Position(consumer, meta.name, meta.topic_id, partition, None, 0, None, session, note)
                for partition in partitions
            ]
            end = self._append(topic, record(SESSION, consumer, session, owned, note))
            positions = self._table.of(consumer, meta.name)
        topic.wait_safe(0, end, True)
        return session, positions

    def commit(
        self,
        consumer: str,
        meta: TopicMeta,
        session: str,
        offsets: Mapping[int, tuple[int, int]],
        sync: bool | None,
    ) -> None:
        """Store positions, if the session still owns them.

        Parameters
        ----------
        offsets
            By partition: the offset of the next record, and the epoch of the partition's lineage.
        sync
            As in `Topic.append`.

        Raises
        ------
        Fenced
            A newer session owns one of the partitions; nothing was stored.
        ReadOnly, StoreClosed, DiskFull, PartitionPoisoned, ColdStorageError
        """
        moves = Moves(consumer, meta, session, offsets)
        now_us = self._context.clock()
        # Made before the lock is taken, as many threads may commit.
        moved = moved_positions(moves, now_us)
        prepared = PreparedRecord(*commit_row(consumer, session, moved), now_us, None, 0)

        def append() -> tuple[OpenTopic, int]:
            topic = self._writable()
            self._check_owned(moves)
            if moved:
                self._end = append_prepared(topic, prepared).offset + 1
                self._table.move(moved)
                self._records += 1
            return topic, self._end

        topic, end = self._commits.run(append)
        if not moved:
            return
        if sync if sync is not None else topic.waits:
            topic.wait_safe(0, end, sync)
        self.renew_if_due()

    def _check_owned(self, moves: Moves) -> None:
        """Raise `Fenced` unless the session owns all positions that move. The caller holds the lock."""
        consumer, meta, session, offsets = moves
        if not offsets and all(
            item.session != session for item in self._table.of(consumer, meta.name).values()
        ):
            raise fenced(consumer, meta.name, None, None)
        for partition in offsets:
            owner = self._table.at((consumer, meta.name, partition))
            if owner is None or owner.session != session:
                raise fenced(consumer, meta.name, partition, owner)

    def remove(self, consumer: str, topic_name: str | None = None) -> list[Position]:
        """Forget a consumer, in one topic or in all; return the positions that it had. The change is durable.

        Its sessions are fenced.
        """
        with self._lock:
            topic = self._writable()
            removed = [
                item
                for item in self._table.sorted()
                if item.consumer == consumer and topic_name in (None, item.topic)
            ]
            if not removed:
                return []
            end = self._append(topic, record(REMOVED, consumer, "", removed))
        topic.wait_safe(0, end, True)
        return removed

    def _writable(self) -> OpenTopic:
        """Return the topic to append to, replayed; create it if there is none. The caller holds the lock."""
        self._context.lifecycle.check_writable()
        topic = self._open() or self._create()
        if self._topic is not topic:
            topic.writer(0)  # which knows the ends without the bucket, and syncs what it recovers
            self._replay(topic)
        return topic

    def _append(self, topic: OpenTopic, row: dict[str, Any]) -> int:
        """Append one record and apply it; return the offset behind it. The caller holds the lock."""
        appended = append_prepared(topic, prepare_record(topic, row, None, None, None, 0))
        self._apply(appended.offset, row)
        self._end = appended.offset + 1
        return self._end

    # -- transactions ----------------------------------------------------------------------------

    def begin_transaction(self, name: str) -> str:
        """Make a new session the newest of a transaction's name, and return it. It is durable.

        Raises
        ------
        ConfigError, ReadOnly, StoreClosed, DiskFull, PartitionPoisoned
        """
        check_consumer_name(name, "transaction")
        session = uuid4().hex
        with self._lock:
            topic = self._transactional()
            note = f"{socket.gethostname()}, process {os.getpid()}"
            end = self._append(topic, record(BEGIN, name, session, (), note))
        topic.wait_safe(0, end, True)
        return session

    def transactions_end(self) -> int:
        """Return the end of the log: no transaction that is decided from now on has a lower offset."""
        with self._lock:
            self._transactional()
            return self._end

    def rows_end(self) -> int:
        """Return the end of the log if it may hold rows of transactions, else 0."""
        with self._lock:
            self._current()
            return self._end if self._holds_transactions else 0

    def begins_before(self, offset: int) -> bool:
        """Whether this process writes the log, and it begins before an offset."""
        topic = self._topic
        return topic is not None and 0 in topic.writers and topic.writers[0].start_offset < offset

    def check_owner(self, decision: Decision) -> None:
        """Raise `Fenced` unless the session is the newest of its name, and owns the positions to store."""
        with self._lock:
            self._writable()
            self._owned(decision, 0)

    def decide(
        self, decisions: Sequence[Decision], place: Callable[[int], Placed]
    ) -> tuple[list[Verdict], int]:
        """Append the records of transactions by one write, all or none. They count once `sync_written` has returned.

        Parameters
        ----------
        place
            Gives the rows of the transaction of an index their offsets; called in order, for those that are decided now.

        Returns
        -------
        (list, int)
            The verdict of each transaction; the offset behind the last record.

        Raises
        ------
        DiskFull, StoreClosed, CorruptionError
            None was appended.
        PartitionPoisoned
            Some may have been.
        """
        verdicts: list[Verdict] = []
        rows: list[dict[str, Any]] = []
        placed: dict[str, Ranges] = {}
        with self._lock:
            topic, now_us = self._transactional(), self._context.clock()
            applied = self._decided.first_open(self._end)
            for at, decision in enumerate(decisions):
                try:
                    known = (
                        placed[decision.session] if decision.session in placed else self._outcome(decision)
                    )
                    moved = [] if known is not None else self._owned(decision, now_us)
                except (Fenced, ServerUnavailable) as error:
                    verdicts.append(error)
                    continue
                verdicts.append(known)
                if known is not None:
                    continue
                parts, data = place(at)
                if decision.session:
                    placed[decision.session] = ranges_of(parts)
                row = record(TRANSACTION, decision.name or "", decision.session, moved)
                row |= {"parts": [part.to_row() for part in parts], "data": data, "applied": applied}
                rows.append(row)
            if rows:
                with topic.writer(0).held() as held:
                    first = held.end_offset
                    held.append(encode_blocks(body_of_records(topic, rows, now_us)), keep=False)
                    self._end = held.end_offset
                for at, row in enumerate(rows):
                    self._apply(first + at, row)
            return verdicts, self._end

    def _outcome(self, decision: Decision) -> Ranges | None:
        """Return the ranges of a transaction that was committed before; None if it was not. The caller holds the lock."""
        known = self._outcomes.find(decision.session)
        since = decision.again_since
        if known is None and since is not None and since < self._outcomes.known_from:
            raise ServerUnavailable(
                "whether the transaction is committed is unknown: its commit was sent again after so many others that the store "
                "no longer knows"
            )
        return known

    def _owned(self, decision: Decision, now_us: int) -> list[Position]:
        """Return the positions to store; raise `Fenced` for an older session. The caller holds the lock."""
        if decision.name is not None and self._decided.session(decision.name) != decision.session:
            raise Fenced(
                f"a newer session of transaction {decision.name!r} began, or it was not used for long; nothing was committed"
            )
        for moves in decision.moves:
            self._check_owned(moves)
        return [position for moves in decision.moves for position in moved_positions(moves, now_us)]

    def sync_written(self, end: int) -> None:
        """Make the records before `end` durable, all of which are written: it needs no room on the disk.

        Raises
        ------
        PartitionPoisoned, StoreClosed, Fenced
        """
        with self._lock:
            topic = self._writable()
        topic.writer(0).sync_written(end)

    def drop_later(self, cuts: tuple[TransactionsCut, ...]) -> None:
        """Leave out records that restores to a time have too many of; called before the log is read."""
        with self._lock:
            self._cuts = cuts

    def open_transactions(self) -> list[Decided]:
        """Return the decided transactions that are not known to be durable in all their partitions, in order.

        A decision that a process wrote before it was killed counts only once it is durable, so this makes the log durable.
        """
        with self._lock:
            self._transactional().writer(0)  # which syncs what it recovers
            return self._decided.open()

    @property
    def holds_transactions(self) -> bool:
        """Whether this process began or completed transactions."""
        return self._holds_transactions

    @property
    def forgotten(self) -> int:
        """How often transactions were removed from those in `open_transactions`."""
        return self._decided.forgotten

    @property
    def open_count(self) -> int:
        """The number of transactions in `open_transactions`."""
        return len(self._decided)

    def point(self) -> LogPoint:
        """Return the end of the log as it is now."""
        with self._lock:
            self._current()
            return LogPoint(self._end, [item.parts for item in self._decided.open()])

    def parts_since(self, point: LogPoint) -> list[Sequence[Part]] | None:
        """Return the parts of all transactions since then, in order; None if the log has lost some."""
        with self._lock:
            topic = self._open()
        if topic is None:
            return []
        refresh(topic)
        log = offset_ranges(topic)[0]
        if log.start > point.end or "parts" not in topic.schema.names:
            return None if log.start > point.end else []
        try:
            rows = [row["parts"] for _, row in read_records(topic, ["parts"], point.end, log.end)]
        except OffsetOutOfRange:
            return None
        return [tuple(parts_in(parts)) for parts in rows if parts]

    def end_of(self, place: Place) -> int | None:
        """Return the offset behind the last transaction with rows in a partition; None if the log has none."""
        with self._lock:
            self._current()
            last = self._decided.last_at(place)
            return None if last is None else last + 1

    def topics(self) -> set[tuple[str, UUID]]:
        """Return names and ids of the topics of all transactions that the log has."""
        with self._lock:
            self._current()
            return self._decided.topics

    def wait_published(self, end: int) -> None:
        """Wait until the records before `end` are published, if the sync mode says so.

        Raises
        ------
        ColdStorageError
            They are durable on this disk, and published later.
        """
        with self._lock:
            topic = self._writable()
        if topic.publishes:
            topic.wait_safe(0, end, None)

    def parts_beyond(self, ends: Mapping[Place, int]) -> list[Sequence[Part]]:
        """Return the parts of the open transactions, in order, if a partition has rows of any behind its end here."""
        with self._lock:
            return [] if self._decided.are_before(ends) else [item.parts for item in self._decided.open()]

    def data_of(self, decided: Decided) -> list[bytes]:
        """Return the blocks of a transaction."""
        with self._lock:
            topic = self._writable()
        for _, row in read_records(topic, ["data"], decided.offset, decided.offset + 1):
            return list(row["data"])
        raise CorruptionError("a transaction is missing", where=f"topic {topic.name!r}")

    def last_append_us(self) -> int:
        """Return the append time of the last record, in microseconds since the epoch."""
        with self._lock:
            return self._writable().writer(0).last_append_us

    def forget(self, durable: Iterable[Decided]) -> None:
        """Remove transactions that are durable in all their partitions."""
        with self._lock:
            self._decided.forget(durable)

    def mark_applied(self) -> None:
        """Store durably that no transaction is open, unless the log says so."""
        with self._lock:
            if self._topic is None or not self._decided.is_unmarked:
                return
            topic = self._writable()
            end = self._append(topic, {**record(APPLIED, "", "", ()), "applied": self._end})
        topic.writer(0).sync_to(end)

    def _transactional(self) -> OpenTopic:
        """Return the topic to append to, with the columns of transactions. The caller holds the lock."""
        topic = self._writable()
        if not self._holds_transactions:
            # In this order: a release without transactions never sees one.
            self._context.catalog.add_feature(TRANSACTIONS_FEATURE)
            self._context.pinned_producers.add(TRANSACTIONS_PRODUCER)
            if "parts" not in topic.schema.names:
                add_columns(topic, PARTS_COLUMNS)
            self._holds_transactions = True
        return topic

    # -- renewal ---------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether the log is long enough to be renewed."""
        records_max = max(RENEW_RECORDS_MIN, 4 * len(self._table))
        return self._records >= records_max or self._decided.bytes >= RENEW_BYTES_MIN

    def renew_if_due(self) -> None:
        """Append the table again if the log is long, and move the start offset to it."""
        if not self.is_due:
            return
        with self._lock:
            topic = self._topic
            if topic is None or not self.is_due:
                return
            self._shorten(topic, self._renew)
        self._remove_deleted(topic)

    def renew_beyond(self, offset: int) -> None:
        """Append the table again and delete what is before `offset`, as far as no transaction before it is open."""
        with self._lock:
            topic = self._topic
            if topic is not None and self._shorten(topic, self._renew) and self.begins_before(offset):
                self._shorten(topic, lambda topic: self._delete_before(topic, self._renewed))

    def renew_at_close(self) -> None:
        """Leave little to read for the next opening."""
        with self._lock:
            topic = self._topic
            if topic is None or self._records <= max(CLOSE_RECORDS_MAX, 4 * len(self._table)):
                return
            if self._shorten(topic, self._renew):
                # Readers in other processes that began before begin again: no other renewal follows.
                self._shorten(topic, lambda topic: self._delete_before(topic, self._renewed))
        self._remove_deleted(topic)

    def _shorten(self, topic: OpenTopic, shorten: Callable[[OpenTopic], None]) -> bool:
        """Call a function that appends what the log holds again; return whether it succeeded. The caller holds the lock."""
        try:
            shorten(topic)
        except StoreClosed:
            return False
        except TieredError as error:
            # The positions are stored; only old records stay for longer.
            _log.warning("the transaction log cannot be shortened now: %s", error)
            return False
        return True

    def _remove_deleted(self, topic: OpenTopic) -> None:
        """Remove files before the start offset; with a bucket, passes do that."""
        if not self._context.tiers.has_cold:
            try:
                remove_deleted_segments(topic, 0)
            except TieredError as error:
                _log.warning("old files of the transaction log stay for now: %s", error)

    def _renew(self, topic: OpenTopic) -> None:
        topic.writer(0).roll()
        start = self._decided.first_open(self._end)
        self._append_tables(topic)
        if self._holds_transactions:
            # A reader in another process that began before still finds what was decided meanwhile.
            start, self._renewed = self._renewed, start
        self._delete_before(topic, start)

    def move(self, offset: int, at: int, first_offset: int) -> None:
        """Note that rows that a recovery appended have other offsets than the record of their transaction says."""
        with self._lock:
            self._decided.move(offset, at, first_offset)
            self._outcomes.move(offset, at, first_offset)
            self._offsets_moved = True

    def rewrite_if_moved(self) -> None:
        """Append the table and the open transactions again, with the offsets that their rows have, and delete what is older.

        Readers in other processes and in the bucket go by these offsets. A crash in between repeats it.
        """
        with self._lock:
            topic = self._topic
            if topic is None or not self._offsets_moved:
                return
            if self._shorten(topic, self._rewrite):
                self._offsets_moved = False

    def _rewrite(self, topic: OpenTopic) -> None:
        writer, now_us = topic.writer(0), self._context.clock()
        writer.roll()
        start = self._renewed = self._end
        self._append_tables(topic)
        for item in self._decided.open():
            row = record(TRANSACTION, "", "", ())
            row |= {
                "parts": [part.to_row() for part in item.parts],
                "data": self.data_of(item),
                "applied": start,
            }
            self._decided.forget([item])
            with writer.held() as held:
                offset = held.end_offset
                held.append(encode_blocks(body_of_records(topic, [row], now_us)), keep=False)
                self._end = held.end_offset
            self._apply(offset, row)
        self._delete_before(topic, start)

    def _append_tables(self, topic: OpenTopic) -> None:
        """Append records whose replay gives positions and sessions as they are."""
        self._records = self._decided.bytes = 0
        for row in self._table.records():
            self._append(topic, row)
        for name, session in self._decided.sessions().items():
            self._append(topic, record(BEGIN, name, session, ()))
        if self._holds_transactions:
            self._append(topic, record(OUTCOMES, "", "", (), self._outcomes.to_note()))

    def _delete_before(self, topic: OpenTopic, start: int) -> None:
        # It makes the new records durable first.
        delete_before(topic, max(start, topic.writer(0).start_offset), 0)
