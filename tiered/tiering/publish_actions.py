"""The actions that move records to the bucket: offload of sealed segments, and shipping of tails (promises P5, P6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

import pyarrow as pa

from ..cold.manifest.commit import Committer
from ..cold.parquet.key_filter_writer import KeyFilter
from ..cold.parquet.layout import object_schema
from ..cold.parquet.writer import write_object
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import ColdStorageError, Fenced, TopicNotFound
from ..format.manifest import Head, covers
from ..format.manifest_changes import add_objects, add_schemas
from ..format.schema import TRANSACTIONS_TOPIC, consecutive_offsets, schema_to_text
from ..format.segment_facts import SegmentFacts
from ..policies.actions import Offload, ShipTail
from ..policies.tail_joining import TAIL_BYTES_MAX, ShippedTail, extended_base
from ..reader.same_log import Likeness
from ..warm.ends import SegmentEnds
from ..warm.partition_directory import read_start_offset
from ..warm.reencode import merged_batches
from ..warm.segment_reader import SegmentFile
from .claims import Claims
from .partition_handle import PartitionHandle
from .tail_survey import survey_tail


class PublishActions:
    """Handlers of the actions that publish records; each reads the present state before it changes anything."""

    def __init__(self, context: StoreContext, topics: OpenTopics, claims: Claims) -> None:
        self._context = context
        self._topics = topics
        self._tiers = context.tiers
        self._claims = claims
        self._same = claims.same

    def offload(self, action: Offload) -> int | None:
        """Upload, verify and publish a sealed segment, in place of its shipped tails."""
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        segment = handle.sealed(action)
        if segment is None or segment.facts is None:
            return 0
        committer = self._claims.committer(handle)
        base, end = segment.header.base_offset, segment.end_offset
        entries = committer.partition.entries(committer.last_head(), base, end)
        # Tails of early releases, and objects of several segments, have no hash of this segment in the manifest.
        likeness = self._same.within(committer.partition, handle.meta, entries, [segment], read=True)
        if likeness is Likeness.OTHER:
            self._claims.fences.fence_diverged(handle, end)
        if covers([entry for entry in entries if entry.sealed], segment.header.segment_id, base, end):
            return 0  # a tail pass published the whole segment first
        return self._publish(handle, committer, segment, segment.facts, sealed=True)

    def ship_tail(self, action: ShipTail) -> int | None:
        """Publish the durable records that the bucket lacks, in ranges of their segment.

        A range is of whole blocks and has at most `TAIL_BYTES_MAX`, unless one block has more; see `_range_end`. Each
        range is a commit of its own, with the facts of its own end. So no other tail waits for longer than a range takes,
        and a crash undoes at most one. An action without records publishes the start offset.
        """
        handle = PartitionHandle.named(self._topics, action.topic, action.partition)
        if action.base_offset == action.end_offset:
            self._raise_start(handle, action.end_offset)
            return 0
        writer = handle.writer
        if writer is not None:
            # Under sync=never: a disk that lost published records would look like an old image of itself.
            writer.flush()
        moved, base = 0, action.base_offset
        while base < action.end_offset:
            with self._claims.partition_lock(handle):
                segment = handle.active_or_sealed(action)
                if segment is None:
                    break
                base = max(base, segment.header.base_offset)
                end = self._known_end(segment, min(action.end_offset, segment.end_offset))
                if base >= end:
                    break
                try:
                    count, base = self._ship_range(handle, segment, base, end)
                except FileNotFoundError:
                    if writer is None or writer.active_segment_id == action.segment_id:
                        raise
                    continue  # the segment was sealed since, and then re-encoded or evicted
                moved += count
        return moved

    def publish_start(self, handle: PartitionHandle, offset: int) -> None:
        """Publish that the log begins at `offset` or later.

        Before its start moves, the transaction log appends again what it still needs. The bucket gets these records first:
        otherwise a disk that is lost in between would take them along.

        Raises
        ------
        ColdStorageError, Fenced, CorruptionError, UnsupportedFormat
        """
        if handle.meta.name == TRANSACTIONS_TOPIC:
            self._publish_all(handle)
        self._raise_start(handle, offset)

    def _publish_all(self, handle: PartitionHandle) -> None:
        actions = survey_tail(self._claims, handle)[1]
        for action in actions:
            self.ship_tail(action)
        end, published = max((action.end_offset for action in actions), default=0), self._published(handle)
        if published < end:
            raise ColdStorageError(
                f"partition {handle.partition} of topic {handle.meta.name!r} is published up to offset {published} of {end}",
                retryable=True,
            )

    def _published(self, handle: PartitionHandle) -> int:
        return self._claims.known_end(handle.meta, handle.partition) or 0

    def _raise_start(self, handle: PartitionHandle, offset: int) -> None:
        """Publish a start offset, in a first head if there is none."""
        with self._claims.partition_lock(handle):
            try:
                head = self._claims.committer(handle, fresh=False).raise_start_offset(offset)
            except Fenced:
                # As in `_ship_range`.
                head = self._claims.committer(handle).raise_start_offset(offset)
            self._claims.record_published(handle, head.end_offset)

    def _known_end(self, segment: SegmentFile, end: int) -> int:
        """Return `end`, or the segment's end if the producers' state at `end` is unknown.

        The producers' state in an object must be that at its end.
        """
        return segment.end_offset if self._same.ends.producers_at(segment, end) is None else end

    def _ship_range(
        self, handle: PartitionHandle, segment: SegmentFile, base: int, end: int
    ) -> tuple[int, int]:
        """Publish the first records of ``[base, end)`` that the bucket lacks; return their bytes, and their end."""
        try:
            # A pass every second must not begin each commit with a read of the head that it wrote itself.
            committer = self._claims.committer(handle, fresh=False)
            if committer.last_head().end_offset < base:
                # Another process published the records between, or retention removed them.
                committer = self._claims.committer(handle)
            return self._ship(handle, committer, segment, base, end)
        except Fenced:
            # Perhaps another pass of this store has claimed the partition. If another store has, this raises again.
            committer = self._claims.committer(handle)
            return self._ship(handle, committer, segment, base, end)

    def _ship(
        self, handle: PartitionHandle, committer: Committer, segment: SegmentFile, base: int, end: int
    ) -> tuple[int, int]:
        head = committer.last_head()
        base = max(base, head.end_offset)
        if base >= end:
            self._claims.record_published(handle, head.end_offset)
            return 0, base
        if segment.facts is None or (base, end) != (segment.header.base_offset, segment.end_offset):
            # A sealed segment without published records goes whole: no object has to replace its tails later.
            end = self._range_end(segment, base, end)
        share = segment.bytes * (end - base) // max(1, segment.end_offset - segment.header.base_offset)
        tails = _tails_before(head, segment.header.segment_id, base)
        likeness = self._same.at_end(committer.partition, head, [segment])
        if likeness is Likeness.OTHER:
            self._claims.fences.fence_diverged(handle, head.end_offset)
        if likeness is Likeness.SAME:
            base = extended_base(tails, ShippedTail(base, end, share))
        if segment.facts is not None and (base, end) == (segment.header.base_offset, segment.end_offset):
            return self._publish(handle, committer, segment, segment.facts, sealed=True), end
        facts = _tail_facts(segment, base, end, self._same.ends)
        return self._publish(handle, committer, segment, facts, sealed=False), end

    def _range_end(self, segment: SegmentFile, base: int, end: int) -> int:
        """Return where the range that begins at `base` is cut: at the last block that fits, if its facts are known."""
        cut = segment.index.fitting_end(base, end, TAIL_BYTES_MAX)
        return end if self._same.ends.producers_at(segment, cut) is None else cut

    def _publish(
        self,
        handle: PartitionHandle,
        committer: Committer,
        segment: SegmentFile,
        facts: SegmentFacts,
        *,
        sealed: bool,
    ) -> int:
        """Upload records and publish them; return the size of the object."""
        self._publish_log_first(handle)
        start, schemas = read_start_offset(handle.directory), handle.meta.schemas
        if committer.last_head().end_offset < facts.base_offset <= start:
            # Retention removed records that were never offloaded: the log in the manifest begins anew.
            committer.raise_start_offset(facts.base_offset)
        name = committer.new_object_name(facts.base_offset)
        key = committer.partition.keys.data(name)
        schema = object_schema(schemas[facts.schema_id])
        texts = {i: schema_to_text(item) for i, item in enumerate(schemas)}
        rule = self._context.settings.policy_for(handle.meta.name).offload
        try:
            with self._tiers.object_store.upload(key) as upload:
                rows = _rows(segment, schema, facts.base_offset, facts.end_offset)
                entry = write_object(
                    upload, schema, rows, facts,
                    name=name, sealed=sealed, row_group_bytes=rule.row_group_bytes,
                    # Tails are replaced before they are read often.
                    key_filter=KeyFilter.of(handle.meta, rule.key_filter) if sealed else None,
                )  # fmt: skip

            def change(head: Head) -> Head:
                if not sealed and head.end_offset >= entry.end_offset:
                    return head  # another thread published the whole segment first
                return add_objects(add_schemas(head, texts), [entry], committer.partition)

            head = committer.commit(change)
        finally:
            # Also after a commit without an answer: the committer settles it before the next `survey`.
            committer.release([name])
        self._claims.fences.check_same(handle, head, [segment])
        self._claims.record_published(handle, head.end_offset)
        return entry.bytes

    def _publish_log_first(self, handle: PartitionHandle) -> None:
        """Publish the records of the transactions that have rows in the partition, before these rows.

        So a restore that finds a part of a transaction finds all of it. This holds for an upload without a commit too: a
        restore to an earlier time may adopt the object.

        Raises
        ------
        ColdStorageError, Fenced, CorruptionError, UnsupportedFormat
        """
        if handle.meta.name == TRANSACTIONS_TOPIC:
            # A restore appends rows to topics that had nothing in the bucket yet.
            for meta in self._context.commits.participants():
                with suppress(TopicNotFound):
                    self._claims.announce(PartitionHandle.of(self._topics, meta, 0))
            return
        end = self._context.commits.log_end_before(handle.meta, handle.partition)
        if end is None:
            return
        log = PartitionHandle.named(self._topics, TRANSACTIONS_TOPIC, 0)
        if (self._claims.published_end(log) or 0) >= end:
            return
        if log.writer is not None:
            log.writer.sync_to(end)  # the last of them may be on its way to the disk
        self._publish_all(log)
        published = self._published(log)
        if published < end:
            raise ColdStorageError(
                f"the transaction log is published up to offset {published}, and transactions with rows of partition "
                f"{handle.partition} of topic {handle.meta.name!r} up to offset {end}: nothing of the partition was published",
                retryable=True,
            )

    def prove(self, handle: PartitionHandle) -> None:
        """Compare the published records with the local log, record by record if the hashes prove nothing; see `SameLog`.

        Raises
        ------
        Fenced
            They differ: another copy of this disk published.
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        manifest = handle.manifest
        loaded = manifest.load()
        if loaded is None:
            return
        writer = handle.writer
        if writer is not None:
            writer.flush()  # another process may have published records that the writer has not synced
        local = handle.local()
        end = local.segments[-1].end_offset if local.segments else 0
        self._claims.fences.check_not_ahead(handle, loaded.head, end)
        if self._same.prove(manifest, handle.meta, loaded.head, local.segments) is Likeness.OTHER:
            self._claims.fences.fence_diverged(handle, loaded.head.end_offset)


def _tails_before(head: Head, segment_id: UUID, end: int) -> list[ShippedTail]:
    """Return the published tails of a segment that end at `end`, oldest first, from the entries in the head itself."""
    tails: list[ShippedTail] = []
    for entry in reversed(head.inline):
        if entry.end_offset != end or entry.sealed or entry.segment_ids != (segment_id,):
            break
        tails.append(ShippedTail(entry.base_offset, end, entry.bytes))
        end = entry.base_offset
    return tails[::-1]


def _rows(segment: SegmentFile, schema: pa.Schema, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield a segment's records in ``[start, end)`` in the columns of an object."""
    offset = segment.index.base_offsets[segment.index.between(start, end)[0]]
    for batch, _ in merged_batches(segment, offsets=(start, end)):
        first, last = max(start, offset), min(end, offset + batch.num_rows)
        if first < last:
            rows = batch.slice(first - offset, last - first)
            numbers = consecutive_offsets(first, last)
            yield pa.RecordBatch.from_arrays([*rows.columns[1:], numbers, rows.column(0)], schema=schema)
        offset += batch.num_rows


def _tail_facts(segment: SegmentFile, start: int, end: int, ends: SegmentEnds) -> SegmentFacts:
    """Return the facts of a range of a segment, with hash and producers as of its end."""
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
