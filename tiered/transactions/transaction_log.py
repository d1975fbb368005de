"""`TransactionLog`: positions and sessions of consumers, and decided transactions, durable in a topic of the store.

Every change is one record of the topic `__transactions`, which has one partition (`LogTopic`) and stays small (`LogRenewal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from ..base.caller import this_process
from ..base.combiner import Combiner
from ..engine.append import PreparedRecord, append_prepared
from ..engine.context import Place, StoreContext
from ..engine.open_topics import OpenTopic, OpenTopics
from ..engine.read import offset_ranges, refresh
from ..errors import ConfigError, Fenced, OffsetOutOfRange, ServerUnavailable, TopicNotFound
from ..format.topic_meta import TopicMeta
from .decision import Decision, Moves, Placed, Verdict, fenced, moved_positions
from .log_records import data_at, read_records
from .log_renewal import LogRenewal
from .log_topic import LogTopic
from .outcomes import Ranges, ranges_of
from .parts import Part, parts_in
from .positions import (
    APPLIED,
    BATCH,
    BEGIN,
    REMOVED,
    SESSION,
    TRANSACTION,
    Position,
    check_consumer_name,
    commit_row,
    record,
)
from .restored_log import Lineage, check_all_moved
from .staged_log import StagedLog
from .staged_rows import Batch
from .transaction_table import Decided


class LogPoint(NamedTuple):
    """An end of the transaction log, the parts of the transactions before it that may not be durable, and its lineage."""

    end: int
    open: list[Sequence[Part]]
    lineage: Lineage


class TransactionLog:
    """The transaction log of one open store. Thread-safe.

    Parameters
    ----------
    create
        Creates the topic of the log if it is not there, and returns it.
    """

    def __init__(self, context: StoreContext, topics: OpenTopics, create: Callable[[], OpenTopic]) -> None:
        self._context = context
        self._log = LogTopic(context, topics, create)
        self._lock = self._log.lock
        self._commits = Combiner(self._lock)
        self._numbers: dict[str, int] = {}  # the highest of each session, while this process runs
        self.renewal = LogRenewal(self._log)
        self.staged = StagedLog(self._log)

    # -- reading ---------------------------------------------------------------------------------

    def positions(self, consumer: str, topic: str) -> dict[int, Position]:
        """Return the positions of a consumer in a topic, by partition; none of a consumer that never committed."""
        with self._lock:
            return self._log.current().positions.of(consumer, topic)

    def all_positions(self, *, durable: bool = False) -> list[Position]:
        """Return all positions, by consumer, topic and partition.

        Parameters
        ----------
        durable
            Return only once no power cut can take them back. What another process wrote is synced by its read (promise P2).
        """
        with self._lock:
            positions = self._log.current().positions.sorted()
            topic, end = self._log.topic, self._log.end
        if durable and topic is not None and self._context.lifecycle.writes:
            topic.writer(0).sync_to(end)
        return positions

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
        note = note or this_process()
        with self._lock:
            topic = self._log.writable()
            self._log.check_not_deleted(meta)
            present = self._log.tables.positions.of(consumer, meta.name)
            owned = [
                present.get(partition)
                or Position(consumer, meta.name, meta.topic_id, partition, None, 0, None, session, note)
                for partition in partitions
            ]
            for position in owned:
                self._numbers.pop(position.session, None)
            end = self._log.append(topic, record(SESSION, consumer, session, owned, note))
            positions = self._log.tables.positions.of(consumer, meta.name)
        topic.wait_safe(0, end, True)
        return session, positions

    def commit(self, moves: Moves, sync: bool | None) -> None:
        """Store positions, if the session still owns them.

        Parameters
        ----------
        sync
            As in `Topic.append`.

        Raises
        ------
        Fenced
            A newer session owns one of the partitions; nothing was stored.
        ReadOnly, StoreClosed, DiskFull, PartitionPoisoned, ColdStorageError
        """
        now_us = self._context.clock()
        # Made before the lock is taken, as many threads may commit.
        moved = moved_positions(moves, now_us)
        prepared = PreparedRecord(*commit_row(moves.consumer, moves.session, moved), now_us, None, 0)

        def append() -> tuple[OpenTopic, int]:
            topic = self._log.writable()
            self._check_owned(moves)
            if moved and not self._is_late(moves):
                self._log.end = append_prepared(topic, prepared).offset + 1
                self._log.tables.positions.move(moved)
                self._log.tables.records += 1
                self._note_number(moves)
            return topic, self._log.end

        topic, end = self._commits.run(append)
        if not moved:
            return
        if sync if sync is not None else topic.waits:
            topic.wait_safe(0, end, sync)
        self.renewal.renew_if_due()

    def _is_late(self, moves: Moves) -> bool:
        """Whether the session has this commit, or a later one. The caller holds the lock.

        A client sends a commit again if the connection breaks, and the server may still come to the first message later.
        """
        return 0 < moves.number <= self._numbers.get(moves.session, 0)

    def _note_number(self, moves: Moves) -> None:
        self._numbers[moves.session] = max(moves.number, self._numbers.get(moves.session, 0))

    def _check_owned(self, moves: Moves) -> None:
        """Raise `Fenced` unless the session owns all positions that move; `TopicNotFound` if the topic was deleted.

        The caller holds the lock.
        """
        consumer, meta, session, offsets = moves[:4]
        self._log.check_not_deleted(meta)
        if not offsets and all(
            item.session != session for item in self._log.tables.positions.of(consumer, meta.name).values()
        ):
            raise fenced(consumer, meta.name, None, None)
        for partition in offsets:
            owner = self._log.tables.positions.at((consumer, meta.name, partition))
            if owner is None or owner.session != session:
                raise fenced(consumer, meta.name, partition, owner)

    def remove(self, consumer: str, topic_name: str | None = None) -> list[Position]:
        """Forget a consumer, in one topic or in all; return the positions that it had. The change is durable.

        Its sessions are fenced.
        """
        with self._lock:
            topic = self._log.writable()
            removed = [
                position
                for position in self._log.tables.positions.sorted()
                if position.consumer == consumer and topic_name in (None, position.topic)
            ]
            if not removed:
                return []
            end = self._log.append(topic, record(REMOVED, consumer, "", removed))
        topic.wait_safe(0, end, True)
        return removed

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
            topic = self._log.transactional()
            end = self._log.append(topic, record(BEGIN, name, session, (), this_process()))
        topic.wait_safe(0, end, True)
        return session

    def transactions_end(self) -> int:
        """Return the end of the log: no transaction that is decided from now on has a lower offset."""
        with self._lock:
            self._log.transactional()
            return self._log.end

    def rows_end(self) -> int:
        """Return the end of the log if it may hold rows of transactions, else 0."""
        with self._lock:
            self._log.current()
            return self._log.end if self._log.holds_transactions else 0

    def check_session(self, decision: Decision) -> None:
        """Raise `Fenced` unless the session is the newest of its name, and owns the positions to store."""
        with self._lock:
            self._log.writable()
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
            topic, now_us = self._log.transactional(), self._context.clock()
            if any(decision.batch is not None for decision in decisions):
                topic = self._log.staging()
            applied = self._log.tables.decided.first_open(self._log.end)
            for at, decision in enumerate(decisions):
                try:
                    earlier = placed.get(decision.session)
                    if earlier is None:
                        earlier = self._outcome(decision.session, decision.again_since)
                    moved = [] if earlier is not None else self._owned(decision, now_us)
                    batch = {} if decision.batch is None else self._batch_row(decision.batch)
                except (Fenced, TopicNotFound, ServerUnavailable, ConfigError) as error:
                    verdicts.append(error)
                    continue
                verdicts.append(earlier)
                if earlier is not None:
                    continue
                for moves in decision.moves:
                    self._note_number(moves)
                parts, data = place(at)
                if decision.session:
                    placed[decision.session] = ranges_of(parts)
                row = record(TRANSACTION, decision.name or "", decision.session, moved)
                row |= {"parts": parts, "data": data, "applied": applied} | batch
                rows.append(row)
            if rows:
                self._log.append_whole(topic, rows, now_us)
            return verdicts, self._log.end

    def _batch_row(self, batch: Batch) -> dict[str, Any]:
        """Return the columns of a batch's record that other transactions do not have. The caller holds the lock."""
        attempts = self._log.tables.staged.find(batch)
        records = [at for attempt in attempts for _, at in sorted(attempt.records.items())]
        return {"kind": BATCH, "id": batch.query, "number": batch.number, "records": records}

    def outcome(self, session: str, again_since: int) -> tuple[Ranges | None, int]:
        """Return the ranges of a transaction that was committed before, None if it was not; and the end of the log.

        Raises
        ------
        ServerUnavailable
            The log does not know.
        """
        with self._lock:
            self._log.writable()
            return self._outcome(session, again_since), self._log.end

    def _outcome(self, session: str, since: int | None) -> Ranges | None:
        """See `outcome`; None for a first attempt. The caller holds the lock."""
        ranges = self._log.tables.outcomes.find(session)
        if ranges is None and since is not None and since < self._log.tables.outcomes.known_from:
            raise ServerUnavailable(
                "whether the transaction is committed is unknown: its commit was sent again after so many others that the store "
                "no longer knows"
            )
        return ranges

    def _owned(self, decision: Decision, now_us: int) -> list[Position]:
        """Return the positions to store; raise `Fenced` for an older session. The caller holds the lock."""
        if decision.name is not None and self._log.tables.decided.session(decision.name) != decision.session:
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
            topic = self._log.writable()
        topic.writer(0).sync_written(end)

    def open_transactions(self) -> list[Decided]:
        """Return the decided transactions that are not known to be durable in all their partitions, in order.

        A decision that a process wrote before it was killed counts only once it is durable, so this makes the log durable.
        """
        with self._lock:
            self._log.transactional().writer(0)  # which syncs what it recovers
            return self._log.tables.decided.open()

    @property
    def holds_transactions(self) -> bool:
        """Whether this process began or completed transactions."""
        return self._log.holds_transactions

    @property
    def forgotten(self) -> int:
        """How often transactions were removed from those in `open_transactions`."""
        return self._log.tables.decided.forgotten

    @property
    def open_count(self) -> int:
        """The number of transactions in `open_transactions`."""
        return len(self._log.tables.decided)

    def point(self) -> LogPoint:
        """Return the end of the log as it is now, and its open transactions."""
        with self._lock:
            self._log.current()
            decided = self._log.tables.decided.open()
            return LogPoint(self._log.end, [item.parts for item in decided], self._log.lineage)

    def check_all_moved(self) -> None:
        """Raise if a restore to a time has moved the log in the bucket back, and maybe not all other heads.

        Raises
        ------
        RestoreUnderWay
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        with self._lock:
            topic = self._log.topic
            head = None if topic is None else self._log.head(topic)
        if head is not None:
            check_all_moved(self._context.tiers.object_store, head)

    def parts_since(self, point: LogPoint) -> list[Sequence[Part]] | None:
        """Return the parts of all transactions after a point, in order; None if the log has lost some, or was restored."""
        with self._lock:
            topic = self._log.open()
        if topic is None:
            return []
        refresh(topic)
        log = offset_ranges(topic)[0]
        if log.start > point.end or (point.open and log.start == point.end):
            return None  # what was open may have been written anew, with other offsets
        rows = []
        if "parts" in topic.schema.names:
            try:
                rows = [row["parts"] for _, row in read_records(topic, ["parts"], point.end, log.end)]
            except OffsetOutOfRange:
                return None
        if self._log.lineage_of(topic) != point.lineage:
            return None
        return [tuple(parts_in(parts)) for parts in rows if parts]

    def end_of(self, place: Place) -> int | None:
        """Return the offset behind the last transaction with rows in a partition; None if the log has none."""
        with self._lock:
            self._log.current()
            last = self._log.tables.decided.last_at(place)
            return None if last is None else last + 1

    def topics(self) -> set[tuple[str, UUID]]:
        """Return names and ids of the topics of all transactions that the log has."""
        with self._lock:
            self._log.current()
            return self._log.tables.decided.topics

    def wait_published(self, end: int) -> None:
        """Wait until the records before `end` are published, if the sync mode says so.

        Raises
        ------
        ColdStorageError
            They are durable on this disk, and published later.
        """
        topic = self._log.topic
        if topic is not None and topic.publishes:
            topic.wait_safe(0, end, None)

    def parts_beyond(self, ends: Mapping[Place, int]) -> list[Sequence[Part]]:
        """Return the parts of the open transactions, in order, if a partition has rows of any behind its end here."""
        with self._lock:
            decided = self._log.tables.decided
            return [] if decided.are_before(ends) else [item.parts for item in decided.open()]

    def open_at(self, offset: int) -> Decided | None:
        """Return the open transaction whose record is at an offset."""
        with self._lock:
            return self._log.tables.decided.at(offset)

    def data_of(self, decided: Decided) -> list[bytes]:
        """Return the blocks of a transaction."""
        with self._lock:
            topic = self._log.writable()
        return data_at(topic, decided.offset)

    def last_append_us(self) -> int:
        """Return the append time of the last record, in microseconds since the epoch."""
        with self._lock:
            return self._log.writable().writer(0).last_append_us

    def forget(self, durable: Iterable[Decided]) -> None:
        """Remove transactions that are durable in all their partitions."""
        with self._lock:
            self._log.tables.decided.forget(durable)

    def mark_applied(self) -> None:
        """Store durably that no transaction is open, unless the log says so already."""
        with self._lock:
            if self._log.topic is None or not self._log.tables.decided.is_unmarked:
                return
            topic = self._log.writable()
            end = self._log.append(topic, {**record(APPLIED, "", "", ()), "applied": self._log.end})
        topic.writer(0).sync_to(end)

    def move(self, offset: int, at: int, first_offset: int) -> None:
        """Take over the first offset of a part that a recovery appended elsewhere than its record says."""
        with self._lock:
            tables = self._log.tables
            tables.decided.move(offset, at, first_offset)
            tables.outcomes.move(offset, at, first_offset)
            self._log.offsets_moved = True
