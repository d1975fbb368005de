"""`Transaction`: appends to several topics and positions of consumers that are committed together, or not at all."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ...engine.records import OffsetRange, Record
from ...engine.topic_shape import TopicShape
from ...errors import ConfigError
from ...format.record import Headers
from ...transactions.decision import Moves
from ...transactions.positions import check_not_own
from ...transactions.transaction_rows import EncodedPart, TransactionRows
from .consumer import Consumer
from .topic import Topic


class Transaction(ABC):
    """Rows and positions that are committed together; get it from `Store.transaction`. Thread-safe.

    As a context manager it commits at the end of the block; an exception drops everything. Rows are in memory until then, and
    no reader sees them. They take 32 MiB at most.

    Attributes
    ----------
    name : str or None
    ranges : dict of str to list of OffsetRange
        After the commit: by topic, the offsets of the rows.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.ranges: dict[str, list[OffsetRange]] = {}
        self._rows: TransactionRows[Any] = TransactionRows()
        self._consumers: dict[Consumer, Moves] = {}
        self._lock = threading.RLock()
        self._end: str | None = None

    def append(
        self,
        topic: str | Topic,
        value: Any,
        *,
        key: bytes | str | int | None = None,
        headers: Mapping[str, bytes] | Headers | None = None,
        timestamp: object = None,
        partition: int | None = None,
    ) -> None:
        """Add one record; else like `Topic.append`. Its offset is known after the commit.

        Raises
        ------
        RecordTooLarge
            Also if the transaction would have more than 32 MiB of rows.
        SchemaMismatch, TopicNotFound
            The record was not added. A `topic` that was deleted since it was opened is not found, whatever its name has now.
        ConfigError
            The transaction has ended, or the topic is of another store.
        """
        with self._lock:
            self._check()
            self._rows.add(self._shape(topic), value, key, headers, timestamp, partition)

    def append_many(self, topic: str | Topic, records: Iterable[bytes | Mapping[str, Any] | Record]) -> None:
        """Add records, all or none; else like `Topic.append_many`. See `append` for the errors."""
        with self._lock:
            self._check()
            self._rows.add_many(self._shape(topic), records)

    def append_batch(self, topic: str | Topic, data: Any, *, partition: int | None = None) -> None:
        """Add Arrow data, all or none; else like `Topic.append_batch`. See `append` for the errors."""
        with self._lock:
            self._check()
            self._rows.add_batch(self._shape(topic), data, partition)

    def commit_position(self, consumer: Consumer, offsets: Mapping[int, int] | None = None) -> None:
        """Commit positions of a consumer with this transaction.

        Parameters
        ----------
        offsets
            As `Consumer.commit` takes them; by default those behind everything that the consumer has returned so far.

        Raises
        ------
        ConfigError
            The consumer is of another store, an offset is none, or the transaction has ended.
        OffsetOutOfRange
            An offset is not in the log; no position of the consumer was added.
        ReadOnly, StoreClosed
        """
        with self._lock:
            self._check()
            if not isinstance(consumer, Consumer):
                raise ConfigError(f"commit_position takes a consumer, not {type(consumer).__name__}")
            self._check_of_this_store(consumer.topic.opened, f"consumer {consumer.name!r}")
            self._consumers[consumer] = consumer.moves(offsets)

    @property
    def ended(self) -> bool:
        """Whether it was committed or aborted."""
        return self._end is not None

    def commit(self) -> dict[str, list[OffsetRange]]:
        """Commit, and return `ranges`. Everything is durable then, whatever the sync mode.

        Raises
        ------
        Fenced
            A newer transaction of this name began, or a newer session of a consumer; nothing was committed.
        PositionLost
            A restore took the log of a consumer back below its position; nothing was committed.
        TopicNotFound, DiskFull, StoreClosed, CorruptionError
            Nothing was committed.
        PartitionPoisoned
            The disk failed. The message says whether the transaction is committed.
        ServerUnavailable
            No answer came, or the store was closed meanwhile: whether the transaction is committed is unknown.
        """
        with self._lock:
            self._check()
            # An error or Ctrl-C ends it, too: a second attempt could commit the rows twice.
            self._end = "began its commit, which failed"
            # Also those without a new position: the session must still own the partitions.
            moves = tuple(self._consumers.values())
            ranges: dict[str, list[OffsetRange]] = {topic: [] for topic in self._rows.topics}
            for topic, part in self._commit(moves, self._rows.encode()):
                ranges[topic].append(part)
            for consumer, moved in self._consumers.items():
                consumer.moved(moved)
            self._drop()
            self.ranges, self._end = ranges, "was committed"
            return ranges

    def abort(self) -> None:
        """Drop everything; nothing if the transaction has ended."""
        with self._lock:
            if self._end is None:
                self._end = "was aborted"
                self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._end is None:
            self.commit()

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        return f"<Transaction{name}{'' if self._end is None else f': it {self._end}'}>"

    def _check(self) -> None:
        if self._end is not None:
            raise ConfigError(f"this transaction {self._end}; begin another by store.transaction()")

    def _drop(self) -> None:
        self._rows = TransactionRows()
        self._consumers.clear()

    def _shape(self, topic: str | Topic) -> TopicShape:
        if not isinstance(topic, str | Topic):
            raise ConfigError(f"a transaction takes a topic or its name, not {type(topic).__name__}")
        name = topic if isinstance(topic, str) else topic.name
        check_not_own(name)
        if not isinstance(topic, str):
            self._check_of_this_store(topic.opened, f"topic {name!r}")
        return self._current(topic)

    def _check_of_this_store(self, topic: TopicShape, what: str) -> None:
        if not self._owns(topic):
            raise ConfigError(f"{what} is of another store than this transaction")

    @abstractmethod
    def _owns(self, topic: TopicShape) -> bool:
        """Whether a topic is of this store."""

    @abstractmethod
    def _current(self, topic: str | Topic) -> TopicShape:
        """Return a topic as it is now; raise `TopicNotFound` for a handle of one that was deleted."""

    @abstractmethod
    def _commit(
        self, moves: tuple[Moves, ...], parts: list[EncodedPart[Any]]
    ) -> Iterable[tuple[str, OffsetRange]]:
        """Commit; return topics and offsets of the rows."""
