"""`PartitionTurns`: the rows of a consumer's partitions, read in turns and ahead of the consumer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from ...errors import OffsetOutOfRange, TieredError
from .consumed_topic import ConsumedTopic
from .consumer_positions import ConsumerPositions

# A partition yields so many records before the next one has its turn.
_TURN_RECORDS = 1 << 20

AHEAD_SECONDS = 60.0
"""After so long, rows that a consumer has not taken are read again: they may have been erased meanwhile."""


class TurnRows(NamedTuple):
    """Rows of a partition, and the position of a reader before them: erased records may lie in between."""

    partition: int
    position: int
    batch: pa.RecordBatch


class PartitionTurns:
    """Reads the partitions from a consumer's positions on. The caller guards it.

    Parameters
    ----------
    check_open
        Raises an error once the consumer is closed; called before each read.
    """

    def __init__(
        self, topic: ConsumedTopic, positions: ConsumerPositions, check_open: Callable[[], None]
    ) -> None:
        self._topic = topic
        self._positions = positions
        self._check_open = check_open
        self._batches: Iterator[TurnRows] | None = None
        self._rest: deque[TurnRows] = deque()
        # When `_batches` yielded the last ones.
        self._read_at = 0.0
        # What `_batches` has yielded, which may be more than was returned.
        self._ahead: dict[int, int] = {}
        self._failed: TieredError | None = None

    def take(self, rows_left: int) -> list[pa.RecordBatch]:
        """Return at most `rows_left` rows, and move the positions behind them.

        An error before the first batch is raised, and moves nothing. A later one waits for the next call: the batches are
        returned first.
        """
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        batches: list[pa.RecordBatch] = []
        ends: dict[int, int] = {}
        try:
            while rows_left > 0 and (rows := self.next_rows(ends)) is not None:
                batch = rows.batch.slice(0, min(rows_left, rows.batch.num_rows))
                end = ends[rows.partition] = batch.column("offset")[-1].as_py() + 1
                if batch.num_rows < rows.batch.num_rows:
                    self._rest.appendleft(TurnRows(rows.partition, end, rows.batch.slice(rows_left)))
                batches.append(batch)
                rows_left -= batch.num_rows
        except TieredError as error:
            self.drop()
            if not batches:
                raise
            self._failed = error
        except BaseException:
            # Ctrl-C: what was taken here is read again.
            self.drop()
            raise
        self._positions.offsets.update(ends)
        return batches

    def next_rows(self, ends: Mapping[int, int]) -> TurnRows | None:
        """Return the next rows behind `ends`, or else behind the positions; None if there is no such durable record.

        Another reader of this consumer may have taken records since, or may hold some that it has yet to return.
        """
        if not ends and time.monotonic() - self._read_at > AHEAD_SECONDS:
            self.drop()
        due = {**self._positions.offsets, **ends}
        rows = self._next()
        fits = self._ahead == due if rows is None else rows.position == due[rows.partition]
        if fits:
            return rows
        self.drop()
        return None if ends else self._next()

    def drop(self) -> None:
        """Drop what was read ahead: it is read again."""
        self._batches = None
        self._rest.clear()

    def restart(self) -> None:
        """Drop what was read ahead, and an error that waits for the next call."""
        self.drop()
        self._failed = None

    def _next(self) -> TurnRows | None:
        self._check_open()
        if self._rest:
            return self._rest.popleft()
        if self._batches is None:
            self._batches = self._turns()
        rows = next(self._batches, None)
        self._read_at = time.monotonic()
        if rows is None:
            self._batches = None
        return rows

    def _turns(self) -> Iterator[TurnRows]:
        """Yield what each partition has from its position on, and as long as one had records."""
        offsets = self._positions.offsets
        at = self._ahead = dict(offsets)
        some = True
        while some:
            some = False
            for partition in offsets:
                position = at[partition]
                try:
                    yield from self._turn(partition, at)
                except OffsetOutOfRange as error:
                    if at[partition] != offsets[partition]:
                        return  # what was read ahead is returned first
                    at[partition] = self._positions.follow(partition, error)
                    some = True
                some = some or at[partition] != position

    def _turn(self, partition: int, at: dict[int, int]) -> Iterator[TurnRows]:
        """Yield what a partition has from its position on, and move it behind that."""
        offsets, lineage = self._positions.offsets, self._positions.lineages[partition]
        batches = self._topic.durable_batches(partition, at[partition], _TURN_RECORDS, lineage)
        while True:
            try:
                batch = next(batches)
            except StopIteration as ended:
                end: int = ended.value
                break
            position, at[partition] = at[partition], batch.column("offset")[-1].as_py() + 1
            yield TurnRows(partition, position, batch)
        position = at[partition]
        if end > position:
            # The records in between were erased.
            at[partition] = end
            if offsets[partition] == position:
                offsets[partition] = end
