"""Which partitions of the bucket this store may change: claims, announcements, fences (promise P7)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from uuid import UUID

from ..base.keyed_locks import Turns
from ..cold.manifest.commit import FIRST_LINEAGE, Committer
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.manifest.restores import IntentWatch
from ..cold.manifest.store_documents import DELETE_AGAIN, DELETED_IN_BUCKET, StoreDocuments
from ..cold.object_store.probe import ProbeOutcome, check_conditional_writes
from ..cold.object_store.protocol import ObjectStore
from ..errors import ColdStorageError, CorruptionError, DiskFull, Fenced, TopicNotFound, UnsupportedFormat
from ..format.manifest import Head
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..reader.same_log import Likeness, SameLog
from ..reader.snapshot import check_owner
from ..reader.tiers import Tiers
from ..survey.local_segments import LocalSegments, open_segments
from ..warm.bucket_binding import read_cold_place, write_cold_place
from ..warm.catalog import Catalog
from ..warm.filesystem import FileSystem
from ..warm.partition_directory import FENCED_FILE, read_lineage, write_fence, write_lineage
from ..warm.segment_reader import SegmentFile

log = logging.getLogger("tiered.claims")


class Claims:
    """The epochs that one open store holds in its bucket. Thread-safe, a thread a partition."""

    def __init__(
        self,
        access: Tiers,
        store_id: UUID,
        clock: Callable[[], int],
        fs: FileSystem,
        same: SameLog | None = None,
    ) -> None:
        self._access = access
        self._store_id = store_id
        self._clock = clock
        self._fs = fs
        self.same = same or SameLog()
        self.restores = IntentWatch()
        self._committers: dict[tuple[UUID, int], Committer] = {}
        # The bucket is asked under these alone: one for each partition, for each topic, and for the prefix.
        self._turns, self._topics, self._prefix = Turns(), Turns(), threading.RLock()
        self._ends: dict[tuple[UUID, int], int] = {}
        self._announced: dict[UUID, TopicMeta] = {}
        self._documents_lineage = 1  # that documents of the store bear, as of the last look
        self._without_lineage: set[tuple[UUID, int]] = set()
        self._owns_prefix = False
        self._unreachable = False
        self._lock = threading.Lock()
        self._conditional_writes = ProbeOutcome()

    def committer(
        self,
        meta: TopicMeta,
        partition: int,
        look: Callable[[], LocalSegments],
        writer: PartitionWriter | None,
        *,
        fresh: bool = True,
    ) -> Committer:
        """Return the committer of a partition, its epoch claimed; one that still holds its epoch is kept.

        Parameters
        ----------
        look
            Lists the local segments; called after the head was read, so that it is the later look.
        fresh
            False: the committer that is known, if there is one, without a look at the bucket. It may have been
            fenced since, which its next commit finds out; then this is to be called again, and claims anew or
            says who owns the partition.

        Raises
        ------
        Fenced
            The bucket belongs to a newer lineage, or is ahead of this disk; the partition is fenced.
        RestoreUnderWay
            The store is being restored elsewhere, and publishes nothing meanwhile.
        ConfigError, ColdStorageError
        """
        self.check_restores()
        announced = self._is_announced(meta)
        self.announce(meta, partition, writer)
        known = self._committers.get((meta.topic_id, partition))
        if (meta.topic_id, partition) in self._without_lineage:
            self._remember_lineage(meta, partition)
        if known is not None and announced and not fresh:
            return known
        loaded = self._access.cold(meta, partition).load()
        if known is not None and loaded is not None and loaded.head.epoch == known.epoch:
            return known
        with self.partition_lock(meta, partition):
            found = self._committers.get((meta.topic_id, partition))
            if found is not None and found is not known:
                return found  # claimed by another thread meanwhile
            return self._claim(meta, partition, look, writer)

    def announce(self, meta: TopicMeta, partition: int, writer: PartitionWriter | None) -> None:
        """Make sure, once in this process, that the bucket knows the topic and lets it live.

        Raises
        ------
        Fenced
            A newer lineage has the store, or the topic was deleted in the bucket alone: what is published for it would be
            swept. The partition is fenced.
        TopicNotFound
            It was deleted here, too.
        ConfigError, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        if self._is_announced(meta):
            return
        with self._topics.of(meta.topic_id):
            if not self._is_announced(meta):
                self.check_store(meta, partition, writer)
                try:
                    self._announce(meta)
                except TopicNotFound:
                    reason = f"{DELETED_IN_BUCKET}; {DELETE_AGAIN.format(name=meta.name)}"
                    self._fence(meta, partition, writer, reason)

    def check_restores(self) -> None:
        """Raise while the store is being restored elsewhere; the bucket is asked every few seconds, by one GET.

        Raises
        ------
        RestoreUnderWay
        """
        if self._owns_prefix:  # else the first look is that of `check_store`
            self.restores.check(StoreDocuments(self._access.object_store))

    def partition_lock(self, meta: TopicMeta, partition: int) -> threading.RLock:
        """Return the lock under which the tail of a partition is shipped, and its epoch claimed.

        Passes and appends that wait to be published ship from several threads, and nothing twice.
        """
        return self._turns.of((meta.topic_id, partition))

    def published_end(self, meta: TopicMeta, partition: int, writer: PartitionWriter | None) -> int | None:
        """Return the end of what the bucket is known to have; it is asked once, and then told by `record_published`.

        None where nothing was published. It can be more by now, if another process tiers too.

        Raises
        ------
        Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        known = self.known_end(meta, partition)
        return known if known is not None else self.read_published_end(meta, partition, writer)

    def known_end(self, meta: TopicMeta, partition: int) -> int | None:
        """Return the end of what the bucket is known to have, without asking it; None where that is not known."""
        return self._ends.get((meta.topic_id, partition))

    def known_head(self, meta: TopicMeta, partition: int) -> Head | None:
        """Return the head as this process saw or wrote it last, however long ago; the bucket is not asked."""
        committer = self._committers.get((meta.topic_id, partition))
        cold = self._access.cached_manifest(meta, partition)
        heads = [committer.known_head if committer else None, cold.last_head if cold else None]
        return max(
            (head for head in heads if head), key=lambda head: (head.epoch, head.committed_us), default=None
        )

    def read_published_end(
        self, meta: TopicMeta, partition: int, writer: PartitionWriter | None
    ) -> int | None:
        """Return the end of what the bucket has, read now; None where nothing was published.

        Raises
        ------
        Fenced
            Another lineage, or another copy of this disk, went on with the partition, which is fenced now.
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        loaded = self._access.cold(meta, partition).load()
        if loaded is None:
            return None
        self.check_lineage(meta, partition, loaded.head, writer)
        self.check_same(meta, partition, loaded.head, writer)
        return self.note_head(meta, partition, loaded.head)

    def note_head(self, meta: TopicMeta, partition: int, head: Head) -> int:
        """Take note of a head that was read just now, and whose lineage is this disk's; return its end."""
        with self._lock:
            known = self._committers.get((meta.topic_id, partition))
            if known is not None and known.epoch < head.epoch:
                # Another process of this store tiered since. What we upload now must bear a newer epoch.
                del self._committers[meta.topic_id, partition]
        return self.record_published(meta, partition, head.end_offset)

    def record_published(self, meta: TopicMeta, partition: int, end_offset: int) -> int:
        """Remember how far a partition is published; it never goes back."""
        key = (meta.topic_id, partition)
        with self._lock:
            self._ends[key] = max(end_offset, self._ends.get(key, 0))
            return self._ends[key]

    def check_same(
        self,
        meta: TopicMeta,
        partition: int,
        head: Head,
        writer: PartitionWriter | None,
        segments: Sequence[SegmentFile] | None = None,
    ) -> None:
        """Fence a partition whose manifest ends in records of another copy of this disk; see `SameLog.at_end`.

        Parameters
        ----------
        segments
            Those that are near the end of the head, if they are open.

        Raises
        ------
        Fenced
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        cold, end = self._access.cold(meta, partition), head.end_offset
        if segments is None:
            directory = self._directory(meta, partition)
            segments = open_segments(
                self._access, directory, writer, lambda base, bound: base <= end <= bound
            )
            for segment in segments:
                check_owner(segment, meta)
        if self.same.at_end(cold, head, segments) is Likeness.OTHER:
            self.diverged(meta, partition, writer, end)

    def check_not_ahead(
        self, meta: TopicMeta, partition: int, head: Head, end: int, writer: PartitionWriter | None
    ) -> None:
        """Fence a partition of which the bucket has more than the disk, whose `end` was looked up after the head was read.

        Raises
        ------
        Fenced
        """
        if head.end_offset > end:
            reason = f"the bucket ends at offset {head.end_offset}, this disk at {end}"
            self._fence(meta, partition, writer, reason)

    def diverged(self, meta: TopicMeta, partition: int, writer: PartitionWriter | None, end: int) -> NoReturn:
        """Fence a partition of which the bucket has other records than this disk, under the same ids."""
        self._fence(
            meta,
            partition,
            writer,
            f"before offset {end} the bucket has other records than this disk: another copy of the store's directory "
            "published them",
        )

    def _claim(
        self,
        meta: TopicMeta,
        partition: int,
        look: Callable[[], LocalSegments],
        writer: PartitionWriter | None,
    ) -> Committer:
        cold = self._access.cold(meta, partition)
        loaded = cold.load()
        # Once more, after the topic was announced: a restore that began since then found the topic, and makes the
        # first head of each of its partitions before we could.
        self.check_store(meta, partition, writer)
        local = look()
        end = local.segments[-1].end_offset if local.segments else 0
        if writer is not None:
            # A tierer beside may have synced and shipped what the writer has written and not synced itself.
            end = max(end, writer.end_offset)
        directory = self._directory(meta, partition)
        lineage = read_lineage(directory)
        if loaded is None and lineage is None:
            loaded = cold.check_unpublished()
        if loaded is not None:
            self.check_not_ahead(meta, partition, loaded.head, end, writer)
            self.check_same(meta, partition, loaded.head, writer, local.segments)
        committer = Committer(cold, self._store_id, clock=self._clock)
        begin = max([local.start_offset, *(item.header.base_offset for item in local.segments[:1])])
        try:
            committer.claim(
                lineage_epoch=lineage or FIRST_LINEAGE, start_offset=begin, may_begin=lineage is None
            )
        except Fenced as newer:
            self._mark(meta, partition, writer, str(newer))
            raise
        if lineage is None:
            self._remember_lineage(meta, partition)
        self._committers[meta.topic_id, partition] = committer
        return committer

    def _remember_lineage(self, meta: TopicMeta, partition: int) -> None:
        """Write down the lineage that was claimed in: by now the head may say another, of a restore elsewhere.

        On a full disk that waits for the next call: what is claimed for may be what makes room.
        """
        key = meta.topic_id, partition
        try:
            with self._access.hold_topic(meta):
                write_lineage(self._fs, self._directory(meta, partition), FIRST_LINEAGE)
            self._without_lineage.discard(key)
        except DiskFull as error:
            self._without_lineage.add(key)
            log.info("the lineage of %s/%d is not remembered yet: %s", meta.name, partition, error)

    def head_before_appending(self, meta: TopicMeta, partition: int) -> Head | None:
        """Return what the bucket says of a partition that is about to be opened, for `check_not_behind`.

        None too where the bucket does not answer, or its head is damaged: that is no reason to refuse appends, and the
        next pass looks again.
        """
        if not self._access.has_cold or self._unreachable:
            return None
        try:
            with self._briefly() as store:
                loaded = PartitionManifest(store, meta.name, meta.topic_id, partition).load()
        except (ColdStorageError, CorruptionError) as error:
            self._unreachable = isinstance(error, ColdStorageError)
            log.warning("cannot compare with the bucket before appending: %s", error)
            return None
        return loaded.head if loaded else None

    def check_not_behind(
        self, meta: TopicMeta, partition: int, writer: PartitionWriter, head: Head | None
    ) -> None:
        """Refuse to append to an old image of a disk, which would use offsets again that the bucket has.

        Parameters
        ----------
        head
            As it was read before `writer` was opened: what this disk published since, it has.

        Raises
        ------
        Fenced
        """
        self.check_lineage(meta, partition, head, writer)
        if head is None:
            return
        self.check_not_ahead(meta, partition, head, writer.end_offset, writer)
        with suppress(ColdStorageError):  # of a page of the manifest; the next pass looks again
            self.check_same(meta, partition, head, writer)

    def bucket_answers(self) -> bool:
        """Whether the bucket answers a question, asked once and without patience."""
        try:
            with self._briefly() as store:
                StoreDocuments(store).read_store_id()
        except ColdStorageError:
            return False
        except (CorruptionError, UnsupportedFormat):
            return True  # if nothing good
        return True

    @contextmanager
    def _briefly(self) -> Iterator[ObjectStore]:
        options = self._access.locations.cold_options
        store = self._access.connect(
            replace(options, attempts=1, connect_timeout_seconds=2.0, read_timeout_seconds=5.0)
        )
        try:
            yield store
        finally:
            self._access.disconnect(store)

    def check_lineage(
        self, meta: TopicMeta, partition: int, head: Head | None, writer: PartitionWriter | None
    ) -> None:
        """Fence a partition whose manifest went on in another lineage.

        Raises
        ------
        Fenced
        """
        known = read_lineage(self._directory(meta, partition)) or FIRST_LINEAGE
        if head is not None and head.lineage_epoch != known:
            began = f"lineage {head.lineage_epoch} began at offset {head.lineages[-1][1]} in the bucket"
            self._fence(meta, partition, writer, f"{began}, this disk belongs to lineage {known}")

    def check_owner(self) -> bool:
        """Return whether the prefix is this store's by now; False where nobody owns it yet.

        Raises
        ------
        ConfigError, Fenced
            It is another store's, or the store was restored elsewhere.
        RestoreUnderWay
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        bucket = StoreDocuments(self._access.object_store)
        if bucket.read_store_id() is None:
            return False
        self._claim_store(bucket)
        return True

    def _claim_store(self, bucket: StoreDocuments) -> None:
        """Make sure that the prefix is this store's; a restore that was cut short is given up by that."""
        self._documents_lineage = bucket.claim_store(
            self._store_id,
            self._lineage,
            left_seconds=lambda intent: self.restores.left_seconds(bucket, intent),
        )
        self.restores.clear()

    def check_may_write_tombstone(self, meta: TopicMeta) -> None:
        """Raise what `write_tombstone` would, while the topic is whole: afterwards there is no way back.

        Raises
        ------
        Fenced
            A newer lineage has the store, or the topic.
        ConfigError, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        if self._access.has_cold:
            bucket = StoreDocuments(self._access.object_store)
            if self._owns(bucket):
                bucket.check_may_write_tombstone(meta.name, meta.topic_id, self._documents_lineage)

    def write_tombstone(self, meta: TopicMeta, *, briefly: bool = False) -> None:
        """Put a tombstone into the bucket for a topic that is gone here.

        Also where the bucket does not know it yet: a pass in another process may be announcing it right now.

        Parameters
        ----------
        briefly
            Ask the bucket once, and without patience.

        Raises
        ------
        Fenced
            A newer lineage has the store, or the topic.
        ConfigError, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        if not self._access.has_cold:
            return
        with self._briefly() if briefly else nullcontext(self._access.object_store) as store:
            bucket = StoreDocuments(store)
            if self._owns(bucket):
                lineage = self._documents_lineage
                bucket.tombstone(meta.name, meta.topic_id, deleted_us=self._clock(), lineage=lineage)

    def _owns(self, bucket: StoreDocuments) -> bool:
        """Make sure that the prefix is this store's; False where it is another's, so that nothing of ours is there."""
        if bucket.read_store_id() not in (None, self._store_id):
            return False
        self._own_prefix(bucket)
        self._claim_store(bucket)
        return True

    def forget_others(self, topics: Iterable[TopicMeta]) -> None:
        """Let go of what is kept of topics other than these: they were deleted."""
        ids = {meta.topic_id for meta in topics}
        with self._lock:
            for topic_id in self._announced.keys() - ids:
                del self._announced[topic_id]
            for kept in (self._committers, self._ends, self.same.proven):
                for key in [key for key in list(kept) if key[0] not in ids]:
                    del kept[key]
            for key in [key for key in list(self._without_lineage) if key[0] not in ids]:
                self._without_lineage.discard(key)

    def _is_announced(self, meta: TopicMeta) -> bool:
        newest = self._announced.get(meta.topic_id)
        return self._owns_prefix and newest is not None and _has_all_of(newest, meta)

    def _announce(self, meta: TopicMeta) -> None:
        """Make sure that the prefix is this store's, and that it knows the topic as it is now."""
        bucket = StoreDocuments(self._access.object_store)
        self._own_prefix(bucket)
        try:
            bucket.put_topic(meta.to_json(), self._documents_lineage)
        except Fenced:
            # Perhaps by a restore that began since, which may be under way still, or cut short.
            self._claim_store(bucket)
            bucket.put_topic(meta.to_json(), self._documents_lineage)
        with self._lock:
            self._announced[meta.topic_id] = meta

    @property
    def _lineage(self) -> int:
        root = self._access.locations.root
        assert root is not None
        return Catalog(self._fs, root).lineage()

    def check_store(self, meta: TopicMeta, partition: int, writer: PartitionWriter | None) -> None:
        """Fence a partition of a store that was restored elsewhere.

        Raises
        ------
        ConfigError, Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        try:
            self.check_owner()
        except Fenced as newer:
            self._mark(meta, partition, writer, str(newer))
            raise

    def _own_prefix(self, bucket: StoreDocuments) -> None:
        with self._prefix:
            if self._owns_prefix:
                return
            if bucket.read_store_id() is None:
                self._conditional_writes.check(lambda: check_conditional_writes(bucket.store))
            self._claim_store(bucket)
            root = self._access.locations.root
            if root is not None and not (place := read_cold_place(root)).claimed:
                claimed = replace(place, url=self._access.locations.cold_url, claimed=True)
                try:
                    write_cold_place(self._fs, root, claimed)
                except DiskFull as error:  # as in `_remember_lineage`
                    log.info("that the bucket was claimed is not remembered yet: %s", error)
                    return
            self._owns_prefix = True

    def _fence(
        self, meta: TopicMeta, partition: int, writer: PartitionWriter | None, reason: str
    ) -> NoReturn:
        self._mark(meta, partition, writer, reason)
        raise Fenced(f"partition {partition} of topic {meta.name!r} was fenced: {reason}; see {FENCED_FILE}")

    def _mark(self, meta: TopicMeta, partition: int, writer: PartitionWriter | None, reason: str) -> None:
        with self._access.hold_topic(meta):
            if writer is not None:
                writer.fence(reason)
            else:
                write_fence(self._fs, self._directory(meta, partition), reason)

    def _directory(self, meta: TopicMeta, partition: int) -> Path:
        directory = self._access.directory(meta.name, partition)
        assert directory is not None
        return directory


def _has_all_of(newest: TopicMeta, meta: TopicMeta) -> bool:
    """Whether a topic's document is `meta`, or what it has grown into since another thread looked it up."""
    return newest.partitions >= meta.partitions and newest.schemas[: len(meta.schemas)] == meta.schemas
