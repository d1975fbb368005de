"""`Consumer`: reads the partitions of a topic on and on, and stores how far it came."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, Self

import pyarrow as pa

from ...engine.read import records_in
from ...engine.records import OffsetRange, Record
from ...engine.topic_shape import TopicShape
from ...errors import (
    ConfigError,
    OffsetOutOfRange,
    PositionLost,
    ReadOnly,
    StoreClosed,
    TieredError,
)
from ...format.timestamps import plain_int
from ...format.topic_meta import TopicMeta
from ...reader.query import check_sync, select_partitions
from ...transactions.decision import Moves
from ...transactions.positions import NO_LINEAGE, Position, check_consumer_name

_TAKEN_BACK = "a restore took the log back to an earlier offset"
_RECORDS_MAX = 10_000
_ITERATION_SECONDS = 1.0
# A partition yields so many records before the next one has its turn.
_TURN_RECORDS = 1 << 20
_RETRY_SECONDS_MAX = 60.0

_log = logging.getLogger("tiered.topic")


def check_timeout(timeout: object) -> None:
    """Raise `ConfigError` for anything but a number of seconds, or None."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout):
        raise ConfigError(f"timeout is a number of seconds or None, not {timeout!r}")


def lost_at(topic: str, partition: int, offset: int, start: int, end: int) -> PositionLost:
    """Return the error of a reader whose log a restore has taken back below its offset."""
    return PositionLost(
        f"offset {offset} of topic {topic!r} partition {partition} is lost: {_TAKEN_BACK}; the log has {start} to {end}",
        partition=partition,
        offset=offset,
        start=start,
        end=end,
    )


class ConsumedTopic(Protocol):
    """What a consumer needs of a topic; see `Topic`."""

    @property
    def opened(self) -> TopicShape: ...
    @property
    def name(self) -> str: ...
    @property
    def meta(self) -> TopicMeta: ...
    @property
    def schema(self) -> pa.Schema: ...
    def durable_offsets(self, partitions: Iterable[int]) -> dict[int, OffsetRange]: ...
    def durable_batches(
        self, partition: int, offset: int, count: int, lineage: int | None = None
    ) -> Generator[pa.RecordBatch, None, int]: ...
    def wait_durable(self, ends: Mapping[int, int], seconds: float | None, wake: threading.Event) -> None: ...
    def offset_at(self, timestamp: object, partition: int = 0) -> int: ...
    def lineages_of(self, partitions: Iterable[int]) -> dict[int, int]: ...
    def common_end(self, partition: int, epoch: int) -> int: ...


class Positions(Protocol):
    """The stored positions in one topic: the transaction log of this process, or that behind a server."""

    def positions(self, consumer: str) -> dict[int, Position]: ...

    def begin_session(self, consumer: str, partitions: Iterable[int]) -> tuple[str, dict[int, Position]]: ...

    def commit(self, moves: Moves, sync: bool | None) -> None: ...


class ReadOffsets(dict[int, int]):
    """Offsets by partition, and the lineages of the partitions in which a reader of a consumer read up to them.

    Attributes
    ----------
    returned
        Whether these are the positions behind all that the reader has returned, as `Consumer.commit` takes by default.
    """

    lineages: Mapping[int, int]
    returned = False


class _Piece(NamedTuple):
    """Rows of a partition, and the position of a reader before them: erased records may lie in between."""

    partition: int
    position: int
    batch: pa.RecordBatch


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
        self._on_rewind = on_rewind
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closed = False
        self._process = os.getpid()
        self._session = ""
        stored = self._begin()
        # Of each partition: the lineage that has the position.
        log, self._lineages = self._logs(self.partitions)
        self._positions = {
            partition: self._first(stored.get(partition), log[partition], start)
            for partition in self.partitions
        }
        # With their lineages: a position that was lost is stored anew, even at the same offset.
        self._committed = {
            key: (item.offset, item.lineage if item.topic_id == topic.meta.topic_id else NO_LINEAGE)
            for key, item in stored.items()
            if item.offset is not None
        }
        self._batches: Iterator[_Piece] | None = None
        self._rest: deque[_Piece] = deque()
        self._ahead: dict[int, int] = {}
        self._failed: TieredError | None = None

    # -- where it begins -------------------------------------------------------------------------

    def _begin(self) -> dict[int, Position]:
        """Return the stored positions, as the owner of the partitions if this process can commit."""
        try:
            self._session, stored = self._store.begin_session(self.name, self.partitions)
        except ReadOnly:
            stored = self._store.positions(self.name)
        return stored

    def _logs(self, partitions: Iterable[int]) -> tuple[dict[int, OffsetRange], dict[int, int]]:
        """Return the durable ranges of partitions, and the lineages that have them."""
        partitions = tuple(partitions)
        while True:
            lineages = self._topic.lineages_of(partitions)
            log = self._topic.durable_offsets(partitions)
            if self._topic.lineages_of(partitions) == lineages:
                return log, lineages

    def _first(self, stored: Position | None, log: OffsetRange, start: object) -> int:
        if stored is not None and stored.offset is not None:
            reason = self._loss(stored, log)
            return stored.offset if reason is None else self._rewound(log, stored.offset, reason)
        if start == "earliest":
            return log.start
        if start == "latest":
            return log.end
        if isinstance(start, str):
            raise ConfigError(f'start is "earliest", "latest" or a timestamp, not {start!r}')
        return self._topic.offset_at(start, log.partition)

    def _loss(self, stored: Position, log: OffsetRange) -> str | None:
        """Return why the log no longer has the stored position; None if it has."""
        assert stored.offset is not None
        if stored.topic_id != self._topic.meta.topic_id:
            return "the topic was deleted and created again"
        reason = self._cut(stored.offset, stored.lineage, self._lineages[log.partition], log)
        # Without a session the log is as far as it was published, or durable: the rest comes later.
        if reason is None and stored.offset > log.end and self._session:
            return "the log ends before it"
        return reason

    def _cut(self, offset: int, lineage: int, now: int, log: OffsetRange) -> str | None:
        """Return why the log of lineage `now` no longer has the records before or behind a position; None if it has."""
        if lineage != now and offset > self._topic.common_end(log.partition, lineage):
            return _TAKEN_BACK
        if offset < log.start:
            return "retention or delete_before removed records that were not read"
        return None

    def _rewound(self, log: OffsetRange, offset: int, reason: str) -> int:
        if self._on_rewind == "earliest":
            return log.start
        if self._on_rewind == "latest":
            return log.end
        raise PositionLost(
            f"consumer {self.name!r} cannot go on at offset {offset} of topic {self._topic.name!r} partition "
            f'{log.partition}: {reason}; the log has {log.start} to {log.end}. Pass on_rewind="earliest" or "latest", or '
            "set the position by `tiered consumers reset`",
            partition=log.partition,
            offset=offset,
            start=log.start,
            end=log.end,
        )

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
                batches = self._take(max_records)
                left = None if deadline is None else deadline - time.monotonic()
                if batches or (left is not None and left <= 0):
                    return batches
                self._wait(left)

    def __iter__(self) -> Iterator[Record]:
        """Yield records without end; each counts as returned when it is yielded.

        After a `seek`, a `poll` or the record of another iterator, the next record is the one at the position.
        """
        try:
            while True:
                self._check()
                with self._lock:
                    piece = self._next_at({})
                    if piece is None:
                        self._wait(_ITERATION_SECONDS)
                        continue
                partition, position = piece.partition, piece.position
                rows = piece.batch.select(["offset", "timestamp", *self._topic.schema.names])
                for record in records_in(rows, self._topic.opened, partition):
                    self._check()
                    with self._lock:
                        if self._positions[partition] != position:
                            break
                        position = self._positions[partition] = record.offset + 1
                    yield record
        finally:
            self._drop_read_ahead()

    def _take(self, left: int) -> list[pa.RecordBatch]:
        """Return batches, and move the positions behind them; an error before moves nothing.

        An error after the first batch waits for the next call: the batches are returned first.
        """
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        batches: list[pa.RecordBatch] = []
        ends: dict[int, int] = {}
        try:
            while left > 0 and (piece := self._next_at(ends)) is not None:
                batch = piece.batch.slice(0, left)
                end = ends[piece.partition] = batch.column("offset")[-1].as_py() + 1
                if batch.num_rows < piece.batch.num_rows:
                    self._rest.appendleft(_Piece(piece.partition, end, piece.batch.slice(left)))
                batches.append(batch)
                left -= batch.num_rows
        except TieredError as error:
            self._drop_read_ahead()
            if not batches:
                raise
            self._failed = error
        except BaseException:
            # Ctrl-C: what was taken here is read again.
            self._drop_read_ahead()
            raise
        self._positions |= ends
        return batches

    def _next_at(self, ends: Mapping[int, int]) -> _Piece | None:
        """Return the next rows behind `ends`, or else behind the positions.

        Another reader of this consumer may have taken records since, or may hold some that it has yet to return.
        """
        due = {**self._positions, **ends}
        piece = self._next()
        fits = self._ahead == due if piece is None else piece.position == due[piece.partition]
        if fits:
            return piece
        self._drop_read_ahead()
        return None if ends else self._next()

    def _next(self) -> _Piece | None:
        """Return the next rows; None if there is no durable record that was not returned."""
        self._check()
        if self._rest:
            return self._rest.popleft()
        if self._batches is None:
            self._batches = self._turns()
        piece = next(self._batches, None)
        if piece is None:
            self._batches = None
        return piece

    def _turns(self) -> Iterator[_Piece]:
        """Yield what each partition has from its position on, and as long as one had records."""
        # What the read-ahead has yielded, which may be more than was returned.
        at = self._ahead = dict(self._positions)
        some = True
        while some:
            some = False
            for partition in self.partitions:
                position = at[partition]
                try:
                    yield from self._pieces(partition, at)
                except OffsetOutOfRange as error:
                    if at[partition] != self._positions[partition]:
                        return  # what was read ahead is returned first
                    at[partition] = self._follow_log(partition, error)
                    some = True
                some = some or at[partition] != position

    def _follow_log(self, partition: int, error: OffsetOutOfRange) -> int:
        """Go on in a log that no longer has the position, or is of another lineage; return the position."""
        logs, lineages = self._logs([partition])
        log, lineage, position = logs[partition], lineages[partition], self._positions[partition]
        reason = self._cut(position, self._lineages[partition], lineage, log)
        if reason is None and position > log.end:
            reason = "the log ends before it"
        if reason is not None:
            position = self._rewound(log, position, reason)
        elif lineage == self._lineages[partition]:
            raise error
        self._positions[partition], self._lineages[partition] = position, lineage
        return position

    def _pieces(self, partition: int, at: dict[int, int]) -> Iterator[_Piece]:
        """Yield what a partition has from its position on, and move it behind that."""
        batches = self._topic.durable_batches(
            partition, at[partition], _TURN_RECORDS, self._lineages[partition]
        )
        while True:
            try:
                batch = next(batches)
            except StopIteration as ended:
                looked: int = ended.value
                break
            position, at[partition] = at[partition], batch.column("offset")[-1].as_py() + 1
            yield _Piece(partition, position, batch)
        position = at[partition]
        if looked > position:
            # The records in between were erased.
            at[partition] = looked
            if self._positions[partition] == position:
                self._positions[partition] = looked

    def _wait(self, seconds: float | None) -> None:
        self._check()
        self._topic.wait_durable(self._positions, seconds, self._wake)
        self._check()

    def _drop_read_ahead(self) -> None:
        self._batches = None
        self._rest.clear()

    # -- positions -------------------------------------------------------------------------------

    @property
    def topic(self) -> ConsumedTopic:
        """The topic that it reads."""
        return self._topic

    def position(self) -> dict[int, int]:
        """Return the offset of the next record, by partition."""
        return dict(self._positions)

    def lineages(self) -> dict[int, int]:
        """Return the epochs of the lineages in which the positions are, by partition."""
        return dict(self._lineages)

    def committed(self) -> dict[int, int]:
        """Return the offsets that this consumer read from the store or committed last, by partition."""
        return {partition: offset for partition, (offset, _) in self._committed.items()}

    def lag(self) -> dict[int, int]:
        """Return the number of durable records that were not returned yet, by partition."""
        self._check()
        log = self._topic.durable_offsets(self.partitions)
        return {partition: max(0, log[partition].end - at) for partition, at in self._positions.items()}

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
            if isinstance(to, Mapping):
                # Read before the log: a position is never taken for one of a later lineage.
                lineages = self._topic.lineages_of(self.partitions)
                found = self._checked(to)
                if isinstance(to, ReadOffsets):
                    lineages |= to.lineages
            else:
                log, lineages = self._logs(self.partitions)
                found = {partition: self._first(None, log[partition], to) for partition in self.partitions}
            self._drop_read_ahead()
            self._failed = None
            self._positions.update(found)
            self._lineages.update({partition: lineages[partition] for partition in found})

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
            lineages = offsets.lineages if isinstance(offsets, ReadOffsets) else self._lineages
            all_returned = offsets is None or (isinstance(offsets, ReadOffsets) and offsets.returned)
            if all_returned:
                chosen: Mapping[int, int] = self._positions if offsets is None else offsets
            else:
                assert offsets is not None
                chosen = self._checked(offsets)
            pairs = {partition: (at, lineages[partition]) for partition, at in chosen.items()}
            unmoved = {
                partition: pair
                for partition, pair in pairs.items()
                if all_returned and self._committed.get(partition) == pair
            }
            moved = {partition: pair for partition, pair in pairs.items() if partition not in unmoved}
            return Moves(self.name, self._topic.meta, self._session, moved, unmoved)

    def moved(self, moves: Moves) -> None:
        """Note that positions are stored."""
        with self._lock:
            self._committed.update(moves.offsets)

    def _checked(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return offsets by partition as plain numbers; raise an error unless the log has each of them."""
        if not isinstance(offsets, Mapping):
            raise ConfigError(f"offsets is a dict from partition to offset, not {offsets!r}")
        checked = {}
        for given, wanted in offsets.items():
            partition, offset = plain_int(given), plain_int(wanted)
            if type(partition) is not int or partition not in self._positions:
                raise ConfigError(f"consumer {self.name!r} does not read partition {partition!r}")
            if type(offset) is not int:
                raise ConfigError(f"an offset is a whole number, not {offset!r}")
            checked[partition] = offset
        for partition, ends in self._topic.durable_offsets(checked).items():
            if not ends.start <= checked[partition] <= ends.end:
                raise OffsetOutOfRange(
                    f"offset {checked[partition]} is not in topic {self._topic.name!r} partition {partition}, which has "
                    f"{ends.start} to {ends.end}",
                    start=ends.start,
                    end=ends.end,
                )
        return checked

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
