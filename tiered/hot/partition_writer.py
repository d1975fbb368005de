"""The writer of one partition. Below it: `ProducerRows`, `PendingRows` and `ActiveSegment`, each upon the next.

Three locks, always taken in this order:

``_sync_lock``
    Held by the leader of a group commit.
``_write_lock``
    Held while blocks are written and segments rolled. A sync does not hold it, so appends go on
    into the file while the disk works.
``lock``
    Held for the few operations that add one row, or swap the buffer for an empty one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from ..base.condition import InterruptSafeCondition
from ..errors import Fenced, PartitionPoisoned, StoreClosed, TieredError, TopicNotFound, again
from ..format.block import Body
from ..format.topic_meta import TopicMeta
from ..warm import writer_requests
from ..warm.file_lock import FileLock
from ..warm.partition_directory import LOCK_FILE, START_FILE, read_fence, read_start_offset
from ..warm.segment_writer import SegmentWriter
from .accelerator import Lock
from .group_commit import GroupCommit
from .pending_rows import SchemaGrew
from .producer_rows import ProducerRows
from .recovery import WriterOptions, open_active
from .view import HotView

FULL = -1
"""What an append returns instead of an offset where the pending rows must be written first."""

LOCK_WAIT_SECONDS = 5.0


class PartitionWriter(ProducerRows):
    """Appends to one partition; thread-safe.

    Attributes
    ----------
    lock, buffer
        The pending rows and their lock; `Topic.append` uses them directly, on its fast path.
    producers : ProducerTable
        The idempotent producers of what was appended, pending rows included; guarded by ``lock``.
    fault : TieredError | None
        Why nothing can be appended any more: closed, fenced or poisoned.
    """

    def __init__(
        self, options: WriterOptions, directory: Path, meta: TopicMeta, partition: int, lock: FileLock,
        segment: SegmentWriter, start_offset: int,
    ) -> None:  # fmt: skip
        super().__init__(options, directory, meta, partition, segment, start_offset)
        self._file_lock = lock
        self._closed = False

    @classmethod
    def open(
        cls,
        options: WriterOptions,
        directory: Path,
        meta: TopicMeta,
        partition: int,
        *,
        wait_seconds: float = LOCK_WAIT_SECONDS,
    ) -> PartitionWriter:
        """Take the lock of the partition in `directory`, recover its active segment, and return the writer.

        Raises
        ------
        StoreLocked, Fenced, CorruptionError, UnsupportedFormat, DiskFull
        """
        what = f"partition {partition} of topic {meta.name!r}"
        lock = FileLock.acquire(directory / LOCK_FILE, what, wait_seconds=wait_seconds)
        try:
            reason = read_fence(directory)
            if reason is not None:
                raise Fenced(f"{what} was fenced ({reason}); what it holds is kept and can be read")
            options.fs.unlink(directory / f".{START_FILE}.tmp")
            writer_requests.drop(options.fs, directory)
            start_offset = read_start_offset(directory)
            segment = open_active(options, directory, meta, partition, start_offset)
            return cls(options, directory, meta, partition, lock, segment, start_offset)
        except BaseException:
            lock.release()
            raise

    # -- appending -------------------------------------------------------------------------------

    def append_record(
        self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None,
        timestamp_us: int, size: int,
    ) -> int:  # fmt: skip
        """Add one checked record to the pending rows and return its offset, or `FULL` where `make_room` is due."""
        with self.lock:
            if self.fault is not None:
                raise again(self.fault)
            buffer = self.buffer
            timestamps = buffer.timestamps_us
            row = len(timestamps)
            if buffer.bytes >= self._bytes_max or row >= self._rows_max:
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

    def append_row(self, values: Sequence[object], timestamp_us: int, size: int) -> int:
        """Add one checked row of a typed topic and return its offset, or `FULL` where `make_room` is due."""
        with self.lock:
            if self.fault is not None:
                raise again(self.fault)
            buffer = self.buffer
            row = len(buffer.timestamps_us)
            if buffer.bytes >= self._bytes_max or row >= self._rows_max:
                return FULL
            if len(values) > len(buffer.columns):  # type: ignore[union-attr]
                raise SchemaGrew
            try:
                # A row checked before the schema grew lacks the new columns.
                for column, value in zip_longest(buffer.columns, values):  # type: ignore[union-attr]
                    column.append(value)
                buffer.bytes += size + buffer.row_bytes  # type: ignore[union-attr]
                buffer.timestamps_us.append(timestamp_us)
            except BaseException:
                buffer.truncate(row)
                raise
            return buffer.base_offset + row

    def append_bodies(self, bodies: Sequence[Body], column_count: int, *, keep: bool) -> tuple[int, int]:
        """Write encoded blocks after the pending rows, all or none; return their offsets ``[start, end)``.

        They go to one segment, however long that becomes: who has more than `roll_bytes` calls again. Offsets are
        assigned while the pending buffer is held, so that a failed write leaves no hole.

        Parameters
        ----------
        column_count
            Of the bodies, their timestamp included.
        keep
            Whether they stay readable from memory; those of a bulk load are in the page cache anyway.

        Raises
        ------
        SchemaGrew
            The schema has not `column_count` columns any more; nothing was written.
        """
        with self._write_lock:
            self._check_fault()
            if column_count != len(self._body_schema):
                raise SchemaGrew
            self._drain()
            with self.lock:
                # Rows that came in since the drain have offsets already: they go first.
                self._drain_held()
                start = self._segment.end_offset
                try:
                    self._append_bodies(bodies, keep=keep)
                finally:
                    self.buffer.base_offset = self._segment.end_offset
                return start, self._segment.end_offset

    # -- reading ---------------------------------------------------------------------------------

    def view(self, *, flush: bool = True) -> HotView:
        """Return the active end of the partition; what was appended is made durable first, unless told not to."""
        if isinstance(self.fault, TopicNotFound):
            raise again(self.fault)
        if flush and self.fault is None:
            # What a fenced partition has made durable can be read all the same.
            with contextlib.suppress(Fenced):
                self.flush() if self._options.sync_on_scan else self.write_pending()
        with self._write_lock:
            segment = self._segment
            if self._options.sync_on_scan:
                with self._advanced.lock:
                    end, producers = self.durable_offset, self._durable_producers
            else:
                end, producers = segment.end_offset, segment.producers.snapshot()
            index = segment.index.frozen()
            recent = self.recent.between(0, end)
        return HotView(self.start_offset, end, tuple(recent), segment.path, index, segment.header, producers)

    # -- ending ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, mark the file clean, release the lock. May be called twice.

        Raises
        ------
        DiskFull
            Pending rows found no room; the writer stays open, so that a later close can succeed.
        PartitionPoisoned, Fenced
            A sync failed earlier, or now, or the fence keeps something appended from the disk; the writer is closed all
            the same.
        """
        if self._closed:
            return
        try:
            if self.fault is None:
                self.flush()
            with self._sync_lock, self._write_lock, self.lock:
                # Rows that came in since: after this nobody can add any.
                if self.fault is None:
                    self._drain_held()
                    segment = self._segment
                    self._sync(segment, segment.end_offset, segment.producers.snapshot())
                    self._mark_clean()
                    self.fault = StoreClosed("the store is closed")
        except (PartitionPoisoned, Fenced):
            self._release()
            raise
        fault, lacks = self.fault, self.dirty
        self._release()
        if isinstance(fault, PartitionPoisoned) or (isinstance(fault, Fenced) and lacks):
            raise again(fault)

    def _release(self) -> None:
        with self._sync_lock, self._write_lock, self.lock:
            # Of a topic that was deleted, that is what every later call is told.
            deleted = self.fault if isinstance(self.fault, TopicNotFound) else None
            self._fail(deleted or StoreClosed("the store is closed"))
            for segment in (*self._retired, self._segment):
                segment.close()
            self.recent.clear()
            self._file_lock.release()
            # At last: what Ctrl-C keeps from being done here, the next close does.
            self._closed = True

    def abandon(self, fault: TieredError) -> None:
        """In a forked child: refuse everything and let go of the parent's descriptors."""
        self.lock = Lock()
        self._write_lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self._group = GroupCommit()
        self._advanced = InterruptSafeCondition()
        self.fault = fault
        self._segment.abandon()
        self._file_lock.abandon()
