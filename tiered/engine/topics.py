"""Changes of a topic itself: its start offsets, its columns, the number of its partitions, and its end."""

from __future__ import annotations

import pyarrow as pa

from ..errors import OffsetOutOfRange, SchemaMismatch, StoreLocked, TopicNotFound
from ..format.schema import body_schema, normalize_schema
from ..format.segment import schema_message
from ..format.topic_meta import TopicMeta, with_partitions
from .open_topics import OpenTopic
from .writers import check_not_deleted


def delete_before(topic: OpenTopic, offset: int, partition: int) -> None:
    """Move the start offset of a partition up; see `Topic.delete_before`."""
    topic.check_partition(partition)
    writer = topic.writer(partition)
    writer.flush()
    if type(offset) is not int or not 0 <= offset <= writer.durable_offset:
        raise beyond_the_log(topic.name, partition, offset, writer.start_offset, writer.durable_offset)
    writer.set_start_offset(offset)


def beyond_the_log(topic: str, partition: int, offset: object, start: int, end: int) -> OffsetOutOfRange:
    """Return the error of a deletion before what is no offset of the log."""
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
            # One that is being opened may be missed: it grows with its first record of the new columns.
            for writer in list(topic.writers.values()):
                writer.change_schema(meta)
        finally:
            # The schema has grown; a writer that found no room grows with its next record.
            topic.use(meta)


def add_partitions(topic: OpenTopic, total: int) -> None:
    """Raise the number of partitions; see `Topic.add_partitions`."""
    topic.context.lifecycle.check_writable()
    with topic.lock:
        meta = with_partitions(topic.meta, total)
        _write(topic, meta)
        topic.use(meta)


def remove_topic(topic: OpenTopic, gone: TopicNotFound) -> bool:
    """Delete a topic for everybody here; False, and nothing is done, while a pass or an opening changes it.

    Raises
    ------
    TopicNotFound
        `gone`: another thread removed it before. From here on it is what every use of the topic raises.
    """
    context, registry = topic.context, topic.registry

    def let_go() -> None:
        with registry.lock:
            if registry.being_opened(topic.meta):
                raise StoreLocked(f"a partition of topic {topic.name!r} is being opened")
            registry.drop(topic)
        for writer in topic.writers.values():
            # What is pending goes with the topic; a full disk must not stand in the way of that.
            writer.refuse(gone)
            writer.close()

    with registry.names.of(topic.name):
        if not registry.is_open(topic):
            raise gone  # the one of that name may be another by now
        try:
            context.catalog.begin_deletion(topic.name, let_go)
        except StoreLocked:
            return False
        context.write_counters.drop_topic(topic.name)
        return True


def _write(topic: OpenTopic, meta: TopicMeta) -> None:
    """Store the topic's document, unless the topic was deleted: the one of that name may be another by now."""
    with topic.registry.names.of(topic.name):
        check_not_deleted(topic.context, meta)
        topic.context.catalog.write_topic(meta)
