"""The writer of one partition: pending rows, group commit, the active segment, rolls.

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
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from uuid import UUID

import pyarrow as pa

from ..errors import (
    DiskFull,
    Fenced,
    PartitionPoisoned,
    RecordTooLarge,
    StoreClosed,
    TieredError,
    again,
)
from ..format.block import NO_PRODUCER, RAW_BYTES_MAX, Body, encode_body, split_batch
from ..format.facts import SegmentFacts
from ..format.schema import RECORD_SCHEMA, body_schema
from ..format.segment import BlockIndex, SegmentHeader
from ..warm.asking import drop_asked
from ..warm.catalog import TopicMeta
from ..warm.directory import (
    FENCED_FILE,
    LOCK_FILE,
    START_FILE,
    read_fence,
    read_start_offset,
    write_fence,
    write_start_offset,
)
from ..warm.filesystem import FileSystem
from ..warm.lock import FileLock
from ..warm.segment_writer import SegmentWriter
from .buffer import RECORD_OVERHEAD_BYTES, RecordBuffer, RowBuffer
from .group_commit import GroupCommit
from .opening import WriterOptions, following_header, open_active
from .recent import RecentBlock, RecentBlocks

log = logging.getLogger("tiered.hot")

FULL = -1
"""What an append returns instead of an offset where the pending rows must be written first."""

LOCK_WAIT_SECONDS = 5.0
_NO_PRODUCER = (NO_PRODUCER, 0, 0)


@dataclass(frozen=True, slots=True)
class HotView:
    """The active end of a partition as a snapshot needs it; everything in it stays as it is.

    Attributes
    ----------
    end_offset
        Everything before it is durable.
    active, active_index, active_header
        Path of the active segment, its blocks, and what says how to decode them.
    """

    start_offset: int
    end_offset: int
    recent: tuple[RecentBlock, ...]
    active: Path
    active_index: BlockIndex
    active_header: SegmentHeader


class SchemaGrew(Exception):
    """What is to be appended has not the columns of the writer; the caller brings both to the newest schema."""


class PartitionWriter:
    """Appends to one partition; thread-safe.

    Attributes
    ----------
    lock, buffer
        The pending rows and their lock; `Topic.append` uses them directly, on its fast path.
    fault : TieredError | None
        Why nothing can be appended any more: closed, fenced or poisoned.
    """

    def __init__(
        self, options: WriterOptions, directory: Path, meta: TopicMeta, partition: int, lock: FileLock,
        segment: SegmentWriter, start_offset: int,
    ) -> None:  # fmt: skip
        self._options = options
        self.directory = directory
        self.meta = meta
        self.partition = partition
        self._fence_path = str(directory / FENCED_FILE)
        self._file_lock = lock
        self._segment = segment
        self._retired: list[SegmentWriter] = []
        self.start_offset = start_offset
        self.durable_offset = segment.end_offset
        self.recent = RecentBlocks(options.memory)
        self.lock = threading.Lock()
        self._write_lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self._group = GroupCommit()
        self._advanced = threading.Condition()
        self._counters = options.counters
        self._counts = options.counters.of(meta.name, partition)
        self.fault: TieredError | None = None
        self._closed = False
        self.syncs = 0
        self._block_bytes = options.block_bytes
        self._rows_max = options.rows_max
        self._body_schema = body_schema(meta.schema)
        self.buffer: RecordBuffer | RowBuffer = self._new_buffer(segment.end_offset)

    # -- opening ---------------------------------------------------------------------------------

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
        """Take the partition's lock, recover its active segment, and return the writer.

        Raises
        ------
        StoreLocked, Fenced, CorruptionError, UnsupportedFormat, DiskFull
        """
        what = f"partition {partition} of topic {meta.name!r}"
        options.fs.make_directory(directory)
        lock = FileLock.acquire(directory / LOCK_FILE, what, wait_seconds=wait_seconds)
        try:
            reason = read_fence(directory)
            if reason is not None:
                raise Fenced(f"{what} was fenced ({reason}); what it holds is kept and can be read")
            options.fs.unlink(directory / f".{START_FILE}.tmp")
            drop_asked(options.fs, directory)
            start_offset = read_start_offset(directory)
            segment = open_active(options, directory, meta, partition, start_offset)
            return cls(options, directory, meta, partition, lock, segment, start_offset)
        except BaseException:
            lock.release()
            raise

    def _new_buffer(self, base_offset: int) -> RecordBuffer | RowBuffer:
        if self.meta.schema.equals(RECORD_SCHEMA):
            return RecordBuffer(base_offset)
        return RowBuffer(base_offset, len(self.meta.schema))

    # -- appending -------------------------------------------------------------------------------

    @property
    def fs(self) -> FileSystem:
        """What changes the local disk."""
        return self._options.fs

    @property
    def active_segment_id(self) -> UUID:
        """Id of the segment that takes the next block."""
        return self._segment.header.segment_id

    @property
    def active_file(self) -> tuple[Path, int, int]:
        """Path, base offset and bytes of the active segment, as they are now; waits for no lock."""
        segment = self._segment
        return segment.path, segment.header.base_offset, segment.position

    @property
    def end_offset(self) -> int:
        """Offset after the last record appended, pending ones included."""
        with self.lock:
            return self.buffer.base_offset + len(self.buffer.timestamps_us)

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
            if buffer.bytes >= self._block_bytes or row >= self._rows_max:
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
            if buffer.bytes >= self._block_bytes or row >= self._rows_max:
                return FULL
            if len(values) > len(buffer.columns):  # type: ignore[union-attr]
                raise SchemaGrew
            try:
                # A row checked before the schema grew lacks the new columns.
                for column, value in zip_longest(buffer.columns, values):  # type: ignore[union-attr]
                    column.append(value)
                buffer.bytes += size + RECORD_OVERHEAD_BYTES
                buffer.timestamps_us.append(timestamp_us)
            except BaseException:
                buffer.truncate(row)
                raise
            return buffer.base_offset + row

    def make_room(self) -> None:
        """Write the pending rows because they make a block.

        Raises
        ------
        DiskFull
            No room: the rows stay pending, and the caller's row is not added.
        """
        if self._options.sync_when_full:
            self.flush()
            return
        with self._write_lock:
            self._check_fault()
            # Whoever held the lock before may have written the same rows: then these are few.
            if self.buffer.bytes >= self._block_bytes or len(self.buffer.timestamps_us) >= self._rows_max:
                self._drain()

    def append_batches(self, pieces: Sequence[pa.RecordBatch], column_count: int) -> tuple[int, int]:
        """Write body batches as a block each, after the pending rows; return their offsets ``[start, end)``.

        Each block is atomic. Offsets are assigned while the pending buffer is held, so that a failed
        write leaves no hole. The blocks of a bulk load are not kept in memory: they are in the page cache,
        and encoding each into the memory of the one before is twice as fast as into new pages.

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
                    for piece in pieces:
                        self._append_body(encode_body(piece), keep=len(pieces) == 1)
                finally:
                    self.buffer.base_offset = self._segment.end_offset
                return start, self._segment.end_offset

    # -- writing and syncing ---------------------------------------------------------------------

    def write_pending(self) -> None:
        """Write the pending rows to the file without waiting for the disk (sync mode ``never``)."""
        self._check_fault()
        if self.buffer.timestamps_us:
            self._look_for_fence()
            with self._write_lock:
                self._check_fault()
                self._drain()

    def flush(self) -> None:
        """Return once everything appended before the call is durable.

        Raises
        ------
        DiskFull, PartitionPoisoned, StoreClosed, Fenced
        """
        self.sync_to(self.end_offset)

    def sync_to(self, offset: int) -> None:
        """Return once every record before `offset` is durable: group commit, leader and followers."""

        def durable() -> bool:
            if self.durable_offset >= offset:
                return True
            self._check_fault()
            return False

        self._group.run(durable, self._commit)

    def _commit(self) -> None:
        """Write what is pending, and sync it."""
        self._look_for_fence()
        started = time.perf_counter()
        with self._sync_lock:
            with self._write_lock:
                self._check_fault()
                self._drain()
                segment, end = self._segment, self._segment.end_offset
            self._sync(segment, end)
            self._counters.flushes.observe(time.perf_counter() - started)
            while self._retired:
                self._retired.pop().close()

    def _sync(self, segment: SegmentWriter, end: int) -> None:
        started = time.perf_counter()
        try:
            segment.sync()
        except (OSError, DiskFull) as error:
            raise self._poison(error) from error
        seconds = time.perf_counter() - started
        self.syncs += 1
        self._advance(end)
        self._counters.syncs.observe(seconds)

    def _advance(self, end: int) -> None:
        with self._advanced:
            self.durable_offset = max(self.durable_offset, end)
            self._advanced.notify_all()

    def wait_beyond(self, offset: int, timeout_seconds: float) -> bool:
        """Wait until records at or after `offset` are durable; False where the time ran out."""
        with self._advanced:
            return self._advanced.wait_for(
                lambda: self.durable_offset > offset or self.fault is not None, timeout_seconds
            )

    @property
    def dirty(self) -> bool:
        """Whether anything appended is not durable yet."""
        buffer = self.buffer
        return bool(buffer.timestamps_us) or self.durable_offset < self._segment.end_offset

    def _drain(self) -> None:
        """Write the pending rows. The caller holds the write lock."""
        taken: RecordBuffer | RowBuffer | None = None
        try:
            with self.lock:
                if not self.buffer.timestamps_us:
                    return
                fresh = self._new_buffer(self.buffer.base_offset + len(self.buffer.timestamps_us))
                taken = self.buffer
                self.buffer = fresh
            self._drain_buffer(taken)
        except BaseException:
            # Ctrl-C can strike anywhere above: what was taken and not written goes back in front.
            with self.lock:
                if taken is not None and taken is not self.buffer:
                    taken.drop_before(self._segment.end_offset)
                    taken.extend(self.buffer)  # type: ignore[arg-type]
                    self.buffer = taken
            raise

    def _drain_held(self) -> None:
        """Write the pending rows while nobody can add any. The caller holds the write lock and `lock`."""
        self._check_fault()
        try:
            self._drain_buffer(self.buffer)
            self.buffer = self._new_buffer(self._segment.end_offset)
        except BaseException:
            self.buffer.drop_before(self._segment.end_offset)
            raise

    def _drain_buffer(self, buffer: RecordBuffer | RowBuffer) -> None:
        if not buffer.timestamps_us:
            return
        if isinstance(buffer, RecordBuffer) and buffer.is_single:
            self._append_body(buffer.to_single(), keep=True)
            return
        batch = buffer.to_batch(self._body_schema)
        fits = buffer.bytes <= min(2 * self._block_bytes, RAW_BYTES_MAX // 2)
        pieces = [batch] if fits else split_batch(batch, self._block_bytes)
        for piece in pieces:
            self._append_body(encode_body(piece), keep=True)

    def _append_body(self, body: Body, *, keep: bool) -> None:
        segment = self._segment
        # Sealed already: the last roll found no room for the next segment's file.
        sealed = segment.facts is not None
        if sealed or (len(segment.index) and segment.position + body.length > self._options.roll_bytes):
            self._roll()
            segment = self._segment
        base = segment.end_offset
        try:
            segment.append(body, self._options.clock(), _NO_PRODUCER)
        except OSError as error:
            raise self._poison(error) from error
        self._counts.add(body.record_count, body.length)
        if keep:
            self.recent.add(RecentBlock(base, segment.end_offset, body.parts[1], self._body_schema))

    def _poison(self, error: Exception) -> PartitionPoisoned:
        fault = PartitionPoisoned(
            f"partition {self.partition} of topic {self.meta.name!r}: the disk failed ({error}), so what is durable "
            "is unknown; nothing more is appended until the store is opened again"
        )
        self._fail(fault)
        return fault

    def _look_for_fence(self) -> None:
        """Fail where a tierer in another process found that a newer lineage owns the partition."""
        if self.fault is None and os.path.exists(self._fence_path):  # noqa: PTH110 — at every sync; a Path costs more
            self._fail(self._fenced(read_fence(self.directory) or ""))

    def _fenced(self, reason: str) -> Fenced:
        return Fenced(f"partition {self.partition} of topic {self.meta.name!r} was fenced: {reason}")

    def _fail(self, fault: TieredError) -> None:
        self.fault = fault
        with self._advanced:
            self._advanced.notify_all()

    def _check_fault(self) -> None:
        if self.fault is not None:
            raise again(self.fault)

    # -- rolling ---------------------------------------------------------------------------------

    def roll(self) -> SegmentFacts | None:
        """Seal the active segment and begin the next; None where it holds no record."""
        with self._write_lock:
            self._check_fault()
            self._drain()
            return self._roll() if len(self._segment.index) else None

    def roll_if_old(self) -> None:
        """Roll where the active segment's first record is older than the policy's roll age."""
        age = self._options.roll_age_us
        segment = self._segment
        first = segment.first_append_us
        if age is not None and first is not None and self._options.clock() - first >= age:
            self.roll()

    def _roll(self, meta: TopicMeta | None = None) -> SegmentFacts:
        old = self._segment
        try:
            facts = old.facts or old.seal(self.start_offset)
            header = following_header(
                old.header, facts, meta or self.meta, self._options.clock(), old.writer_epoch
            )
            self._segment = SegmentWriter.create(self._options.fs, self.directory, header)
        except OSError as error:
            raise self._poison(error) from error
        # A group commit may be syncing the old descriptor right now; the next leader closes it.
        self._retired.append(old)
        self._advance(old.end_offset)
        return facts

    def change_schema(self, meta: TopicMeta) -> None:
        """Go on with a grown schema: pending rows are written and the segment rolled first.

        On failure the writer goes on with the schema it had.
        """
        with self._write_lock, self.lock:
            if meta.schema_id <= self.meta.schema_id:
                return
            self._drain_held()
            self.recent.clear()
            schema_id = meta.schema_id
            grown = body_schema(meta.schema), RowBuffer(self._segment.end_offset, len(meta.schema))
            try:
                self._roll(meta)
            finally:
                # By the segment that is there now, also after Ctrl-C: its blocks must have its columns.
                if self._segment.header.schema_id == schema_id:
                    self.meta, (self._body_schema, self.buffer) = meta, grown

    # -- reading ---------------------------------------------------------------------------------

    def view(self, *, flush: bool = True) -> HotView:
        """Return the active end of the partition; what was appended is made durable first, unless told not to."""
        if flush and self.fault is None:
            # What a fenced partition has made durable can be read all the same.
            with contextlib.suppress(Fenced):
                self.flush() if self._options.sync_on_scan else self.write_pending()
        with self._write_lock:
            segment = self._segment
            end = self.durable_offset if self._options.sync_on_scan else segment.end_offset
            index = segment.index.frozen()
            recent = self.recent.between(0, end)
        return HotView(self.start_offset, end, tuple(recent), segment.path, index, segment.header)

    def set_start_offset(self, offset: int) -> None:
        """Move the start offset up, durably."""
        with self._write_lock:
            self._check_fault()
            if offset > self.start_offset:
                write_start_offset(self._options.fs, self.directory, offset)
                self.start_offset = offset

    # -- ending ----------------------------------------------------------------------------------

    def fence(self, reason: str) -> None:
        """Refuse every later append: a newer lineage owns the partition in the bucket."""
        write_fence(self._options.fs, self.directory, reason)
        self._fail(self._fenced(reason))

    def close(self) -> None:
        """Flush, mark the file clean, release the lock. May be called twice.

        Raises
        ------
        DiskFull
            Pending rows found no room; the writer stays open, so that a later close can succeed.
        PartitionPoisoned, Fenced
            A sync failed earlier, or now, or the fence is found now; the writer is closed all the same.
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
                    self._sync(self._segment, self._segment.end_offset)
                    self._mark_clean()
                    self.fault = StoreClosed("the store is closed")
        except (PartitionPoisoned, Fenced):
            self._release()
            raise
        fault = self.fault
        self._release()
        if isinstance(fault, PartitionPoisoned):
            raise again(fault)

    def _mark_clean(self) -> None:
        try:
            self._segment.mark_clean()
        except DiskFull:
            pass  # every record is durable; without the mark, later damage to the last block looks like a torn tail
        except OSError as error:
            raise self._poison(error) from error

    def _release(self) -> None:
        with self._sync_lock, self._write_lock, self.lock:
            self._closed = True
            self._fail(StoreClosed("the store is closed"))
            for segment in (*self._retired, self._segment):
                segment.close()
            self.recent.clear()
            self._file_lock.release()

    def abandon(self, fault: TieredError) -> None:
        """In a forked child: refuse everything and let go of the parent's descriptors."""
        self.lock = threading.Lock()
        self._write_lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self._group = GroupCommit()
        self._advanced = threading.Condition()
        self.fault = fault
        self._segment.abandon()
        self._file_lock.abandon()


def check_record_size(size: int, limit: int) -> None:
    """Raise `RecordTooLarge` where one record is over the limit."""
    if size > limit:
        raise RecordTooLarge(
            f"a record of {size} bytes is over max_record_bytes ({limit}); nothing was appended"
        )
