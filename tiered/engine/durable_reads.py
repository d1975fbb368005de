"""Reads of durable records alone, which flush nothing; and the wait for the next ones."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping

import pyarrow as pa

from ..errors import TopicNotFound
from ..reader.read import read_splits
from ..reader.rows import Query, coalesce
from .open_topics import OpenTopic
from .read import has_new_columns, refresh, snapshot_beyond
from .records import OffsetRange
from .same_lineage import of_lineage

# A sync in this process wakes the waiting thread. Records of another process, or in sync mode ``never``, need a poll. A poll
# of a bucket is a GET, and a head changes no more often than tails are shipped.
_LISTEN_SECONDS = 1.0
_POLL_SECONDS = 0.1
_BUCKET_SECONDS = 2.0


def durable_offsets(topic: OpenTopic, partitions: Iterable[int]) -> dict[int, OffsetRange]:
    """Return the ranges of durable records; nothing is flushed."""
    _check(topic)
    ranges, unopened = {}, []
    for partition in partitions:
        writer = topic.writers.get(partition)
        if writer is not None and writer.fault is None and topic.context.settings.store.sync != "never":
            ranges[partition] = OffsetRange(partition, writer.start_offset, writer.durable_offset)
        else:
            unopened.append(partition)
    if unopened:
        refresh(topic)
    for partition in unopened:
        snapshot = snapshot_beyond(topic, partition, None, 0)
        ranges[partition] = OffsetRange(partition, snapshot.start_offset, snapshot.end_offset)
    return ranges


def durable_batches(
    topic: OpenTopic, partition: int, offset: int, count: int, lineage: int | None = None
) -> Generator[pa.RecordBatch, None, int]:
    """Yield the durable records of `count` offsets from `offset` on, with the system columns; nothing is flushed.

    Return the offset up to which the log was read: the last records before it may be erased.

    Raises
    ------
    OffsetOutOfRange
        The log begins behind the offset, or is of another lineage than `lineage`; no record of that lineage was yielded.
    """
    _check(topic)
    writer = topic.writers.get(partition)
    if (
        writer is not None
        and writer.start_offset <= offset == writer.durable_offset
        and topic.context.settings.store.sync != "never"
    ):
        return offset
    refresh(topic, asks_bucket=False)
    snapshot = snapshot_beyond(topic, partition, offset, offset + count)
    if has_new_columns(topic, snapshot):
        refresh(topic)
    context = topic.context
    rows = read_splits(context.tiers, topic.meta, snapshot.splits, Query(), check=context.lifecycle.check)
    yield from of_lineage(topic, snapshot, lineage, coalesce(rows))
    return min(offset + count, snapshot.end_offset)


def wait_durable(
    topic: OpenTopic, ends: Mapping[int, int], seconds: float | None, wake: threading.Event
) -> None:
    """Wait until a partition may have durable records from its offset in `ends` on, or `wake` is set; at most 2 s."""
    context, lifecycle = topic.context, topic.context.lifecycle
    if context.tiers.locations.root is None:
        limit = _BUCKET_SECONDS
    elif lifecycle.writes and context.settings.store.sync != "never":
        limit = _LISTEN_SECONDS
    else:
        limit = _POLL_SECONDS
    with topic.listeners.listening(wake):
        _check(topic)
        if not any(
            topic.writers[key].durable_offset > end for key, end in ends.items() if key in topic.writers
        ):
            wake.wait(limit if seconds is None else min(seconds, limit))
    _check(topic)


def _check(topic: OpenTopic) -> None:
    """Raise `StoreClosed`, or `TopicNotFound` if this process deleted the topic: its writers keep what they had."""
    lifecycle = topic.context.lifecycle
    lifecycle.check()
    if lifecycle.writes and not topic.registry.is_open(topic):
        raise TopicNotFound(f"topic {topic.name!r} was deleted")
