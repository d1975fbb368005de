"""A search for records that should be gone: in every file and object of a topic, whether or not anything names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..cold.manifest.keys import parse_object_name
from ..cold.object_store.protocol import object_url
from ..cold.upkeep.inspect import rebuild_entry
from ..errors import CorruptionError, ObjectNotFound
from ..format.predicate import And, Comparison, Predicate
from ..format.topic_meta import TopicMeta
from ..reader.read import read_splits
from ..reader.rows import Query
from ..reader.splits import ColdSource, Split, Tier, WarmSource
from ..reader.tiers import Tiers
from ..warm.partition_directory import list_segments
from ..warm.segment_reader import SegmentFile


@dataclass(frozen=True, slots=True)
class Trace:
    """A file or object with such records.

    Attributes
    ----------
    records
        Their number; None: it cannot be searched.
    """

    where: str
    partition: int
    records: int | None


class ErasedSearch:
    """A search in one topic.

    Parameters
    ----------
    condition
        Matches the records.
    horizons
        By partition: only records before this offset count. Partitions that are not named have none.

    Attributes
    ----------
    files, objects
        How many were read so far.
    """

    def __init__(
        self, tiers: Tiers, meta: TopicMeta, condition: Predicate, horizons: Mapping[int, int] | None = None
    ) -> None:
        self._tiers = tiers
        self._meta = meta
        self._condition = condition
        self._horizons = horizons
        self.files = self.objects = 0

    def traces(self) -> Iterator[Trace]:
        """Yield the files and objects that hold such records, or cannot be searched.

        Raises
        ------
        CorruptionError, UnsupportedFormat, ColdStorageError
        """
        for partition in range(self._meta.partitions):
            yield from self._local(partition)
            yield from self._in_bucket(partition)

    def _local(self, partition: int) -> Iterator[Trace]:
        directory = self._tiers.directory(self._meta.name, partition)
        if directory is None:
            return
        listing = list_segments(directory)
        for name in (*listing.segments, *listing.leftovers):
            path = directory / str(name)
            try:
                segment = SegmentFile.open(path, use_mmap=self._tiers.locations.use_mmap)
            except FileNotFoundError:
                continue  # a pass has deleted it since
            source = WarmSource(str(path), segment.header.segment_id, segment)
            base, end = segment.header.base_offset, segment.end_offset
            split = Split(self._meta.name, partition, base, end, Tier.WARM, segment.bytes, source)
            self.files += 1
            yield from self._search(split, str(path))
        for path in sorted(directory.glob(".damaged-*")):
            yield Trace(str(path), partition, None)

    def _in_bucket(self, partition: int) -> Iterator[Trace]:
        manifest = self._tiers.cold(self._meta, partition) if self._tiers.has_cold else None
        if manifest is None:
            return
        store, prefix = manifest.store, manifest.keys.data_prefix
        for info in list(store.list(prefix)):
            if parse_object_name(info.key.removeprefix(prefix)) is None:
                continue
            where = object_url(store, info.key)
            try:
                entry = rebuild_entry(store, info.key)
            except ObjectNotFound:
                continue  # a sweep has deleted it since
            except CorruptionError:
                yield Trace(where, partition, None)
                continue
            source = ColdSource(prefix, (entry,))
            base, end = entry.base_offset, entry.end_offset
            split = Split(self._meta.name, partition, base, end, Tier.COLD, entry.bytes, source)
            self.objects += 1
            yield from self._search(split, where)

    def _search(self, split: Split, where: str) -> Iterator[Trace]:
        condition = self._condition
        if self._horizons is not None:
            before = Comparison("offset", "<", self._horizons.get(split.partition, 0))
            condition = And((before, condition))
        query = Query(columns=("offset",), filter=condition)
        batches = read_splits(self._tiers, self._meta, [split], query, check=lambda: None)
        records = sum(batch.num_rows for batch in batches)
        if records:
            yield Trace(where, split.partition, records)
