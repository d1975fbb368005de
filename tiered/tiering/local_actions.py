"""What each action of a plan does: the store's side of `policies.executor.ActionPort` (promises P5, P6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pyarrow as pa

from ..cold.manifest.commit import Committer
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.parquet.layout import object_schema
from ..cold.parquet.writer import write_object
from ..cold.upkeep.check import check_size
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..engine.writers import writer_at
from ..errors import ColdStorageError, CorruptionError, Fenced, StoreLocked
from ..format.codec import ZSTD_LEVEL, Codec
from ..format.manifest import Head, covers
from ..format.manifest_changes import add_objects, add_schemas
from ..format.schema import schema_to_text
from ..format.segment_facts import SegmentFacts
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..policies.actions import Action, Compress, EvictLocal, Expire, Offload, Seal, ShipTail
from ..policies.rules.ship_tail import TAIL_BYTES_MAX, Tail, extended_base
from ..reader.same_log import Likeness
from ..reader.snapshot import check_owner
from ..survey.local_segments import LocalSegments, active_segment, local_segments
from ..survey.scrub_state import read_scrub_state
from ..warm.ends import SegmentEnds
from ..warm.partition_directory import list_segments, read_start_offset
from ..warm.reencode import merged_batches, rewrite_segment
from ..warm.segment_reader import SegmentFile
from ..warm.writer_requests import WriterRequest, post
from .claims import Claims


class TierActions:
    """Seals, compresses, offloads, evicts and expires; every action looks at the state anew first."""

    def __init__(self, context: StoreContext, topics: OpenTopics, claims: Claims) -> None:
        self._context = context
        self._topics = topics
        self._access = context.tiers
        self._fs = context.fs
        self._claims = claims
        self._same = claims.same

    def directory(self, meta: TopicMeta, partition: int) -> Path:
        """Return the local directory of a partition."""
        directory = self._access.directory(meta.name, partition)
        assert directory is not None
        return directory

    def writer(self, topic: str, partition: int) -> PartitionWriter | None:
        """Return the writer of a partition, where this process has one."""
        return self._topics.writer(topic, partition)

    def local(self, meta: TopicMeta, partition: int) -> LocalSegments:
        """Return the segments of a partition, the active one as its writer in this process knows it."""
        writer = self.writer(meta.name, partition)
        return local_segments(self._access, meta, self.directory(meta, partition), writer)

    def committer(self, meta: TopicMeta, partition: int, *, fresh: bool = True) -> Committer:
        """Return the committer of a partition, its epoch claimed; see `Claims.committer`."""
        writer = self.writer(meta.name, partition)
        return self._claims.committer(
            meta, partition, lambda: self.local(meta, partition), writer, fresh=fresh
        )

    def seal(self, action: Seal, /) -> int | None:
        """Roll the active segment; ask the writer to, where another process has one."""
        writer = self.writer(action.topic, action.partition)
        if writer is not None:
            if writer.active_segment_id == action.segment_id:
                writer.roll()
            return None
        meta = self._topics.meta(action.topic)

        def roll(writer: PartitionWriter) -> None:
            if writer.active_segment_id == action.segment_id:
                writer.roll()

        # Where it is not the segment any more, the writer leaves the request alone.
        asked = WriterRequest(meta.topic_id, seal=action.segment_id)
        return None if self._as_writer(meta, action.partition, roll, asked) else 0

    def compress(self, action: Compress, /) -> int | None:
        """Re-encode a sealed segment."""
        meta = self._topics.meta(action.topic)
        found = self._sealed(meta, action)
        if found is None:
            return 0
        level = ZSTD_LEVEL if action.level is None else action.level
        rewrite_segment(
            self._fs,
            found.path,
            Codec.of(action.codec),
            level,
            use_mmap=self._access.locations.use_mmap,
            block_bytes=action.block_bytes,
            kept=lambda: self._access.hold_topic(meta),
        )
        self._access.release(found.path)
        return None

    def offload(self, action: Offload, /) -> int | None:
        """Upload a sealed segment and publish it."""
        meta = self._topics.meta(action.topic)
        found = self._sealed(meta, action)
        if found is None or found.facts is None:
            return 0
        committer = self.committer(meta, action.partition)
        base, end = found.header.base_offset, found.end_offset
        entries = committer.partition.entries(committer.last_head(), base, end)
        # In tails that an early release shipped, and in objects of several segments, the manifest has no hash of it.
        if self._same.within(committer.partition, meta, entries, [found], read=True) is Likeness.OTHER:
            self._diverged(meta, action.partition, end)
        if covers([entry for entry in entries if entry.sealed], found.header.segment_id, base, end):
            return 0  # a tail pass was faster
        return self._publish(meta, committer, found, found.facts, sealed=True)

    def ship_tail(self, action: ShipTail, /) -> int | None:
        """Publish the durable records that the bucket lacks, as pieces of their segment; see `policies.tails`."""
        meta = self._topics.meta(action.topic)
        if action.base_offset == action.end_offset:
            self._publish_start(meta, action.partition, action.end_offset)
            return 0
        writer = self.writer(action.topic, action.partition)
        if writer is not None:
            # Under sync=never: what the bucket has, this disk must not lose, or it would be taken for an old image.
            writer.flush()
        moved, base = 0, action.base_offset
        while base < action.end_offset:
            with self._claims.partition_lock(meta, action.partition):
                segment = self._holding(meta, action)
                if segment is None:
                    break
                base = max(base, segment.header.base_offset)
                end = self._known_end(segment, min(action.end_offset, segment.end_offset))
                if base >= end:
                    break
                try:
                    count, base = self._ship_piece(meta, action.partition, segment, base, end)
                except FileNotFoundError:
                    if writer is None or writer.active_segment_id == action.segment_id:
                        raise
                    continue  # sealed since it was looked at, and encoded again or evicted
                moved += count
        return moved

    def _publish_start(self, meta: TopicMeta, partition: int, offset: int) -> None:
        """Publish that the log begins at `offset` or later, in a first head where there is none."""
        with self._claims.partition_lock(meta, partition):
            try:
                head = self.committer(meta, partition, fresh=False).raise_start_offset(offset)
            except Fenced:
                # As in `_ship_piece`.
                head = self.committer(meta, partition).raise_start_offset(offset)
            self._claims.record_published(meta, partition, head.end_offset)

    def _known_end(self, segment: SegmentFile, end: int) -> int:
        """Return `end`; or the segment's, where what is known of the producers holds there alone.

        The object must not say more than it has.
        """
        return segment.end_offset if self._same.ends.producers_at(segment, end) is None else end

    def _ship_piece(
        self, meta: TopicMeta, partition: int, segment: SegmentFile, base: int, end: int
    ) -> tuple[int, int]:
        """Publish the first piece of ``[base, end)`` that the bucket lacks; return its bytes, and where it ends."""
        try:
            # A pass every second must not begin each commit by reading the head that it wrote itself.
            committer = self.committer(meta, partition, fresh=False)
            if committer.last_head().end_offset < base:
                # Somebody else published what lies between, or nobody, as retention was faster.
                committer = self.committer(meta, partition)
            return self._ship(meta, committer, segment, base, end)
        except Fenced:
            # Perhaps only by another pass of this store. Else this says who owns the partition.
            committer = self.committer(meta, partition)
            return self._ship(meta, committer, segment, base, end)

    def _holding(self, meta: TopicMeta, action: ShipTail) -> SegmentFile | None:
        """Find the segment of a tail, active or sealed; None where it is gone."""
        writer = self.writer(meta.name, action.partition)
        if writer is not None and writer.fault is None and writer.active_segment_id == action.segment_id:
            view = writer.view(flush=False)
            if view.active_header.segment_id == action.segment_id:
                return active_segment(self._access, view)
        directory = self.directory(meta, action.partition)
        known = self._access.sealed_segment(directory, action.base_offset, action.end_offset)
        if known is not None and known.header.segment_id == action.segment_id:
            check_owner(known, meta)
            return known
        for name in reversed(list_segments(directory).segments):
            if name.base_offset <= action.base_offset:
                try:
                    segment = self._access.segment(directory / str(name))
                except FileNotFoundError:
                    return None  # published and evicted, or encoded again since: the next pass sees
                check_owner(segment, meta)
                return segment if segment.header.segment_id == action.segment_id else None
        return None

    def _ship(
        self, meta: TopicMeta, committer: Committer, segment: SegmentFile, base: int, end: int
    ) -> tuple[int, int]:
        head = committer.last_head()
        base = max(base, head.end_offset)
        if base >= end:
            self._claims.record_published(meta, committer.partition.partition, head.end_offset)
            return 0, base
        if segment.facts is None or (base, end) != (segment.header.base_offset, segment.end_offset):
            # A sealed segment goes whole where nothing of it is published: its object replaces no pieces later.
            end = self._piece_end(segment, base, end)
        share = segment.bytes * (end - base) // max(1, segment.end_offset - segment.header.base_offset)
        tails = _tails_before(head, segment.header.segment_id, base)
        if self._same.at_end(committer.partition, head, [segment]) is Likeness.SAME:
            base = extended_base(tails, Tail(base, end, share))
        if segment.facts is not None and (base, end) == (segment.header.base_offset, segment.end_offset):
            return self._publish(meta, committer, segment, segment.facts, sealed=True), end
        facts = _tail_facts(segment, base, end, self._same.ends)
        return self._publish(meta, committer, segment, facts, sealed=False), end

    def _piece_end(self, segment: SegmentFile, base: int, end: int) -> int:
        cut = segment.index.fitting_end(base, end, TAIL_BYTES_MAX)
        return end if self._same.ends.producers_at(segment, cut) is None else cut

    def _publish(
        self,
        meta: TopicMeta,
        committer: Committer,
        segment: SegmentFile,
        facts: SegmentFacts,
        *,
        sealed: bool,
    ) -> int:
        """Upload records and publish them; return the size of the object."""
        start = read_start_offset(self.directory(meta, committer.partition.partition))
        if committer.last_head().end_offset < facts.base_offset <= start:
            # Retention removed what was never offloaded: the manifest's log begins anew there.
            committer.raise_start_offset(facts.base_offset)
        name = committer.new_object_name(facts.base_offset)
        key = committer.partition.keys.data(name)
        schema = object_schema(meta.schemas[facts.schema_id])
        schemas = {i: schema_to_text(item) for i, item in enumerate(meta.schemas)}
        try:
            with self._access.object_store.upload(key) as upload:
                rows = _rows(segment, schema, facts.base_offset, facts.end_offset)
                entry = write_object(upload, schema, rows, facts, name=name, sealed=sealed)

            def change(head: Head) -> Head:
                if not sealed and head.end_offset >= entry.end_offset:
                    return head  # the sealed whole came first
                return add_objects(add_schemas(head, schemas), [entry], committer.partition)

            head = committer.commit(change)
        finally:
            # Also where the commit may still land: no survey is taken before that is settled.
            committer.release([name])
        partition = committer.partition.partition
        self._claims.check_same(meta, partition, head, self.writer(meta.name, partition), [segment])
        self._claims.record_published(meta, partition, head.end_offset)
        return entry.bytes

    def prove(self, meta: TopicMeta, partition: int) -> None:
        """Compare what is published with the local log, by the records where hashes do not tell; see `SameLog`.

        Raises
        ------
        Fenced
            They differ: another copy of this disk published.
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        cold = self._access.cold(meta, partition)
        loaded = cold.load()
        if loaded is None:
            return
        writer = self.writer(meta.name, partition)
        if writer is not None:
            writer.flush()  # a tierer beside may have published what it has not synced itself
        local = self.local(meta, partition)
        end = local.segments[-1].end_offset if local.segments else 0
        self._claims.check_not_ahead(meta, partition, loaded.head, end, writer)
        if self._same.prove(cold, meta, loaded.head, local.segments) is Likeness.OTHER:
            self._diverged(meta, partition, loaded.head.end_offset)

    def _diverged(self, meta: TopicMeta, partition: int, end: int) -> NoReturn:
        self._claims.diverged(meta, partition, self.writer(meta.name, partition), end)

    def evict_local(self, action: EvictLocal, /) -> int | None:
        """Remove a local file whose segment is published under its own id, after another look (P5)."""
        meta = self._topics.meta(action.topic)
        found = self._sealed(meta, action)
        if found is None:
            return 0
        self._claims.announce(meta, action.partition, self.writer(meta.name, action.partition))
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
        damaged = {item.name for item in read_scrub_state(found.path.parent).damaged}
        for entry in cold.entries(loaded.head, base, end):
            if entry.name in damaged:
                raise CorruptionError(f"{found.path} stays: {entry.name} was found damaged")
            check_size(cold.store, cold.keys.data(entry.name), entry)
        self._check_published(meta, cold, loaded.head, found)
        size = found.bytes
        self._unlink(meta, action.partition, found)
        return size

    def _check_published(
        self, meta: TopicMeta, cold: PartitionManifest, head: Head, segment: SegmentFile
    ) -> None:
        """Raise unless what the bucket has of a segment is proven to be what this file has: its id alone says less."""
        for entry in cold.entries(head, segment.header.base_offset, segment.end_offset):
            found = self._same.compare(cold, meta, entry, segment)
            if found is Likeness.OTHER:
                self._diverged(meta, cold.partition, segment.end_offset)
            if found is Likeness.UNKNOWN:
                raise ColdStorageError(
                    f"{segment.path} stays: nothing proves that {entry.name} has the same records"
                )

    def expire(self, action: Expire, /) -> int | None:
        """Move the start offset up in every tier, then remove the local files wholly below it."""
        topic = self._topics.topic(action.topic)
        meta = topic.meta
        if action.topic_id not in (None, meta.topic_id):
            return 0  # deleted since; offsets of the topic that has its name now are others
        directory = self.directory(meta, action.partition)
        loaded = self._access.cold(meta, action.partition).load() if self._access.has_cold else None
        self._check_lineage(meta, action.partition, loaded.head if loaded else None)
        writer = topic.writers.get(action.partition)
        offset = action.end_offset
        only_in_bucket = False
        if writer is not None:
            writer.set_start_offset(offset)
        elif read_start_offset(directory) < offset:
            asked = WriterRequest(meta.topic_id, start_offset=offset, decided=self._access.has_cold)
            if not self._as_writer(
                meta, action.partition, lambda writer: writer.set_start_offset(offset), asked
            ):
                if not self._access.has_cold:
                    return (
                        0  # only the writer can move the start offset; a later pass removes what lies before
                    )
                only_in_bucket = loaded is None
        if loaded is None:
            untold = only_in_bucket or (action.begins_manifest and self._access.has_cold)
        else:
            untold = loaded.head.start_offset < offset
        if untold:
            head = self.committer(meta, action.partition).raise_start_offset(offset)
            self._claims.record_published(meta, action.partition, head.end_offset)
        freed = 0
        for segment in self.local(meta, action.partition).segments[:-1]:
            if segment.end_offset <= offset and segment.facts is not None:
                freed += segment.bytes
                self._unlink(meta, action.partition, segment)
        return freed

    def _as_writer(
        self, meta: TopicMeta, partition: int, work: Callable[[PartitionWriter], None], asked: WriterRequest
    ) -> bool:
        """Do something that only a partition's writer can; False where there is one, in another process: it is asked."""
        with self._access.hold_topic(meta):
            try:
                writer = writer_at(self._context, meta, partition, wait_seconds=0)
            except StoreLocked:
                post(self._fs, self.directory(meta, partition), asked)
                return False
            try:
                work(writer)
            finally:
                writer.close()
            return True

    def _check_lineage(self, meta: TopicMeta, partition: int, head: Head | None) -> None:
        """Fence the partition where the bucket went on without us: then nothing is removed any more."""
        self._claims.check_lineage(meta, partition, head, self.writer(meta.name, partition))

    def _sealed(self, meta: TopicMeta, action: Action) -> SegmentFile | None:
        """Find the sealed segment of an action, the newest file excepted; None where it is gone."""
        directory = self.directory(meta, action.partition)
        # By the listing that the plan was made from: one for each of thousands of segments is quadratic.
        known = self._access.sealed_segment(directory, action.base_offset, action.end_offset)
        if known is not None and known.header.segment_id == action.segment_id:
            return known
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
        with self._access.hold_topic(meta):
            self._access.release(segment.path)
            self._fs.unlink(segment.path)
            self._fs.sync_directory(self.directory(meta, partition))


def _tails_before(head: Head, segment_id: UUID, end: int) -> list[Tail]:
    """Return the pieces of a segment that end at `end`, oldest first, as far as they are in the head itself."""
    found: list[Tail] = []
    for entry in reversed(head.inline):
        if entry.end_offset != end or entry.sealed or entry.segment_ids != (segment_id,):
            break
        found.append(Tail(entry.base_offset, end, entry.bytes))
        end = entry.base_offset
    return found[::-1]


def _rows(segment: SegmentFile, schema: pa.Schema, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield a segment's records in ``[start, end)`` as an object stores them."""
    offset = segment.index.base_offsets[segment.index.between(start, end)[0]]
    for batch, _ in merged_batches(segment, offsets=(start, end)):
        first, last = max(start, offset), min(end, offset + batch.num_rows)
        if first < last:
            rows = batch.slice(first - offset, last - first)
            numbers = pa.array(range(first, last), pa.int64())
            yield pa.RecordBatch.from_arrays([*rows.columns[1:], numbers, rows.column(0)], schema=schema)
        offset += batch.num_rows


def _tail_facts(segment: SegmentFile, start: int, end: int, ends: SegmentEnds) -> SegmentFacts:
    """Return the facts of a piece of a segment: those of its own end, whatever was appended since."""
    header = segment.header
    low, high, last = 1 << 62, -(1 << 62), header.created_us
    for block in segment.blocks(start, end):
        low = min(low, block.header.min_timestamp_us)
        high = max(high, block.header.max_timestamp_us)
        last = max(last, block.header.append_us)
    whole = segment.facts
    return SegmentFacts(
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
        start_offset=whole.start_offset if whole else 0,
        prev_origin_hash=header.prev_origin_hash,
        producers=ends.producers_at(segment, end) or (),
        end_hash=ends.hash_at(segment, end) or "",
    )
