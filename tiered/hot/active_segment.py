"""The end of a partition on the disk: blocks go to the active segment, syncs make them durable, rolls seal it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from ..base.condition import InterruptSafeCondition
from ..errors import DiskFull, Fenced, PartitionPoisoned, TieredError, again
from ..format.block import Body, Numbers
from ..format.schema import body_schema
from ..format.segment_facts import ProducerState, SegmentFacts
from ..format.topic_meta import TopicMeta
from ..warm.filesystem import FileSystem
from ..warm.partition_directory import FENCED_FILE, read_fence, write_fence, write_start_offset
from ..warm.segment_writer import SegmentWriter
from .accelerator import WriterFields
from .recent_blocks import RecentBlock, RecentBlocks
from .recovery import WriterOptions, following_header
from .row_buffer import Number


class ActiveSegment(WriterFields):
    """Writes blocks, and knows what of them is durable, and why nothing can be written any more.

    Attributes
    ----------
    durable_offset : int
        Every record before it survives a power cut.
    fault : TieredError | None
        Why nothing can be appended any more: closed, fenced or poisoned.
    """

    def __init__(
        self, options: WriterOptions, directory: Path, meta: TopicMeta, partition: int, segment: SegmentWriter,
        start_offset: int,
    ) -> None:  # fmt: skip
        self._options = options
        self.directory = directory
        self.meta = meta
        self.partition = partition
        self._body_schema = body_schema(meta.schema)
        self._fence_path = str(directory / FENCED_FILE)
        self._segment = segment
        segment.producers.pinned = options.pinned
        self._retired: list[SegmentWriter] = []
        self.start_offset = start_offset
        self.durable_offset = segment.end_offset
        self._durable_producers = segment.producers.snapshot()
        self.recent = RecentBlocks(options.memory)
        self._write_lock = threading.RLock()
        self._advanced = InterruptSafeCondition()
        self._counters = options.counters
        self._counts = options.counters.of(meta.name, partition)
        self.fault: TieredError | None = None
        self.syncs = 0

    @property
    def fs(self) -> FileSystem:
        """What changes the local disk."""
        return self._options.fs

    @property
    def roll_bytes(self) -> int:
        """Bytes that a segment has at most, unless a single write makes it longer."""
        return self._options.roll_bytes

    @property
    def active_segment_id(self) -> UUID:
        """Id of the segment that takes the next block."""
        return self._segment.header.segment_id

    @property
    def active_file(self) -> tuple[Path, int, int]:
        """Path, base offset and bytes of the active segment, as they are now; waits for no lock."""
        segment = self._segment
        return segment.path, segment.header.base_offset, segment.position

    def wait_beyond(self, offset: int, timeout_seconds: float) -> bool:
        """Wait until records at or after `offset` are durable; False where the time ran out."""
        with self._advanced.lock:
            return self._advanced.wait_for(
                lambda: self.durable_offset > offset or self.fault is not None, timeout_seconds
            )

    def set_start_offset(self, offset: int) -> None:
        """Move the start offset up, durably."""
        with self._write_lock:
            self._check_fault()
            if offset > self.start_offset:
                write_start_offset(self._options.fs, self.directory, offset)
                self.start_offset = offset

    def fence(self, reason: str) -> None:
        """Refuse every later append: a newer lineage owns the partition in the bucket."""
        write_fence(self._options.fs, self.directory, reason)
        self._fail(self._fenced(reason))

    # -- blocks ----------------------------------------------------------------------------------

    def _append_bodies(self, bodies: Sequence[Body], *, keep: bool, numbers: Sequence[Numbers] = ()) -> None:
        """Append blocks by one write, all or none: where the active segment has no room for them, to the next one."""
        segment, length = self._segment, sum(body.length for body in bodies)
        # Sealed already: the last roll found no room for the next segment's file.
        sealed = segment.facts is not None
        if sealed or (len(segment.index) and segment.position + length > self._options.roll_bytes):
            self._roll()
        self._write(bodies, keep, numbers)

    def _append_body(
        self, body: Body, *, keep: bool, producer: Number | None = None, last_sequence: int | None = None
    ) -> None:
        numbers = () if producer is None else [Numbers(*producer, last_sequence)]
        self._append_bodies([body], keep=keep, numbers=numbers)

    def _write(self, bodies: Sequence[Body], keep: bool, numbers: Sequence[Numbers]) -> None:
        segment = self._segment
        base = segment.end_offset
        try:
            segment.append(bodies, self._options.clock(), numbers)
        except OSError as error:
            raise self._poison(error) from error
        for body in bodies:
            self._counts.add(body.record_count, body.length)
            if keep:
                self.recent.add(RecentBlock(base, base + body.record_count, body.parts[1], self._body_schema))
            base += body.record_count

    def _roll(self, meta: TopicMeta | None = None, *, created_us: int | None = None) -> SegmentFacts:
        old = self._segment
        try:
            now_us = self._options.clock()
            facts = old.facts or old.seal(self.start_offset, now_us)
            if created_us is None:
                created_us = max(now_us, facts.last_append_us)
            header = following_header(old.header, facts, meta or self.meta, created_us, old.writer_epoch)
            fresh = SegmentWriter.create(self._options.fs, self.directory, header)
            fresh.producers.pinned = self._options.pinned
            self._segment = fresh
        except OSError as error:
            raise self._poison(error) from error
        # A group commit may be syncing the old descriptor right now; the next leader closes it.
        self._retired.append(old)
        self._advance(old.end_offset, facts.producers)
        return facts

    def _sync(self, segment: SegmentWriter, end: int, producers: tuple[ProducerState, ...]) -> None:
        started = time.perf_counter()
        try:
            segment.sync()
        except (OSError, DiskFull) as error:
            raise self._poison(error) from error
        seconds = time.perf_counter() - started
        self.syncs += 1
        self._advance(end, producers)
        self._counters.syncs.observe(seconds)

    def _advance(self, end: int, producers: tuple[ProducerState, ...]) -> None:
        with self._advanced.lock:
            if end >= self.durable_offset:
                self.durable_offset, self._durable_producers = end, producers
            self._advanced.notify_all()

    def _mark_clean(self) -> None:
        try:
            self._segment.mark_clean()
        except DiskFull:
            pass  # every record is durable; without the mark, later damage to the last block looks like a torn tail
        except OSError as error:
            raise self._poison(error) from error

    # -- faults ----------------------------------------------------------------------------------

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
        with self._advanced.lock:
            self._advanced.notify_all()

    def _check_fault(self) -> None:
        if self.fault is not None:
            raise again(self.fault)
