"""Reads of one lineage: they end with an error if a restore begins another lineage meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from ..errors import OffsetOutOfRange
from ..reader.lineages import lineage_of
from ..reader.snapshot import PartitionSnapshot
from .open_topics import OpenTopic


def of_lineage(
    topic: OpenTopic, snapshot: PartitionSnapshot, lineage: int | None, rows: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a snapshot while the log is of `lineage`; None for any.

    Raises
    ------
    OffsetOutOfRange
        A restore began another lineage.
    """
    if lineage is None or topic.context.lifecycle.writes:
        # A restore never changes the directory of a process that writes it.
        yield from rows
        return
    for batch in rows:
        check_lineage(topic, snapshot, lineage)
        yield batch
    check_lineage(topic, snapshot, lineage)


def check_lineage(topic: OpenTopic, snapshot: PartitionSnapshot, lineage: int | None) -> None:
    """Raise `OffsetOutOfRange` if the log of a snapshot is of another lineage than `lineage`; None for any."""
    partition = snapshot.partition
    if lineage is not None and lineage_of(topic.context.tiers, topic.meta, partition) != lineage:
        raise OffsetOutOfRange(
            f"topic {topic.name!r} partition {partition} is of another lineage than {lineage}, since it was restored; the "
            f"log has {snapshot.start_offset} to {snapshot.end_offset}",
            start=snapshot.start_offset,
            end=snapshot.end_offset,
        )
