"""The writer of one partition: a `PendingRows` in memory, an `ActiveSegment` on disk, a `BlockWriter` between them.

A file lock in the partition's directory keeps other processes out. In this one there are three locks, always taken in this
order:

``PartitionWriter._sync_lock``
    Held by the leader of a group commit.
``BlockWriter.write_lock``
    Held while blocks are written and while a segment is rolled. A sync does not hold it, so other threads append to the
    file meanwhile.
``PendingRows.lock``
    Held while rows are added, or while an empty buffer replaces a full one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

from ..errors import Fenced, PartitionPoisoned, StoreClosed, TieredError, TopicNotFound, copy_error
from ..format.schema import RECORD_SCHEMA
from ..format.segment_facts import SegmentFacts
from ..format.topic_meta import TopicMeta
from ..warm import writer_requests
from ..warm.file_lock import FileLock
from ..warm.filesystem import FileSystem
from ..warm.partition_directory import (
    FENCED_FILE,
    PARTITION_LOCK,
    START_FILE,
    read_fence,
    read_start_offset,
    write_fence,
    write_start_offset,
)
from ..warm.segment_writer import SegmentWriter
from .accelerator import Lock, WriterFields
from .active_segment import ActiveSegment
from .block_writer import BlockWriter
from .clock_watch import ClockWatch
from .group_commit import GroupCommit
from .held_partition import HeldPartition
from .pending_rows import PendingRows, partition_label
from .recent_blocks import RecentBlocks
from .recovery import WriterOptions, open_active
from .row_buffer import RecordBuffer, RowBuffer, RowLayout
from .view import HotView

LOCK_WAIT_SECONDS = 5.0


class PartitionWriter(WriterFields):
    """Appends to one partition; thread-safe.

    Attributes
    ----------
    append_record, append_row, append_plain, append_expected, append_numbered, append_numbered_rows, last_sequence,
    offsets_from
        Methods of `PendingRows`.
    append_bodies, append_numbered_batches, append_numbered_single, change_schema, resumed
        Methods of `BlockWriter`.
    pending, blocks, active
        The parts of the writer.
    """

    def __init__(
        self, options: WriterOptions, directory: Path, meta: TopicMeta, partition: int, lock: FileLock,
        segment: SegmentWriter, start_offset: int,
    ) -> None:  # fmt: skip
        self._options = options
        self.directory = directory
        self.partition = partition
        self._label = label = partition_label(meta.name, partition)
        self._fence_path = str(directory / FENCED_FILE)
        buffer: RecordBuffer | RowBuffer
        if meta.schema.equals(RECORD_SCHEMA):
            buffer = RecordBuffer(segment.end_offset)
        else:
            buffer = RowBuffer(segment.end_offset, RowLayout.of(meta.schema))
        # Before the copy below, which has the same pins.
        segment.producers.pinned = options.pinned
        self.pending = pending = PendingRows(
            meta.name, partition, buffer, segment.producers.copy(), options.block_bytes, options.rows_max
        )
        self.active = ActiveSegment(options, directory, meta, label, segment, start_offset, pending.refuse)
        self.blocks = blocks = BlockWriter(options, label, pending, self.active)
        # Bound here, an append of one record calls its part directly.
        self.append_record, self.append_row = pending.append_record, pending.append_row
        self.append_plain, self.append_expected = pending.append_plain, pending.append_expected
        self.append_numbered, self.append_numbered_rows = (
            pending.append_numbered,
            pending.append_numbered_rows,
        )
        self.last_sequence, self.offsets_from = pending.last_sequence, pending.offsets_from
        self.append_bodies, self.append_numbered_batches = (
            blocks.append_bodies,
            blocks.append_numbered_batches,
        )
        self.append_numbered_single = blocks.append_numbered_single
        self.change_schema, self.resumed = blocks.change_schema, blocks.resumed
        self._clock_watch = ClockWatch(options.monotonic)
        self._sync_lock = threading.Lock()
        self._group = GroupCommit()
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
        label = partition_label(meta.name, partition)
        lock = FileLock.acquire(directory / PARTITION_LOCK, label, wait_seconds=wait_seconds)
        try:
            reason = read_fence(directory)
            if reason is not None:
                raise Fenced(f"{label} was fenced ({reason}); what it holds is kept and can be read")
            options.fs.unlink(directory / f".{START_FILE}.tmp")
            writer_requests.drop(options.fs, directory)
            start_offset = read_start_offset(directory)
            segment = open_active(options, directory, meta, partition, start_offset)
            return cls(options, directory, meta, partition, lock, segment, start_offset)
        except BaseException:
            lock.release()
            raise

    # -- state -----------------------------------------------------------------------------------

    @property
    def fs(self) -> FileSystem:
        """What changes the local disk."""
        return self._options.fs

    @property
    def roll_bytes(self) -> int:
        """Size at which a segment is rolled; a single write can make it larger."""
        return self._options.roll_bytes

    @property
    def rows_max(self) -> int:
        """Number of rows that fill a block; with ``sync_every``, that number."""
        return self._options.rows_max

    @property
    def meta(self) -> TopicMeta:
        """The topic with the schema of the active segment."""
        return self.active.meta

    @property
    def fault(self) -> TieredError | None:
        """The error of every append, if the writer is closed, fenced, poisoned or deleted."""
        return self.pending.fault

    @property
    def start_offset(self) -> int:
        """Offset of the first record of the partition."""
        return self.active.start_offset

    @property
    def durable_offset(self) -> int:
        """End of the records that survive a power cut."""
        return self.active.durable_offset

    @property
    def last_append_us(self) -> int:
        """The append time of the last written record, in microseconds since the epoch."""
        return self.active.segment.last_append_us

    def durable_sequence(self, producer_id: int) -> int:
        """Return the highest sequence of a producer that survives a power cut; -1 without one."""
        states = self.active.durable_producers
        return next((state.last_sequence for state in states if state.producer_id == producer_id), -1)

    @property
    def end_offset(self) -> int:
        """Offset after the last appended record, pending rows included."""
        return self.pending.end_offset

    @property
    def dirty(self) -> bool:
        """Whether any record is not durable yet."""
        return self.pending.has_rows or self.active.durable_offset < self.active.segment.end_offset

    @property
    def active_segment_id(self) -> UUID:
        """Id of the segment that takes the next block."""
        return self.active.segment_id

    @property
    def active_file(self) -> tuple[Path, int, int]:
        """Path, base offset and bytes of the active segment, read without a lock."""
        return self.active.file

    @property
    def recent(self) -> RecentBlocks:
        """Blocks that can be read from memory."""
        return self.active.recent

    # -- committing ------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Write the pending rows because they fill a block.

        Raises
        ------
        DiskFull
            There is no room; the rows stay pending.
        """
        if self._options.sync_when_full:
            self.flush()
            self._count_rows_at_risk()
            return
        with self.blocks.write_lock:
            self.pending.check_fault()
            # Another thread may have written the same rows meanwhile.
            if self.pending.is_full:
                self.blocks.drain()

    def sync_if_due(self) -> None:
        """Flush if ``sync_every`` rows or more are written and not durable."""
        if self._options.sync_when_full:
            if self.active.segment.end_offset - self.active.durable_offset >= self._options.rows_max:
                self.flush()
            self._count_rows_at_risk()

    def _count_rows_at_risk(self) -> None:
        """Limit the pending rows so that at most ``sync_every`` rows are not durable."""
        with self.pending.lock:
            at_risk = self.active.segment.end_offset - self.active.durable_offset
            self.pending.rows_max = max(1, self._options.rows_max - at_risk)

    def write_pending(self) -> None:
        """Write the pending rows to the file without a sync (sync mode ``never``)."""
        self.pending.check_fault()
        if self.pending.has_rows:
            self._apply_fence()
            with self.blocks.write_lock:
                self.pending.check_fault()
                self.blocks.drain()

    def flush(self) -> None:
        """Return once every record that was appended before the call is durable.

        Raises
        ------
        DiskFull, PartitionPoisoned, StoreClosed, Fenced
        """
        self.sync_to(self.end_offset)

    def sync_to(self, offset: int) -> None:
        """Return once every record before `offset` is durable; threads that wait share a group commit."""
        self._sync(offset, self._commit)

    def sync_written(self, offset: int) -> None:
        """Return once every record before `offset`, all of them written, is durable; needs no room for pending rows.

        Raises
        ------
        PartitionPoisoned, StoreClosed, Fenced
        """
        self._sync(offset, lambda: self._commit(drain=False))

    def _sync(self, offset: int, commit: Callable[[], None]) -> None:
        def durable() -> bool:
            if self.active.durable_offset >= offset:
                return True
            self.pending.check_fault()
            return False

        self._group.run(durable, commit)

    def _commit(self, *, drain: bool = True) -> None:
        """Write the pending rows, unless `drain` is False, and sync the segment."""
        self._apply_fence()
        started = time.perf_counter()
        with self._sync_lock:
            with self.blocks.write_lock:
                self.pending.check_fault()
                if drain:
                    self.blocks.drain()
                segment, end = self.active.segment, self.active.segment.end_offset
                producers = segment.producers.snapshot()
            self.active.sync(segment, end, producers)
            self._options.counters.flushes.observe(time.perf_counter() - started)
        self.close_sealed()

    @contextlib.contextmanager
    def held(self) -> Iterator[HeldPartition]:
        """Keep every other append, flush and roll of the partition out for the block; all pending rows are written.

        A thread that holds several partitions takes them in one order, as every other thread does.

        Raises
        ------
        DiskFull, PartitionPoisoned, StoreClosed, Fenced, TopicNotFound
        """
        self._apply_fence()
        with self.blocks.held() as held:
            yield held

    def check_not_suspended(self) -> None:
        """Raise what keeps appends out for now, if anything does."""
        if self.pending.is_suspended:
            self.pending.check_fault()

    def begin_epoch(self, producer_id: int, epoch: int) -> None:
        """Refuse lower epochs of a producer from now on, after a restart too: the epoch is durable on return.

        Raises
        ------
        Fenced
            The producer has a newer epoch.
        DiskFull, PartitionPoisoned, StoreClosed
        """
        self.blocks.begin_epoch(producer_id, epoch)
        self._commit()

    def wait_beyond(self, offset: int, timeout_seconds: float) -> bool:
        """Wait until a record at or after `offset` is durable, or the writer has a fault; False after the timeout."""
        advanced = self.active.advanced
        with advanced.lock:
            return advanced.wait_for(
                lambda: self.durable_offset > offset or self.fault is not None, timeout_seconds
            )

    # -- segments --------------------------------------------------------------------------------

    def close_sealed(self) -> None:
        """Close the files of sealed segments: a removed file takes room on the disk until it is closed."""
        sealed = self.active.sealed
        if sealed:
            # A commit may be syncing one of them.
            with self._sync_lock:
                while sealed:
                    sealed.pop().close()

    def roll(self) -> SegmentFacts | None:
        """Seal the active segment and begin the next one; return None if it holds no record."""
        return self.blocks.roll()

    def roll_if_old(self) -> None:
        """Roll if the active segment's first record has the policy's roll age, or if the clock was ahead before."""
        age = self._options.roll_age_us
        segment = self.active.segment
        first, now_us = segment.first_append_us, self._options.clock()
        if self._clock_watch.believes(segment.last_append_us - now_us):
            self.blocks.roll(created_us=now_us)
        elif age is not None and first is not None and now_us - first >= age:
            self.blocks.roll()

    def set_start_offset(self, offset: int) -> None:
        """Move the start offset up, durably."""
        with self.blocks.write_lock:
            self.pending.check_fault()
            if offset > self.active.start_offset:
                write_start_offset(self._options.fs, self.directory, offset)
                self.active.start_offset = offset

    def fence(self, reason: str) -> None:
        """Refuse every later append: a newer lineage owns the partition in the bucket.

        Raises
        ------
        DiskFull, OSError
            The fence is not on the disk, so it ends with this process.
        """
        self.active.fail(self._fenced(reason))
        write_fence(self._options.fs, self.directory, reason)

    def _apply_fence(self) -> None:
        """Refuse appends if a tierer in another process has fenced the partition."""
        if self.pending.fault is None and os.path.exists(self._fence_path):  # noqa: PTH110 — at every sync; a Path costs more
            self.active.fail(self._fenced(read_fence(self.directory) or ""))

    def _fenced(self, reason: str) -> Fenced:
        return Fenced(f"{self._label} was fenced: {reason}")

    # -- reading ---------------------------------------------------------------------------------

    def view(self, *, flush: bool = True) -> HotView:
        """Return what readers see: the recent blocks and the active segment.

        Parameters
        ----------
        flush
            Whether to flush first, or in sync mode ``never`` to write the pending rows.
        """
        if isinstance(self.pending.fault, TopicNotFound):
            raise copy_error(self.pending.fault)
        if flush and self.pending.fault is None:
            # The durable records of a fenced partition stay readable.
            with contextlib.suppress(Fenced):
                self.flush() if self._options.sync_on_scan else self.write_pending()
        active = self.active
        with self.blocks.write_lock:
            segment = active.segment
            if self._options.sync_on_scan:
                with active.advanced.lock:
                    end, producers = active.durable_offset, active.durable_producers
            else:
                end, producers = active.written
            index = segment.index.frozen()
            recent = active.recent.between(0, end)
            append_us = segment.append_us if segment.end_offset == end else None
        return HotView(
            active.start_offset, end, tuple(recent), segment.path, index, segment.header, producers, append_us
        )

    # -- ending ----------------------------------------------------------------------------------

    def refuse(self, fault: TieredError) -> None:
        """Make every later append and flush raise `fault`."""
        self.active.fail(fault)

    def close(self) -> None:
        """Flush, mark the file clean, release the lock. May be called twice.

        Raises
        ------
        DiskFull
            There is no room for the pending rows. The writer stays open, so that a later close can succeed.
        PartitionPoisoned, Fenced
            A sync failed, or a fence keeps records from becoming durable. The writer is closed all the same.
        """
        if self._closed:
            return
        pending, active = self.pending, self.active
        try:
            if pending.fault is None:
                self.flush()
            with self._sync_lock, self.blocks.write_lock, pending.lock:
                # Rows that were added since the flush; from here on none can be added.
                if pending.fault is None:
                    self.blocks.drain_held()
                    segment = active.segment
                    active.sync(segment, segment.end_offset, segment.producers.snapshot())
                    active.mark_clean()
                    pending.refuse(StoreClosed("the store is closed"))
        except (PartitionPoisoned, Fenced):
            self._release()
            raise
        fault, dirty = pending.fault, self.dirty
        self._release()
        if isinstance(fault, PartitionPoisoned) or (isinstance(fault, Fenced) and dirty):
            raise copy_error(fault)

    def _release(self) -> None:
        with self._sync_lock, self.blocks.write_lock, self.pending.lock:
            # The writer of a deleted topic keeps that fault.
            fault = self.pending.fault
            deleted = fault if isinstance(fault, TopicNotFound) else None
            self.active.fail(deleted or StoreClosed("the store is closed"))
            self.active.close()
            self._file_lock.release()
            # Last: the next close repeats the steps that Ctrl-C has prevented.
            self._closed = True

    def abandon(self, fault: TieredError) -> None:
        """In a forked child: refuse every append and drop the parent's descriptors and locks."""
        self.pending.lock = Lock()
        self.blocks.abandon()
        self._sync_lock = threading.Lock()
        self._group = GroupCommit()
        self.pending.fault = fault
        self.active.abandon()
        self._file_lock.abandon()
