"""Changes of a topic itself: its start offsets, its columns, the number of its partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from .errors import OffsetOutOfRange, SchemaMismatch
from .format.schema import normalize_schema
from .topic_meta import with_partitions
from .warm.catalog import TopicMeta
from .writers import check_not_deleted

if TYPE_CHECKING:
    from .topic import Topic


def delete_before(topic: Topic, offset: int, partition: int) -> None:
    """Move the start offset of a partition up; see `Topic.delete_before`."""
    topic._check_partition(partition)
    writer = topic._writer(partition)
    writer.flush()
    if type(offset) is not int or not 0 <= offset <= writer.durable_offset:
        raise OffsetOutOfRange(
            f"cannot delete before offset {offset} of topic {topic.name!r} partition {partition}; the log has "
            f"{writer.start_offset} to {writer.durable_offset}",
            start=writer.start_offset,
            end=writer.durable_offset,
        )
    writer.set_start_offset(offset)


def add_columns(topic: Topic, columns: pa.Schema) -> None:
    """Add columns to a typed topic; see `Topic.add_columns`."""
    topic._store._check_writable()
    if not topic._typed:
        raise SchemaMismatch(f"topic {topic.name!r} has the record schema, which does not grow")
    with topic._lock:
        meta = topic._meta.with_columns(normalize_schema(columns))
        _write(topic, meta)
        try:
            for writer in topic._writers.values():
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


def _write(topic: Topic, meta: TopicMeta) -> None:
    """Store the topic's document, unless the topic was deleted: the one of that name may be another by now."""
    with topic._store._lock:
        check_not_deleted(topic._store, meta)
        topic._store._catalog.write_topic(meta)
