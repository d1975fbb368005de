"""The active segment of a partition: blocks are appended, synced, and at last sealed by a footer."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..format.block import MARK, NO_PRODUCER, Body, encode_header
from ..format.facts import SegmentFacts
from ..format.producers import PRODUCER_AGE_US, ProducerTable
from ..format.segment import BlockIndex, ContentHash, SegmentHeader, encode_footer, encode_segment_header
from .directory import SegmentName
from .filesystem import FileSystem
from .scan import Scan

# A quarter of the file, so that small partitions waste little; given back when the segment is sealed or closed.
_AHEAD_BYTES_MIN = 64 << 10
_AHEAD_BYTES_MAX = 16 << 20


class SegmentWriter:
    """Appends blocks to one segment file. Only `sync` is thread-safe: the partition's writer serialises other calls.

    Attributes
    ----------
    position : int
        Where the next block goes; everything before it is whole blocks.
    synced_through : int
        File position known durable.
    end_offset : int
        Offset after the last block written.
    producers : ProducerTable
        All that are known after the last block written.
    """

    def __init__(self, fs: FileSystem, path: Path, fd: int, header: SegmentHeader, writer_epoch: int) -> None:
        self._fs = fs
        self.path = path
        self._fd = fd
        self._sync_turn = threading.Lock()
        self._sync_failed = False
        self.header = header
        self.writer_epoch = writer_epoch
        self.index = BlockIndex()
        self._content = ContentHash()
        self.producers = ProducerTable(header.producers)
        self.position = header.length
        self.synced_through = header.length
        self._reserved = _AHEAD_BYTES_MIN
        self.end_offset = header.base_offset
        self.first_append_us: int | None = None
        self.last_append_us = header.created_us
        self.facts: SegmentFacts | None = None

    @classmethod
    def create(cls, fs: FileSystem, directory: Path, header: SegmentHeader) -> SegmentWriter:
        """Make the next segment of a partition, durably.

        The file gets its name only once its header is on disk, so a named segment always has one.
        """
        data = encode_segment_header(header)
        path = directory / str(SegmentName(header.base_offset, header.generation))
        temporary = path.with_name(f".{path.name}.tmp")
        fs.unlink(temporary)
        fd = fs.create(temporary)
        try:
            fs.write(fd, 0, [data])
            fs.sync(fd)
            fs.rename(temporary, path)
            fs.sync_directory(directory)
        except BaseException:
            fs.close(fd)
            raise
        return cls(fs, path, fd, replace(header, length=len(data)), header.writer_epoch)

    @classmethod
    def resume(cls, fs: FileSystem, path: Path, header: SegmentHeader, scan: Scan) -> SegmentWriter:
        """Go on writing a segment after recovery, cutting its torn tail and reserved room off first."""
        fd = fs.open(path)
        try:
            if scan.end_position < scan.file_bytes:
                fs.truncate(fd, scan.end_position)
            # What a killed predecessor wrote may be in the page cache only, and readers will see it.
            fs.sync(fd)
        except BaseException:
            fs.close(fd)
            raise
        writer = cls(fs, path, fd, header, max(scan.writer_epoch, header.writer_epoch) + 1)
        writer.index, writer._content = scan.index, scan.content_hash
        writer.producers = scan.producers
        writer.first_append_us = scan.first_append_us
        writer.position = writer.synced_through = scan.end_position
        writer.end_offset, writer.last_append_us = scan.end_offset, scan.last_append_us
        return writer

    def append(
        self,
        bodies: Sequence[Body],
        append_us: int,
        producer: tuple[int, int, int] = (NO_PRODUCER, 0, 0),
        last_sequence: int | None = None,
    ) -> None:
        """Write blocks at the end with one write; on failure all is as before, the file too.

        Parameters
        ----------
        producer, last_sequence
            For one block: id, epoch, and the numbers of the first and the last record; see `encode_header`.

        Raises
        ------
        DiskFull
            No room; what was partly written is cut off again.
        OSError
            The device failed, or the cut failed: the state of the file is unknown.
        """
        position, content, base = self.position, self._content.copy(), self.end_offset
        try:
            self._append(bodies, append_us, producer, last_sequence)
        except BaseException:
            # Ctrl-C too: a block left behind could be read, and its offsets given out once more.
            if self.position == position:
                self.index.truncate(position)
                self._content = content
                self._fs.truncate(self._fd, position)
            else:
                self._note(producer, last_sequence, base)
            raise

    def _append(
        self, bodies: Sequence[Body], append_us: int, producer: tuple[int, int, int], last_sequence: int | None
    ) -> None:  # fmt: skip
        append_us = max(append_us, self.last_append_us)
        base = end = self.end_offset
        headers: list[bytes] = []
        parts: list[Any] = []
        for body in bodies:
            header = encode_header(
                body,
                segment_id=self.header.segment_id.bytes,
                schema_id=self.header.schema_id,
                base_offset=end,
                append_us=append_us,
                writer_epoch=self.writer_epoch,
                synced_through=self.synced_through,
                producer=producer,
                last_sequence=last_sequence,
            )
            headers.append(header)
            parts += (header, *body.parts)
            end += body.record_count
        self._reserve(self.position + sum(body.length for body in bodies))
        self._fs.write(self._fd, self.position, parts)
        position, end = self.position, base
        for body, header in zip(bodies, headers, strict=True):
            if body.record_count:
                self.index.append_row(
                    end, position, body.length, body.record_count,
                    body.min_timestamp_us, body.max_timestamp_us,
                )  # fmt: skip
                self._content.add(header)
            position += body.length
            end += body.record_count
        if self.first_append_us is None and end > base:
            self.first_append_us = append_us
        self.last_append_us = append_us
        # One statement: the blocks are there from here on, and nothing can come between the two.
        self.position, self.end_offset = position, end
        if producer[0] >= 0:
            self._note(producer, last_sequence, base)

    def _note(self, producer: tuple[int, int, int], last_sequence: int | None, base_offset: int) -> None:
        """Take note of the producer of the last block; twice is once."""
        number, epoch, sequence = producer
        count = self.end_offset - base_offset
        if number < 0:
            return
        if count == 0:
            self.producers.begin(number, epoch, sequence, self.last_append_us)
            return
        last = sequence + count - 1 if last_sequence is None else last_sequence
        self.producers.add(number, epoch, sequence, last, base_offset, self.end_offset, self.last_append_us)

    def _reserve(self, end: int) -> None:
        """Keep zeros ahead of the blocks: a sync of a file that need not grow has no metadata to write."""
        if end > self._reserved:
            self._reserved = end + min(max(end // 4, _AHEAD_BYTES_MIN), _AHEAD_BYTES_MAX)
            # From here on alone: some systems look at every page of the range.
            self._fs.reserve(self._fd, self.position, self._reserved - self.position)

    def _give_back(self) -> None:
        # Also where nothing was reserved: Ctrl-C may have kept a block without room from being cut off.
        self._fs.truncate(self._fd, self.position)

    def sync(self) -> None:
        """Make every block written so far durable.

        Raises
        ------
        OSError
            The sync failed; it must not be tried again on this descriptor (promise P11).
        """
        position = self.position
        self._sync_file()
        self.synced_through = position

    def _sync_file(self) -> None:
        # The system tells of lost pages once. A roll and a commit may sync the file from two threads: who comes after
        # the one that was told must not take the next success for theirs.
        with self._sync_turn:
            if self._sync_failed:
                raise OSError(errno.EIO, "an earlier sync of this file failed")
            try:
                self._fs.sync(self._fd)
            except Exception:
                self._sync_failed = True
                raise

    def mark_clean(self) -> None:
        """Write a mark that proves all before it durable, so later damage is never taken for a torn tail."""
        if self.index.base_offsets and self.facts is None:
            self.append([MARK], self.last_append_us)
            self._give_back()
            self._sync_file()

    def seal(self, start_offset: int, now_us: int | None = None) -> SegmentFacts:
        """Write footer and trailer, durably; the segment takes no more blocks.

        Parameters
        ----------
        now_us
            The time: where the last append is ahead of it, producers that were not seen in time (`PRODUCER_AGE_US`) are
            those of before then. Default that append's.
        """
        if self.synced_through < self.position:
            # A footer that outlived a block in front of it would vouch for records that are not there.
            self.sync()
        seen_us = self.last_append_us if now_us is None else min(self.last_append_us, now_us)
        self.producers.forget_before(seen_us - PRODUCER_AGE_US)
        content = self._content.hexdigest()
        head, index = self.header, self.index
        facts = SegmentFacts(
            store_id=head.store_id,
            topic_id=head.topic_id,
            segment_id=head.segment_id,
            partition=head.partition,
            generation=head.generation,
            schema_id=head.schema_id,
            base_offset=head.base_offset,
            end_offset=self.end_offset,
            record_count=sum(index.record_counts),
            min_timestamp_us=min(index.min_timestamps_us, default=0),
            max_timestamp_us=max(index.max_timestamps_us, default=0),
            created_us=head.created_us,
            last_append_us=self.last_append_us,
            lineage_epoch=head.lineage_epoch,
            start_offset=start_offset,
            origin_hash=content,
            prev_origin_hash=head.prev_origin_hash,
            content_hash=content,
            producers=self.producers.snapshot(),
        )
        try:
            self._give_back()
            self._fs.write(self._fd, self.position, [encode_footer(index, facts, self.position)])
            self._sync_file()
            self.synced_through = self.position
            self.facts = facts
        except BaseException:
            # A trailer that outlives what is written over its footer would make the file unreadable.
            self._fs.truncate(self._fd, self.position)
            raise
        return facts

    def close(self) -> None:
        """Close the descriptor; nothing is written."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._fs.close(fd)

    def abandon(self) -> None:
        """Close an inherited descriptor in a forked child."""
        self.close()
