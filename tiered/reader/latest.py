"""The latest row of each key in a scan: which rows stay, found by a read of the keys alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa

from ..errors import ConfigError
from ..format.latest import LatestOffsets, without_key
from ..format.offset_set import Offsets, OffsetSet
from ..format.predicate import And, AtOffsets, Not, Or, Predicate
from ..format.topic_meta import TopicMeta
from .scan import Scan
from .splits import Split


def key_column_of(meta: TopicMeta) -> str:
    """Return the key column of a topic; raise `ConfigError` if it has none."""
    if meta.key_column is None:
        raise ConfigError(f"topic {meta.name!r} has no key column, so that no row is the latest of its key")
    return meta.key_column


def latest_rows(keys: Scan, tombstone: Predicate | None) -> Predicate:
    """Return the condition on the rows that are the latest of their keys, or have no key.

    It takes 8 bytes for each key, and memory for a table of keys. If not all keys fit in the table, some are read again.

    Parameters
    ----------
    keys
        A scan of the columns ``[KEY, "offset"]`` of the same snapshot.
    tombstone
        The rows that say that their key is deleted; they are left out.
    """
    key = key_column_of(keys.meta)
    kind = keys.meta.schema.field(key).type
    by_partition = {
        partition: OffsetSet(_latest_offsets(keys, tuple(splits), kind))
        for partition, splits in groupby(keys.splits(), attrgetter("partition"))
    }
    stays = Or((without_key(keys.meta), AtOffsets(by_partition)))
    return stays if tombstone is None else And((stays, Not(tombstone)))


def _latest_offsets(keys: Scan, splits: Sequence[Split], kind: pa.DataType) -> Offsets:
    """Return the offsets of the latest rows of one partition, in ascending order."""
    latest = LatestOffsets(kind)
    earlier: Offsets = np.empty(0, np.int64)
    begin = splits[0].start_offset  # of the range of the table

    def with_table() -> Offsets:
        if not len(earlier):
            return latest.offsets()
        superseded = list(latest.superseded(_rows(keys, splits, begin)))
        left = (
            np.setdiff1d(earlier, np.concatenate(superseded), assume_unique=True) if superseded else earlier
        )
        return np.concatenate([left, latest.offsets()])

    for batch_keys, offsets in _rows(keys, splits, splits[-1].end_offset):
        latest.add(batch_keys, offsets)
        if latest.is_full:
            earlier = with_table()
            latest, begin = LatestOffsets(kind), offsets[-1].as_py() + 1
    return with_table()


def _rows(keys: Scan, splits: Sequence[Split], end_offset: int) -> Iterator[tuple[pa.Array, pa.Array]]:
    for split in splits:
        if split.start_offset < end_offset:
            for batch in keys.read(split.clip(split.start_offset, end_offset)):
                yield batch.column(0), batch.column(1)
