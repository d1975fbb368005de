"""The live table of a topic that this process reads by itself."""

from __future__ import annotations

from ..table.table_info import NoTable, TableInfo, first_missing
from ..table.table_version import read_table_version
from .interface.topic import Topic


def topic_table(topic: Topic, *, configured: bool, now_us: int) -> TableInfo:
    """Return the newest version of a topic's table, and its lag.

    Parameters
    ----------
    configured
        Whether the policy of the topic asks for a table.

    Raises
    ------
    ConfigError
        There is no table, another program committed to it, or the bucket is a copy.
    CorruptionError, ColdStorageError
    """
    tiers = topic.tiers
    assert tiers is not None
    version = read_table_version(tiers.object_store, topic.meta) if tiers.has_cold else None
    if version is None:
        why = (
            "the first pass of its tierer publishes it"
            if configured
            else 'a policy with table = { every = "1m" } keeps one'
        )
        raise NoTable(f"topic {topic.name} has no table; {why}")
    records, seconds = 0, 0.0
    for partition, log in topic.durable_offsets(range(topic.partitions)).items():
        offset = first_missing(version.offsets, partition, log.start, log.end)
        if offset is not None:
            records += log.end - offset
            for batch in topic.durable_batches(partition, offset, 1):
                seconds = max(seconds, (now_us - batch["timestamp"][0].value) / 1e6)
    return TableInfo(
        topic.name,
        version.location,
        version.metadata,
        version.version,
        version.snapshot_id,
        version.published_us,
        version.objects,
        version.records,
        version.offsets,
        records,
        seconds,
    )
