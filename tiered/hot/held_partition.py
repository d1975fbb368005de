"""`HeldPartition`: a partition to which only one thread appends for a while, so that it knows the next offset."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import TieredError
from ..format.block import MARK, Body, Numbers
from ..format.topic_meta import TopicMeta
from .active_segment import ActiveSegment
from .pending_rows import PendingRows


class HeldPartition:
    """A partition whose pending rows are written, and to which no other thread appends; see `PartitionWriter.held`."""

    def __init__(
        self,
        pending: PendingRows,
        active: ActiveSegment,
        append: Callable[[Sequence[Body], Sequence[Numbers], int, bool], None],
    ) -> None:
        self._pending = pending
        self._active = active
        self._append = append

    @property
    def meta(self) -> TopicMeta:
        """The topic with the schema of the active segment."""
        return self._active.meta

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self._active.segment.end_offset

    @property
    def is_durable(self) -> bool:
        """Whether no power cut can take a record of the partition back."""
        return self._active.durable_offset >= self.end_offset

    @property
    def last_append_us(self) -> int:
        """The append time of the last record."""
        return self._active.segment.last_append_us

    def last_sequence(self, producer_id: int) -> int:
        """Return the highest sequence of a producer; -1 without one."""
        history = self._pending.producers.get(producer_id)
        return -1 if history is None else history.last_sequence

    def continue_numbers(self, producer_id: int, next_sequence: int) -> None:
        """Write the mark after which the numbers of a producer that is not known here go on at `next_sequence`.

        Raises
        ------
        DiskFull, PartitionPoisoned
        """
        self._active.append([MARK], keep=False, numbers=[Numbers(producer_id, 0, next_sequence)])
        self._pending.producers.begin(producer_id, 0, next_sequence)

    def make_room(self, length: int) -> None:
        """Roll the segment if it has no room for blocks of `length` bytes, and reserve that much on the disk.

        Where the file system can promise room, an `append` of these bytes then finds it.

        Raises
        ------
        DiskFull, PartitionPoisoned
        """
        self._active.make_room(length)

    def withhold(self) -> None:
        """Let readers see nothing of what is appended from here on until `release`."""
        self._active.withhold()

    def release(self) -> None:
        """Let readers see what was withheld, once a sync has made it durable."""
        self._active.release()

    def append(
        self,
        bodies: Sequence[Body],
        numbers: Sequence[Numbers] = (),
        not_before_us: int = 0,
        *,
        keep: bool = True,
    ) -> None:
        """Append blocks by one write, all or none.

        Parameters
        ----------
        numbers
            The producer numbers of each block, with their last sequences; empty if the blocks have none.
        not_before_us
            The least append time of the blocks.
        keep
            Whether the blocks stay readable from memory.

        Raises
        ------
        DiskFull, PartitionPoisoned
        """
        try:
            self._append(bodies, numbers, not_before_us, keep)
        except BaseException:
            # The segment knows which blocks were written.
            for number in {item.producer_id for item in numbers}:
                self._pending.producers.copy_from(number, self._active.segment.producers)
            raise
        finally:
            self._pending.buffer.base_offset = self._active.segment.end_offset

    def sync(self) -> None:
        """Make every record of the partition durable.

        Raises
        ------
        PartitionPoisoned
        """
        segment = self._active.segment
        self._active.sync(segment, segment.end_offset, segment.producers.snapshot())

    def fail(self, fault: TieredError) -> None:
        """Refuse every later append."""
        self._active.fail(fault)

    def suspend(self, fault: TieredError) -> None:
        """Refuse every later append until `BlockWriter.resumed`."""
        self._pending.suspend(fault)
