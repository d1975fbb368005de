"""The claims of an open store: the epochs by which it commits to manifests, and how far each one is published (promise P7)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from uuid import UUID

from ..base.keyed_locks import KeyedLocks
from ..cold.manifest.commit import FIRST_LINEAGE, Committer
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.manifest.store_documents import DELETE_AGAIN, DELETED_IN_BUCKET
from ..errors import ColdStorageError, CorruptionError, DiskFull, Fenced, TieredError, TopicNotFound
from ..format.manifest import Head
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..hot.recovery import first_header
from ..reader.same_log import SameLog
from ..reader.tiers import Tiers
from ..survey.local_segments import LocalSegments
from ..warm.filesystem import FileSystem
from ..warm.partition_directory import read_lineage, write_lineage
from ..warm.segment_writer import SegmentWriter
from .fences import PartitionFences
from .partition_handle import PartitionHandle
from .store_claim import StoreClaim

log = logging.getLogger("tiered.claims")


class Claims:
    """The epochs that one open store holds in its bucket. Thread-safe; one thread at a time claims a partition.

    Attributes
    ----------
    store
        The claim on the prefix.
    fences
        The checks against other owners.
    same
        Compares records of the bucket and of this disk.
    """

    def __init__(
        self,
        tiers: Tiers,
        store_id: UUID,
        clock: Callable[[], int],
        fs: FileSystem,
        same: SameLog | None = None,
    ) -> None:
        self._tiers = tiers
        self._store_id = store_id
        self._clock = clock
        self._fs = fs
        self.same = same or SameLog()
        self.store = StoreClaim(tiers, store_id, clock, fs)
        self.fences = PartitionFences(self.store, self.same, fs)
        # The only locks of claims that are held during requests: one for each partition, one for each topic.
        self._partitions, self._topics = KeyedLocks(), KeyedLocks()
        self._committers: dict[tuple[UUID, int], Committer] = {}
        self._ends: dict[tuple[UUID, int], int] = {}
        self._without_lineage: set[tuple[UUID, int]] = set()
        self._unreachable = False
        self._lock = threading.Lock()

    # -- claims ----------------------------------------------------------------------------------

    def committer(self, handle: PartitionHandle, *, fresh: bool = True) -> Committer:
        """Return the committer of a partition after it claimed its epoch; the known one if it still holds the epoch.

        Parameters
        ----------
        fresh
            False: return the known committer, if there is one, without a request. It may be fenced already, and its
            next commit then raises `Fenced`. Call again with `fresh`: this claims anew, or raises why it may not.

        Raises
        ------
        Fenced
            The bucket belongs to a newer lineage, or is ahead of this disk; the partition is fenced.
        RestoreUnderWay
            The store is being restored elsewhere, and publishes nothing meanwhile.
        ConfigError, ColdStorageError
        """
        self.store.check_restores()
        announced = self.store.is_announced(handle.meta)
        self.announce(handle)
        present = self._committers.get(handle.key)
        if handle.key in self._without_lineage:
            self._write_lineage(handle)
        if present is not None and announced and not fresh:
            return present
        if present is not None:
            loaded = handle.manifest.load()
            if loaded is not None and loaded.head.epoch == present.epoch:
                return present
        with self.partition_lock(handle):
            other = self._committers.get(handle.key)
            if other is not None and other is not present:
                return other  # another thread claimed meanwhile
            return self._claim(handle)

    def announce(self, handle: PartitionHandle) -> None:
        """Write the topic to the bucket, once in this process, unless the bucket has it.

        Raises
        ------
        Fenced
            A newer lineage has the store, or the topic has a tombstone only: the sweep would delete what is published
            for it. The partition is fenced.
        TopicNotFound
            The topic was deleted on this disk too.
        ConfigError, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        meta = handle.meta
        if self.store.is_announced(meta):
            return
        with self._topics.of(meta.topic_id):
            if not self.store.is_announced(meta):
                self.fences.check_store(handle)
                try:
                    self.store.announce(meta)
                except TopicNotFound:
                    reason = f"{DELETED_IN_BUCKET}; {DELETE_AGAIN.format(name=meta.name)}"
                    self.fences.fence(handle, reason)

    def begin_partitions(self, before: TopicMeta, after: TopicMeta) -> None:
        """Begin a lineage in each new partition of a topic that was restored, before the topic's document names it.

        The lost disk may have had partitions with these numbers that the bucket never knew. By the lineage, readers tell their
        records from those of the new partitions. The head counts the lineages, so a repeat after a crash begins one more.

        Raises
        ------
        Fenced
            The store was restored elsewhere.
        TopicNotFound
            The topic was deleted.
        RestoreUnderWay, ConfigError, DiskFull, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        added = range(before.partitions, after.partitions)
        if not added or all(epoch in (None, FIRST_LINEAGE) for epoch in self._lineages(before)):
            return
        self.store.announce(before)
        for partition in added:
            handle = PartitionHandle(self._tiers, after, partition, {})
            committer = Committer(handle.manifest, self._store_id, clock=self._clock)
            epoch = committer.claim(begin_lineage=True, check=self.store.check_owner)
            end, now_us = committer.last_head().end_offset, self._clock()
            # As a restore leaves a partition: the newest segment has the lineage, and the end offset.
            header = first_header(self._store_id, after, partition, end, now_us, lineage_epoch=epoch)
            with handle.hold_topic():
                self._fs.make_directory(handle.directory)
                write_lineage(self._fs, handle.directory, epoch)
                SegmentWriter.create(self._fs, handle.directory, header).close()

    def announce_partitions(self, meta: TopicMeta) -> None:
        """Write new partitions of a published topic to the bucket, before they take records.

        So a restore knows them and begins their logs anew, and readers tell later records from those that were lost with the
        disk. If the bucket does not answer, the next pass writes them.
        """
        if not self._tiers.has_cold or all(epoch is None for epoch in self._lineages(meta)):
            return
        try:
            with self._topics.of(meta.topic_id):
                self.store.announce(meta, briefly=True)
        except TieredError as error:
            log.warning("the bucket does not know the new partitions of topic %r yet: %s", meta.name, error)

    def _lineages(self, meta: TopicMeta) -> list[int | None]:
        """Return the lineages of the partitions of a topic, as the disk has them."""
        directories = (self._tiers.directory(meta.name, key) for key in range(meta.partitions))
        return [read_lineage(directory) for directory in directories if directory is not None]

    def partition_lock(self, handle: PartitionHandle) -> threading.RLock:
        """Return the lock for claims of a partition and for uploads of its tail.

        Passes and the publisher ship from several threads. Under the lock no record is uploaded twice.
        """
        return self._partitions.of(handle.key)

    def _claim(self, handle: PartitionHandle) -> Committer:
        manifest = handle.manifest
        loaded = manifest.load()
        # After the topic was announced: a restore that began since then has found the topic, and publishes the first
        # head of each of its partitions before this store can.
        self.fences.check_store(handle)
        # After the head was read: otherwise records that are appended and published in between look as if the bucket were ahead.
        local = handle.local()
        lineage = read_lineage(handle.directory)
        if loaded is None and lineage is None:
            loaded = manifest.check_unpublished()
        if loaded is not None:
            self._check_log(handle, loaded.head, local)
        committer = Committer(manifest, self._store_id, clock=self._clock)
        begin = max([local.start_offset, *(item.header.base_offset for item in local.segments[:1])])
        try:
            committer.claim(
                lineage_epoch=lineage or FIRST_LINEAGE,
                start_offset=begin,
                may_begin=lineage is None,
                # The head that was checked above. If it changed since, the compare-and-swap fails and the head is read again.
                loaded=loaded,
            )
        except Fenced as newer:
            self.fences.write(handle, str(newer))
            raise
        claimed = committer.last_head()
        if claimed.end_offset != (begin if loaded is None else loaded.head.end_offset):
            # Another copy of this disk may have published in between.
            self._check_log(handle, claimed, handle.local())
        if lineage is None:
            self._write_lineage(handle)
        self._committers[handle.key] = committer
        return committer

    def _check_log(self, handle: PartitionHandle, head: Head, local: LocalSegments) -> None:
        """Fence a partition whose published records are not those of this disk; the local ones were read after the head."""
        end = local.segments[-1].end_offset if local.segments else 0
        writer = handle.writer
        if writer is not None:
            # Another process may have synced and shipped records that the writer has written and not synced.
            end = max(end, writer.end_offset)
        self.fences.check_not_ahead(handle, head, end)
        self.fences.check_same(handle, head, local.segments)

    def _write_lineage(self, handle: PartitionHandle) -> None:
        """Write the lineage of the claim: a restore elsewhere may have put another one into the head since.

        On a full disk the next call tries again: the action that needs the claim may be the one that makes room.
        """
        try:
            with handle.hold_topic():
                write_lineage(self._fs, handle.directory, FIRST_LINEAGE)
            self._without_lineage.discard(handle.key)
        except DiskFull as error:
            self._without_lineage.add(handle.key)
            log.info(
                "the lineage of %s/%d is not on the disk yet: %s", handle.meta.name, handle.partition, error
            )

    def keep_only(self, topics: Iterable[TopicMeta]) -> None:
        """Drop the state of all topics but these."""
        ids = {meta.topic_id for meta in topics}
        self.store.keep_only(ids)
        with self._lock:
            for state in (self._committers, self._ends, self.same.proven):
                for key in [key for key in list(state) if key[0] not in ids]:
                    del state[key]
            for key in [key for key in list(self._without_lineage) if key[0] not in ids]:
                self._without_lineage.discard(key)

    # -- published ends --------------------------------------------------------------------------

    def published_end(self, handle: PartitionHandle) -> int | None:
        """Return the known end of the published records; the first call reads it. None if nothing is published.

        Another process that tiers too can have published more since. A disk that never claimed the partition has published
        nothing, and sends no request: the first claim reads the head, and checks it.

        Raises
        ------
        Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        known = self.known_end(handle.meta, handle.partition)
        if known is not None or read_lineage(handle.directory) is None:
            return known
        return self.read_published_end(handle)

    def known_end(self, meta: TopicMeta, partition: int) -> int | None:
        """Return the known end of the published records, without a request; None if it is unknown."""
        return self._ends.get((meta.topic_id, partition))

    def known_head(self, meta: TopicMeta, partition: int) -> Head | None:
        """Return the last head that this process read or wrote, of any age, without a request."""
        committer = self._committers.get((meta.topic_id, partition))
        manifest = self._tiers.cached_manifest(meta, partition)
        heads = [committer.known_head if committer else None, manifest.last_head if manifest else None]
        return max(
            (head for head in heads if head), key=lambda head: (head.epoch, head.committed_us), default=None
        )

    def read_published_end(self, handle: PartitionHandle) -> int | None:
        """Read the end of the published records from the bucket; None if nothing is published.

        Raises
        ------
        Fenced
            Another lineage, or another copy of this disk, published; the partition is fenced now.
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        loaded = handle.manifest.load()
        if loaded is None:
            return None
        self.fences.check_lineage(handle, loaded.head)
        self.fences.check_same(handle, loaded.head)
        return self.record_head(handle, loaded.head)

    def record_head(self, handle: PartitionHandle, head: Head) -> int:
        """Record a head that was read just now and whose lineage is this disk's; return its end."""
        with self._lock:
            committer = self._committers.get(handle.key)
            if committer is not None and committer.epoch < head.epoch:
                # Another process of this store has claimed since. The next upload must bear a newer epoch.
                del self._committers[handle.key]
        return self.record_published(handle, head.end_offset)

    def record_published(self, handle: PartitionHandle, end_offset: int) -> int:
        """Record the end of the published records; it never moves back."""
        with self._lock:
            self._ends[handle.key] = max(end_offset, self._ends.get(handle.key, 0))
            return self._ends[handle.key]

    def end_in_bucket(self, meta: TopicMeta, partition: int, *, ask: bool) -> int | None:
        """Return the end of the published records; None if it is unknown.

        Parameters
        ----------
        ask
            Read the head; False sends no request.

        Raises
        ------
        Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        if not ask:
            return self.known_end(meta, partition)
        return self.read_published_end(PartitionHandle(self._tiers, meta, partition, {}))

    # -- appends ---------------------------------------------------------------------------------

    def head_before_appending(self, meta: TopicMeta, partition: int) -> Head | None:
        """Read the head of a partition before its writer opens, for `check_not_behind`.

        Returns None too if the bucket does not answer, or if the head is damaged. Appends go on, and the next pass
        checks again.
        """
        if not self._tiers.has_cold or self._unreachable:
            return None
        try:
            with self.store.brief_connection() as store:
                loaded = PartitionManifest(store, meta.name, meta.topic_id, partition).load()
        except (ColdStorageError, CorruptionError) as error:
            self._unreachable = isinstance(error, ColdStorageError)
            log.warning("cannot compare with the bucket before appending: %s", error)
            return None
        return loaded.head if loaded else None

    def check_not_behind(
        self, meta: TopicMeta, partition: int, writer: PartitionWriter, head: Head | None
    ) -> None:
        """Refuse appends to an old image of the disk: they would get offsets that the bucket has used.

        Parameters
        ----------
        head
            Read before `writer` was opened. So the disk has all that it published itself.

        Raises
        ------
        Fenced, CorruptionError, UnsupportedFormat
        """
        handle = PartitionHandle(self._tiers, meta, partition, {partition: writer})
        self.fences.check_lineage(handle, head)
        if head is None:
            return
        self.fences.check_not_ahead(handle, head, writer.end_offset)
        with suppress(ColdStorageError):  # a page of the manifest cannot be read; the next pass checks again
            self.fences.check_same(handle, head)
