"""`Lag`: the durable records of a partition that the bucket does not have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..format.topic_meta import TopicMeta
from .local_segments import LocalFile


@dataclass(frozen=True, slots=True)
class Lag:
    """The durable records of one partition that the bucket does not have, as far as this process knows.

    Attributes
    ----------
    published_offset
        The end of the published records, or the start offset if that is higher.
    end_offset
        The durable offset.
    oldest_append_us
        The append time of the oldest of these records; None if there is none, or if it cannot be read.
    bytes, segments
        The size of these records in local segments, and the number of those segments.
    """

    topic: str
    partition: int
    published_offset: int
    end_offset: int
    oldest_append_us: int | None = None
    bytes: int = 0
    segments: int = 0

    @property
    def records(self) -> int:
        """Number of these records."""
        return self.end_offset - self.published_offset

    def seconds(self, now_us: int) -> float:
        """Age of the oldest record; 0 if there is none."""
        return 0.0 if self.oldest_append_us is None else max(0.0, (now_us - self.oldest_append_us) / 1e6)

    def to_json(self, now_us: int) -> dict[str, Any]:
        """Return the sizes and the age as plain JSON values."""
        return {
            "records": self.records,
            "bytes": self.bytes,
            "segments": self.segments,
            "seconds": self.seconds(now_us),
        }


def files_behind(files: Iterable[LocalFile], offset: int) -> list[LocalFile]:
    """Return the files that hold records at or after `offset`."""
    return [file for file in files if file.end_offset > max(offset, file.base_offset)]


def lag_of(
    meta: TopicMeta,
    partition: int,
    files: Iterable[LocalFile],
    published_offset: int,
    end_offset: int,
    oldest_append_us: int | None,
) -> Lag:
    """Return the lag of a partition with these files; a file that is partly published counts in proportion."""
    behind = files_behind(files, published_offset)
    size = sum(
        file.bytes
        * (file.end_offset - max(published_offset, file.base_offset))
        // (file.end_offset - file.base_offset)
        for file in behind
    )
    return Lag(meta.name, partition, published_offset, end_offset, oldest_append_us, size, len(behind))
