"""The lineage of a log, and its common offsets with another lineage, for readers that keep offsets over a restore."""

from __future__ import annotations

from ..cold.manifest.commit import FIRST_LINEAGE
from ..format.lineages import UNBOUNDED, shared_end
from ..format.topic_meta import TopicMeta
from ..warm.partition_directory import read_lineage
from .tiers import Tiers


def lineage_of(access: Tiers, meta: TopicMeta, partition: int) -> int:
    """Return the epoch of the log's lineage: that of the local disk, or that of the bucket as last read.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    directory = access.directory(meta.name, partition)
    if directory is not None:
        return read_lineage(directory) or FIRST_LINEAGE
    head = access.cold(meta, partition).last_head
    if head is None:
        return FIRST_LINEAGE
    # Nothing is appended in a lineage before its store claims the partition; until then the restore may still go back.
    begun = [epoch for epoch, _ in head.lineages if epoch < head.epoch]
    return begun[-1] if begun else FIRST_LINEAGE


def common_end(access: Tiers, meta: TopicMeta, partition: int, epoch: int) -> int:
    """Return the offset below which this log equals that of lineage `epoch`, according to the bucket.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    own = lineage_of(access, meta, partition)
    if epoch == own:
        return UNBOUNDED
    loaded = access.cold(meta, partition).load() if access.has_cold else None
    return shared_end(loaded.head, epoch, own) if loaded is not None else 0
