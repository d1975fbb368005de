"""Changes of a topic itself: its start offsets, its columns, the number of its partitions, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import OffsetOutOfRange, SchemaMismatch, StoreLocked, TopicNotFound
from ..format.schema import body_schema, normalize_schema
from ..format.segment import schema_message
from ..format.topic_meta import TopicMeta, with_partitions
from .writers import being_opened, check_not_deleted

if TYPE_CHECKING:
    from ..store.local_store import Store
    from ..store.local_topic import Topic


def delete_before(topic: Topic, offset: int, partition: int) -> None:
    """Move the start offset of a partition up; see `Topic.delete_before`."""
    topic._check_partition(partition)
    writer = topic._writer(partition)
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


def add_columns(topic: Topic, columns: pa.Schema) -> None:
    """Add columns to a typed topic; see `Topic.add_columns`."""
    topic._store._check_writable()
    if not topic._typed:
        raise SchemaMismatch(f"topic {topic.name!r} has the record schema, which does not grow")
    with topic._lock:
        meta = topic._meta.with_columns(normalize_schema(columns))
        schema_message(body_schema(meta.schema))
        _write(topic, meta)
        try:
            # One that is being opened may be missed: it grows with its first record of the new columns.
            for writer in list(topic._writers.values()):
                writer.change_schema(meta)
        finally:
            # The schema has grown; a writer that found no room grows with its next record.
            topic._use(meta)


def add_partitions(topic: Topic, total: int) -> None:
    """Raise the number of partitions; see `Topic.add_partitions`."""
    topic._store._check_writable()
    with topic._lock:
        meta = with_partitions(topic._meta, total)
        _write(topic, meta)
        topic._use(meta)


def remove_topic(store: Store, topic: Topic, gone: TopicNotFound) -> bool:
    """Delete a topic for everybody here; False, and nothing is done, while a pass or an opening changes it.

    Raises
    ------
    TopicNotFound
        `gone`: another thread removed it before. From here on it is what every use of the topic raises.
    """

    def let_go() -> None:
        with store._lock:
            if being_opened(store, topic._meta):
                raise StoreLocked(f"a partition of topic {topic.name!r} is being opened")
            del store._topics[topic.name]  # from here on no partition of it is opened
        for writer in topic._writers.values():
            # What is pending goes with the topic; a full disk must not stand in the way of that.
            writer.fault = gone
            writer.close()

    with store._names.of(topic.name):
        if store._topics.get(topic.name) is not topic:
            raise gone  # the one of that name may be another by now
        try:
            store._catalog.begin_deletion(topic.name, let_go)
        except StoreLocked:
            return False
        store._write_counters.forget(topic.name)
        return True


def _write(topic: Topic, meta: TopicMeta) -> None:
    """Store the topic's document, unless the topic was deleted: the one of that name may be another by now."""
    with topic._store._names.of(topic.name):
        check_not_deleted(topic._store, meta)
        topic._store._catalog.write_topic(meta)
