"""Appends of idempotent producers: a record that is there already under its number is not added again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..errors import Fenced, again
from ..format.block import MARK, Body, Numbers
from ..format.block_rows import encode_blocks
from ..format.producers import UNKNOWN_OFFSET, ProducerHistory
from ..format.topic_meta import TopicMeta
from ..warm.segment_writer import SegmentWriter
from .pending_rows import PendingRows, SchemaGrew
from .recovery import WriterOptions
from .row_buffer import Number, RowBuffer

RUN_BYTES_MAX = 8 << 20
"""Of a producer's blocks that are written at once. Twice what a client of a server sends as one batch, 4 MiB at most."""


class ProducerRows(PendingRows):
    """Knows the producers of what was appended.

    Attributes
    ----------
    producers : ProducerTable
        Those of pending rows included; guarded by ``lock``.
    """

    def __init__(
        self, options: WriterOptions, directory: Path, meta: TopicMeta, partition: int, segment: SegmentWriter,
        start_offset: int,
    ) -> None:  # fmt: skip
        super().__init__(options, directory, meta, partition, segment, start_offset)
        self.producers = segment.producers.copy()

    def append_numbered(
        self, number: Number, values: Sequence[object], timestamp_us: int, size: int
    ) -> int | None:
        """Add one checked row of an idempotent producer, unless it is there already.

        Parameters
        ----------
        values
            Key, value and headers (None: none); of a typed topic, its columns.

        Returns
        -------
        int or None
            Its offset, `UNKNOWN_OFFSET` where a repeat's is forgotten; None where `make_room` is due.

        Raises
        ------
        Fenced
            The producer has a newer epoch.
        SchemaGrew
        """
        producer_id, epoch, sequence = number
        with self.lock:
            if self.fault is not None:
                raise again(self.fault)
            known, last = self._producer(producer_id, epoch)
            if known is not None and sequence <= last:
                return known.offset_of(sequence)
            buffer = self.buffer
            row = len(buffer.timestamps_us)
            if buffer.bytes >= self._bytes_max or row >= self._rows_max:
                return None
            if isinstance(buffer, RowBuffer) and len(values) > len(buffer.columns):
                raise SchemaGrew
            offset = buffer.base_offset + row
            try:
                buffer.add(values, size)
                buffer.numbers[row] = number
                self.producers.add(producer_id, epoch, sequence, sequence, offset, offset + 1)
                buffer.timestamps_us.append(timestamp_us)
            except BaseException:
                buffer.truncate(row)
                self.producers.undo_add(producer_id, offset, known, last)
                raise
            return offset

    def append_numbered_batches(
        self, producer_id: int, epoch: int, pieces: Sequence[pa.RecordBatch], numbers: Sequence[np.ndarray]
    ) -> tuple[int, int]:
        """Write rows of an idempotent producer after the pending rows, but for those that are there already.

        They go in runs of up to `RUN_BYTES_MAX`, or one block, each by one write: wholly or not at all.

        Parameters
        ----------
        numbers
            Of the rows of each piece: int64, rising.

        Returns
        -------
        (int, int)
            Offset of the first row and the one after the last; `UNKNOWN_OFFSET` where a repeat's is forgotten.

        Raises
        ------
        Fenced
            The producer has a newer epoch.
        SchemaGrew
        """
        with self._write_lock:
            self._check_fault()
            if pieces[0].num_columns != len(self._body_schema):
                raise SchemaGrew
            self._drain()
            with self.lock:
                self._drain_held()
                known, last = self._producer(producer_id, epoch)
                first, end = int(numbers[0][0]), int(numbers[-1][-1])
                start = self._segment.end_offset
                if known is not None and first <= last:
                    start = known.offset_of(first)
                try:
                    self._append_runs(producer_id, epoch, last, pieces, numbers)
                except BaseException:
                    # Ctrl-C too: what was written is known to the segment.
                    self.producers.copy_from(producer_id, self._segment.producers)
                    raise
                finally:
                    self.buffer.base_offset = self._segment.end_offset
                known = self.producers.get(producer_id)
                offset = UNKNOWN_OFFSET if known is None else known.offset_of(end)
                return start, UNKNOWN_OFFSET if offset == UNKNOWN_OFFSET else offset + 1

    def _append_runs(
        self,
        producer_id: int,
        epoch: int,
        last: int,
        pieces: Sequence[pa.RecordBatch],
        numbers: Sequence[np.ndarray],
    ) -> None:
        """Append the rows whose numbers are above `last`, in runs of blocks; the caller holds both locks."""
        limit, keep = min(RUN_BYTES_MAX, self.roll_bytes), len(pieces) == 1
        run: list[tuple[Body, Numbers]] = []
        length = 0
        for piece, sequences in zip(pieces, numbers, strict=True):
            row = int(np.searchsorted(sequences, last, side="right"))
            for body in encode_blocks(piece.slice(row)) if row < len(sequences) else ():
                if run and length + body.length > limit:
                    self._append_run(run, keep)
                    run, length = [], 0
                end = row + body.record_count
                its = Numbers(producer_id, epoch, int(sequences[row]), int(sequences[end - 1]))
                run.append((body, its))
                row, length = end, length + body.length
        if run:
            self._append_run(run, keep)

    def _append_run(self, run: Sequence[tuple[Body, Numbers]], keep: bool) -> None:
        bodies, numbers = zip(*run, strict=True)
        self._append_bodies(bodies, keep=keep, numbers=numbers)
        end = self._segment.end_offset - sum(body.record_count for body in bodies)
        for body, (producer_id, epoch, first, last) in run:
            start, end = end, end + body.record_count
            assert last is not None
            self.producers.add(producer_id, epoch, first, last, start, end)

    def begin_epoch(self, producer_id: int, epoch: int) -> None:
        """Refuse lower epochs of a producer from now on, also after a restart: durable when this returns.

        Raises
        ------
        Fenced
            There is a newer one already.
        DiskFull, PartitionPoisoned, StoreClosed
        """
        with self._write_lock:
            self._check_fault()
            self._drain()
            with self.lock:
                self._drain_held()
                _, last = self._producer(producer_id, epoch)
                try:
                    self._append_body(MARK, keep=False, producer=(producer_id, epoch, last + 1))
                finally:
                    self.buffer.base_offset = self._segment.end_offset
                    # Without room for the mark, the session that was there goes on.
                    written = self._segment.producers.get(producer_id)
                    if written is not None and written.epoch == epoch:
                        self.producers.begin(producer_id, epoch, last + 1)
        self._commit()

    def last_sequence(self, producer_id: int) -> tuple[int, int]:
        """Return the newest epoch and the highest number of a producer; (-1, -1) where it is not known."""
        with self.lock:
            known = self.producers.get(producer_id)
            return (-1, -1) if known is None else (known.epoch, known.last_sequence)

    def _producer(self, producer_id: int, epoch: int) -> tuple[ProducerHistory | None, int]:
        """Return what is known of a producer, and its highest number; the caller holds `lock`."""
        known = self.producers.get(producer_id)
        if known is None:
            return None, -1
        if epoch < known.epoch:
            raise Fenced(
                f"a newer session of this producer (epoch {known.epoch}) writes to partition {self.partition} of "
                f"topic {self.meta.name!r}; this one has epoch {epoch} and can append nothing more"
            )
        return known, known.last_sequence
