"""The block writer of a partition: it keeps blocks in the order of their offsets, pending rows first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import Backpressure, TieredError
from ..format.block import MARK, Body, Numbers
from ..format.producers import UNKNOWN_OFFSET
from ..format.schema import body_schema
from ..format.segment_facts import SegmentFacts
from ..format.topic_meta import TopicMeta
from .active_segment import ActiveSegment
from .held_partition import HeldPartition
from .pending_rows import PendingRows, SchemaGrew
from .recovery import WriterOptions
from .row_blocks import NumberedBody, encode_rows, producer_runs
from .row_buffer import Number, RecordBuffer, RowBuffer, RowLayout

RUN_BYTES_MAX = 8 << 20
"""Size limit of a producer's blocks in one write: twice the largest batch that a client of a server sends, 4 MiB."""


class BlockWriter:
    """Writes to the active segment: blocks of pending rows, and blocks that a caller has encoded.

    Attributes
    ----------
    write_lock : threading.RLock
        Held while blocks are written and while a segment is rolled.
    """

    def __init__(
        self, options: WriterOptions, label: str, pending: PendingRows, active: ActiveSegment
    ) -> None:
        self.write_lock = threading.RLock()
        self._options = options
        self._label = label
        self._pending = pending
        self._active = active

    def append_bodies(self, bodies: Sequence[Body], column_count: int, *, keep: bool) -> tuple[int, int]:
        """Write encoded blocks after the pending rows, all or none; return their offsets ``[start, end)``.

        All blocks go to one segment, however large it becomes: a caller with more than `roll_bytes` calls several
        times. No row can be added while they get their offsets, so a failed write leaves no gap.

        Parameters
        ----------
        column_count
            Columns of the bodies, timestamp included.
        keep
            Whether the blocks stay readable from memory; those of a bulk load are in the page cache anyway.

        Raises
        ------
        SchemaGrew
            The schema has another number of columns by now; nothing was written.
        """
        pending, active = self._pending, self._active
        with self.write_lock:
            pending.check_fault()
            if column_count != len(active.body_schema):
                raise SchemaGrew
            self.drain()
            with pending.lock:
                # Rows that were added since the drain have offsets already: they go first.
                self.drain_held()
                start = active.segment.end_offset
                try:
                    active.append(bodies, keep=keep)
                finally:
                    pending.buffer.base_offset = active.segment.end_offset
                return start, active.segment.end_offset

    def append_numbered_batches(
        self,
        producer_id: int,
        epoch: int,
        batches: Sequence[pa.RecordBatch],
        sequences: Sequence[np.ndarray[Any, Any]],
        expected: int | None = None,
    ) -> tuple[int, int]:
        """Write rows of an idempotent producer after the pending rows, except for rows that the partition has already.

        They are written in runs of one block, or of up to `RUN_BYTES_MAX`; each run is one write, all or none.

        Parameters
        ----------
        sequences
            Sequences of the rows of each batch: int64, rising.
        expected
            The offset that the first row must get, if any.

        Returns
        -------
        (int, int)
            Offset of the first row, and end offset; `UNKNOWN_OFFSET` if the offset of a repeat is unknown.

        Raises
        ------
        Fenced
            The producer has a newer epoch.
        Conflict
            The row gets another offset than `expected`. A repeat never raises this.
        SchemaGrew
        """
        bytes_max = min(RUN_BYTES_MAX, self._options.roll_bytes)
        with self.write_lock:
            self._pending.check_fault()
            if batches[0].num_columns != len(self._active.body_schema):
                raise SchemaGrew
            return self._append_runs(
                (producer_id, epoch, int(sequences[0][0])),
                int(sequences[-1][-1]),
                lambda after: producer_runs(producer_id, epoch, after, batches, sequences, bytes_max),
                keep=len(batches) == 1,
                expected=expected,
            )

    def append_numbered_single(
        self, number: Number, record: RecordBuffer, expected: int | None = None
    ) -> tuple[int, int]:
        """Write a record that `RecordBuffer.to_single` encodes, as `append_numbered_batches` does."""
        producer_id, epoch, sequence = number

        def runs(after: int) -> Iterator[list[NumberedBody]]:
            if sequence > after:
                yield [(record.to_single(), Numbers(producer_id, epoch, sequence, sequence))]

        with self.write_lock:
            self._pending.check_fault()
            return self._append_runs(number, sequence, runs, keep=True, expected=expected)

    def _append_runs(
        self,
        number: Number,
        end: int,
        runs: Callable[[int], Iterator[list[NumberedBody]]],
        *,
        keep: bool,
        expected: int | None,
    ) -> tuple[int, int]:
        """Write runs after the pending rows; return as `append_numbered_batches` does. The caller holds `write_lock`.

        Parameters
        ----------
        number, end
            The number of the first row, and the sequence of the last one.
        runs
            Returns the runs of the rows whose sequences are above a given one.
        """
        producer_id, epoch, first = number
        pending, active = self._pending, self._active
        producers = pending.producers
        self.drain()
        with pending.lock:
            self.drain_held()
            history, last = pending.history_of(producer_id, epoch)
            start = active.segment.end_offset
            if history is not None and first <= last:
                start = history.offset_of(first)
            elif expected is not None:
                pending.check_end(expected)
            try:
                for run in runs(last):
                    self._append_run(run, keep)
            except BaseException:
                # After Ctrl-C too: the segment knows which runs were written.
                producers.copy_from(producer_id, active.segment.producers)
                raise
            finally:
                pending.buffer.base_offset = active.segment.end_offset
            history = producers.get(producer_id)
            offset = UNKNOWN_OFFSET if history is None else history.offset_of(end)
            return start, UNKNOWN_OFFSET if offset == UNKNOWN_OFFSET else offset + 1

    def _append_run(self, run: Sequence[NumberedBody], keep: bool) -> None:
        bodies, numbers = zip(*run, strict=True)
        self._append_numbered(bodies, numbers, 0, keep)

    def _append_numbered(
        self, bodies: Sequence[Body], numbers: Sequence[Numbers], not_before_us: int, keep: bool
    ) -> None:
        self._active.append(bodies, keep=keep, numbers=numbers, not_before_us=not_before_us)
        end = self._active.segment.end_offset - sum(body.record_count for body in bodies)
        for body, (producer_id, epoch, first, last) in zip(bodies, numbers, strict=False):
            start, end = end, end + body.record_count
            assert last is not None
            self._pending.producers.add(producer_id, epoch, first, last, start, end)

    def begin_epoch(self, producer_id: int, epoch: int) -> None:
        """Write the mark that begins a producer's epoch; the caller makes it durable.

        Raises
        ------
        Fenced
            The producer has a newer epoch.
        """
        pending, active = self._pending, self._active
        with self.write_lock:
            pending.check_fault()
            self.drain()
            with pending.lock:
                self.drain_held()
                _, last = pending.history_of(producer_id, epoch)
                try:
                    active.append([MARK], keep=False, numbers=[Numbers(producer_id, epoch, last + 1)])
                finally:
                    # Without room for the mark, the earlier session continues.
                    written = active.segment.producers.get(producer_id)
                    if written is not None and written.epoch == epoch:
                        pending.producers.begin(producer_id, epoch, last + 1)

    @contextmanager
    def held(self) -> Iterator[HeldPartition]:
        """Write the pending rows, and keep every other append out for the block; see `PartitionWriter.held`."""
        with self.write_lock:
            self._pending.check_fault()
            self.drain()
            with self._pending.lock:
                self.drain_held()
                yield HeldPartition(self._pending, self._active, self._append_numbered)

    @contextmanager
    def resumed(self) -> Iterator[HeldPartition]:
        """Hold a suspended partition, which takes appends again once the block has ended without an error.

        Raises
        ------
        TieredError
            It has another fault by now.
        """
        with self.write_lock, self._pending.lock:
            if not self._pending.is_suspended:
                self._pending.check_fault()
            yield HeldPartition(self._pending, self._active, self._append_numbered)
            if self._pending.is_suspended:
                self._pending.fault = None

    # -- rolling ---------------------------------------------------------------------------------

    def roll(self, *, created_us: int | None = None) -> SegmentFacts | None:
        """Seal the active segment and begin the next; None if it holds no record.

        Parameters
        ----------
        created_us
            Creation time of the next segment, a lower bound for its append times; with it an empty segment is sealed
            too. Default now.
        """
        with self.write_lock:
            self._pending.check_fault()
            self.drain()
            if created_us is None and not len(self._active.segment.index):
                return None
            return self._active.roll(created_us=created_us)

    def change_schema(self, meta: TopicMeta) -> None:
        """Write the pending rows, roll the segment, and continue with a grown schema.

        On failure the writer continues with the schema it had.
        """
        pending, active = self._pending, self._active
        with self.write_lock, pending.lock:
            if meta.schema_id <= active.meta.schema_id:
                return
            self.drain_held()
            active.recent.clear()
            schema_id = meta.schema_id
            schema = body_schema(meta.schema)
            buffer = RowBuffer(active.segment.end_offset, RowLayout.of(meta.schema))
            try:
                active.roll(meta)
            finally:
                # The active segment decides, after Ctrl-C too: its blocks must have its columns.
                if active.segment.header.schema_id == schema_id:
                    active.meta, active.body_schema, pending.buffer = meta, schema, buffer

    # -- writing ---------------------------------------------------------------------------------

    def drain(self) -> None:
        """Write the pending rows. The caller holds the write lock."""
        pending = self._pending
        try:
            with pending.lock:
                pending.take(self._active.segment.end_offset)
            self._write_taken()
        except BaseException:
            with pending.lock:
                pending.put_back(self._active.segment.end_offset)
            raise

    def drain_held(self) -> None:
        """Write the pending rows while none can be added. The caller holds the write lock and `PendingRows.lock`."""
        pending = self._pending
        pending.check_fault()
        try:
            pending.take(self._active.segment.end_offset)
            self._write_taken()
        except BaseException:
            pending.put_back(self._active.segment.end_offset)
            raise

    def _write_taken(self) -> None:
        rows = self._pending.taken
        if rows is not None:
            try:
                for body, numbers in encode_rows(rows, self._active.body_schema, self._options.block_bytes):
                    self._active.append([body], keep=True, numbers=numbers)
            except TieredError:
                raise
            except Exception as error:
                raise self._not_written(rows, error) from error
            self._pending.drop_taken()

    def _not_written(self, rows: RecordBuffer | RowBuffer, error: Exception) -> TieredError:
        """Return the error for rows that cannot be encoded, for lack of memory or by a mistake of this package."""
        start = max(rows.base_offset, self._active.segment.end_offset)
        end = rows.base_offset + len(rows.timestamps_us)
        passing = isinstance(error, MemoryError)
        advice = (
            "free some"
            if passing
            else "if that fails too, please report it: nothing can be appended behind them"
        )
        return (Backpressure if passing else TieredError)(
            f"offsets {start} to {end} of {self._label} could not be written "
            f"({type(error).__name__}: {error}); they are in memory still, and the next flush tries again: {advice}"
        )

    def abandon(self) -> None:
        """In a forked child: take a new lock, as a thread of the parent may hold the old one."""
        self.write_lock = threading.RLock()
