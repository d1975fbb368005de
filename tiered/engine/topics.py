"""Administration of topics: start offsets, new columns, new partitions, deletion."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa

from ..errors import ConfigError, OffsetOutOfRange, SchemaMismatch, StoreLocked, TopicNotFound
from ..format.schema import body_schema, normalize_schema
from ..format.segment import schema_message
from ..format.topic_meta import TopicMeta, with_partitions
from ..warm.catalog import hold_topic
from ..warm.filesystem import device_errors
from ..warm.partition_directory import list_segments
from .open_topics import OpenTopic
from .writers import check_not_deleted


def delete_before(topic: OpenTopic, offset: int, partition: int) -> None:
    """Move the start offset of a partition up; see `Topic.delete_before`."""
    topic.check_partition(partition)
    writer = topic.writer(partition)
    writer.flush()
    if type(offset) is not int or not 0 <= offset <= writer.durable_offset:
        raise deletion_beyond_log(topic.name, partition, offset, writer.start_offset, writer.durable_offset)
    with device_errors(topic.context.catalog.partition_directory(topic.name, partition)):
        writer.set_start_offset(offset)


def remove_deleted_segments(topic: OpenTopic, partition: int) -> None:
    """Remove the local segments before the start offset of a partition, as a pass does in a store without a bucket.

    Raises
    ------
    StoreLocked, DiskFull, CorruptionError
    """
    context = topic.context
    start = topic.writer(partition).start_offset
    directory = context.catalog.partition_directory(topic.name, partition)
    names = list_segments(directory).segments
    doomed = [name for name, following in pairwise(names) if following.base_offset <= start]
    if doomed:
        with hold_topic(context.catalog.root, topic.meta):
            for name in doomed:
                context.tiers.release(directory / str(name))
                context.fs.unlink(directory / str(name))
            context.fs.sync_directory(directory)


def deletion_beyond_log(topic: str, partition: int, offset: object, start: int, end: int) -> OffsetOutOfRange:
    """Return the error of `delete_before` with an offset that the log does not have."""
    return OffsetOutOfRange(
        f"cannot delete before offset {offset!r} of topic {topic!r} partition {partition}; the log has {start} to {end}",
        start=start,
        end=end,
    )


def add_columns(topic: OpenTopic, columns: pa.Schema) -> None:
    """Add columns to a typed topic; see `Topic.add_columns`."""
    topic.context.lifecycle.check_writable()
    if not topic.typed:
        raise SchemaMismatch(f"topic {topic.name!r} has the record schema, which does not grow")
    with topic.lock:
        meta = topic.meta.with_columns(normalize_schema(columns))
        schema_message(body_schema(meta.schema))
        _write(topic, meta)
        try:
            # A writer that is being opened may be missed; its first record with the new columns changes its schema.
            for writer in list(topic.writers.values()):
                writer.change_schema(meta)
        finally:
            # The new schema is stored. A writer that found no room on the disk changes with its next record.
            topic.set_meta(meta)


def add_partitions(topic: OpenTopic, total: int) -> None:
    """Raise the number of partitions; see `Topic.add_partitions`."""
    topic.context.lifecycle.check_writable()
    if topic.context.settings.policy_for(topic.name).compact_keys.after is not None:
        raise ConfigError(
            f"topic {topic.name!r} is compacted (compact_keys): with more partitions the later records of a key could be in "
            "another one than the earlier records"
        )
    with topic.lock:
        meta = with_partitions(topic.meta, total)
        topic.context.fencing.begin_partitions(topic.meta, meta)
        _write(topic, meta)
        if topic.context.settings.policy_for(topic.name).offload.after is not None:
            topic.context.fencing.announce_partitions(meta)
        topic.set_meta(meta)


def remove_topic(topic: OpenTopic, deleted: TopicNotFound) -> bool:
    """Delete a topic on this disk; return False and do nothing while a pass or an opening changes the topic.

    Raises
    ------
    TopicNotFound
        Another thread deleted the topic before; the error is `deleted`, which every later use of the topic raises.
    """
    context, registry = topic.context, topic.registry

    def close_writers() -> None:
        with registry.lock:
            if registry.is_opening(topic.meta):
                raise StoreLocked(f"a partition of topic {topic.name!r} is being opened")
            registry.drop(topic)
        for writer in topic.writers.values():
            # Pending records are deleted with the topic; a writer that refuses does not write them to a full disk.
            writer.refuse(deleted)
            writer.close()
        topic.listeners.notify()

    with registry.name_locks.of(topic.name):
        if not registry.is_open(topic):
            raise deleted  # a new topic may have the name now
        try:
            context.catalog.begin_deletion(topic.name, close_writers)
        except StoreLocked:
            return False
        context.write_counters.drop_topic(topic.name)
        return True


def _write(topic: OpenTopic, meta: TopicMeta) -> None:
    """Store the topic's document, unless the topic was deleted: a new topic may have its name now."""
    with topic.registry.name_locks.of(topic.name):
        check_not_deleted(topic.context, meta)
        topic.context.catalog.write_topic(meta)
