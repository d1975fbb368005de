"""Conditional appends: a record is appended only if it gets the offset that the caller expects."""

from __future__ import annotations

from ..errors import ConfigError
from ..format.record import partition_of
from ..hot.pending_rows import FULL, SchemaGrew
from ..hot.row_buffer import RECORD_OVERHEAD_BYTES
from .append import PreparedRecord
from .append_numbered import plain_number
from .open_topics import OpenTopic
from .records import Appended
from .topic_shape import TopicShape

_OFFSET_MAX = (1 << 63) - 1


def append_conditional(topic: OpenTopic, record: PreparedRecord, expected_offset: object) -> Appended:
    """Append a checked record if it gets the offset `expected_offset`, and do not wait for the disk.

    Raises
    ------
    Conflict
        The partition does not end there; nothing was appended.
    ConfigError
        `check_condition` refuses the record.
    """
    partition, expected = check_condition(topic, record, expected_offset)
    writer = topic.writer(partition)
    size = record.size if topic.typed else record.size + RECORD_OVERHEAD_BYTES
    while True:
        try:
            offset = writer.append_expected(expected, record.values, record.timestamp_us, size)
        except SchemaGrew:
            writer.change_schema(topic.meta)
            continue
        if offset != FULL:
            return Appended(partition, offset)
        # Others may append meanwhile; the next round compares the end again.
        writer.make_room()


def check_condition(topic: TopicShape, record: PreparedRecord, expected_offset: object) -> tuple[int, int]:
    """Return the partition of a conditional append, and the expected offset as an int.

    Raises
    ------
    ConfigError
        The offset is no offset, or neither a key nor the caller chooses one of several partitions.
    """
    expected = plain_number("expected_offset", expected_offset, _OFFSET_MAX)
    if record.partition is not None:
        return record.partition, expected
    if record.partition_key:
        return partition_of(record.partition_key, topic.partitions), expected
    if topic.partitions > 1:
        raise ConfigError(
            f"expected_offset is an offset of one partition, and topic {topic.name!r} has {topic.partitions}: "
            "give partition=, or a record with a key"
        )
    return 0, expected
