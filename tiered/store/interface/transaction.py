"""`Transaction`: appends to several topics and positions of consumers that are committed together, or not at all."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ...engine.records import OffsetRange, Record
from ...errors import ConfigError
from ...format.record import Headers
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
            self._append(topic, value, key, headers, timestamp, partition)

    def append_many(self, topic: str | Topic, records: Iterable[bytes | Mapping[str, Any] | Record]) -> None:
        """Add records, all or none; else like `Topic.append_many`. See `append` for the errors."""
        with self._lock:
            self._check()
            self._append_many(topic, records)

    def append_batch(self, topic: str | Topic, data: Any, *, partition: int | None = None) -> None:
        """Add Arrow data, all or none; else like `Topic.append_batch`. See `append` for the errors."""
        with self._lock:
            self._check()
            self._append_batch(topic, data, partition)

    def commit_position(self, consumer: Consumer) -> None:
        """Commit the positions behind everything that a consumer has returned so far, with this transaction.

        Raises
        ------
        ConfigError
            The consumer is of another store, or the transaction has ended.
        ReadOnly, StoreClosed
        """
        with self._lock:
            self._check()
            self._commit_position(consumer)

    def commit(self) -> dict[str, list[OffsetRange]]:
        """Commit, and return `ranges`. Everything is durable then, whatever the sync mode.

        Raises
        ------
        Fenced
            A newer transaction of this name began, or a newer session of a consumer; nothing was committed.
        TopicNotFound, DiskFull, StoreClosed, CorruptionError
            Nothing was committed.
        PartitionPoisoned
            The disk failed. The message says whether the transaction is committed.
        """
        with self._lock:
            self._check()
            # An error or Ctrl-C ends it, too: a second attempt could commit the rows twice.
            self._end = "began its commit, which failed"
            self.ranges = self._commit()
            self._end = "was committed"
            return self.ranges

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

    @abstractmethod
    def _append(
        self,
        topic: str | Topic,
        value: Any,
        key: object,
        headers: object,
        timestamp: object,
        partition: int | None,
    ) -> None: ...

    @abstractmethod
    def _append_many(
        self, topic: str | Topic, records: Iterable[bytes | Mapping[str, Any] | Record]
    ) -> None: ...

    @abstractmethod
    def _append_batch(self, topic: str | Topic, data: Any, partition: int | None) -> None: ...

    @abstractmethod
    def _commit_position(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def _commit(self) -> dict[str, list[OffsetRange]]: ...

    @abstractmethod
    def _drop(self) -> None: ...
