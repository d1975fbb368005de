"""The active segment of a partition: the writer appends blocks, syncs them, and seals the segment by a footer."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..errors import DiskFull
from ..format.block import MARK, NO_NUMBERS, Body, Numbers, encode_header
from ..format.producers import PRODUCER_AGE_US, ProducerTable
from ..format.segment import BlockIndex, ContentHash, SegmentHeader, encode_footer, encode_segment_header
from ..format.segment_facts import SegmentFacts
from .file_end import Blocks, FileEnd
from .filesystem import FileSystem
from .partition_directory import SegmentName
from .segment_scan import BlockScan


class _Write(NamedTuple):
    """Blocks being appended, with the values needed to record them, or to restore the state from before them.

    Attributes
    ----------
    content
        The hash of the blocks before them, which the write does not change.
    """

    position: int
    base_offset: int
    blocks: Blocks
    append_us: int
    numbers: Sequence[Numbers]
    content: ContentHash


class SegmentWriter:
    """Appends blocks to one segment file. Only `sync` is thread-safe: the partition's writer serialises other calls.

    Attributes
    ----------
    position : int
        Position of the next block; only complete blocks are before it.
    synced_through : int
        The file is durable up to this position.
    end_offset : int
        Offset after the last block.
    producers : ProducerTable
        The producers after the last block.
    """

    def __init__(self, fs: FileSystem, path: Path, fd: int, header: SegmentHeader, writer_epoch: int) -> None:
        self._fs = fs
        self.path = path
        self._fd = fd
        self._sync_lock = threading.Lock()
        self._sync_failed = False
        self.header = header
        self.writer_epoch = writer_epoch
        self.index = BlockIndex()
        self._content = ContentHash()
        self.producers = ProducerTable(header.producers)
        self.position = header.length
        self.synced_through = header.length
        self._tail = FileEnd(fs, fd)
        self._settled = True
        self.end_offset = header.base_offset
        self.first_append_us: int | None = None
        self.last_append_us = header.created_us
        self.facts: SegmentFacts | None = None

    @classmethod
    def create(cls, fs: FileSystem, directory: Path, header: SegmentHeader) -> SegmentWriter:
        """Create the next segment of a partition durably.

        The file gets its name after its header is durable, so each named segment has a header.
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
    def resume(cls, fs: FileSystem, path: Path, header: SegmentHeader, scan: BlockScan) -> SegmentWriter:
        """Continue a segment after recovery. This cuts off its torn tail and its reserved room first."""
        fd = fs.open(path)
        try:
            if scan.end_position < scan.file_bytes:
                fs.truncate(fd, scan.end_position)
            # The blocks of a killed writer may be in the page cache only, and readers will see them.
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

    @property
    def append_us(self) -> tuple[int, int] | None:
        """Append times of the first and the last record; None without records."""
        return None if self.first_append_us is None else (self.first_append_us, self.last_append_us)

    def make_room(self, length: int) -> None:
        """Reserve room for blocks of `length` bytes, where the file system can.

        Raises
        ------
        DiskFull, OSError
        """
        self._check_settled()
        self._tail.promise(self.position, length)

    def append(
        self,
        bodies: Sequence[Body],
        append_us: int,
        numbers: Sequence[Numbers] = (),
    ) -> None:
        """Append blocks, all or none; readers never see a part of them (see `FileEnd`).

        After an error, none of the blocks is in the file. After Ctrl-C, all are in the file or none.

        Parameters
        ----------
        numbers
            The sequences of each block; empty without a producer.

        Raises
        ------
        DiskFull
            The disk has no room.
        OSError
            The device failed, or a failed write could not be cut off, now or in an earlier call. The segment then refuses
            all writes.
        """
        self._check_settled()
        write = self._plan(bodies, append_us, numbers or [NO_NUMBERS] * len(bodies))
        self._tail.reserve(write.position, sum(body.length for body in bodies))
        try:
            self._write(write)
        except BaseException:
            # A second Ctrl-C, or a failed cut: the rest of the write would become part of the log later.
            if not self._settled:
                self._settle(write)
            raise

    def _write(self, write: _Write) -> None:
        try:
            self._settled = False
            self._tail.write(write.position, write.blocks)
            self._add_blocks(write)
        except BaseException as error:
            if not (self._settle(write) and isinstance(error, DiskFull)):
                raise

    def _check_settled(self) -> None:
        if not self._settled:
            raise OSError(errno.EIO, "an earlier write failed, and its rest could not be cut off")

    def _plan(self, bodies: Sequence[Body], append_us: int, numbers: Sequence[Numbers]) -> _Write:
        append_us = max(append_us, self.last_append_us)
        end = self.end_offset
        blocks = []
        for body, its in zip(bodies, numbers, strict=True):
            header = encode_header(
                body,
                segment_id=self.header.segment_id.bytes,
                schema_id=self.header.schema_id,
                base_offset=end,
                append_us=append_us,
                writer_epoch=self.writer_epoch,
                synced_through=self.synced_through,
                producer=its[:3],
                last_sequence=its.last,
            )
            blocks.append((header, body))
            end += body.record_count
        return _Write(self.position, self.end_offset, blocks, append_us, numbers, self._content)

    def _settle(self, write: _Write) -> bool:
        """Settle an interrupted write: keep it if all its blocks are in the file, else truncate the file to its start.

        A reader may have seen blocks that are there.
        """
        self._settled = False
        if self._tail.holds(write.position, write.blocks):
            self.index.truncate(write.position)  # an interrupted `_add_blocks` may have added a part
            self._add_blocks(write)
            return True
        self._tail.cut(write.position)
        if len(write.blocks) > 1:
            # A power cut may undo the truncation and keep the next write. With a new epoch, the blocks behind it are stale.
            self.writer_epoch += 1
        self._settled = True
        return False

    def _add_blocks(self, write: _Write) -> None:
        """Add written blocks to the state of the writer. After an interrupt, `_settle` calls it again."""
        position, offset = write.position, write.base_offset
        content = write.content.copy()
        for header, body in write.blocks:
            if body.record_count:
                self.index.append_row(
                    offset, position, body.length, body.record_count,
                    body.min_timestamp_us, body.max_timestamp_us,
                )  # fmt: skip
                content.add(header)
            position += body.length
            offset += body.record_count
        self._content = content
        if self.first_append_us is None and offset > write.base_offset:
            self.first_append_us = write.append_us
        self.last_append_us = write.append_us
        # One statement, so that no interrupt comes between the two.
        self.position, self.end_offset = position, offset
        self._add_producers(write)
        self._settled = True

    def _add_producers(self, write: _Write) -> None:
        """Add the producers of written blocks; a second call changes nothing."""
        offset = write.base_offset
        for (_, body), (number, epoch, first, last) in zip(write.blocks, write.numbers, strict=True):
            start, offset = offset, offset + body.record_count
            if number >= 0 and body.record_count:
                end = first + body.record_count - 1 if last is None else last
                self.producers.add(number, epoch, first, end, start, offset, write.append_us)
            elif number >= 0:
                self.producers.begin(number, epoch, first, write.append_us)

    def sync(self) -> None:
        """Make all blocks written so far durable.

        Raises
        ------
        OSError
            The sync failed; it must not be repeated on this descriptor (promise P11).
        """
        position = self.position
        self._sync_file()
        self.synced_through = position

    def _sync_file(self) -> None:
        # The system reports lost pages once. A roll and a commit may sync the file from two threads: after one of them has
        # got the error, the other's success would prove nothing.
        with self._sync_lock:
            if self._sync_failed:
                raise OSError(errno.EIO, "an earlier sync of this file failed")
            try:
                self._fs.sync(self._fd)
            except Exception:
                self._sync_failed = True
                raise

    def mark_clean(self) -> None:
        """Write a mark that proves all blocks before it durable, so that later damage is never read as a torn tail."""
        if self.index.base_offsets and self.facts is None:
            self.append([MARK], self.last_append_us)
            self._tail.cut(self.position)
            self._sync_file()

    def seal(self, start_offset: int, now_us: int | None = None) -> SegmentFacts:
        """Write footer and trailer durably; the segment takes no more blocks.

        Parameters
        ----------
        now_us
            The present time. The age of producers (`PRODUCER_AGE_US`) counts from it if the last append is later; else, and
            by default, from the last append.
        """
        self._check_settled()
        if self.synced_through < self.position:
            # After a power cut, a footer without one of its blocks would name records that are not in the file.
            self.sync()
        age_from_us = self.last_append_us if now_us is None else min(self.last_append_us, now_us)
        self.producers.drop_before(age_from_us - PRODUCER_AGE_US)
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
            self._settled = False
            self._tail.cut(self.position)
            self._fs.write(self._fd, self.position, [encode_footer(index, facts, self.position)])
            self._sync_file()
            self.facts, self._settled = facts, True
        except BaseException:
            # The next write could overwrite the footer and leave the trailer, which would make the file unreadable.
            self._tail.cut(self.position)
            self._settled = True
            raise
        return facts

    def close(self) -> None:
        """Close the descriptor without a write."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._fs.close(fd)

    def abandon(self) -> None:
        """Close an inherited descriptor in a forked child."""
        self.close()
