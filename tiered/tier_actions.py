"""What each action of a plan does: the store's side of `policies.executor.ActionPort` (promises P5, P6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from .claims import Claims
from .cold.commit import Committer
from .cold.parquet_format import object_schema
from .cold.parquet_object import write_object
from .errors import ColdStorageError, CorruptionError, StoreLocked
from .format.codec import ZSTD_LEVEL, Codec
from .format.facts import SegmentFacts
from .format.manifest import Head
from .format.schema import schema_to_text
from .gather import LocalSegments, local_segments
from .hot.partition_writer import PartitionWriter
from .policies.actions import Action, Compress, EvictLocal, Expire, Offload, Seal, ShipTail
from .policies.throttle import TokenBucket
from .reader.snapshot import check_owner
from .warm.catalog import TopicMeta
from .warm.directory import list_segments, read_start_offset
from .warm.rewrite import merged_batches, rewrite_segment
from .warm.segment_reader import SegmentFile

if TYPE_CHECKING:
    from .store import Store


class TierActions:
    """Seals, compresses, offloads, evicts and expires; every action looks at the state anew first."""

    def __init__(self, store: Store, claims: Claims) -> None:
        self._store = store
        self._access = store._access
        self._fs = store._host.fs
        self._claims = claims
        rate = store._settings.daemon.upload_bytes_per_second
        self._throttle = TokenBucket(rate) if rate else None

    def directory(self, meta: TopicMeta, partition: int) -> Path:
        """Return the local directory of a partition."""
        directory = self._access.directory(meta.name, partition)
        assert directory is not None
        return directory

    def writer(self, topic: str, partition: int) -> PartitionWriter | None:
        """Return the writer of a partition, where this process has one."""
        return self._store.topic(topic)._writers.get(partition)

    def local(self, meta: TopicMeta, partition: int) -> LocalSegments:
        """Return the segments of a partition, the active one as its writer in this process knows it."""
        found = local_segments(
            self._access, self.directory(meta, partition), self.writer(meta.name, partition)
        )
        for segment in found.segments:
            check_owner(segment, meta)  # or a file in the wrong place would be published as this partition's
        return found

    def committer(self, meta: TopicMeta, partition: int) -> Committer:
        """Return the committer of a partition, its epoch claimed; see `Claims.committer`."""
        writer = self.writer(meta.name, partition)
        return self._claims.committer(meta, partition, lambda: self.local(meta, partition), writer)

    def seal(self, action: Seal, /) -> int | None:
        """Roll the active segment; of another process's writer, only while it does not hold its lock."""
        writer = self.writer(action.topic, action.partition)
        if writer is not None:
            if writer.active_segment_id == action.segment_id:
                writer.roll()
            return None
        meta = self._store.topic(action.topic)._meta
        try:
            writer = self._store._writer_at(meta, action.partition, wait_seconds=0)
        except StoreLocked:
            return 0  # its writer is at work, and rolls by the same policy
        try:
            if writer.active_segment_id == action.segment_id:
                writer.roll()
        finally:
            writer.close()
        return None

    def compress(self, action: Compress, /) -> int | None:
        """Re-encode a sealed segment."""
        meta = self._store.topic(action.topic)._meta
        found = self._sealed(meta, action)
        if found is None:
            return 0
        level = ZSTD_LEVEL if action.level is None else action.level
        rewrite_segment(
            self._fs, found.path, Codec.of(action.codec), level, use_mmap=self._access.places.use_mmap
        )
        self._access.forget(found.path)
        return None

    def offload(self, action: Offload, /) -> int | None:
        """Upload a sealed segment and publish it."""
        meta = self._store.topic(action.topic)._meta
        found = self._sealed(meta, action)
        if found is None or found.facts is None:
            return 0
        return self._publish(meta, action.partition, found, found.facts, sealed=True)

    def ship_tail(self, action: ShipTail, /) -> int | None:
        """Publish the durable records that the bucket lacks, as a piece of their segment."""
        meta = self._store.topic(action.topic)._meta
        writer = self.writer(action.topic, action.partition)
        if writer is not None:
            # Under sync=never: what the bucket has, this disk must not lose, or it would be taken for an old image.
            writer.flush()
        found = self.local(meta, action.partition).segments
        segment = next((item for item in found if item.header.segment_id == action.segment_id), None)
        if segment is None:
            return 0
        start, end = (
            max(action.base_offset, segment.header.base_offset),
            min(action.end_offset, segment.end_offset),
        )
        if start >= end:
            return 0
        whole = segment.facts is not None and (start, end) == (segment.header.base_offset, segment.end_offset)
        return self._publish(meta, action.partition, segment, _tail_facts(segment, start, end), sealed=whole)

    def _publish(
        self, meta: TopicMeta, partition: int, segment: SegmentFile, facts: SegmentFacts, *, sealed: bool
    ) -> int:
        committer = self.committer(meta, partition)
        published = committer.partition.load()
        start = read_start_offset(self.directory(meta, partition))
        if published is not None and published.head.end_offset < facts.base_offset <= start:
            # Retention removed what was never offloaded: the manifest's log begins anew there.
            committer.raise_start_offset(facts.base_offset)
        name = committer.new_object_name(facts.base_offset)
        key = committer.partition.keys.data(name)
        schema = object_schema(meta.schemas[facts.schema_id])
        if self._throttle is not None:
            self._throttle.take(segment.bytes)
        try:
            with self._access.object_store.upload(key) as upload:
                rows = _rows(segment, schema, facts.base_offset, facts.end_offset)
                entry = write_object(upload, schema, rows, facts, name=name, sealed=sealed)
        except BaseException:
            committer.release([name])
            raise
        schemas = {i: schema_to_text(item) for i, item in enumerate(meta.schemas)}
        committer.publish_objects([entry], schemas)
        return entry.bytes

    def evict_local(self, action: EvictLocal, /) -> int | None:
        """Remove a local file whose segment is published under its own id, after another look (P5)."""
        meta = self._store.topic(action.topic)._meta
        found = self._sealed(meta, action)
        if found is None:
            return 0
        cold = self._access.cold(meta, action.partition)
        loaded = cold.load()
        if loaded is None:
            raise ColdStorageError(
                f"{found.path} stays: there is no manifest at {cold.where(cold.keys.head)}"
            )
        self._check_lineage(meta, action.partition, loaded.head)
        base, end = found.header.base_offset, found.end_offset
        if not cold.covers(loaded.head, found.header.segment_id, base, end):
            raise ColdStorageError(
                f"{found.path} stays: the manifest does not have its segment id for all of it"
            )
        for entry in cold.entries(loaded.head, base, end):
            info = self._access.object_store.stat(cold.keys.data(entry.name))
            if info.size != entry.bytes:
                raise CorruptionError(
                    f"object has {info.size} bytes instead of {entry.bytes}", where=cold.where(info.key)
                )
        size = found.bytes
        self._unlink(meta, action.partition, found)
        return size

    def expire(self, action: Expire, /) -> int | None:
        """Move the start offset up in every tier, then remove the local files wholly below it."""
        meta = self._store.topic(action.topic)._meta
        directory = self.directory(meta, action.partition)
        loaded = self._access.cold(meta, action.partition).load() if self._access.has_cold else None
        self._check_lineage(meta, action.partition, loaded.head if loaded else None)
        writer = self.writer(action.topic, action.partition)
        offset = action.end_offset
        only_in_bucket = False
        if writer is not None:
            writer.set_start_offset(offset)
        elif read_start_offset(directory) < offset:
            try:
                opened = self._store._writer_at(meta, action.partition, wait_seconds=0)
            except StoreLocked:
                if not self._access.has_cold:
                    raise  # only its writer can move the start offset
                only_in_bucket = loaded is None
            else:
                try:
                    opened.set_start_offset(offset)
                finally:
                    opened.close()
        if only_in_bucket or (loaded is not None and loaded.head.start_offset < offset):
            self.committer(meta, action.partition).raise_start_offset(offset)
        freed = 0
        for segment in self.local(meta, action.partition).segments[:-1]:
            if segment.end_offset <= offset and segment.facts is not None:
                freed += segment.bytes
                self._unlink(meta, action.partition, segment)
        return freed

    def _check_lineage(self, meta: TopicMeta, partition: int, head: Head | None) -> None:
        """Fence the partition where the bucket went on without us: then nothing is removed any more."""
        self._claims.check_lineage(meta, partition, head, self.writer(meta.name, partition))

    def _sealed(self, meta: TopicMeta, action: Action) -> SegmentFile | None:
        """Find the sealed segment of an action, the newest file excepted; None where it is gone."""
        directory = self.directory(meta, action.partition)
        for name in list_segments(directory).segments[:-1]:
            if name.base_offset == action.base_offset:
                try:
                    segment = self._access.segment(directory / str(name))
                except FileNotFoundError:
                    return None
                if segment.header.segment_id == action.segment_id and segment.facts is not None:
                    return segment
        return None

    def _unlink(self, meta: TopicMeta, partition: int, segment: SegmentFile) -> None:
        self._access.forget(segment.path)
        self._fs.unlink(segment.path)
        self._fs.sync_directory(self.directory(meta, partition))


def _rows(segment: SegmentFile, schema: pa.Schema, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield a segment's records in ``[start, end)`` as an object stores them."""
    offset = segment.header.base_offset
    for batch, _ in merged_batches(segment):
        first, last = max(start, offset), min(end, offset + batch.num_rows)
        if first < last:
            rows = batch.slice(first - offset, last - first)
            numbers = pa.array(range(first, last), pa.int64())
            yield pa.RecordBatch.from_arrays([*rows.columns[1:], numbers, rows.column(0)], schema=schema)
        offset += batch.num_rows


def _tail_facts(segment: SegmentFile, start: int, end: int) -> SegmentFacts:
    """Return the facts of a piece of a segment that is not sealed yet."""
    header, index = segment.header, segment.index
    low, high, last = 1 << 62, -(1 << 62), header.created_us
    for block in segment.blocks(start, end):
        low = min(low, block.header.min_timestamp_us)
        high = max(high, block.header.max_timestamp_us)
        last = max(last, block.header.append_us)
    assert len(index)
    facts = SegmentFacts(
        store_id=header.store_id,
        topic_id=header.topic_id,
        segment_id=header.segment_id,
        partition=header.partition,
        generation=header.generation,
        schema_id=header.schema_id,
        base_offset=start,
        end_offset=end,
        record_count=end - start,
        min_timestamp_us=low,
        max_timestamp_us=high,
        created_us=header.created_us,
        last_append_us=last,
        lineage_epoch=header.lineage_epoch,
        prev_origin_hash=header.prev_origin_hash,
    )
    return replace(segment.facts, base_offset=start, end_offset=end, record_count=end - start,
                   min_timestamp_us=low, max_timestamp_us=high) if segment.facts else facts  # fmt: skip
