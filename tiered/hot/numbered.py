"""Appends of idempotent producers: a record that is there already under its number is not added again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..errors import Fenced, again
from ..format.block import MARK
from ..format.pieces import encode_blocks
from ..format.producers import UNKNOWN_OFFSET, Known
from ..warm.catalog import TopicMeta
from ..warm.segment_writer import SegmentWriter
from .buffer import Number, RowBuffer
from .opening import WriterOptions
from .pending import PendingRows, SchemaGrew


class NumberedRows(PendingRows):
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
                self.producers.take_back(producer_id, offset, known, last)
                raise
            return offset

    def append_numbered_batches(
        self, producer_id: int, epoch: int, pieces: Sequence[pa.RecordBatch], numbers: Sequence[np.ndarray]
    ) -> tuple[int, int]:
        """Do as `append_batches` for rows of an idempotent producer, but for those that are there already.

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
                    for piece, sequences in zip(pieces, numbers, strict=True):
                        there = int(np.searchsorted(sequences, last, side="right"))
                        if there < len(sequences):
                            self._append_numbered_piece(
                                producer_id, epoch, piece.slice(there), sequences[there:], len(pieces) == 1
                            )
                except BaseException:
                    # Ctrl-C too: what was written is known to the segment.
                    self.producers.take(producer_id, self._segment.producers)
                    raise
                finally:
                    self.buffer.base_offset = self._segment.end_offset
                known = self.producers.get(producer_id)
                offset = UNKNOWN_OFFSET if known is None else known.offset_of(end)
                return start, UNKNOWN_OFFSET if offset == UNKNOWN_OFFSET else offset + 1

    def _append_numbered_piece(
        self, producer_id: int, epoch: int, piece: pa.RecordBatch, sequences: np.ndarray, keep: bool
    ) -> None:
        row = 0
        for body in encode_blocks(piece):
            first, last = int(sequences[row]), int(sequences[row + body.record_count - 1])
            self._append_body(body, keep=keep, producer=(producer_id, epoch, first), last_sequence=last)
            end = self._segment.end_offset
            self.producers.add(producer_id, epoch, first, last, end - body.record_count, end)
            row += body.record_count

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

    def _producer(self, producer_id: int, epoch: int) -> tuple[Known | None, int]:
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
