"""Rows that are appended and not written yet: they become blocks when a block is full, and at each commit."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from ..errors import Backpressure, TieredError
from ..format.block import RAW_BYTES_MAX
from ..format.block_rows import BlockRows, encode_blocks, split
from ..format.schema import RECORD_SCHEMA, body_schema
from ..format.segment_facts import SegmentFacts
from ..format.topic_meta import TopicMeta
from ..warm.segment_writer import SegmentWriter
from .accelerator import Lock
from .active_segment import ActiveSegment
from .group_commit import GroupCommit
from .recovery import WriterOptions
from .row_buffer import RecordBuffer, RowBuffer, RowLayout, stretches

CLOCK_BEHIND_SECONDS = 3600.0
"""A clock that is behind the log by more than that, and for longer than that, is right; it was ahead before."""


class SchemaGrew(Exception):
    """What is to be appended has not the columns of the writer; the caller brings both to the newest schema."""


class PendingRows(ActiveSegment):
    """Buffers rows in front of the active segment.

    Attributes
    ----------
    lock, buffer
        The pending rows and their lock.
    """

    def __init__(
        self, options: WriterOptions, directory: Path, meta: TopicMeta, partition: int, segment: SegmentWriter,
        start_offset: int,
    ) -> None:  # fmt: skip
        super().__init__(options, directory, meta, partition, segment, start_offset)
        self.lock = Lock()
        self._sync_lock = threading.Lock()
        self._group = GroupCommit()
        self._block_bytes = options.block_bytes
        self._bytes_max = options.block_bytes
        self._rows_max = options.rows_max
        self._behind_since: float | None = None
        self.buffer: RecordBuffer | RowBuffer
        if meta.schema.equals(RECORD_SCHEMA):
            self.buffer = RecordBuffer(segment.end_offset)
        else:
            self.buffer = RowBuffer(segment.end_offset, RowLayout.of(meta.schema))
        self._taken: RecordBuffer | RowBuffer | None = None
        self._written_again = False

    @property
    def end_offset(self) -> int:
        """Offset after the last record appended, pending ones included."""
        with self.lock:
            return self.buffer.base_offset + len(self.buffer.timestamps_us)

    @property
    def dirty(self) -> bool:
        """Whether anything appended is not durable yet."""
        return self._waits_to_be_written or self.durable_offset < self._segment.end_offset

    @property
    def _waits_to_be_written(self) -> bool:
        return self._taken is not None or bool(self.buffer.timestamps_us)

    def make_room(self) -> None:
        """Write the pending rows because they make a block.

        Raises
        ------
        DiskFull
            No room: the rows stay pending, and the caller's row is not added.
        """
        if self._options.sync_when_full:
            self.flush()
            self._count_rows_at_risk()
            return
        with self._write_lock:
            self._check_fault()
            # Whoever held the lock before may have written the same rows: then these are few.
            full = self.buffer.bytes >= self._block_bytes or len(self.buffer.timestamps_us) >= self._rows_max
            if full or self._taken is not None:
                self._drain()

    def sync_if_due(self) -> None:
        """Make batches durable that are as many rows as ``sync_every``, with those before them that are not durable."""
        if self._options.sync_when_full:
            if self._segment.end_offset - self.durable_offset >= self._options.rows_max:
                self.flush()
            self._count_rows_at_risk()

    def _count_rows_at_risk(self) -> None:
        """Let only so many rows be pending that those which are not durable stay within ``sync_every``."""
        with self.lock:
            at_risk = self._segment.end_offset - self.durable_offset
            self._rows_max = max(1, self._options.rows_max - at_risk)

    # -- committing ------------------------------------------------------------------------------

    def write_pending(self) -> None:
        """Write the pending rows to the file without waiting for the disk (sync mode ``never``)."""
        self._check_fault()
        if self._waits_to_be_written:
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
                producers = segment.producers.snapshot()
            self._sync(segment, end, producers)
            self._counters.flushes.observe(time.perf_counter() - started)
        self.close_sealed()

    def close_sealed(self) -> None:
        """Close the files of sealed segments: one that is removed keeps its room on the disk until then."""
        if self._retired:
            # A commit may be syncing one of them.
            with self._sync_lock:
                while self._retired:
                    self._retired.pop().close()

    # -- rolling ---------------------------------------------------------------------------------

    def roll(self) -> SegmentFacts | None:
        """Seal the active segment and begin the next; None where it holds no record."""
        with self._write_lock:
            self._check_fault()
            self._drain()
            return self._roll() if len(self._segment.index) else None

    def roll_if_old(self) -> None:
        """Roll where the active segment's first record is older than the policy's roll age, or it was ahead of time."""
        age = self._options.roll_age_us
        segment = self._segment
        first, now_us = segment.first_append_us, self._options.clock()
        if self._was_ahead(segment.last_append_us - now_us):
            with self._write_lock:
                self._check_fault()
                self._drain()
                # Also an empty one: all that is appended to a segment bears no time before that of its creation.
                self._roll(created_us=now_us)
        elif age is not None and first is not None and now_us - first >= age:
            self.roll()

    def _was_ahead(self, ahead_us: int) -> bool:
        """Whether the log has been ahead of the clock for so long that the clock is believed.

        Not at once: it may be the clock that is wrong, as after a boot without a battery. What bears a time long
        past would expire as soon as it is put right.
        """
        if ahead_us <= CLOCK_BEHIND_SECONDS * 1e6:
            self._behind_since = None
            return False
        now = self._options.monotonic()
        if self._behind_since is None:
            self._behind_since = now
        return now - self._behind_since > CLOCK_BEHIND_SECONDS

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
            buffer = RowBuffer(self._segment.end_offset, RowLayout.of(meta.schema))
            grown = body_schema(meta.schema), buffer
            try:
                self._roll(meta)
            finally:
                # By the segment that is there now, also after Ctrl-C: its blocks must have its columns.
                if self._segment.header.schema_id == schema_id:
                    self.meta, (self._body_schema, self.buffer) = meta, grown

    # -- writing ---------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Write the pending rows. The caller holds the write lock."""
        try:
            with self.lock:
                self._take()
            self._write_taken()
        except BaseException:
            with self.lock:
                self._put_back()
            raise

    def _drain_held(self) -> None:
        """Write the pending rows while nobody can add any. The caller holds the write lock and `lock`."""
        self._check_fault()
        try:
            self._take()
            self._write_taken()
        except BaseException:
            self._put_back()
            raise

    def _take(self) -> None:
        """Take the pending rows to write them; what Ctrl-C kept from being put back, too."""
        self._put_back()
        if self.buffer.timestamps_us:
            # Beside rows that the disk refused before there is no room for others, or each try would let more in.
            room = 0 if self._written_again else self._block_bytes
            self._taken, self.buffer, self._bytes_max = self.buffer, self.buffer.following(), room

    def _write_taken(self) -> None:
        if self._taken is not None:
            try:
                self._drain_buffer(self._taken)
            except TieredError:
                raise
            except Exception as error:
                raise self._not_written(self._taken, error) from error
            self._taken, self._written_again, self._bytes_max = None, False, self._block_bytes

    def _not_written(self, rows: RecordBuffer | RowBuffer, error: Exception) -> TieredError:
        """Return what is said where rows cannot be made blocks, for lack of memory or by a mistake of this package."""
        start = max(rows.base_offset, self._segment.end_offset)
        end = rows.base_offset + len(rows.timestamps_us)
        passing = isinstance(error, MemoryError)
        advice = (
            "free some"
            if passing
            else "if that fails too, please report it: nothing can be appended behind them"
        )
        return (Backpressure if passing else TieredError)(
            f"offsets {start} to {end} of partition {self.partition} of topic {self.meta.name!r} could not be written "
            f"({type(error).__name__}: {error}); they are in memory still, and the next flush tries again: {advice}"
        )

    def _put_back(self) -> None:
        """Put what was taken and not written back in front."""
        if self._taken is not None:
            whole = self._taken.joined(self._segment.end_offset, self.buffer)  # type: ignore[arg-type]
            # Ctrl-C cannot come between these.
            self.buffer, self._taken, self._written_again, self._bytes_max = (
                whole,
                None,
                True,
                self._block_bytes,
            )

    def _drain_buffer(self, buffer: RecordBuffer | RowBuffer) -> None:
        if not buffer.timestamps_us:
            return
        if buffer.numbers:
            self._drain_numbered(buffer)
            return
        if isinstance(buffer, RecordBuffer) and buffer.is_single:
            self._append_body(buffer.to_single(), keep=True)
            return
        batch = buffer.to_batch(self._body_schema)
        if buffer.bytes <= min(2 * self._block_bytes, RAW_BYTES_MAX // 2):
            pieces = [BlockRows(batch, buffer.bytes)]
        else:
            pieces = split(batch, self._block_bytes)
        for piece in pieces:
            for body in encode_blocks(piece.batch, size=piece.size):
                self._append_body(body, keep=True)

    def _drain_numbered(self, buffer: RecordBuffer | RowBuffer) -> None:
        """Write rows of which some are of idempotent producers: a block is of one of them, or of none."""
        batch, numbers = buffer.to_batch(self._body_schema), buffer.numbers
        for start, end, numbered in stretches(numbers, batch.num_rows):
            row = start
            pieces = split(batch.slice(start, end - start), self._block_bytes)
            for body in (body for rows, size, _ in pieces for body in encode_blocks(rows, size=size)):
                last = row + body.record_count - 1
                if numbered:
                    self._append_body(body, keep=True, producer=numbers[row], last_sequence=numbers[last][2])
                else:
                    self._append_body(body, keep=True)
                row = last + 1
