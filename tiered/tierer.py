"""The tierer: gathers facts, plans, and does what each action says (promises P5, P6, P7).

Held while a pass runs: the store's tiering lock, so that one process a store tiers. In the bucket each
partition is claimed by an epoch before anything else of it changes.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from .cold.bucket import Bucket
from .cold.commit import Committer
from .cold.parquet_object import write_object
from .errors import ColdStorageError, CorruptionError, Fenced, ReadOnly, StoreLocked, TieredError
from .format.block import OFFSET_FIELD
from .format.codec import ZSTD_LEVEL, Codec
from .format.facts import SegmentFacts
from .format.schema import SYSTEM_FIELDS, schema_to_text
from .gather import LocalSegments, Published, local_segments, partition_facts, read_published
from .hot.partition_writer import PartitionWriter
from .ingest import timestamp_us
from .policies.actions import Compress, EvictLocal, Expire, Offload, Seal, ShipTail
from .policies.executor import Executor, TierReport
from .policies.facts import PartitionFacts, StoreFacts
from .policies.plan import Plan, make_plan
from .policies.throttle import TokenBucket
from .status import PartitionStatus, StoreStatus, TierHoldings
from .warm.catalog import TopicMeta
from .warm.directory import FENCED_FILE, list_segments, read_start_offset, remove_half_written, write_fence
from .warm.lock import FileLock
from .warm.rewrite import merged_batches, remove_leftover, rewrite_segment
from .warm.segment_reader import SegmentFile

if TYPE_CHECKING:
    from .store import Store

log = logging.getLogger("tiered.tierer")

TIERING_LOCK = "tiering.lock"


class Tierer:
    """Tiering of one open store. The actions are called from several threads, one a partition."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._access = store._access
        self._fs = store._host.fs
        self._pass = threading.Lock()
        self._lock: FileLock | None = None
        self._committers: dict[tuple[UUID, int], Committer] = {}
        self._announced: dict[UUID, TopicMeta] = {}
        self._claimed_bucket = False
        self._claiming = threading.Lock()
        rate = store._settings.daemon.upload_bytes_per_second
        self._throttle = TokenBucket(rate) if rate else None

    def abandon(self) -> None:
        """In a forked child: let go of the parent's lock."""
        if self._lock is not None:
            self._lock.abandon()

    # -- planning --------------------------------------------------------------------------------

    def plan(self, now: object) -> Plan:
        """Return the plan for `now` (default: the clock)."""
        return self._plan(now, None)

    def run(self, now: object) -> TierReport:
        """Make a plan and carry it out, holding the tiering lock; then raise what the bucket refused to tell."""
        root = self._access.places.root
        if root is None:
            raise ReadOnly(f"{self._store.url} has no local tier to move data from")
        with self._pass:
            self._lock = FileLock.acquire(root / TIERING_LOCK, f"tiering of the store {root}")
            try:
                self._tidy()
                unreachable: list[ColdStorageError] = []
                plan = self._plan(now, unreachable)
                report = Executor(self, should_stop=self._store._stopping.is_set).execute(plan)
            finally:
                self._lock.release()
                self._lock = None
        if unreachable:
            raise unreachable[0]
        return report

    def _plan(self, now: object, unreachable: list[ColdStorageError] | None) -> Plan:
        now_us = self._store._clock() if now is None else timestamp_us(now)
        facts = self._facts(now_us, unreachable)
        return make_plan(facts, self._store._settings.policy_for, now_us)

    def _facts(self, now_us: int, unreachable: list[ColdStorageError] | None) -> StoreFacts:
        """Gather facts; where the bucket does not answer, of the local tiers alone."""
        has_cold = self._access.has_cold
        partitions: list[PartitionFacts] = []
        for meta, partition in self._partitions():
            published = Published(None, ())
            if has_cold:
                try:
                    published = read_published(self._access, meta, partition)
                except ColdStorageError as error:
                    if unreachable is None:
                        raise
                    unreachable.append(error)
                    has_cold = False
            partitions.append(partition_facts(meta, partition, self._local(meta, partition), published))
        if unreachable:
            # What is unknown must not be planned with: not one partition is treated as published.
            partitions = [
                partition_facts(meta, partition, self._local(meta, partition), Published(None, ()))
                for meta, partition in self._partitions()
            ]
        disk = shutil.disk_usage(self._root)
        return StoreFacts(
            partitions=tuple(partitions),
            disk_free_bytes=disk.free,
            disk_total_bytes=disk.total,
            has_cold=has_cold,
            now_us=now_us,
            storage_class=self._store._settings.cold.storage_class,
        )

    @property
    def _root(self) -> Path:
        root = self._access.places.root
        if root is None:
            raise ReadOnly(f"{self._store.url} has no local tier")
        return root

    def _partitions(self) -> Iterator[tuple[TopicMeta, int]]:
        for name in self._store.topics():
            meta = self._store.topic(name)._meta
            for partition in range(meta.partitions):
                yield meta, partition

    def _directory(self, meta: TopicMeta, partition: int) -> Path:
        directory = self._access.directory(meta.name, partition)
        assert directory is not None
        return directory

    def _writer(self, topic: str, partition: int) -> PartitionWriter | None:
        return self._store.topic(topic)._writers.get(partition)

    def _local(self, meta: TopicMeta, partition: int) -> LocalSegments:
        return local_segments(self._access, self._directory(meta, partition), self._writer(meta.name, partition))

    def _tidy(self) -> None:
        """Remove what a killed pass left behind: half-written files, superseded generations."""
        for meta, partition in self._partitions():
            directory = self._directory(meta, partition)
            if not directory.is_dir():
                continue
            remove_half_written(self._fs, directory)
            for name in list_segments(directory).leftovers:
                remove_leftover(self._fs, directory, name)

    # -- the bucket ------------------------------------------------------------------------------

    def _committer(self, meta: TopicMeta, partition: int) -> Committer:
        """Return the committer of a partition, its epoch claimed.

        Raises
        ------
        Fenced
            The bucket belongs to a newer lineage, or is ahead of this disk; the partition is fenced.
        """
        with self._claiming:
            self._announce(meta)
        key = (meta.topic_id, partition)
        known = self._committers.get(key)
        cold = self._access.cold(meta, partition)
        loaded = cold.load()
        if known is not None and loaded is not None and loaded.head.epoch == known.epoch:
            return known
        local = self._local(meta, partition)
        if loaded is not None:
            end = local.segments[-1].end_offset if local.segments else 0
            if loaded.head.end_offset > end:
                self._fence(meta, partition, f"the bucket ends at offset {loaded.head.end_offset}, this disk at {end}")
        start = max([local.start_offset, *(item.header.base_offset for item in local.segments[:1])])
        committer = Committer(cold, self._store.store_id, clock=self._store._clock)
        committer.claim(start_offset=start)
        self._committers[key] = committer
        return committer

    def _announce(self, meta: TopicMeta) -> None:
        """Make sure that the prefix is this store's, and that it knows the topic as it is now."""
        bucket = Bucket(self._access.object_store)
        if not self._claimed_bucket:
            bucket.claim_store(self._store.store_id)
            self._claimed_bucket = True
        if self._announced.get(meta.topic_id) != meta:
            bucket.put_topic(meta.to_json())
            self._announced[meta.topic_id] = meta

    def _fence(self, meta: TopicMeta, partition: int, reason: str) -> None:
        writer = self._writer(meta.name, partition)
        if writer is not None:
            writer.fence(reason)
        else:
            write_fence(self._fs, self._directory(meta, partition), reason)
        raise Fenced(f"partition {partition} of topic {meta.name!r} was fenced: {reason}; see {FENCED_FILE}")

    def bury(self, meta: TopicMeta) -> None:
        """Put a tombstone into the bucket for a topic that is about to be deleted."""
        # Also where the bucket does not know it yet: a pass under way in another process may be announcing it.
        if self._access.has_cold:
            bucket = Bucket(self._access.object_store)
            bucket.tombstone(meta.name, meta.topic_id, deleted_us=self._store._clock())

    # -- the actions (policies.executor.ActionPort) ------------------------------------------------

    def seal(self, action: Seal, /) -> int | None:
        """Roll the active segment; of another process's writer, only while it does not hold its lock."""
        writer = self._writer(action.topic, action.partition)
        if writer is not None:
            if writer.active_segment_id == action.segment_id:
                writer.roll()
            return None
        meta = self._store.topic(action.topic)._meta
        try:
            writer = self._store._writer_at(meta, action.partition)
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
        found = self._sealed(meta, action.partition, action.segment_id)
        if found is None:
            return 0
        level = ZSTD_LEVEL if action.level is None else action.level
        rewrite_segment(self._fs, found.path, Codec.of(action.codec), level, use_mmap=self._access.places.use_mmap)
        self._access.forget(found.path)
        return None

    def offload(self, action: Offload, /) -> int | None:
        """Upload a sealed segment and publish it."""
        meta = self._store.topic(action.topic)._meta
        found = self._sealed(meta, action.partition, action.segment_id)
        if found is None or found.facts is None:
            return 0
        return self._publish(meta, action.partition, found, found.facts, sealed=True)

    def ship_tail(self, action: ShipTail, /) -> int | None:
        """Publish the durable records that the bucket lacks, as a piece of their segment."""
        meta = self._store.topic(action.topic)._meta
        local = self._local(meta, action.partition)
        for segment in local.segments:
            if segment.header.segment_id == action.segment_id:
                break
        else:
            return 0
        start, end = max(action.base_offset, segment.header.base_offset), min(action.end_offset, segment.end_offset)
        if start >= end:
            return 0
        facts = _tail_facts(segment, start, end)
        return self._publish(meta, action.partition, segment, facts, sealed=facts.end_offset == segment.end_offset
                             and segment.facts is not None and start == segment.header.base_offset)  # fmt: skip

    def _publish(
        self, meta: TopicMeta, partition: int, segment: SegmentFile, facts: SegmentFacts, *, sealed: bool
    ) -> int:
        committer = self._committer(meta, partition)
        name = committer.new_object_name(facts.base_offset)
        key = committer.partition.keys.data(name)
        schema = _object_schema(meta.schemas[facts.schema_id])
        if self._throttle is not None:
            self._throttle.take(segment.bytes)
        with self._access.object_store.upload(key) as upload:
            rows = _rows(segment, schema, facts.base_offset, facts.end_offset)
            entry = write_object(upload, schema, rows, facts, name=name, sealed=sealed)
        schemas = {i: schema_to_text(item) for i, item in enumerate(meta.schemas)}
        committer.publish_objects([entry], schemas)
        return entry.bytes

    def evict_local(self, action: EvictLocal, /) -> int | None:
        """Remove a local file whose segment is published under its own id, after another look (P5)."""
        meta = self._store.topic(action.topic)._meta
        found = self._sealed(meta, action.partition, action.segment_id)
        if found is None:
            return 0
        cold = self._access.cold(meta, action.partition)
        loaded = cold.load()
        if loaded is None:
            raise ColdStorageError(f"{found.path} stays: there is no manifest at {cold.where(cold.keys.head)}")
        base, end = found.header.base_offset, found.end_offset
        if not cold.covers(loaded.head, found.header.segment_id, base, end):
            raise ColdStorageError(f"{found.path} stays: the manifest does not have its segment id for all of it")
        for entry in cold.entries(loaded.head, base, end):
            info = self._access.object_store.stat(cold.keys.data(entry.name))
            if info.size != entry.bytes:
                raise CorruptionError(f"object has {info.size} bytes instead of {entry.bytes}", where=cold.where(info.key))
        size = found.bytes
        self._unlink(meta, action.partition, found)
        return size

    def expire(self, action: Expire, /) -> int | None:
        """Move the start offset up in every tier, then remove the local files wholly below it."""
        meta = self._store.topic(action.topic)._meta
        directory = self._directory(meta, action.partition)
        writer = self._writer(action.topic, action.partition)
        offset = action.end_offset
        if writer is not None:
            writer.set_start_offset(offset)
        elif read_start_offset(directory) < offset:
            opened = self._store._writer_at(meta, action.partition)
            try:
                opened.set_start_offset(offset)
            finally:
                opened.close()
        if self._access.has_cold:
            loaded = self._access.cold(meta, action.partition).load()
            if loaded is not None and loaded.head.start_offset < min(offset, loaded.head.end_offset):
                self._committer(meta, action.partition).raise_start_offset(min(offset, loaded.head.end_offset))
        freed = 0
        for segment in self._local(meta, action.partition).segments[:-1]:
            if segment.end_offset <= offset and segment.facts is not None:
                freed += segment.bytes
                self._unlink(meta, action.partition, segment)
        return freed

    def _sealed(self, meta: TopicMeta, partition: int, segment_id: UUID | None) -> SegmentFile | None:
        """Find a sealed segment by its id, the newest file excepted; None where it is gone."""
        for segment in self._local(meta, partition).segments[:-1]:
            if segment.header.segment_id == segment_id and segment.facts is not None:
                return segment
        return None

    def _unlink(self, meta: TopicMeta, partition: int, segment: SegmentFile) -> None:
        self._access.forget(segment.path)
        self._fs.unlink(segment.path)
        self._fs.sync_directory(self._directory(meta, partition))

    # -- status ----------------------------------------------------------------------------------

    def status(self) -> StoreStatus:
        """Gather what each tier holds; a bucket that does not answer is said, not raised."""
        root = self._access.places.root
        rows = []
        for meta, partition in self._partitions():
            problem, published = "", Published(None, ())
            known = self._access.has_cold
            if known:
                try:
                    published = read_published(self._access, meta, partition)
                except TieredError as error:
                    problem, known = str(error), False
            local = self._local(meta, partition) if root is not None else LocalSegments(0, ())
            rows.append(self._partition_status(meta, partition, local, published, known, problem))
        free = shutil.disk_usage(root).free if root is not None else 0
        return StoreStatus(self._store.url, self._access.places.cold_url, free, tuple(rows))

    def _partition_status(
        self, meta: TopicMeta, partition: int, local: LocalSegments, published: Published, known: bool, problem: str
    ) -> PartitionStatus:
        facts = partition_facts(meta, partition, local, published)
        writer = self._writer(meta.name, partition)
        blocks = writer.recent.between(0, facts.end_offset) if writer is not None else []
        live = facts.live_segments()
        behind = [item for item in live if item.end_offset > facts.published_offset and item.record_count]
        oldest = min((item.created_us for item in behind), default=0)
        lag = max(0, facts.end_offset - max(facts.published_offset, facts.start_offset)) if known else 0
        return PartitionStatus(
            topic=meta.name,
            partition=partition,
            start_offset=facts.start_offset,
            end_offset=facts.end_offset,
            published_offset=facts.published_offset if known else None,
            hot=TierHoldings(
                len(blocks), sum(item.end_offset - item.base_offset for item in blocks), sum(item.bytes for item in blocks)
            ),
            warm=TierHoldings(
                len(live), sum(item.record_count for item in live), sum(item.local_bytes for item in live)
            ),
            cold=TierHoldings(
                len(published.entries),
                sum(item.record_count for item in published.entries),
                sum(item.bytes for item in published.entries),
            ),
            lag_records=lag,
            lag_seconds=max(0.0, (self._store._clock() - oldest) / 1e6) if lag and oldest else 0.0,
            problem=problem,
        )


def _object_schema(schema: pa.Schema) -> pa.Schema:
    """Return what a cold object stores: the topic's columns, then ``offset`` and ``timestamp``."""
    return pa.schema([*schema, OFFSET_FIELD, SYSTEM_FIELDS[3]])


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
