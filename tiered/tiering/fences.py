"""The fences of partitions: checks that this disk still owns a log in the bucket, and the stop if it does not (promise P7).

A fence is a file in the partition's directory. A fenced partition takes no appends, publishes nothing and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ..cold.manifest.commit import FIRST_LINEAGE
from ..errors import Fenced
from ..format.manifest import Head
from ..reader.same_log import Likeness, SameLog
from ..warm.filesystem import FileSystem
from ..warm.partition_directory import FENCED_FILE, read_fence, read_lineage, write_fence
from ..warm.segment_reader import SegmentFile
from .partition_handle import PartitionHandle
from .store_claim import StoreClaim


def check_not_fenced(handle: PartitionHandle) -> None:
    """Raise `Fenced` if the partition has a fence."""
    reason = read_fence(handle.directory)
    if reason is not None:
        raise Fenced(f"partition {handle.partition} of topic {handle.meta.name!r} is fenced: {reason}")


class PartitionFences:
    """Checks of partitions against heads from the bucket; a failed check fences the partition. Thread-safe."""

    def __init__(self, store: StoreClaim, same: SameLog, fs: FileSystem) -> None:
        self._store = store
        self._same = same
        self._fs = fs

    def check_store(self, handle: PartitionHandle) -> None:
        """Fence a partition if its store was restored elsewhere.

        Raises
        ------
        ConfigError, Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        try:
            self._store.check_owner()
        except Fenced as newer:
            self.write(handle, str(newer))
            raise

    def check_lineage(self, handle: PartitionHandle, head: Head | None) -> None:
        """Fence a partition if its head belongs to another lineage.

        Raises
        ------
        Fenced
        """
        lineage = read_lineage(handle.directory) or FIRST_LINEAGE
        if head is not None and head.lineage_epoch != lineage:
            began = f"lineage {head.lineage_epoch} began at offset {head.lineages[-1][1]} in the bucket"
            self.fence(handle, f"{began}, this disk belongs to lineage {lineage}")

    def check_not_ahead(self, handle: PartitionHandle, head: Head, end: int) -> None:
        """Fence a partition if its head ends after this disk.

        Parameters
        ----------
        end
            The end of the records on this disk, read after the head.

        Raises
        ------
        Fenced
        """
        if head.end_offset > end:
            self.fence(handle, f"the bucket ends at offset {head.end_offset}, this disk at {end}")

    def check_same(
        self, handle: PartitionHandle, head: Head, segments: Sequence[SegmentFile] | None = None
    ) -> None:
        """Fence a partition if the last published records are not those of this disk; see `SameLog.at_end`.

        Parameters
        ----------
        segments
            The segments near the end of the head, if they are open already.

        Raises
        ------
        Fenced
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        end = head.end_offset
        if segments is None:
            segments = handle.segments(lambda base, bound: base <= end <= bound)
        if self._same.at_end(handle.manifest, head, segments) is Likeness.OTHER:
            self.fence_diverged(handle, end)

    def fence_diverged(self, handle: PartitionHandle, end: int) -> NoReturn:
        """Fence a partition whose published records differ from those of this disk, although their ids are the same."""
        self.fence(
            handle,
            f"before offset {end} the bucket has other records than this disk: another copy of the store's directory "
            "published them",
        )

    def fence(self, handle: PartitionHandle, reason: str) -> NoReturn:
        """Fence a partition, and raise `Fenced`."""
        self.write(handle, reason)
        raise Fenced(
            f"partition {handle.partition} of topic {handle.meta.name!r} was fenced: {reason}; see {FENCED_FILE}"
        )

    def write(self, handle: PartitionHandle, reason: str) -> None:
        """Write the fence; a writer in this process refuses appends from here on."""
        with handle.hold_topic():
            writer = handle.writer
            if writer is not None:
                writer.fence(reason)
            else:
                write_fence(self._fs, handle.directory, reason)
