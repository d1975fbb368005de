"""The active segment of a partition: blocks are appended to it, a sync makes them durable, a roll seals it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from ..base.condition import InterruptSafeCondition, Listeners
from ..errors import DiskFull, PartitionPoisoned, TieredError
from ..format.block import Body, Numbers
from ..format.schema import body_schema
from ..format.segment_facts import ProducerState, SegmentFacts
from ..format.topic_meta import TopicMeta
from ..warm.segment_writer import SegmentWriter
from .recent_blocks import RecentBlock, RecentBlocks
from .recovery import WriterOptions, following_header


class ActiveSegment:
    """Appends blocks to the newest segment file of a partition, and knows which of them are durable.

    The caller of `append`, `roll` and `mark_clean` holds the write lock of `BlockWriter`; the caller of `sync` holds the
    sync lock of `PartitionWriter`.

    Attributes
    ----------
    meta, body_schema
        The topic with the schema of this segment, and the schema of its block bodies.
    segment : SegmentWriter
        The file.
    sealed : list of SegmentWriter
        Sealed segments whose files are still open.
    start_offset : int
        Start offset of the partition.
    durable_offset, durable_producers
        The end of the durable records, and the idempotent producers of the records before it. Rows that are withheld are behind
        it.
    advanced : InterruptSafeCondition
        Notified when the durable offset grows, and on a fault.
    listeners : Listeners
        Notified as `advanced` is; the partitions of an open topic share them.
    recent : RecentBlocks
        Blocks that can be read from memory.
    """

    def __init__(
        self, options: WriterOptions, directory: Path, meta: TopicMeta, label: str, segment: SegmentWriter,
        start_offset: int, refuse: Callable[[TieredError], None],
    ) -> None:  # fmt: skip
        self._options = options
        self._directory = directory
        self._label = label
        self._refuse = refuse
        self.meta = meta
        self.body_schema = body_schema(meta.schema)
        self.segment = segment
        self.sealed: list[SegmentWriter] = []
        self.start_offset = start_offset
        self.durable_offset = segment.end_offset
        self.durable_producers = segment.producers.snapshot()
        self._withheld: tuple[int, tuple[ProducerState, ...]] | None = None
        self.advanced = InterruptSafeCondition()
        self.listeners = Listeners()
        self.recent = RecentBlocks(options.memory)
        self._counters = options.counters
        self._counts = options.counters.of(meta.name, segment.header.partition)

    @property
    def segment_id(self) -> UUID:
        """Id of the segment that takes the next block."""
        return self.segment.header.segment_id

    @property
    def file(self) -> tuple[Path, int, int]:
        """Path, base offset and bytes of the file, as they are now; waits for no lock."""
        segment = self.segment
        return segment.path, segment.header.base_offset, segment.position

    @property
    def written(self) -> tuple[int, tuple[ProducerState, ...]]:
        """The end of the written records, without those that are withheld, and the producers of the records before it."""
        return self._withheld or (self.segment.end_offset, self.segment.producers.snapshot())

    def withhold(self) -> None:
        """Let readers see nothing of what is appended from here on until `release`: its rows come by several writes."""
        self._withheld = self.written

    def release(self) -> None:
        """Let readers see what was withheld, once a sync has made it durable."""
        self._withheld = None

    def make_room(self, length: int) -> None:
        """Roll if the segment has no room for blocks of `length` bytes, and reserve that much on the disk.

        Raises
        ------
        DiskFull, PartitionPoisoned
        """
        self._roll_if_full(length)
        try:
            self.segment.make_room(length)
        except OSError as error:
            raise self._poison(error) from error

    def append(
        self, bodies: Sequence[Body], *, keep: bool, numbers: Sequence[Numbers] = (), not_before_us: int = 0
    ) -> None:
        """Append blocks by one write, all or none: to the next segment if the active one has no room for them.

        Parameters
        ----------
        keep
            Whether the blocks stay readable from memory.
        numbers
            Producer numbers of each block; empty if the blocks have none.
        not_before_us
            The least append time of the blocks.

        Raises
        ------
        DiskFull, PartitionPoisoned
        """
        self._roll_if_full(sum(body.length for body in bodies))
        self._write(bodies, keep, numbers, not_before_us)

    def _roll_if_full(self, length: int) -> None:
        segment = self.segment
        # The segment is sealed already if the last roll had no room for the file of the next one.
        sealed = segment.facts is not None
        if sealed or (len(segment.index) and segment.position + length > self._options.roll_bytes):
            self.roll()

    def _write(
        self, bodies: Sequence[Body], keep: bool, numbers: Sequence[Numbers], not_before_us: int
    ) -> None:
        segment = self.segment
        base = segment.end_offset
        try:
            segment.append(bodies, max(self._options.clock(), not_before_us), numbers)
        except OSError as error:
            raise self._poison(error) from error
        for body in bodies:
            self._counts.add(body.record_count, body.length)
            if keep:
                self.recent.add(RecentBlock(base, base + body.record_count, body.parts[1], self.body_schema))
            base += body.record_count

    def roll(self, meta: TopicMeta | None = None, *, created_us: int | None = None) -> SegmentFacts:
        """Seal the segment and begin the next one.

        Parameters
        ----------
        meta
            The topic with the schema of the next segment. Default that of this one.
        created_us
            Creation time of the next segment. Default now, or the last append time if the clock is behind it.

        Raises
        ------
        DiskFull, PartitionPoisoned
        """
        old = self.segment
        try:
            now_us = self._options.clock()
            facts = old.facts or old.seal(self.start_offset, now_us)
            if created_us is None:
                created_us = max(now_us, facts.last_append_us)
            header = following_header(old.header, facts, meta or self.meta, created_us, old.writer_epoch)
            fresh = SegmentWriter.create(self._options.fs, self._directory, header)
            fresh.producers.pinned = self._options.pinned
            self.segment = fresh
        except OSError as error:
            raise self._poison(error) from error
        # A group commit may be syncing the old descriptor now; the next leader closes it.
        self.sealed.append(old)
        self._advance(old.end_offset, facts.producers)
        return facts

    def sync(self, segment: SegmentWriter, end: int, producers: tuple[ProducerState, ...]) -> None:
        """Make a segment durable up to `end`, which has these producers; it may be sealed by now.

        Raises
        ------
        PartitionPoisoned
        """
        started = time.perf_counter()
        try:
            segment.sync()
        except (OSError, DiskFull) as error:
            raise self._poison(error) from error
        seconds = time.perf_counter() - started
        self._advance(end, producers)
        self._counters.syncs.observe(seconds)

    def _advance(self, end: int, producers: tuple[ProducerState, ...]) -> None:
        with self.advanced.lock:
            if end >= self.durable_offset and (self._withheld is None or end <= self._withheld[0]):
                self.durable_offset, self.durable_producers = end, producers
            self.advanced.notify_all()
        self.listeners.notify()

    def mark_clean(self) -> None:
        """Write the mark that proves that every block is durable.

        Raises
        ------
        PartitionPoisoned
        """
        try:
            self.segment.mark_clean()
        except DiskFull:
            pass  # Every record is durable. Without the mark, later damage to the last block looks like a torn tail.
        except OSError as error:
            raise self._poison(error) from error

    def _poison(self, error: Exception) -> PartitionPoisoned:
        """Refuse every later append because the disk failed, and return the error to raise."""
        fault = PartitionPoisoned(
            f"{self._label}: the disk failed ({error}), so what is durable "
            "is unknown; nothing more is appended until the store is opened again"
        )
        self.fail(fault)
        return fault

    def fail(self, fault: TieredError) -> None:
        """Refuse every later append, and wake the threads that wait for the durable offset."""
        self._refuse(fault)
        with self.advanced.lock:
            self.advanced.notify_all()
        self.listeners.notify()

    def close(self) -> None:
        """Close every file and drop the recent blocks; nothing is written."""
        for segment in (*self.sealed, self.segment):
            segment.close()
        self.recent.clear()

    def abandon(self) -> None:
        """In a forked child: drop the parent's descriptor and condition."""
        self.advanced = InterruptSafeCondition()
        self.segment.abandon()
