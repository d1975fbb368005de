"""The pending rows of one partition, which no block holds yet, and its idempotent producers. Memory only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ..errors import Conflict, Fenced, TieredError, copy_error
from ..format.producers import UNKNOWN_OFFSET, ProducerHistory, ProducerTable
from .accelerator import Lock, PendingFields
from .row_buffer import Number, PlainRecords, RecordBuffer, RowBuffer

FULL = -1
"""The result of an append, instead of an offset, while the pending rows fill a block: the caller writes them first."""


class SchemaGrew(Exception):
    """The rows and the writer have different columns; the caller brings both to the newest schema."""


class PendingRows(PendingFields):
    """Gives each appended row its offset and keeps it until `BlockWriter` has written it.

    Attributes
    ----------
    lock
        Guards every other attribute; held while rows are added, or while an empty buffer replaces a full one.
    buffer : RecordBuffer | RowBuffer
        The pending rows.
    taken : RecordBuffer | RowBuffer | None
        The rows before them, while they are written.
    producers : ProducerTable
        The idempotent producers of all rows, pending rows included.
    rows_max : int
        The number of rows that fills the buffer.
    fault : TieredError | None
        Why nothing can be appended: closed, fenced, poisoned or deleted, or for now suspended.
    suspension : TieredError | None
        The newest fault that may pass.
    """

    def __init__(
        self, topic: str, partition: int, buffer: RecordBuffer | RowBuffer, producers: ProducerTable, block_bytes: int,
        rows_max: int,
    ) -> None:  # fmt: skip
        self.lock = Lock()
        self.buffer = buffer
        self.taken: RecordBuffer | RowBuffer | None = None
        self.producers = producers
        self.rows_max = rows_max
        self.fault: TieredError | None = None
        self.suspension: TieredError | None = None
        self._topic = topic
        self._partition = partition
        self._label = partition_label(topic, partition)
        self._block_bytes = block_bytes
        self._bytes_max = block_bytes
        self._is_retry = False

    # -- appending -------------------------------------------------------------------------------

    def append_record(
        self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None,
        timestamp_us: int, size: int,
    ) -> int:  # fmt: skip
        """Add one checked record and return its offset, or `FULL`."""
        with self.lock:
            if self.fault is not None:
                raise copy_error(self.fault)
            buffer = self.buffer
            timestamps = buffer.timestamps_us
            row = len(timestamps)
            if buffer.bytes >= self._bytes_max or row >= self.rows_max:
                return FULL
            try:
                buffer.keys.append(key)  # type: ignore[union-attr]
                buffer.values.append(value)  # type: ignore[union-attr]
                if headers is not None:
                    buffer.headers[row] = headers  # type: ignore[union-attr]
                buffer.bytes += size
                timestamps.append(timestamp_us)
            except BaseException:
                buffer.truncate(row)
                raise
            return buffer.base_offset + row

    def append_plain(self, records: PlainRecords, timestamp_us: int) -> tuple[int, int]:
        """Add as many checked records as `append_record` or `append_row` would one by one.

        Returns
        -------
        (int, int)
            Offset of the first record, and how many were added; before more are, the caller writes the pending rows.

        Raises
        ------
        SchemaGrew
            The records have more columns than the buffer.
        """
        with self.lock:
            if self.fault is not None:
                raise copy_error(self.fault)
            buffer = self.buffer
            row = len(buffer.timestamps_us)
            if len(records.columns) > buffer.width:
                raise SchemaGrew
            count = records.count_to_fill(self._bytes_max - buffer.bytes, self.rows_max - row)
            if count < len(records.sizes):
                records = records.slice(0, count)
            timestamps = records.timestamps_us(timestamp_us)
            try:
                buffer.add_plain(records)
                buffer.timestamps_us.extend(timestamps)
            except BaseException:
                buffer.truncate(row)
                raise
            return buffer.base_offset + row, count

    def append_row(self, values: Sequence[object], timestamp_us: int, size: int) -> int:
        """Add one checked row of a typed topic and return its offset, or `FULL`.

        Raises
        ------
        SchemaGrew
            The row has more columns than the buffer.
        """
        with self.lock:
            if self.fault is not None:
                raise copy_error(self.fault)
            buffer = self.buffer
            row = len(buffer.timestamps_us)
            if buffer.bytes >= self._bytes_max or row >= self.rows_max:
                return FULL
            if len(values) > len(buffer.columns):  # type: ignore[union-attr]
                raise SchemaGrew
            try:
                # A row that was checked before the schema grew lacks the new columns.
                for column, value in zip_longest(buffer.columns, values):  # type: ignore[union-attr]
                    column.append(value)
                buffer.bytes += size + buffer.row_bytes  # type: ignore[union-attr]
                buffer.timestamps_us.append(timestamp_us)
            except BaseException:
                buffer.truncate(row)
                raise
            return buffer.base_offset + row

    def append_expected(
        self, expected: int, values: Sequence[object], timestamp_us: int, size: int
    ) -> int:  # fmt: skip
        """Add one checked row if its offset is `expected`, and return that, or `FULL`.

        Parameters
        ----------
        values, size
            As `RecordBuffer.add` and `RowBuffer.add` take them.

        Raises
        ------
        Conflict
            The next row gets another offset.
        SchemaGrew
            The row has more columns than the buffer.
        """
        with self.lock:
            if self.fault is not None:
                raise copy_error(self.fault)
            buffer = self.buffer
            row = len(buffer.timestamps_us)
            if buffer.bytes >= self._bytes_max or row >= self.rows_max:
                return FULL
            self.check_end(expected)
            if isinstance(buffer, RowBuffer) and len(values) > len(buffer.columns):
                raise SchemaGrew
            try:
                buffer.add(values, size)
                buffer.timestamps_us.append(timestamp_us)
            except BaseException:
                buffer.truncate(row)
                raise
            return buffer.base_offset + row

    def check_end(self, expected: int) -> None:
        """Raise `Conflict` if the next row gets another offset than `expected`. The caller holds `lock`."""
        end = self.buffer.base_offset + len(self.buffer.timestamps_us)
        if end != expected:
            raise Conflict(
                f"{self._label} ends at offset {end}, not at {expected} as the append expected; nothing was appended",
                topic=self._topic,
                partition=self._partition,
                expected=expected,
                end=end,
            )

    def append_numbered(
        self, number: Number, values: Sequence[object], timestamp_us: int, size: int
    ) -> int | None:
        """Add one checked row of an idempotent producer, unless the partition has its sequence already.

        Parameters
        ----------
        values
            Key, value and headers (None: none); of a typed topic, its columns.

        Returns
        -------
        int or None
            The row's offset; `UNKNOWN_OFFSET` if the offset of a repeat is unknown; None instead of `FULL`.

        Raises
        ------
        Fenced
            The producer has a newer epoch.
        SchemaGrew
            The row has more columns than the buffer.
        """
        producer_id, epoch, sequence = number
        with self.lock:
            if self.fault is not None:
                raise copy_error(self.fault)
            history, last = self.history_of(producer_id, epoch)
            if history is not None and sequence <= last:
                return history.offset_of(sequence)
            buffer = self.buffer
            row = len(buffer.timestamps_us)
            if buffer.bytes >= self._bytes_max or row >= self.rows_max:
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
                self.producers.undo_add(producer_id, offset, history, last)
                raise
            return offset

    def append_numbered_rows(
        self, number: Number, rows: RecordBuffer | RowBuffer, expected: int | None = None
    ) -> tuple[int, int] | None:
        """Add checked rows of an idempotent producer, all or none.

        Parameters
        ----------
        number
            The number of the first row; the sequences of the others follow it.
        expected
            The offset that the first row must get, if any.

        Returns
        -------
        (int, int) or None
            Offset of the first row, and end offset. None without an effect if the pending rows have no room or other columns, if
            the rows exceed a block, or if the partition has the first sequence already.

        Raises
        ------
        Fenced
            The producer has a newer epoch.
        Conflict
            The first row gets another offset than `expected`.
        """
        producer_id, epoch, first = number
        count = len(rows.timestamps_us)
        with self.lock:
            if self.fault is not None:
                raise copy_error(self.fault)
            history, last = self.history_of(producer_id, epoch)
            buffer = self.buffer
            row = len(buffer.timestamps_us)
            full = buffer.bytes >= self._bytes_max or row + count > self.rows_max
            fits = type(rows) is type(buffer) and rows.width == buffer.width
            repeat = history is not None and first <= last
            if full or repeat or not fits or rows.bytes > self._block_bytes:
                return None
            if expected is not None:
                self.check_end(expected)
            offset = buffer.base_offset + row
            try:
                buffer.extend(rows)  # type: ignore[arg-type]
                for at in range(count):
                    buffer.numbers[row + at] = (producer_id, epoch, first + at)
                self.producers.add(producer_id, epoch, first, first + count - 1, offset, offset + count)
                buffer.timestamps_us += rows.timestamps_us
            except BaseException:
                buffer.truncate(row)
                self.producers.undo_add(producer_id, offset, history, last)
                raise
            return offset, offset + count

    def refuse(self, fault: TieredError) -> None:
        """Make every later append raise `fault`."""
        self.fault = fault

    def suspend(self, fault: TieredError) -> None:
        """Make every later append raise `fault` until `BlockWriter.resumed`."""
        self.fault = self.suspension = fault

    @property
    def is_suspended(self) -> bool:
        """Whether nothing but a suspension keeps appends out."""
        return self.suspension is not None and self.fault is self.suspension

    def check_fault(self) -> None:
        """Raise the fault if there is one."""
        if self.fault is not None:
            raise copy_error(self.fault)

    # -- producers -------------------------------------------------------------------------------

    def history_of(self, producer_id: int, epoch: int) -> tuple[ProducerHistory | None, int]:
        """Return a producer's history and its highest sequence, -1 without one. The caller holds `lock`.

        Raises
        ------
        Fenced
            The producer has a newer epoch.
        """
        history = self.producers.get(producer_id)
        if history is None:
            return None, -1
        if epoch < history.epoch:
            raise Fenced(
                f"a newer session of this producer (epoch {history.epoch}) writes to {self._label}; "
                f"this one has epoch {epoch} and can append nothing more"
            )
        return history, history.last_sequence

    def last_sequence(self, producer_id: int) -> tuple[int, int]:
        """Return the newest epoch and the highest sequence of a producer; (-1, -1) if it is unknown."""
        with self.lock:
            history = self.producers.get(producer_id)
            return (-1, -1) if history is None else (history.epoch, history.last_sequence)

    def offsets_from(self, producer_id: int, sequence: int) -> tuple[int, int] | None:
        """Return the offsets ``[start, end)`` of a producer's rows from a sequence on; None without rows or offsets."""
        with self.lock:
            history = self.producers.get(producer_id)
            if history is None or history.last_sequence < sequence:
                return None
            start, last = history.offset_of(sequence), history.offset_of(history.last_sequence)
        return None if UNKNOWN_OFFSET in (start, last) else (start, last + 1)

    # -- writing ---------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """Offset after the last row appended."""
        with self.lock:
            return self.buffer.base_offset + len(self.buffer.timestamps_us)

    @property
    def has_rows(self) -> bool:
        """Whether any row is not written yet."""
        return self.taken is not None or bool(self.buffer.timestamps_us)

    @property
    def is_full(self) -> bool:
        """Whether the rows fill a block, or an interrupted write left some in `taken`."""
        full = self.buffer.bytes >= self._block_bytes or len(self.buffer.timestamps_us) >= self.rows_max
        return full or self.taken is not None

    def take(self, end_offset: int) -> None:
        """Move the pending rows to `taken`; the segment ends at `end_offset`. The caller holds `lock`.

        Rows that an interrupted write left in `taken` stay first.
        """
        self.put_back(end_offset)
        if self.buffer.timestamps_us:
            # No row is added behind rows that a failed write put back: each attempt would let more rows in.
            room = 0 if self._is_retry else self._block_bytes
            self.taken, self.buffer, self._bytes_max = self.buffer, self.buffer.successor(), room

    def put_back(self, end_offset: int) -> None:
        """Put the taken rows from `end_offset` on back before the pending rows. The caller holds `lock`."""
        if self.taken is not None:
            whole = self.taken.concatenate(end_offset, self.buffer)  # type: ignore[arg-type]
            # Ctrl-C cannot come between these.
            self.buffer, self.taken, self._is_retry, self._bytes_max = (
                whole,
                None,
                True,
                self._block_bytes,
            )

    def drop_taken(self) -> None:
        """Drop the taken rows after all of them are written."""
        self.taken, self._is_retry, self._bytes_max = None, False, self._block_bytes


def partition_label(topic: str, partition: int) -> str:
    """Return how messages name a partition."""
    return f"partition {partition} of topic {topic!r}"
