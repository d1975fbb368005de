"""`Consumer`: reads the partitions of a topic on and on, and stores how far it came."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, Self

import pyarrow as pa

from ...engine.read import records_in
from ...engine.records import Record
from ...errors import ConfigError, ReadOnly, StoreClosed
from ...format.timestamps import plain_int
from ...reader.query import check_sync, select_partitions
from ...transactions.decision import Moves
from ...transactions.positions import NO_LINEAGE, Position, check_consumer_name
from .consumed_topic import ConsumedTopic
from .consumer_positions import ConsumerPositions
from .partition_turns import PartitionTurns

_RECORDS_MAX = 10_000
_ITERATION_SECONDS = 1.0


def check_timeout(timeout: object) -> None:
    """Raise `ConfigError` for anything but a number of seconds, or None."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout):
        raise ConfigError(f"timeout is a number of seconds or None, not {timeout!r}")


class Positions(Protocol):
    """The stored positions in one topic: the transaction log of this process, or that behind a server."""

    def positions(self, consumer: str) -> dict[int, Position]: ...

    def begin_session(self, consumer: str, partitions: Iterable[int]) -> tuple[str, dict[int, Position]]: ...

    def commit(self, moves: Moves, sync: bool | None) -> None: ...


class Consumer:
    """Reads partitions of a topic from stored positions on; get it from `Topic.consumer`.

    It returns durable records only, those of one partition in order. Its calls take turns: one thread at a time uses it, but
    `close` wakes a thread that waits in `poll`. Also a context manager, and an iterable of records.

    Attributes
    ----------
    name : str
    partitions : tuple of int
    """

    def __init__(
        self,
        topic: ConsumedTopic,
        positions: Positions,
        name: str,
        partitions: Iterable[int] | int | None,
        start: object,
        on_rewind: str,
    ) -> None:
        if on_rewind not in ("error", "earliest", "latest"):
            raise ConfigError(f'on_rewind is "error", "earliest" or "latest", not {on_rewind!r}')
        self.name = check_consumer_name(name)
        self.partitions = tuple(select_partitions(topic.meta, plain_int(partitions)))
        self._topic = topic
        self._store = positions
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closed = False
        self._process = os.getpid()
        self._session = ""
        self._numbers = itertools.count(1)
        stored = self._begin()
        self._positions = ConsumerPositions(topic, self.name, on_rewind)
        self._positions.begin(self.partitions, stored, start, owned=bool(self._session))
        self._turns = PartitionTurns(topic, self._positions, self._check)
        # With their lineages: a position that was lost is stored anew, even at the same offset.
        self._committed = {
            key: (item.offset, item.lineage if item.topic_id == topic.meta.topic_id else NO_LINEAGE)
            for key, item in stored.items()
            if item.offset is not None
        }

    def _begin(self) -> dict[int, Position]:
        """Return the stored positions, as the owner of the partitions if this process can commit."""
        try:
            self._session, stored = self._store.begin_session(self.name, self.partitions)
        except ReadOnly:
            stored = self._store.positions(self.name)
        return stored

    # -- reading ---------------------------------------------------------------------------------

    def poll(self, timeout: float | None = 1.0, max_records: int = _RECORDS_MAX) -> list[pa.RecordBatch]:
        """Return the next records in Arrow batches, each of one partition, with the system columns.

        Parameters
        ----------
        timeout
            Seconds to wait if no record is there; None waits without end. The result is empty after that time.
        max_records
            The largest number of rows of all batches together.

        Raises
        ------
        PositionLost
            Retention removed records that were not read, or a restore took the log back, and `on_rewind` is ``error``.
        StoreClosed
            The consumer or the store was closed, possibly by another thread.
        TopicNotFound, CorruptionError, ColdStorageError, ServerUnavailable
        """
        if type(max_records) is not int or max_records < 1:
            raise ConfigError(f"max_records is a whole number above 0, not {max_records!r}")
        check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._check()
        with self._lock:
            while True:
                batches = self._turns.take(max_records)
                seconds_left = None if deadline is None else deadline - time.monotonic()
                if batches or (seconds_left is not None and seconds_left <= 0):
                    return batches
                self._wait(seconds_left)

    def __iter__(self) -> Iterator[Record]:
        """Yield records without end; each counts as returned when it is yielded.

        After a `seek`, a `poll` or the record of another iterator, the next record is the one at the position.
        """
        positions = self._positions.offsets
        try:
            while True:
                self._check()
                with self._lock:
                    rows = self._turns.next_rows({})
                    if rows is None:
                        self._wait(_ITERATION_SECONDS)
                        continue
                partition, position = rows.partition, rows.position
                batch = rows.batch.select(["offset", "timestamp", *self._topic.schema.names])
                for record in records_in(batch, self._topic.opened, partition):
                    self._check()
                    with self._lock:
                        if positions[partition] != position:
                            break
                        position = positions[partition] = record.offset + 1
                    yield record
        finally:
            self._turns.drop()

    def _wait(self, seconds: float | None) -> None:
        self._check()
        self._topic.wait_durable(self._positions.offsets, seconds, self._wake)
        self._check()

    # -- positions -------------------------------------------------------------------------------

    @property
    def topic(self) -> ConsumedTopic:
        """The topic that it reads."""
        return self._topic

    def position(self) -> dict[int, int]:
        """Return the offset of the next record, by partition."""
        return dict(self._positions.offsets)

    def lineages(self) -> dict[int, int]:
        """Return the epochs of the lineages in which the positions are, by partition."""
        return dict(self._positions.lineages)

    def committed(self) -> dict[int, int]:
        """Return the offsets that this consumer read from the store or committed last, by partition."""
        return {partition: offset for partition, (offset, _) in self._committed.items()}

    def lag(self) -> dict[int, int]:
        """Return the number of durable records that were not returned yet, by partition."""
        self._check()
        log = self._topic.durable_offsets(self.partitions)
        return {
            partition: max(0, log[partition].end - at) for partition, at in self._positions.offsets.items()
        }

    def seek(self, to: Mapping[int, int] | object) -> None:
        """Continue at other offsets: a dict by partition, ``"earliest"``, ``"latest"`` or a timestamp for all partitions.

        Raises
        ------
        OffsetOutOfRange
            The log does not have an offset; no position has changed.
        """
        self._check()
        if to is None or (isinstance(to, str) and to not in ("earliest", "latest")):
            raise ConfigError(
                f'seek takes a dict by partition, "earliest", "latest" or a timestamp, not {to!r}'
            )
        with self._lock:
            target = self._positions.find(to)
            self._turns.restart()
            self._positions.move(target)

    def commit(self, offsets: Mapping[int, int] | None = None, *, sync: bool | None = None) -> None:
        """Store the positions, so that the next session of this consumer begins there.

        Parameters
        ----------
        offsets
            By partition, the offset of the next record to read. By default, those behind all records that were returned.
        sync
            True waits until the positions are durable on this disk; False never waits. By default the sync mode decides, as
            for appends.

        Raises
        ------
        Fenced
            A newer session of this consumer owns a partition that moves, or all of them; nothing was stored.
        ReadOnly
            This store was opened for reading: commit in the process that writes it, or through a server.
        PositionLost
            A restore took the log back below a position, whatever `on_rewind` is; nothing was stored.
        TopicNotFound
            The topic was deleted; nothing was stored.
        OffsetOutOfRange, ConfigError
            An offset is not in the log; nothing was stored.
        DiskFull, PartitionPoisoned, StoreClosed, ColdStorageError, ServerUnavailable
            The positions may be stored all the same, when there is room again for example.
        """
        check_sync(sync)
        self._check()
        with self._lock:
            moves = self.moves(offsets)
            # Without a new position this asks whether the session still owns the partitions, and the log has the positions.
            self._store.commit(moves, sync)
            self.moved(moves)

    def moves(self, offsets: Mapping[int, int] | None = None) -> Moves:
        """Return the positions that `commit` would store; `Transaction.commit_position` takes them."""
        self._check()
        with self._lock:
            if not self._session:
                raise ReadOnly(
                    f"consumer {self.name!r} reads only: open the store to write it, or by the address of its server, to "
                    "commit positions"
                )
            read = self._positions.read_up_to(offsets)
            pairs = read.pairs()
            stored = self._committed if read.all_returned else {}
            unmoved = {key: pair for key, pair in pairs.items() if stored.get(key) == pair}
            moved = {key: pair for key, pair in pairs.items() if key not in unmoved}
            return Moves(self.name, self._topic.meta, self._session, moved, unmoved, next(self._numbers))

    def moved(self, moves: Moves) -> None:
        """Note that positions are stored."""
        with self._lock:
            self._committed.update(moves.offsets)

    # -- its end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Wake a thread that waits in `poll`, which raises `StoreClosed`; positions that were not committed are dropped."""
        self._closed = True
        self._wake.set()

    def _check(self) -> None:
        if self._process != os.getpid():
            # The parent's threads may have held the lock.
            raise StoreClosed(f"consumer {self.name!r} was made before this process was forked")
        if self._closed:
            raise StoreClosed(f"consumer {self.name!r} of topic {self._topic.name!r} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of topic {self._topic.name!r}: partitions {', '.join(map(str, self.partitions))}>"
