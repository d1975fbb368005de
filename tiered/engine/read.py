"""Reads of a topic: snapshots of its partitions, records in order, and following the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from ..errors import ColdStorageError, OffsetOutOfRange, TieredError
from ..format.document import TRANSACTIONS_FEATURE
from ..hot.view import HotView
from ..reader.query import Offsets, bound
from ..reader.read import read_splits
from ..reader.rows import Query, coalesce, limit_rows
from ..reader.snapshot import PartitionSnapshot, snapshot_partition
from ..reader.splits import ColdSource
from .catalog import BucketCatalog
from .open_topics import OpenTopic
from .records import OffsetRange, Record, records_of
from .same_lineage import of_lineage
from .topic_shape import TopicShape

log = logging.getLogger("tiered.topic")

_READINGS_MAX = 5
_FOLLOW_SECONDS = 0.1
# Each poll of a bucket is a GET, and a head changes no more often than tails are shipped.
_FOLLOW_BUCKET_SECONDS = 2.0
_FOLLOW_RETRY_SECONDS_MAX = 60.0


def refresh(topic: OpenTopic, *, asks_bucket: bool = True) -> None:
    """Read the topic's document again if another process writes it: it may have new columns and partitions.

    Parameters
    ----------
    asks_bucket
        False: skip this for a bucket's topic, where it costs a GET.

    Raises
    ------
    TopicNotFound, CorruptionError, ColdStorageError
    """
    context, meta = topic.context, topic.meta
    context.lifecycle.check()
    if context.lifecycle.writes:
        return
    context.tiers.release_removed_if_due()
    catalog = context.catalog
    if isinstance(catalog, BucketCatalog):
        present = catalog.read_again(meta) if asks_bucket else meta
    else:
        present = catalog.read_topic(meta.name)
    if present.topic_id == meta.topic_id and present != meta:
        topic.set_meta(present)


def snapshots(
    topic: OpenTopic, partitions: Iterable[int], start_offset: Offsets, end_offset: Offsets
) -> tuple[PartitionSnapshot, ...]:
    """Take a snapshot of each partition over all tiers, within bounds on offsets; see `whole_snapshots`."""
    return whole_snapshots([(topic, partition) for partition in partitions], start_offset, end_offset)


def whole_snapshots(
    places: Sequence[tuple[OpenTopic, int]], start_offset: Offsets, end_offset: Offsets, *, flush: bool = True
) -> tuple[PartitionSnapshot, ...]:
    """Take snapshots of partitions, of one topic or several, in which each transaction is whole or absent.

    Parameters
    ----------
    flush
        As in `OpenTopic.view`.
    """

    def take(at: int, view: HotView | None, end: int | None) -> PartitionSnapshot:
        topic, partition = places[at]
        start, wanted = bound(start_offset, partition), bound(end_offset, partition)
        if end is None or (wanted is not None and wanted < end):
            end = wanted
        tiers = topic.context.tiers
        return snapshot_partition(tiers, topic.meta, partition, view=view, start_offset=start, end_offset=end)

    if not places:
        return ()
    keys = [(topic.meta.topic_id, partition) for topic, partition in places]
    for _ in range(_READINGS_MAX):
        commits = places[0][0].context.commits
        reading = commits.begin_reading() if len(places) > 1 else commits.begin_reading_one(places[0][0].meta)
        hot = [topic.view(partition, flush=flush) for topic, partition in places]
        parts = [take(at, view, None) for at, view in enumerate(hot)]
        if reading is None:
            return tuple(parts)
        ends = reading.whole_ends({key: part.end_offset for key, part in zip(keys, parts, strict=True)})
        if ends is not None:
            for at, (key, part) in enumerate(zip(keys, parts, strict=True)):
                if ends[key] < part.end_offset:
                    parts[at] = replace(take(at, hot[at], ends[key]), end_offset=ends[key])
            return tuple(parts)
    raise TieredError("the transaction log was shortened at each look; try again")


def offset_ranges(topic: OpenTopic) -> dict[int, OffsetRange]:
    """Return start and end offset of each partition; see `Topic.offsets`."""
    parts = snapshots(topic, range(topic.partitions), None, 0)
    return {part.partition: OffsetRange(part.partition, part.start_offset, part.end_offset) for part in parts}


def snapshot_beyond(
    topic: OpenTopic, partition: int, offset: int | None, end: int | None, *, flush: bool = False
) -> PartitionSnapshot:
    """Take the snapshot of one partition from an offset on, for a reader that comes again and again.

    From a bucket it costs one request where there is no new record, or no transaction in the store.
    """
    context = topic.context
    if offset is not None and context.tiers.locations.root is None:
        snapshot = snapshot_partition(
            context.tiers, topic.meta, partition, view=None, start_offset=offset, end_offset=end
        )
        if snapshot.end_offset <= offset or TRANSACTIONS_FEATURE not in context.catalog.features():
            return snapshot
    (snapshot,) = whole_snapshots([(topic, partition)], offset, end, flush=flush)
    return snapshot


def records(
    topic: OpenTopic,
    partition: int,
    offset: int | None,
    limit: int | None,
    *,
    follow: bool = False,
    lineage: int | None = None,
) -> Iterator[Record]:
    """Yield records of one partition and decode blocks as needed; see `Topic.read`.

    Parameters
    ----------
    lineage
        The lineage that the log must have; None for any. A log of another lineage raises `OffsetOutOfRange`.
    """
    remaining, failures = limit, 0
    while remaining is None or remaining > 0:
        # With a known end no block beyond it is decoded.
        end = offset + remaining if offset is not None and remaining is not None else None
        try:
            snapshot = _snapshot_from(topic, partition, offset, end, follow)
            if has_new_columns(topic, snapshot):
                refresh(topic)
            rows = _rows(topic, snapshot, eager=remaining is None or end is not None)
            for batch in of_lineage(topic, snapshot, lineage, coalesce(limit_rows(rows, remaining))):
                yield from records_in(batch, topic, partition)
                remaining = None if remaining is None else remaining - batch.num_rows
                offset, failures = batch.column("offset")[-1].as_py() + 1, 0
        except ColdStorageError as error:
            topic.context.lifecycle.check()
            if not follow or not error.retryable:
                raise
            failures += 1
            log.warning("following %s/%d from offset %s: %s", topic.name, partition, offset, error)
            topic.context.lifecycle.pause(min(_FOLLOW_RETRY_SECONDS_MAX, 2.0**failures))
            topic.context.lifecycle.check()
            continue
        offset = snapshot.end_offset if end is None else min(end, snapshot.end_offset)
        if end is not None and snapshot.end_offset >= end and remaining:
            continue  # some of these records are erased
        if not follow:
            return
        _wait_for(topic, partition, offset)
        refresh(topic, asks_bucket=False)


def _snapshot_from(
    topic: OpenTopic, partition: int, offset: int | None, end: int | None, follow: bool
) -> PartitionSnapshot:
    # A writer in this process knows the durable offset; a follower must not force a flush.
    snapshot = snapshot_beyond(topic, partition, offset, end, flush=not follow)
    if offset is not None and offset > snapshot.end_offset:
        raise OffsetOutOfRange(
            f"offset {offset} of topic {topic.name!r} partition {partition} is not there yet; the log has "
            f"{snapshot.start_offset} to {snapshot.end_offset}",
            start=snapshot.start_offset,
            end=snapshot.end_offset,
        )
    return snapshot


def has_new_columns(topic: OpenTopic, snapshot: PartitionSnapshot) -> bool:
    """Whether an object of the snapshot has more columns than the topic's document in memory."""
    schema_id = topic.meta.schema_id
    return any(
        isinstance(split.source, ColdSource) and split.source.field("schema_id") > schema_id
        for split in snapshot.splits
    )


def _rows(topic: OpenTopic, snapshot: PartitionSnapshot, *, eager: bool) -> Iterator[pa.RecordBatch]:
    """Yield batches for `records_in`."""
    query = Query(columns=("offset", "timestamp", *topic.schema.names))
    context = topic.context
    yield from read_splits(
        context.tiers, topic.meta, snapshot.splits, query, check=context.lifecycle.check, eager=eager
    )


def records_in(batch: pa.RecordBatch, topic: TopicShape, partition: int) -> Iterator[Record]:
    """Yield the rows of a batch as records; its columns are ``offset``, ``timestamp`` and the topic's own."""
    offsets, *columns = batch.columns
    names = batch.schema.names[2:]
    key = topic.meta.key
    return records_of(
        columns, names, topic.name, partition, offsets.to_pylist(), typed=topic.typed, key_column=key
    )


def _wait_for(topic: OpenTopic, partition: int, offset: int) -> None:
    topic.context.lifecycle.check()
    writer = topic.writers.get(partition)
    # A failed writer makes no more records durable, and its wait would return at once.
    if writer is None or writer.fault is not None:
        local = topic.context.tiers.locations.root is not None
        topic.context.lifecycle.pause(_FOLLOW_SECONDS if local else _FOLLOW_BUCKET_SECONDS)
        topic.context.lifecycle.check()
    else:
        writer.wait_beyond(offset, _FOLLOW_SECONDS)
