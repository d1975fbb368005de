"""The superseded records of a partition's objects: those of which a later record has the same key.

The keys of the *dirty* part of the log, from the clean offset on, are looked up first. A record of that part is superseded if
it is not the latest of its key there. A record before it is superseded if the dirty part has its key.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...errors import ObjectNotFound
from ...format.latest import UNBOUNDED, LatestOffsets, has_key, without_key
from ...format.manifest import Head, ObjectEntry
from ...format.offset_set import Offsets, OffsetSet
from ...format.predicate import AtOffsets, Not, Or, Predicate
from ...format.row_filter import ALL_ROWS, RowFilter
from ...format.topic_meta import TopicMeta
from ..fetch.object_reader import read_object
from ..manifest.keys import parse_object_name
from ..manifest.partition_manifest import PartitionManifest
from .inspect import read_facts, verify_object


class SupersededRecords:
    """The superseded records of one partition.

    Parameters
    ----------
    tombstone
        Matches the records that say that their key is deleted; None: there are none.
    bounded
        Whether the dirty part ends where the memory for its keys does.

    Attributes
    ----------
    target_offset : int
        The end of the dirty part.
    """

    def __init__(
        self, manifest: PartitionManifest, meta: TopicMeta, tombstone: Predicate | None,
        clean_offset: int, target_offset: int, *, bounded: bool,
    ) -> None:  # fmt: skip
        key = meta.key_column
        assert key is not None  # the plan leaves out topics without a key
        self._key = key
        self._manifest = manifest
        self._schema = meta.schema
        self._tombstone = tombstone
        self._without_key = without_key(meta)
        self._clean_offset = clean_offset
        self.target_offset = target_offset
        self._latest = LatestOffsets(meta.schema.field(key).type, None if bounded else UNBOUNDED)
        self._latest_offsets: OffsetSet | None = None
        # By object of the dirty part: the records without a key.
        self._keyless: dict[str, int] = {}

    def look_up(self, entry: ObjectEntry) -> bool:
        """Add the keys that an object has in the dirty part; return False if no more keys fit, so that the part ends here.

        Every byte of the object is verified: what its records supersede is removed from other objects.

        Raises
        ------
        CorruptionError, ObjectNotFound, ColdStorageError
        """
        verify_object(self._manifest.store, self._manifest.keys.data(entry.name), entry)
        keyless = 0
        for batch in self._read(entry, [self._key, "offset"], self._clean_offset, self.target_offset):
            keys, offsets = batch.columns
            keyless += len(keys) - has_key(keys).true_count
            self._latest.add(keys, offsets)
            if self._latest.is_full:
                self.target_offset = offsets[-1].as_py() + 1
                return False
        if self._clean_offset <= entry.base_offset and entry.end_offset <= self.target_offset:
            self._keyless[entry.name] = keyless
        return True

    def remaining(self, entry: ObjectEntry, tombstone_offset: int) -> RowFilter | None:
        """Return the filter of the records of an object that are neither superseded nor tombstones before an offset.

        Return None if these are all of its records.

        Raises
        ------
        CorruptionError, ObjectNotFound, ColdStorageError
        """
        # Tombstones that may go are clean.
        keyless = self._keyless.get(entry.name)
        if keyless is not None:
            if self._latest_offsets is None:
                self._latest_offsets = OffsetSet(self._latest.offsets())
            count = self._latest_offsets.count(entry.base_offset, entry.end_offset) + keyless
            stays: Predicate = Or((self._without_key, self._at(self._latest_offsets)))
        else:
            superseded = self._superseded(entry, tombstone_offset)
            count = entry.record_count - len(superseded)
            stays = Not(self._at(superseded))
        if count == entry.record_count:
            return None
        return RowFilter((stays,), {"partition": self._manifest.partition})

    def _at(self, offsets: OffsetSet) -> AtOffsets:
        return AtOffsets({self._manifest.partition: offsets})

    def _superseded(self, entry: ObjectEntry, tombstone_offset: int) -> OffsetSet:
        parts: list[Offsets] = []
        if len(self._latest):
            rows = ((batch.column(0), batch.column(1)) for batch in self._read(entry, [self._key, "offset"]))
            parts += self._latest.superseded(rows)
        if self._tombstone is None or entry.base_offset >= tombstone_offset:
            return OffsetSet(np.concatenate(parts) if parts else np.empty(0, np.int64))
        only = RowFilter((self._tombstone,))
        found = self._read(entry, ["offset"], end_offset=tombstone_offset, row_filter=only)
        parts += (batch.column(0).to_numpy() for batch in found)
        return OffsetSet(np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64))

    def _read(
        self, entry: ObjectEntry, columns: list[str], start_offset: int | None = None,
        end_offset: int | None = None, row_filter: RowFilter = ALL_ROWS,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        manifest = self._manifest
        return read_object(
            manifest.store, manifest.keys.data(entry.name), entry, self._schema, columns=columns,
            start_offset=start_offset, end_offset=end_offset, row_filter=row_filter,
        )  # fmt: skip


def is_older_one_left(manifest: PartitionManifest, head: Head, offset: int) -> bool:
    """Whether a replaced object is left that may have records which tombstones before an offset supersede.

    A restore to an earlier time, or a rebuild of the manifest, could take it.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    prefix, named = manifest.keys.data_prefix, {entry.name for entry in manifest.entries(head)}
    for info in manifest.store.list(prefix):
        name = parse_object_name(info.key.removeprefix(prefix))
        if name is None or str(name) in named or name.base_offset >= offset:
            continue
        try:
            facts = read_facts(manifest.store, info.key).facts
        except ObjectNotFound:
            continue
        if facts.compacted_offset < offset:
            return True
    return False
