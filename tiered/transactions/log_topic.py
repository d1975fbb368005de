"""`LogTopic`: the topic `__transactions` of one open store, and the tables that a replay of its records gives.

The first use replays the topic from its start offset. The process that writes the store applies its own records as it
appends them; another process reads what was appended since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..engine.append import append_prepared, prepare_record
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopic, OpenTopics
from ..engine.read import offset_ranges, refresh
from ..engine.topics import add_columns
from ..errors import ConfigError, CorruptionError, OffsetOutOfRange, TopicNotFound, TransactionLogDamaged
from ..format.block_rows import encode_blocks
from ..format.document import STAGED_FEATURE, TRANSACTIONS_FEATURE
from ..format.manifest import Head
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.timestamps import timestamp_us
from ..format.topic_meta import TopicMeta
from ..warm.catalog import TransactionsCut
from .log_records import RecordEncoder, read_records
from .log_tables import LogTables
from .parts import PARTS_COLUMNS, TRANSACTIONS_PRODUCER
from .positions import TRANSACTIONS_SCHEMA
from .restored_log import UNKNOWN, Lineage, cuts_of, lineage_in
from .staged_rows import STAGED_COLUMNS

_REPLAYS_MAX = 10


@contextmanager
def _named_damage() -> Iterator[None]:
    """Raise damage as `TransactionLogDamaged`, which says what to do."""
    try:
        yield
    except CorruptionError as error:
        raise TransactionLogDamaged(
            f"{error.reason}: nothing is appended before it is known what was decided; stop the writer, then "
            "`tiered verify --deep --repair` takes the records from the bucket, or says which are gone",
            where=error.where, position=error.position, offsets=error.offsets,
        ) from error  # fmt: skip


class LogTopic:
    """The topic and its tables. The caller of every method holds `lock`.

    Parameters
    ----------
    create
        Creates the topic if it is not there, and returns it.

    Attributes
    ----------
    tables
        What the records before `end` say.
    topic
        The topic that was replayed; None before.
    holds_transactions
        Whether this process began or completed transactions.
    offsets_moved
        Whether rows have other offsets than the records of their transactions say.
    lineage
        The lineage that was replayed, for a reader of the bucket alone; `UNKNOWN` for all others.
    """

    def __init__(self, context: StoreContext, topics: OpenTopics, create: Callable[[], OpenTopic]) -> None:
        self.context = context
        self.lock = threading.RLock()
        self.tables = LogTables()
        self.topic: OpenTopic | None = None
        self.end = 0
        self.holds_transactions = False
        self.offsets_moved = False
        self.lineage = UNKNOWN
        self._topics = topics
        self._create = create
        self._known: OpenTopic | None = None
        self._cuts: tuple[TransactionsCut, ...] = ()
        self._records: RecordEncoder | None = None

    # -- reading ---------------------------------------------------------------------------------

    def current(self) -> LogTables:
        """Return the tables with every record that the log has now.

        Raises
        ------
        CorruptionError, ConfigError, StoreClosed
        """
        self.context.lifecycle.check()
        topic = self.open()
        if topic is not None and (self.topic is not topic or not self.context.lifecycle.writes):
            self._replay(topic)
        return self.tables

    def open(self) -> OpenTopic | None:
        """Return the topic as it is now; None if there is none."""
        try:
            topic = self._topics.topic(TRANSACTIONS_TOPIC)
        except TopicNotFound:
            return None
        if topic is not self._known and (
            topic.schema.names[: len(TRANSACTIONS_SCHEMA.names)] != TRANSACTIONS_SCHEMA.names
            or topic.partitions != 1
        ):
            raise ConfigError(
                f"topic {TRANSACTIONS_TOPIC!r} is not a transaction log of this store; consumers need that name"
            )
        self._known = topic
        return topic

    def head(self, topic: OpenTopic) -> Head | None:
        """Return the head of the log as last read, for a reader of the bucket alone; None for all others."""
        tiers = self.context.tiers
        return tiers.cold(topic.meta, 0).last_head if tiers.locations.root is None else None

    def lineage_of(self, topic: OpenTopic) -> Lineage:
        """Return the log's lineage, as last read; see `lineage`."""
        return lineage_in(self.head(topic))

    def _find_cuts(self, topic: OpenTopic) -> tuple[TransactionsCut, ...]:
        """Return which records do not count, since restores to a time have undone them."""
        if self.context.tiers.locations.root is not None:
            return self.context.catalog.transactions_cuts()  # type: ignore[no-any-return]
        head = self.head(topic)
        return () if head is None else cuts_of(head)

    def _replay(self, topic: OpenTopic) -> None:
        for attempt in range(1, _REPLAYS_MAX + 1):
            try:
                with _named_damage():
                    self._replay_once(topic)
                return
            except OffsetOutOfRange:  # its writer shortened the log meanwhile
                if attempt == _REPLAYS_MAX:
                    raise

    def _replay_once(self, topic: OpenTopic) -> None:
        """Apply the records after the last replay; all of them if the log begins later by now, or is another."""
        refresh(topic)
        log, lineage = offset_ranges(topic)[0], self.lineage_of(topic)
        if (
            self.topic is None
            or self.topic.meta.topic_id != topic.meta.topic_id
            or self.lineage != lineage
            or self.end < log.start
        ):
            self.tables, self.end = LogTables(log.start), log.start
            self._cuts = self._find_cuts(topic)
        names = ["timestamp", *(name for name in topic.schema.names if name != "data")]
        for offset, row in read_records(topic, names, self.end, log.end):
            if any(offset < cut.end_offset for cut in self._cuts):
                # The log is written anew without the undone records, for readers in other processes and in the bucket.
                self.offsets_moved = True
            if any(cut.undoes(offset, row["timestamp"]) for cut in self._cuts):
                continue
            try:
                self.tables.apply(offset, row, timestamp_us(row["timestamp"]))
            except (TypeError, ValueError, KeyError, RecursionError) as error:
                raise CorruptionError(
                    f"a record of the transaction log is none: {error}",
                    where=f"topic {topic.name!r}",
                    offsets=(offset, offset + 1),
                ) from None
        if self.lineage_of(topic) != lineage:
            raise OffsetOutOfRange("a restore began a lineage meanwhile", start=log.start, end=log.end)
        self.topic, self.end, self.lineage = topic, log.end, lineage

    # -- appending -------------------------------------------------------------------------------

    def writable(self) -> OpenTopic:
        """Return the topic to append to, replayed; create it if there is none."""
        self.context.lifecycle.check_writable()
        topic = self.open() or self._create()
        if self.topic is not topic:
            with _named_damage():
                topic.writer(0)  # which knows the ends without the bucket, and syncs what it recovers
            self._replay(topic)
        return topic

    def check_not_deleted(self, meta: TopicMeta) -> None:
        """Raise `TopicNotFound` if a topic was deleted, even if another has its name now.

        The check waits for no deletion: a deletion may wait for a transaction, which waits for the log.
        """
        self._topics.check_not_deleted(meta)

    def transactional(self) -> OpenTopic:
        """Return the topic to append to, with the columns of transactions."""
        topic = self.writable()
        if not self.holds_transactions:
            # In this order: a release without transactions never sees one.
            self.context.catalog.add_feature(TRANSACTIONS_FEATURE)
            self.context.pinned_producers.add(TRANSACTIONS_PRODUCER)
            if "parts" not in topic.schema.names:
                add_columns(topic, PARTS_COLUMNS)
            self.holds_transactions = True
        return topic

    def staging(self) -> OpenTopic:
        """Return the topic to append to, with the columns of staged rows."""
        topic = self.transactional()
        if "staged" not in topic.schema.names:
            self.context.catalog.add_feature(STAGED_FEATURE)
            add_columns(topic, STAGED_COLUMNS)
        return topic

    def append(self, topic: OpenTopic, row: dict[str, Any]) -> int:
        """Append one record and apply it; return the offset behind it."""
        prepared = prepare_record(topic, row, None, None, None, 0)
        appended = append_prepared(topic, prepared)
        self.tables.apply(appended.offset, row, prepared.timestamp_us)
        self.end = appended.offset + 1
        return self.end

    def append_whole(self, topic: OpenTopic, rows: Sequence[dict[str, Any]], time_us: int) -> int:
        """Append records by one write, all or none, and apply them; return the offset behind them.

        Parameters
        ----------
        time_us
            The timestamp of the records.
        """
        with topic.writer(0).held() as held:
            first = held.end_offset
            held.append(encode_blocks(self._encoder(topic).encode(rows, time_us), owned=True), keep=False)
            self.end = held.end_offset
        for at, row in enumerate(rows):
            self.tables.apply(first + at, row, time_us)
        return self.end

    def _encoder(self, topic: OpenTopic) -> RecordEncoder:
        if self._records is None or self._records.schema is not topic.schema:
            self._records = RecordEncoder(topic.schema)
        return self._records
